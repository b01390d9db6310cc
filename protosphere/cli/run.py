"""`protosphere run`: checks the settings, runs, and reports the result."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from protosphere.cli.options import BAD_INPUT, FAILED, KILLED, On, Place, Preset, Settings, Trust, end, option
from protosphere.core.errors import SettingError, UserError
from protosphere.core.startup import uncollected

if TYPE_CHECKING:
    from protosphere.launch.flower import Outcome
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
    from protosphere.launch.processes import Interrupted, interruptible
    from protosphere.plans.assignments import read_all

    if trust and not resume:
        end("--trust needs --resume: code that you name yourself runs without it.")
    try:
        place = Place.read(on)
        if (cpus_per_client is not None or gpus_per_client is not None) and place.kind not in ("flower", "ray"):
            end("--cpus-per-client and --gpus-per-client need --on flower or --on ray; else use --on workers:N.")
        if what_leaves and (place.kind == "superlink" or resume):
            end("--what-leaves is for new simulations; what real clients have disclosed is in the run's roster.json.")
        # a terminal alone shows it, until the first line
        with interruptible(), Console(stderr=True).status("reading settings and data"):
            # report errors in settings before torch is loaded, which takes seconds
            assignments = read_all(settings or [])
            with uncollected():
                from protosphere.launch.ray_cluster import count_tasks, nodes_at
                from protosphere.plans.preflight import check_resources, disclosures
                from protosphere.plans.run_config import plan
            resources = 1 if cpus_per_client is None else cpus_per_client, gpus_per_client or 0.0
            if place.kind == "ray":
                count_tasks(nodes_at(place.name), *resources)
            run_plan = plan(
                preset=preset,
                resume=resume,
                results=results,
                clients=clients,
                trust=trust,
                remote=place.kind == "superlink",
                here=place.kind not in ("superlink", "ray"),
                more=assignments,
            )
            if place.kind == "flower":
                check_resources(*resources)
        if what_leaves:
            typer.echo("the server would learn about each client:")
            for item in disclosures(run_plan.run_config, run_plan.clients):
                typer.echo(f"  - {item}")
            return
    except Interrupted as interruption:
        end(f"stopped by {interruption.name} before anything was started.", KILLED + interruption.number)
    except UserError as error:
        end(str(error))

    outcome = _run_here(run_plan, place) if place.is_here else _run_flower(run_plan, place, *resources, verbose)
    folder = outcome.folder
    if outcome.ok and folder is None:
        typer.echo("completed; the results are on the SuperLink's machine, where `report.html` shows them")
    elif outcome.ok and folder is not None:
        from protosphere.cli.summary import print_summary

        print_summary(folder)
    else:
        options = ["--on", on] if on else []
        if cpus_per_client is not None:
            options += ["--cpus-per-client", str(cpus_per_client)]
        if gpus_per_client is not None:
            options += ["--gpus-per-client", str(gpus_per_client)]
        options += ["--trust"] * trust + ["--verbose"] * verbose
        arguments = _resume_arguments(outcome, run_plan, place, resume, settings or [])
        code = FAILED if place.is_here or outcome.flower_run else BAD_INPUT
        code = KILLED + outcome.signal if outcome.signal else code
        _end_failed(outcome, ["protosphere", "run", *options, *arguments] if arguments else [], code)


def _resume_arguments(
    outcome: "Outcome", run_plan: "Plan", place: Place, resume: str, settings: Sequence[str]
) -> list[str]:
    """The arguments of a command that continues the run, with its settings; none if there is nothing to continue."""
    folder = outcome.folder
    if folder is None and place.kind == "superlink":
        # on the other machine a resumed run is known by the name in `--resume`, and its settings are given again
        name = resume or outcome.flower_run
        return ["-c", _as_assignments(run_plan), "--resume", name] if name else []
    if folder is None or not (folder / "checkpoint.safetensors").exists():
        return []
    # a run's folder has the settings with which it began
    again = [word for text in settings for word in ("-c", text)] if resume else []
    return [*again, "--resume", str(folder)]


def _run_here(run_plan: "Plan", place: Place) -> "Outcome":
    from protosphere.launch.flower import Outcome, describe_stop
    from protosphere.launch.processes import Interrupted, interruptible
    from protosphere.running import carry_out, existing
    from protosphere.server_app.status import USER_ERRORS

    folders: list[Path] = []
    try:
        with interruptible():
            return Outcome(True, carry_out(run_plan, typer.echo, folders, workers=place.workers))
    except Interrupted as interruption:
        folder = existing(folders)
        return Outcome(False, folder, describe_stop(interruption.name, folder), signal=interruption.number)
    except USER_ERRORS as error:
        folder = existing(folders)
        if isinstance(error, SettingError) and folder is None:
            end(str(error))
        return Outcome(False, folder, str(error))


def _run_flower(run_plan: "Plan", place: Place, cpus: int, gpus: float, verbose: bool) -> "Outcome":
    from protosphere.launch.flower import launch
    from protosphere.launch.ray_cluster import cluster_address

    for note in run_plan.notes:
        typer.echo(note)
    if place.kind == "superlink":
        number = f"{run_plan.clients} clients" if run_plan.clients else "as many clients as its nodes report"
        typer.echo(f"running on the nodes of the SuperLink `{place.name}`: {number}")
    else:
        share = f"{cpus} CPU{'s' * (cpus > 1)}" + (f" and {gpus:g} GPU" if gpus else "")
        cluster = ", on the nodes of a Ray cluster" if place.kind == "ray" else ""
        typer.echo(f"starting Flower's simulation: {run_plan.clients} clients, {share} each{cluster}")
    return launch(
        run_plan.run_config,
        clients=run_plan.clients,
        cpus_per_client=cpus,
        gpus_per_client=gpus,
        show=typer.echo,
        verbose=verbose,
        connection=place.name if place.kind == "superlink" else "",
        ray=cluster_address(place.name) if place.kind == "ray" else "",
    )


def _as_assignments(run_plan: "Plan") -> str:
    """The plan's settings that differ from the defaults, in the form of `-c`."""
    from protosphere.launch.flower import toml_value
    from protosphere.strategies import known_settings

    defaults = known_settings(str(run_plan.run_config["strategy"]))
    assignments = []
    for name, value in run_plan.run_config.items():
        if name != "resume" and defaults.get(name) != value:
            assignments.append(f"{name}={toml_value(value)}")
    return " ".join(assignments)


def _end_failed(outcome: "Outcome", resume_command: list[str], code: int) -> NoReturn:
    """Print the reason, the report, the command that continues the run, and the log; and exit."""
    folder, lines = outcome.folder, [outcome.message]
    if folder is not None and (folder / "report.html").exists():
        lines.append(f"report: {folder / 'report.html'}")
    if resume_command:
        lines.append(f"resume: {shlex.join(resume_command)}")
    if folder is not None:
        lines.append(f"log: {folder / 'run.log'}")
    end("\n".join(lines), code)
