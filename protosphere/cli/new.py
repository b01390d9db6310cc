"""`protosphere new`: creates a template file that runs unchanged."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from protosphere.cli.options import end

TEMPLATES = Path(__file__).parent / "templates"


class Kind(StrEnum):
    """What there is a template for."""

    METHOD = "method"


def new(
    kind: Annotated[Kind, typer.Argument(help="`method`.", show_default=False)],
    file: Annotated[Path, typer.Argument(help="The file to create; its name ends in .py.", show_default=False)],
) -> None:
    """Create a template for your own method, which already runs.

    It has both halves of a method: the server averages prototypes, and the client has a cosine loss.
    docs/adding-a-method.md explains it. An existing file is not overwritten.

    Exits 0 if the file was written, else 2.
    """
    if file.suffix != ".py":
        end(f"{file} is no Python file; give a name that ends in .py, as in `protosphere new method mymethod.py`.")
    # as a value of the setting `strategy`
    plugin = str(file) if file.is_absolute() or str(file).startswith(("~", "..")) else f"./{file}"
    text = (TEMPLATES / f"{kind}.py").read_text("utf-8")
    try:
        with file.expanduser().open("x", encoding="utf-8") as target:
            target.write(text.replace("./mymethod.py", plugin))
    except FileExistsError:
        end(f"{file} is there already and stays as it is; give another name.")
    except OSError as error:
        end(f"{file} cannot be written ({error.strerror or error}); give an existing folder that you may write to.")
    typer.echo(f"written: {file}")
    typer.echo(f"run it:  protosphere run -c 'strategy=\"{plugin}\"'")
