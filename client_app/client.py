"""One client of one run: its identity, a round of its training, and the evaluation of its model after a round."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from flwr.app import Array, Context

from protosphere.client_app.encoder import Encoded, SpaceScores, encoded_of
from protosphere.client_app.evaluate import DivergenceError, Measures, ensemble_probabilities, evaluate, measure
from protosphere.client_app.public_errors import public_words
from protosphere.client_app.site import (
    device_for,
    over_ray,
    refuse_code,
    refuse_unprotected,
    run_of,
    simulated,
    site_name,
    site_spec,
    text,
    whole_number,
)
from protosphere.client_app.store import Store, describe, lay_out, new_state, size_of
from protosphere.client_app.train import evaluation_follows, train
from protosphere.core import plugins
from protosphere.core.errors import SettingError
from protosphere.core.flower import minor_name
from protosphere.core.home import home, refuse_other, stores
from protosphere.core.lru_cache import Recent
from protosphere.core.paths import is_path, listed
from protosphere.core.seeds import seed_process
from protosphere.core.settings import RECEIVED, shown
from protosphere.data.augment import refuse_unfit as fit_inputs
from protosphere.data.client_data import Rows, client_data, rows_of
from protosphere.data.partition.assignment import shared_test_set
from protosphere.data.spec import DataSpec
from protosphere.models import model_for, reads_text, same_inputs, told_name
from protosphere.models.text import Tokens
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.weights import Layout, Weights
from protosphere.strategies.companions import companion_of
from protosphere.strategies.contract import ClientState, MethodError, Objective, WeightsObjective, own_round
from protosphere.strategies.user_method import checked_payload
from protosphere.wire.arrays import Limits
from protosphere.wire.layouts import layout_lines
from protosphere.wire.payloads import Identity, Instruction, Payload, Report, TrainingFigures, class_vectors

# layouts of the weights that are exchanged, by everything that determines them
_layouts: dict[str, dict[str, Layout]] = {}

# The most recent states in this process, each with its round. Ray moves clients between workers, which share no memory,
# so an entry is valid only if its round is that of the store's newest generation.
_states: Recent[tuple[int, ClientState]] = Recent(lambda entry: size_of(entry[1]))


class Client:
    """The client of a Flower context.

    Attributes:
        objective: the client half of the method. It is made anew for each message, so that a method cannot keep
            anything in it, whether or not the process lives on.
        encoded: the samples in the encoder's space; None if the run has no encoder.

    Raises:
        SettingError, DataError, ModelError: one sentence that says why it cannot take part.
    """

    hides_errors = False  # whether errors and durations must not be sent

    def __init__(self, context: Context):
        node = self.node = context.node_config
        self.run = run_of(context)
        self.settings = self.run.settings
        self.partition = whole_number(node, "partition-id")
        self.partitions = whole_number(node, "num-partitions")
        refuse_unprotected(self.settings, node)
        if self.settings.ensemble_every and not simulated():
            raise SettingError(
                f"`ensemble-every` is {self.settings.ensemble_every}, and the ensemble needs a test set that all "
                "clients share, as those of a simulation do; set it to 0."
            )
        self.model = text(node, "model") or model_for(self.settings.models, self.partition)
        if not simulated():
            refuse_code(node, self.settings, self.model)
        self.device = device_for(node.get("device", ""), self.settings.device)
        if self.settings.precision == "bf16" and self.device.type != "cuda":
            raise SettingError(
                f'setting `precision` is "bf16", which needs CUDA, but this client trains on {self.device.type}; use '
                '"float32".'
            )
        self._load_data()
        self._ensemble_rows: Rows | None = None  # the shared test set, once it was needed
        self.begin_message()
        self._refuse_companion(companion_of(self.objective))
        self.encoded: Encoded | None = None
        if self.run.encodes:
            self.encoded = encoded_of(self.run, node, self.data, self._load, simulated())

    def _load_data(self) -> None:
        self.own_data = text(self.node, "data-path") or None
        spec = self._data_spec(site_spec(self.node, self.settings, self.partitions))
        is_dealt = simulated() or not any(map(is_path, listed(spec.dataset)))
        self.has_dealt_rows = is_dealt and not self.own_data
        self.tokens = Tokens(self.model, self.settings.max_tokens) if reads_text(self.model) else None
        self._load = partial(client_data, spec, self.partition, home() / "cache", self.device, self.own_data)
        self.data = self._load(self.tokens)
        fit_inputs(self.settings.augment, 0 if self.tokens else len(self.data.transform.shape))
        # a partition by domain has a name already; the name of a site's own folder is not disclosed
        self.domain = (self.data.domain if is_dealt else "") or text(self.node, "domain").strip()
        # the same holds for a client of a simulation; under `privacy` only a name given by the site is disclosed
        self.name = site_name(self.node) or (self.data.name if is_dealt and not self.run.private else "")

    def _data_spec(self, spec: DataSpec) -> DataSpec:
        """The source of the samples, which `privacy` restricts."""
        return spec

    def begin_message(self) -> None:
        """Make the objective for one message."""
        self.objective: Objective = self.run.method.objective(self.settings, self.run.options, self.data.num_classes)

    def store(self, run: str) -> Store:
        """The client's stored state of a run."""
        return Store(stores(run) / str(self.partition))

    # --- who it is --------------------------------------------------------------------------------------

    def identity(self) -> Identity:
        """The client's identity. It builds the model once, so that an unfit model is found before training."""
        state = self._new_state()
        data = self.data
        companion = companion_of(self.objective)
        companion_parameters = sum(p.numel() for p in state.module.companion.parameters()) if companion else 0
        layouts = self._get_layouts(state)
        return Identity(
            partition=self.partition,
            partitions=self.partitions,
            model=self._name_model(),
            parameters=state.parameters,
            feature_dim=self.settings.feature_dim,
            class_names=data.class_names,
            classes=tuple(data.train.labels.unique().tolist()),
            domain=self.domain,
            name=self.name,
            rows=(len(data.train), len(data.validation), len(data.test)),
            discloses=tuple(self._list_disclosures()),
            settings=self.run.digest,
            encoder="" if self.encoded is None else self.encoded.encoder.fingerprint,
            method=plugins.digest(self.settings.strategy),
            layouts=tuple(line for part, layout in layouts.items() for line in layout_lines(part, layout)),
            companion=f"{told_name(companion)} ({companion_parameters:,} parameters)" if companion else "",
            flower="" if simulated() else minor_name(),
        )

    def _list_disclosures(self) -> list[str]:
        """What this client discloses, in words."""
        disclosures = [
            "its model's name and size",
            "its numbers of samples",
            "the classes it holds",
            "how many samples its most frequent class has in its test and validation parts",
            "mean losses, gradient ratio and prototype norms",
            "accuracy",
            "seconds",
        ]
        disclosures += self.run.exchange.list_disclosures(self.settings.feature_dim)
        if self.settings.ensemble_every:
            disclosures.append("its class probabilities for every sample of the shared test set")
        if self._tells_confusion:
            disclosures.append(
                "its confusion matrix on its test samples, which says how many it has of each class (once, at the end)"
            )
        if self.settings.roc_auc:
            disclosures.append("the area under the ROC curve of its model on its test samples")
        if self.domain:
            disclosures.append("its domain")
        if self.name:
            disclosures.append("its name")
        return disclosures

    @property
    def _tells_confusion(self) -> bool:
        """Whether the last evaluation includes a confusion matrix; it would disclose the class counts of a site's own
        samples."""
        return self.run.confusion and (self.settings.confusion == "always" or self.has_dealt_rows)

    def limits(self) -> Limits:
        """The limits of a download."""
        layouts = self._get_layouts() if self.run.exchange.weights else {}
        return Limits(self.settings.max_prototype_norm, layouts)

    def _get_layouts(self, state: ClientState | None = None) -> dict[str, Layout]:
        """The layouts of the weights that it exchanges, from the freshly built model; training does not change them."""
        key = json.dumps([self._describe(), self.device.type, plugins.digest(self.model)], sort_keys=True)
        if key not in _layouts:
            shared = self._list_shared((state or self._new_state()).module) if self.run.exchange.weights else {}
            _layouts[key] = {part: weights.layout for part, weights in shared.items()}
        return _layouts[key]

    def _list_shared(self, module: torch.nn.Module) -> Mapping[str, Weights]:
        """The module's weights that are exchanged, by part.

        Raises:
            MethodError: the method exchanges weights, but its objective does not say which.
        """
        if not isinstance(self.objective, WeightsObjective):
            raise MethodError(
                f"weights cross, but {type(self.objective).__name__} does not say which; derive it from "
                "WeightsObjective, and write its `shared`"
            )
        return self.objective.shared(module)

    def _name_model(self) -> str:
        """Its model's name, without a site's private path."""
        return told_name(self.model) if text(self.node, "model") else self.model

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

    # --- a round of training ----------------------------------------------------------------------------

    def train(self, instruction: Instruction) -> Report:
        """Load the private model, receive the download of the last round, train, save, and upload.

        Raises:
            StoreError: the model of the last round is lost, or the new one cannot be written.
        """
        began = time.perf_counter()
        round_number, store = instruction.round, self.store(instruction.run)
        state, _ = self._load_state(instruction, before_round=round_number, goes_back=True)
        download = self._read_download(instruction)
        state.constants = dict(instruction.constants)
        lay_out(self.objective, state, download, self.device)
        stream = (self.settings.seed, "client", self.partition, "round", round_number)
        seed_process(*stream, "process")
        try:
            self.objective.receive(state, self._initial_where_nothing_came(download, round_number), round_number)
            # the download may contain new targets
            lay_out(self.objective, state, download, self.device)
            measures = self.run.method.reads_prototypes or evaluation_follows(self.settings, round_number)
            figures = train(self.objective, state, self.data, stream, round_number, measures)
        except DivergenceError as error:
            # the state in memory is unusable; the store still holds the last good one
            problem = f"client {self.partition} ({self._name_model()}) diverged in round {round_number}: "
            return Report(self.partition, round_number, problem=problem + public_words(error, self.node))

        store.save(round_number, state)
        if self.encoded is not None:
            state.encoded = self.encoded.training
        parts = self.objective.upload(state, own_round(state.constants, round_number))
        upload = checked_payload(parts, self.objective.upload, self.run.exchange.up)
        self._keep_state(instruction.run, round_number, state)
        figures = replace(self._hide_scale(figures, upload), seconds=time.perf_counter() - began)
        return Report(self.partition, round_number, upload, figures)

    def _initial_where_nothing_came(self, download: Payload | None, round_number: int) -> Payload | None:
        """The download. While there has been no valid upload of weights, every training starts from the initial
        weights; otherwise clients that have trained before would start from others."""
        exchange = self.run.exchange
        up, down = ({p.name for p in parts if p.kind == "weights"} for parts in (exchange.up, exchange.down))
        shared = up or down
        if download is not None or round_number == 1 or not shared:
            return download
        initial = self._list_shared(self._new_state().module)
        return {name: part for name, part in initial.items() if name in shared}

    def _hide_scale(self, figures: TrainingFigures, upload: Payload | None) -> TrainingFigures:
        """The metrics with the norm of the uploaded prototypes: the norm of the unscaled ones would disclose the
        scale."""
        if upload is None or self.run.exchange.weights:
            return figures
        vectors = class_vectors(upload)
        if not isinstance(vectors, PrototypeSet):
            return figures
        return replace(figures, prototype_norm=vectors.mean_norm)

    # --- an evaluation ----------------------------------------------------------------------------------

    def evaluate(self, instruction: Instruction) -> Report:
        """Evaluate the model from the end of a round, with the download made from that round's uploads. No model is
        written.

        Raises:
            StoreError: the model of the round is lost. DivergenceError: its features are not finite.
        """
        objective, round_number = self.objective, instruction.round
        state, made_in = self._load_state(instruction, before_round=round_number + 1, goes_back=False)
        download = self._read_download(instruction)
        state.constants = dict(instruction.constants)
        self._measure_late(state)
        lay_out(objective, state, download, self.device)
        received = objective.evaluation_state(state, download) if RECEIVED in self.run.method.rules else None
        judged = received if received is not None and self.run.inference == RECEIVED else state

        space_scores = None
        if self.encoded is not None:
            # `predict` reads it from there
            keep = self.store(instruction.run).save_pool
            space_scores = SpaceScores(self.encoded, objective, state, download, keep)
        measures = Measures(
            rule=self.run.inference,
            auc=self.settings.roc_auc,
            confusion=instruction.last and self._tells_confusion,
        )
        evaluation = evaluate(objective, state, self.data, received, space_scores, measures)
        report = Report(self.partition, round_number, evaluation=evaluation)
        if self.settings.measures_ensemble(round_number, instruction.last):
            if self._ensemble_rows is None:
                shared = shared_test_set(self.settings, self.partitions)
                self._ensemble_rows = rows_of(*shared, self.device, self.tokens)
            probabilities = ensemble_probabilities(objective, judged, self._ensemble_rows, self.data.transform)
            if probabilities is not None:
                report = replace(report, ensemble=Array(probabilities.cpu().to(torch.float16).numpy()))
        self._keep_state(instruction.run, made_in, state)
        return report

    def _measure_late(self, state: ClientState) -> None:
        """Measure the prototypes that the training of the round left out because no evaluation was to follow."""
        if state.prototypes is not None:
            return
        try:
            measure(self.objective, state, self.data)
        except DivergenceError as error:
            sentence = f"its model diverged in the round that it trained last: {error}"
            raise DivergenceError(sentence) from None

    # --- its state --------------------------------------------------------------------------------------

    def _load_state(self, instruction: Instruction, before_round: int, goes_back: bool) -> tuple[ClientState, int]:
        """The newest state of an earlier round, and its round: from memory if that holds the store's newest generation,
        else from the store, else new. The state is removed from memory until `_keep_state` puts it back.

        Args:
            goes_back: whether to delete generations of that round or later.

        Raises:
            OtherHomeError: over Ray, if this worker has another PROTOSPHERE_HOME than the run.
        """
        if over_ray():
            refuse_other(instruction.run)
        store, key = self.store(instruction.run), (instruction.run, self.partition, self.device)
        if simulated() and not instruction.last_trained_round and key not in _states:
            store.begin_anew(before_round)
        made_in = store.newest_before(before_round, instruction.last_trained_round, going_back=goes_back)
        entry = _states.pop(key, None)
        if instruction.payload is not None:
            store.save_received(instruction.payload, instruction.constants, instruction.made)
        if entry is not None and entry[0] == made_in:
            return entry[1], entry[0]
        state = self._new_state()
        if made_in is not None:
            store.load_into(state, made_in, self.device)
            return state, made_in
        measure(self.objective, state, self.data)
        store.describe(self._describe())
        store.save(0, state)
        return state, 0

    def _keep_state(self, run: str, made_in: int, state: ClientState) -> None:
        state.forget()
        _states[run, self.partition, self.device] = made_in, state
        _states.shrink(self.settings.state_memory << 20)

    def _read_download(self, instruction: Instruction) -> Payload | None:
        """The download of the message, or the stored one if the method sends it only once."""
        if instruction.payload is not None or not instruction.made:
            return instruction.payload
        return self.store(instruction.run).load_held(instruction.made)

    def _new_state(self) -> ClientState:
        """The seeded initial model; with `shared-init` it is the same for all clients of one architecture."""
        return new_state(self.objective, self.model, self.data.transform.shape, self.partition, self.device)

    def _describe(self) -> dict[str, Any]:
        description = describe(self.run, self.partition, self.model, self.data.class_names, self.data.transform)
        if self.encoded is not None:
            description |= self.encoded.description
        return description
