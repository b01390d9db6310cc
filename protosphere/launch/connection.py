"""The `flwr` commands that talk to a SuperLink: submit a run, follow its log, ask how it ended, stop it."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from protosphere.core.flower import QUIET, has_finished, has_succeeded, refusal, run_status, started_run
from protosphere.core.settings import Scalar, nearest
from protosphere.launch.processes import Family, import_path
from protosphere.launch.reachability import connections, flower_home, obstacle, renewal

SILENCE = 120.0  # seconds without a line of the stream until we ask whether the run is over
ANSWER_PATIENCE = 30.0  # seconds, here and below
STATUS_PATIENCE = 30.0
# an overloaded machine takes half a minute to start `flwr`, not two seconds
LOOK_PATIENCE = 60.0
LOOKS = 3
STOP_PATIENCE = 10.0
STOP_RUN_PATIENCE = 30.0


class FlowerError(RuntimeError):
    """Flower could not be started or did not answer; the message is one sentence for a person."""


class Connection:
    """A SuperLink that somebody runs, by the name of its connection in Flower's configuration.

    Args:
        scratch: a folder of our own.
        tell: who hears of every process that is started, as in `Family`.
        name: of the connection, `[superlink.<name>]` in the config.toml of FLWR_HOME.
    """

    def __init__(self, scratch: Path, tell: int = subprocess.DEVNULL, name: str = ""):
        self._scratch = scratch
        self._family = Family(tell)
        self._name = name
        self._run_id = ""
        # the run is ours to stop: it is on, as far as we know, and the SuperLink is there to be told
        self._is_on = False
        self._environment = flower_environment()
        self.notice = ""  # what whoever runs it should know of the SuperLink, in a sentence

    @property
    def flower_run(self) -> str:
        """The number that the SuperLink gave the run; empty as long as it has not taken it."""
        return self._run_id

    def start(self) -> None:
        """See that it answers.

        Raises:
            FlowerError: there is no such connection, or nobody answers, and why.
        """
        entries, place = connections(), flower_home() / "config.toml"
        if self._name not in entries:
            raise FlowerError(
                f"there is no connection `{self._name}` in {place}{nearest(self._name, entries)}; it names "
                f"{', '.join(entries) or 'none'}, and docs/deployment.md shows one."
            )
        (self._scratch / "cwd").mkdir(exist_ok=True)
        answer = self._flwr(["ls", self._name, "--format", "json"], ANSWER_PATIENCE)
        if has_succeeded(answer):
            self.notice = renewal(entries[self._name])
            return
        reason = obstacle(entries[self._name]) or refusal(answer) or "no answer"
        raise FlowerError(
            f"the SuperLink of the connection `{self._name}` cannot be used: {reason}; docs/deployment.md has what to "
            f"do, and {place} the connection."
        )

    def run(
        self, app: Path, run_config: Mapping[str, Scalar], hear: Callable[[str], None], federation: str = ""
    ) -> None:
        """Submit the app and pass on its log, line by line, until the run has ended.

        Args:
            federation: Flower's `--federation-config`, of a simulation.

        Raises:
            FlowerError: the run was refused, in Flower's words.
        """
        settings = self._scratch / "settings.toml"
        settings.write_text(as_toml(run_config), encoding="utf-8")
        options = ["--stream", "-c", str(settings)]
        if federation:
            options += ["--federation-config", federation]
        client = self._family.start(
            [find_executable("flwr"), "run", str(app), self._name, *options],
            cwd=self._scratch / "cwd",
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        lines = []
        heard = threading.Event()
        threading.Thread(target=self._end_over, args=(client, heard), daemon=True).start()
        assert client.stdout is not None
        for line in client.stdout:
            heard.set()
            hear(line)
            if not self._run_id and (number := started_run(line)):
                self._run_id, self._is_on = number, True
            if not self._run_id:
                lines.append(line)
        client.wait()
        # it looks up, and sees that there is nothing more to wait for
        heard.set()
        if not self._run_id:
            reason = refusal("".join(lines)) or f"`flwr run` ended with exit code {client.returncode}"
            raise FlowerError(f"Flower did not start the run: {reason}.")

    def _end_over(self, client: "subprocess.Popen[str]", heard: threading.Event) -> None:
        """End the stream of a run that is over. Flower waits for ever on a connection that was dropped without a word,
        as routers do with those that are silent."""
        while client.poll() is None:
            if heard.wait(SILENCE):
                heard.clear()
                # not one look a line
                time.sleep(min(1.0, SILENCE))
            elif client.poll() is not None:
                # the stream ended while we waited, and with it perhaps all that a look takes
                return
            elif self._run_id and has_finished(self._look()[0]) and not heard.wait(SILENCE / 10):
                client.terminate()
                return

    def status(self) -> tuple[str, str]:
        """The run's final status, such as `finished:failed`, and what Flower says about it (may be empty).

        Raises:
            FlowerError: the SuperLink does not answer, or the run has not ended.
        """
        deadline = time.monotonic() + STATUS_PATIENCE
        status, looks = "unknown", 0
        while looks < LOOKS or time.monotonic() < deadline:
            status, details = self._look()
            looks += 1
            if has_finished(status):
                self._is_on = False
                return status, details
            self._refuse_ended()
            time.sleep(0.5)
        # what only we lost sight of is not ours to stop
        self._is_on = False
        raise FlowerError(self._describe_lost(status))

    def stop(self) -> str:
        """Stop the run if it is still on, then whatever we started for it.

        Returns:
            The command that stops the run, where it could not be stopped; else nothing.
        """
        stop_command = "" if self._stop_run(STOP_RUN_PATIENCE) else f"flwr stop {self._run_id} {self._name}"
        self._family.stop(STOP_PATIENCE)
        return stop_command

    def _stop_run(self, patience: float) -> bool:
        """Whether the run is no longer on, or not ours to stop."""
        if self._is_on:
            answer = self._flwr(["stop", self._run_id, self._name, "--format", "json"], patience)
            # it may have ended by itself just now
            self._is_on = not has_succeeded(answer) and not has_finished(self._look(patience)[0])
        return not self._is_on

    def _look(self, patience: float = LOOK_PATIENCE) -> tuple[str, str]:
        """The run's status and what Flower says about it; `unknown` when nobody answers."""
        answer = self._flwr(["ls", self._name, "--run-id", self._run_id, "--format", "json"], patience)
        return run_status(answer)

    def _describe_lost(self, status: str) -> str:
        """What may be the matter when the stream has ended and the run has not, in words for a person."""
        sign = "the SuperLink does not answer any more"
        if status != "unknown":
            sign = f"the log of the run ended, but Flower still calls it {status}"
        return (
            f"{sign}. If only this connection broke, the run goes on: `flwr log {self._run_id} {self._name}` follows "
            f"it, `flwr stop {self._run_id} {self._name}` ends it. Otherwise it is lost except for its last "
            "checkpoint: "
            "resume it if the log shows a finished round."
        )

    def _refuse_ended(self) -> None:
        """Raise FlowerError where it is known that the SuperLink is no more."""

    def _flwr(self, arguments: list[str], patience: float) -> str:
        """What `flwr` prints; empty when it takes too long."""
        command = self._family.start(
            [find_executable("flwr"), *arguments],
            cwd=self._scratch / "cwd",
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            return command.communicate(timeout=patience)[0]
        except subprocess.TimeoutExpired:
            command.kill()
            return ""


def find_executable(name: str) -> str:
    """The path of a command of Flower's: beside this Python (its environment need not be active), or on PATH.

    Raises:
        FlowerError: there is none.
    """
    path_in_environment = shutil.which(name, path=str(Path(sys.executable).parent))
    path = path_in_environment or shutil.which(name)
    if not path:
        raise FlowerError(f"`{name}` is neither beside {sys.executable} nor on PATH; install Protosphere with pip.")
    return path


def as_toml(run_config: Mapping[str, Scalar]) -> str:
    """Settings as a TOML document; the dots of a name stand for tables, as Flower reads them."""
    return "".join(f"{_key(name)} = {toml_value(value)}\n" for name, value in run_config.items())


def flower_environment() -> dict[str, str]:
    """The environment for Flower's commands, which find each other by name: no telemetry, no question of updates, lines
    that are not broken, no proxy to this machine."""
    environment = dict(os.environ)
    direct = environment.get("no_proxy") or environment.get("NO_PROXY")
    direct = ",".join(filter(None, (direct, "127.0.0.1,localhost")))
    path = os.pathsep.join(filter(None, (str(Path(sys.executable).parent), environment.get("PATH"))))
    return environment | {
        **QUIET,
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": import_path(),
        "PATH": path,
        "no_proxy": direct,
        "NO_PROXY": direct,
    }


def _key(name: str) -> str:
    return ".".join(toml_value(part) for part in name.split("."))


def toml_value(value: Scalar) -> str:
    # JSON's forms are TOML's but for the one control character that JSON leaves as it is
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
