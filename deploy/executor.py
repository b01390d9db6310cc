"""The SuperExec of a SuperNode or a SuperLink, which starts a process for each of its tasks.

    executor.py [option ...] -- OPTION ...

    --cold            each process loads Flower and torch itself, and is no fork of one that has
    --allow-app FILE  runs no app but those whose bundles' SHA-256 digests are in this file, one a line

What follows `--` are options of `flower-superexec`. How a task is started is chosen by a class of Flower's own,
`SubprocessExecutor`, of which two methods are replaced here; tests/deploy/test_executor.py holds that they are there. A
task's token crosses a pipe, where Flower writes it into a command line that everybody on the machine can read.
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
SET_NAME = 15  # of prctl
PLAIN_NAMES = r"\w[\w.+-]*/\w[\w.+-]* \w[\w.+-]*"  # publisher, app, version


class TaskExecutor:
    """Starts the processes of tasks.

    Args:
        cold: each loads what it needs itself.
        allowed: the file of digests; None where any app may run.
    """

    def __init__(self, cold: bool, allowed: Path | None):
        self._context: Any = multiprocessing.get_context("spawn" if cold else "forkserver")
        self._allowed = allowed
        if not cold:
            self._context.set_forkserver_preload(PRELOADED)
            # it loads while the site waits for its first message
            forkserver.ensure_running()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start a task."""
        # a site that asks whose code it runs is asked by Flower for ClientApps alone
        tasks = TASKS if self._allowed is None else TASKS[:1]
        if spec.task_type not in tasks:
            return LaunchResult.failed(f"{spec.task_type} is none of the tasks that are run here: {', '.join(tasks)}")
        # no daemon, since that may have no children: an app may load its data by processes
        self._context.Process(target=run_task, args=(spec, self._allowed)).start()
        # so that those that have ended are waited for
        multiprocessing.active_children()
        return LaunchResult.accepted()

    def close(self) -> None:
        """End all that was started."""
        # one that does not listen ends by itself when it misses its parent
        for child in multiprocessing.active_children():
            child.terminate()


def run_task(spec: ExecutionSpec, allowed: Path | None) -> None:
    """Be Flower's program for a task, in a process of its own.

    Args:
        allowed: the file of digests; None where any app may run.
    """
    # a fork has the random state of the process that it comes from
    for name in ("numpy", "torch"):
        if name in sys.modules:
            sys.modules[name].random.seed()
    if spec.suppress_output:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    (program,) = entry_points(group="console_scripts", name=TASK_TYPE_TO_COMMAND[spec.task_type])
    if sys.platform == "linux":
        # what `ps -eo comm` calls it; its command line is that of the process that it was forked from
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
    # Flower goes on with a folder that is named after eight digits of the digest, whatever lies in it
    with tempfile.TemporaryDirectory(prefix="app-", dir=os.environ.get("PROTOSPHERE_HOME")) as folder:
        os.environ["FLWR_HOME"] = folder
        program.load()()


def watch_tasks(allowed: Path | None) -> None:
    """Replace two functions of Flower's ClientApp: when it has got its task, a line says what that is; before it
    unpacks the app, one that is not listed is refused. The server is told, and the site is free for the next message.

    Args:
        allowed: the file of digests, which may change while the site runs; None where any app may run.
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
        # Flower loads the app from a folder that is called by the SuperLink's names, wherever it has been unpacked
        is_plain = re.fullmatch(f"{PLAIN_NAMES} {digest}", names[-1])
        if allowed is not None and not (is_plain and digest in read_digests(allowed)):
            print(f"refused app={digest}: it is not listed in {allowed}, or called {names[-1]!r}", flush=True)
            raise PermissionError(f"this site does not run the app with the digest {digest}: it has not listed it")
        return install_from_fab(content, **options)

    for name, function in {"pull_task_input": pull, "install_from_fab": install}.items():
        setattr(run_clientapp, name, function)


def read_digests(file: Path) -> list[str]:
    """The digests that a file lists; words may follow one, and comments begin with #, which none has."""
    lines = file.read_text("utf-8").splitlines()
    return [line.split()[0].lower() for line in lines if line.strip()]


def main(words: list[str]) -> None:
    """Be the SuperExec."""
    parser = argparse.ArgumentParser(prog="deploy/executor.py")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--allow-app", type=Path)
    parser.add_argument("words", nargs="*", help="options of flower-superexec, behind --")
    options = parser.parse_args(words)
    executor = TaskExecutor(options.cold, options.allow_app)
    methods = {"launch": lambda _, spec: executor.launch(spec), "close": lambda _: executor.close()}
    for name, method in methods.items():
        setattr(SubprocessExecutor, name, method)
    sys.argv = ["flower-superexec", *options.words]
    flower_superexec()


if __name__ == "__main__":
    main(sys.argv[1:])
