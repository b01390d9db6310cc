"""Classes in words."""

import pytest

from federation.words import class_word, class_words, one_class

NAMES = ("cat", "dog", "frog", "a name that is far too long for one line")


@pytest.mark.parametrize(
    ("labels", "room", "words"),
    [
        ((), 60, "no class"),
        ((1,), 3, "1 class: dog"),
        ((0, 1, 2), 14, "3 classes: cat, dog, frog"),
        ((0, 1, 2, 3), 13, "4 classes: cat, dog and 2 more"),
        ((3, 0), 1, "2 classes: a name that is far to... and 1 more"),
        ((2, 3), 60, "2 classes: frog, a name that is far to..."),
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
        ({0: (0, 1), 2: (1,)}, NAMES, "1 client holds one class alone (2: dog): always answering it is right"),
        ({n: (n % 2,) for n in range(7)}, NAMES, "7 clients hold one class alone (0: cat, 1: dog, 2: cat, 3: dog, "),
        ({n: (n % 2,) for n in range(7)}, NAMES, "4: cat, 2 more)"),
        ({0: (0,), 1: (0,)}, ("cat",), "all data are of class 'cat': whatever is answered is right"),
    ],
)
def test_one_class_alone_is_told(held, names, words):
    told = one_class(held, names)
    assert words in told
    assert bool(words) == bool(told)
