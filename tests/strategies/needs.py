"""What a run of a method has to say beside its name, before it starts at all."""

from protosphere.strategies import METHODS

IN_A_SPACE = {"encoder": "random", "disclose-class-counts": True}
NEEDS = {
    "fedcgs": IN_A_SPACE,
    "fedncm": IN_A_SPACE,
    "fed3r": {"encoder": "random"},
    "fedcof": IN_A_SPACE,
    "fedpft": IN_A_SPACE,
}
# of a server's steps each is alike
FEW = {
    "fedgen": {"fedgen.server-steps": 5},
    "fedpa": {"fedpa.server-steps": 5},
    "fedgh": {"fedgh.server-epochs": 5},
    "fedpft": {"fedpft.epochs": 10},
    "fedtgp": {"fedtgp.server-epochs": 3},
    "tinyproto-ft": {"fedtgp.server-epochs": 3},
}
ASKED = {name: {"strategy": name} | NEEDS.get(name, {}) for name in METHODS}


def first_of_each(names, key):
    """Of names that have the same key, the first."""
    first = {}
    for name in names:
        first.setdefault(key(name), name)
    return list(first.values())
