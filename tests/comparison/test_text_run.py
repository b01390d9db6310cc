"""Whole runs on texts, with small random encoders and written notes, loaded as any others."""

import json
import random

import pytest

from protosphere.core.errors import DataError
from protosphere.plans.run_config import plan
from protosphere.record.folder import RunFolder
from tests.models.encoders import SPECIAL, save_encoder, save_tokenizer

COMMON = ["the", "patient", "was", "admitted", "with", "pain", "and", "treated", "on", "ward"]
THEMES = {"Expired": ["arrest", "comfort"], "Home": ["walking", "well"], "SNF": ["nursing", "transfer"]}
WORDS = [*COMMON, *(word for words in THEMES.values() for word in words)]
CLIENTS = 3


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The place of the encoder, and of notes.csv with one to three notes per patient."""
    folder = tmp_path_factory.mktemp("texts")
    save_tokenizer(folder / "encoder", WORDS)
    save_encoder(folder / "encoder", vocab_size=len(SPECIAL) + len(WORDS), hidden_size=16, num_hidden_layers=2)
    draw = random.Random(0)
    lines = ["note,where,patient"]
    for patient in range(60):
        where = draw.choice(list(THEMES))
        for _ in range(draw.randint(1, 3)):
            words = draw.choices(COMMON, k=6) + draw.choices(THEMES[where], k=3)
            lines.append(f'"{" ".join(words)}, ""ok""",{where},{patient:05d}')
    (folder / "notes").mkdir()
    (folder / "notes" / "notes.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def settings(place):
    """Frozen, half and wholly trained clients of one small encoder on notes, FedPAGR, the ensemble at the end."""
    models = ",".join(f"hf:{place / 'encoder'}{query}" for query in ("?trainable=0", "?trainable=1", ""))
    task = {"strategy": "fedpagr", "dataset": str(place / "notes"), "models": models, "max-samples": 0}
    task |= {"text-column": "note", "label-column": "where", "group-column": "patient"}
    return task | {"max-tokens": 12, "alpha": 2.0, "momentum": 0.9, "rounds": 1, "ensemble-every": 1, "min-samples": 5}


def test_clients_of_different_depth_train_on_notes(run, settings, place):
    folder = run(settings, clients=CLIENTS)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["problems"]) == ("completed", 0)
    # features of a frozen random encoder suffice for far more than the most frequent class
    assert summary["rules"]["discriminant"]["final"] > summary["floor"]["majority-class"] + 0.15
    assert summary["ensemble"]["rows"] > 0
    assert json.loads((folder / "roster.json").read_text())[0]["class_names"] == ["Expired", "Home", "SNF"]
    about = json.loads((folder.parents[1] / "clients" / folder.name / "1" / "client.json").read_text())
    assert about["input"] == {"tokenizer": str(place / "encoder"), "shape": [12]}


def test_texts_need_models_of_texts(settings):
    assignments = " ".join(f'{name}="{settings[name]}"' for name in ("dataset", "text-column", "label-column"))
    with pytest.raises(DataError, match="holds texts"):
        plan([assignments], clients=CLIENTS)
    with pytest.raises(DataError, match="takes texts"):
        plan([f'models="{settings["models"]}"'], clients=CLIENTS)


def test_a_second_model_of_texts_reads_the_tokens_of_the_first_and_its_path_stays_here(run, settings):
    folder = run(settings | {"strategy": "fml", "ensemble-every": 0}, clients=CLIENTS)
    assert [line["problems"] for line in RunFolder(folder).lines()] == [{}] * 2
    (name,) = {client["companion"] for client in RunFolder(folder).roster()}
    assert name.startswith("hf:local?trainable=0 (")
