// Numbers as Python prints them: f"{value:.{digits}f}", ties to even.

export const NOTHING = "–";

/**
 * Like toFixed, but an exact tie goes to the even digit, as in Python.
 * @param {number | null | undefined} value
 * @param {number} digits
 */
export function fixed(value, digits) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const text = value.toFixed(digits);
  const exact = value.toFixed(Math.min(100, digits + 60));
  const tail = exact.slice(exact.indexOf(".") + 1 + digits);
  if (!/^50*$/.test(tail)) return text;
  const shorter = exact.slice(0, exact.indexOf(".") + (digits ? 1 + digits : 0));
  return Number(shorter.at(-1)) % 2 === 0 ? shorter : text;
}

/** @param {number | null | undefined} value */
export const four = (value) => fixed(value, 4);

/**
 * A share in percent, two decimals.
 * @param {number | null | undefined} share
 */
export const percent = (share, digits = 2) =>
  share === null || share === undefined ? NOTHING : `${fixed(100 * share, digits)}%`;

/** What a float's last bits add to a decimal that somebody meant: 100 · 0.57 is 56.99999999999999. */
const NOISE = 1e-6;

/**
 * So many decimals, to one side: -1 never says more than the value, 1 never less.
 * @param {number | null | undefined} value
 * @param {number} digits
 * @param {-1 | 1} side
 */
function outward(value, digits, side) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const units = value * 10 ** digits;
  const nearest = Math.round(units);
  const whole = Math.abs(units - nearest) < NOISE ? nearest : side < 0 ? Math.floor(units) : Math.ceil(units);
  return (whole / 10 ** digits).toFixed(digits);
}

/**
 * A bound from below: cut off, never rounded up.
 * @param {number | null | undefined} value
 * @param {number} digits
 */
export const down = (value, digits) => outward(value, digits, -1);

/**
 * A bound from above: never rounded down.
 * @param {number | null | undefined} value
 * @param {number} digits
 */
export const up = (value, digits) => outward(value, digits, 1);

/**
 * A share that is promised from below, in percent.
 * @param {number | null | undefined} share
 */
export const atLeast = (share, digits = 2) =>
  share === null || share === undefined ? NOTHING : `${down(100 * share, digits)}%`;

/**
 * A share that is promised from above, in percent.
 * @param {number | null | undefined} share
 */
export const atMost = (share, digits = 2) =>
  share === null || share === undefined ? NOTHING : `${up(100 * share, digits)}%`;

/**
 * From one share to another, rounded outward: an interval never gets shorter.
 * @param {number | null | undefined} low
 * @param {number | null | undefined} high
 */
export const between = (low, high) => `${atLeast(low)} to ${atMost(high)}`;

/**
 * A target as people write it: 0.97 is 97%, 0.975 is 97.5%.
 * @param {number} share
 */
export const plainPercent = (share) => `${Number((100 * share).toFixed(6))}%`;

/**
 * 12345 as 12,345.
 * @param {number | null | undefined} n
 */
export const count = (n) => (n === null || n === undefined ? NOTHING : String(n).replace(/\B(?=(\d{3})+$)/g, ","));

/**
 * Six significant digits as Python's "g" writes them: no trailing zeros, a small exponent with two digits.
 * @param {number | string | null} value
 */
export function general(value, digits = 6) {
  if (typeof value !== "number") return value === "inf" ? "∞" : NOTHING;
  if (value === 0) return "0";
  const [mantissa, power] = value.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  if (exponent >= -4 && exponent < digits) return String(Number(fixed(value, digits - 1 - exponent)));
  const shown = String(Math.abs(exponent)).padStart(2, "0");
  return `${Number(mantissa)}e${exponent < 0 ? "-" : "+"}${shown}`;
}

/**
 * A cost: whole numbers from 100 on, four digits below.
 * @param {number} value
 */
export const money = (value) => (value >= 100 ? count(Number(fixed(value, 0))) : general(value, 4));

/**
 * A text with a capital as its first letter.
 * @param {string} text
 */
export const capitalized = (text) => text.charAt(0).toUpperCase() + text.slice(1);
