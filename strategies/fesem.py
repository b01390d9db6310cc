"""FeSEM (Xie et al., 2020; Long et al., World Wide Web 2023): several models; each client trains the nearest one.

    client   trains its centre's model by CE for E epochs; sends all weights
    server   each upload joins the nearest centre, by the distance over all parameters; W_c <- the unweighted
             mean of those that joined it; a centre that none joined stays
    predict  the classifier of its centre: `received`

A client that does not reply keeps its centre; one that never replied gets the centre of the largest cluster. Until C
uploads have arrived in one round, there is one centre, their mean; then greedy k-means++ chooses C of them (a public
clustering library takes C random models).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from protosphere import method as m
from protosphere.prototypes.weights import STATISTICS, flat, unflat
from protosphere.strategies.weights import AVERAGING, AveragedWeights

CENTRES, JOINED = "centres", "joined"  # entries of the state: (C, n) float64, and for each partition its centre or -1


@m.method_settings
class FeSEMSettings:
    """`fesem.*`.

    Attributes:
        clusters: C, number of clusters.
    """

    clusters: m.AtLeastOne = 3


class FeSEM(AveragedWeights):
    shared_settings = MappingProxyType({})  # its centres are unweighted means
    one_architecture = True
    weighting = "uniform"

    @property
    def clusters(self) -> int:
        """C, or the number of clients if that is smaller."""
        return min(self.options[FeSEMSettings].clusters, len(self.identities))

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        notices = super().check(num_classes, dim)
        clusters, clients = self.options[FeSEMSettings].clusters, len(self.identities)
        sampled = max(1, int(self.settings.fraction_train * clients + 0.5))
        if clusters > clients:
            return (
                f"setting `fesem.clusters` is {clusters}, but there are only {clients} clients, so it uses that number",
            )
        if clusters > sampled:
            return (
                f"setting `fesem.clusters` is {clusters}, but a round has {sampled} clients: there will be only one "
                "centre, the mean; raise `fraction-train`",
            )
        return notices

    def download(
        self, partition: int, downloads: Mapping[int, m.Payload], state: m.State, server_round: int, trains: bool
    ) -> int | None:
        """The client's centre; that of the largest cluster if it never replied."""
        if not state:
            return 0
        joined = self._read_joined(state)
        centre = int(joined[partition])
        return centre if centre >= 0 else int(joined[joined >= 0].mode().values)

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        layouts = self.layouts(min(self.identities))
        centres = self._choose_centres(uploads, state, server_round)
        is_parameter = _mark_parameters(layouts)
        joined = self._read_joined(state)
        if state and len(centres) != len(state[CENTRES]):
            # clients that have not replied were assigned to the single centre before
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
        """The centres of the last round; in the first round with enough uploads, C of them."""
        clusters = self.clusters
        last_centres = state[CENTRES] if state else None
        # the number of centres stays, even if clients that come or go would allow another
        if last_centres is not None and (len(last_centres) >= min(2, clusters) or len(uploads) < clusters):
            return last_centres
        if len(uploads) < clusters:
            # any upload will do: all join it
            return _flatten(next(iter(uploads.values()))).unsqueeze(0)
        # a client loads this file for every message and needs none of this
        from sklearn.cluster import kmeans_plusplus

        rows = torch.stack([_flatten(upload) for upload in uploads.values()])
        parameters = rows[:, _mark_parameters(self.layouts(min(self.identities)))].numpy()
        # scikit-learn's seeds have 32 bits
        seed = m.derive(self.settings.seed, "round", server_round, "centres") % 2**32
        _, indices = kmeans_plusplus(parameters, clusters, random_state=seed)
        return rows[torch.from_numpy(indices).long()]

    def _read_joined(self, state: m.State) -> Tensor:
        """For each partition, the centre that it joined last; -1 if it never replied."""
        joined = torch.full((max(identity.partitions for identity in self.identities.values()),), -1)
        return state[JOINED].clone() if state else joined


def _flatten(upload: m.Payload) -> Tensor:
    """All values of an upload, ordered by the names of its parts, (n,) float64."""
    return torch.cat([flat(m.weights_of(upload, name)) for name in sorted(upload)])


def _unflatten(values: Tensor, layouts: Mapping[str, m.Layout]) -> m.Payload:
    """Inverse of `_flatten`."""
    named = sorted(layouts.items())
    sizes = [sum(torch.Size(shape).numel() for _, shape in layout) for _, layout in named]
    pieces = values.split(sizes)
    return {part: unflat(piece, layout) for (part, layout), piece in zip(named, pieces, strict=True)}


def _mark_parameters(layouts: Mapping[str, m.Layout]) -> Tensor:
    """Which values of `_flatten` are parameters, not running statistics, (n,) bool."""
    tensors = [tensor for _, layout in sorted(layouts.items()) for tensor in layout]
    return torch.cat([torch.full((torch.Size(s).numel(),), not name.endswith(STATISTICS)) for name, s in tensors])


METHOD = replace(
    AVERAGING, server=FeSEM, settings={"fesem": FeSEMSettings}, ignored_settings=lambda options: m.OF_CLAIMS
)
