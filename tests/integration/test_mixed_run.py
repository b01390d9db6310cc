"""A whole run on domains: who holds what, and the figures by domain from the clients to the summary."""

import json

import numpy as np
import pytest
from PIL import Image

CLASSES, PER_SPLIT = ("top", "middle", "bottom"), {"train": 24, "test": 6}


@pytest.fixture
def domains(tmp_path):
    """Three classes, by where a bar lies, in two domains: white on black, and a larger one in colour."""
    rng = np.random.default_rng(0)
    for domain, side, invert in (("dark", 8, False), ("light", 12, True)):
        for split, count in PER_SPLIT.items():
            for label, name in enumerate(CLASSES):
                place = tmp_path / "all" / domain / split / name
                place.mkdir(parents=True)
                for row in range(count):
                    pixels = rng.integers(0, 60, (side, side), dtype=np.uint8)
                    pixels[label * side // 3 : (label + 1) * side // 3] += 150
                    image = Image.fromarray(255 - pixels if invert else pixels)
                    (image.convert("RGB") if invert else image).save(place / f"{row}.png")
    return str(tmp_path / "all" / "*")


SETTINGS = {"partition": "mixed", "split": "official", "ways": 2, "ways-spread": 0, "shots": 0, "max-samples": 0}
SETTINGS |= {"validation-share": 0.0, "rounds": 3, "local-epochs": 4, "learning-rate": 0.1, "inference": "classifier"}


@pytest.mark.parametrize("strategy", ["pfpl", "local"])
def test_each_client_is_of_one_domain_and_figures_are_by_domain(run, metrics, domains, strategy):
    found = run(SETTINGS | {"strategy": strategy, "dataset": domains})
    roster = json.loads((found / "roster.json").read_text())
    # both domains are dealt evenly, whatever the method
    assert sorted(client["domain"] for client in roster) == ["dark"] * (len(roster) // 2) + ["light"] * (
        len(roster) // 2
    )
    assert all(len(client["classes"]) == 2 and client["rows"][2] == 2 * PER_SPLIT["test"] for client in roster)
    last = metrics(found)[-1]
    by_domain = last["evaluation"]["domains"]
    assert set(by_domain) == {"dark", "light"}
    for domain, rules in by_domain.items():
        members = [str(client["partition"]) for client in roster if client["domain"] == domain]
        accuracies = [last["clients"][partition]["evaluation"]["classifier"][0] for partition in members]
        assert rules["classifier"]["test"]["mean"] == pytest.approx(sum(accuracies) / len(accuracies))
        assert rules["classifier"]["test"]["clients"] == len(members)
    summary = json.loads((found / "summary.json").read_text())
    assert summary["domains"]["dark"]["classifier"] == by_domain["dark"]["classifier"]["test"]["mean"]
    # bars are easy to tell apart
    assert summary["headline"]["accuracy"] > 0.8
