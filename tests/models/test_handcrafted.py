"""The encoder `handcrafted`: the page's formulas by naive loops and by SciPy, and what it does not depend on."""

import numpy as np
import pytest
import torch
from scipy.fft import dctn

from protosphere.models.encoder import public_encoder
from protosphere.models.handcrafted import CELLS, COLOUR, DIRECTIONS, SIDE, Gradients

D = 24


def pictures(n=3, channels=1, side=SIDE, seed=0):
    coarse = torch.randn(n, channels, 4, 4, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic")


def naive(picture):
    """Of one picture (C, 32, 32): the cells' answers (8, 8, 8), by loops."""
    _, height, width = picture.shape
    answers = np.zeros((DIRECTIONS, height, width))
    for y in range(height):
        for x in range(width):
            found = [
                (
                    channel[y, min(x + 1, width - 1)] - channel[y, max(x - 1, 0)],
                    channel[min(y + 1, height - 1), x] - channel[max(y - 1, 0), x],
                )
                for channel in picture
            ]
            gx, gy = max(found, key=lambda each: each[0] ** 2 + each[1] ** 2)
            for o in range(DIRECTIONS):
                angle = 2 * np.pi * o / DIRECTIONS
                along = max(0.0, gx * np.cos(angle) + gy * np.sin(angle))
                answers[o, y, x] = along**3 / (gx**2 + gy**2 + 1e-12)
    step = SIDE // CELLS
    cells = np.zeros((DIRECTIONS, CELLS, CELLS))
    for row in range(CELLS):
        for column in range(CELLS):
            top, left = row * step - step // 2, column * step - step // 2
            window = answers[:, max(top, 0) : top + 2 * step, max(left, 0) : left + 2 * step]
            cells[:, row, column] = window.sum(axis=(1, 2)) / (2 * step) ** 2
    size = (cells**2).sum(axis=0).mean()
    return np.sqrt(cells / np.sqrt(size + 1e-6))


@pytest.mark.parametrize("channels", [1, 3])
def test_its_gradients_are_those_of_loops_and_its_transforms_scipy_s(channels):
    picture = pictures(1, channels)
    cells = naive(picture[0].double().numpy())
    smooth = dctn(cells, axes=(1, 2), norm="ortho")
    around = np.fft.fft(smooth, axis=0) / np.sqrt(DIRECTIONS)
    # a real transform has each frequency twice, but for the slowest and the fastest
    real = [around[0].real, *(np.sqrt(2) * part for k in (1, 2, 3) for part in (around[k].real, -around[k].imag))]
    whole = np.stack([*real, around[4].real])
    whole /= np.linalg.norm(whole)
    found = Gradients((channels, SIDE, SIDE))(picture)[0].double().numpy()
    mine = np.sort(np.abs(found if channels == 1 else np.delete(found, slice(3, None, 4))))
    # which of a frequency's two waves stands first is not the matter
    expected = np.sort(np.abs(whole.flatten()))[-len(mine) :]
    assert np.allclose(mine[-100:], expected[-100:], atol=2e-4)
    assert np.isclose(found[0], whole[0, 0, 0], atol=1e-5)


def test_its_colours_are_where_they_lie():
    picture = torch.full((1, 3, SIDE, SIDE), -1.0)
    picture[:, 0] = 1.0
    found = Gradients((3, SIDE, SIDE))(picture)[0]
    # red everywhere: no gradients, and the slowest waves of two opponents
    of_colour = found[3::4]
    brightness, red, green = COLOUR * np.array([-1 / np.sqrt(3), 2 / np.sqrt(2), 2 / np.sqrt(6)])
    assert np.allclose(of_colour.abs().sort().values[-3:], np.sort(np.abs([brightness, red, green])), atol=1e-5)
    assert float(np.delete(found.numpy(), slice(3, None, 4)).__abs__().max()) == 0


def test_light_and_contrast_do_not_matter_and_the_first_values_are_those_of_fewer():
    encoder, wide = (public_encoder("handcrafted", (1, 20, 28), dim) for dim in (D, 3 * D))
    rows = pictures(4)[..., :20, :28]
    assert torch.allclose(encoder(rows), encoder(3 * rows - 0.7), atol=1e-4)
    assert torch.equal(wide(rows)[:, :D], encoder(rows))
    assert torch.equal(encoder.together(rows), encoder(rows))
    assert not torch.allclose(encoder(rows), encoder(rows.flip(3)), atol=1e-2)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 64, 48), (4, 7, 9), (1, 1, 1), (5,), (2, 100), (2, 3, 4, 5)])
def test_it_takes_images_of_any_size_and_numbers_of_any_shape(shape):
    found = public_encoder("handcrafted", shape, D)(torch.randn(2, *shape))
    assert found.shape == (2, D)
    assert bool(found.isfinite().all())


def test_numbers_of_all_scales_stay_within_reach_and_token_ids_are_refused():
    encoder = public_encoder("handcrafted", (3,), D)
    rows = torch.tensor([[1e9, 0.0, 1.0], [-1e9, 1.0, 2.0], [0.0, 3.0, 4.0]])
    assert float(encoder(rows).abs().max()) < 100
    assert bool(encoder(torch.zeros(1, 3, dtype=torch.int64)).isnan().all())


def test_sites_whose_images_differ_in_size_have_the_same_encoder_and_scales_of_colour_hide_no_gradients():
    sizes = [public_encoder("handcrafted", (3, side, side), D) for side in (20, 32, 64)]
    assert len({each.fingerprint for each in sizes}) == 1
    rows = pictures(4, 3) / 4
    gradients = [index for index in range(D) if index % 4 != 3]
    found = sizes[1](rows), sizes[1](128 * (rows + 1))
    assert torch.allclose(found[0][:, gradients], found[1][:, gradients], atol=1e-3)
    assert float(found[1].norm(dim=1).max()) < 2
