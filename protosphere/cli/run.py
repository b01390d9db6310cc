"""`protosphere run`: check everything, run, say how it ended."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protosphere.cli.options import BAD_INPUT, FAILED, KILLED, On, Place, Preset, Settings, Trust, end, option
from protosphere.core.errors import UserError
from protosphere.core.startup import uncollected
from protosphere.runs.display import Display

if TYPE_CHECKING:
    from protosphere.core.settings import Scalar
    from protosphere.plans.run_config import Plan


def run(
    clients: Annotated[int | None, option("Number of clients (default: what the data say, or 10).", "N")] = None,
    on: On = "",
    cpus_per_client: Annotated[int | None, option("With --on flower or ray: CPU cores per client (1).", "N")] = None,
    gpus_per_client: Annotated[float | None, option("With --on flower or ray: GPUs per client (0).", "SHARE")] = None,
    settings: Settings = None,
    preset: Preset = "",
    resume: Annotated[str, option("Go on with a run: its folder, name or number, or `latest`.", "RUN")] = "",
    results: Annotated[str, option("The folder in which the run's folder is made.", "DIR")] = "",
    what_leaves: Annotated[
        bool, option("List what the server would learn of a client; exit.", None, "--what-leaves")
    ] = False,
    trust: Trust = False,
    outcome: Annotated[Path | None, option("Write code, folder and reason to this JSON file.", "FILE")] = None,
    verbose: Annotated[bool, option("Show all output of Flower and Ray.", None, "--verbose")] = False,
) -> None:
    """Train clients together, simulated or on real machines.

    The run writes a folder with metrics, a summary, a report, and the state from
    which --resume continues. docs/running.md explains the figures.

    Exits 0 if it completed, 1 if it failed, 2 if it could not start, 128 + n on signal n.
    """
    if outcome is not None:
        _clear(outcome)
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
        place=place,
        settings=settings or [],
        preset=preset,
        resume=resume,
        results=results,
        clients=clients,
        cpus=cpus_per_client,
        gpus=gpus_per_client,
        trust=trust,
        verbose=verbose,
        what_leaves=what_leaves,
    )
    with Display() as display:
        ending = _attempt(request, display)
    # what is left of a run, before its outcome is said
    hints = _hints(request, ending) if ending.code else []
    if outcome is not None:
        _leave(outcome, ending)
    if ending.code:
        end("\n".join([ending.reason, *hints]), ending.code)
    if what_leaves:
        return
    if ending.folder is None:
        typer.echo("completed; the results lie on the SuperLink's machine")
        return
    from protosphere.cli.summary import print_summary

    print_summary(ending.folder)


@dataclass(frozen=True)
class _Request:
    """What the command was asked for."""

    place: Place
    settings: Sequence[str]
    preset: str
    resume: str
    results: str
    clients: int | None
    cpus: int | None
    gpus: float | None
    trust: bool
    verbose: bool
    what_leaves: bool


@dataclass(frozen=True)
class _Ending:
    """How a run ended, or why none began.

    Attributes:
        code: the exit code.
        folder: the run's, if it came to one on this machine.
        reason: why it failed, in a sentence.
        log: where its log is; "" where no run began.
        flower_run: the number by which Flower knows it.
        resumable: whether a run of another machine has a checkpoint to go on from.
        run_config: its settings; empty where no run began.
    """

    code: int
    folder: Path | None = None
    reason: str = ""
    log: str = ""
    flower_run: str = ""
    resumable: bool = False
    run_config: "dict[str, Scalar]" = field(default_factory=dict)


def _attempt(request: _Request, display: Display) -> _Ending:
    """Plan the run and run it."""
    from protosphere.launch.processes import Interrupted, interruptible

    display.stage("reading settings and data")
    try:
        with interruptible():
            plan = _plan(request)
            if request.what_leaves:
                _list_disclosures(plan, display)
                return _Ending(0)
    except Interrupted as interruption:
        reason = f"stopped by {interruption.name} before anything was started."
        return _Ending(KILLED + interruption.number, reason=reason)
    except UserError as error:
        return _Ending(BAD_INPUT, reason=str(error))
    for note in plan.notes:
        display.line(note)
    ending = (_run_here if request.place.is_here else _run_flower)(request, plan, display)
    return replace(ending, run_config=plan.run_config)


def _plan(request: _Request) -> "Plan":
    from protosphere.plans.assignments import read_all

    # a slip in a setting is known before torch is loaded, which takes seconds
    given = read_all(request.settings)
    with uncollected():
        from protosphere.core.devices import device_of
        from protosphere.launch.ray_cluster import cluster_at
        from protosphere.plans.preflight import check_resources
        from protosphere.plans.run_config import plan

    kind = request.place.kind
    resources = 1 if request.cpus is None else request.cpus, request.gpus or 0.0
    if kind == "ray":
        cluster_at(request.place.name).holds(*resources)
    run_plan = plan(
        preset=request.preset,
        resume=request.resume,
        results=request.results,
        clients=request.clients,
        trust=request.trust,
        remote=kind == "superlink",
        here=kind not in ("superlink", "ray"),
        more=given,
    )
    if request.place.is_here:
        device_of(str(run_plan.run_config["device"]), "setting `device` is")
    elif kind == "flower":
        check_resources(*resources)
    return run_plan


def _list_disclosures(plan: "Plan", display: Display) -> None:
    from protosphere.launch.grid import disclosures

    items = disclosures(plan.run_config, plan.clients)
    display.line("the server would learn about each client:")
    for item in items:
        display.line(f"  - {item}")


def _run_here(request: _Request, plan: "Plan", display: Display) -> _Ending:
    from protosphere.launch.flower import describe_stop
    from protosphere.launch.grid import KeptLines, run_in_process
    from protosphere.launch.processes import Interrupted, interruptible
    from protosphere.server_app.status import USER_ERRORS

    display.stage("starting the clients")
    lines = KeptLines(display.line if request.verbose else _show_once(display))

    def opened(folder: Path) -> None:
        lines.opened = folder
        _follow(display, folder)

    try:
        with interruptible():
            workers = request.place.workers
            folder = run_in_process(
                plan.run_config, clients=plan.clients, workers=workers, show=lines.hear, opened=opened
            )
            lines.save()
            return _Ending(0, folder)
    except Interrupted as interruption:
        reason, code = describe_stop(interruption.name, lines.folder), KILLED + interruption.number
    except USER_ERRORS as error:
        reason, code = str(error), FAILED
        lines.keep(f"error: {error}")
    return _Ending(code, lines.folder, reason, str(lines.save() or ""))


def _run_flower(request: _Request, plan: "Plan", display: Display) -> _Ending:
    from protosphere.launch.flower import RunInterrupted, launch
    from protosphere.launch.ray_cluster import cluster_address

    place = request.place
    cpus, gpus = 1 if request.cpus is None else request.cpus, request.gpus or 0.0
    if place.kind == "superlink":
        number = f"{plan.clients} clients" if plan.clients else "as many clients as its nodes report"
        display.line(f"running on the nodes of the SuperLink `{place.name}`: {number}")
        display.stage(f"running on the nodes of `{place.name}`")
    else:
        share = f"{cpus} CPU{'s' * (cpus > 1)}" + (f" and {gpus:g} GPU" if gpus else "")
        cluster = f", on the Ray cluster at {cluster_address(place.name)}" if place.kind == "ray" else ""
        display.line(f"starting Flower's simulation: {plan.clients} clients, {share} each{cluster}")
        display.stage("starting Flower")
    try:
        outcome = launch(
            plan.run_config,
            clients=plan.clients,
            cpus_per_client=cpus,
            gpus_per_client=gpus,
            show=display.line if request.verbose else _show_once(display),
            verbose=request.verbose,
            connection=place.name if place.kind == "superlink" else "",
            ray=cluster_address(place.name) if place.kind == "ray" else "",
            opened=partial(_follow, display),
        )
        code = FAILED if outcome.flower_run else BAD_INPUT
    except RunInterrupted as interruption:
        outcome, code = interruption.outcome, KILLED + interruption.number
    if outcome.ok:
        return _Ending(0, outcome.folder)
    # of a run that came to nothing there may be nothing to keep
    log = str(outcome.log or ("none could be written" if outcome.flower_run else ""))
    return _Ending(code, outcome.folder, outcome.message, log, outcome.flower_run, outcome.resumable)


def _follow(display: Display, folder: Path) -> None:
    display.stage("waiting for the clients")
    display.follow(folder)


def _show_once(display: Display) -> Callable[[str], None]:
    """Shows each line once: where its results are a run says first and last."""
    shown_lines: set[str] = set()

    def show(line: str) -> None:
        if line not in shown_lines:
            display.line(line)
        shown_lines.add(line)

    return show


def _hints(request: _Request, ending: _Ending) -> list[str]:
    """Of a run that has begun: where the report of what there is lies, the command that goes on with it, its log."""
    folder, lines = ending.folder, []
    if not ending.run_config or not (folder or ending.flower_run or ending.log):
        return []
    from protosphere.launch.flower import mark_stopped
    from protosphere.launch.processes import interruptible

    # a run of another machine that was resumed is known there by what it was resumed by
    resumed = request.resume or (ending.flower_run if ending.resumable else "")
    if folder is not None or request.place.kind != "superlink":
        resumed = ""
    if folder is not None:
        if ending.code > KILLED:
            with interruptible() as deafen:
                # a second Ctrl-C takes nothing of the report away
                deafen()
                mark_stopped(folder)
        if (folder / "report.html").exists():
            lines.append(f"report: {folder / 'report.html'}")
        if (folder / "checkpoint.safetensors").exists():
            resumed = str(folder)
    if resumed:
        options = {"--on": request.place.text, "--cpus-per-client": request.cpus, "--gpus-per-client": request.gpus}
        options |= {"-c": _not_saved(ending.run_config, folder or Path(request.resume))}
        words = ["protosphere", "run"]
        for name, value in options.items():
            words += [name, str(value)] if value else []
        words += ["--trust"] * request.trust + ["--verbose"] * request.verbose
        lines.append(f"resume: {shlex.join([*words, '--resume', resumed])}")
    if ending.log:
        lines.append(f"log: {ending.log}")
    return lines


def _not_saved(run_config: "dict[str, Scalar]", folder: Path) -> str:
    """The settings of a run that its folder does not have, as `-c` takes them: those that were changed when it was
    resumed or, where no folder of it is on this machine, all that are not the default."""
    from protosphere.launch.flower import toml_value
    from protosphere.record.folder import RunFolder
    from protosphere.strategies import as_of_today, known_settings

    is_here = (folder / "settings.json").exists()
    try:
        saved = as_of_today(RunFolder(folder).settings()) if is_here else known_settings(str(run_config["strategy"]))
    except UserError:
        # a damaged folder, of which a resume says so
        return ""
    # a folder is named by its whole path
    named = {"resume", "results-dir"} if is_here else {"resume"}
    words = []
    for name, value in run_config.items():
        if name not in named and saved.get(name) != value:
            words.append(f"{name}={toml_value(value)}")
    return " ".join(words)


def _clear(outcome: Path) -> None:
    """See that the outcome can be left there, and that an old one cannot be taken for this run's."""
    try:
        outcome.unlink(missing_ok=True)
        outcome.touch()
        outcome.unlink()
    except OSError as error:
        end(f"--outcome is {outcome}, which cannot be written ({error.strerror}); name a file of yours.")


def _leave(outcome: Path, ending: _Ending) -> None:
    from protosphere.core.files import replacing

    folder = str(ending.folder) if ending.folder and ending.folder.is_dir() else None
    content = {"code": ending.code, "folder": folder, "reason": ending.reason}
    try:
        with replacing(outcome) as temporary:
            temporary.write_text(json.dumps(content) + "\n", "utf-8")
    except OSError as error:
        typer.echo(f"warning: --outcome {outcome} cannot be written ({error.strerror})", err=True)
