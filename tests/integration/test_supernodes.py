"""Real SuperNodes that die, come twice, or come as another client, during a run."""

import re
from contextlib import contextmanager

import pytest

from deploy import credentials
from protosphere.launch import processes
from tests.deployment import Deployment, Site
from tests.integration.watched import assignments, kill, members
from tests.soak.faults.driver import deployed, wait_until
from tests.soak.faults.files import finished, refuse_broken
from tests.soak.faults.history import check_stores
from tests.soak.faults.plan import Plan
from tests.steps import ONE_EPOCH
from tests.waiting import PATIENCE

pytestmark = pytest.mark.integration

SETTINGS = {
    "strategy": "gfpl",
    "gfpl.first-exchange": 1,
    "gfpl.exchange-every": 1,
    "rounds": 2,
    "max-samples": 200,
    "feature-dim": 12,
    "clients": 2,
    "models": "tiny_perceptron",
    "device": "cpu",
    "round-timeout": 600.0,
}
SETTINGS |= ONE_EPOCH
WITHOUT_END = 3600.0  # seconds that a client stalls whom nobody releases


@contextmanager
def stalled(place, stalled_round):
    """A federation of two, and its run, in which client 1 has come to the end of its training in a round."""
    plan = Plan(str(place / "journal"), stalls=((1, stalled_round),), late=WITHOUT_END)
    with deployed(place, 2, plan) as federation:
        run = federation.run("-c", assignments(SETTINGS))
        wait_for_stall(federation, run, stalled_round)
        yield federation, run, plan


def wait_for_stall(federation, run, server_round):
    """Until client 1 has come to the end of its training in a round, and client 0 has been heard."""
    said = [("stalls", 1, server_round), ("sends", 0, server_round)]

    def seen():
        events = [(event["event"], event["partition"], event["round"]) for event in federation.journal.events()]
        return set(said) <= set(events) or run.process.poll() is not None

    wait_until(seen, PATIENCE, f"round {server_round}")
    assert run.process.poll() is None, run.said
    log = federation.deployment.log(0)
    answered = ("Received successfully", "Sent successfully")
    wait_until(lambda: len({log.read_text().count(words) for words in answered}) == 1, PATIENCE, "client 0's answer")


@contextmanager
def as_client_1(federation, folder, plan):
    """A second node of partition 1 inside, and client 0's node started again as client 1."""
    deployment, client_1 = federation.deployment, {"partition": "1", "of": "2"}
    second = Deployment(folder, [Site(1, client_1)], plan.variable())
    second.fleet, second.authority = deployment.fleet, deployment.authority
    second.environment = deployment.environment
    try:
        credentials.node(second.key(1))
        deployment.register(second.key(1))
        second.start_node(1)
        wait_until(lambda: times_online(second.log(1)) == 1, PATIENCE, "the second node")
        before = times_online(deployment.log(0))
        processes.stop(deployment.processes[0])
        deployment.sites[0] = Site(0, client_1)
        deployment.start_node(0)
        wait_until(lambda: times_online(deployment.log(0)) == before + 1, PATIENCE, "client 0's node")
        yield
    finally:
        second.stop()


def times_online(log):
    """How often a SuperNode has been let in."""
    return log.read_text().count("SuperNode ID")


def test_killed_in_mid_training_a_node_and_the_superlink_go_on_as_if_nothing_had_been(tmp_path, run, metrics):
    """Mixtures cross, as prototypes and weights do in test_deployment.py."""
    with stalled(tmp_path, 2) as (federation, first, plan):
        held = federation.stores(first.folder.name)[1]
        kill(federation.deployment, 1)
        kill(federation.deployment)
        assert members(federation.deployment, 1) | members(federation.deployment) == set()
        assert finished(first.folder) == (1, 1)

        plan.release()
        federation.deployment.start_superlink()
        federation.renew(1)
        first.process.wait(PATIENCE)
        second = federation.run("--resume", str(first.folder))
        second.process.wait(PATIENCE)
        events, stores = federation.journal.events(), federation.stores(first.folder.name)
        assert refuse_broken(federation.homes().values())

    assert first.process.returncode == 1
    assert "Traceback" not in first.said
    assert "lost except for its last checkpoint: resume it if the log shows a finished round" in first.said
    assert "resuming after round 1" in second.said
    # what was in training left nothing, and the round began anew from the one before
    begins = [event for event in events if (event["event"], event["partition"], event["round"]) == ("begins", 1, 2)]
    assert [event["held"] for event in begins] == [sorted(held)] * 2 == [[0, 1]] * 2
    check_stores(events, stores)
    assert {partition: sorted(generations) for partition, generations in stores.items()} == {0: [1, 2], 1: [1, 2]}
    assert metrics(first.folder) == metrics(run(SETTINGS, clients=2))


@pytest.mark.soak
def test_a_node_stands_for_one_partition_and_a_partition_for_one_node(tmp_path, metrics):
    """While client 1 trains, a second node comes for its partition, and client 0's node starts again as client 1."""
    with (
        stalled(tmp_path, 1) as (federation, begun, plan),
        as_client_1(federation, tmp_path / "third", plan),
    ):
        plan.release()
        begun.process.wait(PATIENCE)
    assert begun.process.returncode == 0, begun.said
    waits = r"node \d+ waits: node \d+ answers for partition 1, and Flower still lists it"
    assert len(re.findall(waits, begun.said)) == 1
    assert "is back" not in begun.said
    lines = metrics(begun.folder)
    # of round 1 it was the evaluation that the node answered as another
    assert [sorted(line["problems"]) for line in lines] == [[], ["0"], ["0"]]
    for line in lines[1:]:
        assert "its node answers as partition 1" in line["problems"]["0"]
    assert [line["training"]["valid"] for line in lines[1:]] == [2, 1]
    assert "evaluation" in lines[2]["clients"]["1"]
