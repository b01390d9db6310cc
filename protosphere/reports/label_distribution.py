"""The classes of each client: counted if this machine partitioned the samples, else from the roster."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protosphere.core.errors import DataError
from protosphere.core.home import home
from protosphere.data.partition.assignment import cached_partition_labels
from protosphere.data.spec import data_spec
from protosphere.reports.results import Results


@dataclass(frozen=True)
class Holdings:
    """`counts` (clients, K): numbers of samples if `exact`, else 1 for each class of which a client has training
    samples."""

    class_names: Sequence[str]
    counts: np.ndarray
    exact: bool


def holdings(results: Results) -> Holdings:
    """The cached counts if they match the clients' sample counts and classes, else the classes alone. In a deployment
    every site has its own data, of which the cache on this machine knows nothing."""
    names, roster = results.class_names, results.roster
    rows = [sum(client["rows"][:3]) for client in roster]
    held = np.zeros((len(roster), len(names)), dtype=np.int64)
    for index, client in enumerate(roster):
        held[index, client["classes"]] = 1
    try:
        cached = cached_partition_labels(data_spec(results.settings, len(roster)), home() / "cache")
    except DataError:
        # a user's code that no longer exists
        cached = None
    counts, class_names = cached or (np.zeros((0, 0)), ())
    if counts.shape != held.shape or list(class_names) != names or counts.sum(axis=1).tolist() != rows:
        return Holdings(names, held, exact=False)
    is_complete = bool(counts[held > 0].all())
    return Holdings(names, counts if is_complete else held, exact=is_complete)
