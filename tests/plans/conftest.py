"""As in tests/comparison: no test asks the hub."""

from tests.comparison.conftest import hub

__all__ = ["hub"]
