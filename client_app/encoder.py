"""A client's rows as a public encoder sees them: for releases, and for methods in a space that clients share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from tqdm import tqdm

from protosphere.client_app.encoder_cache import cached
from protosphere.client_app.evaluate import method_scores
from protosphere.client_app.site import NodeConfig, text
from protosphere.core.devices import exact, exact_on
from protosphere.core.errors import ModelError, SettingError
from protosphere.core.home import home
from protosphere.core.settings import full_encoder_name, shown
from protosphere.data.client_data import ClientData, Rows, TokenTransform
from protosphere.models.encoder import Encoder, has_place, public_encoder
from protosphere.models.text import Tokens, reads_text
from protosphere.prototypes.own_discriminant import OwnDiscriminant, own_discriminant
from protosphere.strategies import Run
from protosphere.strategies.contract import EQUAL_WEIGHT, ClientState, Objective, SpaceObjective
from protosphere.strategies.encoder_space import choose_weight, directions, opinion_pool
from protosphere.strategies.release import OWN_POOL, OWN_RULE, POOL, RULE
from protosphere.wire.payloads import Evaluation, Payload

LoadData = Callable[[Tokens | None], ClientData]  # a client's data by a tokenizer
ROWS_AT_ONCE = 256
ENCODER = "encoder"  # in client.json

# by samples, with what names their space
_directions: WeakKeyDictionary[Rows, tuple[tuple[str, float], Tensor]] = WeakKeyDictionary()
_discriminants: WeakKeyDictionary[Rows, tuple[tuple[str, float], OwnDiscriminant | None]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Encoded:
    """A client's rows and the encoder.

    Attributes:
        data: the samples as the encoder takes them. model_data: as the client's model does.
        place: the encoder's name, as the run or the site says it.
        alone: whether the encoder takes one row at a time, as a release has to.
        radius: `encoder-radius`.
    """

    encoder: Encoder
    data: ClientData
    model_data: ClientData
    place: str
    alone: bool = False
    radius: float = 0.0

    @property
    def description(self) -> dict[str, object]:
        """Of client.json: what prediction needs to find the encoder again, and to know it."""
        return {ENCODER: {"name": self.place, "fingerprint": self.encoder.fingerprint}}

    @property
    def _space(self) -> tuple[str, float]:
        return self.encoder.fingerprint, self.radius

    def training(self) -> tuple[Tensor, Tensor]:
        """u (n, d) and labels (n,) of the training rows, on the CPU."""
        return self.features(self.data.train), self.data.train.labels.cpu()

    def features(self, rows: Rows) -> Tensor:
        """u, (n, d)."""
        if not self.encoder.has_weights or not len(rows):
            return self._encode(rows)
        # on another kind of device the last bits are others
        device = "cpu" if self.alone else rows.inputs.device.type
        facts = {"encoder": self.encoder.fingerprint, "device": device, "alone": self.alone}
        facts |= {"input": self.data.transform.to_dict()}
        return cached(home() / "cache" / "features", facts, rows.inputs, lambda: self._encode(rows))

    def _encode(self, rows: Rows) -> Tensor:
        encode = self.encoder if self.alone else partial(self.encoder.together, device=rows.inputs.device)
        # on a terminal, and not for what is done at once
        chunks = tqdm(
            rows.inputs.cpu().split(ROWS_AT_ONCE),
            f"reading {len(rows)} samples through {self.encoder.name}",
            leave=False,
            delay=2,
            disable=None,
        )
        features = [encode(self.data.transform(chunk)) for chunk in chunks if len(chunk)]
        return torch.cat(features) if features else torch.empty(0, len(self.encoder.mixing))

    def fit_own_discriminant(self, num_classes: int) -> OwnDiscriminant | None:
        """Of the client's own training samples, its shrinkage chosen on its validation samples."""
        train, validation = self.data.train, self.data.validation
        entry = _discriminants.get(train)
        if entry is None or entry[0] != self._space:
            discriminant = own_discriminant(
                self.directions(train),
                train.labels.cpu(),
                num_classes,
                self.directions(validation),
                validation.labels.cpu(),
            )
            _discriminants[train] = entry = self._space, discriminant
        return entry[1]

    def judged(self, evaluation: Evaluation, scores: Callable[[Tensor], Tensor | None]) -> Evaluation:
        """An evaluation under `privacy`, with the rule `encoder` beside the others.

        Args:
            scores: of directions z^ (n, d): (n, K); None where there is nothing to judge by yet.
        """
        if scores(torch.zeros(0, len(self.encoder.mixing), dtype=torch.float64)) is None:
            return evaluation
        right = self._count_right(self.data.test, scores), self._count_right(self.data.validation, scores)
        return replace(evaluation, correct={**evaluation.correct, RULE: right})

    def _count_right(self, rows: Rows, scores: Callable[[Tensor], Tensor | None]) -> int:
        row_scores = scores(self.directions(rows)) if len(rows) else None
        return 0 if row_scores is None else int((row_scores.argmax(dim=1) == rows.labels.cpu()).sum())

    def as_encoder_reads(self, rows: Rows) -> Rows:
        """The samples that the client's model reads as `rows`: of texts the encoder may have another tokenizer."""
        for part in ("test", "validation", "train"):
            if rows is getattr(self.model_data, part):
                encoder_rows: Rows = getattr(self.data, part)
                return encoder_rows
        return rows

    def directions(self, rows: Rows) -> Tensor:
        """z^ of samples, (n, d) float64; computed once."""
        entry = _directions.get(rows)
        if entry is None or entry[0] != self._space:
            vectors = directions(self.features(rows), self.radius)
            _directions[rows] = entry = self._space, vectors
        return entry[1]


class SpaceScores:
    """One evaluation of a client by the rules that read samples through the encoder. The validation samples come first:
    by these each pool's weight is chosen, which is 1/2 where there are none.

    Args:
        state: as it is judged; it gets what the method makes of what has just come, and the weight of the rule `pool`.
        received: what has just come.
        keep: called with both, for prediction.
    """

    def __init__(
        self,
        encoded: Encoded,
        objective: Objective,
        state: ClientState,
        received: Payload | None,
        keep: Callable[[float, Payload | None], object],
    ):
        self.encoded, self.objective, self.state, self.keep = encoded, objective, state, keep
        # a method that merely names an encoder is only evaluated in its space
        self.in_space = objective if isinstance(objective, SpaceObjective) else None
        train = encoded.data.train
        state.space = received
        if self.in_space is not None:
            state.space = self.in_space.complete(received, encoded.directions(train), train.labels.cpu())
        # what has come is kept already
        self.completed = None if state.space is received else state.space
        if self.completed is not None and not len(encoded.data.validation):
            keep(EQUAL_WEIGHT, self.completed)
        self.own = encoded.fit_own_discriminant(objective.num_classes)
        self.own_weight = EQUAL_WEIGHT

    def __call__(self, rows: Rows, z: Tensor) -> dict[str, Tensor]:
        """Rule -> (n, K) of samples and their features; without the rules that have nothing to judge by."""
        vectors = self.encoded.directions(self.encoded.as_encoder_reads(rows))
        is_validation = rows is self.encoded.model_data.validation
        scores_by_rule: dict[str, Tensor | None] = {}
        if self.in_space is not None:
            scores = self.in_space.encoded_scores(self.state.space, vectors)
            scores = None if scores is None else scores.to(exact_on(z.device))
            if is_validation and scores is not None:
                self._choose_weight(self.in_space, rows.labels, z, scores)
            scores_by_rule = {RULE: scores, POOL: self.in_space.pooled(self.state, z, scores)}
        if self.own is not None:
            if is_validation:
                self.own_weight = choose_weight(partial(self._pool_own, self.own, z, vectors), rows.labels)
            scores_by_rule[OWN_RULE] = self.own.scores(vectors).to(exact_on(z.device))
            scores_by_rule[OWN_POOL] = self._pool_own(self.own, z, vectors, self.own_weight)
        return {rule: rule_scores for rule, rule_scores in scores_by_rule.items() if rule_scores is not None}

    def _choose_weight(self, objective: SpaceObjective, labels: Tensor, z: Tensor, scores: Tensor) -> None:
        def pool(weight: float) -> Tensor:
            pooled = objective.pooled(replace(self.state, pool_weight=weight), z, scores)
            assert pooled is not None
            return pooled

        if objective.pooled(self.state, z, scores) is not None:
            self.state.pool_weight = choose_weight(pool, labels)
            self.keep(self.state.pool_weight, self.completed)

    def _pool_own(self, own: OwnDiscriminant, z: Tensor, vectors: Tensor, weight: float) -> Tensor:
        logits, device = method_scores(self.objective, self.state, z)["classifier"], exact_on(z.device)
        return opinion_pool(exact(logits), own.class_scores(vectors).to(device), own.counts.to(device), weight)


def encoded_of(run: Run, node: NodeConfig, data: ClientData, load: LoadData, simulated: bool) -> Encoded:
    """A client's samples through the run's encoder, or the site's own file of it.

    Args:
        load: the client's data by another tokenizer.

    Raises:
        SettingError: the run names a file of this site, or what cannot take texts. ModelError: no such encoder.
    """
    model_data = data
    settings, site_encoder = run.settings, full_encoder_name(text(node, "encoder"))
    name = site_encoder or settings.encoder
    if has_place(name) and not site_encoder and not simulated:
        raise SettingError(
            "the run's `encoder` lies in a file, and no run names files of this site; start its SuperNode "
            "with --encoder NAME."
        )
    if reads_text(name) and len(data.transform.shape) == 1:
        data = load(Tokens(name.partition("?")[0], settings.max_tokens))
    # what is told of an encoder's features must not follow from rows in any other way
    if data.transform.plain != data.transform:
        data = replace(data, transform=data.transform.plain)
    encoder = loaded(name, tuple(data.transform.shape), settings.feature_dim, bool(site_encoder))
    if isinstance(data.transform, TokenTransform) and not reads_text(name):
        # of the first token alone; on no row of the client's
        blank = torch.zeros(1, *data.transform.shape, dtype=torch.int64)
        if bool(encoder(blank).isnan().any()):
            raise SettingError(
                f"{_source(bool(site_encoder))} is {shown(name)}, which takes no token ids, and this client's samples "
                "are texts; give an encoder of texts, as hf:<hub id or path>.",
            )
    return Encoded(encoder, data, model_data, name, run.private, settings.encoder_radius)


@lru_cache(maxsize=2)
def loaded(name: str, shape: tuple[int, ...], dim: int, of_site: bool = False) -> Encoder:
    """The encoder that the run's setting `encoder` names, or the `--encoder` of a site.

    Raises:
        ModelError: it is not available.
    """
    try:
        return public_encoder(name, shape, dim)
    except ModelError as error:
        raise ModelError(f"{_source(of_site)}: {error}") from error


def _source(of_site: bool) -> str:
    """Who names the encoder, in an error's words."""
    return "this site's own `--encoder`" if of_site else "setting `encoder`"
