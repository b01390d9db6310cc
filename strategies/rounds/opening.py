"""What is said before round 1: the task, what crosses, the clients, what the server learns of them."""

from collections import Counter
from collections.abc import Mapping

from federation.settings import Settings
from federation.wire.codec import Codec
from federation.wire.payloads import Identity
from federation.words import class_words, one_class
from runs.lines import LEGEND, companions
from strategies import Run

MOST_CLIENTS = 50  # that have a line of their own


def _private_lines(settings: Settings) -> list[str]:
    """What a guarantee does not cover, beside wherever its epsilon stands."""
    if settings.privacy_measure:
        return [
            "warning: `privacy-measure` is true: figures of private rows leave in the clear, outside the guarantee of "
            "`privacy`"
        ]
    return [
        "  accuracy is kept by the clients: `protosphere report --state <client's folder>` prints it at a site",
        "  not covered by `privacy`: how long a client takes, that it takes part, its model, class list and domain, "
        "other code than this, and rows that the run deals instead of a site's own",
    ]


def opening_lines(run: Run, identities: Mapping[int, Identity], codec: Codec) -> list[str]:
    """What is about to run: the task, what crosses, each client, what the server learns."""
    settings = run.settings
    lines = [
        f"{settings.strategy} on {settings.dataset}: {len(identities)} clients, {codec.num_classes} classes, "
        f"d = {codec.dim}, {settings.rounds} rounds, prediction by {run.inference}"
    ]
    if "prototypes" in run.exchange.kinds() and (codec.masked or codec.wire_dtype != "float32"):
        lines.append(f"  of each prototype {codec.width} of {codec.dim} values cross, as {codec.wire_dtype}")
    lines.append("  the clients, with their rows for training + validation + test:")
    named = sorted(identities.items())
    for partition, identity in named[:MOST_CLIENTS]:
        domain = f" ({identity.domain})" if identity.domain else ""
        able = "" if identity.trains else ": it has no training row and takes part in evaluation only"
        rows = "{} + {} + {} rows, ".format(*identity.rows[:3]) if identity.rows else ""
        words = rows + class_words(identity.classes, identity.class_names) if rows else "rows and classes withheld"
        size = f"{identity.parameters:,} parameters"
        lines.append(f"  client {partition}{domain}: {identity.model} ({size}), {words}{able}")
    if rest := Counter(identity.model for _, identity in named[MOST_CLIENTS:]):
        models = ", ".join(f"{count} of {model}" for model, count in sorted(rest.items()))
        lines.append(f"  and {rest.total()} more ({models}), which roster.json lists")
    if second := companions(identity.companion for identity in identities.values()):
        lines.append(f"  beside each client's own model, which takes part in every figure: {second}")
    disclosed = sorted({item for identity in identities.values() for item in identity.discloses})
    lines += [f"  the server learns of each client: {', '.join(disclosed)}", f"  {LEGEND}"]
    if run.private:
        return [*lines, *_private_lines(settings)]
    held = {partition: identity.classes for partition, identity in identities.items()}
    alone = one_class(held, next(iter(identities.values())).class_names)
    return [*lines, *([f"warning: {alone}"] if alone else [])]
