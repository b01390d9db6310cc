"""FedKD (Wu et al., 2022): each client's own model teaches a small shared model, whose low-rank updates are exchanged.

    client   teacher z, p (its own model), student z', q (the companion), W_h a private d x d map; trained together by
             L = CE_p + CE_q + u [KL(sg[q] || p) + KL(sg[p] || q) + 2 mse(z, W_h z')],  u = 1 / (CE_p + CE_q)
             sends the factors of D_i = w'_i - G at energy T_r = T_s + (T_e - T_s) r / T; all of w'_i before the first G
    server   D = sum_{i in S} D_i / |S|, of low rank at T_r;  G <- G + D as clients receive it; the first
             G is the mean of w'_i; sends D to clients whose upload of the last round was used, all of G to the
             others: all hold the same G
    predict  the classifier of the teacher: `classifier`

Each tensor of D is reshaped to a matrix (out, rest). Its factors are U_k S_k and V_k^T, with the smallest k whose
singular values keep the energy; if the factors are not smaller, the matrix itself is sent as the first factor and the
second has no row. u has no gradient, sg stops the gradient, and KL is the mean over the batch of the sum over classes;
the energy is the share of the sum of squared singular values. Whole models are sent as float32; a variance that becomes
negative in G + D is set to 0. Departures: the authors' code keeps u's gradient, which rewards a higher cross-entropy;
HtFLlib and PFLlib factorise weights, not updates, and replace tensors of full rank by zeros.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from protosphere import method as m
from protosphere.models.companion import WithCompanion
from protosphere.models.seeded import drawn
from protosphere.prototypes.losses import divergence
from protosphere.prototypes.weights import VARIANCE, flat
from protosphere.strategies.companions import OWN_RULES, CompanionObjective, CompanionSettings, MeanOfCompanions
from protosphere.strategies.weights import AVERAGING, COMPANION, load
from protosphere.wire.arrays import Limits, check_tensors, decode, encode
from protosphere.wire.checks import MessageError

UPDATE = "companion-update"
LEFT, RIGHT = "/left", "/right"  # suffixes of a tensor's name: its two factors
WHOLE = m.Part("weights", COMPANION, dtype="float32")
CHANGE = m.Part("weights", UPDATE, signed=True, ragged=True)
CHANGED = 0  # the key of D
# entries of states: G; the uploads it was computed from, and their round
BASE, COUNTED, MADE_IN = "base/", "counted", "made_in"
Energy = Annotated[float, Field(gt=0, le=1)]


@m.method_settings
class FedKDSettings(CompanionSettings):
    """`fedkd.*`.

    Attributes:
        companion: the shared model; empty: the first of `models`.
        start_energy: T_s, share of an update's energy that is kept at the start. Paper: 0.95.
        end_energy: T_e, the same at the end. Paper: 0.98.
        reduction: a divergence's sum over classes (`batch`, paper) or mean (`element`, HtFLlib).
    """

    start_energy: Energy = 0.95
    end_energy: Energy = 0.98
    reduction: Literal["batch", "element"] = "batch"

    def energy(self, done: float) -> float:
        """T_r at the given share of finished rounds."""
        return self.start_energy + (self.end_energy - self.start_energy) * min(1.0, done)


def factors_of(change: m.Weights, energy: float) -> m.Weights:
    """Factorise an update, keeping a share of its energy in (0, 1]; computed in float64 on the CPU."""
    factors: dict[str, Tensor] = {}
    for name, tensor in change.tensors.items():
        if tensor.dim() < 2:
            factors[name] = tensor
        else:
            factors[name + LEFT], factors[name + RIGHT] = _factorise(tensor.cpu().reshape(len(tensor), -1), energy)
    return m.Weights(factors)


def _factorise(matrix: Tensor, energy: float) -> tuple[Tensor, Tensor]:
    left_vectors, singular_values, right_vectors = torch.linalg.svd(matrix.double(), full_matrices=False)
    energies = singular_values.square().cumsum(0)
    rank = min(int((energies < energy * energies[-1]).sum()) + 1, len(energies))
    if rank * sum(matrix.shape) >= matrix.numel():
        return matrix, matrix[:0]
    return (left_vectors[:, :rank] * singular_values[:rank]).float(), right_vectors[:rank].float()


def change_of(factors: m.Weights, layout: m.Layout) -> m.Weights:
    """Inverse of `factors_of`; the products are computed in float64, so that each machine rounds the same.

    Args:
        layout: of the update.

    Raises:
        MessageError: the factors do not fit each other, or the layout.
    """
    names = {name for name, shape in layout if len(shape) < 2}
    names |= {name + end for name, shape in layout if len(shape) > 1 for end in (LEFT, RIGHT)}
    if names != factors.tensors.keys():
        raise MessageError("the factors are not those of the student's tensors")
    change: dict[str, Tensor] = {}
    for name, shape in layout:
        if len(shape) < 2:
            tensor = factors.tensors[name]
        else:
            left_factor, right_factor = factors.tensors[name + LEFT], factors.tensors[name + RIGHT]
            if len(right_factor) and left_factor.shape[1] != len(right_factor):
                raise MessageError(
                    f"the factors of tensor `{name}` have ranks {left_factor.shape[1]} and {len(right_factor)}"
                )
            tensor = (left_factor.double() @ right_factor.double()).float() if len(right_factor) else left_factor
        if tensor.numel() != math.prod(shape) or (shape and len(tensor) != shape[0]):
            raise MessageError(f"the factors of tensor `{name}` give a shape other than {shape}")
        change[name] = tensor.reshape(shape)
    return m.Weights(change)


def largest_factors(weights: m.Weights) -> m.Weights:
    """Factors of the largest possible size for an update of these weights, made of zeros that take no memory."""
    factors: dict[str, Tensor] = {}
    for name, tensor in weights.tensors.items():
        if tensor.dim() < 2:
            factors[name] = tensor
            continue
        rows, columns = len(tensor), tensor[0].numel()
        factors[name + LEFT] = torch.zeros(()).expand(rows, columns)
        factors[name + RIGHT] = torch.zeros(()).expand(min(rows, columns), columns)
    return m.Weights(factors)


def add_change(base: m.Weights, change: m.Weights) -> m.Weights:
    """G + D, equal to the bit on both ends."""
    sums = {name: tensor + change.tensors[name] for name, tensor in base.tensors.items()}
    return m.Weights(
        {name: tensor.clamp(min=0) if name.endswith(VARIANCE) else tensor for name, tensor in sums.items()}
    )


def base_of(tensors: Mapping[str, torch.Tensor]) -> m.Weights | None:
    """The stored G; None before there is one."""
    base = {name.removeprefix(BASE): tensor.cpu() for name, tensor in tensors.items() if name.startswith(BASE)}
    return m.Weights(base) if base else None


class FedKDObjective(CompanionObjective):
    kind = FedKDSettings

    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        module = WithCompanion(model, self.second(model, model.feature_dim))
        dim = model.feature_dim
        module.projection = drawn(m.derive(seed, "projection"), lambda: nn.Linear(dim, dim, bias=False))
        return module

    def shared(self, module: nn.Module) -> dict[str, m.Weights]:
        """The student, and the factors of its updates."""
        student = super().shared(module)[COMPANION]
        return {COMPANION: student, UPDATE: largest_factors(student)}

    def receive(self, state: m.ClientState, received: m.Payload | None, round_number: int) -> None:
        """Take G, or apply the received update to the stored G. Before there is a G, nothing was received, or both
        initial parts.

        Raises:
            MessageError: the server sent an update that no client accepts.
        """
        parts = received or {}
        base = base_of(state.extra)
        if list(parts) == [UPDATE]:
            if base is None:
                raise MessageError(
                    "the server sent a change of the companion, but this client has no companion to change"
                )
            change = change_of(m.weights_of(parts, UPDATE), base.layout)
            check_tensors(change.tensors, self.settings.max_prototype_norm, signed=True)
            parts = {COMPANION: add_change(base, change)}
        base_tensors = m.weights_of(parts, COMPANION).tensors if list(parts) == [COMPANION] else {}
        state.extra = {BASE + name: tensor for name, tensor in base_tensors.items()}
        load(state.module, {name: part for name, part in parts.items() if name == COMPANION})

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        reduction, student = self.options[FedKDSettings].reduction, state.module.companion
        z, student_features = self.features(state, batch.inputs), student.features(batch.inputs)
        teacher_logits, student_logits = state.module.classify(z), student.classify(student_features)
        parts = {
            "cross-entropy": cross_entropy(teacher_logits, batch.labels),
            "student-cross-entropy": cross_entropy(student_logits, batch.labels),
            "divergence": divergence(teacher_logits, student_logits.detach(), reduction),
            "student-divergence": divergence(student_logits, teacher_logits.detach(), reduction),
            "hidden": mse_loss(z, state.module.projection(student_features)),
        }
        teacher_loss, student_loss, teacher_divergence, student_divergence, hidden = parts.values()
        # avoids division by zero when neither model errs
        errors = (teacher_loss + student_loss).detach().clamp(min=torch.finfo(torch.float32).eps)
        return m.Loss(
            teacher_loss + student_loss + (teacher_divergence + student_divergence + 2 * hidden) / errors, parts, z
        )

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        """The update of G by training; the whole student before there is a G."""
        student, base = self.shared(state.module)[COMPANION], base_of(state.extra)
        if base is None:
            return {COMPANION: student}
        change = m.Weights({name: tensor - base.tensors[name] for name, tensor in student.tensors.items()})
        done = round_number / self.settings.rounds
        return {UPDATE: factors_of(change, self.options[FedKDSettings].energy(done))}


class FedKD(MeanOfCompanions, m.CheckedServer):
    def expected_parts(self, up: tuple[m.Part, ...], state: m.State, server_round: int) -> tuple[m.Part, ...]:
        return tuple(part for part in up if part.name == (UPDATE if state else COMPANION))

    def contradiction(self, partition: int, upload: m.Payload) -> str:
        """Refuse factors that give no update of the student, or one whose norm is too large."""
        if UPDATE not in upload:
            return ""
        try:
            change = change_of(m.weights_of(upload, UPDATE), self.layouts(partition)[COMPANION])
            check_tensors(change.tensors, self.settings.max_prototype_norm, signed=True)
        except MessageError as error:
            return str(error)
        return ""

    def download(
        self, partition: int, downloads: Mapping[int, m.Payload], state: m.State, server_round: int, trains: bool
    ) -> int | None:
        """The update, for clients that train and hold the previous G, since their upload of the last round was used;
        otherwise the whole G."""
        if not trains:
            return None
        holds = bool(state) and int(state[MADE_IN]) == server_round - 1 and partition in state[COUNTED].tolist()
        return CHANGED if holds and CHANGED in downloads else m.EVERYONE

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """The unweighted mean: it is the first G, or updates G."""
        base, downloads = base_of(state), dict[int, m.Payload]()
        if base is not None:
            uploads = {
                partition: {COMPANION: change_of(m.weights_of(upload, UPDATE), base.layout)}
                for partition, upload in uploads.items()
            }
        ((_, payload),) = super().aggregate(uploads, state, server_round).downloads.items()
        mean = m.weights_of(payload, COMPANION)
        if base is not None:
            change = factors_of(mean, self.options[FedKDSettings].energy(server_round / self.settings.rounds))
            try:
                mean = add_change(base, change_of(self._round_to_wire(change), base.layout))
                check_tensors(mean.tensors, self.settings.max_prototype_norm)
            except MessageError as error:
                # updates that are valid by themselves may add up to one that no client accepts
                warning = f"the mean of this round's changes is dropped, because with it the student's {error}"
                no_partitions = torch.zeros(0, dtype=torch.int64)
                base_download: dict[int, m.Payload] = {m.EVERYONE: {COMPANION: base}}
                return m.Outcome({**state, COUNTED: no_partitions}, base_download, warnings=[warning])
            downloads[CHANGED] = {UPDATE: change}
        sent = mean if base is None else change
        share = flat(sent).numel() / flat(mean).numel()
        tensors = {COUNTED: torch.tensor(sorted(uploads)), MADE_IN: torch.tensor(server_round)}
        tensors |= {BASE + name: tensor for name, tensor in mean.tensors.items()}
        return m.Outcome(tensors, {**downloads, m.EVERYONE: {COMPANION: mean}}, {"values_share": share})

    def _round_to_wire(self, change: m.Weights) -> m.Weights:
        """Round factors to the run's number format, so that they equal the clients'.

        Raises:
            CodecError: the format cannot hold a value.
            MessageError: no client would accept the result.
        """
        parts = (replace(CHANGE, dtype=self.settings.wire_dtype),)
        limits = Limits(math.inf, {UPDATE: change.layout})
        received_payload = decode(encode({UPDATE: change}, parts), parts, self.num_classes, self.dim, limits)
        return m.weights_of(received_payload, UPDATE)


METHOD = replace(
    AVERAGING,
    server=FedKD,
    objective=FedKDObjective,
    settings={"fedkd": FedKDSettings},
    exchange=lambda options: m.Exchange((WHOLE, CHANGE), (WHOLE, CHANGE), either=True),
    inference="classifier",
    rules=OWN_RULES,
    fixed_rounds=True,
    ignored_settings=lambda options: m.OF_CLAIMS,
)
