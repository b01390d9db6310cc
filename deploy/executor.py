"""The SuperExec of a SuperNode or a SuperLink. It forks a process for each of its tasks from one that has loaded Flower
and torch.

    executor.py [option ...] -- OPTION ...

    --allow-app FILE  runs only apps whose bundles' SHA-256 digests are listed in this file, one per line

The options after `--` are those of `flower-superexec`. Flower starts tasks in its class `SubprocessExecutor`, of which
two methods are replaced here; tests/deploy/test_executor.py checks that they exist. A task's token is passed through a
pipe, whereas Flower puts it into a command line that everybody on the machine can read.
"""

import argparse
import ctypes
import hashlib
import multiprocessing
import os
import re
import sys
import tempfile
from importlib.metadata import entry_points
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor
from flwr.supernode.runtime import run_clientapp

PRELOADED = ["flwr.supernode.cli", "torch", "safetensors.torch", "scipy.linalg", "filelock", "PIL.Image"]
TASKS = (TaskType.CLIENT_APP, TaskType.SERVER_APP)
SET_NAME = 15  # option of prctl
PLAIN_NAMES = r"\w[\w.+-]*/\w[\w.+-]* \w[\w.+-]*"  # publisher, app, version


class TaskExecutor:
    """Starts a process for each task.

    Args:
        allowed: the file of digests; None if any app may run.
    """

    def __init__(self, allowed: Path | None):
        self._context: Any = multiprocessing.get_context("forkserver")
        self._allowed = allowed
        self._context.set_forkserver_preload(PRELOADED)
        # it loads modules while the site waits for its first message
        forkserver.ensure_running()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start a task."""
        # a site with a list of apps runs ClientApps only, since Flower asks a site for nothing else
        tasks = TASKS if self._allowed is None else TASKS[:1]
        if spec.task_type not in tasks:
            return LaunchResult.failed(f"{spec.task_type} is none of the tasks that are run here: {', '.join(tasks)}")
        # not a daemon, since a daemon may have no children and an app may load its data in processes
        self._context.Process(target=run_task, args=(spec, self._allowed)).start()
        # reaps processes that have ended
        multiprocessing.active_children()
        return LaunchResult.accepted()

    def close(self) -> None:
        """End all processes of tasks."""
        # a process that ignores this ends by itself when its parent is gone
        for child in multiprocessing.active_children():
            child.terminate()


def run_task(spec: ExecutionSpec, allowed: Path | None) -> None:
    """Act as Flower's program for a task, in its own process.

    Args:
        allowed: the file of digests; None where any app may run.
    """
    # a fork inherits the random state of its parent
    for name in ("numpy", "torch"):
        if name in sys.modules:
            sys.modules[name].random.seed()
    if spec.suppress_output:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    (program,) = entry_points(group="console_scripts", name=TASK_TYPE_TO_COMMAND[spec.task_type])
    if sys.platform == "linux":
        # the name in `ps -eo comm`; its command line is that of the process that it was forked from
        ctypes.CDLL(None).prctl(SET_NAME, program.name.encode())
    sys.argv = [program.name, "--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
    if spec.insecure:
        sys.argv.append("--insecure")
    elif spec.root_certificates_path is not None:
        sys.argv += ["--root-certificates", spec.root_certificates_path]
    sys.argv += ["--parent-pid", str(spec.parent_pid)]
    watch_tasks(allowed)
    if allowed is None:
        program.load()()
        return
    # Flower reuses a folder named after eight digits of the digest, whatever its content
    with tempfile.TemporaryDirectory(prefix="app-", dir=os.environ.get("PROTOSPHERE_HOME")) as folder:
        os.environ["FLWR_HOME"] = folder
        program.load()()


def watch_tasks(allowed: Path | None) -> None:
    """Replace two functions of Flower's ClientApp. One prints a line about each task. The other refuses apps that are
    not listed before they are unpacked; the server is told, and the site is free for the next message.

    Args:
        allowed: the file of digests, which may change while the site runs; None if any app may run.
    """
    pull_task_input, install_from_fab = run_clientapp.pull_task_input, run_clientapp.install_from_fab
    names: list[str] = []

    def pull(client: Any) -> Any:
        message, context, run, fab = pull_task_input(client)
        method, rounds = (context.run_config.get(name, "-") for name in ("strategy", "rounds"))
        print(f"run={run.run_id} app={fab.hash_str} method={method} rounds={rounds}", flush=True)
        names.append(f"{run.fab_id} {run.fab_version} {fab.hash_str}")
        return message, context, run, fab

    def install(content: bytes, **options: Any) -> Any:
        digest = hashlib.sha256(content).hexdigest()
        # Flower loads the app from a folder named by the SuperLink, wherever it was unpacked
        is_plain = re.fullmatch(f"{PLAIN_NAMES} {digest}", names[-1])
        if allowed is not None and not (is_plain and digest in read_digests(allowed)):
            print(f"refused app={digest}: it is not listed in {allowed}, or called {names[-1]!r}", flush=True)
            raise PermissionError(f"this site does not run the app with the digest {digest}: it has not listed it")
        return install_from_fab(content, **options)

    for name, function in {"pull_task_input": pull, "install_from_fab": install}.items():
        setattr(run_clientapp, name, function)


def read_digests(file: Path) -> list[str]:
    """The first word of each line: a digest, or that of a comment, which begins with # and equals no digest."""
    lines = file.read_text("utf-8").splitlines()
    return [line.split()[0].lower() for line in lines if line.strip()]


def main(words: list[str]) -> None:
    """Run as the SuperExec."""
    parser = argparse.ArgumentParser(prog="deploy/executor.py")
    parser.add_argument("--allow-app", type=Path)
    parser.add_argument("words", nargs="*", help="options of flower-superexec, behind --")
    options = parser.parse_args(words)
    executor = TaskExecutor(options.allow_app)
    methods = {"launch": lambda _, spec: executor.launch(spec), "close": lambda _: executor.close()}
    for name, method in methods.items():
        setattr(SubprocessExecutor, name, method)
    sys.argv = ["flower-superexec", *options.words]
    flower_superexec()


if __name__ == "__main__":
    main(sys.argv[1:])
