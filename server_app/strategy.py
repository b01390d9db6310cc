"""The one Flower strategy: it runs the rounds around a method's server half.

A round, from above: `configure_train` and `configure_evaluate` write a message a client, `_exchange` collects the
replies, the method's server half makes the next downloads of the uploads, and the round's line and checkpoint are
written. What a run can have beside is in features/.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from protosphere.core import plugins
from protosphere.core.errors import RunError, SettingError
from protosphere.core.flower import is_simulated, over_ray
from protosphere.core.seeds import limited_threads
from protosphere.core.settings import Scalar
from protosphere.data.partition.way_shot import WAY_SHOT
from protosphere.record import provenance
from protosphere.record.folder import RunFolder
from protosphere.record.metrics_lines import (
    MAJORITY,
    add_evaluation,
    console_line,
    evaluations,
    final_line,
    over_clients,
    times,
    training_line,
)
from protosphere.record.replies import Bytes, Reply
from protosphere.record.snapshots import separation_of
from protosphere.record.summary import companions, summarise
from protosphere.server_app.agreement import Terms
from protosphere.server_app.checkpoint import RoundState, pack, unpack
from protosphere.server_app.exchange import (
    LATE,
    MEND,
    ReplyContext,
    aggregated,
    collected,
    encoded,
    exchange,
    refuse_failing_method,
    size_of,
)
from protosphere.server_app.feature import Aggregation, Federation
from protosphere.server_app.features import FEATURES
from protosphere.server_app.guards import (
    refuse_more_failures,
    refuse_non_finite,
    refuse_other_rounds,
    warn_of_problems,
)
from protosphere.server_app.opening import believed_clients, open_folder, opening_lines
from protosphere.server_app.roster import Roster, RosterError, refuse_too_few
from protosphere.strategies import Run, read_settings
from protosphere.strategies.contract import ROUND_OF_JOINING, Outcome, ServerHalf, own_round
from protosphere.strategies.user_method import checked_outcome, failing_as
from protosphere.wire.codec import Codec, Limits
from protosphere.wire.payloads import Instruction, Payload

log = logging.getLogger("protosphere")
OnRound = Callable[[Mapping[str, Any]], object]  # given a line of metrics.jsonl; False ends the run
# why a run ends that its `on_round`, or the `should_stop` of its start, has ended
ON_ROUND, SHOULD_STOP = "on-round", "should-stop"


class PrototypeStrategy(Strategy):
    """A Flower strategy over prototypes instead of weights, of any method.

    One message per client per round: on arrival a client evaluates what it left in the last round, then trains,
    then uploads. Clients that are not sampled evaluate only (`evaluate-clients = "all"`).

    Args:
        on_round: called after every round, when its checkpoint is written.
    """

    def __init__(self, run: Run, folder: RunFolder, on_round: OnRound | None = None):
        self.run = run
        self.settings = run.settings
        self.half: ServerHalf = run.method.server(run.settings, run.options)
        self.folder = folder
        terms = Terms(run.exchange, run.private, run.encodes, plugins.digest(run.settings.strategy))
        self.roster = Roster(run.settings, terms)
        self.codec: Codec  # known when the clients are: see `_meet`
        self.state = RoundState()
        self.features = [feature(run, folder) for feature in FEATURES.values() if feature.applies(run)]
        self.stop_reason = ""  # why the run ends before its last round
        self.failed_in_a_row = 0
        self.token = ""  # the run's, read when it starts
        self.timeout = run.settings.round_timeout
        self._on_round = on_round
        self._last_number = run.settings.rounds + 1  # of the evaluation that ends the run
        self._silent_partitions: set[int] = set()  # at the last evaluation
        self._sent_bytes: dict[int, Bytes] = {}
        self._figures: dict[str, Any] = {}  # of the round's aggregation
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
        should_stop: Callable[[int, Result], bool] | None = None,
    ) -> Result:
        """Run all rounds: by default `rounds`, each for `timeout` at most, by default `round-timeout` (not in process).
        As Flower has it from 1.43 on, `should_stop` is asked after each round with its number and the result so far.

        Raises:
            SettingError: what cannot work with these clients, or on resume with the rounds already run.
            RosterError: the clients do not fit together, or are not those of the run to resume.
            RunError: the run cannot go on; its last finished round can be resumed.
            ValueError: an argument that has no meaning here: there are no global weights.
        """
        if initial_arrays or train_config or evaluate_config or evaluate_fn:
            raise ValueError("a prototype strategy has no global weights and reads its settings from the run")
        rounds = num_rounds or self.settings.rounds
        self._last_number = rounds + 1
        refuse_other_rounds(self.run, self.folder, rounds)
        self.timeout = timeout or self.settings.round_timeout
        result = Result()
        self.token = self.folder.token
        if over_ray(grid):
            self.folder.mark_home()
        if self.settings.resume:
            self._restore(rounds)
            if self.roster.is_open:
                self.roster.expect(self.folder.roster(), self.state.last_round)
        self.roster.gather(grid)
        with self._blame_method(f"before round {self.state.last_round + 1}"):
            self._meet()
        self.folder.set_end(rounds, self.settings)
        self.summary()
        if self.settings.min_replies and is_simulated(grid):
            log.warning(
                "warning: a simulation waits for every client that trains; `min-replies` %d closes no round here, and "
                "only says how many valid replies keep a round from counting as failed",
                self.settings.min_replies,
            )
        with ExitStack() as stack:
            for feature in self.features:
                stack.enter_context(feature.during())
            # all of it: the first small sum after a change of the number costs tens of milliseconds
            stack.enter_context(limited_threads(1))
            while self.state.last_round < rounds and not self.stop_reason:
                number = self.state.last_round + 1
                with self._blame_method(f"round {number}"):
                    line = self._round(grid, number, rounds, result)
                self._after_round(line)
                if should_stop is not None and should_stop(number, result):
                    self.stop_reason = self.stop_reason or SHOULD_STOP
            self._final_evaluation(grid, rounds, result)
            self._leave_summary(rounds)
        return result

    def _restore(self, rounds: int) -> None:
        """Take up the run's checkpoint.

        Raises:
            SettingError: it cannot be read, or is of a later round than `rounds`.
        """
        tensors, stored = self.folder.load_checkpoint()
        self.folder.refuse_fewer_rounds(rounds, stored["round"], self.settings.resume)
        self.state = unpack(tensors, stored, self.features)
        self.half.constants, self.half.group_names = self.state.constants, self.state.group_names

    def _meet(self) -> None:
        """Take K and d from the roster, hold it against a resumed run's; only then touch the folder."""
        assert self.roster.codec is not None
        self.codec = self.roster.codec
        if self.settings.resume and not self.roster.is_open:
            self.roster.leave_out_new(self.folder.roster())
        for feature in self.features:
            feature.gathered(self.roster, self.state.last_round)
        self.believed = believed_clients(self.roster, self.half, self.settings)
        refuse_too_few(self.settings, self.roster.identities, len(self.sample(1)))
        federation = Federation(
            identities=self.roster.identities,
            partitions=self.roster.number,
            codec=self.codec,
            believed=self.believed,
            half=self.half,
        )
        for feature in self.features:
            feature.start(federation)
        if self.settings.resume:
            self.roster.refuse_changes(self.folder.roster())
            self.folder.truncate(self.state.last_round)
            lines = self.folder.lines()
            for feature in self.features:
                # nobody is asked again: who ended the run then may go on now
                feature.recall(lines)
                self.stop_reason = self.stop_reason or feature.stop_reason
            log.info("resuming after round %d", self.state.last_round)
        else:
            self.half.constants = self.state.constants = self.half.derive_constants()
            self.state.group_names = self.half.group_names
            beginning = checked_outcome(self.half.begin(), self.half.begin, self.run.exchange.down)
            self.state.method, self.state.downloads = beginning.state, beginning.downloads
        self.folder.write_roster(self.roster.as_json())
        provenance.note(self.folder.path)

    def _after_round(self, line: Mapping[str, Any]) -> None:
        """Tell features and whoever waits for it the round's line; each of them may end the run."""
        for feature in self.features:
            feature.after_round(line)
            self.stop_reason = self.stop_reason or feature.stop_reason
        if self._on_round is not None and self._on_round(line) is False:
            self.stop_reason = self.stop_reason or ON_ROUND

    def _final_evaluation(self, grid: Grid, rounds: int, result: Result) -> None:
        """Evaluate what the last round has left, with messages that ask for nothing else."""
        began, last_round = time.monotonic(), self.state.last_round
        if last_round < rounds:
            log.info("stopped after round %d by %s", last_round, self.stop_reason)
            # as a run of so many rounds; but by the number alone clients know when to read the rows of all classes
            self._last_number = last_round + 1 if self.settings.partition != WAY_SHOT else rounds + 1
        self.roster.refresh(grid, last_round)
        everyone = self.settings.evaluate_clients == "all"
        partitions = sorted(self.roster.nodes) if everyone else self.sample(last_round)
        for feature in self.features:
            feature.last_evaluation(self._last_number)
        messages = self._messages(partitions, MessageType.EVALUATE, self._last_number, True)
        if self._asks_everyone(self._last_number):
            remaining_partitions = [partition for partition in sorted(self.roster.nodes) if partition not in partitions]
            messages += self._messages(remaining_partitions, MessageType.EVALUATE, self._last_number, False)
        replies = self._exchange(grid, messages, self._last_number)
        warn_of_problems(replies, last_round + 1)
        self._close(final_line(last_round + 1, replies, self._sent_bytes), replies, last_round, rounds, began, result)

    def _leave_summary(self, rounds: int) -> None:
        """Write the outcome of a run that has come to its end, be it before its last round of those asked for."""
        identities = self.roster.identities.values()
        summary = summarise(
            self.settings,
            self.run.inference,
            self.folder.settings(),
            self.folder.lines(),
            len(self.roster.nodes),
            companions(identity.companion for identity in identities),
            self.stop_reason if self.state.last_round < rounds else "",
        )
        self.folder.write_summary(summary)

    def _blame_method(self, when: str) -> AbstractContextManager[None]:
        """Inside, what goes wrong in the server half of somebody's own method is told as what does at a client."""

        def make_error(reason: str) -> RunError:
            return RunError(f"{when}: {reason} {MEND}")

        return failing_as(make_error, self.settings.strategy, self.run.method, (SettingError, RosterError, RunError))

    # --- a round, in this order ---------------------------------------------------------------------------

    def _round(self, grid: Grid, server_round: int, rounds: int, result: Result) -> dict[str, Any]:
        """One round, up to its checkpoint: messages, replies, aggregation, the evaluation that rode along.

        Raises:
            RunError: the method fails everywhere, or too many rounds in a row have failed.
        """
        began = time.monotonic()
        self.roster.refresh(grid, server_round)
        for feature in self.features:
            feature.before_round(server_round)
        messages = [
            *self.configure_train(server_round, ArrayRecord(), ConfigRecord(), grid),
            *self.configure_evaluate(server_round, ArrayRecord(), ConfigRecord(), grid),
        ]
        replies = self._exchange(grid, messages, server_round)
        warn_of_problems(replies, server_round)
        if plugins.is_plugin(self.settings.strategy):
            refuse_failing_method(replies, server_round, len(self.roster.identities))
        for feature in self.features:
            _warn(server_round, feature.review(replies))
        if any(reply.trains and not reply.valid for reply in replies):
            # a round that failed over a full disk is not the clients' failure, and must not count
            self.folder.refuse_full_disk()
        server_began = time.monotonic()
        self._figures = {}
        metrics = self._aggregate(server_round, [reply for reply in replies if reply.trains])
        if metrics:
            result.train_metrics_clientapp[server_round] = metrics
        # also where the upload was refused: the client's store has moved on
        for reply in replies:
            if reply.trains and reply.report and reply.report.training:
                self.state.trained[reply.partition] = server_round
        valid = sum(reply.valid for reply in replies if reply.trains)
        self.failed_in_a_row = 0 if valid >= max(1, self.settings.min_replies) else self.failed_in_a_row + 1
        line = training_line(server_round, replies, self._sent_bytes, self._figures, self.settings.max_weight_ratio)
        line["time"] = {"server": time.monotonic() - server_began}
        self._close(line, replies, server_round - 1, rounds, began, result)
        self.state.last_round = server_round
        for feature in self.features:
            feature.leave()
        self.folder.save_checkpoint(*pack(self.state, self.features))
        refuse_more_failures(self.failed_in_a_row, self.settings.max_failed_rounds, line["problems"])
        return line

    def _exchange(self, grid: Grid, messages: Sequence[Message], number: int) -> Sequence[Reply]:
        """Send the messages and collect the replies; note who was silent."""
        partition_of = {node: partition for partition, node in self.roster.nodes.items()}
        replies = exchange(
            grid,
            messages,
            [partition_of[message.metadata.dst_node_id] for message in messages],
            self._context(number),
            min_replies=self.settings.min_replies,
            timeout=self.timeout,
            patience=self.settings.query_timeout,
            not_waited_for=self._silent_partitions,
        )
        self._silent_partitions = {reply.partition for reply in replies if not reply.trains and reply.problem == LATE}
        return replies

    def _aggregate(self, server_round: int, replies: Sequence[Reply]) -> MetricRecord | None:
        """Make the next downloads of the uploads, and the round's figures; None where nobody has uploaded."""
        uploads: Mapping[int, Payload] = {
            reply.partition: reply.report.payload
            for reply in replies
            if reply.report and reply.report.payload is not None
        }
        for feature in self.features:
            uploads = feature.uploads(uploads)
        if not uploads:
            return None
        with limited_threads(1):
            believed, warnings = self.believed.uploads(uploads)
            outcome = aggregated(self.half, believed, self.state.method, server_round, self.run.exchange.down)
            norm = self.half.feature_norm(uploads)
        earlier = self.state.downloads if outcome.keeps else {}
        downloads = {**earlier, **outcome.downloads}
        aggregation = Aggregation(
            round=server_round,
            uploads=uploads,
            downloads=downloads,
            outcome=outcome,
            norm=norm,
        )
        refuse_non_finite(outcome.downloads, server_round, self.half.class_word)
        _warn(server_round, (*warnings, *outcome.warnings))
        for feature in self.features:
            _warn(server_round, feature.aggregated(aggregation))
        self.state.method, self.state.downloads = outcome.state, downloads
        self._figures = self._list_figures(outcome, norm)
        numbers: dict[str, Any] = {
            name: figure for name, figure in self._figures.items() if isinstance(figure, int | float)
        }
        return MetricRecord(numbers)

    def _list_figures(self, outcome: Outcome, norm: float | None) -> dict[str, Any]:
        """The server's figures of a round."""
        separation = {}
        if self.run.exchange.pointwise:
            separation = separation_of(outcome.downloads, self.half.scales[0])
        all_figures = {**outcome.figures, "prototype_norm": norm, **separation}
        # JSON has no infinity
        return {
            name: None if isinstance(figure, float) and not math.isfinite(figure) else figure
            for name, figure in all_figures.items()
        }

    def _close(
        self,
        line: dict[str, Any],
        replies: Sequence[Reply],
        of_round: int,
        rounds: int,
        began: float,
        result: Result,
    ) -> None:
        """Add the evaluation that rode along, write the line, say it."""
        add_evaluation(line, replies, of_round, self.settings.max_weight_ratio, self.roster.identities)
        for feature in self.features:
            line |= feature.figures(of_round, replies)
        metrics = self._accuracy(line.get("evaluation", {}).get("rules", {}))
        if metrics is not None:
            result.evaluate_metrics_clientapp[of_round] = metrics
        line["time"] = line.get("time", {}) | times(replies, time.monotonic() - began)
        self.folder.append(line)
        self._round_seconds.append(line["time"]["round"])
        log.info(console_line(line, rounds, self.run.inference, self._round_seconds))

    # --- messages and replies -----------------------------------------------------------------------------

    def _messages(self, partitions: Sequence[int], message_type: str, number: int, evaluate: bool) -> list[Message]:
        """A message a client; those that say the same are encoded once."""
        messages = []
        encoded_messages: dict[tuple[Any, ...], Any] = {}
        trains = message_type == MessageType.TRAIN
        downloads = self.state.downloads if self.half.downloads_due(number, trains) else {}
        feature_names = tuple(feature.name for feature in self.features if feature.name)
        asking_feature = next((feature.name for feature in self.features if feature.asks_everyone(number)), "")
        for partition in partitions:
            key = self.half.address(partition, downloads, self.state.method, number)
            trained = self.state.trained.get(partition, 0)
            instruction = Instruction(
                self.folder.name, number, evaluate, downloads.get(key), trained, self.half.constants, token=self.token
            )
            for feature in self.features:
                instruction = feature.instruct(partition, instruction)
            constants = tuple(instruction.constants.items())
            same = (instruction.evaluate, instruction.trained, instruction.made, instruction.asks, constants)
            content = (key, instruction.payload is None, *same)
            if content not in encoded_messages:
                records = encoded(instruction, self.codec, self.run.exchange.down)
                size = size_of(records, feature_names, "" if trains or evaluate else asking_feature)
                encoded_messages[content] = records, size
            records, self._sent_bytes[partition] = encoded_messages[content]
            node = self.roster.nodes[partition]
            messages.append(Message(records, node, message_type, ttl=self.timeout + 60))
        return messages

    def _asks_everyone(self, number: int) -> bool:
        """Whether a feature asks all clients in this round, also those that have no other message."""
        return any(feature.asks_everyone(number) for feature in self.features)

    def _context(self, number: int) -> ReplyContext:
        """What the replies of a round are held against."""
        up = self.run.exchange.up
        specs = self.half.awaited(up, self.state.method, number)
        specs_of_newcomers = {}
        if self.run.method.counts_own_rounds:
            specs_of_newcomers = {
                partition: self.half.awaited(up, self.state.method, own_round({ROUND_OF_JOINING: joined}, number))
                for partition, joined in self.roster.joined.items()
            }
        return ReplyContext(
            round_number=number,
            limits=Limits(self.codec, self.settings.max_prototype_norm, specs),
            identities=self.roster.identities,
            units={partition: self.half.unit(partition) for partition in self.roster.identities},
            rules={*self.run.rules, MAJORITY},
            contradiction=self.half.impossible,
            features=self.features,
            specs_of_newcomers=specs_of_newcomers,
        )

    def _read(self, replies: Iterable[Message], number: int, trains: bool) -> list[Reply]:
        """Replies that somebody else has collected, checked like ours."""
        return collected(replies, self.roster.nodes, trains, self._context(number))

    def _accuracy(self, rules: Mapping[str, Any]) -> MetricRecord | None:
        """Mean test accuracy by the run's rule, of what `over_clients` gives; None where nobody was evaluated."""
        accuracy = rules.get(self.run.inference, {}).get("test", {}).get("mean")
        return None if accuracy is None else MetricRecord({"accuracy": accuracy})

    # --- Flower's own names for the steps of a round ------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to the sampled clients, who train (and evaluate on arrival when it is due)."""
        due = (server_round - 1) % self.settings.evaluate_every == 0
        return self._messages(self.sample(server_round), MessageType.TRAIN, server_round, due)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Evaluate-only messages to the clients that are not sampled, when evaluation, or a feature's question to
        everyone, is due."""
        due = (server_round - 1) % self.settings.evaluate_every == 0 and self.settings.evaluate_clients == "all"
        if not due and not self._asks_everyone(server_round):
            return []
        training_partitions = set(self.sample(server_round))
        remaining_partitions = [
            partition for partition in sorted(self.roster.nodes) if partition not in training_partitions
        ]
        return self._messages(remaining_partitions, MessageType.EVALUATE, server_round, due)

    def sample(self, server_round: int) -> list[int]:
        """Partition ids that train in this round."""
        return [partition for partition in self.roster.selected(server_round) if partition in self.roster.nodes]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check replies and aggregate their uploads; the result stays on the server as the next downloads."""
        return None, self._aggregate(server_round, self._read(replies, server_round, True))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Check replies; mean test accuracy of the primary rule over the clients that evaluated."""
        checked_replies = self._read(replies, server_round, False)
        return self._accuracy(over_clients(evaluations(checked_replies), self.settings.max_weight_ratio))

    def summary(self) -> None:
        """Say what is about to run."""
        features = [line for feature in self.features for line in feature.opening()]
        for line in (*opening_lines(self.run, self.roster.identities, self.codec), *features):
            log.info(line)
        for notice in (*self.believed.notices(), *self.half.notices()):
            log.warning("warning: %s", notice)


def _warn(number: int, warnings: Iterable[str]) -> None:
    for warning in warnings:
        log.warning("warning: round %d: %s", number, warning)


def strategy(run_config: Mapping[str, Scalar], folder: RunFolder | None = None) -> PrototypeStrategy:
    """A method as Flower knows methods: a `flwr.serverapp.strategy.Strategy`, for `start(grid)` in any ServerApp.

    Args:
        run_config: the run's settings by name; `strategy` names the method.
        folder: where the run is kept; a new one under `results-dir`, or the one to resume, unless it is given.

    Raises:
        SettingError: one sentence on the first setting that cannot be used.
    """
    run = read_settings(run_config)
    return PrototypeStrategy(run, folder or open_folder(run, run_config))
