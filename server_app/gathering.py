"""The start of a run: its clients say who they are, until as many have answered as the run is to have."""

import logging
import time
from collections import Counter
from collections.abc import Set
from itertools import islice

from flwr.serverapp import Grid

from protosphere.core.client_names import client_names
from protosphere.core.flower import in_turn, is_simulated
from protosphere.core.settings import Settings
from protosphere.core.text import quoted
from protosphere.server_app.agreement import (
    LONGEST_PROBLEM,
    MOST_NAMED,
    Agreement,
    RosterError,
    Terms,
    agree,
    nobody_for,
    refuse_too_few,
)
from protosphere.server_app.queries import Queries, pause
from protosphere.wire.payloads import Identity

log = logging.getLogger("protosphere")


class Gathering:
    """Who has answered so far, and whether that is enough.

    Args:
        terms: what the server itself knows of the run beside its settings.
        earlier: of a run that is resumed, and whose clients may come and go: the partitions that took part when it was
            cut. Of these as many have to be there as a start needs.
    """

    def __init__(
        self,
        settings: Settings,
        terms: Terms | None,
        queries: Queries,
        earlier: Set[int] | None = None,
    ):
        self.settings = settings
        self.terms = terms
        self.queries = queries
        self.earlier = earlier
        self._identities: dict[int, Identity] = {}  # by node, in the order of the answers
        self._nodes: dict[int, list[int]] = {}  # by the partition for which they answer
        self._votes: Counter[int] = Counter()  # how many clients say that there are so many clients
        self._last_answer_time = 0.0

    def run(self, grid: Grid) -> Agreement:
        """Wait for as many clients as the run has, then leave out who does not fit
        (`protosphere.server_app.agreement.agree`). Where clients answer in turn
        (`protosphere.core.flower.in_turn`) who was asked in time is heard, however long the others take.

        A node whose answer fits no partition takes the place of one that does not answer: it holds the start up until
        `start-timeout`, and no longer.

        Raises:
            RosterError: too few by `start-timeout`, or too few that fit together.
        """
        deadline = time.monotonic() + self.settings.start_timeout
        late = False
        while True:
            # else nodes that fail again and again would be heard for ever
            if not late:
                self.queries.ask(grid, grid.get_node_ids())
            answers = self.queries.pull(grid)
            for node, identity in answers:
                self._note_answer(grid, node, identity)
            if self._is_complete(grid) and not self.queries.is_waiting():
                break
            late = time.monotonic() > deadline
            if late and not (in_turn(grid) and self.queries.is_waiting()):
                self._refuse_missing()
                break
            pause(answers)
        agreement = agree(self._identities.items(), self.settings, self.terms)
        refuse_too_few(agreement, self.settings, None if self.earlier is None else len(self.earlier))
        for node, (partition, why) in agreement.left_out.items():
            # of a problem it was said when it came
            if not self._identities[node].problem:
                warn_left_out(partition, node, why, self._identities[node])
        if not self.settings.takes_newcomers and (nobody := nobody_for(agreement)):
            log.warning("warning: %s", nobody)
        return agreement

    def _note_answer(self, grid: Grid, node: int, identity: Identity) -> None:
        """Note who a node says it is. Of a partition's nodes those that have left since are forgotten."""
        nodes = self._nodes.setdefault(identity.partition, [])
        listed_nodes = set(grid.get_node_ids()) if nodes else set()
        for old_node in [other for other in nodes if other not in listed_nodes or other == node]:
            nodes.remove(old_node)
            self._count_vote(self._identities.pop(old_node), -1)
        nodes.append(node)
        self._identities[node] = identity
        self._last_answer_time = time.monotonic()
        self._count_vote(identity, 1)
        if identity.problem:
            why = identity.problem.removeprefix(f"client {identity.partition}: ")
            warn_left_out(identity.partition, node, f"it says: {quoted(why, LONGEST_PROBLEM)}", identity)

    def _count_vote(self, identity: Identity, votes: int) -> None:
        # who cannot take part does not know how many there are
        if not identity.problem:
            self._votes[identity.partitions] += votes

    # --- whether it is enough -----------------------------------------------------------------------------

    def _is_complete(self, grid: Grid) -> bool:
        """Whether nobody else need come: as many as `min-clients` fit; or somebody answered for each partition; or in a
        simulation, whose nodes are all there from the start, as many nodes as there are clients."""
        if is_simulated(grid):
            answered = self._identities.keys() | self.queries.problems.keys()
            if self._has_all_partitions():
                return True
            enough = len(answered) >= max(1, self._count_expected()) and not self.queries.is_pending()
            return enough and {*grid.get_node_ids()} <= answered
        if self.settings.min_clients:
            needed = self._count_needed()
            return len(self._list_usable()) >= needed and self._count_fitting() >= needed
        # who says that it is the only one would make the run its own, were it the first to come
        if self._count_expected() == 1 and not self.settings.clients:
            waited = time.monotonic() - self._last_answer_time >= self.queries.timeout
            return self._has_all_partitions() and waited
        return self._has_all_partitions()

    def _has_all_partitions(self) -> bool:
        """Whether somebody answered for each partition."""
        expected = self._count_expected()
        return 0 < expected <= len(self._nodes) and all(partition in self._nodes for partition in range(expected))

    def _count_expected(self) -> int:
        """How many clients the run has, as far as it is known: 0 while nobody says it, or two sides are equally
        large."""
        if self.settings.clients:
            return self.settings.clients
        first, second = (*self._votes.most_common(2), (0, 0), (0, 0))[:2]
        return first[0] if first[1] > second[1] else 0

    def _count_needed(self) -> int:
        """How many have to be there for a start by `min-clients`."""
        needed = self.settings.min_clients
        return needed if self.earlier is None else min(needed, len(self.earlier))

    def _list_usable(self) -> Set[int]:
        """The partitions for which somebody has answered that can take part."""
        usable = {identity.partition for identity in self._identities.values() if not identity.problem}
        return usable if self.earlier is None else usable & self.earlier

    def _count_fitting(self) -> int:
        """How many of those who count towards a start fit together; 0 while two sides are equally large."""
        try:
            fitting = agree(self._identities.items(), self.settings, self.terms).identities.keys()
        except RosterError:
            return 0
        return len(fitting if self.earlier is None else fitting & self.earlier)

    def _refuse_missing(self) -> None:
        """At the deadline: fewer nodes have answered than the run has clients."""
        expected = self._count_needed() or self._count_expected()
        # of a resumed run's other clients there may be as many as there will
        due = range(expected) if self.earlier is None else self.earlier
        present = self._nodes.keys() if self.earlier is None else self._list_usable()
        answered = len(self._identities) + len(self.queries.problems) if self.earlier is None else len(present)
        # where the number itself is in dispute, that is what is wrong
        if answered >= expected > 0 or (self._identities and not expected):
            return
        # a client may say that there are two thousand million
        missing = list(islice((partition for partition in due if partition not in present), MOST_NAMED))
        number = sum(partition in due for partition in present)
        problems = [
            f" Client {identity.partition} (node {node}) says: {quoted(identity.problem, LONGEST_PROBLEM)}"
            for node, identity in self._identities.items()
            if identity.problem
        ]
        names = f" (missing partitions: {', '.join(map(str, missing))})" if missing else ""
        raise RosterError(
            f"{number} of {expected or 'an unknown number of'} clients answered within `start-timeout` "
            f"{self.settings.start_timeout:g} s{names}; start or restart the missing SuperNodes or raise the timeout."
            + "".join(problems[:MOST_NAMED])
        )


def warn_left_out(partition: int, node: int, why: str, identity: Identity) -> None:
    """Say of a client that it takes no part."""
    name = client_names([vars(identity)]).get(partition)
    log.warning("warning: client %d (%snode %d) is left out: %s", partition, f"{name}, " if name else "", node, why)
