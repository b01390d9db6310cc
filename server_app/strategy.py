"""The one Flower strategy: it runs the rounds around a method's server half.

A round follows Flower's order. `configure_train` makes one message per client; the replies are collected and checked;
`aggregate_train` has the method turn the uploads into the next downloads. `configure_evaluate` sends these in a second
message, and `aggregate_evaluate` computes metrics from the replies. Then the round's line and checkpoint are written,
and callbacks are called. Round 0 is the evaluation of the untrained models.
"""

import copy
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from protosphere.core import plugins
from protosphere.core.client_names import client_word
from protosphere.core.errors import RunError, SettingError
from protosphere.core.flower import is_simulated, over_ray
from protosphere.core.seeds import limited_threads
from protosphere.core.settings import Scalar
from protosphere.record import snapshots
from protosphere.record.folder import RunFolder
from protosphere.record.metrics_lines import (
    MAJORITY,
    Exchanged,
    Line,
    add_evaluation,
    console_line,
    empty_line,
    evaluations,
    over_clients,
    training_line,
)
from protosphere.record.replies import Bytes, Reply
from protosphere.record.summary import companions, summarise
from protosphere.server_app.agreement import Terms
from protosphere.server_app.callbacks import OnRound, callbacks_of
from protosphere.server_app.checkpoint import HeldDownloads, RoundState, pack, unpack
from protosphere.server_app.ensemble import score, shared_labels
from protosphere.server_app.exchange import (
    LATE,
    MEND,
    UNSENT,
    ReplyContext,
    collected,
    exchange,
    size_of,
)
from protosphere.server_app.guards import refuse_more_failures, refuse_non_finite, refuse_other_rounds
from protosphere.server_app.membership import Membership
from protosphere.server_app.opening import opening_lines
from protosphere.server_app.roster import Roster
from protosphere.server_app.status import USER_ERRORS
from protosphere.strategies import Run
from protosphere.strategies.contract import (
    ROUND_OF_JOINING,
    Outcome,
    ServerHalf,
    contradiction,
    own_round,
    to_everyone,
    whole_vectors,
)
from protosphere.strategies.release import encoder_means, join_means, with_classes
from protosphere.strategies.user_method import checked_outcome, failing_as
from protosphere.wire.checks import SETTINGS, CodecError
from protosphere.wire.messages import encode_instruction
from protosphere.wire.parts import Part
from protosphere.wire.payloads import Instruction, Payload

log = logging.getLogger("protosphere")
WITHHELD_SAMPLES = 1e6  # vectors of a client that does not disclose its sample count may sum up this many samples


class PrototypeStrategy(Strategy):
    """A Flower strategy for any method: it exchanges prototypes instead of weights.

    Args:
        folder: the run's folder; None if `start` is to make it.
        on_round: called after every round's checkpoint; returning False ends the run.
        client_settings: the run's settings, sent with every message if clients do not find them in their run
            configuration.
    """

    folder: RunFolder

    def __init__(
        self,
        run: Run,
        folder: RunFolder | None,
        on_round: OnRound | None = None,
        client_settings: Mapping[str, Scalar] = MappingProxyType({}),
    ):
        self.run = run
        self._further_records = RecordDict()
        if client_settings:
            self._further_records[SETTINGS] = ConfigRecord(dict(client_settings))
        self.settings = run.settings
        self.half: ServerHalf = run.method.server(run.settings, run.options)
        if folder is not None:
            self.folder = folder
        terms = Terms(run.exchange, run.private, run.encodes, plugins.digest(run.settings.strategy), run.digest)
        self.roster = Roster(run.settings, terms, self._further_records)
        self.state = RoundState(held_downloads=HeldDownloads() if run.exchange.once else None)
        self.callbacks = callbacks_of(run.settings, on_round)
        self.stop_reason = ""  # why the run ends before its last round
        self.failed_in_a_row = 0
        self.timeout = run.settings.round_timeout
        self.shared_labels: Tensor | None = None
        self._rounds = run.settings.rounds
        self._is_started = False
        self._sent_bytes: dict[int, Bytes] = {}  # of the newest messages
        self._offered: set[int] = set()  # the partitions whose message contains a download or names it
        self._round_seconds: list[float] = []

    # --- the run ------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds (by default `rounds`), each for at most `timeout` seconds (by default `round-timeout`; no
        limit in one process).

        Raises:
            SettingError: the settings do not fit these clients or, on resume, the finished rounds.
            RosterError: the clients do not fit together, or are not those of the run to resume.
            RunError: the run cannot continue, but can be resumed from its last finished round; or it was started
                before.
            ValueError: an argument has no meaning here, since there are no global weights.
        """
        if initial_arrays or train_config or evaluate_config or evaluate_fn:
            raise ValueError("a prototype strategy has no global weights and reads its settings from the run")
        if self._is_started:
            raise RunError("this strategy has been started before; make a new one for another run.")
        self._is_started = True
        return self._run_rounds(grid, num_rounds, timeout)

    def _run_rounds(self, grid: Grid, num_rounds: int | None, timeout: float | None) -> Result:
        """Run all rounds. The caller has made and locked the folder."""
        rounds = self._rounds = num_rounds or self.settings.rounds
        refuse_other_rounds(self.run, self.folder, rounds)
        self.timeout = timeout or self.settings.round_timeout
        result = Result()
        if over_ray(grid):
            self.folder.make_stores()
        if self.settings.resume:
            self._restore(rounds)
        earlier_roster = self.folder.roster() if self.settings.resume else ()
        self.roster.gather(grid, earlier_roster, self.state.last_round)
        with self._name_failure(f"before round {self.state.last_round + 1}"):
            self._meet(is_simulated(grid))
        self.folder.set_end(rounds, self.settings)
        self.summary()
        if self.settings.min_replies and is_simulated(grid):
            log.warning(
                "warning: a simulation waits for every client that trains; `min-replies` %d closes no round here, and "
                "only says how many valid replies keep a round from counting as failed",
                self.settings.min_replies,
            )

        # on one thread throughout: after a change of that number, the first small sum costs tens of milliseconds
        with self._call_callbacks(), limited_threads(1):
            if not self.settings.resume:
                with self._name_failure("before round 1"):
                    self._begin(grid, result)
            while self.state.last_round < rounds and not self.stop_reason:
                number = self.state.last_round + 1
                with self._name_failure(f"round {number}"):
                    self._round(grid, number, result)
            with self._name_failure(f"after round {self.state.last_round}"):
                self._close(grid, result)
            self._leave_summary(rounds)
        return result

    @contextmanager
    def _call_callbacks(self) -> Iterator[None]:
        """Inside, callbacks know that the run is on; afterwards, that it has ended."""
        started, completed = [], False
        try:
            for callback in self.callbacks:
                goes_on = callback.on_start(self)
                started.append(callback)
                if not goes_on:
                    # callbacks are not asked again: one that ended the run earlier lets it continue now
                    self.stop_reason = self.stop_reason or callback.name
            yield
            completed = True
        finally:
            for callback in started:
                callback.on_end(completed)

    def _restore(self, rounds: int) -> None:
        """Load the run's checkpoint.

        Raises:
            SettingError: it cannot be read, or its round is later than `rounds`.
        """
        tensors, stored = self.folder.load_checkpoint()
        self.folder.refuse_fewer_rounds(rounds, stored["round"], self.settings.resume)
        self.state = unpack(tensors, stored)
        self.half.constants, self.half.group_names = self.state.constants, self.state.group_names

    def _meet(self, simulated: bool) -> None:
        """Take K and d from the roster and compare it with that of a resumed run; change the folder only after that."""
        settings, roster = self.settings, self.roster
        if settings.ensemble_every and not simulated:
            raise SettingError(
                f"`ensemble-every` is {settings.ensemble_every}, and the ensemble needs a test set that all clients "
                "share, as those of a simulation do; set it to 0."
            )
        self.membership = Membership(settings, roster, self.half)
        self.shared_labels = shared_labels(settings, roster.number, roster.num_classes)
        if settings.resume:
            roster.refuse_changes(self.folder.roster())
            self.folder.truncate(self.state.last_round)
            if roster.is_open:
                self.membership.load(self.state.membership)
            log.info("resuming after round %d", self.state.last_round)
        else:
            beginning = checked_outcome(self.half.begin(), self.half.begin, self.run.exchange.down)
            self.half.constants = self.state.constants = beginning.constants
            self.state.group_names = self.half.group_names
            self.state.method, self.state.downloads = beginning.state, beginning.downloads
        self.folder.write_roster(roster.as_json())

    def summary(self) -> None:
        """Print what is about to run."""
        for line in opening_lines(self.run, self.roster.identities, self.roster.num_classes):
            log.info(line)
        for notice in (*self.membership.capped_counts.notices(), *self.half.notices):
            log.warning("warning: %s", notice)

    def _leave_summary(self, rounds: int) -> None:
        """Write the summary of a run that has ended, perhaps before its last round."""
        identities = self.roster.identities.values()
        summary = summarise(
            self.settings,
            self.run.inference,
            self.folder.settings(),
            self.folder.lines(with_clients=False),
            len(self.roster.nodes),
            companions(identity.companion for identity in identities),
            self.stop_reason if self.state.last_round < rounds else "",
            each_line=self.folder.each_line(),
        )
        self.folder.write_client_table(self.run.inference)
        self.folder.write_summary(summary)

    @contextmanager
    def _name_failure(self, when: str) -> Iterator[None]:
        """Inside, an error in the server half of a user's method, or a download that its number format cannot hold,
        ends the run with a sentence."""

        def make_error(reason: str) -> RunError:
            return RunError(f"{when}: {reason} {MEND}")

        try:
            with failing_as(make_error, self.settings.strategy, self.run.method, (*USER_ERRORS, CodecError)):
                yield
        except CodecError as error:
            raise RunError(f"{when}: {str(error).rstrip('.')}. A run keeps its settings: start a new one.") from None

    # --- a round ------------------------------------------------------------------------------------------

    def _begin(self, grid: Grid, result: Result) -> None:
        """Round 0: evaluate the untrained models with the downloads that precede round 1."""
        began = time.monotonic()
        line = empty_line(0)
        self._evaluate(grid, line, result, is_last=False)
        self._finish_round(line, began)

    def _round(self, grid: Grid, number: int, result: Result) -> None:
        """Run one round up to its checkpoint: train, aggregate, evaluate.

        Raises:
            RunError: too many consecutive rounds have failed.
        """
        began = time.monotonic()
        self.roster.refresh(grid)
        if self.roster.is_open:
            self.membership.refresh(number, self.folder)
        messages = list(self.configure_train(number, ArrayRecord(), ConfigRecord(), grid))
        exchanged = self._exchange(grid, messages, self._context(number), self.settings.min_replies)
        replies = exchanged.replies

        server_began = time.monotonic()
        figures = self._aggregate(number, replies)
        if figures:
            result.train_metrics_clientapp[number] = _as_metrics(figures)
        line = training_line(number, exchanged, figures, self.settings.max_weight_ratio)
        line["time"]["server"] = time.monotonic() - server_began
        # even if the upload was refused, the client has stored its new model
        for reply in replies:
            if reply.report and reply.report.training:
                self.state.trained[reply.partition] = number
        valid = sum(reply.valid for reply in replies)
        self.failed_in_a_row = 0 if valid >= max(1, self.settings.min_replies) else self.failed_in_a_row + 1

        is_last = number == self._rounds
        if is_last or number % self.settings.evaluate_every == 0:
            self._evaluate(grid, line, result, is_last, replies)
        self._finish_round(line, began)
        refuse_more_failures(self.failed_in_a_row, self.settings.max_failed_rounds, line["problems"])

    def _evaluate(self, grid: Grid, line: Line, result: Result, is_last: bool, trained: Sequence[Reply] = ()) -> int:
        """Have clients evaluate the models of a round, and add the result to the round's line.

        Args:
            is_last: whether this evaluation is the last one of the run.
            trained: the replies to the round's training: clients that were late are not asked.

        Returns:
            The number of clients that evaluated.
        """
        number = line["round"]
        if is_last:
            line["last"] = True
        late = {reply.partition for reply in trained if reply.problem in (LATE, UNSENT)}
        partitions = [partition for partition in self._list_evaluators(number) if partition not in late]
        if not partitions:
            return 0
        messages = self._messages(partitions, MessageType.EVALUATE, number, is_last)
        context = self._context(number, trains=False, is_last=is_last)
        exchanged = self._exchange(grid, messages, context)

        rule, ratio = self.run.inference, self.settings.max_weight_ratio
        add_evaluation(line, exchanged, rule, ratio, self.roster.identities, self.run.exchange.once)
        answers = {reply.partition: reply.ensemble for reply in exchanged.replies if reply.ensemble is not None}
        if answers and self.shared_labels is not None:
            line["ensemble"] = score(answers, self.shared_labels)
        if self.roster.is_open:
            line |= self.membership.figures()
        metrics = self._accuracy(line.get("evaluation", {}).get("rules", {}))
        if metrics is not None:
            result.evaluate_metrics_clientapp[number] = metrics
        return len(evaluations(exchanged.replies))

    def _finish_round(self, line: Line, began: float) -> None:
        """Write and print the line, write the checkpoint, and call the callbacks, each of which may end the run."""
        number = line["round"]
        line["time"]["round"] = time.monotonic() - began
        self.folder.append(line)
        if number:
            self._round_seconds.append(line["time"]["round"])
        seconds = self._round_seconds or [line["time"]["round"]]
        log.info(console_line(line, self._rounds, self.run.inference, seconds))
        self.state.last_round = number
        if self.roster.is_open:
            self.state.membership = self.membership.as_json()
        self.folder.save_checkpoint(*pack(self.state))
        for callback in self.callbacks:
            if not callback.on_round(line):
                self.stop_reason = self.stop_reason or callback.name

    def _close(self, grid: Grid, result: Result) -> None:
        """After an early end, evaluate the models of the last round once more, as the run's last evaluation. If fewer
        clients answer than in the round itself, the round keeps its metrics.
        """
        line = self.folder.newest_line()
        if line.get("last"):
            return
        before = copy.deepcopy(line)
        if self.stop_reason:
            log.info("stopped after round %d by %s", self.state.last_round, self.stop_reason)
        began = time.monotonic()
        self.roster.refresh(grid)
        evaluated = self._evaluate(grid, line, result, is_last=True)
        if evaluated < sum("evaluation" in client for client in before["clients"].values()):
            line = before | {name: line[name] for name in ("last", "bytes", "problems")}
        line["time"]["round"] += time.monotonic() - began
        self.folder.replace_last(line)
        log.info(console_line(line, self._rounds, self.run.inference, [line["time"]["round"]], is_last=True))

    # --- messages and replies -----------------------------------------------------------------------------

    def _exchange(
        self, grid: Grid, messages: Sequence[Message], context: ReplyContext, min_replies: int = 0
    ) -> Exchanged:
        """Send messages from `_messages`, and collect the replies."""
        partition_of_node = {node: partition for partition, node in self.roster.nodes.items()}
        partitions = [partition_of_node[message.metadata.dst_node_id] for message in messages]
        sent = dict(self._sent_bytes)
        replies = exchange(grid, messages, partitions, context, min_replies=min_replies, timeout=self.timeout)
        for reply in replies:
            if reply.problems:
                client = client_word(reply.partition)
                log.warning("warning: round %d, %s: %s", context.round_number, client, reply.problems)
        if self.state.held_downloads is not None:
            self.state.held_downloads.note_replies(replies, self._offered)
        return Exchanged(replies, sent)

    def _messages(self, partitions: Sequence[int], message_type: str, number: int, is_last: bool) -> list[Message]:
        """One message per client; equal contents are encoded once."""
        messages = []
        encoded_messages: dict[tuple[Any, ...], Any] = {}
        trains = message_type == MessageType.TRAIN
        # a client is evaluated with the download that it trains with in the next round
        round_of_training = number if trains else number + 1
        downloads, nodes = self.state.downloads, self.roster.nodes
        self._sent_bytes, self._offered = {}, set()
        for partition in partitions:
            key = self.half.download(partition, downloads, self.state.method, round_of_training, trains)
            download = None if key is None else downloads.get(key)
            if download is not None:
                self._offered.add(partition)
            instruction = self._instruction(partition, number, download, is_last)
            constants = tuple(instruction.constants.items())
            content = (key, instruction.payload is None, instruction.last_trained_round, instruction.made, constants)
            if content not in encoded_messages:
                records = encode_instruction(instruction, self.run.exchange.down)
                records.update(self._further_records)
                encoded_messages[content] = records, size_of(records)
            records, self._sent_bytes[partition] = encoded_messages[content]
            messages.append(Message(records, nodes[partition], message_type, ttl=self.timeout + 60))
        return messages

    def _instruction(self, partition: int, number: int, download: Payload | None, is_last: bool) -> Instruction:
        """The instruction for one client."""
        constants = self.half.constants
        joined = self.roster.members[partition].joined
        if joined and self.run.method.counts_own_rounds:
            constants = {**constants, ROUND_OF_JOINING: float(joined)}
        source_round = 0
        held_downloads = self.state.held_downloads
        if held_downloads is not None and download is not None:
            source_round = held_downloads.newest
            if held_downloads.has_newest(partition):
                download = None
        if self.run.private:
            download = join_means(download, self.state.means, self.settings.feature_dim)
        return Instruction(
            run=self.folder.name,
            round=number,
            payload=download,
            last_trained_round=self.state.trained.get(partition, 0),
            constants=constants,
            made=source_round,
            last=is_last,
        )

    def _context(self, number: int, trains: bool = True, is_last: bool = False) -> ReplyContext:
        """What the replies of a round are checked against."""
        up = self.run.exchange.up
        parts = self.half.expected_parts(up, self.state.method, number) if trains else ()
        parts_of_newcomers = {}
        if trains and self.run.method.counts_own_rounds:
            for partition, member in self.roster.members.items():
                if member.joined:
                    round_of_client = own_round({ROUND_OF_JOINING: member.joined}, number)
                    parts_of_newcomers[partition] = self.half.expected_parts(up, self.state.method, round_of_client)
        measures_ensemble = not trains and self.settings.measures_ensemble(number, is_last)
        return ReplyContext(
            round_number=number,
            trains=trains,
            parts=parts,
            num_classes=self.roster.num_classes,
            dim=self.settings.feature_dim,
            max_norm=self.settings.max_prototype_norm,
            identities=self.roster.identities,
            summed_samples=self._count_summed_samples(parts),
            rules={*self.run.rules, MAJORITY},
            contradiction=partial(contradiction, self.half),
            parts_of_newcomers=parts_of_newcomers,
            confusion_rule=self.run.inference if is_last and self.run.confusion else "",
            measures_auc=not trains and self.settings.roc_auc,
            shared_labels=self.shared_labels if measures_ensemble else None,
            withholds_figures=self.run.private and not self.settings.privacy_measure,
        )

    def _count_summed_samples(self, parts: Sequence[Part]) -> dict[int, float]:
        """partition -> the number of samples that its vectors may sum up, after capping."""
        if not any(part.sums for part in parts):
            return {}
        return {
            partition: WITHHELD_SAMPLES if identity.withheld else float(identity.rows[0] or 1)
            for partition, identity in self.half.identities.items()
        }

    def sample(self, server_round: int) -> list[int]:
        """The partitions that train in this round."""
        return self.roster.sample(server_round)

    def _list_evaluators(self, server_round: int) -> list[int]:
        """The partitions that are evaluated after this round: all, or those that train in it (for round 0, those that
        train in round 1)."""
        if self.settings.evaluate_clients == "all":
            return sorted(self.roster.nodes)
        return self.sample(max(1, server_round))

    # --- aggregation --------------------------------------------------------------------------------------

    def _aggregate(self, server_round: int, replies: Sequence[Reply]) -> dict[str, Any]:
        """Turn the uploads into the next downloads. Returns the round's figures; none if there was no upload."""
        uploads: Mapping[int, Payload] = {
            reply.partition: reply.report.payload
            for reply in replies
            if reply.report and reply.report.payload is not None
        }
        if self.run.private:
            uploads = with_classes(uploads)
            released = whole_vectors(self.half, uploads)
            self.state.means = encoder_means(released, self.settings.privacy_scale, self.state.means)
        if not uploads:
            return {}
        with limited_threads(1):
            capped_uploads, warnings = self.membership.capped_counts.uploads(uploads)
            outcome = self.half.aggregate(capped_uploads, self.state.method, server_round)
            outcome = checked_outcome(outcome, self.half.aggregate, self.run.exchange.down)
        for warning in (*warnings, *outcome.warnings):
            log.warning("warning: round %d: %s", server_round, warning)
        refuse_non_finite(outcome.downloads, server_round, self.half.class_word)

        earlier = self.state.downloads if outcome.keeps else {}
        self.state.method = outcome.state
        self.state.downloads = {**earlier, **outcome.downloads}
        if self.state.held_downloads is not None and outcome.downloads:
            self.state.held_downloads.newest = server_round
        if self.run.exchange.pointwise:
            self._save_snapshot(server_round, uploads, outcome)
        return self._list_figures(outcome)

    def _save_snapshot(self, server_round: int, uploads: Mapping[int, Payload], outcome: Outcome) -> None:
        """Store the prototypes received and sent in this round, for the report."""
        # from this round only, since the snapshot is named after it
        prototypes = outcome.prototypes
        downloads = whole_vectors(self.half, self.state.downloads) if prototypes is None else to_everyone(prototypes)
        tensors, counts = snapshots.snapshot(whole_vectors(self.half, uploads), downloads, *outcome.scales)
        keeps_all = self.settings.keep_prototypes == "all"
        snapshots.save(self.folder.path, tensors, {"round": server_round, **counts}, keeps_all)

    def _list_figures(self, outcome: Outcome) -> dict[str, Any]:
        """The server's figures for a round."""
        separation = {}
        if self.run.exchange.pointwise:
            separation = snapshots.separation_of(whole_vectors(self.half, outcome.downloads), outcome.scales[0])
        all_figures = {**outcome.figures, **separation}
        # JSON cannot represent infinity
        return {
            name: None if isinstance(figure, float) and not math.isfinite(figure) else figure
            for name, figure in all_figures.items()
        }

    def _accuracy(self, rules: Mapping[str, Any]) -> MetricRecord | None:
        """Mean test accuracy by the run's rule, from the result of `over_clients`; None if no client was evaluated."""
        accuracy = rules.get(self.run.inference, {}).get("test", {}).get("mean")
        return None if accuracy is None else MetricRecord({"accuracy": accuracy})

    # --- Flower's own names for the steps of a round ------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to the sampled clients, which train."""
        return self._messages(self.sample(server_round), MessageType.TRAIN, server_round, False)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to the clients that evaluate the models of this round."""
        partitions = self._list_evaluators(server_round)
        return self._messages(partitions, MessageType.EVALUATE, server_round, server_round == self._rounds)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check replies and aggregate their uploads; the server keeps the result as the next downloads."""
        checked_replies = collected(replies, self.roster.nodes, self._context(server_round))
        figures = self._aggregate(server_round, checked_replies)
        return None, _as_metrics(figures) if figures else None

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Check replies, and return the mean test accuracy by the run's rule over the clients that evaluated."""
        context = self._context(server_round, trains=False, is_last=server_round == self._rounds)
        checked_replies = collected(replies, self.roster.nodes, context)
        return self._accuracy(over_clients(evaluations(checked_replies), self.settings.max_weight_ratio))


def _as_metrics(figures: Mapping[str, Any]) -> MetricRecord:
    """The numeric figures of a round, in Flower's form."""
    numbers: dict[str, Any] = {}
    for name, figure in figures.items():
        if isinstance(figure, int | float):
            numbers[name] = figure
    return MetricRecord(numbers)
