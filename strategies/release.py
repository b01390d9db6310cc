"""How `privacy = "release"` changes a method's messages: uploads come from a noisy release, and one more part is sent
down.

A client's upload is computed from a state that holds only its release, the same in every round. Each download also has
the part `encoder-means`: m_j, the mean of the decoded, unscaled uploads of class j, for the rule `encoder`:

    argmax_j z^ . m_j / ||m_j||,   z^ the public encoder's direction of a sample

This rule includes classes that a client lacks.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor
from torch.nn.functional import normalize

from protosphere.core.errors import ModelError, SettingError
from protosphere.core.settings import Settings
from protosphere.models.encoder import check_encoder
from protosphere.prototypes.aggregation import aggregate
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.strategies.contract import Exchange, Method, Options, Part
from protosphere.wire.payloads import Payload, class_vectors, prototypes_of

RULE, POOL = "encoder", "pool"
# controls without any exchange: a client's own discriminant, alone and pooled with the private model
OWN_RULE, OWN_POOL = "encoder-local", "pool-local"
CONTROLS = {RULE: OWN_RULE, POOL: OWN_POOL}
MEANS = Part("prototypes", "encoder-means")


def any_options(options: Options) -> None:
    """`Method.releases` of a method that works with a release under any options."""


def upload_scale(settings: Settings) -> float:
    """The factor of means of unit vectors in an upload: a release has the scale of prototypes."""
    return settings.privacy_scale if settings.privacy == "release" else 1.0


def under_release(exchange: Exchange) -> Exchange:
    """The parts of a method's messages, plus the means in the download; only a release is uploaded."""
    return replace(exchange, down=(*exchange.down, MEANS) if exchange.down else (), discloses=(), once=False)


def refuse_unreleasable(settings: Settings, method: Method, options: Options) -> None:
    """Refuse, before anything starts, a run under `privacy` that could not keep its guarantee.

    Raises:
        SettingError: names the setting.
    """
    exchange = method.exchange(options)
    if not exchange.up and not exchange.down:
        return
    if method.releases is None:
        raise SettingError(
            f'setting `privacy` is "release", but `{settings.strategy}` exchanges more than a release contains; use a '
            "method that exchanges prototypes only, such as `protonorm`, or `frame`, which exchanges nothing."
        )
    check_public_encoder(
        settings,
        'setting `privacy` is "release", but model features are trained on private samples: set `encoder` to '
        "a public encoder, or use strategy `frame`",
    )
    method.releases(options)


def check_public_encoder(settings: Settings, why: str) -> None:
    """Refuse a run whose clients need a public encoder if no setting names one.

    Args:
        why: the sentence for that case.

    Raises:
        SettingError: `why`, or the name is no encoder.
    """
    if not settings.encoder:
        raise SettingError(f"{why}.")
    try:
        check_encoder(settings.encoder)
    except ModelError as error:
        raise SettingError(f"setting `encoder`: {error}") from None


def join_means(payload: Payload | None, means: PrototypeSet | None, dim: int) -> Payload | None:
    """A download, if there is one, with the means added; before there are any, with empty means."""
    if payload is None:
        return None
    return {**payload, MEANS.name: PrototypeSet.empty(dim) if means is None else means}


def split_means(payload: Payload | None) -> tuple[Payload | None, PrototypeSet | None]:
    """Inverse of `join_means`: the method's download, and the means."""
    if payload is None or MEANS.name not in payload:
        return payload, None
    other_parts = {name: part for name, part in payload.items() if name != MEANS.name}
    return other_parts, prototypes_of(payload, MEANS.name)


def with_classes(uploads: Mapping[int, Payload]) -> dict[int, Payload]:
    """Drop uploads without a class: a release in which no class exceeds the noise is valid."""
    vectors_by_client = {partition: class_vectors(upload) for partition, upload in uploads.items()}
    return {p: upload for p, upload in uploads.items() if (part := vectors_by_client[p]) is None or len(part)}


def encoder_means(uploads: Mapping[int, Payload], scale: float, last_means: PrototypeSet | None) -> PrototypeSet | None:
    """m_j; a class that no client reported keeps its mean."""
    parts = [class_vectors(upload) for upload in uploads.values()]
    sets = [part.class_means().without_counts() for part in parts if part is not None]
    if not sets:
        return last_means
    fresh = aggregate(sets, "mean")
    fresh = fresh.with_vectors(fresh.vectors / scale)
    return fresh if last_means is None else last_means.updated_by(fresh)


def encoder_scores(directions: Tensor, means: PrototypeSet, num_classes: int) -> Tensor:
    """z^ . m_j / ||m_j||, (n, d) to (n, K); minus infinity for a class without a mean."""
    vectors, present = means.table(num_classes)
    scores = directions.double() @ normalize(vectors.double(), dim=1).T
    return scores.masked_fill(~present, -float("inf"))
