"""Converts values to Flower records and back. A message holds at most three records, which a test checks:

    config   ConfigRecord  what the message is about, by plain names
    arrays   ArrayRecord   "<part>.<field>": the method's parts (arrays.py), and `ensemble` if it is measured
    metrics  MetricRecord  "<part>.<name>": `constants`, or a report's `training`, `loss`, `evaluation`, `correct`

If a user's own ServerApp has made the strategy, messages to clients also hold the record `settings`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from protosphere.core.client_names import LONGEST_CLIENT_NAME
from protosphere.core.settings import is_run_name
from protosphere.wire import checks
from protosphere.wire.arrays import Limits, decode, encode
from protosphere.wire.checks import (
    ARRAYS,
    CONFIG,
    COUNT,
    LARGEST_FIGURE,
    METRICS,
    SETTINGS,
    Kind,
    MessageError,
    check_fields,
    check_named,
    check_records,
    list_of,
    plain,
)
from protosphere.wire.layouts import read_layouts
from protosphere.wire.parts import ENSEMBLE, Exchange, Part
from protosphere.wire.payloads import Evaluation, Identity, Instruction, Report, TrainingFigures

MOST_ROWS = 2**31 - 1  # sample counts of a client, which weigh in means
NUMBER_BYTES = 8  # of a number in protobuf
CONSTANTS, TRAINING, LOSS, EVALUATION, CORRECT = "constants", "training", "loss", "evaluation", "correct"
FIGURES = ("gradient_ratio", "target_norm", "seconds")  # of training
NORM = "prototype_norm"  # only if it was measured
PROBABILITIES = "probabilities"  # the array of the ensemble's answer

TEXT, TEXTS, COUNTS = checks.text(), list_of(checks.text()), list_of(COUNT)
PAIR = list_of(COUNT, 2, 2)  # of test and validation samples
OF_INSTRUCTION = {
    "run": Kind("a plain run name", lambda value: isinstance(value, str) and is_run_name(value)),
    "round": COUNT,
    "last": checks.FLAG,
    "trained": COUNT,
    "made": COUNT,
}
OF_REPORT = {
    "partition": checks.INTEGER,
    "round": checks.INTEGER,
    "problem": TEXT,
    "seconds": checks.NOT_NEGATIVE,
}
OF_TRAINING = {"rows": COUNT, "steps": COUNT, **dict.fromkeys(FIGURES, checks.NOT_NEGATIVE)}
OF_IDENTITY = {
    "partition": checks.INTEGER,
    **dict.fromkeys(("partitions", "parameters", "feature_dim"), COUNT),
    **dict.fromkeys(("classes", "rows"), COUNTS),
    **dict.fromkeys(("discloses", "layouts"), TEXTS),
    **dict.fromkeys(("model", "domain", "problem", "settings", "encoder", "method", "companion", "flower"), TEXT),
    "class_names": list_of(TEXT, most=2**16),
    "name": checks.text(LONGEST_CLIENT_NAME),
}


def count_bytes(records: RecordDict) -> int:
    """The bytes of all records as Flower counts them; its own function fails for an empty text or list."""
    return sum(len(key) + _count_bytes(value) for record in records.values() for key, value in record.items())


def _count_bytes(value: Any) -> int:
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, list):
        return sum(map(_count_bytes, value))
    if isinstance(value, str | bytes):
        return len(value)
    return 1 if isinstance(value, bool) else NUMBER_BYTES


# --- instructions -----------------------------------------------------------------------------------


def encode_instruction(instruction: Instruction, parts: Sequence[Part] = ()) -> RecordDict:
    """Server to client; `parts` are those of the download. Raises CodecError like `encode`."""
    config: dict[str, Any] = {
        "run": instruction.run,
        "round": instruction.round,
        "last": instruction.last,
        "trained": instruction.last_trained_round,
        "made": instruction.made,
    }
    records = RecordDict({CONFIG: ConfigRecord(config)})
    if instruction.payload is not None:
        records[ARRAYS] = encode(instruction.payload, parts)
    if instruction.constants:
        constants = {name: float(value) for name, value in instruction.constants.items()}
        records[METRICS] = MetricRecord(_name_fields(CONSTANTS, constants))
    return records


def decode_instruction(
    records: RecordDict, exchange: Exchange, num_classes: int, dim: int, limits: Limits, trains: bool = True
) -> Instruction:
    """Client side of `encode_instruction`; `trains` says whether the message asks for training or an evaluation.

    Raises MessageError if a record is missing, unknown or malformed.
    """
    check_records(records, CONFIG, ARRAYS, METRICS, SETTINGS)
    config = _read_config(records, OF_INSTRUCTION)
    number = config["round"]
    # the evaluation of a round reads its trained model and the download made from its uploads
    latest = number - trains
    if latest < 0:
        raise MessageError(f"the round {number} is none; they count from 1")
    for name in ("trained", "made"):
        if config[name] > latest:
            raise MessageError(f"`{name}` is {config[name]}, and round {number} cannot know of a round after {latest}")
    constants = _read_metrics(records, CONSTANTS)[CONSTANTS]
    check_named(CONSTANTS, constants, checks.FINITE)

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


# --- reports ------------------------------------------------------------------------------------------


def encode_report(report: Report, parts: Sequence[Part] = ()) -> RecordDict:
    """Client to server; `parts` are those of the upload. Raises CodecError like `encode`."""
    config: dict[str, Any] = {
        "partition": report.partition,
        "round": report.round,
        "problem": plain(report.problem),
        "seconds": report.seconds,
    }
    arrays: dict[str, Any] = dict(encode(report.payload, parts)) if report.payload is not None else {}
    if report.ensemble is not None:
        arrays[f"{ENSEMBLE}.{PROBABILITIES}"] = report.ensemble
    metrics: dict[str, Any] = {}
    if report.training is not None:
        training = report.training
        figures: dict[str, Any] = {"rows": training.rows, "steps": training.steps}
        for name in (*FIGURES, NORM):
            value = getattr(training, name)
            if value is not None:
                # a ratio is infinite if the other gradient has vanished
                figures[name] = min(float(value), LARGEST_FIGURE)
        parts_of_loss = {name: float(value) for name, value in training.parts.items()}
        metrics |= _name_fields(TRAINING, figures) | _name_fields(LOSS, parts_of_loss)
    if report.evaluation is not None:
        evaluation = report.evaluation
        figures = {"rows": list(evaluation.rows), "seconds": evaluation.seconds}
        if evaluation.auc is not None:
            figures["auc"] = float(evaluation.auc)
        if evaluation.confusion:
            figures["confusion"] = list(evaluation.confusion)
        correct = {rule: list(counts) for rule, counts in evaluation.correct.items()}
        metrics |= _name_fields(EVALUATION, figures) | _name_fields(CORRECT, correct)
    records = RecordDict({CONFIG: ConfigRecord(config)})
    if arrays:
        records[ARRAYS] = ArrayRecord(arrays)
    if metrics:
        records[METRICS] = MetricRecord(metrics)
    return records


def decode_report(records: RecordDict) -> tuple[Report, ArrayRecord | None]:
    """Server side of `encode_report`. The upload and the ensemble's probabilities are returned undecoded: if they are
    unusable they are dropped, but the report's metrics still count. Raises MessageError.
    """
    check_records(records, CONFIG, ARRAYS, METRICS)
    config = _read_config(records, OF_REPORT)
    metrics = _read_metrics(records, TRAINING, LOSS, EVALUATION, CORRECT)
    upload = dict(records.array_records.get(ARRAYS, {}))
    report = Report(
        **config,
        training=_decode_training(metrics) if metrics[TRAINING] or metrics[LOSS] else None,
        evaluation=_decode_evaluation(metrics) if metrics[EVALUATION] or metrics[CORRECT] else None,
        ensemble=upload.pop(f"{ENSEMBLE}.{PROBABILITIES}", None),
    )
    if any(name.partition(".")[0] == ENSEMBLE for name in upload):
        raise MessageError(f"`{ENSEMBLE}` holds arrays besides `{PROBABILITIES}`")
    return report, ArrayRecord(upload) if upload else None


def _decode_training(metrics: Mapping[str, Mapping[str, Any]]) -> TrainingFigures:
    check_fields(TRAINING, metrics[TRAINING], OF_TRAINING, {NORM: checks.NOT_NEGATIVE})
    check_named(LOSS, metrics[LOSS], checks.FINITE)
    if metrics[TRAINING]["rows"] < 1:
        raise MessageError("the training figures are of no row")
    figures = {NORM: None, **metrics[TRAINING]}
    return TrainingFigures(parts=dict(metrics[LOSS]), **figures)


def _decode_evaluation(metrics: Mapping[str, Mapping[str, Any]]) -> Evaluation:
    evaluation, correct = metrics[EVALUATION], metrics[CORRECT]
    required = {"rows": PAIR, "seconds": checks.NOT_NEGATIVE}
    check_fields(EVALUATION, evaluation, required, {"auc": checks.SHARE, "confusion": COUNTS})
    check_named(CORRECT, correct, PAIR)
    rows = tuple(evaluation["rows"])
    for rule, right in correct.items():
        if right[0] > rows[0] or right[1] > rows[1]:
            raise MessageError(f"the rule {rule!r} claims {right} right of {rows} rows")
    counts = {rule: tuple(right) for rule, right in correct.items()}
    figures = {**evaluation, "rows": rows, "confusion": tuple(evaluation.get("confusion", ()))}
    return Evaluation(correct=counts, **figures)


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
    """Server side of `encode_identity`. Raises MessageError for a missing or invalid field."""
    check_records(records, CONFIG)
    values = _read_config(records, OF_IDENTITY)
    labels, rows = values["classes"], values["rows"]
    if len(rows) not in (0, 3):
        raise MessageError(f"the identity's `rows` are {rows}, not 3 counts")
    if sorted(set(labels)) != labels or (labels and labels[-1] >= len(values["class_names"])):
        raise MessageError(
            f"the identity's `classes` {labels} are no ascending labels of its {len(values['class_names'])} class names"
        )
    # a client that withholds its numbers of samples may have any
    rows = rows or [MOST_ROWS]
    if max(rows) > MOST_ROWS or bool(rows[0]) != bool(labels) or len(labels) > rows[0]:
        raise MessageError(
            f"the identity has {rows} samples and holds {len(labels)} classes: each class needs a training row, and "
            f"none has more than {MOST_ROWS}"
        )
    read_layouts(values["layouts"])
    arguments: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return Identity(**arguments)


# --- records and their fields --------------------------------------------------------------------------


def _name_fields(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{part}.{name}": value for name, value in values.items()}


def _read_config(records: RecordDict, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    if CONFIG not in records:
        raise MessageError(f"the record `{CONFIG}` is missing")
    config = dict(records.config_records[CONFIG])
    check_fields(CONFIG, config, kinds)
    return config


def _read_metrics(records: RecordDict, *parts: str) -> dict[str, dict[str, Any]]:
    """Part -> its numbers by name."""
    metrics: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for key, value in records.metric_records.get(METRICS, {}).items():
        part, _, name = key.partition(".")
        if part not in metrics:
            raise MessageError(f"the message holds the metric {key!r}, which nobody agreed on")
        metrics[part][name] = value
    return metrics
