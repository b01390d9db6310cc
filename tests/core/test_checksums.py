"""JSON that is held against a digest: any flipped byte and any lost page is noticed, and said once."""

import json

import pytest
import torch
from safetensors.torch import save_file

from protosphere.core import files as module
from protosphere.core.errors import SettingError
from protosphere.core.files import DamagedError, opened, read_tensors, sealed
from protosphere.record.folder import RunFolder
from protosphere.reports.results import read_results
from protosphere.strategies import known_settings

CONTENT = {"round": 3, "bytes": {"up": 12}, "share": 0.1, "name": "é", "2": None, "rows": [1, 2]}


def test_what_was_sealed_comes_back_and_may_be_laid_out_anew(tmp_path):
    text = json.dumps(sealed(CONTENT))
    assert opened(json.loads(text), tmp_path / "x") == CONTENT
    assert list(sealed(CONTENT))[-1] == "digest"
    other = json.dumps(json.loads(text), indent=4, sort_keys=True, ensure_ascii=False)
    assert opened(json.loads(other), tmp_path / "x") == CONTENT
    # numbers as keys are words in JSON
    assert opened(json.loads(json.dumps(sealed({10: 1, 9: 2}))), tmp_path / "x") == {"10": 1, "9": 2}


def test_no_flipped_bit_is_read_as_something_else(tmp_path):
    whole = json.dumps(sealed(CONTENT), indent=1).encode()
    for place in range(len(whole)):
        for bit in range(7):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            try:
                found = opened(json.loads(bytes(changed)), tmp_path / "x")
            except (ValueError, DamagedError):
                continue
            # one space for another
            assert found == CONTENT, changed


def test_what_has_no_digest_is_read_with_one_notice_of_json_and_tensors_together(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(module, "_undigested", [])
    for name in ("a.json", "b.json"):
        assert opened([CONTENT, CONTENT], tmp_path / name) == [CONTENT, CONTENT]
    save_file({"labels": torch.zeros(1)}, tmp_path / "c.safetensors")
    read_tensors(tmp_path / "c.safetensors")
    assert caplog.text.count("has no digest") == 1
    assert str(tmp_path / "a.json") in caplog.text


@pytest.fixture
def folder(run):
    return run({"rounds": 2}, clients=2)


@pytest.mark.parametrize("name", ["settings.json", "roster.json", "summary.json", "metrics.jsonl"])
@pytest.mark.parametrize("how", ["a digit", "zeros"])
def test_a_damaged_file_of_a_run_is_one_sentence_with_its_name(folder, name, how):
    path = folder / name
    before = path.read_bytes()
    if how == "zeros":
        half = len(before) // 2
        path.write_bytes(before[:half] + bytes(len(before) - half - 1) + b"\n")
    else:
        # the first digit of a value
        place = next(p for p in range(len(before)) if before[p : p + 1].isdigit() and before[p - 2 : p] == b": ")
        path.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
    with pytest.raises(SettingError) as told:
        read_results(folder)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)
    if how == "a digit":
        assert "is not as it was written: a damaged disk or a cut copy does that" in str(told.value)
        assert "take its `digest` out" in str(told.value)


def test_a_run_goes_on_from_sealed_files_and_their_readers_see_no_digest(folder, run, home):
    record = RunFolder(folder)
    assert "digest" not in record.settings()
    assert set(record.settings()) == set(known_settings())
    assert all("digest" not in line for line in record.lines())
    assert all("digest" not in entry for entry in record.roster())
    run({"rounds": 3, "resume": str(folder)}, clients=2)
    assert [line["round"] for line in record.lines()] == [0, 1, 2, 3]
    assert all(json.loads(line)["digest"] for line in (folder / "metrics.jsonl").read_text().splitlines())
    (folder / "metrics.jsonl").write_text((folder / "metrics.jsonl").read_text().replace('"round": 2', '"round": 3'))
    with pytest.raises(SettingError, match=r"a line of .*metrics\.jsonl is not as it was written"):
        run({"rounds": 4, "resume": str(folder)}, clients=2)
