"""What the server does under `privacy = "release"`: it keeps the means of the releases, and sends them beside each
download, for the rule `encoder` (strategies/release.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import RecordDict
from torch import Tensor

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.record.folder import RunFolder
from protosphere.record.replies import Reply
from protosphere.server_app.feature import Feature
from protosphere.strategies import Run
from protosphere.strategies.release import encoder_means, joined, with_classes
from protosphere.wire.payloads import Identity, Instruction, Payload


class Privacy(Feature):
    """Of a run under `privacy`."""

    tensors_as = "encoder-means"

    def __init__(self, run: Run, folder: RunFolder):
        super().__init__(run, folder)
        self._means: PrototypeSet | None = None

    @staticmethod
    def applies(run: Run) -> bool:
        return run.private

    def opening(self) -> Sequence[str]:
        """What a guarantee does not cover, beside wherever its epsilon stands."""
        if self.settings.privacy_measure:
            return [
                "warning: `privacy-measure` is true: figures of private samples leave in the clear, outside the "
                "guarantee of `privacy`"
            ]
        return [
            "  accuracy is withheld by the clients: `protosphere report --state <client's folder>` prints it at a site",
            "  not covered by `privacy`: how long a client takes, that it takes part, its model, class list, "
            "domain and name, other code than this, and samples that come from the run's partition instead of the "
            "site's own data",
        ]

    def instruct(self, partition: int, instruction: Instruction) -> Instruction:
        return replace(instruction, payload=joined(instruction.payload, self._means, self.federation.codec.dim))

    def check(self, reply: Reply, records: RecordDict, identity: Identity | None) -> Reply:
        """Without figures, which clients keep: of one that tells some they would be the run's, and nothing that it has
        said of its samples could be held against them."""
        report = reply.report
        if self.settings.privacy_measure or report is None or not (report.evaluation or report.training):
            return reply
        report = replace(report, evaluation=None, training=None)
        return replace(reply, report=report).refusing("figures dropped: under `privacy` a client keeps them")

    def uploads(self, uploads: Mapping[int, Payload]) -> Mapping[int, Payload]:
        released = with_classes(uploads)
        self._means = encoder_means(released, self.settings.privacy_scale, self._means)
        return released

    def tensors(self) -> Mapping[str, Tensor]:
        return {} if self._means is None else self._means.fields()

    def load(self, stored: Any, tensors: Mapping[str, Tensor]) -> None:
        self._means = PrototypeSet(**tensors) if tensors else None
