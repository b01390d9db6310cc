"""Base of methods whose clients send statistics of their samples in a public encoder's space once, and receive a linear
classifier (FedCGS, FedNCM, Fed3R, FedCOF, FedPFT, Protosphere).

    client   z = u / ||u||, u the encoder's features of its training samples (or u / max(R, ||u||), R being
             `encoder-radius`); once, what the method makes of z and y, most methods of the classes of which it has at
             least `fewest` samples
    server   counts each client once, and computes the classifier from all that have sent
    predict  `encoder`: argmax_j z w_j + b_j, over the classes that some client has sent

If clients are sampled, they send in several rounds (FedCGS: in the first), so that nearly all take part, and the first
upload of each counts. Each client also trains a private model of any architecture, alone, as `local` does (Protosphere:
pulled to a frame).

A client's weight is its sample count, capped by `max-weight-ratio`. By default, no other protection applies (except in
Protosphere), because these methods promise the classifier of all samples; `<method>.aggregation` offers robust centres.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from protosphere import method as m
from protosphere.core.client_names import client_word
from protosphere.strategies.encoder_space import CLASSIFIER, directions, discriminant_layout, linear_scores
from protosphere.strategies.release import RULE
from protosphere.strategies.weights import refuse_other_layouts

DOWN = m.Part("weights", CLASSIFIER, dtype="float32")
SEEN = 3  # after so many times 1 / fraction rounds, one client in twenty has never been sampled
MOST_NAMES = 10  # names listed in a sentence
HEARD = "heard"  # entry of the state, and metric: the clients that have sent, in order of arrival
SMALLEST_BOUND = 10.0  # times the square root of K: the least norm bound that a classifier's part `known` needs


class OneExchangeObjective(m.SpaceObjective):
    """Client half: it trains like `local`, unless a method overrides that.

    Attributes:
        kind: the method's settings.
        part: the part of the download that holds the classifier.
    """

    kind: type[Any]
    part = CLASSIFIER

    @staticmethod
    def last_round(settings: m.Settings, options: m.Options) -> int:
        """The last round in which clients send: the first if all of them train in each round."""
        return 1 if settings.fraction_train == 1 else math.ceil(SEEN / settings.fraction_train)

    @staticmethod
    def layouts(num_classes: int, dim: int) -> Mapping[str, m.Layout]:
        """Layouts of the parts of weights, by name."""
        return {CLASSIFIER: discriminant_layout(num_classes, dim)}

    def summarise(self, features: Tensor, labels: Tensor) -> m.Payload | None:
        """The upload, from the encoder's features u (n, d) and labels (n,) of the training samples."""
        raise NotImplementedError

    def sent_samples(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """z (n, d) float64 and labels (n,) of the classes with enough samples; n may be 0."""
        counts = torch.bincount(labels, minlength=self.num_classes)
        is_sent = counts[labels] >= self.options[self.kind].fewest
        return directions(features, self.settings.encoder_radius)[is_sent], labels[is_sent]

    def shared(self, module: nn.Module) -> dict[str, m.Weights]:
        """No weights of the model: the parts of weights before anything is known."""
        layouts = self.layouts(self.num_classes, self.settings.feature_dim)
        return {part: m.Weights({name: torch.zeros(size) for name, size in layout}) for part, layout in layouts.items()}

    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet | None:
        """None: what is received lies in the encoder's space."""
        return None

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        """The method's statistics of the samples, in the first rounds."""
        if round_number > self.last_round(self.settings, self.options) or state.encoded is None:
            return None
        return self.summarise(*state.encoded())

    def encoded_scores(self, space: m.Payload | None, directions: Tensor) -> Tensor | None:
        """z w_j + b_j."""
        return linear_scores(space, self.part, directions)


class OneExchange(m.CheckedServer):
    """Server half: each client's first upload counts; warns of clients that have sent none.

    Attributes:
        objective: the client half, which knows the layouts and when clients send.
        needs_unit_vectors: whether the mathematics excludes an `encoder-radius`.
    """

    objective: type[OneExchangeObjective]
    needs_unit_vectors = False

    @property
    def last_round(self) -> int:
        """The last round in which clients send."""
        return self.objective.last_round(self.settings, self.options)

    @property
    def remedy(self) -> str:
        """What includes clients that sent nothing; the end of a sentence."""
        return "; `fraction-train` 1 asks all of them" if self.settings.fraction_train < 1 else ""

    @property
    def aggregation(self) -> m.ClassAggregation:
        """How each class's means are aggregated."""
        how: m.ClassAggregation = self.options[self.objective.kind].aggregation
        return how

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Check the norm bound, the encoder's radius, and that all clients' layouts are equal."""
        settings = self.settings
        smallest_bound = SMALLEST_BOUND * num_classes**0.5
        if settings.max_prototype_norm < smallest_bound:
            raise m.SettingError(
                f"setting `max-prototype-norm` is {settings.max_prototype_norm:g}, but the classifier that "
                f"`{settings.strategy}` sends of {num_classes} classes needs {smallest_bound:.3g}; raise it."
            )
        if self.needs_unit_vectors and settings.encoder_radius:
            raise m.SettingError(
                f"setting `encoder-radius` is {settings.encoder_radius}, but `{settings.strategy}` works with unit "
                "vectors; remove it (0)."
            )
        for part, layout in self.objective.layouts(num_classes, dim).items():
            refuse_other_layouts(self, part, layout)
        if self.last_round == 1 and settings.fraction_train < 1:
            return ("only the clients that train in round 1 send their statistics",)
        return ()

    def expected_parts(self, up: tuple[m.Part, ...], state: m.State, server_round: int) -> tuple[m.Part, ...]:
        """Uploads in the first rounds only."""
        return up if server_round <= self.last_round else ()

    def learn(self, uploads: Mapping[int, m.Payload], state: m.State) -> tuple[m.Outcome, Tensor]:
        """The classifier of all clients that have sent so far, and the classes that some client has sent, (K,) bool.

        Args:
            uploads: of clients that had not sent before; at least one.
        """
        raise NotImplementedError

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Learn from new clients; otherwise the last classifier stays."""
        heard = state[HEARD].tolist() if state else []
        fresh = {partition: upload for partition, upload in uploads.items() if partition not in heard}
        heard = [*heard, *fresh]
        figures = {HEARD: len(heard)}
        if not fresh:
            return m.Outcome(state, {}, figures, self.warnings(heard, None, server_round), keeps=True)
        outcome, present = self.learn(fresh, state)
        return replace(
            outcome,
            state={HEARD: torch.tensor(heard, dtype=torch.int64), **outcome.state},
            figures={**figures, **outcome.figures},
            warnings=self.warnings(heard, present, server_round),
        )

    def warnings(self, heard: Collection[int], present: Tensor | None, server_round: int) -> tuple[str, ...]:
        """Warn, once no client will send any more, of clients that are in no classifier, or that there is none.

        Args:
            heard: the clients that have sent.
            present: the classes that some client sent, (K,) bool; None if that has not changed.
        """
        if server_round < min(self.settings.rounds, self.last_round):
            return ()
        warnings = []
        if missing := sorted(set(self.identities) - set(heard)):
            remedy = self.remedy
            if server_round < self.last_round:
                remedy = "; more `rounds` include more clients"
            names = ", ".join(client_word(partition) for partition in missing[:MOST_NAMES])
            if len(missing) > MOST_NAMES:
                names += f" and {len(missing) - MOST_NAMES} more"
            warnings.append(
                f"{names} sent nothing in the rounds in which clients send, so the shared classifier contains none of "
                f"its samples{remedy}."
            )
        if present is not None and not present.any():
            reason = ""
            if hasattr(self.options[self.objective.kind], "fewest"):
                setting = f"`{self.settings.strategy}.fewest`"
                reason = f": each has fewer samples of every class than {setting}; lower it"
            warnings.append(f"no client sent a class, so there is no shared classifier{reason}.")
        return tuple(warnings)


# The row that methods of this family start from; each replaces what differs.
ONE_EXCHANGE = m.Method(
    server=OneExchange,
    objective=OneExchangeObjective,
    inference=RULE,
    rules=("local-prototypes", "classifier", "discriminant", RULE),
    counts_own_rounds=True,
    # the server weights clients by their sample counts
    ignored_settings=lambda options: frozenset(),
)
