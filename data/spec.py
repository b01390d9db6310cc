"""The settings that decide every client's samples."""

from dataclasses import dataclass, fields
from typing import Any

from protosphere.core.settings import Settings
from protosphere.data.forms.columns import USUAL, Columns
from protosphere.data.forms.folders import Listed
from protosphere.data.user_code import OwnCode, own_code


@dataclass(frozen=True)
class DataSpec:
    """The settings that decide every client's samples; fields named like a setting have its meaning (docs/settings.md).

    Attributes:
        shared_test_share: the share of the ensemble's shared test set, which no client gets.
        columns: the names of a table's columns.
        listed: which local folders need a classes.txt, because they belong to a site (`refuse_unlisted`).
        secret: in hexadecimal digits; with it, each of a site's samples is judged by itself, and split by its own
            content (splits.py). "" for a stratified split.
        code: the user's callable that returns the samples, named by `dataset` or by a client's own path.
    """

    dataset: str
    clients: int = 1
    partition: str = "dirichlet"
    alpha: float = 0.1
    self_balancing: bool = False
    classes_per_client: int = 2
    ways: int = 3
    ways_spread: int = 1
    shots: int = 100
    shots_spread: int = 1
    min_samples: int = 10
    max_samples: int = 0
    partition_table: str = ""
    split: str = "pooled"
    test_share: float = 0.25
    validation_share: float = 0.1
    shared_test_share: float = 0.0
    seed: int = 0
    spiral_noise: float = 0.2
    spiral_points: int = 1000
    columns: Columns = USUAL
    classes: str = "same"
    image_size: int = 0
    listed: Listed = ""
    secret: str = ""
    code: OwnCode | None = None

    @property
    def independent(self) -> bool:
        """Whether each row is judged by itself: an unusable row is excluded, and affects nothing else."""
        return bool(self.secret)


def data_spec(settings: Settings, clients: int, code: bool = True) -> DataSpec:
    """The spec of a run with this number of clients.

    Args:
        code: whether the run's settings may name a callable; not for a site with its own samples.
    """
    values: dict[str, Any] = {field.name: getattr(settings, field.name, None) for field in fields(DataSpec)}
    values |= {
        "clients": clients,
        "shared_test_share": settings.shared_test_share if settings.ensemble_every else 0.0,
        "columns": Columns(
            settings.text_column, settings.label_column, settings.group_column, settings.partition_column
        ),
        "listed": "",
        "secret": "",
        "code": own_code(settings.dataset) if code else None,
    }
    return DataSpec(**values)
