"""FedProto (Tan et al., AAAI 2022): clients pull their features towards shared class means.

    server   P_j = mean over the clients that hold class j of p_ij            (Eq. 7 of ProtoNorm)
    client   L = CE(g(z), y) + lambda R(z, gamma P_y),  R by `prototype-loss`
    predict  argmin_j ||z - p_ij||                                            (Eq. 6 of ProtoNorm)

Equations are numbered as in ProtoNorm (Lee, Shin, Choi, 2025), which restates the method.

Departures. R pulls each sample, as in the released code, while Eq. 5 sums over class means. The paper has the Euclidean
distance and lambda 1; its code and our default have the mean squared error (`prototype-loss`). Eq. 3 divides a mean
weighted by n_ij once more by the number of clients, which would shrink the prototypes; we take this as a misprint. The
unweighted mean is the default, as in the released code; the weighted mean uploads n_ij and therefore needs
`disclose-class-counts`. Robust means are ours. gamma is 1; ProtoNorm's Table 5 tries 1.1 to 1.4: the client, not the
server, scales, as in ProtoNorm's Eq. 15.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from protosphere import method as m


@m.method_settings
class FedProtoSettings:
    """`fedproto.*`.

    Attributes:
        aggregation: aggregation of local prototypes. Paper: weighted; its code and ProtoNorm: mean.
        trim: share of holders that `trimmed-mean` removes at each end; unless 0, at least one if three or more hold a
            class. Ours.
        gamma: scale of the targets, relative to the prototype. Paper: 1; ProtoNorm's Table 5: 1.1 to 1.4.
    """

    aggregation: Literal["mean", "weighted", "median", "trimmed-mean", "geometric-median"] = "mean"
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    gamma: m.Positive = 1.0


class FedProtoObjective(m.PullObjective):
    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet | None:
        """gamma P: the client, not the server, scales."""
        return m.scaled(super().targets(state, received), self.options[FedProtoSettings].gamma)

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        """p_ij, with n_ij for the weighted mean only."""
        if state.prototypes is None or not sends_counts(self.options):
            return super().upload(state, round_number)
        return {m.PROTOTYPES.name: state.prototypes}


class FedProto(m.ServerHalf):
    """Server half: the class-wise mean; a class that no client reported keeps its prototype."""

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        options = self.options[FedProtoSettings]
        fresh = m.aggregate(list(m.prototype_sets(uploads).values()), options.aggregation, trim=options.trim)
        prototypes = m.fill_missing_classes(state, fresh)
        # clients multiply the downloads by gamma
        return m.Outcome(m.as_state(prototypes), m.to_everyone(prototypes), scales=(options.gamma, 1.0))


def sends_counts(options: m.Options) -> bool:
    """Only the weighted mean needs the class counts."""
    return options[FedProtoSettings].aggregation == "weighted"


METHOD = m.Method(
    server=FedProto,
    objective=FedProtoObjective,
    settings={"fedproto": FedProtoSettings},
    exchange=lambda options: m.Exchange(up=(m.Part("prototypes", counts=sends_counts(options)),)),
    releases=m.any_options,
)
