"""The ledger: killed at each step, asked by two at once and a hundred times, spoilt, renewed; all sent is paid."""

import json
import os
import re
import signal
import stat
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from protosphere.client_app import privacy_ledger as module
from protosphere.client_app.privacy_ledger import Asked, Ledger, LedgerError, Limit
from protosphere.core import files
from protosphere.prototypes.accounting import epsilon_of, rho_of
from protosphere.prototypes.release import Shape

SHAPE = Shape(3, 4)
SUMS = torch.arange(15).reshape(3, 5)
DELTA = 1e-5


def asked(epsilon=1.0, run="a-run", unit="row", encoder="random", **facts):
    return Asked(
        {"classes": ["a", "b", "c"], **facts}, run, unit, encoder, SHAPE, SHAPE.variance(rho_of(epsilon, DELTA)), DELTA
    )


def sums():
    return SUMS


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "privacy"


def lines(folder):
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def test_a_hundred_requests_get_one_release_and_are_paid_once(folder):
    first = Ledger(folder, Limit(1.0, DELTA)).release(asked(), sums)
    for number in range(100):
        again = Ledger(folder, Limit(1.0, DELTA)).release(asked(run=f"run-{number}"), lambda: pytest.fail("asked"))
        assert torch.equal(again, first)
    (line,) = lines(folder)
    assert line["rho"] >= SHAPE.squared_sensitivity / (2 * line["variance"])
    assert (line["run"], line["unit"]) == ("a-run", "row")
    assert not torch.equal(first, SUMS)


def test_public_facts_decide_the_key_and_no_row_does(folder):
    keys = [
        asked().key,
        asked(2.0).key,
        asked(unit="group").key,
        asked(encoder="hf:b").key,
        asked(image=8).key,
        replace(asked(), shape=Shape(3, 4, True)).key,
    ]
    assert len(set(keys)) == len(keys)
    assert asked(run="another").key == asked().key


# --- kills ----------------------------------------------------------------------------------------------

STEPS = [  # (what is patched, its name, whether the child dies before or after it, lines then, stored then)
    (Ledger, "_append", "before", 0, False),
    (Ledger, "_append", "after", 1, False),
    (module, "draw", "before", 1, False),
    (module, "draw", "after", 1, False),
    (module, "write_tensors", "before", 1, False),
    (module, "write_tensors", "after", 1, False),
    (Ledger, "_write", "after", 1, True),
]


def killed(act):
    """Run `act` in a process that it kills."""
    child = os.fork()
    if not child:
        try:
            act()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize(("owner", "name", "when", "paid", "stored"), STEPS)
def test_killed_at_each_step(monkeypatch, folder, owner, name, when, paid, stored):
    whole = getattr(owner, name)

    def deadly(*args, **kwargs):
        if when == "after":
            whole(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, deadly)
        killed(lambda: Ledger(folder).release(asked(), sums))
    assert len(Ledger(folder).entries()) == paid
    kept = [load_file(path)["release"] for path in (folder / "releases").glob("*.safetensors")]
    assert len(kept) == stored
    found = Ledger(folder).release(asked(), sums)
    assert torch.equal(found, Ledger(folder).release(asked(), sums))
    assert all(torch.equal(found, each) for each in kept)
    assert len(lines(folder)) == paid + (not stored)
    assert not list((folder / "releases").glob("*.tmp"))


@pytest.mark.parametrize(("owner", "name"), [(module, "sync"), (module, "write_tensors"), (files.os, "replace")])
def test_a_full_disk_is_never_paid_too_little(monkeypatch, folder, owner, name):
    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, full)
        with pytest.raises(LedgerError):
            Ledger(folder).release(asked(), sums)
    Ledger(folder).release(asked(), sums)
    assert 1 <= len(lines(folder)) <= 2


def test_a_line_is_on_the_disk_or_not_there_at_all(monkeypatch, folder):
    ledger = Ledger(folder)
    ledger.release(asked(), sums)
    before = (folder / "ledger.jsonl").read_bytes()
    monkeypatch.setattr(module.os, "fsync", lambda place: (_ for _ in ()).throw(OSError(5, "I/O error")))
    with pytest.raises(LedgerError):
        ledger.release(asked(2.0), sums)
    assert (folder / "ledger.jsonl").read_bytes() == before


# --- several processes ------------------------------------------------------------------------------------


def together(acts):
    """Each act in a process of its own, all at once; whether each came to its end."""
    children = []
    for act in acts:
        child = os.fork()
        if not child:
            code = 1
            try:
                act()
                code = 0
            except LedgerError:
                code = 2
            finally:
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def test_two_at_once_make_one_release(folder):
    def act(number):
        def ask():
            found = Ledger(folder).release(asked(run=f"run-{number}"), sums)
            save_file({"found": found}, folder / f"{number}.safetensors")

        return ask

    folder.mkdir()
    assert together(map(act, range(8))) == [0] * 8
    found = [load_file(folder / f"{number}.safetensors")["found"] for number in range(8)]
    assert all(torch.equal(each, found[0]) for each in found)
    assert len(lines(folder)) == 1


def test_two_at_once_do_not_both_spend_what_is_left(folder):
    acts = [lambda n=n: Ledger(folder, Limit(1.2, DELTA)).release(asked(number=n), sums) for n in range(8)]
    assert sorted(together(acts)) == [0] + [2] * 7
    assert len(lines(folder)) == 1


# --- refusals ---------------------------------------------------------------------------------------------


def test_the_limit_holds_for_all_runs_together_at_its_own_delta(folder):
    limit = Limit(3.0, 1e-6)
    ledger = Ledger(folder, limit)
    number = 0
    while epsilon_of(ledger.spent() + asked().rho, 1e-6) <= 3:
        ledger.refuse(asked(number=number))
        ledger.release(asked(number=number), sums)
        number += 1
    with pytest.raises(LedgerError) as told:
        ledger.refuse(asked(number=number))
    assert "3 (δ = 1e-06)" in str(told.value)
    with pytest.raises(LedgerError):
        ledger.release(asked(number=number), sums)
    spent = ledger.spent()
    assert epsilon_of(spent, 1e-6) <= 3 < epsilon_of(spent + asked().rho, 1e-6)
    assert len(lines(folder)) == number > 1
    # what was released before may be sent again for ever
    ledger.release(asked(number=0), lambda: pytest.fail("asked"))


def test_a_table_keeps_its_unit(folder):
    Ledger(folder).release(asked(unit="group"), sums)
    with pytest.raises(LedgerError, match="group"):
        Ledger(folder).release(asked(), sums)
    Ledger(folder).renew()
    with pytest.raises(LedgerError, match="group"):
        Ledger(folder).release(asked(), sums)


def spoil(folder, what):
    path = folder / "ledger.jsonl"
    release = next((folder / "releases").glob("*.safetensors"))
    text = path.read_text()
    if what == "gone":
        path.unlink()
    elif what == "release cut":
        release.write_bytes(release.read_bytes()[:-8])
    elif what == "release of another":
        save_file({"release": torch.zeros(1, dtype=torch.int64)}, release)
    elif what == "release that nobody paid":
        path.write_text("")
    else:
        path.write_text(what(text))


SPOILT = [
    "gone",
    "release cut",
    "release of another",
    "release that nobody paid",
    lambda text: text[:-1],
    lambda text: text[: len(text) // 2] + "\n",
    lambda text: text + "[]\n",
    lambda text: text + "\n",
    lambda text: text.replace('"rho": ', '"rho": -'),
    lambda text: text.replace('"rho": ', '"rho": NaN, "of": '),
    lambda text: text.replace('"unit": "row", ', ""),
    # spent, but for a digit
    lambda text: text.replace('"rho": 0.0', '"rho": 0.00'),
    lambda text: re.sub(r'"variance": (\d+)', r'"variance": 1\1', text),
    # what the other form of a release would have cost
    lambda text: re.sub(r'"rho": ([\d.e-]+)', lambda found: f'"rho": {float(found[1]) * 9 / 5}', text),
]


@pytest.mark.parametrize("what", SPOILT)
def test_a_ledger_that_cannot_be_trusted_releases_nothing(folder, what):
    ledger = Ledger(folder)
    ledger.release(asked(), sums)
    spoil(folder, what)
    with pytest.raises(LedgerError):
        ledger.release(asked(), sums)


# --- renewal and the site's key ---------------------------------------------------------------------------


def test_renewal_spends_again_and_stands_in_the_ledger(folder):
    ledger = Ledger(folder, Limit(1.2, DELTA))
    first = ledger.release(asked(), sums)
    ledger.renew()
    with pytest.raises(LedgerError):
        ledger.release(asked(), sums)
    second = Ledger(folder).release(asked(), sums)
    assert not torch.equal(first, second)
    assert ledger.spent() == pytest.approx(2 * asked().rho)
    assert [entry.get("renewed", False) for entry in lines(folder)] == [False, True, False]


def test_the_sites_key_is_its_own_and_stays(folder):
    key = Ledger(folder).site_key()
    assert len(key) == 32
    assert Ledger(folder).site_key() == key != Ledger(folder.with_name("other")).site_key()
    assert stat.S_IMODE((folder / "site.key").stat().st_mode) == 0o600
    (folder / "site.key").write_bytes(b"short")
    with pytest.raises(LedgerError):
        Ledger(folder).site_key()
