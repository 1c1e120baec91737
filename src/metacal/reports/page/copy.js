// A command in a box with a button that copies it.
import { announce, make, unbroken } from "./dom.js";

/**
 * A box with a command that does not change.
 * @param {string} command
 */
export function commandBox(command) {
  const code = make("code", {}, unbroken(command));
  const copy = make("button", { type: "button", class: "no-print", onclick: () => copied(code, copy) }, "Copy");
  return make("div", { class: "command" }, code, copy);
}

/**
 * Copy without asking for a permission: a page opened from a file may have no clipboard.
 * @param {HTMLElement} code
 * @param {HTMLButtonElement} button
 */
export function copied(code, button) {
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
