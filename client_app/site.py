"""The run and the site of a message: the run's settings, the site's node config, and what a run may not decide for a
site."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from flwr.app import Context

from protosphere.core import plugins
from protosphere.core.client_names import LONGEST_CLIENT_NAME
from protosphere.core.devices import device_of
from protosphere.core.errors import PrivacyError, SettingError
from protosphere.core.settings import Settings, device_name, shown
from protosphere.core.text import one_line
from protosphere.data.forms.columns import Columns
from protosphere.data.spec import DataSpec, data_spec
from protosphere.data.user_code import own_code
from protosphere.models import told_name
from protosphere.strategies import Run, read_settings, unpacked

NodeConfig = Mapping[str, Any]
_here = False
PRIVACY, REQUIRED = "privacy", "required"  # an entry of a node config and its only allowed value
COLUMNS = ("text-column", "label-column", "group-column")


def simulate() -> None:
    """Mark this process as a simulation's, for simulations without Ray."""
    global _here
    _here = True


def simulated() -> bool:
    """Whether this process belongs to a simulation. Ray is not imported for this, since a deployment starts a process
    per message."""
    ray = sys.modules.get("ray")
    return _here or (ray is not None and bool(ray.is_initialized()))


def over_ray() -> bool:
    """Whether Ray runs the simulation's clients, which it may move to other machines."""
    return not _here and simulated()


def text(node: NodeConfig, name: str) -> str:
    """An entry of a node config; "" if there is none."""
    return str(node.get(name, ""))


def site_name(node: NodeConfig) -> str:
    """A site's name; "" if it has none."""
    return one_line(text(node, "name"), LONGEST_CLIENT_NAME)


def has_own(node: NodeConfig) -> bool:
    """Whether a client uses files of its site, whose names and content are private."""
    model = text(node, "model")
    return any(text(node, name) for name in ("data-path", "strategy-file", *COLUMNS)) or told_name(model) != model


def site_spec(node: NodeConfig, settings: Settings, clients: int) -> DataSpec:
    """The source of a client's samples.

    A site's own tables need a classes.txt; so do, outside a simulation, data at a path that the run names.

    Raises:
        SettingError: the node config contradicts the run's settings.
    """
    columns = read_columns(node, settings)
    spec = replace(data_spec(settings, clients, code=columns is None), listed="" if simulated() else "all")
    if columns is None:
        return spec
    return replace(spec, columns=columns, listed="tables", code=own_code(text(node, "data-path")))


def refuse_unprotected(settings: Settings, node: NodeConfig) -> None:
    """Refuse a run without `privacy` if the site requires it.

    Raises:
        PrivacyError: the site requires `privacy`, or its entry is invalid.
    """
    requirement = text(node, PRIVACY)
    if requirement not in ("", REQUIRED):
        raise PrivacyError(
            f'this SuperNode\'s --node-config has privacy={requirement!r}, but it can be "{REQUIRED}" alone; '
            "correct it.",
        )
    if requirement and settings.privacy == "none":
        raise PrivacyError('it requires privacy; start the run with `privacy = "release"`.')


def refuse_code(node: NodeConfig, settings: Settings, model: str) -> None:
    """Refuse code that a run names as the model or data of a real site.

    Raises:
        SettingError: the run names code, and the site has no model or no samples of its own.
    """
    if plugins.is_file(model) and not text(node, "model"):
        raise SettingError(
            "the run's `models` names a file, and no run names files of this site; start its SuperNode with "
            "--model FILE."
        )
    if plugins.is_plugin(settings.dataset) and not text(node, "data-path"):
        raise SettingError(
            "the run's `dataset` is a user's code, and no run names code of this site; start its SuperNode with --data."
        )


def read_columns(node: NodeConfig, settings: Settings) -> Columns | None:
    """The column names of a site's own tables, "" for the default names; None if it has no tables of its own.

    A run may name columns of its own data set, but not of a site's own tables: it could then learn the values of a
    column by using it as the label.

    Raises:
        SettingError: the run names another column than the site, or the site names a column but has no table.
    """
    if not text(node, "data-path"):
        idle = next((name for name in COLUMNS if text(node, name)), "")
        if idle:
            raise SettingError(
                f"this SuperNode's --node-config has {idle}={shown(text(node, idle))}, but no data-path, whose columns "
                "it could name; give one, or remove it.",
            )
        return None
    for name in COLUMNS:
        run_column, site_column = getattr(settings, name.replace("-", "_")), text(node, name)
        if run_column not in ("", site_column):
            raise SettingError(
                f"the run's setting `{name}` is {shown(run_column)}, but this site's is {shown(site_column)}, and it "
                "alone names its columns; have the run leave it empty, or give the SuperNode another one.",
            )
    return Columns(*(text(node, name) for name in COLUMNS))


def whole_number(node: NodeConfig, name: str) -> int:
    """An entry that is a whole number, at least 0.

    Raises:
        SettingError: it is missing or not such a number.
    """
    value = node.get(name)
    if type(value) is not int or value < 0:
        raise SettingError(
            f"this SuperNode's --node-config has {name}={value!r} where a whole number belongs; start it with "
            '"partition-id=<i> num-partitions=<n>".',
        )
    return value


def device_for(of_node: Any, of_run: str) -> torch.device:
    """The device. The node config overrides the run's setting, because machines differ.

    Raises:
        SettingError: there is no such device.
    """
    name, where = of_run, "setting `device` is"
    if of_node != "":
        name, where = of_node, "this SuperNode's --node-config has device"
    try:
        # a node config may also hold a number
        device_name(str(name))
    except ValueError as error:
        raise SettingError(f"{where} {name!r}; it {error}.") from None
    return device_of(name, where)


def run_of(context: Context) -> Run:
    """The run of a Flower context.

    Raises:
        SettingError: its settings are invalid.
    """
    items = tuple(sorted(context.run_config.items()))
    return _read_run(items, text(context.node_config, "strategy-file"), simulated())


@lru_cache(maxsize=8)
def _read_run(items: tuple[tuple[str, Any], ...], strategy_file: str, in_simulation: bool) -> Run:
    # packed settings count too: they may name a file
    config = unpacked(dict(items))
    strategy = str(config.get("strategy", ""))
    if plugins.is_file(strategy) and not in_simulation:
        if not strategy_file:
            raise SettingError(
                "the run's `strategy` is a file, and this site has none for it; start its SuperNode with --strategy "
                "FILE, the same as the server's."
            )
        # the run's path is on the server's machine; the run decides the name within the file
        attribute = plugins.parted(strategy)[1]
        config["strategy"] = f"{strategy_file}:{attribute}" if attribute else strategy_file
    return read_settings(config)
