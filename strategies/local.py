"""`local`: no exchange at all, the baseline that every method must beat.

Each client trains its private model on its own samples with cross-entropy; its prototypes serve its own evaluation.
Only the metrics that every method reports are sent.
"""

from protosphere import method as m

METHOD = m.Method(
    server=m.ServerHalf,
    objective=m.Objective,
    exchange=lambda options: m.NOTHING,
    rules=tuple(rule for rule in m.RULES if rule != "global-prototypes"),
    reads_prototypes=False,
)
