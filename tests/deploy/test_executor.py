"""The SuperExec of ours: that Flower has what it replaces, what it refuses, and what the process of a task runs."""

import hashlib
import inspect
import sys
from dataclasses import fields
from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, ExecutorType, TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus, SubprocessExecutor, get_executor
from flwr.supernode.runtime import run_clientapp

from deploy import executor
from deploy.executor import TaskExecutor, read_digests

DIGEST = "ab" * 32


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


def test_the_file_of_digests_may_have_comments_and_names(tmp_path):
    file = tmp_path / "apps.txt"
    file.write_text(f"# ours\n{DIGEST.upper()}  protosphere 0.1.0\n\n   {'cd' * 32}\n")
    assert read_digests(file) == {DIGEST, "cd" * 32}


def test_an_app_that_is_not_listed_is_refused_by_its_content_and_the_file_is_read_each_time(tmp_path, capsys):
    file, installed = tmp_path / "apps.txt", []
    file.write_text("")
    install = executor.refuse_unlisted(lambda content, **options: installed.append((content, options)), file)
    digest = hashlib.sha256(b"an app").hexdigest()
    with pytest.raises(PermissionError, match=digest):
        install(b"an app", skip_prompt=True)
    assert f"refused app={digest}: it is not listed in {file}" in capsys.readouterr().out
    file.write_text(digest)
    install(b"an app", skip_prompt=True)
    with pytest.raises(PermissionError):
        install(b"an app, changed")
    assert installed == [(b"an app", {"skip_prompt": True})]
    executor.refuse_unlisted(lambda content: installed.append(content), None)(b"any")
    assert installed[1:] == [b"any"]


@pytest.mark.parametrize(
    ("name", "version", "digest", "is_taken"),
    [
        ("pub/app", "1.0.0", hashlib.sha256(b"an app").hexdigest(), True),
        ("pub/app", "1.0.0", DIGEST, False),
        ("pub/app", "1.0.0.aa/../../../evil/app", hashlib.sha256(b"an app").hexdigest(), False),
        ("../app", "1.0.0", hashlib.sha256(b"an app").hexdigest(), False),
    ],
)
def test_an_app_that_the_superlink_calls_by_another_s_names_is_refused_where_apps_are_listed(
    tmp_path, name, version, digest, is_taken
):
    run = SimpleNamespace(run_id=3, fab_id=name, fab_version=version)
    task = None, SimpleNamespace(run_config={}), run, SimpleNamespace(hash_str=digest, content=b"an app")
    assert executor.note_task(lambda client: task, None)(None) is not None
    pull = executor.note_task(lambda client: task, tmp_path / "apps.txt")
    if is_taken:
        assert pull(None) == task
    else:
        with pytest.raises(PermissionError, match="is another"):
            pull(None)


def test_processes_have_less_time_to_end_than_flower_gives_the_superexec():
    from flwr.supercore.constant import FORCE_EXIT_TIMEOUT_SECONDS

    assert executor.ENDING < FORCE_EXIT_TIMEOUT_SECONDS


def test_a_task_that_is_none_of_a_site_is_refused(tmp_path):
    listed = TaskExecutor(cold=True, allowed=tmp_path / "apps.txt")
    assert listed.launch(spec(task_type=TaskType.SERVER_APP)).status == LaunchResultStatus.FAILED
    result = TaskExecutor(cold=True, allowed=None).launch(spec(task_type=TaskType.SIMULATION))
    assert result.status == LaunchResultStatus.FAILED
    assert "flwr-simulation" in result.message


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ["--insecure"]),
        ({"insecure": False, "root_certificates_path": "ca.crt"}, ["--root-certificates", "ca.crt"]),
    ],
)
def test_a_task_s_process_is_flower_s_program_with_the_token_in_its_memory_alone(monkeypatch, changed, words):
    told = {}

    class Program:
        name = "flwr-clientapp"

        def load(self):
            return lambda: told.update(words=sys.argv)

    monkeypatch.setattr(executor, "entry_points", lambda group, name: [Program()] if name == "flwr-clientapp" else [])
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(executor.ctypes, "CDLL", lambda _: type("C", (), {"prctl": staticmethod(lambda *_: 0)}))
    for name in ("pull_task_input", "install_from_fab"):
        monkeypatch.setattr(run_clientapp, name, getattr(run_clientapp, name))
    executor.run_task(spec(**changed), None)
    usual = ["flwr-clientapp", "--runtime-api-address", "127.0.0.1:9", "--token", "hush"]
    assert told["words"] == [*usual, *words, "--parent-pid", "1"]
