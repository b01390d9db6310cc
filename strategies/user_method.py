"""Errors in a user's method, reported by file and line, because its author can mend them."""

import inspect
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, NoReturn

import torch
from torch import Tensor

from protosphere.core import plugins
from protosphere.prototypes.prototype_set import PartValue
from protosphere.strategies.contract import (
    CheckedServer,
    Loss,
    Method,
    MethodError,
    Objective,
    Outcome,
    Phase,
    SparseServer,
)
from protosphere.wire.parts import Part
from protosphere.wire.payloads import KINDS

FAILED = 101  # beyond Flower's own error codes: a client's answer if its method fails
# errors of the machine, not of the method
TRANSIENT = (OSError, MemoryError, torch.OutOfMemoryError)
CROSS_ENTROPY, TOTAL = "cross-entropy", "loss"
# member -> the base class that a server half must derive from to have it
BASES = {"contradiction": CheckedServer, "expand": SparseServer}


def refuse_unread_members(method: Method) -> None:
    """Refuse a server half with a member that is only called on halves of another base class.

    Raises:
        MethodError: names the member and the base class.
    """
    for name, base in BASES.items():
        if hasattr(method.server, name) and not issubclass(method.server, base):
            half = method.server.__name__
            raise MethodError(f"`{half}.{name}` is never called; derive {half} from {base.__name__}.")


def in_method(error: Exception, strategy: str, method: Method) -> MethodError | None:
    """The report for an error that was raised in, or passed through, the file of a user's method; None for any other
    error.

    Args:
        strategy: the setting that named the method.
    """
    if isinstance(error, MethodError):
        return error
    if not plugins.is_plugin(strategy) or isinstance(error, TRANSIENT):
        return None
    files = _list_files(strategy, method)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if not frames:
        return None
    text = " ".join(str(error).split())
    reason = f"the method failed in `{frames[-1].name}` with {type(error).__name__}" + (f": {text}" if text else "")
    return MethodError(reason, frames[-1].filename, frames[-1].lineno or 0)


@contextmanager
def failing_as(
    kind: Callable[[str], Exception], strategy: str, method: Method, known_errors: tuple[type, ...]
) -> Iterator[None]:
    """Inside, an error in a user's method is raised as an error of type `kind`; `known_errors` pass unchanged."""
    try:
        yield
    except Exception as error:
        failure = None if isinstance(error, known_errors) else in_method(error, strategy, method)
        if failure is None:
            raise
        raise kind(str(failure)) from error


def _list_files(strategy: str, method: Method) -> set[str]:
    place = plugins.parted(strategy)[0]
    modules = {place, method.objective.__module__, method.server.__module__}
    ours = __name__.partition(".")[0] + "."
    loaded = [sys.modules.get(name) for name in modules if not name.startswith(ours)]
    files = {str(getattr(module, "__file__", "")) for module in loaded if module is not None}
    for half in (method.objective, method.server):
        if not half.__module__.startswith(ours):
            # code in a notebook cell has a file name, its module has none
            files |= {member.__code__.co_filename for member in vars(half).values() if isinstance(member, FunctionType)}
    return files | ({str(Path(place).expanduser())} if plugins.is_file(strategy) else set())


# --- what a half has to return -------------------------------------------------------------------------------


def checked_loss(loss: object, objective: Objective, phase: Phase, rows: int) -> Loss:
    """Check the result of `Objective.loss` for the given number of samples.

    Raises:
        MethodError: it is no valid loss.
    """
    of = objective.loss
    if not isinstance(loss, Loss):
        _refuse(of, f"returns {_describe(loss)}, where a Loss(total, parts, features) is due")
    if not _is_scalar(loss.total) or not loss.total.requires_grad:
        _refuse(of, f"has {_describe(loss.total)} as `total`, where one number with its gradient is due")
    if not isinstance(loss.parts, Mapping):
        _refuse(of, f"has {_describe(loss.parts)} as `parts`, where a dict from names to numbers is due")
    for name, part in loss.parts.items():
        if not isinstance(name, str) or not _is_scalar(part):
            _refuse(of, f"has {_describe(part)} as part {name!r}, where a name has one number as a tensor")
        if name == TOTAL:
            _refuse(of, f"has a part {name!r}, which is what the total is called: name it otherwise")
    # for generated samples, the loss may be of another kind
    if phase.rows is not None:
        return loss
    # a single part is not compared with the total
    if len(loss.parts) != 1 and CROSS_ENTROPY not in loss.parts:
        _refuse(of, f"has the parts {', '.join(loss.parts) or 'none'}, among which {CROSS_ENTROPY!r} is due")
    z, shape = loss.features, (rows, objective.settings.feature_dim)
    if not isinstance(z, Tensor) or tuple(z.shape) != shape:
        _refuse(of, f"has {_describe(z)} as `features`, where those of the batch, {shape}, are due")
    if len(loss.parts) > 1 and not z.requires_grad:
        _refuse(of, "has `features` without the gradient by which its parts are compared")
    return loss


def checked_phases(phases: object, objective: Objective) -> list[Phase]:
    """Check the result of `Objective.phases`.

    Raises:
        MethodError: it is not a list of phases.
    """
    if not isinstance(phases, list | tuple) or not all(isinstance(phase, Phase) for phase in phases):
        _refuse(objective.phases, f"returns {_describe(phases)}, where a list of Phase is due")
    return list(phases)


def checked_payload(payload: Any, of: Callable[..., object], parts: Sequence[Part]) -> Any:
    """Check a payload that a half returns.

    Args:
        parts: those that the method's exchange declares for this direction.

    Raises:
        MethodError: it is neither None nor a dict from names to parts, or has a part that is not in `parts`.
    """
    if payload is None:
        return None
    if isinstance(payload, PartValue):
        _refuse(of, f'gives {_describe(payload)} to be sent, where a dict of parts is due: {{"{payload.kind}": ...}}')
    if not isinstance(payload, Mapping) or not payload:
        problem = "an empty dict" if isinstance(payload, Mapping) else _describe(payload)
        _refuse(of, f"gives {problem} to be sent, where a dict from names to parts is due, or None for nothing")
    declared = {part.name: part.kind for part in parts}
    for name, part in payload.items():
        if not isinstance(part, PartValue) or declared.get(name) != part.kind:
            names = ", ".join(f"{name!r} ({KINDS[kind].__name__})" for name, kind in declared.items()) or "none"
            _refuse(of, f"gives {_describe(part)} as the part {name!r} to be sent, but its `exchange` names {names}")
    return payload


def checked_outcome(outcome: object, of: Callable[..., object], parts: Sequence[Part]) -> Outcome:
    """Check the result of `ServerHalf.aggregate` or `begin`.

    Args:
        parts: those of the downloads.

    Raises:
        MethodError: it is no Outcome, or its state, downloads or constants are invalid.
    """
    if not isinstance(outcome, Outcome):
        _refuse(of, f"returns {_describe(outcome)}, where an Outcome(state, downloads) is due")
    state, downloads = outcome.state, outcome.downloads
    if not isinstance(state, Mapping) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        _refuse(of, "has as `state` of its Outcome something else than a dict of tensors")
    if not isinstance(downloads, Mapping):
        _refuse(of, f"has {_describe(downloads)} as `downloads`, where a dict from clients to payloads is due")
    for payload in downloads.values():
        checked_payload(payload, of, parts)
    for name, number in outcome.constants.items():
        if not isinstance(name, str) or not isinstance(number, float) or not math.isfinite(number):
            _refuse(of, f"has {number!r} as the constant {name!r}, where a finite float is due")
    return outcome


def _is_scalar(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0


def _describe(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _refuse(of: Callable[..., object], problem: str) -> NoReturn:
    code = inspect.unwrap(of).__code__
    raise MethodError(f"`{of.__qualname__}` {problem}", code.co_filename, code.co_firstlineno)
