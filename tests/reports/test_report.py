"""A run's report: whole, the same bytes again, safe whatever a client calls itself."""

import csv
import io
import json
import re
import shutil

import pytest
from safetensors.torch import load_file

from protosphere.record import snapshots
from protosphere.record.folder import RunFolder
from protosphere.reports.csv_files import as_csv
from protosphere.reports.plots import accuracy_by_client, confusion, model_labels
from protosphere.reports.report import write_report
from protosphere.reports.results import read_results
from tests.reports.fabricated import fabricate
from tests.reports.pages import (
    CONFUSION,
    EVERY,
    EVIL,
    MARGINS,
    SEPARATION,
    outline,
    pictures,
)

# --- what it is ---------------------------------------------------------------------------------------------------


_plain: list = []


@pytest.fixture
def plain(tmp_path_factory):
    """The folder of a run with its report, which many tests look at."""
    if not _plain:
        folder = fabricate(tmp_path_factory.mktemp("results") / "20250101-000000-protonorm-digits")
        assert write_report(folder) == folder / "report.html"
        _plain.append(folder)
    return _plain[0]


# what begins with an underscore is left out of a legend by the library
NAMES = [f"_animal{label}" for label in range(40)]
_many: list = []


@pytest.fixture
def many(tmp_path_factory):
    """The folder of a run of many clients, classes and rounds with its report."""
    if not _many:
        place = tmp_path_factory.mktemp("many") / "run"
        folder = fabricate(place, clients=120, classes=40, rounds=70, class_names=NAMES)
        roster = json.loads((folder / "roster.json").read_text())
        for client in roster:
            client["rows"][0] = 10 + (client["partition"] * 7) % 120
        (folder / "roster.json").write_text(json.dumps(roster))
        write_report(folder)
        _many.append(folder)
    return _many[0]


def test_a_run_has_a_page_and_every_picture_as_a_file_and_nothing_in_them_points_outside(plain):
    folder = plain
    every = EVERY | CONFUSION
    assert pictures(folder) == every
    found = outline(folder)
    assert [bool(each["alt"]) for each in found.named("img")] == [True] * len(every)
    headline = RunFolder(folder).summary()["headline"]
    assert f"The clients' models reach {100 * headline['accuracy']:.1f} % on test samples" in found.text
    assert "protonorm on digits" in found.text
    # nobody came or went
    assert "takes part" not in found.text
    assert folder.name in found.text
    assert not list(folder.glob(".*tmp"))
    addresses = [each[name] for _, each in found.elements for name in ("src", "href") if name in each]
    files = {f"pictures/{name}.{kind}" for name in every for kind in ("svg", "csv")}
    assert {address for address in addresses if not address.startswith("data:")} == files
    assert found.named("script") == []
    # a place for each figure to link to, by the name of its files
    assert {each["id"] for each in found.named("figure") if "id" in each} == every
    assert "@import" not in (folder / "report.html").read_text()
    for svg in (folder / "pictures").glob("*.svg"):
        assert not re.search(r"(href|src)=\"(?!#|data:)", svg.read_text()), svg.name
    # heads of tables say what they head
    assert {each["scope"] for each in found.named("th")} == {"col", "row"}


@pytest.mark.usefixtures("undrawn")
def test_what_a_rule_reaches_without_an_exchange_stands_beside_it(tmp_path):
    folder = fabricate(tmp_path / "run")
    summary = RunFolder(folder).summary()
    figure = summary["headline"]["figure"]
    summary["headline"]["rule"] = "pool"
    summary["rules"] |= {"pool-local": {figure: 0.4321}}
    (folder / "summary.json").write_text(json.dumps(summary))
    write_report(folder)
    text = outline(folder).text
    assert "(pool); pool-local, which needs no exchange, reaches 43.2 %; always predicting" in text


def test_the_same_folder_gives_the_same_bytes(plain, tmp_path):
    copied = shutil.copytree(plain, tmp_path / "elsewhere" / plain.name)
    assert write_report(copied).read_bytes() == (plain / "report.html").read_bytes()
    files = {path.name: path.read_bytes() for path in (plain / "pictures").iterdir()}
    assert {path.name: path.read_bytes() for path in (copied / "pictures").iterdir()} == files


def test_words_of_others_are_escaped_everywhere(tmp_path):
    names = [EVIL, "$x^2$", "日本\x00語", "a" * 300, ""]
    folder = fabricate(tmp_path / "run", class_names=names, model=EVIL, domain=EVIL, discloses=[EVIL])
    summary = RunFolder(folder).summary()
    summary |= {"failures": {"0": {"rounds": 2, "last_round": 2, "last": EVIL}}, "domains": {EVIL: {"classifier": 0.5}}}
    (folder / "summary.json").write_text(json.dumps(summary))
    write_report(folder)
    found = outline(folder)
    assert found.named("script") == []
    assert EVIL in found.text
    for svg in (folder / "pictures").glob("*.svg"):
        assert "<script" not in svg.read_text()
        assert "\x00" not in svg.read_text()


def test_figures_stand_as_the_summary_has_them(plain):
    summary = json.loads((plain / "summary.json").read_text())
    text = outline(plain).text
    for rule, values in summary["rules"].items():
        assert rule in text
        for name in ("best", "client-best", "last-5", "final"):
            assert f"{100 * values[name]:.1f}" in text
    assert f"{100 * summary['floor']['majority-class']:.1f} %" in text
    assert '"rounds"' not in text
    settings = text.split("Set for this run")[1].split("all settings")[0].split()
    of_run = 'strategy "protonorm" "protosphere" rounds 3 20 feature-dim 6 64'
    assert settings == ["setting", "value", "default", *of_run.split()]


def table(folder, name):
    """A picture's numbers: a row a mapping."""
    with (folder / "pictures" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_pictures_numbers_are_those_of_the_run(plain):
    lines = [json.loads(line) for line in (plain / "metrics.jsonl").read_text().splitlines()]
    tests = [line["evaluation"]["rules"]["local-prototypes"]["test"] for line in lines]
    drawn = table(plain, "accuracy-over-rounds")
    assert [int(row["round"]) for row in drawn] == [0, 1, 2, 3]
    for name in ("mean", "std", "worst"):
        assert [float(row[f"{name} (%)"]) for row in drawn] == pytest.approx([100 * test[name] for test in tests])
    parts = [line["training"]["loss"] for line in lines[1:]]
    for name, head in (("cross-entropy", "cross-entropy"), ("pull", "pull"), ("loss", "total")):
        assert [float(row[head]) for row in table(plain, "loss-over-rounds")] == [part[name] for part in parts]


def test_margins_are_distances_to_the_nearest_other_prototype_over_the_largest_such(plain):
    vectors = load_file(plain / "prototypes.safetensors")["global/vectors"].double()
    nearest = [
        min(float((one - other).norm()) for column, other in enumerate(vectors) if column != row)
        for row, one in enumerate(vectors)
    ]
    found = table(plain, MARGINS)
    assert [float(row["margin"]) for row in found] == pytest.approx(nearest)
    assert [float(row["normalised margin"]) for row in found] == pytest.approx([n / max(nearest) for n in nearest])


@pytest.mark.usefixtures("undrawn")
def test_zeros_of_prototypes_are_counted_by_class_where_there_are_any(tmp_path, plain):
    assert "values-of-prototypes" not in pictures(plain)
    folder = fabricate(tmp_path / "run", clients=2, classes=2)
    tensors, about = snapshots.newest(folder)
    # two clients with classes 0 and 1 each, six dimensions
    tensors["local/vectors"][0, :3] = 0
    tensors["local/vectors"][2, :1] = 0
    tensors["global/vectors"][1, 2:] = 0
    snapshots.save(folder, tensors, about)
    write_report(folder)
    found = table(folder, "values-of-prototypes")
    assert [row["prototypes of clients"] for row in found] == ["2", "2"]
    assert [float(row["zeros of the clients' own"]) for row in found] == pytest.approx([4 / 12, 0])
    assert [float(row["zeros of the global one"]) for row in found] == pytest.approx([0, 4 / 6])
    assert "17 % of the clients' own and 33 % of the global ones" in outline(folder).text


@pytest.mark.usefixtures("undrawn")
def test_the_distances_of_an_alignment_are_drawn_where_it_was_iterated(tmp_path, plain):
    assert "alignment" not in pictures(plain)
    folder = fabricate(tmp_path / "run", rounds=2)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trace = {"min": [0.5, 0.75], "mean": [1.0, 1.25], "max": [1.5, 1.75]}
    lines[1]["server"] |= {"alignment_iterations": 1, "alignment_trace": trace}
    lines[2]["server"] |= {"alignment_iterations": 1}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report(folder)
    found = table(folder, "alignment")
    assert [{name: float(value) for name, value in row.items()} for row in found] == [
        {"iteration": step, **{name: values[step] for name, values in trace.items()}} for step in (0, 1)
    ]


def test_clients_have_bars_worst_first(many):
    rows = table(many, "accuracy-by-client")
    last = [float(row["accuracy (%)"]) for row in rows]
    assert len(last) == 120
    assert last == sorted(last)
    lines = RunFolder(many).lines()
    evaluations = lines[-1]["clients"]
    for row in rows:
        evaluation = evaluations[row["client"]]["evaluation"]
        assert float(row["accuracy (%)"]) == pytest.approx(100 * evaluation["local-prototypes"][0])
    assert "All 120 clients after round 70" in outline(many).text


def test_no_cell_of_a_table_is_a_formula_and_words_stay_words():
    rows = [["=1+1", '+a,"b"', "-3", "@x"], [-3.5, None, "plain\nword", 0.1]]
    assert list(csv.reader(io.StringIO(as_csv(rows)))) == [
        ["'=1+1", '\'+a,"b"', "'-3", "'@x"],
        ["-3.5", "", "plain word", "0.1"],
    ]


@pytest.mark.usefixtures("undrawn")
def test_classes_have_their_accuracy_and_what_they_are_taken_for(plain, tmp_path):
    models = json.loads((plain / "metrics.jsonl").read_text().splitlines()[-1])["confusion"]["models"]
    everyone = [each for own in models.values() for each in own]
    expected = [[0] * 5 for _ in range(5)]
    for true, predicted, rows in everyone:
        expected[true][predicted] += rows
    numbers = confusion(read_results(plain)).numbers
    assert numbers.drop(columns="true class").to_numpy().tolist() == expected
    # of three architectures 3 of 4, 3 of 5 and 3 of 4 rows are right, of each class
    assert "class 4 13 69.2" in " ".join(outline(plain).text.split())
    # where each class alone was told there is the table, and where nothing was, neither
    lines = (plain / "metrics.jsonl").read_text().splitlines()
    for number, told in enumerate(([[0, 0, 3], [0, -1, 1]], None)):
        folder = shutil.copytree(plain, tmp_path / str(number))
        last = json.loads(lines[-1])
        last["confusion"]["models"] = {"a": told}
        if told is None:
            del last["confusion"]
        (folder / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
        write_report(folder)
        assert not CONFUSION & pictures(folder)
        assert ("class 0 4 75.0" in " ".join(outline(folder).text.split())) == (told is not None)


def test_many_clients_are_cut_and_the_page_stays_small(many):
    assert (many / "report.html").stat().st_size < 1e6
    found = outline(many)
    assert "the first 50; roster.json has 70 more" in found.text
    assert "One in 5 of the small ones is shown" in found.text


PATH = "/srv/hospitals/team/project/nets.py:"


@pytest.mark.usefixtures("undrawn")
def test_two_models_of_one_file_stay_two(plain, tmp_path):
    folder = shutil.copytree(plain, tmp_path / "run")
    names = {"tiny_cnn": f"{PATH}cnn", "tiny_perceptron": f"{PATH}mlp"}
    for file in ("roster.json", "metrics.jsonl"):
        text = (folder / file).read_text()
        for old, new in names.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        (folder / file).write_text(text)
    write_report(folder)
    # no page shows where a file lies
    assert PATH not in outline(folder).text
    (axes,) = accuracy_by_client(read_results(folder)).axes
    assert {"nets.py:mlp", "nets.py:cnn"} <= {*axes.get_legend_handles_labels()[1]}


def test_models_of_one_name_in_two_files_stay_two():
    assert model_labels(["/a/nets.py:Net", "/b/nets.py:Net", "mine.py:Net"]) == [
        "nets.py:Net (1)",
        "nets.py:Net (2)",
        "mine.py:Net",
    ]


# --- real runs ------------------------------------------------------------------------------------------------------

LACKING = {"protonorm": set()}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "gfpl", "rounds": 3, "gfpl.first-exchange": 2, "gfpl.exchange-every": 2},
        {"strategy": "pfpl", "evaluate-every": 5, "ensemble-every": 5, "fraction-train": 0.5},
        {"strategy": "protonorm", "dataset": "spiral", "feature-dim": 2, "spiral-points": 50, "wire-dtype": "float16"},
    ],
    ids=lambda settings: settings.get("dataset", settings["strategy"]),
)
def test_real_runs_have_reports(run, settings):
    folder = run(settings)
    write_report(folder)
    found = pictures(folder)
    assert found - CONFUSION == EVERY - LACKING.get(settings["strategy"], {SEPARATION, MARGINS})
    assert "confusion" in found
    held = json.loads((folder / "partition.json").read_text())
    rows = [sum(client["rows"][:3]) for client in json.loads((folder / "roster.json").read_text())]
    assert [sum(counts) for counts in held["counts"]] == rows
    assert "Samples per client and class" in outline(folder).text
