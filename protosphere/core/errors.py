"""What can go wrong: errors with a sentence for people, and what of it may leave a site."""

from typing import Self


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


class ModelError(ToldError):
    """A model that cannot be had as asked; the message says why and what to do."""


class SettingError(ToldError):
    """A setting, or an entry of a node config, that cannot be used; the message is one sentence for a person."""


def words_of(error: Exception) -> str:
    """What it says, to stand within a sentence."""
    return " ".join(str(error).split()).rstrip(".!")
