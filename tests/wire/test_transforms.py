"""The list of transforms: what a method adds, before the number format, is done by the sender, undone by the
receiver in reverse, and named by the fingerprint."""

from dataclasses import dataclass, replace

import pytest
import torch

from protosphere.prototypes.mixture_set import MixtureSet
from protosphere.prototypes.prototype_set import PrototypeSet
from protosphere.wire.checks import MessageError
from protosphere.wire.codec import Codec, Limits, as_sent, decode_payload, encode_payload
from protosphere.wire.specs import (
    PROTOTYPES,
    Exchange,
    NumberFormat,
    RoundedShares,
    Spec,
    Spherical,
    Transform,
)
from tests.payloads import lone, payload

K, D = 4, 6
VECTORS = PrototypeSet(torch.arange(K), torch.randn(K, D, generator=torch.Generator().manual_seed(0)))
SHARES = MixtureSet(torch.tensor([0, 0, 2]), torch.ones(3, D), torch.ones(3, D), torch.tensor([0.311, 0.689, 1.0]))


@dataclass(frozen=True)
class Scaled(Transform):
    """Of no method: a transform with a receiver's half."""

    kind = "prototypes"
    factor: float

    @property
    def words(self):
        return f"times{self.factor:g}"

    def send(self, fields):
        return fields | {"vectors": fields["vectors"] * self.factor}

    def receive(self, fields):
        return fields | {"vectors": fields["vectors"] / self.factor}


def crossed(part, codec, *specs):
    return lone(decode_payload(encode_payload(payload(part), codec, specs), Limits(codec, 1e6, specs)))


def test_the_order_is_the_methods_own_then_the_number_format():
    own = Scaled(9)
    found = Codec(K, D, "float16").transforms(Spec("prototypes", transforms=(own,)))
    assert found == (own, NumberFormat("float16"))


@pytest.mark.parametrize("codec", [Codec(K, D), Codec(K, D, "float16")], ids=str)
def test_what_the_sender_does_the_receiver_undoes_in_reverse(codec):
    spec = Spec("prototypes", transforms=(Scaled(2.0), Scaled(8.0)))
    sent = encode_payload(payload(VECTORS), codec, [spec])
    inside = lone(decode_payload(sent, Limits(codec, 1e6)))
    # powers of two: exact in every format, so that a wrong order or a half left out shows
    plain = crossed(VECTORS, codec, PROTOTYPES).vectors
    torch.testing.assert_close(inside.vectors, 16 * plain, rtol=0, atol=0)
    torch.testing.assert_close(crossed(VECTORS, codec, spec).vectors, plain, rtol=0, atol=0)


def test_norms_are_checked_when_all_is_undone():
    spec = Spec("prototypes", transforms=(Scaled(100.0),))
    longest = float(VECTORS.vectors.norm(dim=1).max())
    record = encode_payload(payload(VECTORS), Codec(K, D), [spec])
    assert len(lone(decode_payload(record, Limits(Codec(K, D), longest * 1.01, (spec,))))) == K
    with pytest.raises(MessageError, match="norm"):
        lone(decode_payload(record, Limits(Codec(K, D), longest * 0.99, (spec,))))


def test_weights_of_components_cross_in_whole_shares():
    spec = Spec("mixtures", components=2, transforms=(RoundedShares(8),))
    found = crossed(SHARES, Codec(K, D), spec)
    assert found.weights.tolist() == [0.25, 0.75, 1.0]


def test_of_spherical_components_one_variance_crosses():
    means, variances = torch.randn(3, D), torch.tensor([1.0, 2.0, 0.5]).unsqueeze(1).expand(3, D)
    mixtures = MixtureSet(SHARES.labels, means, variances, SHARES.weights)
    spec, codec = Spec("mixtures", components=2, transforms=(Spherical(),)), Codec(K, D)
    record = encode_payload(payload(mixtures), codec, [spec])
    assert record["variances"].numpy().shape == (3, 1)
    found = crossed(mixtures, codec, spec)
    assert torch.equal(found.variances, variances)
    assert torch.equal(lone(as_sent(payload(mixtures), [spec])).variances, variances)
    plain = Spec("mixtures", components=2)
    with pytest.raises(MessageError, match=rf"float32 of \(3, {D}\) were agreed"):
        decode_payload(record, Limits(codec, 1e6, (plain,)))


def test_the_fingerprint_names_what_a_method_adds_by_direction_and_part():
    up = Spec("prototypes", transforms=(Scaled(16.0), Scaled(3.0)))
    down = Spec("prototypes", transforms=(Scaled(0.5),))
    assert Exchange((up,), (down,)).added == "up.prototypes=times16+times3 down.prototypes=times0.5"
    assert Exchange().added == ""
    one = Codec(K, D, added=Exchange((up,), (down,)).added)
    other = replace(one, added=Exchange((up,)).added)
    assert one.difference(one.fingerprint) == ""
    assert one.difference(other.fingerprint) == "down.prototypes is none there and times0.5 here"


def test_a_transform_of_another_kind_is_refused_where_the_spec_is_made():
    with pytest.raises(ValueError, match=r"(?s)RoundedShares.*mixtures.*`anchors`.*prototypes"):
        Spec("prototypes", "anchors", transforms=(RoundedShares(8),))
