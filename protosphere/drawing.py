"""A figure that a notebook shows, whatever matplotlib has been told there, with the numbers that it shows."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from protosphere.core.errors import SettingError
from protosphere.core.seeds import limited_threads
from protosphere.core.settings import shown
from protosphere.reports import canvas
from protosphere.reports.csv_files import as_csv
from protosphere.reports.page import write
from protosphere.reports.pictures import Picture

FORMATS = ("svg", "pdf", "png", "csv")
DOTS = 200  # an inch


class Drawing(Figure):
    """A figure of matplotlib's, drawn as a report has it, that nobody else draws into.

    A notebook shows it; `axes` are there to be changed, and `savefig` writes what matplotlib can.

    Attributes:
        name: its files', as in a report's folder `pictures`.
        caption: what a report says under it.
    """

    name = caption = ""
    _numbers: Sequence[Sequence[object]] = ()

    @property
    def numbers(self) -> pd.DataFrame:
        """What it shows, as a table; accuracies in percent.

        >>> run.plot_accuracy().numbers.columns[:2].tolist()
        ['round', 'mean (%)']
        """
        heads, *rows = self._numbers or [[]]
        return pd.DataFrame(rows, columns=list(heads))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file: the figure as .pdf, .png or .svg, or its numbers as .csv.

        >>> run.plot_accuracy().save(run.folder / "accuracy.csv").name
        'accuracy.csv'

        Returns:
            The path.

        Raises:
            SettingError: the name ends otherwise, or the file cannot be written.
        """
        target = Path(path).expanduser()
        ending = target.suffix.removeprefix(".").lower()
        if ending not in FORMATS:
            raise SettingError(f"the file {shown(str(path))} cannot be written: its name ends in {_listed(FORMATS)}.")
        try:
            if ending == "csv":
                write(target, as_csv(self._numbers))
            else:
                # without the time, so that the same figure gives the same file
                times = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(ending)
                with rc_context(canvas.STYLE):
                    self.savefig(target, dpi=DOTS, metadata=times, facecolor="auto")
        except OSError as error:
            raise SettingError(
                f"{target} cannot be written ({error.strerror or error}); give an existing folder that you may write "
                "to."
            ) from None
        return target

    def _repr_png_(self) -> bytes:
        return canvas.png(self)


def drawing_of(make: "Callable[[], Picture | str]", place: str) -> Drawing:
    """The figure of a picture that a report has.

    Args:
        make: draws it. place: of what it is, for the error.

    Raises:
        SettingError: there is nothing to draw, and why.
    """
    # the number of threads would change a map's last digits
    with limited_threads(1), canvas.as_figures(Drawing) as figures:
        picture = make()
    if isinstance(picture, str):
        raise SettingError(f"{place} cannot be drawn: {picture}")
    drawn: Any = figures[-1]
    drawn.set_facecolor(canvas.GROUND)
    drawn.name, drawn.caption, drawn._numbers = picture.name, picture.caption, picture.numbers
    return cast(Drawing, drawn)


def refuse_formats(formats: Sequence[str]) -> None:
    """Raises SettingError unless all are of `FORMATS`."""
    unknown = [form for form in formats if form not in FORMATS]
    if isinstance(formats, str) or unknown:
        raise SettingError(f"formats is {shown(formats)}, but it is a list of {_listed(FORMATS, '')}.")


def _listed(formats: Sequence[str], before: str = ".") -> str:
    return ", ".join(f"{before}{form}" for form in formats[:-1]) + f" or {before}{formats[-1]}"
