"""Clients that join and leave while a run goes on.

Over a network whoever answers, fits in and has a partition of its own joins at the start of the next round, and whose
node has been gone for `forget-after` rounds leaves. In a simulation, whose clients are all there, a file says who joins
and leaves when: a row a change, `round,client,change`.
"""

import csv
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from protosphere.core.client_names import client_names, client_word
from protosphere.core.errors import SettingError
from protosphere.core.settings import Settings, shown
from protosphere.core.text import LONGEST_NAME, one_line
from protosphere.record.folder import RunFolder
from protosphere.record.replies import Reply
from protosphere.server_app.feature import Feature, Federation
from protosphere.server_app.roster import Roster, RosterError
from protosphere.strategies import Run
from protosphere.strategies.contract import ROUND_OF_JOINING
from protosphere.strategies.weights import OtherWeightsError
from protosphere.wire.payloads import Identity, Instruction

log = logging.getLogger("protosphere")

HEADER = ["round", "client", "change"]
CHANGES = ("joins", "leaves")


@dataclass(frozen=True)
class Change:
    """At the start of `round` the client of this partition joins or leaves."""

    round: int
    partition: int
    change: Literal["joins", "leaves"]


class Membership(Feature):
    """Of one run: makes members of who has come, and lets go who has gone."""

    stored_as = "membership"

    def __init__(self, run: Run, folder: RunFolder):
        super().__init__(run, folder)
        self._changes = self._read_changes() if self.settings.membership else []
        self._roster: Roster
        self._since = 0  # the round of the last change
        self._rounds_gone: dict[int, int] = {}  # partition -> for how many rounds in a row its node has been gone

    @staticmethod
    def applies(run: Run) -> bool:
        return run.settings.takes_newcomers

    @staticmethod
    def refuse(settings: Settings) -> None:
        # a resumed run has its own copy
        if settings.membership and not settings.resume:
            read_changes(settings.membership)

    def _read_changes(self) -> list[Change]:
        """Of a resumed run those that it was started with, whatever has become of the file."""
        kept = self.folder.membership() if self.settings.resume else None
        if kept is None:
            return read_changes(self.settings.membership)
        return [Change(entry["round"], entry["client"], entry["change"]) for entry in kept]

    def start(self, federation: Federation) -> None:
        super().start(federation)
        if self.settings.membership:
            self.folder.write_membership(
                [{"round": c.round, "client": c.partition, "change": c.change} for c in self._changes]
            )

    def gathered(self, roster: Roster, last_round: int) -> None:
        """Who joins later is no member yet.

        Raises:
            SettingError: the file names a client that the run does not have, or lets one join that is there.
            RosterError: nobody is there from the start.
        """
        self._roster = roster
        self._refuse_unfit(roster)
        if self.settings.resume:
            roster.resume()
        else:
            for partition in _list_newcomers(self._changes):
                # of one that was left out nothing is known
                if partition in roster.nodes:
                    roster.set_aside(partition)
        if not roster.nodes:
            raise RosterError("no client is there from the start; let at least one join before round 1.")

    def before_round(self, number: int) -> None:
        """Who joins, then who leaves; the run's roster has both, with the round."""
        before = {*self._roster.nodes}
        if self.settings.membership:
            due = [change for change in self._changes if change.round == number]
            joining = [change.partition for change in due if change.change == "joins"]
            leaving = [change.partition for change in due if change.change == "leaves"]
        else:
            joining, leaving = sorted(self._roster.absent), self._list_gone()
        self._admit([partition for partition in joining if partition in self._roster.absent], number)
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
        if self.settings.membership:
            self._roster.leave(partition, number)
        else:
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

    def _refuse_unfit(self, roster: Roster) -> None:
        """Refuse changes of clients that there are not, or that change nothing."""
        path = self.settings.membership
        is_there = dict.fromkeys(range(roster.number), True) | dict.fromkeys(_list_newcomers(self._changes), False)
        for change in self._changes:
            if change.partition >= roster.number:
                raise SettingError(
                    f"setting `membership`: {path} names client {change.partition}, but the run's are 0 to "
                    f"{roster.number - 1}; correct the file, or set `clients`."
                )
            if is_there[change.partition] == (change.change == "joins"):
                state = "there already" if change.change == "joins" else "not there"
                raise SettingError(
                    f"setting `membership`: by {path} client {change.partition} {change.change} in round "
                    f"{change.round}, but it is {state}; correct the file."
                )
            is_there[change.partition] = change.change == "joins"
        twice = [p for p, number in Counter((c.round, c.partition) for c in self._changes).items() if number > 1]
        if twice:
            server_round, partition = twice[0]
            raise SettingError(
                f"setting `membership`: {path} has two changes of client {partition} in round {server_round}; give "
                "each a round of its own."
            )

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


def read_changes(path: str) -> list[Change]:
    """The changes that a file lists, by ascending round.

    Raises:
        SettingError: it cannot be read; names the line.
    """
    try:
        with Path(path).expanduser().open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingError(f"setting `membership` is {shown(path)}, which cannot be read ({reason}).") from None
    if not rows or [cell.strip() for cell in rows[0]] != HEADER:
        raise SettingError(
            f"setting `membership`: the first line of {path} must be {','.join(HEADER)}; then a line a change, as "
            "3,4,joins."
        )
    changes = [_read_change(path, line, row) for line, row in enumerate(rows[1:], 2)]
    return sorted(changes, key=lambda change: (change.round, change.partition))


def _read_change(path: str, line: int, row: Sequence[str]) -> Change:
    cells = [cell.strip() for cell in row]
    is_whole = len(cells) == 3 and all(cell.isascii() and cell.isdecimal() for cell in cells[:2])
    if not is_whole or int(cells[0]) < 1 or cells[2] not in CHANGES:
        raise SettingError(
            f"setting `membership`: line {line} of {path} is {shown(','.join(cells))}, but it must be a round from 1 "
            'on, a client from 0 on, and "joins" or "leaves".'
        )
    return Change(int(cells[0]), int(cells[1]), cast(Literal["joins", "leaves"], cells[2]))


def _list_newcomers(changes: Sequence[Change]) -> list[int]:
    """The clients whose first change is to join."""
    first_changes: dict[int, Change] = {}
    for change in changes:
        first_changes.setdefault(change.partition, change)
    return sorted(p for p, change in first_changes.items() if change.change == "joins")
