"""The script of a page with charts, and its style; here and not in a file of its own, since Flower's bundles take no
.js along.

Without it the page shows the same curves as pictures. It draws each chart from the JSON beside its picture:

- pointing, a finger or the arrow keys show the values at a place;
- dragging across, two fingers or the keys + and - zoom, a double click or Escape goes back to the whole;
- a name of the legend hides its curve, a double click on it hides all others;
- on a page of several runs a box for each hides the run's curves and its columns of tables.

What others have named is put into the page as text alone, never as markup.
"""

from protosphere.reports.canvas import ON_DARK

_LIGHT = "".join(f"--c{light[1:]}:{light};" for light in ON_DARK)
_DARK = "".join(f"--c{light[1:]}:{dark};" for light, dark in ON_DARK.items())
STYLE = (
    f":root{{{_LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    """
.live > .wide { display: none; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
.chart { position: relative; min-width: 0; }
.chart > svg { display: block; width: 100%; height: auto; touch-action: pan-y; cursor: crosshair; user-select: none; }
.chart > svg:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.chart > svg:focus:not(:focus-visible) { outline: none; }
.chart text { font-size: 12px; fill: var(--soft); }
.tools { display: flex; gap: .3rem; justify-content: flex-end; margin-bottom: .2rem; }
.tools button, .legend button { font: inherit; font-size: .85rem; color: var(--ink); background: none; cursor: pointer;
  border: 1px solid var(--line); border-radius: .3rem; padding: .1rem .5rem; min-height: 1.8rem; }
.tools button { min-width: 2rem; }
.tools button:disabled { color: var(--line); cursor: default; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem; margin-top: .3rem; max-height: 9rem; overflow-y: auto; }
.legend button { display: inline-flex; align-items: center; gap: .4rem; text-align: left; border-color: transparent; }
.legend button[aria-pressed="false"] { color: var(--soft); text-decoration: line-through; opacity: .6; }
.legend svg { flex: none; }
.values { position: absolute; z-index: 1; pointer-events: none; background: var(--raised); color: var(--ink);
  border: 1px solid var(--line); border-radius: .3rem; padding: .3rem .5rem; font-size: .85rem; line-height: 1.35;
  max-width: min(18rem, 80%); font-variant-numeric: tabular-nums; }
.values i { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%; margin-right: .4rem; }
.shown-runs { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; border: 1px solid var(--line); border-radius: .5rem;
  margin: 1rem 0; padding: .6rem 1rem; min-width: 0; }
.shown-runs label { cursor: pointer; }
@media print { .tools, .values { display: none; } .legend { max-height: none; } }
"""
)

SCRIPT = r"""
"use strict";
(() => {
const SVG = "http://www.w3.org/2000/svg";
const MOST_VALUES = 8, FEW_POINTS = 30, FEW_LINES = 12, NEAR = 14;
const charts = [];

function add(parent, tag, attributes = {}, text) {
  const drawing = tag === "svg" || parent.namespaceURI === SVG;
  const made = drawing ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
const colour = line => `var(--c${line.colour})`;
const number = value => String(+value.toPrecision(5));

function linearTicks(low, high, most, whole) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map(factor => factor * power).find(size => size >= rough);
  if (whole) step = Math.max(1, Math.round(step));
  const ticks = [];
  for (let place = Math.ceil(low / step); place * step <= high + 1e-9 * step; place++) ticks.push(place * step);
  return ticks;
}
function logTicks(low, high, most) {
  const few = high - low < 2.5, ticks = [];
  for (let power = Math.floor(low); power <= high; power++)
    for (const factor of few ? [1, 2, 5] : [1]) {
      const at = power + Math.log10(factor);
      if (at >= low - 1e-9 && at <= high + 1e-9) ticks.push(at);
    }
  const every = Math.ceil(ticks.length / most);
  return ticks.filter((_, place) => place % every === 0);
}

class Chart {
  constructor(panels, data, label) {
    this.data = data;
    this.number = charts.length;
    this.lines = data.lines;
    this.hidden = new Set();
    this.view = null;    // the ends of the lower axis, as it is drawn; null: all of it
    this.cursor = null;  // of the lower axis, as it is drawn
    this.fingers = new Map();
    this.toX = data.log.includes("x") ? Math.log10 : value => value;
    this.toY = data.log.includes("y") ? Math.log10 : value => value;
    this.holder = add(panels, "div", { class: "chart" });
    const tools = add(this.holder, "div", { class: "tools" });
    const button = (sign, what, action) => {
      const made = add(tools, "button", { type: "button", title: what, "aria-label": what }, sign);
      made.addEventListener("click", action);
      return made;
    };
    button("+", "zoom in", () => this.zoomBy(0.5));
    this.out = button("\u2212", "zoom out", () => this.zoomBy(2));
    this.back = button("whole", "show the whole again", () => this.zoom(null));
    this.svg = add(this.holder, "svg", { tabindex: 0, role: "img", "aria-label": label });
    this.values = add(this.holder, "div", { class: "values", role: "status" });
    this.values.hidden = true;
    this.legend = add(this.holder, "div", { class: "legend" });
    this.keys = this.lines.map((line, place) => this.key(line, place));
    this.listen();
    // what is drawn changes sizes, so not while they are observed
    new ResizeObserver(() => setTimeout(() => this.resize())).observe(this.holder);
    this.resize();
  }

  key(line, place) {
    const made = add(this.legend, "button", { type: "button", "aria-pressed": "true" });
    const sample = add(made, "svg", { width: 22, height: 10, "aria-hidden": "true" });
    add(sample, "line", { x1: 0, x2: 22, y1: 5, y2: 5, stroke: colour(line), "stroke-dasharray": line.dash,
      "stroke-width": Math.min(4, line.width + 0.7) });
    add(made, "span", {}, line.name);
    made.addEventListener("click", () => this.show(place, this.hidden.has(place)));
    made.addEventListener("dblclick", () => {
      const alone = this.hidden.size === this.lines.length - 1 && !this.hidden.has(place);
      this.lines.forEach((_, other) => this.show(other, alone || other === place, false));
      this.draw();
    });
    return made;
  }

  show(place, visible, drawn = true) {
    if (visible) this.hidden.delete(place); else this.hidden.add(place);
    this.keys[place].setAttribute("aria-pressed", String(visible));
    if (drawn) this.draw();
  }

  showRun(run, visible) {
    this.lines.forEach((line, place) => {
      if (line.run !== run) return;
      this.keys[place].hidden = !visible;
      this.show(place, visible, false);
    });
    this.draw();
  }

  resize() {
    const width = Math.round(this.holder.clientWidth);
    if (width && width !== this.width) { this.width = width; this.draw(); }
  }

  get shown() { return this.lines.filter((_, place) => !this.hidden.has(place)); }

  ends() {
    let low = Infinity, high = -Infinity;
    for (const line of this.shown) for (const x of line.x) {
      low = Math.min(low, this.toX(x));
      high = Math.max(high, this.toX(x));
    }
    if (low > high) return [0, 1];
    return low === high ? [low - 0.5, high + 0.5] : [low - 0.01 * (high - low), high + 0.01 * (high - low)];
  }

  // of a curve's band, the lower (0) or the upper (1); of none the curve itself
  edge(line, side, i) {
    const y = line.spread.length ? line.band[side][i] : line.y[i];
    return y > 0 || !this.data.log.includes("y") ? y : line.y[i];
  }

  heights() {
    const [left, right] = this.range;
    let low = Infinity, high = -Infinity;
    const framed = this.shown.filter(line => line.framed);
    for (const line of framed.length ? framed : this.shown) line.x.forEach((x, i) => {
      const at = this.toX(x);
      if (at < left || at > right) return;
      low = Math.min(low, this.toY(this.edge(line, 0, i)));
      high = Math.max(high, this.toY(this.edge(line, 1, i)));
    });
    if (low > high) return [0, 1];
    const edge = low === high ? 0.5 : 0.05 * (high - low);
    return [low - edge, high + edge];
  }

  draw() {
    if (!this.width) return;
    const { svg, width } = this, height = Math.round(Math.min(400, Math.max(240, 0.58 * width)));
    this.range = this.view || this.ends();
    const [left, right] = this.range, [low, high] = this.heights();
    const tall = this.data.log.includes("y"), long = this.data.log.includes("x");
    const ys = tall ? logTicks(low, high, 6) : linearTicks(low, high, 6);
    const most = Math.max(2, width / 80);
    const xs = long ? logTicks(left, right, most) : linearTicks(left, right, most, this.data.whole);
    const value = (at, isLog) => number(isLog ? 10 ** at : at);
    const widest = Math.max(1, ...ys.map(at => value(at, tall).length));
    const box = this.box = { left: 30 + 7 * widest, right: width - 12, top: 8, bottom: height - 42 };
    this.X = at => box.left + (at - left) / (right - left) * (box.right - box.left);
    this.Y = at => box.bottom - (at - low) / (high - low) * (box.bottom - box.top);
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const clip = `clip-${this.number}`;
    const rectangle = { x: box.left, y: box.top - 4, width: box.right - box.left, height: box.bottom - box.top + 8 };
    add(add(svg, "clipPath", { id: clip }), "rect", rectangle);
    const grid = { stroke: "var(--line)", "stroke-width": 1 };
    for (const at of ys) {
      add(svg, "line", { x1: box.left, x2: box.right, y1: this.Y(at), y2: this.Y(at), ...grid });
      add(svg, "text", { x: box.left - 6, y: this.Y(at) + 4, "text-anchor": "end", class: "y" }, value(at, tall));
    }
    for (const at of xs) {
      add(svg, "line", { x1: this.X(at), x2: this.X(at), y1: box.top, y2: box.bottom, ...grid });
      add(svg, "text", { x: this.X(at), y: box.bottom + 16, "text-anchor": "middle", class: "x" }, value(at, long));
    }
    const middle = (box.top + box.bottom) / 2;
    add(svg, "text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, this.data.x);
    add(svg, "text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, this.data.y);
    const curves = add(svg, "g", { "clip-path": `url(#${clip})` });
    this.drawn = new Map();
    for (const line of this.shown) this.drawn.set(line, this.drawLine(curves, line));
    this.marks = add(svg, "g");
    this.out.disabled = this.back.disabled = !this.view;
    this.point();
  }

  drawLine(curves, line) {
    const at = line.x.map((x, i) => [this.X(this.toX(x)), this.Y(this.toY(line.y[i]))]);
    const path = points => points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
    if (line.spread.length) {
      const edge = side => line.x.map((x, i) => [this.X(this.toX(x)), this.Y(this.toY(this.edge(line, side, i)))]);
      add(curves, "path", { d: `M${path([...edge(1), ...edge(0).reverse()])}Z`, fill: colour(line), opacity: 0.15 });
    }
    const group = add(curves, "g", { class: "curve", opacity: this.lines.length > FEW_LINES ? 0.7 : 1 });
    const look = { fill: "none", stroke: colour(line), "stroke-width": line.width, "stroke-dasharray": line.dash,
      "stroke-linejoin": "round" };
    if (!line.marked) add(group, "path", { d: `M${path(at)}`, ...look });
    const inside = at.filter(([x]) => x >= this.box.left - 1 && x <= this.box.right + 1);
    const few = inside.length <= FEW_POINTS && this.lines.length <= FEW_LINES && line.width < 3;
    const ring = { r: 5, fill: "none", stroke: colour(line), "stroke-width": 2 };
    const dot = line.marked ? ring : { r: 2.5, fill: colour(line) };
    if (line.marked || at.length === 1 || few)
      for (const [x, y] of inside) add(group, "circle", { cx: x, cy: y, ...dot });
    return group;
  }

  // --- values at a place ---

  near(line, at) {
    let best = -1, least = Infinity;
    line.x.forEach((x, i) => {
      const place = this.toX(x), far = Math.abs(this.X(place) - this.X(at));
      if (place >= this.range[0] && place <= this.range[1] && far < least) { least = far; best = i; }
    });
    return best;
  }

  point(pointerY) {
    this.values.hidden = true;
    if (!this.marks) return;
    this.marks.replaceChildren();
    const usual = this.lines.length > FEW_LINES ? 0.7 : 1;
    for (const group of this.drawn.values()) group.setAttribute("opacity", usual);
    if (this.cursor === null) return;
    let found = this.shown.map(line => ({ line, i: this.near(line, this.cursor) })).filter(({ i }) => i >= 0);
    for (const entry of found) {
      entry.x = entry.line.x[entry.i];
      entry.px = this.X(this.toX(entry.x));
      entry.py = this.Y(this.toY(entry.line.y[entry.i]));
    }
    const here = this.X(this.cursor);
    found.sort((a, b) => Math.abs(a.px - here) - Math.abs(b.px - here));
    if (!found.length) return;
    const first = found[0];
    found = found.filter(entry => Math.abs(entry.px - first.px) <= NEAR);
    if (pointerY !== undefined) found.sort((a, b) => Math.abs(a.py - pointerY) - Math.abs(b.py - pointerY));
    const nearest = found[0], told = found.slice(0, MOST_VALUES);
    const upright = { x1: first.px, x2: first.px, y1: this.box.top, y2: this.box.bottom };
    add(this.marks, "line", { ...upright, stroke: "var(--soft)", "stroke-dasharray": "3 3" });
    for (const { line, px, py } of told)
      if (py >= this.box.top - 4 && py <= this.box.bottom + 4)
        add(this.marks, "circle", { cx: px, cy: py, r: 4.5, fill: colour(line), stroke: "var(--ground)" });
    if (this.lines.length > FEW_LINES)
      for (const [line, group] of this.drawn) group.setAttribute("opacity", line === nearest.line ? 1 : 0.3);
    this.values.replaceChildren();
    add(this.values, "b", {}, `${this.data.x}: ${number(first.x)}`);
    for (const { line, i, x } of told) {
      const row = add(this.values, "div"), around = line.spread.length ? ` \u00b1 ${number(line.spread[i])}` : "";
      add(row, "i", { style: `background:${colour(line)}` });
      const where = x === first.x ? "" : ` at ${number(x)}`;
      row.append(`${line.name}: `);
      add(row, "span", { class: "value" }, number(line.y[i]));
      row.append(around + where);
    }
    if (found.length > told.length) add(this.values, "div", {}, `and ${found.length - told.length} more`);
    this.values.hidden = false;
    const wide = this.values.offsetWidth, room = this.holder.clientWidth - wide;
    const drawn = this.svg.getBoundingClientRect(), mark = first.px * drawn.width / this.width;
    const top = drawn.top - this.holder.getBoundingClientRect().top;
    const side = mark + 12 > room ? mark - 12 - wide : mark + 12;
    this.values.style.left = `${Math.max(0, Math.min(room, side))}px`;
    // on a narrow screen under the curves, which it would hide
    this.values.style.top = `${this.width < 500 ? top + drawn.height : top + 8}px`;
  }

  // --- zoom ---

  zoom(view) {
    if (view) {
      const [low, high] = this.ends();
      const least = 1e-3 * (high - low), from = Math.max(low, view[0]), to = Math.min(high, view[1]);
      if (to - from < least) return;
      view = to - from > 0.999 * (high - low) ? null : [from, to];
    }
    this.view = view;
    this.draw();
  }

  zoomBy(factor) {
    const [low, high] = this.range, inside = this.cursor !== null && this.cursor >= low && this.cursor <= high;
    const centre = inside ? this.cursor : (low + high) / 2;
    this.zoom([centre - factor * (centre - low), centre + factor * (high - centre)]);
  }

  at(event) {
    const around = this.svg.getBoundingClientRect(), scale = this.width / around.width, [low, high] = this.range;
    const x = (event.clientX - around.left) * scale, y = (event.clientY - around.top) * scale;
    return { x, y, place: low + (x - this.box.left) / (this.box.right - this.box.left) * (high - low) };
  }

  listen() {
    const { svg, fingers } = this;
    let start = null, chosen = null;
    const ended = () => { start = null; if (chosen) chosen.remove(); chosen = null; };
    svg.addEventListener("pointerdown", event => {
      const here = this.at(event);
      if (event.pointerType === "touch") {
        fingers.set(event.pointerId, here.place);
        if (fingers.size === 1) { this.cursor = here.place; this.point(here.y); }
      } else if (event.button === 0) { start = here; svg.setPointerCapture(event.pointerId); }
    });
    svg.addEventListener("pointermove", event => {
      const here = this.at(event);
      if (fingers.size === 2 && fingers.has(event.pointerId)) {
        // what lay under each finger stays under it
        const [other, held] = [...fingers].find(([id]) => id !== event.pointerId), moved = fingers.get(event.pointerId);
        const [low, high] = this.range, ratio = (moved - held) / (here.place - held);
        if (ratio > 0.2 && ratio < 5) this.zoom([held - ratio * (held - low), held + ratio * (high - held)]);
        fingers.set(event.pointerId, this.at(event).place);
        return;
      }
      this.cursor = here.place;
      this.point(here.y);
      if (!start) return;
      const { left, right, top, bottom } = this.box, look = { fill: "var(--accent)", opacity: 0.2 };
      const ends = [start.x, here.x].map(x => Math.max(left, Math.min(right, x))).sort((a, b) => a - b);
      chosen = chosen || add(svg, "rect", { ...look, y: top, height: bottom - top });
      chosen.setAttribute("x", ends[0]);
      chosen.setAttribute("width", ends[1] - ends[0]);
    });
    svg.addEventListener("pointerup", event => {
      fingers.delete(event.pointerId);
      const begun = start, here = this.at(event);
      ended();
      if (begun && Math.abs(here.x - begun.x) > 8) this.zoom([begun.place, here.place].sort((a, b) => a - b));
    });
    svg.addEventListener("pointercancel", event => { fingers.delete(event.pointerId); ended(); });
    svg.addEventListener("pointerleave", event => {
      if (event.pointerType === "touch" || start) return;
      this.cursor = null;
      this.point();
    });
    svg.addEventListener("dblclick", () => this.zoom(null));
    svg.addEventListener("blur", () => { this.cursor = null; this.point(); });
    svg.addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) this.step(step);
      else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
      else if (event.key === "-") this.zoomBy(2);
      else if (event.key === "Escape") { this.cursor = null; this.zoom(null); }
      else return;
      event.preventDefault();
    });
  }

  step(way) {
    const places = [...new Set(this.shown.flatMap(line => line.x.map(this.toX)))].sort((a, b) => a - b);
    if (!places.length) return;
    const [low, high] = this.range, from = this.cursor === null ? (way > 0 ? low : high) : this.cursor;
    const further = places.filter(at => way > 0 ? at > from + 1e-12 : at < from - 1e-12);
    this.cursor = further.length ? (way > 0 ? further[0] : further[further.length - 1]) : from;
    if (this.view && (this.cursor < low || this.cursor > high)) {
      const shift = this.cursor - (low + high) / 2;
      this.zoom([low + shift, high + shift]);
    }
    this.point();
  }
}

for (const element of document.querySelectorAll("script.charts")) {
  const figure = element.closest("figure"), image = figure.querySelector("img");
  const panels = document.createElement("div");
  panels.className = "panels";
  element.before(panels);
  for (const data of JSON.parse(element.textContent)) charts.push(new Chart(panels, data, image ? image.alt : ""));
  figure.classList.add("live");
}

// a choice shows charts that had no width before
document.addEventListener("change", () => charts.forEach(chart => chart.resize()));

for (const place of document.querySelectorAll("[data-runs]")) {
  const box = add(place, "fieldset", { class: "shown-runs" });
  add(box, "legend", {}, "runs shown");
  JSON.parse(place.dataset.runs).forEach((name, run) => {
    const label = add(box, "label"), input = add(label, "input", { type: "checkbox", checked: "" });
    label.append(` ${name}`);
    input.addEventListener("change", () => {
      for (const chart of charts) chart.showRun(run, input.checked);
      // the first column says what a row is of
      for (const row of document.querySelectorAll(".by-run tr"))
        if (row.cells[run + 1]) row.cells[run + 1].hidden = !input.checked;
      for (const part of document.querySelectorAll(`[data-run="${run}"]`)) part.hidden = !input.checked;
    });
  });
}
})();
"""
