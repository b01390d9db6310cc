"""Clients that fail as planned, what they say of it, and what a run must make of it."""
