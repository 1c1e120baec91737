// Calibration in numbers: each measure before and after, of the accepted rows and of all.
/** @import { Column, Estimate, Evaluation, Maybe } from "./types.js" */
import { make } from "./dom.js";
import { NOTHING, between, down, four, percent, plainPercent, up } from "./format.js";
import { table } from "./table.js";

/** @typedef {[string, string, (value: Maybe) => string]} Measure */

/** @type {Measure[]} */
const MEASURES = [
  ["accuracy", "Accuracy", percent],
  ["ece", "ECE, equal width", four],
  ["ece_equal_mass", "ECE, equal mass", four],
  ["classwise_ece", "ECE, class-wise", four],
  ["smooth_ece", "ECE, smooth", four],
  ["nll", "Log loss", four],
  ["brier", "Brier score", four],
];

/** @param {Record<string, Maybe> | null} group */
function points(group) {
  return (/** @type {Measure} */ [key, , format]) => (group ? format(group[key] ?? null) : NOTHING);
}

/** @param {Record<string, Estimate>} group */
function intervals(group) {
  return (/** @type {Measure} */ [key, , format]) => {
    const { estimate, low, high } = group[key];
    const ends = format === percent ? between(low, high) : `${down(low, 4)} to ${up(high, 4)}`;
    return [format(estimate), low !== null && make("small", {}, ends)];
  };
}

/** @param {Evaluation} evaluation */
export function metricsTable({ accepted_rows: accepted, all_rows: all, uncalibrated, level }) {
  /** @type {Column<Measure>[]} */
  const columns = [{ head: "Measure", name: true, cell: ([, name]) => name }];
  const column = (/** @type {string} */ head, /** @type {Column<Measure>["cell"]} */ cell) =>
    columns.push({ head, number: true, cell });
  if (accepted && uncalibrated) column("Accepted rows, before", points(uncalibrated.accepted_rows));
  if (accepted) column(uncalibrated ? "Accepted rows, after" : "Accepted rows", intervals(accepted));
  if (uncalibrated) column("All rows, before", points(uncalibrated.all_rows));
  column(uncalibrated ? "All rows, after" : "All rows", intervals(all));
  const mind = accepted && uncalibrated
    ? " Rejected rows have probability 1/K in every class: judge calibration by the accepted rows."
    : "";
  const caption = `Calibration in numbers, with ${plainPercent(level)} intervals.${mind}`;
  const known = MEASURES.filter(([key]) => key in all);
  return make("div", { class: "gap" }, table(caption, columns, known).node);
}
