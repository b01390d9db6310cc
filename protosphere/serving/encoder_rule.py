"""The rule `encoder` of a trained client outside its run: the public encoder, and the classifier of its directions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from protosphere.client_app.encoder import ENCODER, loaded
from protosphere.client_app.private_client import MEANS
from protosphere.client_app.store import Store
from protosphere.core.errors import ModelError, SettingError
from protosphere.models.encoder import Encoder
from protosphere.models.text import Tokens, reads_text
from protosphere.strategies import Run
from protosphere.strategies.contract import Objective, SpaceObjective
from protosphere.strategies.release import encoder_scores
from protosphere.wire.payloads import Payload, prototypes_of


@dataclass(frozen=True)
class Judge:
    """The rule `encoder`: a public encoder, loaded on first use, and the classifier of its directions.

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
    scores: Callable[[Tensor], Tensor]
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


def judge_of(
    run: Run,
    objective: Objective,
    about: Mapping[str, Any],
    shape: tuple[int, ...],
    received: Payload | None,
    space: Payload | None,
    store: Store,
    encoder: str,
) -> Judge | None:
    """The rule `encoder` of a client; None if the run has no such rule, or the client has received no classifier."""
    if not run.encodes:
        return None
    if run.private:
        stored = store.load_named(MEANS)
        means = None if stored is None else prototypes_of(stored[0], MEANS)
        if means is None or not len(means):
            return None
        scores: Callable[[Tensor], Tensor | None] = partial(
            encoder_scores, means=means, num_classes=objective.num_classes
        )
    elif isinstance(objective, SpaceObjective):
        dim = run.settings.feature_dim
        if space is None and received is not None:
            # no evaluation has followed: use the received part alone
            no_samples = torch.zeros(0, dim, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
            space = objective.complete(received, *no_samples)
        scores = partial(objective.encoded_scores, space)
    else:
        return None
    if scores(torch.zeros(0, run.settings.feature_dim, dtype=torch.float64)) is None:
        return None

    def judged(embeddings: Tensor) -> Tensor:
        judged_by = scores(embeddings)
        assert judged_by is not None
        return judged_by

    description = about.get(ENCODER)
    description = description if isinstance(description, dict) else {}
    name = encoder or encoder_of(about, {"encoder": run.settings.encoder})
    tokens = None
    if reads_text(name) and len(shape) == 1:
        tokens = Tokens(name.partition("?")[0], run.settings.max_tokens)
    return Judge(name, str(description.get("fingerprint", "")), shape, run.settings.feature_dim, judged, tokens)


def encoder_of(about: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The public encoder's name, from the client's description."""
    description = about.get(ENCODER)
    return str((description if isinstance(description, dict) else {}).get("name", settings.get("encoder", "")))
