"""A client's rows as a public encoder sees them: for releases, and for methods in a space that clients share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import normalize

from client_app.site import NodeConfig, text
from data.client_data import ClientData, Rows
from federation.settings import SettingError
from federation.wire.payloads import Evaluation
from models import ModelError
from models.encoder import Encoder, has_place, public_encoder
from models.text import Tokens, reads_text
from strategies import Run
from strategies.release import RULE

ROWS_AT_ONCE = 256  # that are prepared; the encoder takes one at a time
ENCODER = "encoder"  # in client.json
Load = Callable[[Tokens], ClientData]

_directions: WeakKeyDictionary[Rows, tuple[str, Tensor]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Encoded:
    """A client's rows and the encoder.

    Attributes:
        data: the rows as the encoder takes them.
        place: the encoder's name, as the run or the site says it.
    """

    encoder: Encoder
    data: ClientData
    place: str

    @property
    def description(self) -> dict[str, object]:
        """Of client.json: what prediction needs to find the encoder again, and to know it."""
        return {ENCODER: {"name": self.place, "fingerprint": self.encoder.fingerprint}}

    def training(self) -> tuple[Tensor, Tensor]:
        """u (n, d) and labels (n,) of the training rows, on the CPU."""
        return self.features(self.data.train), self.data.train.labels.cpu()

    def features(self, rows: Rows) -> Tensor:
        """u, (n, d)."""
        inputs = rows.inputs.cpu()
        chunks = [self.encoder(self.data.transform(some)) for some in inputs.split(ROWS_AT_ONCE) if len(some)]
        return torch.cat(chunks) if chunks else torch.empty(0, len(self.encoder.mixing))

    def judged(self, evaluation: Evaluation, scores: Callable[[Tensor], Tensor | None]) -> Evaluation:
        """With the rule `encoder` beside the others, which knows classes that the client lacks.

        Args:
            scores: of directions z^ (n, d): (n, K); None where there is nothing to judge by yet.
        """
        if scores(torch.zeros(0, len(self.encoder.mixing), dtype=torch.float64)) is None:
            return evaluation
        right = [self._right(rows, scores) for rows in (self.data.test, self.data.validation)]
        if len(evaluation.rows) == 3 and self.data.unheld is not None:
            right.append(right[0] + self._right(self.data.unheld.read(), scores))
        return replace(evaluation, correct={**evaluation.correct, RULE: tuple(right)})

    def _right(self, rows: Rows, scores: Callable[[Tensor], Tensor | None]) -> int:
        found = scores(self._directions(rows)) if len(rows) else None
        return 0 if found is None else int((found.argmax(dim=1) == rows.labels.cpu()).sum())

    def _directions(self, rows: Rows) -> Tensor:
        kept = _directions.get(rows)
        if kept is None or kept[0] != self.encoder.fingerprint:
            found = directions(self.features(rows))
            _directions[rows] = kept = self.encoder.fingerprint, found
        return kept[1]


def directions(features: Tensor) -> Tensor:
    """z^ of u, (n, d) float64: 0 where an encoder failed."""
    return normalize(features.double().nan_to_num(0, 0, 0), dim=1)


def encoded_of(run: Run, node: NodeConfig, data: ClientData, load: Load, simulated: bool) -> Encoded | None:
    """A client's rows through the run's encoder, or the site's own file of it; None where nothing is read through one.

    Args:
        load: the client's data by another tokenizer.

    Raises:
        SettingError: the run names a file of this site. ModelError: no such encoder.
    """
    if not run.encodes:
        return None
    settings, own = run.settings, text(node, "privacy-encoder")
    name = own or settings.privacy_encoder
    if has_place(name) and not own and not simulated:
        raise SettingError.public(
            "the run's `privacy-encoder` lies in a file, and no run names files of this site; start its SuperNode "
            "with --privacy-encoder NAME."
        )
    if reads_text(name) and len(data.transform.shape) == 1:
        data = load(Tokens(name.partition("?")[0], settings.max_tokens))
    return Encoded(loaded(name, tuple(data.transform.shape), settings.feature_dim), data, name)


@lru_cache(maxsize=2)
def loaded(name: str, shape: tuple[int, ...], dim: int) -> Encoder:
    """The encoder that `privacy-encoder` names.

    Raises:
        ModelError: it cannot be had.
    """
    try:
        return public_encoder(name, shape, dim)
    except ModelError as error:
        raise ModelError(f"setting `privacy-encoder`: {error}", f"setting `privacy-encoder`: {error.told}") from error
