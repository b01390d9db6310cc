"""The one Flower strategy: it runs the rounds around a method's server half.

Sampling, messages, checks, bytes, evaluation, checkpoints and resume are here and beside here; what is made of uploads
is the method's.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from protosphere.core import plugins
from protosphere.core.errors import SettingError
from protosphere.core.seeds import limited_threads
from protosphere.core.settings import Scalar
from protosphere.data.shared_test_set import SharedLabels
from protosphere.data.way_shot import WAY_SHOT
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.record import figures
from protosphere.record.confusion import Confusions
from protosphere.record.folder import RunFolder
from protosphere.record.metrics_lines import add_evaluation, console_line, evaluations, final_line, times, training_line
from protosphere.record.round import Bytes, Reply, RunError
from protosphere.record.snapshot import separation_of
from protosphere.record.uploads import Scratch, Waiting
from protosphere.server_app.agreement import Terms
from protosphere.server_app.checkpoint import leave_summary, restore, save
from protosphere.server_app.client_selection import sampled
from protosphere.server_app.exchange import (
    LATE,
    MEND,
    aggregated,
    collected,
    encoded,
    exchange,
    refuse_failing_method,
    size_of,
)
from protosphere.server_app.features.changes import Changes
from protosphere.server_app.features.download_once import Holding
from protosphere.server_app.features.ensemble import score, shared_test_set
from protosphere.server_app.features.outliers import Outliers, vectors_of
from protosphere.server_app.features.stopping import OnRound, Stopping, refuse_unmeasured
from protosphere.server_app.features.watch import (
    collapse,
    is_infinite,
    refuse_more_failures,
    refuse_non_finite,
    refuse_other_rounds,
    warn_of_problems,
)
from protosphere.server_app.opening import opening_lines
from protosphere.server_app.roster import Roster, RosterError, refuse_changes, refuse_too_few
from protosphere.strategies import Run, as_of_today, known_settings, read_settings, unpacked
from protosphere.strategies.contract import ServerHalf, State
from protosphere.strategies.release import encoder_means, joined, with_classes
from protosphere.strategies.user_method import checked_outcome, failing_as
from protosphere.strategies.weights import OtherWeightsError
from protosphere.wire.claims import Believed
from protosphere.wire.codec import Codec
from protosphere.wire.messages import encode_question
from protosphere.wire.parts import Limits
from protosphere.wire.payloads import SENT, Instruction, Payload, class_vectors, mean_norm
from protosphere.wire.replies import over_ray

log = logging.getLogger("protosphere")


class PrototypeStrategy(Strategy):
    """A Flower strategy over prototypes instead of weights, of any method.

    One message a client and round: on arrival a client evaluates what it left in the last round, then trains,
    then uploads. Clients that are not sampled evaluate only (`evaluate-clients = "all"`).
    """

    def __init__(self, run: Run, folder: RunFolder, on_round: OnRound | None = None):
        self.run = run
        self.settings = run.settings
        self.half: ServerHalf = run.method.server(run.settings, run.options)
        self.folder = folder
        terms = Terms(run.exchange, run.private, run.encodes, plugins.digest(run.settings.strategy))
        self.roster = Roster(run.settings, terms)
        self.codec: Codec  # known when the clients are: see `_meet`
        self.shared: SharedLabels | None = None  # of the ensemble
        self.state: State = {}
        self.downloads: Mapping[int, Payload] = {}
        self.last_round = 0
        self.failed_in_a_row = 0
        self.first_norm: float | None = None
        self.outliers = Outliers()
        self.token = ""  # the run's, read when it starts
        self.timeout = run.settings.round_timeout
        self._confusions: Confusions | None = None  # of the evaluation that ends the run
        self._end = run.settings.rounds + 1  # the number of the evaluation that ends the run
        self.stopping = Stopping(run.settings, run.inference, on_round)
        self._scratch = Scratch(folder.path)
        self._changes = Changes(run.exchange, self._scratch)
        self._silent: set[int] = set()
        self.trained: dict[int, int] = {}
        self.holding = Holding()
        self._units: Mapping[int, float] = {}  # of the norms of uploads
        self._sent: dict[int, Bytes] = {}
        self._figures: dict[str, Any] = {}
        self.uploads: Mapping[int, Payload] = {}
        self.means: PrototypeSet | None = None  # of releases
        self._round_seconds: list[float] = []

    # --- the run ------------------------------------------------------------------------------------

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
        """Run all rounds: by default `rounds`, each for `timeout` at most, by default `round-timeout` (not in process).

        Raises:
            SettingError: what cannot work with these clients, or on resume with the rounds already run.
            RosterError: the clients do not fit together, or are not those of the run to resume.
            RunError: the run cannot go on; its last finished round can be resumed.
            ValueError: an argument that has no meaning here: there are no global weights.
        """
        if initial_arrays or train_config or evaluate_config or evaluate_fn:
            raise ValueError("a prototype strategy has no global weights and reads its settings from the run")
        rounds = num_rounds or self.settings.rounds
        self._end = rounds + 1
        refuse_other_rounds(self.run, self.folder, rounds)
        self.timeout = timeout or self.settings.round_timeout
        result = Result()
        self.token = self.folder.token
        if over_ray(grid):
            self.folder.mark_home()
            if os.environ.get("RAY_ADDRESS"):
                # of a cluster: its nodes are asked for the run's home before anything begins
                self.roster.question = encode_question(self.folder.name, self.token)
        if self.settings.resume:
            restore(self, rounds)
        self.roster.gather(grid)
        with self._blaming(f"before round {self.last_round + 1}"):
            self._meet()
        self.folder.set_end(rounds, self.settings)
        self.summary()
        # all of it: the first small sum after a change of the number costs tens of milliseconds
        with limited_threads(self.settings.server_threads):
            while self.last_round < rounds and not self.stopping.by:
                number = self.last_round + 1
                with self._blaming(f"round {number}"):
                    line = self._round(grid, number, rounds, result)
                self.stopping.hear(line)
            self._final_evaluation(grid, rounds, result)
        leave_summary(self, rounds)
        return result

    def _blaming(self, when: str) -> AbstractContextManager[None]:
        """Inside, what goes wrong in the server half of somebody's own method is told as what does at a client."""

        def failed(words: str) -> RunError:
            return RunError(f"{when}: {words} {MEND}")

        return failing_as(failed, self.settings.strategy, self.run.method, (SettingError, RosterError, RunError))

    def _round(self, grid: Grid, server_round: int, rounds: int, result: Result) -> dict[str, Any]:
        began = time.monotonic()
        self._scratch.clear()
        self.roster.refresh(grid)
        train = list(self.configure_train(server_round, ArrayRecord(), ConfigRecord(), grid))
        evaluate = list(self.configure_evaluate(server_round, ArrayRecord(), ConfigRecord(), grid))
        replies = self._exchange(grid, train + evaluate, server_round)
        warn_of_problems(replies, server_round)
        if plugins.is_plugin(self.settings.strategy):
            refuse_failing_method(replies, server_round, len(self.roster.identities))
        if words := self.outliers.alone(replies):
            log.warning("warning: round %d: %s", server_round, words)
        if any(reply.trains and not reply.valid for reply in replies):
            # a round that failed over a full disk is not the clients' failure, and must not count
            self.folder.refuse_full_disk()
        server_began = time.monotonic()
        self.holding.hear(replies)
        self._figures = {}
        metrics = self._aggregate(server_round, [reply for reply in replies if reply.trains])
        if metrics:
            result.train_metrics_clientapp[server_round] = metrics
        # also where the upload was refused: the client's store has moved on
        self.trained |= {r.partition: server_round for r in replies if r.trains and r.report and r.report.training}
        valid = sum(reply.valid for reply in replies if reply.trains)
        self.failed_in_a_row = 0 if valid >= max(1, self.settings.min_replies) else self.failed_in_a_row + 1
        self._scratch.clear()
        line = training_line(server_round, replies, self._sent, self._figures, self.settings.max_weight_ratio)
        line["time"] = {"server": time.monotonic() - server_began}
        self._close(line, replies, server_round - 1, rounds, began, result)
        self.last_round = server_round
        save(self)
        refuse_more_failures(self.failed_in_a_row, self.settings.max_failed_rounds, line["problems"])
        return line

    def _final_evaluation(self, grid: Grid, rounds: int, result: Result) -> None:
        began, last = time.monotonic(), self.last_round
        if last < rounds:
            log.info("stopped after round %d by %s", last, self.stopping.by)
            # as a run of so many rounds; but by the number alone clients know when to read the rows of all classes
            self._end = last + 1 if self.settings.partition != WAY_SHOT else rounds + 1
        self.roster.refresh(grid)
        everyone = self.settings.evaluate_clients == "all"
        asked = sorted(self.roster.nodes) if everyone else self.sample(last)
        if self.run.confusion:
            models = {partition: identity.model for partition, identity in self.roster.identities.items()}
            self._confusions = Confusions(self.run.inference, models)
        messages = self._messages(asked, MessageType.EVALUATE, self._end, True)
        if self._ensemble_due(self._end):
            rest = [partition for partition in sorted(self.roster.nodes) if partition not in asked]
            messages += self._messages(rest, MessageType.EVALUATE, self._end, False)
        replies = self._exchange(grid, messages, self._end)
        warn_of_problems(replies, last + 1)
        self._close(final_line(last + 1, replies, self._sent), replies, last, rounds, began, result)

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
        answers = {reply.partition: reply.probabilities for reply in replies if reply.probabilities is not None}
        if answers and self.shared is not None:
            with limited_threads(self.settings.server_threads):
                line["ensemble"] = {"of_round": of_round, **score(answers, self.shared)}
        if self._confusions:
            line |= self._confusions.as_json()
        if (metrics := self._accuracy(replies)) is not None:
            result.evaluate_metrics_clientapp[of_round] = metrics
        line["time"] = line.get("time", {}) | times(replies, time.monotonic() - began)
        self.folder.append(line)
        self._round_seconds.append(line["time"]["round"])
        log.info(console_line(line, rounds, self.run.inference, self._round_seconds))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to the sampled clients, who train (and evaluate on arrival when it is due)."""
        due = (server_round - 1) % self.settings.evaluate_every == 0
        return self._messages(self.sample(server_round), MessageType.TRAIN, server_round, due)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Evaluate-only messages to the clients that are not sampled, when evaluation or the ensemble is due."""
        due = (server_round - 1) % self.settings.evaluate_every == 0 and self.settings.evaluate_clients == "all"
        if not due and not self._ensemble_due(server_round):
            return []
        sampled = set(self.sample(server_round))
        rest = [partition for partition in sorted(self.roster.nodes) if partition not in sampled]
        return self._messages(rest, MessageType.EVALUATE, server_round, due)

    def _ensemble_due(self, server_round: int) -> bool:
        """In every n-th round from the first on, and after the last."""
        every = self.settings.ensemble_every
        return every > 0 and ((server_round - 1) % every == 0 or server_round == self._end)

    def sample(self, server_round: int) -> list[int]:
        """Partition ids that train in this round."""
        return sampled(self.settings, self.roster.identities, server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check replies and aggregate their uploads; the result stays on the server as the next downloads."""
        return None, self._aggregate(server_round, self._read(replies, server_round, True))

    def _aggregate(self, server_round: int, replies: Sequence[Reply]) -> MetricRecord | None:
        uploads = {
            reply.partition: reply.report.payload
            for reply in replies
            if reply.report and reply.report.payload is not None
        }
        waiting = [reply.partition for reply in replies if reply.waits is not None]
        if self.run.private:
            uploads = with_classes(uploads)
            self.means = encoder_means(uploads, self.settings.privacy_scale, self.means)
        if not uploads and not waiting:
            return None
        with limited_threads(self.settings.server_threads):
            sent: Mapping[int, Payload]
            sent, capped = self.believed.uploads(uploads)
            if waiting:
                sent = Waiting(self._scratch, waiting, self.believed.upload)
            outcome = aggregated(self.half, sent, self.state, server_round)
            norm = self.half.feature_norm(uploads)
            against = self._changes.against_others(replies, self.half.group)
        trained_towards = self.half.scales[0] * (mean_norm(self.downloads) or 0.0)
        models = {partition: identity.model for partition, identity in self.roster.identities.items()}
        vectors = vectors_of(replies) | {p: own for p, upload in uploads.items() if (own := class_vectors(upload))}
        times = self._changes.times
        watched = self.outliers.warnings(vectors, against, times, models, self._units, norm, trained_towards)
        refuse_non_finite(outcome.downloads, server_round, self.half.class_word)
        kept = self.downloads if outcome.keeps else {}
        self.holding.made = server_round if outcome.downloads else self.holding.made
        self.state, self.downloads, self.uploads = outcome.state, {**kept, **outcome.downloads}, uploads
        apart = separation_of(outcome.downloads, self.half.scales[0]) if self.run.exchange.pointwise else {}
        recorded = {**outcome.figures, "prototype_norm": norm, **apart}
        # JSON has no infinity, which an energy may be
        self._figures = {name: None if is_infinite(value) else value for name, value in recorded.items()}
        self.first_norm = norm if self.first_norm is None else self.first_norm
        for warning in (*capped, *outcome.warnings, *collapse(norm, self.first_norm), *watched):
            log.warning("warning: round %d: %s", server_round, warning)
        numbers: dict[str, Any] = {
            name: value for name, value in self._figures.items() if isinstance(value, int | float)
        }
        return MetricRecord(numbers)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Check replies; mean test accuracy of the primary rule over the clients that evaluated."""
        return self._accuracy(self._read(replies, server_round, False))

    def _accuracy(self, replies: Sequence[Reply]) -> MetricRecord | None:
        rules = figures.over_clients(evaluations(replies), self.settings.max_weight_ratio)
        accuracy = rules.get(self.run.inference, {}).get("test", {}).get("mean")
        return None if accuracy is None else MetricRecord({"accuracy": accuracy})

    def summary(self) -> None:
        """Say what is about to run."""
        for line in opening_lines(self.run, self.roster.identities, self.codec):
            log.info(line)
        for notice in (*self.believed.notices(), *self.half.notices()):
            log.warning("warning: %s", notice)

    # --- messages -----------------------------------------------------------------------------------

    def _messages(
        self, partitions: Sequence[int], message_type: str, server_round: int, evaluate: bool
    ) -> list[Message]:
        messages = []
        written: dict[tuple[int, int, bool], Any] = {}
        due = self.half.downloads_due(server_round, message_type == MessageType.TRAIN)
        downloads = self.downloads if due else {}
        for partition in partitions:
            key = self.half.address(partition, downloads, self.state, server_round)
            trained = self.trained.get(partition, 0)
            made, has = self.holding.offer(partition, self.run.exchange.once and key in downloads)
            if (key, trained, has) not in written:
                own = None if has else downloads.get(key)
                payload = joined(own, self.means, self.codec.dim) if self.run.private else own
                ensemble = self._ensemble_due(server_round)
                asked = (server_round, evaluate, payload, trained, self.half.constants, ensemble)
                told = Instruction(self.folder.name, *asked, self.token, bool(evaluate and self._confusions), made)
                records = encoded(told, self.codec, self.run.exchange.down)
                alone = message_type == MessageType.EVALUATE and not evaluate
                written[key, trained, has] = records, size_of(records, alone)
            records, size = written[key, trained, has]
            self._sent[partition] = size
            self._changes.sent[partition] = downloads.get(key)
            node = self.roster.nodes[partition]
            messages.append(Message(records, node, message_type, ttl=self.timeout + 60))
        return messages

    def _exchange(self, grid: Grid, messages: Sequence[Message], server_round: int) -> list[Reply]:
        of_node = {node: partition for partition, node in self.roster.nodes.items()}
        replies = exchange(
            grid,
            messages,
            [of_node[message.metadata.dst_node_id] for message in messages],
            min_replies=self.settings.min_replies,
            timeout=self.timeout,
            patience=self.settings.query_timeout,
            not_waited_for=self._silent,
            **self._checks(server_round),
        )
        replies = self.outliers.without_long(
            replies, self._units, self.settings.max_norm_ratio, 2 * self.half.target_norm
        )
        with limited_threads(self.settings.server_threads):
            replies = self._changes.without_far(replies, self.half.group, self.settings.max_norm_ratio)
        self._silent = {reply.partition for reply in replies if not reply.trains and reply.problem == LATE}
        return replies

    def _limits(self, server_round: int) -> Limits:
        specs = self.half.awaited(self.run.exchange.up, self.state, server_round)
        return Limits(self.codec, self.settings.max_prototype_norm, specs)

    def _read(self, replies: Iterable[Message], server_round: int, trains: bool) -> list[Reply]:
        """Replies that somebody else has collected, checked like ours."""
        return collected(replies, self.roster.nodes, trains, **self._checks(server_round))

    def _checks(self, server_round: int) -> dict[str, Any]:
        """What a reply of this round must keep to."""
        return {
            "round_number": server_round,
            "limits": self._limits(server_round),
            "roster": self.roster.identities,
            "shared": self.shared if self._ensemble_due(server_round) else None,
            "confusions": self._confusions,
            "units": self._units,
            "rules": {*self.run.rules, figures.MAJORITY},
            "keep": self._changes.keep if self.run.exchange.waits else None,
            "impossible": self.half.impossible,
        }

    # --- the start ----------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Take K and d from the roster, hold it against a resumed run's; only then touch the folder."""
        assert self.roster.codec is not None
        self.codec = self.roster.codec
        if self.settings.resume:
            began = {client["partition"] for client in self.folder.roster()}
            new = sorted(self.roster.identities.keys() - began)
            self.roster.leave_out(dict.fromkeys(new, "it took no part when the run was started."))
        while True:
            identities, settings = self.roster.identities, self.settings
            self.believed = Believed(identities, settings.max_weight_ratio, settings.client_weights)
            try:
                self.half.meet(self.codec, self.believed.identities)
                break
            except OtherWeightsError as error:
                self.roster.leave_out(error.clients)
        refuse_too_few(self.settings, self.roster.identities, len(self.sample(1)))
        refuse_unmeasured(self.settings, self.roster.identities)
        self._units = {partition: self.half.unit(partition) for partition in self.roster.identities}
        self.shared = shared_test_set(self.settings, self.roster.number, self.codec.num_classes)
        if self.settings.resume:
            refuse_changes(self.folder.roster(), self.roster.as_json(), self.roster.left_out)
            self.folder.truncate(self.last_round)
            self.stopping.recall(self.folder.lines())
            log.info("resuming after round %d", self.last_round)
        else:
            self.half.constants = self.half.derive_constants()
            beginning = checked_outcome(self.half.begin(), self.half.begin, SENT)
            self.state, self.downloads = beginning.state, beginning.downloads
        self.folder.write_roster(self.roster.as_json())


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


def open_folder(run: Run, run_config: Mapping[str, Scalar]) -> RunFolder:
    """A new folder for a run, or the one that it is to go on in.

    Raises:
        SettingError: it cannot be made, or holds a run of other settings.
    """
    asked = known_settings(run.settings.strategy) | unpacked(run_config)
    if run.settings.resume:
        return RunFolder.resume(run.settings, asked, as_of_today)
    return RunFolder.create(run.settings, asked)
