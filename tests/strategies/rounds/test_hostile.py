"""Hostile clients over the real apps: what they upload is never averaged, to the bit."""

import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from experiments.runtime.grid import LocalGrid
from runs.round import RunError

LIAR = 2


def tampering(change):
    """A grid on which client LIAR's uploads pass through change(labels, vectors) -> arrays by name, or None for no
    upload at all; it keeps every download and every honest upload."""

    downloads, uploads = {}, {}

    class Tampering(LocalGrid):
        def push_messages(self, messages):
            for message in messages:
                if "payload" in message.content:
                    round_number = message.content["instruction"]["round"]
                    payload = message.content["payload"]
                    downloads[round_number] = {name: payload[name].numpy() for name in payload}
            return super().push_messages(messages)

        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            for reply in replies:
                if "payload" in reply.content:
                    self._upload(reply.content)
            return replies

        def _upload(self, records):
            report, payload = records["report"], records["payload"]
            labels, vectors = payload["labels"].numpy(), payload["vectors"].numpy()
            if report["partition"] != LIAR:
                uploads[report["round"], report["partition"]] = labels, vectors
                return
            changed = change(labels, vectors)
            del records["payload"]
            if changed is not None:
                records["payload"] = ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in changed.items()})

    Tampering.downloads, Tampering.uploads = downloads, uploads
    return Tampering


def with_value(value):
    def change(labels, vectors):
        vectors = vectors.copy()
        vectors[0, 0] = value
        return {"labels": labels, "vectors": vectors}

    return change


LIES = {
    "NaN": with_value(math.nan),
    "infinity": with_value(math.inf),
    "a huge norm": with_value(3e6),
    "another width": lambda labels, vectors: {"labels": labels, "vectors": vectors[:, :-1]},
    "another rank": lambda labels, vectors: {"labels": labels, "vectors": vectors[None]},
    "double": lambda labels, vectors: {"labels": labels, "vectors": vectors.astype(np.float64)},
    "a label beyond K": lambda labels, vectors: {"labels": labels + 10, "vectors": vectors},
    "a negative label": lambda labels, vectors: {"labels": -1 - labels[::-1], "vectors": vectors},
    "a label twice": lambda labels, vectors: {
        "labels": np.repeat(labels[:1], 2),
        "vectors": np.repeat(vectors[:1], 2, axis=0),
    },
    "weights beside": lambda labels, vectors: {"labels": labels, "vectors": vectors, "weights": vectors},
}


@pytest.fixture(scope="module")
def without():
    """What a run makes when client LIAR uploads nothing, by strategy; worked out once."""
    return {}


@pytest.mark.parametrize(
    ("strategy", "lie"), [("fedproto", lie) for lie in LIES] + [("protonorm", "NaN"), ("protonorm", "a huge norm")]
)
def test_a_lie_leaves_the_prototypes_of_the_run_without_it(run, metrics, without, strategy, lie):
    settings = {"strategy": strategy, "rounds": 2, "partition": "iid"}
    if strategy not in without:
        silent = tampering(lambda labels, vectors: None)
        without[strategy] = silent.downloads, metrics(run(settings, grid=silent))
    downloads, lines = without[strategy]
    grid = tampering(LIES[lie])
    told = metrics(run(settings, grid=grid))
    assert set(grid.downloads) == {2, 3}
    for round_number, arrays in downloads.items():
        for name, values in arrays.items():
            assert grid.downloads[round_number][name].tobytes() == values.tobytes()
    for line, expected in zip(told, lines, strict=True):
        # clients saw the same, so they trained and evaluated the same
        assert line["clients"] == expected["clients"]
        if "training" in line:
            assert (line["training"]["valid"], line["training"]["dropped"]) == (3, 1)
            assert line["problems"][str(LIAR)].startswith("upload dropped: ")
            assert line["bytes"]["wire_up"] > expected["bytes"]["wire_up"]


def test_the_mean_is_that_of_the_honest(run):
    """Against a plain loop over what crossed the wire, in float64."""
    grid = tampering(LIES["NaN"])
    run({"strategy": "fedproto", "rounds": 2, "partition": "iid"}, grid=grid)
    for round_number in (1, 2):
        rows: dict[int, list[np.ndarray]] = {}
        for partition in (0, 1, 3):
            for label, vector in zip(*grid.uploads[round_number, partition], strict=True):
                rows.setdefault(int(label), []).append(vector.astype(np.float64))
        made = grid.downloads[round_number + 1]
        assert made["labels"].tolist() == sorted(rows)
        for label, vector in zip(made["labels"], made["vectors"], strict=True):
            expected = sum(rows[int(label)]) / len(rows[int(label)])
            np.testing.assert_allclose(vector, expected, rtol=1e-6, atol=1e-7)


def test_all_liars_change_nothing_and_end_the_run(run):
    """A majority of liars moves no bound: what was learnt before stays, and the run stops after its patience."""

    class AllLie(tampering(LIES["NaN"])):
        def _upload(self, records):
            if records["report"]["round"] > 1:
                labels = records["payload"]["labels"].numpy()
                bad = np.full((len(labels), 12), np.float32("inf"))
                records["payload"] = ArrayRecord({"labels": Array(labels), "vectors": Array(bad)})

    with pytest.raises(RunError, match=r"2 rounds in a row .* decodes to a value that is not finite"):
        run({"strategy": "fedproto", "rounds": 9, "max-failed-rounds": 2}, grid=AllLie)
    assert set(AllLie.downloads) == {2, 3}
    for name, values in AllLie.downloads[2].items():
        assert torch.equal(torch.from_numpy(AllLie.downloads[3][name]), torch.from_numpy(values))
