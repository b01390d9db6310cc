"""Refusals before anything starts: entry points, their arguments, the class of the error and a part of its sentence,
which is one line. Nothing is left behind."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import protosphere
from protosphere import comparing
from protosphere.cli.main import app
from protosphere.comparison.spec import ComparisonSpec, Entry, load, narrow, read
from protosphere.comparison.trials import expand
from protosphere.comparison.variants import with_variants
from protosphere.core.errors import CodeError, DataError, ModelError, SettingError
from protosphere.launch import flower
from protosphere.plans.assignments import read_assignments
from protosphere.plans.run_config import plan
from protosphere.strategies.contract import ServerHalf
from tests.comparison.conftest import hub
from tests.comparison.test_spec import FILE

__all__ = ["hub"]

Y = np.arange(120) % 3
X = np.random.default_rng(3).normal(size=(120, 5)) + Y[:, None]
SIMPLEX = 'strategy="protonorm" protonorm.alignment="simplex"'
LOCAL, DIGITS = Entry("Local", {"strategy": "local"}), Entry("Digits", {"dataset": "digits"})
WITHOUT_CLASSES = TensorDataset(torch.rand(4, 3), torch.rand(4))
WITH_CLASSES = TensorDataset(torch.rand(4, 3), torch.arange(4))
SPIRAL = Entry("S", {"dataset": "spiral"})
QUICK = {"models": "tiny_perceptron", "spiral_points": 60, "clients": 3, "device": "cpu", "quiet": True}


# --- entry points: each is called with the arguments and raises -------------------------------------------------


def command(name):
    def call(arguments, tmp_path):
        result = CliRunner().invoke(app, [name, *arguments], env={"COLUMNS": "400"})
        assert (result.exit_code, result.stdout) == (2, ""), result.output
        # one sentence on stderr
        raise SystemExit(result.stderr.removesuffix("\n"))

    return call


def read_changed(changes, tmp_path):
    """The comparison's file of tests/comparison with one piece of text in another's place."""
    old, new = changes
    (tmp_path / "table.toml").write_text(FILE.replace(old, new))
    read(tmp_path / "table.toml")


def narrow_file(choices, tmp_path):
    (tmp_path / "table.toml").write_text(FILE)
    narrow(read(tmp_path / "table.toml"), **choices)


def expand_changed(arguments, tmp_path):
    overrides, changes = arguments
    expand(ComparisonSpec("test", **({"methods": (LOCAL,), "datasets": (DIGITS,)} | changes)), overrides, {})


def compare_in_python(arguments, tmp_path):
    protosphere.compare(**({"methods": ["local"], "datasets": ["spiral"], "rounds": 2, **QUICK} | arguments))


ENTRIES = {name: command(name) for name in ("run", "compare", "data", "report", "privacy", "new")} | {
    "read_assignments": lambda arguments, tmp_path: read_assignments(arguments),
    "plan": lambda arguments, tmp_path: plan(**arguments),
    "file": read_changed,
    "narrow": narrow_file,
    "with_variants": lambda arguments, tmp_path: with_variants(load(), [arguments]),
    "expand": expand_changed,
    "protosphere.run": lambda arguments, tmp_path: protosphere.run(
        **({"dataset": "spiral", "rounds": 3, **QUICK} | arguments)
    ),
    "protosphere.compare": compare_in_python,
}

# --- the table -------------------------------------------------------------------------------------------------

OF_COMMANDS = [
    # `protosphere run`: exit code 2
    ("run", ["--preset", "spirale"], "unknown preset `spirale` (did you mean `spiral`?)"),
    ("run", ["-c", 'dataset="../nope"'], "data path '{parent}/nope' does not exist"),
    ("run", ["--results", "/proc/x"], "the results folder /proc/x cannot be written ("),
    ("run", ["--clients", "900", "-c", "min-samples=2"], "900 clients with min-samples = 2 each need at least 1800"),
    ("run", ["-c", 'split="official"'], "data set 'digits' has no official test samples"),
    ("run", ["-c", f"{SIMPLEX} feature-dim=8"], "`protonorm.alignment` is simplex"),
    ("run", ["-c", "nope.toml"], "the settings file nope.toml cannot be read"),
    ("run", ["--on", "flower", "--cpus-per-client", "0"], "--cpus-per-client is 0, but this machine has 4"),
    ("run", ["--cpus-per-client", "1"], "--cpus-per-client and --gpus-per-client need --on flower"),
    ("run", ["--on", "cluster"], "--on is 'cluster', but it is process, workers:N, flower, ray[:HOST:PORT] or super"),
    ("run", ["--on", "flower:2"], "--on is 'flower:2', but it is process"),
    ("run", ["--on", "superlink"], "--on is 'superlink', but it is process"),
    ("run", ["--on", "workers:0"], "--on is 'workers:0', but N is a number of processes, 1 at least."),
    ("run", ["--on", "ray"], "--on is ray, but this machine is no node of a Ray cluster"),
    (
        "run",
        ["--on", "ray:127.0.0.1:1"],
        "--on is ray:127.0.0.1:1, but this machine cannot join a Ray clu",
    ),
    (
        "run",
        ["--on", "ray:ray://127.0.0.1:1"],
        "--on is 'ray:ray://127.0.0.1:1', but ray: must be followed by the HOST:PORT",
    ),
    ("run", ["--on", "superlink:x", "--results", "out"], "`results-dir`"),
    ("run", ["--on", "superlink:x", "-c", 'dataset="../x"'], "`dataset`"),
    ("run", ["--on", "superlink:x", "-c", 'models="resnet"'], "resnet"),
    ("run", ["--on", "superlink:x", "-c", "fedproto.trim=0.2"], "fedproto.trim"),
    ("run", ["--workers", "2"], "--workers is gone: `--on workers:N` takes its place."),
    ("run", ["--flower"], "--flower is gone: `--on flower` takes its place."),
    ("run", ["--engine=cohort"], "--engine is gone: `--on workers:N` lets N processes share the clients"),
    # `protosphere data`, `report`, `privacy` and `new`
    ("data", ["--clients", "2000"], "2000 clients with min-samples = 10 each need at least 20000 samples"),
    ("data", ["--picture", "map.jpg"], "--picture is 'map.jpg'"),
    ("report", [], "give a run's folder, or --state and a client's folder."),
    ("report", ["latest", "--state", "."], "give a run's folder, or --state and a client's folder."),
    ("report", ["bad.toml"], 'run is "bad.toml", but no run is there'),
    ("report", ["--state", "gone"], "there is no such folder"),
    ("report", ["--state", "compared"], "holds no metrics"),
    ("privacy", ["--renew"], "there is nothing to renew"),
    ("new", ["method", "mymethod"], "is no Python file"),
    ("new", ["method", "mine.py"], "is there already and stays as it is"),
    # `protosphere compare`
    ("compare", ["--preset", "protonorm-tabel1"], "(did you mean `protonorm-table1`?)"),
    ("compare", ["--datasets", "digts"], "the data set of digts is not available: unknown data set 'digts'"),
    ("compare", ["--data", "digits"], "--data is 'digits', but it is a name and a place"),
    ("compare", ["--sweep", "protonorm.gamma=3,10"], "--sweep is gone"),
    ("compare", ["--target", "0.8"], "--target is gone: pictures/accuracy-over-bytes-row1.csv"),
    ("compare", ["--on", "flower"], "--on is 'flower', but it is process, workers:N or ray[:HOST:PORT]."),
    ("compare", ["--flower"], "--flower is gone: a trial is a run in one process"),
    ("compare", ["--jobs", "0"], "the number of jobs is 0, but at least one trial must run at a time."),
    ("compare", ["--resume", "latest", "--seeds", "0"], "--resume continues a comparison as it was started"),
]
OF_CALLS = [
    ("read_assignments", "strategy=fedproto", SettingError, "fedproto is no value for `strategy`"),
    # more digits than Python reads
    ("read_assignments", f"rounds={'9' * 5000}", SettingError, "is no value for `rounds`"),
    ("read_assignments", "rounds=5 seed", SettingError, "cannot read 'seed' in -c 'rounds=5 seed'"),
    ("read_assignments", 'strategy="a"rounds=5', SettingError, "cannot read 'strategy=\"a\"rounds=5'"),
    ("read_assignments", "models=[1]", SettingError, "setting `models` is [1]"),
    ("read_assignments", f"max-samples={2**63}", SettingError, "setting `max-samples` is 9223372036854775808"),
    ("read_assignments", "bad.toml", SettingError, "the settings file bad.toml is not valid TOML"),
    ("read_assignments", "latin.toml", SettingError, "latin.toml cannot be read (invalid continuation byte"),
    # settings, one by one and against each other
    ("plan", {"assignments": ["protonorm.gama=1.0"]}, SettingError, "(did you mean `protonorm.gamma`?)"),
    ("plan", {"clients": 0}, SettingError, "--clients is 0, but a run needs at least 1."),
    ("plan", {"assignments": ["clients=-2"]}, SettingError, "setting `clients` is -2"),
    ("plan", {"assignments": ["rounds=true"]}, SettingError, "setting `rounds` is true"),
    ("plan", {"assignments": ["results-dir=3"]}, SettingError, "setting `results-dir` is 3"),
    ("plan", {"assignments": ['strategy="local" protonorm.gamma=1.5']}, SettingError, "is 1.5, but `local` "),
    ("plan", {"assignments": ['strategy="fedprot"']}, SettingError, 'setting `strategy` is "fedprot"'),
    ("plan", {"assignments": ['models="resnet9"']}, ModelError, "model 'resnet9'"),
    ("plan", {"assignments": ['dataset="digit"']}, DataError, "unknown data set 'digit'"),
    ("plan", {"assignments": ['partition="iit"']}, SettingError, 'setting `partition` is "iit"'),
    ("plan", {"resume": "latest", "assignments": ["alpha=1.0"]}, SettingError, "resume {run}: setting `alpha` was 0.5"),
    ("plan", {"resume": "latest", "clients": 3}, SettingError, "setting `clients` was 6 and is now 3"),
    ("plan", {"resume": "nope"}, SettingError, 'setting `resume` is "nope"'),
    ("plan", {"resume": "compared"}, SettingError, "is a comparison, which `protosphere compare --resume` continues"),
    ("plan", {"resume": "latest", "preset": "spiral"}, SettingError, "--preset and --resume exclude each other"),
    ("plan", {"resume": "latest", "assignments": ["rounds=2"]}, SettingError, "is 2, but {run} has finished 3; resume"),
    ("plan", {"results": "bad.toml/below"}, SettingError, "{here}/bad.toml/below cannot be written (Not a directory)"),
    ("plan", {"preset": "protonorm-cifar10", "assignments": ["alpha=0.5"]}, SettingError, "a partition table divides"),
    (
        "plan",
        {"preset": "protonorm-cifar10", "assignments": ['strategy="fedproto" protonorm.gamma=3']},
        SettingError,
        "setting `protonorm.gamma` is 3, but `fedproto` ",
    ),
    ("plan", {"assignments": ['dataset="./one,,digits"']}, DataError, "a list with an empty item"),
    ("plan", {"assignments": ['dataset="./t.parquet"']}, DataError, "cannot be read ("),
    ("plan", {"assignments": ['models="nowhere.here:make"']}, ModelError, "No module named 'nowhere'"),
    ("plan", {"assignments": ['models="os:sep"']}, ModelError, "model 'os:sep' is of type str, which cannot be called"),
    ("plan", {"assignments": ['models="hf:./none"']}, DataError, "'digits' holds images or numbers"),
    (
        "plan",
        {"assignments": ["max-samples=400 ensemble-every=1 shared-test-share=0.001"]},
        DataError,
        "shared-test-share = 0.001 of 400 samples gives the shared test set no sample",
    ),
    # a comparison's file
    ("file", ("seeds = [3, 1]", "sedes = [3, 1]"), SettingError, "unknown key `sedes` (did you mean `seeds`?)"),
    ("file", ("seeds = [3, 1]", "seeds = [3, -1]"), SettingError, "`seeds` is [3, -1]"),
    ("file", ("seeds = [3, 1]", f"seeds = [{'9' * 5000}]"), SettingError, "is not valid TOML"),
    ("file", ("seeds = [3, 1]", "seeds = [true]"), SettingError, "`seeds` is [true]"),
    ("file", ("seeds = [3, 1]", "seeds = [3, 3]"), SettingError, '"3" is there twice'),
    ("file", ("rounds = 4", "rounds = 4\n[target]"), SettingError, "key `target` is gone: the CSV of the picture"),
    ("file", ('"local", ', '{ label = "x" }, '), SettingError, 'setting `strategy` is ""'),
    ("file", ('"local", ', '"local", "local", '), SettingError, '"local" is there twice'),
    ("file", ('"local", ', "3, "), SettingError, "`methods` has 3"),
    ("file", ("rounds = 4", "runds = 4"), SettingError, "unknown setting `runds` (did you mean `rounds`?)"),
    ("file", ("[settings]\nrounds = 4\nprotonorm.iterations = 7", "settings = 3"), SettingError, "but it is a table"),
    ("file", ("methods.norm = { protonorm.gamma = 6.0 }", "methods.norm = 3"), SettingError, "`norm` is 3"),
    ("file", ("{ Norm = 88.56 }", "3"), SettingError, "`accuracy` is 3"),
    ("file", ("[[paper]]", "[paper]"), SettingError, "`paper` is"),
    ("file", ("[settings]", "[[settings]]"), SettingError, "`settings` is"),
    ("file", ("rounds = 4", "seed = 4"), SettingError, "setting `seed` differs by run or machine"),
    ("file", ("rounds = 4", 'strategy = "local"'), SettingError, "setting `strategy` stands in [settings]"),
    ("file", ("alpha = 0.1", 'strategy = "local"'), SettingError, "setting `strategy` stands in `partitions`"),
    ("file", ('dataset = "digits"', ""), SettingError, "names neither `dataset` nor `base`."),
    ("file", ('"protonorm-cifar10"', '"protonorm-cifar11"'), SettingError, "(did you mean `protonorm-cifar10`?)"),
    ("file", ('label = "CIFAR-10"', "label = 3"), SettingError, "`label` is 3"),
    ("file", ('"last-5"', '"last-4"'), SettingError, "unknown figure `last-4` (did you mean `last-5`?)"),
    (
        "file",
        ('"ensemble final"]', '"ensembel final"]'),
        SettingError,
        "unknown rule `ensembel` (did you mean `ensemble`?)",
    ),
    ("file", ('"ensemble final"]', '"domain"]'), SettingError, 'it needs the name of a domain: "domain mnist"'),
    ("file", ('"ensemble final"]', '"ensemble selected"]'), SettingError, "one of best, last-5, final."),
    ("file", ("{ Norm = 88.56 }", "{ Nrom = 88.56 }"), SettingError, '`accuracy` in `paper` has "Nrom"'),
    ("file", ("{ Norm = 88.56 }", "{ Norm = 188 }"), SettingError, "`accuracy` is 188"),
    ("file", ('"even"\nmetric', '"odd"\nmetric'), SettingError, '`partition` in `paper` has "odd"'),
    ("file", ('["last-5", "ensemble final"]', "[]"), SettingError, "`metric` is missing or empty"),
    ("file", ("protonorm.gamma = 5.0", "alpha = 5.0"), SettingError, "setting `alpha` stands in `methods`"),
    ("file", ('"local", ', '{ label = "majority class", strategy = "local" }, '), SettingError, '"majority class" is'),
    ("file", ("methods = [", "x = ["), SettingError, "unknown key `x`"),
    ("file", (FILE, 'methods = ["local"]'), SettingError, "`datasets` is missing or empty"),
    # a part of it
    ("narrow", {"methods": "fedprot"}, SettingError, '--methods has "fedprot" (did you mean `fedproto`?)'),
    ("narrow", {"datasets": "cifar100"}, SettingError, '--datasets has "cifar100" (did you mean `cifar10`?)'),
    ("narrow", {"partitions": "evn"}, SettingError, '--partitions has "evn" (did you mean `even`?)'),
    ("narrow", {"seeds": "9" * 5000}, SettingError, "`seeds` is"),
    ("narrow", {"seeds": "0,x"}, SettingError, '`seeds` is [0, "x"]'),
    ("narrow", {"methods": "norm,Norm"}, SettingError, '"Norm" is there twice'),
    ("narrow", {"methods": ","}, SettingError, "`methods` is missing or empty"),
    ("narrow", {"baseline": "fedprot"}, SettingError, "--baseline has"),
    # values of settings
    ("with_variants", "protonorm.gamma", SettingError, "--vary protonorm.gamma has "),
    ("with_variants", "protonorm.gamma=1", SettingError, "two values or more"),
    ("with_variants", "protonorm.gamma=1,1.0", SettingError, "there twice"),
    ("with_variants", "protonorm.gamma=a,b", SettingError, "double quotes"),
    ("with_variants", "protonorm.gamma=[1],[2]", SettingError, "numbers, true"),
    ("with_variants", 'strategy="local","frame"', SettingError, "--vary strategy"),
    ("with_variants", "protonorm.gama=1,2", SettingError, "did you mean `protonorm.gamma`"),
    ("with_variants", "alpha=0.1,1", SettingError, "--vary alpha: the methods of a row share it"),
    ("with_variants", "seed=1,2", SettingError, "--vary seed"),
    ("with_variants", "fedtgp.margin=1,2", SettingError, "no method of this comparison reads it"),
    # its trials
    (
        "expand",
        ({"strategy": "local"}, {}),
        SettingError,
        "setting `strategy` differs by run or machine; use --methods",
    ),
    ("expand", ({"seed": 1}, {}), SettingError, "use --seeds for it."),
    ("expand", ({"fedtgp.margin": 1.0}, {}), SettingError, "`fedtgp.margin` is read by no method of this comparison"),
    ("expand", ({"rounds": 0}, {}), SettingError, "setting `rounds` is 0, but it should be"),
    ("expand", ({"dataset": "digits"}, {"datasets": (DIGITS, SPIRAL)}), SettingError, "`dataset` may be what a"),
    ("expand", ({}, {"methods": (LOCAL, Entry("local!", {"strategy": "local"}))}), SettingError, "the folder digits-l"),
    # the Python API
    ("protosphere.run", {"gamma": 3}, SettingError, "`gamma`"),
    ("protosphere.run", {"rounds": 0}, SettingError, "`rounds` is 0"),
    ("protosphere.run", {"models": [1]}, SettingError, "`models` has an object of type int"),
    ("protosphere.run", {"models": nn.Linear(3, 3)}, ModelError, "does not fit inputs of shape (2,)"),
    ("protosphere.run", {"models": ["tiny_perceptron", nn.Linear]}, ModelError, "missing 2 required positional"),
    ("protosphere.run", {"dataset": "/nowhere"}, DataError, "/nowhere"),
    ("protosphere.run", {"workers": 0}, SettingError, "workers is 0, but it is a whole number, at least 1."),
    ("protosphere.run", {"clients": "3"}, SettingError, 'clients is "3"'),
    ("protosphere.run", {"on_round": 3}, SettingError, "on_round is 3"),
    ("protosphere.run", {"settings": ["rounds"]}, SettingError, "settings is"),
    ("protosphere.run", {"dataset": np.zeros((9, 2))}, SettingError, "dataset is a ndarray"),
    ("protosphere.run", {"dataset": []}, SettingError, "dataset is 0 arrays"),
    ("protosphere.run", {"strategy": 3}, SettingError, "a method is a name, a Method"),
    ("protosphere.run", {"models": lambda: 3}, ModelError, "it returns a int"),
    ("protosphere.run", {"models": lambda: nn.Flatten(), "workers": 2}, SettingError, "put it into a file"),
    ("protosphere.run", {"dataset": WITHOUT_CLASSES}, CodeError, "fails at item 0"),
    ("protosphere.run", {"dataset": (WITH_CLASSES, 3)}, CodeError, "is given a int"),
    ("protosphere.compare", {"models": lambda: nn.Flatten()}, SettingError, "a comparison has a process for each run"),
    ("protosphere.compare", {"methods": [ServerHalf]}, SettingError, "a comparison has a process for each run"),
    ("protosphere.compare", {"methods": []}, SettingError, "`methods`"),
    ("protosphere.compare", {"vary": {"protonorm__gamma": [1, 2]}}, SettingError, "--vary protonorm.gamma"),
    ("protosphere.compare", {"vary": {"learning_rate": 0.1}}, SettingError, "learning_rate is 0.1"),
    ("protosphere.compare", {"vary": 3}, SettingError, "vary is 3"),
    ("protosphere.compare", {"choose": "test", "vary": {"seed": [1, 2]}}, SettingError, '`choose` is "test"'),
    ("protosphere.compare", {"methods": "local"}, SettingError, 'methods is "local"'),
    ("protosphere.compare", {"seeds": 3}, SettingError, "seeds is 3"),
    ("protosphere.compare", {"jobs": "2"}, SettingError, 'jobs is "2", but it is a whole number'),
    ("protosphere.compare", {"dataset": "digits"}, SettingError, "datasets=[...]"),
    ("protosphere.compare", {"datasets": [(X, Y, Y)]}, SettingError, "3 arrays"),
    ("protosphere.compare", {"datasets": [(X, Y), (X + 1, Y)]}, SettingError, '"arrays" is there twice; give each a'),
    ("protosphere.compare", {"datasets": [{"dataset": (X, Y[:7])}]}, DataError, "120 rows"),
]
TABLE = [(entry, arguments, SystemExit, word) for entry, arguments, word in OF_COMMANDS] + OF_CALLS


def files_in(folder):
    """Path -> content of all files but decoded data, arrays and the comparison's file."""
    paths = [path for path in folder.rglob("*") if not {"cache", "arrays", "table.toml"} & {*path.parts}]
    return {path: path.is_file() and path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    ("entry", "arguments", "kind", "word"),
    TABLE,
    # by the word, because an object's text contains its address, which differs between processes
    ids=[f"{entry}: {word}" for entry, _, _, word in TABLE],
)
def test_a_mistake_is_one_sentence_and_nothing_is_started(
    entry, arguments, kind, word, tmp_path, home, cut_run, monkeypatch
):
    def start(*values, **keywords):
        pytest.fail("something is started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(flower, "launch", start)
    monkeypatch.setattr(comparing, "run_trials", start)
    (tmp_path / "bad.toml").write_text("rounds = \n")
    (tmp_path / "compared").mkdir()
    for name in ("compared/comparison.json", "mine.py"):
        (tmp_path / name).touch()
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "latin.toml").write_bytes(b'dataset = "\xe9"')
    before = files_in(tmp_path)
    with pytest.raises(kind) as caught:
        ENTRIES[entry](arguments, tmp_path)
    assert type(caught.value) is kind
    sentence = str(caught.value)
    places = {"{here}": tmp_path, "{parent}": tmp_path.parent, "{run}": cut_run}
    for name, place in places.items():
        word = word.replace(name, str(place))
    assert word in sentence
    assert "\n" not in sentence
    assert files_in(tmp_path) == before
