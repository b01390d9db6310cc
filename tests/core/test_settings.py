"""The shared settings: defaults, types, ranges, contradictions, paths; each refusal as one sentence for a person."""

import json
import math
import re
import tomllib
from pathlib import Path

import pytest

from protosphere.core.errors import SettingError
from protosphere.core.settings import (
    GONE,
    MAY_DIFFER_ON_RESUME,
    Settings,
    check,
    is_run_name,
    plain_name,
    refuse_relative_paths,
    refuse_unknown,
    shown,
)
from protosphere.strategies import known_settings, read_settings, refuse_foreign, settings_by_keyword

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = {name.replace("_", "-"): value for name, value in Settings().model_dump().items()}
TINY, MOST = math.ulp(0.0), 2**31 - 1
# setting -> (values that are just allowed, values that are just not): one of each kind of range
RANGES = {
    **dict.fromkeys(("rounds", "local-epochs", "evaluate-every", "max-failed-rounds"), ([1, MOST], [0, -1, MOST + 1])),
    **dict.fromkeys(("clients", "min-replies", "min-clients", "stop-patience"), ([0, MOST], [-1, MOST + 1])),
    **dict.fromkeys(("alpha", "learning-rate", "round-timeout", "privacy-epsilon"), ([TINY, 1e300], [0.0, -TINY])),
    **dict.fromkeys(("weight-decay", "prototype-weight"), ([0.0, 1e300], [-TINY])),
    "threads": ([1, 1024], [0, 1025]),
    "batch-size": ([2, MOST], [1, 0, MOST + 1]),
    "seed": ([0, 2**63 - 1], [-1, 2**63]),
    "image-size": ([0, 4096], [-1, 4097]),
    "test-share": ([TINY, 0.89], [0.0, 1.0]),
    "momentum": ([0.0, math.nextafter(1, 0)], [-TINY, 1.0]),
    "fraction-train": ([TINY, 1.0], [0.0, math.nextafter(1, 2)]),
    "privacy-delta": ([TINY, 1e-3], [0.0, -TINY, 1.1e-3]),
    "max-weight-ratio": ([1.0, 1e300], [math.nextafter(1, 0), 0.0]),
    "max-prototype-norm": ([TINY, 1e18], [0.0, 1.1e18]),
}
CHOICES = {
    "partition": ("iid", "dirichlet", "pathological", "mixed"),
    "wire-dtype": ("float32", "float16"),
    "privacy": ("none", "release"),
    "device": ("auto", "cpu", "cuda", "cuda:13", "mps", "xpu:1"),
}
INTS, FLOATS, FLAGS = ({name for name, value in DEFAULTS.items() if type(value) is kind} for kind in (int, float, bool))
FLAGS -= {"mlflow"}  # a flag or a place
TEXTS = {name for name, value in DEFAULTS.items() if type(value) is str}
# setting -> values of another type or form
WRONG = {
    **dict.fromkeys(INTS, (True, 2.0, "2", math.nan, None)),
    **dict.fromkeys(FLOATS, (True, "0.5", [0.5], math.nan, -math.inf)),
    **dict.fromkeys(FLAGS, (0, "true", "")),
    **dict.fromkeys(TEXTS, (True, 1)),
    **dict.fromkeys(("dataset", "models"), ("", "  ")),
    **dict.fromkeys(CHOICES, ("", "x", "IID", "float32 ", "cpu\n")),
    "device": ("cuda:", "cuda:x", "cuda:-1", "cuda:٣", "cpu:0", "tpu"),
    "mlflow": ("", "mlruns", "~/mlruns", "host.example.org", 1),
}
NEEDS = {"privacy-measure": {"privacy": "release"}, "forget-after": {"min-clients": 1}}


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


def taken(name, value):
    """What the settings hold when this one is given."""
    return getattr(check(Settings, {name: value} | NEEDS.get(name, {})), name.replace("-", "_"))


def flat(table, prefix=""):
    """TOML tables as Flower flattens them."""
    settings = {}
    for name, value in table.items():
        settings |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return settings


def test_pyproject_holds_every_default_with_its_type():
    config = flat(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    known = known_settings()
    assert {name: (type(v), v) for name, v in config.items()} == {name: (type(v), v) for name, v in known.items()}


@pytest.mark.parametrize("name", RANGES)
def test_a_number_may_lie_at_the_ends_of_its_range_and_not_beyond(name):
    allowed, refused = RANGES[name]
    for value in allowed:
        assert taken(name, value) == value
    for value in refused:
        assert f"`{name}` is {json.dumps(value)}," in refusal({name: value})


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_value_of_another_type_or_form_is_refused_by_name(name):
    for value in CHOICES.get(name, ()):
        assert taken(name, value) == value
    for value in WRONG[name]:
        assert f"`{name}` is {shown(value)}," in refusal({name: value})
    if name in FLAGS:
        assert taken(name, True) is True
    if name in FLOATS:
        assert f"`{name}` is 1" in refusal({name: 10**400})
    if name in {"alpha", "learning-rate"}:
        assert (type(taken(name, 1)), taken(name, 1)) == (float, 1)


@pytest.mark.parametrize(
    "place",
    [True, "http://host:5000", "postgresql://host/db?sslmode=require", "databricks://profile", "/home/me/ml"],
)
def test_where_mlflow_is(place):
    assert taken("mlflow", place) == place


@pytest.mark.parametrize(
    "place",
    [
        *("http://me:secret@host:5000", "http://me:sec/ret@host:5000", "https://me:sec//re@t@host/path"),
        *("http:///me:secret@host", "//me:secret@host", "postgresql://host/db?user=me&Password=secret"),
    ],
)
def test_a_password_of_mlflows_stays_out_of_results(place):
    assert "MLFLOW_TRACKING_USERNAME" in refusal({"mlflow": place})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"test-share": 0.6, "validation-share": 0.4}, ["test-share", "0.6", "validation-share", "0.4"]),
        ({"clients": 2, "min-replies": 3}, ["`min-replies` 3", "`clients` 2"]),
        ({"clients": 20, "fraction-train": 0.1, "min-replies": 3}, ["`min-replies` 3", "`clients` 20", "selects 2"]),
        ({"partition": "table"}, ['`partition` is "table"', '`partition-table` ""']),
        ({"partition": "column"}, ['`partition` is "column"', '`partition-column` ""']),
        ({"partition-column": "ward"}, ['`partition` is "dirichlet"', '`partition-column` "ward"']),
        ({"partition-table": "/t.csv"}, ['`partition` is "dirichlet"', '`partition-table` "/t.csv"']),
        ({"partition": "way-shot"}, ['`partition` "way-shot"', '`split` is "pooled"']),
        ({"ensemble-every": 3, "evaluate-every": 2}, ["`ensemble-every` is 3", "`evaluate-every`"]),
        ({"privacy": "release", "ensemble-every": 5}, ["`ensemble-every` is 5", "`privacy`"]),
        ({"privacy": "release", "confusion": "always"}, ['`confusion` is "always"', "`privacy`"]),
        ({"privacy": "release", "disclose-class-counts": True}, ["`disclose-class-counts` is true", "`privacy`"]),
        ({"privacy": "release", "roc-auc": True}, ["`roc-auc` is true", "`privacy`"]),
        ({"privacy": "release", "stop-patience": 3}, ["`stop-patience` is 3", "`privacy`"]),
        ({"privacy": "release", "encoder-radius": 2.0}, ["`encoder-radius` is 2.0", "`privacy`"]),
        ({"stop-patience": 3, "validation-share": 0.0}, ["`stop-patience` is 3", "`validation-share` is 0"]),
        ({"privacy-measure": True}, ["`privacy-measure` is true", '`privacy` is "none"']),
        ({"min-clients": 5, "clients": 4}, ["`min-clients` 5 must not exceed `clients` 4"]),
        ({"forget-after": 2}, ["`forget-after` is 2, but `min-clients` is 0"]),
    ],
)
def test_settings_that_contradict_each_other_are_named_together(values, named):
    text = refusal(values)
    assert all(part in text for part in named)


def test_neighbours_of_the_contradictions_pass():
    check(Settings, {"test-share": 0.6, "validation-share": 0.39})
    check(Settings, {"ensemble-every": 4, "evaluate-every": 2})
    # ⌊0.1·20 + ½⌋ = 2, and of a share that is less than one client one is asked
    check(Settings, {"clients": 20, "fraction-train": 0.1, "min-replies": 2})
    check(Settings, {"clients": 20, "fraction-train": 0.01, "min-replies": 1})
    # without `clients` the number is not known before the roster
    check(Settings, {"fraction-train": 0.1, "min-replies": 50})


@pytest.mark.parametrize("name", GONE)
def test_a_setting_that_was_removed_is_refused_with_what_takes_its_place(name):
    assert name not in known_settings()
    prefix, dot, keyword = name.rpartition(".")
    config = {"strategy": prefix if dot else "fedproto"}
    for refuse in (refuse_foreign, read_settings):
        with pytest.raises(SettingError) as caught:
            refuse(config | {name: 1})
        assert sentence(caught) == f"setting `{name}` was removed: {GONE[name]}; take it out."
    if dot:
        assert settings_by_keyword(prefix, {keyword.replace("-", "_"): 1}) == {name: 1}


@pytest.mark.parametrize(
    ("name", "said"),
    [("learning_rate", "`learning_rate` (did you mean `learning-rate`?)"), ("qqqq", "`qqqq`;"), ("a\nb", "`a\\nb`")],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, said):
    with pytest.raises(SettingError) as caught:
        refuse_unknown(["rounds", name], DEFAULTS)
    assert said in sentence(caught)
    refuse_unknown(DEFAULTS, DEFAULTS)


@pytest.mark.parametrize(
    ("name", "value", "item"),
    [
        *(("dataset", path, path) for path in ("./here", "../up/*", "/data,,digits")),
        ("dataset", "/data,digits, ../up", "../up"),
        *(("results-dir", path, path) for path in ("here", "../up", "~nobody-of-that-name/x")),
        ("partition-table", "t.csv", "t.csv"),
        ("models", "tiny, hf:./encoder", "./encoder"),
    ],
)
def test_relative_paths_are_refused_by_name(name, value, item):
    needed = {"partition": "table"} if name == "partition-table" else {}
    with pytest.raises(SettingError) as caught:
        refuse_relative_paths(check(Settings, {name: value} | needed))
    assert name in (text := sentence(caught))
    assert item in text


NO_NAMES = ["", ".", "..", "-", "a/b", "a\\b", "../a", "/a", ".a", "a.", "a b", "a\n", "a\0", "a\u200bb", "a🙂"]
NAMES = ["a", "20260101-120000-fedproto-digits-2", "a.b_c", "lauf-ü", "胸部X線", "हिन्दी", "u\u0308", "ü" * 127]


@pytest.mark.parametrize("name", [*NAMES, *NO_NAMES, "x" * 256, "ü" * 128])
def test_a_run_name_leads_nowhere_else_and_fits(name):
    assert is_run_name(name) == (name in NAMES)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        *(("überblick 2", "überblick-2"), ("胸部X線/正面", "胸部X線-正面"), ("u\u0308ber", "über")),
        *(("_a  b--c_", "a-b-c"), ("../🙂", ""), ("線" * 40, "線" * 33)),
    ],
)
def test_a_name_keeps_the_letters_of_any_alphabet(words, name):
    assert plain_name(words, 100) == name
    assert is_run_name(name) or not name


def test_a_resumed_run_may_change_where_and_how_patiently_it_runs_and_nothing_else():
    timeouts = {name for name in DEFAULTS if name.endswith("-timeout")}
    looks = {"tensorboard", "wandb", "mlflow", "report", "keep-prototypes"}
    places = {"device", "state-memory", "results-dir", "resume"}
    assert timeouts | looks | places | {"rounds", "stop-patience"} == MAY_DIFFER_ON_RESUME
