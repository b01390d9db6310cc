"""A run made smaller in proportion: fewer rounds, rows and clients, for a machine that cannot run the whole one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from protosphere.core.errors import DataError, SettingError
from protosphere.core.home import home
from protosphere.core.settings import Scalar
from protosphere.data.from_settings import data_spec
from protosphere.data.partition.assignment import assignment, open_data
from protosphere.data.partition.table import TABLE
from protosphere.models import model_names
from protosphere.plans.run_config import DEFAULT_CLIENTS, RunConfig
from protosphere.strategies import read_settings

FEWEST_ROUNDS = FEWEST_CLIENTS = 2
# counted in rounds: a tenth of the rounds has a tenth of the distances between exchanges and evaluations
IN_ROUNDS = ("evaluate-every", "ensemble-every", "gfpl.first-exchange", "gfpl.exchange-every")


def scaled(settings: Mapping[str, Scalar], scale: float, seeds: Sequence[int]) -> tuple[RunConfig, str]:
    """Shrink rounds (2 at least), rows and clients (2 at least) by the factor `scale`, below 1.

    What is counted in rounds shrinks with them, to 1 at least. A client keeps about as many rows as it had; where the
    partition cannot be drawn of so few rows or for so few clients, there are as many as it needs. A partition table
    counts all rows: in its place comes a Dirichlet draw with the settings' `alpha`. Opens the data.

    Args:
        settings: all of a run's, by name.
        seeds: those for which the partition must work.

    Returns:
        The settings, and what was changed: `scaled by 0.05: 15 of 300 rounds, 2 of 20 clients, evaluate-every 1 for 5`.

    Raises:
        SettingError: the partition cannot be drawn of all rows either. DataError: the data cannot be opened.
    """
    new_settings = dict(settings)
    counts: list[str] = []
    others: list[str] = []
    if new_settings["partition"] == TABLE:
        new_settings |= {"partition": "dirichlet", "partition-table": ""}
        others.append(f"partition dirichlet for {TABLE}")

    def shrink(name: str, now: int, before: int) -> None:
        new_settings[name] = now
        if now != before:
            others.append(f"{name} {now} for {before}")

    def count(what: str, now: int, before: int) -> None:
        if now != before:
            counts.append(f"{now:,} of {before:,} {what}")

    rounds = int(new_settings["rounds"])
    fewer_rounds = max(min(FEWEST_ROUNDS, rounds), round(scale * rounds))
    new_settings["rounds"] = fewer_rounds
    count("rounds", fewer_rounds, rounds)
    for name in IN_ROUNDS:
        value = int(new_settings.get(name, 0))
        # 0 means never
        if value and _is_read(name, new_settings):
            shrink(name, max(1, round(fewer_rounds / rounds * value)), value)
    clients, used = _room(new_settings)
    fewest = max(min(FEWEST_CLIENTS, clients), round(scale * clients))
    rows, number = _enough(new_settings, max(1, round(scale * used)), used, fewest, clients, seeds)
    new_settings |= {"max-samples": rows, "clients": number}
    count("rows", rows, used)
    count("clients", number, clients)
    # dealt in turn, so the last ones go with the clients
    models = min(len(model_names(str(new_settings["models"]))), clients)
    count("architectures", min(number, models), models)
    replies = int(new_settings["min-replies"])
    shrink("min-replies", min(replies, number), replies)
    return new_settings, f"scaled by {scale:g}: {', '.join([*counts, *others]) or 'nothing to shrink'}"


def _is_read(name: str, settings: Mapping[str, Scalar]) -> bool:
    prefix = name.rpartition(".")[0]
    return not prefix or prefix in read_settings(settings).method.settings


def _room(settings: RunConfig) -> tuple[int, int]:
    """How many clients there are, and how many rows are dealt to them."""
    checked = read_settings(settings).settings
    clients = checked.clients or DEFAULT_CLIENTS
    data = open_data(data_spec(checked, clients), home() / "cache")
    available = data.train_rows if checked.split == "official" else len(data.labels)
    return clients, min(checked.max_samples or available, available)


def _enough(
    settings: RunConfig, rows: int, all_rows: int, fewest: int, most: int, seeds: Sequence[int]
) -> tuple[int, int]:
    """The fewest rows (doubled from `rows` on) and clients for which the partition can be drawn with every seed.

    More clients help only where classes or domains would be left to nobody; else only more rows do.
    """
    checked = read_settings(settings | {"min-replies": 0}).settings
    spec = data_spec(checked, most)
    data = open_data(spec, home() / "cache")
    numbers = range(fewest, most + 1) if checked.partition in ("pathological", "mixed") else (fewest,)
    reason = ""
    while True:
        for clients in numbers:
            try:
                for seed in seeds:
                    drawn = replace(spec, clients=clients, max_samples=rows, seed=seed)
                    assignment(drawn, data, home() / "cache")
                return rows, clients
            except DataError as error:
                reason = str(error)
        if rows == all_rows:
            raise SettingError(f"no part of the clients can share the data set {settings['dataset']}: {reason}")
        rows = min(2 * rows, all_rows)
