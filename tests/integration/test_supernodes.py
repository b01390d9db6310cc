"""Real SuperNodes that die, come twice, or come as another client, while a run is on."""

import json
import re

import pytest

from deploy import credentials
from deploy.demo import CONNECTION, Deployment, Site
from protosphere.launch import processes
from tests.integration.watched import assignments, kill, members
from tests.soak.faults.driver import deployed, wait_until
from tests.soak.faults.files import finished, refuse_broken
from tests.soak.faults.history import check_stores
from tests.soak.faults.plan import Plan
from tests.steps import ONE_EPOCH

pytestmark = pytest.mark.integration

LONG = 600.0  # seconds, for what takes half a minute


def count_online(deployment):
    """How many nodes the SuperLink lists as online."""
    listing = json.loads(deployment.flwr("supernode", "list", CONNECTION, "--format", "json"))
    return [node["status"] for node in listing["nodes"]].count("online")


def test_killed_in_mid_training_a_node_and_the_superlink_go_on_as_if_nothing_had_been(tmp_path, run, metrics):
    """SIGKILL for a SuperNode while it trains, then for the SuperLink; both started again, the run resumed. Mixtures
    cross, as prototypes and weights do in test_deployment.py."""
    settings = {
        "strategy": "gfpl",
        "gfpl.first-exchange": 1,
        "gfpl.exchange-every": 1,
        "rounds": 2,
        "max-samples": 200,
        "feature-dim": 12,
        "clients": 2,
    }
    settings |= {"models": "tiny_perceptron", "device": "cpu", "round-timeout": 600.0}
    settings |= ONE_EPOCH
    plan = Plan(str(tmp_path / "journal"), stall=(1, 2), late=3600.0)
    with deployed(tmp_path, 2, plan) as federation:
        deployment, journal = federation.deployment, federation.journal
        first = federation.run("-c", assignments(settings))
        wait_until(lambda: journal.events("stalls") or first.process.poll() is not None, LONG, "round 2")
        assert first.process.poll() is None, first.said
        held = federation.stores(first.folder.name)[1]
        kill(deployment, 1)
        kill(deployment)
        assert members(deployment, 1) == members(deployment) == set()
        assert finished(first.folder) == (1, 1)

        deployment.start_superlink()
        federation.renew(1)
        assert first.process.wait(LONG) == 1
        assert "Traceback" not in first.said
        assert "lost except for its last checkpoint: resume it if the log shows a finished round" in first.said
        second = federation.run("--resume", str(first.folder))
        assert second.process.wait(LONG) == 0, second.said
        assert "resuming after round 1" in second.said

        # what was in training left nothing, and the round began anew from the one before
        begins = [event for event in journal.events("begins") if (event["partition"], event["round"]) == (1, 2)]
        assert [event["held"] for event in begins] == [sorted(held)] * 2 == [[0, 1]] * 2
        stores = federation.stores(first.folder.name)
        check_stores(journal.events(), stores)
        assert {p: sorted(generations) for p, generations in stores.items()} == {0: [1, 2], 1: [1, 2]}
        assert refuse_broken(federation.homes().values())
        told = metrics(first.folder)
    assert told == metrics(run(settings, clients=2))


def test_a_node_stands_for_one_partition_and_a_partition_for_one_node(tmp_path, metrics):
    """While client 1 trains, a second node comes for its partition, and client 0's node starts again as client 1."""
    settings = {"strategy": "fedproto", "rounds": 2, "max-samples": 200, "clients": 2, "device": "cpu"}
    settings |= {"models": "tiny_perceptron", "round-timeout": 600.0} | ONE_EPOCH
    plan = Plan(str(tmp_path / "journal"), stall=(1, 1), late=LONG)
    with deployed(tmp_path, 2, plan) as federation:
        deployment, journal = federation.deployment, federation.journal
        run = federation.run("-c", assignments(settings))
        wait_until(lambda: {"stalls", "sends"} <= {event["event"] for event in journal.events()}, LONG, "round 1")

        client_1 = {"device": "cpu", "partition": "1", "of": "2"}
        second = Deployment(tmp_path / "second", [Site(1, client_1)], plan.variable())
        second.fleet, second.authority = deployment.fleet, deployment.authority
        second.environment = deployment.environment
        try:
            credentials.node(second.key(1))
            deployment.register(second.key(1))
            second.start_node(1)
            processes.stop(deployment.processes[0])
            deployment.sites[0] = Site(0, client_1)
            deployment.start_node(0)
            wait_until(lambda: count_online(deployment) == 3, LONG, "both nodes")
            plan.release()
            assert run.process.wait(LONG) == 0, run.said
        finally:
            second.stop()

    waits = r"node \d+ waits: node \d+ answers for partition 1, and Flower still lists it"
    assert len(re.findall(waits, run.said)) == 1
    assert "is back" not in run.said
    lines = metrics(run.folder)
    # of round 1 it was the evaluation that the node answered as another
    assert [sorted(line["problems"]) for line in lines] == [[], ["0"], ["0"]]
    for line in lines[1:]:
        assert "its node answers as partition 1" in line["problems"]["0"]
    assert [line["training"]["valid"] for line in lines[1:]] == [2, 1]
    assert "evaluation" in lines[2]["clients"]["1"]
