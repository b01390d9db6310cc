"""The shared settings: defaults, types, ranges, contradictions, paths; each refusal as one sentence for a person."""

import json
import math
import re
import tomllib
from pathlib import Path

import pytest

from protosphere.core.errors import SettingError
from protosphere.core.home import home
from protosphere.core.settings import (
    GONE,
    GONE_VALUES,
    MAY_DIFFER_ON_RESUME,
    RENAMED,
    Settings,
    _log_gone,
    check,
    is_run_name,
    plain_name,
    refuse_relative_paths,
    refuse_unknown,
    shown,
    without_gone,
)
from protosphere.strategies import known_settings

ROOT = Path(__file__).resolve().parents[2]

TINY = math.ulp(0.0)
MOST = 2**31 - 1
AT_LEAST_ONE = (
    *("rounds", "classes-per-client", "min-samples", "spiral-points", "local-epochs"),
    *("evaluate-every", "max-tokens", "max-failed-rounds"),
)
COUNTS = (
    *("clients", "ways-spread", "shots", "shots-spread", "max-samples", "ensemble-every", "min-replies"),
    *("state-memory", "stop-patience", "min-clients", "forget-after"),
)
POSITIVE = (
    *("alpha", "learning-rate", "start-timeout", "query-timeout", "round-timeout", "privacy-epsilon", "privacy-scale"),
)
NOT_NEGATIVE = ("spiral-noise", "weight-decay", "prototype-weight", "encoder-radius")
# setting -> (values that are just allowed, values that are just not)
RANGES = {
    **dict.fromkeys(AT_LEAST_ONE, ([1, MOST], [0, -1, MOST + 1])),
    "threads": ([1, 1024], [0, 1025]),
    **dict.fromkeys(COUNTS, ([0, MOST], [-1, MOST + 1])),
    **dict.fromkeys(("ways", "batch-size", "feature-dim"), ([2, MOST], [1, 0, MOST + 1])),
    **dict.fromkeys(POSITIVE, ([TINY, 1e300], [0.0, -TINY])),
    **dict.fromkeys(NOT_NEGATIVE, ([0.0, 1e300], [-TINY])),
    "seed": ([0, 2**63 - 1], [-1, 2**63]),
    "image-size": ([0, 4096], [-1, 4097]),
    "test-share": ([TINY, 0.89], [0.0, 1.0]),
    "validation-share": ([0.0, 0.7], [-TINY, 1.0]),
    "momentum": ([0.0, math.nextafter(1, 0)], [-TINY, 1.0]),
    "fraction-train": ([TINY, 1.0], [0.0, math.nextafter(1, 2)]),
    "privacy-delta": ([TINY, 1e-3], [0.0, -TINY, 1.1e-3]),
    "shared-test-share": ([TINY, math.nextafter(1, 0)], [0.0, 1.0]),
    "max-weight-ratio": ([1.0, 1e300], [math.nextafter(1, 0), 0.0]),
    "max-prototype-norm": ([TINY, 1e18], [0.0, 1.1e18, 1e300]),
}
CHOICES = {
    "partition": ("iid", "dirichlet", "pathological", "way-shot", "mixed", "table", "column"),
    "augment": ("none", "flip", "crop", "flip-crop"),
    "classes": ("same", "union"),
    "split": ("pooled", "official"),
    "optimizer-state": ("fresh", "persistent"),
    "prototypes-from": ("model", "training"),
    "feature-activation": ("linear", "relu"),
    "prototype-loss": ("mse", "l2", "l2-squared"),
    "share-buffers": ("average", "own"),
    "confusion": ("auto", "always", "never"),
    "keep-prototypes": ("some", "all"),
    "wire-dtype": ("float32", "float16"),
    "evaluate-clients": ("all", "sampled"),
    "precision": ("float32", "bf16"),
    "privacy": ("none", "release"),
    "client-weights": ("samples", "equal"),
    "privacy-unit": ("row", "group"),
    "device": ("auto", "cpu", "cuda", "cuda:0", "cuda:13", "mps", "xpu:1"),
}
# checked elsewhere, or anything
COLUMNS = {"text-column", "label-column", "group-column", "partition-column"}
PATHS = {"encoder", "results-dir", "resume", "partition-table"}
OPEN = {"own-settings", "strategy", "dataset", "models", "inference"} | PATHS | COLUMNS
FLAGS = {
    "self-balancing",
    "roc-auc",
    "normalise",
    "shared-init",
    "disclose-class-counts",
    "privacy-measure",
    "tensorboard",
    "wandb",
    "report",
}
# of a setting that means nothing alone
NEEDS = {"privacy-measure": {"privacy": "release"}, "forget-after": {"min-clients": 1}}

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


def held(name, value, more=None):
    """What the settings hold when this one is given."""
    return getattr(check(Settings, {name: value} | (more or {})), name.replace("-", "_"))


def flat(table, prefix=""):
    """TOML tables as Flower flattens them."""
    settings = {}
    for name, value in table.items():
        settings |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return settings


def test_pyproject_holds_every_default_with_its_type():
    config = flat(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    typed = {name: (type(value), value) for name, value in config.items()}
    assert typed == {
        name: (type(value), value) for name, value in (known_settings() | dict.fromkeys(RENAMED, "")).items()
    }


def test_the_tables_of_this_test_cover_every_setting():
    assert RANGES.keys() | CHOICES.keys() | OPEN | FLAGS | EITHER == defaults().keys()


@pytest.mark.parametrize("name", sorted(RANGES))
def test_a_number_may_lie_at_the_ends_of_its_range_and_not_beyond(name):
    allowed, refused = RANGES[name]
    for value in allowed:
        assert held(name, value, NEEDS.get(name)) == value
    for value in refused:
        assert f"`{name}` is {json.dumps(value)}," in refusal({name: value})


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_a_choice_is_one_of_its_words_to_the_letter(name):
    for value in CHOICES[name]:
        needed = {
            "way-shot": {"split": "official"},
            "table": {"partition-table": "/t.csv"},
            "column": {"partition-column": "ward"},
            "selected": {"evaluate-clients": "sampled"},
        }.get(value, {})
        assert held(name, value, needed) == value
    first = CHOICES[name][0]
    for value in ("", "x", first.upper(), first + " ", first + "\n"):
        text = refusal({name: value})
        assert f"`{name}` is " in text
        assert all(f"'{choice}'" in text for choice in CHOICES[name] if ":" not in choice)


DEFAULTS = defaults()
INTS, FLOATS = ({name for name, value in DEFAULTS.items() if type(value) is kind} for kind in (int, float))
ODD_DEVICES = ("cuda:", "cuda:x", "cuda:-1", "cuda:٣", "cpu:0", "tpu")
# setting -> values of another type or form
WRONG = {
    **dict.fromkeys(INTS, (True, False, 2.0, 2.5, "2", math.nan, None)),
    **dict.fromkeys(FLOATS, (True, "1", "0.5", None, [0.5], math.nan, math.inf, -math.inf)),
    **dict.fromkeys(FLAGS, (0, 1, 0.0, "true", "false", "")),
    **dict.fromkeys(CHOICES.keys() | OPEN, (True, 1, 0.5)),
    "dataset": ("", "  ", True),
    "models": ("", "  ", True),
    "device": (*ODD_DEVICES, True),
    "mlflow": ("", "mlruns", "./mlruns", "~/mlruns", "host.example.org", 1, 5000.0, ["http://host"]),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_value_of_another_type_or_form_is_refused_by_name(name):
    for value in WRONG[name]:
        assert f"`{name}` is {shown(value)}," in refusal({name: value})
    if name in FLAGS:
        assert held(name, True, NEEDS.get(name)) is True


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
    assert held("mlflow", place) == place


@pytest.mark.parametrize(
    "name", sorted(FLOATS - {"test-share", "shared-test-share", "privacy-delta"})
)  # no integer is within theirs
def test_an_int_is_taken_for_a_float(name):
    integer = 0 if name in ("validation-share", "momentum") else 1
    found = held(name, integer, NEEDS.get(name))
    assert (type(found), found) == (float, integer)
    assert f"`{name}` is 1" in refusal({name: 10**400})


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
        ({"precision": "bf16", "device": "cpu"}, ["precision", "bf16", "device", "cpu"]),
        ({"ensemble-every": 3, "evaluate-every": 2}, ["`ensemble-every` is 3", "`evaluate-every`"]),
        ({"privacy": "release", "ensemble-every": 5}, ["`ensemble-every` is 5", "`privacy`"]),
        ({"privacy": "release", "confusion": "always"}, ['`confusion` is "always"', "`privacy`"]),
        ({"privacy": "release", "disclose-class-counts": True}, ["`disclose-class-counts` is true", "`privacy`"]),
        ({"privacy": "release", "roc-auc": True}, ["`roc-auc` is true", "`privacy`"]),
        ({"privacy": "release", "stop-patience": 3}, ["`stop-patience` is 3", "`privacy`"]),
        ({"privacy": "release", "encoder-radius": 2.0}, ["`encoder-radius` is 2.0", "`privacy`"]),
        ({"stop-patience": 3, "validation-share": 0.0}, ["`stop-patience` is 3", "`validation-share` is 0"]),
        ({"privacy-measure": True}, ["`privacy-measure` is true", '`privacy` is "none"']),
    ],
)
def test_settings_that_contradict_each_other_are_named_together(values, named):
    text = refusal(values)
    assert all(part in text for part in named)


def test_neighbours_of_the_contradictions_pass():
    check(Settings, {"test-share": 0.6, "validation-share": 0.39})
    check(Settings, {"ensemble-every": 4, "evaluate-every": 2})
    check(Settings, {"clients": 3, "min-replies": 3})
    # ⌊0.1·20 + ½⌋ = 2, and of a share that is less than one client one is asked
    check(Settings, {"clients": 20, "fraction-train": 0.1, "min-replies": 2})
    check(Settings, {"clients": 20, "fraction-train": 0.01, "min-replies": 1})
    check(Settings, {"clients": 5, "fraction-train": 0.5, "min-replies": 3})
    # without `clients` the number is not known before the roster
    check(Settings, {"fraction-train": 0.1, "min-replies": 50})
    check(Settings, {"precision": "bf16", "device": "auto"})


@pytest.mark.parametrize("name", GONE)
def test_a_setting_that_has_gone_is_ignored_at_its_default_with_one_notice_and_else_refused(name, caplog):
    _log_gone.cache_clear()
    assert name not in known_settings()
    for _ in range(2):
        assert without_gone({"rounds": 3, name: GONE[name][0]}) == {"rounds": 3}
    assert [record.args[0] for record in caplog.records] == [name]
    for value in ("other", 3, True):
        with pytest.raises(SettingError) as caught:
            without_gone({name: value})
        assert f"setting `{name}` is {shown(value)}, but it is gone since version" in sentence(caught)


@pytest.mark.parametrize(("name", "value"), GONE_VALUES)
def test_a_value_that_has_gone_is_refused_with_what_takes_its_place_but_not_in_what_is_finished(name, value):
    config = {"strategy": name.partition(".")[0], name: value, "rounds": 3}
    with pytest.raises(SettingError) as caught:
        without_gone(config)
    assert f"setting `{name}` is {shown(value)}, which is gone since version" in sentence(caught)
    assert GONE_VALUES[name, value] in sentence(caught)
    assert without_gone(config, is_finished=True) == {"strategy": name.partition(".")[0], "rounds": 3}
    assert without_gone(config | {"strategy": "./mine.py"})[name] == value


def test_a_method_of_somebodys_own_may_have_a_setting_that_ours_lost():
    config = {"strategy": "./mine.py", "feddistill.outputs": "logits", "server-threads": 1}
    assert without_gone(config) == {"strategy": "./mine.py", "feddistill.outputs": "logits"}


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
    ("value", "expected"),
    [
        *(("a\nb", '"a\\nb"'), ("münchen", '"münchen"'), (True, "true"), (None, "null"), ([1, "x"], '[1, "x"]')),
        *(("x" * 98, '"' + "x" * 98 + '"'), ("x" * 99, '"' + "x" * 99 + "...")),
    ],
)
def test_a_value_is_shown_on_one_short_line(value, expected):
    assert shown(value) == expected


@pytest.mark.parametrize(
    ("name", "value", "item"),
    [
        *(("dataset", path, path) for path in ("./here", "../up", "../up/*")),
        ("dataset", "/data,digits, ../up", "../up"),
        ("dataset", "/data,,digits", "/data,,digits"),
        *(("results-dir", path, path) for path in ("here", "~nobody-of-that-name/x")),
        *(("results-dir", path, path) for path in ("./here", "../up", "~nobody-of-that-name/x")),
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


def test_absolute_paths_and_names_pass(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    data = ("/data", "~/data", "a/b", "/data/*", "/data, a/b,digits")
    for values in (
        *({"dataset": dataset} for dataset in data),
        *({}, {"results-dir": "~/r"}, {"models": "hf:~/encoder"}, {"models": "hf:owner/encoder"}),
    ):
        refuse_relative_paths(check(Settings, values))


NO_NAMES = ["", ".", "..", "...", "-", "a/b", "a\\b", "../a", "/a", ".a", "a.", "a b", "a\n", "a\0", "a\u200bb", "a🙂"]
NAMES = ["a", "20260101-120000-fedproto-digits-2", "a.b_c", "lauf-ü", "胸部X線", "हिन्दी", "u\u0308", "ü" * 127]


@pytest.mark.parametrize("name", [*NAMES, "x" * 255, *NO_NAMES, "x" * 256, "ü" * 128])
def test_a_run_name_leads_nowhere_else_and_fits(name):
    assert is_run_name(name) == (name not in NO_NAMES and len(name.encode()) <= 255)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        *(("überblick 2", "überblick-2"), ("胸部X線/正面", "胸部X線-正面"), ("हिन्दी", "हिन्दी"), ("u\u0308ber", "über")),
        *(("_a  b--c_", "a-b-c"), ("../🙂", ""), ("線" * 40, "線" * 33)),
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
    timeouts = {name for name in DEFAULTS if name.endswith("-timeout")}
    live = {"tensorboard", "wandb", "mlflow"}
    ends = {"rounds", "stop-patience"}
    places = {"device", "state-memory", "results-dir", "resume"}
    assert timeouts | live | ends | places | {"report", "keep-prototypes"} == MAY_DIFFER_ON_RESUME


@pytest.mark.parametrize(
    "place",
    [
        *("http://me:secret@host:5000", "http://me:sec/ret@host:5000", "http://me:/secret@host:5000"),
        *("https://me:sec//re@t@host/path", "http://me:sec?re#t@host", "http:///me:secret@host"),
        *("http:me:secret@host", "//me:secret@host", "databricks://me:secret@host"),
        *("postgresql+psycopg2://me:secret@host/db", "postgresql+psycopg2://me:/@host/db"),
        "postgresql://host/db?user=me&Password=secret",
    ],
)
def test_a_password_of_mlflows_stays_out_of_results(place):
    assert "`mlflow`" in (text := refusal({"mlflow": place}))
    assert "MLFLOW_TRACKING_USERNAME" in text
