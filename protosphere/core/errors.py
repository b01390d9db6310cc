"""What can go wrong: errors with a sentence for people, and what of it may leave a site."""

from numbers import Number
from typing import NewType, Self

from protosphere.core.problems import PROBLEMS, WORDS

Public = NewType("Public", str)  # what may be told anywhere: made by `public` alone
# In tests a problem that the table does not allow for is an error; elsewhere nothing is told of it but its kind.
strict = False


def public(code: str, **values: object) -> Public:
    """The public sentence of a problem, without its full stop.

    Args:
        code: of `PROBLEMS`.
        values: what its sentence names: numbers, tuples of them, words of `WORDS`, or the error that is behind it, of
            which is said what may be told of that one. Any other string may come from a site's data and is refused.
    """
    try:
        filled = PROBLEMS[code].format(**{name: _text(value) for name, value in values.items()})
    except (KeyError, TypeError) as error:
        if strict:
            raise AssertionError(f"the problem {code!r} with {values}: {error!r}") from error
        return Public("")
    # nothing may be told of the error behind it
    return Public(filled.removesuffix(": "))


def _text(value: object) -> str:
    if isinstance(value, Number) or (isinstance(value, str) and value in WORDS):
        return str(value)
    if isinstance(value, tuple) and all(isinstance(item, Number) for item in value):
        return "×".join(map(str, value))
    if isinstance(value, Exception):
        return str(getattr(value, "told", ""))
    raise TypeError(f"{value!r} is no number and none of the words")


class ToldError(ValueError):
    """An error with two texts: a sentence for whoever has the machine, and what may be told elsewhere.

    Attributes:
        told: of `public`: words of this program with numbers (rows, counts, sizes, labels of classes), never a cell, a
            path, or the name of a file, a folder or a column. "": nothing but the kind of error.
    """

    def __init__(self, sentence: str, told: Public = Public("")):
        super().__init__(sentence)
        self.told: str = told

    @classmethod
    def public(cls, sentence: str) -> Self:
        """An error whose sentence may be told as it is: words of this program, settings of the run, and numbers."""
        error = cls(sentence)
        error.told = sentence.rstrip(".")
        return error


class DataError(ToldError):
    """Data that cannot be used."""


class UnsizedError(DataError):
    """Images without a size that all have agreed on; raised before any is looked at."""


class ModelError(ToldError):
    """A model that is not available as asked; the message says why and what to do."""


class SettingError(ToldError):
    """A setting, or an option of a site's SuperNode, that cannot be used; the message is one sentence for a person."""


class RunError(RuntimeError):
    """The run cannot go on; the message is one sentence for a person."""


def words_of(error: Exception) -> str:
    """What it says, to stand within a sentence."""
    return " ".join(str(error).split()).rstrip(".!")
