"""The report in a browser: nothing is missing, nothing overflows.

The picture of docs/running.md is made of a run's page by `chromium --headless --screenshot --window-size=1200,1345
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
# a page in a frame measures itself, and the page around it shows the result as text; a window itself cannot be as
# narrow as a phone's
AROUND = """<script>addEventListener("message", event => { document.body.textContent = "seen: " + event.data + ":end" })
</script><body><iframe src="ADDRESS" style="width: WIDTHpx; height: 900px; border: 0"></iframe></body>"""


@pytest.fixture
def seen(tmp_path):
    """seen(name, text, width): what a page measures of itself in the browser."""
    if BROWSER is None:
        pytest.skip("no Chromium here")

    def look(name, text, width):
        (tmp_path / name).write_text(text)
        (tmp_path / "around.html").write_text(AROUND.replace("ADDRESS", name).replace("WIDTH", str(width)))
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--dump-dom"]
        flags += ["--virtual-time-budget=20000", "--hide-scrollbars"]
        command = [BROWSER, *flags, f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "around.html").as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        return json.loads(unescape(re.search(r">seen: (.*):end<", done.stdout, re.DOTALL)[1]))

    return look


# letters in pixels of the screen, from the size of the drawing (whose unit is the point)
PAGE = """<script>addEventListener("load", () => {
  const page = document.documentElement, images = [...document.images]
  for (const each of document.querySelectorAll("details")) each.open = true
  const letters = each => 8.8 * each.width / (each.naturalWidth * 0.75)
  parent.postMessage(JSON.stringify({
    missing: images.filter(each => !each.complete || each.naturalWidth < 100).map(each => each.alt),
    pictures: images.length,
    overflow: page.scrollWidth - page.clientWidth,
    smallest: Math.min(...images.map(letters)),
    conclusion: document.querySelector(".conclusion").getBoundingClientRect().bottom,
    requests: performance.getEntriesByType("resource").map(each => each.name).filter(name => !name.startsWith("data:")),
  }), "*")
})</script>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = fabricate(tmp_path_factory.mktemp("results") / "run", clients=12, classes=30, rounds=8, dim=16)
    return write_report(folder)


@pytest.mark.parametrize("width", [1200, 400])
def test_a_page_is_complete_and_fits_its_width(seen, report, width):
    measures = seen("page.html", report.read_text() + PAGE, width)
    assert (measures["missing"], measures["requests"]) == ([], [])
    assert measures["pictures"] > 5
    assert measures["overflow"] <= 0
    # the conclusion is visible without scrolling
    assert measures["conclusion"] < 500
    assert measures["smallest"] >= (11 if width == 1200 else 7)
