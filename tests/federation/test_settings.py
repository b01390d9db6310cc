"""The shared settings: defaults, types, ranges, contradictions, paths; each refusal as one sentence for a person."""

import json
import math
import re
import tomllib
from pathlib import Path

import pytest

from federation.settings import (
    MAY_DIFFER_ON_RESUME,
    SettingError,
    Settings,
    check,
    home,
    is_path,
    is_run_name,
    nearest,
    plain_name,
    refuse_relative_paths,
    refuse_unknown,
    shown,
)
from strategies import known_settings

ROOT = Path(__file__).resolve().parents[2]

# setting -> (values that are just allowed, values that are just not)
TINY = math.ulp(0.0)
RANGES = {
    "rounds": ([1, 2**31 - 1], [0, -1, 2**31]),
    "seed": ([0, 2**63 - 1], [-1, 2**63]),
    "clients": ([0], [-1, 2**31]),
    "alpha": ([TINY, 1e300], [0.0, -TINY]),
    "classes-per-client": ([1], [0]),
    "ways": ([2, 2**31 - 1], [1, 0, 2**31]),
    "ways-spread": ([0], [-1, 2**31]),
    "shots": ([0, 2**31 - 1], [-1, 2**31]),
    "image-size": ([0, 4096], [-1, 4097]),
    "shots-spread": ([0], [-1]),
    "min-samples": ([1], [0]),
    "max-samples": ([0], [-1]),
    "test-share": ([TINY, 0.89], [0.0, 1.0]),
    "validation-share": ([0.0, 0.7], [-TINY, 1.0]),
    "spiral-noise": ([0.0], [-TINY]),
    "spiral-points": ([1], [0]),
    "local-epochs": ([1], [0]),
    "batch-size": ([2, 2**31 - 1], [1, 0, 2**31]),
    "learning-rate": ([TINY], [0.0, -0.1]),
    "momentum": ([0.0, math.nextafter(1, 0)], [-TINY, 1.0]),
    "weight-decay": ([0.0], [-TINY]),
    "feature-dim": ([2], [1, 0]),
    "sparsity-dim": ([0, 1, 64], [-1, 2**31]),
    "prototype-weight": ([0.0], [-TINY]),
    "fraction-train": ([TINY, 1.0], [0.0, math.nextafter(1, 2)]),
    "min-train-clients": ([1], [0]),
    "evaluate-every": ([1], [0]),
    "ensemble-every": ([0, 1, 2**31 - 1], [-1, 2**31]),
    "shared-test-share": ([TINY, math.nextafter(1, 0)], [0.0, 1.0]),
    "max-tokens": ([1, 2**31 - 1], [0, 2**31]),
    "start-timeout": ([TINY], [0.0]),
    "query-timeout": ([TINY], [0.0]),
    "round-timeout": ([TINY], [0.0]),
    "min-replies": ([0], [-1]),
    "max-failed-rounds": ([1], [0]),
    "max-norm-ratio": ([math.nextafter(1, 2), 1e300], [1.0, 0.0]),
    "max-prototype-norm": ([TINY, 1e18], [0.0, 1.1e18, 1e300]),
    "threads": ([1], [0, 2**31]),
    "server-threads": ([1], [0]),
}
CHOICES = {
    "partition": ("iid", "dirichlet", "pathological", "way-shot", "mixed", "table"),
    "classes": ("same", "union"),
    "split": ("pooled", "official"),
    "optimizer-state": ("fresh", "persistent"),
    "feature-activation": ("linear", "relu"),
    "prototype-loss": ("mse", "l2", "l2-squared"),
    "share-buffers": ("average", "own"),
    "wire-dtype": ("float32", "float16", "bfloat16", "int8"),
    "evaluate-clients": ("all", "sampled"),
    "precision": ("float32", "bf16"),
    "device": ("auto", "cpu", "cuda", "cuda:0", "cuda:13"),
}
# checked elsewhere, or anything
COLUMNS = {"text-column", "label-column", "group-column"}
OPEN = {
    "own-settings",
    "strategy",
    "dataset",
    "models",
    "inference",
    "results-dir",
    "resume",
    "shared-test-path",
    "partition-table",
} | COLUMNS
FLAGS = {"shared-init", "disclose-class-counts", "tensorboard", "wandb"}
EITHER = {"mlflow"}  # a flag or a place


def refusal(values):
    """The sentence with which these settings are refused."""
    with pytest.raises(SettingError) as caught:
        check(Settings, values)
    return sentence(caught)


def sentence(caught):
    """The text of the error; fails when it is not exactly one sentence on one line."""
    text = str(caught.value)
    assert text.endswith(".")
    assert text.isprintable()
    assert not re.search(r"[.!?] +[A-Z]", text)
    return text


def defaults():
    return {name.replace("_", "-"): value for name, value in Settings().model_dump().items()}


def flat(table, prefix=""):
    """TOML tables as Flower flattens them."""
    settings = {}
    for name, value in table.items():
        settings |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return settings


def test_pyproject_holds_every_default_with_its_type():
    config = flat(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    typed = {name: (type(value), value) for name, value in config.items()}
    assert typed == {name: (type(value), value) for name, value in known_settings().items()}


def test_the_tables_of_this_test_cover_every_setting():
    assert RANGES.keys() | CHOICES.keys() | OPEN | FLAGS | EITHER == defaults().keys()


@pytest.mark.parametrize("name", sorted(RANGES))
def test_ranges(name):
    allowed, refused = RANGES[name]
    for value in allowed:
        assert getattr(check(Settings, {name: value}), name.replace("-", "_")) == value
    for value in refused:
        text = refusal({name: value})
        assert f"`{name}` is {json.dumps(value)}, but it should be " in text


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_choices(name):
    for value in CHOICES[name]:
        needed = {"way-shot": {"split": "official"}, "table": {"partition-table": "/t.csv"}}.get(value, {})
        assert getattr(check(Settings, {name: value} | needed), name.replace("-", "_")) == value
    for value in ("", "x", CHOICES[name][0].upper(), CHOICES[name][0] + " ", CHOICES[name][0] + "\n"):
        text = refusal({name: value})
        assert f"`{name}` is " in text
        assert all(f"'{choice}'" in text for choice in CHOICES[name] if ":" not in choice)


@pytest.mark.parametrize("device", ["cuda:", "cuda:x", "cuda:-1", "cuda:٣", "cpu:0", "mps"])
def test_odd_devices(device):
    assert "'cuda:<number>'" in refusal({"device": device})


@pytest.mark.parametrize("name", ["dataset", "models"])
def test_what_must_not_be_empty(name):
    assert f'`{name}` is "", but it should not be empty.' in refusal({name: ""})
    assert f"`{name}`" in refusal({name: "  "})


@pytest.mark.parametrize("name", sorted(name for name, value in defaults().items() if type(value) is float))
def test_an_int_is_taken_for_a_float_and_nothing_else_is(name):
    integer = 0 if name in ("validation-share", "momentum") else 2 if name == "max-norm-ratio" else 1
    if name not in ("test-share", "shared-test-share"):  # no integer lies within their range
        value = getattr(check(Settings, {name: integer}), name.replace("-", "_"))
        assert (type(value), value) == (float, integer)
    for wrong in (True, "1", "0.5", None, [0.5]):
        assert f"`{name}` is {shown(wrong)}, but it should be a valid number" in refusal({name: wrong})
    for wrong in (math.nan, math.inf, -math.inf):
        assert f"`{name}` is {json.dumps(wrong)}" in refusal({name: wrong})
    assert f"`{name}` is 1" in refusal({name: 10**400})


@pytest.mark.parametrize("name", sorted(name for name, value in defaults().items() if type(value) is int))
def test_only_an_int_is_an_int(name):
    for wrong in (True, False, 2.0, 2.5, "2", math.nan, None):
        assert f"`{name}` is {shown(wrong)}, but it should be a valid integer." in refusal({name: wrong})


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_only_a_bool_is_a_bool(name):
    assert getattr(check(Settings, {name: True}), name.replace("-", "_")) is True
    for wrong in (0, 1, 0.0, "true", "false", ""):
        assert f"`{name}` is {shown(wrong)}, but it should be a valid boolean." in refusal({name: wrong})


@pytest.mark.parametrize(
    "place",
    [
        *(True, False, "http://host:5000", "https://host/a/b", "postgresql://host/db?sslmode=require"),
        *("databricks", "databricks://profile", "databricks-uc:profile"),
        *("/srv/ml", "/home/me@work/ml", "file:/home/me@work/ml", "file:///home/me@work/ml"),
        *("sqlite:////srv/ml.db", "sqlite+pysqlite:////home/me@work/ml.db"),
    ],
)
def test_where_mlflow_is(place):
    assert check(Settings, {"mlflow": place}).mlflow == place


@pytest.mark.parametrize(
    "place", ["", "mlruns", "./mlruns", "~/mlruns", "host.example.org", 1, 5000.0, ["http://host"]]
)
def test_what_is_no_place_of_mlflow(place):
    assert refusal({"mlflow": place}) == (
        f"setting `mlflow` is {shown(place)}, but it should be true, false, or a tracking URI such as "
        "'http://host:5000'."
    )


@pytest.mark.parametrize("name", sorted(CHOICES.keys() | OPEN))
def test_only_a_string_is_a_string(name):
    for wrong in (True, 1, 0.5):
        assert f"`{name}` is {shown(wrong)}, but it should be " in refusal({name: wrong})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"test-share": 0.6, "validation-share": 0.4}, ["test-share", "0.6", "validation-share", "0.4", "below 1"]),
        ({"clients": 2, "min-replies": 3}, ["min-replies", "3", "clients", "2", "must not exceed"]),
        ({"clients": 1, "min-replies": 2}, ["min-replies", "2", "clients", "1", "must not exceed"]),
        ({"clients": 2, "min-train-clients": 3}, ["min-train-clients", "3", "clients", "2", "must not exceed"]),
        (
            {"clients": 20, "fraction-train": 0.1, "min-replies": 3},
            ["`min-replies` 3", "`fraction-train` 0.1", "`clients` 20", "asks 2"],
        ),
        ({"partition": "table"}, ['`partition` is "table"', '`partition-table` ""']),
        ({"partition-table": "/t.csv"}, ['`partition` is "dirichlet"', '`partition-table` "/t.csv"']),
        ({"partition": "way-shot"}, ['`partition` "way-shot"', '`split` is "pooled"', 'set it to "official"']),
        ({"sparsity-dim": 65}, ["`sparsity-dim` 65", "`feature-dim` 64", "0 sends all"]),
        ({"sparsity-dim": 9, "feature-dim": 8}, ["`sparsity-dim` 9", "`feature-dim` 8"]),
        ({"precision": "bf16", "device": "cpu"}, ["precision", "bf16", "device", "cpu", "float32"]),
        ({"shared-test-path": "notes"}, ['`shared-test-path` "notes" names no folder', "starts with /, ./, ../ or ~"]),
        ({"shared-test-path": "a/b c"}, ['`shared-test-path` "a/b c"']),
    ],
)
def test_settings_that_contradict_each_other(values, named):
    text = refusal(values)
    assert all(part in text for part in named)


def test_neighbours_of_the_contradictions_pass():
    check(Settings, {"test-share": 0.6, "validation-share": 0.39})
    for path in ("", "/notes", "./notes", "../notes", "~/notes"):
        check(Settings, {"shared-test-path": path})
    check(Settings, {"clients": 3, "min-replies": 3, "min-train-clients": 3})
    # ⌊0.1·20 + ½⌋ = 2, and 3 are asked where `min-train-clients` says so
    check(Settings, {"clients": 20, "fraction-train": 0.1, "min-replies": 2})
    check(Settings, {"clients": 20, "fraction-train": 0.1, "min-replies": 3, "min-train-clients": 3})
    # without `clients` the number is not known before the roster
    check(Settings, {"fraction-train": 0.1, "min-replies": 50})
    check(Settings, {"precision": "bf16", "device": "auto"})
    check(Settings, {"sparsity-dim": 8, "feature-dim": 8})


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Settings().rounds = 3


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(SettingError) as caught:
        refuse_unknown(["rounds", "learning_rate"], defaults())
    assert "`learning_rate` (did you mean `learning-rate`?)" in sentence(caught)
    with pytest.raises(SettingError) as caught:
        refuse_unknown(["qqqq"], defaults())
    assert "did you mean" not in sentence(caught)
    with pytest.raises(SettingError) as caught:
        refuse_unknown(["two\nlines"], defaults())
    assert "two\\nlines" in sentence(caught)
    refuse_unknown(defaults(), defaults())


def test_nearest():
    assert nearest("fedprto", ["fedproto", "local"]) == " (did you mean `fedproto`?)"
    assert nearest("zzz", ["fedproto", "local"]) == ""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\nb", '"a\\nb"'),
        ("it's", '"it\'s"'),
        ("münchen", '"münchen"'),
        (True, "true"),
        (None, "null"),
        (0.1, "0.1"),
        ([1, "x"], '[1, "x"]'),
        ("x" * 98, '"' + "x" * 98 + '"'),
        ("x" * 99, '"' + "x" * 99 + "..."),
    ],
)
def test_a_value_is_shown_on_one_short_line(value, expected):
    assert shown(value) == expected


@pytest.mark.parametrize("dataset", ["/a", "./a", "../a", "~/a", "~a"])
def test_what_is_a_path(dataset):
    assert is_path(dataset)


@pytest.mark.parametrize("dataset", ["digits", "uoft-cs/cifar10", ".hidden", "a/b/c"])
def test_what_is_no_path(dataset):
    assert not is_path(dataset)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dataset", "./here"),
        ("dataset", "../up"),
        ("dataset", "../up/*"),
        ("results-dir", "here"),
        ("results-dir", "~nobody-of-that-name/x"),
        ("shared-test-path", "./here"),
        ("shared-test-path", "../up"),
        ("shared-test-path", "~nobody-of-that-name/x"),
    ],
)
def test_relative_paths_are_refused(name, value):
    with pytest.raises(SettingError) as caught:
        refuse_relative_paths(check(Settings, {name: value}))
    text = sentence(caught)
    assert f'`{name}` is "{value}"' in text
    assert "absolute" in text


def test_a_relative_path_in_a_list_and_an_empty_item_are_refused():
    with pytest.raises(SettingError) as caught:
        refuse_relative_paths(check(Settings, {"dataset": "/data,digits, ../up"}))
    assert '`dataset` is "../up", a relative path' in sentence(caught)
    with pytest.raises(SettingError) as caught:
        refuse_relative_paths(check(Settings, {"dataset": "/data,,digits"}))
    assert "dataset is '/data,,digits', a list with an empty item" in sentence(caught)


def test_absolute_paths_and_names_pass(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    shared = [{"shared-test-path": path} for path in ("/data", "~/data")]
    for values in (
        {},
        {"dataset": "/data"},
        {"dataset": "~/data"},
        {"dataset": "a/b"},
        {"dataset": "/data/*"},
        {"dataset": "/data, a/b,digits"},
        {"results-dir": "~/r"},
        *shared,
    ):
        refuse_relative_paths(check(Settings, values))


NAMES = [
    "a",
    "20260101-120000-fedproto-digits-2",
    "a.b_c",
    "lauf-ü",
    "x" * 255,
    "ü" * 127,
    "胸部X線",
    "हिन्दी",
    "u\u0308",
]


@pytest.mark.parametrize("name", NAMES)
def test_run_names(name):
    assert is_run_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "...",
        "-",
        "a/b",
        "a\\b",
        "../a",
        "/a",
        ".a",
        "a.",
        "a b",
        "a\n",
        "a\0",
        "x" * 256,
        "ü" * 128,
        "a\u200bb",
        "a🙂",
    ],
)
def test_what_is_no_run_name(name):
    assert not is_run_name(name)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("überblick 2", "überblick-2"),
        ("胸部X線/正面", "胸部X線-正面"),
        ("हिन्दी", "हिन्दी"),
        ("u\u0308ber", "über"),
        ("_a  b--c_", "a-b-c"),
        ("../🙂", ""),
        ("線" * 40, "線" * 33),
    ],
)
def test_a_name_keeps_the_letters_of_any_alphabet(words, name):
    found = plain_name(words, 100)
    assert found == name
    assert is_run_name(found) or not found
    assert len(found.encode()) <= 100


def test_home_is_the_variable_or_a_folder_of_the_user(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.setenv("PROTOSPHERE_HOME", "~/elsewhere")
    assert home() == Path("/somewhere/elsewhere")
    for nothing in ("", None):
        monkeypatch.setenv("PROTOSPHERE_HOME", nothing) if nothing == "" else monkeypatch.delenv("PROTOSPHERE_HOME")
        assert home() == Path("/somewhere/.protosphere")


def test_a_resumed_run_may_change_where_and_how_patiently_it_runs_and_nothing_else():
    timeouts = {name for name in defaults() if name.endswith("-timeout")}
    live = {"tensorboard", "wandb", "mlflow"}
    assert timeouts | live | {"rounds", "device", "results-dir", "resume"} == MAY_DIFFER_ON_RESUME


@pytest.mark.parametrize(
    "place",
    [
        "http://me:secret@host:5000",
        "http://me:sec/ret@host:5000",
        "http://me:/secret@host:5000",
        "https://me:sec//re@t@host/path",
        "http://me:sec?re#t@host",
        "http:///me:secret@host",
        "http:me:secret@host",
        "//me:secret@host",
        "postgresql+psycopg2://me:secret@host/db",
        "postgresql+psycopg2://me:/@host/db",
        "postgresql://host/db?user=me&Password=secret",
        "databricks://me:secret@host",
    ],
)
def test_a_password_of_mlflows_stays_out_of_results(place):
    assert "`mlflow`" in (text := refusal({"mlflow": place}))
    assert "MLFLOW_TRACKING_USERNAME" in text
