"""`protosphere data`: a data set and its partition, without training."""

import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from protosphere.cli.options import Preset, end, option
from protosphere.core.errors import SettingError, UserError

if TYPE_CHECKING:
    from protosphere.reports.partition_preview import DataView

SETTINGS = "'dataset=\"../cifar10\" alpha=0.5', or a TOML file; later ones win (`protosphere settings`)."
MOST_CLIENTS = 30  # that a terminal shows
MOST_COLUMNS = 12  # of a table, that it names of a kind
PLURAL = {"number": "numbers", "category": "categories"}
MOST_NAMES = 30  # of classes that it tells by number
COLOURS = ("", "black on #deebf7", "black on #9ecae1", "white on #4292c6", "white on #08519c")
SHADES, ASCII_SHADES = "·░▒▓█", " .:+#"  # none, few, ..., most


def data(
    clients: Annotated[int | None, option("Number of clients (default: the setting `clients`, or 10).", "N")] = None,
    settings: Annotated[list[str] | None, option(SETTINGS, "SETTINGS", "--set", "-c")] = None,
    preset: Preset = "",
    picture: Annotated[Path | None, option("Draw the heat map to this file (.svg or .png).", "FILE")] = None,
    export_table: Annotated[
        Path | None,
        option('Write the partition as a table (CSV) that partition = "table" reads.', "FILE"),
    ] = None,
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
        # a slip in a setting is known before torch is loaded, which takes seconds
        given = read_all(settings or [])
    except UserError as error:
        end(str(error))
    from protosphere.data.forms.table_schema import TableSchema
    from protosphere.data.partition.table import write_table
    from protosphere.plans.run_config import plan
    from protosphere.reports.partition_preview import refuse_ending, view, write_picture
    from protosphere.strategies import read_settings

    try:
        if picture is not None:
            refuse_ending(picture)
        run_plan = plan(preset=preset, clients=clients, trains=False, more=given)
        data_settings = read_settings(run_plan.run_config).settings
        data_view = view(data_settings, run_plan.clients)
        if picture is not None:
            write_picture(data_view, picture)
        if export_table is not None:
            write_table(export_table, data_view.dealt, data_view.class_names)
        if export_columns is not None:
            if not data_view.columns:
                raise SettingError(
                    f"--export-columns is {str(export_columns)!r}, but {data_view.dataset!r} is no table of numbers; "
                    "leave it out."
                )
            TableSchema(tuple(column for column, _ in data_view.columns)).save(export_columns)
    except UserError as error:
        end(str(error))
    if as_json:
        typer.echo(json.dumps(data_view.as_json()))
        return
    _print(data_view)
    for file in filter(None, (picture, export_table, export_columns)):
        typer.echo(f"written: {file}")


def _print(data_view: "DataView") -> None:
    from protosphere.core.text import one_class

    console = Console(highlight=False, soft_wrap=True)
    for line in (*_about(data_view), ""):
        console.print(line, markup=False)
    console.print(_table(data_view))
    if alone := one_class(dict(enumerate(client.labels for client in data_view.clients)), data_view.class_names):
        console.print(f"Note: {alone}.\n", markup=False)
    few = len(data_view.clients) - MOST_CLIENTS
    if few > 0:
        console.print(
            f"The first {MOST_CLIENTS} of {len(data_view.clients)} clients; --json has all, --picture draws all.\n"
        )
    for text in _heat_map(data_view, console):
        console.print(text)


def _about(data_view: "DataView") -> list[str]:
    """The data set, then the partition, then what clients have on the whole."""
    names = ", ".join(data_view.class_names[:12]) + (", ..." if len(data_view.class_names) > 12 else "")
    domains = ", ".join(f"{name} ({count} samples)" for name, count in data_view.domains.items())
    groups = (
        [f"  groups: {data_view.groups}; the samples of a group stay together"] if data_view.groups is not None else []
    )
    totals = [client.train + client.validation + client.test for client in data_view.clients]
    classes = [client.classes for client in data_view.clients]
    return [
        f"{data_view.dataset}: {data_view.train + data_view.test} samples "
        f"({data_view.train} train + {data_view.test} test)",
        f"  inputs: {data_view.inputs}",
        *_columns(data_view),
        f"  classes: {len(data_view.class_names)} ({names})",
        *([f"  domains: {domains}"] if domains else []),
        *groups,
        "",
        "partition: " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in data_view.partition.items()),
        f"  samples per client: {_spread(totals)}; classes per client: {_spread(classes)}",
        *([f"  {data_view.shared} samples are the ensemble's shared test set"] if data_view.shared else []),
        *([f"  {data_view.nobodys} samples belong to no client"] if data_view.nobodys else []),
    ]


def _columns(data_view: "DataView") -> list[str]:
    """What becomes of a table's columns, and of what they lack."""
    lines = []
    for kind, what in (("number", "; scaled by each client's own training samples"), ("category", "")):
        columns = [
            column.name + (f" ({len(column.values)} values)" if column.values else "")
            for column, _ in data_view.columns
            if column.kind == kind
        ]
        named = ", ".join(columns[:MOST_COLUMNS]) + (", ..." if len(columns) > MOST_COLUMNS else "")
        lines += [f"  {PLURAL[kind]}: {len(columns)} ({named}){what}"] if columns else []
    lacking = [f"{column.name} ({rows} samples)" for column, rows in data_view.columns if rows]
    note = "; numeric: mean-imputed, with a missing indicator; categorical: 'missing' is a category of its own"
    return [*lines, *([f"  missing: {', '.join(lacking)}{note}"] if lacking else [])]


def _spread(values: Sequence[int]) -> str:
    ordered = sorted(values)
    return f"{ordered[0]} to {ordered[-1]}, median {ordered[len(ordered) // 2]}"


def _table(data_view: "DataView") -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("client", justify="right", no_wrap=True)
    names = data_view.names
    if names:
        table.add_column("name", overflow="fold")
    for name in ("train", "validation", "test", "classes"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, client in enumerate(data_view.clients[:MOST_CLIENTS]):
        # Text: a name is no markup
        named = [Text(names.get(number, ""))] if names else []
        numbers = (client.train, client.validation, client.test, client.classes)
        table.add_row(str(number), *named, *map(str, numbers))
    return table


def _heat_map(data_view: "DataView", console: Console) -> list[Text]:
    """Clients × classes: numbers on a ground that darkens with them where they fit, else shades alone."""
    clients = data_view.clients[:MOST_CLIENTS]
    most = max((max(client.counts) for client in data_view.clients), default=0)
    label = len(str(len(clients) - 1)) + len("client ")
    narrow = max(len(str(most)), len(str(len(data_view.class_names) - 1))) + 2
    room = console.width - label - 1
    numbered = len(data_view.class_names) * narrow <= room
    heads, width, legend = _heads(data_view.class_names, narrow, room)
    fitting = len(data_view.class_names) if numbered else min(room, len(data_view.class_names))
    head = heads if numbered else f"0 to {fitting - 1}"
    lines = [Text("samples by class (training, validation and test)"), Text(f"{'class':>{label}} {head}".rstrip())]
    shades = ASCII_SHADES if console.options.ascii_only else SHADES
    for number, client in enumerate(clients):
        line = Text(f"{f'client {number}':>{label}} ")
        for count in client.counts[:fitting]:
            level = _level(count, most)
            cell = f"{count or shades[0]:>{width - 1}} " if numbered else shades[level]
            line.append(cell, COLOURS[level] if numbered else "")
        lines.append(line)
    if not numbered:
        lines.append(Text(f"{shades[0]} none, {', '.join(_bands(most, shades))} samples"))
    lines += [Text(legend)] if legend else []
    if fitting < len(data_view.class_names):
        lines.append(Text(f"The first {fitting} of {len(data_view.class_names)} classes; --json has all."))
    return lines


def _heads(names: Sequence[str], narrow: int, room: int) -> tuple[str, int, str]:
    """The heads of the columns in a line, how wide a column is, and what is to be told below: names stand over the
    columns where all fit, else below, by their numbers."""
    numbers = [str(number) for number in range(len(names))]
    wide = max(narrow, 2 + max(map(cell_len, names)))
    named = len(names) * wide <= room
    width, heads = (wide, names) if named else (narrow, numbers)
    line = "".join(f"{' ' * (width - 1 - cell_len(head))}{head} " for head in heads)
    if named or numbers == list(names):
        return line, width, ""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return line, width, f"classes: {', '.join(f'{n} {name}' for n, name in enumerate(names[:MOST_NAMES]))}{more}"


def _level(count: int, most: int) -> int:
    """0 for none, else 1 to 4 on a scale of orders of 1 to `most`."""
    if not count:
        return 0
    if count == most:
        return 4
    return 1 + int(4 * math.log(count) / math.log(most))


def _bands(most: int, shades: str) -> list[str]:
    """Each shade with the numbers that it stands for."""
    every = range(1, most + 1)
    starts = [1 + bisect_left(every, level, key=lambda count: _level(count, most)) for level in range(1, 6)]
    pairs = zip(shades[1:], starts, starts[1:], strict=False)
    return [
        f"{shade} {first} to {after - 1}" if after - first > 1 else f"{shade} {first}"
        for shade, first, after in pairs
        if after > first
    ]
