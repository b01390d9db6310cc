"""Public encoders: frozen, one row at a time, the same wherever they lie; what is none, or not the same twice."""

import pytest
import torch
from torch import nn

from protosphere.core.errors import ModelError
from protosphere.core.plugins import load
from protosphere.models.encoder import Encoder, check_encoder, public_encoder

IMAGE, FLAT, D = (3, 12, 12), (7,), 5
OWN = """
import torch
from torch import nn

def encoder(input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(input_shape).numel(), 4), nn.Dropout(0.5))

def counting(input_shape):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))
        def forward(self, x):
            self.seen += 1
            return x.flatten(1) + self.seen
    return Counting()

def noisy(input_shape):
    import random
    class Noisy(nn.Module):
        def forward(self, x):
            return x.flatten(1) * random.random()
    return Noisy()

def dropping(input_shape):
    class Dropping(nn.Module):
        def forward(self, x):
            if x.sum() > 1e6:
                raise RuntimeError("too bright")
            return torch.nn.functional.dropout(x.flatten(1))
    return Dropping()

def words(input_shape):
    return "no module"

def deep(input_shape):
    return nn.Unflatten(1, (1, 1, 1, 3))

number = 7
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "here" / "mine.py"
    path.parent.mkdir()
    path.write_text(OWN)
    return str(path)


@pytest.mark.parametrize("shape", [IMAGE, (1, 8, 8), FLAT])
def test_the_random_encoder_is_the_same_everywhere_and_leaves_torchs_state(shape):
    rows = torch.randn(9, *shape, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(3)
    state = torch.get_rng_state()
    encoder = public_encoder("random", shape, D)
    found = encoder(rows)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    again = public_encoder("random", shape, D)
    assert found.shape == (9, D)
    assert (again.fingerprint, True) == (encoder.fingerprint, torch.equal(again(rows), found))
    assert public_encoder("random", shape, D + 1).fingerprint != encoder.fingerprint
    # a row is its own, in any batch and order
    assert torch.equal(encoder(rows.flip(0)).flip(0), found)
    assert all(torch.equal(encoder(row[None])[0], u) for row, u in zip(rows, found, strict=True))
    assert encoder(rows[:0]).shape == (0, D)


def test_a_file_of_ones_own_is_in_eval_mode(own, tmp_path):
    encoder, rows = public_encoder(own, FLAT, D), torch.randn(3, *FLAT)
    with torch.no_grad():
        features = encoder.network[1](rows)
    assert torch.allclose(encoder(rows), features @ encoder.mixing.T, atol=1e-5)
    moved = tmp_path / "elsewhere" / "mine.py"
    moved.parent.mkdir()
    moved.write_text(OWN)
    assert public_encoder(str(moved), FLAT, D).fingerprint == encoder.fingerprint
    assert not any(parameter.requires_grad for parameter in encoder.network.parameters())


def test_a_row_that_it_fails_on_counts_without_a_direction_and_draws_are_the_same_for_each(own):
    encoder = public_encoder(f"{own}:dropping", FLAT, D)
    rows = torch.ones(3, *FLAT)
    rows[1] *= 1e7
    found = encoder(rows)
    assert found[1].isnan().all()
    assert torch.equal(found[0], found[2])


def test_a_model_that_trains_the_same_network_does_not_train_the_encoder(tmp_path):
    file = tmp_path / "shared.py"
    file.write_text(
        "from torch import nn\nNETWORK = nn.Sequential(nn.Linear(7, 4), nn.BatchNorm1d(4))\n"
        "def encoder(input_shape):\n    return NETWORK\n"
    )
    encoder, rows = public_encoder(str(file), FLAT, D), torch.randn(3, *FLAT)
    before = encoder(rows)
    network = load(str(file), "encoder")(FLAT)
    assert all(parameter.requires_grad for parameter in network.parameters())
    network.train()(torch.randn(32, *FLAT) * 9)
    assert torch.equal(encoder(rows), before)


@pytest.mark.parametrize("name", ["counting", "noisy", "words", "deep", "number", "missing"])
def test_what_is_no_encoder_is_refused(own, name):
    with pytest.raises(ModelError):
        public_encoder(f"{own}:{name}", FLAT, D)


def test_on_a_device_of_its_own_it_gives_the_same(own):
    """The path of a GPU, walked on the CPU: features of a copy of the network, all at once."""
    encoder, rows = public_encoder("random", IMAGE, D), torch.randn(4, *IMAGE)
    other = torch.device("meta")
    # where the other device gives nothing that could be compared, samples are read one at a time
    assert torch.equal(encoder.together(rows, other), encoder(rows))
    assert torch.allclose(encoder.together(rows), encoder(rows), atol=1e-5)


@pytest.mark.parametrize("name", ["", "resnet18", "resnet18@/weights.pth", "Random", "a b"])
def test_what_names_none_is_refused(name):
    with pytest.raises(ModelError):
        check_encoder(name)


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
PATCHES = SMALL | {"image_size": 16, "patch_size": 8}


@pytest.fixture
def hub(tmp_path):
    """hub(kind) -> the name of a small random encoder of pictures, or of CLIP, saved with its image processor."""
    transformers = pytest.importorskip("transformers")

    def save(kind):
        torch.manual_seed(0)
        place, whole = tmp_path / kind, {"height": 16, "width": 16}
        if kind == "vit":
            network = transformers.ViTModel(transformers.ViTConfig(**PATCHES))
            processor = transformers.ViTImageProcessor(size=whole, image_mean=[0.2] * 3, image_std=[0.7] * 3)
        elif kind == "resnet":
            config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
            network = transformers.ResNetModel(config)
            processor = transformers.ViTImageProcessor(size=whole)
        else:
            config = transformers.CLIPConfig(text_config=SMALL | {"vocab_size": 50}, vision_config=PATCHES)
            network = transformers.CLIPModel(config)
            processor = transformers.CLIPImageProcessor(size={"shortest_edge": 20}, crop_size=16)
        network.save_pretrained(place)
        processor.save_pretrained(place)
        return f"hf:{place}", network.eval()

    return save


@pytest.mark.parametrize(("kind", "shape"), [("vit", (1, 8, 8)), ("resnet", (3, 12, 14)), ("clip", (3, 16, 16))])
def test_an_encoder_of_pictures_sees_what_its_image_processor_would_give(hub, kind, shape):
    name, network = hub(kind)
    encoder = public_encoder(name, shape, D)
    rows = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    found = encoder(rows)
    mean, std = (encoder.network.mean.flatten(), encoder.network.std.flatten())
    assert mean[0] == pytest.approx({"vit": 0.2, "resnet": 0.5, "clip": 0.48145466}[kind])
    seen = nn.functional.interpolate(rows.expand(-1, 3, -1, -1), (16, 16), mode="bilinear", antialias=True)
    seen = ((seen + 1) / 2 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    with torch.no_grad():
        half = network.vision_model if kind == "clip" else network
        hidden = half(pixel_values=seen).last_hidden_state
        features = hidden.flatten(2).mean(dim=2) if kind == "resnet" else hidden.mean(dim=1)
    torch.testing.assert_close(found, features @ encoder.mixing.T, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(encoder(row[None])[0], u) for row, u in zip(rows, found, strict=True))
    # only the folder's own name is told
    assert "/" not in encoder.name.removeprefix("hf:")


def test_an_encoder_of_pictures_that_is_none_or_not_whole_is_refused(hub, tmp_path):
    name, _ = hub("vit")
    place = tmp_path / "vit"
    for shape in ((2, 8, 8), FLAT):
        with pytest.raises(ModelError):
            public_encoder(name, shape, D)
    processor = (place / "preprocessor_config.json").read_bytes()
    (place / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match="cannot be loaded"):
        public_encoder(name, IMAGE, D)
    (place / "preprocessor_config.json").write_bytes(processor)
    encoders = pytest.importorskip("tests.models.encoders")
    encoders.save_encoder(place)
    with pytest.raises(ModelError, match="does not take images"):
        public_encoder(name, IMAGE, D)


def test_a_network_that_gives_other_features_in_a_batch_gets_one_row_at_a_time():
    class Centred(nn.Module):
        def forward(self, x):
            h = x.flatten(1)
            return h - h.mean(dim=0) if len(h) > 1 else h

    encoder, rows = Encoder("own", Centred(), FLAT, D), torch.randn(5, *FLAT)
    assert torch.equal(encoder.together(rows), encoder(rows))


def test_a_site_that_has_a_hub_s_encoder_in_a_folder_has_the_same(hub, cached, tmp_path, monkeypatch):
    name, _ = hub("vit")
    cached("owner/vit", tmp_path / "vit")
    monkeypatch.chdir(tmp_path)
    found = {public_encoder(each, IMAGE, D).fingerprint for each in ("hf:owner/vit", "hf:./vit", name)}
    assert len(found) == 1
