// What certifies the chosen point, a `metacal fit` command or a promise in Python, and how to copy it.
/** @import { Curves, Data, OperatingPoint, Source } from "./types.js" */
import { copied } from "./copy.js";
import { make, unbroken } from "./dom.js";
import { count, plainPercent } from "./format.js";
import { limitOn, nameOf } from "./promise.js";

/** The text for a point that nothing certifies: what to do. */
const GATE_TEXT = "Move the point to choose one threshold for all rows.";
const GATE_NOTE =
  "The numbers above are those of the gate, which has several thresholds. This section certifies one threshold for all rows.";
const FEW_ROWS_TEXT = "Nothing can be promised at this point.";
const FEW_ROWS_NOTE = "There are too few rows for a promise here. Accept more rows, or make the report from more rows.";

/**
 * The command or the promise that certifies the chosen point.
 * @param {HTMLElement} host
 * @param {Data} data
 * @param {OperatingPoint} point
 */
export function certify(host, { curves, source }, point) {
  if (curves.command_language === null) return; // no gate with one threshold can be fitted on these rows
  const code = make("code", { id: "command" });
  const copy = make("button", { type: "button", id: "copy", onclick: () => copied(code, copy) }, "Copy");
  const note = make("p", { class: "fine", id: "command-note" });
  host.append(
    make(
      "div",
      { class: "certify" },
      make("h3", {}, "Certify this point"),
      make("div", { class: "command" }, code, copy),
      note,
    ),
  );
  point.listen(() => {
    const text = point.isGate ? null : commandAt(curves, point.at);
    code.replaceChildren(...unbroken(text ?? (point.isGate ? GATE_TEXT : FEW_ROWS_TEXT)));
    copy.disabled = text === null;
    note.textContent = point.isGate ? GATE_NOTE : text === null ? FEW_ROWS_NOTE : certifyNote(curves, source, point.at);
  });
}

/**
 * @param {Curves} curves
 * @param {Source} source
 * @param {number} k
 */
function certifyNote(curves, source, k) {
  const promises = [];
  const [beta, alpha] = [curves.min_accuracy[k], curves.max_miscoverage[k]];
  if (beta !== null) promises.push(`accepted predictions are correct at least ${plainPercent(beta)} of the time`);
  if (alpha !== null) promises.push(`at most ${plainPercent(alpha)} of the correct predictions are rejected`);
  const rows = `the ${count(source.n_rows)} rows of ${source.file ?? "this page"}`;
  const [threshold] = limitOn(source, curves.threshold[k]);
  const how =
    curves.command_language === "python"
      ? `Fit a gate with this promise on ${rows}. It certifies the threshold ${threshold} on ${nameOf(source.score)}: `
      : `The command certifies the threshold ${threshold} on ${nameOf(source.score)}, from ${rows}: `;
  return (
    `${how}${promises.join(", and ")}. The promise is valid although you chose the point after looking at these rows, ` +
    "because the bands hold at every threshold at once. Measure the new gate on other rows: these rows are used up."
  );
}

/**
 * The same text as Python's OperatingCurves.command_at.
 * @param {Curves} curves
 * @param {number} k
 */
function commandAt(curves, k) {
  const beta = curves.min_accuracy[k];
  const alpha = curves.max_miscoverage[k];
  if (beta === null && alpha === null) return null;
  const threshold = curves.threshold_text[k];
  if (curves.command_language === "python") {
    const limits = [beta === null ? [] : [`beta=${beta}`], alpha === null ? [] : [`alpha=${alpha}`]].flat();
    return `mc.AfterLooking(${[...limits, `threshold=${threshold}`].join(", ")})`;
  }
  return (
    curves.command +
    (beta === null ? "" : ` --min-accuracy ${beta}`) +
    (alpha === null ? "" : ` --max-miscoverage ${alpha}`) +
    ` --at-threshold=${threshold}` +
    curves.command_end
  );
}
