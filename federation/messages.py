"""Values <-> Flower records: the only place that knows the wire's form, its checks and its bytes.

Every message holds at most these records, and a test fails on any other:

    instruction  ConfigRecord  run, round, evaluate, payload kind          down
    payload      ArrayRecord   labels, vectors, counts                     both ways
    report       ConfigRecord  partition, round, problem, names of parts   up
    training     MetricRecord  counts, figures, parts                      up
    evaluation   MetricRecord  rows, and [test, validation] by rule        up
    identity     ConfigRecord  see payloads.Identity                       up, once
"""

import math
from dataclasses import astuple, fields
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from federation.payloads import (
    PAYLOADS,
    Evaluation,
    Identity,
    Instruction,
    Limits,
    Payload,
    Report,
    TrainingFigures,
    from_tensors,
    kind_of,
    to_tensors,
)

RECORDS = ("instruction", "payload", "report", "training", "evaluation", "identity")
FIGURES = ("gradient_ratio", "target_norm", "prototype_norm")
LARGEST_FIGURE = 1e100  # beyond it a mean over clients could overflow


class MessageError(ValueError):
    """A message that must not be used; the text is the reason, in one sentence."""


# --- payloads -------------------------------------------------------------------------------------


def encode_payload(payload: Payload) -> ArrayRecord:
    """A payload as one ArrayRecord: an array a field, never an array a class (440 bytes each)."""
    arrays = {}
    for name, tensor in to_tensors(payload).items():
        values = tensor.detach().cpu().numpy()
        if name == "labels":
            values = values.astype(_label_dtype(values))
        arrays[name] = Array(np.ascontiguousarray(values))
    return ArrayRecord(arrays)


def _label_dtype(labels: np.ndarray) -> type[np.signedinteger]:
    return np.int32 if labels.size and labels.max() > np.iinfo(np.int16).max else np.int16


def decode_payload(record: ArrayRecord, limits: Limits) -> Payload:
    """Check a received payload and give it as tensors on the CPU.

    Raises:
        MessageError: names what is wrong: fields, dtype, rank, size, label, a value that is not finite, a norm.
    """
    expected = {"labels", "vectors"} | ({"counts"} if limits.counts else set())
    if set(record) != expected:
        raise MessageError(f"the payload holds the arrays {sorted(record)} where {sorted(expected)} belong")
    arrays = {name: _read(name, record[name]) for name in sorted(expected)}
    labels, vectors = arrays["labels"], arrays["vectors"]
    _check_vectors(vectors, limits)
    _check_labels(labels, len(vectors), limits)
    tensors = {"labels": torch.from_numpy(labels.astype(np.int64)), "vectors": torch.from_numpy(vectors)}
    if limits.counts:
        _check_counts(arrays["counts"], len(vectors))
        tensors["counts"] = torch.from_numpy(arrays["counts"])
    return from_tensors(tensors)


def _read(name: str, array: Array) -> np.ndarray:
    try:
        values = array.numpy()
    except Exception as error:
        # NumPy raises a dozen kinds for bytes made to harm, memory errors for a forged size among them
        raise MessageError(f"array `{name}` cannot be read ({error})") from None
    if not isinstance(values, np.ndarray):
        raise MessageError(f"array `{name}` is no array but a {type(values).__name__}")
    return values


def _check_vectors(vectors: np.ndarray, limits: Limits) -> None:
    if vectors.dtype != np.float32:
        raise MessageError(f"the vectors are {vectors.dtype}, float32 was agreed")
    if vectors.ndim != 2 or vectors.shape[1] != limits.dim or len(vectors) > limits.num_classes:
        raise MessageError(
            f"the vectors have shape {vectors.shape}, at most {limits.num_classes} rows of "
            f"{limits.dim} values were agreed"
        )
    if not np.isfinite(vectors).all():
        raise MessageError("a vector holds NaN or infinity")
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    if norms.size and norms.max() > limits.max_norm:
        raise MessageError(f"a vector has norm {norms.max():.3g}, above `max-prototype-norm` {limits.max_norm:.3g}")


def _check_labels(labels: np.ndarray, rows: int, limits: Limits) -> None:
    if labels.dtype not in (np.int16, np.int32) or labels.shape != (rows,):
        raise MessageError(f"the labels are {labels.dtype} of shape {labels.shape}, {rows} integers were due")
    if rows and (labels.min() < 0 or labels.max() >= limits.num_classes):
        raise MessageError(f"a label lies outside 0 to {limits.num_classes - 1}")
    if (np.diff(labels) <= 0).any():
        raise MessageError("the labels are not unique and ascending")


def _check_counts(counts: np.ndarray, rows: int) -> None:
    if counts.dtype != np.int64 or counts.shape != (rows,) or (rows and counts.min() < 1):
        raise MessageError(f"the class counts are not {rows} positive int64 numbers")


# --- instructions -----------------------------------------------------------------------------------


def encode_instruction(instruction: Instruction) -> RecordDict:
    """Server to client."""
    payload = instruction.payload
    header = ConfigRecord(
        {
            "run": instruction.run,
            "round": instruction.round,
            "evaluate": instruction.evaluate,
            "payload": "" if payload is None else kind_of(payload),
        }
    )
    records = RecordDict({"instruction": header})
    if payload is not None:
        records["payload"] = encode_payload(payload)
    return records


def decode_instruction(records: RecordDict, limits: Limits) -> Instruction:
    """Client side of `encode_instruction`; a server is checked like anybody else.

    Raises:
        MessageError: when a record is missing, strange or malformed.
    """
    _only(records, "instruction", "payload")
    header = _config(records, "instruction", run=str, round=int, evaluate=bool, payload=str)
    payload = None
    if header["payload"]:
        if header["payload"] not in PAYLOADS or "payload" not in records.array_records:
            raise MessageError(f"the payload kind {header['payload']!r} is unknown or its arrays are missing")
        payload = decode_payload(records.array_records["payload"], limits)
    run = header["run"]
    if not run or run != run.strip(".") or not run.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise MessageError(f"the run name {run!r} is no plain folder name")
    return Instruction(run, header["round"], header["evaluate"], payload)


# --- reports ------------------------------------------------------------------------------------------


def encode_report(report: Report) -> RecordDict:
    """Client to server."""
    training = report.training
    header: dict[str, Any] = {
        "partition": report.partition,
        "round": report.round,
        "problem": report.problem,
        "seconds": report.seconds,
        "parts": list(training.parts) if training else [],
    }
    records = RecordDict({"report": ConfigRecord(header)})
    if report.payload is not None:
        records["payload"] = encode_payload(report.payload)
    if training is not None:
        records["training"] = MetricRecord(
            {
                "counts": [training.rows, training.steps],
                "figures": [getattr(training, name) for name in FIGURES] + [training.seconds],
                "parts": list(training.parts.values()),
            }
        )
    if report.evaluation is not None:
        evaluation = report.evaluation
        metrics: dict[str, Any] = {rule: list(right) for rule, right in evaluation.correct.items()}
        metrics |= {"rows": list(evaluation.rows), "seconds": evaluation.seconds}
        records["evaluation"] = MetricRecord(metrics)
    return records


def decode_report(records: RecordDict) -> tuple[Report, ArrayRecord | None]:
    """Server side of `encode_report`. The payload comes back undecoded: a bad upload is dropped, while the
    evaluation beside it still counts.

    Raises:
        MessageError: when the reply as a whole cannot be used.
    """
    _only(records, "report", "payload", "training", "evaluation")
    header = _config(records, "report", partition=int, round=int, problem=str, seconds=float, parts=list)
    if not math.isfinite(header["seconds"]) or not all(isinstance(name, str) for name in header["parts"]):
        raise MessageError("`seconds` of record `report` is not finite, or its `parts` are no names")
    training = evaluation = None
    if "training" in records.metric_records:
        training = _decode_training(records.metric_records["training"], header["parts"])
    if "evaluation" in records.metric_records:
        evaluation = _decode_evaluation(records.metric_records["evaluation"])
    report = Report(
        header["partition"],
        header["round"],
        None,
        training,
        evaluation,
        header["problem"],
        header["seconds"],
    )
    return report, records.array_records.get("payload")


def _decode_training(record: MetricRecord, names: list[str]) -> TrainingFigures:
    rows, steps = _pair(record, "counts")
    figures, parts = (_numbers(record, name) for name in ("figures", "parts"))
    if rows < 1 or len(figures) != len(FIGURES) + 1 or len(parts) != len(names):
        raise MessageError("the training figures do not have the agreed length, or are of no row")
    ratio, target_norm, prototype_norm, seconds = map(float, figures)
    values = dict(zip(names, map(float, parts), strict=True))
    return TrainingFigures(rows, steps, values, ratio, target_norm, prototype_norm, seconds)


def _decode_evaluation(record: MetricRecord) -> Evaluation:
    rows = _pair(record, "rows")
    correct = {rule: _pair(record, rule) for rule in record if rule not in ("rows", "seconds")}
    for rule, right in correct.items():
        if not (0 <= right[0] <= rows[0] and 0 <= right[1] <= rows[1]):
            raise MessageError(f"rule `{rule}` claims {right} right of {rows} rows")
    seconds = record.get("seconds")
    return Evaluation(rows, correct, seconds if isinstance(seconds, float) and math.isfinite(seconds) else 0.0)


def _pair(record: MetricRecord, name: str) -> tuple[int, int]:
    values = _numbers(record, name)
    if len(values) != 2 or not all(isinstance(value, int) and value >= 0 for value in values):
        raise MessageError(f"figure `{name}` is no pair of counts")
    return int(values[0]), int(values[1])


def _numbers(record: MetricRecord, name: str) -> list[int] | list[float]:
    values = record.get(name)
    # a comparison with NaN is false
    if not isinstance(values, list) or not all(abs(value) <= LARGEST_FIGURE for value in values):
        raise MessageError(f"figure `{name}` is missing, not finite or absurdly large")
    return values


# --- identity ------------------------------------------------------------------------------------------


def encode_identity(identity: Identity) -> RecordDict:
    """Client to server, once, in answer to the query."""
    values = (list(value) if isinstance(value, tuple) else value for value in astuple(identity))
    names = (entry.name for entry in fields(Identity))
    return RecordDict({"identity": ConfigRecord(dict(zip(names, values, strict=True)))})


def decode_identity(records: RecordDict) -> Identity:
    """Server side of `encode_identity`.

    Raises:
        MessageError: when a field is missing or of another type.
    """
    _only(records, "identity")
    lists = dict.fromkeys(("class_names", "classes", "rows", "discloses"), list)
    scalars = dict.fromkeys(("partition", "partitions", "parameters", "feature_dim"), int)
    values = _config(records, "identity", **scalars, **lists, model=str, problem=str)
    rows = values["rows"]
    if len(rows) != 3 or not all(isinstance(count, int) and count >= 0 for count in rows):
        raise MessageError("the identity's `rows` are no three counts")
    if not all(isinstance(label, int) for label in values["classes"]):
        raise MessageError("the identity's `classes` are no labels")
    whole: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return Identity(**whole)


# --- shared ----------------------------------------------------------------------------------------------


def wire_bytes(records: RecordDict, without: tuple[str, ...] = ()) -> int:
    """Size of the serialised records, the metadata of the message apart.

    Flower sends a record as a tree of objects, each serialised by itself; their sizes add up.
    """
    if without:
        records = RecordDict({name: record for name, record in records.items() if name not in without})
    return _object_bytes(records)


def _object_bytes(item: Any) -> int:
    children = item.children or {}
    return len(item.deflate()) + sum(map(_object_bytes, children.values()))


def payload_bytes(records: RecordDict) -> int:
    """Bytes of prototype values alone, whether or not they decode: as declared, but never more than arrived."""
    if "payload" not in records.array_records:
        return 0
    arrays = records.array_records["payload"]
    return sum(_value_bytes(array) for name, array in arrays.items() if name not in ("labels", "counts"))


def _value_bytes(array: Array) -> int:
    try:
        declared = math.prod(array.shape) * np.dtype(array.dtype).itemsize
    except (TypeError, ValueError, SyntaxError):
        declared = len(array.data)
    return min(max(declared, 0), len(array.data))


def _only(records: RecordDict, *names: str) -> None:
    strange = set(records) - set(names)
    if strange:
        raise MessageError(f"the message holds the records {sorted(strange)}, which nobody agreed on")


def _config(records: RecordDict, record: str, **types: type) -> dict[str, Any]:
    found = records.config_records.get(record)
    if found is None:
        raise MessageError(f"the record `{record}` is missing")
    if set(found) != set(types):
        raise MessageError(f"record `{record}` holds {sorted(found)} where {sorted(types)} belong")
    for name, kind in types.items():
        if type(found[name]) is not kind:
            raise MessageError(f"`{name}` of record `{record}` is no {kind.__name__}")
    return dict(found)
