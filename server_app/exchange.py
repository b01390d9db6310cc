"""The messages of a round: push all of them, pull replies until the round may close, and check each reply."""

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from protosphere.core.client_names import client_word
from protosphere.core.errors import RunError
from protosphere.core.flower import WORKER_DIED, in_turn, is_simulated, pulled
from protosphere.core.home import OTHER_HOME, remedy
from protosphere.core.text import class_word, one_line, quoted
from protosphere.record.confusion import Triples, confusion_triples
from protosphere.record.replies import Bytes, Reply
from protosphere.server_app.ensemble import decode_answers
from protosphere.strategies.user_method import FAILED
from protosphere.wire.arrays import Limits, decode, value_bytes
from protosphere.wire.checks import ARRAYS
from protosphere.wire.layouts import read_layouts
from protosphere.wire.messages import ENSEMBLE, MessageError, count_bytes, decode_report
from protosphere.wire.parts import Part
from protosphere.wire.payloads import Evaluation, Identity, Payload, Report, class_vectors

POLL = (0.02, 0.5)  # seconds between two pulls: they grow from the first to the second
LATE = "no reply in time"
UNSENT = "Flower accepted no message for its node: the SuperNode has left"
LONGEST_PROBLEM = 400  # characters
LONGEST_WORDS = 350  # of which may be a client's own text
LONGEST_REFUSAL = 1000  # for errors of our own workers, which contain paths
MEND = "Mend the method, and start a new run."


@dataclass(frozen=True)
class ReplyContext:
    """What the replies of a round are checked against.

    Attributes:
        parts: the parts that an upload must have; empty if no upload is expected.
        num_classes, dim: K and d.
        max_norm: the largest norm allowed in an upload.
        trains: whether the messages ask for training; otherwise they ask for an evaluation.
        identities: partition -> the client's identity; empty if nothing is known about the clients.
        summed_samples: partition -> the number of samples that a vector of its upload may sum up; 1 by default.
        rules: the inference rules that clients may report; None if every name is allowed.
        contradiction: the method's own check: why a client's upload is impossible, "" if it is plausible.
        parts_of_newcomers: partition -> the parts expected from a client that joined later, if they differ.
        confusion_rule: the inference rule of the confusion matrix that clients may send; "" if none is requested.
        measures_auc: whether clients may send the area under their ROC curve.
        shared_labels: the true labels of the shared test set; None if the ensemble is not measured.
        withholds_figures: whether clients keep their metrics to themselves, as under `privacy`.
    """

    round_number: int
    parts: tuple[Part, ...]
    num_classes: int
    dim: int
    max_norm: float
    trains: bool = True
    identities: Mapping[int, Identity] = field(default_factory=dict)
    summed_samples: Mapping[int, float] = field(default_factory=dict)
    rules: Collection[str] | None = None
    contradiction: Callable[[int, Payload], str] = lambda partition, payload: ""
    parts_of_newcomers: Mapping[int, tuple[Part, ...]] = field(default_factory=dict)
    confusion_rule: str = ""
    measures_auc: bool = False
    shared_labels: Tensor | None = None
    withholds_figures: bool = False


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    partitions: Sequence[int],
    context: ReplyContext,
    *,
    min_replies: int,
    timeout: float,
) -> list[Reply]:
    """Send one message per client and collect the replies, in partition order.

    It returns after `min_replies` valid replies (0: after all replies) or after `timeout` seconds. A simulation waits
    for all replies: they arrive in partition order, so that `min_replies` would always exclude the highest partitions.
    If clients answer in turn (`protosphere.core.flower.in_turn`), there is no timeout. Each reply is checked on
    arrival.

    Raises:
        RunError: a simulation worker died or has another home than the run, or Flower refused the messages.
    """
    simulated = is_simulated(grid)
    if simulated:
        min_replies = 0
    if in_turn(grid):
        timeout = math.inf
    ids: list[str | None] = list(grid.push_messages(messages))
    if len(ids) != len(messages):
        raise RunError(
            f"Flower took {len(ids)} of the {len(messages)} messages of round {context.round_number}; its log above "
            "has the error. Resume the run, or start a new one."
        )
    pending: dict[str, int] = {}
    replies: list[Reply] = []
    for message_id, partition in zip(ids, partitions, strict=True):
        if message_id:
            pending[message_id] = partition
        else:
            replies.append(Reply(partition, context.trains, problem=UNSENT))

    valid = 0
    start, pause = time.monotonic(), POLL[0]
    while pending:
        new_replies = []
        for message_id, message in pulled(grid, pending):
            if message_id in pending:
                new_replies.append(checked_reply(message, pending.pop(message_id), context, simulated=simulated))
        replies += new_replies
        valid += sum(reply.valid for reply in new_replies)
        if 0 < min_replies <= valid or time.monotonic() - start > timeout:
            break
        if new_replies:
            pause = POLL[0]
        elif pending:
            time.sleep(pause)
            pause = min(1.5 * pause, POLL[1])
    replies += [Reply(partition, context.trains, problem=LATE) for partition in pending.values()]
    return sorted(replies, key=lambda reply: reply.partition)


def collected(replies: Iterable[Message], nodes: Mapping[int, int], context: ReplyContext) -> list[Reply]:
    """Check replies that another program has collected; they are returned in partition order.

    Errors that Flower itself sends in place of a client name no node of the roster and are left out.

    Args:
        nodes: partition -> node id.
    """
    of_node = {node: partition for partition, node in nodes.items()}
    known_messages = [message for message in replies if message.metadata.src_node_id in of_node]
    checked = [checked_reply(message, of_node[message.metadata.src_node_id], context) for message in known_messages]
    return sorted(checked, key=lambda reply: reply.partition)


def size_of(records: RecordDict) -> Bytes:
    """The size of a message in either direction."""
    arrays = records.get(ARRAYS)
    payload = value_bytes(arrays, without=(ENSEMBLE,)) if isinstance(arrays, ArrayRecord) else 0
    return Bytes(payload, count_bytes(records))


def checked_reply(message: Message | str, partition: int, context: ReplyContext, *, simulated: bool = False) -> Reply:
    """A reply as a value. If a client's bytes cannot be read, only that client has failed.

    Raises:
        RunError: a simulation worker died, has another PROTOSPHERE_HOME than the run, or reports that its method
            failed.
    """
    if isinstance(message, str):
        return Reply(partition, context.trains, problem=message)
    if simulated and message.has_error():
        _refuse_worker_error(message, partition, context.round_number)
    try:
        reply = _decode_reply(message, partition, context)
        # these texts quote what a client sent
        problem, refused = one_line(reply.problem, LONGEST_PROBLEM), one_line(reply.refused, LONGEST_PROBLEM)
        return replace(reply, problem=problem, refused=refused)
    # Flower reads some parts of a record only on access
    except Exception as error:
        return Reply(partition, context.trains, problem=f"its reply cannot be used ({type(error).__name__})")


def _refuse_worker_error(message: Message, partition: int, round_number: int) -> None:
    """End a simulation after an error of a worker that cannot be mended while the run goes on."""
    code = message.error.code
    if code == WORKER_DIED:
        # before the untrained models are evaluated, there is no checkpoint
        verb = "Resume" if round_number > 0 else "Start"
        raise RunError(
            f"the process of {client_word(partition)} died in round {round_number} (out of memory?); the simulation "
            f"cannot replace it. {verb} the run with fewer clients at a time (`--on workers:N`, or over Flower "
            "`--cpus-per-client`), or, if a node of a Ray cluster has failed, on the remaining ones."
        )
    sentence = f"{client_word(partition)} says: {_quote(partition, message.error.reason or '', LONGEST_REFUSAL)}"
    if code == OTHER_HOME:
        raise RunError(f"round {round_number}: {remedy(sentence)}")
    if code == FAILED:
        raise RunError(f"round {round_number}: {sentence}. {MEND}")


def _decode_reply(message: Message, partition: int, context: ReplyContext) -> Reply:
    trains = context.trains
    if message.has_error():
        # Flower's own errors arrive in the same way and cannot be told from a client's invention
        problem = f"an error came back: {_quote(partition, _find_error_line(message.error.reason or ''))}"
        return Reply(partition, trains, problem=problem)
    records = message.content
    size = size_of(records)
    try:
        report, upload = decode_report(records)
        if report.partition != partition:
            raise MessageError(
                f"its node answers as partition {report.partition}, and a node stands for one partition of a run; "
                f"start its SuperNode as partition {partition} again"
            )
        if report.round != context.round_number:
            raise MessageError(f"its reply is one of round {report.round}")
    except MessageError as error:
        return Reply(partition, trains, problem=str(error), dropped=trains and ARRAYS in records, size=size)
    problem = f"it says: {_quote(partition, report.problem)}" if report.problem else ""
    reply = Reply(partition, trains, report, problem, size=size)
    try:
        report = replace(report, payload=_decode_upload(report, upload, context))
    except MessageError as error:
        reply = replace(reply, problem=f"upload dropped: {error}", dropped=True)
    return _check_reply(reply, report, context)


def _decode_upload(report: Report, upload: ArrayRecord | None, context: ReplyContext) -> Payload | None:
    parts = context.parts_of_newcomers.get(report.partition, context.parts)
    if not context.trains or report.problem or not parts:
        if upload is not None:
            due = context.trains and not report.problem
            raise MessageError("no upload was due in this round" if due else "nothing was to be uploaded here")
        return None
    if upload is None:
        raise MessageError("the upload is missing")
    identity = context.identities.get(report.partition)
    layouts = read_layouts(identity.layouts) if identity is not None else {}
    limits = Limits(context.max_norm * context.summed_samples.get(report.partition, 1.0), layouts)
    return decode(upload, parts, context.num_classes, context.dim, limits)


# --- what a reply may hold --------------------------------------------------------------------------------------


def _check_reply(reply: Reply, report: Report, context: ReplyContext) -> Reply:
    """Drop from a reply what the message did not ask for, and what cannot be true; the rest counts."""
    reasons = []
    if context.withholds_figures:
        # they would become the run's metrics, and no sample counts exist to check them against
        if report.evaluation or report.training:
            reasons.append("figures dropped: under `privacy` a client keeps them")
        report = replace(report, evaluation=None, training=None)
    elif context.trains and report.evaluation:
        reasons.append("evaluation dropped: nobody asked")
        report = replace(report, evaluation=None)
    elif not context.trains and report.training:
        reasons.append("training figures dropped: nobody asked")
        report = replace(report, training=None)

    if claim := _find_false_claim(report, context):
        # a forged count would weigh in every mean, so nothing of the reply counts
        reply = replace(
            reply, problem=f"reply dropped: it claims {claim}", dropped=reply.dropped or report.payload is not None
        )
        report = replace(report, evaluation=None, training=None, payload=None, ensemble=None)
    elif reason := _find_wrong_upload(report, context):
        reply = replace(reply, problem=f"upload dropped: {reason}", dropped=True)
        report = replace(report, payload=None)

    confusion: Triples = []
    ensemble: Tensor | None = None
    evaluation = report.evaluation
    if evaluation is not None:
        # an unknown rule would appear in every table
        unknown_rules: list[str] = []
        if context.rules is not None:
            unknown_rules = sorted(set(evaluation.correct).difference(context.rules))
        if unknown_rules:
            rule = unknown_rules[0]
            reasons.append(
                f"evaluation dropped: it has the rule {rule!r}, which the method does not name in its `rules`"
            )
            evaluation = None
    if evaluation is not None and evaluation.auc is not None and not context.measures_auc:
        reasons.append("area under the ROC curve dropped: nobody asked for one")
        evaluation = replace(evaluation, auc=None)
    if evaluation is not None and evaluation.confusion:
        try:
            confusion = _decode_confusion(evaluation, context, context.identities.get(reply.partition))
        except MessageError as error:
            reasons.append(f"confusion dropped: {error}")
        evaluation = replace(evaluation, confusion=())
    if report.ensemble is not None:
        try:
            if context.shared_labels is None:
                raise MessageError("nobody asked for one")
            ensemble = decode_answers(report.ensemble, len(context.shared_labels), context.num_classes)
        except MessageError as error:
            reasons.append(f"ensemble answer dropped: {error}")
    report = replace(report, evaluation=evaluation, ensemble=None)
    return replace(reply, report=report, ensemble=ensemble, confusion=confusion, refused="; ".join(reasons))


def _find_false_claim(report: Report, context: ReplyContext) -> str:
    """What a report claims about a client's samples that contradicts its identity; "" if nothing does."""
    identity = context.identities.get(report.partition)
    if identity is None or identity.withheld:
        return ""
    train, validation, test = identity.rows
    evaluation, training = report.evaluation, report.training
    if evaluation is not None and evaluation.rows != (test, validation):
        return f"{evaluation.rows} test and validation samples, not {(test, validation)}"
    if training is not None and training.rows != train:
        return f"{training.rows} training samples, not {train}"
    vectors = class_vectors(report.payload)
    if vectors is None or vectors.counts is None:
        return ""
    counted = vectors.count_samples()
    if counted > train or (counted < train and not _leaves_classes_out(report.partition, context)):
        return f"class counts that do not add up to its {train} training samples"
    return ""


def _find_wrong_upload(report: Report, context: ReplyContext) -> str:
    """Why an upload contradicts the client's identity, or is impossible for the method; "" if it may be used."""
    if report.payload is None:
        return ""
    identity, vectors = context.identities.get(report.partition), class_vectors(report.payload)
    if identity is not None and not identity.withheld and vectors is not None:
        if not len(vectors) and not _leaves_classes_out(report.partition, context):
            return f"it holds no class, though the client has {identity.rows[0]} training samples"
        if foreign_labels := set(vectors.labels.tolist()) - set(identity.classes):
            class_name = class_word(min(foreign_labels), identity.class_names)
            return f"it holds {class_name}, of which the client has no training sample"
    return context.contradiction(report.partition, report.payload)


def _leaves_classes_out(partition: int, context: ReplyContext) -> bool:
    """Whether classes with few samples are withheld."""
    return any(part.fewest > 1 for part in context.parts_of_newcomers.get(partition, context.parts))


def _decode_confusion(evaluation: Evaluation, context: ReplyContext, identity: Identity | None) -> Triples:
    """The confusion matrix as triples, which are smaller than the full counts."""
    rule = context.confusion_rule
    if not rule or identity is None:
        raise MessageError("nobody asked for one")
    if rule not in evaluation.correct:
        raise MessageError(f"its evaluation has no rule {rule!r}")
    right = evaluation.correct[rule][0]
    return confusion_triples(evaluation.confusion, len(identity.class_names), evaluation.rows[0], right)


def _find_error_line(reason: str) -> str:
    """The error itself, without colour codes and Flower's own text: the last line of a traceback (simulation) or the
    whole reason (deployment)."""
    plain_text = re.sub(r"\x1b\[[0-9;]*m", "", reason).strip()
    last_line = plain_text.splitlines()[-1] if plain_text else "unknown error"
    return last_line.partition("ClientAppException occurred. Message: ")[2].removesuffix("'>") or last_line


def _quote(partition: int, text: str, most: int = LONGEST_WORDS) -> str:
    """A client's text for one line of the log, without the client's own name at its beginning."""
    return quoted(one_line(text).removeprefix(f"client {partition}: ") or "unknown error", most)
