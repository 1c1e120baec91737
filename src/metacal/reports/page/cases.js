// Cases, such as documents: how many need no review, and which type of item costs most.
/** @import { Cases, CaseTypes, Child, Column, Data, Order } from "./types.js" */
import { byId, make, put } from "./dom.js";
import { NOTHING, count, percent } from "./format.js";
import { asGiven, nameOf } from "./promise.js";
import { sortable } from "./table.js";

/**
 * A part of a whole, as a share.
 * @param {number} part
 * @param {number} whole
 */
const shareText = (part, whole) => (whole ? percent(part / whole) : NOTHING);

/**
 * @param {number} part
 * @param {number} whole
 * @param {string} things
 */
const outOf = (part, whole, things) => `${count(part)} of ${count(whole)} ${things}`;

/**
 * The numbers that matter of a gate about cases.
 * @param {Cases} cases
 * @returns {[string, string, Child][]}
 */
export function caseTiles(cases) {
  const { n_cases: all, n_all_accepted: whole, n_items: items, n_accepted: accepted, n_incorrect: incorrect } = cases;
  return [
    ["Cases with all items accepted", shareText(whole, all), outOf(whole, all, "cases")],
    ["Items accepted", shareText(accepted, items), outOf(accepted, items, "items")],
    ["Accepted items that are incorrect", shareText(incorrect, accepted), outOf(incorrect, accepted, "items")],
    [cases.broken_text[0].toUpperCase() + cases.broken_text.slice(1), count(cases.n_broken), `of ${count(all)} cases`],
  ];
}

/** @param {Data} data */
export function casesSection({ cases, source }) {
  byId("cases").hidden = cases === null;
  if (cases === null) return;
  const leftOut = cases.n_left_out
    ? ` ${count(cases.n_left_out)} more cases are left out, because labels that could decide their outcome are missing.`
    : "";
  const review = cases.is_recall ? "" : "A case needs no review if all of its items are accepted. ";
  put("cases-lead", `${review}An item without a score is rejected.${leftOut}`);
  put("cases-bar", caseKinds(cases));
  if (cases.types === null) return;
  put("cases-types", make("h3", {}, "By item type"), make("p", { class: "lead" }, costliestType(cases, cases.types)), typeTable(cases, cases.types, source.score));
}

/**
 * The cases by how many of their items are accepted.
 * @param {Cases} cases
 */
function caseKinds(cases) {
  /** @type {[string, number, string][]} */
  const kinds = [
    ["All items accepted", cases.n_all_accepted, "fully automated: nobody reviews the case"],
    ["Some items accepted", cases.n_some_accepted, "the rejected items go to review"],
    ["No item accepted", cases.n_none_accepted, "the whole case goes to review"],
  ];
  const bars = kinds.map(([name, n, meaning]) => {
    const bar = make("i");
    bar.style.width = `${cases.n_cases ? (100 * n) / cases.n_cases : 0}%`;
    return make(
      "div",
      { class: "case-kind" },
      make("dt", {}, name, !cases.is_recall && make("small", {}, meaning)),
      make(
        "dd",
        {},
        `${shareText(n, cases.n_cases)} `,
        make("small", {}, outOf(n, cases.n_cases, "cases")),
        make("span", { class: "meter wide", "aria-hidden": "true" }, bar),
      ),
    );
  });
  return make("dl", { class: "case-kinds" }, bars);
}

/**
 * Which type is rejected most, and which breaks the promise most.
 * @param {Cases} cases
 * @param {CaseTypes} types
 */
function costliestType(cases, types) {
  const rejected = types.n.map((n, k) => n - types.accepted[k]);
  const all = cases.n_items - cases.n_accepted;
  const k = rejected.indexOf(Math.max(...rejected));
  const most = all
    ? `Most rejected items are of the type “${types.name[k]}”: ${outOf(rejected[k], all, "rejected items")}.`
    : "No item is rejected.";
  const worst = types.broken.indexOf(Math.max(...types.broken));
  const what = cases.is_recall ? "a missed true item" : "an incorrect accepted item";
  const broken = cases.n_broken
    ? ` Of the ${count(cases.n_broken)} ${cases.broken_text}, ${count(types.broken[worst])} have one of the type “${types.name[worst]}”.`
    : ` No case has ${what}.`;
  return most + broken;
}

/**
 * @param {Cases} cases
 * @param {CaseTypes} types
 * @param {string} score
 */
function typeTable(cases, types, score) {
  const rows = types.name.map((name, k) => ({
    name,
    n: types.n[k],
    accepted: types.n[k] ? types.accepted[k] / types.n[k] : null,
    rejected: types.n[k] - types.accepted[k],
    incorrect: types.incorrect[k],
    missed: types.missed[k],
    broken: types.broken[k],
    threshold: types.threshold[k],
  }));
  /** @typedef {typeof rows[number]} Line */
  /** @type {(Column<Line> | false)[]} */
  const columns = [
    { key: "name", head: "Item type", name: true, cell: (row) => row.name },
    { key: "n", head: "Items", number: true, cell: (row) => count(row.n) },
    { key: "accepted", head: "Accepted", number: true, cell: (row) => percent(row.accepted) },
    { key: "rejected", head: "Rejected items", number: true, cell: (row) => count(row.rejected) },
    { key: "incorrect", head: "Incorrect accepted", number: true, cell: (row) => count(row.incorrect) },
    { key: "missed", head: "Correct rejected", number: true, cell: (row) => count(row.missed) },
    { key: "broken", head: "Cases broken", number: true, cell: (row) => count(row.broken) },
    types.threshold.some((value) => value !== null) && {
      head: "Threshold",
      number: true,
      cell: (row) => typeThreshold(score, row.threshold),
    },
  ];
  /** @type {Order<Line>} */
  const most = { key: "rejected", descending: true };
  const cut = rows.length === types.n_types ? "" : `, ${count(rows.length)} shown`;
  const caption =
    `${count(types.n_types)} item types${cut}. Cases broken: ${cases.broken_text} of this type. A case may ` +
    `count for several types. Threshold: ${score.startsWith("-") ? "lowest" : "highest"} accepted ${nameOf(score)}.`;
  return sortable(caption, columns.filter((column) => column !== false), rows, most);
}

/**
 * @param {string} score
 * @param {number | string | null} value
 */
function typeThreshold(score, value) {
  if (value === null) return NOTHING;
  if (value === "-inf") return "always rejected";
  return value === "inf" ? "accepts all" : asGiven(score, value);
}
