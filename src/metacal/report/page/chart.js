// Axes, lines and bands in SVG, drawn at the size of their host and drawn anew when that changes.

let charts = 0;
const drawn = [];

/** Some five round numbers that span [low, high]. */
function ticks(low, high, about = 5) {
  const span = high - low;
  const power = 10 ** Math.floor(Math.log10(span / about));
  const step = [1, 2, 2.5, 5, 10].map((s) => s * power).find((s) => span / s <= about + 0.5);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) found.push(k * step);
  return found;
}

/** As many decimals as the ticks need, in percent. */
function percentTicks(values) {
  const step = values.length > 1 ? 100 * (values[1] - values[0]) : 1;
  const digits = [0, 1, 2, 3].find((d) => Math.abs(step - Number(step.toFixed(d))) < 1e-9) ?? 4;
  return (value) => `${(100 * value).toFixed(digits)}%`;
}

/** From data to pixels. */
function scale([low, high], [from, to]) {
  const place = (value) => from + ((value - low) / (high - low)) * (to - from);
  place.back = (pixel) => low + ((pixel - from) / (to - from)) * (high - low);
  return place;
}

/** A polyline's path; points that are null break it. */
function path(points) {
  let pen = "M";
  return points
    .map((point) => {
      if (point === null) {
        pen = "M";
        return "";
      }
      const text = `${pen}${point[0].toFixed(2)},${point[1].toFixed(2)}`;
      pen = "L";
      return text;
    })
    .join("");
}

/** The area between two lines over the same x. */
function area(xs, lows, highs) {
  const kept = xs.map((_, k) => k).filter((k) => lows[k] !== null && highs[k] !== null);
  if (!kept.length) return "";
  const up = kept.map((k) => [xs[k], highs[k]]);
  const down = kept.map((k) => [xs[k], lows[k]]).reverse();
  return `${path([...up, ...down])}Z`;
}

/**
 * A chart in a figure: heading, a line of explanation, the SVG.
 * `spec` has heading, note, description, height(width), margin, and paint(svg, size), which draws all.
 */
function chart(host, spec) {
  const id = `chart-${(charts += 1)}`;
  const holder = make("div", { class: "chart" });
  const figure = make(
    "figure",
    {},
    spec.heading && make("h3", {}, spec.heading),
    spec.below ?? (spec.note && make("p", { class: "fine" }, spec.note)),
    holder,
  );
  host.append(figure);
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
      draw(
        "desc",
        { id: `${id}-desc` },
        typeof spec.description === "function" ? spec.description() : spec.description,
      ),
    );
    spec.paint(svg, { width, height, id });
    holder.replaceChildren(svg);
    holder.dataset.width = holder.clientWidth;
  };
  drawn.push({ holder, render });
  return { figure, holder, render };
}

/** Draw every chart for the first time, and again whenever its width changes. */
function drawAll() {
  const watch = new ResizeObserver(() => {
    for (const { holder, render } of drawn) if (String(holder.clientWidth) !== holder.dataset.width) render();
  });
  for (const { holder, render } of drawn) {
    render();
    watch.observe(holder);
  }
}

/** Frame, grid, ticks and titles of both axes; returns the two scales and the group to draw into, cut at the frame. */
function axes(svg, { width, height, id }, { x, y, margin = {}, clip = true }) {
  const m = { top: 12, right: 12, bottom: 44, left: 52, ...margin };
  const sx = scale(x.domain, [m.left, width - m.right]);
  const sy = scale(y.domain, [height - m.bottom, m.top]);
  const tx = x.ticks ?? ticks(...x.domain, width < 380 ? 4 : 5);
  const ty = y.ticks ?? ticks(...y.domain, height < 200 ? 3 : 5);
  const fx = x.format ?? percentTicks(tx);
  const fy = y.format ?? percentTicks(ty);
  const right = width - m.right;
  const bottom = height - m.bottom;
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
  svg.append(
    draw(
      "defs",
      {},
      draw(
        "clipPath",
        { id: `${id}-clip` },
        draw("rect", { x: m.left, y: m.top - 4, width: right - m.left, height: bottom - m.top + 5 }),
      ),
    ),
    parts,
    inside,
  );
  return { sx, sy, inside, left: m.left, right, top: m.top, bottom };
}
