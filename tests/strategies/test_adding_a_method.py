"""The method and the model that docs/ print work as printed, as a file of somebody's own; over Flower it runs in
tests/integration/test_flwr_run.py."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors.torch import load_file
from torch import Tensor

from protosphere.client_app import public_errors
from protosphere.client_app.client import Client
from protosphere.client_app.site import run_of
from protosphere.core import plugins
from protosphere.core.errors import SettingError
from protosphere.launch.grid import run_in_process
from protosphere.models import build
from protosphere.plans.run_config import plan
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.server_app.agreement import Terms, agree
from protosphere.strategies import known_settings, packed, read_settings, unpacked
from protosphere.strategies.contract import Batch, ClientState
from protosphere.strategies.fedproto import FedProtoSettings
from protosphere.wire.payloads import Identity

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"rounds": 2, "models": "tiny_perceptron", "max-samples": 400, "local-epochs": 1, "device": "cpu"}


def printed(page: str, place: int = 0) -> str:
    found: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)
    return found[place]


def whole() -> str:
    """The printed method with its own client half."""
    return printed("adding-a-method.md") + printed("adding-a-method.md", 1)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's own project, with folders of our names, and the printed files in it."""
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path / "home"))
    place = tmp_path / "project"
    for name in ("data", "models", "cli"):
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text("raise RuntimeError('this is not the package that was meant')\n")
    (place / "shrunk.py").write_text(printed("adding-a-method.md"))
    (place / "mynet.py").write_text(printed("models.md"))
    monkeypatch.chdir(place)
    return place


def test_the_printed_method_runs_in_process_by_its_path(project: Path) -> None:
    config = QUICK | {"strategy": str(project / "shrunk.py"), "shrunk.beta": 1.0}
    folder = run_in_process(config, clients=3, show=lambda line: None)
    assert "-shrunk-digits-" in folder.name
    assert json.loads((folder / "settings.json").read_text())["shrunk.beta"] == 1.0
    # beta = 1 moves every prototype onto the common mean: all targets of the last round coincide
    first, *others = last_download(folder)
    assert all((first - other).abs().max() < 1e-6 for other in others)


def test_the_printed_momentum_is_that_of_its_equations(tmp_path: Path, halves: Callable[..., Any]) -> None:
    """Against a loop over classes; class 2 comes in the second round, class 0 is not reported in the third."""
    (tmp_path / "momentum.py").write_text(printed("adding-a-method.md", 3))
    server = halves({"strategy": str(tmp_path / "momentum.py"), "momentum.beta": 0.7}, 3, 2).server
    generator = torch.Generator().manual_seed(0)
    place: dict[int, Tensor] = {}
    velocity: dict[int, Tensor] = {}
    state: dict[str, Tensor] = {}
    for number, labels in enumerate(([0, 1], [0, 1, 2], [1, 2]), start=1):
        vectors = [torch.randn(len(labels), 2, generator=generator) for _ in range(2)]
        uploads = {client: {"prototypes": PrototypeSet(torch.tensor(labels), v)} for client, v in enumerate(vectors)}
        outcome = server.aggregate(uploads, state, number)
        state = outcome.state
        for row, label in enumerate(labels):
            mean = (vectors[0][row] + vectors[1][row]) / 2
            before = place.get(label, mean)
            velocity[label] = 0.7 * velocity.get(label, torch.zeros(2)) + mean - before
            place[label] = before + velocity[label]
        for label in place.keys() - {*labels}:
            # its mean is where it was
            velocity[label] = 0.7 * velocity[label]
            place[label] = place[label] + velocity[label]
        expected = torch.stack([place[label] for label in sorted(place)])
        torch.testing.assert_close(outcome.downloads[-1]["prototypes"].vectors, expected)


def last_download(folder: Path) -> list[Tensor]:
    """The vectors that went down last."""
    return list(load_file(folder / "checkpoint.safetensors")["download/-1/part/prototypes/prototypes/vectors"])


@pytest.mark.parametrize("strategy", ["./shrunk.py", "./shrunk.py:METHOD"])
def test_its_settings_are_known_and_refused_like_ours(project: Path, strategy: str) -> None:
    assert plan([f'strategy="{strategy}" shrunk.beta=0.3'], clients=2).run_config["shrunk.beta"] == 0.3
    with pytest.raises(SettingError, match=r"unknown setting `shrunk.bta` \(did you mean `shrunk.beta`"):
        plan([f'strategy="{strategy}" shrunk.bta=0.3'], clients=2)
    with pytest.raises(SettingError, match=r"`shrunk.beta` is 2, but"):
        plan([f'strategy="{strategy}" shrunk.beta=2'], clients=2)
    with pytest.raises(SettingError, match=r"unknown setting `shrunk.beta`"):
        plan(["shrunk.beta=0.3"], clients=2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read (No such file"),
        ("METHOD = 3\n", "is a int and not a Method"),
        ("x = (\n", "SyntaxError"),
        ("OTHER = 1\n", "bad.py:NAME."),
        ("import os\n\nos.none_such\n", "AttributeError: module 'os' has no attribute 'none_such' (line 3)"),
    ],
)
def test_a_file_that_is_no_method_is_refused_by_a_sentence(project: Path, content: str | None, words: str) -> None:
    if content is not None:
        (project / "bad.py").write_text(content)
    with pytest.raises(SettingError) as raised:
        plan(['strategy="./bad.py"'], clients=2)
    assert words in str(raised.value)
    assert str(raised.value).endswith(".")


def test_its_settings_travel_through_flower_in_one_of_ours(project: Path) -> None:
    config = plan(['strategy="./shrunk.py" shrunk.beta=0.3'], clients=2).run_config
    assert set(packed(config)) <= set(known_settings())
    assert unpacked(packed(config)) == config
    assert read_settings(packed(config)).options == read_settings(config).options
    for words in ("{", "[1]", '{"a": [1]}', '{"a": null}'):
        with pytest.raises(SettingError, match="`own-settings` is"):
            unpacked({"own-settings": words})


def site(strategy: str, **node: str) -> Context:
    config = known_settings() | QUICK | {"strategy": strategy}
    return Context(1, 2, {"partition-id": 0, "num-partitions": 2} | node, RecordDict(), config)


def test_a_site_runs_its_own_file_by_the_run_s_name_and_tells_nothing_of_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protosphere.client_app.site._here", False)
    (project / "two.py").write_text(
        printed("adding-a-method.md") + "\n\nOTHER = m.Method(server=m.ServerHalf, objective=m.Objective)\n"
    )
    run = run_of(site("/server/two.py:OTHER", **{"strategy-file": str(project / "two.py")}))
    assert run.method.objective.__name__ == "Objective"
    with pytest.raises(SettingError, match="this site has none for it; start its SuperNode with --strategy"):
        run_of(site("/server/two.py"))
    node = site("/server/two.py", **{"strategy-file": str(project / "secret" / "gone.py")})
    with pytest.raises(SettingError) as raised:
        run_of(node)
    assert "secret" not in public_errors.public_words(raised.value, node.node_config)


# --- one half of ours ----------------------------------------------------------------------------------------


def test_the_printed_method_of_one_half_has_the_settings_of_the_other(project: Path) -> None:
    (project / "cosine.py").write_text(printed("adding-a-method.md", 2))
    strategy = str(project / "cosine.py")
    config = plan([f'strategy="{strategy}" fedproto.aggregation="median"'], clients=3).run_config
    assert read_settings(config).options[FedProtoSettings] == FedProtoSettings(aggregation="median")
    said: list[str] = []
    folder = run_in_process(
        QUICK | {"strategy": strategy, "fedproto.aggregation": "weighted", "disclose-class-counts": True},
        clients=3,
        show=said.append,
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert set(lines[2]["training"]["loss"]) == {"cross-entropy", "cosine", "loss"}


def test_a_half_that_derives_from_ours_has_its_default_encoder(project: Path) -> None:
    (project / "of_ours.py").write_text(
        "from protosphere import method as m\nfrom protosphere.strategies.protosphere import METHOD as OURS\n\n"
        "class Mine(OURS.objective):\n    pass\n\n"
        "METHOD = m.Method(server=OURS.server, objective=Mine, exchange=OURS.exchange)\n"
    )
    run = read_settings({"strategy": str(project / "of_ours.py")})
    assert run.settings.encoder == "handcrafted"


# --- a client half of one's own ------------------------------------------------------------------------------


def test_the_printed_loss_and_memory_are_those_of_naive_loops(project: Path) -> None:
    (project / "angle.py").write_text(whole())
    run = read_settings({"strategy": str(project / "angle.py"), "angle.weight": 0.7, "angle.memory": 0.6})
    torch.manual_seed(3)
    model = build("tiny_perceptron", (5,), run.settings.feature_dim, 4, 1).double()
    objective = run.method.objective(run.settings, run.options, 4)
    state = ClientState(objective.build(model, 1))
    batch = Batch(torch.randn(9, 5, dtype=torch.float64), torch.randint(0, 4, (9,)))
    (phase,) = objective.phases(state, 1)
    assert set(objective.loss(state, batch, phase, 1).parts) == {"cross-entropy"}
    objective.receive(state, None, 1)
    means: dict[int, Tensor] = {}
    for labels in ([0, 2], [1, 2], [2]):
        table = torch.randn(4, run.settings.feature_dim, dtype=torch.float64)
        state.table = (table, torch.tensor([label in labels for label in range(4)]))
        objective.receive(state, None, 2)
        for label in labels:
            means[label] = 0.6 * means[label] + 0.4 * table[label] if label in means else table[label]
    loss = objective.loss(state, batch, phase, 4)
    total = 0.0
    for z, label in zip(loss.features.detach(), batch.labels.tolist(), strict=True):
        if label in means:
            total += float(1 - z @ means[label] / (z.norm() * means[label].norm()))
    assert float(loss.parts["angle"]) == pytest.approx(total / 9, rel=1e-9)
    assert float(loss.total) == pytest.approx(float(loss.parts["cross-entropy"]) + 0.7 * total / 9, rel=1e-9)


def test_no_run_names_a_model_s_file_at_a_site(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protosphere.client_app.site._here", False)
    (project / "dropped.py").write_text("raise AssertionError('it ran')\n")
    context = site("local")
    context.run_config["models"] = str(project / "dropped.py")
    with pytest.raises(SettingError, match="no run names files of this site"):
        Client(context)


def test_a_site_with_another_file_is_left_out_before_round_1(project: Path) -> None:
    own = plugins.digest(str(project / "shrunk.py"))
    assert (len(own), plugins.digest("protonorm")) == (16, "")
    run = read_settings({"strategy": str(project / "shrunk.py"), "clients": 3})
    of_a_site = Identity(0, 3, "net", 7, run.settings.feature_dim, ("a", "b"), (0,), (9, 1, 1), settings=run.digest)
    sites = [replace(of_a_site, partition=p, method=method) for p, method in enumerate((own, "other", own))]
    found = agree(enumerate(sites), run.settings, Terms(run.exchange, method=own, settings=run.digest))
    assert found.nodes == {0: 0, 2: 2}
    assert "it has another file for the setting `strategy` than the server" in found.left_out[1][1]
