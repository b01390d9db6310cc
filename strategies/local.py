"""`local`: no exchange at all. The floor that every method must beat.

Each client trains its private model on its own rows with cross-entropy; its prototypes serve its own evaluation.
Nothing goes up or down but the figures that every method reports.
"""

from federation.settings import RULES
from strategies.base import PrototypeStrategy
from strategies.method import Method, Objective


class Local(PrototypeStrategy):
    """Server half: samples, evaluates and records like any other; there is nothing to aggregate."""


METHOD = Method(
    strategy=Local,
    objective=Objective,
    sends=None,
    receives=None,
    rules=tuple(rule for rule in RULES if rule != "global-prototypes"),
)
