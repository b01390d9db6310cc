"""FedBN (Li et al., ICLR 2021): FedAvg without the batch norms, which stay local.

    client   trains w^r by CE for E epochs; sends all but the parameters and statistics of batch-norm modules
    server   FedAvg's: sum_{i in S} n_i w_i / sum_{i in S} n_i
    predict  the received layers with the client's own norms: `received`

Batch norms are recognised by module type. Public code looks for `bn` in the name and therefore averages those of
residual shortcuts. Departure: clients are weighted by sample counts; in the authors' code, equally.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from protosphere import method as m
from protosphere.strategies.weights import AVERAGING, AveragedWeights, WholeObjective


class FedBNObjective(WholeObjective):
    def shared(self, module: nn.Module) -> dict[str, m.Weights]:
        norms = tuple(f"{name}." for name, submodule in module.named_modules() if isinstance(submodule, _BatchNorm))
        return {
            part: m.Weights({name: t for name, t in weights.tensors.items() if not name.startswith(norms)})
            for part, weights in super().shared(module).items()
        }


class FedBN(AveragedWeights):
    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Warn of clients that share every parameter."""
        notices = super().check(num_classes, dim)
        bare = set()
        for partition, identity in self.identities.items():
            shapes = [shape for layout in self.layouts(partition).values() for _, shape in layout]
            if sum(map(prod, shapes)) >= identity.parameters:
                bare.add(identity.model)
        if not bare:
            return notices
        models = ", ".join(sorted(bare))
        return (*notices, f"models without batch norms ({models}): for them, `fedbn` equals `fedavg`")


METHOD = replace(AVERAGING, server=FedBN, objective=FedBNObjective)
