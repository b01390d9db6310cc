"""Writes the tables of README.md and docs/ from stored results; no number is typed.

    protosphere compare benchmarks/tables/constants.toml --data usps=../usps ...
    python -m benchmarks.tables store constants FOLDER... --command 'protosphere compare ...' --commit ...
    python -m benchmarks.tables    # the tables anew

A table is a comparison file, benchmarks/tables/NAME.toml. `store` leaves its figures in benchmarks/results/NAME.csv, a
line for each data set, method, seed and metric, and in NAME.json where they were measured, with the digest of the
comparison file. No table is made of figures whose comparison file has changed since. Of each data set `store` takes
the seeds that are finished by every method; each folder has some data sets or seeds.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from benchmarks.common import ROOT, described_parser, table_head, table_row, where
from protosphere.comparison.frame import CONTROLS, summarise
from protosphere.comparison.paired import Difference, difference, rejected
from protosphere.comparison.tables import NONE, accuracy, difference_text

SPECIFICATIONS, RESULTS = ROOT / "benchmarks" / "tables", ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
# a page's table stands between these two markers
BEGIN, END = "<!-- {}, made by python -m benchmarks.tables -->", "<!-- end of {} -->"
METRIC = "metric: "
DIGITS = 1  # decimals of a percentage
# columns of a comparison's table.csv that are stored besides its metrics
BESIDE = ("validation", "majority-class", "payload_bytes", "gradient_steps", "rounds", "clients", "seconds")
BESIDE += ("test_samples",)
CLASSIFIER, DISCRIMINANT = "classifier selected", "discriminant selected"
PROTOTYPE_RULES = ("local-prototypes selected", "global-prototypes selected")
CONTROL = "local"
PRETRAINED = " (pretrained)"  # part of a label in strong.toml
Key = TypeVar("Key", bound=Hashable)
# the rules of methods without a private model, or with more than that
OWN_RULES = {"fedcgs": "encoder selected", "protosphere": "pool selected"}
# rule of an exchanged discriminant -> its control without an exchange
LOCAL_RULES = {f"{rule} selected": f"{control} selected" for rule, control in CONTROLS.items()}


class Stored:
    """The stored results of one table.

    Attributes:
        frame: columns data, method, seed, metric, value.
        source: command, commit, machine and the specification's digest.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.frame = pd.read_csv(RESULTS / f"{name}.csv")
        self.source: dict[str, str] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
        if self.source["specification"] != digest(name):
            raise SystemExit(
                f"benchmarks/tables/{name}.toml has changed since commit {self.source['commit']} measured it: measure "
                "it anew, or put the file back."
            )

    def values(self, data: str, method: str, metric: str) -> "pd.Series[float]":
        """Seed -> value, for the seeds that have one."""
        return self._values.get((data, method, metric), pd.Series(dtype=float))

    @cached_property
    def _values(self) -> "dict[tuple[str, str, str], pd.Series[float]]":
        """Data set, method and metric -> seed -> value; cached, because a table looks up hundreds of them."""
        groups = self.frame.dropna(subset="value").groupby(["data", "method", "metric"])
        return {key: group.set_index("seed")["value"] for key, group in groups}

    def names(self, column: str) -> list[str]:
        """The data sets or the methods, in the order of the specification."""
        return list(dict.fromkeys(self.frame[column]))

    def seeds(self, data: str) -> list[int]:
        """The seeds of a data set, ascending."""
        return sorted(set(self.frame.loc[self.frame["data"] == data, "seed"]))

    def heading(self, data: str) -> str:
        """A data set with the number of its seeds."""
        return f"{data} ({len(self.seeds(data))} seeds)"

    def describe(self) -> str:
        """The source of the results, in a sentence."""
        data_by_seeds: dict[str, list[str]] = {}
        for data in self.names("data"):
            data_by_seeds.setdefault(", ".join(map(str, self.seeds(data))), []).append(data)
        seeds = [f"{numbers} on {', '.join(data)}" for numbers, data in data_by_seeds.items()]
        note = f" ({self.source['note']})" if "note" in self.source else ""
        return f"`{self.source['command']}`{note}, commit {self.source['commit']}. Seeds: {'; '.join(seeds)}."


def digest(name: str) -> str:
    """Digest of a table's specification."""
    return hashlib.sha256((SPECIFICATIONS / f"{name}.toml").read_bytes()).hexdigest()[:12]


def store(name: str, folders: Sequence[Path], command: str, commit: str) -> None:
    """Store the results of comparisons' folders under benchmarks/results.

    Raises:
        SystemExit: no seed of any data set is finished by every method.
    """
    table = pd.concat([pd.read_csv(folder / "table.csv") for folder in folders], ignore_index=True)
    twice = table[table.duplicated(["row", "method", "seed"])]
    if len(twice):
        row, method, seed = twice.iloc[0][["row", "method", "seed"]]
        raise SystemExit(f"{row}, {method}, seed {seed} is in two folders: name one of them.")
    every_method = table["method"].nunique()
    table = table[table["status"] == "completed"]
    methods = table.groupby(["row", "seed"])["method"].transform("nunique")
    table = table[methods == every_method]
    if table.empty:
        raise SystemExit(f"no seed is finished; `protosphere compare --resume {folders[0]}` goes on.")
    metrics = [column for column in table.columns if column.startswith(METRIC)]
    tidy = table.melt(["row", "method", "seed"], [*metrics, *BESIDE], "metric", "value").dropna(subset="value")
    tidy["metric"] = tidy["metric"].str.removeprefix(METRIC)
    RESULTS.mkdir(exist_ok=True)
    tidy.rename(columns={"row": "data"}).to_csv(RESULTS / f"{name}.csv", index=False, float_format="%.6g")
    machine = where().partition(", ")[2]
    source = {"command": command, "commit": commit, "machine": machine, "specification": digest(name)}
    (RESULTS / f"{name}.json").write_text(json.dumps(source, indent=1) + "\n", "utf-8")


def accuracies(in_full: bool) -> Iterator[str]:
    """One row per method and rule, one column per data set.

    Args:
        in_full: with the number of seeds, standard deviations over them, and the discriminant of each method.
    """
    stored = Stored("methods")
    data_sets = stored.names("data")
    heads = [stored.heading(data) if in_full else data for data in data_sets]
    yield table_head("method", "predicts by", *heads, "kB per round", left=2)
    majority = [_mean(stored.values(data, CONTROL, "majority-class"), in_full) for data in data_sets]
    yield table_row(["most frequent class", "", *majority, "0"])
    for method in stored.names("method"):
        for metric in _metrics_of(method):
            if metric == DISCRIMINANT and not in_full:
                continue
            cells = [_mean(stored.values(data, method, metric), in_full) for data in data_sets]
            yield table_row([f"`{method}`", f"`{_rule(metric)}`", *cells, _kilobytes(stored, method)])


def _metrics_of(method: str) -> list[str]:
    """The metrics of a method in the table."""
    if method in OWN_RULES:
        return [OWN_RULES[method]]
    return [CLASSIFIER, DISCRIMINANT, *LOCAL_RULES.values()] if method == CONTROL else [CLASSIFIER, DISCRIMINANT]


def _rule(metric: str) -> str:
    return metric.partition(" ")[0]


def _mean(values: "pd.Series[float]", with_deviation: bool) -> str:
    over_seeds = summarise(values)
    if over_seeds is not None and not with_deviation:
        over_seeds = replace(over_seeds, std=None)
    return accuracy(over_seeds, len(values), DIGITS)


def _kilobytes(stored: Stored, method: str) -> str:
    """Payload of all clients per round in both directions: minimum and maximum over the data sets."""
    means = []
    for data in stored.names("data"):
        payload, rounds = (stored.values(data, method, name) for name in ("payload_bytes", "rounds"))
        means.append(float((payload / rounds).mean()) / 1e3)
    ends = dict.fromkeys(f"{end(means):,.0f}" for end in (min, max))
    return " to ".join(ends)


def gains() -> Iterator[str]:
    """The difference between each method and `local` by the same rule, or by the control without an exchange, with its
    interval."""
    stored = Stored("methods")
    data_sets = stored.names("data")
    heads = [stored.heading(data) for data in data_sets]
    yield table_head("method", "rule, minus that of `local`", *heads, left=2)
    cells: dict[tuple[str, str], list[str]] = {}
    for data in data_sets:
        contrasts: dict[tuple[str, str], Difference | None] = {}
        for method in stored.names("method"):
            if method == CONTROL:
                continue
            for metric in _metrics_of(method):
                own = stored.values(data, method, metric)
                control = stored.values(data, CONTROL, LOCAL_RULES.get(metric, metric))
                contrasts[method, metric] = difference(own.to_dict(), control.to_dict())
        for key, words in _intervals(contrasts).items():
            cells.setdefault(key, []).append(words)
    for (method, metric), intervals in cells.items():
        words = f"`{_rule(metric)}`"
        if metric in LOCAL_RULES:
            words += f" minus `{_rule(LOCAL_RULES[metric])}`"
        yield table_row([f"`{method}`", words, *intervals])


def _intervals(contrasts: Mapping[Key, Difference | None]) -> dict[Key, str]:
    """Each difference with its interval, in percentage points; bold if it is significant among all of them, by Holm."""
    tested = [key for key, contrast in contrasts.items() if contrast is not None and contrast.p is not None]
    p_values = [contrast.p for contrast in contrasts.values() if contrast is not None and contrast.p is not None]
    significant = {key for key, is_rejected in zip(tested, rejected(p_values), strict=True) if is_rejected}
    words = {}
    for key, contrast in contrasts.items():
        text = NONE if contrast is None else difference_text(contrast.mean, contrast.low, contrast.high, DIGITS)
        words[key] = f"**{text}**" if key in significant else text
    return words


def sizes() -> Iterator[str]:
    """The accuracy of private models, and what an exchange adds, with a hundred samples per client and with all."""
    full, usual = Stored("full"), Stored("methods")
    pool = OWN_RULES["protosphere"]
    heads = ("`local`, `classifier`", "`protonorm` minus `local`", "`protosphere`, `pool`", "`pool` minus `pool-local`")
    yield table_head("data set", "samples per client", *heads, left=2)
    for data in full.names("data"):
        for words, stored in (("a hundred", usual), ("all", full)):
            own = [stored.values(data, name, CLASSIFIER) for name in (CONTROL, "protonorm")]
            pooled, control = stored.values(data, "protosphere", pool), stored.values(data, CONTROL, LOCAL_RULES[pool])
            pairs = {"protonorm": (own[1], own[0]), "protosphere": (pooled, control)}
            contrasts = {name: difference(one.to_dict(), other.to_dict()) for name, (one, other) in pairs.items()}
            gains = _intervals(contrasts)
            cells = [_mean(own[0], True), gains["protonorm"], _mean(pooled, True), gains["protosphere"]]
            yield table_row([stored.heading(data), words, *cells])


def claims() -> Iterator[str]:
    """Each claim's difference on every data set, corrected for the number of data sets."""
    stored = Stored("methods")
    yield table_head("claim", *stored.names("data"))
    for claim, differences in _claimed(stored):
        yield table_row([claim, *differences])


def _claimed(stored: Stored) -> Iterator[tuple[str, list[str]]]:
    """The claims for which a table has both methods, with the difference on each of its data sets."""
    methods = stored.names("method")
    for claim in tomllib.loads((SPECIFICATIONS / "claims.toml").read_text("utf-8"))["claims"]:
        if not {claim["method"], claim["base"]} <= {*methods}:
            continue
        contrasts: dict[str, Difference | None] = {}
        for data in stored.names("data"):
            own, base = (stored.values(data, claim[name], claim["metric"]) for name in ("method", "base"))
            contrasts[data] = difference(own.to_dict(), base.to_dict())
        yield claim["claim"], list(_intervals(contrasts).values())


def authors() -> Iterator[str]:
    """The authors' split of CIFAR-10, and the claims there."""
    stored = Stored("authors")
    yield from _beside_local(stored, (CLASSIFIER, *PROTOTYPE_RULES))
    yield ""
    for claim, (words,) in _claimed(stored):
        yield f"- {claim}: {words}."


def heirs() -> Iterator[str]:
    """One architecture: exchanging weights compared with exchanging prototypes."""
    yield from _beside_local(Stored("heirs"), (CLASSIFIER, "received selected"))


def _beside_local(stored: Stored, metrics: Sequence[str]) -> Iterator[str]:
    """One row per method and rule: its accuracy on each data set, and the difference to `local`.

    Args:
        metrics: for methods whose rule is not their own.
    """

    def metrics_of(method: str) -> Sequence[str]:
        if method == CONTROL:
            return [*metrics, *LOCAL_RULES.values()]
        return [OWN_RULES[method]] if method in OWN_RULES else metrics

    def control_of(method: str, metric: str) -> tuple[str, str] | None:
        return None if method == CONTROL else (CONTROL, LOCAL_RULES.get(metric, metric))

    heads = [name for data in stored.names("data") for name in (stored.heading(data), "gain")]
    yield table_head("method", "predicts by", *heads, "kB per round", left=2)
    for (method, metric), cells in _with_gains(stored, metrics_of, control_of).items():
        yield table_row([f"`{method}`", f"`{_rule(metric)}`", *cells, _kilobytes(stored, method)])


def _with_gains(
    stored: Stored,
    metrics_of: Callable[[str], Sequence[str]],
    control_of: Callable[[str, str], tuple[str, str] | None],
) -> dict[tuple[str, str], list[str]]:
    """For each method and metric, the accuracy and the gain on each data set; metrics that were not measured are
    omitted.

    Args:
        metrics_of: the metrics of a method.
        control_of: the controls of a method and metric, over which the gain is computed; None for no gain.
    """
    cells: dict[tuple[str, str], list[str]] = {}
    for data in stored.names("data"):
        contrasts: dict[tuple[str, str], Difference | None] = {}
        for method in stored.names("method"):
            for metric in metrics_of(method):
                own = stored.values(data, method, metric)
                if own.empty:
                    continue
                cells.setdefault((method, metric), []).append(_mean(own, True))
                control = control_of(method, metric)
                base = own[:0] if control is None else stored.values(data, *control)
                if not base.empty:
                    contrasts[method, metric] = difference(own.to_dict(), base.to_dict())
        words = _intervals(contrasts)
        for key, row in cells.items():
            row.append(words.get(key, ""))
    return cells


def constants() -> Iterator[str]:
    """Each method's validation accuracy for each value that was tried; the best one is bold."""
    yield table_head("method", "hyperparameter", "validation accuracy in % by value", left=3)
    for method, (setting, accuracies) in validation_accuracies(Stored("constants")).items():
        best = best_value(accuracies)
        cells = []
        for value, share in accuracies.items():
            words = f"{value}: {100 * share:.1f}"
            cells.append(f"**{words}**" if value == best else words)
        yield table_row([f"`{method}`", f"`{setting}`", ", ".join(cells)])


def validation_accuracies(stored: Stored) -> dict[str, tuple[str, dict[str, float]]]:
    """Method -> its setting, and the validation accuracy by value, averaged over the data sets."""
    accuracies: dict[str, tuple[str, dict[str, float]]] = {}
    for variant in stored.names("method"):
        method, _, setting = variant.partition(", ")
        name, _, value = setting.partition(" = ")
        means = [stored.values(data, variant, "validation").mean() for data in stored.names("data")]
        accuracies.setdefault(method, (name, {}))[1][value] = float(sum(means) / len(means))
    return accuracies


def best_value(accuracies: dict[str, float]) -> str:
    """The value with the highest accuracy; ties go to the last."""
    return max(reversed(accuracies), key=lambda value: round(accuracies[value], 6))


def convergence() -> Iterator[str]:
    """The gain of `local` from four times as many rounds."""
    stored = Stored("convergence")
    budgets = stored.names("method")
    yield table_head(
        "data set", *(f"`{rule}`, {budget}" for rule in ("classifier", "discriminant") for budget in budgets)
    )
    for data in stored.names("data"):
        metrics = ("classifier final", "discriminant final")
        cells = [_mean(stored.values(data, budget, metric), True) for metric in metrics for budget in budgets]
        yield table_row([data, *cells])


def spaces() -> Iterator[str]:
    """The default's family in each public encoder's space, and what its exchange adds there."""
    stored = Stored("strong")

    def metrics_of(method: str) -> Sequence[str]:
        return _metrics_in_space(method.partition(PRETRAINED)[0])

    def control_of(method: str, metric: str) -> tuple[str, str] | None:
        pretrained = method.partition(PRETRAINED)[1]
        return (CONTROL + pretrained, LOCAL_RULES[metric]) if metric in LOCAL_RULES else None

    heads = [name for data in stored.names("data") for name in (stored.heading(data), "gain")]
    yield table_head("encoder", "method", "predicts by", *heads, left=3)
    for (method, metric), row in _with_gains(stored, metrics_of, control_of).items():
        name, pretrained, _ = method.partition(PRETRAINED)
        encoder = "efficientnet-lite0" if pretrained else "handcrafted"
        yield table_row([f"`{encoder}`", f"`{name}`", f"`{_rule(metric)}`", *row])


def _metrics_in_space(name: str) -> list[str]:
    if name == CONTROL:
        return [CLASSIFIER, *LOCAL_RULES.values()]
    return [*LOCAL_RULES] if name == "protosphere" else ["encoder selected"]


def sources() -> Iterator[str]:
    """The sources of all tables."""
    tables = [Stored(path.stem) for path in sorted(RESULTS.glob("*.csv"))]
    for table in tables:
        yield f"- `{table.name}.csv`: {table.describe()}"
    yield f"- Machine: {'; '.join(sorted({table.source['machine'] for table in tables}))}"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "the table": lambda: accuracies(in_full=False),
    "the table with deviations": lambda: accuracies(in_full=True),
    "gains": gains,
    "sizes": sizes,
    "authors": authors,
    "heirs": heirs,
    "claims": claims,
    "constants": constants,
    "convergence": convergence,
    "spaces": spaces,
    "sources": sources,
}


def renewed(text: str) -> str:
    """A page with each of its tables rewritten."""
    for name, lines in TABLES.items():
        begin, end = BEGIN.format(name), END.format(name)
        if begin in text:
            table = "\n".join([begin, "", *lines(), "", end])
            text = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, new=table: new, text, flags=re.DOTALL)
    return text


def main() -> None:
    """Store a comparison, or rewrite the tables."""
    parser = described_parser(__doc__)
    store_parser = parser.add_subparsers(dest="action").add_parser("store")
    store_parser.add_argument("name")
    store_parser.add_argument("folder", type=Path, nargs="+")
    store_parser.add_argument("--command", required=True, help="by which it was measured")
    store_parser.add_argument("--commit", required=True, help="of the program that measured it")
    options: Any = parser.parse_args()
    if options.action == "store":
        store(options.name, options.folder, options.command, options.commit)
        return
    for page in PAGES:
        page.write_text(renewed(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
