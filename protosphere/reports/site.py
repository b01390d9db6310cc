"""A site's own page: what left its machine, how its model fares there, and by which settings. From the client's store
alone, without a server.

`messages.jsonl` has the sizes of every message and what it told, `figures.jsonl` what stays at home under `privacy`,
`client.json` the settings.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from protosphere.core.errors import SettingError
from protosphere.core.files import DamagedError, read_sealed, read_sealed_lines
from protosphere.core.settings import shown
from protosphere.core.text import class_words, one_line, readable_size
from protosphere.reports import canvas, page
from protosphere.reports.canvas import COLOURS
from protosphere.reports.page import Html, code, paragraph, section
from protosphere.reports.pictures import dots, whole_rounds

MESSAGES, FIGURES, ABOUT = "messages.jsonl", "figures.jsonl", "client.json"
OF_A_LINE = {"round": int, "sent": dict, "received": dict}
Line = Mapping[str, Any]


def write_site(folder: Path, target: Path) -> Path:
    """Write the page of the client whose store is `folder`.

    Returns:
        `target`.

    Raises:
        SettingError: the folder is no client's, or its records are none.
        OSError: the page cannot be written.
    """
    about = _about(folder)
    messages, figures = _lines(folder / MESSAGES, OF_A_LINE), _lines(folder / FIGURES, {"round": int})
    # under `privacy` no message tells an accuracy
    evaluations = [line for line in messages if "correct" in line] or [line for line in figures if "correct" in line]
    parts = [
        _cards(messages, evaluations, about["rule"]),
        section("Accuracy at this site", *_curve(evaluations, about["rule"])),
    ]
    parts.append(section("What left this machine", *_sizes(messages)))
    problems = [
        [line["round"], one_line(str(line["problem"]), 300)] for line in (*messages, *figures) if line.get("problem")
    ]
    if problems:
        parts.append(section("Problems", page.table(["round", "what"], problems, words=(0, 1))))
    settings = [[code(name), code(shown(value))] for name, value in about["settings"].items()]
    parts.append(
        section("Settings", page.details("all settings", page.table(["setting", "value"], settings, words=(0, 1))))
    )
    names = about["class_names"]
    lead = f"{one_line(about['model'], 60)}, {class_words(range(len(names)), names)}, inference rule {about['rule']}"
    whose = f"client {about['partition']} of run {folder.absolute().parent.name}"
    return page.write(target, page.page(f"This site in {about['strategy']}", parts, lead=lead, foot=f"Of {whose}."))


def _about(folder: Path) -> dict[str, Any]:
    kinds = {"partition": int, "model": str, "class_names": list, "rule": str, "strategy": str, "settings": dict}
    try:
        about = read_sealed(folder / ABOUT)
        if all(isinstance(about[name], kind) for name, kind in kinds.items()):
            return dict(about)
    except DamagedError as error:
        raise SettingError(f"{folder / ABOUT} {error}.") from None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise SettingError(
        f"{folder} is no client's folder, or its {ABOUT} cannot be read; a client's is "
        "PROTOSPHERE_HOME/clients/<run>/<partition>."
    )


def _lines(path: Path, kinds: Mapping[str, type]) -> list[Line]:
    try:
        # what a crash cut short is no line
        lines: list[Line] = [*read_sealed_lines(path)] if path.exists() else []
        if all(isinstance(line[name], kind) for line in lines for name, kind in kinds.items()):
            return lines
    except DamagedError as error:
        raise SettingError(f"a line of {path} {error}.") from None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise SettingError(f"{path} cannot be read as this program wrote it; take it away, and the page is made without.")


def _accuracies(evaluations: Sequence[Line], rule: str, place: int) -> list[tuple[int, float]]:
    """(round whose models they are, %) of the test rows, 0, or of the validation rows, 1."""
    return [
        (line["round"] - 1, 100 * line["correct"][rule][place] / line["rows"][place])
        for line in evaluations
        if rule in line["correct"] and line["rows"][place]
    ]


def _cards(messages: Sequence[Line], evaluations: Sequence[Line], rule: str) -> Html:
    tests = _accuracies(evaluations, rule, 0)
    sent, received = (sum(sum(line[way].values()) for line in messages) for way in ("sent", "received"))
    rounds = {line["round"] for line in messages if line.get("trains")}
    accuracy = f"{tests[-1][1]:.1f} %" if tests else None
    return page.cards(
        [
            (
                "test accuracy",
                accuracy,
                f"of {evaluations[-1]['rows'][0]} samples, after round {tests[-1][0]}" if tests else "",
            ),
            ("sent", readable_size(sent) if messages else None, f"in {len(messages)} replies"),
            ("received", readable_size(received) if messages else None, "settings and what clients share"),
            ("rounds", len(rounds) if messages else None, "that this site trained in"),
        ]
    )


def _curve(evaluations: Sequence[Line], rule: str) -> Iterator[Html]:
    tests, validations = (_accuracies(evaluations, rule, place) for place in (0, 1))
    if not tests:
        yield paragraph(f"There is no evaluation by {rule} on record here.", class_="note")
        return
    with canvas.figure() as drawn:
        axes = drawn.add_subplot()
        axes.plot(*zip(*tests, strict=True), color=COLOURS[0], marker=dots(tests), markersize=3.5, label="test samples")
        if validations:
            axes.plot(*zip(*validations, strict=True), color=COLOURS[3], linestyle=":", label="validation samples")
        axes.set(xlabel="round", ylabel="accuracy (%)")
        whole_rounds(axes)
        drawn.legend(loc="outside lower center", ncols=2)
        svg = canvas.svg(drawn)
    alt = f"Accuracy of this site's model by {rule}: from {tests[0][1]:.1f} % to {tests[-1][1]:.1f} %."
    caption = f"Accuracy of this site's model on its own samples by {rule}, measured after each round."
    yield page.gallery(page.picture(svg, alt, caption))


def _sizes(messages: Sequence[Line]) -> Iterator[Html]:
    if not messages:
        yield paragraph("No message is on record. Simulations and earlier versions keep none.", class_="note")
        return
    names = dict.fromkeys(name for line in messages for way in ("sent", "received") for name in line[way])
    rows = []
    for name in names:
        sent, received = ([line[way][name] for line in messages if name in line[way]] for way in ("sent", "received"))
        rows.append([name, len(sent), readable_size(sum(sent)), readable_size(sum(received)) if received else None])
    yield page.table(["part", "replies", "sent", "received"], rows, "Bytes per part of the messages, over all rounds")
    by_round = [
        [line["round"], "trained" if line.get("trains") else "evaluated"]
        + [readable_size(sum(line[way].values())) for way in ("sent", "received")]
        for line in messages
    ]
    yield page.details(
        f"the {len(messages)} replies", page.table(["round", "what", "sent", "received"], by_round, words=(0, 1))
    )
    yield paragraph(
        "Sizes are those of the serialised records. They exclude what Flower adds to a message, and this client's "
        "one reply that says who it is.",
        class_="note",
    )
