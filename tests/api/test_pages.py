"""The blocks of README.md, CONTRIBUTING.md and docs/: every one is run, loaded or parsed.

Python blocks that need a test of their own are named in `PYTHON_TESTS`. Commands are taken out of the pages as they
are. `protosphere` commands are run by the command line itself, up to where training would begin. Of other programs, the
options, files and services that a command names must exist.
"""

import ast
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import pytest
import typer.main
import yaml
from flwr.cli.app import app as flwr_command
from packaging.requirements import Requirement
from PIL import Image
from typer.testing import CliRunner

import protosphere
from protosphere import comparing, running
from protosphere.cli.main import app
from protosphere.client_app.privacy_ledger import Ledger
from protosphere.core.paths import is_path, listed
from protosphere.launch import flower, ray_cluster
from protosphere.plans import run_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
FENCED = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = "settings={'models': 'tiny_perceptron', 'max-samples': 300, 'device': 'cpu'}"

# page -> the test that runs each of its Python blocks, in order
PYTHON_TESTS = {
    "README.md": ["api/test_pages.py::test_the_five_lines_of_the_readme_run"],
    "docs/adding-a-method.md": [
        "strategies/test_adding_a_method.py::test_the_printed_method_runs_in_process_by_its_path",
        "strategies/test_adding_a_method.py::test_the_printed_loss_and_memory_are_those_of_naive_loops",
        "strategies/test_adding_a_method.py::test_the_printed_method_of_one_half_has_the_settings_of_the_other",
        "strategies/test_adding_a_method.py::test_the_printed_momentum_is_that_of_its_equations",
    ],
    "docs/data.md": [
        "api/test_pages.py::test_arrays_are_data_as_the_page_says",
        "api/test_pages.py::test_the_printed_torch_dataset_is_one",
    ],
    "docs/flower.md": [
        "strategies/test_flowers_contract.py::test_the_lines_of_docs_flower_md_run_in_a_server_app_of_ones_own"
    ],
    "docs/models.md": [
        "api/test_pages.py::test_protosphere_understands_every_command_of_a_block",
        "api/test_pages.py::test_the_printed_encoder_is_one",
    ],
    "docs/predict.md": [
        "serving/test_export.py::test_programs_and_the_docs_example_in_a_process_of_their_own_answer_as_predict_does",
        "serving/test_export.py::"
        "test_an_exported_table_says_how_its_rows_are_made_and_the_docs_reader_answers_as_predict_does",
    ],
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(language: str = "", page: str = "") -> list[Block]:
    """The blocks of one language, of all pages or of one."""
    all_blocks = []
    for path in PAGES:
        text = path.read_text("utf-8")
        for match in FENCED.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            all_blocks.append(Block(path.relative_to(ROOT).as_posix(), line, match[1], match[2]))
    return [block for block in all_blocks if language in ("", block.language) and page in ("", block.page)]


def block(page: str, place: int = 0, language: str = "python") -> str:
    """A block as printed."""
    return blocks(language, page)[place].text


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder and a home of its own."""
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_every_block_has_a_language_that_is_tested():
    # `text` is a picture or an output; languages in braces are read when the pages are built
    tested = {"python", "bash", "text", *PARSERS}
    assert not [str(each) for each in blocks() if each.language not in tested and each.language[:1] != "{"]


# --- Python ---------------------------------------------------------------------------------------------------


def test_every_python_block_has_a_test_that_reads_its_page():
    counts = Counter(each.page for each in blocks("python"))
    assert counts == {page: len(tests) for page, tests in PYTHON_TESTS.items()}
    for page, tests in PYTHON_TESTS.items():
        for test in tests:
            file, name = test.split("::")
            text = (ROOT / "tests" / file).read_text("utf-8")
            functions = [each.name for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)]
            assert name in functions, test
            assert Path(page).name in text, test


def test_the_five_lines_of_the_readme_run(undrawn):
    Image.new("L", (8, 8), 7).save("image.png")
    lines = block("README.md")
    assert len([line for line in lines.splitlines() if line]) == 5
    exec(compile(lines.replace("clients=10, rounds=20", f"clients=2, rounds=1, {SMALL}"), "README.md", "exec"), {})


def test_arrays_are_data_as_the_page_says(monkeypatch):
    # other tests start the processes of a comparison
    trials_of_comparisons = []

    def carry_out(folder, spec, trials, *rest, **more):
        trials_of_comparisons.append(trials)
        return [], None

    monkeypatch.setattr(comparing, "carry_out", carry_out)
    monkeypatch.setattr(comparing, "Comparison", lambda *what, **more: None)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2000, 5)).astype("float32"), np.arange(2000) % 2
    names = {"x": x, "y": y, "x_test": x[:20], "y_test": y[:20], "ward": np.arange(2000) // 4}
    small = f"rounds=1, {SMALL}".replace(", 'max-samples': 300", "")
    lines = block("docs/data.md").replace("clients=10)", f"clients=2, {small})")
    lines = lines.replace('group_column="ward")', f'group_column="ward", clients=2, {small})')
    assert lines.count("rounds=1") == 3
    exec(compile(lines, "docs/data.md", "exec"), names)
    assert [len(trials) for trials in trials_of_comparisons] == [6]


def test_the_printed_torch_dataset_is_one(monkeypatch):
    """With images in place of those that torchvision would download."""
    import torchvision.datasets

    def emnist(root, split, train, transform):
        images = [Image.new("L", (8, 8), number) for number in range(60 if train else 20)]
        return [(transform(image), number % 3) for number, image in enumerate(images)]

    monkeypatch.setattr(torchvision.datasets, "EMNIST", emnist)
    Path("mine.py").write_text(block("docs/data.md", 1))
    run = protosphere.run("local", "./mine.py", clients=2, rounds=1, models="tiny_perceptron", device="cpu")
    assert run.client(0).input_shape == (1, 8, 8)


def test_the_printed_encoder_is_one():
    Path("mine.py").write_text(block("docs/models.md", 1))
    settings = {"models": "tiny_perceptron", "max-samples": 300, "device": "cpu"}
    protosphere.run("protosphere", "digits", clients=2, rounds=1, encoder="./mine.py", settings=settings)


# --- files ----------------------------------------------------------------------------------------------------


PARSERS = {"toml": tomllib.loads, "yaml": yaml.safe_load, "json": json.loads}


@pytest.mark.parametrize("printed_block", [each for each in blocks() if each.language in PARSERS], ids=str)
def test_every_block_of_toml_yaml_or_json_is_valid(printed_block):
    assert PARSERS[printed_block.language](printed_block.text)


def test_the_printed_project_of_a_flower_app_names_existing_components():
    project = tomllib.loads(block("docs/flower.md", language="toml"))
    flower = [requirement for requirement in PROJECT["project"]["dependencies"] if requirement.startswith("flwr")]
    assert project["project"]["dependencies"] == ["protosphere", *flower]
    components = project["tool"]["flwr"]["app"]["components"]
    module, _, name = components["clientapp"].partition(":")
    assert hasattr(import_module(module), name)
    module, _, name = components["serverapp"].partition(":")
    assert block("docs/flower.md").startswith(f"# {module}.py\n")
    assert f"\n{name} = ServerApp()\n" in block("docs/flower.md")


# --- commands -------------------------------------------------------------------------------------------------


def commands_in(text: str) -> list[list[str]]:
    """The words of each command of a shell block."""
    text = re.sub(r"<\w+ id>|NODE_ID", "1", text)
    text = re.sub(r"<<(\w+)\n.*?^\1$", "", text.replace("\\\n", " "), flags=re.MULTILINE | re.DOTALL)
    commands = []
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&;")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, "&&"]:
            if word != "&&":
                words.append(word)
            elif words:
                commands.append(words)
                words = []
    return commands


def parse(command: click.Command, words: list[str]) -> None:
    """Have a command line's own parser read the words."""
    # `...` stands for further arguments
    words = [word for before, word in zip(["", *words], words, strict=False) if word != "..." or before[:1] == "-"]
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command, words = command.commands[words[0]], words[1:]
    # without arguments it is the command's name
    if words and not isinstance(command, click.Group):
        command.make_context("command", words)


def check_command(words: list[str]) -> None:
    """Have the program that a command names accept it; files of ours that it names exist."""
    words = [word for word in words if not re.match(r"python=", word) and word != "sudo"]
    program, *arguments = words or [""]
    program = program.removeprefix(".venv/bin/")
    parsers = {"protosphere": app, "flwr": flwr_command}
    if program in parsers:
        parse(typer.main.get_command(parsers[program]), arguments)
        texts = [text for option, text in pairwise(arguments) if option == "-c" and "=" in text]
        if arguments[:1] == ["run"]:
            run_config.plan([text for text in texts if "./" not in text], remote=True)
    elif program == "make":
        done = subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    elif program == "pip":
        requirement = Requirement(arguments[1])
        assert (
            requirement.name != "protosphere"
            or requirement.extras <= PROJECT["project"]["optional-dependencies"].keys()
        )
    elif program == "ray":
        from ray.scripts.scripts import cli

        parse(cli, arguments)
    elif program == "python" and arguments[0] == "-m":
        module = ROOT / arguments[1].replace(".", "/")
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists() or module.name == "pytest", words
    elif program == "docker" and arguments[0] == "compose":
        check_compose(arguments[1:])
    for place, word in enumerate(words):
        if re.fullmatch(r"deploy/[\w./-]+", word):
            assert (ROOT / word).exists(), word
            flags = [flag.partition("=")[0] for flag in words[place + 1 :] if flag.startswith("--")]
            if flags and word.endswith(".sh"):
                text = subprocess.run([ROOT / word, "--help"], capture_output=True, text=True, check=True).stdout
                assert not [flag for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", text)], words


def check_compose(words: list[str]) -> None:
    """A command of Docker Compose: a verb and options that our pages use, a service of ours, the run's arguments."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    verb, *words = words
    place = next((place for place, word in enumerate(words) if word in services), len(words))
    options, arguments = words[:place], words[place + 1 :]
    assert verb in ("build", "down", "run", "stop", "up")
    assert verb != "run" or place < len(words), f"{words} names no service"
    assert {"--rm", "--no-deps", "--entrypoint", "sh", "--volumes", "--detach"}.issuperset(options), words
    if words[place : place + 1] == ["federation"] and "--entrypoint" not in options:
        parse(typer.main.get_command(app), ["run", *arguments])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_command_of_a_page_is_accepted_by_its_program(path):
    commands = [words for each in blocks("bash", path.relative_to(ROOT).as_posix()) for words in commands_in(each.text)]
    # what stands between backticks, outside of blocks, and is a command with arguments
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`|]+)`", FENCED.sub("", path.read_text("utf-8")))]
    for span in dict.fromkeys(spans):
        if span.startswith(("protosphere ", "flwr ", "make ", "docker ", "python ", "ray ", "deploy/")) and " " in span:
            commands += commands_in(span)
    for words in commands:
        check_command(words)


def test_every_measurement_that_a_page_names_is_one_of_its_program():
    names = re.findall(r"`costs ([a-z-]+)`", (ROOT / "docs" / "scale.md").read_text("utf-8"))
    program = (ROOT / "benchmarks" / "costs.py").read_text("utf-8")
    assert names
    assert not [name for name in names if f"\ndef {name.replace('-', '_')}(" not in program]


class ReadError(Exception):
    """Everything was read and checked; training would begin."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with all files that the commands of the pages name, and a home with a run."""
    place = tmp_path_factory.mktemp("pages")
    (place / "work" / "FOLDER").mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 255, (600, 32, 32, 3), dtype=np.uint8)
    for number, image in enumerate(images):
        folder = place / "cifar10" / ("test" if number < 50 else "train") / str(number % 10)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")
    (place / "pacs").mkdir()
    for name in ("photos", "mnist", "pacs/photo", "pacs/sketch"):
        (place / name).symlink_to(place / "cifar10")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place / "work")
        patch.setenv("HOME", str(place))
        patch.setenv("PROTOSPHERE_HOME", str(place / ".protosphere"))
        Path("mynet.py").write_text(block("docs/models.md"))
        Path("my-table.toml").write_text(block("docs/compare.md", language="toml"))
        rows = [("age", "ward", "income"), *((30 + row, "north", "high") for row in range(20))]
        rows += [("", "south", "low") for _ in range(20)]
        Path("sample.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
        for name in ("berlin.csv", "paris.csv", "rome.csv"):
            Path(name).write_text(Path("sample.csv").read_text().replace("income", "label"))
        settings = {"models": "tiny_perceptron", "max-samples": 300, "device": "cpu", "report": False}
        # only under `privacy` does a site have metrics of its own
        settings |= {"encoder": "handcrafted", "privacy": "release"}
        run = protosphere.run("fedproto", "digits", clients=2, rounds=2, quiet=True, settings=settings)
        digits = np.random.default_rng(0).integers(0, 16, (10, 8, 8), dtype=np.uint8)
        Ledger(place / ".protosphere" / "privacy").folder.mkdir()
        np.savez("samples.npz", x=digits)
        rows = [("file", "label"), *((f"scans/{label}/0.png", label) for label in range(10))]
        Path("patients.csv").write_text("".join(f"{file},{label}\n" for file, label in rows))
        for label, digit in enumerate(digits):
            Path(f"scans/{label}").mkdir(parents=True)
            Image.fromarray(digit).save(f"scans/{label}/0.png")
        for name in ("scan1.png", "scan2.jpg"):
            Image.fromarray(digits[0]).save(name)
    return place, run.name


WITH_PROTOSPHERE = [
    each for each in blocks("bash") if "protosphere " in each.text and each.page != "docs/deployment.md"
]


@pytest.mark.parametrize("printed_block", WITH_PROTOSPHERE, ids=str)
def test_protosphere_understands_every_command_of_a_block(printed_block, project, monkeypatch, undrawn):
    """Small data stand for CIFAR-10 and others; what would be downloaded from a hub is not checked."""
    place, name = project
    monkeypatch.chdir(place / "work")
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("PROTOSPHERE_HOME", str(place / ".protosphere"))

    def stop(*what, **more):
        raise ReadError

    def check_what_is_here(run, *what):
        dataset, encoder = run.settings.dataset, run.settings.encoder
        if all(item in ("digits", "spiral") or is_path(item) for item in listed(dataset)) and "dino" not in encoder:
            check(run, *what)

    check = run_config.check
    monkeypatch.setattr(run_config, "check", check_what_is_here)
    monkeypatch.setattr(running, "carry_out", stop)
    monkeypatch.setattr(comparing, "carry_out", stop)
    monkeypatch.setattr(flower, "launch", stop)
    monkeypatch.setattr(ray_cluster, "nodes_at", lambda address: [ray_cluster.Node(8, 0)])
    monkeypatch.setattr(ray_cluster, "cluster_address", lambda address: address)
    text = printed_block.text.replace("<run>", name).replace("FOLDER", os.environ["PROTOSPHERE_HOME"])
    # no GPU is needed to read what is set
    text = text.replace('device="cuda" precision="bf16"', 'device="cpu"')
    for words in commands_in(text):
        if words[0].rpartition("/")[2] != "protosphere":
            continue
        words = [str(Path(word).expanduser()) for word in words[1:]]
        if "my-table.toml" in words:
            words += ["--data", "cifar10=../cifar10", "--seeds", "0"]
        elif words[0] == "compare" and "../cifar10" in text:
            # a seed's trials are checked as every seed's are
            words += ["--seeds", "0"]
        with monkeypatch.context() as patch:
            if words[0] == "compare" and "--preset" in words:
                # a paper's samples are more than these; tests/test_papers.py has every preset
                patch.setattr(comparing, "expand", stop)
            done = CliRunner().invoke(app, words)
        assert done.exit_code == 0 or isinstance(done.exception, ReadError), f"{words}: {done.output}"
    if "--export-columns" in text:
        columns = block(printed_block.page, language="json")
        assert json.loads(Path("columns.json").read_text("utf-8")) == json.loads(columns)
