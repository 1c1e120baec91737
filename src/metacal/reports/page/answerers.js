// Who answers how much in a cascade, and how right each is.
/** @import { Answerer, Column, Estimate, Promised } from "./types.js" */
import { make } from "./dom.js";
import { NOTHING, between, count, percent, plainPercent } from "./format.js";
import { table } from "./table.js";

/** @type {Record<string, string>} */
const WHO = { small: "The small model", large: "The large model", person: "People" };

/** @param {Estimate | null} share */
const shown = (share) =>
  share === null ? NOTHING : [percent(share.estimate), make("small", {}, between(share.low, share.high))];

/** @param {Promised} promise */
export function answerers({ answered_by: all }) {
  if (!all.length) return null;
  /** @type {Column<Answerer>[]} */
  const columns = [
    { head: "Predicted by", name: true, cell: ({ name }) => WHO[name] ?? name },
    { head: "Rows", number: true, cell: (one) => count(one.n_rows) },
    { head: "Share of all rows", number: true, cell: (one) => shown(one.share) },
    { head: "Accuracy", number: true, cell: (one) => shown(one.accuracy) },
  ];
  const caption = `Predictions by model, with ${plainPercent(all[0].share.level)} intervals`;
  return make("div", { class: "gap" }, table(caption, columns, all).node);
}
