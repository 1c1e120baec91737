// Elements and text. Every word from the data goes through textContent, never through markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: `make("p", {class: "fine", onclick: act}, "text", child)`; null and false are left out. */
function make(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same for SVG. */
function draw(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

const find = (id) => document.getElementById(id);

/** Replace what an element holds. */
function put(id, ...children) {
  const host = typeof id === "string" ? find(id) : id;
  host.replaceChildren();
  return filled(host, {}, children);
}

/** Radio buttons in a row; `act` is called with the chosen value. */
function switcher(name, legend, options, chosen, act) {
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

/** A list of terms; each entry is [term, value, value …]. */
function facts(entries, className = "facts-list") {
  return make(
    "dl",
    { class: className },
    entries
      .filter((entry) => entry.length > 1)
      .map(([term, ...values]) => [make("dt", {}, term), values.map((value) => make("dd", {}, value))]),
  );
}

/** Say something to screen readers without moving the focus. */
function announce(text) {
  find("said").textContent = text;
}
