"""The layout of the command's help: examples, arguments with their texts; and the flags that are gone."""

import inspect
from typing import Any

import click
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from protosphere.cli.options import end


class _Plain:
    """Shared by commands and their group."""

    epilog: str | None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, line by line as they are written."""
        if not self.epilog:
            return
        with formatter.section("Examples"):
            for line in inspect.cleandoc(self.epilog).splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


# removed flag -> its replacement
REMOVED = dict.fromkeys(
    ("--engine", "--cohort-size"), "`--on workers:N` lets N processes share the clients, on a GPU as well"
) | {
    "--workers": "`--on workers:N` takes its place",
    "--flower": "`--on flower` takes its place",
    "--ray": "`--on ray:HOST:PORT` takes its place",
    "--superlink": "`--on superlink:NAME` takes its place",
    "--outcome": "the exit code and the run's `status.json` say how it ended",
    "--membership": "clients join and leave over a deployment alone, with `min-clients` and `forget-after`",
    "--html": "a run's own report is a page",
    "--target": "pictures/accuracy-over-bytes-row1.csv of the comparison has the bytes of every evaluation",
    "--sweep": "`--vary` takes its place, with `--choose validation`, and `--cross` for combinations",
    "--reuse": "`--resume` continues a comparison",
    "--scale": "`-c 'rounds=6 clients=4 max-samples=1000'` makes runs small",
    "--format": "the name of --output says it, `.pt2` or `.onnx`",
    "--json": "`predict --csv FILE` has the answers, `data` prints its numbers as one table",
    "--search": "`| grep -i WORD` takes its place",
    "--equal-steps": "set `local-epochs` of each method; a note below the tables says where gradient steps differ",
}
# the same for `compare`, if its replacement differs
REMOVED_OF_COMPARE = dict.fromkeys(
    ("--flower", "--cpus-per-client", "--gpus-per-client"),
    "a trial is a run in one process, whose figures are those of Flower's simulation",
)


class Command(_Plain, TyperCommand):
    """A command of this program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; a removed flag ends the command with its replacement."""
        for word in args:
            flag = word.partition("=")[0]
            removed = REMOVED | (REMOVED_OF_COMPARE if self.name == "compare" else {})
            if flag in removed and not ctx.resilient_parsing:
                end(f"{flag} is gone: {removed[flag]}.")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Arguments, then options, with defaults."""
        parts: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record:
                name, text = record
                # what Typer escapes for its own rich output is shown unescaped here
                text = text.replace("\\[", "[")
                argument_help = _argument_help(self.callback, param)
                text = text if argument_help in text else f"{argument_help}  {text}".strip()
                parts[param.param_type_name].append((name, text))
        for kind, records in parts.items():
            if records:
                with formatter.section(f"{kind.title()}s"):
                    formatter.write_dl(records)


def _argument_help(callback: Any, param: click.Parameter) -> str:
    """The help of an argument: newer versions of Click take it from Typer's arguments when these are created."""
    hints = inspect.get_annotations(inspect.unwrap(callback), eval_str=False) if callback else {}
    arguments = [
        item for item in getattr(hints.get(param.name or ""), "__metadata__", ()) if isinstance(item, ArgumentInfo)
    ]
    return (arguments[0].help or "") if arguments else ""


class Group(_Plain, TyperGroup):
    """The group of all commands."""

    # Click suggests the nearest command itself; Typer would repeat it
    suggest_commands = property(lambda self: False, lambda self, value: None)
