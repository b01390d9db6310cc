"""The Flower ClientApp: decode, call, encode. No error leaves it but in the words of public_errors.py."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps

from flwr.app import Context, Error, Message, MessageType
from flwr.clientapp import ClientApp

from protosphere.client_app.client import Client, Preparation
from protosphere.client_app.message_log import note
from protosphere.client_app.public_errors import KNOWN, USER_ERRORS, private_words, public_words
from protosphere.client_app.site import run_of, simulated, site_name
from protosphere.client_app.train import Outcome
from protosphere.core.errors import SettingError
from protosphere.core.flower import APP_RAISED
from protosphere.core.home import OTHER_HOME, OtherHomeError, home
from protosphere.core.lru_cache import Recent
from protosphere.core.seeds import limited_threads
from protosphere.core.startup import end_at_once
from protosphere.data.client_data import size_in_bytes
from protosphere.strategies import unpacked
from protosphere.strategies.user_method import FAILED, MethodError, in_method
from protosphere.wire.checks import CodecError
from protosphere.wire.messages import decode_instruction, encode_identity, encode_report
from protosphere.wire.payloads import Identity, Instruction, Report

MOST_BYTES = 2**30  # of the data of the clients that a process keeps between messages
Answer = Callable[[Message, Context], Message]

# Settings, data and model of a client are put together once a process and run, not for every message.
_clients: Recent[Client] = Recent(lambda client: size_in_bytes(client.data))

app = ClientApp()
end_at_once()


def _contain_errors(answer: Answer) -> Answer:
    """Flower would send the text of an exception to the server."""

    @wraps(answer)
    def contained(message: Message, context: Context) -> Message:
        try:
            return answer(message, context)
        except OtherHomeError as error:
            # the whole run's matter, not this client's
            return Message(Error(OTHER_HOME, f"client {_read_partition(context)}: {error}"), reply_to=message)
        except Exception as error:
            return _reply_with_error(error, message, context)

    return contained


@app.query()
@_contain_errors
def query(message: Message, context: Context) -> Message:
    """Who are you? Asked once, before training."""
    try:
        with limited_threads(run_of(context).settings.threads):
            identity = Client(context).identity()
    except Exception as error:
        # a defect, too, has to reach the person who waits for this client
        problem = _describe_problem(_blame_method(error, context), context)
        identity = Identity(_read_partition(context), 0, problem=problem, name=site_name(context.node_config))
    return Message(encode_identity(identity), reply_to=message)


@app.train()
@_contain_errors
def train(message: Message, context: Context) -> Message:
    """Evaluate on arrival, train, upload."""
    with limited_threads(run_of(context).settings.threads):
        step = _prepare(message, context)
        return step if isinstance(step, Message) else _finish(step, step.preparation.job.alone())


@app.evaluate()
@_contain_errors
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate only."""
    arrived = time.perf_counter()
    client, instruction = _open_message(message, context)
    try:
        with limited_threads(client.settings.threads):
            report = client.evaluate(instruction)
    except USER_ERRORS as error:
        report = Report(client.partition, instruction.round, problem=_describe_problem(error, context))
    return _encode_reply(message, context, client, report, time.perf_counter() - arrived)


@dataclass(frozen=True)
class Training:
    """A client's message to train, worked off but for the training itself and what follows it."""

    message: Message
    context: Context
    client: Client
    preparation: Preparation
    arrived: float


def _prepare(message: Message, context: Context) -> Training | Message:
    """One client, ready to train; its reply where that already has failed."""
    arrived = time.perf_counter()
    try:
        client, instruction = _open_message(message, context)
        try:
            preparation = client.prepare(instruction)
        except USER_ERRORS as error:
            preparation = Report(client.partition, instruction.round, problem=_describe_problem(error, context))
        if isinstance(preparation, Preparation):
            return Training(message, context, client, preparation, arrived)
        return _encode_reply(message, context, client, preparation, time.perf_counter() - arrived)
    except OtherHomeError:
        raise
    except Exception as error:
        return _reply_with_error(error, message, context)


def _finish(training: Training, outcome: Outcome) -> Message:
    """The reply of a client that has trained, or has failed to."""
    message, context, client, preparation = training.message, training.context, training.client, training.preparation
    waited = preparation.seconds_waited(outcome)
    try:
        try:
            report = client.finish(preparation, outcome)
        except USER_ERRORS as error:
            report = Report(client.partition, preparation.instruction.round, problem=_describe_problem(error, context))
        return _encode_reply(message, context, client, report, time.perf_counter() - training.arrived - waited)
    except OtherHomeError:
        raise
    except Exception as error:
        return _reply_with_error(error, message, context)


def _client_of(context: Context) -> Client:
    """The client that a context stands for: built once a process and run, with an objective of this message's own."""
    configs = (tuple(sorted(config.items())) for config in (context.run_config, context.node_config))
    key = (context.run_id, home(), simulated(), *configs)
    client = _clients.use(key)
    if client is None:
        # an earlier run is over, and may have had other code under the same name; all that are kept are of one run
        if next(iter(_clients), key)[0] != context.run_id:
            _clients.clear()
        client = _clients[key] = Client(context)
        _clients.shrink(MOST_BYTES, least=1)
    return client.for_message()


def _open_message(message: Message, context: Context) -> tuple[Client, Instruction]:
    client = _client_of(context)
    return client, decode_instruction(message.content, client.limits(), client.objective.download_unit)


def _encode_reply(message: Message, context: Context, client: Client, report: Report, seconds: float) -> Message:
    if any(feature.hides_errors for feature in client.features):
        seconds = 0.0
    report = replace(report, seconds=seconds)
    try:
        records = encode_report(report, client.codec, client.run.exchange.up)
    except CodecError as error:
        # what was trained is kept; only the upload is missing
        report = replace(report, payload=None, problem=_describe_problem(error, context))
        records = encode_report(report, client.codec, client.run.exchange.up)
    trains = message.metadata.message_type == MessageType.TRAIN
    # of a simulation the run's folder has it all
    if not simulated():
        run = str(message.content.config_records["instruction"]["run"])
        note(client.store(run).folder, message.content, records, report, trains)
    return Message(records, reply_to=message)


def _reply_with_error(error: Exception, message: Message, context: Context) -> Message:
    """What a client answers that cannot answer as it was asked."""
    error = _blame_method(error, context)
    code = FAILED if isinstance(error, MethodError) else APP_RAISED
    return Message(Error(code, _describe_problem(error, context)), reply_to=message)


def _blame_method(error: Exception, context: Context) -> Exception:
    """The error, or where it is the fault of somebody's own method, that. Under `privacy` rows may decide on it."""
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
    text = (
        private_words(error, context.node_config) if _is_private(context) else public_words(error, context.node_config)
    )
    return f"client {'?' if partition < 0 else partition}: {text}"


def _is_private(context: Context) -> bool:
    """Whether the run is one under `privacy`; so is one whose settings cannot be read."""
    try:
        return unpacked(context.run_config).get("privacy", "none") != "none"
    except SettingError:
        return True


def _read_partition(context: Context) -> int:
    partition = context.node_config.get("partition-id", -1)
    return partition if type(partition) is int else -1
