"""A site's own page, from its store alone; and the record of messages that it is made of."""

import json
import os

import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from typer.testing import CliRunner

from protosphere.cli.main import app as command
from protosphere.client_app.app import app
from protosphere.launch.grid import LocalGrid
from protosphere.strategies import known_settings
from protosphere.wire.messages import encode_instruction
from protosphere.wire.payloads import Instruction
from protosphere.wire.sizes import bytes_by_part
from tests.reports.pages import EVIL, Outline

QUICK = known_settings() | {"max-samples": 400, "feature-dim": 8, "models": "tiny_perceptron", "device": "cpu"}
QUICK["strategy"] = "protonorm"


@pytest.fixture
def site(home, monkeypatch):
    """site(settings, **node config) -> the client's folder, after two rounds, and replies."""

    def start(settings=None, **node):
        LocalGrid({}, [])
        monkeypatch.setattr("protosphere.client_app.site._here", False)
        node = {"partition-id": 1, "num-partitions": 4} | node
        replies = []
        kinds = (MessageType.TRAIN, MessageType.EVALUATE)
        for number, kind in ((number, kind) for number in (1, 2) for kind in kinds):
            trained = number - (kind == MessageType.TRAIN)
            instruction = Instruction("a-run", number, None, trained, last=number == 2)
            records = encode_instruction(instruction)
            message = Message(records, 77, kind)
            replies.append(
                (records, app(message, Context(1, 77, node, RecordDict(), QUICK | (settings or {}))).content)
            )
        return home / "clients" / "a-run" / "1", replies

    return start


def write(folder, target):
    return CliRunner().invoke(command, ["report", "--state", str(folder), "--html", str(target)])


def lines(folder):
    return [json.loads(line) for line in (folder / "messages.jsonl").read_text().splitlines()]


def test_sizes_are_those_of_what_crossed_and_figures_those_that_were_told(site):
    folder, replies = site({"strategy": "fedavg"})
    found = lines(folder)
    assert [(line["round"], line["trains"]) for line in found] == [(1, True), (1, False), (2, True), (2, False)]
    for line, (received, sent) in zip(found, replies, strict=True):
        for way, records in (("received", received), ("sent", sent)):
            assert line[way] == bytes_by_part(records)
        if not line["trains"]:
            assert line["rows"] == sent["metrics"]["evaluation.rows"]
            assert line["correct"]["classifier"] == sent["metrics"]["correct.classifier"]
    assert {"head", "training", "evaluation"} <= set().union(*(line["sent"] for line in found))
    assert "head" not in found[-1]["sent"]


def test_the_page_says_what_left_and_how_the_model_fares(site, tmp_path):
    folder, _ = site({"strategy": "fedproto"})
    result = write(folder, tmp_path / "site.html")
    assert (result.exit_code, result.stderr) == (0, "")
    page = Outline((tmp_path / "site.html").read_text("utf-8"))
    text = " ".join(page.text.split())
    last = lines(folder)[-1]
    assert f"{100 * last['correct']['local-prototypes'][0] / last['rows'][0]:.1f} %" in text
    assert "client 1 of run a-run" in text
    assert "prototypes 2 " in text
    assert len(page.named("img")) == 1
    assert page.named("script") == []
    assert '"fedproto"' in text
    once = (tmp_path / "site.html").read_bytes()
    write(folder, tmp_path / "site.html")
    assert (tmp_path / "site.html").read_bytes() == once


def test_under_privacy_the_curve_is_of_what_stays_at_home(site, tmp_path):
    settings = {"strategy": "frame", "privacy": "release", "inference": "classifier"}
    folder, _ = site(settings)
    assert not any("correct" in line for line in lines(folder))
    assert write(folder, tmp_path / "site.html").exit_code == 0
    assert len(Outline((tmp_path / "site.html").read_text()).named("img")) == 1


def test_a_simulation_keeps_no_record_and_the_page_says_so(run, home, tmp_path):
    folder = home / "clients" / run({"rounds": 1}).name / "0"
    assert not (folder / "messages.jsonl").exists()
    assert write(folder, tmp_path / "site.html").exit_code == 0
    text = (tmp_path / "site.html").read_text()
    assert "No message is on record" in text
    assert "0.0 kB" not in text


def test_words_are_escaped_and_a_line_that_was_cut_is_none(site, tmp_path):
    folder, _ = site()
    with (folder / "messages.jsonl").open("a") as file:
        file.write(json.dumps({"round": 4, "sent": {EVIL: 1}, "received": {}, "problem": EVIL}) + '\n{"round": 5, "se')
    write(folder, tmp_path / "site.html")
    page = Outline((tmp_path / "site.html").read_text("utf-8"))
    assert page.named("script") == []
    assert EVIL in page.text


@pytest.mark.parametrize("name", ["client.json", "messages.jsonl", "figures.jsonl"])
@pytest.mark.parametrize("content", ["{}", "x\n", "[]\n", '{"round": "1"}\n', None])
def test_what_is_no_record_is_one_sentence(site, tmp_path, name, content):
    folder, _ = site()
    (folder / name).unlink(missing_ok=True)
    if content is None:
        # nobody writes into it: whoever reads it would wait
        os.mkfifo(folder / name)
    else:
        (folder / name).write_text(content)
    result = write(folder, tmp_path / "site.html")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert name in result.stderr
    assert not (tmp_path / "site.html").exists()


@pytest.mark.parametrize("damage", [lambda end: bytes(len(end)), lambda end: end[:-1] + b"\x0b"])
def test_a_damaged_end_is_no_line_that_a_crash_cut(site, tmp_path, damage):
    folder, _ = site()
    path = folder / "messages.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40] + damage(whole[-40:]))
    result = write(folder, tmp_path / "site.html")
    assert (result.exit_code, "messages.jsonl was cut, or is zeros at its end" in result.stderr) == (2, True)


def test_a_page_needs_a_state_and_a_place(site, tmp_path):
    folder, _ = site()
    for arguments in (["latest", "--html", "x.html"], ["--state", str(folder), "--html", str(tmp_path / "no" / "x")]):
        result = CliRunner().invoke(command, ["report", *arguments])
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
