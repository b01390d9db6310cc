"""`protosphere run`: checks the settings, runs, and reports the result."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from protosphere.cli.options import BAD_INPUT, FAILED, KILLED, On, Place, Preset, Settings, Trust, end, option
from protosphere.core.errors import UserError
from protosphere.core.startup import uncollected
from protosphere.progress import RunLines

if TYPE_CHECKING:
    from protosphere.plans.run_config import Plan


@dataclass(frozen=True)
class _Request:
    """The command's arguments: where clients train, their resources, and what becomes the run's settings."""

    place: Place
    cpus: int | None
    gpus: float | None
    settings: Sequence[str]
    preset: str
    resume: str
    results: str
    clients: int | None
    trust: bool
    verbose: bool


@dataclass(frozen=True)
class _Failure:
    """Why a run failed or did not begin.

    Attributes:
        code: the exit code.
        folder: the run's folder, if there is one on this machine.
        plan: the run's plan; None if it was not made.
        name_elsewhere: the name by which a run on another machine is resumed; "" if it cannot be.
    """

    code: int
    reason: str
    folder: Path | None = None
    plan: "Plan | None" = None
    name_elsewhere: str = ""


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
    request = _Request(
        place, cpus_per_client, gpus_per_client, settings or [], preset, resume, results, clients, trust, verbose
    )
    outcome = _run(request, what_leaves, RunLines(typer.echo))
    if isinstance(outcome, _Failure):
        end("\n".join([outcome.reason, *_hints(request, outcome)]), outcome.code)
    if what_leaves:
        return
    if outcome is None:
        typer.echo("completed; the results are on the SuperLink's machine, where `report.html` shows them")
        return
    from protosphere.cli.summary import print_summary

    print_summary(outcome)


def _run(request: _Request, what_leaves: bool, lines: RunLines) -> Path | _Failure | None:
    """Plan the run and execute it. Returns its folder, None if that is on another machine, or why it failed."""
    from protosphere.launch.processes import Interrupted, interruptible

    try:
        # a terminal alone shows it, until the first line
        with interruptible(), Console(stderr=True).status("reading settings and data"):
            plan = _plan(request)
        if what_leaves:
            _list_disclosures(plan)
            return None
    except Interrupted as interruption:
        reason = f"stopped by {interruption.name} before anything was started."
        return _Failure(KILLED + interruption.number, reason)
    except UserError as error:
        return _Failure(BAD_INPUT, str(error))
    if request.place.is_here:
        return _run_here(request, plan, lines)
    for note in plan.notes:
        lines.line(note)
    return _run_flower(request, plan, lines)


def _plan(request: _Request) -> "Plan":
    from protosphere.plans.assignments import read_all

    # report errors in settings before torch is loaded, which takes seconds
    assignments = read_all(request.settings)
    with uncollected():
        from protosphere.launch.ray_cluster import count_tasks, nodes_at
        from protosphere.plans.preflight import check_resources
        from protosphere.plans.run_config import plan

    kind = request.place.kind
    resources = 1 if request.cpus is None else request.cpus, request.gpus or 0.0
    if kind == "ray":
        count_tasks(nodes_at(request.place.name), *resources)
    run_plan = plan(
        preset=request.preset,
        resume=request.resume,
        results=request.results,
        clients=request.clients,
        trust=request.trust,
        remote=kind == "superlink",
        here=kind not in ("superlink", "ray"),
        more=assignments,
    )
    if kind == "flower":
        check_resources(*resources)
    return run_plan


def _list_disclosures(plan: "Plan") -> None:
    from protosphere.plans.preflight import disclosures

    items = disclosures(plan.run_config, plan.clients)
    typer.echo("the server would learn about each client:")
    for item in items:
        typer.echo(f"  - {item}")


def _run_here(request: _Request, plan: "Plan", lines: RunLines) -> Path | _Failure:
    from protosphere.core.errors import SettingError
    from protosphere.launch.flower import describe_stop
    from protosphere.launch.processes import Interrupted, interruptible
    from protosphere.running import carry_out
    from protosphere.server_app.status import USER_ERRORS

    try:
        with interruptible():
            return carry_out(plan, lines, workers=request.place.workers)
    except Interrupted as interruption:
        reason, code = describe_stop(interruption.name, lines.folder), KILLED + interruption.number
    except USER_ERRORS as error:
        is_refused = isinstance(error, SettingError) and lines.folder is None
        reason, code = str(error), BAD_INPUT if is_refused else FAILED
    return _Failure(code, reason, lines.folder, plan)


def _run_flower(request: _Request, plan: "Plan", lines: RunLines) -> Path | _Failure | None:
    from protosphere.launch.flower import launch
    from protosphere.launch.ray_cluster import cluster_address

    place = request.place
    cpus, gpus = 1 if request.cpus is None else request.cpus, request.gpus or 0.0
    if place.kind == "superlink":
        number = f"{plan.clients} clients" if plan.clients else "as many clients as its nodes report"
        lines.line(f"running on the nodes of the SuperLink `{place.name}`: {number}")
    else:
        share = f"{cpus} CPU{'s' * (cpus > 1)}" + (f" and {gpus:g} GPU" if gpus else "")
        cluster = ", on the nodes of a Ray cluster" if place.kind == "ray" else ""
        lines.line(f"starting Flower's simulation: {plan.clients} clients, {share} each{cluster}")
    outcome = launch(
        plan.run_config,
        clients=plan.clients,
        cpus_per_client=cpus,
        gpus_per_client=gpus,
        show=lines.line,
        verbose=request.verbose,
        connection=place.name if place.kind == "superlink" else "",
        ray=cluster_address(place.name) if place.kind == "ray" else "",
        opened=lines.opened,
    )
    if outcome.ok:
        return outcome.folder
    code = FAILED if outcome.flower_run else BAD_INPUT
    if outcome.signal:
        code = KILLED + outcome.signal
    name = ""
    if outcome.folder is None and place.kind == "superlink":
        # a resumed run on another machine is known there by the name in `--resume`
        name = request.resume or outcome.flower_run
    return _Failure(code, outcome.message, outcome.folder, plan, name)


def _hints(request: _Request, failure: _Failure) -> list[str]:
    """The location of the report, the command that continues the run, and its log."""
    folder, plan, name = failure.folder, failure.plan, failure.name_elsewhere
    lines = []
    if folder is not None and (folder / "report.html").exists():
        lines.append(f"report: {folder / 'report.html'}")
    if folder is not None and (folder / "checkpoint.safetensors").exists():
        name = str(folder)
    if name and plan is not None:
        changed = _not_saved(plan, folder or Path(request.resume))
        options = {"--on": request.place.text, "--cpus-per-client": request.cpus, "--gpus-per-client": request.gpus}
        command = ["protosphere", "run"]
        for option_name, value in (options | {"-c": changed}).items():
            command += [option_name, str(value)] if value else []
        command += ["--trust"] * request.trust + ["--verbose"] * request.verbose
        lines.append(f"resume: {shlex.join([*command, '--resume', name])}")
    return [*lines, f"log: {folder / 'run.log'}"] if folder is not None else lines


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
