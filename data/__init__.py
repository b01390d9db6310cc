"""The data floor: data sets, who holds which rows of them, and one client's tensors."""

from typing import Self

if __name__ == "data":
    raise ImportError("this is protosphere.data: import it by that name; a data/ of your own needs an __init__.py")


class ToldError(ValueError):
    """An error with two texts: a sentence for whoever has the machine, and what may be told elsewhere.

    Attributes:
        told: words of this program with numbers (rows, counts, sizes, labels of classes) and settings of the run; never
            a cell, a path, or the name of a file, a folder or a column. "": nothing but the kind of error.
    """

    def __init__(self, sentence: str, told: str = ""):
        super().__init__(sentence)
        self.told = told

    @classmethod
    def public(cls, sentence: str) -> Self:
        """An error whose sentence may be told as it is."""
        return cls(sentence, sentence.rstrip("."))


class DataError(ToldError):
    """Data that cannot be used."""


class UnsizedError(DataError):
    """Images without a size that all have agreed on; raised before any is looked at."""
