"""Everything that a method's file needs, in one import.

    from protosphere import method as m

A method has two halves and a row: a subclass of `Objective` (the client), one of `ServerHalf` (the server), and a
`Method` that joins them. docs/adding-a-method.md shows both halves at work.
"""

from protosphere.core.errors import RunError as RunError
from protosphere.core.errors import SettingError as SettingError
from protosphere.core.seeds import derive as derive
from protosphere.core.seeds import generator as generator
from protosphere.core.settings import RECEIVED as RECEIVED
from protosphere.core.settings import RULES as RULES
from protosphere.core.settings import AtLeastOne as AtLeastOne
from protosphere.core.settings import Count as Count
from protosphere.core.settings import NotNegative as NotNegative
from protosphere.core.settings import Positive as Positive
from protosphere.core.settings import Settings as Settings
from protosphere.core.settings import Share as Share
from protosphere.models.split import SplitModel as SplitModel
from protosphere.prototypes.aggregation import ClassAggregation as ClassAggregation
from protosphere.prototypes.aggregation import aggregate as aggregate
from protosphere.prototypes.losses import prototype_pull as prototype_pull
from protosphere.prototypes.mixture_set import MixtureSet as MixtureSet
from protosphere.prototypes.prototype_set import ClassVectors as ClassVectors
from protosphere.prototypes.prototype_set import PrototypeSet as PrototypeSet
from protosphere.prototypes.weights import Layout as Layout
from protosphere.prototypes.weights import Weights as Weights
from protosphere.strategies.contract import EVERYONE as EVERYONE
from protosphere.strategies.contract import MIXTURES as MIXTURES
from protosphere.strategies.contract import NOTHING as NOTHING
from protosphere.strategies.contract import OF_CLAIMS as OF_CLAIMS
from protosphere.strategies.contract import PROTOTYPES as PROTOTYPES
from protosphere.strategies.contract import Batch as Batch
from protosphere.strategies.contract import CheckedServer as CheckedServer
from protosphere.strategies.contract import ClientState as ClientState
from protosphere.strategies.contract import Exchange as Exchange
from protosphere.strategies.contract import Figure as Figure
from protosphere.strategies.contract import Loss as Loss
from protosphere.strategies.contract import Method as Method
from protosphere.strategies.contract import MethodError as MethodError
from protosphere.strategies.contract import Objective as Objective
from protosphere.strategies.contract import Options as Options
from protosphere.strategies.contract import Outcome as Outcome
from protosphere.strategies.contract import Part as Part
from protosphere.strategies.contract import Phase as Phase
from protosphere.strategies.contract import Pulled as Pulled
from protosphere.strategies.contract import PullObjective as PullObjective
from protosphere.strategies.contract import ServerHalf as ServerHalf
from protosphere.strategies.contract import SpaceObjective as SpaceObjective
from protosphere.strategies.contract import SparseServer as SparseServer
from protosphere.strategies.contract import State as State
from protosphere.strategies.contract import WeightsObjective as WeightsObjective
from protosphere.strategies.contract import as_state as as_state
from protosphere.strategies.contract import fill_missing_classes as fill_missing_classes
from protosphere.strategies.contract import local_prototypes as local_prototypes
from protosphere.strategies.contract import method_settings as method_settings
from protosphere.strategies.contract import prototype_sets as prototype_sets
from protosphere.strategies.contract import prototypes_of_state as prototypes_of_state
from protosphere.strategies.contract import scaled as scaled
from protosphere.strategies.contract import to_everyone as to_everyone
from protosphere.strategies.release import any_options as any_options
from protosphere.wire.payloads import Identity as Identity
from protosphere.wire.payloads import Payload as Payload
from protosphere.wire.payloads import class_vectors as class_vectors
from protosphere.wire.payloads import part_of as part_of
from protosphere.wire.payloads import prototypes_of as prototypes_of
from protosphere.wire.payloads import weights_of as weights_of
