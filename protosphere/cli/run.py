"""`protosphere run`: checks the settings, runs, and reports the result."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protosphere.cli.options import BAD_INPUT, FAILED, KILLED, On, Place, Preset, Settings, Trust, end, option
from protosphere.core.errors import UserError
from protosphere.core.startup import uncollected
from protosphere.progress import Display

if TYPE_CHECKING:
    from protosphere.plans.run_config import Plan


def run(
    clients: Annotated[int | None, option("Number of clients (default: given by the data, or 10).", "N")] = None,
    on: On = "",
    cpus_per_client: Annotated[int | None, option("With --on flower or ray: CPU cores per client (1).", "N")] = None,
    gpus_per_client: Annotated[float | None, option("With --on flower or ray: GPUs per client (0).", "SHARE")] = None,
    settings: Settings = None,
    preset: Preset = "",
    resume: Annotated[str, option("Continue a run: its folder, name or number, or `latest`.", "RUN")] = "",
    results: Annotated[str, option("The folder in which the run's folder is made.", "DIR")] = "",
    what_leaves: Annotated[
        bool, option("List what the server would learn about each client; exit.", None, "--what-leaves")
    ] = False,
    trust: Trust = False,
    verbose: Annotated[bool, option("Show all output of Flower and Ray.", None, "--verbose")] = False,
) -> None:
    """Train clients together, simulated or on real machines.

    The run writes a folder with metrics, a summary, a report, and the state from
    which --resume continues. docs/running.md explains the figures.

    Exits 0 if it completed, 1 if it failed, 2 if it could not start, 128 + n on signal n.
    """
    if trust and not resume:
        end("--trust needs --resume: code that you name yourself runs without it.")
    try:
        place = Place.read(on)
    except UserError as error:
        end(str(error))
    if (cpus_per_client is not None or gpus_per_client is not None) and place.kind not in ("flower", "ray"):
        end("--cpus-per-client and --gpus-per-client need --on flower or --on ray; else use --on workers:N.")
    if what_leaves and (place.kind == "superlink" or resume):
        end("--what-leaves works for simulations only; what real clients have disclosed is in their run's roster.json.")
    options = {"preset": preset, "resume": resume, "results": results, "clients": clients, "trust": trust}
    started = _Started(place, cpus_per_client, gpus_per_client, options, verbose)
    with Display(typer.echo) as display:
        ending = _run(started, settings or [], what_leaves, display)
    if ending.code:
        end("\n".join([ending.reason, *ending.hints]), ending.code)
    if what_leaves:
        return
    if ending.folder is None:
        typer.echo("completed; the results are on the SuperLink's machine, where `report.html` shows them")
        return
    from protosphere.cli.summary import print_summary

    print_summary(ending.folder)


@dataclass(frozen=True)
class _Started:
    """The arguments of the command: where clients train, their resources, and the settings of the plan."""

    place: Place
    cpus: int | None
    gpus: float | None
    options: Mapping[str, Any]
    verbose: bool


@dataclass(frozen=True)
class _Ending:
    """The end of a run, or the reason why none began.

    Attributes:
        code: the exit code.
        folder: the run's folder, if there is one on this machine.
        reason: why it failed, in a sentence.
        hints: lines on its results, and on how to continue.
    """

    code: int
    folder: Path | None = None
    reason: str = ""
    hints: Sequence[str] = ()


def _run(started: _Started, settings: Sequence[str], what_leaves: bool, display: Display) -> _Ending:
    """Plan the run and execute it."""
    from protosphere.launch.processes import Interrupted, interruptible

    display.stage("reading settings and data")
    try:
        with interruptible():
            plan = _plan(started, settings)
            if what_leaves:
                _list_disclosures(plan, display)
                return _Ending(0)
    except Interrupted as interruption:
        reason = f"stopped by {interruption.name} before anything was started."
        return _Ending(KILLED + interruption.number, reason=reason)
    except UserError as error:
        return _Ending(BAD_INPUT, reason=str(error))
    if started.place.is_here:
        return _run_here(started, plan, display)
    for note in plan.notes:
        display.line(note)
    return _run_flower(started, plan, display)


def _plan(started: _Started, settings: Sequence[str]) -> "Plan":
    from protosphere.plans.assignments import read_all

    # report errors in settings before torch is loaded, which takes seconds
    assignments = read_all(settings)
    with uncollected():
        from protosphere.launch.ray_cluster import count_tasks, nodes_at
        from protosphere.plans.preflight import check_resources
        from protosphere.plans.run_config import plan

    kind = started.place.kind
    resources = 1 if started.cpus is None else started.cpus, started.gpus or 0.0
    if kind == "ray":
        count_tasks(nodes_at(started.place.name), *resources)
    run_plan = plan(
        **started.options, remote=kind == "superlink", here=kind not in ("superlink", "ray"), more=assignments
    )
    if kind == "flower":
        check_resources(*resources)
    return run_plan


def _list_disclosures(plan: "Plan", display: Display) -> None:
    from protosphere.plans.preflight import disclosures

    items = disclosures(plan.run_config, plan.clients)
    display.line("the server would learn about each client:")
    for item in items:
        display.line(f"  - {item}")


def _run_here(started: _Started, plan: "Plan", display: Display) -> _Ending:
    from protosphere.core.errors import SettingError
    from protosphere.launch.flower import describe_stop
    from protosphere.launch.processes import Interrupted, interruptible
    from protosphere.running import carry_out
    from protosphere.server_app.status import USER_ERRORS

    try:
        with interruptible():
            return _Ending(0, carry_out(plan, display, workers=started.place.workers))
    except Interrupted as interruption:
        reason, code = describe_stop(interruption.name, display.folder), KILLED + interruption.number
    except USER_ERRORS as error:
        is_refused = isinstance(error, SettingError) and display.folder is None
        reason, code = str(error), BAD_INPUT if is_refused else FAILED
    folder = display.folder
    log = str(folder / "run.log") if folder is not None else ""
    return _Ending(code, folder, reason, _hints(started, plan, folder, log))


def _run_flower(started: _Started, plan: "Plan", display: Display) -> _Ending:
    from protosphere.launch.flower import launch
    from protosphere.launch.ray_cluster import cluster_address

    place = started.place
    cpus, gpus = 1 if started.cpus is None else started.cpus, started.gpus or 0.0
    if place.kind == "superlink":
        number = f"{plan.clients} clients" if plan.clients else "as many clients as its nodes report"
        display.line(f"running on the nodes of the SuperLink `{place.name}`: {number}")
        display.stage(f"running on the nodes of `{place.name}`")
    else:
        share = f"{cpus} CPU{'s' * (cpus > 1)}" + (f" and {gpus:g} GPU" if gpus else "")
        cluster = ", on the nodes of a Ray cluster" if place.kind == "ray" else ""
        display.line(f"starting Flower's simulation: {plan.clients} clients, {share} each{cluster}")
        display.stage("starting Flower")
    outcome = launch(
        plan.run_config,
        clients=plan.clients,
        cpus_per_client=cpus,
        gpus_per_client=gpus,
        show=display.line,
        verbose=started.verbose,
        connection=place.name if place.kind == "superlink" else "",
        ray=cluster_address(place.name) if place.kind == "ray" else "",
        opened=display.opened,
    )
    if outcome.ok:
        return _Ending(0, outcome.folder)
    code = FAILED if outcome.flower_run else BAD_INPUT
    if outcome.signal:
        code = KILLED + outcome.signal
    log = str(outcome.folder / "run.log") if outcome.folder is not None else ""
    resumed = ""
    if outcome.folder is None and place.kind == "superlink":
        # a resumed run on another machine is known there by the name in `--resume`
        resumed = started.options["resume"] or outcome.flower_run
    return _Ending(code, outcome.folder, outcome.message, _hints(started, plan, outcome.folder, log, resumed))


def _hints(started: _Started, plan: "Plan", folder: Path | None, log: str, resumed: str = "") -> list[str]:
    """The location of the report, the command that continues the run, and its log.

    Args:
        resumed: the name by which a run on another machine is resumed.
    """
    lines = []
    if folder is not None and (folder / "report.html").exists():
        lines.append(f"report: {folder / 'report.html'}")
    if folder is not None and (folder / "checkpoint.safetensors").exists():
        resumed = str(folder)
    if resumed:
        changed = _not_saved(plan, folder or Path(started.options["resume"]))
        options = {"--on": started.place.text, "--cpus-per-client": started.cpus, "--gpus-per-client": started.gpus}
        arguments = ["protosphere", "run"]
        for name, value in (options | {"-c": changed}).items():
            arguments += [name, str(value)] if value else []
        arguments += ["--trust"] * started.options["trust"] + ["--verbose"] * started.verbose
        lines.append(f"resume: {shlex.join([*arguments, '--resume', resumed])}")
    return [*lines, f"log: {log}"] if log else lines


def _not_saved(plan: "Plan", folder: Path) -> str:
    """Settings that the run's folder does not have, in the form of `-c`: those changed by a resume or, if the folder is
    not on this machine, all that differ from the defaults."""
    from protosphere.launch.flower import toml_value
    from protosphere.record.folder import RunFolder
    from protosphere.strategies import as_of_today, known_settings

    is_here = (folder / "settings.json").exists()
    try:
        saved = known_settings(str(plan.run_config["strategy"]))
        if is_here:
            saved = as_of_today(RunFolder(folder).settings())
    except UserError:
        # a resume reports a damaged folder
        return ""
    # a folder is given by its absolute path
    named = {"resume", "results-dir"} if is_here else {"resume"}
    assignments = []
    for name, value in plan.run_config.items():
        if name not in named and saved.get(name) != value:
            assignments.append(f"{name}={toml_value(value)}")
    return " ".join(assignments)
