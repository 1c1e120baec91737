// The answer in five seconds: is there an alarm, and the four numbers that matter.
/** @import { State } from "./state.js" */
import { badge, tiles } from "./badge.js";
import { byId, make, put } from "./dom.js";
import { NOTHING, between, count, percent } from "./format.js";
import { stepList } from "./steps.js";

/** @param {State} state */
export function answer(state) {
  put("badge", state.alarm ? badge("refuted", `Alarm: ${state.raised.join(", ")}`) : badge("kept", "No alarm"));
  put("answer-title", state.headline);
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
      make("p", { class: "measured" }, `Nothing has come in for ${count(state.silence.after)} seconds.`),
    !state.alarm &&
      make("p", { class: "measured" }, quietText(state)),
  );
  byId("steps").hidden = state.next_steps.length === 0;
  put("steps-list", stepList(state.next_steps));
  put("tiles", tiles(numbersOf(state)));
}

/**
 * How long there was no alarm: since the last acknowledgement, if there is one.
 * @param {State} state
 */
function quietText({ acknowledged, rows }) {
  const last = acknowledged.at(-1);
  if (!last) return `No alarm after ${count(rows)} rows.`;
  const n = rows - last.at_row;
  return `No alarm in the ${count(n)} ${n === 1 ? "row" : "rows"} since an alarm was acknowledged at row ${count(last.at_row)}.`;
}

/**
 * Term, value, a line below.
 * @param {State} state
 * @returns {[string, string, string][]}
 */
function numbersOf(state) {
  const { estimate } = state;
  const waits = state.waiting ? `, ${count(state.waiting)} waiting` : "";
  return [
    ["Rows", count(state.rows), `${count(state.accepted)} accepted${unread(state)}`],
    ["Coverage", percent(state.coverage, 1), "of all rows accepted"],
    [
      state.agreement ? "Agreement with the large model" : "Selective accuracy, by labels",
      percent(state.selective_accuracy),
      `of ${count(state.labelled_accepted)} accepted and labelled${waits}`,
    ],
    [
      "Selective accuracy, estimated",
      estimate ? percent(estimate.accuracy) : NOTHING,
      estimate
        ? `${between(estimate.low, estimate.high)}, from confidence alone; not valid if the rows have changed`
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
