"""Runs whose clients fail by plan: a fourth of the uploads missing, one client that never succeeds.
Real processes that are killed: test_supernodes.py; `make soak` has the long form."""

import pytest

from protosphere.launch import grid as local_grid
from protosphere.launch.grid import LocalGrid
from protosphere.record.folder import RunFolder
from protosphere.server_app import exchange as exchange_module
from tests.soak.faults import app as faulty
from tests.soak.faults import plan as kinds
from tests.soak.faults.files import refuse_broken
from tests.soak.faults.history import check_stores
from tests.soak.faults.journal import Journal, generations
from tests.soak.faults.oracle import Oracle, assert_same
from tests.soak.faults.plan import Plan

DIM = 12
ROUNDS, CLIENTS, FAILING = 20, 4, 3
SHARES = {kinds.RAISES: 0.1, kinds.RAISES_IN_TRAINING: 0.05, kinds.EXITS: 0.05, kinds.LATE: 0.05}
SETTINGS = {"strategy": "fedproto", "rounds": ROUNDS, "max-failed-rounds": ROUNDS}


class Clock:
    """Stands in for the module `time` where the server waits: nobody is late but by plan."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class LateGrid(LocalGrid):
    """Replies that are late by plan come with the next round's, unasked."""

    in_turn = False
    plan: Plan
    late = ()
    held_back = ()

    def push_messages(self, messages):
        self.late, self.held_back = self.held_back, ()
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        on_time, late = [], []
        for reply in super().pull_messages(message_ids):
            (late if self._is_late(reply) else on_time).append(reply)
        self.held_back = (*self.held_back, *late)
        on_time += self.late
        self.late = ()
        return on_time

    def _is_late(self, reply):
        if reply.has_error() or "training.rows" not in reply.content.get("metrics", ()):
            return False
        report = reply.content["config"]
        return self.plan.kind(report["partition"], report["round"]) == kinds.LATE


@pytest.fixture
def fail(run, home, monkeypatch):
    """fail(plan, settings) -> the run's folder: a run in this process with clients that fail by plan."""

    def start(plan, settings):
        (home / "journal").mkdir()
        for name, value in (plan.variable() | {faulty.IN_PROCESS: "1"}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(local_grid, "client_app", faulty.app)
        monkeypatch.setattr(exchange_module, "time", Clock())
        monkeypatch.setattr(LateGrid, "plan", plan, raising=False)
        return run(settings, clients=CLIENTS, grid=LateGrid)

    return start


def test_a_run_of_faulty_clients_is_the_run_of_the_uploads_that_survive(fail, run, home, metrics):
    plan = Plan(str(home / "journal"), 0, SHARES, FAILING)
    folder = fail(plan, SETTINGS)
    lines = metrics(folder)
    assert [line["round"] for line in lines] == list(range(ROUNDS + 1))
    journal = Journal(plan.folder)
    oracle = Oracle(journal, CLIENTS)
    prototypes = oracle.check(lines, all_arrive=True)
    assert {*kinds.DROPPED} == oracle.found.faults.keys(), "the seed spares the run a fault"

    tensors, meta = RunFolder(folder).load_checkpoint()
    assert meta["round"] == ROUNDS
    labels, vectors = (tensors[f"download/-1/part/prototypes/prototypes/{name}"] for name in ("labels", "vectors"))
    assert_same(dict(zip(labels.tolist(), vectors.numpy(), strict=True)), prototypes)

    # each is told by name, each time
    warned = [line for line in run.said if line.startswith("warning: ")]
    for line in lines[1:]:
        assert "fails by plan" in line["problems"][str(FAILING)]
        for partition, problem in line["problems"].items():
            assert f"warning: round {line['round']}, client {partition}: {problem}" in warned
    assert "Traceback" not in "\n".join(run.said)

    stores = {p: generations(home / "clients" / folder.name / str(p)) for p in range(CLIENTS)}
    check_stores(journal.events(), stores)
    assert refuse_broken([home / "clients", home / "results"]) > CLIENTS
