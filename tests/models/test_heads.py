"""The heads on every kind of model, against their arithmetic written out; what anchoring overwrites; a fixed frame."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize

from protosphere import models
from protosphere.models.heads import ConsensusModel, DualClassifierModel
from protosphere.prototypes.etf import simplex_etf
from protosphere.prototypes.prototype_set import PrototypeSet

D = 6
K = 4


def consensus(seed: int = 0, dropout: float = 0.1, activation: str = "linear") -> ConsensusModel:
    model = models.build("tiny_perceptron", (1, 8, 8), D, K, 1, activation)
    return ConsensusModel(model, seed, dropout)


def images(rows: int = 7, seed: int = 0) -> Tensor:
    return torch.randn(rows, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def prototypes(*labels: int, dim: int = D) -> PrototypeSet:
    vectors = torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(5))
    return PrototypeSet(torch.tensor(labels, dtype=torch.int64), vectors)


def test_features_are_the_arithmetic_written_out() -> None:
    model = consensus().eval()
    x = images()
    z = model.model.extractor(x)
    wide = layer_norm(z @ model.head.widen.weight.T + model.head.widen.bias, (2 * D,)).clamp(min=0)
    out = layer_norm(wide @ model.head.narrow.weight.T + model.head.narrow.bias, (D,))
    expected = out / out.norm(dim=1, keepdim=True)
    torch.testing.assert_close(model.features(x), expected)
    torch.testing.assert_close(model(x), expected @ model.classifier.weight.T + model.classifier.bias)
    assert torch.equal(model(x), model.classify(model.features(x)))


@pytest.mark.parametrize("labels", [(0, 2), ()])
def test_anchoring_overwrites_the_classes_given_and_the_whole_bias_in_place(labels: tuple[int, ...]) -> None:
    model = consensus().eval()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    weight, bias = model.classifier.weight, model.classifier.bias
    before = weight.detach().clone()
    assert bias.any()
    given = prototypes(*labels) if labels else PrototypeSet.empty(D)
    vectors = given.vectors.clone()
    model.anchor(given.with_vectors(40 * given.vectors.double()))
    assert (model.classifier.weight is weight, model.classifier.bias is bias) == (True, True)
    torch.testing.assert_close(weight[list(labels)], normalize(vectors, dim=1))
    others = [label for label in range(K) if label not in labels]
    assert torch.equal(weight[others], before[others])
    assert not bias.any()
    assert torch.equal(given.vectors, vectors)
    # the logits are cosines, and an optimiser that was made before trains on
    cosines = nn.functional.cosine_similarity(model.features(images())[:, None], vectors[None], dim=2)
    logits = model(images())
    torch.testing.assert_close(logits[:, list(labels)], cosines)
    anchored = weight.detach().clone()
    nn.functional.cross_entropy(logits, torch.arange(7) % K).backward()
    optimiser.step()
    assert (weight != anchored).any(dim=1).all()


def test_features_without_a_length_and_a_prototype_of_zeros_give_no_nan() -> None:
    model, two = consensus(dropout=0.0), dual()
    nn.init.zeros_(model.head.norm.weight)
    model.anchor(PrototypeSet(torch.tensor([1]), torch.zeros(1, D)))
    assert not model.classifier.weight[1].any()
    z = model.features(images())
    assert torch.equal(z, torch.zeros(7, D))
    nn.functional.cross_entropy(model.classify(z), torch.arange(7) % K).backward()
    for parameter in two.projection.parameters():
        nn.init.zeros_(parameter)
    h = two.project(two.features(images()))
    assert torch.equal(h, torch.zeros(7, D))
    (h @ two.frame.T).sum().backward()
    assert all(p.grad.isfinite().all() for p in (*model.parameters(), *two.projection.parameters()))


# --- GFPL's two classifiers ---------------------------------------------------------------------------------------


def dual(seed: int = 0, activation: str = "linear") -> DualClassifierModel:
    model = models.build("tiny_perceptron", (1, 8, 8), D, K, 1, activation)
    return DualClassifierModel(model, simplex_etf(K, D, 7), seed)


def test_both_classifiers_are_the_arithmetic_written_out() -> None:
    model, x = dual(activation="relu").eval(), images()
    z = model.model.extractor(x).clamp(min=0)
    torch.testing.assert_close(model.features(x), z)
    logits = z @ model.model.classifier.weight.T + model.model.classifier.bias
    torch.testing.assert_close(model.classify(z), logits)
    torch.testing.assert_close(model(x), logits)
    projected = z @ model.projection.weight.T + model.projection.bias
    torch.testing.assert_close(model.project(z), projected / projected.norm(dim=1, keepdim=True))


def test_the_frame_is_no_parameter_and_in_no_state() -> None:
    model = dual()
    assert "frame" not in dict(model.named_parameters())
    assert not any("frame" in key for key in model.state_dict())
    assert model.frame.dtype == torch.float32
    assert torch.equal(model.frame, simplex_etf(K, D, 7).float())
    # where the model goes it goes, too
    assert model.double().frame.dtype == torch.float64
