"""`protosphere new method`: the file that it writes, which docs/adding-a-method.md links, and runs."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import protosphere
from protosphere.cli.main import app
from protosphere.cli.new import TEMPLATES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding-a-method.md"


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["new", "method", "mymethod.py"])
    assert done.exit_code == 0, done.output
    return tmp_path / "mymethod.py", done.stdout


def test_it_is_the_file_that_the_page_links(written):
    file, _ = written
    (link,) = re.findall(r"\]\((\S+/method\.py)\)", PAGE.read_text())
    assert file.read_text() == (TEMPLATES / "method.py").read_text() == (PAGE.parent / link).read_text()


def test_the_command_that_it_tells_runs_and_both_of_its_halves_are_at_work(written):
    (words,) = re.findall(r"^run it: +protosphere run -c '(.*)'$", written[1], flags=re.MULTILINE)
    quick = 'rounds=3 models="tiny_perceptron" device="cpu"'
    run = CliRunner().invoke(app, ["run", "--clients", "3", "-c", f"{words} {quick}"])
    assert run.exit_code == 0, run.output
    losses = protosphere.load().rounds.reindex(columns=["loss/cross-entropy", "loss/cosine"])
    assert losses.loc[1:2, "loss/cosine"].isna().tolist() == [True, False]
    assert (losses.loc[3] > 0).all()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mymethod.py", "is there already and stays as it is"),
        ("mymethod", "is no Python file"),
    ],
)
def test_it_overwrites_nothing_and_says_what_cannot_be(written, name, words):
    file, _ = written
    file.write_text("mine")
    done = CliRunner().invoke(app, ["new", "method", name])
    assert done.exit_code == 2
    assert words in done.stderr
    assert file.read_text() == "mine"
