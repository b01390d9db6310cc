"""FedAvg (McMahan et al., AISTATS 2017): one model for all clients of an architecture, the mean of theirs.

    client   from w^r by CE, E epochs, to w_i; sends all of it
    server   w^{r+1} = sum_{i in S} omega_i w_i / sum_{i in S} omega_i,  omega_i = n_i (`samples`) or 1 (`uniform`)
    predict  the classifier of w^{r+1}: `received`; the own rules judge w_i, the client after its training

Buffers (the running statistics of batch norms) are averaged like weights unless `share-buffers` is "own".
"""

from dataclasses import replace
from typing import Literal

from protosphere import method as m
from protosphere.strategies.weights import AVERAGING, AveragedWeights


@m.method_settings
class FedAvgSettings:
    """`fedavg.*`.

    Attributes:
        weighting: weights of clients. Paper: samples.
    """

    weighting: Literal["samples", "uniform"] = "samples"


class FedAvg(AveragedWeights):
    """Server half."""

    @property
    def weighting(self) -> str:
        """By `fedavg.weighting`."""
        return self.options[FedAvgSettings].weighting


METHOD = replace(
    AVERAGING,
    server=FedAvg,
    settings={"fedavg": FedAvgSettings},
    ignored_settings=lambda options: m.OF_CLAIMS if options[FedAvgSettings].weighting == "uniform" else frozenset(),
)
