"""The product's ClientApp with a clock around its parts; Flower imports this module in a new process a message."""

import time
from importlib import import_module
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from probe.clock import Stopwatch, note, process_start

Moment = tuple[float, float]


def now() -> Moment:
    """Wall clock and this process's processor seconds."""
    return time.time(), time.process_time()


BEGAN = now()
import_module("torch")
TORCH = now()
product = import_module("protosphere.client_app.app")
OURS = now()

stopwatch = Stopwatch()
app = ClientApp()


def watch(owner: Any, name: str, part: str) -> None:
    """Put a function of the product under the clock."""
    setattr(owner, name, stopwatch.timed(part, getattr(owner, name)))


client = import_module("protosphere.client_app.client")
watch(client.Client, "__init__", "settings and data")
watch(client, "new_state", "model")
for step in ("newest_before", "load_into", "save", "save_received", "describe"):
    watch(client.Store, step, "store")
watch(client, "evaluate", "evaluation")
watch(client, "train", "training")
watch(product, "decode_instruction", "messages")
watch(product, "encode_report", "messages")


@app.query()
def query(message: Message, context: Context) -> Message:
    return answered(product.query, message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    return answered(product.train, message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return answered(product.evaluate, message, context)


def answered(handler: Any, message: Message, context: Context) -> Message:
    """The handler's reply; what it took is noted."""
    began = now()
    reply: Message = stopwatch.timed("the rest", handler)(message, context)
    note(
        what="client",
        message=message.metadata.message_id,
        start=(process_start(), 0.0),
        flower=BEGAN,
        torch=TORCH,
        ours=OURS,
        began=began,
        ended=now(),
        parts=stopwatch.seconds,
    )
    return reply
