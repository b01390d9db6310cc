"""Builds a SplitModel from a model name or family: built-in models, torchvision classifiers, text encoders, or a user's
own.

torchvision and transformers are imported only for their own models: a deployment starts a process per message.
"""

import difflib
import inspect
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from protosphere.core import objects, plugins
from protosphere.core.errors import ModelError, words_of
from protosphere.models.small import FLAT, SMALL
from protosphere.models.split import POOLED, SplitModel, keep_layout, probe, split
from protosphere.models.text import encoder_name, reads_text, same_inputs, seed_name, text_backbone, told_name

if __name__ == "models":
    raise ImportError("this is protosphere.models: import it by that name; a models/ of your own needs an __init__.py")

__all__ = [
    "FAMILIES",
    "ModelError",
    "SplitModel",
    "build",
    "check_model",
    "model_for",
    "model_names",
    "reads_text",
    "same_inputs",
    "seed_name",
    "told_name",
]

USUAL = "model"  # the name of a file's callable if the setting names none
FAMILIES: dict[str, tuple[str, ...]] = {
    "tiny": ("tiny_perceptron", "tiny_cnn", "tiny_cnn4", "tiny_resnet"),
    "papers-protonorm": ("resnet8", "efficientnet_b0", "shufflenet_v2_x1_0", "mobilenet_v2"),
    "papers-fedpagr": ("cnn2", "perceptron", "resnet18", "googlenet", "mobilenet_v2"),
    "papers-clinical": tuple(f"hf:emilyalsentzer/Bio_ClinicalBERT?trainable={layers}" for layers in (0, 2, 4)),
}
SMALLEST_SIDE = 8  # pixels


def model_names(models: str) -> tuple[str, ...]:
    """The model names that the setting `models` stands for.

    Args:
        models: comma-separated names and families; a name that is listed twice is assigned twice.

    Raises:
        ModelError: an unknown name, or none at all. For a `package.module:callable`, only the form is checked here;
            `build` imports it, because only the client that trains it must have it.
    """
    items = [name.strip() for name in models.split(",") if name.strip()]
    if not items:
        raise ModelError(f"models is {models!r}, which names no model; give a family ({', '.join(FAMILIES)}) or names.")
    names = tuple(name for item in items for name in FAMILIES.get(item, (item,)))
    for name in names:
        _check_name(name)
    return names


def model_for(models: str, partition: int) -> str:
    """The model of one client: the names of `model_names`, assigned round-robin by partition.

    Raises:
        ModelError: as for `model_names`.
    """
    names = model_names(models)
    return names[partition % len(names)]


def check_model(name: str) -> None:
    """Refuse a model that no client on this machine can train.

    Raises:
        ModelError: an unknown name, a family, or a `package.module:callable` that cannot be imported or called.
    """
    _check_name(name)
    if plugins.is_plugin(name) and not reads_text(name):
        _user_callable(name)


def build(
    name: str,
    input_shape: tuple[int, ...],
    feature_dim: int,
    num_classes: int,
    seed: int,
    feature_activation: str = "linear",
) -> SplitModel:
    """Build a model on the CPU; the same arguments give the same weights to the bit, in every process.

    Args:
        name: one of ours, a torchvision classifier constructor, also with `?pool` after it, `hf:<hub id or path>`
            (text.py), `package.module:callable` or `./file.py:callable` (`model` unless it is named). That is called
            with those of input_shape, num_classes and feature_dim that it accepts, and returns a SplitModel, or a
            backbone that `split` completes.
        input_shape: (C, H, W) with sides of 8 pixels or more, (F,) for flat rows, (max-tokens,) for texts; any other
            for a callable, or a perceptron, which flattens it.
        feature_dim: d. num_classes: K.
        seed: of torch's CPU generator while the model is built; its state outside is left as it was.
        feature_activation: "linear" or "relu" on z; it holds for a callable's SplitModel, too.

    Raises:
        ModelError: an unknown name, a model and an input that do not fit, a callable that is not available or gives
            other widths than asked.
    """
    _check_name(name)
    _check_input(input_shape, any_shape=name in FLAT or plugins.is_plugin(name))
    with torch.random.fork_rng(devices=[]):
        make = _maker(name, input_shape, feature_dim, num_classes)
        try:
            # After the imports, which may draw random numbers. torch.manual_seed would also reseed the GPUs.
            torch.default_generator.manual_seed(seed)
            network = make()
            if not isinstance(network, nn.Module):
                raise ModelError(f"it returns a {type(network).__name__}; let it return a torch module.")
            _refuse_other_types(network)
            if not isinstance(network, SplitModel):
                pools = name.endswith(POOLED)
                network = split(network, input_shape, feature_dim, num_classes, feature_activation, pools)
            else:
                _check_widths(network, input_shape, feature_dim, num_classes)
            if len(input_shape) == 3 and plugins.is_plugin(name):
                keep_layout(network, input_shape)
        except Exception as error:
            problem = words_of(error)
            reason = f"{problem}." if isinstance(error, ModelError) else f"{problem}; {_remedy(name)}"
            raise ModelError(f"model {name!r} does not fit inputs of shape {input_shape}: {reason}") from error
    network.feature_activation = feature_activation
    network.input_shape = input_shape
    return network


def _check_name(name: str) -> None:
    """Raise ModelError unless `name` is a model's."""
    if name in SMALL or any(name in members for members in FAMILIES.values()):
        return
    if name in FAMILIES:
        raise ModelError(f"{name!r} is a family; one client's model is one of {', '.join(FAMILIES[name])}.")
    if reads_text(name):
        encoder_name(name)
        return
    if ":" in name or plugins.is_file(name):
        if not plugins.is_plugin(name):
            raise ModelError(
                f"model {name!r} is not of the form package.module:callable, ./file.py or ./file.py:callable.",
            )
        return
    from protosphere.models.vision import classifier_names

    if name.removesuffix(POOLED) not in classifier_names():
        near = difflib.get_close_matches(name, [*SMALL, *FAMILIES, *classifier_names()], n=1, cutoff=0.0)[0]
        raise ModelError(
            f"model {name!r} is unknown; the nearest is {near!r}. Allowed are {', '.join(SMALL)}, the families "
            f"{', '.join(FAMILIES)}, torchvision's classifiers, hf:<encoder>, package.module:callable and "
            "./file.py:callable.",
        )


def _check_input(input_shape: tuple[int, ...], any_shape: bool) -> None:
    """Raise ModelError unless the shape is that of an image or a vector, or `any_shape` allows another."""
    image = len(input_shape) == 3 and min(input_shape[1:]) >= SMALLEST_SIDE
    other = any_shape and len(input_shape) not in (0, 3)
    if not (image or other or len(input_shape) == 1) or min(input_shape) < 1:
        raise ModelError(
            f"inputs have shape {input_shape}; a model takes images (channels, height, width) of at least "
            f"{SMALLEST_SIDE}x{SMALLEST_SIDE} pixels, or flat vectors (features,); tensors of another number of axes, "
            "one that you write, or a perceptron.",
        )


def _maker(name: str, input_shape: tuple[int, ...], feature_dim: int, num_classes: int) -> Callable[[], object]:
    """The function that builds the backbone, or a callable's SplitModel."""
    if name in SMALL:
        return partial(SMALL[name], input_shape)
    if reads_text(name):
        return partial(text_backbone, name, input_shape)
    if not plugins.is_plugin(name):
        from protosphere.models.vision import vision_backbone

        return partial(vision_backbone, name.removesuffix(POOLED), input_shape)
    make = _user_callable(name)
    return partial(
        make, **_accepted(make, {"input_shape": input_shape, "num_classes": num_classes, "feature_dim": feature_dim})
    )


def _accepted(make: Callable[..., object], keywords: dict[str, object]) -> dict[str, object]:
    """The keyword arguments that a callable accepts; a network of fixed size needs none."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return keywords
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return keywords
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in keywords.items() if name in names}


def _user_callable(name: str) -> Callable[..., object]:
    """The callable that `package.module:callable` or a file names; importing it may draw random numbers."""
    try:
        plugin = plugins.load(name, USUAL)
    except ModelError as error:
        if objects.is_object(name):
            raise
        raise ModelError(f"model {str(error).rstrip('.')}; {_remedy(name)}") from error
    if not callable(plugin):
        raise ModelError(
            f"model {name!r} is of type {type(plugin).__name__}, which cannot be called; {_remedy(name)}",
        )
    make: Callable[..., object] = plugin
    return make


def _refuse_other_types(network: nn.Module) -> None:
    """Refuse weights in a precision other than that of inputs, prototypes and other clients' weights."""
    types = {tensor.dtype for tensor in network.parameters() if tensor.is_floating_point()} - {torch.float32}
    if types:
        name = str(types.pop()).removeprefix("torch.")
        raise ModelError(
            f"its weights are {name}, but a client trains in float32; return the module in float32, without .half() or "
            'similar calls (on a GPU precision = "bf16" computes in bfloat16).'
        )


def _check_widths(model: SplitModel, input_shape: tuple[int, ...], feature_dim: int, num_classes: int) -> None:
    """Check d and K of a SplitModel that a callable returned."""
    width = probe(model, input_shape, model.features)
    if width != (1, feature_dim):
        raise ModelError(
            f"its features have shape {width} for one input, but feature-dim asks for {(1, feature_dim)}; give "
            "the extractor's last layer the feature_dim outputs that the callable gets, or change feature-dim.",
        )
    width = probe(model, input_shape)
    if width != (1, num_classes):
        raise ModelError(
            f"its logits have shape {width} for one input, but the data's classes ask for {(1, num_classes)}; "
            "give the classifier the num_classes outputs that the callable gets.",
        )


def _remedy(name: str) -> str:
    """The remedy for an error that torchvision, transformers or a user's code raised."""
    if reads_text(name):
        return "use a text encoder, one that makes hidden states of token ids alone."
    if plugins.is_plugin(name):
        return (
            "the callable must be importable where the client runs and need no arguments but the keywords "
            "input_shape, num_classes and feature_dim."
        )
    return "use larger images or another model."
