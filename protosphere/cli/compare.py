"""`protosphere compare`: compares methods over data sets, partitions and seeds, resumes comparisons, writes tables."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protosphere.cli.options import FAILED, KILLED, Place, Settings, Trust, end, option
from protosphere.cli.tables import console
from protosphere.core.errors import UserError

if TYPE_CHECKING:
    from protosphere.comparison.report import Written
    from protosphere.comparison.spec import ComparisonSpec
    from protosphere.comparison.trials import Trial

PRESETS = sorted(path.stem for path in (Path(__file__).parents[1] / "presets" / "compare").glob("*.toml"))
METRIC = (
    "The metrics to compare, separated by commas: headline, selected, best, client-best, client-best-unweighted, "
    "last-5, final or final-unweighted, optionally after an inference rule or `ensemble` ('classifier last-5'); "
    "macro; 'domain NAME' or 'domain-unweighted NAME'. docs/concepts.md explains them."
)
VARY = (
    "Values of a method's setting to show side by side and as a curve: 'protonorm.gamma=1,10,100'. May be repeated; "
    "one setting varies at a time."
)
CHOOSE = "Choose one of a method's values: `validation`, by accuracy on validation samples."
KINDS = ("process", "workers", "ray")  # places of `--on`
PRINTED = "accuracy"  # the kind of table that is printed; the files have the others
ENOUGH_SEEDS = 5


def compare(
    file: Annotated[str, typer.Argument(help="A comparison, as a TOML file.", show_default=False)] = "",
    preset: Annotated[str, option(f"A table of the papers: {', '.join(PRESETS)}.", "NAME")] = "",
    methods: Annotated[
        str,
        option("Use only these methods, separated by commas: those of the file or preset, or others.", "NAMES"),
    ] = "",
    datasets: Annotated[str, option("Use only these data sets, separated by commas.", "NAMES")] = "",
    partitions: Annotated[str, option("Use only these partitions, separated by commas.", "NAMES")] = "",
    seeds: Annotated[str, option("Seeds, such as 0,1,2.", "NUMBERS")] = "",
    metric: Annotated[str, option(METRIC, "FIGURES")] = "",
    baseline: Annotated[
        str,
        option("The method that all others are compared with (default: `local` if present, else the first).", "NAME"),
    ] = "",
    vary: Annotated[list[str] | None, option(VARY, "SETTING=VALUES")] = None,
    choose: Annotated[str, option(CHOOSE, "BY")] = "",
    cross: Annotated[bool, option("Combine the values of all settings that are varied.", None, "--cross")] = False,
    settings: Settings = None,
    data: Annotated[
        list[str] | None, option("Where to find a data set: cifar10=/path. May be repeated.", "NAME=PATH")
    ] = None,
    results: Annotated[str, option("The folder in which the comparison's folder is created.", "DIR")] = "",
    resume: Annotated[str, option("Continue a comparison: its folder, or `latest`.", "FOLDER")] = "",
    jobs: Annotated[
        int | None, option("Number of trials at a time (default: as many as fit on the machine).", "N")
    ] = None,
    on: Annotated[
        str,
        option(
            "Where a trial runs: `process`, one of its own (default); `workers:N`, N processes that share its clients; "
            "`ray[:HOST:PORT]`, a task of a Ray cluster.",
            "WHERE",
        ),
    ] = "",
    keep_models: Annotated[
        bool, option("Keep the clients' models of finished trials, for `predict`.", None, "--keep-models")
    ] = False,
    reports: Annotated[
        bool,
        option("Write a report for each trial; `protosphere report RUN` can also write one later.", None, "--reports"),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start a preset without asking.")] = False,
    trust: Trust = False,
) -> None:
    """Compare methods over data sets, partitions and seeds.

    On each data set and partition all methods get the same split, initial models and client selection.
    On a terminal, a preset first times one round, estimates its cost, and asks.
    FILE is a comparison in TOML. Without FILE or --preset, methods are compared on digits with default settings.

    A trial is one run: one method, data set, partition and seed. The comparison writes a folder with all trials,
    table.csv, table.md, table.tex and report.html. --resume runs only the trials that are not finished.

    Exits 0 if every trial completed, 1 if some failed, 2 if nothing could start, and 128 + n on signal n.
    """
    narrowing = {"methods": methods, "datasets": datasets, "partitions": partitions, "seeds": seeds, "metric": metric}
    narrowing |= {"baseline": baseline}
    if trust and not resume:
        end("--trust needs --resume: code that you name yourself runs without it.")
    choices = [file, preset, *narrowing.values(), vary, choose, cross, settings, data]
    if resume and any(choices):
        end("--resume continues a comparison as it was started: give no file and no other choices with it.")
    try:
        place = Place.read(on, KINDS)
        from protosphere.plans.assignments import read_all

        # report errors in settings before torch is loaded, which takes seconds
        overrides = read_all(settings or [])
        from protosphere.comparing import carry_out, resolve
        from protosphere.comparison.execution import Processes, Tasks, environments
        from protosphere.comparison.folder import ComparisonFolder
        from protosphere.comparison.spec import load
        from protosphere.launch.processes import Interrupted
        from protosphere.launch.ray_cluster import cluster_address, nodes_at

        nodes = nodes_at(place.name) if place.kind == "ray" else None
        if resume:
            folder = ComparisonFolder.find(resume, results)
            spec, trials = folder.read(trust)
            jobs = folder.jobs if jobs is None else jobs
        else:
            spec, trials = resolve(
                load(file, preset),
                narrowing=narrowing | {"choose": choose, "cross": cross, "own_data": not file and not preset},
                overrides=overrides,
                vary=vary or [],
                places=_read_places(data or []),
            )
        if nodes is None:
            executor: Processes | Tasks = Processes(environments(trials, jobs, place.workers))
        else:
            executor = Tasks(trials, cluster_address(place.name), nodes, jobs)
        if preset and not yes and nodes is None and _is_terminal():
            _ask(spec, trials, executor.jobs)
        if not resume:
            folder = ComparisonFolder.create(spec, trials, results, jobs)
        remedy = f"`{shlex.join(['protosphere', 'compare', '--resume', str(folder.path)])}`"
        typer.echo(f"results: {folder.path}")
        typer.echo(f"{len(trials)} trials, {executor.jobs} at a time")
        try:
            ended, written = carry_out(
                folder, spec, trials, executor, workers=place.workers, reports=reports, keep_models=keep_models
            )
        except Interrupted as interruption:
            sentence = f"stopped by {interruption.name}; finished trials are kept, and {remedy} runs the others."
            end(sentence, KILLED + interruption.number)
    except UserError as error:
        end(str(error))
    except OSError as error:
        end(
            f"{error.filename or 'the results'} cannot be written ({error.strerror}); finished trials are kept.", FAILED
        )
    _print(written, len(spec.seeds))
    failed = [finished for finished in ended if finished.reason]
    for finished in failed:
        log = folder.of(finished.trial) / "output.log"
        typer.echo(f"failed: {finished.trial.title}: {finished.reason} ({log})", err=True)
    if failed:
        end(f"{len(failed)} of {len(trials)} trials failed; {remedy} runs them again.", FAILED)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _ask(comparison: "ComparisonSpec", trials: "Sequence[Trial]", jobs: int) -> None:
    """Print the cost of the trials, and exit if the user declines."""
    from protosphere.comparison.cost import estimate

    typer.echo("timing one round, to estimate what the comparison costs ...")
    try:
        typer.echo(f"{estimate(comparison, trials, jobs)}.")
    except UserError as error:
        typer.echo(str(error))
    if not typer.confirm("Start?"):
        raise typer.Exit(FAILED)


def _read_places(texts: Sequence[str]) -> dict[str, str]:
    places = {}
    for text in texts:
        name, _, place = text.partition("=")
        if not name or not place:
            end(f"--data is {text!r}, but it is a name and a place, as in cifar10=/data/cifar10.")
        places[name] = place
    return places


def _print(written: "Written", seeds: int) -> None:
    """Print the folder, the tables that answer most questions, the conclusion, and what to do next."""
    from protosphere.comparison import tables

    for path in written.paths:
        typer.echo(f"written: {path}")
    typer.echo()
    terminal = console()
    for table in written.tables:
        if table.kind == PRINTED:
            typer.echo(table.sentence)
            terminal.print(tables.console(table))
    typer.echo(written.conclusion)
    more = "" if seeds >= ENOUGH_SEEDS else f"try {ENOUGH_SEEDS} seeds instead of {seeds} for narrower intervals, and "
    typer.echo(f"Next, {more}read the report: it has all intervals, costs and notes.")
