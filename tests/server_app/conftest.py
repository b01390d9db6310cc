"""The rounds are tested with the clients that answer as a test tells them to, as methods are."""

from tests.strategies.conftest import ask, clock, federation, halves, say, script, scripted

__all__ = ["ask", "clock", "federation", "halves", "say", "script", "scripted"]
