"""The SuperExec of ours: that Flower has what it replaces, and which tasks and apps a site takes. What a task's process
is: tests/integration/test_deployment.py."""

import hashlib
import inspect
from dataclasses import fields
from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, ExecutorType, TaskType
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


@pytest.fixture
def site(monkeypatch):
    """site(allowed, name, version, digest): the app is taken, or refused, by a site that was sent it by these names."""
    installed = []

    def take(allowed, name="pub/app", version="1.0.0", digest=DIGEST):
        run = SimpleNamespace(run_id=3, fab_id=name, fab_version=version)
        task = None, SimpleNamespace(run_config={"rounds": 2}), run, SimpleNamespace(hash_str=digest)
        monkeypatch.setattr(run_clientapp, "pull_task_input", lambda client: task)
        monkeypatch.setattr(run_clientapp, "install_from_fab", lambda *content, **options: installed.append(content))
        executor.watch_tasks(allowed)
        assert run_clientapp.pull_task_input(None) == task
        run_clientapp.install_from_fab(APP, skip_prompt=True)
        return installed

    return take


def test_an_app_that_is_not_listed_is_refused_by_its_content_and_the_file_is_read_each_time(site, tmp_path, capsys):
    file = tmp_path / "apps.txt"
    file.write_text(f"# {DIGEST}\n\n")
    with pytest.raises(PermissionError, match=DIGEST):
        site(file)
    said = capsys.readouterr().out
    assert said.startswith(f"run=3 app={DIGEST} method=- rounds=2\nrefused app={DIGEST}: it is not listed in {file}")
    file.write_text(f"# ours\n\n   {'cd' * 32}\n{DIGEST.upper()}  protosphere 0.1.0\n")
    assert site(file) == [(APP,)]
    assert len(site(None)) == 2


@pytest.mark.parametrize(
    ("name", "version", "digest"),
    [
        ("pub/app", "1.0.0", "ab" * 32),
        ("pub/app", "1.0.0.aa/../../../evil/app", DIGEST),
        ("../app", "1.0.0", DIGEST),
        ("pub", "app/1.0.0", DIGEST),
    ],
)
def test_an_app_that_the_superlink_calls_by_another_s_names_is_refused_where_apps_are_listed(
    site, tmp_path, name, version, digest
):
    (tmp_path / "apps.txt").write_text(DIGEST)
    with pytest.raises(PermissionError):
        site(tmp_path / "apps.txt", name, version, digest)


def test_a_task_that_is_none_of_a_site_is_refused(tmp_path):
    for allowed, task in ((tmp_path / "apps.txt", TaskType.SERVER_APP), (None, TaskType.SIMULATION)):
        result = TaskExecutor(allowed).launch(spec(task_type=task))
        assert result.status == LaunchResultStatus.FAILED
        assert task in result.message
