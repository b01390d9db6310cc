"""Named random streams: every random draw of a run derives from (seed, client, round, purpose), so the number of
workers, the order of replies and restarts do not change it."""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from threadpoolctl import ThreadpoolController


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
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        # torch.manual_seed formats a stack trace for each kind of accelerator that is missing
        torch.default_generator.manual_seed(seed)


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Run with `count` torch and BLAS threads: the number of threads changes the order of floating-point sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with _pools(len(sys.modules)).limit(limits=count):
            yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=1)
def _pools(modules: int) -> ThreadpoolController:
    """The thread pools of the loaded libraries; a search takes milliseconds, so it is repeated only after imports."""
    return ThreadpoolController()
