// A figure that holds axes and curves in SVG, drawn at the size of its host and drawn anew when that changes.
/** @import { AxesSpec, Chart, ChartSpec, Frame, Size } from "./types.js" */
import { draw, make } from "./dom.js";
import { scale, ticks } from "./geometry.js";

/** @type {Chart[]} */
const drawn = [];

/**
 * As many decimals as the ticks need, in percent.
 * @param {number[]} values
 */
function percentTicks(values) {
  const step = values.length > 1 ? 100 * (values[1] - values[0]) : 1;
  const digits = [0, 1, 2, 3].find((d) => Math.abs(step - Number(step.toFixed(d))) < 1e-9) ?? 4;
  return (/** @type {number} */ value) => `${(100 * value).toFixed(digits)}%`;
}

/** @param {number} value */
const plainTick = (value) => String(Number(value.toPrecision(6)));

/**
 * A chart in a figure: heading, a line of explanation, the SVG, what the dashes in it mean.
 * @param {HTMLElement} host
 * @param {ChartSpec} spec
 * @returns {Chart}
 */
export function chart(host, spec) {
  const id = `chart-${drawn.length + 1}`;
  const holder = make("div", { class: "chart" });
  const figure = make(
    "figure",
    {},
    spec.heading && make("h3", {}, spec.heading),
    typeof spec.note === "string" ? make("p", { class: "fine" }, spec.note) : spec.note,
    holder,
    spec.key?.map((text) => make("p", { class: "fine key" }, text)),
  );
  host.append(figure);
  const describe = spec.description;
  const render = () => {
    const width = Math.max(240, Math.round(holder.clientWidth || 480));
    const height = Math.round(spec.height(width));
    const svg = draw(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        width,
        height,
        role: "img",
        "aria-labelledby": `${id}-title ${id}-desc`,
        class: spec.drag ? "drag" : null,
      },
      draw("title", { id: `${id}-title` }, spec.title ?? spec.heading),
      draw("desc", { id: `${id}-desc` }, typeof describe === "function" ? describe() : describe),
    );
    holder.replaceChildren(svg); // before it is filled: labels are measured while they are placed
    spec.paint(svg, { width, height, id });
    holder.dataset.width = String(holder.clientWidth);
  };
  const made = { figure, holder, render };
  drawn.push(made);
  return made;
}

/** Draw every chart for the first time, and again whenever its width changes. */
export function drawAll() {
  const watch = new ResizeObserver(() => {
    for (const { holder, render } of drawn) if (String(holder.clientWidth) !== holder.dataset.width) render();
  });
  for (const { holder, render } of drawn) {
    render();
    watch.observe(holder);
  }
}

/**
 * Frame, grid, ticks and titles of both axes; returns the two scales and the group to draw into, cut at the frame.
 * @param {SVGSVGElement} svg
 * @param {Size} size
 * @param {AxesSpec} spec
 * @returns {Frame}
 */
export function axes(svg, { width, height, id }, { x, y, margin = {}, clip = true }) {
  const m = { top: 12, right: 12, bottom: 44, left: 52, ...margin };
  const right = width - m.right;
  const bottom = height - m.bottom;
  const sx = scale(x.domain, [m.left, right]);
  const sy = scale(y.domain, [bottom, m.top]);
  const tx = x.ticks ?? ticks(...x.domain, width < 380 ? 4 : 5);
  const ty = y.ticks ?? ticks(...y.domain, height < 200 ? 3 : 5);
  const fx = x.label ?? (x.plain ? plainTick : percentTicks(tx));
  const fy = y.label ?? (y.plain ? plainTick : percentTicks(ty));
  const parts = draw("g", { "aria-hidden": "true" });
  for (const value of ty) {
    parts.append(
      draw("line", { class: "grid", x1: m.left, x2: right, y1: sy(value), y2: sy(value) }),
      draw("text", { x: m.left - 8, y: sy(value) + 4, "text-anchor": "end" }, fy(value)),
    );
  }
  for (const value of tx) {
    parts.append(
      draw("line", { class: "axis", x1: sx(value), x2: sx(value), y1: bottom, y2: bottom + 4 }),
      draw("text", { x: sx(value), y: bottom + 18, "text-anchor": "middle" }, fx(value)),
    );
  }
  parts.append(draw("line", { class: "axis", x1: m.left, x2: right, y1: bottom, y2: bottom }));
  if (x.title) {
    parts.append(draw("text", { x: (m.left + right) / 2, y: bottom + 38, "text-anchor": "middle" }, x.title));
  }
  const inside = draw("g", clip ? { "clip-path": `url(#${id}-clip)` } : {});
  const window = { x: m.left, y: m.top - 4, width: right - m.left, height: bottom - m.top + 5 };
  svg.append(draw("defs", {}, draw("clipPath", { id: `${id}-clip` }, draw("rect", window))), parts, inside);
  return { sx, sy, inside, left: m.left, right, top: m.top, bottom };
}
