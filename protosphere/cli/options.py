"""Shared by several commands: options with the same descriptions, places where clients train, and exit codes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from protosphere.core.errors import SettingError

FAILED = 1
BAD_INPUT = 2
KILLED = 128  # plus the signal's number, as in shells


def option(help: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    """`typer.Option` without its default in the help, for descriptions that state it."""
    return typer.Option(*names, help=help, metavar=metavar, show_default=False, **more)


Preset = Annotated[str, option("A paper's settings, by name (`protosphere presets`).", "NAME")]
Settings = Annotated[
    list[str] | None,
    option("'rounds=5 strategy=\"fedproto\"', or a TOML file; later ones win.", "SETTINGS", "--set", "-c"),
]
On = Annotated[
    str,
    option(
        "Where clients train: `process`, this one (default); `workers:N`, N processes; `flower`, Flower's simulation; "
        "`ray[:HOST:PORT]`, the same on a Ray cluster; `superlink:NAME`, real nodes.",
        "WHERE",
    ),
]
Rule = Annotated[str, option("The inference rule (default: the client's own).", "NAME")]
Encoder = Annotated[
    str, option("The public encoder for the rule `encoder`, if it is not where the client had it.", "NAME")
]
State = Annotated[
    Path, typer.Option(help="The client's folder: PROTOSPHERE_HOME/clients/<run>/<partition>.", metavar="FOLDER")
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run code found in the folder, which somebody else may have written."),
]


# forms of `--on`
FORMS = {
    "process": "process",
    "workers": "workers:N",
    "flower": "flower",
    "ray": "ray[:HOST:PORT]",
    "superlink": "superlink:NAME",
}


@dataclass(frozen=True)
class Place:
    """Where clients train.

    Attributes:
        kind: a key of `FORMS`: this process, worker processes, Flower's simulation here or on a Ray cluster, or the
            nodes of a SuperLink.
        workers: the number of processes for clients.
        name: the SuperLink's connection or the Ray cluster's address; "" for the cluster that this machine belongs to.
    """

    kind: str = "process"
    workers: int = 1
    name: str = ""

    @property
    def is_here(self) -> bool:
        """Whether it is this process or its workers."""
        return self.kind in ("process", "workers")

    @classmethod
    def read(cls, text: str, kinds: Sequence[str] = tuple(FORMS)) -> "Place":
        """Parse `--on`.

        Args:
            kinds: the kinds that the command supports.
        """
        kind, colon, name = text.partition(":")
        takes_name = {"workers": bool(name), "superlink": bool(name), "ray": bool(name) == bool(colon)}
        if text and (kind not in kinds or not takes_name.get(kind, not colon)):
            forms = [FORMS[allowed] for allowed in kinds]
            raise SettingError(f"--on is {text!r}, but it is {', '.join(forms[:-1])} or {forms[-1]}.")
        if kind == "workers":
            if not name.isascii() or not name.isdigit() or len(name) > 9 or int(name) < 1:
                raise SettingError(f"--on is {text!r}, but N is a number of processes, 1 at least.")
            return cls(kind, int(name))
        return cls(kind or "process", name=name)


def end(sentence: str, code: int = BAD_INPUT) -> NoReturn:
    """Exit with a sentence on stderr."""
    typer.echo(sentence, err=True)
    raise typer.Exit(code) from None
