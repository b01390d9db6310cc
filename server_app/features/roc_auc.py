"""The area under the ROC curve over clients: each tells its own, of its own test samples; the mean is by samples."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import MetricRecord, RecordDict

from protosphere.record.confusion import MANY
from protosphere.record.replies import Reply
from protosphere.server_app.feature import Feature
from protosphere.strategies import Run
from protosphere.wire.checks import MessageError
from protosphere.wire.claims import over_claimed
from protosphere.wire.payloads import Identity, Instruction
from protosphere.wire.roc_auc import RECORD, decode_auc


class RocAuc(Feature):
    """Asks those who evaluate, where the setting `roc-auc` says so."""

    name = RECORD
    record_type = MetricRecord

    @staticmethod
    def applies(run: Run) -> bool:
        return run.settings.roc_auc

    def instruct(self, partition: int, instruction: Instruction) -> Instruction:
        return replace(instruction, asks=(*instruction.asks, self.name)) if instruction.evaluate else instruction

    def check(self, reply: Reply, records: RecordDict, identity: Identity | None) -> Reply:
        if RECORD not in records:
            return reply
        if reply.report is None or reply.report.evaluation is None or not reply.report.evaluation.rows[0]:
            return reply.refusing("area under the ROC curve dropped: there is no evaluation beside it")
        try:
            auc = decode_auc(records.metric_records[RECORD])
        except MessageError as error:
            return reply.refusing(f"area under the ROC curve dropped: {error}")
        return replace(reply, answers={**reply.answers, self.name: auc})

    def figures(self, of_round: int, replies: Sequence[Reply]) -> Mapping[str, Any]:
        areas: dict[int, float] = {}
        rows: dict[int, int] = {}
        for reply in sorted(replies, key=lambda reply: reply.partition):
            evaluation = reply.report.evaluation if reply.report else None
            if self.name in reply.answers and evaluation is not None:
                areas[reply.partition] = reply.answers[self.name]
                rows[reply.partition] = evaluation.rows[0]
        if not areas:
            return {}
        shares = over_claimed(rows, self.settings.max_weight_ratio)
        weights = {partition: shares.get(partition, 1.0) * count for partition, count in rows.items()}
        mean = math.fsum(weights[partition] * area for partition, area in areas.items()) / math.fsum(weights.values())
        # as with the confusion, of many clients no one's own
        clients = {str(partition): area for partition, area in areas.items()} if len(areas) < MANY else {}
        figures = {"of_round": of_round, "rule": self.run.inference, "mean": mean, "worst": min(areas.values())}
        return {RECORD: figures | {"clients": len(areas)} | ({"by_client": clients} if clients else {})}
