"""TinyProto against plain loops: what is scaled by whom, mu, and FedProto and FedTGP as its special cases."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from client_app import client as client_module
from experiments.runtime.grid import LocalGrid
from federation.settings import SettingError
from federation.wire.messages import decode_instruction, encode_instruction
from federation.wire.parts import Limits, as_sent, decode_payload, encode_payload
from federation.wire.payloads import Identity, Instruction
from prototypes.prototype_set import PrototypeSet
from runs.folder import RunFolder
from strategies import tinyproto
from strategies.contract import EVERYONE, ClientState
from strategies.rounds.checkpoint import pack, unpack
from strategies.tinyproto import mean_class_count

K, D = 5, 9
BOTH = ("tinyproto-fp", "tinyproto-ft")
TARGET = {"tinyproto-fp": 0.9, "tinyproto-ft": 0.6}
QUICK = {"fedtgp.server-epochs": 3, "fedtgp.server-batch-size": 4}
HARD = {"max-samples": 600, "sparsity-dim": 6, "feature-dim": 64}


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
    return sent and as_sent(sent, tinyproto.FP.exchange(objective.options).up)


def across(payload, codec):
    """As the other end has it."""
    return decode_payload(encode_payload(payload, codec), Limits(codec, 1e6))


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


def same(state, other):
    return state.keys() == other.keys() and all(torch.equal(state[name], other[name]) for name in other)


# --- what goes up ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", BOTH)
def test_the_upload_is_scaled_by_the_counts_and_does_not_hold_them(halves, strategy):
    own = local_prototypes()[1]
    before = own.vectors.clone()
    sent = uploaded(both_halves(halves, strategy).objective, own)
    assert sent.counts is None
    assert sent.labels.tolist() == own.labels.tolist()
    for row, count in enumerate(own.counts.tolist()):
        assert sent.vectors[row].tolist() == [
            pytest.approx(count * value, rel=2**-16) for value in own.vectors[row].tolist()
        ]
    # the client goes on predicting with its own whole p_ij
    assert torch.equal(own.vectors, before)
    made = both_halves(halves, strategy)
    assert not made.run.exchange.counts
    assert set(encode_payload(sent, made.server.codec)) == {"labels", "vectors"}


@pytest.mark.parametrize("strategy", BOTH)
def test_without_scaling_the_upload_is_the_prototypes(halves, strategy):
    own = local_prototypes()[1]
    made = both_halves(halves, strategy, {"tinyproto.scaling": False})
    sent = uploaded(made.objective, own)
    assert sent.counts is None
    assert torch.equal(sent.vectors, own.vectors)
    assert made.run.exchange.discloses == ()
    assert made.server.derive_constants() == {}


@pytest.mark.parametrize("strategy", BOTH)
def test_a_client_without_prototypes_uploads_none(halves, strategy):
    assert uploaded(both_halves(halves, strategy).objective, None) is None


# --- FP -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ones", [0, 1, 3, 7])
def test_fp_s_target_is_mu_times_the_mean_of_what_was_scaled(halves, ones):
    """Eq. 10 and 11 by a loop over clients, classes and dimensions; K s <= d for s = 1 alone."""
    mu, own = 0.0123, local_prototypes()
    made = both_halves(halves, "tinyproto-fp", {"sparsity-dim": ones}, mu)
    codec = made.server.codec
    uploads = {p: across(uploaded(made.objective, prototypes), codec) for p, prototypes in own.items()}
    outcome = made.server.aggregate(uploads, {}, 1)
    received = across(outcome.downloads[EVERYONE], codec)
    targets = made.objective.targets(ClientState(torch.nn.Identity(), constants={"mu": mu}), received)
    assert targets.labels.tolist() == [0, 1, 2, 3]
    for row, label in enumerate(targets.labels.tolist()):
        for c in range(D):
            scaled = [
                count * float(vector[c])
                for each in own.values()
                for held, vector, count in zip(each.labels.tolist(), each.vectors, each.counts.tolist(), strict=True)
                if held == label
            ]
            crosses = not ones or bool(codec.masks[label, c])
            expected = mu * sum(scaled) / len(scaled) if crosses else 0.0
            # uploads are rounded to 16 bits
            assert float(targets.vectors[row, c]) == pytest.approx(expected, rel=2**-13, abs=0 if not crosses else 1e-5)
    assert int((targets.vectors != 0).sum()) == 4 * (ones or D)


def test_fp_without_scaling_takes_what_it_received(halves):
    objective = both_halves(halves, "tinyproto-fp", {"tinyproto.scaling": False}).objective
    received = PrototypeSet(torch.tensor([1, 3]), torch.eye(2, D))
    assert torch.equal(objective.targets(ClientState(torch.nn.Identity()), received).vectors, received.vectors)
    scaling = both_halves(halves, "tinyproto-fp").objective
    assert scaling.targets(ClientState(torch.nn.Identity(), constants={"mu": 0.5}), None) is None


def test_fp_keeps_a_class_that_nobody_reports(halves):
    strategy = both_halves(halves, "tinyproto-fp", mu=0.1).server
    first = strategy.aggregate(local_prototypes(0), {}, 1)
    rest = {1: PrototypeSet(torch.tensor([0, 2]), torch.eye(2, D))}
    second = strategy.aggregate(rest, first.state, 2)
    old, new = first.downloads[EVERYONE], second.downloads[EVERYONE]
    assert new.labels.tolist() == old.labels.tolist() == [0, 1, 2, 3]
    assert [torch.equal(new.vectors[row], old.vectors[row]) for row in range(4)] == [False, True, False, True]
    assert torch.equal(new.vectors[0], rest[1].vectors[0])


def test_fp_neither_minds_who_is_which_partition_nor_how_classes_are_called(halves):
    own = local_prototypes()
    strategy = both_halves(halves, "tinyproto-fp", mu=0.1).server
    usual = strategy.aggregate(own, {}, 1).downloads[EVERYONE]
    moved = strategy.aggregate({p: own[3 - p] for p in range(4)}, {}, 1).downloads[EVERYONE]
    torch.testing.assert_close(moved.vectors, usual.vectors, rtol=1e-6, atol=1e-6)
    # class j becomes 4 - j
    turned = {
        p: PrototypeSet(4 - each.labels.flip(0), each.vectors.flip(0), each.counts.flip(0)) for p, each in own.items()
    }
    renamed = strategy.aggregate(turned, {}, 1).downloads[EVERYONE]
    assert renamed.labels.tolist() == [1, 2, 3, 4]
    assert torch.equal(renamed.vectors.flip(0), usual.vectors)


# --- FT -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ones", [0, 3])
def test_ft_multiplies_by_mu_and_then_is_fedtgp(halves, ones):
    mu = 0.0123
    made = both_halves(halves, "tinyproto-ft", {"sparsity-dim": ones}, mu)
    reference = both_halves(halves, "fedtgp", {"sparsity-dim": ones}).server
    state, reference_state = {}, {}
    for server_round in (1, 2):
        own = local_prototypes(server_round)
        uploads = {p: across(uploaded(made.objective, each), made.server.codec) for p, each in own.items()}
        outcome = made.server.aggregate(uploads, state, server_round)
        scaled = {p: PrototypeSet(each.labels, mu * each.vectors) for p, each in uploads.items()}
        expected = reference.aggregate(scaled, reference_state, server_round)
        state, reference_state = outcome.state, expected.state
        assert same(state, reference_state)
        download = outcome.downloads[EVERYONE]
        assert torch.equal(download.vectors, expected.downloads[EVERYONE].vectors)
        added = {"mu", "target_to_weighted_mean"}
        assert {name: v for name, v in outcome.figures.items() if name not in added} == expected.figures
        # the scale matters: FedTGP on what came is something else
        unscaled = reference.aggregate(uploads, {}, server_round).downloads[EVERYONE]
        assert not torch.equal(unscaled.vectors, download.vectors)
    # and the client takes what it receives
    received = across(download, made.server.codec)
    targets = made.objective.targets(ClientState(torch.nn.Identity(), constants={"mu": mu}), received)
    assert torch.equal(targets.vectors, received.vectors)
    kept = made.server.codec.masks[download.labels] if ones else torch.ones(len(download), D, dtype=torch.bool)
    assert torch.equal(received.vectors, torch.where(kept, download.vectors, 0.0))


def test_ft_s_state_survives_the_checkpoint(halves):
    strategy = both_halves(halves, "tinyproto-ft", {"fedtgp.server-momentum": 0.9}, mu=0.01).server
    first = strategy.aggregate(local_prototypes(0), {}, 1)
    state, _ = unpack(load(save(pack(first.state, first.downloads))))
    assert same(state, first.state)
    assert any(name.startswith("optimiser/") for name in state)


# --- the special cases, over whole runs -------------------------------------------------------------------------

SHARED = {"rounds": 3, "fraction-train": 0.75, "models": "tiny_cnn,tiny_perceptron"}


def figures_of(lines):
    """All but the bytes of the wire, which hold the run's name."""
    return [{name: value for name, value in line.items() if name != "bytes"} for line in lines]


@pytest.mark.parametrize(("strategy", "base"), [("tinyproto-fp", "fedproto"), ("tinyproto-ft", "fedtgp")])
@pytest.mark.parametrize("codec", [{}, {"sparsity-dim": 4, "wire-dtype": "int8"}], ids=["plain", "masked-int8"])
def test_without_scaling_a_run_is_its_base_s_to_the_bit(run, metrics, strategy, base, codec):
    server = QUICK if base == "fedtgp" else {}
    usual = metrics(run(SHARED | server | codec | {"strategy": base}))
    unscaled = metrics(run(SHARED | server | codec | {"strategy": strategy, "tinyproto.scaling": False}))
    assert figures_of(unscaled) == figures_of(usual)
    payloads = [{n: v for n, v in line["bytes"].items() if "payload" in n} for line in usual]
    assert [{n: v for n, v in line["bytes"].items() if "payload" in n} for line in unscaled] == payloads
    scaled = metrics(run(SHARED | server | codec | {"strategy": strategy}))
    assert figures_of(scaled)[1]["clients"] != figures_of(usual)[1]["clients"]


# --- mu -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", BOTH)
def test_mu_comes_from_the_roster_where_none_is_given(halves, strategy):
    identities = {0: identity(0, 100, (0, 1)), 1: identity(1, 45, (1, 2, 4)), 2: identity(2, 0, ())}
    made = both_halves(halves, strategy).server
    made.identities = identities
    assert mean_class_count(identities, of_all=False) == 145 / 5
    assert mean_class_count(identities, of_all=True) == 145 / 4
    assert made.derive_constants() == {"mu": pytest.approx(TARGET[strategy] * 5 / 145, rel=1e-12)}
    # who is which partition does not matter
    made.identities = {0: identities[2], 1: identities[0], 2: identities[1]}
    assert made.derive_constants() == {"mu": pytest.approx(TARGET[strategy] * 5 / 145, rel=1e-12)}
    summed = both_halves(halves, strategy, {"tinyproto.sum": True}).server
    summed.identities = identities
    assert summed.derive_constants() == {"mu": pytest.approx(TARGET[strategy] * 4 / 145, rel=1e-12)}
    given = both_halves(halves, strategy, {"tinyproto.mu": 0.002}).server
    given.identities = identities
    assert given.derive_constants() == {"mu": 0.002}


@pytest.mark.parametrize("summed", [False, True])
def test_the_ratio_of_target_to_count_weighted_mean_is_told(halves, summed):
    """By loops: the targets' mean norm over that of sum_i n_ij p_ij / sum_i n_ij, a class counting by its images."""
    own, mu = local_prototypes(), 0.0123
    made = both_halves(halves, "tinyproto-fp", {"tinyproto.sum": summed}, mu)
    uploads = {p: uploaded(made.objective, each) for p, each in own.items()}
    outcome = made.server.aggregate(uploads, {}, 1)
    norms, sums, images = [], [], []
    for label in range(4):
        held = [
            (int(each.counts[row]), each.vectors[row].double().numpy())
            for each in own.values()
            for row, found in enumerate(each.labels.tolist())
            if found == label
        ]
        total = sum(count * vector for count, vector in held)
        norms.append(mu * np.linalg.norm(total) / (1 if summed else len(held)))
        images.append(sum(count for count, _ in held))
        sums.append(np.linalg.norm(total))
    weighted = sum(sums) / sum(images)
    assert outcome.figures == {"mu": mu, "target_to_weighted_mean": pytest.approx(np.mean(norms) / weighted, rel=1e-4)}
    if summed:
        # exactly mu times the mean number of images of a class
        assert np.mean(norms) / weighted == pytest.approx(mu * sum(images) / 4)
    assert len(outcome.downloads[EVERYONE]) == 4


@pytest.mark.parametrize("strategy", BOTH)
def test_the_sum_is_the_mean_times_the_holders(halves, strategy):
    """The factor |N_j| of the authors' code: class by class, before FT's contrastive step."""
    own, mu = local_prototypes(), 0.01
    one, other = (both_halves(halves, strategy, {"tinyproto.sum": summed}, mu) for summed in (True, False))
    uploads = {p: uploaded(one.objective, each) for p, each in own.items()}
    held = [sum(label in each.labels for each in own.values()) for label in range(4)]
    assert len(set(held)) > 1
    if strategy == "tinyproto-fp":
        found, plain = (made.server.aggregate(uploads, {}, 1).downloads[EVERYONE] for made in (one, other))
        for row, number in enumerate(held):
            torch.testing.assert_close(found.vectors[row], number * plain.vectors[row])
        return
    times = {
        p: each.with_vectors(torch.tensor([held[label] for label in each.labels.tolist()]).unsqueeze(1) * each.vectors)
        for p, each in uploads.items()
    }
    found, expected = one.server.aggregate(uploads, {}, 1), other.server.aggregate(times, {}, 1)
    assert same(found.state, expected.state)


@pytest.mark.parametrize("strategy", BOTH)
def test_a_bound_on_norms_is_one_on_p_not_on_n_p(run, metrics, strategy):
    """Else 900 rows of features of norm 20 were an upload of 18,000, beyond the usual bound of 10,000."""
    settings = {"strategy": strategy, "rounds": 3, "max-prototype-norm": 1.6, "partition": "iid"}
    folder = run(settings | QUICK if strategy == "tinyproto-ft" else settings)
    assert not [line for line in metrics(folder) if line["problems"]]
    # and there was something to refuse
    assert metrics(folder)[0]["training"]["prototype_norm"] > 1.6


def listening():
    """A grid class that keeps what goes down, as (type, round, instruction header)."""

    class Ear(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            for message in messages:
                if "instruction" in message.content:
                    self.heard.append((message.metadata.message_type, message.content["instruction"]))
            return super().push_messages(messages)

    Ear.heard = []
    return Ear


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize("given", [0.0, 0.004])
def test_mu_is_in_every_message_and_in_the_checkpoint_also_after_a_resume(run, metrics, strategy, given):
    settings = {"strategy": strategy, "tinyproto.mu": given, "fraction-train": 0.5, "sparsity-dim": 3}
    settings |= QUICK if strategy == "tinyproto-ft" else {}
    whole, ear = run(settings | {"rounds": 4}), listening()
    folder = run(settings | {"rounds": 2}, grid=ear)
    roster = RunFolder(folder).roster()
    mean = sum(client["rows"][0] for client in roster) / sum(len(client["classes"]) for client in roster)
    mu = given or TARGET[strategy] / mean
    _, meta = RunFolder(folder).load_checkpoint()
    assert meta["constants"] == {"mu": mu}
    client_module._states.clear()
    run(settings | {"rounds": 4, "resume": str(folder)}, grid=ear)
    assert RunFolder(folder).load_checkpoint()[1]["constants"] == {"mu": mu}
    assert metrics(folder) == metrics(whole)
    # 2 rounds and their final evaluation, then 2 more, each to all 4 clients, who train or evaluate only
    assert len(ear.heard) == 4 * (3 + 3)
    assert {kind for kind, _ in ear.heard} == {"train", "evaluate"}
    assert all((header["constants"], header["values"]) == (["mu"], [mu]) for _, header in ear.heard)
    for line in metrics(folder)[:-1]:
        assert line["server"]["mu"] == mu
        assert line["server"]["target_to_weighted_mean"] > 0


def test_the_mu_of_the_checkpoint_holds_and_not_one_worked_out_again(run, metrics):
    """A run's constants are decided once: other versions may work them out otherwise."""
    settings = {"strategy": "tinyproto-fp"}
    whole, folder = (metrics(run(settings | {"rounds": 3})), run(settings | {"rounds": 1}))
    with RunFolder(folder).held():
        tensors, meta = RunFolder(folder).load_checkpoint()
        RunFolder(folder).save_checkpoint(tensors, meta | {"constants": {"mu": 0.5}})
    client_module._states.clear()
    lines = metrics(run(settings | {"rounds": 3, "resume": str(folder)}))
    assert [line["server"]["mu"] for line in lines[1:3]] == [0.5, 0.5]
    assert lines[1]["training"]["target_norm"] == pytest.approx(
        whole[1]["training"]["target_norm"] * 0.5 / whole[1]["server"]["mu"], rel=1e-5
    )


@pytest.mark.parametrize("strategy", ["fedproto", "fedtgp", "local"])
def test_other_methods_send_no_constants(run, strategy):
    ear = listening()
    run({"strategy": strategy, "rounds": 1}, grid=ear)
    assert ear.heard
    assert all((header["constants"], header["values"]) == ([], []) for _, header in ear.heard)


@pytest.mark.parametrize("summed", [False, True])
def test_targets_are_nine_tenths_of_a_prototype(run, metrics, summed):
    """The figure for which the papers' mu was chosen; a tenth of it is a pull to zero."""
    iid = {"rounds": 2, "partition": "iid"}
    lines = metrics(run(iid | {"strategy": "tinyproto-fp", "tinyproto.sum": summed}))
    # round 1 is the same training in both, and FedProto tells the norm of p
    plain = metrics(run(iid | {"strategy": "fedproto"}))[0]["training"]["prototype_norm"]
    assert lines[0]["training"]["target_norm"] == 0
    # IID, so that n_ij is about n-bar everywhere; a mean of vectors is shorter than they are
    assert 0.6 < lines[1]["training"]["target_norm"] / plain < 1.0
    assert lines[0]["server"]["target_to_weighted_mean"] == pytest.approx(0.9, rel=0.05)


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize("ones", [0, 3])
def test_a_client_tells_the_norm_of_what_it_uploads_and_no_other(run, strategy, ones):
    """With the mean norm of p beside n p and n, the server could solve for the class counts."""

    heard = []

    class Ear(LocalGrid):
        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            heard.extend(reply.content for reply in replies if "payload" in reply.content)
            return replies

    run({"strategy": strategy, "rounds": 1, "sparsity-dim": ones}, grid=Ear)
    assert len(heard) == 4
    for records in heard:
        told = records["training"]["figures"][2]
        norms = np.linalg.norm(records["payload"]["vectors"].numpy().astype(np.float64), axis=1)
        if ones:
            assert told > norms.mean()
        else:
            assert told == pytest.approx(norms.mean(), rel=1e-12)


def test_the_watched_norm_is_a_mean_over_images_whoever_was_sampled(halves):
    """All features have norm 5: so has what is watched, for every set of clients, though n p has other norms."""
    strategy = both_halves(halves, "tinyproto-fp").server
    counts = {0: (3, 40), 1: (500,), 2: (1, 2)}
    strategy.identities = {p: identity(p, sum(n), range(len(n))) for p, n in counts.items()}
    vector = torch.tensor([3.0, 4.0] + [0.0] * (D - 2))
    uploads = {
        p: PrototypeSet(torch.arange(len(n)), torch.tensor(n, dtype=torch.float32).unsqueeze(1) * vector)
        for p, n in counts.items()
    }
    for sampled in ({0}, {1}, {2}, {0, 2}, {0, 1, 2}):
        assert strategy.feature_norm({p: uploads[p] for p in sampled}) == pytest.approx(5)
    unscaled = both_halves(halves, "tinyproto-fp", {"tinyproto.scaling": False}).server
    assert unscaled.feature_norm({1: PrototypeSet(torch.tensor([0]), vector.unsqueeze(0))}) == 5


@pytest.mark.parametrize("scaling", [True, False])
def test_features_that_collapse_are_warned_of_scaled_or_not(run, scaling):
    """A strong pull to targets near zero: a tiny mu, or prototypes without scaling of which the masks leave a tenth."""
    own = {"tinyproto.mu": 1e-6} if scaling else {"tinyproto.scaling": False}
    run({"strategy": "tinyproto-fp", "rounds": 6, "prototype-weight": 100.0} | own | HARD)
    assert any("the features collapse" in line for line in run.said)


@pytest.mark.parametrize("strategy", BOTH)
def test_no_upload_excludes_any_class_count(halves, strategy):
    """Products fl(n p) reach part of the float32 numbers alone, and which part tells n: of 63 values in full
    precision a quarter of the counts at most could have made them all."""
    own = PrototypeSet(
        torch.arange(3), torch.randn(3, 63, generator=torch.Generator().manual_seed(5)), torch.tensor([37, 100, 187])
    )
    objective = both_halves(halves, strategy).objective
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


@pytest.mark.parametrize("constants", [{}, {"mu": 0.0}, {"mu": -5e99}, {"mu": 1.5}, {"other": 0.1}])
def test_a_server_that_sends_no_usable_mu_is_named(halves, constants):
    objective = both_halves(halves, "tinyproto-fp").objective
    state = ClientState(torch.nn.Identity(), constants=constants)
    with pytest.raises(
        SettingError, match=r"^the server sent the `mu` .* where a number in \(0, 1\] belongs; start it"
    ):
        objective.targets(state, local_prototypes()[1].without_counts())


# --- settings and warnings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize(
    ("name", "value"), [("mu", -1e-4), ("mu", math.inf), ("mu", math.nan), ("mu", "small"), ("scaling", "yes")]
)
def test_wrong_settings_are_named(halves, strategy, name, value):
    with pytest.raises(SettingError, match=f"`tinyproto.{name}` is "):
        halves({"strategy": strategy, f"tinyproto.{name}": value}, K, D)


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize(("name", "value", "shown"), [("mu", 0.01, "0.01"), ("sum", True, "true")])
def test_what_scales_nothing_is_refused_in_one_sentence(halves, strategy, name, value, shown):
    with pytest.raises(SettingError) as raised:
        halves({"strategy": strategy, f"tinyproto.{name}": value, "tinyproto.scaling": False}, K, D)
    sentence = str(raised.value)
    assert f"`tinyproto.{name}` {shown} scales nothing while `tinyproto.scaling` is false; leave it out" in sentence
    assert "\n" not in sentence
    assert sentence.count(". ") == 0


def test_the_contrastive_settings_are_ft_s_alone(run):
    assert run({"strategy": "tinyproto-ft", "rounds": 1, "fedtgp.margin": 3.0, "fedtgp.server-epochs": 1})
    with pytest.raises(SettingError, match=r"setting `fedtgp.margin` is 3.0, but `tinyproto-fp` does not read it"):
        run({"strategy": "tinyproto-fp", "rounds": 1, "fedtgp.margin": 3.0})


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize("ones", [0, 12, 11])
def test_prototypes_that_cross_whole_are_warned_of(run, strategy, ones):
    run({"strategy": strategy, "rounds": 1, "sparsity-dim": ones, "feature-dim": 12})
    warnings = [line for line in run.said if line.startswith("warning: `sparsity-dim` is")]
    assert len(warnings) == (0 if ones == 11 else 1)
    assert all(f"`sparsity-dim` is {ones}: prototypes cross whole" in line for line in warnings)


@pytest.mark.parametrize("scaling", [True, False])
def test_what_scaling_discloses_is_said(run, scaling):
    run({"strategy": "tinyproto-fp", "rounds": 1, "sparsity-dim": 2, "tinyproto.scaling": scaling})
    (told,) = [line for line in run.said if line.startswith("  the server learns")]
    assert ("by the norms of its uploads about how many rows each class has" in told) == scaling
    assert "its class counts" not in told
    assert "prototypes of its classes (2 of their 12 values)" in told


def test_an_instruction_tells_the_client_mu(halves):
    """Through the wire, whatever the number: a float, to the bit."""
    codec = both_halves(halves, "tinyproto-fp", {"sparsity-dim": 2}).server.codec
    sent = Instruction("run", 3, True, None, 2, {"mu": 0.9 / 29.123456789})
    assert decode_instruction(encode_instruction(sent, codec), Limits(codec, 1e6)).constants == sent.constants
