"""`protosphere data`: shows a data set and its partition, without training."""

import json
from collections.abc import Sequence
from dataclasses import asdict
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
MOST_CLIENTS = 30  # clients listed on a terminal
MOST_COLUMNS = 12  # columns of a table listed per kind
PLURAL = {"number": "numbers", "category": "categories"}
MOST_CLASSES = 20  # most classes for which samples are counted by client


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
    as_json: Annotated[bool, option("Print everything as JSON.", None, "--json")] = False,
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
    if as_json:
        typer.echo(json.dumps(asdict(data_view)))
        return
    _print(data_view)
    for file in filter(None, (picture, export_columns)):
        typer.echo(f"written: {file}")


def _print(data_view: "DataView") -> None:
    from protosphere.core.text import one_class

    for line in _about(data_view):
        typer.echo(line)
    _print_clients(data_view)
    labels = {}
    for client in data_view.clients:
        labels[client.partition] = [label for label, count in enumerate(client.counts) if count]
    if alone := one_class(labels, data_view.class_names):
        typer.echo(f"Note: {alone}.")
    if len(data_view.clients) > MOST_CLIENTS:
        typer.echo(
            f"The first {MOST_CLIENTS} of {len(data_view.clients)} clients; --json has all, --picture draws all."
        )
    if len(data_view.class_names) > MOST_CLASSES:
        typer.echo(
            f"--json counts the samples of {len(data_view.class_names)} classes by client, --picture draws them."
        )
        return
    typer.echo("samples by class (training, validation and test)")
    _print_counts(data_view)


def _about(data_view: "DataView") -> list[str]:
    """The data set, then the partition, then an overview of the clients."""
    names = ", ".join(data_view.class_names[:12]) + (", ..." if len(data_view.class_names) > 12 else "")
    lines = [
        f"{data_view.dataset}: {data_view.train_rows + data_view.test_rows} samples "
        f"({data_view.train_rows} train + {data_view.test_rows} test)",
        f"  inputs: {data_view.inputs}",
        *_columns(data_view),
        f"  classes: {len(data_view.class_names)} ({names})",
    ]
    if data_view.domains:
        domains = ", ".join(f"{name} ({count} samples)" for name, count in data_view.domains.items())
        lines.append(f"  domains: {domains}")
    if data_view.groups is not None:
        lines.append(f"  groups: {data_view.groups}; the samples of a group stay together")

    totals = [client.train + client.validation + client.test for client in data_view.clients]
    classes = [client.classes for client in data_view.clients]
    settings = ", ".join(f"{name} = {json.dumps(value)}" for name, value in data_view.partition.items())
    lines += ["", f"partition: {settings}"]
    lines.append(f"  samples per client: {_spread(totals)}; classes per client: {_spread(classes)}")
    if data_view.shared_test_rows:
        lines.append(f"  {data_view.shared_test_rows} samples are the ensemble's shared test set")
    if data_view.rows_of_nobody:
        lines.append(f"  {data_view.rows_of_nobody} samples belong to no client")
    return lines


def _columns(data_view: "DataView") -> list[str]:
    """How a table's columns are used, and which have missing values."""
    lines = []
    for kind, what in (("number", "; scaled by each client's own training samples"), ("category", "")):
        columns = [
            column["name"] + (f" ({len(column['values'])} values)" if column.get("values") else "")
            for column in data_view.columns
            if column["kind"] == kind
        ]
        named = ", ".join(columns[:MOST_COLUMNS]) + (", ..." if len(columns) > MOST_COLUMNS else "")
        lines += [f"  {PLURAL[kind]}: {len(columns)} ({named}){what}"] if columns else []
    lacking = []
    for column in data_view.columns:
        if column["rows_without"]:
            lacking.append(f"{column['name']} ({column['rows_without']} samples)")
    note = "; numeric: mean-imputed, with a missing indicator; categorical: 'missing' is a category of its own"
    return [*lines, *([f"  missing: {', '.join(lacking)}{note}"] if lacking else [])]


def _spread(values: Sequence[int]) -> str:
    ordered = sorted(values)
    return f"{ordered[0]} to {ordered[-1]}, median {ordered[len(ordered) // 2]}"


def _print_clients(data_view: "DataView") -> None:
    has_names = any(client.name for client in data_view.clients)
    head = ["client", *(["name"] if has_names else []), "train", "validation", "test", "classes"]
    rows = []
    for client in data_view.clients[:MOST_CLIENTS]:
        named = [client.name] if has_names else []
        numbers = (client.train, client.validation, client.test, client.classes)
        rows.append([str(client.partition), *named, *map(str, numbers)])
    print_table(head, rows, left=2 if has_names else 1)


def _print_counts(data_view: "DataView") -> None:
    """Print each client's samples per class."""
    rows = []
    for number, client in enumerate(data_view.clients[:MOST_CLIENTS]):
        rows.append([str(number), *(str(count or "·") for count in client.counts)])
    print_table(["client", *data_view.class_names], rows)
