"""Values <-> Flower records: the only place that knows the wire's form, its checks and its bytes.

Every message holds at most these records, and a test fails on any other:

    instruction  ConfigRecord  run, round, evaluate, trained, payload kind down
    payload      ArrayRecord   labels, vectors, counts                     both ways
    report       ConfigRecord  partition, round, problem, names of parts   up
    training     MetricRecord  counts, figures, parts                      up
    evaluation   MetricRecord  rows, seconds, [test, validation] by rule   up
    identity     ConfigRecord  see payloads.Identity                       up, once
"""

import math
from dataclasses import fields
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from federation.checks import (
    LARGEST_FIGURE,
    MessageError,
    are_counts,
    check_keys,
    check_names,
    check_records,
    check_texts,
    config_values,
    plain,
)
from federation.checks import RECORDS as RECORDS
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
from federation.settings import is_run_name

FIGURES = ("gradient_ratio", "target_norm", "prototype_norm")
NPY = 10  # bytes of an .npy file before its header: magic, version, the header's length


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
    """NumPy allocates whatever a header declares: so hold it against the bytes that came first."""
    try:
        buffer = BytesIO(array.data)
        version = np.lib.format.read_magic(buffer)
        if version != (1, 0):
            raise ValueError(f"it is of .npy version {version}, (1, 0) was agreed")
        shape, _, dtype = np.lib.format.read_array_header_1_0(buffer)
        declared, came = math.prod(shape) * dtype.itemsize, len(array.data) - buffer.tell()
        if declared != came:
            raise ValueError(f"it declares {declared} bytes where {came} came")
        return array.numpy()
    except Exception as error:
        # NumPy raises a dozen kinds for bytes made to harm, syntax and recursion errors among them
        raise MessageError(f"array `{name}` cannot be read ({error})") from None


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
    if counts.dtype != np.int64 or counts.shape != (rows,):
        raise MessageError(f"the class counts are not {rows} int64 numbers")
    # so that no sum of counts can overflow and come out as another number
    if rows and (counts.min() < 1 or counts.max() > np.iinfo(np.int32).max):
        raise MessageError(f"a class count lies outside 1 to {np.iinfo(np.int32).max}")


# --- instructions -----------------------------------------------------------------------------------


def encode_instruction(instruction: Instruction) -> RecordDict:
    """Server to client."""
    payload = instruction.payload
    header = ConfigRecord(
        {
            "run": instruction.run,
            "round": instruction.round,
            "evaluate": instruction.evaluate,
            "trained": instruction.trained,
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
    check_records(records, "instruction", "payload")
    header = config_values(records, "instruction", run=str, round=int, evaluate=bool, trained=int, payload=str)
    kind, arrays = header["payload"], records.array_records.get("payload")
    if kind not in ("", *PAYLOADS) or bool(kind) != (arrays is not None):
        raise MessageError(f"the payload kind {kind!r} is unknown, or does not go with the arrays that came")
    payload = decode_payload(arrays, limits) if arrays is not None else None
    if not is_run_name(header["run"]):
        raise MessageError(f"the run name {header['run']!r} is no plain folder name")
    if header["round"] < 1:
        raise MessageError(f"the round {header['round']} is none; they count from 1")
    if not 0 <= header["trained"] < header["round"]:
        raise MessageError(f"round {header['round']} cannot come after training in round {header['trained']}")
    return Instruction(header["run"], header["round"], header["evaluate"], payload, header["trained"])


# --- reports ------------------------------------------------------------------------------------------


def encode_report(report: Report) -> RecordDict:
    """Client to server."""
    training = report.training
    header: dict[str, Any] = {
        "partition": report.partition,
        "round": report.round,
        "problem": plain(report.problem),
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
                # over a gradient that has vanished the ratio is infinite
                "figures": [min(getattr(training, name), LARGEST_FIGURE) for name in FIGURES] + [training.seconds],
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
    check_records(records, "report", "payload", "training", "evaluation")
    header = config_values(records, "report", partition=int, round=int, problem=str, seconds=float, parts=list)
    if not 0 <= header["seconds"] <= LARGEST_FIGURE:
        raise MessageError(f"`seconds` of record `report` is {header['seconds']}, no time that a client takes")
    check_texts("problem", [header["problem"]])
    check_names("parts", header["parts"])
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
    check_keys("training", record, {"counts", "figures", "parts"})
    rows, steps = _pair(record, "counts")
    figures, parts = (_numbers(record, name) for name in ("figures", "parts"))
    if rows < 1 or len(figures) != len(FIGURES) + 1 or len(parts) != len(names):
        raise MessageError("the training figures do not have the agreed length, or are of no row")
    if min(figures) < 0:
        raise MessageError(f"a norm, a ratio or a time of the training figures is negative: {figures}")
    ratio, target_norm, prototype_norm, seconds = map(float, figures)
    values = dict(zip(names, map(float, parts), strict=True))
    return TrainingFigures(rows, steps, values, ratio, target_norm, prototype_norm, seconds)


def _decode_evaluation(record: MetricRecord) -> Evaluation:
    rules = [name for name in record if name not in ("rows", "seconds")]
    check_names("rules", rules)
    rows, seconds = _pair(record, "rows"), record.get("seconds")
    correct = {rule: _pair(record, rule) for rule in rules}
    for rule, right in correct.items():
        if not (right[0] <= rows[0] and right[1] <= rows[1]):
            raise MessageError(f"rule `{rule}` claims {right} right of {rows} rows")
    if not isinstance(seconds, float) or not 0 <= seconds <= LARGEST_FIGURE:
        raise MessageError(f"`seconds` of record `evaluation` is {seconds}, no time that a client takes")
    return Evaluation(rows, correct, seconds)


def _pair(record: MetricRecord, name: str) -> tuple[int, int]:
    values = _numbers(record, name)
    if len(values) != 2 or not are_counts(values):
        raise MessageError(f"figure `{name}` is {values}, no pair of counts")
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
    values = {entry.name: _sendable(getattr(identity, entry.name)) for entry in fields(Identity)}
    return RecordDict({"identity": ConfigRecord(values)})


def _sendable(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_sendable(item) for item in value]
    return plain(value) if isinstance(value, str) else value


def decode_identity(records: RecordDict) -> Identity:
    """Server side of `encode_identity`.

    Raises:
        MessageError: when a field is missing, of another type, or no such thing as it should be.
    """
    check_records(records, "identity")
    lists = dict.fromkeys(("class_names", "classes", "rows", "discloses"), list)
    scalars = dict.fromkeys(("partition", "partitions", "parameters", "feature_dim"), int)
    values = config_values(records, "identity", **scalars, **lists, model=str, problem=str)
    for name in ("partitions", "parameters", "feature_dim"):
        if values[name] < 0:
            raise MessageError(f"the identity's `{name}` is {values[name]}, which is negative")
    if len(values["rows"]) != 3 or not are_counts(values["rows"]):
        raise MessageError(f"the identity's `rows` are {values['rows']}, no three counts")
    labels = values["classes"]
    if not are_counts(labels) or sorted(set(labels)) != labels or (labels and labels[-1] >= len(values["class_names"])):
        raise MessageError(
            f"the identity's `classes` {labels} are no ascending labels of its {len(values['class_names'])} class names"
        )
    for name in ("model", "problem", "class_names", "discloses"):
        check_texts(name, values[name] if isinstance(values[name], list) else [values[name]])
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
    """Bytes of prototype values alone, as they came: whatever the arrays declare, and whether or not they decode."""
    arrays = records.get("payload")
    if not isinstance(arrays, ArrayRecord):
        return 0
    return sum(_value_bytes(array.data) for name, array in arrays.items() if name not in ("labels", "counts"))


def _value_bytes(data: bytes) -> int:
    """What follows the header of an .npy file."""
    return max(0, len(data) - NPY - int.from_bytes(data[NPY - 2 : NPY], "little"))
