"""What a client's messages say about an error. A simulation shows the full text, because its user owns the data. A
site's errors stay in its own log; only one fixed sentence per class of errors is sent."""

import logging
import traceback

from protosphere.client_app.privacy_ledger import LedgerError
from protosphere.client_app.site import NodeConfig, has_own, simulated
from protosphere.client_app.store import StoreError
from protosphere.core.errors import OTHER, DataError, ModelError, SettingError, UnsizedError, UserError
from protosphere.strategies.user_method import MethodError
from protosphere.wire.checks import CodecError, MessageError

log = logging.getLogger("protosphere")

METHOD = "the method's code failed: correct the line there"
VERSION = "a message is not what its version and settings expect: install one version everywhere, and start a new run"
PRIVATE = "it cannot take part; under `privacy` it does not say why"
SITE_LOG = "; its site's log has the full text"
# Errors of a client that cannot do what it is asked; each message is one sentence.
USER_ERRORS = (DataError, LedgerError, ModelError, SettingError, StoreError)
# Whether these are raised does not depend on any sample.
ROWLESS = (SettingError, ModelError, LedgerError, UnsizedError, MessageError, CodecError)
KNOWN = (UserError, MethodError, MessageError, CodecError)


def public_words(error: Exception, node: NodeConfig) -> str:
    """The text for a message. If it is shortened, the full text goes to this process's log."""
    full_text = str(error) if isinstance(error, KNOWN) else f"{type(error).__name__}: {error}"
    if not isinstance(error, KNOWN) or isinstance(error, MethodError):
        # a defect must reach whoever can fix it
        traceback.print_exception(error.__cause__ or error)
    if simulated() and not has_own(node):
        return full_text
    log.error("%s", full_text)
    return _fixed_sentence(error) + SITE_LOG


def private_words(error: Exception, node: NodeConfig) -> str:
    """The text for a message under `privacy`: always the same, except for errors that do not depend on samples."""
    if isinstance(error, ROWLESS) and simulated() and not has_own(node):
        return str(error)
    log.error("%s: %s", type(error).__name__, error)
    return (_fixed_sentence(error) if isinstance(error, ROWLESS) else PRIVATE) + SITE_LOG


def _fixed_sentence(error: Exception) -> str:
    if isinstance(error, MethodError):
        return METHOD
    if isinstance(error, MessageError | CodecError):
        return VERSION
    return error.public if isinstance(error, UserError) else OTHER
