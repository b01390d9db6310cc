"""Values <-> Flower records: the only place that knows the wire's form, its checks and its bytes.

Every message holds at most these records, and a test fails on any other:

    instruction  ConfigRecord  run and its token, round, last, trained, made, payload kind,
                               constants, codec                                                down
    payload      ArrayRecord   <part>.<field>, see parts.py                                    both ways
    report       ConfigRecord  partition, round, problem, remark, names of parts, codec        up
    training     MetricRecord  counts, figures, parts                                          up, after training
    evaluation   MetricRecord  rows, seconds, [test, validation, all classes] by rule;
                               auc and confusion where the run measures them                   up, after an evaluation
    ensemble     ArrayRecord   probabilities, fingerprint                                      up, where it is measured
    identity     ConfigRecord  see payloads.Identity                                           up, once
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from protosphere.core.client_names import LONGEST_CLIENT_NAME
from protosphere.core.settings import is_run_name
from protosphere.core.text import LONGEST_NAME, one_line
from protosphere.wire.checks import (
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
from protosphere.wire.codec import Codec, Limits, decode_payload, encode_payload
from protosphere.wire.payloads import Evaluation, Identity, Instruction, Report, TrainingFigures
from protosphere.wire.specs import Spec
from protosphere.wire.weights import read_layouts

MOST_CLASSES = 2**16
MOST_ROWS = 2**31 - 1  # of a client: numbers of rows weigh in means
PLAIN_NAME = re.compile(r"[\w-]{1,40}")
NO_RULES = ("rows", "seconds", "auc", "confusion")  # what else a record `evaluation` holds
FIGURES = ("gradient_ratio", "target_norm", "seconds", "prototype_norm")  # the last where it was measured


# --- instructions -----------------------------------------------------------------------------------


def encode_instruction(instruction: Instruction, codec: Codec, specs: Sequence[Spec] = ()) -> RecordDict:
    """Server to client.

    Args:
        specs: of the parts that go down, see `encode_payload`.

    Raises:
        CodecError: a prototype that the number format cannot hold.
    """
    payload = instruction.payload
    header = ConfigRecord(
        {
            "run": instruction.run,
            "token": instruction.token,
            "round": instruction.round,
            "trained": instruction.trained,
            "made": instruction.made,
            "payload": "" if payload is None else ",".join(sorted(payload)),
            "constants": list(instruction.constants),
            "values": list(instruction.constants.values()),
            "last": instruction.last,
            "codec": codec.fingerprint,
        }
    )
    records = RecordDict({"instruction": header})
    if payload is not None:
        records["payload"] = encode_payload(payload, codec, specs)
    return records


def decode_instruction(
    records: RecordDict,
    limits: Limits,
    unit: Callable[[Mapping[str, float]], float] = lambda constants: 1.0,
    trains: bool = True,
) -> Instruction:
    """Client side of `encode_instruction`; a server is checked like anybody else.

    Args:
        unit: from the run's constants, what the norms of its payload are measured in.
        trains: whether the message asks for training; else for an evaluation.

    Raises:
        MessageError: when a record is missing, strange or malformed, or written with another codec.
    """
    check_records(records, "instruction", "payload")
    texts = dict.fromkeys(("run", "token", "payload", "codec"), str)
    lists = dict.fromkeys(("constants", "values"), list)
    header = config_values(records, "instruction", round=int, last=bool, trained=int, made=int, **texts, **lists)
    limits.codec.refuse_other(header["codec"])
    kind, arrays = header["payload"], records.array_records.get("payload")
    limits = limits.of_message(kind)
    if bool(kind) != (arrays is not None):
        raise MessageError(f"the payload kind {kind!r} does not go with the arrays that came")
    constants = _decode_constants(header["constants"], header["values"])
    scaled_limits = replace(limits, max_norm=limits.max_norm * unit(constants))
    payload = decode_payload(arrays, scaled_limits) if arrays is not None else None
    _check_run(header["run"], header["token"])
    if header["round"] < trains:
        raise MessageError(f"the round {header['round']} is none; they count from 1")
    # what a round's training left, and what was made of its uploads, its evaluation reads
    latest = header["round"] - trains
    if not 0 <= header["trained"] <= latest:
        raise MessageError(f"round {header['round']} cannot come after training in round {header['trained']}")
    if not 0 <= header["made"] <= latest:
        raise MessageError(f"round {header['round']} cannot bring what round {header['made']} has made")
    values = {name: header[name] for name in ("run", "round", "last", "trained", "made", "token")}
    return Instruction(payload=payload, constants=constants, **values)


def _check_run(run: str, token: str) -> None:
    """Refuse a run's name that is no folder's, and a token that is no text."""
    if not is_run_name(run):
        raise MessageError(f"the run name {run!r} is no plain folder name")
    check_texts("token", [token])


def _decode_constants(names: list[Any], values: list[Any]) -> dict[str, float]:
    check_names("constants", names)
    # a comparison with NaN is false
    if len(values) != len(names) or not all(type(v) is float and abs(v) <= LARGEST_FIGURE for v in values):
        raise MessageError(f"the constants {names} have the values {values}, not a finite number each")
    return dict(zip(names, values, strict=True))


# --- reports ------------------------------------------------------------------------------------------


def encode_report(report: Report, codec: Codec, specs: Sequence[Spec] = ()) -> RecordDict:
    """Client to server.

    Args:
        specs: of the parts that go up, see `encode_payload`.

    Raises:
        CodecError: a prototype that the number format cannot hold.
    """
    training = report.training
    header: dict[str, Any] = {
        "partition": report.partition,
        "round": report.round,
        "problem": plain(report.problem),
        "remark": plain(report.remark),
        "seconds": report.seconds,
        "parts": list(training.parts) if training else [],
        "codec": codec.fingerprint,
    }
    records = RecordDict({"report": ConfigRecord(header)})
    if report.payload is not None:
        records["payload"] = encode_payload(report.payload, codec, specs)
    if training is not None:
        records["training"] = MetricRecord(
            {
                "counts": [training.rows, training.steps],
                # over a gradient that has vanished the ratio is infinite
                "figures": [min(f, LARGEST_FIGURE) for name in FIGURES if (f := getattr(training, name)) is not None],
                "parts": list(training.parts.values()),
            }
        )
    if report.evaluation is not None:
        evaluation = report.evaluation
        metrics: dict[str, Any] = {rule: list(right) for rule, right in evaluation.correct.items()}
        metrics |= {"rows": list(evaluation.rows), "seconds": evaluation.seconds}
        if evaluation.auc is not None:
            metrics["auc"] = evaluation.auc
        if evaluation.confusion:
            metrics["confusion"] = list(evaluation.confusion)
        records["evaluation"] = MetricRecord(metrics)
    if report.ensemble is not None:
        records["ensemble"] = report.ensemble
    return records


def decode_report(records: RecordDict, codec: Codec) -> tuple[Report, ArrayRecord | None]:
    """Server side of `encode_report`. The payload comes back undecoded, and so do the ensemble's probabilities: what
    cannot be used of them is dropped, while the figures beside it still count.

    Raises:
        MessageError: when the reply as a whole cannot be used: malformed, or written with another codec.
    """
    check_records(records, "report", "payload", "training", "evaluation", "ensemble")
    texts = dict.fromkeys(("problem", "remark", "codec"), str)
    header = config_values(records, "report", partition=int, round=int, seconds=float, parts=list, **texts)
    codec.refuse_other(header["codec"])
    if not 0 <= header["seconds"] <= LARGEST_FIGURE:
        raise MessageError(f"`seconds` of record `report` is {header['seconds']}, no time that a client takes")
    for name in ("problem", "remark"):
        check_texts(name, [header[name]])
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
        records.array_records.get("ensemble"),
        header["remark"],
    )
    return report, records.array_records.get("payload")


def _decode_training(record: MetricRecord, names: list[str]) -> TrainingFigures:
    check_keys("training", record, {"counts", "figures", "parts"})
    rows, steps = _read_counts(record, "counts", 2)
    figures, parts = (_read_numbers(record, name) for name in ("figures", "parts"))
    if rows < 1 or len(figures) not in (len(FIGURES) - 1, len(FIGURES)) or len(parts) != len(names):
        raise MessageError("the training figures do not have the agreed length, or are of no row")
    if min(figures) < 0:
        raise MessageError(f"a norm, a ratio or a time of the training figures is negative: {figures}")
    ratio, target_norm, seconds, *norm = map(float, figures)
    values = dict(zip(names, map(float, parts), strict=True))
    return TrainingFigures(rows, steps, values, ratio, target_norm, norm[0] if norm else None, seconds)


def _decode_evaluation(record: MetricRecord) -> Evaluation:
    rules = [name for name in record if name not in NO_RULES]
    check_names("rules", rules)
    rows, seconds = _read_counts(record, "rows", 2, 3), record.get("seconds")
    correct = {rule: _read_counts(record, rule, len(rows)) for rule in rules}
    for rule, right in correct.items():
        if any(some > all_rows for some, all_rows in zip(right, rows, strict=True)):
            raise MessageError(f"rule {_quote_name(rule)} claims {right} right of {rows} rows")
    if not isinstance(seconds, float) or not 0 <= seconds <= LARGEST_FIGURE:
        raise MessageError(f"`seconds` of record `evaluation` is {seconds}, no time that a client takes")
    auc = record.get("auc")
    # a comparison with NaN is false
    if auc is not None and not (isinstance(auc, float) and 0 <= auc <= 1):
        raise MessageError(f"the area under the ROC curve is {auc!r}, and not between 0 and 1")
    confusion = record.get("confusion", [])
    if not isinstance(confusion, list) or not are_counts(confusion):
        raise MessageError("the confusion holds something that is no count")
    return Evaluation(rows, correct, seconds, auc, tuple(map(int, confusion)))


def _read_counts(record: MetricRecord, name: str, *lengths: int) -> tuple[int, ...]:
    values = _read_numbers(record, name)
    if len(values) not in lengths or not are_counts(values):
        raise MessageError(f"figure {_quote_name(name)} is {values}, not {' or '.join(map(str, lengths))} counts")
    return tuple(map(int, values))


def _read_numbers(record: MetricRecord, name: str) -> list[int] | list[float]:
    values = record.get(name)
    # a comparison with NaN is false
    if not isinstance(values, list) or not all(abs(value) <= LARGEST_FIGURE for value in values):
        raise MessageError(f"figure {_quote_name(name)} is missing, not finite or absurdly large")
    return values


def _quote_name(name: str) -> str:
    """The name of a rule or figure. A client may choose it: only what looks like a name stands as one."""
    return f"`{name}`" if PLAIN_NAME.fullmatch(name) else repr(one_line(name, LONGEST_NAME))


# --- identity ------------------------------------------------------------------------------------------

OPTIONAL = ("name", "flower")  # texts that not every client sends


def encode_identity(identity: Identity) -> RecordDict:
    """Client to server, once, in answer to the query."""
    values = {entry.name: _make_sendable(getattr(identity, entry.name)) for entry in fields(Identity)}
    # so that the messages of clients without them are what they were
    for name in OPTIONAL:
        if not values[name]:
            del values[name]
    return RecordDict({"identity": ConfigRecord(values)})


def _make_sendable(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_make_sendable(item) for item in value]
    return plain(value) if isinstance(value, str) else value


def decode_identity(records: RecordDict) -> Identity:
    """Server side of `encode_identity`.

    Raises:
        MessageError: when a field is missing, of another type, or no such thing as it should be.
    """
    check_records(records, "identity")
    lists = dict.fromkeys(("class_names", "classes", "class_counts", "rows", "discloses", "layouts"), list)
    scalars = dict.fromkeys(("partition", "partitions", "parameters", "feature_dim"), int)
    texts = dict.fromkeys(("model", "domain", "problem", "codec", "method", "companion"), str)
    texts |= {name: str for name in OPTIONAL if name in records.config_records.get("identity", {})}
    values = config_values(records, "identity", **scalars, **lists, **texts)
    if len(values["class_names"]) > MOST_CLASSES:
        raise MessageError(
            f"the identity has {len(values['class_names'])} class names, at most {MOST_CLASSES} are taken"
        )
    for name in ("partitions", "parameters", "feature_dim"):
        if values[name] < 0:
            raise MessageError(f"the identity's `{name}` is {values[name]}, which is negative")
    if len(values["rows"]) not in (0, 3, 4) or not are_counts(values["rows"]):
        raise MessageError(f"the identity's `rows` are {values['rows']}, not 3 or 4 counts")
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
    if len(rows) == 4 and rows[3] < rows[2]:
        raise MessageError(f"the identity has {rows} rows, fewer test rows of all classes than of its own")
    for name in (*texts, "class_names", "discloses"):
        check_texts(name, values[name] if isinstance(values[name], list) else [values[name]])
    if len(values.get("name", "")) > LONGEST_CLIENT_NAME:
        raise MessageError(f"the identity's `name` is longer than {LONGEST_CLIENT_NAME} characters")
    read_layouts(values["layouts"])
    arguments: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return Identity(**arguments)
