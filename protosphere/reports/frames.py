"""From the lines of a run's metrics.jsonl to tables of flat names."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from protosphere.core.client_names import client_label, client_names
from protosphere.record.metrics_lines import MAJORITY, MEANS, SPLITS

Figures = dict[str, Any]
UNKNOWN = float("nan")  # of what was not measured: no comparison with it is true
TEST, VALIDATION, ALL = SPLITS


def of_line(line: Mapping[str, Any], rule: str) -> Figures:
    """A line's figures for `on_round`: of the round's training, and of the models that it left."""
    evaluation = {"accuracy": UNKNOWN, "validation": UNKNOWN, **_collect_evaluated(line, rule)}
    return {"round": line["round"], **evaluation, **_collect_trained(line)}


def over_rounds(lines: Sequence[Mapping[str, Any]], rule: str) -> pd.DataFrame:
    """A row for each round, with the evaluation of the models that it left; round 0 is before any training."""
    rows = [{**_collect_trained(line), **_collect_evaluated(line, rule)} for line in lines]
    numbers = [line["round"] for line in lines]
    frame = pd.DataFrame(rows, index=pd.Index(numbers, name="round", dtype="int64"))
    return _order_columns(frame, ["accuracy", "validation"])


def sent_by_round(lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """What training took up to the end of each round, from round 0 on: `payload` and `wire` (bytes both ways, without
    the messages of evaluations), `seconds`."""
    rows = [(0, 0, 0.0)]
    for line in lines:
        if line["round"]:
            sizes = line["bytes"]
            payload = sizes["payload_up"] + sizes["payload_down"]
            rows.append((payload, sizes["wire_up"] + sizes["wire_down"], line["time"]["round"]))
    return pd.DataFrame(rows, columns=["payload", "wire", "seconds"]).cumsum()


def over_clients(lines: Sequence[Mapping[str, Any]], roster: Sequence[Mapping[str, Any]], rule: str) -> pd.DataFrame:
    """A row for each client and round, as `over_rounds`."""
    models = {entry["partition"]: entry["model"] for entry in roster}
    names = client_names(roster)
    table_rows = []
    for line in lines:
        rows: dict[int, Figures] = {}
        seconds = line.get("time", {}).get("train", {})
        for partition, client in line["clients"].items():
            figures = rows.setdefault(int(partition), {})
            if "training" in client:
                figures |= {"seconds": seconds.get(partition), **_training(client["training"])}
            if "evaluation" in client:
                figures |= _collect_client_evaluation(client["evaluation"], rule)
        for partition, problem in line["problems"].items():
            rows.setdefault(int(partition), {})["problem"] = problem
        for number, figures in sorted(rows.items()):
            who = {"client": number, "name": client_label(number, names), "model": models.get(number, "")}
            table_rows.append({"round": line["round"], **who, **figures})
    return _order_columns(pd.DataFrame(table_rows), ["round", "client", "name", "model", "accuracy", "validation"])


def _order_columns(frame: pd.DataFrame, first: Sequence[str]) -> pd.DataFrame:
    """With these columns before the others, whether there are such figures or not."""
    return frame.reindex(columns=[*first, *(name for name in frame.columns if name not in first)])


def _collect_trained(line: Mapping[str, Any]) -> Figures:
    training = line.get("training", {})
    counts = {f"clients_{name}": training[name] for name in ("asked", "valid", "dropped") if name in training}
    sizes = {name: size for name, size in line.get("bytes", {}).items() if name.startswith(("payload", "wire"))}
    # of the server a length that clients have, too, and what the method tells
    server = {f"server/{name}": value for name, value in _numbers(line.get("server", {}))}
    # what the untrained models took is no training
    seconds = line.get("time", {}).get("round") if line["round"] else None
    sizes = sizes if line["round"] else {}
    return {**counts, **_training(training), **server, **sizes, "seconds": seconds}


def _training(training: Mapping[str, Any]) -> Figures:
    parts = training.get("loss", {})
    losses = {name if name == "loss" else f"loss/{name}": value for name, value in parts.items()}
    plain = {name: training[name] for name in (*MEANS, "rows", "steps") if training.get(name) is not None}
    return losses | ({"train_rows": plain.pop("rows")} if "rows" in plain else {}) | plain


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
            figures |= {f"{label}/{name}": splits[split]["mean"] for split, label in _NAMED.items() if split in splits}
    if "ensemble" in line:
        figures["ensemble"] = line["ensemble"]["accuracy"]
    return figures


_NAMED = {TEST: "accuracy", VALIDATION: "validation", ALL: "all-classes"}


def _collect_client_evaluation(evaluation: Mapping[str, Any], rule: str) -> Figures:
    figures: Figures = {}
    for name, values in evaluation.items():
        if name == "rows":
            figures |= {f"{split}_rows": count for split, count in zip(("test", "validation"), values, strict=False)}
        elif name == MAJORITY:
            figures[MAJORITY] = values[0]
        else:
            for split, value in zip(SPLITS, values, strict=False):
                figures[f"{_NAMED[split]}/{name}"] = value
                if name == rule and split != ALL:
                    figures[_NAMED[split]] = value
    return figures


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in nested mappings, each by its path."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _numbers(part, f"{path}/{name}" if path else str(name))
    elif isinstance(value, int | float):
        yield path, value
