"""A figure that a notebook shows, whatever matplotlib has been told there."""

from matplotlib.figure import Figure

from protosphere.reports import canvas


class Drawing(Figure):
    """A matplotlib figure that nobody else draws into."""

    def _repr_png_(self) -> bytes:
        return canvas.png(self)
