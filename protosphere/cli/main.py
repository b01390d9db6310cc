"""The `protosphere` command. A command's imports run with the command, so that `--help` is fast."""

import io
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from protosphere.cli.app_hash import app_hash
from protosphere.cli.compare import compare
from protosphere.cli.data import data
from protosphere.cli.export import export
from protosphere.cli.help import Command, Group
from protosphere.cli.lists import methods, models, presets, settings
from protosphere.cli.new import new
from protosphere.cli.predict import predict
from protosphere.cli.privacy import privacy
from protosphere.cli.report import report
from protosphere.cli.run import run
from protosphere.cli.runs import runs
from protosphere.core.startup import end_at_once

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="""
        protosphere run --clients 20 -c 'strategy="fedproto" rounds=50'
        protosphere compare --methods fedproto,protonorm --seeds 0,1,2
        protosphere COMMAND --help
    """,
)
# command -> its examples, in the order of typical use
EXAMPLES: dict[Callable[..., None], str] = {
    run: """
        protosphere run
        protosphere run --clients 20 -c 'strategy="fedproto" dataset="../cifar10"'
        protosphere run --preset protonorm-cifar10 --on workers:4
        protosphere run --resume latest -c 'rounds=100'
        protosphere run --on superlink:clinics -c settings.toml
    """,
    compare: """
        protosphere compare --methods fedproto,protonorm,local --seeds 0,1,2
        protosphere compare --preset protonorm-table1 --data cifar10=../cifar10 --seeds 0
        protosphere compare --methods local,protonorm --vary 'protonorm.gamma=1,10,100'
        protosphere compare mine.toml --metric 'classifier last-5'
        protosphere compare --resume latest
    """,
    data: """
        protosphere data --clients 20 -c 'alpha=0.5'
        protosphere data -c 'dataset="../pacs/*" partition="mixed"' --picture partition.svg
    """,
    report: """
        protosphere report latest
        protosphere report /srv/results/20260101-120000-protonorm-digits-5f0c91aa
    """,
    predict: """
        protosphere predict --state ~/.protosphere/clients/<run>/0 scan1.png scan2.jpg
        protosphere predict --state ~/.protosphere/clients/<run>/0 --text 'walks well' --csv answers.csv
    """,
    export: """
        protosphere export --state ~/.protosphere/clients/<run>/0 --output model.pt2
        protosphere export --state ~/.protosphere/clients/<run>/0 --output model.onnx
    """,
    privacy: """
        protosphere privacy
        protosphere privacy --renew
    """,
    runs: "    protosphere runs --results /srv/results",
    methods: "    protosphere methods",
    models: "    protosphere models",
    presets: "    protosphere presets",
    settings: "    protosphere settings",
    new: "    protosphere new method mymethod.py",
    app_hash: "    protosphere app-hash",
}
for command, examples in EXAMPLES.items():
    app.command(cls=Command, epilog=examples)(command)


def _version(value: bool) -> None:
    if value:
        try:
            typer.echo(f"protosphere {version('protosphere')}")
        except PackageNotFoundError:
            typer.echo("protosphere (from a checkout that is not installed)")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Prototype-based federated learning for clients that differ in data, model and machine."""
    end_at_once()
    for stream in (sys.stdout, sys.stderr):
        # a character that the terminal cannot show becomes a question mark instead of an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    app()
