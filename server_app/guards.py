"""Checks that end a run."""

from collections.abc import Callable, Mapping

from protosphere.core.client_names import client_word
from protosphere.core.errors import RunError, SettingError
from protosphere.prototypes.prototype_set import ClassVectors
from protosphere.record.folder import RunFolder
from protosphere.strategies import Run
from protosphere.wire.payloads import Payload


def refuse_non_finite(downloads: Mapping[int, Payload], server_round: int, class_word: Callable[[int], str]) -> None:
    """Stop before prototypes or weights that are not finite are sent.

    Args:
        class_word: gives a class's name.

    Raises:
        RunError: names the round and the class.
    """
    for part in (part for payload in downloads.values() for part in payload.values()):
        for name, values in part.fields().items():
            if bool(values.isfinite().all()):
                continue
            what = f"shared weight `{name}`"
            if isinstance(part, ClassVectors):
                bad = ~values.reshape(len(part), -1).isfinite().all(dim=1)
                what = f"global prototype of {class_word(int(part.labels[bad][0]))}"
            raise RunError(
                f"round {server_round}: the {what} is not finite; start a new run with a lower `learning-rate` or a "
                "smaller scale of the method."
            )


def refuse_more_failures(in_a_row: int, most: int, problems: Mapping[str, str]) -> None:
    """Stop after too many rounds without enough valid replies.

    Args:
        problems: client -> problem in the last round.

    Raises:
        RunError: quotes the first problem.
    """
    if in_a_row < most:
        return
    sentences = [f"{client_word(p)}: {problem.removeprefix(f'client {p}: ')}" for p, problem in problems.items()]
    sentences = sentences or ["no reply at all"]
    more = f" (and {len(sentences) - 1} more like it)" if len(sentences) > 1 else ""
    rounds = "1 round" if in_a_row == 1 else f"{in_a_row} rounds in a row"
    raise RunError(
        f"{rounds} ended without enough valid replies, the last with: "
        f"{sentences[0].rstrip('.')}{more}. Fix that and resume, or start a new run with other settings."
    )


def refuse_other_rounds(run: Run, folder: RunFolder, rounds: int) -> None:
    """Stop if a method depends on the total number of rounds and that number has changed since the run was started.

    Raises:
        SettingError: names both numbers.
    """
    settings = run.settings
    planned = folder.settings()["rounds"] if settings.resume else settings.rounds
    # clients read the setting and not the server's argument
    for number in (rounds, settings.rounds) if run.method.fixed_rounds else ():
        if number != planned:
            raise SettingError(
                f"setting `rounds` is {number}, but the run was started for {planned}, and the rounds of "
                f"`{settings.strategy}` depend on that number; give the old value, or start a new run."
            )
