// Numbers on a plane: round ticks, scales, paths, and where a label is free of lines.
/** @import { Box, Maybe, Point, Scale } from "./types.js" */

/**
 * Some five round numbers that span [low, high].
 * @param {number} low
 * @param {number} high
 */
export function ticks(low, high, about = 5) {
  const span = high - low;
  const power = 10 ** Math.floor(Math.log10(span / about));
  const step = [1, 2, 2.5, 5, 10].map((s) => s * power).find((s) => span / s <= about + 0.5) ?? 10 * power;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) found.push(k * step);
  return found;
}

/**
 * From data to pixels.
 * @param {[number, number]} domain
 * @param {[number, number]} range
 * @returns {Scale}
 */
export function scale([low, high], [from, to]) {
  return Object.assign(
    (/** @type {number} */ value) => from + ((value - low) / (high - low)) * (to - from),
    { back: (/** @type {number} */ pixel) => low + ((pixel - from) / (to - from)) * (high - low) },
  );
}

/**
 * A polyline's path; points that are null break it.
 * @param {(Point | null)[]} points
 */
export function path(points) {
  let pen = "M";
  return points
    .map((point) => {
      if (point === null) {
        pen = "M";
        return "";
      }
      const text = `${pen}${point[0].toFixed(2)},${point[1].toFixed(2)}`;
      pen = "L";
      return text;
    })
    .join("");
}

/**
 * The area between two lines over the same x.
 * @param {number[]} xs
 * @param {Maybe[]} lows
 * @param {Maybe[]} highs
 */
export function area(xs, lows, highs) {
  /** @type {Point[]} */
  const up = [];
  /** @type {Point[]} */
  const down = [];
  xs.forEach((x, k) => {
    const [low, high] = [lows[k], highs[k]];
    if (low === null || high === null) return;
    up.push([x, high]);
    down.unshift([x, low]);
  });
  return up.length ? `${path([...up, ...down])}Z` : "";
}

/**
 * Index of the value nearest to x in a rising list.
 * @param {number[]} values
 * @param {number} x
 */
export function nearest(values, x) {
  let low = 0;
  let high = values.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - values[low - 1] < values[low] - x ? low - 1 : low;
}

/**
 * Whether a box is free of a polyline: no piece of it enters the box.
 * @param {Box} box
 * @param {(Point | null)[]} line
 */
export function free(box, line) {
  return line.every((to, k) => {
    const from = line[k - 1] ?? to;
    return to === null || from === null || !enters(box, from, to);
  });
}

/**
 * Whether the way from one point to another has a part inside a box (Liang and Barsky's clipping).
 * @param {Box} box
 * @param {Point} from
 * @param {Point} to
 */
function enters({ left, right, top, bottom }, [x, y], [x2, y2]) {
  let [start, end] = [0, 1];
  for (const [by, room] of [
    [x - x2, x - left],
    [x2 - x, right - x],
    [y - y2, y - top],
    [y2 - y, bottom - y],
  ]) {
    if (by === 0 && room < 0) return false;
    if (by < 0) start = Math.max(start, room / by);
    if (by > 0) end = Math.min(end, room / by);
  }
  return start <= end;
}
