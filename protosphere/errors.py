"""What can go wrong, each a sentence for a person: what, where, the likely cause, the remedy."""

from protosphere.client_app.store import StoreError
from protosphere.core.errors import DataError, ModelError, RunError, SettingError
from protosphere.server_app.roster import RosterError

# All of them, for `except protosphere.Error`: they share no class but Python's own.
Error = (SettingError, DataError, ModelError, RosterError, RunError, StoreError)

__all__ = ["DataError", "Error", "ModelError", "RosterError", "RunError", "SettingError", "StoreError"]
