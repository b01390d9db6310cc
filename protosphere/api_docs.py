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
true or false, text, a path, or a list of texts; an `Array` is numpy's; an `Entry` a name, or a mapping of settings.
"""
SECTIONS = ("Args", "Returns", "Raises", "Attributes")
WIDTH = 100  # up to which a signature stands on one line


def page() -> str:
    """The whole page."""
    parts = [HEAD.rstrip()]
    for name in [name for names in protosphere.PLACES.values() for name in names]:
        found = getattr(protosphere, name)
        if isinstance(found, tuple):
            words = ", ".join(f"`{each.__name__}`" for each in found)
            parts += [f"## `{name}`", f"All errors together, for `except protosphere.{name}`: {words}."]
        elif isinstance(found, type) and issubclass(found, Exception):
            parts += [f"### `{name}`", " ".join(inspect.cleandoc(found.__doc__ or "").split())]
        elif isinstance(found, type):
            parts += _class(found)
        else:
            parts += [f"## `{name}`", _signature(_tree(found), "protosphere."), *_body(found.__doc__)]
    return "\n\n".join(parts) + "\n"


def _class(found: type) -> Iterator[str]:
    yield f"## `{found.__name__}`"
    members = {each.name: each for each in _tree(found).body if isinstance(each, ast.FunctionDef)}
    yield from _body(found.__doc__)
    for name, member in members.items():
        if name.startswith("_"):
            continue
        own = vars(found)[name]
        yield f"### `{found.__name__}.{name}`"
        if isinstance(own, property):
            assert member.returns is not None
            yield f"A property: `{_plain(ast.unparse(member.returns))}`."
        else:
            yield _signature(member, "")
        yield from _body(own.__doc__)


def _tree(found: Any) -> Any:
    return ast.parse(dedent(inspect.getsource(found))).body[0]


def _signature(member: ast.FunctionDef, prefix: str) -> str:
    member.args.args = [each for each in member.args.args if each.arg != "self"]
    returns = f" -> {_plain(ast.unparse(member.returns))}" if member.returns is not None else ""
    words = _plain(ast.unparse(member.args))
    line = f"{prefix}{member.name}({words}){returns}"
    if len(line) > WIDTH:
        # a comma within brackets parts nothing
        parts = re.split(r", (?![^\[]*\])(?![^(]*\))", words)
        line = f"{prefix}{member.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"
    return f"```text\n{line}\n```"


def _plain(words: str) -> str:
    """Annotations without the quotes of those that are read late."""
    return re.sub(r"(?<=[:>] )'([^']*)'|^'([^']*)'$", lambda found: found[1] or found[2], words)


def _body(documented: str | None) -> Iterator[str]:
    """A docstring's paragraphs, examples and sections."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(documented or "")):
        title, _, rest = block.partition("\n")
        if title.rstrip(":") in SECTIONS:
            yield f"{title}\n\n" + "\n".join(_entries(dedent(rest)))
        elif block.startswith(">>>"):
            yield f"```python\n{block}\n```"
        else:
            yield block


def _entries(text: str) -> Iterator[str]:
    """`name: words`, a list; words alone stay."""
    entries = re.split(r"\n(?! )", text)
    for entry in entries:
        words = " ".join(entry.split())
        name = re.match(r"((?:[A-Za-z_]+(?:, )?)+): ", words)
        if name is None:
            yield words
        else:
            names = ", ".join(f"`{each}`" for each in name[1].split(", "))
            yield f"- {names}: {words[name.end() :]}"


def main() -> None:
    """Write the page anew where it differs."""
    made = page()
    if not PAGE.exists() or PAGE.read_text("utf-8") != made:
        PAGE.write_text(made, "utf-8")
        print(f"{PAGE.name} is brought up to date")


if __name__ == "__main__":
    main()
