"""FedAvg (McMahan et al., AISTATS 2017): clients of one architecture share the mean of their models.

    client   trains w^r by CE for E epochs, to w_i; sends all weights
    server   w^{r+1} = sum_{i in S} omega_i w_i / sum_{i in S} omega_i,  omega_i = n_i (`samples`) or 1 (`uniform`)
    predict  the classifier of w^{r+1}: `received`; the other rules judge w_i, the client's model after training

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
        """From `fedavg.weighting`."""
        return self.options[FedAvgSettings].weighting


METHOD = replace(
    AVERAGING,
    server=FedAvg,
    settings={"fedavg": FedAvgSettings},
    ignored_settings=lambda options: m.OF_CLAIMS if options[FedAvgSettings].weighting == "uniform" else frozenset(),
)
