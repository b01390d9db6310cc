"""The start of a run: waits until enough clients have identified themselves."""

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
    """The clients that have answered so far, and whether they are enough.

    Args:
        terms: what the server knows about the run besides its settings.
        earlier: for a resumed run whose clients may come and go: the partitions that took part before the interruption.
            As many of these must be present as a start needs.
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
        self._identities: dict[int, Identity] = {}  # by node, in order of arrival
        self._nodes: dict[int, list[int]] = {}  # by the partition for which they answer
        self._votes: Counter[int] = Counter()  # number of clients in the run -> how many clients claim that number
        self._last_answer_time = 0.0

    def run(self, grid: Grid) -> Agreement:
        """Wait for all clients of the run, then leave out those that do not fit
        (`protosphere.server_app.agreement.agree`). If clients answer in turn (`protosphere.core.flower.in_turn`), a
        client that was asked in time is heard, however long the others take.

        A node whose answer fits no partition counts like one that does not answer: it delays the start until
        `start-timeout`.

        Raises:
            RosterError: too few by `start-timeout`, or too few that fit together.
        """
        deadline = time.monotonic() + self.settings.start_timeout
        late = False
        while True:
            # otherwise nodes that fail repeatedly would be asked forever
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
            # problems were reported on arrival
            if not self._identities[node].problem:
                warn_left_out(partition, node, why, self._identities[node])
        if not self.settings.takes_newcomers and (nobody := nobody_for(agreement)):
            log.warning("warning: %s", nobody)
        return agreement

    def _note_answer(self, grid: Grid, node: int, identity: Identity) -> None:
        """Record a node's identity. Earlier nodes of the partition that have left since are forgotten."""
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
        # a client that cannot take part does not know the number of clients
        if not identity.problem:
            self._votes[identity.partitions] += votes

    # --- whether it is enough -----------------------------------------------------------------------------

    def _is_complete(self, grid: Grid) -> bool:
        """Whether the start need not wait any longer: `min-clients` clients fit; or every partition has an answer; or,
        in a simulation, whose nodes are all present from the start, as many nodes answered as there are clients."""
        if is_simulated(grid):
            answered = self._identities.keys() | self.queries.problems.keys()
            if self._has_all_partitions():
                return True
            enough = len(answered) >= max(1, self._count_expected()) and not self.queries.is_pending()
            return enough and {*grid.get_node_ids()} <= answered
        if self.settings.min_clients:
            needed = self._count_needed()
            return len(self._list_usable()) >= needed and self._count_fitting() >= needed
        # otherwise a client that claims to be the only one could take over the run by answering first
        if self._count_expected() == 1 and not self.settings.clients:
            waited = time.monotonic() - self._last_answer_time >= self.queries.timeout
            return self._has_all_partitions() and waited
        return self._has_all_partitions()

    def _has_all_partitions(self) -> bool:
        """Whether every partition has an answer."""
        expected = self._count_expected()
        return 0 < expected <= len(self._nodes) and all(partition in self._nodes for partition in range(expected))

    def _count_expected(self) -> int:
        """The number of clients in the run, if it is known: 0 while no client has told it, or if two claims have
        equally many supporters."""
        if self.settings.clients:
            return self.settings.clients
        first, second = (*self._votes.most_common(2), (0, 0), (0, 0))[:2]
        return first[0] if first[1] > second[1] else 0

    def _count_needed(self) -> int:
        """How many clients must be present for a start with `min-clients`."""
        needed = self.settings.min_clients
        return needed if self.earlier is None else min(needed, len(self.earlier))

    def _list_usable(self) -> Set[int]:
        """The partitions with an answer from a client that can take part."""
        usable = {identity.partition for identity in self._identities.values() if not identity.problem}
        return usable if self.earlier is None else usable & self.earlier

    def _count_fitting(self) -> int:
        """How many of the clients that count towards a start fit together; 0 while two groups are equally large."""
        try:
            fitting = agree(self._identities.items(), self.settings, self.terms).identities.keys()
        except RosterError:
            return 0
        return len(fitting if self.earlier is None else fitting & self.earlier)

    def _refuse_missing(self) -> None:
        """At the deadline, fewer nodes have answered than the run has clients."""
        expected = self._count_needed() or self._count_expected()
        # any number of other clients may answer in a resumed run
        due = range(expected) if self.earlier is None else self.earlier
        present = self._nodes.keys() if self.earlier is None else self._list_usable()
        answered = len(self._identities) + len(self.queries.problems) if self.earlier is None else len(present)
        # if the claimed numbers differ, that is the problem
        if answered >= expected > 0 or (self._identities and not expected):
            return
        # a client may claim two thousand million clients
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
    """Warn that a client is left out."""
    name = client_names([vars(identity)]).get(partition)
    log.warning("warning: client %d (%snode %d) is left out: %s", partition, f"{name}, " if name else "", node, why)
