"""Base of methods with one averaged model and one vector per class (FedNH, FedFA).

    client   uploads parts of its model, and a prototype per class that it holds
    server   AveragedWeights' means, and v_c updated from sums over the class's holders, as the method defines

Both ends draw the same initial v_c from the run's seed, so round 1 sends nothing.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from protosphere import method as m
from protosphere.strategies.weights import WEIGHT, AveragedWeights, Sums, both_ways

VECTORS = "vectors"  # entry of the state, (K, d) float64
CLASS_SUMS, CLASS_WEIGHTS = "class-sums", "class-weights"  # entries of a total: (K, d) and (K,)


def with_class_vectors(*parts: str) -> m.Exchange:
    """Parts of weights and class vectors, in both directions."""
    weights = both_ways(*parts)
    return m.Exchange((*weights.up, m.PROTOTYPES), (*weights.down, m.PROTOTYPES))


def received_vectors(received: m.Payload | None, start: Tensor) -> m.PrototypeSet:
    """v_c of all classes as received, (K, d); before the first message, the initial ones in float32."""
    if received is None or m.PROTOTYPES.name not in received:
        return m.PrototypeSet(torch.arange(len(start)), start.float())
    return m.prototypes_of(received)


def orthonormal(num_classes: int, dim: int, seed: int) -> Tensor:
    """K <= d orthonormal rows of a random basis, (K, d) float64."""
    start = torch.empty(num_classes, dim, dtype=torch.float64)
    return torch.nn.init.orthogonal_(start, generator=m.generator(seed, "class-vectors"))


class AveragedWithClassVectors(AveragedWeights):
    one_architecture = True

    def start(self) -> Tensor:
        """v_c^1, (K, d) float64."""
        raise NotImplementedError(f"{type(self).__name__} does not define its initial class vectors")

    def update_vectors(self, vectors: Tensor, sums: Tensor, weights: Tensor, total: Tensor) -> Tensor:
        """Compute v_c^{r+1}, (K, d).

        Args:
            vectors: v_c^r, (K, d).
            sums: omega_i times prototype, summed over a class's holders, (K, d).
            weights: the sums of these omega_i, (K,); 0 for a class that no client reported.
            total: the sum of omega_i over all uploads, ().
        """
        raise NotImplementedError(f"{type(self).__name__} does not define how its class vectors are updated")

    def begin(self) -> m.Outcome:
        return m.Outcome({VECTORS: self.start()}, {})

    def contribution(self, upload: m.Payload, identity: m.Identity) -> Sums:
        prototypes, omega = m.prototypes_of(upload), self.omega(identity)
        sums, _ = prototypes.with_vectors(omega * prototypes.vectors.double()).table(self.num_classes)
        weights = torch.zeros(self.num_classes, dtype=torch.float64)
        weights[prototypes.labels] = omega
        return {**super().contribution(upload, identity), CLASS_SUMS: sums, CLASS_WEIGHTS: weights}

    def finish(self, totals: Mapping[int, Sums], state: m.State, server_round: int) -> m.Outcome:
        outcome = super().finish(totals, state, server_round)
        ((group, total),) = totals.items()
        vectors = self.update_vectors(state[VECTORS], total[CLASS_SUMS], total[CLASS_WEIGHTS], total[WEIGHT])
        prototypes = m.PrototypeSet(torch.arange(self.num_classes), vectors.float())
        payload = {**outcome.downloads[group], m.PROTOTYPES.name: prototypes}
        return replace(outcome, state={VECTORS: vectors}, downloads={group: payload})
