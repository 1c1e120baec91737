// Reliability before and after: stated confidence against the share of right answers, with the histogram below.

const BINNINGS = [
  ["equal_width", "Equal width"],
  ["equal_mass", "Equal mass"],
];
const NOTES = { before: "The classifier's own confidence", after: "Calibrated" };

function honesty(data) {
  const { diagrams } = data;
  const gated = diagrams.some((diagram) => diagram.rows === "accepted");
  const state = { binning: "equal_width", rows: gated ? "accepted" : "all" };
  const shown = (stage) =>
    diagrams.find((diagram) => diagram.stage === stage && diagram.rows === state.rows) ??
    diagrams.find((diagram) => diagram.stage === stage);
  const stages = ["before", "after"].filter((stage) => shown(stage));
  const made = stages.map((stage) => diagramChart(stage, stages.length > 1, state, shown));
  const redraw = (key) => (value) => {
    state[key] = value;
    for (const again of made) again();
  };
  put(
    "honesty-lead",
    "On the diagonal, of the answers given with 80% confidence 80% are right. Below it, the ",
    "classifier is too sure of itself.",
  );
  put(
    "binning",
    make(
      "div",
      { class: "switches" },
      gated &&
        switcher(
          "before-rows",
          "Rows of the diagram before",
          [
            ["accepted", "Before: accepted rows"],
            ["all", "all rows"],
          ],
          state.rows,
          redraw("rows"),
        ),
      switcher("binning", "Bins of the reliability diagrams", BINNINGS, state.binning, redraw("binning")),
    ),
  );
  // A diagram alone has room beside it.
  find(stages.length > 1 ? "metrics" : "reliability").append(metricsTable(data.evaluation));
}

/** A reliability table's columns as one object per bin. */
function binsOf(table) {
  return table.count.map((n, k) => ({
    count: n,
    left: table.edges[k],
    right: table.edges[k + 1],
    confidence: table.confidence[k],
    accuracy: table.accuracy[k],
    low: table.low[k],
    high: table.high[k],
  }));
}

function diagramChart(stage, paired, state, shown) {
  const heading = !paired ? "Reliability" : stage === "before" ? "Before" : "After";
  const bins = () => binsOf(shown(stage)[state.binning]);
  const note = make("p", { class: "fine" });
  const table = make("div");
  const made = chart(find("reliability"), {
    heading,
    title: `Reliability ${stage} calibration`,
    below: note,
    description: () =>
      bins()
        .filter((bin) => bin.count > 0)
        .map(
          (bin) =>
            `confidence ${percent(bin.confidence, 1)}: right ${percent(bin.accuracy, 1)}, ${count(bin.count)} rows`,
        )
        .join("; "),
    height: (width) => Math.min(460, Math.max(340, width * 0.9)),
    paint(svg, size) {
      const frame = axes(svg, size, {
        x: { domain: [0, 1], title: "Stated confidence" },
        y: { domain: [0, 1] },
        margin: { bottom: 44 + 84 },
        clip: false,
      });
      reliabilityMarks(
        frame,
        stage,
        bins().filter((bin) => bin.count > 0),
      );
      histogram(svg, size, frame, stage, shown(stage));
    },
  });
  made.figure.append(table);
  const words = () => {
    const diagram = shown(stage);
    const ece = diagram[state.binning === "equal_width" ? "ece" : "ece_equal_mass"];
    const interval = ece.low === null ? "" : ` (${fixed(ece.low, 4)} to ${fixed(ece.high, 4)})`;
    const rows = `${count(diagram.n_rows)} ${diagram.rows === "all" ? "" : "accepted "}rows`;
    note.textContent = `${NOTES[stage]}, ${rows}. ECE ${fixed(ece.estimate, 4)}${interval}`;
    table.replaceChildren();
    numbers(
      table,
      `Bins ${stage} calibration`,
      ["from", "to", "rows", "confidence", "right", "low", "high"],
      bins().map((bin) => [
        fixed(bin.left, 4),
        fixed(bin.right, 4),
        count(bin.count),
        percent(bin.confidence),
        percent(bin.accuracy),
        percent(bin.low),
        percent(bin.high),
      ]),
    );
  };
  words();
  return () => {
    made.render();
    words();
  };
}

/** The band, the line and the bins: squares before, circles after, told apart without colour. */
function reliabilityMarks({ sx, sy, inside }, stage, bins) {
  const xs = bins.map((bin) => sx(bin.confidence));
  const ys = (key) => bins.map((bin) => sy(bin[key]));
  inside.append(
    draw("line", { class: "ideal", x1: sx(0), y1: sy(0), x2: sx(1), y2: sy(1) }),
    draw("path", { class: `band ${stage}`, d: area(xs, ys("low"), ys("high")) }),
    draw("path", { class: `line ${stage}`, d: path(ys("accuracy").map((y, k) => [xs[k], y])) }),
  );
  bins.forEach((bin, k) => {
    const y = sy(bin.accuracy);
    const words = draw(
      "title",
      {},
      `confidence ${percent(bin.confidence)}, right ${percent(bin.accuracy)}, band ${percent(
        bin.low,
      )} to ${percent(bin.high)}, ${count(bin.count)} rows`,
    );
    inside.append(
      draw("line", { class: `whisker ${stage}`, x1: xs[k], x2: xs[k], y1: sy(bin.low), y2: sy(bin.high) }),
      stage === "after"
        ? draw("circle", { class: "dot after", cx: xs[k], cy: y, r: 5 }, words)
        : draw("rect", { class: "dot before", x: xs[k] - 4.5, y: y - 4.5, width: 9, height: 9 }, words),
    );
  });
}

/** Rows by confidence, under the diagram, on the same axis. */
function histogram(svg, { height }, { sx, left, right }, stage, { histogram: counts, histogram_edges: edges }) {
  const floor = height - 4;
  const tall = scale([0, Math.max(...counts)], [0, 48]);
  const marks = draw(
    "g",
    { "aria-hidden": "true" },
    draw("text", { x: left, y: floor - 56 }, `Rows by confidence; highest bar ${count(Math.max(...counts))}`),
    draw("line", { class: "axis", x1: left, x2: right, y1: floor, y2: floor }),
  );
  counts.forEach((n, k) => {
    if (n === 0) return;
    const x = sx(edges[k]);
    const bar = Math.max(1, tall(n));
    marks.append(
      draw(
        "rect",
        {
          class: `bar ${stage}`,
          x: x + 0.75,
          width: Math.max(1, sx(edges[k + 1]) - x - 1.5),
          y: floor - bar,
          height: bar,
        },
        draw("title", {}, `${count(n)} rows`),
      ),
    );
  });
  svg.append(marks);
}
