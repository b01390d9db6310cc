"""Which clients' class means contradict the others': a sum has no defence of its own against one client among many.

Nothing but the class means m_ij and one covariance S of the rows around them is needed, in the space that S makes a
sphere of radius 1. Two questions are asked:

    far            Is the farthest mean of client i FAR times as far from the clients' centre as is usual? Means of the
                   wrong sign or at random are; those of a hard class, a rare one or another domain are not.
    contradiction  c_ik in [0, 1]: how likely k's means would take a row of one of i's classes for another of k's, and
                   i's means k's, on average over the classes that both have; 1 where a class of one lies where the
                   other has another class. NaN where they share nothing.

A client is left out where it is far, or where those who can judge it contradict it on average (LINE), two at least:
of two who contradict each other nobody can say who is right. These each get a mean without the other's.
docs/studies/attacks_on_statistics.md at commit b07b742 has what liars cost, and whom the lines name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from protosphere.prototypes.prototype_set import PrototypeSet

FEW = 3  # below so many clients nobody can say which of them is the odd one
FAR = 3.0
LINE = 0.65  # of a client's mean contradiction
AGAINST = 0.5  # from which a contradiction counts as one
NEAREST = 0.5  # of the distance between the two nearest classes of a client, its median over clients
ALIKE = 1.5  # of the distance between two clients' means of one class, its median
SHRINKAGE = 0.1
POINTS = 2048  # means that are held against each other at once


@dataclass(frozen=True)
class Disagreement:
    """Who is left out, and who contradicts whom.

    Attributes:
        far, contradicted: clients, in the order in which they were found.
        disputes: client -> those whom it contradicts, of clients that are left in.
    """

    far: Sequence[int] = ()
    contradicted: Sequence[int] = ()
    disputes: Mapping[int, frozenset[int]] = field(default_factory=dict)

    @property
    def left_out(self) -> frozenset[int]:
        """Both kinds."""
        return frozenset((*self.far, *self.contradicted))


def disagreement(means: Mapping[int, PrototypeSet], rows: Mapping[int, Tensor], covariance: Tensor) -> Disagreement:
    """Who contradicts the majority.

    means: client -> its class means; (k_i, d). rows: client -> of how many rows each of them is at least, (k_i,).
    covariance: S of the rows around their own client's class means, (d, d), positive semidefinite. Fewer than half of
    the clients are left out. Costs O(n k d) a block of clients and class means of n = POINTS.
    """
    clients = sorted(client for client, prototypes in means.items() if len(prototypes))
    blocks = max(1, min(sum(len(means[client]) for client in clients) // POINTS + 1, len(clients) // (2 * FEW)))
    findings = [_of_block(clients[start::blocks], means, rows, covariance) for start in range(blocks)]
    return Disagreement(
        [client for finding in findings for client in finding.far],
        [client for finding in findings for client in finding.contradicted],
        {client: opponents for finding in findings for client, opponents in finding.disputes.items()},
    )


def _of_block(
    clients: Sequence[int], means: Mapping[int, PrototypeSet], rows: Mapping[int, Tensor], covariance: Tensor
) -> Disagreement:
    number = len(clients)
    if number < FEW:
        return Disagreement()
    scatter = covariance.double()
    spread = scatter.trace() / len(scatter)
    if not bool(spread > 0):
        return Disagreement()
    sphere = (1 - SHRINKAGE) * scatter + SHRINKAGE * spread * torch.eye(len(scatter), dtype=torch.float64)
    factor = torch.linalg.cholesky(sphere)
    vectors = torch.cat([means[client].vectors.double() for client in clients])
    points = torch.linalg.solve_triangular(factor, vectors.T, upper=False).T
    of_rows = torch.cat([rows[client].double() for client in clients]).clamp_min(1)
    # how far a mean lies from its expectation, squared: rows vary in all directions
    noise = float(torch.cholesky_solve(scatter, factor).trace()) / of_rows
    labels = torch.cat([means[client].labels for client in clients])
    owner = torch.cat([torch.full((len(means[client]),), place) for place, client in enumerate(clients)])
    most = (number - 1) // 2
    far = _find_far(points, owner, noise, number)[:most]
    inside = ~torch.isin(owner, torch.tensor(far, dtype=torch.int64))
    against = torch.full((number, number), torch.nan, dtype=torch.float64)
    if bool(inside.any()):
        against = _contradictions(points[inside], labels[inside], owner[inside], of_rows[inside], noise[inside], number)
    remaining = [place for place in range(number) if place not in far]
    contradicted: list[int] = []
    while len(far) + len(contradicted) < most:
        among = against[remaining][:, remaining]
        measured = ~among.isnan()
        mean = among.nansum(dim=1) / measured.sum(dim=1).clamp_min(1)
        odd = ((among > AGAINST).sum(dim=1) > 1) & (mean > LINE)
        if not bool(odd.any()):
            break
        # of several the one that contradicts most: who is contradicted by liars alone is so less often than they
        worst = remaining[int(among.nansum(dim=1).where(odd, -torch.ones(())).argmax())]
        contradicted.append(worst)
        remaining.remove(worst)
    disputes = {
        clients[place]: frozenset(clients[other] for other in remaining if bool(against[place, other] > LINE))
        for place in remaining
    }
    return Disagreement(
        [clients[place] for place in far],
        [clients[place] for place in contradicted],
        {client: opponents for client, opponents in disputes.items() if opponents},
    )


def _find_far(points: Tensor, owner: Tensor, noise: Tensor, number: int) -> list[int]:
    """Who lies far from everybody, the farthest first. Every client is one, however many classes it has."""
    centre = torch.stack([points[owner == place].mean(dim=0) for place in range(number)]).median(dim=0).values
    squares = (points - centre).square().sum(dim=1)
    usual = _largest(squares, owner, number).sqrt().median()
    # a mean of few rows lies far by chance
    distances = _largest((squares - noise).clamp_min(0), owner, number).sqrt()
    return [int(place) for place in distances.argsort(descending=True) if bool(distances[place] > FAR * usual)]


def _largest(values: Tensor, owner: Tensor, number: int) -> Tensor:
    return values.new_zeros(number).scatter_reduce(0, owner, values, "amax")


def _contradictions(points: Tensor, labels: Tensor, owner: Tensor, rows: Tensor, noise: Tensor, number: int) -> Tensor:
    """c, (number, number), symmetric, NaN on its diagonal."""
    m = len(points)
    squares = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    places = torch.arange(m)
    of_class = torch.full((number, int(labels.max()) + 1), -1)
    of_class[owner, labels] = places
    # [x, l]: the mean that l's client has of x's class
    counterpart = of_class[owner.unsqueeze(0), labels.unsqueeze(1)]
    comparable = (counterpart >= 0) & (counterpart != places) & (owner.unsqueeze(1) != owner)
    counterpart = counterpart.clamp_min(0)
    to_own, apart = squares.gather(1, counterpart), squares[counterpart, places.expand(m, m)].clamp_min(1e-12)
    # how much nearer x is to l than to its class, in standard deviations of a row and of what the means are uncertain
    nearer = ((to_own - noise[counterpart]) - (squares - noise)) / 2
    deviation = (apart * (1 + 1 / rows.unsqueeze(1)) + to_own / rows[counterpart] + squares / rows).sqrt()
    odds = (nearer / deviation).masked_fill(~comparable, -torch.inf)
    worst = odds.new_full((m, number), -torch.inf).scatter_reduce(1, owner.expand(m, m), odds, "amax")
    judged = ~worst.isneginf()
    taken = torch.special.ndtr(worst).masked_fill(~judged, 0)
    total = taken.new_zeros(number, number).index_add_(0, owner, taken)
    judgements = taken.new_zeros(number, number).index_add_(0, owner, judged.double())
    shares = (total + total.T) / (judgements + judgements.T)
    clash = _same_place(squares.sqrt(), labels, owner, number)
    return shares.masked_fill(clash | clash.T, 1.0).fill_diagonal_(torch.nan)


def _same_place(distances: Tensor, labels: Tensor, owner: Tensor, number: int) -> Tensor:
    """Whether a class of one client lies where the other has another class, (number, number)."""
    within = [distances[mine][:, mine] for mine in (owner == place for place in range(number))]
    nearest = [between[between > 0].min() for between in within if bool((between > 0).any())]
    elsewhere = owner.unsqueeze(1) != owner
    same = elsewhere & (labels.unsqueeze(1) == labels)
    clash = torch.zeros(number, number, dtype=torch.bool)
    if nearest and bool(same.any()):
        place = torch.minimum(NEAREST * torch.stack(nearest).median(), ALIKE * distances[same].median())
        near = elsewhere & (labels.unsqueeze(1) != labels) & (distances < place)
        one, another = near.nonzero(as_tuple=True)
        clash[owner[one], owner[another]] = True
    return clash
