"""What can go wrong: errors with a sentence for people, and for each class the one sentence that may leave a site."""

from typing import ClassVar

# of whatever is no class below
OTHER = "an error of the program: read the traceback there, and report it"


class UserError(ValueError):
    """An error whose text is one sentence for whoever has the machine.

    Attributes:
        public: what a site's messages say of it, with a remedy. It is the same for all errors of a class, so that it
            quotes no row, label, file, folder or column.
    """

    public: ClassVar[str] = OTHER


class DataError(UserError):
    """Data that cannot be used."""

    public = "its data cannot be used: correct the file or the column there"


class LabelsError(DataError):
    """Labels or classes that are not those that were agreed on."""

    public = "its labels are not the run's classes: give every site the same classes.txt, and correct labels there"


class UnsizedError(DataError):
    """Images without a size that all have agreed on; raised before any is looked at."""

    public = "its images have no common size: set `image-size`"


class StorageError(DataError):
    """What this program keeps of data, or the disk, cannot be read or written."""

    public = "its disk cannot be read or written, or a file that it keeps is damaged: free space, or take the file away"


class CodeError(DataError):
    """A user's own code for data is wrong."""

    public = "code of its own failed: correct the line there"


class ModelError(UserError):
    """A model that is not available as asked; the message says why and what to do."""

    public = "its model cannot be loaded or does not fit its data: correct `models`, or --model of its node"


class SettingError(UserError):
    """A setting, or an option of a site's SuperNode, that cannot be used; the message is one sentence for a person."""

    public = "a setting, or an option of its node, cannot be used: correct it"


class PrivacyError(SettingError):
    """A site, or a client under `privacy`, does not take part in such a run."""

    public = 'it refuses the run to keep its data private: set `privacy = "release"` and what its options ask for'


class RunError(RuntimeError):
    """The run cannot go on; the message is one sentence for a person."""


def words_of(error: Exception) -> str:
    """What it says, to stand within a sentence."""
    return " ".join(str(error).split()).rstrip(".!")
