"""What a client of a run under `privacy` sends: one noisy release, the same in every round, and nothing else.

Training, evaluation and what goes wrong in them stay here: figures and sentences in the client's store, the reply a
function of public facts and of the release. So whatever happens to a row, the bytes that leave are the same.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from protosphere.client_app.encoder import Encoded, EncoderSpace
from protosphere.client_app.feature import Feature, LoadData
from protosphere.client_app.message_log import append
from protosphere.client_app.privacy_ledger import Asked, Ledger, Limit
from protosphere.client_app.site import NodeConfig, simulated, text
from protosphere.client_app.train import Outcome
from protosphere.core.errors import PrivacyError
from protosphere.core.home import OtherHomeError, home
from protosphere.core.settings import Settings
from protosphere.data.partition.assignment import DataSpec
from protosphere.prototypes.accounting import rho_of
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.release import Shape, class_sums, finished
from protosphere.strategies import Run
from protosphere.strategies.contract import own_round
from protosphere.strategies.release import encoder_scores, parted
from protosphere.wire.payloads import Identity, Instruction, Payload, Report

if TYPE_CHECKING:
    from protosphere.client_app.client import Client, Preparation

log = logging.getLogger("protosphere")
T = TypeVar("T")

ENTRY = "privacy"  # of a node config
REQUIRED = "required"
FIGURES = "figures.jsonl"
UNITS = {"row": "sample", "group": "group"}  # `privacy-unit` in words
MEANS = "encoder-means"  # in the client's store
NO_LIMIT = "it states no limit: give its SuperNode privacy-epsilon and privacy-delta."


def site_ledger(node: NodeConfig | None = None) -> Ledger:
    """The ledger of this home, with the limit that the node config states."""
    return Ledger(home() / "privacy", None if node is None else _read_limit(node))


def refuse_unprotected(settings: Settings, node: NodeConfig) -> None:
    """Refuse a run without privacy where the site requires it.

    Raises:
        PrivacyError: that, or an entry that is none.
    """
    requirement = text(node, ENTRY)
    if requirement not in ("", REQUIRED):
        raise PrivacyError(
            f'this SuperNode\'s --node-config has privacy={requirement!r}, but it can be "{REQUIRED}" alone; '
            "correct it.",
        )
    if requirement and settings.privacy == "none":
        raise PrivacyError('it requires privacy; start the run with `privacy = "release"`.')


def private_spec(settings: Settings, node: NodeConfig, spec: DataSpec, has_own_data: bool, simulated: bool) -> DataSpec:
    """Where the rows of a client come from under `privacy`: those of a site are split by a secret of its own, and its
    classes listed, so that none is made of a row.

    Raises:
        PrivacyError: a setting with which one row would decide on others, or on what leaves.
        LedgerError: the secret cannot be read or written.
    """
    if settings.privacy_measure and (has_own_data or not simulated):
        raise PrivacyError("setting `privacy-measure` is true on a client with its own data; it is for simulation.")
    if settings.privacy_unit == "group" and not spec.columns.group:
        raise PrivacyError('`group-column` is empty, which `privacy-unit = "group"` needs.')
    if not has_own_data:
        return spec
    if settings.privacy_unit == "row" and spec.columns.group:
        raise PrivacyError(
            'its samples come in groups, which are split as one; set `privacy-unit` to "group", or take `group-column` '
            "out."
        )
    if spec.code is not None:
        raise PrivacyError("its samples come from code of its own; under `privacy` give --data a folder or a file.")
    if settings.max_samples:
        raise PrivacyError(
            f"setting `max-samples` is {settings.max_samples}, which would let one sample push another out; under "
            "`privacy` a site's own data need 0."
        )
    return replace(spec, secret=site_ledger().site_key().hex(), listed="all")


class Privacy(Feature):
    """Between a client of a run under `privacy` and whoever reads its messages.

    Attributes:
        limit: of what the site's node config lets a run spend.
    """

    wraps = True
    limit: Limit | None = None

    @staticmethod
    def applies(run: Run) -> bool:
        return run.private

    @staticmethod
    def refuse(client: "Client") -> None:
        refuse_unprotected(client.settings, client.node)

    @property
    def hides_errors(self) -> bool:
        return not self.is_measured

    @property
    def is_measured(self) -> bool:
        """Whether figures leave in the clear, outside the guarantee: of public data in a simulation."""
        return self.client.settings.privacy_measure

    @property
    def encoded(self) -> Encoded | None:
        """The samples as the encoder sees them; None where the method sends nothing."""
        spaces = [feature for feature in self.client.features if isinstance(feature, EncoderSpace)]
        # it has none before its own start, whichever of the two starts first
        return getattr(spaces[0], "encoded", None) if spaces else None

    @property
    def is_site(self) -> bool:
        """Whether what the run deals may be somebody's own: it may lie on this machine."""
        return bool(self.client.own_data) or not simulated()

    def ledger(self, run_name: str) -> Ledger:
        """Of a site its own, of a simulated client one a run.

        Raises:
            PrivacyError: a site that states no limit has none to spend from.
        """
        # here, too: what `start` knows of the encoder depends on the order of the features
        if self.is_site and self.limit is None:
            raise PrivacyError(NO_LIMIT)
        folder = home() if self.is_site else self.client.store(run_name).folder
        return Ledger(folder / "privacy", self.limit)

    def spec(self, spec: DataSpec) -> DataSpec:
        client = self.client
        return private_spec(client.settings, client.node, spec, bool(client.own_data), simulated())

    def start(self, load: LoadData) -> None:
        self.limit = _read_limit(self.client.node)
        if self.encoded is not None and self.is_site and self.limit is None:
            raise PrivacyError(NO_LIMIT)

    def identity(self, identity: Identity) -> Identity:
        """What may be told of a client before training.

        Raises:
            LedgerError: the site's ledger would refuse the release.
        """
        settings = self.client.settings
        if self.is_site and self.encoded is not None:
            self.ledger("").refuse(self._make_request(""))
        promise = (
            f"one noisy release of its training samples, the same in every round (ε = {settings.privacy_epsilon:g}, δ "
            f"= {settings.privacy_delta:g}, for one {UNITS[settings.privacy_unit]} more or less)"
        )
        measured = "figures of its samples in the clear, outside the guarantee (`privacy-measure`)"
        disclosures = [
            "its model's name and size",
            *([promise] if self.encoded else []),
            *([measured] if self.is_measured else []),
            *(["its domain"] if identity.domain else []),
            *(["its name"] if identity.name else []),
        ]
        all_classes = tuple(range(len(identity.class_names)))
        return replace(identity, classes=all_classes, class_counts=(), rows=(), discloses=tuple(disclosures))

    def prepare(
        self, inner: Callable[[Instruction], "Preparation | Report"], instruction: Instruction
    ) -> "Preparation | Report":
        """A round of training up to the training itself; where it has failed already, the reply."""
        plain, means = parted(instruction.payload)
        preparation = self._try_step(instruction, lambda: inner(replace(instruction, payload=plain)))
        if preparation is None or isinstance(preparation, Report):
            return self._make_reply(instruction, preparation, means, self._release_payload(instruction))
        return replace(preparation, kept={**preparation.kept, ENTRY: means})

    def finish(
        self,
        inner: Callable[["Preparation", Outcome], Report],
        preparation: "Preparation",
        outcome: Outcome,
    ) -> Report:
        """The rest of it, of which the release leaves."""
        instruction = preparation.instruction
        report = self._try_step(instruction, lambda: inner(preparation, outcome))
        return self._make_reply(instruction, report, preparation.kept[ENTRY], self._release_payload(instruction))

    def evaluate(self, inner: Callable[[Instruction], Report], instruction: Instruction) -> Report:
        """An evaluation, of which nothing leaves."""
        plain, means = parted(instruction.payload)
        report = self._try_step(instruction, lambda: inner(replace(instruction, payload=plain)))
        return self._make_reply(instruction, report, means, None)

    def _try_step(self, instruction: Instruction, step: Callable[[], T]) -> T | None:
        """What a step gives; None where it has failed, which stays at the site."""
        try:
            return step()
        except OtherHomeError:
            raise
        except Exception as error:
            self._note_error(instruction, error)
            return None

    def _make_reply(
        self, instruction: Instruction, report: Report | None, means: PrototypeSet | None, payload: Payload | None
    ) -> Report:
        constant = Report(self.client.partition, instruction.round, payload=payload)
        try:
            if report is not None and means is not None:
                self.client.store(instruction.run).save_prototypes(MEANS, means)
                report = self._add_encoder_rule(report, means)
            if report is not None:
                self._note(instruction, report)
        except Exception as error:
            self._note_error(instruction, error)
        if not self.is_measured or report is None:
            return constant
        return replace(constant, evaluation=report.evaluation, training=report.training, problem=report.problem)

    # --- the release ----------------------------------------------------------------------------------------

    def _release_payload(self, instruction: Instruction) -> Payload | None:
        if self.encoded is None:
            return None
        request = self._make_request(instruction.run)
        release = self.ledger(instruction.run).release(request, self._compute_sums)
        scale = self.client.settings.privacy_scale
        release_parts = finished(release, request.variance, request.shape, scale)
        round_number = own_round(instruction.constants, instruction.round)
        return self.client.objective.released(*release_parts, round_number)

    def _make_request(self, run: str) -> Asked:
        settings = self.client.settings
        assert self.encoded is not None
        encoder = self.encoded.encoder
        moments = any(spec.kind == "mixtures" for spec in self.client.run.exchange.up)
        shape = Shape(self.client.data.num_classes, settings.feature_dim, moments)
        facts = {
            "partition": self.client.partition,
            "classes": list(self.client.data.class_names),
            "encoder": encoder.fingerprint,
            "input": self.encoded.data.transform.to_dict(),
            "split": [settings.split, settings.test_share, settings.validation_share],
        }
        variance = shape.variance(rho_of(settings.privacy_epsilon, settings.privacy_delta))
        return Asked(facts, run, settings.privacy_unit, encoder.name, shape, variance, settings.privacy_delta)

    def _compute_sums(self) -> Tensor:
        assert self.encoded is not None
        groups = self.encoded.data.groups if self.client.settings.privacy_unit == "group" else None
        return class_sums(*self.encoded.training(), self._make_request("").shape, groups)

    # --- what stays here --------------------------------------------------------------------------------------

    def _add_encoder_rule(self, report: Report, means: PrototypeSet) -> Report:
        """The evaluation with the rule `encoder`, which knows classes that the client lacks."""
        if report.evaluation is None or not len(means) or self.encoded is None:
            return report
        scores = partial(encoder_scores, means=means.to("cpu"), num_classes=self.client.data.num_classes)
        return replace(report, evaluation=self.encoded.judged(report.evaluation, scores))

    def _note(self, instruction: Instruction, report: Report) -> None:
        evaluation, training = report.evaluation, report.training
        line: dict[str, Any] = {"round": instruction.round, "trains": training is not None}
        if evaluation is not None:
            line |= {"rows": evaluation.rows, "correct": evaluation.correct}
        if training is not None:
            line |= {"training_rows": training.rows, "steps": training.steps, "loss": training.parts}
        self._append(instruction.run, line | ({"problem": report.problem} if report.problem else {}))

    def _note_error(self, instruction: Instruction, error: Exception) -> None:
        # its text may quote rows: it stays in the log of the site and in the client's own folder
        log.error("round %d: %s: %s", instruction.round, type(error).__name__, error)
        self._append(instruction.run, {"round": instruction.round, "problem": f"{type(error).__name__}: {error}"})

    def _append(self, run: str, line: dict[str, Any]) -> None:
        append(self.client.store(run).folder, FIGURES, line, "figures")


def _read_limit(node: NodeConfig) -> Limit | None:
    names = ("privacy-epsilon", "privacy-delta")
    values = [node.get(name, "") for name in names]
    if values == ["", ""]:
        return None
    for name, value in zip(names, values, strict=True):
        most = 1.0 if name == "privacy-delta" else float("inf")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < most:
            raise PrivacyError(
                f"this SuperNode's --node-config has {name}={value!r}, but a limit is an ε above 0 and a δ between 0 "
                "and 1; give it both.",
            )
    return Limit(*map(float, values))
