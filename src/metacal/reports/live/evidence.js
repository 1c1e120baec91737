// One chart for each alarm: its evidence over time, and the line at which it is raised; then all in a table.
/** @import { Acknowledged, Alarm, Seen, State } from "./state.js" */
/** @import { Frame, Point } from "./types.js" */
import { axes, chart } from "./chart.js";
import { draw, make, put } from "./dom.js";
import { atMost, count, down } from "./format.js";
import { path } from "./geometry.js";
import { walkable } from "./readout.js";
import { table } from "./table.js";

/** Evidence is drawn by its logarithm to base 10, from "none" to 1 in 1 trillion. */
const TEN = Math.LN10;
const HIGHEST = 12;
/** Evidence below which none is shown, and above which only this limit is. */
const LEAST_SHOWN = Math.log(1.1);
const MOST_SHOWN = 15 * TEN;

/** @type {[number, string][]} */
const LARGE_NUMBERS = [
  [1e12, "trillion"],
  [1e9, "billion"],
  [1e6, "million"],
];

/**
 * Evidence in words, as Python's format_evidence: "1 in 1,000" is reached by at most one monitor in 1,000 while nothing
 * has changed.
 * @param {number} log  its natural logarithm
 */
export function evidenceText(log) {
  if (log < LEAST_SHOWN) return "none";
  if (log > MOST_SHOWN) return "under 1 in 1,000 trillion";
  const number = Math.exp(log) * (1 + 1e-9);
  const [size, name] = LARGE_NUMBERS.find(([one]) => number >= one) ?? [1, ""];
  const units = number / size;
  const shown = units < 10 ? String(Number(down(units, 1))) : count(Math.floor(units));
  return `1 in ${shown}${name && ` ${name}`}`;
}

/**
 * The charts, once; what is returned draws them again.
 * @param {Seen} seen
 */
export function evidenceCharts(seen) {
  const host = put("evidence-charts");
  const charts = seen.state.alarms.map((alarm, k) => {
    const note = make("p", { class: "fine" });
    const made = chart(host, {
      heading: title(alarm),
      note,
      description: () => described(seen.state.alarms[k]),
      key: ["the alarm is raised at this line"],
      height: () => 190,
      paint: (svg, size) => {
        note.textContent = seen.state.alarms[k].seen[0];
        paintOne(svg, size, seen, k, walk);
      },
    });
    const walk = walkable(made, `${title(alarm)}: read the evidence`);
    return made;
  });
  return () => {
    put(
      "evidence-lead",
      "Evidence of 1 in 1,000: while nothing has changed, at most one monitor in 1,000 ever shows as much. You may look ",
      `as often as you like: ${seen.state.levels}.`,
    );
    for (const made of charts) made.render();
    put("alarms-table", alarmTable(seen));
  };
}

/** @param {Alarm} alarm */
const title = (alarm) => `${alarm.name[0].toUpperCase()}${alarm.name.slice(1)}`;

/** @param {Alarm} alarm */
const described = (alarm) =>
  `Strongest evidence so far ${evidenceText(alarm.log_peak)}. The alarm is raised at ${evidenceText(alarm.log_needed)}. ` +
  `${alarm.raised ? `It was raised by row ${count(alarm.at_row)}` : "It is not raised"}.`;

/**
 * The ticks of the evidence: none, and powers of ten, five at most.
 * @param {number} high
 */
function evidenceTicks(high) {
  const step = Math.max(1, Math.ceil(high / 4));
  return Array.from({ length: Math.floor(high / step) + 1 }, (_, k) => k * step);
}

/**
 * The armed periods: from which row to which, and whether the alarm was raised.
 * @param {State} state
 * @param {Alarm} alarm
 */
function periodsOf({ acknowledged }, alarm) {
  let from = -1;
  const periods = acknowledged.map(({ at_row: to, alarms }) => {
    const period = { from, to, raised: alarms.some(({ name }) => name === alarm.name) };
    from = to;
    return period;
  });
  return [...periods, { from, to: Infinity, raised: alarm.raised }];
}

/**
 * @param {SVGSVGElement} svg
 * @param {{ width: number, height: number, id: string }} size
 * @param {Seen} seen
 * @param {number} k
 * @param {ReturnType<typeof walkable>} walk
 */
function paintOne(svg, size, { state }, k, walk) {
  const alarm = state.alarms[k];
  const { rows } = state.history;
  const logs = state.history.evidence[alarm.name];
  // Evidence below 1 is none, and it may be beyond all words.
  const values = logs.map((log) => Math.max(0, Math.min(HIGHEST, log / TEN)));
  const needed = alarm.log_needed / TEN;
  const high = Math.min(HIGHEST, Math.max(needed * 1.35, ...values.map((value) => value * 1.05)));
  const frame = axes(svg, size, {
    x: { domain: [0, Math.max(1, rows[rows.length - 1])], title: "rows", label: count },
    y: { domain: [-0.02 * high, high], ticks: evidenceTicks(high), label: (power) => evidenceText(power * TEN) },
    margin: { left: 96 },
  });
  const points = rows.map((row, at) => /** @type {Point} */ ([frame.sx(row), frame.sy(values[at])]));
  const y = frame.sy(needed);
  const ends = state.acknowledged.map(({ at_row }) => frame.sx(at_row));
  const periods = periodsOf(state, alarm).map(({ from, to, raised }) => {
    const inside = points.filter((_, at) => rows[at] > from && rows[at] <= to);
    // A period after an acknowledgement begins without evidence.
    const start = from < 0 ? [] : [/** @type {Point} */ ([frame.sx(from), frame.sy(0)])];
    return draw("path", { class: `line after ${raised ? "raised" : ""}`, d: path([...start, ...inside]) });
  });
  frame.inside.append(
    draw("line", { class: "target", x1: frame.left, x2: frame.right, y1: y, y2: y }),
    ...ends.map((x) => draw("line", { class: "period", x1: x, x2: x, y1: frame.top, y2: frame.bottom })),
    ...periods,
  );
  for (const [cx, cy] of points.length === 1 ? points : []) {
    frame.inside.append(draw("circle", { class: "dot after", r: 4, cx, cy }));
  }
  const readings = points.map(([x, at], i) => ({
    x,
    y: at,
    lines: [`evidence ${evidenceText(logs[i])}`, `after ${count(rows[i])} rows`],
  }));
  walk(svg, /** @type {Frame} */ (frame), readings);
}

/** @param {Seen} seen */
function alarmTable({ state }) {
  const columns = [
    { head: "Alarm", name: true, cell: (/** @type {Alarm} */ alarm) => title(alarm) },
    {
      head: "State",
      words: true,
      cell: (/** @type {Alarm} */ one) => (one.raised ? `✕ raised by row ${count(one.at_row)}` : "✓ not raised"),
    },
    { head: "Strongest evidence", words: true, cell: (/** @type {Alarm} */ alarm) => evidenceText(alarm.log_peak) },
    { head: "Raised at", words: true, cell: (/** @type {Alarm} */ alarm) => evidenceText(alarm.log_needed) },
    { head: "False alarms, at most", number: true, cell: (/** @type {Alarm} */ alarm) => atMost(alarm.delta) },
  ];
  const several = { head: "Observed", words: true, cell: (/** @type {Alarm} */ { seen }) => seen.slice(0, 5).join("; ") };
  // A single text is above its chart. Several texts, one for each class or group, have room only here.
  const all = state.alarms.some((alarm) => alarm.seen.length > 1) ? [...columns, several] : columns;
  const words = state.missing.map(({ name, why }) => `${name} cannot be watched: ${why}.`);
  const missing = words.map((text) => make("p", { class: "fine" }, text));
  return [table("What is watched", all, state.alarms).node, missing, acknowledgedTable(state.acknowledged)];
}

/**
 * The alarms that were acknowledged, the latest first.
 * @param {Acknowledged[]} acknowledged
 */
function acknowledgedTable(acknowledged) {
  if (!acknowledged.length) return null;
  const columns = [
    { head: "Acknowledged", name: true, cell: (/** @type {Acknowledged} */ one) => `at row ${count(one.at_row)}` },
    { head: "Time", words: true, cell: (/** @type {Acknowledged} */ one) => timeText(one.time) },
    {
      head: "Alarms",
      words: true,
      cell: (/** @type {Acknowledged} */ one) =>
        one.alarms.map(({ name, at_row }) => `${name} (by row ${count(at_row)})`).join(", "),
    },
    { head: "Reason", words: true, cell: (/** @type {Acknowledged} */ one) => one.reason },
  ];
  const caption = "Acknowledged alarms; after each, all alarms began again with later rows";
  return make("div", { class: "gap" }, table(caption, columns, [...acknowledged].reverse()).node);
}

/**
 * A time in UTC without its letters: 2026-03-01 09:30 UTC.
 * @param {string} time
 */
const timeText = (time) => `${time.slice(0, 16).replace("T", " ")} UTC`;
