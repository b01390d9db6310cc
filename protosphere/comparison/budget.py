"""Equal budgets: the epochs of each method of a row are scaled so that all take as many gradient steps a round."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from protosphere.plans.run_config import RunConfig
from protosphere.strategies import METHODS, load_method

EPOCHS = "local-epochs"
TOLERANCE = 0.1  # share of the largest budget by which methods may differ unsaid


def epochs_of(settings: RunConfig) -> dict[str, int]:
    """Passes over a client's training samples in a round, by the setting that says them."""
    names = load_method(str(settings["strategy"])).epochs
    # 0 stands for as many as those of `local-epochs`
    return {name: int(settings[name]) or int(settings[EPOCHS]) for name in names}


def equal_epochs(settings_by_method: Mapping[str, RunConfig]) -> dict[str, RunConfig]:
    """The settings of the methods of a row, each with as many gradient steps in all as the method that makes the most.

    A pass over n samples makes n / `batch-size` steps, so passes weigh by that. Those of a method with several phases
    keep their proportions as whole numbers can.

    Args:
        settings_by_method: by label.
    """
    epochs_by_method = {label: epochs_of(settings) for label, settings in settings_by_method.items()}
    batches = {label: int(settings["batch-size"]) for label, settings in settings_by_method.items()}
    most = max(Fraction(sum(epochs.values()), batches[label]) for label, epochs in epochs_by_method.items())
    return {
        label: settings | _shares(epochs_by_method[label], round(most * batches[label]))
        for label, settings in settings_by_method.items()
    }


def _shares(epochs: Mapping[str, int], total: int) -> dict[str, int]:
    """`total` passes, no fewer than there are, shared out in proportion to `epochs` by largest remainders, at least one
    each."""
    exact = {name: total * count / sum(epochs.values()) for name, count in epochs.items()}
    shares = {name: max(1, int(share)) for name, share in exact.items()}
    while sum(shares.values()) < total:
        name = max(exact, key=lambda name: exact[name] - shares[name])
        shares[name] += 1
    while sum(shares.values()) > total:
        name = min((name for name in exact if shares[name] > 1), key=lambda name: exact[name] - shares[name])
        shares[name] -= 1
    return shares


def left_over(strategies: Iterable[str]) -> str:
    """Why budgets still differ where epochs are scaled, in words.

    Args:
        strategies: those of the methods compared.
    """
    # the file of somebody's own may be gone by now
    steps_by_method = {name: load_method(name).steps_beside for name in dict.fromkeys(strategies) if name in METHODS}
    extra = [f"{text} (`{name}`)" for name, text in steps_by_method.items() if text]
    return ", ".join(["parts of an epoch and of a batch", *extra])


def differ(steps: Sequence[float]) -> bool:
    """Whether budgets are too far apart to be compared without a word."""
    return bool(steps) and min(steps) < (1 - TOLERANCE) * max(steps)
