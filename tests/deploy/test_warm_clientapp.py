"""A message's process that is forked from a warm one is what Flower's program would be from its start, and ends with
its stub, its server and its SuperNode. The server is the real one, with torch; Flower's program tells of itself.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protosphere.launch.processes import Family, processes
from tests.waiting import comes

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SCRIPT = DEPLOY / "warm_clientapp.py"
SOON = 2.0  # seconds within which a process is gone
PATIENCE = 60.0
PROGRAM = f"""#!{sys.executable}
import json, os, signal, sys, time
what, *rest = sys.argv[1:]
was_loaded = "torch" in sys.modules
def tell(**values):
    print(json.dumps(values), flush=True)
if what == "self":
    main = sys.modules["__main__"]
    tell(argv=sys.argv, cwd=os.getcwd(), path=sys.path, main=main.__file__, name=__name__, loaded=was_loaded,
         environment=dict(os.environ), stdin=sys.stdin.read(), flags=list(sys.flags), umask=os.umask(0),
         signals=[str(signal.getsignal(n)) for n in (1, 2, 15, 17)], descriptors=len(os.listdir("/proc/self/fd")))
    print("to the error stream", file=sys.stderr)
elif what == "parent":
    tell(parent=os.getppid())
elif what == "exit":
    sys.exit(eval(rest[0]))
elif what == "kill":
    os.kill(os.getpid(), int(rest[0]))
elif what == "file":
    kept = open(rest[0], "w")
    kept.write("all of it")
elif what == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    tell(id=os.getpid(), parent=os.getppid())
    time.sleep(600)
elif what == "import":
    sys.path.insert(0, rest[0])
    import filelock, numpy, torch
    # large enough for threads, of both libraries of mathematics
    torch_sum = (torch.ones(800, 800) @ torch.ones(800, 800)).sum().item()
    numpy_sum = float((numpy.ones((800, 800)) @ numpy.ones((800, 800))).sum())
    tell(filelock=filelock.__file__, torch=torch.__file__, spec=torch.__spec__.origin,
         sums=[torch_sum, numpy_sum], names=[name in sys.modules for name in ("torch.nn", "safetensors")])
elif what == "random":
    import numpy, random
    tell(numbers=[numpy.random.random(), random.random()])
"""
# it says what its PATH is, and lives until it is told otherwise
SUPERNODE = "import os, sys; print(os.environ['PATH'], flush=True); sys.stdin.read()"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="forks of a process with libraries are safe there alone"
)


class Node:
    """A SuperNode's stand-in, with the server that begins beside it."""

    def __init__(self, folder):
        self.state = folder / "state"
        self.state.mkdir()
        self.program = folder / "programs" / "flwr-clientapp"
        self.program.parent.mkdir()
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        self.environment = os.environ | {"PYTHONUNBUFFERED": "1", "OWN": "a b=c\n", "FLWR_TELEMETRY_ENABLED": "0"}
        # as at a site: libraries take all cores
        self.environment.pop("OMP_NUM_THREADS", None)
        command = [sys.executable, SCRIPT, "start", self.state, self.program, sys.executable, "-c", SUPERNODE]
        self.family = Family()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(
            list(map(str, command)), text=True, env=self.environment, start_new_session=True, **pipes
        )
        self.family.adopt(self.process.pid)
        self.environment = self.environment | {"PATH": self.process.stdout.readline().rstrip("\n")}
        self.folder = Path(self.environment["PATH"].split(os.pathsep)[0])
        (self.server,) = self.family.members() - {self.process.pid}

    def start(self, *words, **options):
        """What Flower's SuperExec starts."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        own = {"env": self.environment, "text": True} | pipes | options
        return subprocess.Popen(["flwr-clientapp", *map(str, words)], executable=self.folder / "flwr-clientapp", **own)

    def run(self, *words, **options):
        """The same to its end: what it told, where it told something, and its exit code."""
        process = self.start(*words, **options)
        said, errors = process.communicate(timeout=PATIENCE)
        return json.loads(said) if said else errors, process.returncode

    def wait(self):
        """A process that waits: the stub, and its id."""
        stub = self.start("wait")
        told = json.loads(stub.stdout.readline())
        assert told["parent"] == self.server
        return stub, told["id"]

    def close(self):
        self.family.kill(PATIENCE)
        self.process.communicate()


def is_gone(pid):
    return pid not in processes()


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """One for all tests that leave it as it is."""
    made = Node(tmp_path_factory.mktemp("node"))
    yield made
    made.close()


@pytest.fixture
def own_node(tmp_path):
    """One to be killed."""
    made = Node(tmp_path)
    yield made
    made.close()


def test_a_process_is_what_it_would_be_from_its_start(node, tmp_path):
    words = ("self", "--token", "a secret", "", "é")
    warm, cold = (
        subprocess.run(
            [program, *words], env=node.environment, cwd=tmp_path, capture_output=True, input="in\n", text=True
        )
        for program in (node.folder / "flwr-clientapp", node.program)
    )
    assert (warm.returncode, warm.stderr) == (cold.returncode, cold.stderr) == (0, "to the error stream\n")
    told, expected = json.loads(warm.stdout), json.loads(cold.stdout)
    # what libraries set of themselves, they set when they are loaded
    known = expected["environment"]
    assert {name: told["environment"].get(name) for name in known} == known
    assert {name for name in told["environment"] if name not in known} <= {"GRPC_VERBOSITY", "KMP_DUPLICATE_LIB_OK"}
    assert told | {"environment": None} == expected | {"environment": None}
    assert told["argv"] == [str(node.program), *words]


def test_it_is_a_fork_of_the_server(node):
    assert node.run("parent") == ({"parent": node.server}, 0)


@pytest.mark.parametrize(
    ("value", "code"), [("0", 0), ("3", 3), ("None", 0), ("'words'", 1), ("300", 44), ("1 / 0", 1), ("True", 1)]
)
def test_exit_codes_are_those_of_a_process(node, value, code):
    said, returned = node.run("exit", value)
    assert returned == code
    assert ("words" in said) == ("words" in value)
    assert ("ZeroDivisionError" in said) == ("/" in value)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_process_that_a_signal_ends_ends_its_stub_by_it(node, number):
    assert node.run("kill", number)[1] == -number


def test_signals_of_the_stub_reach_the_process(node):
    stub, pid = node.wait()
    stub.send_signal(signal.SIGTERM)
    stub.wait(PATIENCE)
    assert stub.returncode == 7
    assert comes(lambda: is_gone(pid), SOON)


def test_a_stub_that_is_killed_takes_its_process_with_it_and_no_other(node):
    (stub, pid), (other, stays) = node.wait(), node.wait()
    stub.kill()
    stub.wait(PATIENCE)
    assert comes(lambda: is_gone(pid), SOON)
    assert not is_gone(stays)
    other.kill()
    other.wait(PATIENCE)
    assert comes(lambda: is_gone(stays), SOON)


def test_files_that_nobody_has_closed_are_written(node, tmp_path):
    assert node.run("file", tmp_path / "kept")[1] == 0
    assert (tmp_path / "kept").read_text() == "all of it"


def in_memory(pid, word):
    """Whether a process has a word in what it can write to."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            if " rw-p " in line:
                memory.seek(begin)
                if word.encode() in memory.read(end - begin):
                    return True
    return False


def test_the_server_and_so_each_later_process_has_nothing_of_what_one_was_told(node):
    words = [f"{kind}-{random.randrange(10**9)}" for kind in ("token", "variable")]
    told, code = node.run("self", words[0], env=node.environment | {"TOLD": words[1]})
    assert (code, told["argv"][-1], told["environment"]["TOLD"]) == (0, *words)
    assert node.run("parent") == ({"parent": node.server}, 0)
    assert [in_memory(node.server, word) for word in (*words, str(node.folder))] == [False, False, True]


def test_random_numbers_are_not_those_of_another_process(node):
    (first, _), (second, _) = (node.run("random") for _ in range(2))
    assert not set(first["numbers"]) & set(second["numbers"])


def test_a_runs_own_module_goes_before_one_that_is_loaded(node, tmp_path):
    (tmp_path / "filelock.py").write_text("")
    own, _ = node.run("import", tmp_path)
    assert own["filelock"] == str(tmp_path / "filelock.py")
    others, _ = node.run("import", tmp_path / "nothing")
    assert "site-packages" in others["filelock"]
    for told in (own, others):
        assert told["torch"] == told["spec"]
        assert told["sums"] == [800**3, 800**3]
        # what it has not imported it does not see
        assert told["names"] == [True, False]


@pytest.mark.parametrize("changed", [{"PYTHONHASHSEED": "1"}, {"LD_BIND_NOW": "1"}, {"OWN": "other"}, {"OWN": None}])
def test_with_other_variables_than_the_supernodes_it_is_flowers_program_itself(node, changed):
    own = {name: value for name, value in (node.environment | changed).items() if value is not None}
    stub = node.start("parent", env=own)
    said, errors = stub.communicate(timeout=PATIENCE)
    assert (json.loads(said), stub.returncode) == ({"parent": os.getpid()}, 0)
    assert next(iter(changed)) in errors


def test_a_server_that_is_killed_takes_its_processes_with_it_and_leaves_flowers_program(own_node):
    stub, pid = own_node.wait()
    os.kill(own_node.server, signal.SIGKILL)
    stub.wait(PATIENCE)
    assert stub.returncode == -signal.SIGKILL
    assert comes(lambda: is_gone(pid), SOON)
    assert own_node.run("parent") == ({"parent": os.getpid()}, 0)
    assert own_node.run("exit", "3")[1] == 3


def test_a_supernode_that_is_killed_leaves_nothing(own_node):
    stub, pid = own_node.wait()
    own_node.process.kill()
    # it may have a last word first
    assert comes(lambda: is_gone(own_node.server) and is_gone(pid), 2 * SOON)
    stub.wait(PATIENCE)
    assert list(own_node.state.iterdir()) == []


def test_one_that_is_killed_at_once_leaves_nothing_either(own_node):
    own_node.process.kill()
    assert comes(lambda: is_gone(own_node.server), PATIENCE)
    assert list(own_node.state.iterdir()) == []


def test_a_server_that_is_told_to_end_lets_its_messages_come_to_an_end(own_node):
    stub, pid = own_node.wait()
    os.kill(own_node.server, signal.SIGTERM)
    assert own_node.run("parent") == ({"parent": os.getpid()}, 0)
    assert not is_gone(pid)
    stub.terminate()
    stub.wait(PATIENCE)
    assert stub.returncode == 7
    assert comes(lambda: is_gone(own_node.server), SOON)


def test_folders_that_killed_servers_left_are_removed_by_the_next(own_node, tmp_path):
    os.kill(own_node.server, signal.SIGKILL)
    own_node.close()
    assert own_node.folder.exists()
    (tmp_path / "again").mkdir()
    command = [sys.executable, SCRIPT, "start", own_node.state, own_node.program, "ls", own_node.state]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=own_node.environment)
    (folder,) = done.stdout.split()
    assert folder.startswith("warm-")
    assert not own_node.folder.exists()
    assert comes(lambda: not list(own_node.state.iterdir()), PATIENCE)


@pytest.mark.parametrize(
    "text", [None, "#!/bin/sh\nexit 3\n", f"#!{sys.executable} -E\n", "\x7fELF", "#!/no/python3\n"]
)
def test_a_program_that_is_no_console_script_runs_as_ever(tmp_path, text):
    program = tmp_path / "flwr-clientapp"
    if text is not None:
        program.write_text(text)
    command = [sys.executable, SCRIPT, "start", tmp_path, program, sys.executable, "-c", SUPERNODE]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, input="")
    assert (done.stdout, done.stderr, done.returncode) == (f"{os.environ['PATH']}\n", "", 0)


def test_a_state_folder_that_takes_no_server_is_said_and_the_supernode_starts(tmp_path):
    program = tmp_path / "flwr-clientapp"
    program.write_text(PROGRAM)
    command = [sys.executable, SCRIPT, "start", tmp_path / "nowhere", program, sys.executable, "-c", "print('began')"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("began\n", 0)
    assert "each message takes a process from its start" in done.stderr


def test_packages_that_are_installed_meanwhile_are_noticed(tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(DEPLOY)!r})\n"
        "from pathlib import Path\nfrom warm_clientapp import Loaded, modification_times\n"
        f"loaded = Loaded(set(), modification_times([{str(tmp_path)!r}]))\n"
        f"print(loaded.is_current()); Path({str(tmp_path / 'new.dist-info')!r}).mkdir(); print(loaded.is_current())"
    )
    time.sleep(0.05)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"]
