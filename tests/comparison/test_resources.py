"""What each job gets of a machine, and how long all of them still take."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from protosphere.comparison.engine import Finished, Progress, Running
from protosphere.comparison.resources import cluster_share, share
from protosphere.comparison.trials import Cell
from protosphere.core.errors import SettingError
from protosphere.launch.ray_cluster import Cluster, Node
from protosphere.strategies import known_settings


def cell(name="c", row="r", method="m", clients=4, **settings):
    return Cell(name, row, method, 0, known_settings() | {"clients": clients} | settings)


@pytest.fixture
def machine(monkeypatch):
    """machine(cores, gpus, visible): what this machine seems to have."""

    def have(cores, gpus=0, visible=None):
        monkeypatch.setattr("os.cpu_count", lambda: cores)
        monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return have


# --- cores and GPUs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "clients", "number", "given", "jobs", "each"),
    [
        (2, 20, 9, {}, 1, 2),  # one cell's clients fill the machine
        (64, 20, 9, {}, 3, 21),
        (64, 20, 2, {}, 2, 32),  # no more jobs than cells
        (64, 20, 9, {"cpus_per_client": 2}, 1, 64),
        (8, 2, 9, {"jobs": 1}, 1, 8),
        (8, 20, 9, {"jobs": 3}, 3, 2),
        (9, 20, 9, {"jobs": 2, "cpus_per_client": 3}, 2, 3),
        (2, 20, 9, {"jobs": 4}, 4, 1),  # more than there are cores: as asked
        (8, 20, 9, {"in_process": True}, 8, 1),
        (8, 20, 3, {"in_process": True}, 3, 2),
        (8, 20, 0, {}, 1, 8),  # nothing left to run
    ],
)
def test_jobs_and_their_cores(machine, cores, clients, number, given, jobs, each):
    machine(cores)
    found = share([cell(str(index), clients=clients, device="cpu") for index in range(number)], **given)
    assert (found.jobs, found.cores, found.gpus) == (jobs, each, ())
    assert str(found) == f"{jobs} at a time with {each} core{'s' * (each > 1)}{' each' * (jobs > 1)}"


@pytest.mark.parametrize(
    ("gpus", "visible", "given", "places"),
    [
        (2, None, {"gpus_per_client": 0.25}, ("0", "1")),
        (4, None, {"gpus_per_client": 2}, ("0,2", "1,3")),
        (4, None, {"gpus_per_client": 0.5, "jobs": 2}, ("0,2", "1,3")),
        (2, None, {"gpus_per_client": 0.1, "jobs": 3}, ("0", "1", "0")),
        (2, "5,7", {"gpus_per_client": 1}, ("5", "7")),
        (1, None, {"in_process": True}, ("0",)),
    ],
)
def test_each_job_has_its_gpus(machine, gpus, visible, given, places):
    machine(16, gpus, visible)
    found = share([cell(str(index), clients=20) for index in range(6)], **given)
    assert (found.jobs, found.gpus) == (len(places), places)
    assert found.environment(1 % found.jobs)["CUDA_VISIBLE_DEVICES"] == places[1 % len(places)]


def test_over_flower_gpus_are_asked_for(machine):
    """As `protosphere run` does: without --gpus-per-client clients stay on the CPU."""
    machine(16, 2)
    found = share([cell(clients=20)] * 6)
    without_report = ["-c", "report=false"]
    flower = ["--flower", "--cpus-per-client", "1", "--gpus-per-client", "0"]
    assert (found.gpus, found.flags()) == ((), [*without_report, *flower])
    assert "CUDA_VISIBLE_DEVICES" not in found.environment(0)


@pytest.mark.parametrize(
    ("nodes", "device", "given", "share_of"),
    [
        (((4, 0), (2, 0)), "auto", {}, (6, 1, 0)),
        (((4, 0), (2, 0)), "auto", {"cpus": 2}, (3, 2, 0)),
        (((4, 0), (2, 0)), "auto", {"cpus": 4}, (1, 4, 0)),
        (((4, 0), (2, 0)), "auto", {"jobs": 2}, (2, 1, 0)),
        (((4, 0), (2, 0)), "auto", {"jobs": 50}, (6, 1, 0)),
        (((8, 2), (2, 0)), "auto", {}, (2, 1, 1)),
        (((8, 2), (2, 0)), "cpu", {}, (9, 1, 0)),  # no more jobs than cells
        (((8, 2), (2, 0)), "auto", {"gpus": 0.5}, (4, 1, 0.5)),
        (((8, 2), (2, 0)), "auto", {"gpus": 0.0}, (9, 1, 0)),
    ],
)
def test_cells_of_a_cluster_have_what_its_nodes_hold(machine, nodes, device, given, share_of):
    """Whatever this machine has."""
    machine(1)
    cluster = Cluster("head:1", [Node(*node) for node in nodes])
    found = cluster_share([cell(str(index), device=device) for index in range(9)], cluster, **given)
    assert (found.jobs, found.cpus_per_client, found.gpus_per_client) == share_of
    assert (found.ray, found.in_process, found.environment(0)) == ("head:1", True, {})


@pytest.mark.parametrize("given", [{"cpus": 5}, {"cpus": 0}, {"gpus": 2.0}, {"cpus": 4, "gpus": 1.0}, {"jobs": 0}])
def test_what_no_node_of_a_cluster_has_is_refused(given):
    cluster = Cluster("head:1", [Node(4, 0), Node(2, 1)])
    with pytest.raises(SettingError, match="jobs" if "jobs" in given else "no node of Ray at head:1 .* has"):
        cluster_share([cell()], cluster, **given)


def test_ray_sees_a_jobs_cores_alone(machine):
    """Or it would start a worker for each core of the machine in every job."""
    machine(8)
    environment = share([cell()] * 4, jobs=2).environment(0)
    assert json.loads(environment["RAY_OVERRIDE_RESOURCES"]) == {"CPU": 4}


def test_the_installed_ray_reads_that_variable():
    from ray._private.resource_and_label_spec import ResourceAndLabelSpec

    program = (
        f"from {ResourceAndLabelSpec.__module__} import ResourceAndLabelSpec as Spec; "
        "spec = Spec().resolve(is_head=True); print(spec.num_cpus)"
    )
    environment = {"RAY_OVERRIDE_RESOURCES": '{"CPU": 37}', "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["37"], done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"jobs": 0}, "--jobs is 0, but one must run at least."),
        ({"cpus_per_client": 5}, "--cpus-per-client is 5, but this machine has 4"),
        ({"cpus_per_client": 0}, "--cpus-per-client is 0"),
        ({"gpus_per_client": 1.0}, "--gpus-per-client is 1, but this machine has 0 CUDA GPUs"),
        ({"gpus_per_client": -1.0}, "--gpus-per-client is -1"),
    ],
)
def test_what_the_machine_lacks(machine, given, said):
    machine(4)
    with pytest.raises(SettingError) as caught:
        share([cell()], **given)
    assert said in str(caught.value)


# --- the time left ----------------------------------------------------------------------------------------

SLOW, FAST = cell("slow", method="slow"), cell("fast", method="fast")


def left(ended=(), running=(), waiting=(), jobs=1):
    return Progress(0, ended, running, waiting, jobs).seconds_left()


def test_in_the_first_cell_its_own_rounds_tell():
    """Two of ten rounds in 30 s: 150 s in all; the next cell is taken to need as long."""
    assert left(running=[Running(SLOW, 30.0, 2, 10)]) == pytest.approx(120.0)
    assert left(running=[Running(SLOW, 30.0, 2, 10)], waiting=[FAST]) == pytest.approx(270.0)
    # and before those of another seed, which may have been quicker
    other = Running(cell("other", method="slow"), 30.0, 5, 10)
    assert left(running=[Running(SLOW, 30.0, 2, 10), other], jobs=2) == pytest.approx(120.0)


def test_finished_cells_of_the_same_row_and_method_tell_best():
    ended = [Finished(SLOW, 100.0), Finished(FAST, 10.0), Finished(cell("o", row="other", method="slow"), 900.0)]
    assert left(ended, waiting=[SLOW]) == pytest.approx(100.0)
    assert left(ended, waiting=[cell("x", row="third", method="slow")]) == pytest.approx(500.0)
    assert left(ended, waiting=[cell("x", row="third", method="new")]) == pytest.approx(1010.0 / 3)
    assert left(ended, [Running(FAST, 4.0, 0, 10)]) == pytest.approx(6.0)


def test_jobs_share_what_is_left_but_no_cell_is_cut_in_two():
    ended = [Finished(SLOW, 100.0), Finished(FAST, 10.0)]
    assert left(ended, waiting=[FAST] * 8, jobs=2) == pytest.approx(40.0)
    assert left(ended, waiting=[SLOW, FAST], jobs=2) == pytest.approx(100.0)


def test_workers_are_the_runs_and_each_has_its_cores(machine):
    machine(16, 0)
    found = share([cell(str(index), clients=20) for index in range(20)], in_process=True, workers=4)
    assert found.jobs == 4
    assert found.flags() == ["-c", "report=false"]
    assert replace(found, workers=4).flags() == ["-c", "report=false", "--workers", "4"]
