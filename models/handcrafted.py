"""The public encoder `handcrafted`: hand-designed features, which need no trained weights.

Of images, oriented gradients (Dalal and Triggs, 2005) and, with three channels, the spatial distribution of colours:

    r_o = max(0, g . e_o)^3 / |g|^2     g the gradient at a pixel, e_o one of 8 directions
    p   = sqrt of r averaged over 8 x 8 overlapping cells, divided by its size over the image
    h   = the cosine transform of p over the cells, the Fourier transform over directions, smoothest first

The first d values of h are the smoothest. For other numeric inputs x, random Fourier features (Rahimi and Recht, 2007)
of asinh x, which handles columns of any scale; token ids are refused.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, normalize

from protosphere.models.seeded import drawn

SIDE, CELLS, DIRECTIONS = 32, 8, 8
OF_COLOUR = 4  # one feature in so many describes colour
COLOUR = 0.5  # weight of colours relative to gradients
SMALL = 1e-6
FOURIER = 256


def handcrafted(input_shape: tuple[int, ...]) -> nn.Module:
    """The features for inputs of this shape, as models take them: (n, *input_shape) to (n, w)."""
    return Gradients(input_shape) if len(input_shape) == 3 else Fourier(math.prod(input_shape))


class Gradients(nn.Module):
    """(n, C, H, W) float32 to (n, 512), or (n, 682) of three channels.

    Attributes:
        ordered: its features are ordered from smooth to fine, and need no mixing.
    """

    ordered = True
    rows: Tensor
    columns: Tensor
    directions: Tensor
    around: Tensor
    cosines: Tensor
    opponents: Tensor
    order: Tensor

    def __init__(self, input_shape: tuple[int, ...]):
        super().__init__()
        channels, height, width = input_shape
        angles = torch.arange(DIRECTIONS) * 2 * math.pi / DIRECTIONS
        around, turns = _fourier(DIRECTIONS)
        self.coloured = channels == 3
        # features do not depend on the input size, so clients with images of other sizes use the same encoder
        self.register_buffer("rows", _resizing(height), persistent=False)
        self.register_buffer("columns", _resizing(width), persistent=False)
        self.register_buffer("directions", torch.stack([angles.cos(), angles.sin()], dim=1))
        self.register_buffer("around", around)
        self.register_buffer("cosines", _cosines(CELLS))
        # brightness; red minus blue; green minus the others
        opponents = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]])
        self.register_buffer("opponents", normalize(opponents, dim=1))
        steps = torch.arange(CELLS)
        across = steps.view(-1, 1) + steps
        gradients = (turns.view(-1, 1, 1) + across).flatten().argsort(stable=True)
        colours = (across + 0.3 * torch.arange(3).view(-1, 1, 1)).flatten().argsort(stable=True)
        self.register_buffer("order", _interleave(gradients, colours) if self.coloured else gradients)

    def forward(self, x: Tensor) -> Tensor:
        """Images from -1 to 1, or any other scale."""
        small = self.rows @ x @ self.columns.T
        down, right = _differences(small.transpose(2, 3)).transpose(2, 3), _differences(small)
        x_, y_ = _strongest(right, down)
        of = self.directions.view(DIRECTIONS, 2, 1, 1)
        along = (x_ * of[:, 0] + y_ * of[:, 1]).clamp_min(0)
        answers = along * along * along / (x_ * x_ + y_ * y_ + SMALL**2)
        cells = avg_pool2d(answers, 2 * SIDE // CELLS, SIDE // CELLS, SIDE // CELLS // 2)
        size = cells.square().sum(dim=1, keepdim=True).mean(dim=(2, 3), keepdim=True)
        smooth = self._smooth((cells / (size + SMALL).sqrt()).sqrt())
        features = normalize(torch.einsum("ts,nsij->ntij", self.around, smooth).flatten(1), dim=1)
        if self.coloured:
            # images outside -1 to 1 would give colour features only
            size = small.square().mean(dim=(1, 2, 3), keepdim=True).sqrt().clamp_min(1)
            colours = avg_pool2d(torch.einsum("oc,ncij->noij", self.opponents, small / size), SIDE // CELLS)
            features = torch.cat([features, COLOUR / CELLS * self._smooth(colours).flatten(1)], dim=1)
        return features[:, self.order]

    def _smooth(self, maps: Tensor) -> Tensor:
        return self.cosines @ maps @ self.cosines.T


class Fourier(nn.Module):
    """cos(W asinh x + b), and asinh x itself: (n, ...) with w numbers per sample, float32, to (n, 256 + w)."""

    directions: Tensor
    shifts: Tensor

    def __init__(self, numbers: int):
        super().__init__()
        drawn_ = drawn(0, lambda: (torch.randn(FOURIER, numbers), torch.rand(FOURIER)))
        self.register_buffer("directions", drawn_[0] / math.sqrt(numbers))
        self.register_buffer("shifts", 2 * math.pi * drawn_[1])

    def forward(self, x: Tensor) -> Tensor:
        """Any numeric input.

        Raises:
            TypeError: token ids.
        """
        if not x.is_floating_point():
            raise TypeError("there are no handcrafted features of texts")
        tamed = x.flatten(1).asinh()
        waves = (tamed @ self.directions.T + self.shifts).cos() * math.sqrt(2)
        return torch.cat([waves, tamed], dim=1)


def _resizing(size: int) -> Tensor:
    """The matrix (SIDE, size) that resizes an axis to SIDE; each output is the mean of the inputs that it covers."""
    return interpolate(torch.eye(size)[None, None], (SIDE, size), mode="bilinear", antialias=True)[0, 0]


def _differences(x: Tensor) -> Tensor:
    """The difference of each pixel's two neighbours along the last axis; at an edge, of the pixel and its neighbour."""
    padded = torch.cat([x[..., :1], x, x[..., -1:]], dim=-1)
    return padded[..., 2:] - padded[..., :-2]


def _strongest(right: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """At each pixel, the gradient of the channel with the largest change, from gradients (n, C, H, W): both (n, 1, H,
    W)."""
    x, y = right[:, :1], down[:, :1]
    # channels are compared in pairs: argmax over such a short axis is very slow
    for channel in range(1, right.shape[1]):
        other_x, other_y = right[:, channel : channel + 1], down[:, channel : channel + 1]
        larger = other_x * other_x + other_y * other_y > x * x + y * y
        x, y = torch.where(larger, other_x, x), torch.where(larger, other_y, y)
    return x, y


def _cosines(n: int) -> Tensor:
    """The orthonormal cosine transform of n values, (n, n), lowest frequency first."""
    rows = torch.cos(math.pi * torch.arange(n).view(-1, 1) * (2 * torch.arange(n) + 1) / (2 * n))
    return normalize(rows, dim=1)


def _fourier(n: int) -> tuple[Tensor, Tensor]:
    """The real orthonormal Fourier transform of n values on a circle, (n, n), and each row's frequency."""
    around = torch.arange(n) * 2 * math.pi / n
    rows, turns = [torch.ones(n)], [0]
    for k in range(1, n // 2 + 1):
        waves = [(k * around).cos(), (k * around).sin()]
        # the sine of the highest frequency is zero everywhere
        rows += waves if 2 * k < n else waves[:1]
        turns += [k] * (2 if 2 * k < n else 1)
    return normalize(torch.stack(rows), dim=1), torch.tensor(turns)


def _interleave(gradients: Tensor, colours: Tensor) -> Tensor:
    """Interleave: the last of every OF_COLOUR features is one of colour, as long as gradients remain."""
    of_gradients = OF_COLOUR - 1
    groups = len(gradients) // of_gradients
    pairs = [gradients[: groups * of_gradients].view(groups, -1), len(gradients) + colours[:groups].view(-1, 1)]
    return torch.cat([torch.cat(pairs, dim=1).flatten(), gradients[groups * of_gradients :]])
