// Two classes: ROC and precision-recall with bands, both thresholds on one slider, what each side costs.
/** @import { Chart, Data, Maybe, Near, Point, Series, Sides } from "./types.js" */
import { axes, chart } from "./chart.js";
import { announce, byId, draw, make, put } from "./dom.js";
import { count, four, general, percent, plainPercent } from "./format.js";
import { path } from "./geometry.js";
import { numbers, table } from "./table.js";

/** @typedef {{ lower: number, upper: number }} Pair */

/** How each threshold is marked on a curve. */
const SIDE_MARKS = { lower: { class: "side-lower" }, upper: { class: "side-upper" } };

/** @param {Data} data */
export function sidesSection({ sides }) {
  if (sides === null) return;
  const [negative, positive] = sides.names;
  byId("sides").hidden = false;
  put(
    "sides-lead",
    `${count(sides.n_positive)} of ${count(sides.n_rows)} rows are ${positive}. Rows above the upper threshold are called `,
    `${positive}, rows at or below the lower one ${negative}, those between go to review. The bands hold everywhere at `,
    `once with ${plainPercent(1 - sides.delta)} confidence; AUROC ${four(sides.auroc)}.`,
  );
  const middle = nearestThreshold(sides.threshold, 0);
  /** @type {Pair} */
  const pair = { lower: sides.lower ?? sides.upper ?? middle, upper: sides.upper ?? sides.lower ?? middle };
  const charts = [rocChart(sides, pair), recallChart(sides, pair)];
  sidesSlider(sides, pair, () => charts.forEach((one) => one.render()));
  nearTable(sides);
}

/**
 * @param {number[]} values
 * @param {number} wanted
 */
const nearestThreshold = (values, wanted) =>
  values.reduce((best, value, k) => (Math.abs(value - wanted) < Math.abs(values[best] - wanted) ? k : best), 0);

/**
 * @param {Sides} sides
 * @param {Pair} pair
 */
function rocChart(sides, pair) {
  const { false_positive_rate: alarms, recall } = sides;
  return sidesCurve("ROC: who is found, and at what price", sides, pair, ["lower", "upper"], {
    x: { values: alarms, title: `${sides.names[0]} called ${sides.names[1]} (false-positive rate)`, turned: true },
    y: { values: recall, title: `${sides.names[1]} found (recall)` },
    description: `AUROC ${four(sides.auroc)}.`,
  });
}

/**
 * @param {Sides} sides
 * @param {Pair} pair
 */
function recallChart(sides, pair) {
  const { precision, recall } = sides;
  return sidesCurve("Precision against recall", sides, pair, ["upper"], {
    x: { values: recall, title: `${sides.names[1]} found (recall)`, turned: false },
    y: { values: precision, title: `called ${sides.names[1]} and right (precision)` },
    description: `${percent(sides.n_positive / sides.n_rows)} of the rows are ${sides.names[1]}.`,
  });
}

/**
 * One rate against another along the thresholds: the region that both bands leave, the curve, and the thresholds.
 * @param {string} heading
 * @param {Sides} sides
 * @param {Pair} pair
 * @param {("lower" | "upper")[]} marks
 * @param {{ x: { values: Series, title: string, turned: boolean }, y: { values: Series, title: string }, description: string }} spec
 * @returns {Chart}
 */
function sidesCurve(heading, sides, pair, marks, { x, y, description }) {
  const known = sides.threshold.map((_, k) => k).filter((k) => y.values.estimate[k] !== null);
  const made = chart(byId("sides-curves"), {
    heading,
    description,
    height: (width) => Math.min(340, Math.max(250, 0.8 * width)),
    paint(svg, size) {
      const { sx, sy, inside, left } = axes(svg, size, {
        x: { domain: [0, 1], title: x.title },
        y: { domain: [0, 1] },
        margin: { top: 26, right: 16 },
      });
      /**
       * @param {Maybe[]} across
       * @param {Maybe[]} up
       * @returns {Point[]}
       */
      const points = (across, up) => known.map((k) => [sx(across[k] ?? 0), sy(up[k] ?? 0)]);
      const [best, worst] = x.turned ? [x.values.low, x.values.high] : [x.values.high, x.values.low];
      const region = [...points(best, y.values.high), ...points(worst, y.values.low).reverse()];
      inside.append(
        draw("path", { class: "band after", d: `${path(region)}Z` }),
        draw("path", { class: "line after", d: path(points(x.values.estimate, y.values.estimate)) }),
      );
      svg.append(draw("text", { x: left, y: 10 }, y.title));
      for (const name of marks) {
        const k = pair[name];
        const at = { cx: sx(x.values.estimate[k] ?? 0), cy: sy(y.values.estimate[k] ?? 0), r: 5, ...SIDE_MARKS[name] };
        svg.append(draw("circle", at, draw("title", {}, `${name} threshold ${general(sides.threshold[k], 4)}`)));
      }
    },
  });
  made.figure.append(
    numbers(
      heading,
      ["log-odds above", x.title, y.title, "at least"],
      known
        .filter((_, k) => k % 8 === 0)
        .map((k) => [
          general(sides.threshold[k], 4),
          percent(x.values.estimate[k]),
          percent(y.values.estimate[k]),
          percent(y.values.low[k]),
        ]),
    ),
  );
  return made;
}

/**
 * Both thresholds as two handles of one slider, what they mean, and what they cost.
 * @param {Sides} sides
 * @param {Pair} pair
 * @param {() => void} moved
 */
function sidesSlider(sides, pair, moved) {
  const last = sides.threshold.length - 1;
  const [negative, positive] = sides.names;
  /** @param {"lower" | "upper"} name */
  const handle = (name) =>
    make("input", {
      type: "range",
      id: `side-${name}`,
      min: 0,
      max: last,
      value: pair[name],
      "aria-label": name === "lower" ? `Called ${negative} up to` : `Called ${positive} above`,
    });
  const handles = { lower: handle("lower"), upper: handle("upper") };
  const told = make("div", { id: "sides-told" });
  const boxes = {
    alarm: sideBox("side-alarm", `${negative} called ${positive} costs`, 5),
    miss: sideBox("side-miss", `${positive} called ${negative} costs`, 50),
    review: sideBox("side-review", "A review costs", 1),
  };
  const price = make("p", { id: "sides-cost" });
  const go = make("button", { type: "button", class: "quiet no-print", id: "sides-cheapest" }, "Go to the cheapest pair");
  const costs = () => ({
    alarm: Number(boxes.alarm.input.value),
    miss: Number(boxes.miss.input.value),
    review: Number(boxes.review.input.value),
  });
  const show = () => {
    for (const name of /** @type {const} */ (["lower", "upper"])) handles[name].value = String(pair[name]);
    told.replaceChildren(sidesInWords(sides, pair));
    const given = costs();
    const usable = Object.values(given).every((cost) => Number.isFinite(cost) && cost >= 0);
    go.hidden = !usable;
    price.textContent = usable ? sidesCostInWords(sides, pair, given) : "Fill in three numbers.";
  };
  /** @param {"lower" | "upper"} name */
  const follow = (name) => () => {
    pair[name] = Number(handles[name].value);
    if (name === "lower") pair.upper = Math.max(pair.upper, pair.lower);
    else pair.lower = Math.min(pair.lower, pair.upper);
    show();
    moved();
    announce(told.textContent ?? "");
  };
  handles.lower.addEventListener("input", follow("lower"));
  handles.upper.addEventListener("input", follow("upper"));
  for (const { input } of Object.values(boxes)) input.addEventListener("input", show);
  go.addEventListener("click", () => {
    Object.assign(pair, cheapestPair(sides, costs()));
    show();
    moved();
  });
  put(
    "sides-dial",
    make("div", { class: "two-handles no-print" }, handles.lower, handles.upper),
    told,
    make(
      "div",
      { class: "costs" },
      make("h3", {}, "What each side costs"),
      make("div", { class: "cost-boxes" }, ...Object.values(boxes).map((one) => one.node)),
      price,
      go,
    ),
  );
  show();
}

/**
 * @param {string} id
 * @param {string} label
 * @param {number} value
 */
function sideBox(id, label, value) {
  const input = make("input", { type: "number", id, min: 0, step: "any", value, inputmode: "decimal" });
  return { input, node: make("div", {}, make("label", { for: id }, label), input) };
}

/**
 * What is called what at these thresholds, as these rows show it and at least.
 * @param {Sides} sides
 * @param {Pair} pair
 */
function sidesInWords(sides, { lower, upper }) {
  const [negative, positive] = sides.names;
  const review = sides.called[lower] - sides.called[upper];
  /** @param {Series} series @param {number} k */
  const both = (series, k) => `${percent(series.estimate[k])}, at least ${percent(series.low[k])}`;
  return table(
    "Both sides at these thresholds",
    [
      { head: "", name: true, cell: (/** @type {string[]} */ row) => row[0] },
      { head: "Log-odds", cell: (row) => row[1] },
      { head: "Rows", number: true, cell: (row) => row[2] },
      { head: "Right", cell: (row) => row[3] },
      { head: "Of its class", cell: (row) => row[4] },
    ],
    [
      [
        `called ${positive}`,
        `above ${general(sides.threshold[upper], 4)}`,
        percent(sides.called[upper]),
        both(sides.precision, upper),
        `${both(sides.recall, upper)} of ${positive} found`,
      ],
      ["to review", "between", percent(review), "", ""],
      [
        `called ${negative}`,
        `up to ${general(sides.threshold[lower], 4)}`,
        percent(1 - sides.called[lower]),
        both(sides.npv, lower),
        `${both(sides.recall, lower)} of ${positive} caught or reviewed`,
      ],
    ],
  ).node;
}

/**
 * What 1,000 rows cost: false alarms, misses and reviews.
 * @param {Sides} sides
 * @param {Pair} pair
 * @param {{ alarm: number, miss: number, review: number }} costs
 */
function sidesCost(sides, { lower, upper }, costs) {
  const share = sides.n_positive / sides.n_rows;
  const alarms = 1000 * costs.alarm * (1 - share) * (sides.false_positive_rate.estimate[upper] ?? 0);
  const misses = 1000 * costs.miss * share * (1 - (sides.recall.estimate[lower] ?? 0));
  return { alarms, misses, reviews: 1000 * costs.review * (sides.called[lower] - sides.called[upper]) };
}

/**
 * @param {Sides} sides
 * @param {Pair} pair
 * @param {{ alarm: number, miss: number, review: number }} costs
 */
function sidesCostInWords(sides, pair, costs) {
  const { alarms, misses, reviews } = sidesCost(sides, pair, costs);
  const [negative, positive] = sides.names;
  return (
    `1,000 rows cost ${general(alarms + misses + reviews, 4)}: ${general(alarms, 4)} for ${negative} called ${positive}, ` +
    `${general(misses, 4)} for ${positive} called ${negative}, ${general(reviews, 4)} for reviews.`
  );
}

/**
 * The pair that costs least on these rows.
 * @param {Sides} sides
 * @param {{ alarm: number, miss: number, review: number }} costs
 * @returns {Pair}
 */
function cheapestPair(sides, costs) {
  let best = { lower: 0, upper: 0 };
  let least = Infinity;
  for (let lower = 0; lower < sides.threshold.length; lower += 1) {
    for (let upper = lower; upper < sides.threshold.length; upper += 1) {
      const { alarms, misses, reviews } = sidesCost(sides, { lower, upper }, costs);
      if (alarms + misses + reviews < least) [best, least] = [{ lower, upper }, alarms + misses + reviews];
    }
  }
  return best;
}

/** @param {Sides} sides */
function nearTable({ near, names }) {
  if (!near.length) return;
  const columns = [
    {
      head: "Log-odds",
      name: true,
      cell: (/** @type {Near} */ row) => `just ${row.side ? "above" : "below"} ${general(row.at, 4)}`,
    },
    { head: "Rows", number: true, cell: (/** @type {Near} */ row) => count(row.n_rows) },
    { head: `Stated P(${names[1]})`, number: true, cell: (/** @type {Near} */ row) => percent(row.stated, 1) },
    {
      head: `Are ${names[1]}`,
      number: true,
      cell: (/** @type {Near} */ row) => [
        percent(row.share, 1),
        make("small", {}, ` ${percent(row.low, 1)} to ${percent(row.high, 1)}`),
      ],
    },
  ];
  put(
    "sides-near",
    make("h3", {}, "Calibration near the decision"),
    table("The rows nearest each threshold: is the stated probability right just where it decides?", columns, near).node,
  );
}
