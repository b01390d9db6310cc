"""How far a stranger has to read: the files of ours that run for one train message, and for its round on the server.

    python -m benchmarks.message_trace fedproto 'batch-size=16 models="tiny_cnn"'

Three clients, three rounds; the second client's message of the second round is followed. The two functions that are
wrapped name where a message is worked off and where a round is: move them with the code.
"""

import sys
from collections import Counter, defaultdict
from itertools import pairwise
from types import FrameType
from typing import Any

import protosphere
from benchmarks.common import ROOT, described_parser
from protosphere.launch import grid
from protosphere.launch.run_config import read_assignments
from protosphere.server_app.rounds import PrototypeStrategy

CHECKOUT = f"{ROOT}/"
ELSEWHERE = (f"{CHECKOUT}.venv/", f"{CHECKOUT}benchmarks/")
TRAIN_MESSAGE = 5  # with three clients: the second one of round 2
SERVER_ROUND = 2


def traced_calls(method: str, settings: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(half, file, function) of each call into our own files, in order."""
    calls: list[tuple[str, str, str]] = []
    half = ""
    train_messages = 0
    work, run_round = grid._work, PrototypeStrategy._round

    def profile(frame: FrameType, event: str, _: object) -> None:
        if half and event == "call":
            file = frame.f_code.co_filename
            if file.startswith(CHECKOUT) and not file.startswith(ELSEWHERE):
                calls.append((half, file.removeprefix(CHECKOUT), frame.f_code.co_qualname))

    def client_half(message: Any, context: Any) -> Any:
        nonlocal half, train_messages
        before = half
        is_train = message.metadata.message_type == "train"
        train_messages += is_train
        half = "client" if is_train and train_messages == TRAIN_MESSAGE else ""
        try:
            return work(message, context)
        finally:
            half = before

    def server_half(strategy: Any, flower_grid: Any, number: int, *rest: Any) -> Any:
        nonlocal half
        half = "server" if number == SERVER_ROUND else ""
        try:
            return run_round(strategy, flower_grid, number, *rest)
        finally:
            half = ""

    grid._work = client_half
    PrototypeStrategy._round = server_half
    sys.setprofile(profile)
    try:
        protosphere.run(method, "digits", clients=3, rounds=3, quiet=True, **settings)
    finally:
        sys.setprofile(None)
    return calls


def main() -> None:
    """Print the files by half, with their calls and functions."""
    parser = described_parser(__doc__)
    parser.add_argument("method", nargs="?", default="fedproto")
    parser.add_argument("settings", nargs="*", metavar="SETTINGS", help="as `protosphere run -c` takes them")
    options = parser.parse_args()
    calls = traced_calls(options.method, read_assignments(" ".join(options.settings)))
    for half in ("client", "server"):
        half_calls = [(file, function) for name, file, function in calls if name == half]
        files = [file for file, _ in half_calls]
        functions: dict[str, set[str]] = defaultdict(set)
        for file, function in half_calls:
            functions[file].add(function)
        moves = sum(before != after for before, after in pairwise(files))
        number = sum(map(len, functions.values()))
        print(f"{half}: {len(functions)} files, {number} functions, {len(files)} calls, {moves} moves between files")
        for file, count in Counter(files).items():
            print(f"  {file:45s} {count:5d} calls {len(functions[file]):3d} functions")
    both = {file for _, file, _ in calls}
    lines = sum(len((ROOT / file).read_text().splitlines()) for file in both)
    print(f"both halves: {len(both)} files, {lines} lines")


if __name__ == "__main__":
    main()
