"""Every curve can be read: under the mouse, at a touch, and by the arrow keys, with the numbers of
Python.
"""

from __future__ import annotations

import pytest

from metacal.display import format_interval

pytest.importorskip("selenium")
from selenium.webdriver import Keys
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By


def percent(value):
    """A share that was measured: to the nearest."""
    return "–" if value is None else f"{100 * value:.2f}%"


def ends(value, digits=2):
    """A number as a bound from below and as one from above: Python's own rounding, to the safe
    side.
    """
    return format_interval(value, value, digits).strip("[]").split(", ")


def at_least(value):
    return "–" if value is None else f"{ends(100 * value)[0]}%"


def at_most(value):
    return "–" if value is None else f"{ends(100 * value)[1]}%"


def risk_lines(data):
    curves = data["curves"]
    shown = zip(
        *(curves["accuracy"][part] for part in ("estimate", "high", "low")),
        curves["coverage"]["estimate"],
    )
    return [
        [
            percent(1 - value),
            f"band {at_least(1 - high)} to {at_most(1 - low)}",
            f"coverage {percent(at)}",
        ]
        for value, high, low, at in shown
    ]


def miscoverage_lines(data):
    curves = data["curves"]
    shown = zip(
        *(curves["miscoverage"][part] for part in ("estimate", "low", "high")),
        curves["coverage"]["estimate"],
    )
    return [
        [percent(value), f"band {at_least(low)} to {at_most(high)}", f"coverage {percent(at)}"]
        for value, low, high, at in shown
    ]


def reliability_lines(data, stage):
    found = next(d for d in reversed(data["diagrams"]) if d["stage"] == stage)["equal_width"]
    columns = (found[part] for part in ("accuracy", "confidence", "low", "high", "count"))
    return [
        [
            f"accuracy {percent(right)}",
            f"stated {percent(said)}",
            f"band {at_least(low)} to {at_most(high)}",
            f"{n:,} rows",
        ]
        for right, said, low, high, n in zip(*columns)
        if n
    ]


def frontier_lines(data):
    found = data["frontier"]
    return [
        [
            f"miscoverage at most {at_most(y)}",
            f"accuracy at least {at_least(x)}",
            f"coverage here {percent(share)}",
        ]
        for x, y, share in zip(found["beta"], found["alpha"], found["coverage"])
    ]


#: Chart -> what can be read off it, point by point.
CURVES = {
    "#curves figure:nth-child(1)": risk_lines,
    "#curves figure:nth-child(2)": miscoverage_lines,
    "#reliability figure:nth-child(1)": lambda data: reliability_lines(data, "before"),
    "#reliability figure:nth-child(2)": lambda data: reliability_lines(data, "after"),
    "#frontier figure": frontier_lines,
}


def reading(driver):
    """What the one read-out in the page says; None when there is none."""
    script = """
      const words = (group) => [...group.querySelectorAll("tspan")].map((line) => line.textContent);
      return [...document.querySelectorAll(".reading")].map(words);
    """
    found = driver.execute_script(script)
    assert len(found) <= 1
    return found[0] if found else None


def point_at(driver, svg, across, down, kind="mouse", press=False):
    """Move a mouse, or put a finger, to a share of the chart's width and a place in pixels from its
    top.
    """
    box = svg.rect
    place = (int((across - 0.5) * box["width"]), int(down - box["height"] / 2))
    actions = ActionBuilder(driver, mouse=PointerInput(kind, kind), duration=10)
    actions.pointer_action.move_to(svg, *place)
    if press:
        actions.pointer_action.pointer_down().pointer_up()
    actions.perform()


def test_no_curve_is_forgotten(gated, see):
    driver = see(gated)
    lines = driver.find_elements(By.CSS_SELECTOR, "svg path.line")
    assert len(lines) == len(CURVES)
    for chart in CURVES:
        assert len(driver.find_elements(By.CSS_SELECTOR, f"{chart} path.line")) == 1


#: Whether the box of words hides a part of the curve that it is about.
COVERED = """
const box = document.querySelector(".reading-box").getBBox();
const line = document.querySelector(arguments[0] + " path.line");
for (let at = 0; at <= line.getTotalLength(); at += 1) {
  const {x, y} = line.getPointAtLength(at);
  if (x > box.x && x < box.x + box.width && y > box.y && y < box.y + box.height) return true;
}
return false;
"""


@pytest.mark.parametrize("chart", CURVES)
def test_the_mouse_reads_the_numbers_of_python(gated, see, chart):
    driver = see(gated)
    svg = driver.find_element(By.CSS_SELECTOR, f"{chart} svg")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    assert reading(driver) is None
    expected = CURVES[chart](gated.data)
    seen = []
    for across in (0.2, 0.5, 0.75, 0.9, 0.94):
        point_at(driver, svg, across, 60)
        seen.append(reading(driver))
        assert seen[-1] in expected
        assert not driver.execute_script(COVERED, chart)
    # From left to right the readings follow the curve, and the whole box is inside the page.
    order = [expected.index(lines) for lines in seen]
    assert order == sorted(order)
    assert len(set(order)) > 1 or len(expected) == 1
    box = driver.execute_script(
        "return document.querySelector('.reading-box').getBoundingClientRect().toJSON()"
    )
    assert box["left"] >= 0
    assert box["right"] <= 1280
    point_at(driver, svg, 0.5, svg.rect["height"] + 20)
    assert reading(driver) is None
    assert not driver.get_log("browser")


def test_a_dragged_point_is_not_covered(gated, see):
    driver = see(gated)
    svg = driver.find_element(By.CSS_SELECTOR, "#curves svg")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    actions = ActionBuilder(driver, duration=10)
    actions.pointer_action.move_to(svg, 0, -20).pointer_down().move_by(30, 0)
    actions.perform()
    assert reading(driver) is None
    actions = ActionBuilder(driver, duration=10)
    actions.pointer_action.pointer_up().move_by(3, 0)
    actions.perform()
    assert reading(driver) is not None


@pytest.mark.parametrize("chart", list(CURVES)[2:])
def test_a_finger_reads_too_and_the_box_stays_on_the_phone(gated, see, chart):
    driver = see(gated, width=390)
    svg = driver.find_element(By.CSS_SELECTOR, f"{chart} svg")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    point_at(driver, svg, 0.93, 60, kind="touch", press=True)
    assert reading(driver) in CURVES[chart](gated.data)
    box = driver.execute_script(
        "return document.querySelector('.reading-box').getBoundingClientRect().toJSON()"
    )
    assert 0 <= box["left"] < box["right"] <= 390


@pytest.mark.parametrize("chart", list(CURVES)[2:])
def test_arrow_keys_walk_along_the_curve_and_a_screen_reader_is_told(gated, see, chart):
    """A slider's new value is announced politely by every screen reader; it needs no live region
    beside it.
    """
    driver = see(gated)
    expected = CURVES[chart](gated.data)
    slider = driver.find_element(By.CSS_SELECTOR, f"{chart} .reader")
    assert slider.accessible_name.startswith("Read the ")
    assert slider.aria_role == "slider"
    driver.execute_script("arguments[0].focus({focusVisible: true})", slider)
    slider.send_keys(Keys.HOME)
    at = 0
    for key, step in (
        (Keys.ARROW_RIGHT, 1),
        (Keys.ARROW_RIGHT, 1),
        (Keys.ARROW_LEFT, -1),
        (Keys.END, len(expected)),
    ):
        slider.send_keys(key)
        at = max(0, min(len(expected) - 1, at + step))
        assert reading(driver) == expected[at]
        assert slider.get_attribute("aria-valuetext") == ", ".join(expected[at])
    ring = "return getComputedStyle(document.querySelector(arguments[0])).outlineStyle"
    assert driver.execute_script(ring, f"{chart} .chart") == "solid"
    driver.execute_script("arguments[0].blur()", slider)
    assert reading(driver) is None


def test_the_tab_key_reaches_every_curve(gated, see):
    driver = see(gated)
    focus = """
      const sliders = [...document.querySelectorAll("input[type=range]")];
      return sliders.filter((i) => i.tabIndex === 0 && !i.disabled).map((i) => i.closest("section").id);
    """
    assert driver.execute_script(focus) == ["point", "honesty", "honesty", "frontier"]
    driver.find_element(By.CSS_SELECTOR, "input[name=binning]:checked").send_keys(Keys.TAB)
    assert (
        driver.switch_to.active_element.get_attribute("aria-label")
        == "Read the bins before calibration"
    )
    assert reading(driver) in reliability_lines(gated.data, "before")


def test_readings_follow_the_switches_and_the_width(gated, see):
    driver = see(gated)
    slider = driver.find_element(By.CSS_SELECTOR, "#reliability figure:nth-child(2) .reader")
    driver.find_element(By.CSS_SELECTOR, "input[name=binning]:checked").send_keys(Keys.ARROW_RIGHT)
    slider.send_keys(Keys.END)
    found = next(
        d for d in gated.data["diagrams"] if (d["stage"], d["rows"]) == ("after", "accepted")
    )["equal_mass"]
    assert reading(driver)[0] == f"accuracy {percent(found['accuracy'][-1])}"
    metrics = {"width": 700, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert reading(driver)[0] == f"accuracy {percent(found['accuracy'][-1])}"
    assert not driver.get_log("browser")
