"""LG-FedAvg (Liang et al., 2020): representations stay local, the classifier is shared.

    client   trains f_i and g by CE; sends g alone, so extractors may have any architecture
    server   g = sum_{i in S} n_i g_i / sum_{i in S} n_i
    predict  the received g on the client's own features: `received`

Departures. The mean is weighted by n_i as in the paper (the authors' code takes the unweighted mean, and starts from a
model trained by FedAvg, which is not implemented). The initial head is equal for all architectures.
"""

from dataclasses import replace

from protosphere.strategies.weights import AVERAGING, HEAD, SharedObjective, both_ways


class LGFedAvgObjective(SharedObjective):
    parts = (HEAD,)


METHOD = replace(AVERAGING, objective=LGFedAvgObjective, exchange=lambda options: both_ways(HEAD))
