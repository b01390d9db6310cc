"""What is no file that could be read: a link to a device has no end, and a pipe waits for a writer."""

import multiprocessing
import os
import resource
import socket
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from protosphere.client_app.message_log import append
from protosphere.core import files as data_files
from protosphere.core.errors import DataError, SettingError
from protosphere.core.files import open_to_append, replacing
from protosphere.data.forms.folders import read_folder
from protosphere.data.partition.table import table_rows
from protosphere.record.folder import RunFolder, append_log
from protosphere.serving.labelled_data import _in_table
from tests.data.draws import decoded


def device(place):
    place.symlink_to("/dev/zero")


def pipe(place):
    os.mkfifo(place)


def listening(place):
    held = socket.socket(socket.AF_UNIX)
    # a socket's name may have 107 bytes
    here = os.getcwd()
    os.chdir(place.parent)
    held.bind(place.name)
    os.chdir(here)
    held.close()


def folder(place):
    place.mkdir()


@pytest.mark.parametrize("make", [device, pipe, listening, folder])
@pytest.mark.parametrize("name", ["train/cat/b.png", "train.csv", "train.parquet", "rows.npz"])
def test_only_regular_files_are_read(tmp_path, make, name):
    place = tmp_path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".png"):
        Image.new("L", (8, 8)).save(place.with_name("a.png"))
    make(place)
    named = place if name.endswith(".npz") else tmp_path
    if named is place and make in (folder, device):
        # refused by its name, or as what it leads to
        return
    with pytest.raises(DataError, match="no file with an end; take it away") as told:
        decoded(str(named), tmp_path / "cache")
    assert str(place) in str(told.value)


def test_a_link_to_a_file_is_one_and_what_is_missing_is_its_readers_to_tell(tmp_path):
    (tmp_path / "rows.txt").write_text("text,label\na,x\nb,y\n")
    (tmp_path / "train.csv").symlink_to(tmp_path / "rows.txt")
    assert read_folder(tmp_path).train == (tmp_path / "train.csv",)
    (tmp_path / "rows.txt").unlink()
    data_files.refuse_irregular(tmp_path / "train.csv")


def test_no_file_is_read_that_is_larger_than_any_could_be(tmp_path):
    with (tmp_path / "train.csv").open("wb") as file:
        # without a block on the disk
        file.truncate(data_files.LARGEST + 1)
    with pytest.raises(DataError, match=rf"train.csv' has {2**36 + 1} bytes, and of such a file at most {2**36} are"):
        read_folder(tmp_path)


def test_nor_by_a_path_in_a_table_or_as_a_partition_table(tmp_path):
    image = pa.array([{"bytes": None, "path": "/dev/zero"}] * 2, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    place = tmp_path / "data"
    place.mkdir()
    pq.write_table(pa.table({"image": image, "label": [0, 1]}), place / "train.parquet")
    said = multiprocessing.SimpleQueue()

    def decode():
        """In a process of its own, which else would take all memory."""
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, [pages * resource.getpagesize() + 2**33] * 2)
        try:
            decoded(str(place), tmp_path / "cache")
        except DataError as error:
            said.put(str(error))

    process = multiprocessing.get_context("fork").Process(target=decode)
    process.start()
    process.join(120)
    assert process.exitcode == 0
    assert "leads to, a device" in said.get()
    pipe(tmp_path / "who.csv")
    with pytest.raises(DataError, match=r"who\.csv' is, or leads to, a device, a pipe"):
        table_rows(np.zeros(4, np.int64), 2, np.random.default_rng(0), str(tmp_path / "who.csv"), ("a",))


def test_two_that_write_a_file_at_once_each_write_the_whole_of_it(tmp_path):
    """Processes of two containers that share a folder may have one number, as those of a test have."""
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("first")
        with replacing(tmp_path / "a") as other:
            other.write_text("second")
        assert (tmp_path / "a").read_text() == "second"
    assert (tmp_path / "a").read_text() == "first"
    assert not list(tmp_path.glob(".*"))


def test_nor_by_predict(tmp_path):
    pipe(tmp_path / "x.csv")
    with pytest.raises(DataError, match="no file with an end"):
        _in_table(None, tmp_path / "x.csv", "")


def test_a_parquet_file_whose_footer_alone_is_whole_is_said_to_be_damaged(tmp_path):
    place = tmp_path / "train.parquet"
    pq.write_table(pa.table({"x": np.arange(40.0), "y": np.arange(40.0), "label": np.arange(40) % 2}), place)
    place.write_bytes(place.read_bytes()[100:])
    with pytest.raises(DataError, match=r"cannot be read .*write it anew") as caught:
        decoded(str(tmp_path), tmp_path / "cache")
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "note", [b'{"info": {"features": {"text": {"_type": "__import__"}, "label": {"names": 7}}}}', b"[]", b"{", b"null"]
)
def test_a_note_in_a_parquet_file_that_is_none_of_datasets_does_not_count(tmp_path, note):
    table = pa.table({"text": ["note"] * 4, "label": [0, 1, 0, 1]}).replace_schema_metadata({b"huggingface": note})
    pq.write_table(table, tmp_path / "train.parquet")
    assert decoded(str(tmp_path), tmp_path / "cache").class_names == ("0", "1")


# --- appending ----------------------------------------------------------------------------------------------------


def test_an_append_adds_to_a_file_or_makes_one(tmp_path):
    for line in ("one\n", "ä\n"):
        with open_to_append(tmp_path / "log") as file:
            file.write(line)
    assert (tmp_path / "log").read_bytes() == "one\nä\n".encode()


def link(place):
    (place.parent / "mine").write_text("x")
    place.symlink_to(place.parent / "mine")


def dangling(place):
    place.symlink_to(place.parent / "mine")


@pytest.mark.parametrize("make", [link, dangling, pipe, folder])
def test_nothing_is_appended_through_a_link_or_to_what_is_no_file(tmp_path, make):
    make(tmp_path / "log")
    with pytest.raises(OSError, match=r"link to elsewhere|Is a directory|No such device"):
        open_to_append(tmp_path / "log")
    mine = tmp_path / "mine"
    assert not mine.exists() or mine.read_text() == "x"
    assert append_log(tmp_path / "log", "y") is None
    append(tmp_path, "log", {"round": 1}, "record of messages")
    assert not mine.exists() or mine.read_text() == "x"


def test_metrics_are_appended_to_no_link(tmp_path):
    run_folder = RunFolder(tmp_path)
    (tmp_path / "mine").write_text("x")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "mine")
    with pytest.raises(SettingError, match=r"metrics\.jsonl is a link to elsewhere; take it away"):
        run_folder.append({"round": 1})
    assert (tmp_path / "mine").read_text() == "x"
