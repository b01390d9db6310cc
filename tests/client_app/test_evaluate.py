"""Every prediction rule against loops over single rows, and the discriminant against scikit-learn's."""

import math

import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from protosphere.client_app.evaluate import ROWS_AT_ONCE, Measures, evaluate, features_of, macro_auc, measure
from protosphere.prototypes.prototype_set import PrototypeSet


def seen(rows):
    """What the model sees of rows, row by row."""
    return [((x / 2.0 - 0.5) / 1.5).unsqueeze(0) for x in rows.inputs]


def alone(module, rows):
    """Features of each row by itself, (n, d) float64."""
    with torch.no_grad():
        return torch.stack([module.features(x)[0] for x in seen(rows)]).double()


def trained(parts, **more):
    """A client whose model has seen some training, so that rules differ, with its statistics measured."""
    made = parts(norm=True, **more)
    torch.manual_seed(3)
    optimiser = torch.optim.SGD(made.state.module.parameters(), lr=0.2)
    rows = made.data.train
    for _ in range(20):
        made.state.module.train()
        loss = torch.nn.functional.cross_entropy(made.state.module(torch.cat(seen(rows))), rows.labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    measure(made.objective, made.state, made.data)
    return made


def give_targets(made, labels, seed=11):
    vectors = torch.randn(len(labels), made.settings.feature_dim, generator=torch.Generator().manual_seed(seed))
    made.state.targets = PrototypeSet(torch.tensor(labels), vectors)
    made.state.table = made.state.targets.table(4)
    return dict(zip(labels, vectors.double(), strict=True))


def local_means(made):
    z, labels = alone(made.state.module, made.data.train), made.data.train.labels
    return {label: z[labels == label].mean(dim=0) for label in sorted(set(labels.tolist()))}


def nearest(z, prototypes):
    return [min(prototypes, key=lambda label: math.dist(row.tolist(), prototypes[label].tolist())) for row in z]


def right(answers, rows):
    return sum(answer == label for answer, label in zip(answers, rows.labels.tolist(), strict=True))


def test_each_rule_equals_its_loop_over_rows(parts):
    # 300 test rows: more than go through the model at once
    made = trained(parts, train=(0, 0, 1, 2, 2, 2) * 6, test=(0, 1, 2, 3) * 75, validation=(0, 1, 3) * 5)
    targets = give_targets(made, (0, 2, 3))
    found = evaluate(made.objective, made.state, made.data)
    assert ROWS_AT_ONCE < 300
    assert found.rows == (300, 15)
    train_z = alone(made.state.module, made.data.train)
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1)
    oracle.fit(train_z.numpy(), made.data.train.labels.numpy())
    for split, rows in enumerate((made.data.test, made.data.validation)):
        z = alone(made.state.module, rows)
        with torch.no_grad():
            classifier = [made.state.module(x).argmax().item() for x in seen(rows)]
        expected = {
            "local-prototypes": right(nearest(z, local_means(made)), rows),
            "global-prototypes": right(nearest(z, targets), rows),
            "classifier": right(classifier, rows),
            "discriminant": right(oracle.predict(z.numpy()).tolist(), rows),
            "majority-class": sum(label == 2 for label in rows.labels.tolist()),
        }
        assert {rule: pair[split] for rule, pair in found.correct.items()} == expected
    assert len({pair[0] for pair in found.correct.values()}) > 3, "rules that all agree would hide a mix-up"


def test_confusion_and_area_under_the_curve_are_of_the_rule_that_is_asked_for(parts):
    made = trained(parts, train=(0, 0, 1, 2, 2, 2) * 6, test=(0, 1, 2, 3, 3) * 15)
    measures = Measures("local-prototypes", auc=True, confusion=True)
    found = evaluate(made.objective, made.state, made.data, measures=measures)
    answers = nearest(alone(made.state.module, made.data.test), local_means(made))
    expected = [[0] * 4 for _ in range(4)]
    for true, predicted in zip(made.data.test.labels.tolist(), answers, strict=True):
        expected[true][predicted] += 1
    assert found.confusion == tuple(count for row in expected for count in row)
    assert sum(found.confusion) > found.correct["local-prototypes"][0] > 0, "some are wrong"

    with torch.no_grad():
        probabilities = torch.cat([made.state.module(x) for x in seen(made.data.test)]).double().softmax(dim=1)
    by_classifier = evaluate(made.objective, made.state, made.data, measures=Measures("classifier", auc=True))
    assert by_classifier.auc == pytest.approx(macro_auc(made.data.test.labels, probabilities), abs=1e-6)
    assert by_classifier.auc != found.auc
    assert by_classifier.confusion == ()


@pytest.mark.parametrize(
    ("measures", "lacking"),
    [(Measures(), {}), (Measures("global-prototypes", True, True), {}), (Measures("classifier", True), {"test": ()})],
    ids=["not asked for", "no such rule yet", "no test sample"],
)
def test_what_is_not_asked_for_or_cannot_be_had_is_missing(parts, measures, lacking):
    made = trained(parts, **lacking)
    found = evaluate(made.objective, made.state, made.data, measures=measures)
    assert (found.auc, found.confusion) == (None, ())


def test_where_the_other_rows_of_a_batch_matter_splits_do_not_meet(parts):
    """Batch normalisation without statistics of its own takes those of whatever passes with a row."""
    found = []
    for validation in ((), (3,) * 40):
        made = parts(norm=True, test=(0, 1, 2) * 10, validation=validation)
        norm = made.state.module.extractor[1]
        norm.running_mean = norm.running_var = None
        measure(made.objective, made.state, made.data)
        give_targets(made, (0, 2, 3))
        found.append({rule: pair[0] for rule, pair in evaluate(made.objective, made.state, made.data).correct.items()})
    assert found[0] == found[1]


def test_a_class_that_a_client_does_not_hold_is_never_its_own_rules_answer(parts):
    made = trained(parts, train=(1,) * 6 + (3,) * 3, test=(0, 1, 2, 3) * 10)
    found = evaluate(made.objective, made.state, made.data)
    answers = nearest(alone(made.state.module, made.data.test), local_means(made))
    assert set(answers) <= {1, 3}
    assert found.correct["local-prototypes"][0] == right(answers, made.data.test)
    assert found.correct["discriminant"][0] <= 20
    assert found.correct["majority-class"][0] == 10
    assert "global-prototypes" not in found.correct, "there are no targets"


@pytest.mark.parametrize(("train", "rules"), [((2,), ["local-prototypes", "discriminant", "majority-class"]), ((), [])])
def test_one_training_row_is_enough_for_every_rule_and_none_leaves_classifier_and_targets(parts, train, rules):
    made = parts(train=train, test=(2, 2, 1), validation=(2,))
    measure(made.objective, made.state, made.data)
    give_targets(made, (0, 1, 3))
    found = evaluate(made.objective, made.state, made.data)
    assert set(found.correct) == {"classifier", "global-prototypes", *rules}
    assert all(found.correct[rule] == (2, 1) for rule in rules)


def test_evaluation_changes_nothing_and_depends_on_no_other_row(parts):
    made = trained(parts)
    before = {name: tensor.clone() for name, tensor in made.state.module.state_dict().items()}
    made.state.module.train()  # as an interrupted training would leave it
    first = evaluate(made.objective, made.state, made.data).correct
    assert first == evaluate(made.objective, made.state, made.data).correct
    for name, tensor in made.state.module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    z = features_of(made.objective, made.state, made.data.test, made.data.transform)
    torch.testing.assert_close(z.double(), alone(made.state.module, made.data.test), rtol=1e-5, atol=1e-6)
