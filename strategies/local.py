"""`local`: no exchange at all. The floor that every method must beat.

Each client trains its private model on its own rows with cross-entropy; its prototypes serve its own evaluation.
Nothing goes up or down but the figures that every method reports.
"""

from collections.abc import Mapping

from federation.settings import RULES
from federation.wire.payloads import Payload
from strategies.contract import Method, Objective
from strategies.outcome import Outcome, State
from strategies.rounds.flower import PrototypeStrategy


class Local(PrototypeStrategy):
    """Server half: samples, evaluates and records like any other."""

    def aggregate(self, uploads: Mapping[int, Payload], state: State, server_round: int) -> Outcome:
        """Nothing was uploaded; nothing goes down."""
        return Outcome(state, {})


METHOD = Method(
    strategy=Local,
    objective=Objective,
    sends=None,
    receives=None,
    rules=tuple(rule for rule in RULES if rule != "global-prototypes"),
)
