"""`local`: no exchange at all. The floor that every method must beat.

Each client trains its private model on its own rows with cross-entropy; its prototypes serve its own evaluation.
Nothing goes up or down but the figures that every method reports.
"""

from protosphere.core.settings import RULES
from protosphere.strategies.contract import NOTHING, Method, Objective, ServerHalf


class LocalObjective(Objective):
    """Client half: cross-entropy alone."""

    of_prototypes = False


METHOD = Method(
    server=ServerHalf,
    objective=LocalObjective,
    exchange=lambda options: NOTHING,
    rules=tuple(rule for rule in RULES if rule != "global-prototypes"),
)
