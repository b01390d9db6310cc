"""FedBN (Li et al., ICLR 2021): FedAvg without the batch norms, which stay local.

    client   trains w^r by CE for E epochs; sends all but the parameters and statistics of batch-norm modules
    server   FedAvg's: sum_{i in S} n_i w_i / sum_{i in S} n_i
    predict  the received layers with the client's own norms: `received`

Batch norms are recognised by module type. Public code looks for `bn` in the name and therefore averages those of
residual shortcuts. A model without batch norms is averaged whole, as by FedAvg. Departure: clients are weighted by
sample counts; in the authors' code, equally.
"""

from dataclasses import replace

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from protosphere import method as m
from protosphere.strategies.weights import AVERAGING, WholeObjective


class FedBNObjective(WholeObjective):
    def shared(self, module: nn.Module) -> dict[str, m.Weights]:
        norms = tuple(f"{name}." for name, submodule in module.named_modules() if isinstance(submodule, _BatchNorm))
        return {
            part: m.Weights({name: t for name, t in weights.tensors.items() if not name.startswith(norms)})
            for part, weights in super().shared(module).items()
        }


METHOD = replace(AVERAGING, objective=FedBNObjective)
