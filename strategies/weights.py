"""Base of methods that share weights: FedAvg, and methods that keep a part of the model local.

    client   trains, uploads parts of its model; the received parts replace them before the next training
    server   per group of clients whose parts have the same layout: sum_i omega_i w_i / sum_i omega_i

omega_i is 1, or n_i from the roster, never from a reply. Uploads are added up in partition order in float64, one at a
time. `weights.aggregation` offers robust means for groups of three or more. Round 1 sends nothing: clients of one
architecture have equal initial weights (`shared-init`), and a head that is shared alone is initialised from the run's
seed, whatever the architecture.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from protosphere import method as m
from protosphere.core.text import LONGEST_NAME, one_line, quoted
from protosphere.models import model_names
from protosphere.models.seeded import drawn
from protosphere.prototypes.aggregation import FEW, aggregate_weights
from protosphere.prototypes.weights import flat, taken, unflat
from protosphere.wire.layouts import layout_lines, read_layouts

EXTRACTOR, BACKBONE, HEAD = "extractor", "backbone", "head"
COMPANION, SCALE, GENERATOR = "companion", "scale", "generator"
# the rules that such methods report
SHARED_RULES = (*(rule for rule in m.RULES if rule != "global-prototypes"), m.RECEIVED)
Sums = Mapping[str, Tensor]
WEIGHT = "weight"  # entry of a total: the sum of omega_i
PREFIX = {
    EXTRACTOR: "extractor.",
    BACKBONE: "extractor.backbone.",
    HEAD: "classifier.",
    COMPANION: "companion.",
    SCALE: "classifier.scale",
    GENERATOR: "generator.",
}
T = TypeVar("T")
LONGEST_LAYOUT = 200  # characters of a client's text in a message
MOST_NAMED = 20  # clients named in one sentence
ANCHOR = "anchor"  # in a state's `received`: the weights that training is kept close to


@m.method_settings
class WeightsSettings:
    """`weights.*`, for every method whose server averages weights.

    Attributes:
        aggregation: aggregation of weights in groups of three or more clients; all but `mean` weight clients equally.
            Ours.
        trim: as `fedproto.trim`, for the weights of a group.
    """

    aggregation: Literal["mean", "median", "trimmed-mean", "geometric-median"] = "mean"
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.1


def base_of(personal_layers: int) -> str:
    """The part that is exchanged if the last 1 or 2 layers stay local: all but the classifier, or all but the
    classifier and the projection."""
    return EXTRACTOR if personal_layers == 1 else BACKBONE


def shared_seed(seed: int, part: str) -> int:
    """Seed of what the server and all clients of a run initialise equally."""
    return m.derive(seed, "shared", part)


class SharedObjective(m.WeightsObjective):
    """Client half: some parts of the model are shared."""

    @property
    def parts(self) -> Sequence[str]:
        """The parts that are exchanged."""
        raise NotImplementedError

    def build(self, model: m.SplitModel, seed: int) -> nn.Module:
        """Initialise a head that is exchanged alone equally for all architectures."""
        if list(self.parts) == [HEAD]:
            drawn(self.shared_seed(HEAD), model.classifier.reset_parameters)
        return model

    def shared_seed(self, part: str) -> int:
        """Seed of what all clients initialise equally."""
        return shared_seed(self.settings.seed, part)

    def shared(self, module: nn.Module) -> dict[str, m.Weights]:
        """The floating-point tensors of each part; buffers only if `share-buffers` averages them."""
        tensors = module.state_dict()
        candidates = tensors if self.settings.share_buffers == "average" else dict(module.named_parameters())
        names = [name for name in candidates if tensors[name].is_floating_point()]
        return {part: taken(tensors, [n for n in names if n.startswith(PREFIX[part])]) for part in self.parts}

    def receive(self, state: m.ClientState, received: m.Payload | None, round_number: int) -> None:
        self.load(state.module, received)

    def evaluation_state(self, state: m.ClientState, received: m.Payload | None) -> m.ClientState:
        """A copy with the received parts; before the first message, the client itself."""
        if received is None:
            return state
        module = deepcopy(state.module)
        self.load(module, received)
        return replace(state, module=module)

    def load(self, module: nn.Module, received: m.Payload | None) -> None:
        load(module, received)

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        return self.shared(state.module)


class WholeObjective(SharedObjective):
    """Client half of FedAvg and similar methods: the whole model is exchanged."""

    parts = (EXTRACTOR, HEAD)


def head_layout(dim: int, num_classes: int) -> m.Layout:
    """Layout of the classifier of every built-in model, Linear(d, K)."""
    return (PREFIX[HEAD] + "bias", (num_classes,)), (PREFIX[HEAD] + "weight", (num_classes, dim))


class OtherWeightsError(m.SettingError):
    """Some clients share weights with another layout than the run's; the run can continue without them.

    Attributes:
        clients: partition -> what is wrong with the client, and the remedy.
    """

    def __init__(self, clients: Mapping[int, str]):
        super().__init__(" ".join(f"Client {partition}: {why}" for partition, why in [*clients.items()][:MOST_NAMED]))
        self.clients = clients


def refuse_other_layouts(half: m.ServerHalf, part: str, layout: m.Layout) -> None:
    """Stop before round 1 if clients' weights do not have the server's layout.

    Raises:
        OtherWeightsError: names the clients and both layouts.
    """
    problems = {}
    server_text = ", ".join(layout_lines(part, layout))
    for partition, identity in sorted(half.identities.items()):
        client_layout = read_layouts(identity.layouts).get(part, ())
        if client_layout != layout:
            client_text = quoted(", ".join(layout_lines(part, client_layout)), LONGEST_LAYOUT)
            problems[partition] = (
                f"it has another {part} ({client_text}) than the server of `{half.settings.strategy}` ({server_text}); "
                "give it a model whose classifier is Linear(d, K), and the same version."
            )
    if problems:
        raise OtherWeightsError(problems)


def both_ways(*parts: str) -> m.Exchange:
    """Parts of weights that are uploaded to be added up, and sent back."""
    shared = tuple(m.Part("weights", name) for name in parts)
    return m.Exchange(shared, shared)


def whole_model(options: m.Options) -> m.Exchange:
    """All weights, in both directions."""
    return both_ways(EXTRACTOR, HEAD)


def companion(options: m.Options) -> m.Exchange:
    """The weights of a companion, in both directions."""
    return both_ways(COMPANION)


@torch.no_grad()
def load(module: nn.Module, received: m.Payload | None) -> None:
    """Overwrite the received tensors, by name."""
    tensors = module.state_dict()
    for part in (received or {}).values():
        if isinstance(part, m.Weights):
            for name, tensor in part.tensors.items():
                tensors[name].copy_(tensor)


def anchored(module: nn.Module) -> m.Payload:
    """A copy of a module's parameters, to be kept in a state's `received`."""
    return {ANCHOR: m.Weights({name: p.detach().clone() for name, p in module.named_parameters()})}


def distance(module: nn.Module, anchor: m.Payload | None) -> Tensor:
    """||w - w^r||^2 between a module's parameters and those that `anchored` kept; a scalar."""
    assert anchor is not None
    weights = m.weights_of(anchor, ANCHOR)
    squares = [(p - weights.tensors[name]).square().sum() for name, p in module.named_parameters()]
    return torch.stack(squares).sum()


class AveragedWeights(m.ServerHalf):
    """Server half: means within groups of one layout.

    Attributes:
        of_one_model: parts that must not be averaged across models, even if shapes agree.
        one_architecture: whether a second group is refused instead of being federated separately.
        weighting: "samples" or "uniform".
    """

    shared_settings = MappingProxyType({"weights": WeightsSettings})
    of_one_model: Sequence[str] = (EXTRACTOR, BACKBONE)
    one_architecture = False
    weighting = "samples"

    def _form_groups(self) -> None:
        """Group clients by layout and, for parts of the extractor, by model name. A group is named after its first
        client, so its name stays when others join."""
        groups: dict[int, int] = {}
        layouts: dict[int, dict[str, m.Layout]] = {}
        for partition, identity in self.identities.items():
            is_of_one_model = any(line.partition("/")[0] in self.of_one_model for line in identity.layouts)
            in_common = "\n".join((identity.model if is_of_one_model else "", *identity.layouts))
            key = hashlib.blake2b(in_common.encode(), digest_size=16).hexdigest()
            group = groups[partition] = self.group_names.setdefault(key, partition)
            if group not in layouts:
                layouts[group] = read_layouts(identity.layouts)
        self._groups, self._layouts = groups, layouts

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Form the groups. An extractor can be averaged only from a common start; some methods allow one group only.
        Warn if the run consists of several separate federations."""
        self._form_groups()
        lines = [line for identity in self.identities.values() for line in identity.layouts]
        extractors = any(line.partition("/")[0] in self.of_one_model for line in lines)
        if extractors and not self.settings.shared_init:
            raise m.SettingError(
                f"setting `shared-init` is false, but `{self.settings.strategy}` averages extractors, which requires "
                "equal initial weights; set it to true."
            )
        if self.one_architecture and self.identities and len(self._count_members()) > 1:
            self._refuse_odd_ones()
            raise m.SettingError(
                f"setting `models` gives clients of different architectures ({self._list_models()}), but "
                f"`{self.settings.strategy}` averages one; give all clients the same model."
            )
        if len(self._count_members()) < 2:
            return ()
        return (
            f"{len(self._count_members())} groups of clients average their weights separately, because architectures "
            f"differ: {self._list_models()}",
        )

    def _refuse_odd_ones(self) -> None:
        """Refuse clients with another model, if the run gives all clients the same model."""
        (usual, number), (_, next_number) = self._count_members().most_common(2)
        if len({*model_names(self.settings.models)}) > 1 or number == next_number:
            return
        raise OtherWeightsError(
            {
                partition: f"it has another architecture than most clients, and `{self.settings.strategy}` averages "
                "one; give all clients the same model."
                for partition, group in self._groups.items()
                if group != usual
            }
        )

    def group(self, partition: int) -> int:
        """The client's group, named after its first client: at the start, the lowest partition."""
        return self._groups[partition]

    def download(
        self, partition: int, downloads: Mapping[int, m.Payload], state: m.State, server_round: int, trains: bool
    ) -> int | None:
        """The download of the client's group."""
        return self.group(partition)

    def layouts(self, partition: int) -> dict[str, m.Layout]:
        """Layouts of the parts that a client shares."""
        return self._layouts[self.group(partition)]

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Add up each group in ascending order of partitions, then call `finish`."""
        totals: dict[int, dict[str, Tensor]] = {}
        for partition, upload in uploads.items():
            share = self.contribution(upload, self.identities[partition])
            total = totals.setdefault(self.group(partition), {name: torch.zeros_like(t) for name, t in share.items()})
            for name, tensor in share.items():
                total[name] += tensor
        self._make_robust(totals, uploads)
        return self.finish(totals, state, server_round)

    def _make_robust(self, totals: Mapping[int, dict[str, Tensor]], uploads: Mapping[int, m.Payload]) -> None:
        """If the settings ask for it, replace the sums of weights by robust aggregates."""
        options: WeightsSettings = self.options[WeightsSettings]
        if options.aggregation == "mean":
            return
        for group, total in totals.items():
            members = [partition for partition in uploads if self.group(partition) == group]
            if len(members) < FEW:
                continue
            for part in self._layouts[group].keys() & total.keys():
                sets = [m.weights_of(uploads[member], part) for member in members]
                total[part] = total[WEIGHT] * aggregate_weights(sets, options.aggregation, options.trim)

    def omega(self, identity: m.Identity) -> float:
        """A client's weight."""
        return float(identity.rows[0]) if self.weighting == "samples" else 1.0

    def contribution(self, upload: m.Payload, identity: m.Identity) -> Sums:
        """An upload's contribution to its group's total: omega_i w_i and omega_i, in float64."""
        weight = torch.tensor(self.omega(identity), dtype=torch.float64)
        values = {name: weight * flat(part) for name, part in upload.items() if isinstance(part, m.Weights)}
        return {**values, WEIGHT: weight}

    def finish(self, totals: Mapping[int, Sums], state: m.State, server_round: int) -> m.Outcome:
        """Each group's mean; a group without a reply keeps its weights."""
        fresh: dict[int, m.Payload] = {}
        for group, total in totals.items():
            averaged = {part: layout for part, layout in self._layouts[group].items() if part in total}
            means = {part: unflat(total[part] / total[WEIGHT], layout) for part, layout in averaged.items()}
            fresh[group] = means
        return m.Outcome({}, fresh, {"groups": len(self._count_members())}, keeps=True)

    def _count_members(self) -> Counter[int]:
        return Counter(self._groups.values())

    def _list_models(self) -> str:
        # the client that a group is named after may have left
        models = {group: self.identities[partition].model for partition, group in self._groups.items()}
        named = [
            f"{one_line(models[group], LONGEST_NAME)} ({number})"
            for group, number in sorted(self._count_members().items())
        ]
        return ", ".join(named)


class AveragedCompanions(AveragedWeights):
    """Server half of methods whose clients share a second model of their own architecture."""

    of_one_model = (COMPANION,)


# The row that methods of this family start from; each replaces what differs.
AVERAGING = m.Method(
    server=AveragedWeights,
    objective=WholeObjective,
    exchange=whole_model,
    inference=m.RECEIVED,
    rules=SHARED_RULES,
    reads_prototypes=False,
    ignored_settings=lambda options: frozenset(),
)
