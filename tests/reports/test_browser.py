"""The report in a real browser: nothing is missing, nothing overflows, both colour schemes.

With PROTOSPHERE_SCREENSHOT set to a path, the first page's picture is written there (the README's is made so, of a run
of its own: PROTOSPHERE_SCREENSHOT_OF names its folder).
"""

import os
from pathlib import Path

import pytest

from reports.report import write_report
from tests.reports.browser import Browser, find_browser
from tests.reports.fabricated import fabricate

pytestmark = pytest.mark.integration

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
UNDRAWN = "[...document.images].filter(each => !each.complete || each.naturalWidth < 100).map(each => each.alt)"
GROUND = "getComputedStyle(document.body).backgroundColor"
# the letters of a picture in pixels of the screen, from the size that it was drawn for (its own unit is the point)
SMALLEST = "Math.min(...[...document.images].map(each => 8.8 * each.width / (each.naturalWidth * 0.75)))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium here")
    with Browser(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = fabricate(tmp_path_factory.mktemp("results") / "run", clients=12, classes=30, rounds=8, dim=16)
    return write_report(folder)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_a_page_is_whole(browser, report, width, dark):
    browser.open(report, width, dark=dark)
    assert browser.trouble() == []
    assert {address.split(":")[0] for address in browser.requests()} == {"file", "data"}
    assert [address for address in browser.requests() if address.startswith("file")] == [report.as_uri()]
    assert browser.evaluate(UNDRAWN) == []
    assert browser.evaluate(OVERFLOW) <= 0
    channels = [int(each) for each in browser.evaluate(GROUND).removeprefix("rgb(").rstrip(")").split(",")]
    assert (max(channels) < 60) == dark
    assert browser.evaluate(SMALLEST) >= (11 if width == 1200 else 7)


def test_pictures_turn_dark_by_themselves(browser, report):
    picture = report.parent / "pictures" / "time.svg"
    shots = []
    for dark in (False, True):
        browser.open(picture, 600, 400, dark=dark)
        assert browser.trouble() == []
        shots.append(browser.evaluate("getComputedStyle(document.querySelector('text')).fill"))
    assert shots[0] != shots[1]


@pytest.mark.skipif("PROTOSPHERE_SCREENSHOT" not in os.environ, reason="PROTOSPHERE_SCREENSHOT says where to")
def test_the_screenshot_is_taken(browser, report):
    of = os.environ.get("PROTOSPHERE_SCREENSHOT_OF")
    browser.open(write_report(Path(of)) if of else report, 1200, 1740)
    browser.screenshot(os.environ["PROTOSPHERE_SCREENSHOT"])
