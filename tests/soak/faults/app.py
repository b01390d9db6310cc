"""A ClientApp whose train replies fail by plan: the real one's handlers, and what goes wrong around them.

Query and evaluation are the real ones. What an upload may be spoilt by is in tests/wire/test_uploads.py.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from protosphere.client_app import client as client_module
from protosphere.client_app.app import app as honest
from protosphere.core.home import home
from tests.soak.faults import plan as kinds
from tests.soak.faults.journal import Journal, generations
from tests.soak.faults.plan import Plan, from_environment

IN_PROCESS = "PROTOSPHERE_TEST_IN_PROCESS"  # where set, an exit is an exception: others live in this process, too

app = ClientApp()


class PlannedError(Exception):
    """A fault of the plan."""


@app.query()
def query(message: Message, context: Context) -> Message:
    """As ever."""
    return honest(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """As ever."""
    return honest(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train; then fail, or not."""
    plan = from_environment()
    journal = Journal(plan.folder)
    instruction: Any = message.content["config"]
    partition, round_number = int(context.node_config["partition-id"]), int(instruction["round"])
    kind = plan.kind(partition, round_number)
    store = home() / "clients" / str(instruction["run"]) / str(partition)
    received = journal.keep(received=message.content.array_records.get("arrays"))
    held = sorted(generations(store))
    journal.say("begins", partition, round_number, kind=kind, received=received, held=held, pid=os.getpid())
    if kind == kinds.RAISES:
        raise PlannedError(f"client {partition} fails by plan")
    with _in_training(lambda: _fail_in_training(plan, kind, partition, round_number)):
        reply = honest(message, context)
    if reply.has_error():
        return reply
    _send(reply, plan, kind, partition, round_number, store)
    return reply


def _send(reply: Message, plan: Plan, kind: str, partition: int, round_number: int, store: Path) -> None:
    """Say what goes out, or hold it back."""
    journal = Journal(plan.folder)
    records = reply.content
    upload = journal.keep(sent=records.array_records.get("arrays"))
    metrics = dict(records.metric_records.get("metrics") or {})
    losses = {name: value for name, value in metrics.items() if name.startswith("loss.")}
    rows, stores = metrics.get("training.rows", 0), generations(store)
    journal.say("sends", partition, round_number, kind=kind, upload=upload, rows=rows, losses=losses, held=stores)
    if kind == kinds.LATE:
        time.sleep(plan.late)


def _fail_in_training(plan: Plan, kind: str, partition: int, round_number: int) -> None:
    """After the last step, before anything is kept."""
    if plan.is_stall(partition, round_number):
        Journal(plan.folder).say("stalls", partition, round_number, pid=os.getpid())
        plan.wait_for_release()
    if kind == kinds.RAISES_IN_TRAINING or (kind == kinds.EXITS and IN_PROCESS in os.environ):
        raise PlannedError(f"client {partition} fails by plan, in training")
    if kind == kinds.EXITS:
        os._exit(1)


@contextmanager
def _in_training(act: Callable[[], None]) -> Iterator[None]:
    """Let `act` happen at the end of the training that goes on inside."""
    whole = client_module.train

    def entered(*arguments: Any) -> Any:
        figures = whole(*arguments)
        act()
        return figures

    client_module.train = entered
    try:
        yield
    finally:
        client_module.train = whole
