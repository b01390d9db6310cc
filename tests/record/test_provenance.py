"""What a run keeps of where it comes from."""

import json
import subprocess

import pytest

from protosphere.record.provenance import FILE, command_of, commit_of, note, origins, versions


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (
            ["/home/a b/bin/protosphere", "run", "-c", 'strategy="fedproto" rounds=3'],
            "protosphere run -c 'strategy=\"fedproto\" rounds=3'",
        ),
        (["train.py", "--seed", "1"], "train.py --seed 1"),
        (["/x/flwr-serverapp", "--token", "secret"], ""),
        (["/x/flower-superlink"], ""),
        (["/x/site-packages/ipykernel_launcher.py", "-f", "k.json"], ""),
        (["/x/ray/_private/workers/default_worker.py"], ""),
        ([""], ""),
        ([], ""),
    ],
)
def test_a_command_is_told_as_a_shell_takes_it_and_none_of_flowers(words, command):
    assert command_of(words) == command


def test_a_commit_is_told_and_whether_files_differ_from_it(tmp_path):
    assert commit_of(str(tmp_path)) == ""
    place = tmp_path / "repository"
    place.mkdir()

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        done = subprocess.run(["git", "-C", place, *who, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (place / "a.py").write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")
    (place / "new.py").write_text("2")
    assert commit_of(str(place)) == commit
    commit_of.cache_clear()
    (place / "a.py").write_text("2")
    assert commit_of(str(place)) == f"{commit}-dirty"


def test_every_start_is_noted_and_a_record_that_is_none_is_no_start(tmp_path, monkeypatch):
    note(tmp_path)
    note(tmp_path)
    first, second = origins(tmp_path)
    assert first["versions"] == second["versions"] == versions()
    assert first["machine"]["cores"] >= 1
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    note(tmp_path)
    assert origins(tmp_path) == [first, second]
    monkeypatch.chdir(tmp_path)
    for content in ("", "{}", '["x", 3]'):
        (tmp_path / FILE).write_text(content)
        assert origins(tmp_path) == []
    note(tmp_path)
    assert len(json.loads((tmp_path / FILE).read_text())) == 1
    note(tmp_path / "gone")
