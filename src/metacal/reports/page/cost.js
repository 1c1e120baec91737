// What the chosen point costs, from two numbers that the reader fills in, and where it costs least.
/** @import { Curves, Data, OperatingPoint, PointNumbers } from "./types.js" */
import { announce, make, unbroken } from "./dom.js";
import { count, fixed, general, money, percent } from "./format.js";
import { numbersAt } from "./point.js";
import { asGiven } from "./promise.js";

/** What is shown before anybody has filled in their own. */
const EXAMPLE = { wrong: 50, review: 1 };

/**
 * The cost of a row on average at a point: as these rows show it, and at most, by the bands that hold everywhere at once.
 * With a the most that an accepted row costs, by the lower end of the accuracy, a row costs at most review + share·(a -
 * review), share being the end of the coverage that makes it larger.
 * @param {Curves} curves
 * @param {{ wrong: number, review: number }} costs
 * @param {number} k
 */
function costAt({ accuracy, coverage }, { wrong, review }, k) {
  const share = coverage.estimate[k];
  const estimate = share * wrong * (1 - (accuracy.estimate[k] ?? 0)) + (1 - share) * review;
  const answered = wrong * (1 - (accuracy.low[k] ?? 0));
  const end = (answered < review ? coverage.low[k] : coverage.high[k]) ?? (answered < review ? 0 : 1);
  return { estimate, bound: review + end * (answered - review) };
}

/**
 * The cost of a row on average, as these rows show it.
 * @param {PointNumbers} numbers
 * @param {{ wrong: number, review: number }} costs
 */
function meanCost({ accuracy, coverage }, { wrong, review }) {
  const share = coverage.estimate ?? 0;
  return share * wrong * (1 - (accuracy.estimate ?? 0)) + (1 - share) * review;
}

/**
 * Boxes for the two costs, what they make of the point, and the way to the cheapest one.
 * @param {HTMLElement} host
 * @param {Data} data
 * @param {OperatingPoint} point
 */
export function costs(host, data, point) {
  const { curves, source } = data;
  const boxes = {
    wrong: box("cost-wrong", EXAMPLE.wrong),
    review: box("cost-review", EXAMPLE.review),
  };
  const told = make("p", { id: "cost-here" });
  const best = make("p", { class: "fine", id: "cost-best" });
  const go = make("button", { type: "button", class: "quiet no-print", id: "go-cheapest" }, "Go to the cheapest point");
  const mark = make("div", { class: "cheapest no-print", "aria-hidden": "true" }, make("span", {}, "▲"));
  const command = make("code", { id: "cost-command" });
  const certify = make(
    "p",
    { class: "fine" },
    "To certify the cheapest gate, with your own costs, which you must not choose by looking at these rows: ",
    command,
  );
  let cheapest = 0;

  const show = () => {
    const given = { wrong: Number(boxes.wrong.value), review: Number(boxes.review.value) };
    const usable = [given.wrong, given.review].every((cost) => Number.isFinite(cost) && cost > 0);
    for (const part of [mark, go, best, certify]) part.hidden = !usable;
    if (!usable) {
      told.textContent = "Fill in two positive numbers.";
      return;
    }
    const all = curves.threshold.map((_, k) => costAt(curves, given, k));
    cheapest = all.reduce((low, { estimate }, k) => (estimate < all[low].estimate ? k : low), 0);
    const numbers = numbersAt(data, point);
    const cost = point.isGate ? { estimate: meanCost(numbers, given), bound: null } : all[point.at];
    told.textContent = `${inWords(numbers)} ${costInWords(cost)}`;
    best.textContent = bestInWords(curves, source.score, given.review, all[cheapest], cheapest);
    mark.style.setProperty("--at", String(point.last ? cheapest / point.last : 0));
    mark.dataset.at = String(cheapest);
    certify.hidden = curves.command_language === null;
    command.replaceChildren(...unbroken(commandFor(curves, given)));
  };
  for (const input of Object.values(boxes))
    input.addEventListener("input", () => {
      show();
      announce(told.textContent ?? "");
    });
  go.addEventListener("click", () => point.move(cheapest));
  point.listen(show);
  host.append(
    make(
      "div",
      { class: "costs" },
      make("h3", {}, "What it costs"),
      make(
        "div",
        { class: "cost-boxes" },
        make("div", {}, make("label", { for: "cost-wrong" }, "An accepted incorrect prediction costs"), boxes.wrong),
        make("div", {}, make("label", { for: "cost-review" }, "A review costs"), boxes.review),
      ),
      told,
      best,
      go,
      certify,
    ),
  );
  return mark;
}

/**
 * @param {string} id
 * @param {number} value
 */
function box(id, value) {
  return make("input", { type: "number", id, min: 0, step: "any", value, inputmode: "decimal" });
}

/**
 * The review budget at the point.
 * @param {PointNumbers} numbers
 */
function inWords({ review }) {
  const most = review.high === null ? "all of them" : count(Math.ceil(review.high));
  return `Of 1,000 rows, ${fixed(review.estimate, 0)} go to review, at most ${most}.`;
}

/** @param {{ estimate: number, bound: number | null }} cost */
function costInWords({ estimate, bound }) {
  const limit = bound === null ? "" : `, at most ${upward(1000 * bound)}`;
  return `1,000 rows cost ${money(1000 * estimate)}${limit}.`;
}

/**
 * @param {Curves} curves
 * @param {string} score
 * @param {number} review
 * @param {{ estimate: number, bound: number }} cost
 * @param {number} k
 */
function bestInWords({ coverage, threshold }, score, review, cost, k) {
  if (cost.estimate >= review) {
    return `Reviewing everything costs least: ${money(1000 * review)} for 1,000 rows.`;
  }
  return (
    `Cheapest (▲): threshold ${asGiven(score, threshold[k])}, where ${percent(coverage.estimate[k], 1)} are accepted and ` +
    `1,000 rows cost ${money(1000 * cost.estimate)}, at most ${upward(1000 * cost.bound)}.`
  );
}

/**
 * The same for what is promised from above: never less than it is.
 * @param {number | null} value
 */
function upward(value) {
  if (value === null) return "all of them";
  if (value >= 100) return count(Math.ceil(value));
  const unit = 10 ** (Math.floor(Math.log10(value)) - 3);
  return general(Math.ceil(value / unit) * unit, 5);
}

/**
 * @param {Curves} curves
 * @param {{ wrong: number, review: number }} costs
 */
function commandFor(curves, { wrong, review }) {
  if (curves.command_language === "python") return `mc.Cheapest(wrong=${wrong}, review=${review})`;
  return `${curves.command} --cheapest --cost-wrong ${wrong} --cost-review ${review}${curves.command_end}`;
}
