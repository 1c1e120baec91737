// Reading a curve: what it says under the pointer, at a touch, or at the place that the arrow keys have reached.
/** @import { Chart, Frame, Point, Reading } from "./types.js" */
import { draw, make, set } from "./dom.js";
import { free, nearest } from "./geometry.js";

/** How far the box of words keeps from the mark. */
const GAP = 12;

/**
 * Where the upper left corner of a box of this size goes: near the mark and off the curve, or else at the top or the bottom
 * of the plot, or above the mark where the curve is everywhere.
 * @param {{ width: number, height: number }} chart
 * @param {Frame} frame
 * @param {Point[]} curve
 * @param {Point} mark
 * @param {[number, number]} size
 * @returns {Point}
 */
function corner(chart, frame, curve, [x, y], [across, down]) {
  const [middle, before, after] = [x - across / 2, x - across - GAP, x + GAP];
  const [above, below, beside] = [y - down - GAP, y + GAP, y - down / 2];
  const places = [
    ...[middle, before, after].map((left) => [left, above]),
    ...[middle, before, after].map((left) => [left, below]),
    ...[before, after].map((left) => [left, beside]),
    [middle, above - 2 * GAP],
    [middle, frame.top],
    [middle, frame.bottom - down - GAP],
    [middle, Math.max(0, above)],
  ];
  const corners = places.map(([left, top]) => [Math.max(2, Math.min(chart.width - across - 2, left)), top]);
  const fits = corners.find(([left, top]) => {
    const box = { left: left - 4, right: left + across + 4, top: top - 4, bottom: top + down + 4 };
    return box.top >= 0 && box.bottom <= chart.height && free(box, curve);
  });
  const [left, top] = fits ?? corners[corners.length - 1];
  return [left, top];
}

/**
 * A mark on the curve and a box of words beside it; `show` moves them to a reading, `hide` takes them away.
 * @param {SVGSVGElement} svg
 * @param {Frame} frame
 * @param {Reading[]} readings
 */
function bubble(svg, frame, readings) {
  const { top, bottom } = frame;
  const curve = readings.map((reading) => /** @type {Point} */ ([reading.x, reading.y]));
  const line = draw("line", { class: "reading-line", y1: top, y2: bottom });
  const dot = draw("circle", { class: "reading-dot", r: 5 });
  const box = draw("rect", { class: "reading-box", rx: 6 });
  const words = draw("text", { class: "reading-text" });
  const group = draw("g", { class: "reading", "aria-hidden": "true" }, line, dot, box, words);
  const hide = () => group.remove();
  const show = (/** @type {number} */ at) => {
    const { x, y, lines } = readings[at];
    svg.append(group); // last, so that nothing covers it
    words.replaceChildren(...lines.map((text, k) => draw("tspan", { x: 0, dy: k ? 16 : 0 }, text)));
    const { width, height, y: rise } = words.getBBox();
    const [across, down] = [width + 20, height + 14];
    const [left, high] = corner(svg.viewBox.baseVal, frame, curve, [x, y], [across, down]);
    set(line, { x1: x, x2: x });
    set(dot, { cx: x, cy: y });
    set(box, { x: left, y: high, width: across, height: down });
    set(words, { transform: `translate(${left + 10},${high + 7 - rise})` });
  };
  return { show, hide };
}

/**
 * Show the nearest reading while the pointer is over the plot; not while it drags something.
 * @param {SVGSVGElement} svg
 * @param {Frame} frame
 * @param {Reading[]} readings
 */
export function readable(svg, frame, readings) {
  const shown = bubble(svg, frame, readings);
  const xs = readings.map((reading) => reading.x);
  const look = (/** @type {PointerEvent} */ event) => {
    const box = svg.getBoundingClientRect();
    const zoom = svg.viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom];
    const over = x >= frame.left - 8 && x <= frame.right + 8 && y >= frame.top - 8 && y <= frame.bottom + 8;
    const drags = event.buttons !== 0 && svg.classList.contains("drag");
    if (over && xs.length && !drags) shown.show(nearest(xs, x));
    else shown.hide();
  };
  svg.addEventListener("pointermove", look);
  svg.addEventListener("pointerdown", look);
  svg.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") shown.hide(); // what a finger has touched stays to be read
  });
  return shown;
}

/**
 * A slider that nobody sees until it has the focus: the arrow keys walk along the curve, and a screen reader says each
 * value as it does for any slider, when it is done with what it says. Returns what each drawing hands its readings to.
 * @param {Chart} made
 * @param {string} label
 */
export function walkable({ figure, holder }, label) {
  /** @type {Reading[]} */
  let readings = [];
  /** @type {ReturnType<typeof readable> | null} */
  let shown = null;
  const at = () => Number(slider.value);
  const say = () => slider.setAttribute("aria-valuetext", readings[at()]?.lines.join(", ") ?? "");
  const show = () => {
    say();
    if (readings.length) shown?.show(at());
  };
  const slider = make("input", {
    type: "range",
    class: "reader no-print",
    "aria-label": label,
    min: 0,
    step: 1,
    oninput: show,
    onfocus: show,
    onblur: () => shown?.hide(),
  });
  figure.insertBefore(slider, holder);
  return (/** @type {SVGSVGElement} */ svg, /** @type {Frame} */ frame, /** @type {Reading[]} */ found) => {
    readings = found;
    shown = readable(svg, frame, found);
    slider.max = String(Math.max(0, found.length - 1));
    slider.disabled = found.length === 0;
    say();
    if (document.activeElement === slider) show();
  };
}
