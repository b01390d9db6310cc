"""The Python blocks of README.md and of the pages that no other test runs."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
SMALL = "settings={'models': 'tiny_perceptron', 'max-samples': 300, 'device': 'cpu'}"


def block(page: str, place: int = 0) -> str:
    """A block as printed."""
    found: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)
    return found[place]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder and a home of its own."""
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_the_five_lines_of_the_readme_run():
    Image.new("L", (8, 8), 7).save("image.png")
    lines = block("README.md")
    assert len([line for line in lines.splitlines() if line]) == 5
    exec(compile(lines.replace("clients=10, rounds=20", f"clients=2, rounds=1, {SMALL}"), "README.md", "exec"), {})


def test_arrays_are_data_as_the_page_says():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 5)).astype("float32"), np.arange(120) % 2
    names = {"x": x, "y": y, "x_test": x[:20], "y_test": y[:20], "ward": np.arange(120) // 4}
    small = f"rounds=1, {SMALL}".replace(", 'max-samples': 300", "")
    lines = block("docs/data.md").replace("clients=10)", f"clients=2, {small})")
    lines = lines.replace('group_column="ward")', f'group_column="ward", clients=2, {small})')
    # a comparison's trials are processes, which other tests start
    lines = re.sub(r"^found = .*\n", "", lines, flags=re.MULTILINE)
    assert lines.count("rounds=1") == 3
    exec(compile(lines, "docs/data.md", "exec"), names)


def test_the_printed_encoder_is_one():
    Path("mine.py").write_text(block("docs/models.md", 1))
    lines = f"""
import protosphere

protosphere.run("protosphere", "digits", clients=2, rounds=1, encoder="./mine.py", {SMALL})
"""
    exec(lines, {})
