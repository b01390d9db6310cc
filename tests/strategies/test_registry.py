"""The registry: settings of a run from Flower's flat configuration, and what is refused before any client is asked."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from protosphere.core.errors import SettingError
from protosphere.core.settings import RECEIVED, RULES, Settings, shown
from protosphere.strategies import METHODS, known_settings, load_method, read_settings, refuse_foreign
from protosphere.strategies.contract import Objective, ServerHalf
from protosphere.strategies.fedproto import FedProtoSettings
from protosphere.wire.payloads import KINDS
from tests.strategies.needs import ASKED

ROOT = Path(__file__).resolve().parents[2]
SHARED = {name.replace("_", "-") for name in Settings.model_fields}
OWN = sorted(known_settings().keys() - SHARED)
TAUGHT = (
    "fml",
    "fedkd",
    "fedcgs",
    "fedncm",
    "fed3r",
    "fedcof",
    "fedpft",
    "protosphere",
)  # by a companion, or in an encoder's space: no part of the model is received
NORM = {"strategy": "protonorm"}
SEEDED = ("frame", "protosphere")  # whose targets follow from the seed
BUILDS_ON = {
    "protosphere.strategies.tinyproto": {"protosphere.strategies.fedtgp"},
    "protosphere.strategies.protosphere": {"protosphere.strategies.frame"},
}


def module_of(name):
    return METHODS[name].module.partition(":")[0]


def refused(function, config):
    """The sentence with which a configuration is refused."""
    with pytest.raises(SettingError) as caught:
        function(config)
    text = str(caught.value)
    assert text.endswith(".")
    assert text.isprintable()
    assert not re.search(r"[.!?] +[A-Z]", text)
    return text


def everything(**changes):
    """What Flower hands over: every setting there is, with some changed."""
    return known_settings() | {name.replace("_", "-"): value for name, value in changes.items()}


# --- methods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_registry_is_whole(name):
    method = load_method(name)
    assert issubclass(method.server, ServerHalf)
    assert issubclass(method.objective, Objective)
    exchange = read_settings(ASKED[name]).exchange
    assert exchange.kinds() <= set(KINDS)
    # global prototypes are a rule where they come down, or are there from the start
    targets = any(spec.kind == "prototypes" and spec.width != "classes" for spec in exchange.down) or name in SEEDED
    assert set(RULES) - set(method.rules) == (set() if targets else {"global-prototypes"})
    # and so is what comes where it predicts
    assert (RECEIVED in method.rules) == (exchange.weights and name not in TAUGHT)
    assert method.inference in method.rules
    for kind in method.settings.values():
        # a frozen dataclass whose defaults its own checks accept
        assert dataclasses.is_dataclass(kind)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(kind(), dataclasses.fields(kind)[0].name, None)


def test_an_unknown_strategy_is_refused_with_the_nearest():
    text = refused(read_settings, {"strategy": "protonrom"})
    assert '`strategy` is "protonrom" (did you mean `protonorm`?)' in text
    assert all(name in text for name in METHODS)
    assert refused(refuse_foreign, {"strategy": "protonrom"}) == text
    assert '"two\\nlines"' in refused(read_settings, {"strategy": "two\nlines"})


def test_only_the_method_that_is_asked_for_is_imported():
    """A deployment starts a process a message. Here one process forgets what it has imported of methods each time."""
    code = (
        "import json, sys; from protosphere import strategies\n"
        "modules = {entry.module.partition(':')[0] for entry in strategies.METHODS.values()}\n"
        "for name, asked in json.loads(sys.argv[1]).items():\n"
        "    strategies.read_settings(asked)\n"
        "    print(name, *(modules & set(sys.modules)))\n"
        "    for module in modules & set(sys.modules):\n"
        "        del sys.modules[module]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(ASKED)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = {words[0]: set(words[1:]) for words in map(str.split, done.stdout.splitlines())}
    assert imported == {name: {module_of(name)} | BUILDS_ON.get(module_of(name), set()) for name in METHODS}


# --- a run's settings ---------------------------------------------------------------------------------------


def test_shared_and_own_settings_are_read():
    run = read_settings({"strategy": "fedproto", "rounds": 3, "fedproto.trim": 0, "fedproto.aggregation": "median"})
    assert run.settings.rounds == 3
    assert run.options[FedProtoSettings] == FedProtoSettings(aggregation="median", trim=0.0)
    assert type(run.options[FedProtoSettings].trim) is float


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"rouns": 3}, ["`rouns`", "did you mean `rounds`?"]),
        ({"learning_rate": 0.1}, ["`learning_rate`", "did you mean `learning-rate`?"]),
        ({"strategy": "fedproto", "fedproto.trm": 0.1}, ["`fedproto.trm`", "did you mean `fedproto.trim`?"]),
        (NORM | {"protonorm.energy_exponent": 1.0}, ["`protonorm.energy_exponent`", "`protonorm.energy-exponent`"]),
        (NORM | {"protonorm.protonorm.gamma": 1.0}, ["`protonorm.protonorm.gamma`"]),
        (NORM | {"protonorm.": 1.0}, ["`protonorm.`"]),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest(config, named):
    for function in (read_settings, refuse_foreign):
        text = refused(function, config)
        assert all(part in text for part in named)


def test_a_setting_of_a_method_that_does_not_exist_is_the_servers_to_refuse():
    # a client imports no other method, so it cannot know
    read_settings({"nomethod.gamma": 1.0})
    assert "`nomethod.gamma`" in refused(refuse_foreign, {"nomethod.gamma": 1.0})


# a run's settings that contradict each other -> what the refusal names; None: they do not
CONTRADICTIONS = [
    ({"strategy": "gfpl", "prototypes-from": "training"}, ['`prototypes-from` is "training"', "`gfpl` uploads"]),
    ({"strategy": "local", "prototypes-from": "training", "inference": "discriminant"}, ["the rule `discriminant`"]),
    ({"strategy": "fedproto", "prototypes-from": "training"}, None),
    ({"strategy": "fedproto", "fedproto.aggregation": "weighted"}, ["`disclose-class-counts` is false", "`fedproto`"]),
    ({"strategy": "fedproto", "fedproto.aggregation": "weighted", "disclose-class-counts": True}, None),
    ({"strategy": "gfpl", "gfpl.weighting": "samples"}, ["`disclose-class-counts` is false", "`gfpl`"]),
    # without pseudo-features nothing is uploaded, so there is nothing to allow
    ({"strategy": "gfpl", "gfpl.weighting": "samples", "gfpl.pseudo-features": 0}, None),
    ({"strategy": "fedcgs"}, ["`encoder` is empty", "`fedcgs`"]),
    ({"strategy": "protosphere", "privacy": "release", "encoder": "random"}, ["`privacy`", "protosphere"]),
    ({"strategy": "protosphere", "encoder": "what"}, ["`encoder`", "'what' is none"]),
    ({"strategy": "protosphere", "inference": "received"}, ["`inference`", "pool"]),
    ({"strategy": "gfpl", "wire-dtype": "float16"}, ['`wire-dtype` is "float16"', "`gfpl` sends mixtures"]),
    ({"strategy": "fedper", "wire-dtype": "float16"}, None),
    ({"strategy": "gfpl", "gfpl.cross-entropy-weight": 0.0}, None),
    *(
        (
            {"strategy": "gfpl", "gfpl.cross-entropy-weight": 0.0} | more,
            ["`gfpl.cross-entropy-weight` 0 leaves no loss"],
        )
        for more in ({"gfpl.dual-classifier": False}, {"gfpl.dot-weight": 0.0})
    ),
    *(
        ({"strategy": name, setting: value, "tinyproto.scaling": False}, [f"`{setting}` {word} scales nothing"])
        for name in ("tinyproto-fp", "tinyproto-ft")
        for setting, value, word in (("tinyproto.mu", 0.01, "0.01"), ("tinyproto.sum", True, "true"))
    ),
]


@pytest.mark.parametrize(("config", "named"), CONTRADICTIONS)
def test_settings_that_contradict_each_other_or_that_no_part_obeys(config, named):
    if named is None:
        read_settings(config)
        return
    text = refused(read_settings, config)
    assert all(words in text for words in named)


# settings, K and d that a method's server does not take -> what the refusal names; None: it takes them
SINGLE = {"strategy": "gfpl", "gfpl.dual-classifier": False}
ROBUST_WAVES = {"fed3r.aggregation": "clipped-mean", "fed3r.random-features": 64, "encoder": "handcrafted"}
UNFIT = [
    ({"strategy": "fed3r"} | ROBUST_WAVES, 10, 64, ["`fed3r.aggregation`", "`fed3r.random-features`"]),
    ({"strategy": "protonorm", "protonorm.alignment": "simplex"}, 10, 8, ["`protonorm.alignment` is simplex", "of 9 "]),
    ({"strategy": "protonorm", "protonorm.alignment": "simplex"}, 10, 9, None),
    (
        {"strategy": "tinyproto-fp", "tinyproto.sparsity-dim": 6},
        3,
        5,
        ["`tinyproto.sparsity-dim` is 6", "5 values"],
    ),
    ({"strategy": "fednh", "fednh.start": "orthogonal"}, 3, 2, ["`fednh.start` is orthogonal", "`feature-dim` of 3"]),
    ({"strategy": "fednh", "fednh.start": "simplex"}, 3, 1, ["`fednh.start` is simplex", "`feature-dim` of 2"]),
    ({"strategy": "gfpl"}, 7, 6, ["`feature-dim` is 6", "(7)"]),
    (SINGLE | {"inference": "etf"}, 4, 6, ['`inference` is "etf"', "`gfpl.dual-classifier`"]),
    ({"strategy": "gfpl"}, 6, 6, None),
    *(
        ({"strategy": name, "client-weights": "equal", "tinyproto.scaling": scaling}, 3, 7, named)
        for name in ("tinyproto-fp", "tinyproto-ft")
        for scaling, named in ((True, ['`client-weights` is "equal"', "`tinyproto.scaling`"]), (False, None))
    ),
]


@pytest.mark.parametrize(("config", "classes", "dim", "named"), UNFIT)
def test_what_a_method_s_server_does_not_take_is_refused_before_any_client_is_met(config, classes, dim, named):
    run = read_settings({"disclose-class-counts": True} | config)
    server = run.method.server(run.settings, run.options)
    if named is None:
        server.check(classes, dim)
        return
    text = refused(lambda asked: server.check(classes, dim), config)
    assert all(words in text for words in named)


def test_whose_schedule_depends_on_the_number_of_rounds():
    assert {name for name in METHODS if load_method(name).fixed_rounds} == {"fedproc", "fedkd", "fraug", "gfpl"}


# --- inference ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_rule_of_the_method_is_taken_and_auto_is_its_own(name):
    method = load_method(name)
    assert read_settings(ASKED[name]).inference == method.inference
    for rule in method.rules:
        assert read_settings(ASKED[name] | {"inference": rule}).inference == rule


@pytest.mark.parametrize(
    ("name", "rule"),
    [("fedproto", "etf"), ("fedproto", ""), ("fedproto", "Classifier"), ("local", "global-prototypes")],
)
def test_a_rule_that_the_method_does_not_have(name, rule):
    text = refused(read_settings, {"strategy": name, "inference": rule})
    assert f'`inference` is "{rule}"' in text
    assert all(known in text for known in ("auto", *load_method(name).rules))


# --- settings of other methods ------------------------------------------------------------------------------


def another(value):
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    return f"not {value}" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("strategy", METHODS)
def test_a_setting_of_another_method_is_refused_unless_it_is_the_default(strategy):
    defaults = everything(strategy=strategy)
    # of each method one, and once all
    for name in OWN if strategy == "local" else {name.partition(".")[0]: name for name in OWN}.values():
        default = defaults[name]
        config = defaults | {name: another(default)}
        if name.rpartition(".")[0] in load_method(strategy).settings:
            refuse_foreign(config)
            continue
        text = refused(refuse_foreign, config)
        assert f"`{name}` is {shown(another(default))}, but `{strategy}` does not read it" in text
        assert f"its default is {shown(default)}" in text
    refuse_foreign(defaults)
