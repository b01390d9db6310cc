"""The report in a real browser: nothing is missing, nothing overflows, both colour schemes.

The picture of docs/running.md is made of a run's page by `chromium --headless --screenshot --window-size=1200,1740
report.html`.
"""

import re

import pytest

from protosphere.reports.chart_script import SCRIPT
from protosphere.reports.report import write_report
from tests.reports.fabricated import fabricate

pytestmark = pytest.mark.integration

# the letters of a picture are in pixels of the screen, from the size that it was drawn for (its own unit is the point)
PAGE = """<script>addEventListener("load", () => {
  const page = document.documentElement, drawn = [...document.images]
  const shown = () => drawn.filter(each => each.getClientRects().length)
  const letters = each => 8.8 * each.width / (each.naturalWidth * 0.75)
  const first = shown(), smallest = Math.min(...first.map(letters))
  for (const each of document.querySelectorAll("input + label:nth-of-type(2)")) each.click()
  const other = shown().filter(each => !first.includes(each))
  parent.postMessage(JSON.stringify({
    undrawn: drawn.filter(each => !each.complete || each.naturalWidth < 100).map(each => each.alt),
    pictures: drawn.length,
    overflow: page.scrollWidth - page.clientWidth,
    ground: getComputedStyle(document.body).backgroundColor,
    smallest: Math.min(smallest, ...other.map(letters)),
    chosen: [first.length, shown().length, other.length],
    asked: performance.getEntriesByType("resource").map(each => each.name).filter(name => !name.startsWith("data:")),
  }), "*")
})</script>"""
PICTURE = """<script>
  parent.postMessage(JSON.stringify(getComputedStyle(document.querySelector("text")).fill), "*")
</script></svg>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = fabricate(tmp_path_factory.mktemp("results") / "run", clients=12, classes=30, rounds=8, dim=16)
    return write_report(folder)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_a_page_is_whole(seen, report, width, dark):
    found = seen("page.html", report.read_text() + PAGE, width, dark)
    assert (found["undrawn"], found["asked"]) == ([], [])
    assert found["pictures"] > 5
    assert found["overflow"] <= 0
    assert (max(map(int, re.findall(r"\d+", found["ground"]))) < 60) == dark
    # of the clients' three pictures and the four confusions one at a time, and another when it is asked for; and in the
    # place of four there are charts
    assert found["chosen"] == [found["pictures"] - 9, found["pictures"] - 9, 2]
    assert found["smallest"] >= (11 if width == 1200 else 7)


def test_without_scripts_there_are_the_pictures(seen, report):
    text = report.read_text()
    assert text.count(SCRIPT) == 1
    found = seen("page.html", text.replace(SCRIPT, "") + PAGE, 1200, False)
    assert found["undrawn"] == []
    assert found["chosen"] == [found["pictures"] - 5, found["pictures"] - 5, 2]
    assert found["smallest"] >= 11


def test_pictures_turn_dark_by_themselves(seen, report):
    picture = (report.parent / "pictures" / "time-by-round.svg").read_text().replace("</svg>", PICTURE)
    assert seen("a.svg", picture, 600, dark=False) != seen("b.svg", picture, 600, dark=True)
