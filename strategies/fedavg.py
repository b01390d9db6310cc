"""FedAvg (McMahan et al., AISTATS 2017): one model for all clients of an architecture, the mean of theirs.

    client   from w^r by CE, E epochs, to w_i; sends all of it
    server   w^{r+1} = sum_{i in S} omega_i w_i / sum_{i in S} omega_i,  omega_i = n_i (`samples`) or 1 (`uniform`)
    predict  the classifier of w^{r+1}: `received`; the own rules judge w_i, the client after its training

Buffers (the running statistics of batch norms) are averaged like weights unless `share-buffers` is "own".
"""

from typing import Literal

from federation.settings import RECEIVED
from strategies.contract import Exchange, Method, Options, Spec, method_settings
from strategies.weights import EXTRACTOR, HEAD, SHARED_RULES, AveragedWeights, SharedObjective


@method_settings
class FedAvgSettings:
    """`fedavg.*`.

    Attributes:
        weighting: how clients weigh in the mean. Paper: samples.
    """

    weighting: Literal["samples", "uniform"] = "samples"


class FedAvgObjective(SharedObjective):
    """Client half: the whole model travels."""

    parts = (EXTRACTOR, HEAD)


class FedAvg(AveragedWeights):
    """Server half."""

    @property
    def weighting(self) -> str:
        """By `fedavg.weighting`."""
        return self.options[FedAvgSettings].weighting


def whole_model(options: Options) -> Exchange:
    """All weights, both ways."""
    parts = (Spec("weights", EXTRACTOR, sums=True), Spec("weights", HEAD, sums=True))
    return Exchange(parts, parts)


METHOD = Method(
    server=FedAvg,
    objective=FedAvgObjective,
    settings={"fedavg": FedAvgSettings},
    exchange=whole_model,
    inference=RECEIVED,
    rules=SHARED_RULES,
)
