"""A trained client's model for use outside: one file with the program, what it means, and its prototypes.

The program takes inputs as they are (an image's pixels from 0 to 255) and needs no part of this project. Its rules are
those of `prototypes/`, in operations that every format of programs has.
"""

import base64
import importlib
import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from protosphere.core.errors import SettingError
from protosphere.core.files import replacing
from protosphere.data.client_data import InputTransform
from protosphere.data.forms.tabular import MISSING, NUMBER, Column
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.serving.predict import PIXEL, Trained
from protosphere.strategies.encoder_space import directions
from protosphere.strategies.release import POOL, RULE

FORMATS = {"torch": ".pt2", "onnx": ".onnx"}  # and how a file's name ends, which torch.export.load insists on
METADATA = "metadata.json"
# the formats hold text alone beside their programs
PROTOTYPES = "prototypes.safetensors.base64"
OUTPUTS = ["scores", "features"]


class Program(nn.Module):
    """inputs (n, C, H, W) float32, pixels from 0 to 255, or (n, F) numbers -> scores (n, K) and features (n, d), both
    float32; a class that the rule does not know scores -inf."""

    mean: Tensor
    std: Tensor
    plain_mean: Tensor
    plain_std: Tensor

    def __init__(self, trained: Trained, rule: str) -> None:
        super().__init__()
        trained, rule = trained.judged_by(rule)
        transform = _numbers(trained)
        shape = (-1, *(1,) * (len(transform.shape) - 1))
        self.register_buffer("mean", torch.tensor(transform.mean).view(shape))
        self.register_buffer("std", torch.tensor(transform.std).view(shape))
        self.register_buffer("plain_mean", torch.tensor(transform.plain.mean).view(shape))
        self.register_buffer("plain_std", torch.tensor(transform.plain.std).view(shape))
        self.scale, self.pixels = transform.scale, transform.pixels
        self.filled = bool(transform.columns)
        self.network = trained.state.module
        self._objective, self._state = trained.objective, trained.state
        self.public = Public(trained) if rule in (RULE, POOL) and trained.judge else None
        self.head = _head(trained, rule) if self.public is None else None
        self.pooled = rule == POOL

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and features of a batch."""
        # to the levels of the training images, where those had fewer than 256
        stored = torch.round(inputs * (self.scale / PIXEL)) if self.pixels else inputs
        prepared = self._prepare(stored, self.mean, self.std)
        z = self._objective.features(self._state, prepared).float()
        if self.head is not None:
            return self.head(z).float(), z
        assert self.public is not None
        # a public encoder sees no figures of a client's rows
        encoded = self.public(self._prepare(stored, self.plain_mean, self.plain_std))
        if self.pooled:
            encoded = self._objective.pooled(self._state, z, encoded)
        return encoded.float(), z

    def _prepare(self, stored: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        prepared = (stored / self.scale - mean) / std
        return torch.where(prepared.isnan(), torch.zeros_like(prepared), prepared) if self.filled else prepared


class Nearest(nn.Module):
    """As `protosphere.prototypes.prediction.nearest_scores`."""

    vectors: Tensor
    present: Tensor

    def __init__(self, vectors: Tensor, present: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors)
        self.register_buffer("present", present)

    def forward(self, z: Tensor) -> Tensor:
        """(n, d) -> (n, K)."""
        return torch.where(self.present, -_squares(z, self.vectors).sqrt(), -torch.inf)


class Discriminant(nn.Module):
    """As `protosphere.prototypes.prediction.discriminant_scores`, its covariance inverted once."""

    whitening: Tensor
    centres: Tensor
    frequencies: Tensor

    def __init__(self, prototypes: PrototypeSet, covariance: Tensor, num_classes: int) -> None:
        super().__init__()
        assert prototypes.counts is not None
        factor = torch.linalg.cholesky(covariance.double())
        identity = torch.eye(len(factor), dtype=torch.float64, device=factor.device)
        whitening = torch.linalg.solve_triangular(factor, identity, upper=False).T
        vectors = prototypes.to(dtype=torch.float64).table(num_classes)[0]
        counts = torch.zeros_like(vectors[:, 0])
        counts[prototypes.labels] = prototypes.counts.double()
        self.register_buffer("whitening", whitening)
        self.register_buffer("centres", vectors @ whitening)
        # -inf of an absent class
        self.register_buffer("frequencies", (counts / counts.sum()).log())

    def forward(self, z: Tensor) -> Tensor:
        """(n, d) -> (n, K) float64."""
        return self.frequencies - _squares(z.double() @ self.whitening, self.centres) / 2


class Public(nn.Module):
    """The rule `encoder`: the public encoder itself, which goes into the program, and what judges its directions."""

    mixing: Tensor
    centre: Tensor

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        assert trained.judge is not None
        encoder = trained.judge.encoder()
        self.network, self._scores = encoder.network, trained.judge.scores
        self._radius = trained.objective.settings.encoder_radius
        self.register_buffer("mixing", encoder.mixing)
        self.register_buffer("centre", encoder.centre)

    def forward(self, inputs: Tensor) -> Tensor:
        """Of inputs as models take them: (n, K)."""
        features = self.network(inputs)
        h = features.flatten(2).mean(dim=2) if features.dim() == 4 else features
        return self._scores(directions(h @ self.mixing.T - self.centre, self._radius))


class Own(nn.Module):
    """A score that is a function of the features alone, by the client's objective."""

    def __init__(self, score: Callable[[Tensor], Tensor | None]) -> None:
        super().__init__()
        self._score = score

    def forward(self, z: Tensor) -> Tensor:
        """(n, d) -> (n, K)."""
        scores = self._score(z)
        assert scores is not None
        return scores


def export(trained: Trained, output: Path, kind: str = "", rule: str = "", force: bool = False) -> None:
    """Write a client's program, its prototypes and class names to one file, whole or not at all.

    Args:
        trained: on the CPU.
        kind: one of FORMATS; "" for what the file's name says.
        rule: "" for the client's own.
        force: replace a file that is there.

    Raises:
        SettingError: a format, rule or file that is not to be had, a model of texts, or one that cannot be written as
            a program.
    """
    kind = _format_of(output, kind)
    if output.exists() and not force:
        raise SettingError(f"{output} is there already; give --force to replace it, or another --output.")
    chosen = trained.chosen(rule)
    program = Program(trained, chosen).eval().requires_grad_(False)
    about = {METADATA: json.dumps(_metadata(trained, chosen), indent=2), PROTOTYPES: _prototypes(trained)}
    content = _as_torch(program, trained, about) if kind == "torch" else _as_onnx(program, trained, about)
    try:
        with replacing(output) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise SettingError(f"{output} cannot be written ({error.strerror}); choose another --output.") from None


def _format_of(output: Path, kind: str) -> str:
    """The format that was asked for, else that of the file's name."""
    if kind and kind not in FORMATS:
        raise SettingError(f"format {kind!r} is unknown; it can be {' or '.join(FORMATS)}.")
    meant = next((name for name, suffix in FORMATS.items() if suffix == output.suffix), "")
    if not meant:
        endings = [FORMATS[kind]] if kind else [f"{suffix} ({name})" for name, suffix in FORMATS.items()]
        raise SettingError(f"{output} does not end in {' or '.join(endings)}, which says what is in it; name it so.")
    if kind not in ("", meant):
        raise SettingError(
            f"{output} is named as a file of format {meant!r}, but --format is {kind!r}; leave --format out, or end "
            f"the name in {FORMATS[kind]}."
        )
    return meant


def _numbers(trained: Trained) -> InputTransform:
    if not isinstance(trained.transform, InputTransform):
        raise SettingError(
            f"this client's model {trained.model!r} reads texts, whose tokenizer no program holds; use `protosphere "
            "predict` on them."
        )
    return trained.transform


def _head(trained: Trained, rule: str) -> nn.Module:
    """What makes the rule's scores of features."""
    state, objective = trained.state, trained.objective
    local, covariance = state.prototypes, state.covariance
    own_scores = objective.scores(state, torch.zeros(0, objective.settings.feature_dim, device=trained.device))
    if rule in own_scores:
        return Own(lambda z: objective.scores(state, z)[rule])
    if rule == "global-prototypes" and state.table is not None:
        return Nearest(*state.table)
    if rule == "local-prototypes" and local is not None:
        return Nearest(*local.table(objective.num_classes))
    if rule == "discriminant" and local is not None and covariance is not None:
        return Discriminant(local, covariance, objective.num_classes)
    if rule == POOL:
        # before anything has come
        return Own(lambda z: objective.pooled(state, z, None))
    return Own(lambda z: objective.logits(state, z))


def _squares(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances of rows (n, d) and (K, d): (n, K). ONNX has no cdist, and a matrix product cancels."""
    return (a.unsqueeze(1) - b).square().sum(dim=2)


def _metadata(trained: Trained, rule: str) -> dict[str, Any]:
    return {
        "class_names": list(trained.class_names),
        "rule": rule,
        "model": trained.model,
        "strategy": trained.objective.settings.strategy,
        "run": trained.run,
        "partition": trained.partition,
        "round": trained.made_in,
        "input": _input(_numbers(trained)),
        "outputs": OUTPUTS,
    }


def _input(transform: InputTransform) -> dict[str, Any]:
    """What the program takes, so that nobody has to guess; and what it does itself."""
    about: dict[str, Any] = {"shape": list(transform.shape), "dtype": "float32"}
    if transform.pixels:
        channels = {1: "grey", 3: "RGB"}.get(transform.shape[0], "as in the training data")
        layout = {"layout": "(n, channels, height, width)", "channels": channels, "resized": "bilinear, antialiased"}
        about |= {"values": "pixels from 0 to 255", **layout}
    elif transform.columns:
        # NaN stands for a number that is missing
        columns = {"columns": [column.as_json() for column in transform.columns], "missing_words": list(MISSING)}
        about |= {
            "values": "the columns' features, in the order of `features`",
            "features": _features(transform.columns),
        }
        about |= columns
    else:
        about["values"] = "numbers as in the training data, in their order"
    figures = {"scale": transform.scale, "mean": list(transform.mean), "std": list(transform.std)}
    return about | {"done_by_the_program": {"formula": "(inputs / scale - mean) / std", **figures}}


def _features(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Of each of the F numbers, what it is: a column's value, that it is a certain value, or that there is none."""
    features: list[dict[str, Any]] = []
    for column in columns:
        values = [{}] if column.kind == NUMBER else [{"value": value} for value in column.values]
        features += [{"column": column.name, **value} for value in values]
        features += [{"column": column.name, "missing": True}] if column.missing else []
    return features


def _prototypes(trained: Trained) -> str:
    """Labels and vectors of the local prototypes and of the targets, without class counts."""
    sets = {"local": trained.state.prototypes, "global": trained.state.targets}
    tensors = {}
    for name, prototypes in sets.items():
        if prototypes is not None:
            tensors[f"{name}/labels"], tensors[f"{name}/vectors"] = prototypes.labels, prototypes.vectors.contiguous()
    return base64.b64encode(save(tensors)).decode()


def _example(trained: Trained) -> tuple[Tensor, dict[str, dict[int, Any]]]:
    """Two inputs, and that there may be any number of them."""
    return torch.zeros(2, *trained.transform.shape), {"inputs": {0: torch.export.Dim("batch")}}


def _as_torch(program: Program, trained: Trained, about: dict[str, str]) -> bytes:
    inputs, sizes = _example(trained)
    file = io.BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            exported = torch.export.export(program, (inputs,), dynamic_shapes=sizes, strict=False)
            for node in exported.graph.nodes:
                # where each step stands in files of this machine
                node.meta.pop("stack_trace", None)
            torch.export.save(exported, file, extra_files=about)
    except Exception as error:
        raise _inexpressible(trained, error) from error
    return file.getvalue()


def _as_onnx(program: Program, trained: Trained, about: dict[str, str]) -> bytes:
    for package in ("onnx", "onnxscript"):
        try:
            importlib.import_module(package)
        except ImportError:
            raise SettingError(
                f"format 'onnx' needs {package}, which cannot be imported here; pip install 'protosphere[onnx]'."
            ) from None
    inputs, sizes = _example(trained)
    # it warns of what torch's own exporter writes
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            exported: Any = torch.onnx.export(
                program,
                (inputs,),
                dynamo=True,
                dynamic_shapes=sizes,
                input_names=["inputs"],
                output_names=OUTPUTS,
                verbose=False,
                # its optimiser takes x + 1e-12 for x, and 0 / (0 + 1e-12) is then no number
                optimize=False,
            )
            passes = importlib.import_module("onnx_ir.passes.common")
            # a buffer and a step may have the same name, which the optimiser would have seen to
            passes.NameFixPass()(exported.model)
            # where each step stands in files of this machine
            passes.ClearMetadataAndDocStringPass()(exported.model)
            model = exported.model_proto
    except Exception as error:
        raise _inexpressible(trained, error) from error
    for key, value in about.items():
        model.metadata_props.add(key=key, value=value)
    content: bytes = model.SerializeToString()
    return content


def _inexpressible(trained: Trained, error: Exception) -> SettingError:
    """What a model of somebody else's may do that no program can."""
    # torch.onnx colours its words for a terminal
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    lines = plain.splitlines() or [type(error).__name__]
    return SettingError(
        f"model {trained.model!r} cannot be written as a program ({lines[0].rstrip('.:')}); its forward pass must not "
        "branch on values; `protosphere predict` needs no program."
    )
