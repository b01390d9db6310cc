"""The registry: settings of a run from Flower's flat configuration, and what is refused before any client is asked."""

import re

import pytest

from protosphere.core.errors import SettingError
from protosphere.strategies import METHODS, load_method, read_settings
from tests.strategies.needs import ASKED


def refused(function, config):
    """The sentence with which a configuration is refused."""
    with pytest.raises(SettingError) as caught:
        function(config)
    text = str(caught.value)
    assert text.endswith(".")
    assert text.isprintable()
    assert not re.search(r"[.!?] +[A-Z]", text)
    return text


# a run's settings that contradict each other -> what the refusal names; None: they do not
CONTRADICTIONS = [
    ({"strategy": "fedproto", "fedproto.trm": 0.1}, ["`fedproto.trm` (did you mean `fedproto.trim`?)"]),
    ({"strategy": "gfpl", "prototypes-from": "training"}, ['`prototypes-from` is "training"', "`gfpl` uploads"]),
    ({"strategy": "local", "prototypes-from": "training", "inference": "discriminant"}, ["the rule `discriminant`"]),
    ({"strategy": "fedproto", "prototypes-from": "training"}, None),
    ({"strategy": "fedproto", "fedproto.aggregation": "weighted"}, ["`disclose-class-counts` is false", "`fedproto`"]),
    ({"strategy": "fedproto", "fedproto.aggregation": "weighted", "disclose-class-counts": True}, None),
    ({"strategy": "fedcgs"}, ["`encoder` is empty", "`fedcgs`"]),
    ({"strategy": "protosphere", "privacy": "release", "encoder": "random"}, ["`privacy`", "protosphere"]),
    ({"strategy": "protosphere", "encoder": "what"}, ["`encoder`", "'what' is not an encoder"]),
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
        ({"strategy": name, setting: value, "tinyproto.scaling": False}, [f"`{setting}` {word} has no effect"])
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
UNFIT = [
    ({"strategy": "protonorm", "protonorm.alignment": "simplex"}, 10, 8, ["`protonorm.alignment` is simplex", "of 9 "]),
    ({"strategy": "protonorm", "protonorm.alignment": "simplex"}, 10, 9, None),
    (
        {"strategy": "tinyproto-fp", "tinyproto.sparsity-dim": 6},
        3,
        5,
        ["`tinyproto.sparsity-dim` is 6", "5 values"],
    ),
    ({"strategy": "fednh"}, 3, 2, ["`feature-dim` is 2", "orthogonal"]),
    ({"strategy": "gfpl"}, 7, 6, ["`feature-dim`", "2 to 6 classes", "have 7"]),
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


def test_a_rule_of_the_method_is_taken_and_auto_is_its_own():
    for name in METHODS:
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
