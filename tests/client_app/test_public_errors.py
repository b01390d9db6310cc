"""What a client's messages say when something is wrong: nothing of a site's rows, labels, files, folders or columns."""

import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import Context, Message, MessageType, RecordDict

from protosphere.client_app import client as client_module
from protosphere.client_app import public_errors as told_module
from protosphere.client_app.app import app
from protosphere.client_app.public_errors import KINDS, simulated, told
from protosphere.core.errors import DataError, ModelError, ToldError
from protosphere.launch.grid import LocalGrid
from protosphere.strategies import known_settings
from protosphere.wire.codec import Codec
from protosphere.wire.messages import encode_instruction
from protosphere.wire.payloads import Instruction
from tests.client_app.broken_sites import AGE, BROKEN_SITES, HERE, TEXTS, WELL, Case, named, own

ROOT = Path(__file__).resolve().parents[2]
QUICK = known_settings() | {"feature-dim": 8, "models": "tiny_perceptron", "strategy": "fedproto", "device": "cpu"}
ASKED = ((MessageType.QUERY, 0), (MessageType.TRAIN, 1), (MessageType.TRAIN, 2), (MessageType.EVALUATE, 3))


def whole(item):
    """What Flower sends of a message."""
    return item.deflate() + b"".join(map(whole, (item.children or {}).values()))


def words_of(reply):
    """What a reply says to a person."""
    if reply.has_error():
        return reply.error.reason
    records = reply.content.config_records.values()
    return " | ".join(str(record[name]) for record in records for name in ("problem", "remark") if record.get(name))


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """ask(case): a site's replies to a query, two rounds of training and one of evaluation."""
    LocalGrid({}, [])
    root, home = tmp_path / "canary-site", tmp_path / "canary-home"
    root.mkdir()
    monkeypatch.setenv("PROTOSPHERE_HOME", str(home))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("protosphere.data.text_files._BLOCK_BYTES", 4096)
    monkeypatch.setattr(told_module, "_here", False)
    monkeypatch.syspath_prepend(str(root))

    def start(case, **more):
        node = {"partition-id": 1, "num-partitions": 4} | case.make(root) | more
        texts = {
            name: value.replace("{root}", str(root)) for name, value in case.settings.items() if type(value) is str
        }
        settings, replies = QUICK | case.settings | texts, []
        for kind, number in ASKED:
            asks = ("ensemble",) if "ensemble-every" in case.settings else ()
            asked = Instruction("a-run", number or 1, True, None, max(number - 1, 0), asks=asks)
            records = encode_instruction(asked, Codec(2, 8)) if number else RecordDict()
            replies.append(app(Message(records, 77, kind), Context(1, 77, node, RecordDict(), settings)))
            if case.spoil and number == 1:
                case.spoil(home / "clients" / "a-run" / "1")
        return replies

    yield start
    sys.modules.pop("own_models", None)
    client_module._states.clear()


# --- no message quotes a site ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def raised():
    """Where an error with two texts was made, by file and line, in all tests of this module."""
    found = set()
    with pytest.MonkeyPatch.context() as patch:
        for kind in (ToldError, ModelError):
            patch.setattr(kind, "__init__", noting(kind.__init__, found))
        yield found


def noting(init, found):
    def noted(self, *texts, **more):
        caller = sys._getframe(1)
        found.add((caller.f_code.co_filename, caller.f_lineno))
        init(self, *texts, **more)

    return noted


@pytest.mark.parametrize("case", BROKEN_SITES, ids=lambda case: case.told)
def test_what_is_broken_is_told_without_a_word_of_it(ask, raised, case, caplog):
    replies = ask(case)
    said = [words_of(reply) for reply in replies]
    assert any(case.told in words for words in said), said
    # the site reads what its message leaves out
    assert "canary" in caplog.text or case.told in caplog.text
    for reply in replies:
        sent = whole(reply).lower()
        assert b"canary" not in sent
        assert str(AGE).encode() not in sent


@pytest.mark.parametrize("case", WELL.values(), ids=WELL)
def test_what_is_well_tells_nothing_either(ask, case):
    replies = ask(case)
    assert [words_of(reply) for reply in replies] == [""] * 4
    assert all(b"canary" not in whole(reply).lower() for reply in replies)


# --- nor can any error to come -----------------------------------------------------------------------------------

FLOORS = ("data", "models", "client_app", "protosphere/core")
NAMES = {"ToldError", "DataError", "ModelError", "SettingError", "StoreError", "DivergenceError", "LedgerError"}
NOT_HERE = {
    "client_app/client.py:_measure_late": "a model that is spoilt, but not for the rows that were looked at",
    "client_app/store.py:_names": "a folder of another user's; test_store.py has it",
    "client_app/store.py:load_held": "what was sent once and is lost; test_protosphere.py has it",
    "client_app/features/encoder.py:encoded_of": "of the run's encoder; test_private.py has it",
    **dict.fromkeys(
        (
            "client_app/features/privacy_ledger.py:_make_unreadable_error",
            "client_app/features/privacy_ledger.py:_make_unwritable_error",
        ),
        "test_ledger.py has all of them",
    ),
    **dict.fromkeys(
        (f"models/encoder.py:{name}" for name in ("__init__", "_centre", "_load", "_maker", "check_encoder")),
        "of the run's encoder; tests/models/test_encoder.py has them",
    ),
    "models/encoder.py:public_encoder": "the same",
    **dict.fromkeys((f"models/hub_vision.py:{name}" for name in ("__init__", "_size")), "the same"),
    "data/decoded_cache.py:_read": "damaged pages of numbers; tests/core/test_files.py has them",
    "data/columns.py:refuse_many": "a site's tables have a list of classes",
    "data/decoded_cache.py:decode": "of an entry of the cache that a simulation on the site's own machine has made",
    "data/custom_partition.py:_make_error": "real sites deal nothing",
    "data/decoded_cache.py:kept": "a disk that loses what was written",
    "data/partition_table.py:_counts": "of a run's own partition table, which no site with data of its own reads",
    "data/partition_table.py:_read": "the same",
    "data/partition_table.py:table_rows": "the same",
    "data/text_files.py:_broken_csv": "whatever else Arrow may say of a CSV file",
    "protosphere/core/plugins.py:_content": "of a file that the site itself names; test_adding_a_method.py has it",
    "models/text.py:text_backbone": "the data floor refuses images before",
    "models/text.py:loading": "transformers is installed here",
}
# What stands in sentences that are told whole: settings of the run, numbers, and names that this program gives.
SETTINGS_AND_NUMBERS = {
    *("(1, feature_dim)", "(1, num_classes)", "FEWEST_WAYS", "MAX_PIXELS", "MIXED", "MOST_PIXELS", "WAY_SHOT"),
    *(
        "', '.join(CLASSES)",
        "', '.join(PARTITIONS)",
        "', '.join(SPLITS)",
        "', '.join(partitions)",
        "_list_rates(phases)",
    ),
    *("alpha", "among.size", "classes", "classes_per_client", "draws", "minimum", "epoch + 1", "labels.size", "least"),
    *("len(domain_names)", "math.ceil(num_classes / num_partitions)", "min_samples", "name", "noise", "num_classes"),
    *("num_clients", "num_partitions", "num_partitions * classes_per_client", "num_partitions * max(min_samples, 1)"),
    *("augment", "len(distinct)"),
    *("partition", "points", "present.size", "pull", "phases[-1].name", "remedy", "rows", "scheme", "self.device.type"),
    "self.image_size",
    *("asked_for", "delta", "most_epsilon", "other_unit", "so_far", "together", "settings.max_samples"),
    *("self.shape", "setting", "spec.clients", "spec.partition", "spec.shared_test_share", "spec.split", "test_share"),
    *("tuple(inputs.shape[1:])", "validation_share", "value", "ways"),
}


def errors():
    """(path, function, call, what may be told of it) of every error with two texts that these floors make."""
    for path in sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py")):
        for function in [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]:
            for call in [node for node in ast.walk(function) if isinstance(node, ast.Call)]:
                made, _, how = ast.unparse(call.func).partition(".")
                if made in NAMES and how in ("", "public"):
                    told = call.args[:1] if how else call.args[1:] + [word.value for word in call.keywords]
                    yield path, function.name, call, how, told


def test_every_error_of_which_something_is_told_was_among_the_broken_sites(raised):
    if not raised:
        pytest.skip("no broken site was asked in this process: run the whole file in one")
    unseen = [
        f"{path.relative_to(ROOT)}:{function}"
        for path, function, call, how, told in errors()
        if told and not how
        if not any(file == str(path) and call.lineno <= line <= call.end_lineno for file, line in raised)
    ]
    assert sorted(set(unseen)) == sorted(NOT_HERE)


def test_what_is_told_whole_quotes_settings_and_numbers_alone():
    found = [
        (f"{path.relative_to(ROOT)}:{call.lineno}", ast.unparse(field.value))
        for path, _, call, how, told in errors()
        for text in told
        if how
        for field in ast.walk(text)
        if isinstance(field, ast.FormattedValue)
    ]
    assert len(found) > 50
    assert [(place, field) for place, field in found if field not in SETTINGS_AND_NUMBERS] == []


@pytest.mark.parametrize("kind", KINDS)
def test_of_an_error_that_nobody_has_thought_about_its_kind_is_told(monkeypatch, kind, caplog):
    monkeypatch.setattr(told_module, "_here", False)
    assert told(kind("canary"), {}) == f"{KINDS[kind]}; the log of its site says more"
    assert told(type("New", (kind,), {})("canary"), {}) == f"{KINDS[kind]}; the log of its site says more"
    assert [record.getMessage() for record in caplog.records] == ["canary"] * 2


def test_of_a_defect_its_type_is_told(monkeypatch, caplog, capsys):
    monkeypatch.setattr(told_module, "_here", False)
    words = told(OSError(13, "Permission denied", "/canary"), {})
    assert words == "an error of the program (PermissionError); the log of its site says more"
    assert "/canary" in caplog.text
    assert "PermissionError: [Errno 13]" in capsys.readouterr().err


# --- whose data they are -----------------------------------------------------------------------------------------

OWN = ({"data-path": "/a"}, {"shared-test-path": "/a"}, {"label-column": "a"}, {"model": "hf:~/a?trainable=2"})


@pytest.mark.parametrize("node", [{}, {"model": "tiny_cnn", "device": "cpu", "domain": "a"}, {"model": "hf:a/b"}, *OWN])
def test_a_simulation_reads_whole_sentences_but_never_of_a_site_s_own_files(monkeypatch, node):
    error = DataError("canary.", "told")
    told_words = "told; the log of its site says more"
    monkeypatch.setattr(told_module, "_here", False)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    assert (simulated(), told(error, node)) == (False, told_words)
    monkeypatch.delitem(sys.modules, "ray")
    assert (simulated(), told(error, node)) == (False, told_words)
    for patch in (
        lambda: monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True)),
        lambda: (monkeypatch.delitem(sys.modules, "ray"), LocalGrid({}, [])),
    ):
        patch()
        assert (simulated(), told(error, node)) == (True, told_words if node in OWN else "canary.")


def test_the_same_broken_folder_is_the_users_own_in_a_simulation_and_a_site_s_with_a_data_path(ask, monkeypatch):
    monkeypatch.setattr(told_module, "_here", True)
    site = Case("its data are a table without a classes.txt", own(TEXTS[0], classes=""))
    assert all(site.told in words_of(reply) and b"canary" not in whole(reply) for reply in ask(site))
    replies = ask(Case("", named(TEXTS[0]), HERE))
    assert all("canary-data' holds texts, but a client's model takes images" in words_of(reply) for reply in replies)


def test_what_a_run_packs_into_one_setting_takes_no_shared_ones_place(ask, tmp_path):
    """`privacy`, by which errors quote no row, and a path, which no run has of this site."""
    broken = own(("train-canary.csv", "text,label\na,no\nb,no,more\n"))
    packed = {"own-settings": json.dumps({"privacy": "release", "privacy-encoder": "random"})}
    said = {words_of(reply) for reply in ask(Case("", broken, packed))}
    assert len(said) == 1
    assert said.pop().startswith("client 1: setting `own-settings` holds `privacy`, which is no setting of a method")
    file = tmp_path / "somebody.py"
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom protosphere.strategies.local import METHOD\n")
    for depth in (1, 2):
        packed = {"strategy": str(file)}
        for _ in range(depth):
            packed = {"own-settings": json.dumps(packed)}
        assert "" not in {words_of(reply) for reply in ask(Case("", broken, packed))}
    assert not (tmp_path / "ran").exists()
