"""Waiting for what is sure to come, however slow the machine."""

import time

PATIENCE = 300.0  # seconds after which a wait has failed


def comes(true, patience=PATIENCE):
    """Whether it has become true within so many seconds."""
    deadline = time.monotonic() + patience
    while not (seen := true()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(seen)
