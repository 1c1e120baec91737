// Class by class and group by group: what is accepted, how much of it is right, the promise beside it, worst first.
/** @import { Column, Data, Order, Parts, Series, Size } from "./types.js" */
import { axes, chart } from "./chart.js";
import { draw, make, put } from "./dom.js";
import { NOTHING, between, count, general, percent, plainPercent } from "./format.js";
import { ticks } from "./geometry.js";
import { asGiven, nameOf } from "./promise.js";
import { sortable } from "./table.js";

/** Parts in the picture; the table has all. */
const DRAWN = 15;
/** The height of one of them, and the longest name that is not cut. */
const STEP = 24;
const LONGEST = 16;

/** @param {Data} data */
export function partsSection({ parts, promise, settings, sides, source }) {
  const host = put("parts");
  for (const part of parts) {
    const what = part.by === "class" ? "By predicted class: accepted rows" : "By group: accepted rows";
    const gated = promise !== null;
    const block = make("div", { class: "gap" });
    host.append(block);
    picture(block, part, gated ? what : what.replace("accepted rows", "accuracy"), settings.level);
    // Thresholds of two sides are log-odds; they are in the section about two classes.
    const score = sides?.is_two_sided ? "" : source.score;
    block.append(listed(part, gated, settings.level, score));
  }
}

/** @param {Parts} part */
const judged = (part) => part[part.judged];

/**
 * How a share stands to the limit: its whole interval on the wrong side, the share on the right one, or neither.
 * @param {Parts} part
 * @param {number} k
 */
function standing(part, k) {
  const { estimate, low, high } = judged(part);
  const [value, from, to] = [estimate[k], low[k], high[k]];
  if (value === null || from === null || to === null) return "open";
  const bad = part.at_most ? from > part.limit : to < part.limit;
  const good = part.at_most ? value <= part.limit : value >= part.limit;
  return bad ? "refuted" : good ? "kept" : "undecided";
}

/** @param {Parts} part */
function limitText(part) {
  const share = plainPercent(Number(part.limit.toFixed(6)));
  const whom = { each: "promised of each", all: "promised of all rows together", none: "all rows together" }[part.promised];
  return part.promised === "none" ? `${whom}: ${share}` : `${whom}: ${part.at_most ? "at most" : "at least"} ${share}`;
}

/**
 * An interval a line, and the limit across all of them.
 * @param {HTMLElement} host
 * @param {Parts} part
 * @param {string} heading
 * @param {number} level
 */
function picture(host, part, heading, level) {
  const { estimate, low, high } = judged(part);
  const shown = part.name.map((_, k) => k).filter((k) => estimate[k] !== null).slice(0, DRAWN);
  if (!shown.length) return;
  const what = part.at_most ? "of correct predictions rejected" : "of accepted predictions correct";
  const least = Math.min(part.limit, ...shown.map((k) => low[k] ?? 0));
  const most = Math.max(part.limit, ...shown.map((k) => high[k] ?? 1));
  /** @type {[number, number]} */
  const domain = [Math.max(0, least - 0.04 * (1 - least)), Math.min(1, most + 0.04 * most)];
  const worst = shown[0];
  const cut = shown.length < part.n_parts ? `, the ${count(shown.length)} with the strongest evidence against them` : "";
  chart(host, {
    heading,
    note: `Share ${what}${cut}; ${plainPercent(level)} intervals for all of them together.`,
    description:
      `${shown.length} of ${part.n_parts}. Worst by evidence: ${part.name[worst]}, ${percent(estimate[worst])} ${what}, ` +
      `${between(low[worst], high[worst])}. Dashed: ${limitText(part)}.`,
    key: [limitText(part)],
    height: () => 30 + STEP * shown.length + 30,
    paint: (svg, size) => paintForest(svg, size, part, shown, domain),
  }).figure.classList.add("forest");
}

/**
 * @param {SVGSVGElement} svg
 * @param {Size} size
 * @param {Parts} part
 * @param {number[]} shown
 * @param {[number, number]} domain
 */
function paintForest(svg, size, part, shown, domain) {
  const { estimate, low, high } = judged(part);
  const longest = Math.max(...shown.map((k) => Math.min(LONGEST, part.name[k].length)));
  const { sx, inside, left, right, bottom } = axes(svg, size, {
    x: { domain, ticks: ticks(...domain, size.width < 420 ? 3 : 6) },
    y: { domain: [0, 1], ticks: [] },
    margin: { left: Math.min(0.4 * size.width, 14 + 7.2 * longest), right: 14, top: 8, bottom: 30 },
    clip: false,
  });
  const line = (/** @type {Record<string, unknown>} */ ends) => draw("line", ends);
  shown.forEach((k, place) => {
    const y = 8 + STEP * (place + 0.5);
    const word = standing(part, k);
    const [from, to, value] = [sx(low[k] ?? 0), sx(high[k] ?? 1), sx(estimate[k] ?? 0)];
    inside.append(
      line({ class: "grid", x1: left, x2: right, y1: y, y2: y }),
      draw("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, shortened(part.name[k])),
      line({ class: `whisker ${word}`, x1: from, x2: to, y1: y, y2: y }),
      ...[from, to].map((x) => line({ class: `whisker ${word}`, x1: x, x2: x, y1: y - 4, y2: y + 4 })),
      draw(
        "circle",
        { class: `spot ${word}`, cx: value, cy: y, r: 4.5 },
        draw("title", {}, `${part.name[k]}: ${percent(estimate[k])}, ${between(low[k], high[k])}`),
      ),
    );
  });
  const x = sx(part.limit);
  inside.append(line({ class: "target", x1: x, x2: x, y1: 4, y2: bottom }));
}

/** @param {string} name */
const shortened = (name) => (name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name);

/**
 * @param {Parts} part
 * @param {boolean} gated
 * @param {number} level
 * @param {string} score  what the thresholds are compared with; empty if they are shown elsewhere
 */
function listed(part, gated, level, score) {
  const own = score !== "" && part.threshold.some((value) => value !== null);
  const rows = part.name.map((name, k) => ({
    name,
    n: part.n[k],
    accepted: part.coverage.estimate[k],
    accuracy: part.accuracy.estimate[k],
    miscoverage: part.miscoverage.estimate[k],
    evidence: part.evidence[k],
    at: k,
  }));
  /** @typedef {typeof rows[number]} Line */
  const share = (/** @type {Series} */ series) => (/** @type {Line} */ { at }) =>
    series.estimate[at] === null
      ? NOTHING
      : [percent(series.estimate[at]), make("small", {}, between(series.low[at], series.high[at]))];
  /** @type {(Column<Line> | false)[]} */
  const columns = [
    { key: "name", head: part.by === "class" ? "Predicted class" : "Group", name: true, cell: (row) => row.name },
    { key: "n", head: "Rows", number: true, cell: (row) => count(row.n) },
    gated && { key: "accepted", head: "Coverage", number: true, cell: share(part.coverage) },
    { key: "accuracy", head: gated ? "Selective accuracy" : "Accuracy", number: true, cell: share(part.accuracy) },
    gated && { key: "miscoverage", head: "Miscoverage", number: true, cell: share(part.miscoverage) },
    own && { head: `Threshold (${nameOf(score)})`, number: true, cell: ({ at }) => thresholdText(score, part.threshold[at]) },
    { key: "evidence", head: "p-value", number: true, cell: (row) => general(row.evidence, 3) },
  ];
  /** @type {Order<Line>} */
  const worst = { key: "evidence", descending: false };
  const all = rows.length === part.n_parts ? "" : `, the worst ${count(rows.length)} shown`;
  const names = part.by === "class" ? "predicted classes" : "groups";
  const caption =
    `${count(part.n_parts)} ${names}${all}, with ${plainPercent(level)} intervals for all together. The p-value is the ` +
    `probability of as many violations or more if the limit (${limitText(part)}) is just met.`;
  return sortable(caption, columns.filter((column) => column !== false), rows, worst);
}

/**
 * @param {string} score
 * @param {number | string | null} value
 */
function thresholdText(score, value) {
  if (value === "-inf") return "always rejected";
  if (value === "inf") return "accepts all";
  return value === null ? NOTHING : asGiven(score, value);
}
