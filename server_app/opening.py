"""The opening of a run: its folder, and the lines printed before round 1."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from protosphere.core.client_names import client_names, client_word
from protosphere.core.flower import minor_name
from protosphere.core.settings import Scalar
from protosphere.core.text import counted, one_class, one_line
from protosphere.record.folder import RunFolder
from protosphere.record.metrics_lines import LEGEND
from protosphere.record.summary import companions
from protosphere.server_app.live_figures import refuse_missing_packages
from protosphere.strategies import Run, as_of_today, known_settings, unpacked
from protosphere.wire.payloads import Identity

MOST_MODELS = 5  # models that are listed
MOST_NAMES = 10  # clients that are named
MOST_ALONE = 5  # classes or clients that a warning names
LONGEST_MODEL = 60  # characters of a model's name
# what is withheld under `privacy`, and what the guarantee does not cover
OF_PRIVACY = (
    "  accuracy is withheld by the clients: `protosphere report --state <client's folder>` prints it at a site",
    "  not covered by `privacy`: how long a client takes, that it takes part, its model, class list, domain and name, "
    "other code than this, and samples that come from the run's partition instead of the site's own data",
)
OF_MEASURED_PRIVACY = (
    "warning: `privacy-measure` is true: figures of private samples leave in the clear, outside the guarantee of "
    "`privacy`",
)


def open_folder(run: Run, run_config: Mapping[str, Scalar]) -> RunFolder:
    """Make a new folder for a run, or open the folder of the run to resume.

    Raises:
        SettingError: the folder cannot be made or holds a run with other settings, or a package is missing.
    """
    refuse_missing_packages(run.settings)
    settings_by_name = known_settings(run.settings.strategy) | unpacked(run_config)
    if run.settings.resume:
        return RunFolder.resume(run.settings, settings_by_name, as_of_today)
    return RunFolder.create(run.settings, settings_by_name)


def opening_lines(run: Run, identities: Mapping[int, Identity], num_classes: int) -> list[str]:
    """The lines before round 1: the task, the exchange and the clients; roster.json describes each client."""
    settings = run.settings
    class_names = next(iter(identities.values())).class_names
    names = client_names(map(vars, identities.values()))
    lines = [
        f"{settings.strategy} on {settings.dataset}: {len(identities)} clients, {num_classes} classes, "
        f"d = {settings.feature_dim}, {counted(settings.rounds, 'round')}, "
        f"inference rule {run.inference}"
    ]
    if "prototypes" in run.exchange.kinds() and settings.wire_dtype != "float32":
        lines.append(f"  prototypes are sent as {settings.wire_dtype}")
    lines += [_holdings(identities), f"  models: {_models(identities)}"]
    if names:
        first = [f"{partition} ({name})" for partition, name in list(names.items())[:MOST_NAMES]]
        more = f" and {len(names) - MOST_NAMES} more, which roster.json lists" if len(names) > MOST_NAMES else ""
        lines.append(f"  names: client {', '.join(first)}{more}")
    for partition, identity in sorted(identities.items()):
        if not identity.trains:
            lines.append(f"  {client_word(partition, names)} has no training samples: it takes part in evaluation only")
    if companion := companions(identity.companion for identity in identities.values()):
        lines.append(f"  with each client's own model, in every figure: {one_line(companion, 2 * LONGEST_MODEL)}")
    lines.append(f"  {LEGEND}")
    classes = {partition: identity.classes for partition, identity in identities.items() if not identity.withheld}
    if sentence := one_class(classes, class_names):
        lines.append(f"warning: {sentence}")
    if len(classes) == len(identities):
        lines += _empty_classes(classes, class_names)
    lines += _other_flowers(identities)
    if run.private:
        lines += OF_MEASURED_PRIVACY if settings.privacy_measure else OF_PRIVACY
    return lines


def _holdings(identities: Mapping[int, Identity]) -> str:
    """The numbers of samples and classes of the clients that disclose them."""
    open_clients = [identity for identity in identities.values() if not identity.withheld]
    if not open_clients:
        return "  samples and classes: withheld by the clients"
    train, validation, test = (_range(identity.rows[split] for identity in open_clients) for split in range(3))
    classes = _range(len(identity.classes) for identity in open_clients)
    withheld = len(identities) - len(open_clients)
    remark = f" ({withheld} clients withhold theirs)" if withheld else ""
    return (
        f"  samples per client: {train} for training, {validation} for validation, {test} for testing, of "
        f"{classes} classes{remark}"
    )


def _range(numbers: Iterable[int]) -> str:
    """`3`, or `3 to 5`."""
    values = list(numbers)
    return str(values[0]) if min(values) == max(values) else f"{min(values):,} to {max(values):,}"


def _models(identities: Mapping[int, Identity]) -> str:
    """`2 tiny_cnn (22,250 parameters), 1 tiny_perceptron (58,442)`, the most frequent first."""
    counts = Counter[tuple[str, int]]()
    for identity in identities.values():
        name = one_line(identity.model)
        # the end of a long name has a file's name and the object in it
        name = name if len(name) <= LONGEST_MODEL else f"…{name[1 - LONGEST_MODEL :]}"
        counts[name, identity.parameters] += 1
    parts: list[str] = []
    for (name, parameters), number in counts.most_common(MOST_MODELS):
        parts.append(f"{number} {name} ({parameters:,}{'' if parts else ' parameters'})")
    other_count = len(identities) - sum(number for _, number in counts.most_common(MOST_MODELS))
    return ", ".join(parts) + (f", {other_count} others, which roster.json lists" if other_count else "")


def _empty_classes(labels_by_partition: Mapping[int, Sequence[int]], names: Sequence[str]) -> list[str]:
    """A warning if unnamed classes have no sample, as when labels skip numbers."""
    held_labels = {label for labels in labels_by_partition.values() for label in labels}
    empty = [name for label, name in enumerate(names) if label not in held_labels]
    if not empty or tuple(names) != tuple(map(str, range(len(names)))):
        return []
    more = ", …" if len(empty) > MOST_ALONE else ""
    return [
        f"warning: no client has a training sample of {len(empty)} of the {len(names)} classes "
        f"({', '.join(empty[:MOST_ALONE])}{more}); where labels skip numbers, write them as 0, 1, 2, …, or as names"
    ]


def _other_flowers(identities: Mapping[int, Identity]) -> list[str]:
    """A warning for each Flower version other than the server's: the run may work, but this pair was not tested."""
    server_version, partitions = minor_name(), defaultdict[str, list[int]](list)
    for partition, identity in sorted(identities.items()):
        if identity.flower not in ("", server_version):
            partitions[identity.flower].append(partition)
    warnings = []
    for version, numbers in partitions.items():
        named = ", ".join(map(str, numbers[:MOST_ALONE])) + (", …" if len(numbers) > MOST_ALONE else "")
        clients = f"client {named} runs" if len(numbers) == 1 else f"clients {named} run"
        warnings.append(
            f"warning: {clients} Flower {one_line(version, LONGEST_MODEL)}, this server {server_version}; install the "
            "same at all sites, since two at a time were not tried."
        )
    return warnings
