"""The ensemble at a client: its class probabilities for the shared test set."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from protosphere.client_app.evaluate import features_of
from protosphere.client_app.feature import Arrival, Feature
from protosphere.client_app.public_errors import USER_ERRORS, told
from protosphere.core.errors import SettingError
from protosphere.data.client_data import Rows, Transform
from protosphere.data.shared_test_set import refuse_unfit, shared_rows
from protosphere.strategies.contract import ClientState, Objective
from protosphere.wire.payloads import Answers, Instruction, Report


class Ensemble(Feature):
    """Answers where the server asks."""

    def discloses(self) -> Sequence[str]:
        client = self.client
        if not client.settings.ensemble_every:
            return ()
        refuse_unfit(client.shared, client.partition, client.own_data)
        return ["its class probabilities for every row of the shared test set"]

    def needs_features(self, instruction: Instruction) -> bool:
        return instruction.ensemble

    def answer(self, instruction: Instruction, arrival: Arrival, report: Report) -> Report:
        if not instruction.ensemble:
            return report
        try:
            return replace(report, answers=self._predict(arrival.state))
        except USER_ERRORS as error:
            # a measurement that fails must not cost a round of training
            return replace(report, remark=f"no ensemble answer: {told(error, self.client.node)}")

    def _predict(self, state: ClientState) -> Answers | None:
        client = self.client
        if not client.settings.ensemble_every:
            raise SettingError.public(
                "the server asks for the ensemble's answers, but this run's `ensemble-every` is 0."
            )
        rows, fingerprint = shared_rows(client.shared, client.device, client.tokens)
        probabilities = predict(client.objective, state, rows, client.data.transform)
        return None if probabilities is None else Answers(probabilities, fingerprint)


@torch.no_grad()
def predict(objective: Objective, state: ClientState, rows: Rows, transform: Transform) -> Tensor | None:
    """Class probabilities of all rows for the ensemble, (n, K); None where the method can predict no class yet."""
    return objective.probabilities(state, features_of(objective, state, rows, transform))
