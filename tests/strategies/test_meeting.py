"""What a server refuses when it meets its clients, before round 1: weights of another layout, architectures that do not
go together, starts that differ."""

import pytest

from protosphere.core.errors import SettingError
from protosphere.models import build
from protosphere.wire.payloads import Identity
from tests.strategies.kin import D, K, halves_of, lines_of_layouts
from tests.strategies.needs import ASKED


def meet(settings, change=lambda lines: lines, models=("one", "one")):
    """Both clients share what the method's objective does, the second with its layouts changed."""
    server, objective = halves_of(settings["strategy"], settings)
    lines = lines_of_layouts(objective.shared(objective.build(build("tiny_perceptron", (5,), D, K, 3), 3)))
    identities = {}
    for partition, model in enumerate(models):
        own = lines if partition == 0 else change(lines)
        identities[partition] = Identity(partition, 2, model, rows=(9, 0, 0), classes=tuple(range(K)), layouts=own)
    server.meet(K, D, identities)
    return server


def wider(part):
    """The last size of each tensor of a part is another."""

    def change(lines):
        return tuple(line + "9" if line.startswith(f"{part}/") else line for line in lines)

    return change


@pytest.mark.parametrize(
    ("strategy", "part"),
    [
        ("fedgh", "head"),
        ("fedgen", "head"),
        ("fedgen", "generator"),
        ("fraug", "generator"),
        ("fedcgs", "moment"),
        ("fedcgs", "discriminant"),
        ("protosphere", "discriminant"),
        ("fedncm", "classifier"),
    ],
)
def test_a_client_with_another_part_than_the_server_s_is_refused_by_its_layout(strategy, part):
    meet(ASKED[strategy])
    with pytest.raises(SettingError, match=rf'Client 1: it has another {part} \("{part}/.* than the server of'):
        meet(ASKED[strategy], wider(part))


@pytest.mark.parametrize("strategy", ["fml", "fedkd", "fedmrl"])
def test_a_client_with_another_companion_is_refused(strategy):
    settings = ASKED[strategy] | {"models": "tiny_perceptron"}
    meet(settings)
    with pytest.raises(SettingError, match=rf"`{strategy}\.companion`: client 1 has a companion with other tensors"):
        meet(settings, wider("companion"))


@pytest.mark.parametrize(
    "settings",
    [ASKED["fedpa"], ASKED["fesem"], ASKED["fednh"], ASKED["fedfa"], ASKED["fedgen"] | {"fedgen.share": "all"}],
    ids=lambda settings: settings["strategy"],
)
def test_two_architectures_are_refused_where_one_model_is_averaged(settings):
    with pytest.raises(SettingError, match=r"`models` gives clients of different architectures \(one \(1\), other"):
        meet(settings, models=("one", "other"))


def test_two_architectures_are_averaged_apart_where_a_method_can():
    (words,) = meet({"strategy": "fedavg"}, models=("one", "other")).notices
    assert "2 groups of clients" in words
    assert "one (1), other (1)" in words
    # a head alone fits both
    assert meet({"strategy": "lg-fedavg"}, models=("one", "other")).notices == ()
    meet(ASKED["fedgen"], models=("one", "other"))


def test_extractors_that_start_apart_are_refused_and_heads_alone_are_not():
    with pytest.raises(SettingError, match="`shared-init` is false, but `fedavg` averages extractors"):
        meet({"strategy": "fedavg", "shared-init": False})
    meet({"strategy": "lg-fedavg", "shared-init": False})
