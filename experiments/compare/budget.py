"""Equal budgets: the epochs of each method of a row are scaled so that all take as many gradient steps a round."""

from collections.abc import Mapping, Sequence

from experiments.runtime.run_config import RunConfig
from federation.settings import SettingError, shown
from strategies import load_method

EPOCHS = "local-epochs"
TOLERANCE = 0.1  # share of the largest budget by which methods may differ unsaid


def epochs_of(settings: RunConfig) -> dict[str, int]:
    """Passes over a client's training samples in a round, by the setting that says them."""
    names = load_method(str(settings["strategy"])).epochs
    # 0 stands for as many as those of `local-epochs`
    return {name: int(settings[name]) or int(settings[EPOCHS]) for name in names}


def equal_epochs(settings_by_method: Mapping[str, RunConfig]) -> dict[str, RunConfig]:
    """The settings of the methods of a row, each with as many passes in all as the method that makes the most.

    The passes of a method with several phases keep their proportions as whole numbers can.

    Args:
        settings_by_method: by label.

    Raises:
        SettingError: a method has more phases than there are passes.
    """
    epochs_by_method = {label: epochs_of(settings) for label, settings in settings_by_method.items()}
    total = max(sum(epochs.values()) for epochs in epochs_by_method.values())
    return {
        label: settings | _shares(label, epochs_by_method[label], total)
        for label, settings in settings_by_method.items()
    }


def _shares(label: str, epochs: Mapping[str, int], total: int) -> dict[str, int]:
    """`total` passes, shared out in proportion to `epochs` by largest remainders, at least one each."""
    if total < len(epochs):
        raise SettingError(
            f"--equal-steps gives every method {total} epochs a round, but {shown(label)} has {len(epochs)} phases; "
            f"raise `{EPOCHS}`."
        )
    exact = {name: total * count / sum(epochs.values()) for name, count in epochs.items()}
    shares = {name: max(1, int(share)) for name, share in exact.items()}
    while sum(shares.values()) < total:
        name = max(exact, key=lambda name: exact[name] - shares[name])
        shares[name] += 1
    while sum(shares.values()) > total:
        name = min((name for name in exact if shares[name] > 1), key=lambda name: exact[name] - shares[name])
        shares[name] -= 1
    return shares


def differ(steps: Sequence[float]) -> bool:
    """Whether budgets are too far apart to be compared without a word."""
    return bool(steps) and min(steps) < (1 - TOLERANCE) * max(steps)
