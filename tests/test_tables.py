"""The stored figures and the tables that pages make of them."""

import json
import tomllib

import pandas as pd
import pytest

from benchmarks import tables
from benchmarks.tables import PAGES, RESULTS, Stored, best_value, digest, renewed, store, validation_accuracies

SEEDS = (0, 1, 2)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_the_stored_figures(page):
    assert page.read_text("utf-8") == renewed(page.read_text("utf-8")), "`python -m benchmarks.tables` writes it anew"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.csv")), ids=lambda path: path.stem)
def test_every_stored_accuracy_is_a_share_and_every_method_has_every_seed(path):
    stored = Stored(path.stem)
    accuracies = stored.frame[stored.frame["metric"].str.endswith((" selected", " final"))]["value"]
    assert len(accuracies)
    assert accuracies.between(0, 1).all()
    for _, seeds in stored.frame.groupby("data"):
        assert seeds.groupby("method")["seed"].nunique().nunique() == 1


def test_the_table_has_the_constants_that_were_chosen():
    file = tomllib.loads((tables.SPECIFICATIONS / "methods.toml").read_text("utf-8"))
    own = {method["label"]: method for method in file["methods"] if isinstance(method, dict)}
    for method, (setting, accuracies) in validation_accuracies(Stored("constants")).items():
        of_method = own.get(method, {}).get(method, {})
        assert of_method.get(setting, file["settings"].get(setting)) == float(best_value(accuracies)), method


def test_of_equal_values_the_last_is_chosen():
    assert best_value({"0.1": 0.68, "1.0": 0.68, "10.0": 0.5}) == "1.0"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of specifications and one of results, in place of the project's."""
    for name in ("SPECIFICATIONS", "RESULTS"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(tables, name, tmp_path / name)
    (tmp_path / "SPECIFICATIONS" / "methods.toml").write_text("seeds = [0, 1, 2]\n")
    return tmp_path


def compared(place, accuracies, failed=()):
    """A comparison's folder: (method, rule) -> accuracies over seeds, on one data set; `failed`: seeds of `local`."""
    rows = {}
    for (method, rule), values in accuracies.items():
        for seed, value in zip(SEEDS, values, strict=True):
            status = "failed" if method == "local" and seed in failed else "completed"
            row = rows.setdefault((method, seed), {"row": "digits", "method": method, "seed": seed, "status": status})
            row |= {f"metric: {rule} selected": value, "majority-class": 0.25, "payload_bytes": 8000.0, "rounds": 4}
            row |= dict.fromkeys({*tables.BESIDE} - {*row}, 1.0)
    folder = place / "comparison"
    folder.mkdir(exist_ok=True)
    pd.DataFrame(rows.values()).to_csv(folder / "table.csv", index=False)
    return folder


ACCURACIES = {
    ("local", "classifier"): (0.5, 0.6, 0.7),
    ("local", "discriminant"): (0.5, 0.6, 0.7),
    ("local", "encoder-local"): (0.8, 0.8, 0.8),
    ("local", "pool-local"): (0.8, 0.8, 0.8),
    ("fedproto", "classifier"): (0.61, 0.7, 0.8),
    ("fedproto", "discriminant"): (0.5, 0.6, 0.7),
    ("protosphere", "pool"): (0.9, 0.91, 0.92),
}


def test_a_seed_that_is_not_finished_everywhere_is_left_out(place):
    store("methods", [compared(place, ACCURACIES, failed=[1])], "protosphere compare methods.toml", "abc")
    stored = Stored("methods")
    assert sorted(set(stored.frame["seed"])) == [0, 2]
    assert stored.values("digits", "protosphere", "pool selected").to_dict() == {0: 0.9, 2: 0.92}
    assert "commit abc" in stored.describe()
    assert "Seeds: 0, 2 of digits." in stored.describe()
    folder = compared(place, ACCURACIES)
    with pytest.raises(SystemExit, match="digits, local, seed 0 is in two folders"):
        store("methods", [folder, folder], "", "")
    with pytest.raises(SystemExit, match="no seed is finished"):
        store("methods", [compared(place, ACCURACIES, failed=SEEDS)], "", "")


def test_figures_of_another_specification_make_no_table(place):
    store("methods", [compared(place, ACCURACIES)], "", "")
    source = json.loads((place / "RESULTS" / "methods.json").read_text())
    assert source["specification"] == digest("methods")
    (place / "SPECIFICATIONS" / "methods.toml").write_text("seeds = [5]\n")
    with pytest.raises(SystemExit, match="has changed since"):
        Stored("methods")


def test_the_table_has_means_by_rule_and_kilobytes_per_round(place):
    store("methods", [compared(place, ACCURACIES)], "", "")
    head, _, *rows = "\n".join(tables.accuracies(in_full=True)).splitlines()
    assert head == "| method | predicts by | digits (3 seeds) | kB per round |"
    assert rows[0] == "| most frequent class |  | 25.0 ± 0.0 | 0 |"
    assert "| `local` | `classifier` | 60.0 ± 10.0 | 2 |" in rows
    assert rows[-1] == "| `protosphere` | `pool` | 91.0 ± 1.0 | 2 |"


def test_a_gain_is_the_rule_minus_that_of_local_and_of_a_pool_minus_the_one_without_an_exchange(place):
    store("methods", [compared(place, ACCURACIES)], "", "")
    _, _, *rows = "\n".join(tables.gains()).splitlines()
    # 0.11, 0.1, 0.1: mean 0.10333, standard error 0.0033333, t quantile of two degrees of freedom 4.3027
    assert rows[0] == "| `fedproto` | `classifier` | **+10.3 [+8.9, +11.8]** |"
    assert rows[1] == "| `fedproto` | `discriminant` | +0.0 [+0.0, +0.0] |"
    assert rows[2] == "| `protosphere` | `pool` minus `pool-local` | **+11.0 [+8.5, +13.5]** |"
