"""Which train reply of which client goes wrong, and how: drawn from (seed, partition, round) alone.

The plan reaches clients in processes of their own through one environment variable.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

VARIABLE = "PROTOSPHERE_TEST_FAULTS"

CLEAN = "clean"
RAISES, RAISES_IN_TRAINING, EXITS, LATE = "raises", "raises in training", "exits in training", "late"
DROPPED = (RAISES, RAISES_IN_TRAINING, EXITS, LATE)


@dataclass(frozen=True)
class Plan:
    """How clients fail.

    Attributes:
        folder: what clients say of their replies comes here.
        shares: kind of fault -> share of the train replies.
        failing: the client that raises in every round; -1 for none.
        late: seconds that a straggler sleeps between training and reply.
        stalls: partitions and rounds of clients that stay in training the first time, for `late` seconds or until
            `release` is called, which is for all of them.
    """

    folder: str
    seed: int = 0
    shares: Mapping[str, float] | None = None
    failing: int = -1
    late: float = 0.0
    stalls: tuple[tuple[int, int], ...] = ()

    def kind(self, partition: int, round_number: int) -> str:
        """CLEAN or one of DROPPED."""
        if partition == self.failing:
            return RAISES
        rng = self.generator(partition, round_number)
        point = rng.random()
        for kind, share in (self.shares or {}).items():
            point -= share
            if point < 0:
                return kind
        return CLEAN

    def generator(self, partition: int, round_number: int) -> np.random.Generator:
        """Random numbers of one reply."""
        return np.random.default_rng([self.seed, partition, round_number])

    def is_stall(self, partition: int, round_number: int) -> bool:
        """Whether this is the moment to stay in training; true once."""
        if (partition, round_number) not in self.stalls:
            return False
        try:
            (Path(self.folder) / f"stalled-{partition}-{round_number}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def release(self) -> None:
        """Let the client that stalls go on."""
        (Path(self.folder) / "released").touch()

    def wait_for_release(self) -> None:
        """Stay in training."""
        deadline = time.monotonic() + self.late
        while time.monotonic() < deadline and not (Path(self.folder) / "released").exists():
            time.sleep(0.1)

    def variable(self) -> dict[str, str]:
        """The environment of those who shall fail so."""
        return {VARIABLE: json.dumps(asdict(self))}


def from_environment() -> Plan:
    """Inverse of `Plan.variable`."""
    values: dict[str, Any] = json.loads(os.environ[VARIABLE])
    return replace(Plan(**values), stalls=tuple(map(tuple, values["stalls"])))
