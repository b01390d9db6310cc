"""`make api-docs`: docs/api.md, made of the docstrings of what `import protosphere` gives.

The page has signatures, summaries and the arguments of functions, each where it first occurs; `help` has the rest:
examples, which run as tests, arguments of methods, what is returned and the errors.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, fill
from typing import Any

import protosphere

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = """# The Python API

Made from docstrings by `make api-docs`. An argument is explained where it first occurs; `help(protosphere.Run.client)`
has the rest, with columns, errors and examples; [tutorial.ipynb](tutorial.ipynb) shows it at work. Settings, methods
and models are the command line's: [settings.md](settings.md), `protosphere methods` and `protosphere models`.
"""
LISTS = ("Args:", "Attributes:")
WIDTH = 100  # of a signature


def page() -> str:
    """The whole page."""
    parts = [HEAD.rstrip()]
    explained: set[str] = set()  # arguments
    for name in [name for names in protosphere.PLACES.values() for name in names]:
        item = getattr(protosphere, name)
        if isinstance(item, tuple):
            errors = [
                f"- `{error.__name__}`: {' '.join(inspect.cleandoc(error.__doc__ or '').split())}" for error in item
            ]
            parts += [f"## `{name}`", f"All errors, for `except protosphere.{name}`:", "\n".join(errors)]
        elif isinstance(item, type) and not issubclass(item, Exception):
            summary, lists = _texts(item.__doc__)
            parts += [f"## `{name}`", summary]
            if arguments := list(_first_told(lists.get("Args:", []), explained)):
                parts += ["Made with:", "\n".join(arguments), "Members:"]
            parts += ["\n".join([*lists.get("Attributes:", []), *_members(item)])]
        elif not isinstance(item, type):
            summary, lists = _texts(item.__doc__)
            signature = f"```text\n{_signature(_tree(item), 'protosphere.')}\n```"
            parts += [f"## `{name}`", signature, summary, "\n".join(_first_told(lists.get("Args:", []), explained))]
    return "\n\n".join(parts) + "\n"


def _first_told(entries: list[str], explained: set[str]) -> Iterator[str]:
    """The entries of which an argument was not explained before."""
    for entry in entries:
        names = set(re.findall(r"`(\w+)`", entry.partition(": ")[0]))
        if not names or names - explained:
            yield entry
        explained |= names


def _first_sentence(text: str) -> str:
    """Up to a full stop that a new sentence follows."""
    return re.split(r"(?<=\.) (?=[A-Z])", text, maxsplit=1)[0]


def _members(kind: type) -> Iterator[str]:
    """A list, of the public properties and methods, each with its summary."""
    for member in _tree(kind).body:
        if not isinstance(member, ast.FunctionDef) or member.name.startswith("_"):
            continue
        attribute = vars(kind)[member.name]
        if isinstance(attribute, property):
            assert member.returns is not None
            head = f"{member.name}: {_unquote(ast.unparse(member.returns))}"
        else:
            head = " ".join(_signature(member).split())
        yield f"- `{head}`: {_first_sentence(' '.join(_texts(attribute.__doc__)[0].split()))}"


def _tree(item: Any) -> Any:
    return ast.parse(dedent(inspect.getsource(item))).body[0]


def _signature(member: ast.FunctionDef, prefix: str = "") -> str:
    """Without types of arguments, which `help` has, on lines of at most WIDTH."""
    arguments = member.args
    arguments.args = [argument for argument in arguments.args if argument.arg != "self"]
    for argument in (*arguments.args, *arguments.kwonlyargs, *filter(None, [arguments.vararg, arguments.kwarg])):
        argument.annotation = None
    returns = f" -> {_unquote(ast.unparse(member.returns))}" if member.returns is not None else ""
    return fill(f"{prefix}{member.name}({ast.unparse(arguments)}){returns}", WIDTH, subsequent_indent="    ")


def _unquote(text: str) -> str:
    """Annotations without the quotes of those that are read late."""
    return re.sub(r"(?<=[:>] )'([^']*)'|^'([^']*)'$", lambda match: match[1] or match[2], text)


def _texts(documented: str | None) -> tuple[str, dict[str, list[str]]]:
    """A docstring's first paragraph, and its lists of arguments and attributes by their titles."""
    summary, *blocks = re.split(r"\n\s*\n", inspect.cleandoc(documented or ""))
    split = {title: tail for title, _, tail in (block.partition("\n") for block in blocks)}
    return summary, {title: list(_entries(dedent(split[title]))) for title in LISTS if title in split}


def _entries(text: str) -> Iterator[str]:
    """`name: words`, a list; words alone stay."""
    entries = re.split(r"\n(?! )", text)
    for entry in entries:
        line = " ".join(entry.split())
        name = re.match(r"((?:[A-Za-z_]+(?:, )?)+): ", line)
        if name is None:
            yield line
        else:
            names = ", ".join(f"`{part}`" for part in name[1].split(", "))
            yield f"- {names}: {line[name.end() :]}"


def main() -> None:
    """Write the page anew where it differs."""
    content = page()
    if not PAGE.exists() or PAGE.read_text("utf-8") != content:
        PAGE.write_text(content, "utf-8")
        print(f"{PAGE.name} is brought up to date")


if __name__ == "__main__":
    main()
