"""Whole runs on the w-way s-shot partition: what a folder of images gives, and what the digits cannot."""

import json

import numpy as np
import pytest
from PIL import Image

WAY_SHOT = {"partition": "way-shot", "split": "official", "max-samples": 0, "validation-share": 0.0}


@pytest.fixture
def folder(tmp_path):
    """Four classes, each bright in another quarter: 40 images to train on and 5 to test on, of the last class 4."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 5)):
        for label in range(4):
            place = tmp_path / "images" / split / f"class{label}"
            place.mkdir(parents=True)
            for row in range(count - (label == 3 and split == "test")):
                pixels = rng.integers(0, 60, (8, 8), dtype=np.uint8)
                top, left = 4 * (label // 2), 4 * (label % 2)
                pixels[top : top + 4, left : left + 4] += 150
                Image.fromarray(pixels).save(place / f"{row}.png")
    return tmp_path / "images"


def test_clients_train_on_their_shots_and_are_tested_on_all_rows_of_their_classes(run, metrics, folder):
    settings = WAY_SHOT | {"dataset": str(folder), "ways": 2, "ways-spread": 1, "shots": 6, "shots-spread": 2}
    settings |= {"strategy": "fedproto", "rounds": 3, "local-epochs": 5, "ensemble-every": 3, "shared-test-share": 0.2}
    found = run(settings)
    roster = json.loads((found / "roster.json").read_text())
    last = metrics(found)[-1]
    for client in roster:
        ways = len(client["classes"])
        trained, validated, tested = client["rows"]
        assert 2 <= ways <= 3
        assert 4 * ways <= trained <= 8 * ways
        assert validated == 0
        # the shared test set took a row of each class
        assert tested == sum(3 if label == 3 else 4 for label in client["classes"])
    assert last["ensemble"]["rows"] == 4
    assert last["evaluation"]["rules"]["local-prototypes"]["test"]["rows"] == sum(c["rows"][2] for c in roster)
    # the quarters are easy to tell apart
    assert last["evaluation"]["rules"]["local-prototypes"]["test"]["worst"] > 0.8
