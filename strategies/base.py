"""What all methods share on the server: sampling, messages, checks, bytes, evaluation, checkpoints, resume.

A method overrides `aggregate`, rarely more.
"""

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from federation import figures
from federation.messages import encode_instruction, payload_bytes, wire_bytes
from federation.payloads import Instruction, Limits, Payload
from federation.record import RunFolder
from federation.roster import Roster, RosterError, refuse_changes
from federation.seeds import generator, limited_threads
from prototypes.aggregation import aggregate as mean_of
from prototypes.prototype_set import PrototypeSet
from strategies import Run
from strategies.exchange import LATE, Bytes, Reply, RunError, exchange
from strategies.lines import (
    add_evaluation,
    console_line,
    evaluations,
    final_line,
    summarise,
    times,
    training_line,
)
from strategies.outcome import EVERYONE, Outcome, State, pack, unpack

log = logging.getLogger("protosphere")


class PrototypeStrategy(Strategy):
    """A Flower strategy over prototypes instead of weights.

    One message a client and round: on arrival a client evaluates what it left in the last round, then trains,
    then uploads. Clients that are not sampled evaluate only (`evaluate-clients = "all"`).
    """

    def __init__(self, run: Run, folder: RunFolder):
        self.run = run
        self.settings = run.settings
        self.folder = folder
        self.roster = Roster(run.settings)
        self.num_classes = 0
        self.dim = 0
        self.state: State = {}
        self.downloads: Mapping[int, Payload] = {}
        self.last_round = 0
        self.failed_in_a_row = 0
        self.first_norm: float | None = None
        self.timeout = run.settings.round_timeout
        self._silent: set[int] = set()
        self._trained: dict[int, int] = {}
        self._sent: dict[int, Bytes] = {}
        self._replies: dict[int, Reply] = {}
        self._figures: dict[str, Any] = {}
        self._round_seconds: list[float] = []

    # --- what a method overrides ------------------------------------------------------------------

    def check(self, num_classes: int, dim: int) -> None:
        """Refuse, before round 1, a K or d that the method cannot work with (raise SettingError)."""

    @abstractmethod
    def aggregate(self, uploads: Mapping[int, Payload], state: State, server_round: int) -> Outcome:
        """From the round's uploads, by partition in ascending order, to the next round's downloads."""

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
        """Run all rounds. `num_rounds` and `timeout` default to the settings `rounds` and `round-timeout`.

        Raises:
            SettingError: what cannot work with these clients, or on resume with the rounds already run.
            RosterError: the clients do not fit together, or are not those of the run to resume.
            RunError: the run cannot go on; its last finished round can be resumed.
            ValueError: an argument that has no meaning here: there are no global weights.
        """
        if initial_arrays or train_config or evaluate_config or evaluate_fn:
            raise ValueError("a prototype strategy has no global weights and reads its settings from the run")
        rounds = num_rounds or self.settings.rounds
        self.timeout = timeout or self.settings.round_timeout
        result = Result()
        self._resume(rounds)
        self.roster.gather(grid)
        self._meet()
        self.folder.set_rounds(rounds)
        self.summary()
        for server_round in range(self.last_round + 1, rounds + 1):
            self._round(grid, server_round, rounds, result)
        self._final_evaluation(grid, rounds, result)
        lines = self.folder.lines()
        self.folder.write_summary(summarise(self.run, self.folder.settings(), lines, len(self.roster.nodes)))
        return result

    def _round(self, grid: Grid, server_round: int, rounds: int, result: Result) -> None:
        began = time.monotonic()
        self.roster.refresh(grid)
        train = list(self.configure_train(server_round, ArrayRecord(), ConfigRecord(), grid))
        evaluate = list(self.configure_evaluate(server_round, ArrayRecord(), ConfigRecord(), grid))
        replies = self._exchange(grid, train + evaluate, server_round)
        self._warn_of_problems(replies, server_round)
        server_began = time.monotonic()
        self._figures = {}
        _, metrics = self.aggregate_train(server_round, _messages_of(r for r in replies if r.trains))
        if metrics:
            result.train_metrics_clientapp[server_round] = metrics
        # also where the upload was refused: the client's store has moved on
        self._trained |= {r.partition: server_round for r in replies if r.trains and r.report and r.report.training}
        valid = sum(reply.valid for reply in replies if reply.trains)
        self.failed_in_a_row = 0 if valid >= max(1, self.settings.min_replies) else self.failed_in_a_row + 1
        line = training_line(server_round, replies, self._sent, self._figures)
        line["time"] = {"server": time.monotonic() - server_began}
        self._close(line, replies, server_round - 1, rounds, began, result)
        self.last_round = server_round
        self._checkpoint()
        if self.failed_in_a_row >= self.settings.max_failed_rounds:
            problems = list(line["problems"].values()) or ["no reply at all"]
            others = f" (and {len(problems) - 1} more like it)" if len(problems) > 1 else ""
            raise RunError(
                f"{self.failed_in_a_row} rounds in a row ended without enough valid replies, the last with: "
                f"{problems[0].rstrip('.')}{others}. Mend that and resume, or start a new run with other settings."
            )

    def _final_evaluation(self, grid: Grid, rounds: int, result: Result) -> None:
        began = time.monotonic()
        self.roster.refresh(grid)
        everyone = self.settings.evaluate_clients == "all"
        partitions = sorted(self.roster.nodes) if everyone else self.sample(rounds)
        messages = self._messages(partitions, MessageType.EVALUATE, rounds + 1, True)
        replies = self._exchange(grid, messages, rounds + 1)
        self._warn_of_problems(replies, rounds + 1)
        line = final_line(rounds + 1, replies, self._sent)
        self._close(line, replies, rounds, rounds, began, result)

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
        add_evaluation(line, replies, of_round)
        metrics = self.aggregate_evaluate(of_round, _messages_of(replies))
        if metrics is not None:
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
        """Evaluate-only messages to the clients that are not sampled, when evaluation is due."""
        due = (server_round - 1) % self.settings.evaluate_every == 0
        if not due or self.settings.evaluate_clients == "sampled":
            return []
        sampled = set(self.sample(server_round))
        rest = [partition for partition in sorted(self.roster.nodes) if partition not in sampled]
        return self._messages(rest, MessageType.EVALUATE, server_round, True)

    def sample(self, server_round: int) -> list[int]:
        """Partition ids that train in this round: round(rho M) of the M clients with training rows.

        Drawn from the stream (seed, round, "sample"), so neither node ids nor earlier rounds matter.
        """
        able = [p for p, identity in sorted(self.roster.identities.items()) if identity.rows[0]]
        wanted = int(self.settings.fraction_train * len(able) + 0.5)
        wanted = min(len(able), max(wanted, self.settings.min_train_clients))
        order = torch.randperm(len(able), generator=generator(self.settings.seed, "round", server_round, "sample"))
        return sorted(able[index] for index in order[:wanted].tolist())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the checked uploads of a round; the result stays on the server as the next downloads."""
        uploads = {
            reply.partition: reply.report.payload
            for reply in self._read(replies)
            if reply.report and reply.report.payload is not None
        }
        if not uploads:
            return None, None
        with limited_threads(self.settings.server_threads):
            outcome = self.aggregate(uploads, self.state, server_round)
            norm = _mean_norm(uploads)
        _refuse_non_finite(outcome.downloads, server_round)
        self.state, self.downloads = outcome.state, outcome.downloads
        recorded = dict(outcome.figures) | {"prototype_norm": norm}
        # JSON has no infinity, which an energy may be
        self._figures = {name: None if _is_infinite(value) else value for name, value in recorded.items()}
        for warning in outcome.warnings:
            log.warning("warning: round %d: %s", server_round, warning)
        self._warn_of_collapse(norm, server_round)
        numbers: dict[str, Any] = {
            name: value for name, value in self._figures.items() if isinstance(value, int | float)
        }
        return None, MetricRecord(numbers)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Mean test accuracy of the primary rule over the clients that evaluated."""
        rules = figures.over_clients(evaluations(self._read(replies)))
        accuracy = rules.get(self.run.inference, {}).get("test", {}).get("mean")
        return None if accuracy is None else MetricRecord({"accuracy": accuracy})

    def summary(self) -> None:
        """Say what is about to run."""
        settings, identities = self.settings, self.roster.identities
        log.info(
            "%s on %s: %d clients, %d classes, d = %d, %d rounds, prediction by %s",
            settings.strategy,
            settings.dataset,
            len(identities),
            self.num_classes,
            self.dim,
            settings.rounds,
            self.run.inference,
        )
        for partition, identity in sorted(identities.items()):
            log.info(
                "  client %d: %s (%s parameters), %d + %d + %d rows (train + validation + test), classes %s%s",
                partition,
                identity.model,
                f"{identity.parameters:,}",
                *identity.rows,
                " ".join(map(str, identity.classes)) or "none",
                "" if identity.rows[0] else ": it has no training row and takes part in evaluation only",
            )
        disclosed = sorted({item for identity in identities.values() for item in identity.discloses})
        log.info("  the server learns of each client: %s", ", ".join(disclosed))

    # --- messages -----------------------------------------------------------------------------------

    def _messages(
        self, partitions: Sequence[int], message_type: str, server_round: int, evaluate: bool
    ) -> list[Message]:
        messages = []
        encoded: dict[tuple[int, int], Any] = {}
        for partition in partitions:
            key = partition if partition in self.downloads else EVERYONE
            trained = self._trained.get(partition, 0)
            if (key, trained) not in encoded:
                payload = self.downloads.get(key)
                instruction = Instruction(self.folder.name, server_round, evaluate, payload, trained)
                records = encode_instruction(instruction)
                encoded[key, trained] = records, Bytes(payload_bytes(records), wire_bytes(records))
            records, size = encoded[key, trained]
            self._sent[partition] = size
            node = self.roster.nodes[partition]
            messages.append(Message(records, node, message_type, ttl=self.timeout + 60))
        return messages

    def _exchange(self, grid: Grid, messages: Sequence[Message], server_round: int) -> list[Reply]:
        of_node = {node: partition for partition, node in self.roster.nodes.items()}
        replies = exchange(
            grid,
            messages,
            [of_node[message.metadata.dst_node_id] for message in messages],
            round_number=server_round,
            limits=self._limits(),
            min_replies=self.settings.min_replies,
            timeout=self.timeout,
            patience=self.settings.query_timeout,
            not_waited_for=self._silent,
            roster=self.roster.identities,
        )
        self._silent = {reply.partition for reply in replies if not reply.trains and reply.problem == LATE}
        self._replies = {id(reply.message): reply for reply in replies if reply.message is not None}
        return replies

    def _limits(self) -> Limits | None:
        method = self.run.method
        if method.sends is None:
            return None
        counts = method.sends_counts(self.run.options)
        return Limits(self.num_classes, self.dim, self.settings.max_prototype_norm, counts)

    def _read(self, replies: Iterable[Message]) -> list[Reply]:
        """The checked form of reply messages, in partition order; the round's own are checked already."""
        return sorted((self._replies[id(message)] for message in replies), key=lambda reply: reply.partition)

    # --- checkpoint and resume ----------------------------------------------------------------------

    def _checkpoint(self) -> None:
        meta = {
            "round": self.last_round,
            "first_norm": self.first_norm,
            "trained": {str(partition): made_in for partition, made_in in sorted(self._trained.items())},
        }
        self.folder.save_checkpoint(pack(self.state, self.downloads), meta)

    def _resume(self, rounds: int) -> None:
        if not self.settings.resume:
            return
        tensors, meta = self.folder.load_checkpoint()
        self.last_round = meta["round"]
        self.folder.refuse_fewer_rounds(rounds, self.last_round)
        self.first_norm = meta["first_norm"]
        self._trained = {int(partition): made_in for partition, made_in in meta["trained"].items()}
        self.state, self.downloads = unpack(tensors)

    def _meet(self) -> None:
        """Take K and d from the roster, hold it against a resumed run's; only then touch the folder."""
        identity = next(iter(self.roster.identities.values()))
        self.num_classes, self.dim = len(identity.class_names), identity.feature_dim
        able = sum(identity.rows[0] > 0 for identity in self.roster.identities.values())
        asked = len(self.sample(1))
        if asked < max(self.settings.min_train_clients, self.settings.min_replies):
            raise RosterError(
                f"{able} clients have training rows and {asked} of them train in a round, fewer than "
                f"`min-train-clients` {self.settings.min_train_clients} or `min-replies` {self.settings.min_replies} "
                "asks for; lower that, or raise `fraction-train`."
            )
        self.check(self.num_classes, self.dim)
        if self.settings.resume:
            refuse_changes(self.folder.roster(), self.roster.as_json())
            self.folder.truncate(self.last_round)
            log.info("resuming after round %d", self.last_round)
        self.folder.write_roster(self.roster.as_json())

    # --- watching -----------------------------------------------------------------------------------

    def _warn_of_collapse(self, norm: float | None, server_round: int) -> None:
        if norm is None:
            return
        self.first_norm = norm if self.first_norm is None else self.first_norm
        if norm < self.first_norm / 3:
            log.warning(
                "warning: round %d: the mean norm of the prototypes has fallen from %.3g in round 1 to %.3g: the "
                "features collapse; lower `prototype-weight`, or spread the targets out",
                server_round,
                self.first_norm,
                norm,
            )

    def _warn_of_problems(self, replies: Sequence[Reply], server_round: int) -> None:
        for reply in replies:
            if reply.problem:
                log.warning("warning: round %d, client %d: %s", server_round, reply.partition, reply.problem)


def _messages_of(replies: Iterable[Reply]) -> list[Message]:
    return [reply.message for reply in replies if reply.message is not None]


def _mean_norm(uploads: Mapping[int, Payload]) -> float | None:
    """Mean Euclidean norm of the class means of the uploads: the scale of the feature space."""
    sets = [payload for payload in uploads.values() if isinstance(payload, PrototypeSet)]
    if not any(len(prototypes) for prototypes in sets):
        return None
    return float(mean_of(sets, "mean").vectors.double().norm(dim=1).mean())


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _refuse_non_finite(downloads: Mapping[int, Payload], server_round: int) -> None:
    for payload in downloads.values():
        bad = ~payload.vectors.isfinite().all(dim=1)
        if bad.any():
            raise RunError(
                f"round {server_round}: the global prototype of class {int(payload.labels[bad][0])} is not "
                "finite; lower `learning-rate` or the method's scale and resume from the round before."
            )
