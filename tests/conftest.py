"""What many tests need: a PROTOSPHERE_HOME of their own, and a short quiet run over the in-process grid."""

import gc
import itertools
import json
import os
import re
import signal
from datetime import UTC, datetime, timedelta

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from typer.testing import CliRunner

from deploy import credentials
from protosphere.core.client_names import NAMELESS, use_client_names
from protosphere.launch import grid as local_grid
from protosphere.record.folder import RunFolder
from protosphere.server_app import status
from protosphere.server_app.strategy import PrototypeStrategy
from protosphere.strategies import known_settings
from tests.steps import ONE_EPOCH

# Small and quick: 400 of the digits, narrow features, models without convolutions unless a test asks for others.
QUICK = {"rounds": 2, "max-samples": 400, "feature-dim": 12, "models": "tiny_perceptron", "device": "cpu"} | ONE_EPOCH


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Torch's thread count changes sums, and cores are shared with other work."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def few_collections():
    """What was imported is looked through for garbage once, which took a tenth of the time, the rest more rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    yield
    # or it would be taken for leaked at the end
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def no_sync():
    """No test cuts the power, and waiting for the disk took most of a small run's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_terminal():
    """Output is that of a pipe: pytest-xdist tells its workers the width of a terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        yield


@pytest.fixture(scope="session")
def decoded_cache(tmp_path_factory):
    """Decoded data sets, shared by all tests of a session."""
    return tmp_path_factory.mktemp("cache")


numbers = itertools.count()


@pytest.fixture
def tmp_path(tmp_path_factory, request):
    """As pytest's own, which looks for the next number among the folders of all tests before, a few milliseconds each
    time in the end."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}{next(numbers)}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, decoded_cache):
    """PROTOSPHERE_HOME of one test: no test writes to the user's own, or finds another's results."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "cache").symlink_to(decoded_cache, target_is_directory=True)
    monkeypatch.setenv("PROTOSPHERE_HOME", str(folder))
    return folder


# A suite that was started in the background ignores SIGINT, and all that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def run(home):
    """run({setting: value}, clients=4, workers=1, grid=LocalGrid) -> the run's folder; `run.said` has its lines."""

    def start(settings=None, clients=4, workers=1, grid=local_grid.LocalGrid):
        start.said = []
        config, said = QUICK | (settings or {}), start.said.append
        return local_grid.run_in_process(config, clients=clients, workers=workers, show=said, grid_of=grid)

    start.said = []
    return start


@pytest.fixture
def cut_run(home):
    """A run of six clients in the results folder, cut after its third round."""
    folder = home / "results" / "20260101-000000-local-digits"
    folder.mkdir(parents=True)
    settings = known_settings() | {"strategy": "local", "clients": 6, "rounds": 5, "alpha": 0.5}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "roster.json").write_text(json.dumps([{}] * 6))
    RunFolder(folder).save_checkpoint({}, {"round": 3})
    return folder


@pytest.fixture
def metrics():
    """metrics(folder): a run's lines without what may differ between equal runs."""

    def read(folder):
        return [{name: line[name] for name in line if name != "time"} for line in RunFolder(folder).lines()]

    return read


@pytest.fixture(autouse=True)
def nameless():
    """A test that calls halves of methods without a run's roster finds no names of another test's clients."""
    use_client_names(NAMELESS)


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """Runs leave no report: drawing takes a second each time, and those tests that look at one ask for it."""
    monkeypatch.setattr(status, "leave_report", lambda folder: None)


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures' files are written, but empty: drawing them takes two seconds a page, of whose words a test is."""
    # the check of a GPU runs tests where matplotlib is not installed
    from protosphere.reports import canvas

    monkeypatch.setattr(canvas.Plot, "svg", "<svg></svg>")


@pytest.fixture
def certified(tmp_path):
    """certified(begin, end, host): a folder with an authority and a SuperLink's certificate, valid between so many days
    from now, for `host`; a second call has another authority."""

    def make(begin, end, host="127.0.0.1"):
        folder = tmp_path / f"certified{len(list(tmp_path.glob('certified*')))}"
        for command in (("authority", folder), ("superlink", folder, host)):
            done = CliRunner().invoke(credentials.app, [str(word) for word in command])
            assert done.exit_code == 0, done.output
        old = x509.load_pem_x509_certificate((folder / "superlink.crt").read_bytes())
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        names = x509.SubjectAlternativeName(
            list(old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)[:1]
        )
        builder = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), old.serial_number)
        for extension in old.extensions:
            same = extension.value.oid != names.oid
            builder = builder.add_extension(extension.value if same else names, extension.critical)
        now = datetime.now(UTC)
        builder = builder.not_valid_before(now + timedelta(days=begin)).not_valid_after(now + timedelta(days=end))
        signed = builder.sign(key, hashes.SHA256())
        (folder / "superlink.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return folder

    return make


class CutError(RuntimeError):
    """Stands for whatever ends a process in the middle of a round."""


@pytest.fixture
def cut(run, monkeypatch):
    """cut(settings, method, when): a run that ends when the strategy enters `method` and `when(its arguments)`."""

    def start(settings, method, when):
        whole = getattr(PrototypeStrategy, method)

        def entered(*arguments):
            if when(*arguments):
                raise CutError
            return whole(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(PrototypeStrategy, method, entered)
            with pytest.raises(CutError):
                run(settings)

    return start
