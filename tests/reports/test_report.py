"""A run's report: its words, the numbers of its plots, equal bytes, and names of clients that do no harm."""

import csv
import io
import re

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file

from protosphere.record import snapshots
from protosphere.record.folder import RunFolder
from protosphere.reports import canvas
from protosphere.reports.frames import as_csv
from protosphere.reports.plots import _draw_confusion, accuracy_by_client, model_labels
from protosphere.reports.report import write_report
from protosphere.reports.results import read_results
from tests.reports.fabricated import change_json, change_lines, fabricate
from tests.reports.pages import CONFUSION, EVERY, EVIL, MARGINS, SEPARATION, outline, pictures


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run's folder with its report; no test changes it."""
    folder = fabricate(tmp_path_factory.mktemp("results") / "20250101-000000-protonorm-digits")
    assert write_report(folder) == folder / "report.html"
    return folder


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The same with many clients, classes and rounds; matplotlib omits names with an underscore from legends."""
    names = [f"_animal{label}" for label in range(40)]
    folder = fabricate(tmp_path_factory.mktemp("many") / "run", clients=120, classes=40, rounds=70, class_names=names)
    write_report(folder)
    return folder


def numbers_of(folder, name):
    return pd.read_csv(folder / "pictures" / f"{name}.csv")


def words_of(folder):
    return " ".join(outline(folder).text.split())


# --- the page -----------------------------------------------------------------------------------------------------


def test_a_page_has_every_plot_and_refers_to_no_other_place(plain):
    every = EVERY | CONFUSION
    assert pictures(plain) == every
    page = outline(plain)
    assert [bool(image["alt"]) for image in page.attributes_of("img")] == [True] * len(every)
    assert {figure["id"] for figure in page.attributes_of("figure")} == every
    assert {cell["scope"] for cell in page.attributes_of("th")} == {"col", "row"}
    addresses = [attributes[name] for _, attributes in page.elements for name in ("src", "href") if name in attributes]
    files = {f"pictures/{name}.{kind}" for name in every for kind in ("svg", "csv")}
    assert {address for address in addresses if not address.startswith("data:")} == files
    assert page.attributes_of("script") == []
    assert "@import" not in (plain / "report.html").read_text()
    for svg in (plain / "pictures").glob("*.svg"):
        assert not re.search(r"(href|src)=\"(?!#|data:)", svg.read_text()), svg.name
    assert not list(plain.glob("**/.*tmp"))


def test_metrics_are_those_of_the_summary(plain):
    summary = RunFolder(plain).summary()
    text = words_of(plain)
    for words in (
        "protonorm on digits",
        plain.name,
        f"The clients' models reach {100 * summary['headline']['accuracy']:.1f} % on test samples",
        f"{100 * summary['floor']['majority-class']:.1f} %",
        # of three architectures 3 of 4, 3 of 5 and 3 of 4 samples of each class are right
        "4 class 4 13 69.2",
        "payload 32.0 kB 16.0 kB up, 16.0 kB down on the wire 32.0 kB whole messages",
        'setting value default strategy "protonorm" "protosphere" rounds 3 20 feature-dim 6 64 all settings',
        *summary["rules"],
        f"{summary['headline']['rule']} *",
    ):
        assert words in text
    for values in summary["rules"].values():
        for name in ("best", "client-best", "last-5", "final"):
            assert f"{100 * values[name]:.1f}" in text


@pytest.mark.usefixtures("undrawn")
def test_the_local_counterpart_of_a_rule_is_named_beside_it(tmp_path):
    folder = fabricate(tmp_path / "run")
    summary = RunFolder(folder).summary()
    rules = summary["rules"] | {"pool-local": {summary["headline"]["figure"]: 0.4321}}
    change_json(folder / "summary.json", headline=summary["headline"] | {"rule": "pool"}, rules=rules)
    write_report(folder)
    assert "(pool); pool-local, which needs no exchange, reaches 43.2 %; always predicting" in outline(folder).text


def test_equal_folders_give_equal_bytes(tmp_path):
    contents = []
    for place in ("here", "there"):
        folder = fabricate(tmp_path / place / "run", clients=2, rounds=1)
        write_report(folder)
        files = [folder / "report.html", *sorted((folder / "pictures").iterdir())]
        contents.append([(file.name, file.read_bytes()) for file in files])
    assert len(contents[0]) > 5
    assert contents[0] == contents[1]


def test_names_from_clients_are_escaped_everywhere(tmp_path):
    names = [EVIL, "$x^2$", "日本\x00語", "a" * 300, ""]
    roster = {"class_names": names, "model": EVIL, "domain": EVIL, "discloses": [EVIL]}
    folder = fabricate(tmp_path / "run", clients=2, rounds=1, **roster)
    failures = {"0": {"rounds": 2, "last_round": 2, "last": EVIL}}
    change_json(folder / "summary.json", failures=failures, domains={EVIL: {"classifier": 0.5}})
    write_report(folder)
    page = outline(folder)
    assert page.attributes_of("script") == []
    assert EVIL in page.text
    for svg in (folder / "pictures").glob("*.svg"):
        assert not re.search("<script|\x00", svg.read_text())


def test_no_cell_of_a_csv_file_is_a_formula():
    table = pd.DataFrame([[-3.5, None, "plain\nword", 0.1]], columns=["=1+1", '+a,"b"', "-3", "@x"])
    heads = ["'=1+1", '\'+a,"b"', "'-3", "'@x"]
    assert list(csv.reader(io.StringIO(as_csv(table)))) == [heads, ["-3.5", "", "plain word", "0.1"]]


def test_many_clients_are_cut_and_the_page_stays_small(many):
    assert (many / "report.html").stat().st_size < 1e6
    text = outline(many).text
    assert "the first 50; roster.json has 70 more" in text
    assert "One in 5 of the small ones is shown" in text
    assert "All 120 clients after round 70" in text


# --- the numbers of plots -----------------------------------------------------------------------------------------


def test_curves_have_the_numbers_of_the_run(plain):
    lines = RunFolder(plain).lines()
    metrics = [line["evaluation"]["rules"]["local-prototypes"]["test"] for line in lines]
    accuracies = numbers_of(plain, "accuracy-over-rounds")
    assert accuracies["round"].tolist() == [0, 1, 2, 3]
    for name in ("mean", "std", "worst"):
        assert accuracies[f"{name} (%)"].tolist() == pytest.approx([100 * values[name] for values in metrics])
    losses = numbers_of(plain, "loss-over-rounds")
    for name, head in (("cross-entropy", "cross-entropy"), ("pull", "pull"), ("loss", "total")):
        assert losses[head].tolist() == [line["training"]["loss"][name] for line in lines[1:]]
    distances = numbers_of(plain, SEPARATION)
    assert distances["distance_min"].tolist() == [line["server"]["separation"]["distance_min"] for line in lines[1:]]


def test_bars_of_clients_start_with_the_worst(many):
    bars = numbers_of(many, "accuracy-by-client")
    assert len(bars) == 120
    clients = RunFolder(many).lines()[-1]["clients"]
    accuracies = [100 * clients[str(client)]["evaluation"]["local-prototypes"][0] for client in bars["client"]]
    assert bars["accuracy (%)"].tolist() == pytest.approx(sorted(accuracies))


def test_margins_are_distances_to_the_nearest_other_prototype(plain):
    vectors = load_file(plain / "prototypes.safetensors")["global/vectors"].double().numpy()
    distances = np.linalg.norm(vectors[:, None] - vectors, axis=2)
    nearest = np.sort(distances, axis=1)[:, 1]
    margins = numbers_of(plain, MARGINS)
    assert margins["margin"].tolist() == pytest.approx(nearest)
    assert margins["normalised margin"].tolist() == pytest.approx(nearest / nearest.max())


@pytest.mark.usefixtures("undrawn")
def test_zeros_of_prototypes_are_counted_by_class(tmp_path, plain):
    assert "values-of-prototypes" not in pictures(plain)
    folder = fabricate(tmp_path / "run", clients=2, classes=2)
    tensors, about = snapshots.newest(folder)
    # two clients with classes 0 and 1 each, six dimensions
    tensors["local/vectors"][0, :3] = 0
    tensors["local/vectors"][2, :1] = 0
    tensors["global/vectors"][1, 2:] = 0
    snapshots.save(folder, tensors, about)
    write_report(folder)
    shares = numbers_of(folder, "values-of-prototypes")
    assert shares["prototypes of clients"].tolist() == [2, 2]
    assert shares["zeros of the clients' own"].tolist() == pytest.approx([4 / 12, 0])
    assert shares["zeros of the global one"].tolist() == pytest.approx([0, 4 / 6])
    assert "17 % of the clients' own and 33 % of the global ones" in outline(folder).text


@pytest.mark.usefixtures("undrawn")
def test_an_iterated_alignment_has_a_plot_of_its_distances(tmp_path, plain):
    assert "alignment" not in pictures(plain)
    folder = fabricate(tmp_path / "run", rounds=2)
    trace = {"min": [0.5, 0.75], "mean": [1.0, 1.25], "max": [1.5, 1.75]}
    aligned = {1: {"alignment_iterations": 1, "alignment_trace": trace}, 2: {"alignment_iterations": 1}}
    change_lines(folder, lambda line: line | {"server": line.get("server", {}) | aligned.get(line["round"], {})})
    write_report(folder)
    assert numbers_of(folder, "alignment").to_dict("list") == {"iteration": [0, 1], **trace}


def test_the_confusion_matrix_counts_all_models(plain):
    expected = np.zeros((5, 5), dtype=int)
    for cells in RunFolder(plain).lines()[-1]["confusion"]["models"].values():
        for true_class, predicted_class, samples in cells:
            expected[true_class, predicted_class] += samples
    assert numbers_of(plain, "confusion").set_index("true class").to_numpy().tolist() == expected.tolist()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("cells", [[[0, 0, 3], [0, -1, 1]], None], ids=["accuracies alone", "nothing"])
def test_without_wrong_predictions_there_is_no_confusion_matrix(tmp_path, cells):
    folder = fabricate(tmp_path / "run")
    (folder / "summary.json").unlink()

    def replace_confusion(line):
        line.pop("confusion", None)
        return line | ({"confusion": {"rule": "classifier", "models": {"a": cells}}} if cells else {})

    change_lines(folder, replace_confusion)
    write_report(folder)
    assert not CONFUSION & pictures(folder)
    # accuracies by class need no wrong predictions
    assert ("0 class 0 4 75.0" in words_of(folder)) == bool(cells)


def test_a_cell_of_a_confusion_matrix_is_the_share_of_its_true_class():
    # totals differ over rows and over columns, and one class has no sample
    counts = np.array([[6, 2, 0, 0], [1, 1, 3, 0], [0, 9, 1, 0], [0, 0, 0, 0]])
    with canvas.figure() as plot:
        axes = plot.add_subplot()
        _draw_confusion(axes, counts, list("abcd"))
    shares = np.ma.filled(np.ma.masked_invalid(axes.images[0].get_array()), 0)
    assert shares.tolist() == (100 * counts / np.maximum(1, counts.sum(axis=1, keepdims=True))).tolist()
    words = {tuple(map(round, text.get_position())): text.get_text() for text in axes.texts}
    assert words == {(column, row): str(counts[row, column]) for row, column in np.argwhere(counts).tolist()}


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_two_models_of_one_file_have_two_labels_without_its_path(tmp_path):
    folder, path = fabricate(tmp_path / "run"), "/srv/hospitals/team/project/nets.py:"
    for file in ("roster.json", "metrics.jsonl"):
        text = (folder / file).read_text()
        for old, new in (("tiny_cnn", "cnn"), ("tiny_perceptron", "mlp")):
            text = text.replace(f'"{old}"', f'"{path}{new}"')
        (folder / file).write_text(text)
    write_report(folder)
    assert path not in outline(folder).text
    (axes,) = accuracy_by_client(read_results(folder)).axes
    assert {"nets.py:mlp", "nets.py:cnn"} <= {*axes.get_legend_handles_labels()[1]}
    labels = model_labels(["/a/nets.py:Net", "/b/nets.py:Net", "mine.py:Net"])
    assert labels == ["nets.py:Net (1)", "nets.py:Net (2)", "mine.py:Net"]


# --- real runs ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("settings", "lacking"),
    [
        ({"strategy": "gfpl", "rounds": 3, "gfpl.first-exchange": 2, "gfpl.exchange-every": 2}, {SEPARATION, MARGINS}),
        ({"strategy": "pfpl", "evaluate-every": 5, "ensemble-every": 5, "fraction-train": 0.5}, {SEPARATION, MARGINS}),
        ({"strategy": "protonorm", "dataset": "spiral", "feature-dim": 2, "spiral-points": 50}, set()),
    ],
    ids=["gfpl", "pfpl", "protonorm"],
)
def test_real_runs_have_reports(run, settings, lacking):
    folder = run(settings)
    write_report(folder)
    assert pictures(folder) == (EVERY | CONFUSION) - lacking
    samples = numbers_of(folder, "samples-by-client-and-class").groupby("client")["rows"].sum()
    assert samples.tolist() == [sum(client["rows"][:3]) for client in RunFolder(folder).roster()]
