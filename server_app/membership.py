"""The members of a run as its method sees them. Where clients may come and go, one that answers, fits in and has a
partition of its own joins at the start of the next round. It leaves when its node has been absent for `forget-after`
rounds.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from protosphere.core.client_names import client_names, client_word
from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings
from protosphere.core.text import LONGEST_NAME, one_line
from protosphere.record.folder import RunFolder
from protosphere.server_app.roster import Member, Roster
from protosphere.strategies.contract import ServerHalf
from protosphere.strategies.weights import OtherWeightsError
from protosphere.wire.claims import CappedSampleCounts
from protosphere.wire.payloads import Identity

log = logging.getLogger("protosphere")


class Membership:
    """Tells the method about the members, admits new clients to one run and removes absent ones. Members whose weights
    do not fit are left out at the start.

    Args:
        half: the method's server half.

    Attributes:
        capped_counts: the members with their capped sample counts.

    Raises:
        RosterError: too few clients are left.
    """

    def __init__(self, settings: Settings, roster: Roster, half: ServerHalf):
        self.capped_counts = CappedSampleCounts({}, settings.max_weight_ratio, settings.client_weights)
        self._settings = settings
        self._roster = roster
        self._half = half
        self._last_change = 0  # the round of the last change
        while True:
            try:
                self._try_meeting(roster.identities, roster.nodes)
                break
            except OtherWeightsError as error:
                roster.leave_out(error.clients)
        self._tell_method()

    def _try_meeting(self, identities: Mapping[int, Identity], present: Collection[int]) -> None:
        self.capped_counts.update(identities, present)
        identities = self.capped_counts.identities
        self._half.try_meeting(self._roster.num_classes, self._settings.feature_dim, identities)

    def _tell_method(self) -> None:
        roster = self._roster
        self.capped_counts.update(roster.identities, roster.nodes)
        self._half.meet(roster.num_classes, self._settings.feature_dim, self.capped_counts.identities)

    def refresh(self, number: int, folder: RunFolder) -> None:
        """At the start of a round, admit clients and then remove clients. The run's roster records both with the
        round."""
        roster = self._roster
        before = roster.nodes
        absent = self._list_absent()
        joining = sorted(roster.waiting)
        self._admit(joining, number)
        for partition in absent:
            # a node that answers for it later brings it back
            roster.queries.forget(before[partition])
            member = roster.members[partition]
            member.node, member.left, member.absent = None, number, 0
            log.info("%s leaves in round %d; %d are left", client_word(partition), number, len(roster.nodes))
        if absent:
            # the cap of a client's claims depends on the members
            self._tell_method()
        if not roster.nodes:
            log.warning("warning: round %d: no client is left; the run continues when one joins", number)
        # the roster of a run that was interrupted in this round already lists the clients that joined in it
        if roster.nodes != before or any(partition in roster.nodes for partition in joining):
            self._last_change = number
            folder.write_roster(roster.as_json())

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
        roster = self._roster
        # they have taken part before, perhaps before an interruption
        returning = roster.members.keys() & {*partitions}
        for partition in partitions:
            member = roster.members.setdefault(partition, Member(joined=number))
            member.node, member.identity = roster.waiting.pop(partition)
            member.left = 0
        roster.name_clients()
        self._tell_method()
        identities = roster.identities
        for partition in partitions:
            verb = "is back" if partition in returning else "joins"
            model = one_line(identities[partition].model, LONGEST_NAME)
            log.info("%s (%s) %s in round %d", client_word(partition), model, verb, number)

    def _find_misfit_of_weights(self, partitions: Sequence[int]) -> str:
        """Why a method that averages weights cannot admit waiting clients, in its words about the first of them; "" if
        it can."""
        roster = self._roster
        identities = roster.identities | {partition: roster.waiting[partition][1] for partition in partitions}
        try:
            self._try_meeting(identities, {*roster.nodes, *partitions})
        except OtherWeightsError as error:
            return error.clients.get(partitions[0]) or "its weights do not fit with those of the others."
        except SettingError as error:
            return str(error)
        finally:
            self._tell_method()
        return ""

    def _list_absent(self) -> list[int]:
        """The members whose nodes have been absent for `forget-after` rounds."""
        roster, most = self._roster, self._settings.forget_after
        absent = []
        for partition, node in sorted(roster.nodes.items()):
            member = roster.members[partition]
            member.absent = 0 if node in roster.listed_nodes else member.absent + 1
            if 0 < most <= member.absent:
                absent.append(partition)
        return absent

    def figures(self) -> dict[str, Any]:
        """`members` of a line: the number of clients with test samples, and the round since which the members are the
        same."""
        identities = self._roster.identities
        rows = [identities[partition].rows for partition in self._roster.nodes]
        tested = sum(not samples or samples[2] > 0 for samples in rows)
        return {"members": {"clients": tested, "since": self._last_change}}

    def as_json(self) -> dict[str, Any]:
        """For the checkpoint: how long clients have been absent."""
        members = sorted(self._roster.members.items())
        absent = {str(partition): member.absent for partition, member in members if member.absent}
        return {"gone": absent, "since": self._last_change}

    def load(self, stored: Mapping[str, Any]) -> None:
        """Inverse of `as_json`."""
        self._last_change = int(stored["since"])
        for partition, rounds in stored["gone"].items():
            if int(partition) in self._roster.members:
                self._roster.members[int(partition)].absent = rounds
