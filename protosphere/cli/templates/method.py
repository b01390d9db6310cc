"""A method of your own, in one file. It runs as it is:

    protosphere run -c 'strategy="./mymethod.py"'
    protosphere run -c 'strategy="./mymethod.py" mymethod.memory=0.9 rounds=30'

    server   A_j <- memory A_j + (1 - memory) mean_i p_ij     an average over rounds of the class means of all clients
    client   L = CE(g(z), y) + weight (1 - cos(z, A_y))       features turn towards the average of their class

K is the number of classes, d the setting `feature-dim`, b the size of a batch. Change what your paper changes;
docs/adding-a-method.md says what else each half may override.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch.nn.functional import cosine_similarity, cross_entropy

from protosphere import method as m


@m.method_settings
class MyMethodSettings:
    """Its settings, `mymethod.memory` and `mymethod.weight`; a value out of its range is refused by name.

    Attributes:
        memory: what stays of the average in a round, in [0, 1); 0 takes each round's means alone.
        weight: of the cosine term in the loss, 0 or more.
    """

    memory: Annotated[float, Field(ge=0, lt=1)] = 0.5
    weight: Annotated[float, Field(ge=0)] = 1.0


class Averages(m.ServerHalf):
    """The server half: what came up in a round, and what was remembered, make what goes down in the next."""

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Move the average of each class towards the mean of what its clients sent.

        `uploads` holds a payload for each client that answered, `state` the tensors of the last Outcome: nothing in
        the first round. It is kept in the checkpoint, so a resumed run continues with it.
        """
        means = m.aggregate(
            list(m.prototype_sets(uploads).values()), "mean"
        )  # a PrototypeSet: labels (k,), vectors (k, d)
        if state:
            averages = m.prototypes_of_state(state)  # the PrototypeSet that `as_state` made of the last round
            before, present = averages.table(self.num_classes)  # (K, d), and (K,) bool: the classes that have one
            memory = self.options[MyMethodSettings].memory
            moved = memory * before[means.labels] + (1 - memory) * means.vectors
            # a class that is seen for the first time has nothing to remember
            fresh = means.with_vectors(torch.where(present[means.labels].unsqueeze(1), moved, means.vectors))
            averages = averages.updated_by(fresh)  # a class that nobody sent this time stays as it was
        else:
            averages = means
        return m.Outcome(m.as_state(averages), m.to_everyone(averages))


class Cosine(m.PullObjective):
    """The client half. As a PullObjective it sends its local prototypes, the means of its features by class."""

    def loss(self, state: m.ClientState, batch: m.Batch, phase: m.Phase, round_number: int) -> m.Loss:
        """Cross-entropy, and from the second round on the cosine distance to what the server sent.

        `state` is what this client keeps: its model, its prototypes, `state.table` of what came down, and
        `state.extra`, a dict of tensors for whatever the method remembers between rounds.
        """
        z = self.features(state, batch.inputs)  # (b, d), with their gradient
        plain = cross_entropy(state.module.classify(z), batch.labels)
        if state.table is None:  # nothing has come yet
            return m.Loss(total=plain, parts={"cross-entropy": plain}, features=z)
        averages, present = state.table  # (K, d), and (K,) bool: the classes that have one
        distances = 1 - cosine_similarity(z, averages[batch.labels])  # (b,)
        pull = (distances * present[batch.labels]).mean()  # 0 for samples of a class without an average
        total = plain + self.options[MyMethodSettings].weight * pull
        # the total is minimised; the parts, unweighted, stand among the figures of a round
        return m.Loss(total=total, parts={"cross-entropy": plain, "cosine": pull}, features=z)


METHOD = m.Method(server=Averages, objective=Cosine, settings={"mymethod": MyMethodSettings})
