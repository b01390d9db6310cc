"""One client of one run: its settings, data, model and store put together, and what it does with a message."""

import json
import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar, cast

import torch
from flwr.app import Context

from protosphere.client_app.evaluate import DivergenceError, evaluate, measure
from protosphere.client_app.feature import Arrival, Scores, features_of
from protosphere.client_app.public_errors import public_words
from protosphere.client_app.site import (
    device_for,
    over_ray,
    refuse_code,
    run_of,
    simulated,
    site_name,
    site_spec,
    text,
    whole_number,
)
from protosphere.client_app.store import Stamp, Store, describe, lay_out, new_state, size_of
from protosphere.client_app.train import Job, Outcome
from protosphere.core import plugins
from protosphere.core.errors import SettingError
from protosphere.core.home import home, refuse_other, stores, token_digest
from protosphere.core.lru_cache import Recent
from protosphere.core.paths import is_path, listed
from protosphere.core.seeds import seed_process
from protosphere.core.settings import RECEIVED, shown
from protosphere.data.augment import refuse_unfit as fit_inputs
from protosphere.data.client_data import client_data
from protosphere.models import model_for, reads_text, same_inputs, told_name
from protosphere.models.text import Tokens
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.weights import Layout
from protosphere.strategies.contract import ClientState, own_round
from protosphere.strategies.user_method import checked_payload
from protosphere.wire.codec import Limits, as_sent, codec_of
from protosphere.wire.payloads import Identity, Instruction, Payload, Report, class_vectors
from protosphere.wire.weights import layout_lines

Step = TypeVar("Step", bound=Callable[..., Any])
_layouts: dict[str, dict[str, Layout]] = {}  # of parts of weights, by all that they follow from

# The states that this process used last. Workers share no memory and clients move between them, so an entry counts
# only while its stamp is that of the store's newest generation.
_states: Recent[tuple[Stamp, ClientState]] = Recent(lambda entry: size_of(entry[1]))


@dataclass(frozen=True)
class Preparation:
    """A client that has evaluated what the last round left, and is ready to train.

    Attributes:
        instruction: with the download that it trains towards. report: the evaluation's, to which training adds.
        began, ready: when the work on its training began, and when all was done but the training itself.
        kept: what features around it keep until its end, by their registered names.
    """

    job: Job
    instruction: Instruction
    report: Report
    began: float
    ready: float
    kept: Mapping[str, Any] = field(default_factory=dict)

    def seconds_waited(self, outcome: Outcome) -> float:
        """Of a step in common a client has its share alone: the rest of the time is others'."""
        return 0.0 if isinstance(outcome, Exception) else time.perf_counter() - self.ready - outcome.seconds


class Client:
    """The client that a Flower context stands for.

    Raises:
        SettingError, DataError, ModelError: one sentence that says why it cannot take part.
    """

    def __init__(self, context: Context):
        node = self.node = context.node_config
        self.run = run_of(context)
        self.settings = self.run.settings
        self.partition = whole_number(node, "partition-id")
        self.partitions = whole_number(node, "num-partitions")
        self.features = features_of(self)
        self.model = text(node, "model") or model_for(self.settings.models, self.partition)
        if not simulated():
            refuse_code(node, self.settings, self.model)
        self.device = device_for(node.get("device", ""), self.settings.device)
        if self.settings.precision == "bf16" and self.device.type != "cuda":
            raise SettingError(
                f'setting `precision` is "bf16", which needs CUDA, but this client trains on {self.device.type}; use '
                '"float32".'
            )
        self.own_data = text(node, "data-path") or None
        spec = site_spec(node, self.settings, self.partitions)
        for feature in self.features:
            spec = feature.spec(spec)
        is_dealt = simulated() or not any(map(is_path, listed(spec.dataset)))
        self.has_dealt_rows = is_dealt and not self.own_data
        self.tokens = Tokens(self.model, self.settings.max_tokens) if reads_text(self.model) else None
        cache = home() / "cache"
        load = partial(client_data, spec, self.partition, cache, self.device, self.own_data)
        self.data = load(self.tokens)
        fit_inputs(self.settings.augment, self.settings.normalise, 0 if self.tokens else len(self.data.transform.shape))
        # a domain that was dealt has its name already; the name of a folder on a site's own machine is not told
        self.domain = (self.data.domain if is_dealt else "") or text(node, "domain").strip()
        # so has a client of a simulation; under `privacy` a name is told where the site gives it alone
        self.name = site_name(node) or (self.data.name if is_dealt and not self.run.private else "")
        self.codec = codec_of(self.settings, self.data.num_classes, self.settings.feature_dim, self.run.exchange)
        self.objective = self.run.method.objective(self.settings, self.run.options, self.data.num_classes)
        self._refuse_companion(self.objective.companion)
        for feature in self.features:
            feature.start(load)
            self.codec = feature.codec(self.codec)

    def for_message(self) -> "Client":
        """The same client for one message: what a method keeps in its objective is gone after it, whether or not this
        process lives on."""
        client = copy(self)
        client.objective = self.run.method.objective(self.settings, self.run.options, self.data.num_classes)
        client.features = [feature.for_message(client) for feature in self.features]
        return client

    def _refuse_companion(self, name: str) -> None:
        if plugins.is_file(name) and not simulated():
            raise SettingError(
                "the run's companion is a file, the first of its `models`, and no run names files of this site; set "
                f"`{self.settings.strategy}.companion` to a model that every site has."
            )
        if name and not same_inputs(name, self.model):
            raise SettingError(
                f"the companion {shown(name)} does not take the inputs of this client's model, numbers or the token "
                f"ids of one tokenizer; set `{self.settings.strategy}.companion` to a model that does, or give all "
                "clients models of one tokenizer."
            )

    def identity(self) -> Identity:
        """Who this client is. Builds the model once, so that one that does not fit is found before training; so is a
        shared test set that it trains on."""
        state = self._new_state()
        data = self.data
        discloses = [
            "its model's name and size",
            "its numbers of samples",
            "the classes it holds",
            "how many samples its most frequent class has in its test and validation parts",
            "mean losses, gradient ratio and prototype norms",
            "accuracy",
            "seconds",
        ]
        masked = f" ({self.codec.width} of their {self.codec.dim} values)" if self.codec.masked else ""
        discloses += self.run.exchange.said(masked)
        for feature in self.features:
            discloses += feature.discloses()
        if self.domain:
            discloses.append("its domain")
        if self.name:
            discloses.append("its name")
        companion = self.objective.companion
        companion_parameters = _count_parameters(state.module.companion) if companion else 0
        extra_parameters = sum(_count_parameters(state.module.get_submodule(name)) for name in self.objective.beside)
        labels, counts = data.train.labels.unique(return_counts=True)
        all_classes = [] if data.unheld is None else [len(data.test) + data.unheld.count]
        identity = Identity(
            partition=self.partition,
            partitions=self.partitions,
            model=self._name_model(),
            parameters=_count_parameters(state.module) - companion_parameters - extra_parameters,
            feature_dim=self.settings.feature_dim,
            class_names=data.class_names,
            classes=tuple(labels.tolist()),
            class_counts=tuple(counts.tolist()) if self.run.exchange.told_counts else (),
            domain=self.domain,
            name=self.name,
            rows=(len(data.train), len(data.validation), len(data.test), *all_classes),
            discloses=tuple(discloses),
            codec=self.codec.fingerprint,
            method=plugins.digest(self.settings.strategy),
            layouts=tuple(
                line for part, layout in self._get_layouts(state).items() for line in layout_lines(part, layout)
            ),
            companion=f"{told_name(companion)} ({companion_parameters:,} parameters)" if companion else "",
        )
        for feature in self.features:
            identity = feature.identity(identity)
        return identity

    def limits(self) -> Limits:
        """What a download must keep to."""
        exchange = self.run.exchange
        return Limits(
            self.codec, self.settings.max_prototype_norm, exchange.down, self._get_layouts, either=exchange.either
        )

    def _get_layouts(self, state: ClientState | None = None) -> dict[str, Layout]:
        """Of the parts of weights that it shares: of its model as it was built, which training does not change."""
        key = json.dumps([self._describe(), self.device.type, plugins.digest(self.model)], sort_keys=True)
        if key not in _layouts:
            shared = self.objective.shared((state or self._new_state()).module) if self.run.exchange.weights else {}
            _layouts[key] = {part: weights.layout for part, weights in shared.items()}
        return _layouts[key]

    def evaluate(self, instruction: Instruction) -> Report:
        """Evaluate the model as the last round left it, with what was just received."""
        return self._wrapped("evaluate", self._evaluate)(instruction)

    def prepare(self, instruction: Instruction) -> Preparation | Report:
        """Evaluate (when asked), and make ready for training; a report where that already has failed."""
        return self._wrapped("prepare", self._prepare)(instruction)

    def finish(self, preparation: Preparation, outcome: Outcome) -> Report:
        """Save what training left, and upload.

        Args:
            outcome: the figures of the training, or the error with which it ended.
        """
        return self._wrapped("finish", self._finish)(preparation, outcome)

    def _wrapped(self, name: Literal["evaluate", "prepare", "finish"], step: Step) -> Step:
        """A step with the method of that name of each feature that wraps around it, the last outermost."""
        for feature in self.features:
            if feature.wraps:
                step = cast(Step, partial(getattr(feature, name), step))
        return step

    def train(self, instruction: Instruction) -> Report:
        """All three: prepare, train, finish."""
        preparation = self.prepare(instruction)
        if isinstance(preparation, Report):
            return preparation
        return self.finish(preparation, preparation.job.alone())

    def _evaluate(self, instruction: Instruction) -> Report:
        state, stamp = self._take(instruction, trains=False)
        instruction = self._restore_download(instruction)
        report = self._evaluate_arrival(state, instruction)
        self._keep(instruction.run, stamp, state)
        return report

    def _prepare(self, instruction: Instruction) -> Preparation | Report:
        state, _ = self._take(instruction, trains=True)
        instruction = self._restore_download(instruction)
        report = self._evaluate_arrival(state, instruction)
        stream = (self.settings.seed, "client", self.partition, "round", instruction.round)
        seed_process(*stream, "process")
        began = time.perf_counter()
        try:
            self.objective.receive(state, self._choose_download(instruction), instruction.round)
            # what was received may be the new targets
            self._lay_out(state, instruction)
        except DivergenceError as error:
            return self._report_divergence(report, error)
        job = Job(self.objective, state, self.data, stream, instruction.round, self.model)
        return Preparation(job, instruction, report, began, time.perf_counter())

    def _finish(self, preparation: Preparation, outcome: Outcome) -> Report:
        instruction, report, state = preparation.instruction, preparation.report, preparation.job.state
        if isinstance(outcome, DivergenceError):
            return self._report_divergence(report, outcome)
        if isinstance(outcome, Exception):
            raise outcome
        waited = preparation.seconds_waited(outcome)
        stamp = self.store(instruction.run).save(instruction.round, state)
        for feature in self.features:
            feature.before_upload(state)
        parts = self.objective.upload(state, own_round(state.constants, instruction.round))
        upload = checked_payload(parts, self.objective.upload, self.run.exchange.up)
        self._keep(instruction.run, stamp, state)
        figures = outcome
        if upload is not None and not self.run.exchange.weights:
            sent_vectors = class_vectors(as_sent(upload, self.run.exchange.up))
            if isinstance(sent_vectors, PrototypeSet):
                # of scaled prototypes the norm without the scale would give the scale away
                figures = replace(figures, prototype_norm=sent_vectors.mean_norm)
        seconds = time.perf_counter() - preparation.began - waited
        return replace(report, payload=upload, training=replace(figures, seconds=seconds))

    def _report_divergence(self, report: Report, error: DivergenceError) -> Report:
        # the state in memory is spoilt; the store still holds the last good one
        problem = f"client {self.partition} ({self._name_model()}) diverged in round {report.round}: "
        return replace(report, problem=problem + public_words(error, self.node))

    def _restore_download(self, instruction: Instruction) -> Instruction:
        """With what came before, of a method whose server sends it once."""
        if instruction.payload is not None or not instruction.made:
            return instruction
        return replace(instruction, payload=self.store(instruction.run).load_held(instruction.made))

    def _choose_download(self, instruction: Instruction) -> Payload | None:
        """What came. Where no upload of weights was valid yet, each training starts from the initial ones: who has
        trained already would start from elsewhere than who has not."""
        exchange = self.run.exchange
        up, down = ({s.name for s in specs if s.kind == "weights"} for specs in (exchange.up, exchange.down))
        shared = up or down
        if instruction.payload is not None or instruction.round == 1 or not shared:
            return instruction.payload
        initial = self.objective.shared(self._new_state().module)
        return {name: part for name, part in initial.items() if name in shared}

    def restore(self, run: str) -> ClientState:
        """The newest state that this client left in a run, for looking at it from outside.

        Raises:
            SettingError: when it left none.
        """
        store = self.store(run)
        stamp = store.newest()
        if stamp is None:
            raise SettingError(f"client {self.partition} left no state in {store.folder}.")
        state = self._new_state()
        store.load_into(state, stamp, self.device)
        state.pool_weight, state.space = store.load_pool()
        self._measure_late(state)
        return state

    def _evaluate_arrival(self, state: ClientState, instruction: Instruction) -> Report:
        """Lay the targets out; evaluate, where that is due, and answer what features ask."""
        state.constants = dict(instruction.constants)
        features = [feature for feature in self.features if feature.name in instruction.asks]
        unknown_names = set(instruction.asks).difference(feature.name for feature in features)
        remark = ""
        if unknown_names:
            names = ", ".join(sorted(unknown_names))
            remark = f"the server asks for {names}, which this run does not have by its settings"
        if instruction.evaluate or any(feature.needs_features for feature in features):
            self._measure_late(state)
        self._lay_out(state, instruction)
        last = instruction.round > self.settings.rounds
        arrived_state = (
            self.objective.arrived(state, instruction.payload) if RECEIVED in self.run.method.rules else None
        )
        evaluation, predictions, further_scores = None, dict[str, torch.Tensor](), list[Scores]()
        if instruction.evaluate:
            scores_of_features = [feature.scores(state, instruction) for feature in self.features]
            further_scores = [scores for scores in scores_of_features if scores is not None]
            arguments = (self.objective, state, self.data, last, arrived_state, further_scores)
            evaluation = evaluate(*arguments, predictions.update)
        judged_state = arrived_state if arrived_state is not None and self.run.inference == RECEIVED else state
        arrival = Arrival(judged_state, predictions, further_scores)
        report = Report(self.partition, instruction.round, evaluation=evaluation, remark=remark)
        for feature in features:
            report = feature.answer(arrival, report)
        return report

    def _measure_late(self, state: ClientState) -> None:
        """As at the end of the round that left this state, when no evaluation was to follow."""
        if state.prototypes is not None:
            return
        try:
            measure(self.objective, state, self.data)
        except DivergenceError as error:
            sentence = f"its model diverged in the round that it trained last: {error}"
            raise DivergenceError(sentence) from None

    def _lay_out(self, state: ClientState, instruction: Instruction) -> None:
        lay_out(self.objective, state, instruction.payload, self.device)

    def _take(self, instruction: Instruction, trains: bool) -> tuple[ClientState, Stamp]:
        """The state from which a round starts: from memory if it is the store's newest, else from the store, else
        new. It leaves the memory cache until it is whole again.

        Raises:
            OtherHomeError: over Ray, where this worker's home is not the run's.
        """
        if over_ray():
            refuse_other(instruction.run, instruction.token)
        store = self.store(instruction.run)
        if simulated() and not instruction.trained and (instruction.run, self.partition, self.device) not in _states:
            store.begin_anew(instruction.round, instruction.token)
        store.admit(instruction.token)
        stamp = store.newest_before(instruction.round, instruction.trained, going_back=trains)
        cached = _states.pop((instruction.run, self.partition, self.device), None)
        if instruction.payload is not None:
            store.save_received(instruction.payload, instruction.constants, instruction.made)
        if cached is not None and cached[0] == stamp:
            return cached[1], cached[0]
        state = self._new_state()
        if stamp is not None:
            store.load_into(state, stamp, self.device)
            return state, stamp
        measure(self.objective, state, self.data)
        store.describe(self._describe() | {"token": token_digest(instruction.token)})
        return state, store.save(0, state)

    def _keep(self, run: str, stamp: Stamp, state: ClientState) -> None:
        state.forget()
        _states[run, self.partition, self.device] = stamp, state
        _states.shrink(self.settings.state_memory << 20, least=1)

    def store(self, run: str) -> Store:
        """What it keeps of a run."""
        return Store(stores(run) / str(self.partition))

    def _name_model(self) -> str:
        """Its model's name, without a path that is the site's own."""
        return told_name(self.model) if text(self.node, "model") else self.model

    def _new_state(self) -> ClientState:
        """The seeded initial model: the same for all clients of one architecture with `shared-init`."""
        return new_state(self.objective, self.model, self.data.transform.shape, self.partition, self.device)

    def _describe(self) -> dict[str, Any]:
        description = describe(self.run, self.partition, self.model, self.data.class_names, self.data.transform)
        for feature in self.features:
            description |= feature.description()
        return description


def _count_parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
