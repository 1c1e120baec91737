// Tables with a caption, scope on every heading, a region that scrolls by keyboard; headings that sort.

/** A table in a region of its own; a column is {head, cell(row), name?: row heading, number?: right aligned}. */
function table(caption, columns, rows, heads = columns.map((column) => heading(column))) {
  const body = make("tbody");
  const fill = (shown) =>
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

const classOf = (column) => (column.number ? "number" : column.name || column.words ? "name" : null);

function heading(column, ...children) {
  return make("th", { scope: "col", class: column.number ? "number" : null }, children.length ? children : column.head);
}

const FIRST = 15;

/** The same with headings that sort: a column also has key. Long tables begin folded. */
function sortable(caption, columns, rows, order) {
  let limit = rows.length > FIRST + 3 ? FIRST : rows.length;
  const heads = columns.map((column) =>
    heading(
      column,
      make(
        "button",
        {
          type: "button",
          onclick: () => {
            const again = order.key === column.key;
            order = { key: column.key, descending: again ? !order.descending : column.number === true };
            show();
            announce(`Sorted by ${column.head}, ${order.descending ? "highest" : "lowest"} first.`);
          },
        },
        column.head,
      ),
    ),
  );
  const more = make(
    "button",
    {
      type: "button",
      class: "gap no-print",
      onclick: () => {
        limit = rows.length;
        show();
      },
    },
    `Show all ${count(rows.length)}`,
  );
  const made = table(caption, columns, [], heads);
  const show = () => {
    made.fill(sorted(rows, order).slice(0, limit));
    heads.forEach((head, k) => {
      if (columns[k].key !== order.key) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
    });
    more.hidden = limit >= rows.length;
  };
  show();
  return make("div", {}, made.node, more);
}

/** Rows by a key; equal ones stay in their order, missing values come last either way. */
function sorted(rows, { key, descending }) {
  const sign = descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [a[key], b[key]];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
  });
}

/** The numbers of a chart, folded away. */
function numbers(figure, caption, heads, rows) {
  const columns = heads.map((head, k) => ({ head, number: true, cell: (row) => row[k] }));
  figure.append(
    make(
      "details",
      { class: "numbers gap" },
      make("summary", {}, "Show the numbers"),
      table(caption, columns, rows).node,
    ),
  );
}
