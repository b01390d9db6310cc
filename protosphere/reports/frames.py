"""Converts the lines of metrics.jsonl to data frames with flat column names, and frames to CSV."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from protosphere.core.text import one_line
from protosphere.record.client_tables import COLUMN_OF_SPLIT, TEST, VALIDATION, rows_of_run, training_figures
from protosphere.record.metrics_lines import MAJORITY

Figures = dict[str, Any]
FORMULA = ("=", "+", "-", "@")  # first characters of a cell that a spreadsheet would evaluate as a formula
UNKNOWN = float("nan")  # a missing value; comparisons with it are false


def of_line(line: Mapping[str, Any], rule: str) -> Figures:
    """A line's values for `on_round`: the metrics of the round's training, and those of the models after it."""
    evaluation = {"accuracy": UNKNOWN, "validation": UNKNOWN, **_collect_evaluated(line, rule)}
    return {"round": line["round"], **evaluation, **_collect_trained(line)}


def over_rounds(lines: Sequence[Mapping[str, Any]], rule: str) -> pd.DataFrame:
    """One row per round, with the evaluation of the models after it; round 0 is before training."""
    rows = [{**_collect_trained(line), **_collect_evaluated(line, rule)} for line in lines]
    numbers = [line["round"] for line in lines]
    frame = pd.DataFrame(rows, index=pd.Index(numbers, name="round", dtype="int64"))
    return _order_columns(frame, ["accuracy", "validation"])


def sent_by_round(lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Cumulative size of training messages by round, from round 0 on: `payload` and `wire` (bytes in both directions,
    without evaluation messages)."""
    rows = [(0, 0)]
    for line in lines:
        if line["round"]:
            sizes = line["bytes"]
            payload = sizes["payload_up"] + sizes["payload_down"]
            rows.append((payload, sizes["wire_up"] + sizes["wire_down"]))
    return pd.DataFrame(rows, columns=["payload", "wire"]).cumsum()


def over_clients(lines: Iterable[Mapping[str, Any]], roster: Sequence[Mapping[str, Any]], rule: str) -> pd.DataFrame:
    """One row per client and round, as in clients.parquet."""
    frame = pd.DataFrame([row for rows in rows_of_run(lines, roster, rule) for row in rows])
    return _order_columns(frame, ["round", "client", "name", "model", "accuracy", "validation"])


def _order_columns(frame: pd.DataFrame, first: Sequence[str]) -> pd.DataFrame:
    """Put these columns first, and add those that are missing."""
    return frame.reindex(columns=[*first, *(name for name in frame.columns if name not in first)])


def _collect_trained(line: Mapping[str, Any]) -> Figures:
    training = line.get("training", {})
    counts = {f"clients_{name}": training[name] for name in ("asked", "valid", "dropped") if name in training}
    sizes = {name: size for name, size in line.get("bytes", {}).items() if name.startswith(("payload", "wire"))}
    # from the server: a norm that clients also report, and the method's metrics
    server = {f"server/{name}": value for name, value in _numbers(line.get("server", {}))}
    # messages of round 0 belong to no training
    seconds = line.get("time", {}).get("round") if line["round"] else None
    sizes = sizes if line["round"] else {}
    return {**counts, **training_figures(training), **server, **sizes, "seconds": seconds}


def _collect_evaluated(line: Mapping[str, Any], rule: str) -> Figures:
    rules = line.get("evaluation", {}).get("rules", {})
    figures: Figures = {}
    rule_splits = rules.get(rule, {})
    if TEST in rule_splits:
        figures |= {
            "accuracy": rule_splits[TEST]["mean"],
            "std": rule_splits[TEST]["std"],
            "worst": rule_splits[TEST]["worst"],
        }
    if VALIDATION in rule_splits:
        figures["validation"] = rule_splits[VALIDATION]["mean"]
    if TEST in rules.get(MAJORITY, {}):
        figures["majority-class"] = rules[MAJORITY][TEST]["mean"]
    for name, splits in rules.items():
        if name != MAJORITY:
            for split, column in COLUMN_OF_SPLIT.items():
                if split in splits:
                    figures[f"{column}/{name}"] = splits[split]["mean"]
    if "ensemble" in line:
        figures["ensemble"] = line["ensemble"]["accuracy"]
    return figures


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in nested mappings, each by its path."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _numbers(part, f"{path}/{name}" if path else str(name))
    elif isinstance(value, int | float):
        yield path, value


def as_csv(table: pd.DataFrame) -> str:
    """A CSV text: UTF-8, commas, one row per line, headers first; a missing value is an empty cell.

    Clients and comparison files choose names, so names that a spreadsheet would evaluate as a formula are escaped.
    """
    cells = table.astype(object).where(table.notna(), None)
    rows = [list(table.columns), *cells.itertuples(index=False, name=None)]
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([[_cell(value) for value in row] for row in rows])
    return stream.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(FORMULA) else text
