"""The roster of a simulation of very many clients: each says who it is when it is first selected, and not before.

What a round costs then follows from who is selected in it, and not from how many clients are registered.
"""

from collections.abc import Iterable, Sequence

from flwr.serverapp import Grid

from protosphere.core.settings import Settings
from protosphere.server_app.agreement import RosterError, Terms
from protosphere.server_app.roster import Roster, select_clients


class RosterOfSelected(Roster):
    """Whoever is selected for the first time is asked who it is, and joins at the start of that round.

    Attributes:
        registered: partition -> node of all clients, whether or not they were ever asked, in ascending order.
    """

    def __init__(self, settings: Settings, terms: Terms | None = None):
        super().__init__(settings, terms)
        self.registered: dict[int, int] = {}

    def gather(self, grid: Grid) -> None:
        partitions: dict[int, int] | None = getattr(grid, "nodes_by_partition", None)
        if partitions is None:
            raise RosterError(
                'setting `meet-clients` is "selected", which is for simulations in one process: '
                'elsewhere a node says which client it is only when it is asked; use "all".'
            )
        # once: a round draws from all of them several times
        self.registered = dict(sorted(partitions.items()))
        # of a run that is resumed those who were there are there again
        self._set_asked(self._present_before_cut() or self.selected(1))
        super().gather(grid)

    def refresh(self, grid: Grid, server_round: int) -> None:
        self._set_asked(self.selected(server_round))
        super().refresh(grid, server_round)

    def selected(self, server_round: int) -> list[int]:
        """Drawn from all that are registered, but for those that have said before the round that they have nothing to
        train on. Who says it in the round itself leaves its place empty: a new draw would be of others, whom nobody has
        asked."""
        partitions = select_clients(self.settings, self._list_candidates(server_round), server_round)
        idle = self._list_idle()
        return [partition for partition in partitions if partition not in idle]

    def _set_asked(self, partitions: Iterable[int]) -> None:
        self.asked = {partition: self.registered[partition] for partition in partitions}

    def _list_candidates(self, server_round: int) -> Sequence[int]:
        # who is there from the start was first selected in round 1
        idle = {partition for partition in self._list_idle() if self.joined.get(partition, 1) < server_round}
        return [partition for partition in self.registered if partition not in idle]

    def _list_idle(self) -> set[int]:
        return {partition for partition, identity in self.identities.items() if not identity.trains}
