"""Which classes clients take for which: counts of the run's last evaluation, summed over clients."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import MetricRecord, RecordDict

from protosphere.record.confusion import Confusions
from protosphere.record.folder import RunFolder
from protosphere.record.replies import Reply
from protosphere.server_app.feature import Feature
from protosphere.strategies import Run
from protosphere.wire.checks import MessageError
from protosphere.wire.confusion import RECORD, Counts, decode_counts
from protosphere.wire.payloads import Identity, Instruction


class Confusion(Feature):
    """Asks those who evaluate at the end of the run."""

    name = RECORD
    record_type = MetricRecord

    def __init__(self, run: Run, folder: RunFolder):
        super().__init__(run, folder)
        self._confusions: Confusions | None = None

    @staticmethod
    def applies(run: Run) -> bool:
        return run.confusion

    def last_evaluation(self, number: int) -> None:
        models = {partition: identity.model for partition, identity in self.federation.identities.items()}
        self._confusions = Confusions(self.run.inference, models)

    def instruct(self, partition: int, instruction: Instruction) -> Instruction:
        if self._confusions is None or not instruction.evaluate:
            return instruction
        return replace(instruction, asks=(*instruction.asks, self.name))

    def check(self, reply: Reply, records: RecordDict, identity: Identity | None) -> Reply:
        if RECORD not in records:
            return reply
        try:
            counts = self._decode(reply, records, identity)
        except MessageError as error:
            return reply.refusing(f"confusion dropped: {error}")
        assert self._confusions is not None
        self._confusions.add(reply.partition, counts)
        return reply

    def _decode(self, reply: Reply, records: RecordDict, identity: Identity | None) -> Counts:
        evaluation = reply.report.evaluation if reply.report else None
        if self._confusions is None or identity is None or evaluation is None:
            raise MessageError("nobody asked for one, or there is no evaluation beside it")
        rule = self._confusions.rule
        if rule not in evaluation.correct:
            raise MessageError(f"its evaluation has no rule {rule!r}")
        classes = len(identity.class_names)
        return decode_counts(records.metric_records[RECORD], classes, evaluation.rows[0], evaluation.correct[rule][0])

    def figures(self, of_round: int, replies: Sequence[Reply]) -> Mapping[str, Any]:
        return self._confusions.as_json() if self._confusions else {}
