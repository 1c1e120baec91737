// Reliability before and after: stated confidence against the share of right answers, with the histogram below.
/** @import { Binning, Bins, Data, Diagram, Frame, Point, Size, Stage } from "./types.js" */
import { axes, chart } from "./chart.js";
import { byId, draw, make, put, switcher } from "./dom.js";
import { atLeast, atMost, between, count, four, percent } from "./format.js";
import { area, path, scale } from "./geometry.js";
import { metricsTable } from "./measures.js";
import { walkable } from "./readout.js";
import { numbers } from "./table.js";

/** @type {[Binning, string][]} */
const BINNINGS = [
  ["equal_width", "Equal width"],
  ["equal_mass", "Equal mass"],
];
const NOTES = { before: "The classifier's own confidence", after: "Calibrated" };

/**
 * What the switches are set to, and the diagram of a stage under them.
 * @typedef {object} Chosen
 * @property {Binning} binning
 * @property {"all" | "accepted"} rows
 * @property {(stage: Stage) => Diagram | undefined} diagram
 */

/** @param {Data} data */
export function honesty(data) {
  const { diagrams } = data;
  byId("honesty").hidden = diagrams.length === 0;
  if (!diagrams.length) return;
  const gated = diagrams.some((diagram) => diagram.rows === "accepted");
  /** @type {Chosen} */
  const chosen = {
    binning: "equal_width",
    rows: gated ? "accepted" : "all",
    diagram: (stage) =>
      diagrams.find((diagram) => diagram.stage === stage && diagram.rows === chosen.rows) ??
      diagrams.find((diagram) => diagram.stage === stage),
  };
  const stages = /** @type {Stage[]} */ (["before", "after"]).filter((stage) => chosen.diagram(stage));
  const made = stages.map((stage) => diagramChart(stage, stages.length > 1, chosen));
  const redraw = () => {
    for (const again of made) again();
  };
  put(
    "honesty-lead",
    "On the diagonal, 80% of the predictions with a confidence of 80% are correct. Below it, the classifier is ",
    "overconfident.",
  );
  const rows = switcher(
    "before-rows",
    "Rows of the diagram before",
    [
      ["accepted", "Before: accepted rows"],
      ["all", "all rows"],
    ],
    chosen.rows,
    (value) => {
      chosen.rows = value;
      redraw();
    },
  );
  const binning = switcher("binning", "Bins of the reliability diagrams", BINNINGS, chosen.binning, (value) => {
    chosen.binning = value;
    redraw();
  });
  put("binning", make("div", { class: "switches" }, gated && rows, binning));
  // A diagram alone has room beside it.
  byId(stages.length > 1 ? "metrics" : "reliability").append(metricsTable(data.evaluation, data.calibration_metrics));
}

/**
 * A reliability table's columns as one object per bin that holds a row.
 * @param {Bins} table
 */
function binsOf(table) {
  return table.count.flatMap((n, k) => {
    const [confidence, accuracy, low, high] = [table.confidence[k], table.accuracy[k], table.low[k], table.high[k]];
    return confidence === null || accuracy === null || low === null || high === null
      ? []
      : [{ count: n, confidence, accuracy, low, high }];
  });
}

/** @typedef {ReturnType<typeof binsOf>[number]} Bin */

/**
 * @param {Stage} stage
 * @param {boolean} paired
 * @param {Chosen} chosen
 */
function diagramChart(stage, paired, chosen) {
  const heading = !paired ? "Reliability" : stage === "before" ? "Before" : "After";
  const shown = () => /** @type {Diagram} */ (chosen.diagram(stage));
  const bins = () => binsOf(shown()[chosen.binning]);
  const note = make("p", { class: "fine" });
  const folded = make("div");
  const made = chart(byId("reliability"), {
    heading,
    title: `Reliability ${stage} calibration`,
    note,
    description: () =>
      bins()
        .map((bin) => `confidence ${percent(bin.confidence, 1)}: accuracy ${percent(bin.accuracy, 1)}, ${rowsOf(bin)}`)
        .join("; "),
    height: (width) => Math.min(460, Math.max(340, width * 0.9)),
    paint(svg, size) {
      const frame = axes(svg, size, {
        x: { domain: [0, 1], title: "Stated confidence" },
        y: { domain: [0, 1] },
        margin: { bottom: 44 + 84 },
        clip: false,
      });
      reliabilityMarks(frame, stage, bins());
      histogram(svg, size, frame, stage, shown());
      read(svg, frame, readings(frame, bins()));
    },
  });
  const read = walkable(made, `Read the bins ${stage} calibration`);
  made.figure.append(folded);
  const words = () => {
    const { ece, ece_equal_mass: mass, n_rows: n, rows } = shown();
    const { estimate, low, high } = chosen.binning === "equal_width" ? ece : mass;
    const interval = low === null ? "" : ` (${four(low)} to ${four(high)})`;
    const which = `${count(n)} ${rows === "all" ? "" : "accepted "}rows`;
    note.textContent = `${NOTES[stage]}, ${which}. ECE ${four(estimate)}${interval}`;
    folded.replaceChildren(binNumbers(stage, shown()[chosen.binning]));
  };
  words();
  return () => {
    made.render();
    words();
  };
}

/** @param {Bin} bin */
const rowsOf = (bin) => `${count(bin.count)} rows`;

/**
 * @param {Frame} frame
 * @param {Bin[]} bins
 */
function readings({ sx, sy }, bins) {
  return bins.map((bin) => ({
    x: sx(bin.confidence),
    y: sy(bin.accuracy),
    lines: [
      `accuracy ${percent(bin.accuracy)}`,
      `stated ${percent(bin.confidence)}`,
      `band ${between(bin.low, bin.high)}`,
      rowsOf(bin),
    ],
  }));
}

/**
 * Every bin, the empty ones too.
 * @param {Stage} stage
 * @param {Bins} table
 */
function binNumbers(stage, table) {
  return numbers(
    `Bins ${stage} calibration`,
    ["from", "to", "rows", "confidence", "accuracy", "low", "high"],
    table.count.map((n, k) => [
      four(table.edges[k]),
      four(table.edges[k + 1]),
      count(n),
      percent(table.confidence[k]),
      percent(table.accuracy[k]),
      atLeast(table.low[k]),
      atMost(table.high[k]),
    ]),
  );
}

/**
 * The band, the line and the bins: squares before, circles after, told apart without colour.
 * @param {Frame} frame
 * @param {Stage} stage
 * @param {Bin[]} bins
 */
function reliabilityMarks({ sx, sy, inside }, stage, bins) {
  const xs = bins.map((bin) => sx(bin.confidence));
  const ys = bins.map((bin) => sy(bin.accuracy));
  const lows = bins.map((bin) => sy(bin.low));
  const highs = bins.map((bin) => sy(bin.high));
  inside.append(
    draw("line", { class: "ideal", x1: sx(0), y1: sy(0), x2: sx(1), y2: sy(1) }),
    draw("path", { class: `band ${stage}`, d: area(xs, lows, highs) }),
    draw("path", { class: `line ${stage}`, d: path(ys.map((y, k) => /** @type {Point} */ ([xs[k], y]))) }),
  );
  xs.forEach((x, k) => {
    inside.append(
      draw("line", { class: `whisker ${stage}`, x1: x, x2: x, y1: lows[k], y2: highs[k] }),
      stage === "after"
        ? draw("circle", { class: "dot after", cx: x, cy: ys[k], r: 5 })
        : draw("rect", { class: "dot before", x: x - 4.5, y: ys[k] - 4.5, width: 9, height: 9 }),
    );
  });
}

/**
 * Rows by confidence, under the diagram, on the same axis.
 * @param {SVGSVGElement} svg
 * @param {Size} size
 * @param {Frame} frame
 * @param {Stage} stage
 * @param {Diagram} diagram
 */
function histogram(svg, { height }, { sx, left, right }, stage, { histogram: counts, histogram_edges: edges }) {
  const floor = height - 4;
  const most = Math.max(...counts);
  const tall = scale([0, most], [0, 48]);
  const marks = draw(
    "g",
    { "aria-hidden": "true" },
    draw("text", { x: left, y: floor - 56 }, `Rows by confidence; highest bar ${count(most)}`),
    draw("line", { class: "axis", x1: left, x2: right, y1: floor, y2: floor }),
  );
  counts.forEach((n, k) => {
    if (n === 0) return;
    const [x, bar] = [sx(edges[k]), Math.max(1, tall(n))];
    const width = Math.max(1, sx(edges[k + 1]) - x - 1.5);
    const place = { class: `bar ${stage}`, x: x + 0.75, width, y: floor - bar, height: bar };
    marks.append(draw("rect", place, draw("title", {}, `${count(n)} rows`)));
  });
  svg.append(marks);
}
