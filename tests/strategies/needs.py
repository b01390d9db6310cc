"""What a run of a method has to say beside its name, before it starts at all."""

from protosphere.strategies import METHODS

NEEDS = {"fedcgs": {"encoder": "random", "disclose-class-counts": True}}
ASKED = {name: {"strategy": name} | NEEDS.get(name, {}) for name in METHODS}
