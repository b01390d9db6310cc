"""Base of methods whose clients send statistics of their samples in a public encoder's space once, and receive a linear
classifier (FedNCM, Fed3R, FedCOF, FedPFT).

    client   z = u / ||u||, u the encoder's features of its training samples (or u / max(R, ||u||), R being
             `encoder-radius`); once, of the classes of which it has at
             least `fewest` samples, what the method makes of z and y
    server   counts each client once, and computes the classifier from all that have sent
    predict  `encoder`: argmax_j z w_j + b_j, over the classes that some client has sent

If clients are sampled, they send in several rounds, so that nearly all take part, and the first upload of each counts.
Each client also trains a private model of any architecture, alone, as `local` does.

A client's weight is its sample count, capped by `max-weight-ratio`. By default, no other protection applies, because
these methods promise the classifier of all samples; `<method>.aggregation` offers robust centres.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from protosphere import method as m
from protosphere.core.client_names import client_word
from protosphere.strategies.encoder_space import (
    CLASSIFIER,
    check_space,
    directions,
    discriminant_layout,
    linear_scores,
    unknown,
)
from protosphere.strategies.release import RULE

RULES = ("local-prototypes", "classifier", "discriminant", RULE)
DOWN = m.Part("weights", CLASSIFIER, dtype="float32")
SEEN = 3  # after so many times 1 / fraction rounds, one client in twenty has never been sampled
MOST_NAMES = 10  # names listed in a sentence
P = TypeVar("P", bound=m.ClassVectors)


def rounds_of_exchange(settings: m.Settings) -> int:
    """The number of rounds, from the first, in which clients send: one if all clients train in each round."""
    return 1 if settings.fraction_train == 1 else math.ceil(SEEN / settings.fraction_train)


def some_of(names: Sequence[object]) -> str:
    """The first few names for a sentence, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(map(str, names[:MOST_NAMES])) + (f" and {more} more" if more > 0 else "")


class OneExchangeObjective(m.SpaceObjective):
    """Client half: trains like `local`."""

    @property
    def fewest(self) -> int:
        """Classes with fewer samples are not sent."""
        raise NotImplementedError

    def summarise(self, features: Tensor, labels: Tensor, samples: int) -> m.Payload:
        """The upload, from z (n, d) float64 and labels (n,); n may be 0.

        Args:
            samples: the client's number of samples, including those of classes that are not sent.
        """
        raise NotImplementedError

    @staticmethod
    def layouts(options: m.Options, num_classes: int, dim: int) -> Mapping[str, m.Layout]:
        """Layouts of the parts of weights, by name."""
        return {CLASSIFIER: discriminant_layout(num_classes, dim)}

    def shared(self, module: nn.Module) -> dict[str, m.Weights]:
        """No weights of the model: the parts of weights before anything is known."""
        return unknown(self.layouts(self.options, self.num_classes, self.settings.feature_dim))

    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet | None:
        """None: what is received lies in the encoder's space."""
        return None

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        """The method's statistics of the samples, in the first rounds."""
        if round_number > rounds_of_exchange(self.settings) or state.encoded is None:
            return None
        features, labels = state.encoded()
        counts = torch.bincount(labels, minlength=self.num_classes)
        is_sent = counts[labels] >= self.fewest
        return self.summarise(directions(features, self.settings.encoder_radius)[is_sent], labels[is_sent], len(labels))

    def encoded_scores(self, space: m.Payload | None, directions: Tensor) -> Tensor | None:
        """z w_j + b_j."""
        return linear_scores(space, CLASSIFIER, directions)


class OneExchange(m.CheckedServer):
    """Server half: tracks which clients have sent, and warns of the others.

    Attributes:
        objective: the client half, which knows the layouts.
    """

    objective: type[OneExchangeObjective] = OneExchangeObjective

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """Check that no value of a vector is masked and that all clients have the same dimension."""
        check_space(self, num_classes, dim, self.objective.layouts(self.options, num_classes, dim))
        return ()

    def expected_parts(self, up: tuple[m.Part, ...], state: m.State, server_round: int) -> tuple[m.Part, ...]:
        """Uploads in the first rounds only."""
        return up if server_round <= rounds_of_exchange(self.settings) else ()

    def ends(self, server_round: int) -> bool:
        """Whether no client will send after this round, or the run ends with it."""
        return server_round >= min(self.settings.rounds, rounds_of_exchange(self.settings))

    def unheard(self, heard: Collection[int], server_round: int) -> tuple[str, ...]:
        """Warn, once no client will send any more, of clients that are in no classifier."""
        missing = sorted(set(self.identities) - set(heard))
        if not missing or not self.ends(server_round):
            return ()
        remedy = "; `fraction-train` 1 asks all of them" if self.settings.fraction_train < 1 else ""
        return (
            f"{some_of([client_word(partition) for partition in missing])} sent nothing in the rounds in which "
            f"clients send, so the shared classifier contains none of its samples{remedy}.",
        )

    def unknown(self, present: Tensor) -> tuple[str, ...]:
        """Warn that there is no classifier, if no client sent a class.

        Args:
            present: the classes that some client sent, (K,) bool.
        """
        if present.any():
            return ()
        return (
            "no client sent a class, so there is no shared classifier: each has fewer samples of every class than "
            f"`{self.settings.strategy}.fewest`; lower it.",
        )


@dataclass
class FirstUploads(Generic[P]):
    """The first upload of each client, as stored in the method's state.

    Attributes:
        kind: the type of the parts.
        by_client: partition -> its part with class counts, in order of arrival.
    """

    kind: type[P]
    by_client: dict[int, P]

    @classmethod
    def of(cls, kind: type[P], state: m.State) -> "FirstUploads[P]":
        """From a state; empty if the state has no uploads."""
        by_client, start = {}, 0
        sizes = state["sizes"].tolist() if state else []
        for partition, size in zip(state["heard"].tolist() if state else [], sizes, strict=True):
            fields = {name: state[name][start : start + size] for name in state if name not in ("heard", "sizes")}
            by_client[partition] = kind.from_fields(fields)
            start += size
        return cls(kind, by_client)

    def add(self, uploads: Mapping[int, P]) -> bool:
        """Add uploads of clients that had none; returns whether there was one."""
        fresh = {partition: part for partition, part in uploads.items() if partition not in self.by_client}
        self.by_client |= fresh
        return bool(fresh)

    def as_state(self) -> m.State:
        """Inverse of `of`."""
        parts = [part.fields() for part in self.by_client.values()]
        sizes = torch.tensor([len(part) for part in self.by_client.values()], dtype=torch.int64)
        state = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return state | {"heard": torch.tensor(list(self.by_client), dtype=torch.int64), "sizes": sizes}

    @property
    def parts(self) -> dict[int, P]:
        """In ascending order of partitions, so that the order of arrival has no effect."""
        return dict(sorted(self.by_client.items()))
