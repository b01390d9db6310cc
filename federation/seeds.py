"""Randomness by name: every random draw of a run comes from (seed, who, round, purpose), so that neither
worker count nor reply order nor a restart can change it."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from threadpoolctl import threadpool_limits


def derive(*parts: int | str) -> int:
    """A 63-bit seed from the names of a stream, the same in every process and on every platform."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A CPU generator for the stream named by `parts`."""
    return torch.Generator().manual_seed(derive(*parts))


def seed_process(*parts: int | str) -> None:
    """Seed the process-wide generators (dropout and user code draw from them) for one client-round."""
    seed = derive(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Run with `count` torch and BLAS threads: the number of threads changes the order of float sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(limits=count):
            yield
    finally:
        torch.set_num_threads(before)
