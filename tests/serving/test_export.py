"""An exported program scores as `predict` does, also in a process without this project."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from protosphere.core.errors import SettingError
from protosphere.serving.export import METADATA, Program, export
from protosphere.serving.inputs import read_inputs
from protosphere.serving.predict import open_trained, predict
from tests.strategies.needs import ASKED
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "predict.md").read_text("utf-8"), flags=re.DOTALL)
# a module that is None in sys.modules cannot be imported
PROJECT = ("protosphere", "flwr")
NEAREST = {"strategy": "protonorm", "models": "tiny_perceptron"}
# settings of a run, and the rule to export; "" is the client's own
CASES = {
    "nearest": (NEAREST, ""),
    "fedproto": ({"strategy": "fedproto", "models": "tiny_cnn"}, "global-prototypes"),
    "cosine": ({"strategy": "fedpagr", "models": "tiny_resnet", "image-size": 9}, ""),
    "radius": (ASKED["fed3r"] | {"encoder-radius": 5.0}, ""),
    "pool": (ASKED["protosphere"], ""),
    # a class that the rule does not know scores minus infinity
    "few classes": ({"strategy": "fedproto", "partition": "pathological", "classes-per-client": 5}, "local-prototypes"),
    "numbers": ({"strategy": "fedtgp", "dataset": "spiral", "spiral-points": 60, "models": "spiral_mlp"}, ""),
}
# a network with batch normalisation, and two networks; tests/api/test_own_data.py exports a table's client
EXPORTED = ("cosine", "pool")


@pytest.fixture
def client_of(trained_run):
    """client_of(settings) -> the first client of a short run, trained."""

    def start(settings=NEAREST):
        _, stores = trained_run({"rounds": 1, "min-samples": 2} | settings)
        return open_trained(stores / "0", "cpu")

    return start


def inputs_for(trained, rows):
    """Samples as stored, and as a program takes them."""
    random = torch.Generator().manual_seed(rows)
    shape, scale = (rows, *trained.transform.shape), trained.transform.scale
    if len(shape) == 2:
        numbers = torch.randn(shape, generator=random)
        return numbers, numbers.numpy()
    stored = torch.randint(0, int(scale) + 1, shape, generator=random, dtype=torch.uint8)
    return stored, np.rint(stored.numpy() * (255 / scale)).astype(np.float32)


def run_alone(code, folder):
    """What the code prints in a folder, in a fork of this process without this project: loading torch again takes
    seconds."""

    def act():
        os.chdir(folder)
        for name in list(sys.modules):
            if name.partition(".")[0] in PROJECT:
                sys.modules[name] = None
        with open("printed", "w") as printed, redirect_stdout(printed):
            exec(code, {})

    process = get_context("fork").Process(target=act)
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    return (folder / "printed").read_text()


def names_places(content):
    """Whether it names a folder of this machine."""
    return any(place in content for place in (str(ROOT).encode(), sys.prefix.encode(), b"site-packages"))


@pytest.mark.parametrize("name", CASES)
def test_a_program_scores_as_predict_does(client_of, name):
    settings, rule = CASES[name]
    trained = client_of(settings)
    stored, inputs = inputs_for(trained, 5)
    with torch.no_grad():
        scores, features = Program(trained, trained.find_rule(rule)).eval()(torch.from_numpy(inputs))
    expected = trained.scores(trained.find_rule(rule), stored).float()
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    assert features.shape == (5, trained.objective.settings.feature_dim)
    assert name != "few classes" or bool((scores == -torch.inf).any())


def test_programs_and_the_docs_example_in_a_process_of_their_own_answer_as_predict_does(client_of, tmp_path):
    expected = {}
    for name in EXPORTED:
        settings, rule = CASES[name]
        trained = client_of(settings)
        export(trained, tmp_path / f"{name}.pt2", rule=rule)
        with zipfile.ZipFile(tmp_path / f"{name}.pt2") as archive:
            assert not any(names_places(archive.read(entry)) for entry in archive.namelist())
        for rows in (1, 5):
            stored, inputs = inputs_for(trained, rows)
            np.save(tmp_path / f"{name}.{rows}.npy", inputs)
            expected[name, rows] = trained.scores(trained.find_rule(rule), stored).float()
    shutil.copy(tmp_path / "pool.pt2", tmp_path / "model.pt2")
    pixels = np.load(tmp_path / "pool.1.npy")[0, 0].astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    code = (
        f"{EXAMPLES[0]}\n"
        f"for name in {[*EXPORTED]}:\n"
        "    program = torch.export.load(f'{name}.pt2').module()\n"
        "    for rows in (1, 5):\n"
        "        scores, features = program(torch.from_numpy(np.load(f'{name}.{rows}.npy')))\n"
        "        np.savez(f'{name}.{rows}.npz', scores=scores.detach(), features=features.detach())\n"
    )
    assert run_alone(code, tmp_path).split() == ["0123456789"[int(expected["pool", 1].argmax())]]
    for (name, rows), scores in expected.items():
        outputs = np.load(tmp_path / f"{name}.{rows}.npz")
        np.testing.assert_allclose(outputs["scores"], scores, rtol=1e-4, atol=1e-5, err_msg=name)
        assert outputs["scores"].argmax(axis=1).tolist() == scores.argmax(dim=1).tolist()
        assert outputs["features"].shape[0] == rows


def onnx_session(path):
    """The exported program in onnxruntime, and its metadata."""
    runtime = pytest.importorskip("onnxruntime", reason="ONNX programs need something to run them")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session, json.loads(session.get_modelmeta().custom_metadata_map[METADATA])


def test_onnx_scores_as_predict_does_and_is_written_without_a_warning(client_of, tmp_path, caplog):
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason="ONNX needs the extra `onnx`")
    trained = client_of(CASES["pool"][0])
    export(trained, tmp_path / "model.onnx")
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    assert not names_places((tmp_path / "model.onnx").read_bytes())
    session, metadata = onnx_session(tmp_path / "model.onnx")
    assert metadata["rule"] == trained.rule
    for rows in (1, 5):
        stored, inputs = inputs_for(trained, rows)
        scores, features = session.run(["scores", "features"], {"inputs": inputs})
        expected = trained.scores(trained.rule, stored).float()
        np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4)
        assert features.shape == (rows, 12)


def test_an_exported_table_says_how_its_rows_are_made_and_the_docs_reader_answers_as_predict_does(client_of, tmp_path):
    rng, rows = np.random.default_rng(3), 120
    label = rng.integers(0, 3, rows)
    wards, jobs = np.array(["north", "south", "west"]), np.array(["nurse", "cook"])
    frame = pd.DataFrame(
        {
            "ward": wards[(label + (rng.random(rows) < 0.2)) % 3],
            "age": np.where(rng.random(rows) < 0.1, np.nan, 40 + 900 * label + rng.normal(0, 9, rows)),
            "job": np.where(rng.random(rows) < 0.1, None, jobs[rng.integers(0, 2, rows)]),
            "dose": np.round(rng.normal(0, 1, rows) - label, 3),
            "outcome": np.array(["low", "mid", "high"])[label],
        }
    )
    frame.to_csv(tmp_path / "train.csv", index=False)
    settings = {"dataset": str(tmp_path / "train.csv"), "label-column": "outcome", "partition": "iid"}
    trained = client_of(NEAREST | settings | {"rounds": 2, "learning-rate": 0.05})
    export(trained, tmp_path / "model.onnx")
    session, metadata = onnx_session(tmp_path / "model.onnx")
    features = [
        *({"column": "ward", "value": ward} for ward in wards),
        *({"column": "age"}, {"column": "age", "missing": True}),
        *({"column": "job", "value": job} for job in ("cook", "nurse")),
        *({"column": "job", "missing": True}, {"column": "dose"}),
    ]
    assert metadata["input"]["features"] == features
    assert metadata["input"]["shape"] == [len(features)]
    # missing ages and jobs, an unknown ward, spaces, and columns and rows in another order
    inputs = frame[:40].drop(columns="outcome").assign(ward=["east", " south ", *frame["ward"][2:40]])[::-1]
    inputs[["dose", "job", "age", "ward"]].to_csv(tmp_path / "rows.csv", index=False)
    alone = f"import sys\nsys.modules |= dict.fromkeys({PROJECT})\n"
    done = subprocess.run(
        [sys.executable, "-c", alone + EXAMPLES[1]], cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True
    )
    answers = predict(trained, trained.rule, read_inputs(trained, [tmp_path / "rows.csv"]))
    names = [trained.class_names[answer.label] for answer in answers]
    assert len(set(names)) == 3
    assert done.stdout.split() == names
    with pytest.raises(Exception, match="Got: 4 Expected: 9"):
        session.run(None, {"inputs": np.zeros((2, 4), np.float32)})


@pytest.mark.parametrize("is_installed", [False, True])
def test_without_onnx_or_with_an_operator_that_it_lacks_nothing_is_written(
    client_of, tmp_path, monkeypatch, is_installed
):
    def fail(*arguments, **options):
        raise RuntimeError("Failed at \x1b[96mstep 3/3\x1b[0m.\nA report")

    trained = client_of()
    if not is_installed:
        monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(SettingError, match=r"\(Failed at step 3/3\)" if is_installed else r"'protosphere\[onnx\]'"):
        export(trained, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("model.bin", {}, r"model.bin does not end in \.pt2 or \.onnx"),
        ("model.pt2", {"rule": "etf"}, "rule 'etf'"),
        ("model.pt2", {"rule": "discriminant"}, "the rule `discriminant` cannot be exported"),
    ],
)
def test_other_suffixes_and_rules_are_refused(client_of, tmp_path, name, options, words):
    with pytest.raises(SettingError, match=words):
        export(client_of(), tmp_path / name, **options)
    assert not list(tmp_path.glob("model*"))
