"""LG-FedAvg (Liang et al., 2020): representations stay at home, the classifier is everybody's.

    client   f_i and g by CE; sends g alone, so that extractors may be of any architecture
    server   g = sum_{i in S} n_i g_i / sum_{i in S} n_i
    predict  the received g on the own features: `received`

Departures. Weighted by n_i as in the paper (the authors' code takes the plain mean, and starts from a model that FedAvg
trained: not built). The head is drawn alike for all architectures.
"""

from dataclasses import replace

from protosphere.strategies.weights import AVERAGING, HEAD, SharedObjective, both_ways


class LGFedAvgObjective(SharedObjective):
    """Client half: the head travels."""

    parts = (HEAD,)


METHOD = replace(
    AVERAGING,
    objective=LGFedAvgObjective,
    exchange=lambda options: both_ways(HEAD),
)
