"""What a feature of a run does at a client, beside training and evaluation: one file of features/ each.

The client calls each of its functions at its time, in the order of the registry (features/__init__.py), and knows no
feature by name. In the base class every hook is a no-op.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from torch import Tensor

from protosphere.client_app.features import FEATURES
from protosphere.data.client_data import ClientData, Rows
from protosphere.data.partition.assignment import DataSpec
from protosphere.models.text import Tokens
from protosphere.strategies import Run
from protosphere.strategies.contract import ClientState
from protosphere.wire.codec import Codec
from protosphere.wire.payloads import Identity, Instruction, Report

if TYPE_CHECKING:
    from protosphere.client_app.client import Client, Preparation
    from protosphere.client_app.train import Outcome

LoadData = Callable[[Tokens | None], ClientData]  # the client's data by a tokenizer
Scores = Callable[[Rows, Tensor], Mapping[str, Tensor]]  # of samples and their features: rule -> (n, K)


@dataclass(frozen=True)
class Arrival:
    """A client that has taken a message, and evaluated where that was due.

    Attributes:
        state: as it predicts by the run's rule.
        predictions: rule -> labels of the test samples (n,); nothing where no evaluation was due.
        further_scores: by which features predicted; as `predictions`.
    """

    state: ClientState
    predictions: Mapping[str, Tensor]
    further_scores: Sequence[Scores] = ()


class Feature:
    """One feature at one client.

    Attributes:
        name: under which the server asks and is answered; "" where it asks nothing.
        needs_features: whether the features of the training samples have to be known for its answer.
        wraps: whether training and evaluation go through its `prepare`, `finish` and `evaluate`.
    """

    name = ""
    needs_features = False
    wraps = False

    @property
    def hides_errors(self) -> bool:
        """Whether what goes wrong, and how long an answer took, must not be told."""
        return False

    def __init__(self, client: "Client"):
        self.client = client

    @staticmethod
    def applies(run: Run) -> bool:
        """Whether the run has it, by its settings and its method."""
        return True

    @staticmethod
    def refuse(client: "Client") -> None:
        """Refuse, before its data are loaded, a client whose node config does not suit the feature, whether or not the
        run has it.

        Raises:
            SettingError: it does not.
        """

    def for_message(self, client: "Client") -> "Feature":
        """The same feature at the client that answers one message."""
        feature = copy(self)
        feature.client = client
        return feature

    # --- the client is put together, in this order ---

    def spec(self, spec: DataSpec) -> DataSpec:
        """Where the client's samples come from.

        Raises:
            SettingError: not from there.
        """
        return spec

    def start(self, load: LoadData) -> None:
        """The client's data and its objective are there.

        Raises:
            DataError, ModelError, SettingError: the feature cannot work with these.
        """

    def codec(self, codec: Codec) -> Codec:
        """How the client writes its messages."""
        return codec

    def description(self) -> Mapping[str, object]:
        """What prediction needs to know of it, for client.json."""
        return {}

    def discloses(self) -> Sequence[str]:
        """What it tells of the client, in words for the roster.

        Raises:
            DataError, SettingError: the client cannot take part in it.
        """
        return ()

    def identity(self, identity: Identity) -> Identity:
        """Who the client says it is."""
        return identity

    # --- a message ---

    def prepare(
        self, inner: "Callable[[Instruction], Preparation | Report]", instruction: Instruction
    ) -> "Preparation | Report":
        """Around the client's own `prepare`, of a feature that `wraps`."""
        return inner(instruction)

    def finish(
        self,
        inner: "Callable[[Preparation, Outcome], Report]",
        preparation: "Preparation",
        outcome: "Outcome",
    ) -> Report:
        """Around its `finish`."""
        return inner(preparation, outcome)

    def evaluate(self, inner: Callable[[Instruction], Report], instruction: Instruction) -> Report:
        """Around its `evaluate`."""
        return inner(instruction)

    def scores(self, state: ClientState, instruction: Instruction) -> Scores | None:
        """Further inference rules for the client's samples, by what has just come; None where it has none."""
        return None

    def before_upload(self, state: ClientState) -> None:
        """Training has ended; what the method may need for its upload."""

    def answer(self, arrival: Arrival, report: Report) -> Report:
        """The report with its answer, where the server asks for one."""
        return report


def features_of(client: "Client") -> list[Feature]:
    """Those that its run has, in the registry's order.

    Raises:
        SettingError: the client's node config does not suit one of all.
    """
    kinds = []
    for place in FEATURES.values():
        module, _, name = place.partition(":")
        kinds.append(getattr(import_module(module), name))
    for kind in kinds:
        kind.refuse(client)
    return [kind(client) for kind in kinds if kind.applies(client.run)]
