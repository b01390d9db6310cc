"""What a feature of a run does at a client, beside training and evaluation: one file of features/ each.

The client calls each of its functions at its time and knows no feature by name. As it stands, a feature does nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from torch import Tensor

from protosphere.client_app.features import FEATURES
from protosphere.strategies.contract import ClientState
from protosphere.wire.payloads import Report

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
    """One feature at one client.

    Attributes:
        name: under which the server asks and is answered, and under which it is registered.
        needs_features: whether the features of the training samples have to be known for its answer.
    """

    name = ""
    needs_features = False

    def __init__(self, client: "Client"):
        self.client = client

    def refuse(self) -> None:
        """Refuse, before its data are loaded, a client whose node config does not suit the feature.

        Raises:
            SettingError: it does not.
        """

    def discloses(self) -> Sequence[str]:
        """What it tells of the client, in words for the roster.

        Raises:
            DataError, SettingError: the client cannot take part in it.
        """
        return ()

    def answer(self, arrival: Arrival, report: Report) -> Report:
        """The report with its answer, where the server asks for one."""
        return report


def features_of(client: "Client", names: Collection[str] = tuple(FEATURES)) -> list[Feature]:
    """Those of these names that are registered; all by default."""
    features = []
    for place in [place for name, place in FEATURES.items() if name in names]:
        module, _, name = place.partition(":")
        features.append(getattr(import_module(module), name)(client))
    return features
