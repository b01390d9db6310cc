"""When things happened, as lines of a file that all processes of the machine append to."""

import json
import os
import time
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

from flwr.app import Message

VARIABLE = "PROTOSPHERE_TIMES"  # names the file


def note(**line: Any) -> None:
    """Append one line; in one write, so that processes do not mix theirs."""
    with Path(os.environ[VARIABLE]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def process_start() -> float:
    """When this process began, as time.time() counts; to the tick of 10 ms."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


class Stopwatch:
    """Wall and processor seconds by part; what a part calls that has a name of its own is not the part's."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float]] = {}
        self._inner: list[tuple[float, float]] = []

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same callable, under the clock."""

        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            self._inner.append((0.0, 0.0))
            try:
                return call(*args, **kwargs)
            finally:
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                inner = self._inner.pop()
                before = self.seconds.get(part, (0.0, 0.0))
                self.seconds[part] = before[0] + wall - inner[0], before[1] + cpu - inner[1]
                if self._inner:
                    outer = self._inner[-1]
                    self._inner[-1] = outer[0] + wall, outer[1] + cpu

        return timed


class ClockedGrid:
    """A grid that notes when each message was pushed and when its reply was there."""

    def __init__(self, grid: Any):
        self._grid = grid
        self._pushes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        began = time.time()
        messages = list(messages)
        kind = messages[0].metadata.message_type
        ids = list(self._grid.push_messages(messages))
        for message_id in ids:
            note(what="pushed", message=message_id, at=began, push=self._pushes, kind=kind)
        self._pushes += 1
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            note(what="arrived", message=reply.metadata.reply_to_message_id, at=time.time())
        return replies
