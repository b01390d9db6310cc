"""What the methods of one exchange in a public encoder's space share."""

import pytest
import torch

from protosphere.core.errors import SettingError
from protosphere.strategies.encoder_space import CLASSIFIER, linear_classifier, linear_scores
from tests.strategies.in_space import exchanged, halves, partitions, samples, unit
from tests.strategies.needs import ASKED


@pytest.mark.parametrize("strategy", ["fedncm", "fed3r", "fedcof", "fedpft"])
def test_where_no_client_sends_a_class_there_is_no_classifier_and_a_warning_says_why(strategy, run, metrics):
    features, labels = samples()
    received, objective, outcome = exchanged(
        strategy, partitions(labels)["in turn"], features, labels, **{f"{strategy}.fewest": 1000}
    )
    # the first of classes of which none is known would be an answer by nothing
    assert objective.encoded_scores(received, unit(features)) is None
    (warning,) = (text for text in outcome.warnings if "no shared classifier" in text)
    assert f"`{strategy}.fewest`" in warning

    settings = {"strategy": strategy, "dataset": "digits", "encoder": "handcrafted", "rounds": 2}
    settings |= {"disclose-class-counts": True, "max-samples": 200, f"{strategy}.fewest": 1000}
    for line in metrics(run(settings, clients=2)):
        assert "encoder" not in line["evaluation"]["rules"]


@pytest.mark.parametrize("strategy", ["fedncm", "protosphere"])
def test_a_run_that_ends_before_all_were_heard_names_who_is_missing(strategy, run):
    """Three rounds of the twelve in which clients would send."""
    settings = ASKED[strategy] | {"strategy": strategy, "dataset": "digits", "rounds": 3, "fraction-train": 0.25}
    run(settings | {"max-samples": 400}, clients=8)
    (warning,) = (said for said in run.said if "sent no" in said)
    assert "round 3: client " in warning


def test_of_the_classes_that_somebody_sent_one_is_enough():
    weight = torch.eye(3, 4, dtype=torch.float64)
    classifier = linear_classifier(weight, torch.zeros(3), torch.tensor([False, True, False]), 10.0)
    scores = linear_scores({CLASSIFIER: classifier}, CLASSIFIER, torch.ones(1, 4, dtype=torch.float64))
    assert scores.isfinite().tolist() == [[False, True, False]]


@pytest.mark.parametrize("strategy", ["fedcof", "fedcgs"])
def test_a_method_that_needs_unit_vectors_refuses_a_radius(strategy):
    with pytest.raises(SettingError, match=f"`encoder-radius` is 2.0, but `{strategy}` works with unit vectors"):
        halves(strategy, **{"encoder-radius": 2.0})


@pytest.mark.parametrize("strategy", ["fedncm", "fed3r", "fedpft", "protosphere"])
def test_within_a_radius_nothing_that_an_honest_client_sends_is_refused(strategy, run, metrics):
    settings = ASKED[strategy] | {"strategy": strategy, "dataset": "digits", "rounds": 1, "max-samples": 300}
    (_, line) = metrics(run(settings | {"encoder-radius": 3.0}, clients=2))
    assert not [said for said in run.said if "refused" in said]
    assert line["evaluation"]["rules"]["encoder"]["test"]["mean"] > 0.5


@pytest.mark.parametrize("strategy", ["fedncm", "fedcgs", "protosphere"])
def test_a_bound_that_no_classifier_keeps_is_refused_before_anybody_trains(strategy):
    with pytest.raises(SettingError, match=r"`max-prototype-norm` is 1, but .* of 4 classes needs 20; raise it"):
        halves(strategy, **{"max-prototype-norm": 1.0})
    halves(strategy, **{"max-prototype-norm": 20.0})
