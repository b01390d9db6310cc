"""What a client answers for the ensemble: by which formula, with which model, on which rows; and what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize

from protosphere.client_app.features import ensemble as ensemble_module
from protosphere.client_app.features.ensemble import Ensemble, predict
from protosphere.client_app.public_errors import USER_ERRORS
from protosphere.core.errors import DataError
from protosphere.data.client_data import DataSpec
from protosphere.data.shared_test_set import SharedTestSpec, shared_labels, shared_rows
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies import METHODS
from protosphere.wire.payloads import Instruction
from tests.payloads import lone, payload
from tests.strategies.needs import ASKED

CPU = torch.device("cpu")
ON_SPHERE = {"fedpagr": "fedpagr.temperature", "fedproc": "fedproc.temperature"}
# of two models or heads, or of cosines: their own tests show it
OF_SEVERAL = ("ditto", "apfl", "fedrod", "fednh", "fml", "fedkd", "fedmrl")
ENSEMBLE = {"ensemble-every": 2, "shared-test-share": 0.1}


def ask(number, came=None, evaluate=True, ensemble=True):
    return Instruction("a-run", number, evaluate, payload(came), asks=("ensemble",) if ensemble else ())


def answered(report):
    """The probabilities and the fingerprint of the test set."""
    record = report.answers["ensemble"]
    return torch.from_numpy(record["probabilities"].numpy()), int(record["fingerprint"].numpy()[0])


def targets(labels=(0, 3, 7), dim=8):
    vectors = torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(5))
    return PrototypeSet(torch.tensor(labels), normalize(vectors))


def softmax_of(scores):
    """Class -> probability, in plain floats."""
    top = max(scores.values())
    weights = {c: math.exp(score - top) for c, score in scores.items()}
    return {c: weight / math.fsum(weights.values()) for c, weight in weights.items()}


def double(tensor):
    return tensor.detach().double().tolist()


def z_alone(made):
    """Features of each test row by itself, as the method's module gives them: lists of floats."""
    made.state.module.eval()
    with torch.no_grad():
        return [double(made.state.module.features(((x / 2 - 0.5) / 1.5)[None])[0]) for x in made.data.test.inputs]


# --- the formula ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.05, 0.7])
@pytest.mark.parametrize("labels", [(0, 1, 2, 3), (1, 3)])
@pytest.mark.parametrize("strategy", ON_SPHERE)
def test_on_the_sphere_it_is_the_softmax_over_prototypes(parts, strategy, labels, temperature):
    made = parts({"strategy": strategy, ON_SPHERE[strategy]: temperature}, norm=True)
    assert predict(made.objective, made.state, made.data.test, made.data.transform) is None, "there are none yet"
    made.state.targets = targets(labels, dim=5)
    made.state.table = made.state.targets.table(4)
    found = predict(made.objective, made.state, made.data.test, made.data.transform)
    prototypes = dict(zip(labels, double(made.state.targets.vectors), strict=True))
    for z, row in zip(z_alone(made), found.tolist(), strict=True):
        assert math.hypot(*z) == pytest.approx(1, abs=1e-6)
        cosines = {c: math.fsum(a * b for a, b in zip(z, p, strict=True)) for c, p in prototypes.items()}
        expected = softmax_of({c: cosine / temperature for c, cosine in cosines.items()})
        assert row == pytest.approx([expected.get(c, 0.0) for c in range(4)], rel=1e-4, abs=1e-7)
        assert [row[c] for c in range(4) if c not in labels] == [0.0] * (4 - len(labels)), "exactly"


@pytest.mark.parametrize("strategy", [name for name in METHODS if name not in (*ON_SPHERE, *OF_SEVERAL)])
@pytest.mark.parametrize("received", [False, True])
def test_elsewhere_it_is_the_softmax_of_the_classifier(parts, strategy, received):
    """Never of distances, whatever was received; on rows in eval mode, each by itself."""
    made = parts(ASKED[strategy], norm=True)
    if received:
        made.state.targets = targets((0, 2), dim=5)
        made.state.table = made.state.targets.table(4)
    made.state.module.train()
    found = predict(made.objective, made.state, made.data.test, made.data.transform)
    assert not found.requires_grad
    layer = made.state.module.classifier
    weights, biases = double(layer.weight), double(layer.bias)
    for z, row in zip(z_alone(made), found.tolist(), strict=True):
        logits = [
            math.fsum(w * a for w, a in zip(ws, z, strict=True)) + b for ws, b in zip(weights, biases, strict=True)
        ]
        expected = softmax_of(dict(enumerate(logits)))
        assert row == pytest.approx(list(expected.values()), rel=1e-4)


# --- which model, which rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "rule"), [("fedproto", "classifier"), ("fedpagr", "global-prototypes")])
def test_it_is_of_the_model_and_the_targets_of_the_evaluation(client, strategy, rule):
    """Before training: the answers' argmax is right as often as the rule in an evaluation on the same rows."""
    settings = ENSEMBLE | {"strategy": strategy, "learning-rate": 0.5}
    first, second = targets(tuple(range(10))), targets((0, 3, 7))
    client(0, settings).train(ask(1, first, ensemble=False))
    made = client(0, settings)
    rows, fingerprint = shared_rows(Ensemble(made).shared_test_spec(), CPU)
    alone = made.evaluate(ask(2, second))
    made.data = replace(made.data, test=rows)
    report = made.train(ask(2, second))
    probabilities, mark = answered(report)
    assert torch.equal(probabilities, answered(alone)[0])
    assert mark == answered(alone)[1] == fingerprint
    assert probabilities.shape == (40, 10)
    right = int((probabilities.argmax(dim=1) == rows.labels).sum())
    assert right == report.evaluation.correct[rule][0] > 0
    later = client(0, settings).evaluate(ask(3, second))
    assert not torch.equal(answered(later)[0], answered(alone)[0]), "training has changed nothing"
    assert report.payload is not None


@pytest.mark.parametrize("evaluated", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_answers_and_evaluation_come_where_each_is_asked_for(client, asked, evaluated):
    for how in ("train", "evaluate"):
        report = getattr(client(0, ENSEMBLE), how)(ask(1, evaluate=evaluated, ensemble=asked))
        assert bool(report.answers) == asked
        assert (report.evaluation is not None) == evaluated


@pytest.mark.parametrize("fails", [False, True])
def test_a_client_that_diverges_has_answered_before_or_says_both(client, monkeypatch, fails):
    def failing(*_):
        raise DataError("gone.")

    if fails:
        monkeypatch.setattr(ensemble_module, "shared_rows", failing)
    report = client(0, ENSEMBLE | {"learning-rate": 1e30}).train(ask(1))
    assert "diverged" in report.problem
    assert report.evaluation is not None
    assert report.remark == ("no ensemble answer: gone." if fails else "")
    assert fails or answered(report)[0].isfinite().all()


def test_all_clients_answer_for_the_same_rows_as_the_servers(client, decoded_cache):
    spec = DataSpec("digits", clients=4, shared_test_share=0.1, max_samples=400)
    expected = shared_labels(SharedTestSpec(spec, decoded_cache)).fingerprint
    for partition in range(4):
        assert answered(client(partition, ENSEMBLE).evaluate(ask(1)))[1] == expected


def test_the_same_client_holds_fewer_rows_only_where_some_are_set_aside(client, tmp_path):
    def held(settings):
        return sum(sum(client(p, settings).identity().rows) for p in range(4))

    assert held({}) == held({"shared-test-share": 0.3}) == 400
    assert held(ENSEMBLE) == 360
    images = {"dataset": str(scans(tmp_path / "pool", range(40, 240)))}
    assert held(images) == 200
    assert held(ENSEMBLE | images) == 180
    assert held(ENSEMBLE | images | {"shared-test-path": str(scans(tmp_path / "shared", range(40)))}) == 200


# --- refusals -----------------------------------------------------------------------------------------------------


def scans(folder, values):
    """Images (1, 8, 8) of ten classes; no two values give the same."""
    for value in values:
        place = folder / str(value % 10)
        place.mkdir(parents=True, exist_ok=True)
        shape = np.full((8, 8), value, dtype=np.uint8)
        shape[0, 0] = 250
        Image.fromarray(shape).save(place / f"{value}.png")
    return folder


def check_same_work(report, other):
    """Two reports of the same training, upload and evaluation, to the bit, but for the seconds."""
    assert report.evaluation.correct == other.evaluation.correct
    assert (report.training is None) == (report.payload is None) == (other.training is None)
    if report.training is not None:
        assert replace(report.training, seconds=0) == replace(other.training, seconds=0)
        assert torch.equal(lone(report.payload).vectors, lone(other.payload).vectors)
        assert lone(report.payload).labels.tolist() == lone(other.payload).labels.tolist()
    assert report.problem == other.problem == ""


@pytest.mark.parametrize("error", USER_ERRORS)
def test_a_measurement_that_fails_costs_nothing_but_itself(client, monkeypatch, error):
    def failing(*_):
        raise error("the disk with the shared test set is gone.")

    unmeasured = client(0).train(ask(1))
    assert ("asks for ensemble, which this run does not have" in unmeasured.remark, unmeasured.answers) == (True, {})
    check_same_work(unmeasured, client(0).train(ask(1, ensemble=False)))
    client(0, ENSEMBLE).train(ask(1))
    for how in ("evaluate", "train"):
        with monkeypatch.context() as patch:
            patch.setattr(ensemble_module, "shared_rows", failing)
            report = getattr(client(0, ENSEMBLE), how)(ask(2, targets()))
        assert "the disk with the shared test set is gone." in report.remark
        assert report.answers == {}
        # round 2 again: a client starts from what it left before
        whole = getattr(client(0, ENSEMBLE), how)(ask(2, targets()))
        check_same_work(report, whole)
        assert (whole.remark, list(whole.answers)) == ("", ["ensemble"])


def test_own_data_need_a_shared_test_set_of_their_own(client, tmp_path):
    own = scans(tmp_path / "own", range(40))
    with pytest.raises(DataError, match="set shared-test-path"):
        client(0, ENSEMBLE, data_path=str(own))
    client(0, {}, data_path=str(own)).identity()


def test_a_node_with_a_shared_test_set_takes_part_in_runs_that_measure_none(client, tmp_path):
    """Nobody looks at the path there, whatever it says."""
    words = "its class probabilities for every sample of the shared test set"
    assert words in client(0, ENSEMBLE).identity().discloses
    for here in (scans(tmp_path / "here", range(40)), tmp_path / "nowhere", "no path"):
        made = client(0, {"shared-test-share": 0.1}, shared_test_path=str(here))
        assert made.identity().problem == ""
        assert words not in made.identity().discloses
        assert made.evaluate(ask(1, ensemble=False)).remark == ""
