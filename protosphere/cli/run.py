"""`protosphere run`: check everything, run, say how it ended."""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protosphere.cli.options import BAD_INPUT, FAILED, KILLED, Preset, Trust, end, option
from protosphere.core.errors import UserError
from protosphere.core.startup import uncollected
from protosphere.runs.display import Display

if TYPE_CHECKING:
    from protosphere.plans.run_config import Plan, RunConfig


RAY = (
    "Ray cluster that runs the clients, with --flower: HOST:PORT of its head (default: the run starts its own). "
    "docs/ray.md says what its nodes need."
)
SETTINGS = "'rounds=5 strategy=\"fedproto\"', or a TOML file; later ones win (`protosphere settings`)."


def run(
    clients: Annotated[
        int | None,
        option("Number of clients (default: the setting `clients`, or 10; with --superlink, all that there are).", "N"),
    ] = None,
    cpus_per_client: Annotated[
        int | None,
        option("CPU cores per client, with --flower (default: 1). As many clients run at a time as fit.", "N"),
    ] = None,
    gpus_per_client: Annotated[
        float | None,
        option("GPUs per client, such as 0.25, with --flower (default: 0, which trains on the CPU).", "SHARE"),
    ] = None,
    flower: Annotated[
        bool, option("Run over Flower's own simulation: a SuperLink, and Ray for the clients.", None, "--flower")
    ] = False,
    ray: Annotated[str, option(RAY, "ADDRESS")] = "",
    superlink: Annotated[
        str,
        option("Run on the real nodes of this SuperLink: a connection's name in Flower's config.toml.", "CONNECTION"),
    ] = "",
    workers: Annotated[
        int | None, option("Number of processes that train the clients (default: 1, this process).", "N")
    ] = None,
    settings: Annotated[list[str] | None, option(SETTINGS, "SETTINGS", "--set", "-c")] = None,
    preset: Preset = "",
    resume: Annotated[
        str,
        option(
            "Continue a run: its folder, its name, its number in `flwr ls`, or `latest`.",
            "RUN",
        ),
    ] = "",
    results: Annotated[
        str, option("The folder in which the run's folder is created (default: results in PROTOSPHERE_HOME).", "DIR")
    ] = "",
    what_leaves: Annotated[
        bool, option("List what the server would learn about each client, then exit.", None, "--what-leaves")
    ] = False,
    trust: Trust = False,
    outcome: Annotated[
        Path | None,
        option("Write the outcome to this file as JSON: exit code, folder, reason. For scripts.", "FILE"),
    ] = None,
    verbose: Annotated[bool, option("Show all output of Flower and Ray.", None, "--verbose")] = False,
) -> None:
    """Train clients together, simulated or on real machines.

    Each client of a simulation has its own samples (`protosphere data` shows them) and a private model. The run writes
    a folder of its own with metrics, a summary, a report, and the state from which --resume continues.

    Exits 0 if the run completed, 1 if it failed, 2 if it could not start, and 128 + n on signal n.
    """
    if trust and not resume:
        end("--trust needs --resume: code that you name yourself runs without it.")
    _refuse_idle_flags(flower, ray, superlink, cpus_per_client, gpus_per_client, workers)
    in_process = not flower and not superlink
    if what_leaves and (superlink or resume):
        end("--what-leaves works for simulations only; what real clients have disclosed is in their run's roster.json.")
    if outcome is not None:
        _clear(outcome)
    from protosphere.launch.processes import Interrupted, interruptible

    cpus, gpus = 1 if cpus_per_client is None else cpus_per_client, gpus_per_client or 0.0
    choices = {"preset": preset, "resume": resume, "results": results, "clients": clients, "trust": trust}
    choices |= {"remote": bool(superlink), "here": not superlink and not ray}
    with Display() as display:
        display.stage("reading settings and data")
        try:
            with interruptible():
                # its imports take seconds
                ending = run_plan = _plan_run(settings or [], choices, ray, in_process, (cpus, gpus))
                if what_leaves and not isinstance(ending, _Ending):
                    ending = _list_disclosures(ending, display)
        except Interrupted as interruption:
            sentence = f"stopped by {interruption.name} before anything was started."
            ending = _Ending(KILLED + interruption.number, words=sentence)
        if not isinstance(ending, _Ending):
            for note in ending.notes:
                display.line(note)
            if in_process:
                ending = _run_here(ending, workers or 1, verbose, display)
            else:
                ending = _run_flower(ending, cpus, gpus, verbose, superlink, ray, display)
    again = {"--superlink": superlink, "--flower": flower, "--ray": ray, "--workers": workers}
    again |= {"--cpus-per-client": cpus_per_client, "--gpus-per-client": gpus_per_client}
    again |= {"--trust": trust, "--verbose": verbose}
    begun = ending.folder or ending.flower_run or ending.log
    # a run of another machine that was resumed is known there by what it was resumed by
    elsewhere = (resume or (ending.flower_run if ending.resumable else "")) if superlink else ""
    after: list[str] = []
    if ending.code and begun and not isinstance(run_plan, _Ending):
        again |= {"-c": _not_saved(run_plan.run_config, ending.folder or Path(resume))}
        after = _afterwords(ending, again, elsewhere)
    if outcome is not None:
        _leave(outcome, ending)
    if ending.code:
        end("\n".join([ending.words, *after]), ending.code)
    if what_leaves:
        return
    if ending.folder is None:
        typer.echo("completed; the results lie on the SuperLink's machine")
        return
    from protosphere.cli.summary import print_summary

    print_summary(ending.folder)


@dataclass(frozen=True)
class _Ending:
    """How a run ended, or why none began.

    Attributes:
        code: the exit code.
        folder: the run's, if it came to one on this machine.
        words: why it failed, in a sentence.
        flower_run: the number by which Flower knows it.
        resumable: whether a run of another machine has a checkpoint to go on from.
    """

    code: int
    folder: Path | None = None
    words: str = ""
    log: str = ""
    flower_run: str = ""
    resumable: bool = False


def _plan_run(
    settings: list[str], choices: dict[str, Any], ray: str, in_process: bool, resources: tuple[int, float]
) -> "Plan | _Ending":
    with uncollected():
        from protosphere.core.devices import device_of
        from protosphere.launch.ray_cluster import cluster_at
        from protosphere.plans.preflight import check_resources
        from protosphere.plans.run_config import plan

    try:
        if ray:
            cluster_at(ray).holds(*resources)
        run_plan = plan(settings, **choices)
        if in_process:
            device_of(str(run_plan.run_config["device"]), "setting `device` is")
        elif choices["here"]:
            check_resources(*resources)
        return run_plan
    except UserError as error:
        return _Ending(BAD_INPUT, words=str(error))


def _list_disclosures(run_plan: "Plan", display: Display) -> _Ending:
    from protosphere.launch.grid import disclosures

    try:
        items = disclosures(run_plan.run_config, run_plan.clients)
    except UserError as error:
        return _Ending(BAD_INPUT, words=str(error))
    display.line("the server would learn about each client:")
    for item in items:
        display.line(f"  - {item}")
    return _Ending(0)


def _run_flower(
    run_plan: "Plan", cpus: int, gpus: float, verbose: bool, connection: str, ray: str, display: Display
) -> _Ending:
    from protosphere.launch.flower import RunInterrupted, launch

    if connection:
        number = f"{run_plan.clients} clients" if run_plan.clients else "as many clients as its nodes report"
        display.line(f"running on the nodes of the SuperLink `{connection}`: {number}")
        display.stage(f"running on the nodes of `{connection}`")
    else:
        share = f"{cpus} CPU{'s' * (cpus > 1)}" + (f" and {gpus:g} GPU" if gpus else "")
        on = f", on the Ray cluster at {ray}" if ray else ""
        display.line(f"starting Flower: {run_plan.clients} clients, {share} each{on}")
        display.stage("starting Flower")
    try:
        outcome = launch(
            run_plan.run_config,
            clients=run_plan.clients,
            cpus_per_client=cpus,
            gpus_per_client=gpus,
            show=display.line if verbose else _show_once(display),
            verbose=verbose,
            connection=connection,
            ray=ray,
            opened=partial(_follow, display),
        )
        code = FAILED if outcome.flower_run else BAD_INPUT
    except RunInterrupted as interruption:
        outcome, code = interruption.outcome, KILLED + interruption.number
    if outcome.ok:
        return _Ending(0, outcome.folder)
    # of a run that came to nothing there may be nothing to keep
    log = "none could be written" if outcome.flower_run else ""
    return _Ending(
        code, outcome.folder, outcome.message, str(outcome.log or log), outcome.flower_run, outcome.resumable
    )


def _run_here(run_plan: "Plan", workers: int, verbose: bool, display: Display) -> _Ending:
    from protosphere.launch.flower import describe_stop
    from protosphere.launch.grid import KeptLines, run_in_process
    from protosphere.launch.processes import Interrupted, interruptible
    from protosphere.server_app.status import USER_ERRORS

    display.stage("starting the clients")
    lines = KeptLines(display.line if verbose else _show_once(display))

    def opened(folder: Path) -> None:
        lines.opened = folder
        _follow(display, folder)

    try:
        with interruptible():
            config, clients = run_plan.run_config, run_plan.clients
            folder = run_in_process(config, clients=clients, workers=workers, show=lines.hear, opened=opened)
            lines.save()
            return _Ending(0, folder)
    except Interrupted as interruption:
        message, code = describe_stop(interruption.name, lines.folder), KILLED + interruption.number
    except USER_ERRORS as error:
        message, code = str(error), FAILED
        lines.keep(f"error: {error}")
    return _Ending(code, lines.folder, message, str(lines.save() or ""))


def _not_saved(run_config: "RunConfig", folder: Path) -> str:
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


def _afterwords(ending: _Ending, options: Mapping[str, object], elsewhere: str) -> list[str]:
    """Where the report of what there is lies, what goes on with the run, and its log."""
    from protosphere.launch.flower import mark_stopped
    from protosphere.launch.processes import interruptible

    arguments: list[str] = []
    for name, value in options.items():
        if value:
            arguments += [name] if value is True else [name, str(value)]
    folder, resumed, lines = ending.folder, elsewhere, []
    if folder is not None:
        resumed = ""
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
        lines.append(f"resume: {shlex.join(['protosphere', 'run', *arguments, '--resume', resumed])}")
    if ending.log:
        lines.append(f"log: {ending.log}")
    return lines


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
    content = {"code": ending.code, "folder": folder, "reason": ending.words}
    try:
        with replacing(outcome) as temporary:
            temporary.write_text(json.dumps(content) + "\n", "utf-8")
    except OSError as error:
        typer.echo(f"warning: --outcome {outcome} cannot be written ({error.strerror})", err=True)


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


def _refuse_idle_flags(
    flower: bool, ray: str, superlink: str, cpus: int | None, gpus: float | None, workers: int | None
) -> None:
    """A flag that would do nothing is a mistake that nobody would notice."""
    rays = cpus is not None or gpus is not None
    if ray and not flower:
        end("--ray needs --flower: it is the cluster of Flower's simulation.")
    if superlink and (flower or rays or workers is not None):
        end(
            "--superlink runs on other machines, so it excludes --flower, --workers and the resources of simulated "
            "clients.",
        )
    if rays and not flower:
        end("--cpus-per-client and --gpus-per-client need --flower; without it, use --workers.")
    if workers is not None and flower:
        end(
            "--workers and --flower exclude each other: with --flower, --cpus-per-client sets how many clients run "
            "at a time."
        )
    if workers is not None and workers < 1:
        end(f"--workers is {workers}, but a run needs at least 1.")
