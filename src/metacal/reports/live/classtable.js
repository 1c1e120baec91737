// The predicted classes, one by one.
/** @import { OneClass, State } from "./state.js" */
import { byId, put } from "./dom.js";
import { count, percent } from "./format.js";
import { table } from "./table.js";

const COLUMNS = [
  { head: "Class", name: true, cell: (/** @type {OneClass} */ one) => one.name },
  { head: "Rows", number: true, cell: (/** @type {OneClass} */ one) => count(one.rows) },
  {
    head: "Coverage",
    number: true,
    cell: (/** @type {OneClass} */ one) => percent(one.rows ? one.accepted / one.rows : null, 1),
  },
  {
    head: "Labelled",
    number: true,
    cell: (/** @type {OneClass} */ one) => `${count(one.labelled_accepted)} of ${count(one.accepted)}`,
  },
  {
    head: "Selective accuracy",
    number: true,
    cell: (/** @type {OneClass} */ one) =>
      percent(one.labelled_accepted ? one.correct_accepted / one.labelled_accepted : null, 1),
  },
];

/** @param {State} state */
export function classTable(state) {
  byId("classes").hidden = state.classes.length === 0;
  put("classes-table", table("Accepted rows of each predicted class", COLUMNS, state.classes).node);
}
