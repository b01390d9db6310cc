"""What a feature of a run does at a client, beside training and evaluation: one file of features/ each.

The client calls each of its functions at its time and knows no feature by name. As it stands, a feature does nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from torch import Tensor

from protosphere.client_app.features import FEATURES
from protosphere.strategies.contract import ClientState
from protosphere.wire.payloads import Instruction, Report

if TYPE_CHECKING:
    from protosphere.client_app.client import Client


@dataclass(frozen=True)
class Arrival:
    """A client that has taken a message, and evaluated where that was due.

    Attributes:
        state: as it predicts by the run's rule.
        predictions: rule -> labels of the test samples (n,); nothing where no evaluation was due.
    """

    state: ClientState
    predictions: Mapping[str, Tensor]


class Feature:
    """One feature at one client."""

    name = ""  # under which the server asks and is answered

    def __init__(self, client: "Client"):
        self.client = client

    def discloses(self) -> Sequence[str]:
        """What it tells of the client, in words for the roster.

        Raises:
            DataError, SettingError: the client cannot take part in it.
        """
        return ()

    def needs_features(self, instruction: Instruction) -> bool:
        """Whether the features of the training samples have to be known for its answer."""
        return False

    def answer(self, instruction: Instruction, arrival: Arrival, report: Report) -> Report:
        """The report, with the answer to what is asked beside."""
        return report


def features_of(client: "Client") -> list[Feature]:
    """All that are registered."""
    features = []
    for place in FEATURES.values():
        module, _, name = place.partition(":")
        features.append(getattr(import_module(module), name)(client))
    return features
