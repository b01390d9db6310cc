"""Flips and crops by naive loops, and what a client's channels are scaled by."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from protosphere.core.errors import DataError
from protosphere.data.augment import augmented, refuse_unfit
from protosphere.data.client_data import InputTransform, by_channels, client_data
from protosphere.data.partition.assignment import DataSpec

IMAGES = torch.randint(1, 256, (40, 2, 9, 17), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def drawn(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("augment", ["flip", "crop", "flip-crop"])
def test_every_image_is_a_flip_or_a_window_of_itself_and_all_of_them_come(augment):
    found = augmented(IMAGES, augment, drawn())
    assert (found.shape, found.dtype) == (IMAGES.shape, IMAGES.dtype)
    seen = set()
    for image, given in zip(found.numpy(), IMAGES.numpy(), strict=True):
        # one pixel of 9, two of 17
        padded = np.pad(given, ((0, 0), (1, 1), (2, 2)))
        made = {}
        for flip in (False, True) if "flip" in augment else (False,):
            whole = padded[:, :, ::-1] if flip else padded
            places = [(1, 2)] if augment == "flip" else [(down, right) for down in range(3) for right in range(5)]
            made |= {(flip, *at): whole[:, at[0] : at[0] + 9, at[1] : at[1] + 17] for at in places}
        matches = [how for how, window in made.items() if np.array_equal(window, image)]
        assert len(matches) == 1
        seen.add(matches[0])
    assert {flip for flip, *_ in seen} == ({False, True} if "flip" in augment else {False})
    if "crop" in augment:
        assert {down for _, down, _ in seen} == {0, 1, 2}
        assert {right for _, _, right in seen} == {0, 1, 2, 3, 4}
    assert torch.equal(found, augmented(IMAGES, augment, drawn()))
    assert not torch.equal(found, augmented(IMAGES, augment, drawn(1)))


@pytest.mark.parametrize("augment", ["flip", "crop", "flip-crop"])
def test_an_image_alone_is_as_likely_to_be_any_of_its_windows(augment):
    image = torch.arange(1, 5, dtype=torch.float32).view(1, 1, 2, 2).repeat(4000, 1, 1, 1)
    found = augmented(image, augment, drawn())
    _, counts = torch.unique(found, dim=0, return_counts=True)
    kinds = {"flip": 2, "crop": 9, "flip-crop": 18}[augment]
    assert len(counts) == kinds
    expected = 4000 / kinds
    assert float(((counts - expected) ** 2 / expected).sum()) < 50


def test_what_it_is_not_for_is_refused():
    for augment, normalise, axes in (("none", True, 1), ("flip", True, 3), ("none", False, 0)):
        refuse_unfit(augment, normalise, axes)
    for augment, normalise, axes in (("flip", False, 1), ("crop", False, 0), ("none", True, 0)):
        with pytest.raises(DataError, match=r"augment|normalise"):
            refuse_unfit(augment, normalise, axes)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(3, 5, 4), (3,), (2, 7)])
def test_channels_are_measured_over_the_training_rows(shape, dtype):
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 200, (3000, *shape)).astype(dtype)
    rows = np.sort(rng.choice(3000, 2500, replace=False))
    mean, std = by_channels(inputs, rows, 255.0)
    for channel in range(shape[0]):
        own = inputs[rows][:, channel].astype(np.float64) / 255
        assert np.allclose((mean[channel], std[channel]), (own.mean(), own.std()), rtol=1e-10)
    assert by_channels(inputs, rows[:0], 1.0) == ((0.0,) * shape[0], (1.0,) * shape[0])
    # far from zero, a float has no digits to lose
    far = (inputs.astype(np.float64) * 1e-3 + 1e6).astype(np.float64)
    assert np.allclose(by_channels(far, rows, 1.0)[1], 1e-3 * 255 * np.array(std), rtol=1e-4)
    same = np.full((10, 2, 3), 0.1)
    assert by_channels(same, np.arange(10), 1.0)[1] == (1.0, 1.0)


def test_a_client_scales_by_its_own_rows_and_an_encoder_gets_them_unscaled(image_folder, tmp_path):
    spec = DataSpec(str(image_folder), 2, "iid", min_samples=1)
    plain = client_data(spec, 0, tmp_path / "cache")
    assert plain.transform == plain.transform.plain == InputTransform(255.0, (0.5,), (0.5,), (1, 6, 6))
    own = [client_data(replace(spec, normalise=True), partition, tmp_path / "cache") for partition in (0, 1)]
    assert own[0].transform != own[1].transform
    assert torch.equal(own[0].train.inputs, plain.train.inputs)
    for data in own:
        seen = data.transform(data.train.inputs).double()
        assert abs(float(seen.mean())) < 1e-5
        assert abs(float(seen.std(correction=0)) - 1) < 1e-5
        assert data.transform.plain == plain.transform
