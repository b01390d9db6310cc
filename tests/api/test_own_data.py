"""Runs on a user's own data, from the arrays to the predictions of a trained client."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import protosphere
from protosphere.arrays import data_of
from protosphere.data.forms.table_schema import TableSchema
from protosphere.serving.predict import open_trained

RNG = np.random.default_rng(3)
Y = np.arange(120) % 3
ROWS = (RNG.normal(size=(120, 5)) + Y[:, None]).astype(np.float32)
AUDIO_MODEL = """
from torch import nn

def model(input_shape, **_):
    return nn.Sequential(nn.Conv1d(input_shape[0], 8, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
"""


def start(strategy, dataset, **settings):
    defaults = {"clients": 2, "quiet": True, "rounds": 1, "device": "cpu"}
    return protosphere.run(strategy, dataset, **(defaults | settings))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_arrays_are_a_data_set_and_a_client_predicts_rows_like_them(home):
    settings = {"rounds": 2, "models": "tiny_perceptron", "partition": "iid", "learning_rate": 0.1}
    run = start("local", (ROWS, Y), **settings)
    assert run.client(0).predict(ROWS, "classifier").labels.shape == (120,)
    (file,) = (home / "arrays").iterdir()
    np.savez("mine.npz", x=ROWS, y=Y)
    again = start("local", "./mine.npz", **settings)
    # arrays and files of equal samples give equal runs
    assert again.rounds["accuracy"].tolist() == run.rounds["accuracy"].tolist()
    assert str(file) == run.settings["dataset"] == data_of([ROWS, Y])


def test_tensors_of_any_shape_go_to_a_users_own_model():
    sound = np.repeat(ROWS[:, :2, None], 40, axis=2)
    Path("sound.py").write_text(AUDIO_MODEL)
    run = start("local", (sound, Y), models="./sound.py", partition="iid")
    client = run.client(0)
    assert client.input_shape == (2, 40)
    assert client.predict(sound[:4], "classifier").labels.shape == (4,)
    with pytest.raises(protosphere.Error, match="images"):
        start("local", (sound, Y), models="tiny_cnn", partition="iid")


IMAGES = np.random.default_rng(1).integers(0, 256, (120, 8, 8, 3)).astype(np.uint8)
IMAGES[Y == 1, :4] //= 4
CNN = {"models": "tiny_cnn", "partition": "iid", "rounds": 2, "augment": "flip-crop"}
FIGURES = ["accuracy", "accuracy/classifier", "loss", "validation"]


def test_a_resumed_run_with_augmentation_equals_an_uncut_one():
    """test_contract.py has runs of several processes."""
    whole = start("fedproto", (IMAGES, Y), **CNN)
    assert np.isfinite(whole.rounds["loss"].iloc[1:]).all()
    part = start("fedproto", (IMAGES, Y), **(CNN | {"rounds": 1}))
    resumed = protosphere.run(resume=part.folder, rounds=2, quiet=True)
    assert resumed.rounds[FIGURES].equals(whole.rounds[FIGURES])
    plain = start("fedproto", (IMAGES, Y), **(CNN | {"augment": "none"}))
    assert plain.rounds["loss"].iloc[1] != whole.rounds["loss"].iloc[1]


def test_a_client_of_a_table_predicts_frames_as_its_exported_program_does(tmp_path):
    frame = pd.DataFrame(ROWS[:, :3], columns=list("abc")).assign(kind=np.where(Y == 2, "x", "y"), outcome=Y)
    frame.loc[::7, "a"] = np.nan
    frame.to_csv("table.csv", index=False)
    settings = {"label_column": "outcome", "models": "tiny_perceptron", "partition": "iid", "learning_rate": 0.1}
    client = start("local", "./table.csv", rounds=5, **settings).client(0)
    predictions = client.predict(frame, "classifier")
    assert (predictions.labels == Y).mean() > 0.6
    client.export(tmp_path / "client.pt2", rule="classifier")
    program = torch.export.load(tmp_path / "client.pt2").module()
    schema = TableSchema(open_trained(client.folder, "cpu").transform.columns)
    inputs = torch.from_numpy(schema.encode("x", pa.Table.from_pandas(frame), len(frame))[0])
    scores, _ = program(inputs)
    assert np.allclose(scores.detach().numpy(), predictions.scores, atol=1e-4)
    # a program refuses rows of another width
    with pytest.raises(Exception, match=rf"== {inputs.shape[1]}"):
        program(inputs[:, 1:])
    for x in (frame.drop(columns="b"), frame.assign(b=pd.Timestamp("2020-01-01"))):
        with pytest.raises(protosphere.DataError, match=r"columns b,|numbers and strings"):
            client.predict(x)


@pytest.fixture
def client():
    """A client of rows of numbers."""
    data = torch.tensor(ROWS, requires_grad=True), Y.tolist()
    return start("local", data, models="tiny_perceptron").client(0)


def test_a_client_takes_rows_of_any_kind(client):
    scores = client.predict(ROWS, "classifier").scores
    for x in (ROWS.tolist(), list(torch.from_numpy(ROWS)), pd.DataFrame(ROWS), ROWS.astype(float)):
        assert np.array_equal(client.predict(x, "classifier").scores, scores)
    assert client.predict(ROWS[:0]).scores.shape == (0, 3)
    for x in (ROWS * np.nan, ROWS[0], [[1.0], [1.0, 2.0]], 3, ROWS.astype(str)):
        with pytest.raises(protosphere.DataError, match=r"^x "):
            client.predict(x)
