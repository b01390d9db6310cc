"""Clients that answer as a test tells them to, on a clock that moves only when the server sleeps."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Error, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.serverapp import Grid

from protosphere.launch.grid import LocalGrid
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.record.folder import RunFolder
from protosphere.server_app import exchange as exchange_module
from protosphere.server_app.strategy import PrototypeStrategy
from protosphere.strategies import known_settings, read_settings
from protosphere.wire.arrays import Limits
from protosphere.wire.messages import decode_instruction, encode_identity, encode_report
from protosphere.wire.parts import Exchange, Part
from protosphere.wire.payloads import Evaluation, Identity, Report, TrainingFigures
from tests.payloads import payload

CLASSES, DIM = 4, 3
OF_THE_RUN = "of the run"  # in place of the digest of settings that the run has


class Clock:
    """Stands in for the module `time` where the server waits."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class ScriptedGrid(Grid):
    """Asks `answer(partition, message)` when a message is pushed. It gives records, an Error, None for silence, or a
    pair (seconds until the reply arrives, one of those)."""

    simulated = False

    def __init__(self, answer, nodes, clock):
        LocalGrid({}, [])  # gives this process the identity without which Flower builds no message
        self.answer = answer
        self.nodes = nodes
        self.clock = clock
        self.sent = []
        self._ids = map("message-{}".format, itertools.count())
        self._due = []

    def push_messages(self, messages):
        return [self._take(message) for message in messages]

    def _take(self, message):
        self.sent.append(message)
        partition = next(p for p, node in self.nodes.items() if node == message.metadata.dst_node_id)
        answer = self.answer(partition, message)
        after, content = answer if isinstance(answer, tuple) else (0.0, answer)
        message_id = next(self._ids)
        if content is not None:
            self._due.append((self.clock.now + after, message_id, _reply(message, message_id, content)))
        return message_id

    def pull_messages(self, message_ids):
        wanted = set(message_ids)
        assert all(isinstance(message_id, str) for message_id in wanted), "Flower takes text alone"
        due = [entry for entry in self._due if entry[0] <= self.clock.now and entry[1] in wanted]
        self._due = [entry for entry in self._due if entry not in due]
        return [reply for _, _, reply in sorted(due, key=lambda entry: entry[0])]

    def get_node_ids(self):
        return list(self.nodes.values())

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("the server waits by itself")

    def create_message(self, *args, **kwargs):
        raise AssertionError("deprecated")

    def set_run(self, run):
        """Nothing to set."""

    @property
    def run(self):
        raise AssertionError("the server needs no run of Flower's")


def _reply(message, message_id, content):
    asked = message.metadata
    # Flower answers with errors of its own from node 1, in the name of nobody
    source = 1 if isinstance(content, Error) and content.code in (3, 5) else asked.dst_node_id
    metadata = Metadata(
        run_id=asked.run_id,
        message_id=f"reply-to-{message_id}",
        src_node_id=source,
        dst_node_id=asked.src_node_id,
        reply_to_message_id=message_id,
        group_id="",
        created_at=asked.created_at,
        ttl=asked.ttl,
        message_type=asked.message_type,
    )
    return Message(metadata=metadata, **{"error" if isinstance(content, Error) else "content": content})


class Federation:
    """Clients without models: uploads, losses and accuracies are drawn from (partition, round).

    Args:
        tamper: tamper(partition, round, message type, Report) -> what is answered in its place (see ScriptedGrid; a
            Report is encoded).
        rows: partition -> (training, validation, test) rows.
        held: partition -> classes that it uploads.
        dim: d. dtype: in which prototypes cross, and the server's unless `start` is given other settings.
    """

    def __init__(self, clock, clients=4, tamper=None, rows=None, held=None, dim=DIM, dtype="float32"):
        self.clients = clients
        self.tamper = tamper or (lambda partition, round_number, kind, report: report)
        self.rows = rows or dict.fromkeys(range(clients), (20, 4, 6))
        self.dim = dim
        self.dtype = dtype
        self.parts = (Part("prototypes", dtype=dtype),)
        self.held = held or {p: tuple(range(CLASSES)) for p in range(clients)}
        self.identities = {p: self._identity(p) for p in range(clients)}
        self.asked = []  # (partition, round, message type, Instruction), in the order of sending
        nodes = {p: 10_000 + 7919 * ((5 * p + 2) % 101) for p in range(clients)}
        self.grid = ScriptedGrid(self._answer, nodes, clock)

    def _identity(self, partition):
        rows = self.rows[partition]
        return Identity(
            partition=partition,
            partitions=self.clients,
            model="scripted",
            parameters=7,
            feature_dim=self.dim,
            class_names=tuple("abcdefghij"[:CLASSES]),
            classes=self.held[partition] if rows[0] else (),
            rows=rows,
            discloses=("nothing true",),
            settings=OF_THE_RUN,
        )

    def _answer(self, partition, message):
        kind = message.metadata.message_type
        if kind == "query":
            return encode_identity(self.identities[partition])
        exchange = Exchange(self.parts, self.parts)
        instruction = decode_instruction(
            message.content, exchange, CLASSES, self.dim, Limits(1e6), trains=kind == "train"
        )
        self.asked.append((partition, instruction.round, kind, instruction))
        report = self.report(partition, instruction.round, kind)
        answer = self.tamper(partition, instruction.round, kind, report)
        after, content = answer if isinstance(answer, tuple) else (0.0, answer)
        return after, encode_report(content, self.parts) if isinstance(content, Report) else content

    def report(self, partition, round_number, kind):
        """What an honest client says."""
        rng = np.random.default_rng([partition, round_number, int(kind == "train")])
        report = Report(partition, round_number, seconds=0.5)
        if kind == "evaluate":
            _, validation, test = self.rows[partition]
            right = (int(rng.integers(test + 1)), int(rng.integers(validation + 1)))
            correct = {"local-prototypes": right, "majority-class": (test // 2, validation // 2)}
            return replace(report, evaluation=Evaluation((test, validation), correct, 0.1))
        training = TrainingFigures(self.rows[partition][0], 2, {"cross-entropy": rng.random(), "loss": rng.random()})
        return replace(report, training=training, payload=payload(self.upload(partition, round_number)))

    def upload(self, partition, round_number):
        """Its prototypes of that round."""
        rng = np.random.default_rng([partition, round_number, 2])
        vectors = rng.standard_normal((len(self.held[partition]), self.dim)).astype(np.float32)
        return PrototypeSet(torch.tensor(self.held[partition]), torch.from_numpy(vectors))

    def start(self, settings=None, on_round=None, **arguments):
        """A run with these clients; gives the strategy (`.result` is Flower's) or raises what it raises."""
        config = known_settings() | {
            "strategy": "fedproto",
            "rounds": 3,
            "feature-dim": self.dim,
            "clients": self.clients,
        }
        config |= {"wire-dtype": self.dtype, "start-timeout": 2.0}
        config |= settings or {}
        run = read_settings(config)
        for partition, identity in self.identities.items():
            if identity.settings == OF_THE_RUN:
                self.identities[partition] = replace(identity, settings=run.digest)
        opened = RunFolder.resume if run.settings.resume else RunFolder.create
        self.strategy = PrototypeStrategy(run, opened(run.settings, config), on_round)
        self.strategy.result = self.strategy.start(self.grid, **arguments)
        return self.strategy


@pytest.fixture
def clock(monkeypatch):
    """The clock on which scripted clients answer and the server waits."""
    clock = Clock()
    monkeypatch.setattr(exchange_module, "time", clock)
    return clock


@pytest.fixture
def federation(clock):
    """federation(clients=4, tamper=..., rows=..., held=..., dim=..., dtype=...) -> Federation."""
    return lambda *args, **kwargs: Federation(clock, *args, **kwargs)


@pytest.fixture
def scripted(clock):
    """scripted(answer, partitions) -> ScriptedGrid, its nodes numbered 100 and up."""
    return lambda answer, partitions: ScriptedGrid(answer, {p: 100 + p for p in partitions}, clock)


@pytest.fixture
def ask(scripted, clock):
    """ask(answers, trains=True, **how) -> the replies of round 5; answers: partition -> answer (see ScriptedGrid; a
    Report is encoded). `ask.took` has the seconds."""
    agreed = {"parts": (Part("prototypes"),), "num_classes": CLASSES, "dim": DIM, "max_norm": 1e6}

    def start(answers, trains=True, **how):
        def encode(content):
            return encode_report(content) if isinstance(content, Report) else content

        def answer(partition, message):
            given = answers[partition]
            return (given[0], encode(given[1])) if isinstance(given, tuple) else encode(given)

        start.grid = scripted(answer, answers)
        messages = [Message(RecordDict(), start.grid.nodes[p], "train" if trains else "evaluate") for p in answers]
        waits = {"min_replies": 0, "timeout": 600.0}
        waits |= {name: how.pop(name) for name in list(how) if name in waits}
        context = exchange_module.ReplyContext(5, **(agreed | {"trains": trains} | how))
        began = clock.now
        replies = exchange_module.exchange(start.grid, messages, list(answers), context, **waits)
        start.took = clock.now - began
        return replies

    return start


@pytest.fixture
def halves():
    """halves(settings, num_classes, dim) -> both halves of a method, as a run would make them."""

    def make(settings, num_classes, dim):
        config = known_settings() | {"feature-dim": dim} | settings
        run = read_settings(config)
        server = run.method.server(run.settings, run.options)
        server.num_classes, server.dim = num_classes, dim
        objective = run.method.objective(run.settings, run.options, num_classes)
        return SimpleNamespace(server=server, objective=objective, run=run)

    return make


@pytest.fixture
def say(caplog):
    """The run's lines so far."""
    caplog.set_level("INFO", logger="protosphere")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "protosphere"]


@pytest.fixture
def script():
    """`Grid`: the class of a script's grids."""
    return SimpleNamespace(Grid=ScriptedGrid)
