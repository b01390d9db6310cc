"""FeSEM (Xie et al., 2020; Long et al., World Wide Web 2023): several models, each client trains the nearest.

    client   from its centre by CE, E epochs; sends all of it
    server   each upload joins the nearest centre, by the distance over all parameters; W_c <- the plain mean of those
             that joined it; one that nobody joined stays
    predict  the classifier of its centre: `received`

A client not heard of keeps its centre; one never heard of gets that of the largest cluster. Until C uploads have come
in one round there is one centre, their mean; then greedy k-means++ takes C of them (a public clustering library draws
C random models). The uploads of that one round are held at once; of every other round one at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from protosphere import method as m
from protosphere.prototypes.weights import STATISTICS, flat, unflat
from protosphere.strategies.weights import AVERAGING, AveragedWeights

CENTRES, JOINED = "centres", "joined"  # of the state: (C, n) float64, and by partition its centre or -1


@m.method_settings
class FeSEMSettings:
    """`fesem.*`.

    Attributes:
        clusters: C, number of clusters.
    """

    clusters: Annotated[int, Field(ge=1)] = 3


class FeSEM(AveragedWeights):
    """Server half."""

    shared_settings = MappingProxyType({})  # its centres are plain means
    one_architecture = True

    @property
    def weighting(self) -> str:
        """A centre is the plain mean of those who join it."""
        return "uniform"

    @property
    def clusters(self) -> int:
        """C, or the number of clients where these are fewer."""
        return min(self.options[FeSEMSettings].clusters, len(self.identities))

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Say where there are fewer clients than centres, or fewer of a round."""
        notices = super().check(num_classes, dim)
        clusters, clients = self.options[FeSEMSettings].clusters, len(self.identities)
        sampled = max(1, int(self.settings.fraction_train * clients + 0.5))
        if clusters > clients:
            return (f"setting `fesem.clusters` is {clusters}, but there are {clients} clients, and so as many centres",)
        if clusters > sampled:
            return (
                f"setting `fesem.clusters` is {clusters}, but a round has {sampled} clients: there stays one centre, "
                "the plain mean; raise `fraction-train`",
            )
        return notices

    def download(
        self, partition: int, downloads: Mapping[int, m.Payload], state: m.State, server_round: int, trains: bool
    ) -> int | None:
        """Its centre; that of the most clients for one never heard of."""
        if not state:
            return 0
        joined = self._read_joined(state)
        centre = int(joined[partition])
        return centre if centre >= 0 else int(joined[joined >= 0].mode().values)

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Join, then average."""
        layouts = self.layouts(min(self.identities))
        centres = self._choose_centres(uploads, state, server_round)
        is_parameter = _mark_parameters(layouts)
        joined = self._read_joined(state)
        if state and len(centres) != len(state[CENTRES]):
            # who is not heard of now was of the one centre that there was
            joined[joined >= 0] = (centres - state[CENTRES])[:, is_parameter].norm(dim=1).argmin()
        sums, members = torch.zeros_like(centres), torch.zeros(len(centres), dtype=torch.float64)
        for partition, upload in uploads.items():
            values = _flatten(upload)
            nearest = int((centres - values)[:, is_parameter].norm(dim=1).argmin())
            joined[partition] = nearest
            sums[nearest] += values
            members[nearest] += 1
        means = sums / members.clamp(min=1).unsqueeze(1)
        centres = torch.where(members.unsqueeze(1) > 0, means, centres)
        downloads: dict[int, m.Payload] = {index: _unflatten(centre, layouts) for index, centre in enumerate(centres)}
        sizes = " ".join(str(int(number)) for number in torch.bincount(joined[joined >= 0], minlength=len(centres)))
        return m.Outcome({CENTRES: centres, JOINED: joined}, downloads, {"cluster_sizes": sizes})

    def _choose_centres(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> Tensor:
        """Those of the last round; or, of the first round with enough uploads, C of them."""
        clusters = self.clusters
        last_centres = state[CENTRES] if state else None
        # several stay as they are, also where clients that come or go would allow for another number
        if last_centres is not None and (len(last_centres) >= min(2, clusters) or len(uploads) < clusters):
            return last_centres
        if len(uploads) < clusters:
            # any one will do: all join it
            return _flatten(next(iter(uploads.values()))).unsqueeze(0)
        # a client, which loads this file in every message, needs none of it
        from sklearn.cluster import kmeans_plusplus

        rows = torch.stack([_flatten(upload) for upload in uploads.values()])
        parameters = rows[:, _mark_parameters(self.layouts(min(self.identities)))].numpy()
        # scikit-learn's seeds have 32 bits
        seed = m.derive(self.settings.seed, "round", server_round, "centres") % 2**32
        _, indices = kmeans_plusplus(parameters, clusters, random_state=seed)
        return rows[torch.from_numpy(indices).long()]

    def _read_joined(self, state: m.State) -> Tensor:
        """By partition the centre that it joined last, -1 where it was never heard of."""
        joined = torch.full((max(identity.partitions for identity in self.identities.values()),), -1)
        return state[JOINED].clone() if state else joined


def _flatten(upload: m.Payload) -> Tensor:
    """All values of an upload, by the names of its parts, (n,) float64."""
    return torch.cat([flat(m.weights_of(upload, name)) for name in sorted(upload)])


def _unflatten(values: Tensor, layouts: Mapping[str, m.Layout]) -> m.Payload:
    """Inverse of `_flatten`."""
    named = sorted(layouts.items())
    sizes = [sum(torch.Size(shape).numel() for _, shape in layout) for _, layout in named]
    pieces = values.split(sizes)
    return {part: unflat(piece, layout) for (part, layout), piece in zip(named, pieces, strict=True)}


def _mark_parameters(layouts: Mapping[str, m.Layout]) -> Tensor:
    """Which values of `_flatten` are parameters and no running statistics, (n,) bool."""
    tensors = [tensor for _, layout in sorted(layouts.items()) for tensor in layout]
    return torch.cat([torch.full((torch.Size(s).numel(),), not name.endswith(STATISTICS)) for name, s in tensors])


METHOD = replace(
    AVERAGING,
    server=FeSEM,
    settings={"fesem": FeSEMSettings},
    ignored_settings=lambda options: m.OF_CLAIMS,
)
