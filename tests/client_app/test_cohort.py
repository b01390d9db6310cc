"""Clients trained together against the loop: from equal state, in float64, the same weights, optimisers and figures."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from protosphere.client_app.client import Client
from protosphere.client_app.cohort import DRAWS as RANDOM
from protosphere.client_app.cohort import HEAVY, Cohorts, member_of, work_of
from protosphere.client_app.evaluate import DivergenceError
from protosphere.client_app.tensor_trees import filled, tensors_in
from protosphere.core.errors import SettingError
from protosphere.core.seeds import seed_process
from protosphere.launch.cohort_grid import CohortGrid
from protosphere.models import FAMILIES
from protosphere.models.small import SMALL
from protosphere.record.folder import RunFolder
from protosphere.strategies import METHODS
from tests.client_app.stacked import Double, job_of, trained
from tests.strategies.golden import CLIENTS, settings_of
from tests.strategies.needs import FEW

DRAWS = {"fraug": 1, "fedgen": 2, "fedpa": 2}  # the round from which a loss draws, which no stack can as clients do


def assert_same(make):
    """They are trained together, and no figure differs."""
    reasons, together, alone, apart = trained(make)
    assert reasons == []
    assert apart < 1e-9
    for one, other in zip(together, alone, strict=True):
        assert (one.rows, one.steps) == (other.rows, other.steps)
        assert one.parts == pytest.approx(other.parts, rel=1e-6)
        assert list(one.parts) == list(other.parts)
        assert (one.gradient_ratio, one.prototype_norm) == pytest.approx((other.gradient_ratio, other.prototype_norm))
        assert one.target_norm == pytest.approx(other.target_norm)


# --- methods, as they are in real runs ---------------------------------------------------------------------------


class Compared(CohortGrid):
    """Trains the clients of a run by the loop, and copies of them in float64 both ways."""

    def __init__(self, seen, narrow, *arguments):
        super().__init__(*arguments)
        self.cohorts = partial(self._both, seen, deepcopy if narrow else doubled)

    def _both(self, seen, copied, jobs):
        seen.append(trained(lambda: [copied(job) for job in jobs]))
        for job in jobs:
            seed_process(*job.stream, "process")
            yield job, job.alone()


def doubled(job):
    """A copy in float64, with all that the loss reads."""
    transform = job.data.transform
    data = replace(job.data, transform=Double(transform.scale, transform.mean, transform.std, transform.shape))
    state = deepcopy(job.state)
    state.module.double()
    for name in ("table", "received"):
        value = getattr(state, name)
        wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors_in(value)]
        setattr(state, name, filled(value, iter(wide)))
    return replace(job, objective=deepcopy(job.objective), state=state, data=data)


# of these an optimiser that starts anew is another's, too: one phase, two models, two phases, or rows of its own
ANEW = ("fedproto", "ditto", "fedrep", "gfpl", "fraug")


@pytest.mark.parametrize(
    ("method", "optimiser_state"), [*((name, "persistent") for name in METHODS), *((name, "fresh") for name in ANEW)]
)
def test_every_method_trains_together_as_it_trains_alone(run, method, optimiser_state):
    """And keeps the momentum of the same phases: of none that starts anew each time."""
    seen = []
    settings = {name: value for name, value in settings_of(method).items() if name not in ("device", "precision")}
    more = {"momentum": 0.9, "batch-size": 8, "rounds": 2, "fraction-train": 1.0, "optimizer-state": optimiser_state}
    more |= {"evaluate-every": 2, "spiral-points": 12} | FEW.get(method, {})
    run(settings | more, clients=CLIENTS, grid=partial(Compared, seen, method in DRAWS))
    for number, (reasons, _, _, apart) in enumerate(seen, 1):
        draws = number >= DRAWS.get(method, 3)
        assert [reason for _, reason in reasons] == ([RANDOM] if draws else [])
        assert apart < (1e-6 if method in DRAWS else 1e-9)
    assert len(seen) == 2


# --- architectures, batches, optimisers ------------------------------------------------------------------------


# layers of theirs are in tiny_resnet and in efficientnet_b0
ALIKE = {"resnet18", "mobilenet_v2"}


@pytest.mark.parametrize(
    "model", sorted({*FAMILIES["tiny"], *FAMILIES["papers-protonorm"], *FAMILIES["papers-fedpagr"]} - ALIKE)
)
def test_every_architecture_trains_together_as_it_trains_alone(model):
    # one step: the deep ones are ill-conditioned in so few rows
    assert_same(lambda: [job_of(client, 4, model, (3, 16, 16)) for client in range(2)])


@pytest.mark.parametrize("rows", [(16, 16, 16), (16, 3, 9, 18, 4, 1, 19, 7), (5,)], ids=["even", "ragged", "one"])
@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.0}, {"local-epochs": 3, "prototype-loss": "l2"}], ids=["", "plain", "epochs"]
)
def test_whatever_batches_clients_have(rows, settings):
    assert_same(lambda: [job_of(client, number, **settings) for client, number in enumerate(rows)])


def test_momentum_goes_on_where_a_client_has_some():
    def make():
        jobs = [job_of(client) for client in range(3)]
        jobs[1].alone()
        return jobs

    assert make()[1].state.optimiser
    assert_same(make)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_share_at_its_bounds_trains_together_as_it_trains_alone(alpha):
    def make():
        jobs = [job_of(client, strategy="apfl", **{"apfl.alpha": alpha, "local-epochs": 3}) for client in range(4)]
        for client, job in enumerate(jobs):
            worse = (job.state.module.model, job.state.module.companion)[client % 2]
            with torch.no_grad():
                for own in worse.parameters():
                    own.mul_(-2)
        return jobs

    assert_same(make)
    jobs = make()
    for job in jobs:
        job.alone()
    at_the_bound = [float(job.state.module.alpha.detach()) == alpha for job in jobs]
    assert any(at_the_bound)
    assert not all(at_the_bound)


def test_clients_without_targets_train_apart_from_those_with():
    assert_same(lambda: [job_of(client, targets=client % 2 > 0) for client in range(4)])


class Two(nn.Module):
    """With a layer that stands still, and one that the loss does not reach."""

    def __init__(self):
        super().__init__()
        self.still, self.aside = nn.Linear(5, 5).requires_grad_(False), nn.Linear(5, 5)

    def forward(self, x):
        return torch.relu(self.still(x))


def test_what_has_no_gradient_stays_and_decays_not(monkeypatch):
    monkeypatch.setitem(SMALL, "two", lambda shape: Two())
    jobs = [job_of(client, model="two") for client in range(2)]
    before = deepcopy(jobs[0].state.module.extractor.backbone)
    list(Cohorts(pytest.fail)(jobs))
    assert all(map(torch.equal, before.parameters(), jobs[0].state.module.extractor.backbone.parameters()))
    assert_same(lambda: [job_of(client, model="two") for client in range(2)])


# --- who diverges, and who cannot be stacked -----------------------------------------------------------------------


class Own(nn.Module):
    """A matrix that is no layer's, and a linear layer that gives more than a tensor."""

    class More(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs), None

    def __init__(self):
        super().__init__()
        self.more = self.More(64, 16)
        self.matrix = nn.Parameter(torch.zeros(6, 16))

    def forward(self, inputs):
        return nn.functional.linear(self.more(inputs.flatten(1))[0], self.matrix)


@pytest.mark.parametrize(
    ("extractor", "unseen"),
    [
        (nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 6))), 0),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.ConvTranspose2d(4, 2, 3, groups=2), nn.Flatten(), nn.Linear(128, 6)), 0),
        (Own(), 2 * 4 * 64 * 16),
    ],
)
def test_the_work_of_a_batch_is_what_torch_counts(extractor, unseen):
    job = job_of(0, shape=(1, 8, 8))
    job.state.module.extractor = extractor.double()
    batch = job.data.transform(job.data.train.inputs[:4])
    with FlopCounterMode(display=False) as counter:
        job.objective.features(job.state, batch)
    assert work_of(member_of(job)) == counter.get_total_flops() - unseen
    assert not any(layer._forward_hooks for layer in job.state.module.modules())


@pytest.mark.parametrize("at", ["in", "after"])
def test_who_diverges_is_named_and_the_others_go_on(at):
    def make():
        epochs = {"local-epochs": 2 if at == "in" else 1}
        jobs = [job_of(client, rows, **epochs) for client, rows in enumerate((16, 12, 16))]
        if at == "in":
            jobs[1].data.train.inputs[:] = torch.nan
            return jobs
        # a loss comes before the step that ruins the model: so of one step it is finite
        jobs[1] = job_of(1, 4)
        jobs[1].alone()
        jobs[1].state.optimiser["train/0/momentum_buffer"].fill_(torch.inf)
        return jobs

    reasons, together, alone, apart = trained(make)
    assert reasons == []
    assert isinstance(alone[1], DivergenceError)
    assert ("in epoch 1" if at == "in" else "after training in phase") in str(alone[1])
    assert (str(together[1]), together[1].told) == (str(alone[1]), alone[1].told)
    assert not any(isinstance(outcome, Exception) for outcome in (together[0], together[2]))
    assert apart < 1e-9


# --- whole runs ---------------------------------------------------------------------------------------------------

MIXED = {"strategy": "fedproto", "models": "tiny_perceptron,tiny_cnn,efficientnet_b0", "feature-dim": 8, "rounds": 2}
MIXED |= {"max-samples": 150, "evaluate-every": 2}


def lines_of(folder):
    return RunFolder(folder).lines()


def test_a_run_by_cohorts_is_the_loops_but_for_rounding_and_says_who_trains_alone(run):
    grid = partial(CohortGrid, size=2)
    loop, cohort = lines_of(run(MIXED, clients=5)), lines_of(run(MIXED, clients=5, grid=grid))
    said = [line for line in run.said if "one after the other" in line]
    assert said == [f"clients 2 (efficientnet_b0) train one after the other: {HEAVY}"]
    assert len(loop) == len(cohort) == 3
    for one, other in zip(loop, cohort, strict=True):
        assert one["clients"].keys() == other["clients"].keys()
        assert one["bytes"]["payload_up"] == other["bytes"]["payload_up"]
        for partition, client in one["clients"].items():
            own = other["clients"][partition]
            assert client.keys() == own.keys()
            if "training" in client:
                assert own["training"]["loss"] == pytest.approx(client["training"]["loss"], abs=2e-4)
                assert own["training"]["rows"] == client["training"]["rows"]


def test_a_run_by_cohorts_that_was_cut_goes_on_by_the_loop_and_back(run, metrics, monkeypatch):
    settings = {"strategy": "fedproto", "rounds": 3, "momentum": 0.9, "optimizer-state": "persistent"}
    whole = lines_of(run(settings, grid=CohortGrid))
    cut = run(settings | {"rounds": 1}, grid=CohortGrid)
    run(settings | {"rounds": 2, "resume": str(cut)})
    gone_on = lines_of(run(settings | {"resume": str(cut)}, grid=CohortGrid))
    found = [[line["training"]["loss"] for line in lines if "training" in line] for lines in (whole, gone_on)]
    assert len(found[0]) == 3
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, abs=2e-4)


def test_a_client_that_fails_before_it_trains_costs_the_others_nothing(run, monkeypatch):
    whole = Client.prepare

    def prepare(self, instruction):
        if self.partition == 1 and instruction.round == 1:
            raise SettingError("it is not fit.")
        return whole(self, instruction)

    monkeypatch.setattr(Client, "prepare", prepare)
    folder = run({"strategy": "fedproto"}, grid=CohortGrid)
    first, *_ = lines_of(folder)
    assert [line for line in run.said if 'client 1: it says: "it is not fit' in line]
    assert {p for p, client in first["clients"].items() if "training" in client} == {"0", "2", "3"}
