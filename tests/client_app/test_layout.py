"""Memory layouts that a user's model may take for granted."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from protosphere.client_app.store import new_state
from protosphere.models import build
from protosphere.strategies import read_settings
from protosphere.strategies.contract import Batch


class _Tutorial(nn.Module):
    """As PyTorch's own example of MNIST once had it."""

    def __init__(self, channels: int):
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, 4, 3), nn.Conv2d(4, 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(torch.relu(self.first(x)))
        return x.view(x.size(0), -1)


def tutorial(input_shape: tuple[int, ...], num_classes: int, feature_dim: int) -> nn.Module:
    """For `build` to call."""
    return _Tutorial(input_shape[0])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("method", ["fedproto", "gfpl", "ditto"])
def test_a_model_that_views_what_a_convolution_gives_is_trained_in_the_layout_that_it_wants(
    channels: int, method: str
) -> None:
    shape = (channels, 8, 8)
    plain = build(f"{__name__}:tutorial", shape, 4, 3, 0)
    run = read_settings({"strategy": method, "feature-dim": 4})
    objective = run.method.objective(run.settings, run.options, 3)
    state = new_state(objective, f"{__name__}:tutorial", shape, 0, torch.device("cpu"))
    images = torch.randn(6, *shape).to(memory_format=torch.channels_last)
    loss = objective.loss(state, Batch(images, torch.tensor([0, 1, 2] * 2)), objective.phases(state, 1)[0], 1)
    loss.total.backward()
    untouched = deepcopy(plain)
    untouched.extractor._forward_pre_hooks.clear()
    expected = untouched.features(images.clone(memory_format=torch.contiguous_format))
    assert torch.equal(plain.features(images), expected)
    with pytest.raises(RuntimeError, match="view"):
        untouched.features(images)
