"""Caps the sample counts that clients claim. A claim weighs in every mean and metric, so one far above the others would
dominate the run."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Literal

from protosphere.core.client_names import client_word
from protosphere.wire.payloads import Identity, Payload, class_vectors


def claimed_samples(identities: Mapping[int, Identity]) -> dict[int, int]:
    """Partition -> the claimed number of training samples, for claims above 0."""
    claims = {}
    for partition, identity in identities.items():
        if identity.rows and identity.rows[0] > 0:
            claims[partition] = identity.rows[0]
    return claims


def most_believed(claims: Mapping[int, int], ratio: float) -> float:
    """`ratio` times the median of the claims above 0; infinity without claims."""
    above_zero = [claim for claim in claims.values() if claim > 0]
    return ratio * median(above_zero) if above_zero else float("inf")


def over_claimed(claims: Mapping[int, int], ratio: float, present: Collection[int] | None = None) -> dict[int, float]:
    """Partition -> the accepted share of its claim, for clients whose share is below 1.

    `present` are the clients whose claims determine the median: by default, or if none of them claims anything, all.
    """
    most = most_believed(_of_present(claims, present), ratio)
    return {partition: most / claim for partition, claim in claims.items() if claim > most}


def _of_present(claims: Mapping[int, int], present: Collection[int] | None) -> Mapping[int, int]:
    present_claims = {
        partition: claim for partition, claim in claims.items() if present is None or partition in present
    }
    return present_claims if any(present_claims.values()) else claims


class CappedSampleCounts:
    """The clients of a run: `identities` by partition, with capped training samples and class counts.

    `ratio` is the largest weight of a client, in multiples of the median of the clients that are `present` (by default
    all). With "equal", every client has the median.
    """

    def __init__(
        self,
        identities: Mapping[int, Identity],
        ratio: float,
        client_weights: Literal["samples", "equal"],
        present: Collection[int] | None = None,
    ):
        self._ratio, self._equal = ratio, client_weights == "equal"
        self.update(identities, present)

    def update(self, identities: Mapping[int, Identity], present: Collection[int] | None = None) -> None:
        """Set the clients. Clients that have left remain among them, since their uploads still count."""
        self._claims = claimed_samples(identities)
        self._shares = self._list_shares(self._claims, present)
        self.identities = {
            partition: self._scale_identity(partition, identity) for partition, identity in identities.items()
        }

    def _list_shares(self, claims: Mapping[int, int], present: Collection[int] | None = None) -> dict[int, float]:
        """Partition -> the factor of its claim, where it is not 1."""
        if not self._equal or not claims:
            return over_claimed(claims, self._ratio, present)
        usual = median(_of_present(claims, present).values())
        return {partition: usual / claim for partition, claim in claims.items() if claim > 0}

    def uploads(self, uploads: Mapping[int, Payload]) -> tuple[dict[int, Payload], list[str]]:
        """The uploads with capped class counts. Clients that claim no samples are capped by the sums of their counts,
        with a sentence for each."""
        sums = {}
        for partition, upload in uploads.items():
            vectors = class_vectors(upload)
            if partition not in self._claims and vectors is not None and vectors.counts is not None:
                sums[partition] = vectors.count_samples()
        shares = self._list_shares(sums)
        warnings = []
        if not self._equal:
            for partition, share in sorted(shares.items()):
                warnings.append(
                    f"the class counts of {client_word(partition)} add up to {sums[partition]:,}, more than "
                    f"{self._ratio:g} times the clients' median: they weigh as {share * sums[partition]:,.0f} "
                    "(`max-weight-ratio`)"
                )
        capped_uploads = dict(uploads)
        for partition, share in {**shares, **self._shares}.items():
            if partition in uploads:
                parts = uploads[partition].items()
                capped_uploads[partition] = {name: part.with_scaled_counts(share) for name, part in parts}
        return capped_uploads, warnings

    def notices(self) -> Iterator[str]:
        """A sentence for each client whose claim was capped."""
        if self._equal:
            return
        for partition, share in sorted(self._shares.items()):
            claim = self._claims[partition]
            yield (
                f"{client_word(partition)} says that it has {claim:,} training samples, more than {self._ratio:g} "
                f"times the clients' median: it weighs as {share * claim:,.0f} in every mean (`max-weight-ratio`); "
                "look whether it is true"
            )

    def _scale_identity(self, partition: int, identity: Identity) -> Identity:
        share = self._shares.get(partition)
        if share is None:
            return identity
        rows = (max(1, round(share * identity.rows[0])), *identity.rows[1:])
        return replace(identity, rows=rows)
