"""Metrics by client as a tidy table, made from the lines: one row per client and round, one column per metric."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from protosphere.core.client_names import client_label, client_names
from protosphere.record.metrics_lines import MAJORITY, MEANS, SPLITS

FILE = "clients.parquet"  # in the run's folder
TEST, VALIDATION = SPLITS
COLUMN_OF_SPLIT = {TEST: "accuracy", VALIDATION: "validation"}


def rows_of_run(
    lines: Iterable[Mapping[str, Any]], roster: Sequence[Mapping[str, Any]], rule: str
) -> Iterator[list[dict[str, Any]]]:
    """The rows of each round, in partition order, from the lines of metrics.jsonl and the entries of roster.json.

    The accuracies of `rule`, the run's own inference rule, have their own columns.
    """
    models = {entry["partition"]: entry["model"] for entry in roster}
    names = client_names(roster)
    for line in lines:
        rows = []
        for partition in sorted(map(int, {*line["clients"], *line["problems"]})):
            row = {"round": line["round"], "client": partition, "name": client_label(partition, names)}
            row["model"] = models.get(partition, "")
            rows.append(row | _client_figures(line, str(partition), rule))
        yield rows


def _client_figures(line: Mapping[str, Any], partition: str, rule: str) -> dict[str, Any]:
    client = line["clients"].get(partition, {})
    figures: dict[str, Any] = {}
    if "training" in client:
        figures["seconds"] = line.get("time", {}).get("train", {}).get(partition)
        figures |= training_figures(client["training"])
    if "evaluation" in client:
        figures |= _evaluation_figures(client["evaluation"], rule)
    if partition in line["problems"]:
        figures["problem"] = line["problems"][partition]
    return figures


def training_figures(training: Mapping[str, Any]) -> dict[str, Any]:
    """The columns for one client's training, or for the mean over clients."""
    figures = {}
    for name, value in training.get("loss", {}).items():
        figures[name if name == "loss" else f"loss/{name}"] = value
    if training.get("rows") is not None:
        figures["train_rows"] = training["rows"]
    for name in (*MEANS, "steps"):
        if training.get(name) is not None:
            figures[name] = training[name]
    return figures


def _evaluation_figures(evaluation: Mapping[str, Any], rule: str) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, values in evaluation.items():
        if name == "rows":
            figures |= {f"{split}_rows": count for split, count in zip((TEST, VALIDATION), values, strict=False)}
        elif name == MAJORITY:
            figures[MAJORITY] = values[0]
        else:
            for split, accuracy in zip(SPLITS, values, strict=False):
                column = COLUMN_OF_SPLIT[split]
                figures[f"{column}/{name}"] = accuracy
                if name == rule:
                    figures[column] = accuracy
    return figures


def write(path: Path, rounds: Iterable[list[dict[str, Any]]]) -> None:
    """Write the rows of all rounds as one Parquet file; in memory, 10,000 clients take 2 MB per round."""
    import pyarrow
    import pyarrow.parquet

    # clients that withhold their metrics have no rows, unless they had a problem
    kinds = [("round", pyarrow.int64()), ("client", pyarrow.int64()), ("name", pyarrow.string())]
    tables = [pyarrow.schema([*kinds, ("model", pyarrow.string())]).empty_table()]
    for rows in rounds:
        columns: dict[str, list[Any]] = {}
        for name in dict.fromkeys(name for row in rows for name in row):
            columns[name] = [row.get(name) for row in rows]
        tables.append(pyarrow.table(columns))
    # a metric may be missing in one round and complete in another
    table = pyarrow.concat_tables(tables, promote_options="permissive")
    pyarrow.parquet.write_table(table, path, write_page_checksum=True)
