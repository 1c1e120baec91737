// The answer in five seconds: is there an alarm, and the four numbers that matter.
/** @import { State } from "./state.js" */
import { draw, make, put } from "./dom.js";
import { NOTHING, between, count, percent } from "./format.js";

const MARKS = { kept: "M4.5 10.5l3.5 3.5 7.5-8.5", refuted: "M5 5l10 10M15 5L5 15" };

/** @param {State} state */
export function answer(state) {
  const verdict = state.alarm ? "refuted" : "kept";
  const words = state.alarm ? `Alarm: ${state.raised.join(", ")}` : "No alarm";
  put("badge", make("p", { class: `verdict ${verdict}` }, mark(MARKS[verdict]), words));
  put("answer-title", state.promise ?? "Nothing is promised; the confidence is watched.");
  const raised = state.alarms.filter((alarm) => alarm.raised);
  put(
    "why",
    raised.map((alarm) =>
      make(
        "p",
        { class: "measured" },
        make("strong", {}, `By row ${count(alarm.at_row)} `),
        `${alarm.meaning}: ${alarm.seen[0]}.`,
      ),
    ),
    state.silence?.raised &&
      make("p", { class: "measured" }, `Nothing has come for ${count(state.silence.after)} seconds.`),
    !state.alarm &&
      make("p", { class: "measured" }, `Nothing speaks against it yet, after ${count(state.rows)} rows.`),
  );
  put("tiles", make("dl", { class: "tiles" }, tiles(state).map(tile)));
}

/** @param {string} path */
function mark(path) {
  const stroke = { fill: "none", stroke: "currentColor", "stroke-width": 2.25, "stroke-linecap": "round" };
  const icon = { viewBox: "0 0 20 20", "aria-hidden": "true", focusable: "false" };
  return draw("svg", icon, draw("path", { d: path, "stroke-linejoin": "round", ...stroke }));
}

/**
 * Term, value, a line below.
 * @param {State} state
 */
function tiles(state) {
  const { estimate } = state;
  const waits = state.waiting ? `, ${count(state.waiting)} wait` : "";
  return [
    ["Rows", count(state.rows), `${count(state.accepted)} accepted${unread(state)}`],
    ["Coverage", percent(state.coverage, 1), "of all rows are accepted"],
    ["Right, by labels", percent(state.accuracy), `of ${count(state.labelled_accepted)} accepted and labelled${waits}`],
    [
      "Right, estimated",
      estimate ? percent(estimate.accuracy) : NOTHING,
      estimate
        ? `${between(estimate.low, estimate.high)}; from confidence alone, wrong under shift`
        : "no confidence to estimate from",
    ],
  ];
}

/**
 * What of the stream was not read, where there is any.
 * @param {State} state
 */
function unread({ unreadable, lines, gaps }) {
  const put = unreadable ? `; ${count(unreadable)} of ${count(lines)} lines could not be read` : "";
  return gaps ? `${put}; ${count(gaps)} ${gaps === 1 ? "gap" : "gaps"}` : put;
}

/** @param {string[]} entry */
function tile([term, value, below]) {
  return make("div", { class: "tile" }, make("dt", {}, term), make("dd", {}, value), make("dd", {}, below));
}
