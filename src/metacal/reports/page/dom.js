// Elements and text. Every word from the data goes through textContent, never through markup.
/** @import { Child } from "./types.js" */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element: `make("p", {class: "fine", onclick: act}, "text", child)`; null and false are left out.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, unknown>} properties
 * @param {Child[]} children
 */
export function make(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/**
 * The same for SVG.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, unknown>} properties
 * @param {Child[]} children
 */
export function draw(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

/**
 * @template {Element} T
 * @param {T} element
 * @param {Record<string, unknown>} properties
 * @param {Child[]} children
 */
function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of /** @type {any[]} */ (children).flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/**
 * Set some attributes.
 * @param {Element} element
 * @param {Record<string, string | number>} attributes
 */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
}

/**
 * An element of the template; each is there.
 * @param {string} id
 * @returns {HTMLElement}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no element ${id}`);
  return found;
}

/**
 * Replace what an element of the template holds.
 * @param {string} id
 * @param {Child[]} children
 */
export function put(id, ...children) {
  const host = byId(id);
  host.replaceChildren();
  return filled(host, {}, children);
}

/**
 * Radio buttons in a row; `act` is called with the chosen value.
 * @template {string} T
 * @param {string} name
 * @param {string} legend
 * @param {[T, string][]} options
 * @param {T} chosen
 * @param {(value: T) => void} act
 */
export function switcher(name, legend, options, chosen, act) {
  const labels = options.map(([value, text]) =>
    make(
      "label",
      {},
      make("input", { type: "radio", name, value, checked: value === chosen, onchange: () => act(value) }),
      make("span", {}, text),
    ),
  );
  return make("fieldset", { class: "switch no-print" }, make("legend", {}, legend), labels);
}

/**
 * A list of terms; each entry is [term, value, value …], and one without values is left out.
 * @param {string[][]} entries
 */
export function facts(entries) {
  return make(
    "dl",
    { class: "facts-list" },
    entries
      .filter((entry) => entry.length > 1)
      .map(([term, ...values]) => [make("dt", {}, term), values.map((value) => make("dd", {}, value))]),
  );
}

/**
 * A command as elements: a line ends between its words, and within one only where it is longer than a line.
 * @param {string} text
 */
export const unbroken = (text) => text.split(" ").flatMap((word, k) => [k ? " " : "", make("span", {}, word)]);

/**
 * Say something to screen readers without moving the focus.
 * @param {string} text
 */
export function announce(text) {
  byId("said").textContent = text;
}
