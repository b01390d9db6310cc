"""A confusion matrix: what its cells are shares of."""

import numpy as np

from protosphere.reports import canvas
from protosphere.reports.plots import _draw_confusion

# of unlike totals over rows and over columns, and one class without a row
COUNTS = np.array([[6, 2, 0, 0], [1, 1, 3, 0], [0, 9, 1, 0], [0, 0, 0, 0]])


def test_a_cell_is_the_share_of_its_true_class():
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        _draw_confusion(axes, COUNTS, list("abcd"))
        shares = axes.images[0].get_array()
        words = {tuple(map(round, text.get_position())): text.get_text() for text in axes.texts}
    for true, row in enumerate(COUNTS.tolist()):
        for predicted, rows in enumerate(row):
            cell = shares[true, predicted]
            if rows:
                assert float(cell) == 100 * rows / sum(row)
                assert words[predicted, true] == str(rows)
            else:
                assert np.ma.is_masked(cell) or np.isnan(cell)
    # a row is whole, which a column is not
    assert np.ma.filled(shares[:3], 0).sum(axis=1).tolist() == [100, 100, 100]
    assert len(words) == int((COUNTS > 0).sum())
