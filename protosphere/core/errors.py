"""Errors with a sentence for users; each class has one public sentence that may leave a site."""

from typing import ClassVar

# for errors of no class below
OTHER = "an error of the program: read the traceback there, and report it"


class UserError(ValueError):
    """An error whose text is one sentence for the user of this machine."""

    # the sentence that a site's messages contain: fixed for a class, so it quotes no sample, label, file or column
    public: ClassVar[str] = OTHER


class DataError(UserError):
    """The data cannot be used."""

    public = "its data cannot be used: correct the file or the column there"


class LabelsError(DataError):
    """Labels or classes differ from the agreed ones."""

    public = "its labels are not the run's classes: give every site the same classes.txt, and correct labels there"


class UnsizedError(DataError):
    """Images have no agreed size; raised before any image is read."""

    public = "its images have no common size: set `image-size`"


class StorageError(DataError):
    """This program's stored data, or the disk, cannot be read or written."""

    public = "its disk cannot be read or written, or a stored file is damaged: free space, or remove the file"


class CodeError(DataError):
    """A user's own code for data is wrong."""

    public = "its own code failed: correct the line there"


class ModelError(UserError):
    """A model is not available as requested; the message gives the reason and the remedy."""

    public = "its model cannot be loaded or does not fit its data: correct `models`, or --model of its node"


class SettingError(UserError):
    """A setting, or an option of a site's SuperNode, cannot be used; the message is one sentence for the user."""

    public = "a setting, or an option of its node, cannot be used: correct it"


class PrivacyError(SettingError):
    """A site, or a client under `privacy`, refuses to take part in such a run."""

    public = 'it refuses the run to keep its data private: set `privacy = "release"` and what its options ask for'


class RunError(RuntimeError):
    """The run cannot continue; the message is one sentence for the user."""


def words_of(error: Exception) -> str:
    """An error's text, for use within a sentence."""
    return " ".join(str(error).split()).rstrip(".!")
