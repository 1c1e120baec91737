// Coverage and labelled outcomes over time: between two points of the history, and all rows so far.
/** @import { History, Seen } from "./state.js" */
/** @import { Frame, Point } from "./types.js" */
import { axes, chart } from "./chart.js";
import { draw, put } from "./dom.js";
import { count, percent } from "./format.js";
import { path } from "./geometry.js";
import { walkable } from "./readout.js";

/**
 * @typedef {"rows" | "labelled_accepted"} Of
 * @typedef {{ heading: string, of: Of, hits: "accepted" | "correct_accepted", words: string }} Shown
 */

/** @type {Shown} */
const COVERAGE = { heading: "Coverage", of: "rows", hits: "accepted", words: "of the rows are accepted" };

/**
 * The outcome of labelled rows: right or wrong, or for a cascade over scores the last model's answer or another.
 * @param {boolean} agreement
 * @returns {Shown}
 */
function outcome(agreement) {
  return {
    heading: agreement ? "Agreement with the large model" : "Selective accuracy, by labels",
    of: "labelled_accepted",
    hits: "correct_accepted",
    words: `of the accepted and labelled rows are ${agreement ? "predicted as by the large model" : "correct"}`,
  };
}

/** @param {Seen} seen */
export function trafficCharts(seen) {
  const host = put("traffic-charts");
  const charts = [COVERAGE, outcome(seen.state.agreement)].map((shown) => {
    const made = chart(host, {
      heading: shown.heading,
      description: () => spoken(shown, seen.state.history),
      height: () => 220,
      paint: (svg, size) => paintShare(svg, size, shown, seen.state.history, walk),
    });
    const walk = walkable(made, `${shown.heading}: walk along the line`);
    return made;
  });
  return () => {
    for (const made of charts) made.render();
  };
}

/**
 * @param {Shown} shown
 * @param {History} history
 */
function spoken(shown, history) {
  const last = history.rows.length - 1;
  const all = history[shown.of][last];
  if (!all) return "No such row yet.";
  return `${percent(history[shown.hits][last] / all)} ${shown.words}, of ${count(all)} so far.`;
}

/**
 * Shares of each stretch of the history, and of all rows up to its end; null where there is no row.
 * @param {Shown} shown
 * @param {History} history
 */
function shares(shown, history) {
  const [of, hits] = [history[shown.of], history[shown.hits]];
  const own = of.map((all, k) => {
    const rows = all - (k ? of[k - 1] : 0);
    return rows ? (hits[k] - (k ? hits[k - 1] : 0)) / rows : null;
  });
  return { own, soFar: of.map((all, k) => (all ? hits[k] / all : null)) };
}

/**
 * @param {SVGSVGElement} svg
 * @param {{ width: number, height: number, id: string }} size
 * @param {Shown} shown
 * @param {History} history
 * @param {ReturnType<typeof walkable>} walk
 */
function paintShare(svg, size, shown, history, walk) {
  const { own, soFar } = shares(shown, history);
  const known = own.filter((share) => share !== null);
  const low = known.length ? Math.min(...known) : 0;
  const frame = axes(svg, size, {
    x: { domain: [0, Math.max(1, history.rows[history.rows.length - 1])], title: "rows", label: count },
    y: { domain: [Math.max(0, low - 0.25 * (1.02 - low)), 1] },
  });
  const place = (/** @type {number} */ k, /** @type {number} */ value) =>
    /** @type {Point} */ ([frame.sx(history.rows[k]), frame.sy(value)]);
  const placed = (/** @type {(number | null)[]} */ values) =>
    values.map((value, k) => (value === null ? null : place(k, value)));
  const line = placed(own);
  frame.inside.append(
    draw("path", { class: "line so-far", d: path(placed(soFar)) }),
    draw("path", { class: "line after", d: path(line) }),
  );
  const words = (/** @type {number} */ k) => [
    percent(own[k]),
    `up to row ${count(history.rows[k])}`,
    `${percent(soFar[k])} so far`,
  ];
  const readings = line.flatMap((point, k) => (point ? [{ x: point[0], y: point[1], lines: words(k) }] : []));
  for (const { x, y } of readings.length === 1 ? readings : []) {
    frame.inside.append(draw("circle", { class: "dot after", r: 4, cx: x, cy: y }));
  }
  walk(svg, /** @type {Frame} */ (frame), readings);
}
