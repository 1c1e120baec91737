// The operating point: two linked curves, a slider that does the same, the live numbers and the command.

/** Where the point is, who draws it, and how to move it. */
function operatingPoint(curves) {
  const last = curves.threshold.length - 1;
  const listeners = [];
  const state = {
    at: curves.current ?? nearest(curves.coverage.estimate, 0.9),
    last,
    listen: (listener) => listeners.push(listener),
    move(at) {
      state.at = Math.max(0, Math.min(last, at));
      for (const listener of listeners) listener();
    },
  };
  return state;
}

function operating(data) {
  const { curves, promise } = data;
  const state = operatingPoint(curves);
  put(
    "point-lead",
    "Drag the point in a chart, or use the slider. The shaded bands hold at every threshold at once, with ",
    `${plainPercent(1 - curves.delta)} confidence: they stay true for a point chosen after looking.`,
  );
  const slider = dial(data, state);
  const target = (quantity) => promise?.verdicts.find((verdict) => verdict.quantity === quantity)?.target ?? null;
  const accuracy = target("coverage accuracy");
  const flipped = (values) => values.map((value) => (value === null ? null : 1 - value));
  draggable(curves, state, slider, {
    heading: "Errors among the accepted",
    note: "Risk against coverage; lower is better",
    values: flipped(curves.accuracy.estimate),
    low: flipped(curves.accuracy.high),
    high: flipped(curves.accuracy.low),
    target: accuracy === null ? null : 1 - accuracy,
  });
  draggable(curves, state, slider, {
    heading: "Right answers turned away",
    note: "Miscoverage against coverage; lower is better",
    values: curves.miscoverage.estimate,
    low: curves.miscoverage.low,
    high: curves.miscoverage.high,
    target: target("miscoverage"),
  });
  state.move(state.at);
}

/** How high the axis reaches: the curve and its band, but not the wide band over the first few rows. */
function ceiling(xs, { values, high, target }) {
  const seen = values.map((value, k) =>
    xs[k] < 0.08 || value === null ? 0 : Math.max(value, Math.min(high[k] ?? 1, 2 * value + 0.02)),
  );
  const top = 1.08 * Math.max(...seen, 1.3 * (target ?? 0), 0.01);
  return top > 0.9 ? 1 : top;
}

function draggable(curves, state, slider, spec) {
  const xs = curves.coverage.estimate;
  const top = ceiling(xs, spec);
  const description = () =>
    `${spec.heading} against coverage, with a simultaneous band. At the chosen point, coverage ${percent(
      xs[state.at],
    )}: ${percent(spec.values[state.at])}. The slider below moves the point.`;
  let place = null;
  const made = chart(find("curves"), {
    heading: spec.heading,
    note: spec.note,
    drag: true,
    description,
    height: (width) => Math.min(320, Math.max(230, width * 0.58)),
    paint(svg, size) {
      const frame = axes(svg, size, {
        x: { domain: [0, 1], title: "Coverage: share of rows accepted" },
        y: { domain: [0, top] },
      });
      const { sx, sy, inside } = frame;
      const at = (values) => values.map((value) => (value === null ? null : sy(value)));
      inside.append(
        draw("path", { class: "band after", d: area(xs.map(sx), at(spec.low), at(spec.high)) }),
        draw("path", {
          class: "line after",
          d: path(at(spec.values).map((y, k) => (y === null ? null : [sx(xs[k]), y]))),
        }),
      );
      if (spec.target !== null) limitLine(svg, frame, spec.target);
      place = pointer(svg, frame, spec.values, xs);
      place(state.at);
      follow(svg, sx, xs, state, slider);
    },
  });
  state.listen(() => {
    if (place === null) return;
    place(state.at);
    made.holder.querySelector("desc").textContent = description();
  });
}

function limitLine(svg, { sy, left, right }, value) {
  svg.append(
    draw("line", { class: "target", x1: left, x2: right, y1: sy(value), y2: sy(value) }),
    draw("text", { class: "target-text", x: left + 6, y: sy(value) - 6 }, `promised: at most ${plainPercent(value)}`),
  );
}

/** The vertical line, the handle on the curve and the number beside it; returns what moves them. */
function pointer(svg, { sx, sy, left, right, top, bottom }, values, xs) {
  const line = draw("line", { class: "cursor", y1: top, y2: bottom });
  const handle = draw(
    "g",
    { class: "grip" },
    draw("circle", { class: "handle", r: 9 }),
    draw("path", { class: "grip-mark", d: "M-2.5,-3.5V3.5M2.5,-3.5V3.5" }),
  );
  const label = draw("text", { class: "strong" });
  svg.append(draw("g", { "aria-hidden": "true" }, line, handle, label));
  return (at) => {
    const x = sx(xs[at]);
    const y = Math.max(top, sy(values[at] ?? 0));
    // Beside the curve, on the side that it leaves free.
    const falling = (values[0] ?? 0) > (values.at(-1) ?? 0);
    const before = falling ? x > right - 64 : x > left + 64;
    for (const end of ["x1", "x2"]) line.setAttribute(end, x);
    handle.setAttribute("transform", `translate(${x},${y})`);
    label.setAttribute("text-anchor", before ? "end" : "start");
    label.setAttribute("x", before ? x - 15 : x + 15);
    label.setAttribute("y", Math.max(top + 14, y - (before && falling ? 36 : 12)));
    label.textContent = percent(values[at]);
  };
}

/** Pointer events on the whole plot: press anywhere, drag, let go; then the arrow keys take over. */
function follow(svg, sx, xs, state, slider) {
  const go = (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    state.move(nearest(xs, sx.back(x)));
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    svg.setPointerCapture(event.pointerId);
    go(event);
    slider.focus({ preventScroll: true });
  });
  svg.addEventListener("pointermove", (event) => {
    if (svg.hasPointerCapture(event.pointerId)) go(event);
  });
}

/** Index of the value nearest to x in a rising list. */
function nearest(values, x) {
  let low = 0;
  let high = values.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - values[low - 1] < values[low] - x ? low - 1 : low;
}

const READOUTS = [
  ["threshold", "Threshold"],
  ["coverage", "Coverage"],
  ["accuracy", "Accuracy of accepted"],
  ["miscoverage", "Miscoverage"],
  ["review", "For review per 1,000"],
];

/** The slider and the numbers at the point. */
function dial({ curves, source }, state) {
  const slider = make("input", {
    type: "range",
    id: "operating",
    min: 0,
    max: state.last,
    step: 1,
    value: state.at,
    oninput: () => state.move(Number(slider.value)),
  });
  const back =
    curves.current === null
      ? null
      : make(
          "button",
          {
            type: "button",
            id: "reset",
            class: "quiet no-print",
            onclick: () => {
              state.move(curves.current);
              slider.focus();
            },
          },
          "Back to the gate's own threshold",
        );
  const cells = Object.fromEntries(
    READOUTS.map(([key]) => [key, [make("dd", { id: `point-${key}` }), make("dd", { id: `point-${key}-bound` })]]),
  );
  const host = put(
    "dial",
    make("div", { class: "dial-head" }, make("label", { for: "operating" }, "Operating point"), back),
    slider,
    make(
      "div",
      { class: "ends", "aria-hidden": "true" },
      make("span", {}, "accept less"),
      make("span", {}, "accept more"),
    ),
    make(
      "dl",
      { class: "readouts" },
      READOUTS.map(([key, term]) => make("div", {}, make("dt", {}, term), cells[key])),
    ),
  );
  state.listen(() => {
    const shown = readoutsAt(curves, source.score, state.at);
    for (const [key, texts] of Object.entries(shown))
      texts.forEach((text, k) => {
        cells[key][k].textContent = text;
      });
    slider.value = state.at;
    slider.setAttribute(
      "aria-valuetext",
      `coverage ${shown.coverage[0]}, accuracy of accepted ${shown.accuracy[0]}, miscoverage ${shown.miscoverage[0]}`,
    );
  });
  certify(host, curves, state);
  return slider;
}

/** Each number at a point, and its bound from the simultaneous band. */
function readoutsAt(curves, score, k) {
  const { coverage, accuracy, miscoverage, review } = curves;
  return {
    threshold: [general(curves.threshold[k]), `accept if ${score} ≤ this`],
    coverage: [percent(coverage.estimate[k]), `${percent(coverage.low[k])} to ${percent(coverage.high[k])}`],
    accuracy: [percent(accuracy.estimate[k]), `at least ${percent(accuracy.low[k])}`],
    miscoverage: [percent(miscoverage.estimate[k]), `at most ${percent(miscoverage.high[k])}`],
    review: [fixed(review.estimate[k], 1), `at most ${fixed(review.high[k], 1)}`],
  };
}
