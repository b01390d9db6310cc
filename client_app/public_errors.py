"""What a client's messages say of an error. Whoever runs a simulation owns its data, too, and reads the whole sentence;
a site's errors stay in its own log but for words that quote nothing of its data."""

import logging
import traceback

from protosphere.client_app.evaluate import DivergenceError
from protosphere.client_app.features.privacy_ledger import LedgerError
from protosphere.client_app.site import NodeConfig, has_own, simulated
from protosphere.client_app.store import StoreError
from protosphere.core.errors import DataError, ModelError, SettingError, UnsizedError
from protosphere.strategies.user_method import MethodError
from protosphere.wire.checks import CodecError, MessageError

log = logging.getLogger("protosphere")

# Of errors that say nothing that may be told: at least what kind they are.
KINDS: dict[type[Exception], str] = {
    DataError: "its data cannot be used",
    ModelError: "its model is not available",
    SettingError: "its node config does not suit the run",
    StoreError: "its kept state cannot be used",
    LedgerError: "its privacy ledger refuses",
    DivergenceError: "its training diverged",
    MethodError: "its method failed",
}
# Of a client that cannot do what it is asked: each a sentence for a person.
USER_ERRORS = (DataError, LedgerError, ModelError, SettingError, StoreError)
# What these quote is what the server itself has sent, or figures of prototypes.
OPEN = (MessageError, CodecError)
# Of these no row decides whether they are raised, nor on their words.
PUBLIC = (SettingError, ModelError, LedgerError, UnsizedError)


def told(error: Exception, node: NodeConfig) -> str:
    """The words for a message; the whole sentence goes to this process's log where they are fewer."""
    is_known = isinstance(error, (*KINDS, *OPEN))
    sentence = str(error) if is_known else f"{type(error).__name__}: {error}"
    if not is_known or isinstance(error, MethodError):
        # a defect has to reach whoever can mend it
        traceback.print_exception(error.__cause__ or error)
    if simulated() and not has_own(node):
        return sentence
    log.error("%s", sentence)
    if isinstance(error, OPEN):
        return sentence
    kind = next((text for kind, text in KINDS.items() if isinstance(error, kind)), "")
    public_text = getattr(error, "told", "") if kind else f"an error of the program ({type(error).__name__})"
    return sentence if public_text == sentence.rstrip(".") else f"{public_text or kind}; the log of its site says more"


def withheld(error: Exception) -> str:
    """The words for a message under `privacy`: one of a fixed list, but where no row can decide on them."""
    log.error("%s: %s", type(error).__name__, error)
    if isinstance(error, OPEN):
        return str(error)
    public_text = getattr(error, "told", "") if isinstance(error, PUBLIC) else ""
    kind = next((text for kind, text in KINDS.items() if isinstance(error, kind)), "an error of the program")
    return f"{public_text or kind}; the log of its site says more"
