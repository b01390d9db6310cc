"""Classes in words."""

import pytest

from protosphere.core.text import class_word, class_words, cut_apart, one_class

NAMES = ("cat", "dog", "frog", "a name that is far too long for one line")


@pytest.mark.parametrize(
    ("labels", "room", "words"),
    [
        ((), 60, "no class"),
        ((1,), 3, "1 class: dog"),
        ((0, 1, 2), 14, "3 classes: cat, dog, frog"),
        ((0, 1, 2, 3), 13, "4 classes: cat, dog and 2 more"),
        ((3, 0), 1, "2 classes: a name that is far too … and 1 more"),
        ((2, 3), 60, "2 classes: frog, a name that is far too …"),
    ],
)
def test_classes_are_told_by_name(labels, room, words):
    assert class_words(labels, NAMES, room) == words


@pytest.mark.parametrize(("label", "word"), [(1, "class 'dog'"), (9, "class 9"), (-1, "class -1")])
def test_a_class_without_a_known_name_has_its_number(label, word):
    assert class_word(label, NAMES) == word


@pytest.mark.parametrize(
    ("held", "names", "words"),
    [
        ({0: (0, 1), 1: (), 2: (1, 2)}, NAMES, ""),
        ({0: (0, 1), 2: (1,)}, NAMES, "1 client holds only one class (2: dog): always answering it is right"),
        ({n: (n % 2,) for n in range(7)}, NAMES, "7 clients hold only one class (0: cat, 1: dog, 2: cat, 3: dog, "),
        ({n: (n % 2,) for n in range(7)}, NAMES, "4: cat, 2 more)"),
        ({0: (0,), 1: (0,)}, ("cat",), "all data belong to class 'cat': every answer is right"),
    ],
)
def test_one_class_alone_is_told(held, names, words):
    told = one_class(held, names)
    assert words in told
    assert bool(words) == bool(told)


@pytest.mark.parametrize(
    ("names", "most", "words"),
    [
        (["resnet8", "mlp"], 28, ["resnet8", "mlp"]),
        (["a" * 30, "b"], 28, ["a" * 27 + "…", "b"]),
        (
            ["/srv/hospitals/team/project/nets.py:mlp", "/srv/hospitals/team/project/nets.py:cnn"],
            28,
            ["…team/project/nets.py:mlp", "…team/project/nets.py:cnn"],
        ),
        # one and the same name stays one, and there may be several groups
        (
            ["left lung, lower", "left lung, upper", "left lung, lower"],
            12,
            ["…lung, lower", "…lung, upper", "…lung, lower"],
        ),
        (["a" * 20 + "1", "a" * 20 + "2", "b" * 20 + "1", "b" * 20 + "2"], 6, ["…aaaa1", "…aaaa2", "…bbbb1", "…bbbb2"]),
        # what differs is in the middle, or cannot be seen
        (["a" * 20 + "X" + "c" * 20, "a" * 20 + "Y" + "c" * 20], 8, ["…Xccccc…", "…Yccccc…"]),
        (["a\0b", "a b"], 8, ["a b", "a b (2)"]),
        (["", ""], 8, ["", ""]),
        (
            [f"/data/a_very_long_folder_name_indeed/nets.py:{name}" for name in ("mlp", "mlp_wide")],
            28,
            ["…nets.py:mlp", "…nets.py:mlp_wide"],
        ),
        (["a" * 30, "a" * 30 + "b" * 20], 14, ["…" + "a" * 13, f"…{'b' * 12}…"]),
    ],
)
def test_names_that_differ_stay_different_when_they_are_cut(names, most, words):
    assert cut_apart(names, most) == words


def test_of_thousands_of_long_names_no_two_are_alike():
    names = [f"{'x' * 50}{number}{'y' * 50}" for number in range(3000)]
    shown = cut_apart(names, 14)
    assert len(set(shown)) == 3000
    assert max(map(len, shown)) <= 14
    labels = tuple("acute leukaemia of the type " + letter for letter in "AB")
    assert class_words((0, 1), labels) == "2 classes: …leukaemia of the type A, …leukaemia of the type B"
    assert class_word(1, labels) == "class '…leukaemia of the type B'"
