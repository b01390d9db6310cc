"""Exports a trained client's model as one file that contains the program and a description of its inputs and outputs.

The program takes unscaled inputs (an image's pixels from 0 to 255) and needs no part of this project.
"""

import importlib
import io
import json
import logging
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from protosphere.client_app.evaluate import method_scores
from protosphere.core.errors import SettingError
from protosphere.core.files import replacing
from protosphere.data.client_data import InputTransform
from protosphere.data.forms.table_schema import TableSchema
from protosphere.models.encoder import Encoder
from protosphere.serving.inputs import PIXEL
from protosphere.serving.predict import Trained
from protosphere.strategies.encoder_space import directions
from protosphere.strategies.release import POOL, RULE

FORMATS = (".pt2", ".onnx")  # the files' suffixes; torch.export.load requires the first
METADATA = "metadata.json"


class Program(nn.Module):
    """inputs (n, C, H, W) float32, pixels from 0 to 255, or (n, F) numbers -> scores (n, K) and features (n, d), both
    float32; a class that the rule does not know scores -inf."""

    mean: Tensor
    std: Tensor

    def __init__(self, trained: Trained, rule: str) -> None:
        super().__init__()
        transform = trained.transform
        if not isinstance(transform, InputTransform):
            raise SettingError(
                f"this client's model {trained.model!r} reads texts, and an exported program contains no tokenizer; "
                "use `protosphere predict` instead."
            )
        if rule == "discriminant":
            raise SettingError(
                f"the rule `{rule}` cannot be exported; name another --rule, or use `protosphere predict`."
            )
        self._trained, self._rule, self.transform = trained, rule, transform
        self._state, self._base_rule = trained.state_of(rule)
        axes = (-1, *(1,) * (len(transform.shape) - 1))
        self.register_buffer("mean", torch.tensor(transform.mean).view(axes))
        self.register_buffer("std", torch.tensor(transform.std).view(axes))
        self._table = self._state.table
        if self._base_rule == "local-prototypes" and self._state.prototypes is not None:
            self._table = self._state.prototypes.table(trained.objective.num_classes)
        # registered as modules, so that their weights belong to the program
        self.network = self._state.module
        self._encoder: Encoder | None = None
        if rule in (RULE, POOL) and trained.encoder_rule is not None:
            self._encoder = trained.encoder_rule.encoder()
            self.encoder_network = self._encoder.network

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and features; images are rounded to their stored scale."""
        transform, objective = self.transform, self._trained.objective
        stored = torch.round(inputs * (transform.scale / PIXEL)) if transform.pixels else inputs
        shares = stored / transform.scale
        z = objective.features(self._state, self._fill_missing((shares - self.mean) / self.std)).float()
        encoded = None
        if self._encoder is not None and self._trained.encoder_rule is not None:
            # a public encoder does not use the scaling of a client's samples
            plain = transform.plain
            u = self._encoder.mix(self.encoder_network(self._fill_missing((shares - plain.mean[0]) / plain.std[0])))
            encoded = self._trained.encoder_rule.scores(directions(u, objective.settings.encoder_radius))
        return self._score(z, encoded).float(), z

    def _fill_missing(self, prepared: Tensor) -> Tensor:
        """Replace a missing number by the mean."""
        if not self.transform.columns:
            return prepared
        return torch.where(prepared.isnan(), torch.zeros_like(prepared), prepared)

    def _score(self, z: Tensor, encoded: Tensor | None) -> Tensor:
        if self._rule in (RULE, POOL):
            scores = encoded if self._rule == RULE else self._trained.pooled(z, encoded)
            assert scores is not None
            return scores
        known_scores = method_scores(self._trained.objective, self._state, z)
        if self._base_rule in known_scores:
            return known_scores[self._base_rule]
        assert self._table is not None
        vectors, present = self._table
        # ONNX has no cdist, and a matrix product loses precision
        distances = (z.unsqueeze(1) - vectors).square().sum(dim=2).sqrt()
        return torch.where(present, -distances, -torch.inf)


def export(trained: Trained, output: Path, rule: str = "", force: bool = False) -> None:
    """Write a client's program and class names to one file, completely or not at all.

    Args:
        trained: the client, on the CPU.
        output: a file whose suffix is in `FORMATS`.
        rule: "" for the client's own.
        force: whether to replace an existing file.

    Raises:
        SettingError: the suffix or rule is invalid, the file exists, it is a text model, or the model cannot be
            exported.
    """
    if output.suffix not in FORMATS:
        raise SettingError(f"{output} does not end in {' or '.join(FORMATS)}, which decides the format; rename it.")
    if output.exists() and not force:
        raise SettingError(f"{output} exists already; give --force to replace it, or another --output.")
    rule = trained.find_rule(rule)
    program = Program(trained, rule).eval().requires_grad_(False)
    # two example inputs; the program accepts any number
    example, sizes = torch.zeros(2, *trained.transform.shape), {"inputs": {0: torch.export.Dim("batch")}}
    write = _as_torch if output.suffix == ".pt2" else _as_onnx
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            content = write(program, example, sizes, json.dumps(_metadata(trained, rule, program.transform), indent=2))
    except Exception as error:
        if isinstance(error, ImportError) and output.suffix == ".onnx":
            raise SettingError(
                f"a .onnx file needs {error.name}, which cannot be imported here; pip install 'protosphere[onnx]'."
            ) from None
        # torch.onnx colours its messages for a terminal
        plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
        reason = (plain.splitlines() or [type(error).__name__])[0].rstrip(".:")
        raise SettingError(
            f"model {trained.model!r} cannot be written as a program ({reason}); its forward pass must not branch on "
            "values; `protosphere predict` needs no program."
        ) from error
    try:
        with replacing(output) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise SettingError(f"{output} cannot be written ({error.strerror}); choose another --output.") from None


def _as_torch(program: Program, example: Tensor, sizes: Any, metadata: str) -> bytes:
    exported = torch.export.export(program, (example,), dynamic_shapes=sizes, strict=False)
    for node in exported.graph.nodes:
        # locations of source files on this machine
        node.meta.pop("stack_trace", None)
    file = io.BytesIO()
    torch.export.save(exported, file, extra_files={METADATA: metadata})
    return file.getvalue()


def _as_onnx(program: Program, example: Tensor, sizes: Any, metadata: str) -> bytes:
    importlib.import_module("onnxscript")
    passes = importlib.import_module("onnx_ir.passes.common")
    # it warns about the output of torch's own exporter
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)
    names: dict[str, Any] = {"input_names": ["inputs"], "output_names": ["scores", "features"]}
    # its optimiser replaces x + 1e-12 by x, which turns 0 / (0 + 1e-12) into NaN
    options: dict[str, Any] = {"dynamo": True, "verbose": False, "optimize": False}
    exported: Any = torch.onnx.export(program, (example,), dynamic_shapes=sizes, **names, **options)
    # a buffer and a node may have the same name, which the optimiser would have resolved
    passes.NameFixPass()(exported.model)
    # locations of source files on this machine
    passes.ClearMetadataAndDocStringPass()(exported.model)
    model = exported.model_proto
    model.metadata_props.add(key=METADATA, value=metadata)
    return bytes(model.SerializeToString())


def _metadata(trained: Trained, rule: str, transform: InputTransform) -> dict[str, Any]:
    """The rule, the client, and the expected inputs, as metadata."""
    inputs: dict[str, Any] = {"shape": list(transform.shape), "values": "numbers as in the training data"}
    if transform.pixels:
        inputs["values"] = "pixels from 0 to 255"
    elif transform.columns:
        inputs["values"] = "the columns' features, in the order of `features`"
        inputs |= TableSchema(transform.columns).describe()
    return {
        "class_names": list(trained.class_names),
        "rule": rule,
        "model": trained.model,
        "strategy": trained.objective.settings.strategy,
        "run": trained.run,
        "partition": trained.partition,
        "round": trained.round,
        "input": inputs,
    }
