"""`make api-docs`: docs/api.md, made of the docstrings of what `import protosphere` gives.

The page is these words and nothing else; its examples run as tests.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import protosphere

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = """# The Python API

Made from docstrings by `make api-docs`; change those. [tutorial.ipynb](tutorial.ipynb) shows it at work. The examples
follow each other: `run` is always the newest one above. Settings, methods and models are the command line's, listed in
[settings.md](settings.md) and by `protosphere settings`, `methods` and `models`. A `Value` of a setting is a number,
true or false, text, a path, or a list of texts; an `Array` is numpy's; an `Entry` a name, or a mapping of settings; a
`Model` a torch module, or a class or function that makes one.
"""
SECTIONS = ("Args", "Returns", "Raises", "Attributes")
WIDTH = 100  # up to which a signature stands on one line


def page() -> str:
    """The whole page."""
    parts = [HEAD.rstrip()]
    for name in [name for names in protosphere.PLACES.values() for name in names]:
        item = getattr(protosphere, name)
        if isinstance(item, tuple):
            errors = ", ".join(f"`{error.__name__}`" for error in item)
            parts += [f"## `{name}`", f"All errors together, for `except protosphere.{name}`: {errors}."]
        elif isinstance(item, type) and issubclass(item, Exception):
            parts += [f"### `{name}`", " ".join(inspect.cleandoc(item.__doc__ or "").split())]
        elif isinstance(item, type):
            parts += _class(item)
        else:
            parts += [f"## `{name}`", _signature(_tree(item), "protosphere."), *_body(item.__doc__)]
    return "\n\n".join(parts) + "\n"


def _class(kind: type) -> Iterator[str]:
    yield f"## `{kind.__name__}`"
    members = {node.name: node for node in _tree(kind).body if isinstance(node, ast.FunctionDef)}
    yield from _body(kind.__doc__)
    for name, member in members.items():
        if name.startswith("_"):
            continue
        attribute = vars(kind)[name]
        yield f"### `{kind.__name__}.{name}`"
        if isinstance(attribute, property):
            assert member.returns is not None
            yield f"`{_unquote(ast.unparse(member.returns))}`"
        else:
            yield _signature(member, "")
        yield from _body(attribute.__doc__)


def _tree(item: Any) -> Any:
    return ast.parse(dedent(inspect.getsource(item))).body[0]


def _signature(member: ast.FunctionDef, prefix: str) -> str:
    member.args.args = [argument for argument in member.args.args if argument.arg != "self"]
    returns = f" -> {_unquote(ast.unparse(member.returns))}" if member.returns is not None else ""
    arguments = _unquote(ast.unparse(member.args))
    line = f"{prefix}{member.name}({arguments}){returns}"
    if len(line) > WIDTH:
        # a comma within brackets parts nothing
        parts = re.split(r", (?![^\[]*\])(?![^(]*\))", arguments)
        line = f"{prefix}{member.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"
    return f"```text\n{line}\n```"


def _unquote(text: str) -> str:
    """Annotations without the quotes of those that are read late."""
    return re.sub(r"(?<=[:>] )'([^']*)'|^'([^']*)'$", lambda match: match[1] or match[2], text)


def _body(documented: str | None) -> Iterator[str]:
    """A docstring's paragraphs, examples and sections."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(documented or "")):
        title, _, tail = block.partition("\n")
        if title.rstrip(":") in SECTIONS:
            yield f"{title}\n\n" + "\n".join(_entries(dedent(tail)))
        elif block.startswith(">>>"):
            yield f"```python\n{block}\n```"
        else:
            yield block


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
