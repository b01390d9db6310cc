"""SplitModel and how a backbone is brought to d, against the arithmetic written out."""

import torch
from torch import nn

from protosphere.models.split import SplitModel, probe, split


def test_forward_is_the_classifier_after_the_features() -> None:
    model = SplitModel(nn.Flatten(), 12, 5, "relu")
    x = torch.randn(7, 3, 2, 2)
    z = x.flatten(1).clamp(min=0)
    assert torch.equal(model.features(x), z)
    torch.testing.assert_close(model(x), z @ model.classifier.weight.T + model.classifier.bias)


def test_a_feature_map_is_averaged_then_projected_and_a_flat_output_as_it_is() -> None:
    x = torch.randn(6, 3, 9, 10)
    for backbone, flat in ((nn.Identity(), x.mean(dim=(2, 3))), (nn.Flatten(), x.flatten(1))):
        model = split(backbone, (3, 9, 10), 4, 2)
        projection = model.extractor.projection
        torch.testing.assert_close(model.features(x), flat @ projection.weight.T + projection.bias)


def test_probing_keeps_the_mode_and_the_statistics() -> None:
    module = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5)).eval()
    assert probe(module, (3, 8, 9)) == (1, 3, 8, 9)
    assert not module.training
    module.train()
    assert probe(module, (3, 8, 9), module[0]) == (1, 3, 8, 9)
    assert module.training
    assert module[0].num_batches_tracked.item() == 0
