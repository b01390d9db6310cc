"""The data floor: data sets, who holds which rows of them, and one client's tensors."""


class DataError(ValueError):
    """Data that cannot be used; its text is one sentence for the person who starts the run."""
