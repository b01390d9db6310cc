"""PFPL (Zeng et al., 2025; arXiv 2510.03726): each client gets personal prototypes, closer to its domain than a mean
over all clients.

    server   P_i^(k) = alpha p_i^(k) + (1 - alpha) sum_{m != i} w_im p_m^(k),  sum_m w_im = 1        (Eq. 4)
    client   L = CE(g(z), y) + lambda R(z, P_i^(y)),  lambda = `prototype-weight`, R by `prototype-loss`   (Eq. 5)
    predict  argmax g(z)

Departures. As printed, the weight k_im grows with the distance, while the text says that "prototypes from the same
domain will assign more weight": `similarity`, w_im ~ 1 / (||p_i - p_m||^2 + 1e-8), follows the text and is the default;
`distance`, w_im ~ ||p_i - p_m||^2, is the formula. The sum excludes m = i: alpha is the client's own share. The server
mixes the latest prototypes of all clients, including those not sampled this round; a client that has not uploaded yet
gets the unweighted mean of every class reported so far (the paper's "unbiased prototypes"), or none if alpha is 1: then
clients learn nothing from each other, which is the control. Eq. 5 to 7 pull the class prototype C_i^(k), summed over
classes; the text ("local instance embeddings") and this file pull each sample. Algorithm 1, lines 21 and 22, which
replaces a client's own set by its personalised one, is not implemented: the next round measures the own set again. The
paper's lambda is 1, and R its L2 distance (Eq. 7), whose symbol it defines as a sum of squares for k_im; the presets
use the distance (`l2`), because with the squares clients diverge. The paper names three values of alpha, and a weight
decay printed as e^-5; which data set has which alpha, and 1e-5, are our interpretations. The paper's text has 100
rounds, its Table 1 has 200.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from protosphere import method as m
from protosphere.prototypes.personalisation import personalise
from protosphere.strategies.by_client import pack_parts, unpack_parts


@m.method_settings
class PFPLSettings:
    """`pfpl.*`.

    Attributes:
        alpha: share of the client's own prototype. Paper: 0.3, 0.5 or 0.6, by data set.
        weighting: weights of other clients. Paper: `similarity` in words, `distance` as printed.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    weighting: Literal["similarity", "distance"] = "similarity"


class PFPL(m.ServerHalf):
    """Server half: the latest prototypes of every client, and a personal mixture of them for each client."""

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Eq. 4 for every client that has ever uploaded; the unweighted mean for the others."""
        options = self.options[PFPLSettings]
        fresh = {partition: upload for partition, upload in m.prototype_sets(uploads).items() if len(upload)}
        latest = dict(sorted((unpack_parts(m.PrototypeSet, state) | fresh).items()))
        if not latest:
            return m.Outcome(state, {})
        if options.alpha == 1:
            return m.Outcome(pack_parts(latest), _as_downloads(latest))
        personalised = personalise(latest, options.alpha, options.weighting)
        means = m.aggregate(list(latest.values()), "mean")
        return m.Outcome(pack_parts(latest), m.to_everyone(means) | _as_downloads(personalised))


def _as_downloads(prototypes: Mapping[int, m.PrototypeSet]) -> dict[int, m.Payload]:
    return {partition: {m.PROTOTYPES.name: client_prototypes} for partition, client_prototypes in prototypes.items()}


METHOD = m.Method(
    server=PFPL,
    objective=m.PullObjective,
    settings={"pfpl": PFPLSettings},
    inference="classifier",
    releases=m.any_options,
)
