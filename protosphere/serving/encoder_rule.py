"""The rule `encoder` of a trained client outside its run: the public encoder, and the classifier of its directions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from protosphere.client_app.encoder import loaded
from protosphere.client_app.private_client import MEANS
from protosphere.client_app.store import Store
from protosphere.core.errors import ModelError, SettingError
from protosphere.models.encoder import Encoder
from protosphere.models.text import Tokens, reads_text
from protosphere.strategies import Run
from protosphere.strategies.contract import Objective, SpaceObjective
from protosphere.strategies.release import encoder_scores
from protosphere.wire.payloads import Payload, prototypes_of

Scores = Callable[[Tensor], Tensor | None]  # from directions z^ (n, d) to scores (n, K)


@dataclass(frozen=True)
class EncoderRule:
    """A public encoder, loaded on first use, and the classifier of its directions.

    Attributes:
        name: the encoder's name in the run's or site's settings.
        fingerprint: of the encoder that the client used in its evaluations.
        shape: of one input.
        dim: d.
        scores: of directions z^ (n, d): (n, K).
        tokens: for an encoder that reads texts.
    """

    name: str
    fingerprint: str
    shape: tuple[int, ...]
    dim: int
    scores: Scores
    tokens: Tokens | None = None

    def encoder(self) -> Encoder:
        """The encoder itself.

        Raises:
            SettingError: it is not available here, or differs from the client's.
        """
        try:
            encoder = loaded(self.name, self.shape, self.dim)
        except ModelError as error:
            raise SettingError(
                f"this rule needs the public encoder of the run, {self.name!r}, which cannot be loaded ({error}) "
                "Say where it lies with --encoder NAME, or name another --rule."
            ) from error
        if self.fingerprint not in ("", encoder.fingerprint):
            raise SettingError(
                f"this rule needs the public encoder of the run (fingerprint {self.fingerprint}), but "
                f"{self.name!r} has other weights or another name ({encoder.fingerprint}); give the same with "
                "--encoder NAME, or name another --rule."
            )
        return encoder


def encoder_rule(
    run: Run,
    objective: Objective,
    store: Store,
    shape: tuple[int, ...],
    received: Payload | None,
    space: Payload | None,
    name: str,
    fingerprint: str,
) -> EncoderRule | None:
    """The rule `encoder` of a client; None if the run has no such rule, or the client has received no classifier.

    Args:
        received: the last download. space: what the last evaluation made of it.
    """
    dim = run.settings.feature_dim
    scores: Scores
    if not run.encodes:
        return None
    if run.private:
        stored = store.load_named(MEANS)
        means = None if stored is None else prototypes_of(stored[0], MEANS)
        if means is None or not len(means):
            return None
        scores = partial(encoder_scores, means=means, num_classes=objective.num_classes)
    elif isinstance(objective, SpaceObjective):
        if space is None and received is not None:
            # no evaluation has followed: use the received part alone
            no_samples = torch.zeros(0, dim, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
            space = objective.complete(received, *no_samples)
        scores = partial(objective.encoded_scores, space)
    else:
        return None
    if scores(torch.zeros(0, dim, dtype=torch.float64)) is None:
        return None
    reads_tokens = reads_text(name) and len(shape) == 1
    tokens = Tokens(name.partition("?")[0], run.settings.max_tokens) if reads_tokens else None
    return EncoderRule(name, fingerprint, shape, dim, scores, tokens)
