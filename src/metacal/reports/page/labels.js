// Where a label may stand: beside what it names, inside the plot, and on no line.
/** @import { Box, Point } from "./types.js" */
import { set } from "./dom.js";
import { free } from "./geometry.js";

/** Room around the letters that stays free. */
const AIR = 2;

/**
 * Put a label, which must be in the page already, at the first place that is inside the bounds and free of lines.
 * Returns the index of that place, or -1 where none is free; the label then stands at the first that is inside.
 * @param {SVGTextElement} label
 * @param {{ x: number, y: number, anchor: "start" | "end" }[]} places
 * @param {(Point | null)[][]} lines
 * @param {Box} bounds
 */
export function settle(label, places, lines, bounds) {
  set(label, { x: 0, y: 0, "text-anchor": "start" });
  const { y: rise, width, height } = label.getBBox();
  const boxes = places.map(({ x, y, anchor }) => {
    const left = anchor === "end" ? x - width : x;
    return { left: left - AIR, right: left + width + AIR, top: y + rise - AIR, bottom: y + rise + height + AIR };
  });
  const inside = boxes.map(
    (box) =>
      box.left >= bounds.left && box.right <= bounds.right && box.top >= bounds.top && box.bottom <= bounds.bottom,
  );
  const found = boxes.findIndex((box, k) => inside[k] && lines.every((line) => free(box, line)));
  const { x, y, anchor } = places[found >= 0 ? found : Math.max(0, inside.indexOf(true))];
  set(label, { x, y, "text-anchor": anchor });
  return found;
}
