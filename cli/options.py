"""Options that several commands have, with the same words."""

from typing import Annotated

import typer

Preset = Annotated[
    str,
    typer.Option(help="A paper's settings by name; an unknown one lists all.", metavar="NAME", show_default=False),
]
