"""Under `privacy` no row of a client decides on a byte that it sends, but by its release; and the release itself."""

import json
import logging
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict

from protosphere.client_app import client as client_module
from protosphere.client_app import private_client as privacy
from protosphere.client_app.app import new_client
from protosphere.client_app.evaluate import DivergenceError
from protosphere.client_app.privacy_ledger import Ledger
from protosphere.client_app.private_client import PrivateClient
from protosphere.client_app.store import Store, StoreError
from protosphere.core.errors import SettingError, UnsizedError
from protosphere.core.files import read_lines
from protosphere.launch.grid import LocalGrid, run_in_process
from protosphere.prototypes.accounting import epsilon_of
from protosphere.prototypes.release import HALF, B, Shape, class_sums
from protosphere.record.folder import RunFolder
from protosphere.server_app.roster import RosterError
from protosphere.strategies import METHODS, load_method, read_settings
from tests.client_app.sites import folder, images_of, picture, put, table
from tests.payloads import lone
from tests.strategies.watched import without_time

PRIVATE = {"privacy": "release", "encoder": "random"}
SMALL = PRIVATE | {
    "models": "tiny_perceptron",
    "feature-dim": 6,
    "image-size": 8,
    "rounds": 3,
    "device": "cpu",
    "max-failed-rounds": 10,
}
OWN = {
    "gfpl": {"gfpl.components": 1, "gfpl.first-exchange": 1, "gfpl.exchange-every": 1},
    "tinyproto-fp": {"tinyproto.mu": 0.01},
    "tinyproto-ft": {"tinyproto.mu": 0.01, "fedtgp.server-epochs": 2},
    "fedtgp": {"fedtgp.server-epochs": 2},
}
RELEASES = [name for name in METHODS if load_method(name).releases is not None]
QUIET = ["local", "frame"]
SITE = {"privacy-epsilon": 5.0, "privacy-delta": 1e-5}
# tables that differ in all that a table can: sizes, classes, pictures, rows that nobody can read, or no other
FULL, FEW = folder(rows=9), [file for file in folder(rows=5, first=300) if file[0].startswith("no")]
BROKEN = [("no/broken.png", b"no picture"), ("yes/short.png", FULL[0][1][:40])]
CLASSES = ("classes.txt", "no\nyes\n")


@pytest.fixture(autouse=True)
def forgetful(monkeypatch, tmp_path, decoded_cache):
    """A home of its own for each run."""
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path / "home"))


def site(root, *files):
    put(root, *files, CLASSES)
    return {"data-path": str(root)} | SITE


class Heard(LocalGrid):
    """Two sites; `sent` are all replies of the first, as their bytes."""

    def __init__(self, nodes, sent, config, given, workers):
        told_nodes = [node | more for node, more in zip(given, nodes, strict=True)]
        super().__init__(config, told_nodes, workers)
        self.sent = sent

    def _answer(self, message):
        reply = super()._answer(message)
        if self.nodes[message.metadata.dst_node_id]["partition-id"] == 0:
            kind = message.metadata.message_type
            self.sent.append((kind, content(reply) if reply.has_content() else reply.error.reason))
        return reply


def content(reply):
    return {
        name: {key: (a.dtype, tuple(a.shape), bytes(a.data)) for key, a in record.items()}
        if isinstance(record, ArrayRecord)
        else dict(record)
        for name, record in reply.content.items()
    }


def run(nodes, settings, **more):
    """The folder of a run of these sites, and what the first of them sent."""
    sent = []
    client_module._states.clear()
    config = SMALL | settings
    told_folder = run_in_process(
        config, clients=len(nodes), show=lambda line: None, grid_of=partial(Heard, nodes, sent), **more
    )
    return told_folder, sent


def constant(self, asked, sums):
    """In place of a release: the same whatever the table is; it still looks at it."""
    sums()
    whole = torch.full((asked.shape.num_classes, asked.shape.width), 30 * B, dtype=torch.int64)
    whole[:, -1] = 40 * HALF
    return whole


# --- non-interference ---------------------------------------------------------------------------------------


def one_of_each_upload():
    """Of methods that make the same message of a release, the first: of a method nothing else has a say in what
    leaves."""
    first = {}
    for name in [*RELEASES, *QUIET]:
        first.setdefault(load_method(name).objective.upload, name)
    return list(first.values())


@pytest.mark.parametrize("name", one_of_each_upload())
def test_all_tables_send_the_same_bytes(monkeypatch, tmp_path, name):
    monkeypatch.setattr(Ledger, "release", constant)
    sent = []
    # what no rows at all send is no matter of the method
    tables = (FULL, [*FEW, *BROKEN], BROKEN) if name == "fedproto" else (FULL, [*FEW, *BROKEN])
    for number, files in enumerate(tables):
        monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path / f"home-{number}"))
        sites = [site(tmp_path / f"table-{number}", *files), site(tmp_path / "other", *FULL)]
        sent.append(run(sites, {"strategy": name, "rounds": 2} | OWN.get(name, {}))[1])
    assert all(each == sent[0] for each in sent)
    assert [kind for kind, _ in sent[0]] == ["query", "evaluate", "train", "evaluate", "train", "evaluate"]
    assert not any(isinstance(each, str) or each["config"].get("problem") for _, each in sent[0])
    uploads = ["arrays" in each for kind, each in sent[0] if kind == "train"]
    exchange = read_settings({"strategy": name, **SMALL, **OWN.get(name, {})}).exchange
    assert any(uploads) == bool(exchange.up)


def raising(error):
    def broken(*args, **kwargs):
        raise error

    return broken


FAULTS = {
    "training diverges": (client_module, "train", DivergenceError("the loss of row 3 is not finite")),
    "training is a defect": (client_module, "train", RuntimeError("row 3")),
    "the state is lost": (Store, "newest_before", StoreError("round 2")),
    "evaluation fails": (client_module, "evaluate", ValueError("row 3")),
    "features are not finite": (client_module, "measure", DivergenceError("row 3")),
    "the disk is full": (privacy.PrivateClient, "_note", OSError(28, "full")),
}


def test_what_goes_wrong_with_rows_changes_no_byte(monkeypatch, tmp_path):
    monkeypatch.setattr(Ledger, "release", constant)
    sites = [site(tmp_path / name, *FULL) for name in ("one", "other")]
    settings = {"strategy": "protonorm", "rounds": 2}
    whole = run(sites, settings)[1]
    for number, (fault, (owner, name, error)) in enumerate(FAULTS.items()):
        with monkeypatch.context() as patch:
            patch.setenv("PROTOSPHERE_HOME", str(tmp_path / f"again-{number}"))
            patch.setattr(owner, name, raising(error))
            assert run(sites, settings)[1] == whole, fault


@pytest.mark.parametrize("name", [name for name in METHODS if name not in [*RELEASES, *QUIET]])
def test_what_a_trained_model_has_made_is_refused(name):
    with pytest.raises(SettingError, match="`privacy`"):
        read_settings({"strategy": name, **PRIVATE})


# --- the release ---------------------------------------------------------------------------------------------


def test_a_release_is_of_the_training_rows_and_sent_in_every_round_and_run(monkeypatch, tmp_path):
    drawn = iter(range(10**6))
    monkeypatch.setattr("protosphere.client_app.privacy_ledger.draw", lambda variance: 0 if next(drawn) else 1)
    sites = [site(tmp_path / name, *FULL) for name in ("one", "other")]
    _, first = run(sites, {"strategy": "fedproto"})
    ledger = privacy.site_ledger()
    assert len(ledger.entries()) == 2  # of two clients of one home
    uploads = [each["arrays"] for kind, each in first if kind == "train"]
    assert uploads[0] == uploads[1] == uploads[2]
    # another run, and of another method whose uploads are the same
    for more in ({"strategy": "fedproto", "seed": 1}, {"strategy": "protonorm", "seed": 2}):
        _, again = run(sites, more)
        assert [each["arrays"] for kind, each in again if kind == "train"] == uploads
    assert len(ledger.entries()) == 2
    line = ledger.entries()[0]
    assert epsilon_of(line["rho"], line["delta"]) <= 3
    # what it is made of, apart from the noise of 1 in one value
    client = one_client(sites[0], {"strategy": "fedproto"})
    train, encoder = client.data.train, client.encoded.encoder
    expected = class_sums(encoder(client.data.transform(train.inputs)), train.labels, Shape(2, 6))
    found = ledger.release(client._make_request(""), pytest.fail)
    assert int((found - expected).abs().sum()) <= 1
    assert 0 < len(train) < 18


def test_a_group_counts_once_however_many_rows_it_has(tmp_path):
    # a site splits its patients by a key of its own: of few, all may fall to training
    images, patients = images_of(120), [f"p{row // 3}" for row in range(120)]
    rows = table({"image": images, "label": [row % 2 for row in range(120)], "patient": patients})
    node = site(tmp_path / "one", ("train.parquet", rows)) | {"group-column": "patient"}
    client = one_client(node, {"strategy": "fedproto", "privacy-unit": "group"})
    train = client.data.train
    counts = client._compute_sums()[:, -1] / HALF
    # a patient of three rows has two of one class and one of the other
    assert float(counts.sum()) == pytest.approx(len(train) / 3, rel=1e-3)
    assert len(train) % 3 == 0
    assert 0 < len(train) < 120
    with pytest.raises(SettingError, match="group"):
        one_client(node, {"strategy": "fedproto", "privacy-unit": "row"})


def one_client(node, settings, partition=0, clients=2):
    config = SMALL | settings
    node = {"partition-id": partition, "num-partitions": clients} | node
    return new_client(Context(1, 2, node, RecordDict(), config))


def test_figures_stay_with_the_client_and_hold_the_rule_encoder(monkeypatch, tmp_path):
    monkeypatch.setattr(Ledger, "release", constant)
    sites = [site(tmp_path / name, *FULL) for name in ("one", "other")]
    folder_of_run, _ = run(sites, {"strategy": "fedproto"})
    lines = RunFolder(folder_of_run).lines()
    assert all("evaluation" not in line and not line["clients"] and not line["problems"] for line in lines)
    kept = privacy.home() / "clients" / folder_of_run.name / "0" / privacy.FIGURES
    figures = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line["round"] for line in figures] == [0, 1, 1, 2, 2, 3, 3]
    assert [line["trains"] for line in figures] == [False] + [True, False] * 3
    assert {"classifier", "local-prototypes"} <= figures[0]["correct"].keys()
    assert "encoder" not in figures[0]["correct"]
    assert "encoder" in figures[2]["correct"]


def test_a_run_that_is_resumed_goes_on_with_its_means(monkeypatch, tmp_path):
    monkeypatch.setattr(Ledger, "release", constant)
    sites = [site(tmp_path / each, *FULL) for each in ("one", "other")]
    settings = {"strategy": "fedproto"}
    whole, _ = run(sites, settings)
    short, _ = run(sites, settings | {"rounds": 2})
    resumed, _ = run(sites, settings | {"resume": str(short)})
    lines = without_time(resumed)
    # where the shorter run ended it evaluated for the last time
    assert lines[2].pop("last")
    assert lines == without_time(whole)


# --- a site's own word ------------------------------------------------------------------------------------------

REFUSED = [
    ({}, {"privacy": "required"}, {"privacy": "none", "encoder": ""}, "requires privacy"),
    ({}, {"privacy": "yes"}, {}, "privacy"),
    ({"privacy-epsilon": "", "privacy-delta": ""}, {}, {}, "states no limit"),
    ({}, {"privacy-epsilon": -1.0}, {}, "privacy-epsilon"),
    ({}, {"privacy-delta": "much"}, {}, "privacy-delta"),
    ({}, {}, {"privacy-epsilon": 5.1}, "allows"),
    ({}, {}, {"privacy-unit": "group"}, "group-column"),
    ({}, {}, {"privacy-measure": True}, "privacy-measure"),
    ({}, {}, {"image-size": 0}, "image-size"),
    ({}, {}, {"max-samples": 9}, "max-samples"),
    ({}, {}, {"encoder": "no_module:nothing"}, "encoder"),
]


@pytest.mark.parametrize(("less", "more", "settings", "word"), REFUSED)
def test_a_run_is_refused_before_anything_is_released(tmp_path, less, more, settings, word, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("protosphere"), "handlers", [caplog.handler])
    sites = [site(tmp_path / name, *FULL) | less | more for name in ("one", "other")]
    with pytest.raises((RosterError, SettingError)) as refused:
        run(sites, {"strategy": "fedproto"} | settings)
    # the site's own log says why
    assert word in caplog.text + str(refused.value)
    assert privacy.site_ledger().entries() == []


def test_a_site_without_a_limit_releases_nothing_of_what_a_run_deals_either(monkeypatch, tmp_path):
    monkeypatch.setattr("protosphere.client_app.site._here", False)
    put(tmp_path / "scans", *FULL, CLASSES)
    dealt = {"strategy": "fedproto", "dataset": str(tmp_path / "scans"), "min-samples": 1}
    with pytest.raises(SettingError, match="states no limit"):
        one_client({"privacy": "required"}, dealt)
    client = one_client({"privacy": "required"} | SITE, dealt)
    assert client.ledger("").limit.epsilon == 5


def test_a_run_without_a_size_of_images_learns_none_of_a_site_s(tmp_path):
    other = [*FULL, ("no/other.png", picture(0, 9))]
    said = set()
    for number, files in enumerate((FULL, other, BROKEN, folder(size=30))):
        with pytest.raises(RosterError) as raised:
            run(
                [site(tmp_path / f"{number}-{each}", *files) for each in range(2)],
                {"image-size": 0, "strategy": "protonorm"},
            )
        said |= {*re.findall(r'it says: "(.*?)"', str(raised.value))}
    assert len(said) == 1
    assert UnsizedError.public in said.pop()


def test_what_a_server_asks_for_beside_the_release_it_does_not_get(monkeypatch, tmp_path):
    """An answer for the ensemble, an evaluation, a state that is long gone."""
    monkeypatch.setattr(Ledger, "release", constant)
    client = one_client(site(tmp_path / "one", *FULL), {"strategy": "fedproto"})
    plain = privacy.Instruction("a-run", 1)
    expected = client.train(plain)
    asked = [
        replace(plain, last=True),
        replace(plain, round=9, last_trained_round=8),
        replace(plain, run="another-run"),
        replace(plain, constants={"mu": 0.5}),
    ]
    for instruction in asked:
        assert same(client.train(instruction), replace(expected, round=instruction.round))
        assert client.evaluate(instruction) == privacy.Report(0, instruction.round)


def same(one, other):
    assert torch.equal(lone(one.payload).vectors, lone(other.payload).vectors)
    return replace(one, payload=None) == replace(other, payload=None)


def test_half_a_line_that_a_kill_left_spoils_no_other(tmp_path):
    site = SimpleNamespace(store=lambda run: SimpleNamespace(folder=tmp_path))
    for number in range(3):
        PrivateClient._append(site, "run", {"round": number})
        with (tmp_path / "figures.jsonl").open("a") as file:
            file.write('{"round": 9, "rows": [3')
    assert [line["round"] for line in read_lines(tmp_path / "figures.jsonl")] == [0, 1, 2]
