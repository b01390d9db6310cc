"""`local`: no exchange at all. The floor that every method must beat.

Each client trains its private model on its own rows with cross-entropy; its prototypes serve its own evaluation.
Nothing goes up or down but the figures that every method reports.
"""

from protosphere import method as m

METHOD = m.Method(
    server=m.ServerHalf,
    objective=m.Objective,
    exchange=lambda options: m.NOTHING,
    rules=tuple(rule for rule in m.RULES if rule != "global-prototypes"),
    reads_prototypes=False,
)
