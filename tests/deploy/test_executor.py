"""The SuperExec of ours: that Flower has what it replaces, what it refuses, and what the process of a task runs."""

import hashlib
import inspect
import sys
from dataclasses import fields
from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest
from flwr.supercore.constant import FORCE_EXIT_TIMEOUT_SECONDS, TASK_TYPE_TO_COMMAND, ExecutorType, TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus, SubprocessExecutor, get_executor
from flwr.supernode.runtime import run_clientapp

from deploy import executor
from deploy.executor import TaskExecutor

APP = b"an app"
DIGEST = hashlib.sha256(APP).hexdigest()


def spec(**changed):
    usual = {"task_type": TaskType.CLIENT_APP, "runtime_api_address": "127.0.0.1:9", "token": "hush", "insecure": True}
    usual |= {"root_certificates_path": None, "runtime_dependency_install": False, "parent_pid": 1}
    return ExecutionSpec(**usual | {"suppress_output": False, "task_id": 3, "fab_hash": DIGEST} | changed)


def test_flower_has_what_is_replaced():
    """Of the installed version; CI runs this with the oldest and the newest that we know."""
    assert list(inspect.signature(SubprocessExecutor.launch).parameters) == ["self", "spec"]
    assert list(inspect.signature(SubprocessExecutor.close).parameters) == ["self"]
    assert type(get_executor(ExecutorType.SUBPROCESS)) is SubprocessExecutor
    read = {"task_type", "runtime_api_address", "token", "insecure", "root_certificates_path", "parent_pid"}
    assert read | {"suppress_output"} <= {field.name for field in fields(ExecutionSpec)}
    source = inspect.getsource(run_clientapp.run_clientapp)
    assert "message, context, run, fab = pull_task_input(client)" in source
    assert "install_from_fab(fab.content, skip_prompt=True)" in source
    for task in executor.TASKS:
        assert len(entry_points(group="console_scripts", name=TASK_TYPE_TO_COMMAND[task])) == 1
    # or the SuperExec would be ended by force before its processes
    assert executor.ENDING < FORCE_EXIT_TIMEOUT_SECONDS


def test_an_app_that_is_not_listed_is_refused_by_its_content_and_the_file_is_read_each_time(tmp_path, capsys):
    file, installed = tmp_path / "apps.txt", []
    file.write_text(f"# {DIGEST}\n\n")
    install = executor.refuse_unlisted(lambda content, **options: installed.append((content, options)), file)
    with pytest.raises(PermissionError, match=DIGEST):
        install(APP, skip_prompt=True)
    assert f"refused app={DIGEST}: it is not listed in {file}" in capsys.readouterr().out
    file.write_text(f"# ours\n\n   {'cd' * 32}\n{DIGEST.upper()}  protosphere 0.1.0\n")
    install(APP, skip_prompt=True)
    with pytest.raises(PermissionError):
        install(b"an app, changed")
    assert installed == [(APP, {"skip_prompt": True})]


@pytest.mark.parametrize(
    ("name", "version", "digest", "is_taken"),
    [
        ("pub/app", "1.0.0", DIGEST, True),
        ("pub/app", "1.0.0", "ab" * 32, False),
        ("pub/app", "1.0.0.aa/../../../evil/app", DIGEST, False),
        ("../app", "1.0.0", DIGEST, False),
        ("pub", "app/1.0.0", DIGEST, False),
    ],
)
def test_an_app_that_the_superlink_calls_by_another_s_names_is_refused_where_apps_are_listed(
    tmp_path, name, version, digest, is_taken
):
    run = SimpleNamespace(run_id=3, fab_id=name, fab_version=version)
    task = None, SimpleNamespace(run_config={}), run, SimpleNamespace(hash_str=digest, content=APP)
    assert executor.note_task(lambda client: task, None)(None) == task
    pull = executor.note_task(lambda client: task, tmp_path / "apps.txt")
    if is_taken:
        assert pull(None) == task
    else:
        with pytest.raises(PermissionError, match="is another"):
            pull(None)


def test_a_task_that_is_none_of_a_site_is_refused(tmp_path):
    for allowed, task in ((tmp_path / "apps.txt", TaskType.SERVER_APP), (None, TaskType.SIMULATION)):
        result = TaskExecutor(cold=True, allowed=allowed).launch(spec(task_type=task))
        assert result.status == LaunchResultStatus.FAILED
        assert task in result.message


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ["--insecure"]),
        ({"insecure": False, "root_certificates_path": "ca.crt"}, ["--root-certificates", "ca.crt"]),
    ],
)
def test_a_task_s_process_is_flower_s_program_with_the_token_in_its_memory_alone(monkeypatch, changed, words):
    told = {}
    program = SimpleNamespace(name="flwr-clientapp", load=lambda: lambda: told.update(words=sys.argv))
    monkeypatch.setattr(executor, "entry_points", lambda group, name: [program] if name == program.name else [])
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(executor.ctypes, "CDLL", lambda _: SimpleNamespace(prctl=lambda *_: 0))
    monkeypatch.setattr(run_clientapp, "pull_task_input", run_clientapp.pull_task_input)
    executor.run_task(spec(**changed), None)
    usual = ["flwr-clientapp", "--runtime-api-address", "127.0.0.1:9", "--token", "hush"]
    assert told["words"] == [*usual, *words, "--parent-pid", "1"]
