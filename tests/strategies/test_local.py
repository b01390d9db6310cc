"""`local`: nothing but figures crosses the wire, and nobody's training depends on anybody else."""


def test_it_trains_as_fedproto_does_without_its_pull(run, metrics):
    """The floor: the same seeds, batches and models, so the same bits as a pull of weight zero."""
    alone = metrics(run({"strategy": "local", "rounds": 3, "learning-rate": 0.1}))
    pulled = metrics(run({"strategy": "fedproto", "rounds": 3, "learning-rate": 0.1, "prototype-weight": 0.0}))
    for ours, theirs in zip(alone, pulled, strict=True):
        for rule in ("local-prototypes", "classifier", "discriminant", "majority-class"):
            assert ours["evaluation"]["rules"][rule] == theirs["evaluation"]["rules"][rule]
        if "training" in ours:
            loss = ours["training"]["loss"]
            assert loss["cross-entropy"] == theirs["training"]["loss"]["cross-entropy"]
            assert (loss.keys(), ours["server"]) == ({"cross-entropy", "loss"}, {})
    # and it does learn
    tests = [line["evaluation"]["rules"]["classifier"]["test"]["mean"] for line in alone]
    assert tests[-1] > tests[0]
