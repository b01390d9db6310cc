"""Random streams by name: the same everywhere, different for different names; thread limits that are given back."""

import hashlib
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from protosphere.core.seeds import derive, generator, limited_threads, seed_process

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("parts", "text", "seed"),
    [
        ((0, "round", 1, "sample"), "0/round/1/sample", 2_928_853_067_717_628_212),
        ((7, "client", 3, "round", 12, "process"), "7/client/3/round/12/process", 7_219_774_729_598_411_180),
    ],
)
def test_a_seed_is_the_first_63_bits_of_a_hash_of_the_name(parts, text, seed):
    by_hand = int(hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), 16) // 2
    assert derive(*parts) == by_hand == seed


def test_other_names_other_seeds():
    names = set(itertools.product(range(5), ("client", "round"), range(20), range(20), ("train", "process")))
    names |= {(12, 3), (1, 23), (123,), ("a", "b"), ("b", "a"), ("a",), ("",), (0,), (-1,)}
    assert len({derive(*parts) for parts in names}) == len(names)


def test_another_process_gets_the_same_seeds_whatever_its_hash_seed():
    code = "from protosphere.core.seeds import derive; print(derive(0, 'round', 1, 'sample'))"
    other = os.environ | {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=other, capture_output=True, text=True, check=True)
    assert int(done.stdout) == derive(0, "round", 1, "sample")


def test_a_generator_is_its_own_and_leaves_the_process_alone():
    before = torch.get_rng_state()
    one, same, other = generator(1, "x"), generator(1, "x"), generator(2, "x")
    draws = [torch.rand(5, generator=each) for each in (one, same, other)]
    assert draws[0].equal(draws[1])
    assert not draws[0].equal(draws[2])
    assert torch.get_rng_state().equal(before)


def draw_from_everything():
    return random.random(), np.random.random(), torch.rand(1).item()


def test_seeding_the_process_seeds_every_generator():
    seed_process(3, "client", 1)
    first = draw_from_everything()
    draw_from_everything()
    seed_process(3, "client", 1)
    assert draw_from_everything() == first
    seed_process(3, "client", 2)
    assert all(one != other for one, other in zip(draw_from_everything(), first, strict=True))


def blas_threads():
    return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_thread_limits_hold_inside_and_are_given_back_also_after_an_error(three_threads):
    before = blas_threads()
    with limited_threads(2):
        with limited_threads(1):
            assert torch.get_num_threads() == 1
            assert set(blas_threads().values()) == {1}
        assert torch.get_num_threads() == 2
        assert set(blas_threads().values()) <= {1, 2}
    with pytest.raises(KeyError, match="inside"), limited_threads(1):
        raise KeyError("inside")
    assert torch.get_num_threads() == 3
    assert blas_threads() == before
