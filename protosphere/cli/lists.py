"""`protosphere methods`, `models`, `presets`, `settings`: the available choices."""

from importlib import import_module
from inspect import cleandoc
from itertools import takewhile
from pathlib import Path
from textwrap import shorten

from protosphere.cli.tables import print_table

PRESETS = Path(__file__).parents[1] / "presets"
LONGEST = 120  # characters of a preset's description


def methods() -> None:
    """List the methods that `strategy` names.

    `up` and `down` are what clients and server send with the default settings. Architectures: with `any`,
    different ones exchange; with grouped, only equal ones do; with one per run, all must be equal.

    Exits 0.
    """
    from protosphere.strategies import METHODS, load_method
    from protosphere.strategies.contract import Options
    from protosphere.strategies.registry import location

    rows = []
    for name in METHODS:
        about = cleandoc(import_module(location(name)[0]).__doc__ or "").split("\n\n")[0]
        method = load_method(name)
        exchange = method.exchange(Options({kind: kind() for kind in method.settings.values()}))
        up, down = (", ".join(part.name for part in parts) or "-" for parts in (exchange.up, exchange.down))
        architectures = "any"
        if getattr(method.server, "one_architecture", False):
            architectures = "one per run"
        elif any(part.name in ("extractor", "backbone") for part in exchange.up):
            architectures = "any, grouped"
        rows.append((name, " ".join(about.split()), up, down, architectures))
    print_table(("strategy", "what it is", "up", "down", "architectures"), rows, left=5)


def models() -> None:
    """List the models that `models` names.

    Exits 0.
    """
    from protosphere.models import FAMILIES
    from protosphere.models.encoder import ABOUT
    from protosphere.models.small import SMALL

    rows = [(family, ", ".join(members)) for family, members in FAMILIES.items()]
    rows += [
        ("ours, by name", ", ".join(SMALL)),
        ("torchvision's", "any of its classifiers by name: resnet18, mobilenet_v3_small, vit_b_16, ..."),
        ("hub", "hf:<id or path>: an encoder of texts, `?trainable=N` for its last N layers"),
        ("public encoders", "; ".join(f"{name} ({about})" for name, about in ABOUT.items())),
        ("your own", "package.module:callable, ./file.py or ./file.py:NAME (docs/models.md)"),
    ]
    print_table(("family", "models"), rows, left=2)


def presets() -> None:
    """List the presets: settings of the papers' experiments. A preset's file begins with its description.

    Exits 0.
    """
    rows = []
    for command, folder in (("run", PRESETS), ("compare", PRESETS / "compare")):
        for path in sorted(folder.glob("*.toml")):
            lines = path.read_text("utf-8").splitlines()
            about = " ".join(line[1:] for line in takewhile(lambda line: line.startswith("#"), lines))
            rows.append((command, path.stem, shorten(about, LONGEST, placeholder=" ...")))
    print_table(("for", "--preset", "what it is"), rows, left=3)


def settings() -> None:
    """List the settings with their defaults and allowed values.

    Exits 0.
    """
    from protosphere.cli.settings_tables import all_settings, without_markup

    rows = []
    for entries in all_settings().values():
        for entry in entries:
            rows.append((entry.name, entry.value, without_markup(entry.allowed), without_markup(entry.meaning)))
    print_table(("setting", "default", "allowed", "meaning"), rows, left=4)
