// Both promises together: for each accuracy the smallest miscoverage that can be certified with it.
/** @import { Data, Frame, Frontier, Point, Promised } from "./types.js" */
import { axes, chart } from "./chart.js";
import { byId, draw, make, put } from "./dom.js";
import { atLeast, atMost, percent, plainPercent } from "./format.js";
import { area, path } from "./geometry.js";
import { settle } from "./labels.js";
import { limitOf, limitOn, promisedOn } from "./promise.js";
import { walkable } from "./readout.js";
import { numbers } from "./table.js";

/** @param {Data} data */
export function frontierChart({ frontier, promise, source }) {
  const { beta: xs, alpha: ys, coverage } = frontier;
  put(
    "frontier-lead",
    "For each selective accuracy, the smallest miscoverage (share of correct predictions rejected) that these rows certify ",
    `together with it. All pairs on the line hold at once, with ${plainPercent(1 - frontier.delta)} confidence.`,
  );
  if (xs.length < 2) {
    put("frontier-chart", make("p", { class: "lead" }, "These rows certify no pair of promises: use more rows."));
    return;
  }
  const [first, last] = [0, xs.length - 1];
  const pad = 0.02 * (xs[last] - xs[first]);
  /** @type {Record<"accuracy" | "miscoverage", [number, number]>} */
  const domains = {
    accuracy: [xs[first] - pad, xs[last] + pad],
    miscoverage: [0, Math.min(1, 1.08 * Math.max(...ys))],
  };
  const made = chart(byId("frontier-chart"), {
    title: "The certified frontier",
    description:
      `From accuracy ${atLeast(xs[first])} with miscoverage at most ${atMost(ys[first])} ` +
      `to accuracy ${atLeast(xs[last])} with miscoverage at most ${atMost(ys[last])}.`,
    key: keyTo(promise, domains),
    height: (width) => Math.min(340, Math.max(250, width * 0.34)),
    paint(svg, size) {
      const frame = axes(svg, size, {
        x: { domain: domains.accuracy, title: "Selective accuracy, at least" },
        y: { domain: domains.miscoverage },
        margin: { top: 26, right: 20 },
      });
      const { sx, sy, inside, top, left } = frame;
      const steps = stairs(xs.map(sx), ys.map(sy));
      const [across, down] = [steps.map((point) => point[0]), steps.map((point) => point[1])];
      const ceiling = down.map(() => top - 4);
      inside.append(
        draw("path", { class: "band after", d: area(across, down, ceiling) }),
        draw("path", { class: "line after", d: path(steps) }),
      );
      svg.append(draw("text", { x: left, y: 10 }, "Miscoverage, at most"));
      const own = ownPromises(frame, promise);
      for (const [[x1, y1], [x2, y2]] of own) svg.append(draw("line", { class: "target", x1, y1, x2, y2 }));
      if (size.width > 560) nameTheRest(svg, frame, [steps, ...own]);
      read(svg, frame, readingsOn(frame, frontier));
    },
  });
  const read = walkable(made, "Read the certified frontier");
  made.figure.append(
    numbers(
      "The certified frontier",
      ["accuracy at least", "miscoverage at most", "coverage here", "threshold"],
      xs.map((x, k) => [atLeast(x), atMost(ys[k]), percent(coverage[k]), limitOn(source, frontier.threshold[k])[0]]),
    ),
  );
}

/**
 * What the dashed lines mean, and which promise has none because it lies elsewhere.
 * @param {Promised | null} promise
 * @param {Record<"accuracy" | "miscoverage", [number, number]>} domains
 */
function keyTo(promise, domains) {
  return /** @type {const} */ (["accuracy", "miscoverage"]).flatMap((curve) => {
    const verdict = promisedOn(promise, curve);
    if (verdict === null) return [];
    const [low, high] = domains[curve];
    const where = verdict.target < low || verdict.target > high ? " (outside this chart)" : "";
    return [`promised: ${verdict.quantity} ${limitOf(verdict)}${where}`];
  });
}

/**
 * Say what lies below the line, where there is room for it.
 * @param {SVGSVGElement} svg
 * @param {Frame} frame
 * @param {Point[][]} lines
 */
function nameTheRest(svg, frame, lines) {
  const label = draw("text", {}, "not certified on these rows");
  svg.append(label);
  const places = [0.98, 0.8, 0.6, 0.5].map((share) => ({
    x: frame.left + share * (frame.right - frame.left),
    y: frame.bottom - 12,
    anchor: /** @type {const} */ ("end"),
  }));
  if (settle(label, places, lines, frame) < 0) label.remove();
}

/**
 * @param {Frame} frame
 * @param {Frontier} frontier
 */
function readingsOn({ sx, sy }, { beta, alpha, coverage }) {
  return beta.map((x, k) => ({
    x: sx(x),
    y: sy(alpha[k]),
    lines: [
      `miscoverage at most ${atMost(alpha[k])}`,
      `accuracy at least ${atLeast(x)}`,
      `coverage here ${percent(coverage[k])}`,
    ],
  }));
}

/**
 * Between two certified pairs holds what the stricter one says: up first, then across.
 * @param {number[]} xs
 * @param {number[]} ys
 * @returns {Point[]}
 */
function stairs(xs, ys) {
  return xs.flatMap((x, k) => {
    /** @type {Point[]} */
    const corners = [[x, ys[k]]];
    return k === 0 ? corners : [[xs[k - 1], ys[k]], ...corners];
  });
}

/**
 * The gate's own promises as lines across the plot, where they lie in it.
 * @param {Frame} frame
 * @param {Promised | null} promise
 * @returns {[Point, Point][]}
 */
function ownPromises({ sx, sy, top, bottom, left, right }, promise) {
  /** @type {[Point, Point][]} */
  const found = [];
  const [up, across] = [promisedOn(promise, "accuracy"), promisedOn(promise, "miscoverage")];
  if (up) found.push([[sx(up.target), top], [sx(up.target), bottom]]);
  if (across) found.push([[left, sy(across.target)], [right, sy(across.target)]]);
  return found.filter(([[x, y]]) => x >= left && x <= right && y >= top && y <= bottom);
}
