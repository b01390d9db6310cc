"""TinyProto against plain loops: what is scaled by whom, mu, and FedProto and FedTGP as its special cases."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import protosphere
from protosphere.prototypes.masks import class_masks
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.server_app.strategy import WITHHELD_SAMPLES, PrototypeStrategy
from protosphere.strategies import known_settings, read_settings
from protosphere.strategies.contract import EVERYONE, ClientState
from protosphere.strategies.tinyproto import mean_class_count
from protosphere.wire.arrays import Limits, decode, encode, value_bytes
from protosphere.wire.payloads import Identity
from tests.payloads import lone, payload, payloads
from tests.strategies.sets import same_state
from tests.tampered import tampered

K, D = 5, 9
BOTH = ("tinyproto-fp", "tinyproto-ft")
TARGET = {"tinyproto-fp": 0.9, "tinyproto-ft": 0.6}
SPLIT = Path(protosphere.__file__).parent / "presets/partitions/protonorm-cifar10-dirichlet-0.1.csv"
QUICK = {"fedtgp.server-epochs": 3, "fedtgp.server-batch-size": 4}


def local_prototypes(seed=0, clients=4):
    """partition -> p_ij with n_ij, of which no two are alike; class 4 is nobody's."""
    rng = np.random.default_rng(seed)
    made = {}
    for partition in range(clients):
        held = [label for label in range(4) if (partition + label) % 3]
        vectors = torch.from_numpy(rng.standard_normal((len(held), D)).astype(np.float32) + 1)
        counts = torch.tensor([17 + 40 * partition + 7 * label for label in held])
        made[partition] = PrototypeSet(torch.tensor(held), vectors, counts)
    return made


def uploaded(objective, own):
    sent = objective.upload(ClientState(torch.nn.Identity(), prototypes=own), 1)
    return lone(sent)


def across(part, made):
    """As the other end has it."""
    parts = made.run.exchange.up
    return lone(decode(encode(payload(part), parts), parts, K, D, Limits(1e6)))


def both_halves(halves, strategy, settings=None, mu=None):
    """Both halves as in the middle of a run whose mu is known."""
    own = QUICK if strategy in ("tinyproto-ft", "fedtgp") else {}
    made = halves({"strategy": strategy} | own | (settings or {}), K, D)
    if mu is not None and strategy in BOTH:
        made.server.constants = {"mu": mu}
    # as many rows as `local_prototypes` counts
    made.server.identities = {
        p: identity(p, int(each.counts.sum()), tuple(each.labels.tolist())) for p, each in local_prototypes().items()
    }
    return made


def identity(partition, rows, classes):
    return Identity(partition, 3, rows=(rows, 5, 5), classes=classes)


# --- what goes up ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", BOTH)
def test_the_upload_is_scaled_by_the_counts_and_does_not_hold_them(halves, strategy):
    own = local_prototypes()[1]
    before = own.vectors.clone()
    made = both_halves(halves, strategy)
    sent = uploaded(made.objective, own)
    assert sent.labels.tolist() == own.labels.tolist()
    torch.testing.assert_close(sent.vectors, own.counts.unsqueeze(1) * before, rtol=2**-16, atol=0)
    # the client goes on predicting with its own whole p_ij
    assert torch.equal(own.vectors, before)
    assert not made.run.exchange.counts
    assert set(encode(payload(sent))) == {"prototypes.labels", "prototypes.vectors"}


# --- FP -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ones", [0, 3])
def test_fp_s_target_is_mu_times_the_mean_of_what_was_scaled(halves, ones):
    """Eq. 10 and 11 by a loop over clients, classes and dimensions; K s <= d for s = 1 alone."""
    mu, own = 0.0123, local_prototypes()
    made = both_halves(halves, "tinyproto-fp", {"tinyproto.sparsity-dim": ones}, mu)
    uploads = {p: across(uploaded(made.objective, prototypes), made) for p, prototypes in own.items()}
    assert {upload.dim for upload in uploads.values()} == {ones or D}
    outcome = made.server.aggregate(payloads(uploads), {}, 1)
    received = across(lone(outcome.downloads[EVERYONE]), made)
    assert received.dim == (ones or D)
    masks = class_masks(K, D, ones, seed=0) if ones else torch.ones(K, D, dtype=torch.bool)
    assert outcome.scales == (mu, mu)
    targets = made.objective.targets(ClientState(torch.nn.Identity(), constants={"mu": mu}), payload(received))
    assert targets.labels.tolist() == [0, 1, 2, 3]
    for row, label in enumerate(targets.labels.tolist()):
        for c in range(D):
            scaled = [
                count * float(vector[c])
                for each in own.values()
                for held, vector, count in zip(each.labels.tolist(), each.vectors, each.counts.tolist(), strict=True)
                if held == label
            ]
            crosses = bool(masks[label, c])
            expected = mu * sum(scaled) / len(scaled) if crosses else 0.0
            # uploads are rounded to 16 bits
            assert float(targets.vectors[row, c]) == pytest.approx(expected, rel=2**-13, abs=0 if not crosses else 1e-5)
    assert int((targets.vectors != 0).sum()) == 4 * (ones or D)


# --- FT -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ones", [0, 3])
def test_ft_multiplies_by_mu_and_then_is_fedtgp(halves, ones):
    mu = 0.0123
    made = both_halves(halves, "tinyproto-ft", {"tinyproto.sparsity-dim": ones}, mu)
    reference = both_halves(halves, "fedtgp").server
    state, reference_state = {}, {}
    for server_round in (1, 2):
        own = local_prototypes(server_round)
        uploads = payloads({p: across(uploaded(made.objective, each), made) for p, each in own.items()})
        outcome = made.server.aggregate(uploads, state, server_round)
        whole = {p: lone(upload) for p, upload in made.server.expand(uploads).items()}
        scaled = {p: PrototypeSet(each.labels, mu * each.vectors) for p, each in whole.items()}
        expected = reference.aggregate(payloads(scaled), reference_state, server_round)
        state, reference_state = outcome.state, expected.state
        assert same_state(state, reference_state)
        assert outcome.scales == (1.0, mu)
        download = lone(outcome.downloads[EVERYONE])
        dense = lone(expected.downloads[EVERYONE])
        masks = class_masks(K, D, ones, seed=0)[dense.labels] if ones else torch.ones(len(dense), D, dtype=torch.bool)
        assert torch.equal(download.vectors, dense.vectors[masks].reshape(len(dense), ones or D))
        assert outcome.figures == expected.figures | {"mu": mu}
    # and the client takes what it receives
    received = across(download, made)
    targets = made.objective.targets(ClientState(torch.nn.Identity(), constants={"mu": mu}), payload(received))
    assert torch.equal(targets.vectors, dense.vectors * masks)


# --- mu -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", BOTH)
def test_mu_comes_from_the_roster_where_none_is_given(halves, strategy):
    identities = {0: identity(0, 100, (0, 1)), 1: identity(1, 45, (1, 2, 4)), 2: identity(2, 0, ())}
    assert mean_class_count(identities, of_all=False) == 145 / 5
    assert mean_class_count(identities, of_all=True) == 145 / 4
    target = TARGET[strategy]
    for settings, mu in (({}, target * 5 / 145), ({"sum": True}, target * 4 / 145), ({"mu": 0.002}, 0.002)):
        own = {f"tinyproto.{name}": value for name, value in settings.items()}
        server = both_halves(halves, strategy, own).server
        server.identities = identities
        assert server.begin().constants == {"mu": pytest.approx(mu, rel=1e-12)}


def test_one_legal_upload_makes_no_download_that_all_clients_refuse(halves):
    own, mu = local_prototypes(), 0.0123
    made = both_halves(halves, "tinyproto-fp", {}, mu)
    uploads = {p: uploaded(made.objective, each) for p, each in own.items()}
    honest = lone(made.server.aggregate(payloads(uploads), {}, 1).downloads[EVERYONE])
    liar = min(uploads)
    uploads[liar] = uploads[liar].with_vectors(uploads[liar].vectors * 1e9)
    download = lone(made.server.aggregate(payloads(uploads), {}, 1).downloads[EVERYONE])
    most = made.server.settings.max_prototype_norm
    assert mu * float(download.lengths().max()) == pytest.approx(most, rel=2e-6)
    assert mu * float(download.lengths().max()) <= most
    # the classes that it does not claim are as they were
    others = ~torch.isin(download.labels, uploads[liar].labels)
    assert others.any()
    assert torch.equal(download.vectors[others], honest.vectors[others])


def test_no_upload_excludes_any_class_count(halves):
    """Products fl(n p) reach part of the float32 numbers alone, and which part tells n: of 63 values in full
    precision a quarter of the counts at most could have made them all."""
    own = PrototypeSet(
        torch.arange(3), torch.randn(3, 63, generator=torch.Generator().manual_seed(5)), torch.tensor([37, 100, 187])
    )
    objective = both_halves(halves, "tinyproto-fp").objective
    for row, sent in enumerate(uploaded(objective, own).vectors.double().numpy()):
        possible = [n for n in range(1, 400) if reached(sent, n, lambda product: rounded(product, 16))]
        assert possible == list(range(1, 400))
        whole = (own.counts[row] * own.vectors[row]).double().numpy()
        control = [n for n in range(1, 400) if reached(whole, n, lambda product: product)]
        assert int(own.counts[row]) in control
        assert len(control) < 100


def rounded(values, bits):
    mantissas, exponents = np.frexp(values)
    return np.ldexp(np.round(mantissas * 2**bits) / 2**bits, exponents)


def reached(values, n, upload):
    """Whether each value is the upload of some float32 p and this n; float32 products, exact in float64 before."""
    nearest = (values / n).astype(np.float32)
    found = np.zeros(len(values), dtype=bool)
    for p in (nearest, np.nextafter(nearest, np.float32(np.inf)), np.nextafter(nearest, np.float32(-np.inf))):
        found |= upload((p.astype(np.float64) * n).astype(np.float32).astype(np.float64)) == values
    return found.all()


def test_a_client_tells_the_norm_of_what_it_uploads_and_no_other(run):
    """With the mean norm of p beside n p and n, the server could solve for the class counts."""
    heard = []

    def hear(records, *_):
        heard.extend([records] if "arrays" in records else [])

    run({"strategy": "tinyproto-fp", "rounds": 1}, grid=tampered(hear))
    assert len(heard) == 4
    for records in heard:
        norms = np.linalg.norm(records["arrays"]["prototypes.vectors"].numpy().astype(np.float64), axis=1)
        assert records["metrics"]["training.prototype_norm"] == pytest.approx(norms.mean(), rel=1e-12)


def test_a_round_of_the_papers_cifar10_sends_as_many_values_as_it_prints(halves):
    """0.0151 M: 102 holdings go up and 10 classes come down to 20 clients, 50 values each, by the authors' split."""
    rows = csv.reader(SPLIT.open())
    held = [[label for label, count in enumerate(row[1:]) if int(count)] for row in list(rows)[1:]]
    assert len(held) == 20
    settings = {"strategy": "tinyproto-fp", "tinyproto.sparsity-dim": 50, "feature-dim": 500}
    made = halves(settings, 10, 500)
    parts, uploads = made.run.exchange.up, {}
    for partition, labels in enumerate(held):
        counts = torch.full((len(labels),), 9)
        own = PrototypeSet(torch.tensor(labels), torch.ones(len(labels), 500), counts)
        state = ClientState(torch.nn.Identity(), own)
        uploads[partition] = made.objective.upload(state, 1)
    made.server.constants = {"mu": 0.1}
    made.server.identities = {p: identity(p, 9 * len(labels), tuple(labels)) for p, labels in enumerate(held)}
    download = made.server.aggregate(uploads, {}, 1).downloads[EVERYONE]
    up = sum(value_bytes(encode(upload, parts)) for upload in uploads.values())
    assert (up + 20 * value_bytes(encode(download, parts))) / 4 == 15_100


def test_the_server_believes_norms_by_the_samples_of_a_client_that_sends_sums():
    """n_i of who tells it, much of who does not; of prototypes that are not scaled one."""
    for scaling in (True, False):
        run = read_settings(known_settings() | {"strategy": "tinyproto-fp", "tinyproto.scaling": scaling})
        strategy = PrototypeStrategy(run, None)
        rows = {0: (40, 0, 9), 1: (), 2: (0, 0, 1)}
        strategy.half.identities = {number: Identity(number, 3, rows=each) for number, each in rows.items()}
        counted = strategy._count_summed_samples(run.exchange.up)
        assert counted == ({0: 40.0, 1: WITHHELD_SAMPLES, 2: 1.0} if scaling else {})
        # by mu alone do clients multiply what comes, and FedTGP's server has done so itself
        assert [part.factor for part in run.exchange.down] == ["mu" if scaling else ""]
    assert read_settings(known_settings() | {"strategy": "tinyproto-ft"}).exchange.down[0].factor == ""
