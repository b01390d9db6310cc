"""The output of `protosphere data`: a data set and its partition, without training."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protosphere.core.client_names import client_names
from protosphere.core.errors import SettingError
from protosphere.core.home import home
from protosphere.core.settings import Settings
from protosphere.data.decode import open_data
from protosphere.data.forms.table_schema import Column, TableSchema
from protosphere.data.forms.texts import Texts
from protosphere.data.partition.assignment import Assignment, assignment, domain_of, name_of
from protosphere.data.partition.partitioners import class_counts
from protosphere.data.samples import Samples
from protosphere.data.spec import DataSpec, data_spec
from protosphere.reports.label_distribution import Holdings

PICTURES = (".svg", ".png")
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
    """A client: its numbers of samples, in total and per class, its domain and its name ("" for none)."""

    train: int
    validation: int
    test: int
    counts: Sequence[int]
    domain: str = ""
    name: str = ""

    @property
    def labels(self) -> list[int]:
        """The classes that it holds."""
        return [label for label, count in enumerate(self.counts) if count > 0]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.labels)


@dataclass(frozen=True)
class DataView:
    """A data set and its partition.

    Attributes:
        dataset: the value of the setting.
        inputs: a description of a sample.
        columns: of a table of numbers, with the number of missing values of each.
        train, test: numbers of official training and test samples.
        class_names: K names.
        domains: domain -> its number of samples.
        groups: the number of groups; None without groups.
        partition: the settings that decide the partition.
        clients: by partition id.
        shared: the number of samples in the ensemble's test set.
        nobodys: the number of samples that no client has.
    """

    dataset: str
    inputs: str
    train: int
    test: int
    class_names: Sequence[str]
    domains: dict[str, int]
    groups: int | None
    partition: dict[str, Any]
    clients: Sequence[Client]
    shared: int
    nobodys: int
    columns: Sequence[tuple[Column, int]] = ()

    @property
    def names(self) -> dict[int, str]:
        """The names of clients in a run, by partition; clients without a name are not included."""
        return client_names({"partition": number, **asdict(client)} for number, client in enumerate(self.clients))

    def as_json(self) -> dict[str, Any]:
        """As plain values for JSON."""
        clients = [
            {"partition": number, "classes": client.classes, **asdict(client), "name": self.names.get(number, "")}
            for number, client in enumerate(self.clients)
        ]
        return {
            "dataset": self.dataset,
            "inputs": self.inputs,
            "train_rows": self.train,
            "test_rows": self.test,
            "class_names": list(self.class_names),
            "domains": self.domains,
            "groups": self.groups,
            "columns": [column.as_json() | {"rows_without": lacking} for column, lacking in self.columns],
            "partition": self.partition,
            "clients": clients,
            "shared_test_rows": self.shared,
            "rows_of_nobody": self.nobodys,
        }


def view(settings: Settings, clients: int) -> DataView:
    """A run's data set and its partition. Data of the hub are downloaded.

    Raises:
        DataError: the data cannot be read, or cannot be partitioned like this.
    """
    spec, cache = data_spec(settings, clients), home() / "cache"
    data = open_data(spec, cache)
    row_assignment = assignment(spec, data, cache)
    # if all holders of a class share its official test samples, a sample belongs to several clients
    held_rows = np.unique(np.concatenate([*row_assignment.rows_by_client, row_assignment.shared]))
    rows = np.bincount(data.domains, minlength=len(data.domain_names)) if data.domains is not None else ()
    return DataView(
        dataset=settings.dataset,
        inputs=_inputs(data),
        train=data.train_rows,
        test=len(data.labels) - data.train_rows,
        class_names=data.class_names,
        domains={name: int(count) for name, count in zip(data.domain_names, rows, strict=True)},
        groups=None if data.groups is None else int(np.unique(data.groups).size),
        partition=_partition(settings, clients),
        clients=_clients(spec, data, row_assignment),
        shared=len(row_assignment.shared),
        nobodys=len(data.labels) - held_rows.size,
        columns=_columns(data),
    )


def write_picture(data_view: DataView, path: Path) -> None:
    """Write the heat map of clients × classes to a file.

    Raises:
        SettingError: the suffix is not in PICTURES, or the file cannot be written.
    """
    refuse_ending(path)
    holdings = Holdings(data_view.class_names, [client.counts for client in data_view.clients], exact=True)
    names = [data_view.names.get(number, "") for number in range(len(data_view.clients))]
    # importing matplotlib takes a second
    from protosphere.reports.plots import partition_map

    partition_map(holdings, names).save(path)


def refuse_ending(path: Path) -> None:
    """Refuse a picture format that is not in PICTURES.

    Raises:
        SettingError: the suffix is not in PICTURES.
    """
    if path.suffix.lower() not in PICTURES:
        raise SettingError(f"--picture is {str(path)!r}, but its name must end in {' or '.join(PICTURES)}.")


def _columns(data: Samples) -> list[tuple[Column, int]]:
    if not data.columns or isinstance(data.inputs, Texts):
        return []
    lacking = TableSchema(data.columns).count_missing(data.inputs)
    return [(column, lacking.get(column.name, 0)) for column in data.columns]


def _inputs(data: Samples) -> str:
    if isinstance(data.inputs, Texts):
        return "texts"
    shape = " × ".join(map(str, data.inputs.shape[1:]))
    if data.inputs.ndim == 4:
        values = "" if data.inputs.dtype == np.uint8 else ", float32 as they are"
        return f"images, {shape} (channels × height × width){values}"
    return f"numbers, {shape} per sample" + (" (uint8, of full scale 255)" if data.inputs.dtype == np.uint8 else "")


def _partition(settings: Settings, clients: int) -> dict[str, Any]:
    names = (
        "partition",
        *OF_PARTITION.get(settings.partition, ()),
        "max-samples",
        "split",
        "test-share",
        "validation-share",
    )
    left_out = {"test-share"} if settings.split == "official" else set()
    shown_settings = {name: getattr(settings, name.replace("-", "_")) for name in names if name not in left_out}
    return {"clients": clients, **shown_settings, "seed": settings.seed}


def _clients(spec: DataSpec, data: Samples, row_assignment: Assignment) -> list[Client]:
    counts = class_counts(data.labels, row_assignment.rows_by_client, len(data.class_names))
    return [
        Client(
            len(row_assignment.train[number]),
            len(row_assignment.validation[number]),
            len(row_assignment.test[number]),
            client_counts.tolist(),
            domain_of(data, rows),
            name_of(spec, data, rows),
        )
        for number, (client_counts, rows) in enumerate(zip(counts, row_assignment.rows_by_client, strict=True))
    ]
