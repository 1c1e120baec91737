// Tables with a caption, scope on every heading, a region that scrolls by keyboard; headings that sort.
/** @import { Child, Column, Order } from "./types.js" */
import { announce, make } from "./dom.js";
import { count } from "./format.js";

/**
 * A table in a region of its own.
 * @template T
 * @param {string} caption
 * @param {Column<T>[]} columns
 * @param {T[]} rows
 * @param {HTMLElement[]} heads
 */
export function table(caption, columns, rows, heads = columns.map((column) => heading(column, column.head))) {
  const body = make("tbody");
  const fill = (/** @type {T[]} */ shown) =>
    body.replaceChildren(
      ...shown.map((row) =>
        make(
          "tr",
          {},
          columns.map((column) =>
            make(
              column.name ? "th" : "td",
              { scope: column.name ? "row" : null, class: classOf(column) },
              column.cell(row),
            ),
          ),
        ),
      ),
    );
  fill(rows);
  const node = make(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, heads)), body),
  );
  return { node, fill };
}

/**
 * @template T
 * @param {Column<T>} column
 */
const classOf = (column) => (column.number ? "number" : column.name || column.words ? "name" : null);

/**
 * @template T
 * @param {Column<T>} column
 * @param {Child} content
 */
function heading(column, content) {
  return make("th", { scope: "col", class: column.number ? "number" : null }, content);
}

/** A table of more rows than these and three begins folded; paper has room for all. */
const FIRST = 15;

/**
 * The same with headings that sort: each column has a key.
 * @template T
 * @param {string} caption
 * @param {Column<T>[]} columns
 * @param {T[]} rows
 * @param {Order<T>} order
 */
export function sortable(caption, columns, rows, order) {
  const heads = columns.map((column) =>
    heading(column, make("button", { type: "button", onclick: () => sortBy(column) }, column.head)),
  );
  const { node, fill } = table(caption, columns, [], heads);
  const more = make("button", { type: "button", class: "gap no-print" }, `Show all ${count(rows.length)}`);
  const folded = rows.length > FIRST + 3;
  node.classList.toggle("folded", folded);
  more.hidden = !folded;
  more.addEventListener("click", () => {
    node.classList.remove("folded");
    more.hidden = true;
    node.focus();
  });
  const show = () => {
    fill(sorted(rows, order));
    heads.forEach((head, k) => {
      if (columns[k].key !== order.key) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
    });
  };
  const sortBy = (/** @type {Column<T>} */ column) => {
    if (!column.key) return;
    const again = order.key === column.key;
    order = { key: column.key, descending: again ? !order.descending : column.number === true };
    show();
    announce(`Sorted by ${column.head}, ${order.descending ? "highest" : "lowest"} first.`);
  };
  show();
  return make("div", {}, node, more);
}

/**
 * Rows by a key; equal ones stay in their order, missing values come last either way.
 * @template T
 * @param {T[]} rows
 * @param {Order<T>} order
 */
function sorted(rows, { key, descending }) {
  const sign = descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [a[key], b[key]];
    if (x === null || y === null) return Number(x === null) - Number(y === null);
    const numeric = typeof x === "number" && typeof y === "number";
    return sign * (numeric ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
  });
}

/**
 * The numbers of a chart, folded away on the screen.
 * @param {string} caption
 * @param {string[]} heads
 * @param {string[][]} rows
 */
export function numbers(caption, heads, rows) {
  const columns = heads.map((head, k) => ({ head, number: true, cell: (/** @type {string[]} */ row) => row[k] }));
  return make(
    "details",
    { class: "numbers gap" },
    make("summary", {}, "Show the numbers"),
    table(caption, columns, rows).node,
  );
}
