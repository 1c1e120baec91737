// The slider, which is the accessible twin of the point in the charts, and the numbers at the point.
/** @import { Data, OperatingPoint } from "./types.js" */
import { certify } from "./command.js";
import { costs } from "./cost.js";
import { make, put } from "./dom.js";
import { NOTHING, atLeast, atMost, between, capitalized, fixed, percent, up } from "./format.js";
import { numbersAt } from "./point.js";
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
export function dial(data, point) {
  const { curves, evaluation, quantity_names: names } = data;
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
  const back =
    evaluation.gate.coverage &&
    make(
      "button",
      {
        type: "button",
        id: "reset",
        class: "quiet no-print",
        onclick: () => {
          point.reset();
          slider.focus();
        },
      },
      curves.current === null ? "Back to the gate" : "Back to the gate's own threshold",
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
    const shown = readoutsAt(data, point);
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
  track.append(costs(host, data, point));
  certify(host, data, point);
  return slider;
}

/**
 * Each number at the point, and its bound: from the simultaneous band, or for the gate itself from its interval.
 * @param {Data} data
 * @param {OperatingPoint} point
 */
function readoutsAt(data, point) {
  const { coverage, accuracy, miscoverage, review } = numbersAt(data, point);
  return {
    threshold: thresholdAt(data, point),
    coverage: [percent(coverage.estimate), between(coverage.low, coverage.high)],
    accuracy: [percent(accuracy.estimate), `at least ${atLeast(accuracy.low)}`],
    miscoverage: [percent(miscoverage.estimate), `at most ${atMost(miscoverage.high)}`],
    review: [fixed(review.estimate, 1), `at most ${up(review.high, 1)}`],
  };
}

/**
 * The threshold at the point and what it is compared with; a gate off the curves has several, or accepts no row.
 * @param {Data} data
 * @param {OperatingPoint} point
 */
function thresholdAt({ curves, evaluation, parts, source }, point) {
  if (!point.isGate) return limitOn(source, curves.threshold[point.at]);
  if (!evaluation.n_accepted) return [NOTHING, "the gate accepts no row"];
  const each = parts.find((part) => part.promised === "each");
  return ["several", `one for each ${each ? each.by : "model"}, in the certificate`];
}
