// The slider, which is the accessible twin of the point in the charts, and the numbers at the point.
/** @import { Curves, Data, OperatingPoint } from "./types.js" */
import { certify } from "./command.js";
import { costs } from "./cost.js";
import { make, put } from "./dom.js";
import { atLeast, atMost, between, capitalized, fixed, percent, up } from "./format.js";
import { limitOn } from "./promise.js";

/**
 * @param {Data["quantity_names"]} names
 * @returns {[string, string][]}
 */
const readoutsOf = (names) => [
  ["threshold", "Threshold"],
  ["coverage", capitalized(names.coverage)],
  ["accuracy", capitalized(names.selective_accuracy)],
  ["miscoverage", capitalized(names.miscoverage)],
  ["review", "For review per 1,000"],
];

/**
 * @param {Data} data
 * @param {OperatingPoint} point
 */
export function dial({ curves, source, quantity_names: names }, point) {
  const readouts = readoutsOf(names);
  const slider = make("input", {
    type: "range",
    id: "operating",
    min: 0,
    max: point.last,
    step: 1,
    value: point.at,
    oninput: () => point.move(Number(slider.value)),
  });
  const { current } = curves;
  const back =
    current !== null &&
    make(
      "button",
      {
        type: "button",
        id: "reset",
        class: "quiet no-print",
        onclick: () => {
          point.move(current);
          slider.focus();
        },
      },
      "Back to the gate's own threshold",
    );
  const cells = Object.fromEntries(
    readouts.map(([key]) => [key, [make("dd", { id: `point-${key}` }), make("dd", { id: `point-${key}-bound` })]]),
  );
  const track = make("div", { class: "track" }, slider);
  const host = put(
    "dial",
    make("div", { class: "dial-head" }, make("label", { for: "operating" }, "Operating point"), back),
    track,
    make(
      "div",
      { class: "ends", "aria-hidden": "true" },
      make("span", {}, "accept less"),
      make("span", {}, "accept more"),
    ),
    make(
      "dl",
      { class: "readouts" },
      readouts.map(([key, term]) => make("div", {}, make("dt", {}, term), cells[key])),
    ),
  );
  point.listen(() => {
    const shown = readoutsAt(curves, source.score, point.at);
    for (const [key, texts] of Object.entries(shown))
      texts.forEach((text, k) => {
        cells[key][k].textContent = text;
      });
    slider.value = String(point.at);
    const [coverage, accuracy, miscoverage] = [shown.coverage[0], shown.accuracy[0], shown.miscoverage[0]];
    slider.setAttribute(
      "aria-valuetext",
      `${names.coverage} ${coverage}, ${names.selective_accuracy} ${accuracy}, ${names.miscoverage} ${miscoverage}`,
    );
  });
  track.append(costs(host, curves, source.score, point));
  certify(host, curves, source, point);
  return slider;
}

/**
 * Each number at a point, and its bound from the simultaneous band.
 * @param {Curves} curves
 * @param {string} score
 * @param {number} k
 */
function readoutsAt(curves, score, k) {
  const { coverage, accuracy, miscoverage, review } = curves;
  return {
    threshold: limitOn(score, curves.threshold[k]),
    coverage: [percent(coverage.estimate[k]), between(coverage.low[k], coverage.high[k])],
    accuracy: [percent(accuracy.estimate[k]), `at least ${atLeast(accuracy.low[k])}`],
    miscoverage: [percent(miscoverage.estimate[k]), `at most ${atMost(miscoverage.high[k])}`],
    review: [fixed(review.estimate[k], 1), `at most ${up(review.high[k], 1)}`],
  };
}
