"""One round's messages: push them all, pull the replies until the round may close, check each."""

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from protosphere.core.home import OTHER_HOME, remedy
from protosphere.core.text import class_word, one_line, quoted
from protosphere.data.shared_test_set import SharedLabels
from protosphere.prototypes.weights import Length
from protosphere.record.confusion import Confusions
from protosphere.record.round import Bytes, Reply, RunError
from protosphere.strategies.contract import Outcome, ServerHalf, State
from protosphere.strategies.user_method import FAILED, checked_outcome
from protosphere.wire.checks import CodecError
from protosphere.wire.codec import Codec
from protosphere.wire.confusion import decode_counts
from protosphere.wire.messages import MessageError, decode_report, encode_instruction
from protosphere.wire.parts import Limits, decode_answers, decode_payload, payload_bytes
from protosphere.wire.payloads import SENT, ClassVectors, Identity, Instruction, Payload, class_vectors
from protosphere.wire.replies import in_turn, is_simulated, pulled
from protosphere.wire.sizes import measured, together
from protosphere.wire.specs import Spec
from protosphere.wire.weights import read_layouts

POLL = (0.02, 0.5)  # seconds between two pulls: from the first, growing, to the second
APART = ("ensemble", "confusion")  # records that are counted by themselves
LATE = "no reply in time"
UNSENT = "Flower took no message for its node: the SuperNode has left"
LONGEST_PROBLEM = 400  # characters
LONGEST_WORDS = 350  # of these a client's own
LONGEST_REFUSAL = 1000  # of these the words are our own worker's, and hold paths
MEND = "Mend the method, and start a new run."
Keep = Callable[[int, Payload], Mapping[tuple[str, str], Length]]
ACTOR_DIED = 0  # Flower's code when a simulation worker is gone; elsewhere any client may send it


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    partitions: Sequence[int],
    *,
    round_number: int,
    min_replies: int,
    timeout: float,
    patience: float,
    not_waited_for: Iterable[int] = (),
    **checks: Any,
) -> list[Reply]:
    """Send one message a client and collect the replies, in partition order.

    The round closes when `min_replies` valid train replies are there (0: when every train reply is), or after
    `timeout` seconds. Evaluate-only replies never decide that; when training has closed they get as long as
    training took, and `patience` seconds at least, counted anew from each arrival: so the figures do not depend
    on the number of workers, and a dead client costs one such wait (`not_waited_for` names those known dead). Where
    nobody trains they get `timeout`. A train reply that comes while others are waited for still counts. Where clients
    answer in turn (`protosphere.wire.replies.in_turn`) no time counts.
    Each reply is checked when it comes (`checked_reply`, with `checks`).

    Raises:
        RunError: when a simulation worker died or has another home than the run, or Flower refused the messages.
    """
    simulated = is_simulated(grid)
    if in_turn(grid):
        timeout = patience = math.inf
    asked = [(p, m.metadata.message_type == MessageType.TRAIN) for p, m in zip(partitions, messages, strict=True)]
    ids: list[str | None] = list(grid.push_messages(messages))
    if len(ids) != len(asked):
        raise RunError(
            f"Flower took {len(ids)} of the {len(asked)} messages of round {round_number}; its log above says why."
        )
    # in place of an id Flower gives None for a node that has left
    pending = {message_id: whom for message_id, whom in zip(ids, asked, strict=True) if message_id}
    replies = [Reply(*whom, problem=UNSENT) for message_id, whom in zip(ids, asked, strict=True) if not message_id]
    ignored = set(not_waited_for)
    # how many still train, and how many of those who only evaluate are waited for; and the valid train replies so far
    training = sum(trains for _, trains in pending.values())
    evaluating = sum(not trains and partition not in ignored for partition, trains in pending.values())
    valid = 0
    start = arrival = time.monotonic()
    closed_after: float | None = None
    trained = training > 0
    pause = POLL[0]
    while pending:
        arrived = [
            checked_reply(message, *pending.pop(message_id), simulated=simulated, round_number=round_number, **checks)
            for message_id, message in pulled(grid, pending)
            if message_id in pending
        ]
        replies += arrived
        now = time.monotonic()
        if arrived:
            arrival, pause = now, POLL[0]
        # counted on, for a look at all of ten thousand after each would be a second look at every client a client
        training -= sum(reply.trains for reply in arrived)
        evaluating -= sum(not reply.trains and reply.partition not in ignored for reply in arrived)
        valid += sum(reply.trains and reply.valid for reply in arrived)
        if closed_after is None and (not training or 0 < min_replies <= valid or now - start > timeout):
            closed_after = now - start
        if closed_after is not None:
            if not evaluating:
                break
            allowed = max(patience, closed_after if trained else timeout)
            if now - arrival > allowed or now - start > timeout + patience:
                break
        if not arrived:
            time.sleep(pause)
            pause = min(1.5 * pause, POLL[1])
    replies += [Reply(partition, trains, problem=LATE) for partition, trains in pending.values()]
    return sorted(replies, key=lambda reply: reply.partition)


def collected(replies: Iterable[Message], nodes: Mapping[int, int], trains: bool, **checks: Any) -> list[Reply]:
    """Replies that somebody else has collected, in partition order, checked like ours.

    Args:
        nodes: partition -> node id.
    """
    of_node = {node: partition for partition, node in nodes.items()}
    checked = [
        checked_reply(message, of_node[message.metadata.src_node_id], trains, simulated=False, **checks)
        for message in replies
    ]
    return sorted(checked, key=lambda reply: reply.partition)


def size_of(records: RecordDict, for_ensemble: bool = False) -> Bytes:
    """Of a message, whichever way.

    Args:
        for_ensemble: sent for the ensemble alone: it is no part of training's bytes, nor of evaluation's.
    """
    found = measured(records)
    whole, wire = together(found), together(found, without=APART)
    if for_ensemble:
        return Bytes(ensemble=whole)
    evaluation = wire - together(found, without=("evaluation", *APART)) if "evaluation" in records else 0
    ensemble = together(found, without=APART[1:]) - wire if "ensemble" in records else 0
    return Bytes(payload_bytes(records), wire, evaluation, ensemble, confusion=whole - wire - ensemble)


def encoded(instruction: Instruction, codec: Codec, specs: Sequence[Spec]) -> RecordDict:
    """An instruction as it goes down.

    Raises:
        RunError: the number format cannot hold what the round before made.
    """
    with _written(instruction.round):
        return encode_instruction(instruction, codec, specs)


def aggregated(half: ServerHalf, uploads: Mapping[int, Payload], state: State, server_round: int) -> Outcome:
    """What a method makes of a round's uploads.

    Raises:
        RunError: of `encoded`, where the method itself needs what it sends as it arrives.
    """
    with _written(server_round):
        return checked_outcome(half.aggregate(uploads, state, server_round), half.aggregate, SENT)


@contextmanager
def _written(round_number: int) -> Iterator[None]:
    try:
        yield
    except CodecError as error:
        raise RunError(f"round {round_number}: {error} A run keeps its settings: start a new one.") from None


def checked_reply(
    message: Message | str,
    partition: int,
    trains: bool,
    *,
    simulated: bool,
    round_number: int,
    limits: Limits,
    roster: Mapping[int, Identity] | None = None,
    shared: SharedLabels | None = None,
    confusions: Confusions | None = None,
    units: Mapping[int, float] | None = None,
    keep: Keep | None = None,
    impossible: Callable[[int, Payload], str] = lambda partition, payload: "",
    rules: Collection[str] | None = None,
) -> Reply:
    """A reply as a value. Whatever a client's bytes make fail is that client's failure, and nobody else's.

    Args:
        roster: what a reply says of its rows is held against it, if there is one: weights in means come from it.
        shared: what the ensemble was to predict; without it no answers are legal.
        confusions: takes what clients take for what, where they were asked; without it nothing of it is legal.
        units: what the norms of a client's upload are measured in (1 where it has none).
        keep: takes uploads that wait in files, and says how long their weights are.
        impossible: says of an upload what in it cannot be, "" where it may be true.
        rules: of prediction that clients report; without them every name is legal.

    Raises:
        RunError: a simulation worker died, has another home than the run, or says that its method failed.
    """
    if isinstance(message, str):
        return Reply(partition, trains, problem=message)
    if simulated and message.has_error() and message.error.code == ACTOR_DIED:
        # of the first round there is no checkpoint
        again = "Resume" if round_number > 1 else "Start"
        raise RunError(
            f"the process of client {partition} died in round {round_number} (out of memory?); the "
            f"simulation cannot replace it. {again} the run with fewer clients at a time (`--workers`, or over Flower "
            "`--cpus-per-client`), or, where a node of a Ray cluster has gone, on those that are left."
        )
    if simulated and message.has_error() and message.error.code == OTHER_HOME:
        raise RunError(f"round {round_number}: {remedy(_says(partition, message.error.reason or '', LONGEST_REFUSAL))}")
    if simulated and message.has_error() and message.error.code == FAILED:
        words = _says(partition, message.error.reason or "", LONGEST_REFUSAL)
        raise RunError(f"round {round_number}: {words}. {MEND}")
    try:
        asked = (limits, roster or {}, shared, confusions, units or {}, keep, impossible, rules)
        return _reply(message, partition, trains, round_number, *asked)
    # Flower leaves some of a record's parts unread until they are asked for
    except Exception as error:
        return Reply(partition, trains, problem=f"its reply cannot be used ({type(error).__name__})")


def _reply(
    message: Message,
    partition: int,
    trains: bool,
    round_number: int,
    limits: Limits,
    roster: Mapping[int, Identity],
    shared: SharedLabels | None,
    confusions: Confusions | None,
    units: Mapping[int, float],
    keep: Keep | None,
    impossible: Callable[[int, Payload], str],
    rules: Collection[str] | None,
) -> Reply:
    own = replace(limits, max_norm=limits.max_norm * units.get(partition, 1.0))
    if partition in roster:
        own = replace(own, layouts=partial(read_layouts, roster[partition].layouts))
    reply = _checked(message, partition, trains, round_number, own)
    if reply.report is not None:
        reply = _with_answers(reply, message.content.array_records.get("ensemble"), shared)
    if reply.report is not None and partition in roster:
        reply = _held_against(roster[partition], reply)
    if rules is not None:
        reply = _by_rules(reply, rules)
    if reply.report is not None and "confusion" in message.content:
        reply = _with_confusion(reply, message.content.metric_records["confusion"], confusions, roster.get(partition))
    if reply.report is not None and reply.report.payload is not None:
        words = impossible(partition, reply.report.payload)
        if words:
            report = replace(reply.report, payload=None)
            reply = replace(reply, report=report, problem=f"upload dropped: {words}", dropped=True)
    # they quote what a client sent
    reply = replace(
        reply, problem=one_line(reply.problem, LONGEST_PROBLEM), refused=one_line(reply.refused, LONGEST_PROBLEM)
    )
    if keep is None or reply.report is None or reply.report.payload is None:
        return reply
    payload = reply.report.payload
    lengths = keep(partition, payload)
    return replace(reply, report=replace(reply.report, payload=None), waits=lengths, vectors=class_vectors(payload))


def _checked(message: Message, partition: int, trains: bool, round_number: int, limits: Limits) -> Reply:
    if message.has_error():
        # Flower's own errors come in the same way, and nothing tells them from what a client made up
        problem = f"an error came back: {_quoted(partition, _last_line(message.error.reason or ''))}"
        return Reply(partition, trains, problem=problem, blames=message.error.code == FAILED)
    records = message.content
    size = size_of(records)
    try:
        report, upload = decode_report(records, limits.codec)
        if (report.partition, report.round) != (partition, round_number):
            raise MessageError(f"the reply says partition {report.partition}, round {report.round}")
    except MessageError as error:
        # of what is no report nothing is an evaluation's
        size = replace(size, evaluation=0)
        return Reply(partition, trains, problem=str(error), dropped=trains and "payload" in records, size=size)
    try:
        return _with_upload(
            Reply(partition, trains, report, _said(partition, report.problem), size=size), upload, limits
        )
    except MessageError as error:
        return Reply(partition, trains, report, f"upload dropped: {error}", dropped=True, size=size)


def _with_upload(reply: Reply, upload: ArrayRecord | None, limits: Limits) -> Reply:
    assert reply.report is not None
    if not reply.trains or reply.problem:
        if upload is not None:
            raise MessageError("nothing was to be uploaded here")
        return reply
    if not limits.specs:
        if upload is not None:
            raise MessageError("no upload was due in this round")
        return reply
    if upload is None:
        raise MessageError("the upload is missing")
    return replace(reply, report=replace(reply.report, payload=decode_payload(upload, limits)))


def _with_answers(reply: Reply, answers: ArrayRecord | None, shared: SharedLabels | None) -> Reply:
    """Answers that cannot be used are dropped by themselves."""
    if answers is None:
        return replace(reply, refused=_said(reply.partition, reply.report.remark) if reply.report else "")
    if shared is None:
        return replace(reply, refused="ensemble answer dropped: nobody asked for one")
    try:
        return replace(reply, probabilities=decode_answers(answers, shared))
    except MessageError as error:
        return replace(reply, refused=f"ensemble answer dropped: {error}")


def _with_confusion(
    reply: Reply, record: MetricRecord, confusions: Confusions | None, identity: Identity | None
) -> Reply:
    """What cannot be used is dropped by itself."""
    evaluation = reply.report.evaluation if reply.report else None
    try:
        if confusions is None or identity is None or evaluation is None:
            raise MessageError("nobody asked for one, or there is no evaluation beside it")
        if confusions.rule not in evaluation.correct:
            raise MessageError(f"its evaluation has no rule {confusions.rule!r}")
        right = evaluation.correct[confusions.rule][0]
        found = decode_counts(record, len(identity.class_names), evaluation.rows[0], right)
    except MessageError as error:
        refused = "; ".join(filter(None, (reply.refused, f"confusion dropped: {error}")))
        return replace(reply, refused=refused)
    confusions.add(reply.partition, found)
    return reply


def _by_rules(reply: Reply, rules: Collection[str]) -> Reply:
    """Drop an evaluation that has a rule of its own making: it would stand in every table beside the method's."""
    evaluation = reply.report.evaluation if reply.report else None
    strange = sorted(set(evaluation.correct) - set(rules)) if evaluation else []
    if reply.report is None or not strange:
        return reply
    refused = f"evaluation dropped: it has the rule {strange[0]!r}, which the method does not name in its `rules`"
    refused = "; ".join(filter(None, (reply.refused, refused)))
    return replace(reply, report=replace(reply.report, evaluation=None), refused=refused)


def _held_against(identity: Identity, reply: Reply) -> Reply:
    """Drop a reply that claims other rows than the client said it has: a forged number would weigh in every mean."""
    report = reply.report
    assert report is not None
    if identity.withheld:
        return reply
    train, validation, test, *all_classes = identity.rows
    evaluation, training = report.evaluation, report.training
    payload = None if report.payload is None else class_vectors(report.payload)
    # those of all classes come with the last evaluation alone
    if evaluation is not None and evaluation.rows not in ((test, validation), (test, validation, *all_classes)):
        claim = f"{evaluation.rows} test and validation rows, not {(test, validation, *all_classes)}"
    elif training is not None and training.rows != train:
        claim = f"{training.rows} training rows, not {train}"
    elif payload is not None and payload.counts is not None and _rows_counted(payload) != train:
        claim = f"class counts that do not add up to its {train} training rows"
    elif payload is not None and not len(payload.labels):
        problem = f"upload dropped: it holds no class, though the client has {train} training rows"
        return replace(reply, report=replace(report, payload=None), problem=problem, dropped=True)
    elif payload is not None and (foreign := set(payload.labels.tolist()) - set(identity.classes)):
        held = class_word(min(foreign), identity.class_names)
        problem = f"upload dropped: it holds {held}, of which the client has no training row"
        return replace(reply, report=replace(report, payload=None), problem=problem, dropped=True)
    else:
        return reply
    report = replace(report, evaluation=None, training=None, payload=None)
    dropped = reply.dropped or (reply.report is not None and reply.report.payload is not None)
    problem = f"reply dropped: it claims {claim}"
    return replace(reply, report=report, problem=problem, dropped=dropped, probabilities=None)


def _rows_counted(payload: ClassVectors) -> int:
    """The rows that the counts speak of; a mixture repeats a class's count for each component."""
    assert payload.counts is not None
    first = torch.ones_like(payload.labels, dtype=torch.bool)
    first[1:] = payload.labels[1:] != payload.labels[:-1]
    return int(payload.counts[first].sum())


def refuse_failing_method(replies: Iterable[Reply], round_number: int, clients: int) -> None:
    """End a run whose method, somebody's own, fails at every site that was to train: no further round would mend it.
    What one site of several says ends nothing, also where it was asked alone.

    Args:
        clients: of the run.

    Raises:
        RunError: with the words of the first.
    """
    trained = [reply for reply in replies if reply.trains]
    if len(trained) >= min(2, clients) and all(reply.blames for reply in trained):
        first = trained[0]
        raise RunError(f"round {round_number}: client {first.partition}: {first.problem.rstrip('.')}. {MEND}")


def _last_line(reason: str) -> str:
    """The error itself: the last line of a traceback (simulation) or the whole reason (deployment), without colour
    codes and without Flower's own words around it."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", reason).strip()
    last = plain.splitlines()[-1] if plain else "unknown error"
    return last.partition("ClientAppException occurred. Message: ")[2].removesuffix("'>") or last


def _quoted(partition: int, words: str, most: int = LONGEST_WORDS) -> str:
    """A client's words, without the beginning that names itself, fit for a line of the log."""
    return quoted(one_line(words).removeprefix(f"client {partition}: ") or "unknown error", most)


def _says(partition: int, words: str, most: int = LONGEST_WORDS) -> str:
    return f"client {partition} says: {_quoted(partition, words, most)}"


def _said(partition: int, words: str) -> str:
    """What a report tells, if it tells anything, as what it is: words of a client's."""
    return f"it says: {_quoted(partition, words)}" if words else ""
