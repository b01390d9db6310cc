"""What a site's messages say when something is wrong: the one sentence of the error's class, and nothing of the site's
rows, labels, files, folders or columns."""

import shutil
import sys

import pytest
from flwr.app import Context, Message, MessageType, RecordDict

from protosphere.client_app import client as client_module
from protosphere.client_app.app import app
from protosphere.client_app.evaluate import DivergenceError
from protosphere.client_app.privacy_ledger import LedgerError
from protosphere.client_app.public_errors import PRIVATE, SITE_LOG, public_words
from protosphere.client_app.store import StoreError
from protosphere.core.errors import (
    DataError,
    LabelsError,
    ModelError,
    PrivacyError,
    SettingError,
)
from protosphere.launch.grid import LocalGrid
from protosphere.strategies import known_settings
from protosphere.wire.messages import encode_instruction
from protosphere.wire.payloads import Instruction
from tests.client_app.sites import folder, own

QUICK = known_settings() | {"feature-dim": 8, "models": "tiny_perceptron", "strategy": "fedproto", "device": "cpu"}
RELEASE = {"privacy": "release", "encoder": "handcrafted", "image-size": 8}
IMAGES = folder()
LIMIT = {"privacy-epsilon": 0.5, "privacy-delta": 1e-5}


def whole(item):
    """What Flower sends of a message."""
    return item.deflate() + b"".join(map(whole, (item.children or {}).values()))


def words_of(reply):
    """What a reply says to a person."""
    if reply.has_error():
        return reply.error.reason
    records = reply.content.config_records.values()
    return " | ".join(str(record["problem"]) for record in records if record.get("problem"))


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """ask(site, settings, spoil): its replies to a query, two rounds of training and an evaluation, over a deployment;
    `spoil` is given the client's store after the first round."""
    LocalGrid({}, [])
    root, home = tmp_path / "canary-site", tmp_path / "canary-home"
    root.mkdir()
    monkeypatch.setenv("PROTOSPHERE_HOME", str(home))
    monkeypatch.setattr("protosphere.client_app.site._here", False)
    monkeypatch.syspath_prepend(str(root))

    def start(site, settings=None, spoil=None):
        node = {"partition-id": 1, "num-partitions": 4} | site(root)
        replies = []
        asked = ((MessageType.QUERY, 0), (MessageType.TRAIN, 1), (MessageType.TRAIN, 2), (MessageType.EVALUATE, 2))
        for kind, number in asked:
            instruction = Instruction("a-run", number or 1, None, max(number - 1, 0))
            records = encode_instruction(instruction) if number else RecordDict()
            context = Context(1, 77, node, RecordDict(), QUICK | (settings or {}))
            replies.append(app(Message(records, 77, kind), context))
            if spoil and number == 1:
                spoil(home / "clients" / "a-run" / "1")
        return replies

    yield start
    sys.modules.pop("own_models", None)
    client_module._states.clear()


def damage(store):
    max(store.glob("round-*.safetensors")).write_bytes(b"canary")
    client_module._states.clear()


BROKEN = [
    (own(("train-canary.csv", "text,label\ncanary,no,more\n" * 8)), {}, None, DataError.public),
    (own(("train-canary.csv", "text,label\ncanary,no\ncanary,canary\n" * 8)), {}, None, LabelsError.public),
    (own(*IMAGES, model="own_models:raising"), {}, None, ModelError.public),
    (own(*IMAGES, device="canary"), {}, None, SettingError.public),
    (own(*IMAGES, privacy="required"), {}, None, PrivacyError.public),
    (own(*IMAGES, **LIMIT), RELEASE, None, LedgerError.public),
    (own(*IMAGES), {"learning-rate": 1e30, "batch-size": 4}, None, DivergenceError.public),
    (own(*IMAGES), {}, damage, StoreError.public),
    (own(*IMAGES), {}, shutil.rmtree, StoreError.public),
]


@pytest.mark.parametrize(("site", "settings", "spoil", "sentence"), BROKEN)
def test_of_what_is_broken_at_a_site_one_fixed_sentence_crosses(ask, site, settings, spoil, sentence, caplog):
    replies = ask(site, settings, spoil)
    said = [words_of(reply) for reply in replies]
    assert any(words.endswith(sentence + SITE_LOG) for words in said), said
    # the site reads what its message leaves out
    assert caplog.text
    for reply in replies:
        assert b"canary" not in whole(reply).lower()


@pytest.mark.parametrize("site", [own(*IMAGES), own(*IMAGES, model="own_models:network")])
def test_what_is_well_tells_nothing(ask, site):
    replies = ask(site)
    assert [words_of(reply) for reply in replies] == [""] * 4
    assert all(b"canary" not in whole(reply).lower() for reply in replies)


def test_under_privacy_rows_decide_on_no_word(ask):
    """One row's label is no class, or one row is no image, or all is well but the training: the same is said."""
    limit = {"privacy-epsilon": 9.0, "privacy-delta": 1e-5}
    unlisted = own(*folder(("canary/1.png", IMAGES[0][1])), **limit)
    no_image = own(*folder(("no/other.png", "canary")), **limit)
    for site in (unlisted, no_image):
        said = {words_of(reply).partition(": ")[2] for reply in ask(site, RELEASE)}
        assert said <= {"", PRIVATE + SITE_LOG}
    assert said == {PRIVATE + SITE_LOG}


@pytest.mark.parametrize("node", [{}, {"data-path": "/a"}, {"strategy-file": "/a"}, {"model": "hf:~/a"}])
def test_a_simulation_reads_the_full_text_but_never_of_a_site_s_own_files(monkeypatch, node):
    monkeypatch.setattr("protosphere.client_app.site._here", True)
    expected = DataError.public + SITE_LOG if node else "canary.png is no image."
    assert public_words(DataError("canary.png is no image."), node) == expected
