"""Methods at the limit where they are another one, to the bit: whole runs of the same seeds, batches and models."""

import pytest

from tests.strategies.needs import ASKED, FEW

SMALL = {"rounds": 2, "max-samples": 240, "feature-dim": 8, "models": "tiny_perceptron", "partition": "iid"}
SMALL |= {"momentum": 0.9, "learning-rate": 0.1}
NO_TERMS = {"strategy": "fedgen", "fedgen.alpha": 0.0, "fedgen.beta": 0.0} | FEW["fedgen"]
NO_EXCHANGE = {"strategy": "gfpl", "gfpl.dual-classifier": False, "gfpl.pseudo-features": 0}

LOCAL, FEDAVG, HALF = {"strategy": "local"}, {"strategy": "fedavg"}, {"fraction-train": 0.5}
# settings, and those of the method that it is with them
LIMITS = {
    "no pull": ({"strategy": "fedproto", "prototype-weight": 0.0}, LOCAL),
    "no distillation": ({"strategy": "feddistill", "feddistill.weight": 0.0}, LOCAL),
    "no distance": ({"strategy": "ditto", "ditto.weight": 0.0}, LOCAL),
    "all of its own": ({"strategy": "apfl", "apfl.alpha": 1.0, "apfl.adaptive": False}, LOCAL),
    "labels alone": ({"strategy": "fml", "fml.alpha": 1.0, "fml.beta": 1.0}, LOCAL),
    "neither classifier nor pseudo-features": (NO_EXCHANGE | HALF, LOCAL | HALF),
    "a private model beside one exchange": (ASKED["fedncm"], LOCAL),
    "a private model beside the pool": (ASKED["protosphere"], {"strategy": "frame"}),
    "no proximity": ({"strategy": "fedprox", "fedprox.mu": 0.0}, FEDAVG),
    "no terms": ({"strategy": "feduv", "feduv.variance-weight": 0.0, "feduv.uniformity-weight": 0.0}, FEDAVG),
    "no norms to leave out": ({"strategy": "fedbn"}, FEDAVG),
    "no generated features, all shared": (NO_TERMS | {"fedgen.share": "all"}, FEDAVG),
    "no generated features": (NO_TERMS, {"strategy": "lg-fedavg"}),
    "nothing scaled": ({"strategy": "tinyproto-fp", "tinyproto.scaling": False}, {"strategy": "fedproto"}),
    "nothing scaled, trained": (
        {"strategy": "tinyproto-ft", "tinyproto.scaling": False} | FEW["fedtgp"],
        {"strategy": "fedtgp"} | FEW["fedtgp"],
    ),
    "one centre": ({"strategy": "fesem", "fesem.clusters": 1}, FEDAVG | {"client-weights": "equal"}),
}


lines_of = {}  # what a method is at several limits is run once


@pytest.mark.parametrize("limit", LIMITS)
def test_at_its_limit_a_method_is_another_to_the_bit(run, metrics, limit):
    settings, base = LIMITS[limit]

    ours = metrics(run(SMALL | settings, clients=2))
    name = repr(base)
    if name not in lines_of:
        lines_of[name] = metrics(run(SMALL | base, clients=2))
    theirs = lines_of[name]

    for line, other in zip(ours, theirs, strict=True):
        found, expected = line["evaluation"]["rules"], other["evaluation"]["rules"]
        common = found.keys() & expected.keys()
        # each may have rules of its own beside
        assert {"classifier", "local-prototypes", "majority-class"} <= common
        assert {rule: found[rule] for rule in common} == {rule: expected[rule] for rule in common}
    learnt = [line["evaluation"]["rules"]["classifier"]["test"]["mean"] for line in ours]
    assert learnt[-1] > learnt[0]
