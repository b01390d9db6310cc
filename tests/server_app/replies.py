"""Replies of round 5 as honest clients give them."""

from dataclasses import replace

import torch

from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.wire.payloads import Evaluation, Report, TrainingFigures
from tests.payloads import payload

ROUND = 5  # as `ask` numbers it
EVALUATION = Evaluation((6, 4), {"classifier": (3, 2)}, 0.1)
TRAINING = TrainingFigures(20, 2, {"loss": 1.0})


def upload(partition, classes=(0, 2)):
    vectors = torch.arange(3.0 * len(classes)).reshape(-1, 3) + partition
    return payload(PrototypeSet(torch.tensor(classes), vectors))


def trained(partition, **changes):
    return replace(Report(partition, ROUND, upload(partition), TRAINING), **changes)


def evaluated(partition):
    return Report(partition, ROUND, evaluation=EVALUATION)
