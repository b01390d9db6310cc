"""Defaults that depend on the data, for settings that the user leaves out: `models`, and the partition of data that
come by site. A default becomes a setting of the run like any other, so the run's folder contains it."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from protosphere.core import plugins
from protosphere.core.home import home
from protosphere.core.settings import Scalar, Settings
from protosphere.data.decode import open_data
from protosphere.data.domains import are_tables, domains_of
from protosphere.data.forms.folders import Folder
from protosphere.data.forms.sources import locate
from protosphere.data.forms.texts import Texts
from protosphere.data.partition.partitioners import COLUMN, SITES
from protosphere.data.spec import data_spec
from protosphere.models import reads_text
from protosphere.strategies import read_settings

IMAGES = 4  # axes of images: samples, channels, rows and columns
PERCEPTRON = "tiny_perceptron"
MOST_CLIENTS = 10  # most clients if `clients` is not set; the values of a column are assigned to them in turn
MOST_NAMED = 5  # sites that a sentence names


def fitted(
    run_config: Mapping[str, Scalar], given: Collection[str], trains: bool = True
) -> tuple[dict[str, Scalar], tuple[str, ...]]:
    """Settings with the defaults that depend on the data, and a sentence on each.

    A list of tables is a list of sites, one client each. `partition-column` alone implies the partition `column`, with
    a client for each value, up to MOST_CLIENTS.

    Args:
        run_config: all settings, with defaults for those that are not set.
        given: those that the user has set.
        trains: False if only the data are needed.
    """
    config, notes = dict(run_config), []
    dataset = str(config["dataset"])
    if "partition" not in given and config["partition-column"]:
        config["partition"] = COLUMN
    elif "partition" not in given and not plugins.is_plugin(dataset) and are_tables(dataset):
        config["partition"] = SITES
        names = [domain.name for domain in domains_of(dataset)]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        notes.append(
            f"{len(names)} tables are {len(names)} sites: {', '.join(names[:MOST_NAMED])}{more} "
            '(partition = "sites"; another `partition` pools their samples)'
        )
    if config["partition"] == SITES and not config["clients"]:
        config["clients"] = len(domains_of(dataset))
    settings = read_settings(config).settings
    if settings.partition == COLUMN and not settings.clients:
        sites = open_data(data_spec(settings, MOST_CLIENTS), home() / "cache").sites
        config["clients"] = MOST_CLIENTS if sites is None else min(np.unique(sites).size, MOST_CLIENTS)
    if trains and "models" not in given:
        models, reason = _fitting_models(settings)
        if models:
            config["models"] = models
            notes.append(f"models: {models} for every client, since the data are {reason}; set `models` for others")
    return config, tuple(notes)


def _fitting_models(settings: Settings) -> tuple[str, str]:
    """The models that fit the data, and what the data are; "" twice if the setting's default fits."""
    if not plugins.is_plugin(settings.dataset):
        domains = domains_of(settings.dataset)
        place: Any = locate(domains[0].dataset if domains else settings.dataset)
        # named image data sets may have to be downloaded from the hub
        if not isinstance(place, Folder) and place != "spiral":
            return "", ""
    inputs = open_data(data_spec(settings, 1), home() / "cache").inputs
    if not isinstance(inputs, Texts):
        return ("", "") if inputs.ndim == IMAGES else (PERCEPTRON, "rows of numbers")
    if not reads_text(settings.encoder):
        return "", ""
    encoder = settings.encoder if "?" in settings.encoder else f"{settings.encoder}?trainable=0"
    return encoder, "texts, which this public encoder reads"
