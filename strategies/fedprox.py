"""FedProx (Li et al., MLSys 2020): FedAvg with a penalty on the distance to the received weights.

    client   trains w^r by CE + (mu / 2) ||w - w^r||^2 over the parameters, E epochs
    server   FedAvg's: w^{r+1} = sum_{i in S} n_i w_i / sum_{i in S} n_i
    predict  the classifier of w^{r+1}: `received`

w^1 is the common initial model, so the term applies from round 1. It does not apply to running statistics, which are
not parameters. The paper tunes mu in {0.001, 0.01, 0.1, 1}; 0 is FedAvg.
"""

from dataclasses import replace

from protosphere import method as m
from protosphere.strategies.weights import AVERAGING, WholeObjective, anchored, distance


@m.method_settings
class FedProxSettings:
    """`fedprox.*`.

    Attributes:
        mu: weight of the distance to the received weights. Paper: tuned; 1 on MNIST and FEMNIST.
    """

    mu: m.NotNegative = 1.0


class FedProxObjective(WholeObjective):
    def receive(self, state: m.ClientState, received: m.Payload | None, round_number: int) -> None:
        """Take w^r, and keep a copy for the distance."""
        super().receive(state, received, round_number)
        state.received = anchored(state.module)

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        plain = super().loss(state, batch, phase, round_number)
        weight = self.options[FedProxSettings].mu / 2
        return plain.plus("proximal", distance(state.module, state.received), weight)


METHOD = replace(AVERAGING, objective=FedProxObjective, settings={"fedprox": FedProxSettings})
