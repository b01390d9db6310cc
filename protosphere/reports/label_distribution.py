"""The classes of each client: counted if this machine partitioned the samples, else from the roster."""

import numpy as np
from numpy.typing import NDArray

from protosphere.core.errors import DataError
from protosphere.core.home import home
from protosphere.data.partition.assignment import cached_partition_labels
from protosphere.data.spec import data_spec
from protosphere.reports.results import Results


def counts_by_class(results: Results) -> tuple[NDArray[np.int64], bool]:
    """Numbers of samples (clients, K) and True; or 1 for each class of which a client has training samples, and False.

    Cached counts are used if they match the clients' sample counts and classes. In a deployment every site has its own
    data, of which the cache on this machine knows nothing.
    """
    names, roster = results.class_names, results.roster
    rows = [sum(client["rows"][:3]) for client in roster]
    presence = np.zeros((len(roster), len(names)), dtype=np.int64)
    for index, client in enumerate(roster):
        presence[index, client["classes"]] = 1
    try:
        cached = cached_partition_labels(data_spec(results.settings, len(roster)), home() / "cache")
    except DataError:
        # a user's code that no longer exists
        cached = None
    if cached is None:
        return presence, False
    counts, class_names = cached
    if counts.shape != presence.shape or list(class_names) != names or counts.sum(axis=1).tolist() != rows:
        return presence, False
    is_complete = bool(counts[presence > 0].all())
    return (counts if is_complete else presence), is_complete
