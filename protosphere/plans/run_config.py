"""Merges presets, files and `key=value` into a run's settings, with absolute paths, checked before the run starts."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protosphere.core import plugins
from protosphere.core.errors import SettingError
from protosphere.core.objects import refuse_objects
from protosphere.core.paths import is_path, listed
from protosphere.core.settings import Scalar, refuse_relative_paths, refuse_unknown, shown, unknown
from protosphere.data.forms.folders import FILE_SUFFIXES
from protosphere.data.partition.table import TABLE
from protosphere.models import model_names
from protosphere.models.text import PREFIX
from protosphere.plans.assignments import RunConfig, read_assignments, read_toml, scalar
from protosphere.plans.fitting_defaults import fitted
from protosphere.plans.preflight import check
from protosphere.record.folder import RunFolder, find_run
from protosphere.strategies import as_of_today, known_settings, load_method, read_settings, refuse_foreign
from protosphere.strategies.trust import named, refuse_untrusted

PRESETS = Path(__file__).parents[1] / "presets"
DEFAULT_CLIENTS = 10
PLACES = ("results-dir", "partition-table")


@dataclass(frozen=True)
class Plan:
    """A run that can start: every setting by its full name, and the number of clients to simulate."""

    run_config: RunConfig
    clients: int
    notes: tuple[str, ...] = ()  # sentences on the defaults that depend on the data


def plan(
    assignments: Sequence[str] = (),
    *,
    preset: str = "",
    resume: str = "",
    results: str = "",
    clients: int | None = None,
    remote: bool = False,
    here: bool = True,
    trains: bool = True,
    trust: bool = False,
    more: Mapping[str, Any] | None = None,
) -> Plan:
    """Merge defaults, the preset (or the settings of the run to resume), `assignments` in order, and the rest.

    If `assignments` choose another method than the preset, the preset's settings of its own method are dropped, so a
    preset also serves the baselines of its table. Paths are relative to the working directory. Only decoded data are
    left behind, in the cache.

    Args:
        assignments: each `key=value key2="x y"`, or the path of a TOML file.
        preset: a name from `preset_names`.
        resume: a run's folder, its name in the results folder, or `latest`.
        results: the results folder; empty for that of the setting.
        clients: None for the setting `clients`, or 10 if that is 0.
        remote: the run is for a SuperLink with its own nodes: paths belong to other machines, and what only they can
            know is not checked here. With 0 clients, the number is the one that most nodes report.
        here: whether the clients of a simulation train on this machine, not on a cluster.
        more: settings by name; they take precedence over `assignments`.
        trust: whether code that the resumed run's folder names may be run, even if this home never ran it.
        trains: False if only the data are needed: data, models and folders are then not checked here.

    Raises:
        SettingError, DataError, ModelError: one sentence on the first thing that cannot work.
    """
    overrides: RunConfig = {}
    for text in assignments:
        overrides |= read_assignments(text)
    overrides |= {name: scalar(name, value) for name, value in (more or {}).items()}
    if results:
        overrides["results-dir"] = results
    if clients is not None:
        overrides["clients"] = clients
        if clients < 1:
            raise SettingError(f"--clients is {clients}, but a run needs at least 1.")
    if not remote:
        overrides = {name: _absolute(name, value) for name, value in overrides.items()}
    defaults = known_settings(overrides.get("strategy", ""))
    if not resume:
        refuse_unknown(overrides, defaults)
    name = resume or overrides.get("resume")
    if name and isinstance(name, str):
        if preset:
            raise SettingError("--preset and --resume exclude each other: a resumed run keeps its settings.")
        return _plan_resumed(overrides, name, remote, here, trust)
    preset_settings = _preset_for(preset, overrides)
    merged = laid_over(defaults | preset_settings, overrides)
    if remote:
        return _for_others(merged)
    merged, notes = fitted(merged, {*preset_settings, *overrides}, trains)
    # Flower's server waits for the exact number
    merged["clients"] = number = int(merged["clients"] or DEFAULT_CLIENTS)
    run = read_settings(merged)
    refuse_foreign(merged)
    if trains:
        check(run, number, None, here)
    return Plan(merged, number, notes)


def preset_names() -> list[str]:
    """The names of the available presets."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def read_preset(name: str) -> RunConfig:
    """A preset's settings. The partition table that it names lies next to it."""
    settings = read_toml(PRESETS / f"{name}.toml")
    if "partition-table" in settings:
        settings["partition-table"] = str(PRESETS / str(settings["partition-table"]))
    return settings


def laid_over(below: Mapping[str, Scalar], above: Mapping[str, Scalar]) -> RunConfig:
    """Merge settings over others. If they set a partition, the partition table below is dropped.

    Raises:
        SettingError: `alpha`, which would be silently ignored, above a partition table.
    """
    if "alpha" in above and "partition" not in above and below.get("partition") == TABLE:
        raise SettingError(
            f"setting `alpha` is {shown(above['alpha'])}, but a partition table divides the samples, and `alpha` has "
            'no effect; also set `partition` to "dirichlet".'
        )
    merged = dict(below)
    if "partition" in above:
        merged["partition-table"] = ""
        if below.get("partition-column"):
            merged["partition-column"] = ""
    return {**merged, **above}


def _preset_for(name: str, overrides: Mapping[str, Any]) -> RunConfig:
    """The preset's settings, without those of its method if `overrides` choose another one."""
    if not name:
        return {}
    if name not in preset_names():
        raise SettingError(unknown("preset", name, preset_names()))
    settings = read_preset(name)
    strategy = str(overrides.get("strategy", settings["strategy"]))
    sections = {*load_method(strategy).settings, ""}
    kept_settings = {key: value for key, value in settings.items() if key.rpartition(".")[0] in sections}
    return kept_settings | {"strategy": strategy}


def _for_others(run_config: RunConfig) -> Plan:
    """Prepare the settings of a run on other machines."""
    refuse_objects(run_config, "clients of --on superlink are on machines of their own")
    run = read_settings(run_config)
    refuse_foreign(run_config)
    refuse_relative_paths(run.settings)
    model_names(run.settings.models)
    return Plan(run_config, run.settings.clients)


def _plan_resumed(overrides: RunConfig, name: str, remote: bool, here: bool, trust: bool) -> Plan:
    path = Path(name).expanduser().absolute()
    # a bare name refers to the SuperLink's results folder, even if a folder here has that name
    if (path / "settings.json").exists() and (os.sep in name or not remote):
        name = str(path)
    if remote:
        # settings of a folder that is not on this machine must be given again
        is_here = (Path(name) / "settings.json").exists() and os.sep in name
        saved = RunFolder(Path(name)).settings() if is_here else {}
        # the rest of the code is on the other machines
        refuse_untrusted(Path(name), [plugin for plugin in named(saved) if plugin[0] == "strategy"], trust)
        return _for_others(as_of_today(saved) | overrides | {"resume": name})
    folder = RunFolder(find_run(name, str(overrides.get("results-dir", "")), resumes=True))
    saved = folder.settings()
    refuse_untrusted(folder.path, named(saved), trust)
    settings = as_of_today(saved) | overrides | {"resume": str(folder.path)}
    # check their types before any is used
    run = read_settings(settings)
    RunFolder.resume(run.settings, settings, as_of_today)
    folder.refuse_fewer_rounds(run.settings.rounds, folder.load_checkpoint()[1]["round"], name)
    number = run.settings.clients or len(folder.roster())
    if not number:
        raise SettingError(f"{folder.path / 'roster.json'} names no client; start a new run.")
    refuse_foreign(settings)
    check(run, number, folder.path, here)
    return Plan(settings, number)


def _absolute(name: str, value: Scalar) -> Scalar:
    """Make paths absolute, because Flower's processes have another working directory."""
    if name == "models" and isinstance(value, str):
        return ",".join(plugins.absolute(_absolute_encoder(item.strip())) for item in value.split(","))
    if name == "encoder" and isinstance(value, str):
        return plugins.absolute(_absolute_encoder(value))
    if name == "strategy" and isinstance(value, str):
        return plugins.absolute(value)
    if name == "dataset" and isinstance(value, str):
        return _absolute_data(value)
    if isinstance(value, str) and value and name in PLACES:
        return os.path.abspath(Path(value).expanduser())
    return value


def _absolute_data(dataset: str) -> str:
    """A data set, or each one of a list, with its local path, if any, made absolute."""
    items = tuple(map(with_place, listed(dataset)))
    if plugins.is_plugin(dataset):
        return plugins.absolute(dataset)
    paths = [os.path.abspath(Path(item).expanduser()) if is_path(item) else item for item in items]
    comma = next((item for item in paths if "," in item), "")
    if len(paths) > 1 and comma:
        raise SettingError(
            f"setting `dataset` lists {shown(comma)}, whose comma would split it in the list; rename that folder."
        )
    return ",".join(paths)


def with_place(item: str) -> str:
    """Prefix a file of the working directory with `./`, which paths need; any other data set unchanged."""
    is_file = Path(item).suffix in FILE_SUFFIXES and not is_path(item)
    return f"./{item}" if is_file and ("/" not in item or Path(item).is_file()) else item


def _absolute_encoder(model: str) -> str:
    """A text model's name with its local path, if any, made absolute."""
    place = model.removeprefix(PREFIX)
    return PREFIX + os.path.abspath(Path(place).expanduser()) if model != place and is_path(place) else model
