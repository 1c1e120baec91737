// The operating point: where it starts, who follows it, and what is measured there.
/** @import { Curves, Data, Maybe, Measured, OperatingPoint, PointNumbers, Series } from "./types.js" */
import { nearest } from "./geometry.js";

/** Coverage at which the point starts if there is no gate. */
const COVERAGE_WITHOUT_GATE = 0.9;

/**
 * The point starts at the gate. If the gate has several thresholds, or accepts no row, it is on no point of the curves.
 * @param {Data} data
 * @returns {OperatingPoint}
 */
export function operatingPoint({ curves, evaluation }) {
  const last = curves.threshold.length - 1;
  /** @type {(() => void)[]} */
  const listeners = [];
  const { coverage } = evaluation.gate;
  const isOffCurve = Boolean(coverage) && curves.current === null;
  const start = curves.current ?? nearest(curves.coverage.estimate, coverage?.estimate ?? COVERAGE_WITHOUT_GATE);
  const go = (/** @type {number} */ at, /** @type {boolean} */ isGate) => {
    point.at = Math.max(0, Math.min(last, at));
    point.isGate = isGate;
    for (const listener of listeners) listener();
  };
  const point = {
    at: start,
    last,
    isGate: isOffCurve,
    listen: (/** @type {() => void} */ listener) => void listeners.push(listener),
    move: (/** @type {number} */ at) => go(at, false),
    reset: () => go(start, isOffCurve),
  };
  return point;
}

/**
 * What is measured at the point: by the curves with their bands, or for the gate itself with its intervals.
 * @param {Data} data
 * @param {OperatingPoint} point
 * @returns {PointNumbers}
 */
export function numbersAt({ curves, evaluation }, point) {
  if (point.isGate) {
    const { coverage, selective_accuracy: accuracy, miscoverage } = evaluation.gate;
    return { coverage, accuracy, miscoverage, review: reviewOf(coverage) };
  }
  const at = (/** @type {Series | Curves["coverage"]} */ { estimate, low, high }) => ({
    estimate: estimate[point.at],
    low: low[point.at],
    high: high[point.at],
  });
  const coverage = at(curves.coverage);
  return {
    coverage,
    accuracy: at(curves.accuracy),
    miscoverage: at(curves.miscoverage),
    review: reviewOf(coverage),
  };
}

/**
 * Rejected rows per 1,000, from the coverage.
 * @param {Measured} coverage
 * @returns {Measured}
 */
function reviewOf({ estimate, low, high }) {
  const rejected = (/** @type {Maybe} */ share) => (share === null ? null : 1000 * (1 - share));
  return { estimate: rejected(estimate), low: rejected(high), high: rejected(low) };
}
