"""Tensors in files that tell of damage: every byte counts."""

import logging
import os

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from protosphere.core.errors import SettingError
from protosphere.core.files import (
    FORM,
    FORM_NUMBER,
    NAME,
    DamagedError,
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


@pytest.mark.parametrize("names", [list(TENSORS), ["weights", "labels"], []])
def test_tensors_and_words_come_back_to_the_bit(tmp_path, names):
    tensors = {name: TENSORS[name] for name in names}
    path = tmp_path / "a.safetensors"
    write_tensors(path, tensors, WORDS)
    found, words = read_tensors(path)
    assert words == WORDS
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    # any reader of safetensors reads them
    assert load_file(path).keys() == tensors.keys()


def test_every_flipped_byte_is_noticed(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"weights": TENSORS["weights"], "labels": TENSORS["labels"]}, WORDS)
    whole = path.read_bytes()
    noticed = 0
    for place in range(len(whole)):
        for flip in (1, 0x80):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
            with pytest.raises((OSError, SafetensorError, ValueError)):
                read_tensors(path)
            noticed += 1
    assert noticed == 2 * len(whole)
    path.write_bytes(whole)
    read_tensors(path)


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 1.0])
def test_a_lost_tail_is_noticed_whether_it_is_short_or_zero(tmp_path, kept):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"weights": torch.ones(500)})
    whole = path.read_bytes()
    begin = whole[: int(kept * len(whole))]
    for damaged in (begin, begin + bytes(len(whole) - len(begin))):
        if damaged == whole:
            continue
        path.write_bytes(damaged)
        with pytest.raises((OSError, SafetensorError, ValueError)):
            read_tensors(path)


def test_files_of_earlier_versions_are_read_with_one_notice(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("protosphere.core.files._undigested", [])
    path = tmp_path / "a.safetensors"
    for each in (path, tmp_path / "b.safetensors"):
        save_file({"labels": TENSORS["labels"]}, each, metadata=WORDS)
    with caplog.at_level(logging.WARNING, "protosphere"):
        found, words = read_tensors(path)
        read_tensors(tmp_path / "b.safetensors")
        read_tensors(path)
    assert torch.equal(found["labels"], TENSORS["labels"])
    assert words == WORDS
    (notice,) = caplog.messages
    assert notice.startswith(f"{path} has no digest")


def test_a_digest_that_is_gone_is_damage_where_the_file_had_one(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"labels": TENSORS["labels"]}, WORDS)
    place = path.read_bytes().index(b'"digest":"')
    for lost in (b'"digest', b'"digest":"0123456789'):
        # its name and its first digits: no word is left that looks like one
        content = bytearray(path.read_bytes())
        content[place + 1 : place + 1 + len(lost)] = b"x" * len(lost)
        content = content.replace(b'"' + b"x" * len(lost), b'"' + b"x" * (len(lost) - 4) + b'":"x', 1)
        (tmp_path / "b.safetensors").write_bytes(content)
        with pytest.raises((DamagedError, SafetensorError)):
            read_tensors(tmp_path / "b.safetensors")
    save_file({"labels": TENSORS["labels"]}, path, metadata={FORM: FORM_NUMBER, **WORDS})
    with pytest.raises(DamagedError, match="its digest is gone"):
        read_tensors(path)


def test_a_file_that_says_its_name_is_read_under_no_other(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"labels": TENSORS["labels"]}, {NAME: "a", "run": "a-run"})
    assert read_tensors(path)[1] == {"run": "a-run"}
    path.rename(tmp_path / "b.safetensors")
    with pytest.raises(DamagedError, match=r"it is what was written as a\.safetensors"):
        read_tensors(tmp_path / "b.safetensors")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir])
def test_nothing_but_a_regular_file_is_read(tmp_path, make):
    make(tmp_path / "a.safetensors")
    with pytest.raises(OSError, match=r"it is, or leads to, a .* and no file with an end"):
        read_tensors(tmp_path / "a.safetensors")


def test_the_same_tensors_with_others_words_are_damaged(tmp_path):
    """The digest is over the header, too."""
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"labels": TENSORS["labels"]}, {"run": "a-run"})
    path.write_bytes(path.read_bytes().replace(b"a-run", b"b-run"))
    with pytest.raises(DamagedError):
        read_tensors(path)


def test_a_file_and_its_name_are_on_the_disk_before_it_counts(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "protosphere.core.files.sync", lambda path: calls.append((path.name, (tmp_path / "a").exists()))
    )
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("whole")
    (written, before), (folder, after) = calls
    assert written.endswith(".tmp")
    assert (before, folder, after) == (False, tmp_path.name, True)


def test_files_that_may_wait_are_on_the_disk_together_when_they_are_settled(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("protosphere.core.files.sync", lambda path: synced.append(path.name))

    def write(name, **how):
        with replacing(tmp_path / name, **how) as temporary:
            temporary.write_text(name)

    write("alone", may_wait=True)
    assert len(synced) == 2, "nobody settles it later"
    with unsettled.wait():
        for name in ("a", "b", "gone", "a"):
            write(name, may_wait=True)
        (tmp_path / "gone").unlink()
        assert len(synced) == 2
        write("now")
        unsettled.settle()
        assert sorted(synced[4:-1]) == ["a", "b"]
        assert synced[-1] == tmp_path.name, "names after what they stand for"
        write("c", may_wait=True)
    assert synced[-2:] == ["c", tmp_path.name]


def test_files_of_a_run_that_starts_another_wait_on(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("protosphere.core.files.sync", lambda path: synced.append(path.name))
    with unsettled.wait():
        with replacing(tmp_path / "outer", may_wait=True) as temporary:
            temporary.write_text("")
        with unsettled.wait(), replacing(tmp_path / "inner", may_wait=True) as temporary:
            temporary.write_text("")
        assert synced == ["inner", tmp_path.name]
        unsettled.settle()
    assert synced[2:] == ["outer", tmp_path.name]


def test_a_disk_that_is_full_at_the_end_ends_the_run_in_a_sentence(run, monkeypatch):
    def full(path):
        if path.name == "received.safetensors":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("protosphere.core.files.sync", full)
    # in its only round the method has nothing to send
    with pytest.raises(SettingError, match=r"results folder .* cannot be written"):
        run({"rounds": 1}, clients=2)


def test_a_checkpoint_is_written_when_what_it_counts_on_is_on_the_disk(run, monkeypatch):
    """In one process; launch/test_grid.py has several."""
    events = []
    monkeypatch.setattr("protosphere.core.files.sync", lambda path: events.append(path.name))
    run({"rounds": 2}, clients=2)
    ends = [place for place, name in enumerate(events) if name.startswith(".checkpoint")]
    assert len(ends) == 3
    for number, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        states = [name for name in events[begin:end] if name == f"round-{number:06d}.safetensors"]
        assert len(states) == 2


def test_what_is_not_on_the_disk_does_not_take_the_place_of_what_was(tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    (place / "a").write_text("old")

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("protosphere.core.files.sync", full)
    with pytest.raises(OSError, match="No space left"), replacing(place / "a") as temporary:
        temporary.write_text("new")
    assert [path.name for path in place.iterdir()] == ["a"]
    assert (place / "a").read_text() == "old"


def test_the_same_tensors_and_words_are_the_same_bytes_whoever_writes_them(tmp_path):
    """safetensors has the words in another order each time."""
    tensors = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(1)}
    words = {f"word {n}": "é" * n for n in range(8)}
    paths = [tmp_path / f"{n}.safetensors" for n in range(12)]
    for path in paths:
        write_tensors(path, tensors, words)
    assert len({path.read_bytes() for path in paths}) == 1
    found, said = read_tensors(paths[0])
    assert said == words
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    # as others read it
    assert torch.equal(load_file(paths[0])["b"], tensors["b"])
