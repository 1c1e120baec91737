// What was promised, in words: one for the verdict, a few for the limit.
/** @import { CurveName, Promised, Verdict } from "./types.js" */
import { general, percent } from "./format.js";

/**
 * The side on which the good values lie: below a ceiling, above a floor.
 * @param {Verdict} verdict
 */
export const isCeiling = (verdict) => verdict.direction === "at most";

/**
 * The limit, as "at least 97%"; a cost as a number.
 * @param {Verdict} verdict
 */
export const limitOf = (verdict) => `${verdict.direction} ${verdict.limit}`;

/**
 * A measured value of the promised quantity: a share in percent, a cost as a number.
 * @param {Verdict} verdict
 * @param {number | null} value
 */
export const measuredAs = (verdict, value) => (verdict.mean ? general(value, 4) : percent(value));

/**
 * What is promised of the quantity that a curve shows.
 * @param {Promised | null} promise
 * @param {CurveName} curve
 */
export const promisedOn = (promise, curve) => promise?.verdicts.find((verdict) => verdict.curve === curve) ?? null;

/**
 * A score as people call it: "-mark" is a mark of which more is surer.
 * @param {string} score
 */
export const nameOf = (score) => (score.startsWith("-") ? score.slice(1) : score);

/**
 * A number that the score is compared with, as people read it.
 * @param {string} score
 * @param {number | string} doubt
 */
export const asGiven = (score, doubt) =>
  general(score.startsWith("-") && typeof doubt === "number" ? -doubt : doubt);

/**
 * A threshold, and what it is compared with, in its unit.
 * @param {{ score: string, score_unit: string }} source
 * @param {number | string} threshold
 */
export const limitOn = ({ score, score_unit: unit }, threshold) => [
  asGiven(score, threshold),
  `accept if ${nameOf(score)}${unit && ` (${unit})`} ${score.startsWith("-") ? "≥" : "≤"} this`,
];
