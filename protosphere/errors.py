"""The errors, each with a sentence for the user: what, where, the likely cause, the remedy."""

from protosphere.client_app.store import StoreError
from protosphere.core.errors import DataError, ModelError, RunError, SettingError
from protosphere.server_app.roster import RosterError

# all of them, for `except protosphere.Error`; their only common base is Python's own
Error = (SettingError, DataError, ModelError, RosterError, RunError, StoreError)

__all__ = ["DataError", "Error", "ModelError", "RosterError", "RunError", "SettingError", "StoreError"]
