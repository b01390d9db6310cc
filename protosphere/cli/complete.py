"""What a shell may complete: methods, presets, settings, runs. Loaded only while it asks."""

from collections.abc import Iterator


def methods(incomplete: str) -> Iterator[str]:
    """Of a list with commas the last name."""
    from protosphere.strategies import METHODS

    before, comma, last = incomplete.rpartition(",")
    yield from (f"{before}{comma}{name}" for name in METHODS if name.startswith(last))


def presets(incomplete: str) -> Iterator[tuple[str, str]]:
    """Of `run` and `data`."""
    yield from _presets("run", incomplete)


def comparisons(incomplete: str) -> Iterator[tuple[str, str]]:
    """Of `compare`."""
    yield from _presets("compare", incomplete)


def settings(incomplete: str) -> Iterator[str]:
    """Of assignments with spaces between them the last one's name."""
    from protosphere.strategies import known_settings

    before, space, last = incomplete.rpartition(" ")
    yield from (f"{before}{space}{name}=" for name in known_settings() if name.startswith(last))


def runs(incomplete: str) -> Iterator[str]:
    """Runs and comparisons of the results folder."""
    from protosphere.core.home import results_root

    root = results_root("")
    names = {path.parent.name for file in ("settings.json", "comparison.json") for path in root.glob(f"*/{file}")}
    yield from (name for name in ("latest", *sorted(names, reverse=True)) if name.startswith(incomplete))


def _presets(command: str, incomplete: str) -> Iterator[tuple[str, str]]:
    from protosphere.cli.listing import presets as all_presets

    yield from ((name, summary) for of, name, summary in all_presets() if of == command and name.startswith(incomplete))
