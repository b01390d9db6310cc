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
from protosphere.wire.payloads import Identity

log = logging.getLogger("protosphere")


class Membership:
    """Admits new clients to one run and removes absent ones.

    Args:
        believed: the clients with their capped sample counts. half: the method's server half. Both are told about every
            change of members.
    """

    def __init__(
        self, settings: Settings, folder: RunFolder, roster: Roster, believed: CappedSampleCounts, half: ServerHalf
    ):
        self._settings = settings
        self._folder = folder
        self._roster = roster
        self._believed = believed
        self._half = half
        self._since = 0  # the round of the last change
        # partition -> number of consecutive rounds for which its node has been absent
        self._rounds_gone: dict[int, int] = {}

    def refresh(self, number: int) -> None:
        """At the start of a round, admit clients and then remove clients. The run's roster records both with the
        round."""
        before = {*self._roster.nodes}
        joining, leaving = sorted(self._roster.absent), self._list_gone()
        self._admit(joining, number)
        for partition in leaving:
            if partition in self._roster.nodes:
                self._let_go(partition, number)
        if leaving:
            # the cap of a client's claims depends on the members
            self._meet(self._roster.identities)
        if not self._roster.nodes:
            log.warning("warning: round %d: no client is left; the run continues when one joins", number)
        # the roster of a run that was interrupted in this round already lists the clients that joined in it
        if {*self._roster.nodes} != before or any(partition in self._roster.nodes for partition in joining):
            self._since = number
            self._folder.write_roster(self._roster.as_json())

    def _admit(self, partitions: Sequence[int], number: int) -> None:
        """Admit the clients that fit in with the others."""
        roster = self._roster
        candidates: dict[int, Identity] = {}
        for partition in partitions:
            identity = roster.absent[partition][1]
            if reason := roster.misfit(identity):
                self._refuse(partition, number, reason)
            else:
                candidates[partition] = identity
        newcomers = dict(candidates)
        # a client with unfit weights must not keep the others out; usually all of them fit
        if candidates and self._find_misfit_of_weights(candidates):
            newcomers = {}
            for partition, identity in candidates.items():
                if reason := self._find_misfit_of_weights({**newcomers, partition: identity}, partition):
                    self._refuse(partition, number, reason)
                else:
                    newcomers[partition] = identity
        if not newcomers:
            return
        returning = {partition for partition in newcomers if roster.was_member(partition)}
        roster.join(newcomers, number)
        self._meet(roster.identities)
        for partition, identity in newcomers.items():
            verb = "is back" if partition in returning else "joins"
            model = one_line(identity.model, LONGEST_NAME)
            log.info("%s (%s) %s in round %d", client_word(partition), model, verb, number)

    def _refuse(self, partition: int, number: int, reason: str) -> None:
        _, identity = self._roster.absent.pop(partition)
        name = client_word(partition, client_names([vars(identity)]))
        log.warning("warning: round %d: %s is not taken in: %s", number, name, reason)

    def _meet(self, identities: Mapping[int, Identity]) -> None:
        self._believed.update(identities, self._roster.nodes.keys())
        self._half.meet(self._half.num_classes, self._half.dim, self._believed.identities)

    def _find_misfit_of_weights(self, newcomers: Mapping[int, Identity], blamed: int = -1) -> str:
        """Why a method that averages weights cannot admit clients, in its words about one of them; "" if it can."""
        identities = self._roster.identities
        try:
            self._believed.update({**identities, **newcomers}, {*self._roster.nodes, *newcomers})
            self._half.try_meeting(self._half.num_classes, self._half.dim, self._believed.identities)
        except OtherWeightsError as error:
            return error.clients.get(blamed) or "its weights do not fit with those of the others."
        except SettingError as error:
            return str(error)
        finally:
            self._meet(identities)
        return ""

    def _let_go(self, partition: int, number: int) -> None:
        self._roster.forget(partition, number)
        self._rounds_gone.pop(partition, None)
        log.info("%s leaves in round %d; %d are left", client_word(partition), number, len(self._roster.nodes))

    def _list_gone(self) -> list[int]:
        """The members whose nodes have been absent for long enough."""
        listed = self._roster.listed_nodes
        for partition, node in self._roster.nodes.items():
            self._rounds_gone[partition] = 0 if node in listed else self._rounds_gone.get(partition, 0) + 1
        most = self._settings.forget_after
        return sorted(p for p, rounds in self._rounds_gone.items() if most and rounds >= most)

    def figures(self) -> dict[str, Any]:
        """`members` of a line: the number of clients with test samples, and the round since which the members are the
        same."""
        roster = self._roster
        tested = [p for p in roster.nodes if not roster.identities[p].rows or roster.identities[p].rows[2]]
        return {"members": {"clients": len(tested), "since": self._since}}

    def as_json(self) -> dict[str, Any]:
        """For the checkpoint."""
        gone = {str(p): rounds for p, rounds in sorted(self._rounds_gone.items()) if rounds}
        return {"gone": gone, "since": self._since}

    def load(self, stored: Mapping[str, Any]) -> None:
        """Inverse of `as_json`."""
        self._since = int(stored["since"])
        self._rounds_gone = {int(partition): rounds for partition, rounds in stored["gone"].items()}
