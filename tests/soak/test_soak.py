"""`make soak`: fifty rounds over real processes, a fifth of the uploads missing, one site that never succeeds, and
every kind of process killed at random moments. Half an hour on two quiet cores."""

import json
import os
import random
import re
import time
from collections import Counter

import pytest

from protosphere.record.folder import RunFolder
from tests.integration import watched
from tests.soak.faults import plan as kinds
from tests.soak.faults.driver import Federation, Run, deployed, kill, wait_until
from tests.soak.faults.files import finished, refuse_broken
from tests.soak.faults.history import check_stores
from tests.soak.faults.oracle import Oracle, assert_same
from tests.soak.faults.plan import Plan

pytestmark = [pytest.mark.integration, pytest.mark.soak]

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "50"))
ROUND_TIMEOUT = float(os.environ.get("SOAK_ROUND_TIMEOUT", "25"))  # seconds
# of a seed whose fifty rounds hold every kind of fault
SEED = int(os.environ.get("SOAK_SEED", "7"))
CLIENTS, FAILING = 4, 3
DIM = 12
SHARES = {
    kinds.RAISES: 0.10,
    kinds.RAISES_IN_TRAINING: 0.04,
    kinds.EXITS: 0.03,
    kinds.LATE: 0.03,
}
# how many of each in fifty rounds
KILLS = {"client": 6, "node": 4, "server": 2, "superlink": 2}
LETHAL = ("server", "superlink")
SETTINGS = {
    "strategy": "fedproto",
    "rounds": ROUNDS,
    "clients": CLIENTS,
    "max-samples": 400,
    "feature-dim": DIM,
    "models": "tiny_perceptron",
    "device": "cpu",
    "round-timeout": ROUND_TIMEOUT,
    "start-timeout": 600.0,
    "max-failed-rounds": ROUNDS,
}


class Killer:
    """Kills by a schedule drawn from the seed: a kind, after a round, some seconds into the next."""

    def __init__(self, federation: Federation):
        self.federation = federation
        self.rng = random.Random(SEED)
        names = [name for name, many in KILLS.items() for _ in range(max(1, many * ROUNDS // 50))]
        self.rng.shuffle(names)
        rounds = sorted(self.rng.sample(range(2, max(ROUNDS, len(names) + 3)), len(names)))
        self.due = [(r, self.rng.uniform(0.0, 10.0), name) for r, name in zip(rounds, names, strict=True)]
        self.done: list[str] = []
        self._since = (0, 0.0)

    def look(self, run: Run) -> None:
        """Kill what is due."""
        if not self.due:
            return
        after, seconds, name = self.due[0]
        now, lines = time.monotonic(), run.lines()
        if lines != self._since[0]:
            self._since = lines, now
        if lines < after or now - self._since[1] < seconds:
            return
        if getattr(self, f"_{name}")():
            self.due.pop(0)
            self.done.append(name)
            print(f"after round {lines}: killed a {name}", flush=True)

    def _client(self) -> bool:
        apps = [pid for p in range(CLIENTS) for pid in self.federation.apps("flwr-clientapp", p)]
        if apps:
            kill(self.rng.choice(apps))
        return bool(apps)

    def _node(self) -> bool:
        partition = self.rng.randrange(FAILING)
        alive = bool(watched.members(self.federation.deployment, partition))
        if alive:
            watched.kill(self.federation.deployment, partition)
        return alive

    def _server(self) -> bool:
        apps = self.federation.apps("flwr-serverapp")
        for pid in apps:
            kill(pid)
        return bool(apps)

    def _superlink(self) -> bool:
        watched.kill(self.federation.deployment)
        time.sleep(self.rng.uniform(0.0, 5.0))
        self.federation.deployment.start_superlink()
        return True


def words(settings):
    return " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())


def watch(federation, killer, run):
    """Until the front door has ended: kill, and restart what has died."""
    while run.process.poll() is None:
        federation.supervise()
        killer.look(run)
        time.sleep(0.5)
    print(f"front door: exit {run.process.returncode}: {run.said.splitlines()[-2:]}", flush=True)
    assert "Traceback" not in run.said


def test_fifty_rounds_of_faults_and_kills(tmp_path, metrics):
    plan = Plan(str(tmp_path / "journal"), SEED, SHARES, FAILING, late=1.5 * ROUND_TIMEOUT)
    began = time.monotonic()
    with deployed(tmp_path, CLIENTS, plan) as federation:
        killer = Killer(federation)
        run = federation.run("-c", words(SETTINGS))
        watch(federation, killer, run)
        folder, losses = run.folder, 0
        while run.process.returncode:
            losses += 1
            assert run.process.returncode == 1
            assert losses <= sum(name in LETHAL for name in killer.done), run.said
            # the lock of a ServerApp that has not noticed yet
            wait_until(lambda: not federation.apps("flwr-serverapp"), 120, "the end of the lost run's ServerApp")
            line, checkpoint = finished(folder)
            # killed between the line and the checkpoint, a round is still in flight
            assert 0 <= line - checkpoint <= 1
            run = federation.run("--resume", str(folder))
            watch(federation, killer, run)
            resumed = re.search(r"resuming after round (\d+)", run.said)
            assert resumed, run.said
            assert int(resumed[1]) == checkpoint
        assert losses == sum(name in LETHAL for name in killer.done)
        # a straggler's last word
        wait_until(
            lambda: not any(federation.apps("flwr-clientapp", p) for p in range(CLIENTS)), 10 * ROUND_TIMEOUT, "clients"
        )
        stores = federation.stores(folder.name)
        files = refuse_broken([*federation.homes().values(), tmp_path / "journal"])

    lines = metrics(folder)
    assert [line["round"] for line in lines] == list(range(ROUNDS + 1))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "completed"
    oracle = Oracle(federation.journal, CLIENTS)
    prototypes = oracle.check(lines, all_arrive=False)
    tensors, _ = RunFolder(folder).load_checkpoint()
    labels, vectors = (tensors[f"download/-1/part/prototypes/prototypes/{name}"] for name in ("labels", "vectors"))
    assert_same(dict(zip(labels.tolist(), vectors.numpy(), strict=True)), prototypes)
    check_stores(federation.journal.events(), stores)
    told = [str(FAILING) in line["problems"] for line in lines[1:]]
    assert all(told), "the client that always fails is named in every round"

    found, seconds = oracle.found, time.monotonic() - began
    print(
        f"{ROUNDS} rounds, {losses} resumed runs, {seconds:.0f} s; kills {dict(Counter(killer.done))}; "
        f"{found.survived} uploads survived, {found.silent} were lost to kills and time; faults {found.faults}; "
        f"rounds without any upload: {found.unchanged}; {files} files whole"
    )
