"""Clients that join and leave while a run goes on: whoever answers, fits in and has a partition of its own joins at the
start of the next round, and whose node has been gone for `forget-after` rounds leaves.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from protosphere.core.client_names import client_names, client_word
from protosphere.core.errors import SettingError
from protosphere.core.text import LONGEST_NAME, one_line
from protosphere.record.folder import RunFolder
from protosphere.record.replies import Reply
from protosphere.server_app.feature import Feature
from protosphere.server_app.roster import Roster, RosterError
from protosphere.strategies import Run
from protosphere.strategies.contract import ROUND_OF_JOINING
from protosphere.strategies.weights import OtherWeightsError
from protosphere.wire.payloads import Identity, Instruction

log = logging.getLogger("protosphere")


class Membership(Feature):
    """Of one run: makes members of who has come, and lets go who has gone."""

    stored_as = "membership"

    def __init__(self, run: Run, folder: RunFolder):
        super().__init__(run, folder)
        self._roster: Roster
        self._since = 0  # the round of the last change
        self._rounds_gone: dict[int, int] = {}  # partition -> for how many rounds in a row its node has been gone

    @staticmethod
    def applies(run: Run) -> bool:
        return run.settings.takes_newcomers

    def gathered(self, roster: Roster, last_round: int) -> None:
        """Who joins later is no member yet.

        Raises:
            RosterError: nobody is there from the start.
        """
        self._roster = roster
        if self.settings.resume:
            roster.resume()
        if not roster.nodes:
            raise RosterError("no client is there from the start; let at least one join before round 1.")

    def before_round(self, number: int) -> None:
        """Who joins, then who leaves; the run's roster has both, with the round."""
        before = {*self._roster.nodes}
        joining, leaving = sorted(self._roster.absent), self._list_gone()
        self._admit(joining, number)
        for partition in leaving:
            if partition in self._roster.nodes:
                self._let_go(partition, number)
        if not self._roster.nodes:
            log.warning("warning: round %d: no client is left; the run continues when one joins", number)
        # the roster of a run that was cut in this round has who came in it already
        if {*self._roster.nodes} != before or any(partition in self._roster.nodes for partition in joining):
            self._since = number
            self.folder.write_roster(self._roster.as_json())

    def instruct(self, partition: int, instruction: Instruction) -> Instruction:
        """To one that has just joined: its model is of no earlier round, so it has nothing to evaluate."""
        joined = self._roster.joined.get(partition, 0)
        if joined == instruction.round:
            instruction = replace(instruction, evaluate=False)
        if joined and self.run.method.counts_own_rounds:
            return replace(instruction, constants={**instruction.constants, ROUND_OF_JOINING: float(joined)})
        return instruction

    def _admit(self, partitions: Sequence[int], number: int) -> None:
        """Make members of those who fit in with the others."""
        roster = self._roster
        newcomers: dict[int, Identity] = {}
        for partition in partitions:
            identity = roster.absent[partition][1]
            if reason := roster.misfit(identity):
                self._refuse(partition, number, reason)
            else:
                newcomers[partition] = identity
        # whoever does not fit in by its weights does not keep the others out
        if newcomers and self._find_misfit_of_weights(newcomers):
            fitting: dict[int, Identity] = {}
            for partition, identity in newcomers.items():
                if reason := self._find_misfit_of_weights({**fitting, partition: identity}, partition):
                    self._refuse(partition, number, reason)
                else:
                    fitting[partition] = identity
            newcomers = fitting
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
        federation = self.federation
        federation.believed.update(identities)
        federation.half.meet(federation.codec, federation.believed.identities)

    def _find_misfit_of_weights(self, newcomers: Mapping[int, Identity], blamed: int = -1) -> str:
        """Why a method that averages weights cannot take clients in, as it says of one of them; "" where it can."""
        federation, known = self.federation, self._roster.identities
        try:
            federation.believed.update({**known, **newcomers})
            federation.half.try_meeting(federation.codec, federation.believed.identities)
        except OtherWeightsError as error:
            return error.clients.get(blamed) or "its weights do not fit with those of the others."
        except SettingError as error:
            return str(error)
        finally:
            self._meet(known)
        return ""

    def _let_go(self, partition: int, number: int) -> None:
        self._roster.forget(partition, number)
        self._rounds_gone.pop(partition, None)
        log.info("%s leaves in round %d; %d are left", client_word(partition), number, len(self._roster.nodes))

    def _list_gone(self) -> list[int]:
        """The members whose nodes have been gone for long enough."""
        listed = self._roster.listed_nodes
        for partition, node in self._roster.nodes.items():
            self._rounds_gone[partition] = 0 if node in listed else self._rounds_gone.get(partition, 0) + 1
        most = self.settings.forget_after
        return sorted(p for p, rounds in self._rounds_gone.items() if most and rounds >= most)

    def figures(self, of_round: int, replies: Sequence[Reply]) -> Mapping[str, Any]:
        """`members`: how many clients there were to evaluate, all but those who have just come, that have samples to
        test; and since which round they are the same."""
        roster = self._roster
        old_members = [p for p in roster.nodes if roster.joined.get(p, 0) <= of_round]
        tested = [p for p in old_members if not roster.identities[p].rows or roster.identities[p].rows[2]]
        return {"members": {"clients": len(tested), "since": self._since}}

    def state(self) -> Any:
        gone = {str(p): rounds for p, rounds in sorted(self._rounds_gone.items()) if rounds}
        return {"gone": gone, "since": self._since}

    def load(self, stored: Any, tensors: Any) -> None:
        stored = stored or {}
        self._since = int(stored.get("since", 0))
        self._rounds_gone = {int(partition): rounds for partition, rounds in stored.get("gone", {}).items()}
