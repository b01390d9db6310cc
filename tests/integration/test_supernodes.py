"""Real SuperNodes that die, come twice, or come as another client, while a run is on."""

import re
from contextlib import contextmanager
from types import SimpleNamespace

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
    "rounds": 4,
    "max-samples": 200,
    "feature-dim": 12,
    "clients": 2,
    "models": "tiny_perceptron",
    "device": "cpu",
    "round-timeout": 600.0,
}
SETTINGS |= ONE_EPOCH
WITHOUT_END = 3600.0  # seconds that a client stalls whom nobody releases


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """One run of four rounds. While client 1 trains in the second, its node and the SuperLink are killed and started
    again, and the run is resumed; while it trains in the third, a second node comes for its partition, and client 0's
    node starts again as client 1."""
    place = tmp_path_factory.mktemp("supernodes")
    plan = Plan(str(place / "journal"), stalls=((1, 2), (1, 3)), late=WITHOUT_END)
    with deployed(place, 2, plan) as federation:
        told = SimpleNamespace()
        told.first = federation.run("-c", assignments(SETTINGS))
        wait_for_stall(federation, told.first, 2)
        told.held = federation.stores(told.first.folder.name)[1]
        kill(federation.deployment, 1)
        kill(federation.deployment)
        told.left = members(federation.deployment, 1) | members(federation.deployment)
        told.finished = finished(told.first.folder)

        federation.deployment.start_superlink()
        federation.renew(1)
        told.first.process.wait(PATIENCE)
        told.second = federation.run("--resume", str(told.first.folder))
        wait_for_stall(federation, told.second, 3)
        told.events, told.stores = federation.journal.events(), federation.stores(told.first.folder.name)
        with as_client_1(federation, place / "third", plan):
            plan.release()
            told.second.process.wait(PATIENCE)
        told.whole = refuse_broken(federation.homes().values())
        yield told


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


def test_killed_in_mid_training_a_node_and_the_superlink_go_on_as_if_nothing_had_been(story, run, metrics):
    """Mixtures cross, as prototypes and weights do in test_deployment.py."""
    assert story.left == set()
    assert story.finished == (1, 1)
    assert story.first.process.returncode == 1
    assert "Traceback" not in story.first.said
    assert "lost except for its last checkpoint: resume it if the log shows a finished round" in story.first.said
    assert "resuming after round 1" in story.second.said
    # what was in training left nothing, and the round began anew from the one before
    begins = [
        event for event in story.events if (event["event"], event["partition"], event["round"]) == ("begins", 1, 2)
    ]
    assert [event["held"] for event in begins] == [sorted(story.held)] * 2 == [[0, 1]] * 2
    check_stores(story.events, story.stores)
    assert {p: sorted(generations) for p, generations in story.stores.items()} == {0: [2, 3], 1: [1, 2]}
    assert story.whole
    # with round 3 the other story begins
    assert metrics(story.first.folder)[:3] == metrics(run(SETTINGS, clients=2))[:3]


def test_a_node_stands_for_one_partition_and_a_partition_for_one_node(story, metrics):
    assert story.second.process.returncode == 0, story.second.said
    waits = r"node \d+ waits: node \d+ answers for partition 1, and Flower still lists it"
    assert len(re.findall(waits, story.second.said)) == 1
    assert "is back" not in story.second.said
    lines = metrics(story.first.folder)
    # of round 3 it was the evaluation that the node answered as another
    assert [sorted(line["problems"]) for line in lines] == [[], [], [], ["0"], ["0"]]
    for line in lines[3:]:
        assert "its node answers as partition 1" in line["problems"]["0"]
    assert [line["training"]["valid"] for line in lines[1:]] == [2, 2, 2, 1]
    assert "evaluation" in lines[4]["clients"]["1"]
