"""The report in a real browser: nothing is missing, nothing overflows, both colour schemes.

The picture of docs/running.md is made of a run's page by `chromium --headless --screenshot --window-size=1200,1740
report.html`.
"""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from protosphere.reports.report import write_report
from tests.reports.fabricated import fabricate

pytestmark = pytest.mark.integration

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# a page in a frame tells what it looks like, and the page around it shows that as its only words; the letters of a
# picture are in pixels of the screen, from the size that it was drawn for (its own unit is the point)
AROUND = """<script>addEventListener("message", event => { document.body.textContent = "told: " + event.data + ":end" })
</script><body><iframe src="ADDRESS" style="width: WIDTHpx; height: 900px; border: 0"></iframe></body>"""
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
    if BROWSER is None:
        pytest.skip("no Chromium here")
    folder = fabricate(tmp_path_factory.mktemp("results") / "run", clients=12, classes=30, rounds=8, dim=16)
    return write_report(folder)


@pytest.fixture
def seen(tmp_path):
    """seen(name, text, width, dark): what a page or a picture tells of itself in the browser."""

    def look(name, text, width, dark):
        (tmp_path / name).write_text(text)
        (tmp_path / "around.html").write_text(AROUND.replace("ADDRESS", name).replace("WIDTH", str(width)))
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--dump-dom"]
        flags += ["--virtual-time-budget=20000", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        command = [BROWSER, *flags, f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "around.html").as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        return json.loads(unescape(re.search(r">told: (.*):end<", done.stdout)[1]))

    return look


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_a_page_is_whole(seen, report, width, dark):
    found = seen("page.html", report.read_text() + PAGE, width, dark)
    assert (found["undrawn"], found["asked"]) == ([], [])
    assert found["pictures"] > 5
    assert found["overflow"] <= 0
    assert (max(map(int, re.findall(r"\d+", found["ground"]))) < 60) == dark
    # of the clients' two orders and the four confusions one at a time, and another when it is asked for
    assert found["chosen"] == [found["pictures"] - 4, found["pictures"] - 4, 2]
    assert found["smallest"] >= (11 if width == 1200 else 7)


def test_pictures_turn_dark_by_themselves(seen, report):
    picture = (report.parent / "pictures" / "time.svg").read_text().replace("</svg>", PICTURE)
    assert seen("a.svg", picture, 600, dark=False) != seen("b.svg", picture, 600, dark=True)
