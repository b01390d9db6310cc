"""Defaults that depend on the data, for settings that the user leaves out: `models`, and the partition of data that
come by site. A default becomes a setting of the run like any other, so the run's folder contains it."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from protosphere.core import plugins
from protosphere.core.home import home
from protosphere.core.settings import ENCODERS, Scalar, Settings
from protosphere.data.decode import open_data
from protosphere.data.domains import are_tables, domains_of
from protosphere.data.forms.folders import Folder
from protosphere.data.forms.sources import locate
from protosphere.data.forms.texts import Texts
from protosphere.data.partition.partitioners import COLUMN, SITES
from protosphere.data.spec import data_spec
from protosphere.models import reads_text

IMAGES = 4  # axes of images: samples, channels, rows and columns
PERCEPTRON = "tiny_perceptron"
TEXT_ENCODER = ENCODERS["minilm"]
FROZEN = "?trainable=0"
MOST_CLIENTS = 10  # most clients if `clients` is not set; the values of a column are assigned to them in turn
_NAMED = 5


def fitting_partition(
    run_config: Mapping[str, Scalar], given: Collection[str]
) -> tuple[dict[str, Scalar], dict[str, str]]:
    """`partition` and `clients` for data that come by site, and a sentence on each default.

    A list of tables is a list of sites, one client each. `partition-column` alone implies the partition `column`.

    Args:
        run_config: all settings, with defaults for those that are not set.
        given: those that the user has set.

    Raises:
        DataError: the data set cannot be found or, with `partition-column`, cannot be read.
    """
    chosen_settings: dict[str, Scalar] = {}
    dataset, partition = str(run_config["dataset"]), run_config["partition"]
    if "partition" not in given and run_config["partition-column"]:
        partition = chosen_settings["partition"] = COLUMN
    elif "partition" not in given and not plugins.is_plugin(dataset) and are_tables(dataset):
        partition = chosen_settings["partition"] = SITES
    notes: dict[str, str] = {}
    if partition == SITES:
        names = [domain.name for domain in domains_of(dataset)]
        if names and not run_config["clients"]:
            chosen_settings["clients"] = len(names)
        if SITES in chosen_settings.values():
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            notes["partition"] = (
                f"{len(names)} tables are {len(names)} sites: {', '.join(names[:_NAMED])}{more} "
                '(partition = "sites"; another `partition` pools their samples)'
            )
    return {**run_config, **chosen_settings}, notes


def fitting_clients(run_config: Mapping[str, Scalar], settings: Settings) -> dict[str, Scalar]:
    """With the partition `column`, the number of clients if it is not set: one per value of the column, up to
    MOST_CLIENTS.

    Raises:
        DataError: the data cannot be read.
    """
    if settings.partition != COLUMN or settings.clients:
        return dict(run_config)
    data = open_data(data_spec(settings, MOST_CLIENTS), home() / "cache")
    values = MOST_CLIENTS if data.sites is None else int(np.unique(data.sites).size)
    return {**run_config, "clients": min(values, MOST_CLIENTS)}


def fitting_models(settings: Settings) -> tuple[str, str]:
    """The models that fit the data, and a sentence on the reason; "" twice if the setting's default fits.

    Raises:
        DataError: the data set cannot be found, or its folder or file cannot be read.
    """
    inputs = _inputs(settings)
    if isinstance(inputs, Texts):
        encoder = _text_encoder(settings)
        why = "since the data are texts; the encoder is frozen, and the layers after it are trained"
        return (encoder, f"models: {encoder} for every client, {why}; set `models` for others") if encoder else ("", "")
    if inputs is None or inputs.ndim == IMAGES:
        return "", ""
    why = "since the data are rows of numbers"
    return PERCEPTRON, f"models: {PERCEPTRON} for every client, {why}; set `models` for others"


def _inputs(settings: Settings) -> np.ndarray | Texts | None:
    """The samples; None for named image data sets, which may have to be downloaded from the hub."""
    if not plugins.is_plugin(settings.dataset):
        domains = domains_of(settings.dataset)
        place: Any = locate(domains[0].dataset if domains else settings.dataset)
        if not isinstance(place, Folder) and place != "spiral":
            return None
    return open_data(data_spec(settings, 1), home() / "cache").inputs


def _text_encoder(settings: Settings) -> str:
    """The run's public encoder if it reads texts, else a small one if this machine has it: nothing is downloaded that
    the user has not named."""
    if reads_text(settings.encoder):
        return settings.encoder if "?" in settings.encoder else settings.encoder + FROZEN
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return ""
    hub_id = TEXT_ENCODER.removeprefix("hf:")
    files = [try_to_load_from_cache(hub_id, name) for name in ("config.json", "tokenizer.json")]
    return TEXT_ENCODER + FROZEN if all(isinstance(file, str) for file in files) else ""
