"""A client under `privacy`: it sends one noisy release, the same in every round, and nothing else.

Training, evaluation and their errors stay at the client: metrics and messages go to the client's store, and the reply
is a function of public facts and the release. A sample therefore affects the bytes that leave only through the release.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from flwr.app import Context
from torch import Tensor

from protosphere.client_app.client import Client
from protosphere.client_app.privacy_ledger import Asked, Ledger, Limit
from protosphere.client_app.site import NodeConfig, simulated
from protosphere.core.errors import PrivacyError
from protosphere.core.home import OtherHomeError, home
from protosphere.data.spec import DataSpec
from protosphere.prototypes.accounting import rho_of
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.prototypes.release import Shape, class_sums, finished
from protosphere.strategies.contract import ClientState, own_round
from protosphere.strategies.release import encoder_scores, split_means
from protosphere.wire.payloads import Identity, Instruction, Payload, Report

log = logging.getLogger("protosphere")

FIGURES = "figures.jsonl"
UNITS = {"row": "sample", "group": "group"}  # names of `privacy-unit`
MEANS = "encoder-means"  # a file in the client's store
NO_LIMIT = "it states no limit: give its SuperNode privacy-epsilon and privacy-delta."


def site_ledger() -> Ledger:
    """The ledger in PROTOSPHERE_HOME."""
    return Ledger(home() / "privacy")


class PrivateClient(Client):
    """A client that shares its private samples only through a release.

    Attributes:
        limit: the budget in the site's node config; None if there is none.
    """

    def __init__(self, context: Context):
        super().__init__(context)
        self.hides_errors = not self.settings.privacy_measure
        self.limit = _read_limit(self.node)
        if self.encoded is not None and self._is_site and self.limit is None:
            raise PrivacyError(NO_LIMIT)

    def _data_spec(self, spec: DataSpec) -> DataSpec:
        """A site's samples are split by the site's secret, and its classes must be listed, so that no sample creates a
        class.

        Raises:
            PrivacyError: with this setting, one sample would affect others or what is sent.
            LedgerError: the secret cannot be read or written.
        """
        settings = self.settings
        if settings.privacy_measure and self._is_site:
            raise PrivacyError("setting `privacy-measure` is true on a client with its own data; it is for simulation.")
        if settings.privacy_unit == "group" and not spec.columns.group:
            raise PrivacyError('`group-column` is empty, which `privacy-unit = "group"` needs.')
        if not self.own_data:
            return spec
        if settings.privacy_unit == "row" and spec.columns.group:
            raise PrivacyError(
                'its samples come in groups, which stay together in splits; set `privacy-unit` to "group", or remove '
                "`group-column`."
            )
        if spec.code is not None:
            raise PrivacyError("its samples come from its own code; under `privacy` give --data a folder or a file.")
        if settings.max_samples:
            raise PrivacyError(
                f"setting `max-samples` is {settings.max_samples}, so that adding one sample could exclude another; "
                "under `privacy`, a site's own data need 0."
            )
        return replace(spec, secret=site_ledger().site_key().hex(), listed="all")

    @property
    def _is_site(self) -> bool:
        """Whether the samples may belong to a site, even those of the run's own data set, which may lie on this
        machine."""
        return bool(self.own_data) or not simulated()

    def ledger(self, run_name: str) -> Ledger:
        """The site's ledger, or for a simulated client one per run."""
        folder = home() if self._is_site else self.store(run_name).folder
        return Ledger(folder / "privacy", self.limit)

    def identity(self) -> Identity:
        """What a client may disclose before training.

        Raises:
            LedgerError: the site's ledger would refuse the release.
        """
        identity = super().identity()
        if self._is_site and self.encoded is not None:
            self.ledger("").refuse(self._make_request(""))
        all_classes = tuple(range(len(identity.class_names)))
        return replace(identity, classes=all_classes, rows=())

    def _list_disclosures(self) -> list[str]:
        settings = self.settings
        disclosures = ["its model's name and size"]
        if self.encoded is not None:
            disclosures.append(
                "one noisy release of its training samples, the same in every round (ε = "
                f"{settings.privacy_epsilon:g}, δ = {settings.privacy_delta:g}, for one {UNITS[settings.privacy_unit]} "
                "more or less)"
            )
        if settings.privacy_measure:
            disclosures.append("figures of its samples in the clear, outside the guarantee (`privacy-measure`)")
        if self.domain:
            disclosures.append("its domain")
        if self.name:
            disclosures.append("its name")
        return disclosures

    def train(self, instruction: Instruction) -> Report:
        """A round of training, from which only the release is sent."""
        report = self._run_privately(instruction, super().train)
        return self._make_reply(instruction, report, self._release_payload(instruction))

    def evaluate(self, instruction: Instruction) -> Report:
        """An evaluation, from which nothing is sent."""
        report = self._run_privately(instruction, super().evaluate)
        return self._make_reply(instruction, report, None)

    def _run_privately(self, instruction: Instruction, step: Callable[[Instruction], Report]) -> Report | None:
        """Run a step whose result stays at the site; returns None if it failed. This is the only `try` of a private
        client: nothing that depends on a sample passes it.

        Raises:
            OtherHomeError: it concerns the whole run.
        """
        try:
            plain, means = split_means(instruction.payload)
            report = step(replace(instruction, payload=plain))
            if means is not None:
                self.store(instruction.run).save_named(MEANS, {MEANS: means})
                report = self._add_encoder_rule(report, means)
            self._note(instruction, report)
        except OtherHomeError:
            raise
        except Exception as error:
            self._note_error(instruction, error)
            return None
        return report

    def _make_reply(self, instruction: Instruction, report: Report | None, payload: Payload | None) -> Report:
        reply = Report(self.partition, instruction.round, payload=payload)
        if not self.settings.privacy_measure or report is None:
            return reply
        return replace(reply, evaluation=report.evaluation, training=report.training, problem=report.problem)

    # --- the release ----------------------------------------------------------------------------------------

    def _release_payload(self, instruction: Instruction) -> Payload | None:
        if self.encoded is None:
            return None
        request = self._make_request(instruction.run)
        release = self.ledger(instruction.run).release(request, self._compute_sums)
        scale = self.settings.privacy_scale
        prototypes, variances = finished(release, request.variance, request.shape, scale)
        # it contains only the release
        state = ClientState(None, prototypes=prototypes, variances=variances)
        return self.objective.upload(state, own_round(instruction.constants, instruction.round))

    def _make_request(self, run: str) -> Asked:
        settings = self.settings
        assert self.encoded is not None
        encoder = self.encoded.encoder
        moments = any(spec.kind == "mixtures" for spec in self.run.exchange.up)
        shape = Shape(self.data.num_classes, settings.feature_dim, moments)
        facts = {
            "partition": self.partition,
            "classes": list(self.data.class_names),
            "encoder": encoder.fingerprint,
            "input": self.encoded.data.transform.to_dict(),
            "split": [settings.split, settings.test_share, settings.validation_share],
        }
        variance = shape.variance(rho_of(settings.privacy_epsilon, settings.privacy_delta))
        return Asked(facts, run, settings.privacy_unit, encoder.name, shape, variance, settings.privacy_delta)

    def _compute_sums(self) -> Tensor:
        assert self.encoded is not None
        groups = self.encoded.data.groups if self.settings.privacy_unit == "group" else None
        features, labels = self.encoded.training()
        return class_sums(features, labels, self._make_request("").shape, groups)

    # --- what stays here --------------------------------------------------------------------------------------

    def _add_encoder_rule(self, report: Report, means: PrototypeSet) -> Report:
        """Add the rule `encoder`, which also knows classes that the client lacks."""
        if report.evaluation is None or not len(means) or self.encoded is None:
            return report
        scores = partial(encoder_scores, means=means.to("cpu"), num_classes=self.data.num_classes)
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
        # its text may quote samples: it stays in the site's log and the client's folder
        log.error("round %d: %s: %s", instruction.round, type(error).__name__, error)
        self._append(instruction.run, {"round": instruction.round, "problem": f"{type(error).__name__}: {error}"})

    def _append(self, run: str, line: dict[str, Any]) -> None:
        # if the disk is full, only the site's log says so
        folder = self.store(run).folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / FIGURES).open("ab+") as file:
                # a killed process may have left half a line
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
                file.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            log.error("the metrics in %s cannot be written: %s", folder, error)


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
