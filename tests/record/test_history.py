"""Global prototypes over rounds, as a run keeps them for its report."""

import pytest
import torch

from protosphere.core.errors import SettingError
from protosphere.record.snapshots import (
    FOLDER,
    MOST_HISTORY_VALUES,
    MOST_ROUNDS,
    global_by_round,
    kept_rounds,
    read_round,
    save,
    step_of,
)


def tensors_of(number, k=3, d=4):
    labels, vectors = torch.arange(k), torch.randn(k, d, generator=torch.Generator().manual_seed(number))
    return {"global/labels": labels, "global/vectors": vectors}


@pytest.mark.parametrize(("rounds", "step"), [(1, 1), (50, 1), (51, 1), (52, 2), (101, 2), (104, 4), (1000, 32)])
def test_of_many_rounds_an_even_part_is_kept(tmp_path, rounds, step):
    step = step_of(rounds)
    for number in range(1, rounds + 1):
        save(tmp_path, tensors_of(number), {"round": number})
    found = global_by_round(tmp_path)
    assert list(found) == list(range(step, rounds + 1, step))
    assert MOST_ROUNDS / 2 - 1 <= len(found) <= MOST_ROUNDS or step == 1
    for number, (labels, vectors) in found.items():
        torch.testing.assert_close(vectors, tensors_of(number)["global/vectors"].double(), atol=2e-3, rtol=2e-3)
        assert labels.tolist() == [0, 1, 2]


def test_rounds_that_are_run_again_are_of_the_new_run(tmp_path):
    for number in (1, 2, 3):
        save(tmp_path, tensors_of(number), {"round": number})
    save(tmp_path, tensors_of(7), {"round": 2})
    assert list(global_by_round(tmp_path)) == [1, 2]
    assert torch.equal(global_by_round(tmp_path)[2][1], tensors_of(7)["global/vectors"].half().double())


def test_all_of_every_round_stay_as_they_were_and_a_report_reads_an_even_part(tmp_path):
    def whole(number):
        local = {"local/clients": torch.tensor([4]), "local/labels": torch.tensor([1])}
        return tensors_of(number) | local | {"local/vectors": torch.full((1, 4), 1e6 + number)}

    for number in range(1, 121):
        save(tmp_path, whole(number), {"round": number, "clients": 1}, every=True)
    assert kept_rounds(tmp_path) == list(range(1, 121))
    assert list(global_by_round(tmp_path)) == list(range(4, 121, 4))
    for number in (1, 77):
        tensors = read_round(tmp_path, number)
        assert torch.equal(tensors["global/vectors"], tensors_of(number)["global/vectors"])
        assert torch.equal(tensors["local/vectors"], whole(number)["local/vectors"])
    # those of rounds that are run again go, and of a method without global ones the clients' stay
    ones = {"local/labels": torch.arange(1), "local/vectors": torch.ones(1, 4)}
    save(tmp_path, ones, {"round": 3}, every=True)
    assert kept_rounds(tmp_path) == [1, 2, 3]
    assert list(global_by_round(tmp_path)) == [1, 2]
    assert read_round(tmp_path, 9) == {}


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"global/labels": torch.arange(1), "global/vectors": torch.full((1, 2), 1e6)},
        {"global/labels": torch.arange(1), "global/vectors": torch.zeros(1, MOST_HISTORY_VALUES + 1)},
    ],
    ids=["none", "beyond float16", "large"],
)
def test_what_would_be_wrong_or_large_is_not_kept(tmp_path, tensors):
    save(tmp_path, tensors, {"round": 1})
    assert global_by_round(tmp_path) == {}


def test_a_link_in_the_place_of_their_folder_leads_to_no_files_of_its_readers(tmp_path):
    (tmp_path / "run").mkdir()
    mine = tmp_path / "mine"
    save(mine.parent, tensors_of(7), {"round": 7})
    (tmp_path / FOLDER).rename(mine)
    (tmp_path / "run" / FOLDER).symlink_to(mine)
    before = list(mine.iterdir())
    with pytest.raises(SettingError, match="run/prototypes is a link to elsewhere; take it away"):
        save(tmp_path / "run", tensors_of(1), {"round": 1})
    assert list(mine.iterdir()) == before


def test_a_file_that_is_none_is_left_out(tmp_path):
    save(tmp_path, tensors_of(1), {"round": 1})
    (tmp_path / FOLDER / "round-000002.safetensors").write_text("x")
    assert list(global_by_round(tmp_path)) == [1]
