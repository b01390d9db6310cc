"""Converts values to Flower records and back. A message holds at most three records, which a test checks:

    config   ConfigRecord  what the message is about, by plain names
    arrays   ArrayRecord   "<part>.<field>": the method's parts, see arrays.py
    metrics  MetricRecord  "<part>.<name>": numbers

If a user's own ServerApp has made the strategy, each message to a client has a fourth record: `settings`, a
ConfigRecord, since the client's run configuration does not contain them.

The server sends an instruction (metrics: `constants`). A client sends an identity (config only) or a report (metrics:
`training`, `loss`, `evaluation`, `correct`; arrays: the method's parts, and `ensemble` if it is measured).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from protosphere.core.client_names import LONGEST_CLIENT_NAME
from protosphere.core.settings import is_run_name
from protosphere.core.text import LONGEST_NAME, one_line
from protosphere.wire.arrays import Limits, decode, encode
from protosphere.wire.checks import (
    ARRAYS,
    CONFIG,
    LARGEST_FIGURE,
    METRICS,
    SETTINGS,
    MessageError,
    are_counts,
    check_keys,
    check_names,
    check_records,
    check_texts,
    config_values,
    plain,
)
from protosphere.wire.layouts import read_layouts
from protosphere.wire.parts import ENSEMBLE, Exchange, Part
from protosphere.wire.payloads import Evaluation, Identity, Instruction, Report, TrainingFigures

MOST_CLASSES = 2**16
MOST_ROWS = 2**31 - 1  # sample counts of a client, which weigh in means
PLAIN_NAME = re.compile(r"[\w.-]{1,80}")
CONSTANTS, TRAINING, LOSS, EVALUATION, CORRECT = "constants", "training", "loss", "evaluation", "correct"
COUNTS, FIGURES = ("rows", "steps"), ("gradient_ratio", "target_norm", "seconds")  # of training
NORM = "prototype_norm"  # only if it was measured
PROBABILITIES = "probabilities"  # the array of the ensemble's answer


# --- instructions -----------------------------------------------------------------------------------


def encode_instruction(instruction: Instruction, parts: Sequence[Part] = ()) -> RecordDict:
    """Server to client.

    Args:
        parts: the parts of the download, see `encode`.

    Raises:
        CodecError: the number format cannot hold a value.
    """
    config = ConfigRecord(
        {
            "run": instruction.run,
            "round": instruction.round,
            "last": instruction.last,
            "trained": instruction.last_trained_round,
            "made": instruction.made,
        }
    )
    records = RecordDict({CONFIG: config})
    if instruction.payload is not None:
        records[ARRAYS] = encode(instruction.payload, parts)
    if instruction.constants:
        records[METRICS] = MetricRecord({f"{CONSTANTS}.{name}": v for name, v in instruction.constants.items()})
    return records


def decode_instruction(
    records: RecordDict,
    exchange: Exchange,
    num_classes: int,
    dim: int,
    limits: Limits,
    trains: bool = True,
) -> Instruction:
    """Client side of `encode_instruction`; the server's messages are checked as well.

    Args:
        exchange: the parts of the method's messages.
        trains: whether the message asks for training; otherwise it asks for an evaluation.

    Raises:
        MessageError: a record is missing, unknown or malformed.
    """
    check_records(records, CONFIG, ARRAYS, METRICS, SETTINGS)
    config = config_values(records, run=str, round=int, last=bool, trained=int, made=int)
    if not is_run_name(config["run"]):
        raise MessageError(f"the run name {config['run']!r} is no plain folder name")
    if config["round"] < trains:
        raise MessageError(f"the round {config['round']} is none; they count from 1")
    # the evaluation of a round reads its trained model and the download made from its uploads
    latest = config["round"] - trains
    if not 0 <= config["trained"] <= latest:
        raise MessageError(f"round {config['round']} cannot come after training in round {config['trained']}")
    if not 0 <= config["made"] <= latest:
        raise MessageError(f"round {config['round']} cannot bring what round {config['made']} has made")

    constants = _decode_constants(records)
    payload = None
    if ARRAYS in records:
        parts = _find_parts(records.array_records[ARRAYS], exchange)
        limits = replace(limits, max_norm=limits.max_norm / _find_factor(parts, constants))
        payload = decode(records.array_records[ARRAYS], parts, num_classes, dim, limits)
    last_trained_round = config.pop("trained")
    return Instruction(**config, last_trained_round=last_trained_round, payload=payload, constants=constants)


def _find_parts(record: ArrayRecord, exchange: Exchange) -> tuple[Part, ...]:
    """The parts that a download must have: all of them, or the received one if either is allowed."""
    if not exchange.down:
        raise MessageError(f"the message holds the record `{ARRAYS}`, which nobody agreed on")
    if not exchange.either:
        return exchange.down
    names = {name.partition(".")[0] for name in record}
    return next(((part,) for part in exchange.down if part.name in names), exchange.down[:1])


def _find_factor(parts: Sequence[Part], constants: Mapping[str, float]) -> float:
    """The factor by which clients multiply received vectors, if it is below 1: these vectors may be longer. Else 1."""
    factors = [constants.get(part.factor, 1.0) for part in parts if part.factor]
    return min((factor for factor in factors if 0 < factor <= 1), default=1.0)


def _decode_constants(records: RecordDict) -> dict[str, float]:
    constants: dict[str, float] = {}
    for key, value in records.metric_records.get(METRICS, {}).items():
        part, _, name = key.partition(".")
        # a comparison with NaN is false
        if part != CONSTANTS or not name or not isinstance(value, float) or not abs(value) <= LARGEST_FIGURE:
            raise MessageError(f"{_quote_name(key)} of record `{METRICS}` is {value}, no constant that is finite")
        constants[name] = value
    check_names(CONSTANTS, [*constants])
    return constants


# --- reports ------------------------------------------------------------------------------------------


def encode_report(report: Report, parts: Sequence[Part] = ()) -> RecordDict:
    """Client to server.

    Args:
        parts: that go up, see `encode`.

    Raises:
        CodecError: the number format cannot hold a value.
    """
    config = ConfigRecord(
        {
            "partition": report.partition,
            "round": report.round,
            "problem": plain(report.problem),
            "seconds": report.seconds,
        }
    )
    arrays: dict[str, Any] = dict(encode(report.payload, parts)) if report.payload is not None else {}
    metrics: dict[str, Any] = {}
    if report.training is not None:
        training = report.training
        metrics |= {f"{TRAINING}.{name}": getattr(training, name) for name in COUNTS}
        # the ratio is infinite if the other gradient has vanished
        metrics |= {f"{TRAINING}.{name}": min(getattr(training, name), LARGEST_FIGURE) for name in FIGURES}
        if training.prototype_norm is not None:
            metrics[f"{TRAINING}.{NORM}"] = min(training.prototype_norm, LARGEST_FIGURE)
        metrics |= {f"{LOSS}.{name}": value for name, value in training.parts.items()}
    if report.evaluation is not None:
        evaluation = report.evaluation
        metrics |= {f"{EVALUATION}.rows": list(evaluation.rows), f"{EVALUATION}.seconds": evaluation.seconds}
        if evaluation.auc is not None:
            metrics[f"{EVALUATION}.auc"] = evaluation.auc
        if evaluation.confusion:
            metrics[f"{EVALUATION}.confusion"] = list(evaluation.confusion)
        metrics |= {f"{CORRECT}.{rule}": list(right) for rule, right in evaluation.correct.items()}
    if report.ensemble is not None:
        arrays[f"{ENSEMBLE}.{PROBABILITIES}"] = report.ensemble
    records = RecordDict({CONFIG: config})
    if arrays:
        records[ARRAYS] = ArrayRecord(arrays)
    if metrics:
        records[METRICS] = MetricRecord(metrics)
    return records


def decode_report(records: RecordDict) -> tuple[Report, ArrayRecord | None]:
    """Server side of `encode_report`. The upload and the ensemble's probabilities are returned undecoded: if they are
    unusable they are dropped, but the report's metrics still count.

    Raises:
        MessageError: the reply as a whole is unusable.
    """
    check_records(records, CONFIG, ARRAYS, METRICS)
    config = config_values(records, partition=int, round=int, problem=str, seconds=float)
    if not 0 <= config["seconds"] <= LARGEST_FIGURE:
        raise MessageError(f"`seconds` of record `{CONFIG}` is {config['seconds']}, no time that a client takes")
    check_texts("problem", [config["problem"]])

    metrics = _group_by_part(records.metric_records.get(METRICS, {}))
    arrays = _group_by_part(records.array_records.get(ARRAYS, {}))
    if strange := sorted(metrics.keys() - {TRAINING, LOSS, EVALUATION, CORRECT}):
        raise MessageError(f"the message holds the metrics {strange[0]!r}, which nobody agreed on")
    ensemble = arrays.pop(ENSEMBLE, None)
    if ensemble is not None:
        check_keys(ENSEMBLE, ensemble, {PROBABILITIES})
    upload = {f"{part}.{name}": array for part, values in arrays.items() for name, array in values.items()}
    report = Report(
        **config,
        training=_decode_training(metrics) if {TRAINING, LOSS} & metrics.keys() else None,
        evaluation=_decode_evaluation(metrics) if {EVALUATION, CORRECT} & metrics.keys() else None,
        ensemble=None if ensemble is None else ensemble[PROBABILITIES],
    )
    return report, ArrayRecord(upload) if upload else None


def _group_by_part(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Part -> its fields by name."""
    parts: dict[str, dict[str, Any]] = {}
    for key, value in record.items():
        part, _, name = key.partition(".")
        parts.setdefault(part, {})[name] = value
    return parts


def _decode_training(metrics: Mapping[str, Mapping[str, Any]]) -> TrainingFigures:
    training, loss = metrics.get(TRAINING, {}), metrics.get(LOSS, {})
    names = {*COUNTS, *FIGURES}
    check_keys(TRAINING, training, names | {NORM} if NORM in training else names)
    check_names(LOSS, [*loss])
    rows, steps = (_read_count(f"{TRAINING}.{name}", training[name]) for name in COUNTS)
    if rows < 1:
        raise MessageError("the training figures are of no row")
    figures: dict[str, float] = {}
    for name in (*FIGURES, NORM):
        if name in training:
            figures[name] = _read_figure(f"{TRAINING}.{name}", training[name])
    if min(figures.values()) < 0:
        raise MessageError(f"a norm, a ratio or a time of the training figures is negative: {[*figures.values()]}")
    parts = {name: _read_figure(f"{LOSS}.{name}", value) for name, value in loss.items()}
    ratio, target_norm, seconds = (figures[name] for name in FIGURES)
    return TrainingFigures(rows, steps, parts, ratio, target_norm, figures.get(NORM), seconds)


def _decode_evaluation(metrics: Mapping[str, Mapping[str, Any]]) -> Evaluation:
    evaluation, correct = metrics.get(EVALUATION, {}), metrics.get(CORRECT, {})
    check_keys(EVALUATION, evaluation.keys() - {"auc", "confusion"}, {"rows", "seconds"})
    check_names("rules", [*correct])
    rows = _read_counts(f"{EVALUATION}.rows", evaluation["rows"])
    right_by_rule = {rule: _read_counts(f"{CORRECT}.{rule}", values) for rule, values in correct.items()}
    for rule, right in right_by_rule.items():
        if any(some > all_rows for some, all_rows in zip(right, rows, strict=True)):
            raise MessageError(f"rule {_quote_name(rule)} claims {right} right of {rows} rows")
    seconds = evaluation["seconds"]
    if not isinstance(seconds, float) or not 0 <= seconds <= LARGEST_FIGURE:
        raise MessageError(f"`{EVALUATION}.seconds` is {seconds}, no time that a client takes")
    auc = evaluation.get("auc")
    # a comparison with NaN is false
    if auc is not None and not (isinstance(auc, float) and 0 <= auc <= 1):
        raise MessageError(f"the area under the ROC curve is {auc!r}, and not between 0 and 1")
    confusion = evaluation.get("confusion", [])
    if not isinstance(confusion, list) or not are_counts(confusion):
        raise MessageError("the confusion holds something that is no count")
    return Evaluation(rows, right_by_rule, seconds, auc, tuple(confusion))


def _read_count(name: str, value: Any) -> int:
    if not are_counts([value]) or value > LARGEST_FIGURE:
        raise MessageError(f"figure {_quote_name(name)} is {value}, not a count")
    return int(value)


def _read_counts(name: str, values: Any) -> tuple[int, int]:
    if not isinstance(values, list) or len(values) != 2 or not are_counts(values):
        raise MessageError(f"figure {_quote_name(name)} is {values}, not 2 counts")
    return values[0], values[1]


def _read_figure(name: str, value: Any) -> float:
    # a comparison with NaN is false
    if not isinstance(value, int | float) or not abs(value) <= LARGEST_FIGURE:
        raise MessageError(f"figure {_quote_name(name)} is {value}, not finite or absurdly large")
    return float(value)


def _quote_name(name: str) -> str:
    """The name of a rule or metric. Clients may choose it, so anything that does not look like a name is quoted."""
    return f"`{name}`" if PLAIN_NAME.fullmatch(name) else repr(one_line(name, LONGEST_NAME))


# --- identity ------------------------------------------------------------------------------------------


def encode_identity(identity: Identity) -> RecordDict:
    """Client to server, once, as the reply to the query."""
    values = {entry.name: _make_sendable(getattr(identity, entry.name)) for entry in fields(Identity)}
    return RecordDict({CONFIG: ConfigRecord(values)})


def _make_sendable(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_make_sendable(item) for item in value]
    return plain(value) if isinstance(value, str) else value


def decode_identity(records: RecordDict) -> Identity:
    """Server side of `encode_identity`.

    Raises:
        MessageError: a field is missing, has the wrong type or an invalid value.
    """
    check_records(records, CONFIG)
    lists = dict.fromkeys(("class_names", "classes", "class_counts", "rows", "discloses", "layouts"), list)
    scalars = dict.fromkeys(("partition", "partitions", "parameters", "feature_dim"), int)
    texts = dict.fromkeys(
        ("model", "domain", "problem", "settings", "encoder", "method", "companion", "name", "flower"), str
    )
    values = config_values(records, **scalars, **lists, **texts)
    if len(values["class_names"]) > MOST_CLASSES:
        raise MessageError(
            f"the identity has {len(values['class_names'])} class names, at most {MOST_CLASSES} are taken"
        )
    for name in ("partitions", "parameters", "feature_dim"):
        if values[name] < 0:
            raise MessageError(f"the identity's `{name}` is {values[name]}, which is negative")
    if len(values["rows"]) not in (0, 3) or not are_counts(values["rows"]):
        raise MessageError(f"the identity's `rows` are {values['rows']}, not 3 counts")
    labels = values["classes"]
    if not are_counts(labels) or sorted(set(labels)) != labels or (labels and labels[-1] >= len(values["class_names"])):
        raise MessageError(
            f"the identity's `classes` {labels} are no ascending labels of its {len(values['class_names'])} class names"
        )
    rows = values["rows"] or [MOST_ROWS]
    if max(rows) > MOST_ROWS or bool(rows[0]) != bool(labels) or len(labels) > rows[0]:
        raise MessageError(
            f"the identity has {rows} samples and holds {len(labels)} classes: each class needs a training row, and "
            f"none has more than {MOST_ROWS}"
        )
    counts = values["class_counts"]
    if counts and (not are_counts(counts) or min(counts) < 1 or len(counts) != len(labels) or sum(counts) != rows[0]):
        raise MessageError(
            f"the identity's `class_counts` {counts} are no training rows of each of its {len(labels)} classes, "
            f"{rows[0]} in all"
        )
    for name in (*texts, "class_names", "discloses"):
        check_texts(name, values[name] if isinstance(values[name], list) else [values[name]])
    if len(values["name"]) > LONGEST_CLIENT_NAME:
        raise MessageError(f"the identity's `name` is longer than {LONGEST_CLIENT_NAME} characters")
    read_layouts(values["layouts"])
    arguments: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return Identity(**arguments)
