"""What the methods of one exchange in a public encoder's space share: a row a method, a property a test."""

from dataclasses import replace

import pytest
import torch

from protosphere.core.errors import SettingError
from protosphere.prototypes.weights import Weights
from protosphere.strategies.contract import EVERYONE
from protosphere.strategies.encoder_space import CLASSIFIER
from protosphere.wire.payloads import to_tensors
from tests.payloads import lone
from tests.strategies.in_space import D, K, N, exchanged, halves, partitions, samples, scores_of, unit, upload_of
from tests.strategies.needs import ASKED, FEW
from tests.strategies.sets import same_state

METHODS = ("fedcgs", "fedncm", "fed3r", "fedcof", "fedpft", "protosphere")
# whose clients send in several rounds, where a round has a part of them
SAMPLED = ("fedncm", "fed3r", "fedcof", "fedpft", "protosphere")
GUARDED = ("fedncm", "fed3r", "fedcof", "fedpft")  # with a setting `fewest`


@pytest.mark.parametrize("method", METHODS)
def test_a_class_that_nobody_has_is_never_answered_and_one_that_somebody_has_by_all(method):
    features, labels = samples(classes=K - 1)
    by_class = [(labels == label).nonzero().flatten() for label in range(K - 1)]

    received, objective, _ = exchanged(method, by_class, features, labels, **FEW.get(method, {}))
    scores = scores_of(objective, received, features)

    assert bool(torch.isneginf(scores[:, K - 1]).all())
    assert set(scores.argmax(dim=1).tolist()) == set(range(K - 1))
    assert objective.encoded_scores(None, unit(features)) is None


FEW_SAMPLES = {
    "one sample": (torch.ones(1, D), torch.zeros(1, dtype=torch.int64)),
    "one sample a class": (samples(n=K)[0], torch.arange(K)),
    "the same samples": (torch.ones(20, D), torch.arange(20) % 2),
    "no direction": (torch.full((8, D), torch.nan), torch.arange(8) % 2),
    "a dimension less": (samples()[0] * torch.tensor([1, 1, 1, 1, 0]), samples()[1]),
    "tiny classes": (samples()[0], (torch.arange(N) < 3).long()),
}


@pytest.mark.parametrize("kind", FEW_SAMPLES)
@pytest.mark.parametrize(
    ("method", "settings"), [*((name, FEW.get(name, {})) for name in METHODS), ("fedcgs", {"fedcgs.shrinkage": 0.0})]
)
def test_whatever_samples_there_are_they_are_taken_and_the_classifier_is_finite(method, settings, kind):
    features, labels = FEW_SAMPLES[kind]
    # half of each class at one of two clients
    lists = [torch.arange(len(labels))[place::2] for place in (0, 1)]

    received, objective, _ = exchanged(method, lists, features, labels, **settings)
    scores = scores_of(objective, received, features)

    if scores is None:
        assert kind == "no direction"
        return
    assert not scores.isnan().any()
    assert scores.isfinite().any(dim=1).all()


@pytest.mark.parametrize("aggregation", ["mean", "geometric-median"])
@pytest.mark.parametrize("method", SAMPLED)
def test_where_clients_are_sampled_each_is_heard_once_and_the_order_changes_nothing(method, aggregation):
    """In the first six rounds, by 3 / 0.5."""
    features, labels = samples()
    settings = {"fraction-train": 0.5, f"{method}.aggregation": aggregation} | FEW.get(method, {})
    settings |= {"disclose-class-counts": True} if method == "fed3r" else {}
    server, objective = halves(method, (100,) * 4, **settings)
    uploads = {p: upload_of(objective, features[p::4], labels[p::4]) for p in range(4)}
    whole = server.aggregate(uploads, {}, 1)

    # three hold each class, as robust means need
    first = server.aggregate({p: uploads[p] for p in (3, 1, 0)}, {}, 1)
    # who comes again counts once
    second = server.aggregate({1: uploads[2], 2: uploads[2]}, first.state, 2)
    nobody_new = server.aggregate({3: uploads[3]}, second.state, 3)
    late = server.aggregate({1: uploads[1]}, {}, 6)

    assert second.figures["heard"] == 4
    assert same_state(to_tensors(second.downloads[EVERYONE]), to_tensors(whole.downloads[EVERYONE]))
    assert (nobody_new.keeps, nobody_new.downloads) == (True, {})
    assert not first.warnings
    assert "client 0, client 2, client 3 sent no" in late.warnings[0]


@pytest.mark.parametrize("method", SAMPLED)
def test_clients_send_in_the_first_rounds_alone_and_in_one_where_all_of_them_train(method):
    features, labels = samples()
    up = ("whatever part",)
    for fraction, last in ((0.5, 6), (1.0, 1)):
        server, objective = halves(method, **{"fraction-train": fraction})
        for number, due in ((last, True), (last + 1, False)):
            assert (upload_of(objective, features, labels, number) is not None) == due
            assert server.expected_parts(up, {}, number) == (up if due else ())


@pytest.mark.parametrize("method", GUARDED)
def test_classes_of_fewer_samples_stay_at_home_and_who_sends_none_is_heard(method):
    labels = torch.tensor([0] * 5 + [1] * 4 + [3])
    features, _ = samples(n=10)
    server, objective = halves(method, (4, 10), **{f"{method}.fewest": 5} | FEW.get(method, {}))
    nothing = upload_of(objective, features[5:9], labels[5:9])
    upload = upload_of(objective, features, labels)

    alone = server.aggregate({0: nothing}, {}, 1)
    outcome = server.aggregate({1: upload}, alone.state, 1)
    scores = scores_of(objective, outcome.downloads[EVERYONE], features)

    assert server.contradiction(0, nothing) == ""
    assert outcome.figures["heard"] == 2
    assert scores.isfinite().tolist() == [[True, False, False, False]] * 10
    assert outcome.downloads[EVERYONE][CLASSIFIER].tensors["known"].bool().tolist() == [True, False, False, False]


# --- what no samples have ----------------------------------------------------------------------------------------


def longer(part, name):
    return lambda upload: upload | {part: replace(upload[part], **{name: -15 * getattr(upload[part], name)})}


def of_matrix(part, name, change):
    """The same upload with another matrix among the weights of a part."""

    def lie(upload):
        tensors = upload[part].tensors
        return upload | {part: Weights({**tensors, name: change(tensors[name])})}

    return lie


def unlike_rows(upload):
    means = upload["prototypes"]
    rolled = replace(means, vectors=0.9 * means.vectors.roll(1, 0))
    return of_matrix("moment", "moment", lambda moment: 3 * moment)(upload | {"prototypes": rolled})


def of_mixtures(**factors):
    def lie(upload):
        mixtures = lone(upload)
        changed = {name: change(getattr(mixtures, name)) for name, change in factors.items()}
        return {"mixtures": replace(mixtures, **changed)}

    return lie


LENGTHS, EYE, ABOVE = longer("prototypes", "vectors"), torch.eye(D), torch.ones(D, D).triu(1)
# method, how an honest upload is changed -> what is said of it
IMPOSSIBLE = [
    ("fedncm", LENGTHS, "norm 1 at most"),
    ("protosphere", LENGTHS, "norm 1 at most"),
    ("fedcgs", LENGTHS, "norm 1 at most"),
    ("fedcgs", of_matrix("moment", "moment", lambda moment: 0 * moment), "variance in each direction is at least 0"),
    ("fedcgs", of_matrix("moment", "moment", lambda moment: moment + ABOVE), "symmetric"),
    ("fedcgs", unlike_rows, "add up to 1"),
    ("protosphere", of_matrix("scatter", "scatter", lambda half: -half), "variance in each direction is at least 0"),
    ("protosphere", of_matrix("scatter", "scatter", lambda half: 1e4 * half), "add up to 1"),
    ("fed3r", of_matrix("sums", "gram", lambda gram: 3 * gram), "add up to 1 per sample"),
    ("fed3r", of_matrix("sums", "gram", lambda gram: gram - 0.3 * EYE), "without a negative eigenvalue"),
    ("fed3r", of_matrix("sums", "gram", lambda gram: gram + 0.1 * ABOVE), "symmetric"),
    ("fed3r", of_matrix("sums", "gram", lambda gram: 0.1 * gram), "times as many samples"),
    ("fed3r", of_matrix("sums", "gram", lambda gram: 0 * gram), "times as many samples"),
    ("fed3r", of_matrix("sums", "targets", lambda targets: 2 * targets), "times as many samples"),
    ("fedpft", of_mixtures(means=lambda means: 3 * means), "mean square of unit vectors"),
    ("fedpft", of_mixtures(variances=lambda variances: variances + 0.2), "mean square of unit vectors"),
    ("fedpft", of_mixtures(counts=torch.ones_like), "more components of class 0 than samples"),
]


@pytest.mark.parametrize(("method", "lie", "words"), IMPOSSIBLE)
def test_statistics_that_no_samples_have_are_refused(method, lie, words):
    features, labels = samples()
    settings = {"fedpft.components": 3} if method == "fedpft" else {}
    server, objective = halves(method, (N,), **settings)
    upload = upload_of(objective, features, labels)

    assert server.contradiction(0, upload) == ""
    assert words in server.contradiction(0, lie(upload))


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", GUARDED)
def test_where_no_client_sends_a_class_there_is_no_classifier_and_a_warning_says_why(method):
    features, labels = samples()
    guard = {f"{method}.fewest": 1000}

    received, objective, outcome = exchanged(method, partitions(labels)["in turn"], features, labels, **guard)

    # the first of classes of which none is known would be an answer by nothing
    assert scores_of(objective, received, features) is None
    (warning,) = (text for text in outcome.warnings if "no shared classifier" in text)
    assert f"`{method}.fewest`" in warning


def test_a_run_without_a_shared_classifier_goes_on_and_reports_none(run, metrics):
    settings = ASKED["fedncm"] | {"dataset": "spiral", "rounds": 2, "fedncm.fewest": 1000}
    for line in metrics(run(settings, clients=2)):
        assert not line["problems"]
        assert "encoder" not in line["evaluation"]["rules"]


@pytest.mark.parametrize("method", ["fedcof", "fedcgs"])
def test_a_method_that_needs_unit_vectors_refuses_a_radius(method):
    with pytest.raises(SettingError, match=f"`encoder-radius` is 2.0, but `{method}` works with unit vectors"):
        halves(method, **{"encoder-radius": 2.0})


@pytest.mark.parametrize("method", ["fedncm", "fedcgs", "protosphere"])
def test_a_bound_that_no_classifier_keeps_is_refused_before_anybody_trains(method):
    with pytest.raises(SettingError, match=r"`max-prototype-norm` is 1, but .* of 4 classes needs 20; raise it"):
        halves(method, **{"max-prototype-norm": 1.0})
    halves(method, **{"max-prototype-norm": 20.0})
