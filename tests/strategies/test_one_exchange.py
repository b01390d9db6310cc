"""What the methods of one exchange in a public encoder's space share."""

import pytest
import torch

from protosphere.strategies.encoder_space import CLASSIFIER, linear_classifier, linear_scores
from tests.strategies.in_space import exchanged, partitions, samples, unit
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


@pytest.mark.parametrize("strategy", ["fedncm", "fed3r", "fedcof", "fedpft", "protosphere"])
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
