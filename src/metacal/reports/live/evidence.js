// One chart for each alarm: the logarithm of its evidence, and the line at which it is raised; then all in a table.
/** @import { Alarm, Seen } from "./state.js" */
/** @import { Frame, Point } from "./types.js" */
import { axes, chart } from "./chart.js";
import { draw, make, put } from "./dom.js";
import { atMost, count, fixed } from "./format.js";
import { path } from "./geometry.js";
import { walkable } from "./readout.js";
import { table } from "./table.js";

/** Evidence in powers of ten: people read 10³ more easily than e⁷. */
const TEN = Math.LN10;

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
    const walk = walkable(made, `${title(alarm)}: walk along the evidence`);
    return made;
  });
  return () => {
    put("evidence-lead", `In powers of ten; look as often as you like: ${seen.state.levels}.`);
    for (const made of charts) made.render();
    put("alarms-table", alarmTable(seen));
  };
}

/** @param {Alarm} alarm */
const title = (alarm) => `${alarm.name[0].toUpperCase()}${alarm.name.slice(1)}`;

/** @param {Alarm} alarm */
const described = (alarm) =>
  `Evidence ${fixed(alarm.log_evidence / TEN, 2)}, raised at ${fixed(alarm.log_needed / TEN, 2)}, powers of ten. ` +
  `${alarm.raised ? `Raised by row ${count(alarm.at_row)}` : "Not raised"}.`;

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
  const values = state.history.evidence[alarm.name].map((value) => value / TEN);
  const needed = alarm.log_needed / TEN;
  const low = Math.min(-1, ...values) * 1.05;
  const high = Math.max(needed * 1.35, ...values.map((value) => value * 1.05));
  const frame = axes(svg, size, {
    x: { domain: [0, Math.max(1, rows[rows.length - 1])], title: "rows", plain: true },
    y: { domain: [low, high], plain: true },
  });
  const points = rows.map((row, at) => /** @type {Point} */ ([frame.sx(row), frame.sy(values[at])]));
  const y = frame.sy(needed);
  frame.inside.append(
    draw("line", { class: "target", x1: frame.left, x2: frame.right, y1: y, y2: y }),
    draw("path", { class: `line after ${alarm.raised ? "raised" : ""}`, d: path(points) }),
  );
  for (const [cx, cy] of points.length === 1 ? points : []) {
    frame.inside.append(draw("circle", { class: "dot after", r: 4, cx, cy }));
  }
  const readings = points.map(([x, at], i) => ({
    x,
    y: at,
    lines: [`evidence ${fixed(values[i], 2)}`, `after ${count(rows[i])} rows`],
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
    { head: "False alarms", number: true, cell: (/** @type {Alarm} */ alarm) => atMost(alarm.delta) },
    { head: "Evidence", number: true, cell: (/** @type {Alarm} */ alarm) => fixed(alarm.log_evidence / TEN, 2) },
    { head: "Needed", number: true, cell: (/** @type {Alarm} */ alarm) => fixed(alarm.log_needed / TEN, 2) },
  ];
  const several = { head: "Seen", words: true, cell: (/** @type {Alarm} */ { seen }) => seen.slice(0, 5).join("; ") };
  // One thing is told above its chart; more of them, one for each class or group, have room only here.
  const all = state.alarms.some((alarm) => alarm.seen.length > 1) ? [...columns, several] : columns;
  const words = state.missing.map(({ name, why }) => `${name} cannot be watched: ${why}.`);
  const missing = words.map((text) => make("p", { class: "fine" }, text));
  return [table("What is watched; evidence in powers of ten", all, state.alarms).node, missing];
}
