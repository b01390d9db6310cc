"""What can go wrong, each a sentence for a person: what, where, the likely cause, the remedy."""

from client_app.store import StoreError
from data import DataError
from federation.roster import RosterError
from federation.settings import SettingError
from models import ModelError
from runs.round import RunError

# All of them, for `except protosphere.Error`: they share no class but Python's own.
Error = (SettingError, DataError, ModelError, RosterError, RunError, StoreError)

__all__ = ["DataError", "Error", "ModelError", "RosterError", "RunError", "SettingError", "StoreError"]
