"""The report in a real browser: nothing is missing, nothing overflows.

The picture of docs/running.md is made of a run's page by `chromium --headless --screenshot --window-size=1200,1345
report.html`.
"""

import pytest

from protosphere.reports.report import write_report
from tests.reports.fabricated import fabricate

pytestmark = pytest.mark.integration

# the letters of a picture are in pixels of the screen, from the size that it was drawn for (its own unit is the point)
PAGE = """<script>addEventListener("load", () => {
  const page = document.documentElement, drawn = [...document.images]
  for (const each of document.querySelectorAll("details")) each.open = true
  const letters = each => 8.8 * each.width / (each.naturalWidth * 0.75)
  parent.postMessage(JSON.stringify({
    undrawn: drawn.filter(each => !each.complete || each.naturalWidth < 100).map(each => each.alt),
    pictures: drawn.length,
    overflow: page.scrollWidth - page.clientWidth,
    smallest: Math.min(...drawn.map(letters)),
    conclusion: document.querySelector(".conclusion").getBoundingClientRect().bottom,
    asked: performance.getEntriesByType("resource").map(each => each.name).filter(name => !name.startsWith("data:")),
  }), "*")
})</script>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = fabricate(tmp_path_factory.mktemp("results") / "run", clients=12, classes=30, rounds=8, dim=16)
    return write_report(folder)


@pytest.mark.parametrize("width", [1200, 400])
def test_a_page_is_whole(seen, report, width):
    found = seen("page.html", report.read_text() + PAGE, width)
    assert (found["undrawn"], found["asked"]) == ([], [])
    assert found["pictures"] > 5
    assert found["overflow"] <= 0
    # the sentence that says what came out is read without a move of the hand
    assert found["conclusion"] < 500
    assert found["smallest"] >= (11 if width == 1200 else 7)
