"""A paper's method combined with the default's exchange: the rows of benchmarks/tables/joined.toml.

Private models train as ProtoNorm has it, with targets that all clients share, in place of the seed's frame. Beside
their prototypes clients send what Protosphere sends, and the rule `pool` joins the private model with the exchanged
discriminant. The discriminant comes down in every round, since what came down before is not kept beside new targets.
There are none of these in round 1, whatever `protonorm.initial-directions` says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from protosphere import method as m
from protosphere.strategies import protonorm, protosphere
from protosphere.strategies.encoder_space import DISCRIMINANT

PRIVATE = "private"  # the part with the models' prototypes


class JoinedObjective(protosphere.ProtosphereObjective):
    """Client half: ProtoNorm's targets, both uploads."""

    def targets(self, state: m.ClientState, received: m.Payload | None) -> m.PrototypeSet | None:
        """gamma c, as received."""
        if received is None or PRIVATE not in received:
            return None
        directions = m.prototypes_of(received, PRIVATE)
        return m.scaled(directions, self.options[protonorm.ProtoNormSettings].gamma)

    def upload(self, state: m.ClientState, round_number: int) -> m.Payload | None:
        """The local prototypes and, in the first rounds, the statistics."""
        assert state.prototypes is not None
        return {PRIVATE: state.prototypes.without_counts(), **(super().upload(state, round_number) or {})}


class Joined(protosphere.Protosphere):
    """Server half: both in parallel."""

    def check(self, num_classes: int, dim: int) -> Sequence[str]:
        """The checks of both halves."""
        private = protonorm.ProtoNorm(self.settings, self.options).check(num_classes, dim)
        return (*private, *super().check(num_classes, dim))

    def _models(self) -> protonorm.ProtoNorm:
        half = protonorm.ProtoNorm(self.settings, self.options)
        half.meet(self.num_classes, self.dim, self.identities)
        return half

    def expected_parts(self, up: tuple[m.Part, ...], state: m.State, server_round: int) -> tuple[m.Part, ...]:
        """The statistics are uploaded in the first rounds only."""
        return (*up[:1], *super().expected_parts(up[1:], state, server_round))

    def contradiction(self, partition: int, upload: m.Payload) -> str:
        """Check the statistics, if the upload has them."""
        return super().contradiction(partition, upload) if protosphere.SCATTER in upload else ""

    def aggregate(self, uploads: Mapping[int, m.Payload], state: m.State, server_round: int) -> m.Outcome:
        """Targets by ProtoNorm, the discriminant by Protosphere."""
        prototypes = {partition: {m.PROTOTYPES.name: upload[PRIVATE]} for partition, upload in uploads.items()}
        targets = self._models().aggregate(prototypes, _select(state, PRIVATE), server_round)

        statistics = {partition: upload for partition, upload in uploads.items() if protosphere.SCATTER in upload}
        outcome = super().aggregate(statistics, _select(state, protosphere.SCATTER), server_round)
        discriminant = _select(state, DISCRIMINANT)
        if m.EVERYONE in outcome.downloads:
            discriminant = dict(m.weights_of(outcome.downloads[m.EVERYONE], DISCRIMINANT).tensors)

        download: m.Payload = {PRIVATE: m.prototypes_of(targets.downloads[m.EVERYONE])}
        if discriminant:
            download = {**download, DISCRIMINANT: m.Weights(discriminant)}
        states = {PRIVATE: targets.state, protosphere.SCATTER: outcome.state, DISCRIMINANT: discriminant}
        new_state = {f"{part}/{name}": tensor for part, tensors in states.items() for name, tensor in tensors.items()}
        return replace(
            outcome,
            state=new_state,
            downloads={m.EVERYONE: download},
            keeps=False,
            prototypes=m.prototypes_of_state(targets.state),
            scales=targets.scales,
        )


def _select(state: m.State, part: str) -> m.State:
    """The tensors of one half's state, by their own names."""
    return {name.partition("/")[2]: tensor for name, tensor in state.items() if name.startswith(f"{part}/")}


def _choose_exchange(options: m.Options) -> m.Exchange:
    exchange = protosphere.METHOD.exchange(options)
    private = m.Part("prototypes", PRIVATE)
    return replace(exchange, up=(private, *exchange.up), down=(private, *exchange.down), once=False)


METHOD = replace(
    protosphere.METHOD,
    server=Joined,
    objective=JoinedObjective,
    settings={"protosphere": protosphere.ProtosphereSettings, "protonorm": protonorm.ProtoNormSettings},
    exchange=_choose_exchange,
)
