"""The ensemble at a client: its class probabilities for the shared test set."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from protosphere.client_app.evaluate import features_of
from protosphere.client_app.feature import Arrival, Feature
from protosphere.client_app.public_errors import USER_ERRORS, public_words
from protosphere.client_app.site import read_columns, site_spec, text
from protosphere.core.errors import SettingError
from protosphere.data.client_data import Rows, Transform
from protosphere.data.from_settings import shared_test_spec
from protosphere.data.shared_test_set import SharedTestSpec, refuse_unfit, shared_rows
from protosphere.strategies import Run
from protosphere.strategies.contract import ClientState, Objective
from protosphere.wire.ensemble import encode_answers
from protosphere.wire.payloads import Report

if TYPE_CHECKING:
    from protosphere.client_app.client import Client


class Ensemble(Feature):
    """Answers where the server asks."""

    name = "ensemble"
    needs_features = True

    @staticmethod
    def applies(run: Run) -> bool:
        return bool(run.settings.ensemble_every)

    @staticmethod
    def refuse(client: "Client") -> None:
        path = text(client.node, "shared-test-path")
        if path and client.settings.ensemble_every and not client.settings.shared_test_path:
            raise SettingError(
                f"the node config has shared-test-path={path!r}, but the run's setting of that name is empty: set it "
                "to where the server has the same test set.",
            )

    def discloses(self) -> Sequence[str]:
        client = self.client
        refuse_unfit(self.shared_test_spec(), client.partition, client.own_data)
        return ["its class probabilities for every sample of the shared test set"]

    def shared_test_spec(self) -> SharedTestSpec:
        """Where the shared test set lies for this client."""
        client, path = self.client, text(self.client.node, "shared-test-path")
        spec = site_spec(client.node, client.settings, client.partitions)
        shared = shared_test_spec(client.settings, client.partitions, path, code=not client.own_data)
        return replace(shared, spec=spec, columns=read_columns(client.node, client.settings) if path else None)

    def answer(self, arrival: Arrival, report: Report) -> Report:
        try:
            answers = self._predict(arrival.state)
            return report if answers is None else replace(report, answers={**report.answers, self.name: answers})
        except USER_ERRORS as error:
            # a measurement that fails must not cost a round of training
            return replace(report, remark=f"no ensemble answer: {public_words(error, self.client.node)}")

    def _predict(self, state: ClientState) -> ArrayRecord | None:
        client = self.client
        rows, fingerprint = shared_rows(self.shared_test_spec(), client.device, client.tokens)
        probabilities = predict(client.objective, state, rows, client.data.transform)
        return None if probabilities is None else encode_answers(probabilities, fingerprint)


@torch.no_grad()
def predict(objective: Objective, state: ClientState, rows: Rows, transform: Transform) -> Tensor | None:
    """Class probabilities of all rows for the ensemble, (n, K); None where the method can predict no class yet."""
    return objective.probabilities(state, features_of(objective, state, rows, transform))
