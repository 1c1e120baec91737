// What to do next: a list of steps, some with a command.
/** @import { NextStep } from "./types.js" */
import { commandBox } from "./copy.js";
import { make } from "./dom.js";

/** @param {NextStep[]} steps */
export function stepList(steps) {
  if (!steps.length) return null;
  const content = steps.map(({ text, command }) => [make("p", {}, text), command !== null && commandBox(command)]);
  if (content.length === 1) return make("div", { class: "steps" }, content);
  return make("ol", { class: "steps" }, content.map((step) => make("li", {}, step)));
}
