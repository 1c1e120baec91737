// The answer in five seconds: what was promised, whether it is kept here, and the four numbers that matter.
/** @import { Child, Data, Estimate, FitRows, Maybe, Promised, Verdict } from "./types.js" */
import { answerers } from "./answerers.js";
import { badge, tiles } from "./badge.js";
import { caseTiles } from "./cases.js";
import { axes, chart } from "./chart.js";
import { draw, facts, make, put } from "./dom.js";
import { NOTHING, between, capitalized, count, down, fixed, four, percent, up } from "./format.js";
import { ticks } from "./geometry.js";
import { isCeiling, limitOf, measuredAs } from "./promise.js";
import { stepList } from "./steps.js";

const VERDICTS = {
  kept: "Kept",
  undecided: "Undecided",
  refuted: "Refuted",
  "not judged": "Not judged: calibration rows",
  open: "No promise yet",
};

/** @type {Record<string, string>} */
const CERTIFICATE = {
  gate: "Gate",
  from: "Fitted on",
  "on these": "On those rows",
  rule: "Rule",
  classes: "Classes",
  groups: "Groups",
  pooled: "Pooled",
  rejected: "Always rejected",
  accepts: "Accepts",
  small: "Small model",
  large: "Large model",
  difference: "Difference",
  accuracy: "Accuracy",
};

/**
 * A kept promise beside a confidence that is off is no good news.
 * @param {Promised | null} promise
 * @param {boolean} off
 */
function verdictBadge(promise, off) {
  const found = promise ? promise.verdict : "open";
  const mind = off && found === "kept";
  const text = VERDICTS[found];
  const look = found === "not judged" ? "open" : found;
  return badge(mind ? "undecided" : look, mind ? `${text}, but confidence is off` : text);
}

/** @param {Data} data */
export function headline(data) {
  const { promise } = data;
  const host = put(
    "answer",
    verdictBadge(promise, data.evaluation.calibration !== null),
    make(
      "h1",
      { id: "promise-title", class: promise && promise.statement.length > 90 ? "long" : null },
      promise ? promise.statement : unpromised(data),
    ),
    promise?.fit_rows &&
      make(
        "p",
        { class: "mind undecided" },
        make("strong", {}, "Note: "),
        `${fitRows(promise.fit_rows)}. They cannot judge the gate: it was chosen on them, and its calibration looks better on them than on new rows.`,
      ),
    data.evaluation.calibration !== null &&
      make("p", { class: "mind undecided" }, make("strong", {}, "Note: "), data.evaluation.calibration),
    !promise &&
      make(
        "p",
        { class: "measured" },
        "Choose a point below. The page shows how to certify it as a promise.",
      ),
  );
  for (const verdict of promise && !promise.fit_rows ? promise.verdicts : []) {
    host.append(measured(verdict));
    const { value, low, high } = verdict;
    if (value !== null && low !== null && high !== null) gauge(host, verdict, [value, low, high]);
  }
  if (promise) {
    host.append(make("p", { class: "measured" }, make("strong", {}, "What to do: "), promise.advice));
    const steps = stepList(promise.next_steps);
    if (steps) host.append(steps);
  }
  put("tiles", tiles(data.cases ? caseTiles(data.cases) : numbersOf(data)));
  if (promise) put("certificate", answerers(promise), certificate(promise, data.cases?.types?.name ?? []));
}

/**
 * How many of the rows were part of the fit.
 * @param {FitRows} rows
 */
function fitRows({ n_fit_rows: known, n_rows: all, is_estimate: estimated }) {
  if (!estimated && known === all) return `All ${count(all)} rows were part of the fit`;
  return `${estimated ? "About " : ""}${count(known)} of these ${count(all)} rows were part of the fit`;
}

/**
 * Without a promise the headline is how honest the confidence is.
 * @param {Data} data
 */
function unpromised({ evaluation, source, diagrams }) {
  if (!diagrams.length) return `${percent(evaluation.all_rows.accuracy.estimate, 1)} of these predictions are correct.`;
  const { confidence, accuracy } = diagrams[diagrams.length - 1];
  const points = `${percent(evaluation.all_rows.ece.estimate, 1).replace("%", "")} points`;
  const who = source.calibrator ? "After calibration the classifier is" : "The classifier is";
  if (confidence - accuracy > 0.005) return `${who} overconfident: its confidence is ${points} off.`;
  if (accuracy - confidence > 0.005) return `${who} underconfident: its confidence is ${points} off.`;
  return `Confidence and accuracy differ by ${points}.`;
}

/** @param {Verdict} verdict */
function measured(verdict) {
  if (verdict.value === null) {
    return make("p", { class: "measured" }, `These rows do not show the ${verdict.quantity}.`);
  }
  return make(
    "p",
    { class: "measured" },
    "Measured: ",
    make("strong", {}, measuredAs(verdict, verdict.value)),
    ` ${verdict.counted} (${Number((100 * verdict.level).toFixed(2))}% interval ${spanOf(verdict)}). `,
    `Promised: ${limitOf(verdict)}.`,
  );
}

/**
 * From one end of the interval to the other.
 * @param {Verdict} verdict
 */
const spanOf = (verdict) =>
  verdict.mean
    ? `${measuredAs(verdict, verdict.low)} to ${measuredAs(verdict, verdict.high)}`
    : between(verdict.low, verdict.high);

/**
 * Where the measured share lies beside the promise.
 * @param {HTMLElement} host
 * @param {Verdict} verdict
 * @param {[number, number, number]} found
 */
function gauge(host, verdict, [value, low, high]) {
  const { target } = verdict;
  const pad = Math.max(0.4 * (Math.max(high, target) - Math.min(low, target)), 0.002 * (verdict.mean ? target : 1));
  const most = verdict.mean ? Number.POSITIVE_INFINITY : 1;
  /** @type {[number, number]} */
  const domain = [Math.max(low < 0 ? -1 : 0, Math.min(low, target) - pad), Math.min(most, Math.max(high, target) + pad)];
  chart(host, {
    title: "What was measured beside the promise",
    description: `Measured ${measuredAs(verdict, value)}, ${spanOf(verdict)}; promised ${limitOf(verdict)}.`,
    height: () => 88,
    paint(svg, size) {
      // A label at the very edge would stick out.
      const room = (26 / size.width) * (domain[1] - domain[0]);
      const inner = ticks(...domain).filter((tick) => tick > domain[0] + room && tick < domain[1] - room);
      const { sx, inside, left, right } = axes(svg, size, {
        x: { domain, ticks: inner, plain: verdict.mean },
        y: { domain: [0, 1], ticks: [] },
        margin: { left: 2, right: 2, top: 22, bottom: 26 },
        clip: false,
      });
      const [from, to] = isCeiling(verdict) ? [left, sx(target)] : [sx(target), right];
      /** @param {[string, number, number, number, number]} ends */
      const line = (...[name, x1, x2, y1, y2]) => draw("line", { class: name, x1, x2, y1, y2 });
      inside.append(
        draw("rect", { class: "good-zone", x: from, y: 22, width: to - from, height: 40 }),
        line("target", sx(target), sx(target), 20, 62),
        line("cursor", sx(low), sx(high), 42, 42),
        ...[low, high].map((end) => line("cursor", sx(end), sx(end), 36, 48)),
        draw("circle", { class: "handle", cx: sx(value), cy: 42, r: 7 }),
      );
      const late = sx(target) > 0.5 * size.width;
      svg.append(
        draw(
          "text",
          { class: "target-text", x: sx(target), y: 13, "text-anchor": late ? "end" : "start" },
          `promised: ${limitOf(verdict)}`,
        ),
      );
    },
  });
}

/**
 * The four numbers that matter.
 * @param {Data} data
 */
function numbersOf({ evaluation, quantity_names: names }) {
  const { gate, accepted_rows: accepted, all_rows: all, uncalibrated } = evaluation;
  const points = (/** @type {Maybe} */ share) => (share === null ? NOTHING : `${fixed(100 * share, 2)} pts`);
  /**
   * @param {string} term
   * @param {Estimate} found
   * @param {(value: Maybe) => string} format
   * @param {(low: Maybe, high: Maybe) => string} ends
   * @returns {[string, string, Child]}
   */
  const tile = (term, found, format, ends = between) => [
    term,
    format(found.estimate),
    found.low === null ? null : ends(found.low, found.high),
  ];
  const fourDigits = (/** @type {Maybe} */ low, /** @type {Maybe} */ high) => `${down(low, 4)} to ${up(high, 4)}`;
  /** @type {[string, string, Child][]} */
  const shown = gate.coverage
    ? [
        tile(capitalized(names.coverage), gate.coverage, percent),
        tile(capitalized(names.selective_accuracy), gate.selective_accuracy, percent),
        tile(capitalized(names.miscoverage), gate.miscoverage, percent),
      ]
    : [
        ["Rows", count(evaluation.n_rows), evaluation.n_classes > 0 && `${count(evaluation.n_classes)} classes`],
        tile("Accuracy", all.accuracy, percent),
        ...(all.nll
          ? [tile("Log loss", all.nll, four, fourDigits)]
          : [
              tile("AUROC of the score", gate.auroc, four, fourDigits),
              tile("AURC (0 is best)", gate.aurc, four, fourDigits),
            ]),
      ];
  const before = uncalibrated && (accepted ? uncalibrated.accepted_rows : uncalibrated.all_rows);
  if ((accepted ?? all).ece) {
    const ece = tile("Confidence off by (ECE)", (accepted ?? all).ece, points, (low, high) =>
      low === null || high === null ? NOTHING : `${down(100 * low, 2)} to ${up(100 * high, 2)} pts`,
    );
    if (before) ece[2] = `before: ${points(before.ece)}`;
    shown.push(ece);
  }
  return shown;
}

/**
 * The certificate; names of item types stay as the user wrote them.
 * @param {Promised} promise
 * @param {string[]} types
 */
function certificate(promise, types) {
  return make(
    "details",
    { class: "certificate", open: true },
    make("summary", {}, "The certificate"),
    facts([
      ...promise.certificate.map(([term, text]) => [
        CERTIFICATE[term] ?? (types.includes(term) ? term : capitalized(term)),
        text.replace("<=", "≤").replace(">=", "≥"),
      ]),
      ["Assuming", ...promise.assumptions],
      ["Note", ...promise.notes],
    ]),
  );
}
