// What the tables hold: measures before and after, classes, rows worth a look, calibrators compared, methods.

const four = (value) => fixed(value, 4);
const MEASURES = [
  ["accuracy", "Accuracy", percent],
  ["ece", "ECE, equal width", four],
  ["ece_equal_mass", "ECE, equal mass", four],
  ["classwise_ece", "ECE, class-wise", four],
  ["smooth_ece", "ECE, smooth", four],
  ["nll", "Log loss", four],
  ["brier", "Brier score", four],
];

function metricsTable({ accepted_rows: accepted, all_rows: all, uncalibrated, level }) {
  const point =
    (group) =>
    ([key, , format]) =>
      group ? format(group[key] ?? null) : NOTHING;
  const interval =
    (group) =>
    ([key, , format]) => {
      const found = group[key];
      return [
        format(found.estimate),
        found.low === null ? null : make("small", {}, `${format(found.low)} to ${format(found.high)}`),
      ];
    };
  const columns = [{ head: "Measure", name: true, cell: ([, name]) => name }];
  const column = (head, cell) => columns.push({ head, number: true, cell });
  if (accepted && uncalibrated) column("Accepted rows, before", point(uncalibrated.accepted_rows));
  if (accepted) column("Accepted rows, after", interval(accepted));
  if (uncalibrated) column("All rows, before", point(uncalibrated.all_rows));
  column(uncalibrated ? "All rows, after" : "All rows", interval(all));
  const caption = `Calibration in numbers, with ${plainPercent(level)} intervals.${
    accepted ? " Rejected rows have probability 1/K in every class: judge calibration by the accepted rows." : ""
  }`;
  return make(
    "div",
    { class: "gap" },
    table(
      caption,
      columns,
      MEASURES.filter(([key]) => key in all),
    ).node,
  );
}

/** A share and a thin bar of that length. */
function share(value) {
  if (value === null) return NOTHING;
  const bar = make("i");
  bar.style.width = `${100 * value}%`;
  return [percent(value), make("span", { class: "meter", "aria-hidden": "true" }, bar)];
}

function classSection({ classes, promise }) {
  const rows = classes.name.map((name, k) => ({
    name,
    n: classes.n[k],
    accuracy: classes.accuracy[k],
    ece: classes.ece[k],
    miscoverage: classes.miscoverage[k],
    coverage: classes.coverage[k],
  }));
  const gated = rows.some((row) => row.coverage !== null);
  const columns = [
    { key: "name", head: "Class", name: true, cell: (row) => row.name },
    { key: "n", head: "Rows", number: true, cell: (row) => count(row.n) },
    { key: "accuracy", head: "Accuracy", number: true, cell: (row) => share(row.accuracy) },
    { key: "ece", head: "Class-wise ECE", number: true, cell: (row) => four(row.ece) },
    gated && { key: "miscoverage", head: "Miscoverage", number: true, cell: (row) => share(row.miscoverage) },
    gated && { key: "coverage", head: "Coverage", number: true, cell: (row) => share(row.coverage) },
  ].filter(Boolean);
  put(
    "classes-lead",
    `By true class, ${classes.order}. `,
    promise
      ? "The promise is about all rows together, not about " + "each class: look here for who pays for it."
      : "Headings sort.",
  );
  const all = rows.length === classes.n_classes ? "" : `, the worst ${count(rows.length)} shown`;
  const worst = classes.order.includes("miscoverage")
    ? { key: "miscoverage", descending: true }
    : { key: "accuracy", descending: false };
  put("classes-table", sortable(`${count(classes.n_classes)} classes${all}`, columns, rows, worst));
}

function rowSection({ mistakes, hits, source }) {
  const both = [...mistakes, ...hits];
  const columns = [
    { head: "Row", number: true, cell: (row) => count(row.row) },
    both.some((row) => row.id !== null) && { head: "Id", words: true, cell: (row) => row.id },
    { head: "Answer", words: true, cell: (row) => row.predicted },
    { head: "Truth", words: true, cell: (row) => row.label },
    { head: "Confidence", number: true, cell: (row) => percent(row.confidence) },
    both.some((row) => row.accepted !== null) && {
      head: "Gate",
      cell: (row) => (row.accepted ? "accepted" : "rejected"),
    },
  ].filter(Boolean);
  const half = (title, rows, shown) =>
    make(
      "div",
      { class: "tight" },
      make("h3", {}, title),
      rows.length
        ? table(`${title}, by ${source.score}; rows count from 0`, shown, rows).node
        : make("p", { class: "lead" }, "None."),
    );
  put(
    "rows-tables",
    half("Most confident mistakes", mistakes, columns),
    half(
      "Least confident hits",
      hits,
      columns.filter((column) => column.head !== "Truth"),
    ),
  );
}

const COMPARED = {
  nll: "Log loss",
  brier: "Brier",
  ece: "ECE",
  ece_equal_mass: "ECE, equal mass",
  classwise_ece: "Class-wise ECE",
};

function comparisonSection({ comparison: found }) {
  if (!found) return;
  find("comparison").hidden = false;
  const mark = (key, name) =>
    found.best[key] === name ? "★" : found.within_one_standard_error[key].includes(name) ? "☆" : "";
  const cell = (key) => (entry) =>
    entry.failed
      ? NOTHING
      : [
          four(entry.metrics[key].mean),
          make("span", { class: "mark" }, mark(key, entry.name)),
          make("small", {}, `± ${four(entry.metrics[key].standard_error)}`),
        ];
  const columns = [
    {
      head: "Calibrator",
      name: true,
      cell: (entry) => (entry.failed ? `${entry.name} (failed: ${entry.failed})` : entry.name),
    },
    ...Object.keys(found.best).map((key) => ({ head: COMPARED[key] ?? key, number: true, cell: cell(key) })),
  ];
  put(
    "comparison-lead",
    `Mean ± standard error over ${found.n_repeats} × ${found.n_splits} folds of rows not used in the `,
    "fit; less is better. ★ marks the best, ☆ those within one standard error of it.",
  );
  put("comparison-table", table("Calibrators, best log loss first", columns, found.calibrators).node);
}

function methodsSection({ methods, settings, source }) {
  const versions = Object.entries(methods.versions)
    .map(([name, version]) => `${name} ${version}`)
    .join(", ");
  put(
    "methods-list",
    facts([
      ...methods.definitions.map(([term, text]) => [term.charAt(0).toUpperCase() + term.slice(1), text]),
      [
        "Settings",
        `${plainPercent(settings.level)} intervals, bands at ${plainPercent(1 - settings.delta)}, ${
          settings.n_bins
        } bins, ${count(settings.n_resamples)} resamples, seed ${settings.seed}`,
      ],
      ["Versions", versions],
      [source.hashed === "file" ? "SHA-256 of the file" : "SHA-256 of the data", source.sha256],
    ]),
  );
}
