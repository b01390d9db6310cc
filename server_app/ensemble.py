"""The ensemble (FedPAGR, section 4): all clients' mean class probabilities on one shared test set, scored.

A benchmark's measurement: it needs a test set that everybody has, and its answers are no prototypes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from protosphere.core.errors import DataError, SettingError
from protosphere.core.seeds import limited_threads
from protosphere.core.settings import Settings
from protosphere.data.from_settings import shared_test_spec
from protosphere.data.shared_test_set import SharedLabels, shared_labels
from protosphere.record.folder import RunFolder
from protosphere.record.replies import Reply
from protosphere.server_app.feature import Feature, Federation
from protosphere.strategies import Run
from protosphere.wire.checks import MessageError
from protosphere.wire.ensemble import decode_answers
from protosphere.wire.payloads import Identity, Instruction


class Ensemble(Feature):
    """Asks all clients for their class probabilities in every `ensemble-every`-th round from the first on, and after
    the last."""

    name = "ensemble"

    def __init__(self, run: Run, folder: RunFolder):
        super().__init__(run, folder)
        self._labels: SharedLabels | None = None
        self._last_number = 0

    @staticmethod
    def applies(run: Run) -> bool:
        return run.settings.ensemble_every > 0

    def start(self, federation: Federation) -> None:
        super().start(federation)
        self._labels = shared_test_set(self.settings, federation.partitions, federation.codec.num_classes)

    def last_evaluation(self, number: int) -> None:
        self._last_number = number

    def asks_everyone(self, number: int) -> bool:
        return (number - 1) % self.settings.ensemble_every == 0 or number == self._last_number

    def instruct(self, partition: int, instruction: Instruction) -> Instruction:
        if not self.asks_everyone(instruction.round):
            return instruction
        return replace(instruction, asks=(*instruction.asks, self.name))

    def check(self, reply: Reply, records: RecordDict, identity: Identity | None) -> Reply:
        record = records.array_records.get(self.name)
        if record is None:
            return reply
        if self._labels is None or reply.report is None or not self.asks_everyone(reply.report.round):
            return reply.refusing("ensemble answer dropped: nobody asked for one")
        try:
            probabilities = decode_answers(record, self._labels)
        except MessageError as error:
            return reply.refusing(f"ensemble answer dropped: {error}")
        return reply if reply.false else replace(reply, answers={**reply.answers, self.name: probabilities})

    def figures(self, of_round: int, replies: Sequence[Reply]) -> Mapping[str, Any]:
        answers = {reply.partition: reply.answers[self.name] for reply in replies if self.name in reply.answers}
        if not answers or self._labels is None:
            return {}
        with limited_threads(1):
            return {self.name: {"of_round": of_round, **score(answers, self._labels)}}


def shared_test_set(settings: Settings, clients: int, num_classes: int) -> SharedLabels | None:
    """The right answers, where `ensemble-every` asks for the measurement.

    Raises:
        SettingError: the server does not have the shared test set, or one of other classes than the clients'.
    """
    if not settings.ensemble_every:
        return None
    try:
        shared = shared_labels(shared_test_spec(settings, clients))
    except DataError as error:
        raise SettingError(
            f"`ensemble-every` is {settings.ensemble_every}, but the server cannot open the shared test set: {error}"
        ) from None
    if shared.num_classes != num_classes:
        raise SettingError(
            f"the shared test set has {shared.num_classes} classes, but the clients have {num_classes}; give both the "
            "same classes.txt."
        )
    return shared


def score(answers: Mapping[int, Tensor], shared: SharedLabels) -> dict[str, Any]:
    """Accuracy of the ensemble: argmax of the mean of the clients' probabilities.

    Args:
        answers: by partition, each (n, K) float16; at least one.

    Returns:
        accuracy, clients (how many answered) and rows.
    """
    total = torch.zeros(len(shared.labels), shared.num_classes, dtype=torch.float64)
    # in a fixed order: the sum must not depend on who came first
    for partition in sorted(answers):
        total += answers[partition]
    right = int((total.argmax(dim=1) == shared.labels).sum())
    return {"accuracy": right / len(shared.labels), "clients": len(answers), "rows": len(shared.labels)}
