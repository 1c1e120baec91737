// Two classes: ROC and precision-recall with bands, both thresholds on one slider, what each side costs.
/** @import { Chart, Data, Maybe, Near, Point, Series, Sides, SidesOfGate, Source } from "./types.js" */
import { axes, chart } from "./chart.js";
import { announce, byId, draw, make, put } from "./dom.js";
import { NOTHING, atLeast, count, down, four, general, money, percent, plainPercent } from "./format.js";
import { path } from "./geometry.js";
import { numbers, table } from "./table.js";

/**
 * Both thresholds, as indices. A lower one of -1 calls no row negative, an upper one past the last no row positive.
 * `isGate`: the numbers are those of the gate itself, which has thresholds of its own in each group.
 * @typedef {{ lower: number, upper: number, isGate: boolean }} Pair
 */

/** How each threshold is marked on a curve. */
const SIDE_MARKS = { lower: { class: "side-lower" }, upper: { class: "side-upper" } };

/** @param {Data} data */
export function sidesSection({ sides, source }) {
  if (sides === null) return;
  const [negative, positive] = sides.names;
  byId("sides").hidden = false;
  put(
    "sides-lead",
    `${count(sides.n_positive)} of ${count(sides.n_rows)} rows are ${positive}. Rows above the upper threshold are called `,
    `${positive}, rows at or below the lower one ${negative}, and those between go to review. ${closedSide(sides)}Thresholds are log-odds of `,
    `${positive}, the natural logarithm of P(${positive}) / P(${negative}) before calibration. The bands hold at all thresholds at `,
    `once, with ${plainPercent(1 - sides.delta)} confidence; AUROC ${four(sides.auroc)}.`,
  );
  const pair = startOf(sides);
  const charts = [rocChart(sides, pair), recallChart(sides, pair)];
  sidesSlider(sides, source, pair, () => charts.forEach((one) => one.render()));
  nearTable(sides);
}

/**
 * Which class the gate never predicts, if there is one.
 * @param {Sides} sides
 */
function closedSide({ gate, names }) {
  if (gate === null) return "";
  const closed = gate.called_positive === 0 ? names[1] : gate.called_negative === 0 ? names[0] : null;
  return closed === null ? "" : `This gate calls no row ${closed}. `;
}

/**
 * The thresholds start at those of the gate, or at even odds if there is no gate.
 * @param {Sides} sides
 * @returns {Pair}
 */
function startOf({ threshold, n_below, n_rows, lower, upper, gate }) {
  if (lower !== null && upper !== null) return { lower, upper, isGate: false };
  if (gate === null) {
    const middle = nearestThreshold(threshold, 0);
    return { lower: middle, upper: middle, isGate: false };
  }
  return {
    lower: nearestThreshold(n_below, n_rows * gate.called_negative),
    upper: nearestThreshold(n_below, n_rows * (1 - gate.called_positive)),
    isGate: true,
  };
}

/**
 * @typedef {object} Rates
 * @property {number} calledPositive
 * @property {number} calledNegative
 * @property {Rate} precision
 * @property {Rate} npv
 * @property {Rate} found  recall if a review counts as a miss
 * @property {Rate} caught  recall if a review counts as caught
 * @property {number} alarms  false-positive rate
 *
 * @typedef {{ estimate: Maybe, low: Maybe }} Rate
 */

/**
 * What these rows show at the thresholds, with the lower ends of the bands.
 * @param {Sides} sides
 * @param {Pair} pair
 * @returns {Rates}
 */
function ratesAt(sides, { lower, upper, isGate }) {
  if (isGate && sides.gate !== null) return ratesOfGate(sides.gate);
  const isClosedBelow = lower < 0;
  const isClosedAbove = upper >= sides.threshold.length;
  const nothing = { estimate: null, low: null };
  const at = (/** @type {Series} */ series, /** @type {number} */ k) => ({ estimate: series.estimate[k], low: series.low[k] });
  return {
    calledPositive: isClosedAbove ? 0 : (sides.n_rows - sides.n_below[upper]) / sides.n_rows,
    calledNegative: isClosedBelow ? 0 : sides.n_below[lower] / sides.n_rows,
    precision: isClosedAbove ? nothing : at(sides.precision, upper),
    npv: isClosedBelow ? nothing : at(sides.npv, lower),
    found: isClosedAbove ? { estimate: 0, low: 0 } : at(sides.recall, upper),
    caught: isClosedBelow ? { estimate: 1, low: 1 } : at(sides.recall, lower),
    alarms: isClosedAbove ? 0 : (sides.false_positive_rate.estimate[upper] ?? 0),
  };
}

/**
 * @param {SidesOfGate} gate
 * @returns {Rates}
 */
function ratesOfGate(gate) {
  const alone = (/** @type {Maybe} */ estimate) => ({ estimate, low: null });
  return {
    calledPositive: gate.called_positive,
    calledNegative: gate.called_negative,
    precision: alone(gate.precision),
    npv: alone(gate.npv),
    found: alone(gate.recall),
    caught: alone(gate.caught),
    alarms: gate.false_positive_rate ?? 0,
  };
}

/**
 * The share of rows that are called neither, never below 0 by a rounding error.
 * @param {Rates} rates
 */
const reviewShare = ({ calledPositive, calledNegative }) => Math.max(0, 1 - calledPositive - calledNegative);

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
  return sidesCurve("ROC curve", sides, pair, ["lower", "upper"], {
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
    y: { values: precision, title: `called ${sides.names[1]} and correct (precision)` },
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
      for (const name of marks.filter(() => !pair.isGate)) {
        const k = pair[name];
        if (k < 0 || k >= sides.threshold.length) continue; // a closed side has no threshold
        const at = { cx: sx(x.values.estimate[k] ?? 0), cy: sy(y.values.estimate[k] ?? 0), r: 5, ...SIDE_MARKS[name] };
        svg.append(draw("circle", at, draw("title", {}, `${name} threshold ${general(sides.threshold[k], 4)}`)));
      }
    },
  });
  made.figure.append(
    numbers(
      heading,
      [`log-odds of ${sides.names[1]} above`, x.title, y.title, "at least"],
      known
        .filter((_, k) => k % 8 === 0)
        .map((k) => [
          general(sides.threshold[k], 4),
          percent(x.values.estimate[k]),
          percent(y.values.estimate[k]),
          atLeast(y.values.low[k]),
        ]),
    ),
  );
  return made;
}

/**
 * Both thresholds as two handles of one slider, what they mean, and what they cost.
 * @param {Sides} sides
 * @param {Source} source
 * @param {Pair} pair
 * @param {() => void} moved
 */
function sidesSlider(sides, source, pair, moved) {
  const start = { ...pair };
  const [negative, positive] = sides.names;
  /** @param {"lower" | "upper"} name */
  const handle = (name) =>
    make("input", {
      type: "range",
      id: `side-${name}`,
      min: -1,
      max: sides.threshold.length,
      value: pair[name],
      "aria-label": name === "lower" ? `Called ${negative} up to` : `Called ${positive} above`,
    });
  const handles = { lower: handle("lower"), upper: handle("upper") };
  const told = make("div", { id: "sides-told" });
  const promise = make("p", { class: "fine", id: "sides-promise" });
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
    promise.textContent = promiseInWords(sides, source, pair);
    const given = costs();
    const usable = Object.values(given).every((cost) => Number.isFinite(cost) && cost >= 0);
    go.hidden = !usable;
    price.textContent = usable ? sidesCostInWords(sides, pair, given) : "Fill in three numbers.";
  };
  /** @param {"lower" | "upper"} name */
  const follow = (name) => () => {
    const last = sides.threshold.length - 1;
    const value = Number(handles[name].value);
    pair.isGate = false;
    pair[name] = name === "lower" ? Math.min(value, last) : Math.max(value, 0);
    if (name === "lower") pair.upper = Math.max(pair.upper, pair.lower);
    else pair.lower = Math.min(pair.lower, pair.upper);
    show();
    moved();
    announce(told.textContent ?? "");
  };
  const back =
    sides.gate !== null &&
    make(
      "button",
      {
        type: "button",
        id: "sides-reset",
        class: "quiet no-print",
        onclick: () => {
          Object.assign(pair, start);
          show();
          moved();
        },
      },
      "Back to the gate's own thresholds",
    );
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
    make("div", { class: "dial-head" }, make("span", {}, "Thresholds"), back),
    make("div", { class: "two-handles no-print" }, handles.lower, handles.upper),
    told,
    promise,
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
function sidesInWords(sides, pair) {
  const [negative, positive] = sides.names;
  const rates = ratesAt(sides, pair);
  const measured = (/** @type {string} */ name, /** @type {Rate} */ { estimate, low }) =>
    estimate === null ? NOTHING : `${name} ${percent(estimate)}${low === null ? "" : `, at least ${atLeast(low)}`}`;
  return table(
    "Both sides at these thresholds",
    [
      { head: "", name: true, cell: (/** @type {string[]} */ row) => row[0] },
      { head: `Log-odds of ${positive}`, cell: (row) => row[1] },
      { head: "Rows", number: true, cell: (row) => row[2] },
      { head: "Of the rows with this call", cell: (row) => row[3] },
      { head: `Of all ${positive}`, cell: (row) => row[4] },
    ],
    [
      [
        `called ${positive}`,
        sideLimit(sides, pair, "upper"),
        percent(rates.calledPositive),
        measured("precision", rates.precision),
        measured("recall", rates.found),
      ],
      ["to review", pair.isGate ? "" : "between", percent(reviewShare(rates)), "", ""],
      [
        `called ${negative}`,
        sideLimit(sides, pair, "lower"),
        percent(rates.calledNegative),
        measured("negative predictive value", rates.npv),
        measured("caught or reviewed", rates.caught),
      ],
    ],
  ).node;
}

/**
 * The threshold of a side, also as the probability that the classifier states.
 * @param {Sides} sides
 * @param {Pair} pair
 * @param {"lower" | "upper"} name
 */
function sideLimit({ threshold, names }, pair, name) {
  if (pair.isGate) return "no single threshold";
  const value = threshold[pair[name]];
  if (value === undefined) return `closed: no row is predicted ${names[name === "lower" ? 0 : 1]}`;
  const words = name === "lower" ? "up to" : "above";
  return `${words} ${general(value)} (P(${names[1]}) ${words} ${percent(1 / (1 + Math.exp(-value)))})`;
}

/**
 * Which promises would state what the bands show at these thresholds: one for each class that is called, in the language
 * in which the report was made.
 * @param {Sides} sides
 * @param {Source} source
 * @param {Pair} pair
 */
function promiseInWords(sides, { hashed }, pair) {
  const [negative, positive] = sides.names;
  const { precision, npv, caught } = ratesAt(sides, pair);
  const promise = (/** @type {string} */ option, /** @type {string} */ name, /** @type {string} */ about, /** @type {Maybe} */ low) => {
    if (low === null || low <= 0 || low >= 1) return [];
    const level = Number(down(low, 4));
    return [hashed === "file" ? `${option} ${level}` : `${name}(${level}) about ${about}`];
  };
  const upper = promise("--min-precision", "MinPrecision", positive, precision.low);
  const lower = [
    ...promise("--min-npv", "MinPrecision", negative, npv.low),
    ...promise("--min-recall", "MinRecall", positive, caught.low),
  ].join(" or ");
  const sidesWithPromise = [
    ...upper.map((one) => `${one} for the rows called ${positive}`),
    ...(lower ? [`${lower} for the rows called ${negative}`] : []),
  ];
  if (!sidesWithPromise.length) return "";
  const fit = "To promise what the bands show, fit a gate on labelled rows that are not on this page, with ";
  return `${fit}${sidesWithPromise.join(", and ")}.`;
}

/**
 * What 1,000 rows cost: false alarms, misses and reviews.
 * @param {Sides} sides
 * @param {Pair} pair
 * @param {{ alarm: number, miss: number, review: number }} costs
 */
function sidesCost(sides, pair, costs) {
  const rates = ratesAt(sides, pair);
  const { alarms, caught } = rates;
  const share = sides.n_positive / sides.n_rows;
  return {
    alarms: 1000 * costs.alarm * (1 - share) * alarms,
    misses: 1000 * costs.miss * share * (1 - (caught.estimate ?? 0)),
    reviews: 1000 * costs.review * reviewShare(rates),
  };
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
    `1,000 rows cost ${money(alarms + misses + reviews)}: ${money(alarms)} for ${negative} called ${positive}, ` +
    `${money(misses)} for ${positive} called ${negative}, ${money(reviews)} for reviews.`
  );
}

/**
 * The pair that costs least on these rows.
 * @param {Sides} sides
 * @param {{ alarm: number, miss: number, review: number }} costs
 * @returns {Pair}
 */
function cheapestPair(sides, costs) {
  const end = sides.threshold.length;
  /** @type {Pair} */
  let best = { lower: -1, upper: end, isGate: false };
  let least = Infinity;
  for (let lower = -1; lower < end; lower += 1) {
    for (let upper = Math.max(0, lower); upper <= end; upper += 1) {
      const pair = { lower, upper, isGate: false };
      const { alarms, misses, reviews } = sidesCost(sides, pair, costs);
      if (alarms + misses + reviews < least) [best, least] = [pair, alarms + misses + reviews];
    }
  }
  return best;
}

/** @param {Sides} sides */
function nearTable({ near, names }) {
  if (!near.length) return;
  const columns = [
    {
      head: `Log-odds of ${names[1]}`,
      name: true,
      cell: (/** @type {Near} */ row) => `just ${row.side ? "above" : "below"} ${general(row.at, 4)}`,
    },
    { head: "Rows", number: true, cell: (/** @type {Near} */ row) => count(row.n_rows) },
    { head: `Calibrated P(${names[1]})`, number: true, cell: (/** @type {Near} */ row) => percent(row.stated, 1) },
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
    table("The rows nearest to each threshold: mean calibrated probability, and share of the class", columns, near).node,
  );
}
