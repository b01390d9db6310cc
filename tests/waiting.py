"""Waiting for what is sure to come."""

import time


def comes(true, patience=30.0):
    """Whether it has become true within so many seconds."""
    deadline = time.monotonic() + patience
    while not (seen := true()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(seen)
