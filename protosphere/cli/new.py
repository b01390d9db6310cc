"""`protosphere new`: creates template files that run unchanged."""

from pathlib import Path
from typing import Annotated

import typer

from protosphere.cli.help import Command, Group
from protosphere.cli.options import end

TEMPLATES = Path(__file__).parent / "templates"

app = typer.Typer(cls=Group, add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def new() -> None:
    """Create a template for your own method.

    Exits 0.
    """


@app.command("method", cls=Command, epilog="    protosphere new method mymethod.py")
def method(
    file: Annotated[Path, typer.Argument(help="The file to create; its name ends in .py.", show_default=False)],
) -> None:
    """Create a method of your own that already runs.

    The template has both halves of a method: the server averages prototypes, and the client has a cosine loss.
    docs/adding-a-method.md explains it. An existing file is not overwritten.

    Exits 0 if the file was written, else 2.
    """
    if file.suffix != ".py":
        end(f"{file} is no Python file; give a name that ends in .py, as in `protosphere new method mymethod.py`.")
    text = (TEMPLATES / "method.py").read_text("utf-8")
    path = file.expanduser()
    try:
        with path.open("x", encoding="utf-8") as target:
            target.write(text.replace("./mymethod.py", _as_plugin(file)))
    except FileExistsError:
        end(f"{file} is there already and stays as it is; give another name.")
    except OSError as error:
        end(f"{file} cannot be written ({error.strerror or error}); give an existing folder that you may write to.")
    typer.echo(f"written: {file}")
    typer.echo(f"run it:  protosphere run -c 'strategy=\"{_as_plugin(file)}\"'")


def _as_plugin(file: Path) -> str:
    """The file as a value of the setting `strategy`."""
    return str(file) if file.is_absolute() or str(file).startswith(("~", "..")) else f"./{file}"
