"""Files that survive: damage is noticed, and writes are whole or not at all and on the disk before they count."""

import json

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from protosphere.core import files
from protosphere.core.errors import SettingError
from protosphere.core.files import (
    METADATA,
    NAME,
    DamagedError,
    read_lines,
    read_tensors,
    replacing,
    unsettled,
    write_tensors,
)

TENSORS = {
    "weights": torch.randn(7, 3, generator=torch.Generator().manual_seed(1)),
    "transposed": torch.arange(6, dtype=torch.float64).reshape(2, 3).t(),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "labels": torch.tensor([3, 1]),
    "empty": torch.empty(0, 4),
    "flag": torch.tensor(True),
}
WORDS = {"run": "a-run", "meta": '{"round": 7, "text": "ü"}'}


# --- lines of JSON ------------------------------------------------------------------------------------------------


def test_half_a_last_line_is_left_out_and_other_damage_is_named(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = [{"round": 0, "text": "ü\u2028\x85"}, {"round": 1, "none": None}]
    whole = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        for tail in (b"", bytes(9)):
            path.write_bytes(whole[:end] + tail)
            assert list(read_lines(path)) == lines[:1]
    path.write_bytes(whole)
    assert list(read_lines(path)) == lines
    for damaged, number in ((b"*" + whole[1:], 1), (whole[:-2] + b"\n", 2), (whole + bytes(9) + b"\n", 3)):
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match=f"line {number} is damaged"):
            list(read_lines(path))


# --- tensors ------------------------------------------------------------------------------------------------


def test_tensors_and_words_come_back_to_the_bit_and_whoever_writes_them_writes_the_same_bytes(tmp_path):
    paths = [tmp_path / f"{number}.safetensors" for number in range(6)]
    for path in paths:
        write_tensors(path, TENSORS, WORDS)
    assert len({path.read_bytes() for path in paths}) == 1
    found, words = read_tensors(paths[0])
    assert words == WORDS
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    # any reader of safetensors reads them
    assert load_file(paths[0]).keys() == TENSORS.keys()


def test_every_flipped_byte_and_every_lost_tail_is_noticed(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"weights": TENSORS["weights"], "labels": TENSORS["labels"]}, WORDS)
    whole = path.read_bytes()
    damaged = []
    for place in range(len(whole)):
        for flip in (1, 0x80):
            damaged.append(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
        if place % 7 == 0:
            damaged += [whole[:place], whole[:place] + bytes(len(whole) - place)]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises((OSError, SafetensorError, ValueError)):
            read_tensors(path)
    path.write_bytes(whole.replace(b"a-run", b"b-run"))
    with pytest.raises(DamagedError, match="differs from what was written"):
        read_tensors(path)


def test_a_digest_that_is_gone_or_a_file_under_another_name_is_damage(tmp_path):
    path = tmp_path / "a.safetensors"
    for metadata in (None, WORDS, {METADATA: json.dumps(WORDS)}, {METADATA: "[]"}):
        save_file({"labels": TENSORS["labels"]}, path, metadata=metadata)
        with pytest.raises(DamagedError, match="another version"):
            read_tensors(path)
    write_tensors(path, {"labels": TENSORS["labels"]}, {NAME: "a", "run": "a-run"})
    assert read_tensors(path)[1] == {"run": "a-run"}
    path.rename(tmp_path / "b.safetensors")
    with pytest.raises(DamagedError, match=r"it is a copy of a\.safetensors"):
        read_tensors(tmp_path / "b.safetensors")


# --- whole or not at all, and on the disk -------------------------------------------------------------------------


def write(path, text="new", **how):
    with replacing(path, **how) as temporary:
        temporary.write_text(text)


def test_two_that_write_a_file_at_once_each_write_the_whole_of_it(tmp_path):
    """Processes of two containers that share a folder may have one number, as those of a test have."""
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("first")
        write(tmp_path / "a", "second")
        assert (tmp_path / "a").read_text() == "second"
    assert (tmp_path / "a").read_text() == "first"
    assert not list(tmp_path.glob(".*"))


def test_what_is_not_on_the_disk_does_not_take_the_place_of_what_was(tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    (place / "a").write_text("old")

    def full(path):
        # it counts only when it is there
        assert (place / "a").read_text() == "old"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "sync", full)
    with pytest.raises(OSError, match="No space left"):
        write(place / "a")
    assert [path.name for path in place.iterdir()] == ["a"]
    assert (place / "a").read_text() == "old"


def test_files_that_may_wait_are_on_the_disk_together_when_they_are_settled(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "sync", lambda path: synced.append(path.name))
    write(tmp_path / "alone", may_wait=True)
    assert len(synced) == 2, "nobody settles it later"
    with unsettled.wait():
        for name in ("a", "b", "gone", "a"):
            write(tmp_path / name, may_wait=True)
        (tmp_path / "gone").unlink()
        # those of a run that starts another wait on
        with unsettled.wait():
            write(tmp_path / "inner", may_wait=True)
        assert synced[2:] == ["inner", tmp_path.name]
        unsettled.settle()
        assert sorted(synced[4:-1]) == ["a", "b"]
        assert synced[-1] == tmp_path.name, "names after what they stand for"
        write(tmp_path / "c", may_wait=True)
    assert synced[-2:] == ["c", tmp_path.name]


def test_a_checkpoint_is_written_when_what_it_counts_on_is_on_the_disk(run, monkeypatch):
    events = []
    monkeypatch.setattr(files, "sync", lambda path: events.append(path.name))
    run({"rounds": 2}, clients=2)
    ends = [place for place, name in enumerate(events) if name.startswith(".checkpoint")]
    assert len(ends) == 3
    for number, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        states = [name for name in events[begin:end] if name == f"round-{number:06d}.safetensors"]
        assert len(states) == 2


def test_a_disk_that_is_full_at_the_end_ends_the_run_in_a_sentence(run, monkeypatch):
    def full(path):
        if path.name == "received.safetensors":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "sync", full)
    # in its only round the method has nothing to send
    with pytest.raises(SettingError, match=r"results folder .* cannot be written"):
        run({"rounds": 1}, clients=2)
