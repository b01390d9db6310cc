"""The ensemble at a client: its class probabilities for the shared test set."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from protosphere.client_app.evaluate import features_of
from protosphere.client_app.feature import Arrival, Feature
from protosphere.client_app.public_errors import USER_ERRORS, told
from protosphere.core.errors import SettingError
from protosphere.data.client_data import Rows, Transform
from protosphere.data.shared_test_set import refuse_unfit, shared_rows
from protosphere.strategies.contract import ClientState, Objective
from protosphere.wire.ensemble import encode_answers
from protosphere.wire.payloads import Report


class Ensemble(Feature):
    """Answers where the server asks."""

    name = "ensemble"
    needs_features = True

    def discloses(self) -> Sequence[str]:
        client = self.client
        if not client.settings.ensemble_every:
            return ()
        refuse_unfit(client.shared, client.partition, client.own_data)
        return ["its class probabilities for every row of the shared test set"]

    def answer(self, arrival: Arrival, report: Report) -> Report:
        try:
            answers = self._predict(arrival.state)
            return report if answers is None else replace(report, answers={**report.answers, self.name: answers})
        except USER_ERRORS as error:
            # a measurement that fails must not cost a round of training
            return replace(report, remark=f"no ensemble answer: {told(error, self.client.node)}")

    def _predict(self, state: ClientState) -> ArrayRecord | None:
        client = self.client
        if not client.settings.ensemble_every:
            raise SettingError.public(
                "the server asks for the ensemble's answers, but this run's `ensemble-every` is 0."
            )
        rows, fingerprint = shared_rows(client.shared, client.device, client.tokens)
        probabilities = predict(client.objective, state, rows, client.data.transform)
        return None if probabilities is None else encode_answers(probabilities, fingerprint)


@torch.no_grad()
def predict(objective: Objective, state: ClientState, rows: Rows, transform: Transform) -> Tensor | None:
    """Class probabilities of all rows for the ensemble, (n, K); None where the method can predict no class yet."""
    return objective.probabilities(state, features_of(objective, state, rows, transform))
