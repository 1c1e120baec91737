// The `metacal fit` command that certifies the chosen point, and how to copy it.
/** @import { Curves, Data, OperatingPoint, Source } from "./types.js" */
import { announce, make, unbroken } from "./dom.js";
import { count, plainPercent } from "./format.js";
import { limitOn, nameOf } from "./promise.js";

const GATE_NOTE =
  "The numbers above are those of the gate itself. The command certifies one threshold for all rows.";
const FEW_ROWS_NOTE = "Too few rows say something about this point: accept more, or use more rows.";

/**
 * The command that turns the chosen point into a promise.
 * @param {HTMLElement} host
 * @param {Data} data
 * @param {OperatingPoint} point
 */
export function certify(host, { curves, source }, point) {
  if (curves.command === null) return; // no file to fit on
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
    const nothing = point.isGate ? "move the point to choose a threshold" : "nothing can be promised here";
    code.replaceChildren(...unbroken(text ?? nothing));
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
  return (
    `It certifies the threshold ${limitOn(source, curves.threshold[k])[0]} on ${nameOf(source.score)}, this one and no other, on ${rows}: ` +
    `${promises.join(", and ")}. Because the band holds everywhere at once, the promise is valid although you picked ` +
    "the point from these rows. They are then used up: whoever measures the new gate on them again measures what it was " +
    "chosen by. Keep other rows for that."
  );
}

/**
 * The same text as Python's Curves.command_at.
 * @param {Curves} curves
 * @param {number} k
 */
function commandAt(curves, k) {
  const beta = curves.min_accuracy[k];
  const alpha = curves.max_miscoverage[k];
  if (beta === null && alpha === null) return null;
  return (
    curves.command +
    (beta === null ? "" : ` --min-accuracy ${beta}`) +
    (alpha === null ? "" : ` --max-miscoverage ${alpha}`) +
    ` --at-threshold=${curves.threshold_text[k]}` +
    curves.command_end
  );
}

/**
 * Copy without asking for a permission: a page opened from a file may have no clipboard.
 * @param {HTMLElement} code
 * @param {HTMLButtonElement} button
 */
function copied(code, button) {
  const sheet = make("textarea", { readonly: true, "aria-hidden": "true", tabindex: "-1", class: "skip" });
  sheet.value = code.textContent ?? "";
  document.body.append(sheet);
  sheet.select();
  const done = document.execCommand("copy");
  sheet.remove();
  button.focus();
  if (!done) getSelection()?.selectAllChildren(code);
  button.textContent = done ? "Copied" : "Press Ctrl+C";
  announce(done ? "The command was copied." : "The command is selected; press Control C to copy it.");
  setTimeout(() => {
    button.textContent = "Copy";
  }, 2000);
}
