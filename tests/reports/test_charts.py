"""The charts of a report in a real browser: the values that the data hold, at any width, light and dark."""

import json

import pytest

from protosphere.reports.charts import Chart, Line, as_json
from protosphere.reports.report import write_report
from tests.reports.fabricated import fabricate
from tests.reports.pages import Outline

pytestmark = pytest.mark.integration

# before the page's own script: what goes wrong in it. An event that a script sends belongs to no pointer that could be
# captured.
BEFORE = """<script>window.wrong = []; addEventListener("error", event => wrong.push(event.message));
Element.prototype.setPointerCapture = () => {}</script>"""
AFTER = """<script>addEventListener("load", () => setTimeout(() => {
  const told = { charts: {} }, page = document.documentElement
  const texts = (chart, kind) => [...chart.querySelectorAll("text." + kind)].map(each => each.textContent)
  const curves = chart => chart.querySelectorAll("g.curve").length
  // of a choice the last part, so that every chart is seen once
  for (const each of document.querySelectorAll(".choice > label:last-of-type")) each.click()
  const send = (chart, kind, x, y, more) => {
    const svg = chart.querySelector("svg[tabindex]"), box = svg.getBoundingClientRect()
    svg.dispatchEvent(new PointerEvent(kind, { clientX: box.left + x, clientY: box.top + y, bubbles: true, ...more }))
  }
  addEventListener("error", () => parent.postMessage(JSON.stringify({ wrong }), "*"))
  setTimeout(() => {
    for (const figure of document.querySelectorAll("figure.live")) {
      told.charts[figure.id] = [...figure.querySelectorAll(".chart")].map(chart => {
        const values = chart.querySelector(".values"), svg = chart.querySelector("svg[tabindex]")
        const width = svg.getBoundingClientRect().width, found = { before: [texts(chart, "x"), texts(chart, "y")] }
        found.place = [figure.scrollWidth - figure.clientWidth, width]
        found.colour = getComputedStyle(chart.querySelector("g.curve path")).stroke
        send(chart, "pointermove", 0.6 * width, 100, { pointerType: "touch" })
        const box = values.getBoundingClientRect(), around = chart.getBoundingClientRect()
        const drawn = svg.getBoundingClientRect(), top = around.width < 500 ? drawn.bottom : drawn.top + 8
        found.inside = !values.hidden && box.left >= around.left - 1 && box.right <= around.right + 1 &&
          Math.abs(box.top - top) < 3
        found.at = values.querySelector("b").textContent
        found.values = [...values.querySelectorAll("div")].map(each => each.textContent)
        send(chart, "pointerdown", 0.4 * width, 100, { pointerType: "mouse", button: 0 })
        send(chart, "pointermove", 0.7 * width, 120, { pointerType: "mouse" })
        send(chart, "pointerup", 0.7 * width, 120, { pointerType: "mouse" })
        found.zoomed = [texts(chart, "x"), texts(chart, "y")]
        svg.dispatchEvent(new MouseEvent("dblclick"))
        found.again = [texts(chart, "x"), texts(chart, "y")]
        svg.dispatchEvent(new KeyboardEvent("keydown", { key: "+" }))
        found.byKey = texts(chart, "x")
        svg.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }))
        const names = [...chart.querySelectorAll(".legend button")]
        found.curves = [curves(chart)]
        names[0].click()
        found.curves.push(curves(chart))
        names[0].click()
        names[1].dispatchEvent(new MouseEvent("dblclick"))
        found.curves.push(curves(chart))
        names[1].dispatchEvent(new MouseEvent("dblclick"))
        found.curves.push(curves(chart))
        found.names = names.map(each => each.textContent)
        return found
      })
    }
    const boxes = [...document.querySelectorAll(".shown-runs input")]
    const cells = () => [...document.querySelectorAll(".by-run thead tr")].map(
      row => [...row.cells].filter(cell => cell.getClientRects().length).map(cell => cell.textContent))
    told.runs = boxes.map(each => each.parentElement.textContent.trim())
    told.columns = [cells()]
    if (boxes.length) boxes[1].click()
    told.columns.push(cells())
    told.drawn = [...document.querySelectorAll(".chart")].map(curves)
    told.overflow = page.scrollWidth - page.clientWidth
    told.ground = getComputedStyle(document.body).backgroundColor
    told.wrong = wrong
    parent.postMessage(JSON.stringify(told), "*")
  }, 500)
}, 500))</script>"""


def watched(path):
    return path.read_text().replace("<head>", f"<head>{BEFORE}", 1) + AFTER


def charts_of(path):
    """Place in the page -> its charts' data."""
    page = Outline(path.read_text())
    places = [figure["id"] for figure in page.named("figure") if "id" in figure]
    data = [json.loads(text) for text in page.scripts[:-1]]
    live = [place for place in places if f'id="{place}"' in path.read_text() and has_chart(path.read_text(), place)]
    return dict(zip(live, data, strict=True))


def has_chart(text, place):
    return '<script type="application/json"' in text.split(f'<figure id="{place}"')[1].split("</figure>")[0]


def assert_charts_work(found, data, width, dark):
    assert found["wrong"] == []
    assert found["overflow"] <= 0
    assert (max(int(part) for part in found["ground"].strip("rgb()").split(",")) < 60) == dark
    assert found["charts"].keys() == data.keys()
    for place, charts in data.items():
        for chart, shown in zip(charts, found["charts"][place], strict=True):
            assert shown["place"][0] <= 0, place
            assert 200 < shown["place"][1] < width, place
            assert shown["inside"], place
            assert shown["names"] == [line["name"] for line in chart["lines"]]
            # what is shown is what the data hold
            values = {}
            for line in chart["lines"]:
                for x, y in zip(line["x"], line["y"], strict=True):
                    values.setdefault((line["name"], short(x)), set()).add(short(y))
            at = shown["at"].removeprefix(f"{chart['x']}: ")
            told = [text for text in shown["values"] if not text.startswith("and ")]
            assert 1 <= len(told) <= 8
            for text in told:
                name, _, rest = text.rpartition(": ")
                value, _, elsewhere = rest.partition(" at ")
                assert value.partition(" ± ")[0] in values[name, elsewhere or at], (place, text)
            # zoom changes the lower axis, and goes back
            assert shown["zoomed"][0] != shown["before"][0]
            assert shown["again"] == shown["before"]
            assert shown["byKey"] != shown["before"][0]
            number = len(chart["lines"])
            assert shown["curves"] == [number, number - 1, 1, number], place


def short(number):
    """As JavaScript's own of five significant digits."""
    text = f"{float(f'{number:.5g}'):.12f}".rstrip("0").rstrip(".")
    return text


@pytest.fixture(scope="module", params=[10, 200])
def report(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "run"
    return write_report(fabricate(folder, clients=request.param, classes=6, rounds=20, dim=16))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_a_reader_gets_values_zoom_and_a_choice_of_curves(seen, report, width, dark):
    data = charts_of(report)
    assert data.keys() == {
        "accuracy-over-rounds",
        "accuracy-over-bytes",
        "loss-over-rounds",
        "clients-together",
        "distances-of-global-prototypes",
    }
    clients = len(json.loads((report.parent / "roster.json").read_text()))
    assert len(data["clients-together"][0]["lines"]) == clients + 1
    found = seen("page.html", watched(report), width, dark)
    assert_charts_work(found, data, width, dark)
    # 20 rounds, of which three tenths were chosen
    assert found["charts"]["accuracy-over-rounds"][0]["before"][0] == ["0", "5", "10", "15", "20"]
    colours = {found["charts"]["accuracy-over-rounds"][0]["colour"]}
    assert colours == {"rgb(79, 168, 224)" if dark else "rgb(0, 114, 178)"}


def test_a_name_ends_no_script_and_what_is_not_finite_is_left_out():
    nothing, much = float("nan"), float("inf")
    line = Line("</script><!--\u2028&", [(1, 2.5), (2, nothing), (3, much), (4, 1 / 3)], spread=[0, 1, 1, nothing])
    text = as_json([Chart("<x>", "y", [line, Line("none", [])])])
    assert not set("<>&\u2028") & set(text)
    (chart,) = json.loads(text)
    (drawn,) = chart["lines"]
    assert (drawn["x"], drawn["y"], drawn["spread"]) == ([1, 4], [2.5, 0.3333333], [])
    assert drawn["name"].startswith("</script><!--")
    # of a scale of orders there is no place for 0
    (chart,) = json.loads(as_json([Chart("x", "y", [Line("a", [(0, 1), (1, 1)])], log="x")]))
    assert chart["lines"][0]["x"] == [1]


def test_the_chart_of_all_clients_calls_them_by_their_names(tmp_path):
    folder = fabricate(tmp_path / "run", clients=3, name="Clinic")
    lines = charts_of(write_report(folder))["clients-together"][0]["lines"]
    names = {f"client {p} (Clinic {p + 1})" for p in range(3)}
    assert {line["name"] for line in lines} == names | {"mean of all samples"}
    picture = (folder / "pictures" / "clients-together.svg").read_text()
    assert all(name in picture for name in names)
    table = (folder / "pictures" / "clients-together.csv").read_text().splitlines()
    assert table[0].endswith(",name")
    assert {line.rpartition(",")[2] for line in table[1:]} == {"Clinic 1", "Clinic 2", "Clinic 3"}
