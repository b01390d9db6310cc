"""The run that a message belongs to, as a client reads it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from flwr.app import Context

from protosphere.client_app.public_errors import simulated
from protosphere.client_app.site import text
from protosphere.core import plugins
from protosphere.core.errors import ModelError, SettingError
from protosphere.strategies import Run, read_settings, unpacked


def run_of(context: Context) -> Run:
    """The run that a context belongs to.

    Raises:
        SettingError: its settings cannot be used.
    """
    with told_in_full():
        # what is packed counts as what is not: it, too, may name a file
        config = unpacked(context.run_config)
    strategy, strategy_file = str(config.get("strategy", "")), text(context.node_config, "strategy-file")
    if plugins.is_file(strategy) and not simulated():
        if not strategy_file:
            raise SettingError.public(
                "the run's `strategy` is a file, and this site has none for it; start its SuperNode with --strategy "
                "FILE, the same as the server's."
            )
        # the run's path is one of the server's machine; what it holds by which name is the run's to say
        attribute = plugins.parted(strategy)[1]
        config["strategy"] = f"{strategy_file}:{attribute}" if attribute else strategy_file
        # a file of the site's: what it says when it fails is not told
        return _read_settings(tuple(sorted(config.items())))
    with told_in_full():
        return _read_settings(tuple(sorted(config.items())))


@lru_cache(maxsize=8)
def _read_settings(items: tuple[tuple[str, Any], ...]) -> Run:
    return read_settings(dict(items))


@contextmanager
def told_in_full() -> Iterator[None]:
    """Inside, only the run's settings and the number of classes decide what goes wrong: the server knows both."""
    try:
        yield
    except (SettingError, ModelError) as error:
        error.told = str(error).rstrip(".")
        raise
