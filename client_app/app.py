"""The Flower ClientApp: decode a message, let the client answer it, encode the reply.

Errors leave it only in the words of public_errors.py.
"""

import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from protosphere.client_app.client import Client
from protosphere.client_app.private_client import PrivateClient
from protosphere.client_app.public_errors import KNOWN, USER_ERRORS, private_words, public_words
from protosphere.client_app.site import run_of, simulated, site_name
from protosphere.core.flower import APP_RAISED
from protosphere.core.home import OTHER_HOME, OtherHomeError, home
from protosphere.core.lru_cache import Recent
from protosphere.core.seeds import limited_threads
from protosphere.core.startup import end_at_once
from protosphere.data.client_data import size_in_bytes
from protosphere.strategies import unpacked
from protosphere.strategies.user_method import FAILED, MethodError, in_method
from protosphere.wire.checks import SETTINGS, CodecError
from protosphere.wire.messages import decode_instruction, encode_identity, encode_report
from protosphere.wire.payloads import Identity, Report

MOST_BYTES = 2**30  # of client data that a process keeps between messages

# A client's settings, data and model are loaded once per process and run, not for every message.
_clients: Recent[Client] = Recent(lambda client: size_in_bytes(client.data))

app = ClientApp()
end_at_once()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Return the client's identity. Called once, before training."""
    context = _add_settings(message, context)
    try:
        with limited_threads(run_of(context).settings.threads):
            client = _client_of(context)
            client.begin_message()
            identity = client.identity()
    except Exception as error:
        # defects, too, must reach the person who waits for this client
        problem = _describe_problem(_blame_method(error, context), context)
        identity = Identity(_read_partition(context), 0, problem=problem, name=site_name(context.node_config))
    return Message(encode_identity(identity), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for one round and upload the result."""
    return _reply(message, _add_settings(message, context), trains=True)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model from the end of a round."""
    return _reply(message, _add_settings(message, context), trains=False)


def _add_settings(message: Message, context: Context) -> Context:
    """The context with the settings from a message instead of the run configuration, which belongs to a user's own
    app."""
    settings = message.content.config_records.get(SETTINGS)
    if settings is None:
        return context
    # no setting takes a list; as text it is refused with the setting's name
    run_config: dict[str, Any] = {}
    for name, value in settings.items():
        run_config[name] = value if isinstance(value, bool | int | float | str) else repr(value)
    return Context(context.run_id, context.node_id, context.node_config, context.state, run_config)


def new_client(context: Context) -> Client:
    """Make the client of a Flower context.

    Raises:
        SettingError, DataError, ModelError: one sentence on why the client cannot take part.
    """
    return PrivateClient(context) if run_of(context).private else Client(context)


def _reply(message: Message, context: Context, trains: bool) -> Message:
    """A client's reply, even after an error: Flower would otherwise send the text of the exception to the server."""
    began = time.perf_counter()
    try:
        with limited_threads(run_of(context).settings.threads):
            client = _client_of(context)
            return _answer(client, message, context, trains, began)
    except OtherHomeError as error:
        # this concerns the whole run, not only this client
        return Message(Error(OTHER_HOME, f"client {_read_partition(context)}: {error}"), reply_to=message)
    except Exception as error:
        blamed = _blame_method(error, context)
        code = FAILED if isinstance(blamed, MethodError) else APP_RAISED
        return Message(Error(code, _describe_problem(blamed, context)), reply_to=message)


def _answer(client: Client, message: Message, context: Context, trains: bool, began: float) -> Message:
    client.begin_message()
    instruction = decode_instruction(
        message.content,
        client.run.exchange,
        client.data.num_classes,
        client.settings.feature_dim,
        client.limits(),
        trains,
    )
    store = client.store(instruction.run)
    # in a simulation, a client gets one message at a time; at a site, a stopped run may still be running
    held_store = nullcontext() if simulated() else store.lock(client.settings.round_timeout)
    try:
        with held_store:
            report = client.train(instruction) if trains else client.evaluate(instruction)
    except USER_ERRORS as error:
        report = Report(client.partition, instruction.round, problem=_describe_problem(error, context))

    seconds = 0.0 if client.hides_errors else time.perf_counter() - began
    report = replace(report, seconds=seconds)
    try:
        records = encode_report(report, client.run.exchange.up)
    except CodecError as error:
        # the trained model is stored; only the upload is missing
        report = replace(report, payload=None, problem=_describe_problem(error, context))
        records = encode_report(report, client.run.exchange.up)
    return Message(records, reply_to=message)


def _client_of(context: Context) -> Client:
    """The client of a Flower context, built once per process and run, so that the next run reads changed files."""
    configs = (tuple(sorted(config.items())) for config in (context.run_config, context.node_config))
    key = (context.run_id, home(), simulated(), *configs)
    client = _clients.use(key)
    if client is None:
        # only clients of one run are cached: an earlier run is over, and its code of the same name may have changed
        if next(iter(_clients), key)[0] != context.run_id:
            _clients.clear()
        client = _clients[key] = new_client(context)
        _clients.shrink(MOST_BYTES)
    return client


def _blame_method(error: Exception, context: Context) -> Exception:
    """The error, or a `MethodError` if it comes from a user's method. Under `privacy` it may depend on samples."""
    if (isinstance(error, KNOWN) and not isinstance(error, MethodError)) or _is_private(context):
        return error
    try:
        run = run_of(context)
    except Exception:
        return error
    failure = in_method(error, run.settings.strategy, run.method)
    if failure is None or failure is error:
        return error
    failure.__cause__ = error
    return failure


def _describe_problem(error: Exception, context: Context) -> str:
    partition = _read_partition(context)
    describe = private_words if _is_private(context) else public_words
    return f"client {'?' if partition < 0 else partition}: {describe(error, context.node_config)}"


def _is_private(context: Context) -> bool:
    """Whether `privacy` is on; a run whose settings cannot be read counts as private."""
    try:
        return unpacked(context.run_config).get("privacy", "none") != "none"
    except Exception:
        return True


def _read_partition(context: Context) -> int:
    partition = context.node_config.get("partition-id", -1)
    return partition if type(partition) is int else -1
