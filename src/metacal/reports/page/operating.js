// The operating point on two linked curves: drag it in one, it moves in both.
/** @import { Data, Frame, Maybe, OperatingPoint, Point, PointNumbers, Scale } from "./types.js" */
import { axes, chart } from "./chart.js";
import { dial } from "./dial.js";
import { byId, draw, put, set } from "./dom.js";
import { between, percent, plainPercent } from "./format.js";
import { area, nearest, path } from "./geometry.js";
import { settle } from "./labels.js";
import { numbersAt, operatingPoint } from "./point.js";
import { promisedOn } from "./promise.js";
import { readable } from "./readout.js";

/**
 * A curve against coverage.
 * @typedef {object} Drawn
 * @property {string} heading
 * @property {string} note
 * @property {Maybe[]} values
 * @property {Maybe[]} low
 * @property {Maybe[]} high
 * @property {Maybe} target  what was promised: at most this
 * @property {(numbers: PointNumbers) => Maybe} at  its value at the point
 */

/** @param {Data} data */
export function operating(data) {
  const { curves, promise } = data;
  const point = operatingPoint(data);
  const each = data.parts.find((part) => part.promised === "each");
  put(
    "point-lead",
    "Drag the point in a chart, or use the slider. The shaded bands hold at every threshold at once, with ",
    `${plainPercent(1 - curves.delta)} confidence, so you may choose a point after looking.`,
    each && ` The point is one threshold for all rows; this gate has one for each ${each.by}.`,
    promise !== null &&
      promise.answered_by.length > 0 &&
      " The point is a threshold on the confidence of the prediction, whichever model makes it. The thresholds of the models are in the certificate.",
  );
  const slider = dial(data, point);
  const accuracy = promisedOn(promise, "accuracy");
  const flipped = (/** @type {Maybe[]} */ values) => values.map((value) => (value === null ? null : 1 - value));
  draggable(data, point, slider, {
    heading: "Errors among accepted rows",
    note: "1 - selective accuracy, against coverage; lower is better",
    values: flipped(curves.accuracy.estimate),
    low: flipped(curves.accuracy.high),
    high: flipped(curves.accuracy.low),
    target: accuracy && 1 - accuracy.target,
    at: (numbers) => (numbers.accuracy.estimate === null ? null : 1 - numbers.accuracy.estimate),
  });
  draggable(data, point, slider, {
    heading: "Correct predictions rejected",
    note: "Miscoverage against coverage; lower is better",
    values: curves.miscoverage.estimate,
    low: curves.miscoverage.low,
    high: curves.miscoverage.high,
    target: promisedOn(promise, "miscoverage")?.target ?? null,
    at: (numbers) => numbers.miscoverage.estimate,
  });
  point.reset();
}

/**
 * How high the axis reaches: the curve and its band, but not the wide band over the first few rows.
 * @param {number[]} xs
 * @param {Drawn} drawn
 */
function ceiling(xs, { values, high, target }) {
  const seen = values.map((value, k) =>
    xs[k] < 0.08 || value === null ? 0 : Math.max(value, Math.min(high[k] ?? 1, 2 * value + 0.02)),
  );
  const top = 1.08 * Math.max(...seen, 1.3 * (target ?? 0), 0.01);
  return top > 0.9 ? 1 : top;
}

/**
 * @param {Data} data
 * @param {OperatingPoint} point
 * @param {HTMLInputElement} slider
 * @param {Drawn} spec
 */
function draggable(data, point, slider, spec) {
  const xs = data.curves.coverage.estimate;
  const { target } = spec;
  const here = () => {
    const numbers = numbersAt(data, point);
    return { coverage: numbers.coverage.estimate ?? 0, value: spec.at(numbers) };
  };
  const top = ceiling(xs, spec);
  const description = () =>
    `${spec.heading} against coverage, with a simultaneous band. At the chosen point, coverage ` +
    `${percent(here().coverage)}: ${percent(here().value)}. The slider below moves the point.`;
  /** @type {ReturnType<typeof pointer> | null} */
  let place = null;
  const made = chart(byId("curves"), {
    heading: spec.heading,
    note: spec.note,
    key: target === null ? [] : [`promised: at most ${plainPercent(target)}`],
    drag: true,
    description,
    height: (width) => Math.min(320, Math.max(230, width * 0.58)),
    paint(svg, size) {
      const frame = axes(svg, size, {
        x: { domain: [0, 1], title: "Coverage: share of rows accepted" },
        y: { domain: [0, top] },
      });
      const { line, promised } = paintCurve(svg, frame, xs, spec);
      place = pointer(svg, frame, [line, promised]);
      place(here());
      follow(svg, frame.sx, xs, point, slider);
      // By keyboard the slider below says the same and more.
      readable(svg, frame, readingsOf(frame, line, xs, spec));
    },
  });
  point.listen(() => {
    place?.(here());
    const told = made.holder.querySelector("desc");
    if (told) told.textContent = description();
  });
}

/**
 * The band, the curve and what was promised of it; returns the two lines, which labels keep off.
 * @param {SVGSVGElement} svg
 * @param {Frame} frame
 * @param {number[]} xs
 * @param {Drawn} spec
 */
function paintCurve(svg, { sx, sy, inside, left, right }, xs, { values, low, high, target }) {
  const at = (/** @type {Maybe[]} */ list) => list.map((value) => (value === null ? null : sy(value)));
  /** @type {(Point | null)[]} */
  const line = at(values).map((y, k) => (y === null ? null : [sx(xs[k]), y]));
  inside.append(
    draw("path", { class: "band after", d: area(xs.map(sx), at(low), at(high)) }),
    draw("path", { class: "line after", d: path(line) }),
  );
  /** @type {Point[]} */
  const promised = [];
  if (target !== null) {
    const y = sy(target);
    svg.append(draw("line", { class: "target", x1: left, x2: right, y1: y, y2: y }));
    promised.push([left, y], [right, y]);
  }
  return { line, promised };
}

/**
 * What the curve says at each of its points.
 * @param {Frame} frame
 * @param {(Point | null)[]} line
 * @param {number[]} xs
 * @param {Drawn} spec
 */
function readingsOf({ top }, line, xs, { values, low, high }) {
  return line.flatMap((mark, k) => {
    if (mark === null) return [];
    const lines = [percent(values[k]), `band ${between(low[k], high[k])}`, `coverage ${percent(xs[k])}`];
    return [{ x: mark[0], y: Math.max(top, mark[1]), lines }];
  });
}

/** How far above (or below) the point its number may stand, nearest first. */
const STEPS = [-12, -28, 24, -44, 40, -60, -76, 56, -92, -108, 72, 4];

/**
 * The vertical line, the handle on the curve and the number beside it, clear of all lines; returns what moves them.
 * @param {SVGSVGElement} svg
 * @param {Frame} frame
 * @param {(Point | null)[][]} lines
 */
function pointer(svg, { sx, sy, left, right, top, bottom }, lines) {
  const line = draw("line", { class: "cursor", y1: top, y2: bottom });
  const handle = draw(
    "g",
    {},
    draw("circle", { class: "handle", r: 9 }),
    draw("path", { class: "grip-mark", d: "M-2.5,-3.5V3.5M2.5,-3.5V3.5" }),
  );
  const label = draw("text", { class: "strong" });
  svg.append(draw("g", { "aria-hidden": "true" }, line, handle, label));
  const bounds = { left, right: right + 10, top: top - 10, bottom: bottom - 2 };
  let last = 0;
  return (/** @type {{ coverage: number, value: Maybe }} */ { coverage, value }) => {
    const x = sx(coverage);
    const y = Math.max(top, sy(value ?? 0));
    set(line, { x1: x, x2: x });
    set(handle, { transform: `translate(${x},${y})` });
    label.textContent = percent(value);
    const places = STEPS.flatMap((step) => [
      { x: x - 15, y: y + step, anchor: /** @type {const} */ ("end") },
      { x: x + 15, y: y + step, anchor: /** @type {const} */ ("start") },
    ]);
    // Where it stood last time is tried first: it does not jump about while the point is dragged.
    const found = settle(label, [places[last], ...places], lines, bounds);
    if (found > 0) last = found - 1;
  };
}

/**
 * Pointer events on the whole plot: press anywhere, drag, let go; then the arrow keys take over.
 * @param {SVGSVGElement} svg
 * @param {Scale} sx
 * @param {number[]} xs
 * @param {OperatingPoint} point
 * @param {HTMLInputElement} slider
 */
function follow(svg, sx, xs, point, slider) {
  const go = (/** @type {PointerEvent} */ event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    point.move(nearest(xs, sx.back(x)));
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    svg.setPointerCapture(event.pointerId);
    go(event);
    slider.focus({ preventScroll: true });
  });
  svg.addEventListener("pointermove", (event) => {
    if (svg.hasPointerCapture(event.pointerId)) go(event);
  });
}
