"""A client's samples in the space of a public encoder, for releases and for methods that use this shared space."""

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

LoadData = Callable[[Tokens | None], ClientData]  # loads a client's data with a tokenizer
ROWS_AT_ONCE = 256
ENCODER = "encoder"  # a key of client.json

# by samples, each with the name of its space
_directions: WeakKeyDictionary[Rows, tuple[tuple[str, float], Tensor]] = WeakKeyDictionary()
_discriminants: WeakKeyDictionary[Rows, tuple[tuple[str, float], OwnDiscriminant | None]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Encoded:
    """A client's samples and the encoder.

    Attributes:
        data: the samples in the encoder's form. model_data: the same in the form of the client's model.
        place: the encoder's name, from the run or the site.
        alone: whether the encoder takes one sample at a time, as a release needs.
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
        """The entries of client.json by which prediction finds and recognises the encoder."""
        return {ENCODER: {"name": self.place, "fingerprint": self.encoder.fingerprint}}

    @property
    def _space(self) -> tuple[str, float]:
        return self.encoder.fingerprint, self.radius

    def training(self) -> tuple[Tensor, Tensor]:
        """u (n, d) and labels (n,) of the training samples, on the CPU."""
        return self.features(self.data.train), self.data.train.labels.cpu()

    def features(self, rows: Rows) -> Tensor:
        """u, (n, d)."""
        if not self.encoder.has_weights or not len(rows):
            return self._encode(rows)
        # the last bits differ between kinds of devices
        device = "cpu" if self.alone else rows.inputs.device.type
        facts = {"encoder": self.encoder.fingerprint, "device": device, "alone": self.alone}
        facts |= {"input": self.data.transform.to_dict()}
        return cached(home() / "cache" / "features", facts, rows.inputs, lambda: self._encode(rows))

    def _encode(self, rows: Rows) -> Tensor:
        encode = self.encoder if self.alone else partial(self.encoder.together, device=rows.inputs.device)
        # shown on a terminal only, after two seconds
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
        """Fit a discriminant to the client's own training samples, with the shrinkage chosen on its validation
        samples."""
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
        """An evaluation under `privacy`, with the rule `encoder` added.

        Args:
            scores: from directions z^ (n, d) to scores (n, K); None if there is nothing to score by yet.
        """
        if scores(torch.zeros(0, len(self.encoder.mixing), dtype=torch.float64)) is None:
            return evaluation
        right = self._count_right(self.data.test, scores), self._count_right(self.data.validation, scores)
        return replace(evaluation, correct={**evaluation.correct, RULE: right})

    def _count_right(self, rows: Rows, scores: Callable[[Tensor], Tensor | None]) -> int:
        row_scores = scores(self.directions(rows)) if len(rows) else None
        return 0 if row_scores is None else int((row_scores.argmax(dim=1) == rows.labels.cpu()).sum())

    def as_encoder_reads(self, rows: Rows) -> Rows:
        """The encoder's form of `rows`, samples in the form of the client's model: for texts, the tokenizers may
        differ."""
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
    they decide the weight of each pool, which is 1/2 without them.

    Args:
        state: the evaluated state; it gets the method's result for the new download, and the weight of the rule `pool`.
        received: the new download.
        keep: called with both of these, which prediction needs.
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
        # other methods with an encoder are only evaluated in its space
        self.in_space = objective if isinstance(objective, SpaceObjective) else None
        train = encoded.data.train
        state.space = received
        if self.in_space is not None:
            state.space = self.in_space.complete(received, encoded.directions(train), train.labels.cpu())
        # the download itself is already stored
        self.completed = None if state.space is received else state.space
        if self.completed is not None and not len(encoded.data.validation):
            keep(EQUAL_WEIGHT, self.completed)
        self.own = encoded.fit_own_discriminant(objective.num_classes)
        self.own_weight = EQUAL_WEIGHT

    def __call__(self, rows: Rows, z: Tensor) -> dict[str, Tensor]:
        """Rule -> scores (n, K) for samples and their features, without rules that have nothing to score by."""
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
    """A client's samples in the space of the run's encoder, or of the site's own copy of it.

    Args:
        load: loads the client's data with another tokenizer.

    Raises:
        SettingError: the run names a file of this site, or an encoder that cannot take texts. ModelError: there is no
            such encoder.
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
    # nothing else that is disclosed about the features may depend on samples
    if data.transform.plain != data.transform:
        data = replace(data, transform=data.transform.plain)
    encoder = loaded(name, tuple(data.transform.shape), settings.feature_dim, bool(site_encoder))
    if isinstance(data.transform, TokenTransform) and not reads_text(name):
        # for the first token only, and for no sample of the client
        blank = torch.zeros(1, *data.transform.shape, dtype=torch.int64)
        if bool(encoder(blank).isnan().any()):
            raise SettingError(
                f"{_source(bool(site_encoder))} is {shown(name)}, which takes no token ids, and this client's samples "
                "are texts; give an encoder of texts, as hf:<hub id or path>.",
            )
    return Encoded(encoder, data, model_data, name, run.private, settings.encoder_radius)


@lru_cache(maxsize=2)
def loaded(name: str, shape: tuple[int, ...], dim: int, of_site: bool = False) -> Encoder:
    """The encoder named by the run's setting `encoder`, or by a site's `--encoder`.

    Raises:
        ModelError: it is not available.
    """
    try:
        return public_encoder(name, shape, dim)
    except ModelError as error:
        raise ModelError(f"{_source(of_site)}: {error}") from error


def _source(of_site: bool) -> str:
    """The source of the encoder's name, for an error message."""
    return "this site's own `--encoder`" if of_site else "setting `encoder`"
