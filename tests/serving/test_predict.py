"""A client loaded from its folder predicts what its last evaluation counted, and damaged folders are refused."""

import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from protosphere.client_app.encoder import loaded
from protosphere.client_app.store import FORMAT, StoreError
from protosphere.core.errors import SettingError
from protosphere.launch.grid import run_in_process
from protosphere.record.folder import RunFolder
from protosphere.serving.inputs import labels_of, read_inputs
from protosphere.serving.predict import open_trained
from protosphere.serving.predict import predict as answers_of
from protosphere.strategies.contract import EQUAL_WEIGHT
from tests.data.conftest import deep_colours
from tests.data.draws import decoded
from tests.reports.fabricated import change_json
from tests.serving.counted import assert_predicts_as_counted, rows_of
from tests.strategies.needs import ASKED

CLIENTS = 2
EVERY_ROUND = {"gfpl.first-exchange": 1, "gfpl.exchange-every": 1}
SPARSE = {"tinyproto.sparsity-dim": 6, "feature-activation": "relu"}
RELEASED = {"privacy": "release", "privacy-measure": True, "privacy-epsilon": 500.0, "encoder": "random", "rounds": 2}
# what the contract suite, which runs every method on rows of numbers, does not cover
VARIANTS = [
    {"strategy": "gfpl", "inference": "etf", "alpha": 1.0} | EVERY_ROUND,
    {"strategy": "tinyproto-fp", "inference": "global-prototypes"} | SPARSE,
    {"strategy": "protonorm", "protonorm.gamma": 3.0, "image-size": 12, "models": "tiny_resnet", "rounds": 1},
    ASKED["protosphere"],
    {"strategy": "fedproto", "inference": "encoder"} | RELEASED,
]


def predict(trained, rule, sources):
    return list(answers_of(trained, rule, read_inputs(trained, sources)))


@pytest.mark.parametrize("settings", VARIANTS, ids=lambda settings: settings["strategy"])
def test_the_folder_alone_gives_the_last_evaluations_predictions(trained_run, tmp_path, monkeypatch, settings):
    folder, _ = trained_run(settings)
    assert_predicts_as_counted(folder, CLIENTS, settings, tmp_path / "elsewhere", monkeypatch)


PUBLIC_ENCODER = """
from torch import nn


def encoder(input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9))
"""


def test_the_rule_encoder_needs_the_encoder_of_the_run(trained_run, tmp_path):
    """It is loaded from where the client had it, or from a given place; without it the other rules work."""
    (tmp_path / "public.py").write_text(PUBLIC_ENCODER)
    (tmp_path / "moved").mkdir()
    folder, stores = trained_run(ASKED["fedcgs"] | {"encoder": str(tmp_path / "public.py")})
    rows, _ = rows_of(folder, 0)
    scores = open_trained(stores / "0", "cpu").scores("encoder", rows.inputs)
    moved = shutil.move(tmp_path / "public.py", tmp_path / "moved" / "public.py")
    loaded.cache_clear()
    trained = open_trained(stores / "0", "cpu")
    with pytest.raises(SettingError, match="cannot be loaded"):
        trained.scores("encoder", rows.inputs)
    assert len(trained.scores("classifier", rows.inputs)) == len(rows)
    assert torch.equal(open_trained(stores / "0", "cpu", str(moved)).scores("encoder", rows.inputs), scores)
    with pytest.raises(SettingError, match="fingerprint"):
        open_trained(stores / "0", "cpu", "random").scores("encoder", rows.inputs)


# --- images and texts -----------------------------------------------------------------------------------------------


def pixels_of(digits):
    """Digits, whose full scale is 16, with full scale 255."""
    return np.rint(digits.numpy() * (255 / 16)).astype(np.uint8)


def draw(folder, row, index):
    """A file of a digit."""
    path = folder / f"{index}.png"
    Image.fromarray(pixels_of(row)[0]).save(path)
    return path


def test_image_files_arrays_and_stored_samples_give_equal_scores(trained_run, tmp_path):
    folder, stores = trained_run({"strategy": "fedproto"})
    rows, _ = rows_of(folder, 0)
    trained = open_trained(stores / "0", "cpu")
    files = [draw(tmp_path, row, index) for index, row in enumerate(rows.inputs)]
    np.savez(tmp_path / "digits.npz", x=pixels_of(rows.inputs))
    for rule in trained.rules():
        scores = trained.scores(rule, rows.inputs).double()
        answers = predict(trained, rule, files)
        assert [answer.source for answer in answers] == list(map(str, files))
        assert [answer.label for answer in answers] == scores.argmax(dim=1).tolist()
        assert [answer.score for answer in answers] == scores.max(dim=1).values.tolist()
        of_arrays = predict(trained, rule, [tmp_path / "digits.npz"])
        assert [answer.score for answer in of_arrays] == scores.max(dim=1).values.tolist()
        confidences = [answer.confidence for answer in answers]
        if rule in ("classifier", "discriminant"):
            assert confidences == pytest.approx(scores.softmax(dim=1).max(dim=1).values.tolist())
        else:
            assert set(confidences) == {None}


@pytest.mark.parametrize("modes", [("L", "LA", "1"), ("RGB", "RGBA", "P", "L", "CMYK")])
def test_files_are_read_as_the_training_images_were(trained_run, tmp_path, modes):
    """Two classes of images of every usual mode and of several sizes."""
    random, images = np.random.default_rng(0), tmp_path / "images"
    for index in range(24):
        side, mode = int(random.integers(10, 40)), modes[index % len(modes)]
        pixels = random.integers(0, 256, (side, side + 3, 4), dtype=np.uint8)
        image = Image.fromarray(pixels[..., 0]) if modes[0] == "L" else Image.fromarray(pixels, "RGBA").convert("RGB")
        (images / "ab"[index % 2]).mkdir(parents=True, exist_ok=True)
        image.convert(mode).save(images / "ab"[index % 2] / f"{index}.{'tif' if mode == 'CMYK' else 'png'}")
    settings = {"dataset": str(images), "image-size": 16, "rounds": 1, "partition": "iid", "min-samples": 1}
    _, stores = trained_run(settings, clients=1)
    trained = open_trained(stores / "0", "cpu")
    assert trained.transform.shape == (1 if modes[0] == "L" else 3, 16, 16)
    assert trained.class_names == ("a", "b")
    stored = torch.from_numpy(np.array(decoded(str(images), tmp_path / "cache", image_size=16).inputs))
    expected = trained.scores("classifier", stored).double().max(dim=1).values
    scores = [answer.score for answer in predict(trained, "classifier", sorted(images.glob("*/*")))]
    assert sorted(scores) == pytest.approx(sorted(expected.tolist()), abs=1e-6)
    assert len({round(score, 5) for score in scores}) > 20


def test_a_file_that_is_no_image_has_a_problem_and_the_others_have_answers(trained_run, tmp_path):
    folder, stores = trained_run({"rounds": 1})
    trained = open_trained(stores / "0", "cpu")
    image = draw(tmp_path, rows_of(folder, 0)[0].inputs[0], 0)
    (tmp_path / "note.png").write_text("no image")
    (tmp_path / "cut.png").write_bytes(image.read_bytes()[:60])
    Image.fromarray(np.zeros((8, 8), dtype=np.uint16)).save(tmp_path / "deep.png")
    (tmp_path / "colours.png").write_bytes(deep_colours())
    problems = {
        "note.png": "no readable image",
        "cut.png": "no readable image",
        "deep.png": "8 bits per channel",
        "colours.png": "8 bits per channel",
        "none.png": "No such file",
    }
    first, *answers = predict(trained, "classifier", [image, *(tmp_path / name for name in problems)])
    assert [first] == predict(trained, "classifier", [image])
    assert (first.problem, first.label >= 0) == ("", True)
    for answer, words in zip(answers, problems.values(), strict=True):
        assert answer.problem.startswith(answer.source)
        assert words in answer.problem
        assert answer.label == -1


def test_texts_are_read_from_files_and_from_arguments(trained_run, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    encoders = pytest.importorskip("tests.models.encoders", reason="text needs the extra `text`")
    encoder, words = tmp_path / "encoder", ["warm", "cold", "day"]
    encoders.save_tokenizer(encoder, words)
    encoders.save_encoder(encoder, vocab_size=len(encoders.SPECIAL) + len(words))
    lines = [f"{word} day {'day ' * (n % 3)},{word}" for n in range(20) for word in ("warm", "cold")]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "train.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    settings = {"dataset": str(tmp_path / "notes"), "models": f"hf:{encoder}?trainable=0", "max-tokens": 6}
    settings |= {"strategy": "protonorm", "rounds": 1, "partition": "iid"}
    _, stores = trained_run(settings, clients=1)
    trained = open_trained(stores / "0", "cpu")
    files = []
    for name, content in (("warm.txt", b"warm day"), ("none.txt", b" "), ("bytes.txt", b"\xff\xfe\xff")):
        files.append(tmp_path / name)
        files[-1].write_bytes(content)
    warm, none, broken, same, cold = predict(trained, "discriminant", [*files, "warm day", "cold day"])
    assert "has no text" in none.problem
    assert "cannot be read" in broken.problem
    assert [trained.class_names[answer.label] for answer in (warm, same, cold)] == ["warm", "warm", "cold"]
    assert warm.score == same.score != cold.score


# --- damaged folders ------------------------------------------------------------------------------------------------


def cut(name):
    return lambda store: (store / name).write_bytes((store / name).read_bytes()[:-3])


def describe(**changes):
    return lambda store: change_json(store / "client.json", **changes)


POOL = {"strategy": "protosphere", "validation-share": 0.3, "rounds": 2}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut("round-000002.safetensors"), "round-000002.*cannot be read"),
        (cut("received.safetensors"), "received.*cannot be read"),
        (cut("pool.safetensors"), "pool.*cannot be read"),
        (cut("client.json"), r"client\.json cannot be read"),
        (describe(format=99), f"has format 99, .* reads format {FORMAT}"),
        (describe(settings=None), "lacks settings"),
        (describe(input={"shape": [1, 8, 8]}), "what the model's inputs are"),
        (lambda store: (store / "client.json").unlink(), "there is no client in"),
        (lambda store: [path.unlink() for path in store.glob("round-*")], "holds no state"),
    ],
)
def test_a_damaged_folder_is_refused_and_no_other_model_is_loaded(trained_run, spoil, words):
    _, stores = trained_run(POOL)
    assert open_trained(stores / "0", "cpu").round == 2
    spoil(stores / "0")
    with pytest.raises(StoreError, match=words):
        open_trained(stores / "0", "cpu")


def test_an_evaluation_chooses_a_damaged_weight_of_the_pool_anew(trained_run):
    folder, stores = trained_run(POOL)
    files = list(stores.glob("*/pool.safetensors"))
    assert files
    for path in files:
        cut(path.name)(path.parent)
    more = RunFolder(folder).settings() | {"rounds": 3, "resume": str(folder)}
    resumed = run_in_process(more, clients=CLIENTS, show=lambda line: None)
    assert not any(line["problems"] for line in RunFolder(resumed).lines())
    assert all(open_trained(path.parent, "cpu").state.pool_weight != EQUAL_WEIGHT for path in files)


@pytest.mark.parametrize("name", ["cuda:77", "mps", "abacus"])
def test_a_missing_device_is_refused(trained_run, name):
    _, stores = trained_run({"rounds": 1})
    with pytest.raises(SettingError, match=f'the device is "{name}"'):
        open_trained(stores / "0", name)


# --- labels ---------------------------------------------------------------------------------------------------------


def reader(*names, label_column=""):
    """What the labels of a client of texts depend on."""
    objective = SimpleNamespace(settings=SimpleNamespace(label_column=label_column))
    return SimpleNamespace(tokens=True, class_names=names, objective=objective, transform=None)


@pytest.mark.parametrize(
    ("names", "written", "labels"),
    [
        (("01", "02", "03"), ("01", "02"), [0, 1]),
        (("true", "false"), ("true", "false"), [0, 1]),
        (("1.50", "NA"), ("1.50", "NA"), [0, 1]),
        (("cat", "dog"), ("1", "cat"), [1, 0]),
        (("1", "2", "3"), ("2", "1.0"), [1, 0]),
        (("cat", "dog"), ("1.0", " dog"), [1, 1]),
    ],
)
def test_cells_of_a_csv_file_are_texts_as_in_training(names, written, labels, tmp_path):
    rows = "".join(f"{text},{label}\n" for text, label in zip(("007", "1.10"), written, strict=True))
    (tmp_path / "notes.csv").write_text(f"text,label\n{rows}")
    inputs = read_inputs(reader(*names), [tmp_path / "notes.csv"])
    assert [(row.source, row.label) for row in inputs] == list(zip(("007", "1.10"), labels, strict=True))


@pytest.mark.parametrize(
    ("names", "values", "are_positions", "labels"),
    [
        (("1", "2", "3"), [1, 2.0, "3", b"3"], False, [0, 1, 2, 2]),
        (("1", "2", "3"), [0, 1, "1"], True, [0, 1, 0]),
        (("0", "1"), [0, 1.0, "1.0", "0", True], False, [0, 1, 1, 0, 1]),
        (("0", "1", "other"), [2, "other", 1], False, [2, 2, 1]),
        (("2.0", "2.5", "3.0"), ["2.0", "2.5", 3.0], False, [0, 1, 2]),
        (("True", "False"), [True, "True", False], False, [0, 0, 1]),
        (("cat", "dog"), [1, 0.0, "dog", b"cat"], False, [1, 0, 1, 0]),
    ],
)
def test_labels_are_read_as_in_training_whatever_their_type(names, values, are_positions, labels):
    assert labels_of(reader(*names), "own", values, are_positions) == labels
    for unknown in (None, "", 3.5, len(names) + 1, "None"):
        with pytest.raises(SettingError, match="row 0 of own is"):
            labels_of(reader(*names), "own", [unknown], are_positions)


def test_a_missing_text_is_empty_and_hidden_files_are_no_inputs(tmp_path):
    client = reader("cold", "warm")
    pq.write_table(pa.table({"text": ["fine", None, ""], "label": [0, 1, 1]}), tmp_path / "t.parquet")
    assert [row.source for row in read_inputs(client, [tmp_path / "t.parquet"])] == ["fine", "", ""]
    for name in ("warm/a.txt", "warm/.ipynb_checkpoints/a.txt", "warm/._b.txt", "cold/b.txt"):
        path = tmp_path / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("some words")
    inputs = read_inputs(client, [tmp_path / "notes"])
    assert [(row.name, row.label) for row in inputs] == [("cold/b.txt", 0), ("warm/a.txt", 1)]
    # the column of the classes is that of the training data
    (tmp_path / "own.csv").write_text("text,stars\nfine,warm\n")
    for column, labels in (("", [None]), ("stars", [1])):
        inputs = read_inputs(reader("cold", "warm", label_column=column), [tmp_path / "own.csv"])
        assert [row.label for row in inputs] == labels
