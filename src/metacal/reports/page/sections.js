// The sections that are tables: classes, rows worth a look, calibrators compared, methods.
/** @import { Column, Compared, ComparedMetric, Data, Failed, Maybe, Order, Row } from "./types.js" */
import { byId, facts, make, put } from "./dom.js";
import { NOTHING, atLeast, capitalized, count, four, percent, plainPercent } from "./format.js";
import { asGiven, nameOf } from "./promise.js";
import { sortable, table } from "./table.js";

/**
 * A share and a thin bar of that length.
 * @param {Maybe} value
 */
function share(value) {
  if (value === null) return NOTHING;
  const bar = make("i");
  bar.style.width = `${100 * value}%`;
  return [percent(value), make("span", { class: "meter", "aria-hidden": "true" }, bar)];
}

/** @param {Data} data */
export function classSection({ classes, parts, promise }) {
  byId("classes").hidden = classes.n_classes === 0;
  const rows = classes.name.map((name, k) => ({
    name,
    n: classes.n[k],
    accuracy: classes.accuracy[k],
    ece: classes.ece[k],
    miscoverage: classes.miscoverage[k],
    coverage: classes.coverage[k],
    surely: classes.surely[k],
  }));
  /** @typedef {typeof rows[number]} Class */
  const gated = rows.some((row) => row.coverage !== null);
  /** @type {Column<Class>[]} */
  const columns = [
    { key: "name", head: "Class", name: true, cell: (row) => row.name },
    { key: "n", head: "Rows", number: true, cell: (row) => count(row.n) },
    { key: "accuracy", head: "Accuracy", number: true, cell: (row) => share(row.accuracy) },
  ];
  if (rows.some((row) => row.ece !== null)) {
    columns.push({ key: "ece", head: "Class-wise ECE", number: true, cell: (row) => four(row.ece) });
  }
  if (gated) {
    columns.push(
      { key: "miscoverage", head: "Miscoverage", number: true, cell: (row) => share(row.miscoverage) },
      { key: "coverage", head: "Coverage", number: true, cell: (row) => share(row.coverage) },
    );
  }
  const least = gated ? "Miscoverage, at least" : "Errors, at least";
  columns.push({ key: "surely", head: least, number: true, cell: (row) => atLeast(row.surely) });
  const each = parts.find((part) => part.promised === "each");
  const said = each
    ? `The promise holds for each ${each.by}. `
    : promise
      ? "The promise is about all rows together. A single class may miss it. "
      : "";
  put("classes-lead", said, "The strongest evidence comes first, so that a class with few rows does not. Click a heading to sort.");
  const all = rows.length === classes.n_classes ? "" : `, the worst ${count(rows.length)} shown`;
  /** @type {Order<Class>} */
  const worst = { key: "surely", descending: true };
  const caption = `By true class, ${classes.order}: ${count(classes.n_classes)} classes${all}`;
  put("classes-table", make("h3", {}, "By true class"), sortable(caption, columns, rows, worst));
}

/** @param {Data} data */
export function rowSection({ mistakes, hits, source }) {
  const both = [...mistakes, ...hits];
  const classed = source.n_classes > 0;
  /** @param {boolean} truth */
  const columns = (truth) => {
    /** @type {(Column<Row> | false)[]} */
    const found = [
      { head: "Row", number: true, cell: (row) => count(row.row) },
      both.some((row) => row.id !== null) && { head: "Id", words: true, cell: (row) => row.id },
      classed && { head: "Prediction", words: true, cell: (row) => row.predicted },
      classed && truth && { head: "True class", words: true, cell: (row) => row.label },
      !classed && { head: nameOf(source.score), number: true, cell: (row) => asGiven(source.score, row.score) },
      both.some((row) => row.confidence !== null) && {
        head: classed ? "Confidence" : "P(correct)",
        number: true,
        cell: (row) => percent(row.confidence),
      },
      both.some((row) => row.accepted !== null) && {
        head: "Gate",
        cell: (row) => (row.accepted ? "accepted" : "rejected"),
      },
    ];
    return found.filter((column) => column !== false);
  };
  /**
   * @param {string} title
   * @param {Row[]} rows
   * @param {boolean} truth
   */
  const half = (title, rows, truth) =>
    make(
      "div",
      { class: "tight" },
      make("h3", {}, title),
      rows.length
        ? table(`${title}, by ${nameOf(source.score)}; rows count from 0`, columns(truth), rows).node
        : make("p", { class: "lead" }, "None."),
    );
  put("rows-tables", half("Most confident errors", mistakes, true), half("Least confident correct predictions", hits, false));
}

/** @param {ComparedMetric} metric */
const comparisonHeading = ({ heading, smaller_is_better: smallerIsBetter }) =>
  smallerIsBetter ? capitalized(heading) : `${capitalized(heading)} (higher is better)`;

/** @param {Data} data */
export function comparisonSection({ comparison: found }) {
  if (!found) return;
  byId("comparison").hidden = false;
  /**
   * @param {string} key
   * @param {string} name
   */
  const mark = (key, name) =>
    found.best[key] === name ? "★" : found.near_best[key].includes(name) ? "☆" : "";
  const cell = (/** @type {string} */ key) => (/** @type {Compared | Failed} */ entry) =>
    "failed" in entry
      ? NOTHING
      : [
          four(entry.metrics[key].mean),
          make("span", { class: "mark" }, mark(key, entry.name)),
          make("small", {}, `± ${four(entry.metrics[key].standard_error)}`),
        ];
  /** @type {Column<Compared | Failed>[]} */
  const columns = [
    {
      head: "Calibrator",
      name: true,
      cell: (entry) => ("failed" in entry ? `${entry.name} (failed: ${entry.failed})` : entry.name),
    },
    ...found.metrics.map((metric) => ({ head: comparisonHeading(metric), number: true, cell: cell(metric.name) })),
  ];
  const every = `${found.n_repeats} × ${found.n_splits} folds`;
  const folds = found.n_folds === found.n_repeats * found.n_splits ? every : `${found.n_folds} of ${every}`;
  const direction = found.metrics.every((metric) => metric.smaller_is_better)
    ? "Lower is better."
    : "Lower is better unless the heading says otherwise.";
  put(
    "comparison-lead",
    `Estimate ± standard error from rows not used in the fit, ${folds}. ${direction} ★ marks the best, `,
    `☆ those at most ${found.near_best_standard_errors} standard errors of the paired difference worse ` +
      "(a rule of thumb, no confidence level).",
  );
  put("comparison-table", table("Calibrators, best log loss first", columns, found.calibrators).node);
}

/** @param {Data} data */
export function methodsSection({ methods, settings, source }) {
  const versions = Object.entries(methods.versions)
    .map(([name, version]) => `${name} ${version}`)
    .join(", ");
  const { level, delta, n_bins: bins, n_resamples: resamples, seed } = settings;
  put(
    "methods-list",
    facts([
      ...methods.definitions.map(([term, text]) => [capitalized(term), text]),
      [
        "Settings",
        `${plainPercent(level)} intervals, bands at ${plainPercent(1 - delta)}, ${bins} bins, ` +
          `${count(resamples)} resamples, seed ${seed}`,
      ],
      ["Versions", versions],
      [source.hashed === "file" ? "SHA-256 of the file" : "SHA-256 of the data", source.sha256],
    ]),
  );
}
