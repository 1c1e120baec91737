// Table of calibration metrics: before and after calibration, for the accepted rows and for all rows.
/** @import { CalibrationMetric, Column, Estimate, Evaluation, Maybe } from "./types.js" */
import { make } from "./dom.js";
import { NOTHING, between, down, four, percent, plainPercent, up } from "./format.js";
import { table } from "./table.js";

/** @param {CalibrationMetric} metric */
const formatOf = (metric) => (metric.is_share ? percent : four);

/** @param {Record<string, Maybe> | null} values */
function points(values) {
  return (/** @type {CalibrationMetric} */ metric) =>
    values ? formatOf(metric)(values[metric.name] ?? null) : NOTHING;
}

/** @param {Record<string, Estimate>} estimates */
function intervals(estimates) {
  return (/** @type {CalibrationMetric} */ metric) => {
    const { estimate, low, high } = estimates[metric.name];
    const ends = metric.is_share ? between(low, high) : `${down(low, 4)} to ${up(high, 4)}`;
    return [formatOf(metric)(estimate), low !== null && make("small", {}, ends)];
  };
}

/**
 * @param {Evaluation} evaluation
 * @param {CalibrationMetric[]} metrics
 */
export function metricsTable(evaluation, metrics) {
  const { accepted_rows: accepted, all_rows: all, uncalibrated, level, is_paper_map: isPaperMap } = evaluation;
  /** @type {Column<CalibrationMetric>[]} */
  const columns = [{ head: "Measure", name: true, cell: ({ title }) => title }];
  const column = (/** @type {string} */ head, /** @type {Column<CalibrationMetric>["cell"]} */ cell) =>
    columns.push({ head, number: true, cell });
  if (accepted && uncalibrated) column("Accepted rows, before", points(uncalibrated.accepted_rows));
  if (accepted) column(uncalibrated ? "Accepted rows, after" : "Accepted rows", intervals(accepted));
  if (uncalibrated) column("All rows, before", points(uncalibrated.all_rows));
  const allRowsHead = uncalibrated ? "All rows, after" : "All rows";
  column(isPaperMap ? `${allRowsHead} (paper's map)` : allRowsHead, intervals(all));
  const mind = isPaperMap
    ? " The paper's map assigns 1/K to every class of a rejected row: judge calibration by the accepted rows."
    : "";
  const caption = `Calibration in numbers, with ${plainPercent(level)} intervals.${mind}`;
  return make("div", { class: "gap" }, table(caption, columns, metrics).node);
}
