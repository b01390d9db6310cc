"""FedUV (Son et al., CVPR 2024): FedAvg with penalties that keep outputs varied and features spread.

    client   trains w^r by CE + lambda_V V + lambda_U U, E epochs
             V = mean_c max(0, t - std_batch softmax(g(z))_c),  t = 1 / sqrt(K)
             U = mean_{i<j} exp(-||z_i - z_j||^2 / m),  m the median of the batch's non-zero squared distances
    server   FedAvg's: w^{r+1} = sum_{i in S} n_i w_i / sum_{i in S} n_i
    predict  the classifier of w^{r+1}: `received`

t is the standard deviation of an identity matrix, unbiased, as in the authors' code; m keeps its gradient, so U is
invariant to the features' scale. ProtoNorm's table calls the two weights mu and lambda, the authors lambda and mu. The
authors' cosine decay of the learning rate over rounds is not implemented.
"""

from dataclasses import replace

from torch.nn.functional import softmax

from protosphere import method as m
from protosphere.prototypes.losses import missing_variance, uniformity
from protosphere.strategies.weights import AVERAGING, WholeObjective


@m.method_settings
class FedUVSettings:
    """`feduv.*`.

    Attributes:
        variance_weight: lambda_V. Authors: 2.5.
        uniformity_weight: lambda_U. Authors: 0.5.
    """

    variance_weight: m.NotNegative = 2.5
    uniformity_weight: m.NotNegative = 0.5


class FedUVObjective(WholeObjective):
    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        plain = super().loss(state, batch, phase, round_number)
        options = self.options[FedUVSettings]
        variance_penalty = missing_variance(softmax(state.module.classify(plain.features), dim=1))
        spread = uniformity(plain.features)
        penalised = plain.plus("variance", variance_penalty, options.variance_weight)
        return penalised.plus("uniformity", spread, options.uniformity_weight)


METHOD = replace(AVERAGING, objective=FedUVObjective, settings={"feduv": FedUVSettings})
