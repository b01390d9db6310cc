"""FedKD (Wu et al., 2022): a client's own model teaches a small one that all share, of which low rank changes travel.

    client   teacher z, p (its own model), student z', q (the companion), W_h a private d x d map; both at once by
             L = CE_p + CE_q + u [KL(sg[q] || p) + KL(sg[p] || q) + 2 mse(z, W_h z')],  u = 1 / (CE_p + CE_q)
             sends D_i = w'_i - G of low rank, at energy T_r = T_s + (T_e - T_s) r / T; without a G, w'_i whole
    server   D = sum_{i in S} D_i / |S|, of low rank at T_r;  G <- G + D as it arrives;  the first G is the mean of w'_i
             sends D to those whose upload of the last round counted, G whole to all others: so all hold the same G
    predict  the classifier of the teacher: `classifier`

u has no gradient, sg stops it, KL is the mean over the batch of the sum over classes; an energy is a share of the sum
of squared singular values. Whole models cross as float32; a variance that G + D makes negative is 0. Departures: the
authors' code keeps u's gradient, which rewards a higher cross-entropy; HtFLlib and PFLlib factorise weights, not
updates, and make zeros of tensors of full rank.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from protosphere.core.seeds import derive
from protosphere.models.companion import WithCompanion
from protosphere.models.seeded import drawn
from protosphere.models.split import SplitModel
from protosphere.prototypes.losses import divergence
from protosphere.prototypes.weights import VARIANCE, Weights, flat
from protosphere.strategies.companions import (
    OWN_RULES,
    CompanionObjective,
    CompanionSettings,
    MeanOfCompanions,
    TrainersAlone,
)
from protosphere.strategies.contract import (
    EVERYONE,
    Batch,
    ClientState,
    Exchange,
    Loss,
    Method,
    Outcome,
    Phase,
    Spec,
    State,
    method_settings,
)
from protosphere.strategies.weights import COMPANION, load
from protosphere.wire.checks import MessageError
from protosphere.wire.codec import as_arrived
from protosphere.wire.low_rank import LowRank, factored
from protosphere.wire.payloads import Payload, weights_of
from protosphere.wire.weights import check_tensors

UPDATE = "companion-update"
WHOLE = Spec("weights", COMPANION, dtype="float32")
CHANGE = Spec("weights", UPDATE, change=True, transforms=(LowRank(),))
CHANGED = 0  # the key of D
BASE, COUNTED, MADE_IN = "base/", "counted", "made_in"  # of states: G; whose uploads made it, and in which round
Energy = Annotated[float, Field(gt=0, le=1)]


@method_settings
class FedKDSettings(CompanionSettings):
    """`fedkd.*`.

    Attributes:
        companion: the student, the same on all clients; empty: the first of `models`.
        start_energy: T_s, the share that an update keeps of its energy at the start. Paper: 0.95.
        end_energy: T_e, the share at the end. Paper: 0.98.
        reduction: of a divergence: batch, its sum over classes (paper), or element, its mean (the tables' code).
    """

    start_energy: Energy = 0.95
    end_energy: Energy = 0.98
    reduction: Literal["batch", "element"] = "batch"

    def energy(self, done: float) -> float:
        """T_r, of the share of the rounds that are done."""
        return self.start_energy + (self.end_energy - self.start_energy) * min(1.0, done)


def moved(base: Weights, change: Weights) -> Weights:
    """G + D, the same to the bit on both ends."""
    sums = {name: tensor + change.tensors[name] for name, tensor in base.tensors.items()}
    return Weights({name: tensor.clamp(min=0) if name.endswith(VARIANCE) else tensor for name, tensor in sums.items()})


def base_of(tensors: Mapping[str, torch.Tensor]) -> Weights | None:
    """G as it is kept; None before there is one."""
    base = {name.removeprefix(BASE): tensor.cpu() for name, tensor in tensors.items() if name.startswith(BASE)}
    return Weights(base) if base else None


class FedKDObjective(CompanionObjective):
    """Client half."""

    kind = FedKDSettings

    def build(self, model: SplitModel, seed: int) -> nn.Module:
        """The student beside the teacher, and W_h."""
        module = WithCompanion(model, self.second(model, model.feature_dim))
        dim = model.feature_dim
        module.projection = drawn(derive(seed, "projection"), lambda: nn.Linear(dim, dim, bias=False))
        return module

    def shared(self, module: nn.Module) -> dict[str, Weights]:
        """The student, and changes of it."""
        student = super().shared(module)[COMPANION]
        return {COMPANION: student, UPDATE: student}

    def receive(self, state: ClientState, received: Payload | None, round_number: int) -> None:
        """Take G, or bring the one that is kept up to it; nothing, or both initial parts, came while there is none."""
        parts = received or {}
        base = base_of(state.kept)
        if list(parts) == [UPDATE]:
            assert base is not None
            parts = {COMPANION: moved(base, weights_of(parts, UPDATE))}
        base_tensors = weights_of(parts, COMPANION).tensors if list(parts) == [COMPANION] else {}
        state.kept = {BASE + name: tensor for name, tensor in base_tensors.items()}
        load(state.module, parts)

    def loss(self, state: ClientState, batch: Batch, phase: Phase, round_number: int) -> Loss:
        """Each model by its cross-entropy, and by what it has of the other's answers and features."""
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
        # no division by zero where neither errs
        errors = (teacher_loss + student_loss).detach().clamp(min=torch.finfo(torch.float32).eps)
        return Loss(
            teacher_loss + student_loss + (teacher_divergence + student_divergence + 2 * hidden) / errors, parts, z
        )

    def upload(self, state: ClientState, round_number: int) -> Payload | None:
        """What training changed of G; the whole student while there is none."""
        student, base = self.shared(state.module)[COMPANION], base_of(state.kept)
        if base is None:
            return {COMPANION: student}
        change = Weights({name: tensor - base.tensors[name] for name, tensor in student.tensors.items()})
        done = round_number / self.settings.rounds
        return {UPDATE: factored(change, self.options[FedKDSettings].energy(done))}


class FedKD(TrainersAlone, MeanOfCompanions):
    """Server half."""

    def awaited(self, up: tuple[Spec, ...], state: State, server_round: int) -> tuple[Spec, ...]:
        """Changes where there is a G to change."""
        return (CHANGE,) if state else (WHOLE,)

    def address(self, partition: int, downloads: Mapping[int, Payload], state: State, server_round: int) -> int:
        """The change for those who hold the G before it: whose upload of the last round counted."""
        holds = bool(state) and int(state[MADE_IN]) == server_round - 1 and partition in state[COUNTED].tolist()
        return CHANGED if holds and CHANGED in downloads else EVERYONE

    def aggregate(self, uploads: Mapping[int, Payload], state: State, server_round: int) -> Outcome:
        """The plain mean, which is G or moves it."""
        means = super().aggregate(uploads, state, server_round).downloads
        ((_, payload),) = means.items()
        (name,) = payload
        mean = weights_of(payload, name)
        base, downloads = base_of(state), dict[int, Payload]()
        if base is not None:
            change = factored(mean, self.options[FedKDSettings].energy(server_round / self.settings.rounds))
            mean = moved(base, as_arrived(change, CHANGE, self.codec, base.layout))
            try:
                check_tensors(dict(mean.tensors), self.settings.max_prototype_norm)
            except MessageError as error:
                # changes that are legal by themselves may add up to what no client would take
                warning = f"the mean of this round's changes is dropped, since with it the student's {error}"
                no_partitions = torch.zeros(0, dtype=torch.int64)
                base_download: dict[int, Payload] = {EVERYONE: {COMPANION: base}}
                return Outcome({**state, COUNTED: no_partitions}, base_download, warnings=[warning])
            downloads[CHANGED] = {UPDATE: change}
        sent = mean if base is None else change
        share = flat(sent).numel() / flat(mean).numel()
        tensors = {COUNTED: torch.tensor(sorted(uploads)), MADE_IN: torch.tensor(server_round)}
        tensors |= {BASE + name: tensor for name, tensor in mean.tensors.items()}
        return Outcome(tensors, {**downloads, EVERYONE: {COMPANION: mean}}, {"values_share": share})


METHOD = Method(
    server=FedKD,
    objective=FedKDObjective,
    settings={"fedkd": FedKDSettings},
    exchange=lambda options: Exchange((WHOLE, CHANGE), (WHOLE, CHANGE), either=True),
    inference="classifier",
    rules=OWN_RULES,
    fixed_rounds=True,
)
