// Both promises together: for each accuracy the smallest miscoverage that can be certified with it.

function frontierChart({ frontier, promise }) {
  const { beta: xs, alpha: ys, coverage } = frontier;
  put(
    "frontier-lead",
    "For each accuracy of the accepted, the smallest share of right answers turned away that these rows certify ",
    `along with it. Every pair on the line holds, all at once, with ${plainPercent(1 - frontier.delta)} confidence.`,
  );
  if (xs.length < 2) {
    put("frontier-chart", make("p", { class: "lead" }, "These rows certify no pair of promises: bring more rows."));
    return;
  }
  const wide = xs.at(-1) - xs[0];
  const made = chart(find("frontier-chart"), {
    title: "The certified frontier",
    description: `From accuracy ${percent(xs[0])} with miscoverage at most ${percent(ys[0])} to accuracy ${percent(
      xs.at(-1),
    )} with miscoverage at most ${percent(ys.at(-1))}.`,
    height: (width) => Math.min(340, Math.max(250, width * 0.34)),
    paint(svg, size) {
      const frame = axes(svg, size, {
        x: { domain: [xs[0] - 0.02 * wide, xs.at(-1) + 0.02 * wide], title: "Accuracy of the accepted, at least" },
        y: { domain: [0, Math.min(1, 1.08 * Math.max(...ys))] },
        margin: { top: 26, right: 20 },
      });
      const { sx, sy, inside, top, left } = frame;
      const steps = stairs(xs.map(sx), ys.map(sy));
      const [across, down] = [0, 1].map((axis) => steps.map((point) => point[axis]));
      inside.append(
        draw("path", {
          class: "band after",
          d: area(
            across,
            down,
            down.map(() => top - 4),
          ),
        }),
        draw("path", { class: "line after", d: path(steps) }),
      );
      svg.append(draw("text", { x: left, y: 10 }, "Miscoverage, at most"));
      if (size.width > 560) {
        svg.append(
          draw("text", { x: sx(xs.at(-1)) - 6, y: sy(0) - 12, "text-anchor": "end" }, "not certified on these rows"),
        );
      }
      ownPromises(svg, frame, promise?.verdicts ?? []);
    },
  });
  numbers(
    made.figure,
    "The certified frontier",
    ["accuracy at least", "miscoverage at most", "coverage here", "threshold"],
    xs.map((x, k) => [percent(x), percent(ys[k]), percent(coverage[k]), general(frontier.threshold[k])]),
  );
}

/** Between two certified pairs holds what the stricter one says: up first, then across. */
function stairs(xs, ys) {
  return xs.flatMap((x, k) =>
    k === 0
      ? [[x, ys[0]]]
      : [
          [xs[k - 1], ys[k]],
          [x, ys[k]],
        ],
  );
}

/** The gate's own promise as a line across. */
function ownPromises(svg, { sx, sy, top, bottom, left, right }, verdicts) {
  for (const verdict of verdicts) {
    if (verdict.quantity === "miscoverage") {
      const y = sy(verdict.target);
      if (y < top) continue;
      svg.append(
        draw("line", { class: "target", x1: left, x2: right, y1: y, y2: y }),
        draw(
          "text",
          { class: "target-text", x: right, y: y - 6, "text-anchor": "end" },
          `promised: ${limitOf(verdict)}`,
        ),
      );
    } else {
      const x = sx(verdict.target);
      if (x < left || x > right) continue;
      const late = x > (left + right) / 2;
      svg.append(
        draw("line", { class: "target", x1: x, x2: x, y1: top, y2: bottom }),
        draw(
          "text",
          { class: "target-text", x: late ? x - 8 : x + 8, y: top + 16, "text-anchor": late ? "end" : "start" },
          `promised: ${limitOf(verdict)}`,
        ),
      );
    }
  }
}
