"""What a client answers for the ensemble: by which formula, with which model, on which rows; and what it refuses."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from protosphere.client_app.evaluate import ensemble_probabilities as predict
from protosphere.core.errors import SettingError
from protosphere.data.client_data import rows_of
from protosphere.data.decode import open_data
from protosphere.data.partition.assignment import assignment
from protosphere.data.spec import DataSpec
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.wire.payloads import Instruction
from tests.client_app.restored import restored
from tests.payloads import payload

ON_SPHERE = {"fedpagr": "fedpagr.temperature", "fedproc": "fedproc.temperature"}
ENSEMBLE = {"ensemble-every": 2, "shared-test-share": 0.1}


def ask(number, came=None):
    return Instruction("a-run", number, payload(came))


def targets(labels=(0, 3, 7), dim=8):
    vectors = torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(5))
    return PrototypeSet(torch.tensor(labels), normalize(vectors))


# --- the formula ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("temperature", "labels"), [(0.05, (0, 1, 2, 3)), (0.7, (1, 3))])
@pytest.mark.parametrize("strategy", ON_SPHERE)
def test_on_the_sphere_it_is_the_softmax_over_prototypes(parts, strategy, labels, temperature):
    made = parts({"strategy": strategy, ON_SPHERE[strategy]: temperature}, norm=True)
    assert predict(made.objective, made.state, made.data.test, made.data.transform) is None, "there are none yet"
    made.state.targets = targets(labels, dim=5)
    made.state.table = made.state.targets.table(4)
    found = predict(made.objective, made.state, made.data.test, made.data.transform)

    made.state.module.eval()
    with torch.no_grad():
        # each row by itself
        rows = ((made.data.test.inputs / 2 - 0.5) / 1.5).split(1)
        z = torch.cat([made.state.module.features(row) for row in rows])
    torch.testing.assert_close(z.norm(dim=1), torch.ones(len(z)))
    expected = torch.zeros(len(z), 4)
    expected[:, list(labels)] = (z @ made.state.targets.vectors.T / temperature).softmax(dim=1)
    torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-7)
    absent = [label for label in range(4) if label not in labels]
    assert not found[:, absent].any(), "exactly"


# --- which model, which samples, when -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "last", "answers"), [(0, False, True), (1, False, False), (2, False, True), (1, True, True)]
)
def test_it_answers_in_every_nth_evaluation_and_in_the_last(client, number, last, answers):
    report = client(0, ENSEMBLE).evaluate(replace(ask(number), last=last))
    assert report.evaluation is not None
    assert (report.ensemble is not None) == answers
    assert client(0).evaluate(replace(ask(number), last=last)).ensemble is None


def test_all_clients_answer_for_the_shared_rows(client, decoded_cache):
    spec = DataSpec("digits", clients=4, shared_test_share=0.1, max_samples=400)
    data = open_data(spec, decoded_cache)
    rows = rows_of(data, assignment(spec, data, decoded_cache).shared, torch.device("cpu"))
    for partition in range(4):
        made = client(partition, ENSEMBLE)
        answer = torch.from_numpy(made.evaluate(ask(0)).ensemble.numpy())
        state = restored(made, "a-run")
        expected = predict(made.objective, state, rows, made.data.transform).to(torch.float16)
        assert torch.equal(answer, expected)


# --- refusals -----------------------------------------------------------------------------------------------------


def test_a_client_outside_a_simulation_has_no_part_in_it(client, monkeypatch, tmp_path):
    words = "its class probabilities for every sample of the shared test set"
    assert words in client(0, ENSEMBLE).identity().discloses
    assert words not in client(0).identity().discloses
    monkeypatch.setattr("protosphere.client_app.site._here", False)
    with pytest.raises(SettingError, match="`ensemble-every` is 2"):
        client(0, ENSEMBLE)
