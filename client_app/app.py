"""The Flower ClientApp: decode, call, encode."""

import time
import traceback
from collections.abc import Callable
from dataclasses import replace

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app.client import USER_ERRORS, Client
from federation.codec import CodecError
from federation.messages import decode_instruction, encode_identity, encode_report
from federation.payloads import Identity, Instruction, Report
from federation.seeds import limited_threads
from strategies import read_settings

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Who are you? Asked once, before training."""
    try:
        with limited_threads(read_settings(context.run_config).settings.threads):
            identity = Client(context).identity()
    except Exception as error:
        # a defect, too, has to reach the person who waits for this client; its traceback goes to this process's log
        if not isinstance(error, USER_ERRORS):
            traceback.print_exc()
        sentence = str(error) if isinstance(error, USER_ERRORS) else f"{type(error).__name__}: {error}"
        problem = f"client {context.node_config.get('partition-id')}: {sentence}"
        identity = Identity(_partition(context), 0, problem=problem)
    return Message(encode_identity(identity), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Evaluate on arrival, train, upload."""
    return _answer(message, context, Client.train)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate only."""
    return _answer(message, context, Client.evaluate)


def _answer(message: Message, context: Context, act: Callable[[Client, Instruction], Report]) -> Message:
    began = time.perf_counter()
    client = Client(context)
    instruction = decode_instruction(message.content, client.limits())
    try:
        with limited_threads(client.settings.threads):
            report = act(client, instruction)
    except USER_ERRORS as error:
        report = Report(client.partition, instruction.round, problem=f"client {client.partition}: {error}")
    report = replace(report, seconds=time.perf_counter() - began)
    try:
        records = encode_report(report, client.codec)
    except CodecError as error:
        # what was trained is kept; only the upload is missing
        report = replace(report, payload=None, problem=f"client {client.partition}: {error}")
        records = encode_report(report, client.codec)
    return Message(records, reply_to=message)


def _partition(context: Context) -> int:
    partition = context.node_config.get("partition-id", -1)
    return partition if type(partition) is int else -1
