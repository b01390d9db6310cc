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


def checked_loss(loss: object, objective: Objective, phase: Phase, rows: int, graph: bool = True) -> Loss:
    """Check the result of `Objective.loss` for the given number of samples.

    Args:
        graph: whether the tensors show that they have gradients, which tensors inside a `vmap` do not.

    Raises:
        MethodError: it is no valid loss.
    """
    if not isinstance(loss, Loss):
        _refuse(objective.loss, f"returns {_describe(loss)}, where a Loss(total, parts, features) is due")
    if not _is_scalar(loss.total) or (graph and not loss.total.requires_grad):
        _refuse(objective.loss, f"has {_describe(loss.total)} as `total`, where one number with its gradient is due")
    if not isinstance(loss.parts, Mapping):
        _refuse(objective.loss, f"has {_describe(loss.parts)} as `parts`, where a dict from names to numbers is due")
    for name, part in loss.parts.items():
        if not isinstance(name, str) or not _is_scalar(part):
            _refuse(objective.loss, f"has {_describe(part)} as part {name!r}, where a name has one number as a tensor")
        if name == TOTAL:
            _refuse(objective.loss, f"has a part {name!r}, which is what the total is called: name it otherwise")
    # for generated samples, the loss may be of another kind
    if phase.rows is None:
        _check_features(loss, objective, rows, graph)
    return loss


def _check_features(loss: Loss, objective: Objective, rows: int, graph: bool) -> None:
    # a single part is not compared with the total
    if len(loss.parts) != 1 and CROSS_ENTROPY not in loss.parts:
        _refuse(
            objective.loss, f"has the parts {', '.join(loss.parts) or 'none'}, among which {CROSS_ENTROPY!r} is due"
        )
    shape = (rows, objective.settings.feature_dim)
    if not isinstance(loss.features, Tensor) or tuple(loss.features.shape) != shape:
        _refuse(
            objective.loss,
            f"has {_describe(loss.features)} as `features`, where those of the batch, {shape}, are due",
        )
    if graph and len(loss.parts) > 1 and not loss.features.requires_grad:
        _refuse(objective.loss, "has `features` without the gradient by which its parts are compared")


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
    if not isinstance(payload, Mapping):
        _refuse(of, f"gives {_describe(payload)} to be sent, where a dict from names to parts is due, or None")
    if not payload:
        _refuse(of, "gives an empty dict to be sent, where None stands for nothing")
    for name, part in payload.items():
        if not isinstance(name, str) or not isinstance(part, PartValue):
            kinds = ", ".join(kind.__name__ for kind in KINDS.values())
            _refuse(of, f"gives {_describe(part)} as the part {name!r} to be sent, where {kinds} may be")
        if (name, part.kind) not in [(expected_part.name, expected_part.kind) for expected_part in parts]:
            agreed = (
                ", ".join(f"{expected_part.name!r} ({KINDS[expected_part.kind].__name__})" for expected_part in parts)
                or "none"
            )
            _refuse(of, f"gives {_describe(part)} as the part {name!r} to be sent, but its `exchange` names {agreed}")
    return payload


def checked_outcome(outcome: object, of: Callable[..., object], parts: Sequence[Part]) -> Outcome:
    """Check the result of `ServerHalf.aggregate` or `begin`.

    Args:
        parts: those of the downloads.

    Raises:
        MethodError: it is no Outcome, or its state or downloads are invalid.
    """
    if not isinstance(outcome, Outcome):
        _refuse(of, f"returns {_describe(outcome)}, where an Outcome(state, downloads) is due")
    if not isinstance(outcome.state, Mapping) or not all(
        isinstance(tensor, Tensor) for tensor in outcome.state.values()
    ):
        _refuse(of, "has as `state` of its Outcome something else than a dict of tensors")
    if not isinstance(outcome.downloads, Mapping):
        _refuse(of, f"has {_describe(outcome.downloads)} as `downloads`, where a dict from clients to payloads is due")
    for payload in outcome.downloads.values():
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
