// What a page says first: one word with its mark, and a few numbers that matter.
/** @import { Child } from "./types.js" */
import { draw, make } from "./dom.js";

const ICONS = {
  kept: "M4.5 10.5l3.5 3.5 7.5-8.5",
  undecided: "M10 4.5v7M10 15v.5",
  refuted: "M5 5l10 10M15 5L5 15",
  open: "M6 10h8",
};

/**
 * @param {keyof typeof ICONS} verdict
 * @param {string} words
 */
export function badge(verdict, words) {
  const icon = draw(
    "svg",
    { viewBox: "0 0 20 20", "aria-hidden": "true", focusable: "false" },
    draw("path", {
      d: ICONS[verdict],
      fill: "none",
      stroke: "currentColor",
      "stroke-width": 2.25,
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
    }),
  );
  return make("p", { class: `verdict ${verdict}` }, icon, words);
}

/**
 * Each number under its term, with a line below where there is one.
 * @param {[string, string, Child][]} entries
 */
export function tiles(entries) {
  return make(
    "dl",
    { class: "tiles" },
    entries.map(([term, value, note]) =>
      make("div", { class: "tile" }, make("dt", {}, term), make("dd", {}, value), note && make("dd", {}, note)),
    ),
  );
}
