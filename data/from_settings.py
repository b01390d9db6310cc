"""The settings that decide who holds which rows, for the data floor: clients and `protosphere run` ask alike."""

from dataclasses import fields

import numpy as np

from protosphere.core.home import home
from protosphere.core.settings import Settings
from protosphere.data.forms.columns import Columns
from protosphere.data.partition.assignment import DataSpec, assignment, open_data
from protosphere.data.samples import Samples
from protosphere.data.user_code import own_code


def data_spec(settings: Settings, clients: int, code: bool = True) -> DataSpec:
    """What `protosphere.data.client_data` needs to know of a run with that many clients.

    Args:
        code: whether callables that the settings name count; a site with rows of its own has them not.

    Raises:
        DataError: such a callable cannot be found.
    """
    columns = Columns(settings.text_column, settings.label_column, settings.group_column, settings.partition_column)
    shared = {
        field.name: getattr(settings, field.name) for field in fields(DataSpec) if field.name in Settings.model_fields
    }
    further_fields = {
        "clients": clients,
        "shared_test_share": settings.shared_test_share if settings.ensemble_every else 0.0,
        "columns": columns,
        "code": own_code(settings.dataset) if code else None,
    }
    return DataSpec(**(shared | further_fields))


def shared_test_set(settings: Settings, clients: int) -> tuple[Samples, np.ndarray]:
    """The decoded data set of a simulation, and which of its rows are the shared test set of the ensemble: samples that
    every client predicts and none trains on.

    Raises:
        DataError: the data set cannot be used, or there is no shared test set in it.
    """
    spec, cache = data_spec(settings, clients), home() / "cache"
    data = open_data(spec, cache)
    return data, assignment(spec, data, cache).shared
