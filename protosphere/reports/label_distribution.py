"""The classes of each client: counted if this machine partitioned the samples, else from the roster."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protosphere.core.errors import DataError
from protosphere.core.home import home
from protosphere.data.partition.assignment import cached_partition_labels
from protosphere.data.spec import data_spec
from protosphere.reports import page
from protosphere.reports.results import Results

FILE = "partition.json"


@dataclass(frozen=True)
class Holdings:
    """`counts` (clients, K): numbers of samples if `exact`, else 1 for each class of which a client has training
    samples."""

    class_names: Sequence[str]
    counts: Sequence[Sequence[int]]
    exact: bool


def holdings(results: Results) -> Holdings:
    """Read partition.json in the run's folder, or write it there, so that a copied folder has it."""
    distribution = _read_written(results) or _count_cached(results)
    if distribution is None:
        return _present(results)
    content = {"classes": list(distribution.class_names), "counts": [list(row) for row in distribution.counts]}
    page.write(results.folder / FILE, json.dumps(content) + "\n")
    return distribution


def _read_written(results: Results) -> Holdings | None:
    try:
        content = json.loads((results.folder / FILE).read_bytes())
        return _if_true(results, content["classes"], np.array(content["counts"], dtype=np.int64))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _count_cached(results: Results) -> Holdings | None:
    """In a deployment every site has its own data: the cache on this machine knows nothing of them, and must not be
    used."""
    try:
        partition_labels = cached_partition_labels(
            data_spec(results.run.settings, len(results.roster)), home() / "cache"
        )
    except DataError:
        # a user's code that no longer exists
        return None
    return None if partition_labels is None else _if_true(results, partition_labels[1], partition_labels[0])


def _if_true(results: Results, class_names: Sequence[str], counts: np.ndarray) -> Holdings | None:
    """None unless the counts match these clients' sample counts and the classes that they train on."""
    rows = [sum(client["rows"][:3]) for client in results.roster]
    shape = (len(rows), len(results.class_names))
    if counts.shape != shape or list(class_names) != results.class_names or counts.sum(axis=1).tolist() != rows:
        return None
    if any(not counts[index, client["classes"]].all() for index, client in enumerate(results.roster)):
        return None
    return Holdings(list(class_names), counts.tolist(), exact=True)


def _present(results: Results) -> Holdings:
    present = np.zeros((len(results.roster), len(results.class_names)), dtype=np.int64)
    for index, client in enumerate(results.roster):
        present[index, client["classes"]] = 1
    return Holdings(results.class_names, present.tolist(), exact=False)
