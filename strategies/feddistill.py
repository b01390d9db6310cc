"""FedDistill (federated distillation, FD; Jeong et al., 2018): clients exchange their mean outputs for each class.

    client   uploads F_ic = mean over D_ic of softmax g(f(x)); trains by CE + gamma CE(g(f(x)), target_y) over samples
             whose class has a target
    server   target_c of client i = (sum_{j in N_c} F_jc - F_ic) / (|N_c| - 1): all other holders of the class
    predict  the classifier: `classifier`

A client that alone holds a class gets no target for it; a client without an upload gets the unweighted mean. With
`teacher` all, every client gets the unweighted mean (HtFLlib). Departures: F_ic is measured after training, while the
paper averages outputs over the training steps. HtFLlib uses mean logits as the target of a cross-entropy, which is
unbounded below, and FedGen's authors the softmax of mean logits; neither is implemented.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax

from protosphere import method as m
from protosphere.prototypes.prototype_set import class_means

# kept for a round's training: target_y, and whether it exists
TEACHER, VECTORS, PRESENT = "teacher", "targets", "present"


@m.method_settings
class FedDistillSettings:
    """`feddistill.*`.

    Attributes:
        weight: γ, weight of the distillation. ProtoNorm's table: 1.
        teacher: outputs to learn from: of all other clients (paper), or of all clients.
    """

    weight: m.NotNegative = 1.0
    teacher: Literal["others", "all"] = "others"


class FedDistillObjective(m.Objective):
    def receive(self, state: m.ClientState, received: m.Payload | None, round_number: int) -> None:
        """Keep the targets for the training that follows."""
        device = next(state.module.parameters()).device
        state.received = None
        if received is not None:
            # Laid out once: looking up labels in every batch would make the device wait.
            vectors, present = distributions(m.prototypes_of(received).to(device=device)).table(self.num_classes)
            state.received = {TEACHER: m.Weights({VECTORS: vectors, PRESENT: present.to(vectors.dtype)})}

    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet | None:
        """None: what is received are outputs, not points of the feature space."""
        return None

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        plain = super().loss(state, batch, phase, round_number)
        if state.received is None:
            return plain
        weights = m.weights_of(state.received, TEACHER)
        targets, has_target = weights.tensors[VECTORS], weights.tensors[PRESENT][batch.labels] > 0
        # a sample without a target has a target of zeros, which adds nothing
        values = cross_entropy(state.module.classify(plain.features), targets[batch.labels], reduction="none")
        distillation = torch.where(has_target, values, 0.0).sum() / has_target.sum().clamp(min=1)
        return plain.plus("distillation", distillation, self.options[FedDistillSettings].weight)

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        """F_ic, from the features after training, without counts."""
        if state.features is None:
            return None
        z, labels = state.features
        with torch.no_grad():
            device = next(state.module.parameters()).device
            logits = state.module.classify(z.to(device)).float().to(z.device)
        outputs = class_means(softmax(logits, dim=1), labels, self.num_classes).without_counts()
        return {m.PROTOTYPES.name: outputs}


class FedDistill(m.ServerHalf):
    def download(
        self, partition: int, downloads: Mapping[int, m.Payload], state: m.State, server_round: int, trains: bool
    ) -> int | None:
        """Only clients that train get a download, because no inference rule uses it."""
        return super().download(partition, downloads, state, server_round, trains) if trains else None

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """For each client that uploaded, the mean over all others; for the rest, the unweighted mean."""
        outputs = {p: distributions(upload) for p, upload in m.prototype_sets(uploads).items()}
        means = m.aggregate(list(outputs.values()), "mean")
        downloads = m.to_everyone(means)
        if self.options[FedDistillSettings].teacher == "others":
            # an output has one value per class
            sums = torch.zeros(means.dim, means.dim, dtype=torch.float64)
            holders = torch.zeros(means.dim, dtype=torch.int64)
            for upload in outputs.values():
                sums[upload.labels] += upload.vectors.double()
                holders[upload.labels] += 1
            for partition, upload in outputs.items():
                downloads[partition] = {m.PROTOTYPES.name: _average_others(sums, holders, upload)}
        return m.Outcome({}, downloads)


def _average_others(sums: Tensor, holders: Tensor, upload: m.PrototypeSet) -> m.PrototypeSet:
    """The mean of each class over all holders but one; no entry if that one is the only holder."""
    other_sums, other_holders = sums.clone(), holders.clone()
    other_sums[upload.labels] -= upload.vectors.double()
    other_holders[upload.labels] -= 1
    labels = other_holders.nonzero().flatten()
    return m.PrototypeSet(labels, (other_sums[labels] / other_holders[labels].unsqueeze(1)).to(upload.vectors.dtype))


def distributions(outputs: m.PrototypeSet) -> m.PrototypeSet:
    """Turn what was received into probabilities; anything else would leave the cross-entropy unbounded."""
    values = outputs.vectors.clamp(min=torch.finfo(torch.float32).tiny)
    return outputs.with_vectors(values / values.sum(dim=1, keepdim=True))


PARTS = (m.Part("prototypes", width="classes"),)

METHOD = m.Method(
    server=FedDistill,
    objective=FedDistillObjective,
    settings={"feddistill": FedDistillSettings},
    exchange=lambda options: m.Exchange(PARTS, PARTS),
    inference="classifier",
    uploads_features=True,
    rules=tuple(rule for rule in m.RULES if rule != "global-prototypes"),
)
