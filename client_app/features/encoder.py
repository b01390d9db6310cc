"""A client's rows as a public encoder sees them: for releases, and for methods in a space that clients share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from protosphere.client_app.feature import Feature, LoadData, Scores
from protosphere.client_app.site import NodeConfig, simulated, text
from protosphere.core.devices import exact, exact_on
from protosphere.core.errors import ModelError, SettingError, public
from protosphere.core.settings import shown
from protosphere.data.client_data import ClientData, Rows, TokenTransform
from protosphere.models.encoder import Encoder, has_place, public_encoder
from protosphere.models.text import Tokens, reads_text
from protosphere.prototypes.own_discriminant import OwnDiscriminant, own_discriminant
from protosphere.strategies import Run
from protosphere.strategies.contract import ClientState, Objective
from protosphere.strategies.encoder_space import directions, opinion_pool
from protosphere.strategies.release import OWN_POOL, OWN_RULE, POOL, RULE
from protosphere.wire.codec import Codec
from protosphere.wire.payloads import Evaluation, Payload

ROWS_AT_ONCE = 256
ENCODER = "encoder"  # in client.json

_directions: WeakKeyDictionary[Rows, tuple[str, Tensor]] = WeakKeyDictionary()
_discriminants: WeakKeyDictionary[Rows, tuple[str, OwnDiscriminant | None]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Encoded:
    """A client's rows and the encoder.

    Attributes:
        data: the rows as the encoder takes them.
        place: the encoder's name, as the run or the site says it.
        alone: whether the encoder takes one row at a time, as a release has to.
    """

    encoder: Encoder
    data: ClientData
    place: str
    alone: bool = False

    @property
    def description(self) -> dict[str, object]:
        """Of client.json: what prediction needs to find the encoder again, and to know it."""
        return {ENCODER: {"name": self.place, "fingerprint": self.encoder.fingerprint}}

    def training(self) -> tuple[Tensor, Tensor]:
        """u (n, d) and labels (n,) of the training rows, on the CPU."""
        return self.features(self.data.train), self.data.train.labels.cpu()

    def features(self, rows: Rows) -> Tensor:
        """u, (n, d)."""
        inputs, encode = rows.inputs.cpu(), self.encoder if self.alone else self.encoder.together
        chunks = [encode(self.data.transform(chunk)) for chunk in inputs.split(ROWS_AT_ONCE) if len(chunk)]
        return torch.cat(chunks) if chunks else torch.empty(0, len(self.encoder.mixing))

    def scores(
        self, objective: Objective, state: ClientState, received: Payload | None, rows: Rows, z: Tensor
    ) -> dict[str, Tensor]:
        """By the rules that read samples through the encoder, (n, K); without those that have nothing to judge by."""
        vectors = self._compute_directions(rows)
        encoder_scores = None if received is None else objective.encoded_scores(received, vectors)
        encoder_scores = None if encoder_scores is None else encoder_scores.to(exact_on(z.device))
        scores = {RULE: encoder_scores, POOL: objective.pooled(state, z, encoder_scores)}
        own = self._fit_own_discriminant(objective.num_classes)
        if own is not None:
            logits = exact(objective.logits(state, z)).cpu()
            scores[OWN_RULE] = own.scores(vectors)
            scores[OWN_POOL] = opinion_pool(logits, own.class_scores(vectors), own.counts)
        return {
            rule: rule_scores.to(exact_on(z.device)) for rule, rule_scores in scores.items() if rule_scores is not None
        }

    def _fit_own_discriminant(self, num_classes: int) -> OwnDiscriminant | None:
        """Of the client's own training samples, its shrinkage chosen on its validation samples."""
        train, validation = self.data.train, self.data.validation
        entry = _discriminants.get(train)
        if entry is None or entry[0] != self.encoder.fingerprint:
            own = own_discriminant(
                self._compute_directions(train),
                train.labels.cpu(),
                num_classes,
                self._compute_directions(validation),
                validation.labels.cpu(),
            )
            _discriminants[train] = entry = self.encoder.fingerprint, own
        return entry[1]

    def judged(self, evaluation: Evaluation, scores: Callable[[Tensor], Tensor | None]) -> Evaluation:
        """An evaluation under `privacy`, with the rule `encoder` beside the others.

        Args:
            scores: of directions z^ (n, d): (n, K); None where there is nothing to judge by yet.
        """
        if scores(torch.zeros(0, len(self.encoder.mixing), dtype=torch.float64)) is None:
            return evaluation
        right = [self._count_right(rows, scores) for rows in (self.data.test, self.data.validation)]
        if len(evaluation.rows) == 3 and self.data.unheld is not None:
            right.append(right[0] + self._count_right(self.data.unheld.read(), scores))
        return replace(evaluation, correct={**evaluation.correct, RULE: tuple(right)})

    def _count_right(self, rows: Rows, scores: Callable[[Tensor], Tensor | None]) -> int:
        row_scores = scores(self._compute_directions(rows)) if len(rows) else None
        return 0 if row_scores is None else int((row_scores.argmax(dim=1) == rows.labels.cpu()).sum())

    def _compute_directions(self, rows: Rows) -> Tensor:
        entry = _directions.get(rows)
        if entry is None or entry[0] != self.encoder.fingerprint:
            vectors = directions(self.features(rows))
            _directions[rows] = entry = self.encoder.fingerprint, vectors
        return entry[1]


class EncoderSpace(Feature):
    """Reads the client's samples through the run's encoder, where it names one.

    Attributes:
        encoded: the samples and the encoder; None where nothing is read through one.
    """

    encoded: Encoded | None = None

    def start(self, load: LoadData) -> None:
        client = self.client
        self.encoded = encoded_of(client.run, client.node, client.data, load, simulated())

    def codec(self, codec: Codec) -> Codec:
        return codec if self.encoded is None else replace(codec, encoder=self.encoded.encoder.fingerprint)

    def description(self) -> Mapping[str, object]:
        return {} if self.encoded is None else self.encoded.description

    def scores(self, state: ClientState, received: Payload | None) -> Scores | None:
        if self.encoded is None:
            return None
        return partial(self.encoded.scores, self.client.objective, state, received)

    def before_upload(self, state: ClientState) -> None:
        state.encoded = None if self.encoded is None else self.encoded.training


def encoded_of(run: Run, node: NodeConfig, data: ClientData, load: LoadData, simulated: bool) -> Encoded | None:
    """A client's rows through the run's encoder, or the site's own file of it; None where nothing is read through one.

    Args:
        load: the client's data by another tokenizer.

    Raises:
        SettingError: the run names a file of this site, or what cannot take texts. ModelError: no such encoder.
    """
    if not run.encodes:
        return None
    settings, site_encoder = run.settings, text(node, "encoder") or text(node, "privacy-encoder")
    name = site_encoder or settings.encoder
    if has_place(name) and not site_encoder and not simulated:
        raise SettingError.public(
            "the run's `encoder` lies in a file, and no run names files of this site; start its SuperNode "
            "with --encoder NAME."
        )
    if reads_text(name) and len(data.transform.shape) == 1:
        data = load(Tokens(name.partition("?")[0], settings.max_tokens))
    # what is told of an encoder's features must not follow from rows in any other way
    if data.transform.plain != data.transform:
        data = replace(data, transform=data.transform.plain)
    encoder = loaded(name, tuple(data.transform.shape), settings.feature_dim)
    if isinstance(data.transform, TokenTransform) and not reads_text(name):
        # of the first token alone; on no row of the client's
        blank = torch.zeros(1, *data.transform.shape, dtype=torch.int64)
        if bool(encoder(blank).isnan().any()):
            raise SettingError(
                f"setting `encoder` is {shown(name)}, which takes no token ids, and this client's rows are "
                "texts; give an encoder of texts, as hf:<hub id or path>.",
                public("encoder-texts"),
            )
    return Encoded(encoder, data, name, run.private)


@lru_cache(maxsize=2)
def loaded(name: str, shape: tuple[int, ...], dim: int) -> Encoder:
    """The encoder that `encoder` names.

    Raises:
        ModelError: it cannot be had.
    """
    try:
        return public_encoder(name, shape, dim)
    except ModelError as error:
        raise ModelError(f"setting `encoder`: {error}", public("encoder", error=error)) from error
