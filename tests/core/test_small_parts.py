"""Devices, homes, seeds, names of clients and words for classes."""

import hashlib
import itertools
import random
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from protosphere.core import memory
from protosphere.core.client_names import (
    LONGEST_CLIENT_NAME,
    client_label,
    client_names,
    client_word,
    use_client_names,
)
from protosphere.core.devices import device_of
from protosphere.core.errors import SettingError
from protosphere.core.home import OtherHomeError, home, refuse_other, stores
from protosphere.core.seeds import derive, generator, limited_threads, seed_process
from protosphere.core.text import class_word, class_words, cut_apart

RUN = "20260101-000000-fedproto-digits-0123abcd"
CLASSES = ("cat", "dog", "frog", "a name that is far too long for one line")


# --- devices and homes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "there", "said"),
    [
        ("auto", {"mps": 1, "xpu": 1}, "cpu"),
        ("auto", {"cuda": 1}, "cuda"),
        ("cuda:1", {"cuda": 2}, "cuda:1"),
        ("mps", {"mps": 1}, "mps"),
        ("cuda", {"mps": 1}, 'here is "cuda", but this machine has no CUDA'),
        ("cuda:2", {"cuda": 2}, 'here is "cuda:2", but this machine has 2 CUDA devices'),
    ],
)
def test_a_device_is_there_or_the_refusal_names_it(name, there, said, monkeypatch):
    for kind in ("cuda", "mps", "xpu"):
        monkeypatch.setattr(f"torch.{kind}.is_available", lambda kind=kind: kind in there)
        monkeypatch.setattr(f"torch.{kind}.device_count", lambda kind=kind: there.get(kind, 0))
    if "here" not in said:
        assert device_of(name, "here is") == torch.device(said)
        return
    with pytest.raises(SettingError) as caught:
        device_of(name, "here is")
    assert str(caught.value).startswith(said)


def test_home_is_the_variable_or_a_folder_of_the_user(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    for value, place in (("~/elsewhere", "elsewhere"), ("", ".protosphere")):
        monkeypatch.setenv("PROTOSPHERE_HOME", value)
        assert home() == Path("/somewhere") / place


@pytest.mark.parametrize("found", ["its folder", "nothing", "another run", "a file"])
def test_a_home_without_the_folder_of_the_runs_clients_is_another_and_refused_by_host_and_place(monkeypatch, found):
    if found == "its folder":
        stores(RUN).mkdir(parents=True)
        refuse_other(RUN)
        return
    stores(RUN).parent.mkdir(parents=True)
    if found == "another run":
        stores(RUN.replace("abcd", "abce")).mkdir()
    elif found == "a file":
        stores(RUN).write_text("")
    with pytest.raises(OtherHomeError) as refused:
        refuse_other(RUN)
    assert socket.gethostname() in str(refused.value)
    assert str(home()) in str(refused.value)


# --- seeds ------------------------------------------------------------------------------------------------------


def test_a_seed_is_the_first_63_bits_of_a_hash_of_the_name_in_every_process():
    by_hand = int(hashlib.blake2b(b"0/round/1/sample", digest_size=8).hexdigest(), 16) // 2
    # Python's own hashes are others in every process, such as this one
    assert derive(0, "round", 1, "sample") == by_hand == 2_928_853_067_717_628_212
    names = set(itertools.product(range(5), ("client", "round"), range(20), range(20), ("train", "process")))
    names |= {(12, 3), (1, 23), (123,), ("a", "b"), ("b", "a"), ("a",), ("",), (0,), (-1,)}
    assert len({derive(*parts) for parts in names}) == len(names)


def test_a_generator_is_its_own_and_seeding_the_process_seeds_every_other():
    before = torch.get_rng_state()
    draws = [torch.rand(5, generator=generator(*name)) for name in ((1, "x"), (1, "x"), (2, "x"))]
    assert draws[0].equal(draws[1])
    assert not draws[0].equal(draws[2])
    assert torch.get_rng_state().equal(before)

    def draw(*name):
        seed_process(*name)
        return random.random(), np.random.random(), torch.rand(1).item()

    assert draw(3, "client", 1) == draw(3, "client", 1)
    assert all(one != other for one, other in zip(draw(3, "client", 1), draw(3, "client", 2), strict=True))


def test_thread_limits_hold_inside_and_are_given_back_also_after_an_error():
    def blas_threads():
        return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    before, blas_before = torch.get_num_threads(), blas_threads()
    with limited_threads(2):
        with limited_threads(1):
            assert torch.get_num_threads() == 1
            assert set(blas_threads().values()) == {1}
        assert torch.get_num_threads() == 2
    with pytest.raises(KeyError, match="inside"), limited_threads(3):
        raise KeyError("inside")
    assert (torch.get_num_threads(), blas_threads()) == (before, blas_before)


# --- names of clients ---------------------------------------------------------------------------------------------


def named(*names):
    return client_names([{"partition": number, "name": name} for number, name in enumerate(names)])


def test_a_name_goes_before_the_domain_and_no_two_clients_have_one():
    clients = [{"partition": 0, "name": "Berlin", "domain": "scans"}, {"partition": 1, "domain": "scans"}]
    names = client_names([*clients, {"partition": 2, "domain": ""}])
    assert names == {0: "Berlin", 1: "scans"}
    assert [client_word(number, names) for number in (0, "1", 2)] == [
        "client 0 (Berlin)",
        "client 1 (scans)",
        "client 2",
    ]
    assert [client_label(number, names) for number in (1, 3)] == ["scans", "client 3"]
    assert named("x", "y", "x") == {0: "x 1", 1: "y", 2: "x 2"}
    assert len(set(named("x", "x", "x 1", "x 1", "x 2").values())) == 5
    use_client_names({3: "Rome"})
    assert [client_word(3), client_word(3, {})] == ["client 3 (Rome)", "client 3"]


@pytest.mark.parametrize(
    "hostile",
    [
        "=HYPERLINK(1)",
        "@SUM(A1)",
        '<script>alert("x")</script>',
        'Berlin) says: "stop"',
        "\\input{passwd} $x$ 5% #1 {y}",
        "one\ntwo\r\x1b[31m\u202ethree\u200b",
        "`curl http://x | sh`",
        "long " * 99,
    ],
)
def test_a_hostile_name_is_plain_words(hostile):
    name = named(hostile)[0]
    assert name.isprintable()
    assert len(name) <= LONGEST_CLIENT_NAME
    assert not set(name) & set('=()<>"`\\${}%#|;*^~[]')
    assert name[0] not in "+-@="


@pytest.mark.parametrize("name", ["client 1", "Client-1 (x)", "client1", "\u200bclient 1", "  ", "()"])
def test_what_reads_like_another_client_or_nothing_is_no_name(name):
    assert named(name) == {}


# --- classes in words ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ((), "no class"),
        ((0,), "1 class: cat"),
        ((0, 1, 2, 3), "4 classes: cat, dog, frog, a name that is far too …"),
        ((3,) * 9, f"9 classes: {'a name that is far too …, ' * 3}a…"),
    ],
)
def test_classes_are_named(labels, words):
    assert class_words(labels, CLASSES) == words
    assert (class_word(1, CLASSES), class_word(9, CLASSES)) == ("class 'dog'", "class 9")


@pytest.mark.parametrize(
    ("names", "most", "words"),
    [
        (["a" * 30, "b"], 28, ["a" * 27 + "…", "b"]),
        (["left lung, lower", "left lung, upper"], 12, ["…lung, lower", "…lung, upper"]),
        (["a" * 20 + "X" + "c" * 20, "a" * 20 + "Y" + "c" * 20], 8, ["…ccccccc", "…cc… (2)"]),
        (["a\0b", "a b"], 8, ["a b", "a b (2)"]),
        (["a" * 30, "a" * 30 + "b" * 20], 14, ["…" + "a" * 13, f"…{'b' * 13}"]),
    ],
)
def test_names_that_differ_stay_different_when_they_are_cut(names, most, words):
    assert cut_apart(names, most) == words
    many = [f"{'x' * 50}{number}{'y' * 50}" for number in range(300)]
    assert len(set(cut_apart(many, 14))) == 300


# --- memory ---------------------------------------------------------------------------------------------------

ALLOCATIONS = """
import resource
from protosphere.core.memory import freed_memory_kept
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
with freed_memory_kept():
    for step in range(20):
        if step == 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tensors = [bytearray(4 * 2**20) for _ in range(8)]
        del tensors
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    kept = resident()
print(faults, kept - resident())
"""
NO_GLIBC = memory._glibc() is None


@pytest.mark.skipif(NO_GLIBC, reason="this C library cannot be told to keep freed memory, or is configured")
def test_freed_memory_is_kept_during_a_run_and_given_back_at_its_end():
    process = subprocess.run([sys.executable, "-c", ALLOCATIONS], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    faults, returned = map(int, process.stdout.split())
    # without it, each of ten steps would fetch eight times 1,024 pages
    assert faults < 1000
    assert returned > 20 * 2**20


@pytest.mark.parametrize("variable", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", ""])
def test_another_system_and_a_user_s_own_memory_options_are_left_alone(monkeypatch, variable):
    if variable:
        monkeypatch.setenv(variable, "1")
    else:
        monkeypatch.setattr(sys, "platform", "win32")
    assert memory._glibc() is None
    with memory.freed_memory_kept():
        pass
