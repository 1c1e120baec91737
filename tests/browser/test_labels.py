"""No label stands on a line or on another label, at any operating point, on a phone as on a
desk.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import metacal as mc
from browser import modules
from metacal.reports import html
from metacal.reports.html import write_report
from metacal.reports.summary import summarise

pytest.importorskip("selenium")

#: Boxes of all visible text of the charts against every line as it is drawn, walked along pixel by
#: pixel; and against each other. The letters are what must be free: the box is that of their
#: height, without the space above and below.
CROSSINGS = """
const boxOf = (text) => {
  const box = text.getBoundingClientRect();
  const air = 0.18 * box.height;
  return {left: box.left, right: box.right, top: box.top + air, bottom: box.bottom - air, text: text.textContent};
};
const found = [];
for (const svg of document.querySelectorAll(".chart svg")) {
  const zoom = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const origin = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll("text")].filter((text) => text.textContent).map(boxOf);
  boxes.forEach((a, k) => boxes.slice(k + 1).forEach((b) => {
    if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
      found.push(`${a.text} | ${b.text}`);
  }));
  for (const line of svg.querySelectorAll("path.line, line.target, line.cursor, line.whisker, line.ideal, line.axis")) {
    const length = line.getTotalLength();
    for (let at = 0; at <= length; at += 1) {
      const point = line.getPointAtLength(at);
      const [x, y] = [origin.left + zoom * point.x, origin.top + zoom * point.y];
      const box = boxes.find((b) => x > b.left && x < b.right && y > b.top && y < b.bottom);
      if (box) {
        found.push(`${box.text} on ${line.getAttribute("class")}`);
        break;
      }
    }
  }
}
return found;
"""

#: The same for the number beside the operating point alone, at each point of the slider, or each of
#: so many.
ALONG = """
const slider = document.getElementById("operating");
const found = [];
const charts = [...document.querySelectorAll("#curves svg")];
const paths = charts.map((svg) => {
  const path = svg.querySelector("path.line");
  const length = path.getTotalLength();
  return Array.from({length: Math.ceil(length) + 1}, (_, k) => path.getPointAtLength(Math.min(k, length)));
});
for (let k = 0; k <= Number(slider.max); k += arguments[0]) {
  slider.value = k;
  slider.dispatchEvent(new Event("input"));
  charts.forEach((svg, which) => {
    const label = svg.querySelector(".strong");
    const {x, y, width, height} = label.getBBox();
    const inside = (px, py) => px > x && px < x + width && py > y + 0.18 * height && py < y + 0.82 * height;
    if (paths[which].some((point) => inside(point.x, point.y))) found.push([k, "line", label.textContent]);
    for (const line of svg.querySelectorAll("line.target, line.cursor")) {
      const {x1, x2, y1, y2} = line;
      const [left, right, top, bottom] = [x1, x2, y1, y2].map((end) => end.baseVal.value);
      const level = top === bottom && inside(Math.max(left, x + 1), top) && right > x;
      const upright = left === right && left > x && left < x + width && top < y + height && bottom > y;
      if (level || upright) found.push([k, line.getAttribute("class"), label.textContent]);
    }
    const frame = svg.viewBox.baseVal;
    const out = x < 0 || y < 0 || x + width > frame.width || y + height > frame.height;
    if (out) found.push([k, "out", label.textContent]);
  });
}
return found;
"""


def promised(tmp_path, *constraints):
    """A page for each promise, on real logits."""
    (fit_x, fit_y), (test_x, test_y) = mc.datasets.load("cifar10-resnet110").split(
        5000, random_state=0
    )
    for k, promise in enumerate(constraints):
        gate = mc.MetaCal(promise).fit(fit_x, fit_y)
        path = tmp_path / f"{k}.html"
        write_report(summarise(test_x, test_y, gate, n_resamples=0), path)
        yield SimpleNamespace(address=path.as_uri())


@pytest.mark.parametrize("width", [320, pytest.param(390, marks=pytest.mark.long), 700, 1280])
@pytest.mark.parametrize("name", ["gated", "bare", "broken"])
def test_no_label_crosses_a_line(name, see, width, request):
    driver = see(request.getfixturevalue(name), width=width)
    assert driver.execute_script(CROSSINGS) == []


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.long)])
def test_nor_with_other_promises(see, tmp_path, width):
    wanted = (
        mc.MaxMiscoverage(0.05),
        mc.MaxMiscoverage(0.4),
        mc.Both(alpha=0.3, beta=0.96),
        mc.MinAccuracy(0.99),
    )
    for page in promised(tmp_path, *wanted):  # fmt: skip
        driver = see(page, width=width)
        assert driver.execute_script(CROSSINGS) == []
        assert driver.execute_script(ALONG, 5) == []


@pytest.mark.parametrize(("width", "step"), [(390, 1), (1280, 4)])
@pytest.mark.parametrize("name", ["gated", "bare", "broken"])
def test_the_number_at_the_point_keeps_clear_wherever_the_point_is(name, see, width, step, request):
    driver = see(request.getfixturevalue(name), width=width)
    assert driver.execute_script(ALONG, step) == []


def test_the_measurement_sees_a_crossing(gated, see):
    """Moved onto the curve, a label is found."""
    driver = see(gated, width=390)
    move = """
      const svg = document.querySelector("#curves svg");
      const point = svg.querySelector("path.line").getPointAtLength(200);
      const label = svg.querySelector(".strong");
      label.setAttribute("x", point.x);
      label.setAttribute("y", point.y + 5);
    """
    driver.execute_script(move)
    label = driver.execute_script("return document.querySelector('#curves .strong').textContent")
    assert f"{label} on line after" in driver.execute_script(CROSSINGS)


def test_each_promise_is_named_beside_its_chart(see, tmp_path):
    (page,) = promised(tmp_path, mc.Both(alpha=0.3, beta=0.96))
    driver = see(page)
    key = "return [...document.querySelectorAll(arguments[0] + ' .key')].map((e) => e.textContent)"
    assert driver.execute_script(key, "#curves") == [
        "promised: at most 4%",
        "promised: at most 30%",
    ]
    assert driver.execute_script(key, "#frontier") == [
        "promised: selective accuracy at least 96%",
        "promised: miscoverage at most 30%",
    ]
    assert len(driver.find_elements("css selector", "#frontier line.target")) == 2
    (page,) = promised(tmp_path, mc.MaxMiscoverage(0.9))
    driver = see(page)
    assert driver.execute_script(key, "#frontier") == [
        "promised: miscoverage at most 90% (outside this chart)"
    ]
    assert driver.find_elements("css selector", "#frontier line.target") == []


# ── names and styles ──────────────────────────────────────────────────────────────────────────────


def test_no_name_of_the_scripts_hides_one_of_the_browser(chromium):
    """In one scope a module's own name would take the browser's away from all the others."""
    chromium.get("about:blank")  # elsewhere each id is a name, too
    names = [name for module in modules.ordered(html.read_scripts()) for name in module.declares]
    assert chromium.execute_script(
        "return arguments[0].filter((name) => name in window)", [*names, "find"]
    ) == ["find"]


RULES = """
const matched = {};
const look = (rules) => {
  for (const rule of rules) {
    if (rule.cssRules?.length) look(rule.cssRules);
    for (const selector of rule.selectorText?.split(/,(?![^(]*[)])/) ?? []) {
      const states = /::[a-z-]+|:(focus|hover|focus-visible|disabled|checked)(?![\\w-])/g;
      const plain = selector.trim().replace(states, "") || "*";
      matched[selector.trim()] = document.querySelector(plain) !== null;
    }
  }
};
look(document.styleSheets[0].cssRules);
return matched;
"""


@pytest.mark.filterwarnings("ignore::metacal.MetacalWarning")
def test_every_rule_of_the_style_sheet_finds_something(
    gated, bare, broken, own, documents, see, tmp_path
):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(900, 30)) * 3
    labels = (table + rng.normal(size=table.shape)).argmax(axis=1)
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(table, labels)
    write_report(
        summarise(table, labels, gate, n_resamples=0), tmp_path / "many.html"
    )  # judged on its own rows
    both = mc.MetaCal(mc.Both(alpha=0.9, beta=0.2, delta=None)).fit(
        table, labels
    )  # with two assumptions
    write_report(summarise(table, labels, both, n_resamples=0), tmp_path / "both.html")
    fraud = rng.random(900) < 0.3
    score = rng.normal(size=900) + 2.5 * fraud
    sides = mc.MetaCal(mc.TwoSided(mc.MinPrecision(0.8), mc.MinRecall(0.9))).fit(score, fraud)
    write_report(summarise(score, fraud, sides, n_resamples=0), tmp_path / "sides.html")
    more = [
        SimpleNamespace(address=(tmp_path / f"{name}.html").as_uri())
        for name in ("many", "both", "sides")
    ]
    used = {}
    for page in (gated, bare, broken, own, documents, *more):
        driver = see(page)
        for slider in driver.find_elements("css selector", "#reliability .reader"):
            driver.execute_script("arguments[0].focus()", slider)  # a read-out is there
        for selector, found in driver.execute_script(RULES).items():
            used[selector] = used.get(selector, False) or found
    assert len(used) > 150
    assert sorted(selector for selector, found in used.items() if not found) == []
