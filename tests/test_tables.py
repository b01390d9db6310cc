"""The stored figures, the tables that pages make of them, and figures of pages that follow from a formula."""

import json
import re
import tomllib

import pandas as pd
import pytest

from benchmarks import tables
from benchmarks.common import ROOT
from benchmarks.tables import PAGES, RESULTS, Stored, best_value, digest, renewed, store, validation_accuracies
from protosphere.prototypes.accounting import epsilon_of, rho_of
from protosphere.prototypes.release import B, Shape

SEEDS = (0, 1, 2)
DELTA = 1e-5


def page(name):
    """A page with its lines joined."""
    return " ".join((ROOT / name).read_text("utf-8").split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_the_stored_figures(page):
    assert page.read_text("utf-8") == renewed(page.read_text("utf-8")), "`python -m benchmarks.tables` writes it anew"


def test_what_the_readme_says_of_its_table_is_so():
    readme = page("README.md")
    rows = [line.split(" | ") for line in tables.gains()]
    data_sets = [head.partition(" (")[0] for head in rows[0][2:]]
    assert all("(5 seeds)" in head for head in rows[0][2:]), "of five seeds, it says"
    significant = {}
    for method, rule, *cells in rows[1:]:
        for data, cell in zip(data_sets, cells, strict=True):
            if "**+" in cell:
                significant.setdefault((method.strip("| `"), rule), []).append(data)
            if method == "| `protosphere`":
                assert cell.strip("* ")[0] == "+"
    assert f"after correction for {len(rows) - 1} comparisons" in readme
    assert significant.pop(("protosphere", "`pool` minus `pool-local`")) == ["Fashion-MNIST", "PACS", "notMNIST"]
    # no private model gains
    assert all(rule.startswith("`encoder`") for _, rule in significant)


def test_what_the_results_say_of_pacs_is_so():
    lines = list(tables.spaces())
    (handcrafted,) = [row for row in lines if row.startswith("| `handcrafted` | `protosphere` | `pool`")]
    low, high = re.findall(r"\[([-+.\d]+), ([-+.\d]+)\]", handcrafted.split(" | ")[-1])[0]
    assert float(low) < 0 < float(high)
    (pretrained,) = [row for row in lines if row.startswith("| `efficientnet-lite0` | `protosphere` | `pool`")]
    gains = re.findall(r"(\**)\+(\d\.\d) \[([-+.\d]+), ", pretrained)
    assert [(bold, round(float(gain))) for bold, gain, _ in gains] == [("**", 6), ("", 6)]
    assert all(float(low) > 0 for *_, low in gains)


def test_the_costs_of_releases_are_those_of_the_accountant():
    privacy = page("docs/privacy.md")
    # at most a sample is replaced by one in the opposite direction
    ratio = 4 * B * B / Shape(10, 64).squared_sensitivity
    assert f"(ε = 3 becomes up to {epsilon_of(ratio * rho_of(3, DELTA), DELTA):.1f})" in privacy
    refused, allowed = (epsilon_of(rho_of(1.5, DELTA) + rho_of(more, DELTA), DELTA) for more in (2.5, 2))
    assert refused > 3 > allowed
    assert f"refused ({refused:.2f} together)" in privacy
    assert f"allowed ({allowed:.1f} together)" in privacy


def test_the_memory_of_uploads_is_that_of_its_formulas():
    scale = page("docs/scale.md")
    clients, classes, width = 10_000, 10, 512
    means, square = 4 * classes * width, width * width
    resnet18 = 11_181_642  # parameters, with ten classes
    assert f"| 4 K d | {clients * means / 1e9:.1f} GB |" in scale
    assert f"| {clients * 2 * means / 1e9:.1f} GB times m |" in scale
    least, most = (round(clients * (means + size * square) / 1e9) for size in (1, 4))
    assert f"| {least} or {most} GB, in one round" in scale
    (weights,) = re.findall(r"\| 4 per parameter \| (\d+) GB of ResNet-18s", scale)
    assert int(weights) == pytest.approx(clients * 4 * resnet18 / 1e9, rel=0.02)


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


def test_what_the_results_say_of_all_samples_is_so():
    few, all_samples = (
        [float(gain) for gain in re.findall(r"\+(\d\.\d) \[", line)]
        for line in [*tables.sizes()]
        if line.startswith("| USPS")
    )
    assert few[1] > all_samples[1] > 0
    (line,) = [line for line in tables.sizes() if "| all |" in line]
    assert line.count("**") == 4, "both are significant"


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
    assert "Seeds: 0, 2 on digits." in stored.describe()
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
    assert rows[1] == "| `fedproto` | `discriminant` | +0.0 |"
    assert rows[2] == "| `protosphere` | `pool` minus `pool-local` | **+11.0 [+8.5, +13.5]** |"
