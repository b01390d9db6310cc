"""Lists methods, models, presets and settings, each as rows of text."""

import re
from collections.abc import Iterator
from importlib import import_module
from inspect import cleandoc
from pathlib import Path

from protosphere.cli.settings_tables import all_settings
from protosphere.models import FAMILIES
from protosphere.models.encoder import ABOUT
from protosphere.models.small import SMALL
from protosphere.strategies import METHODS, load_method
from protosphere.strategies.contract import Options

PRESETS = Path(__file__).parents[1] / "presets"
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")  # Markdown markup


def methods() -> Iterator[tuple[str, str, str, str, str]]:
    """Name, description, parts that are sent with default settings, and whether architectures may differ."""
    for name, entry in METHODS.items():
        about = cleandoc(import_module(entry.module.partition(":")[0]).__doc__ or "").split("\n\n")[0]
        method = load_method(name)
        exchange = method.exchange(Options({kind: kind() for kind in method.settings.values()}))
        up, down = (", ".join(part.name for part in parts) or "-" for parts in (exchange.up, exchange.down))
        mixed = "one per run" if getattr(method.server, "one_architecture", False) else "any"
        if mixed == "any" and any(spec.name in ("extractor", "backbone") for spec in exchange.up):
            mixed = "any, grouped"
        yield name, " ".join(about.split()), up, down, mixed


def models() -> Iterator[tuple[str, str]]:
    """Family or naming scheme, and its members."""
    for family, members in FAMILIES.items():
        yield family, ", ".join(members)
    yield "ours, by name", ", ".join(SMALL)
    yield "torchvision's", "any of its classifiers by name: resnet18, mobilenet_v3_small, vit_b_16, ..."
    yield "hub", "hf:<id or path>: an encoder of texts, `?trainable=N` for its last N layers"
    yield "public encoders", "; ".join(f"{name} ({about})" for name, about in ABOUT.items())
    yield "your own", "package.module:callable, ./file.py or ./file.py:NAME (docs/models.md)"


def presets() -> Iterator[tuple[str, str, str]]:
    """The command that takes it, its name, and the first sentence of its file."""
    for command, folder in (("run", PRESETS), ("compare", PRESETS / "compare")):
        for path in sorted(folder.glob("*.toml")):
            lines = []
            for line in path.read_text("utf-8").splitlines():
                if not line.startswith("#"):
                    break
                lines.append(line.removeprefix("#").strip())
            yield command, path.stem, _sentence(" ".join(lines))


def settings(search: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Name, default, allowed values and meaning of the settings that contain the word in one of these."""
    for entries in all_settings().values():
        for setting in entries:
            row = setting.name, setting.value, _plain(setting.allowed), _plain(setting.meaning)
            if search.lower() in " ".join(row).lower():
                yield row


def _plain(words: str) -> str:
    """Text without Markdown, because a terminal shows neither code nor links."""
    return LINK.sub(r"\1", words).replace("`", "")


def _sentence(text: str) -> str:
    """The first sentence, up to a full stop or colon outside brackets and not after `al`."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter in ".:" and depth == 0 and text[place + 1 : place + 2] in ("", " ") and text[:place][-2:] != "al":
            return text[:place]
    return text
