"""What is wrong in somebody's own method ends a run at once, by file and line; what else goes wrong does not."""

import re
from pathlib import Path

import pytest
from flwr.app import Message, MessageType

from protosphere.client_app.public_errors import METHOD, SITE_LOG
from protosphere.core.errors import RunError, SettingError
from protosphere.launch.grid import LocalGrid, run_in_process
from protosphere.record.folder import RunFolder
from protosphere.strategies import known_settings, load_method
from protosphere.strategies.user_method import FAILED
from protosphere.wire.messages import encode_instruction
from protosphere.wire.payloads import Instruction
from tests.strategies.test_adding_a_method import QUICK, whole


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROTOSPHERE_HOME", str(tmp_path / "home"))
    return tmp_path


LOSS = "    def loss("
PLAIN = 'parts={"cross-entropy": plain}'
SENT = "m.to_everyone(prototypes))"
RETURNED = "return m.Outcome(m.as_state(prototypes), m.to_everyone(prototypes))"
# old words of the printed file, what is put in their place, and what the run says
WRONG = [
    (f"m.Loss(total=plain, {PLAIN}, features=z)", "(plain, {}, z)", r"returns a tuple, where a Loss\(total, parts"),
    ("plain = cross", "z.nonesuch\n        plain = cross", "failed in `loss` with AttributeError"),
    ("m.Loss(total=plain,", "m.Loss(total=plain.detach(),", "one number with its gradient"),
    (PLAIN, 'parts={"cross-entropy": 1.0}', "a float as part 'cross-entropy'"),
    (PLAIN, 'parts={"plain": plain, "more": plain}', "among which 'cross-entropy' is due"),
    ("features=z)", "features=z[:1])", r"a tensor of shape \(1, 64\) as `features`"),
    (LOSS, f"    def phases(self, state, r):\n        return 3\n\n{LOSS}", "phases` returns a int"),
    (LOSS, f"    def upload(self, state, r):\n        return {{}}\n\n{LOSS}", "an empty dict to be sent"),
    ("means = m.agg", "m.prototypes_of_state(state)\n        means = m.agg", "no prototypes, as in the first round"),
    (RETURNED, "return prototypes", "an Outcome"),
    (SENT, "{-1: prototypes})", 'a dict of parts is due: {"prototypes": ...}'),
    (
        SENT,
        '{-1: {"means": prototypes}})',
        r"as the part 'means' .* its `exchange` names 'prototypes' \(PrototypeSet\)",
    ),
]


@pytest.mark.parametrize(("before", "after", "words"), WRONG)
def test_what_is_wrong_in_a_method_ends_the_run_in_its_first_round_by_file_and_line(
    project: Path, before: str, after: str, words: str
) -> None:
    text = whole()
    assert before in text
    (project / "wrong.py").write_text(text.replace(before, after, 1))
    config = QUICK | {"strategy": str(project / "wrong.py"), "rounds": 5}
    opened: list[Path] = []
    with pytest.raises(RunError, match=words) as raised:
        run_in_process(config, clients=3, show=lambda line: None, opened=opened.append)
    found = re.search(r"\((\S*wrong\.py), line (\d+)\)", str(raised.value))
    assert found is not None
    # whichever half it is in
    assert str(raised.value).startswith("round 1: ")
    assert str(raised.value).endswith(" Mend the method, and start a new run.")
    # the line of the mistake, or of the half that returned it
    lines = (project / "wrong.py").read_text().splitlines()
    named = lines[int(found[2]) - 1]
    assert named.strip() in {line.strip() for line in after.splitlines()} or named.strip().startswith("def "), named
    # what untrained models do is known by then
    assert [line["round"] for line in RunFolder(opened[0]).lines()] == [0]


def test_an_error_that_is_no_fault_of_the_method_ends_nothing_at_once(project: Path) -> None:
    first = "if self.num_classes:\n            raise OSError('the disk is away')\n        plain = cross"
    (project / "away.py").write_text(whole().replace("plain = cross", first, 1))
    config = QUICK | {"strategy": str(project / "away.py"), "rounds": 5, "max-failed-rounds": 2}
    with pytest.raises(RunError, match=r"2 rounds in a row ended without enough valid replies.*the disk is away"):
        run_in_process(config, clients=2, show=lambda line: None)


def test_a_site_tells_of_its_failed_method_the_file_s_name_and_the_line_alone(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "wrong.py").write_text(
        whole().replace("plain = cross", "raise ValueError(f'row 17 {z}')\n        plain = cross")
    )
    settings = known_settings() | QUICK | {"strategy": "/server/wrong.py"}
    node = {"partition-id": 0, "num-partitions": 2, "strategy-file": str(project / "wrong.py")}
    grid = LocalGrid(settings, [node])
    monkeypatch.setattr("protosphere.client_app.site._here", False)
    asked = encode_instruction(Instruction("a-run", 1))
    ids = grid.push_messages([Message(asked, grid.get_node_ids()[0], MessageType.TRAIN)])
    (reply,) = grid.pull_messages(ids)
    assert reply.error.code == FAILED
    assert reply.error.reason == f"client 0: {METHOD}{SITE_LOG}"
    assert "row 17" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["expand", "contradiction"])
def test_a_member_that_is_never_called_is_refused_by_its_name(tmp_path, name):
    (tmp_path / "mine.py").write_text(
        f"from protosphere import method as m\n\nclass Half(m.ServerHalf):\n    {name} = None\n\n"
        "METHOD = m.Method(server=Half, objective=m.PullObjective)\n"
    )
    with pytest.raises(SettingError, match=rf"mine.py.*`Half.{name}` is never called; derive Half from "):
        load_method(str(tmp_path / "mine.py"))
