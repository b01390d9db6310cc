"""`make deploy-demo`: a SuperLink and three sites as real processes on this machine, with TLS and node authentication,
over gRPC (Flower 1.39) or HTTPS (1.40 and newer); each site has its own images and its own architecture. Five rounds,
then everything is stopped."""

import shlex
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from deploy.demo_data import write_sites
from deploy.deployment import CONNECTION, Deployment, Site
from protosphere.core.flower import fleet_transport
from protosphere.core.home import home
from protosphere.launch.connection import FlowerError
from protosphere.launch.guardian import guarded
from protosphere.launch.processes import Family, Interrupted, interruptible

MODELS = ("tiny_cnn", "resnet8", "tiny_perceptron")
SETTINGS = 'rounds=5 dataset="digits-of-three-sites" start-timeout=120.0 round-timeout=120.0'
LEFT_BEHIND = 3
PATIENCE = 20.0  # seconds


def main(extra: str) -> int:
    """Run the demo with more settings; its exit code: 0, or 1 when a part failed, or 128 + n on signal n."""
    folder = home().absolute() / "deploy-demo"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock", timeout=0):
            return _guarded(folder, extra)
    except Timeout:
        print(f"another deployment demo is running in {folder}; wait for its end.", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"the demo cannot use {folder} ({error}); set PROTOSPHERE_HOME to another folder.",
            file=sys.stderr,
        )
        return 1


def _guarded(folder: Path, extra: str) -> int:
    shutil.rmtree(folder, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix="protosphere-"))
    code, left = 1, 0
    try:
        with interruptible() as deafen, guarded(scratch) as tell:
            roots = write_sites(folder / "data", len(MODELS))
            sites = [
                Site(i, {"data": str(root), "model": model, "device": "cpu"})
                for i, (root, model) in enumerate(zip(roots, MODELS, strict=True))
            ]
            deployment = Deployment(folder, sites, tell)
            family = Family(tell)
            try:
                over = {"grpc": "gRPC", "http": "HTTPS"}[fleet_transport()]
                _say(f"credentials, a SuperLink and {len(sites)} SuperNodes over {over}, all of it in {folder}")
                if over == "HTTPS":
                    _say("on loopback; elsewhere nginx stands before the SuperLink: deploy/nginx/protosphere-gate.conf")
                deployment.start()
                code = _run(deployment, family, extra)
            except FlowerError as error:
                print(f"{error}\nlogs: {folder}", file=sys.stderr)
            except Interrupted as signal:
                _say(f"{signal.name}: stopping")
                code = 128 + signal.number
            finally:
                deafen()
                # the front door stops its run first; nothing else may end under it
                family.stop(PATIENCE)
                deployment.stop()
                left = sum(map(len, (family.members(), deployment.members())))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if left:
        print(f"{left} processes could not be ended.", file=sys.stderr)
        return LEFT_BEHIND
    _say("stopped: SuperLink and SuperNodes, and all that they started")
    if code == 0:
        _show_predict(folder)
    return code


def _run(deployment: Deployment, family: Family, extra: str) -> int:
    command = [sys.executable, "-m", "protosphere.cli.main", "run", "--superlink", CONNECTION]
    given = [SETTINGS, *([extra] if extra else [])]
    words = [word for text in given for word in ("-c", text)] + ["--results", str(home().absolute() / "results")]
    _say(f"FLWR_HOME={deployment.config} protosphere {shlex.join([*command[3:], *words])}")
    run = family.start([*command, *words], cwd=Path(__file__).resolve().parents[1], env=deployment.environment)
    return run.wait()


def _show_predict(folder: Path) -> None:
    """How a site uses what it has trained."""
    with suppress(StopIteration):
        state = next((folder / "site-0" / "state" / "clients").glob("*/0"))
        image = next((folder / "data" / "site-0" / "train").rglob("*.png"))
        _say(f"a site uses its model:\n  protosphere predict --state {state} {image}")


def _say(words: str) -> None:
    # whoever reads may have gone
    with suppress(OSError):
        print(f"== {words}", flush=True)


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
