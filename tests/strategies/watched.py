"""A tiny run with an ear on the wire and on both halves behind it: what the contract's properties are read from."""

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from protosphere.client_app import client as client_module
from protosphere.client_app.client import Client
from protosphere.launch.grid import LocalGrid, run_in_process
from protosphere.record.folder import RunFolder
from protosphere.server_app.strategy import PrototypeStrategy
from protosphere.strategies import read_settings
from tests.device import PLACE
from tests.steps import ONE_EPOCH
from tests.strategies.sets import same_state

CLASSES, DIM, CLIENTS = 6, 7, 3  # of the spiral
SMALL = {"dataset": "spiral", "spiral-points": 30, "models": "tiny_perceptron", "feature-dim": DIM} | PLACE
SMALL |= ONE_EPOCH


def start(settings, clients=CLIENTS, workers=1, grid=LocalGrid):
    return run_in_process(SMALL | settings, clients=clients, workers=workers, show=lambda line: None, grid_of=grid)


@dataclass
class Seen:
    """What a run showed. `made`, `took` and `came` by (partition, round): uploads as trained, uploads as the method
    took them, downloads as the clients took them; `sent` by (partition, round, whether it trains): as the server made
    them; `records` and `arrays`: the names of all that crossed, down and up; `said`: partition -> what it discloses."""

    folder: Any = None
    made: dict = field(default_factory=dict)
    took: dict = field(default_factory=dict)
    sent: dict = field(default_factory=dict)
    came: dict = field(default_factory=dict)
    records: dict = field(default_factory=lambda: {"down": set(), "up": set()})
    arrays: dict = field(default_factory=lambda: {"down": set(), "up": set()})
    said: dict = field(default_factory=dict)

    def lines(self):
        return without_time(self.folder)


def without_time(folder):
    return [{name: value for name, value in line.items() if name != "time"} for line in RunFolder(folder).lines()]


def copy_run(folder, name):
    """A copy of a run's folder, and of its clients', below its home; such as what is on the disk where a server is
    killed."""
    home, copy = folder.parents[1], folder.parents[1] / name
    for part in (f"results/{folder.name}", f"clients/{folder.name}"):
        shutil.rmtree(copy / part, ignore_errors=True)
        shutil.copytree(home / part, copy / part)
    return copy / "results" / folder.name


@contextmanager
def cut_in(number, after_evaluation=False):
    """Inside, a run has beside it, as "cut", what is on the disk when the clients of this round have trained, or before
    its line is written: as where the server is killed then."""
    name = "_finish_round" if after_evaluation else "_aggregate"
    inner = getattr(PrototypeStrategy, name)

    def step(self, first, second):
        if (first["round"] if after_evaluation else first) == number:
            copy_run(self.folder.path, "cut")
        return inner(self, first, second)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrototypeStrategy, name, step)
        yield


def put_back(folder, name):
    """The copy in the place of the run, of which this process remembers nothing."""
    for part in (f"results/{folder.name}", f"clients/{folder.name}"):
        shutil.rmtree(folder.parents[1] / part)
        shutil.copytree(folder.parents[1] / name / part, folder.parents[1] / part)
    client_module._states.clear()


def watched(settings, seen, grid=LocalGrid):
    """A run with an ear on the wire, and on both halves behind it."""

    class Ear(grid):
        def push_messages(self, messages):
            messages = list(messages)
            for message in messages:
                self._heard("down", message.content)
            return super().push_messages(messages)

        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            for reply in replies:
                assert reply.has_content(), reply.error
                self._heard("up", reply.content)
                identity = reply.content["config"]
                if "discloses" in identity:
                    seen.said[identity["partition"]] = list(identity["discloses"])
            return replies

        def _heard(self, way, records):
            seen.records[way] |= set(records)
            seen.arrays[way] |= set(records.get("arrays", ()))

    run = read_settings(settings)
    halves, whole_train, whole_evaluate = run.method.server, Client.train, Client.evaluate
    whole_messages = PrototypeStrategy._messages

    def train(self, instruction):
        seen.came[self.partition, instruction.round, True] = instruction.payload
        report = whole_train(self, instruction)
        assert not report.problem
        seen.made[self.partition, report.round] = report.payload
        return report

    def evaluate(self, instruction):
        seen.came[self.partition, instruction.round, False] = instruction.payload
        return whole_evaluate(self, instruction)

    def messages(self, partitions, kind, server_round, is_last):
        for partition in partitions:
            trains = kind == "train"
            downloads = self.state.downloads
            key = self.half.download(partition, downloads, self.state.method, server_round + (not trains), trains)
            has = self.state.held_downloads is not None and self.state.held_downloads.has_newest(partition)
            seen.sent[partition, server_round, trains] = None if has else downloads.get(key)
        return whole_messages(self, partitions, kind, server_round, is_last)

    def aggregate(self, uploads, state, server_round):
        seen.took.update({(partition, server_round): upload for partition, upload in uploads.items()})
        before = {name: tensor.clone() for name, tensor in state.items()}
        outcome = whole_aggregate(self, uploads, state, server_round)
        # a round that fails is tried again from it
        assert same_state(state, before), "the state that a method is given stays as it is"
        return outcome

    whole_aggregate = halves.aggregate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "train", train)
        patch.setattr(Client, "evaluate", evaluate)
        patch.setattr(PrototypeStrategy, "_messages", messages)
        patch.setattr(halves, "aggregate", aggregate)
        seen.folder = start(settings, grid=Ear)
    return seen


class Reversed(LocalGrid):
    """Nodes, and so replies, in another order."""

    def get_node_ids(self):
        return super().get_node_ids()[::-1]
