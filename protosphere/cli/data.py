"""`protosphere data`: shows a data set and its partition, without training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protosphere.cli.options import Preset, end, option
from protosphere.cli.tables import print_table
from protosphere.core.errors import SettingError, UserError

if TYPE_CHECKING:
    from protosphere.reports.partition_preview import DataView

SETTINGS = "'dataset=\"../cifar10\" alpha=0.5', or a TOML file; later ones win (`protosphere settings`)."
PICTURES = (".svg", ".png")
MOST_NAMES = 20  # names of classes and columns that are printed
MOST_CLIENTS = 30  # clients that are listed


def data(
    clients: Annotated[int | None, option("Number of clients (default: the setting `clients`, or 10).", "N")] = None,
    settings: Annotated[list[str] | None, option(SETTINGS, "SETTINGS", "--set", "-c")] = None,
    preset: Preset = "",
    picture: Annotated[Path | None, option("Draw the heat map to this file (.svg or .png).", "FILE")] = None,
    export_columns: Annotated[
        Path | None,
        option(
            "Write the columns of a table of numbers to this file (JSON). Sites need it beside their own tables.",
            "FILE",
        ),
    ] = None,
) -> None:
    """Show a data set and its partition among the clients.

    Nothing is trained. `protosphere run` gives the same clients the same samples. On real machines each site
    brings its own.

    Exits 0, or 2 if the data or the settings cannot be used.
    """
    from protosphere.plans.assignments import read_all

    try:
        # report errors in settings before torch is loaded, which takes seconds
        assignments = read_all(settings or [])
    except UserError as error:
        end(str(error))
    from protosphere.data.forms.table_schema import TableSchema, columns_from_json
    from protosphere.plans.run_config import plan
    from protosphere.reports.partition_preview import view, write_picture
    from protosphere.strategies import read_settings

    try:
        if picture is not None and picture.suffix.lower() not in PICTURES:
            raise SettingError(f"--picture is {str(picture)!r}, but its name must end in {' or '.join(PICTURES)}.")
        run_plan = plan(preset=preset, clients=clients, trains=False, more=assignments)
        data_settings = read_settings(run_plan.run_config).settings
        data_view = view(data_settings, run_plan.clients)
        if picture is not None:
            write_picture(data_view, picture)
        if export_columns is not None:
            if not data_view.columns:
                raise SettingError(
                    f"--export-columns is {str(export_columns)!r}, but {data_view.dataset!r} is no table of numbers; "
                    "leave it out."
                )
            TableSchema(columns_from_json(data_view.columns)).save(export_columns)
    except UserError as error:
        end(str(error))
    _print(data_view)
    for file in filter(None, (picture, export_columns)):
        typer.echo(f"written: {file}")


def _print(data_view: "DataView") -> None:
    """Print the data set, the settings of the partition, and a table of the clients."""
    from protosphere.core.text import one_class

    class_names = data_view.class_names
    typer.echo(
        f"{data_view.dataset}: {data_view.train_rows + data_view.test_rows} samples "
        f"({data_view.train_rows} train + {data_view.test_rows} test)"
    )
    lines = {"inputs": data_view.inputs, "classes": _listed(class_names)}
    columns: dict[str, list[str]] = {}
    for column in data_view.columns:
        columns.setdefault(f"{column['kind']} columns", []).append(column["name"])
        if column["rows_without"]:
            text = f"{column['name']} ({column['rows_without']} samples)"
            columns.setdefault("columns with missing values", []).append(text)
    for kind, names in columns.items():
        lines[kind] = _listed(names)
    for name, count in data_view.domains.items():
        lines[f"domain {name}"] = f"{count} samples"
    if data_view.groups is not None:
        lines["groups"] = f"{data_view.groups}; the samples of a group stay together"
    lines["partition"] = ", ".join(f"{name} = {json.dumps(value)}" for name, value in data_view.partition.items())
    if data_view.shared_test_rows:
        lines["ensemble's shared test set"] = f"{data_view.shared_test_rows} samples"
    for name, text in lines.items():
        typer.echo(f"  {name}: {text}")
    if data_view.rows_of_nobody:
        typer.echo(f"  {data_view.rows_of_nobody} samples belong to no client")

    # a column for each class while a terminal has room for them
    counted_classes = class_names if len(class_names) <= MOST_NAMES else []
    has_names = any(client.name for client in data_view.clients)
    rows = []
    for client in data_view.clients[:MOST_CLIENTS]:
        named = [str(client.partition), *([client.name] if has_names else [])]
        numbers = [client.train, client.validation, client.test, client.classes]
        counts = [str(count or "·") for count in client.counts[: len(counted_classes)]]
        rows.append([*named, *map(str, numbers), *counts])
    typer.echo("samples by client and class" if counted_classes else "samples by client")
    head = ["client", *(["name"] if has_names else []), "train", "validation", "test", "classes", *counted_classes]
    print_table(head, rows, left=1 + has_names)
    labels = {}
    for client in data_view.clients:
        labels[client.partition] = [label for label, count in enumerate(client.counts) if count]
    if sentence := one_class(labels, class_names):
        typer.echo(f"note: {sentence}.")
    if len(data_view.clients) > MOST_CLIENTS:
        typer.echo(f"The first {MOST_CLIENTS} of {len(data_view.clients)} clients; --picture draws all.")
    if not counted_classes:
        typer.echo(f"--picture draws each client's samples of the {len(class_names)} classes.")


def _listed(names: Sequence[str]) -> str:
    """The number of names, and the first of them."""
    return f"{len(names)} ({', '.join(names[:MOST_NAMES])}{', …' * (len(names) > MOST_NAMES)})"
