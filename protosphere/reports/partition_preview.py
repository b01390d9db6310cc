"""The output of `protosphere data`: a data set and its partition, without training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protosphere.core.client_names import client_names
from protosphere.core.errors import SettingError
from protosphere.core.home import home
from protosphere.core.settings import Settings
from protosphere.data.decode import open_data
from protosphere.data.forms.table_schema import TableSchema
from protosphere.data.forms.texts import Texts
from protosphere.data.partition.assignment import Assignment, assignment, domain_of, name_of
from protosphere.data.partition.partitioners import class_counts
from protosphere.data.samples import Samples
from protosphere.data.spec import DataSpec, data_spec

# partition -> the settings that decide a client's samples, besides `clients`, `split` and `seed`
OF_PARTITION = {
    "iid": ("min-samples",),
    "dirichlet": ("alpha", "self-balancing", "min-samples"),
    "pathological": ("classes-per-client", "min-samples"),
    "way-shot": ("ways", "ways-spread", "shots", "shots-spread"),
    "mixed": ("ways", "ways-spread", "shots", "shots-spread"),
    "table": ("partition-table",),
    "column": ("partition-column",),
    "sites": (),
}


@dataclass(frozen=True)
class Client:
    """A client: its numbers of samples and of classes, its samples per class, its domain and its name in a run ("" for
    none)."""

    partition: int
    train: int
    validation: int
    test: int
    classes: int
    counts: list[int]
    domain: str
    name: str


@dataclass(frozen=True)
class DataView:
    """A data set and its partition; as JSON, it has the same keys.

    Attributes:
        inputs: a description of a sample.
        columns: of a table of numbers, as in columns.json, each with the number of rows that lack it.
        domains: domain -> its number of samples.
        groups: the number of groups; None without groups.
        partition: the settings that decide the partition.
        shared_test_rows: the number of samples in the ensemble's test set.
        rows_of_nobody: the number of samples that no client has.
    """

    dataset: str
    inputs: str
    train_rows: int
    test_rows: int
    class_names: list[str]
    domains: dict[str, int]
    groups: int | None
    columns: list[dict[str, Any]]
    partition: dict[str, Any]
    clients: list[Client]
    shared_test_rows: int
    rows_of_nobody: int


def view(settings: Settings, clients: int) -> DataView:
    """A run's data set and its partition. Data of the hub are downloaded.

    Raises:
        DataError: the data cannot be read, or cannot be partitioned like this.
    """
    spec, cache = data_spec(settings, clients), home() / "cache"
    data = open_data(spec, cache)
    split = assignment(spec, data, cache)
    # if all holders of a class share its official test samples, a sample belongs to several clients
    held_rows = np.unique(np.concatenate([*split.rows_by_client, split.shared]))
    rows = np.bincount(data.domains, minlength=len(data.domain_names)) if data.domains is not None else ()
    return DataView(
        dataset=settings.dataset,
        inputs=_inputs(data),
        train_rows=data.train_rows,
        test_rows=len(data.labels) - data.train_rows,
        class_names=list(data.class_names),
        domains={name: int(count) for name, count in zip(data.domain_names, rows, strict=True)},
        groups=None if data.groups is None else int(np.unique(data.groups).size),
        columns=_columns(data),
        partition=_partition(settings, clients),
        clients=_clients(spec, data, split),
        shared_test_rows=len(split.shared),
        rows_of_nobody=len(data.labels) - held_rows.size,
    )


def write_picture(data_view: DataView, path: Path) -> None:
    """Write the heat map of clients × classes to a file.

    Raises:
        SettingError: the file cannot be written.
    """
    # importing matplotlib takes a second
    from protosphere.reports.plots import partition_map

    counts = np.array([client.counts for client in data_view.clients])
    names = [client.name for client in data_view.clients]
    try:
        partition_map(data_view.class_names, names, counts, exact=True).savefig(path, dpi=200)
    except OSError as error:
        raise SettingError(f"{path} cannot be written ({error.strerror or error}); give another path.") from None


def _columns(data: Samples) -> list[dict[str, Any]]:
    if not data.columns or isinstance(data.inputs, Texts):
        return []
    missing = TableSchema(data.columns).count_missing(data.inputs)
    return [column.as_json() | {"rows_without": missing.get(column.name, 0)} for column in data.columns]


def _inputs(data: Samples) -> str:
    if isinstance(data.inputs, Texts):
        return "texts"
    shape = " × ".join(map(str, data.inputs.shape[1:]))
    what = "images (channels × height × width)" if data.inputs.ndim == 4 else "numbers"
    return f"{what}: {shape}, {data.inputs.dtype}"


def _partition(settings: Settings, clients: int) -> dict[str, Any]:
    names = (
        "partition",
        *OF_PARTITION[settings.partition],
        "max-samples",
        "split",
        "test-share",
        "validation-share",
    )
    left_out = {"test-share"} if settings.split == "official" else set()
    shown_settings = {name: getattr(settings, name.replace("-", "_")) for name in names if name not in left_out}
    return {"clients": clients, **shown_settings, "seed": settings.seed}


def _clients(spec: DataSpec, data: Samples, split: Assignment) -> list[Client]:
    domains = [domain_of(data, rows) for rows in split.rows_by_client]
    entries: list[dict[str, Any]] = []
    for partition, rows in enumerate(split.rows_by_client):
        entries.append({"partition": partition, "domain": domains[partition], "name": name_of(spec, data, rows)})
    names = client_names(entries)
    clients = []
    for partition, counts in enumerate(class_counts(data.labels, split.rows_by_client, len(data.class_names))):
        client = Client(
            partition=partition,
            train=len(split.train[partition]),
            validation=len(split.validation[partition]),
            test=len(split.test[partition]),
            classes=int(np.count_nonzero(counts)),
            counts=counts.tolist(),
            domain=domains[partition],
            name=names.get(partition, ""),
        )
        clients.append(client)
    return clients
