"""Clients that join and leave during a run. A client that answers, fits in and has a partition of its own joins at the
start of the next round. It leaves when its node has been absent for `forget-after` rounds.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from protosphere.core.client_names import client_names, client_word
from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings
from protosphere.core.text import LONGEST_NAME, one_line
from protosphere.record.folder import RunFolder
from protosphere.server_app.roster import Roster
from protosphere.strategies.contract import ServerHalf
from protosphere.strategies.weights import OtherWeightsError
from protosphere.wire.claims import CappedSampleCounts

log = logging.getLogger("protosphere")


class Membership:
    """Admits new clients to one run and removes absent ones.

    Args:
        capped_counts: the clients with their capped sample counts. half: the method's server half. Both are told about
            every change of members.
    """

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        roster: Roster,
        capped_counts: CappedSampleCounts,
        half: ServerHalf,
    ):
        self._settings = settings
        self._folder = folder
        self._roster = roster
        self._capped_counts = capped_counts
        self._half = half
        self._last_change = 0  # the round of the last change
        self._rounds_absent: dict[int, int] = {}  # partition -> consecutive rounds without its node

    def refresh(self, number: int) -> None:
        """At the start of a round, admit clients and then remove clients. The run's roster records both with the
        round."""
        roster = self._roster
        before = roster.nodes
        absent = self._list_absent()
        joining = sorted(roster.waiting)
        self._admit(joining, number)
        for partition in absent:
            roster.forget(partition, number)
            del self._rounds_absent[partition]
            log.info("%s leaves in round %d; %d are left", client_word(partition), number, len(roster.nodes))
        if absent:
            # the cap of a client's claims depends on the members
            self._tell_members()
        if not roster.nodes:
            log.warning("warning: round %d: no client is left; the run continues when one joins", number)
        # the roster of a run that was interrupted in this round already lists the clients that joined in it
        if roster.nodes != before or any(partition in roster.nodes for partition in joining):
            self._last_change = number
            self._folder.write_roster(roster.as_json())

    def _admit(self, partitions: Sequence[int], number: int) -> None:
        """Admit the waiting clients that fit in with the others."""
        fitting = []
        for partition in partitions:
            if reason := self._roster.misfit(self._roster.waiting[partition][1]):
                self._refuse(partition, number, reason)
            else:
                fitting.append(partition)
        if not fitting:
            return
        # usually all fit; one whose weights do not must not keep the others out
        if not self._find_misfit_of_weights(fitting):
            self._join(fitting, number)
            return
        for partition in fitting:
            if reason := self._find_misfit_of_weights([partition]):
                self._refuse(partition, number, reason)
            else:
                self._join([partition], number)

    def _refuse(self, partition: int, number: int, reason: str) -> None:
        _, identity = self._roster.waiting.pop(partition)
        name = client_word(partition, client_names([vars(identity)]))
        log.warning("warning: round %d: %s is not taken in: %s", number, name, reason)

    def _join(self, partitions: Sequence[int], number: int) -> None:
        returning = self._roster.join(partitions, number)
        self._tell_members()
        for partition in partitions:
            verb = "is back" if partition in returning else "joins"
            model = one_line(self._roster.members[partition].identity.model, LONGEST_NAME)
            log.info("%s (%s) %s in round %d", client_word(partition), model, verb, number)

    def _tell_members(self) -> None:
        self._capped_counts.update(self._roster.identities, self._roster.nodes.keys())
        self._half.meet(self._half.num_classes, self._half.dim, self._capped_counts.identities)

    def _find_misfit_of_weights(self, partitions: Sequence[int]) -> str:
        """Why a method that averages weights cannot admit waiting clients, in its words about the first of them; "" if
        it can."""
        roster = self._roster
        identities = roster.identities | {partition: roster.waiting[partition][1] for partition in partitions}
        try:
            self._capped_counts.update(identities, {*roster.nodes, *partitions})
            self._half.try_meeting(self._half.num_classes, self._half.dim, self._capped_counts.identities)
        except OtherWeightsError as error:
            return error.clients.get(partitions[0]) or "its weights do not fit with those of the others."
        except SettingError as error:
            return str(error)
        finally:
            self._tell_members()
        return ""

    def _list_absent(self) -> list[int]:
        """The members whose nodes have been absent for `forget-after` rounds."""
        roster = self._roster
        for partition, node in roster.nodes.items():
            self._rounds_absent[partition] = (
                0 if node in roster.listed_nodes else self._rounds_absent.get(partition, 0) + 1
            )
        most = self._settings.forget_after
        return sorted(p for p in roster.nodes if most and self._rounds_absent[p] >= most)

    def figures(self) -> dict[str, Any]:
        """`members` of a line: the number of clients with test samples, and the round since which the members are the
        same."""
        rows = [self._roster.members[partition].identity.rows for partition in self._roster.nodes]
        tested = sum(not samples or samples[2] > 0 for samples in rows)
        return {"members": {"clients": tested, "since": self._last_change}}

    def as_json(self) -> dict[str, Any]:
        """For the checkpoint."""
        absent = {str(p): rounds for p, rounds in sorted(self._rounds_absent.items()) if rounds}
        return {"gone": absent, "since": self._last_change}

    def load(self, stored: Mapping[str, Any]) -> None:
        """Inverse of `as_json`."""
        self._last_change = int(stored["since"])
        self._rounds_absent = {int(partition): rounds for partition, rounds in stored["gone"].items()}
