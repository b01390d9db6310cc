"""A site's rows on the sides of its split by a secret of its own: what one row is moves no other."""

import hmac
from itertools import pairwise

import numpy as np

from protosphere.data.partition.groups import Units
from protosphere.data.partition.row_hashes import content_hashes
from protosphere.data.samples import Samples


def secret_split(
    data: Samples, pool: np.ndarray, units: Units, secret: str, test_share: float, validation_share: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Train, test and validation units: a unit's side is HMAC-SHA256(secret, content of its rows) / 2^256.

    Shares hold on average alone, no class keeps a training row for certain, and copies are on one side.

    Args:
        pool: (m,) the rows that the `units` are of. secret: in hexadecimal digits.

    Returns:
        Three sorted arrays of positions in `units`.
    """
    key, hashes = bytes.fromhex(secret), content_hashes(data.inputs, pool)
    owners = np.arange(len(pool)) if units.of_row is None else units.of_row
    # by unit, then by content: the order of rows says nothing
    order = np.lexsort((hashes, owners))
    bounds = np.searchsorted(owners[order], np.arange(len(units) + 1))
    sides = np.zeros(len(units), dtype=np.int64)
    for unit, (start, end) in enumerate(pairwise(bounds)):
        digest = hmac.digest(key, hashes[order[start:end]].tobytes(), "sha256")
        share = int.from_bytes(digest, "big") / 2**256
        sides[unit] = 1 if share < test_share else 2 if share < test_share + validation_share else 0
    train, test, validation = (np.flatnonzero(sides == side) for side in range(3))
    return train, test, validation
