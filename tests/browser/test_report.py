"""The report in a real browser: it opens in peace, the point moves, the numbers are Python's,
everyone can use it.
"""

from __future__ import annotations

import base64
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from browser import modules
from metacal.cli import main
from metacal.display import format_interval
from metacal.reports import html
from metacal.reports.html import write_report
from metacal.reports.summary import summarise

pytest.importorskip("selenium")
from selenium.webdriver import Keys
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By

PAGES = ("gated", "bare", "broken", "scored", "cascaded")


@pytest.fixture(params=PAGES)
def page(request):
    return request.getfixturevalue(request.param)


def text(driver, id):
    return driver.find_element(By.ID, id).text


def until(condition, seconds=5.0):
    """Wait until something is there, and return it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("waited in vain")


# ── it opens in peace ─────────────────────────────────────────────────────────────────────────────


def test_opens_from_a_file_without_errors_and_without_network(page, see):
    driver = see(page)
    assert not driver.get_log("browser")
    requests = [
        event["params"]["request"]["url"]
        for event in (
            json.loads(entry["message"])["message"] for entry in driver.get_log("performance")
        )
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in requests if not url.startswith("data:")] == [page.address]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_screenshots_and_nothing_sticks_out(page, see, screenshots, width, scheme):
    driver = see(page, width=width, scheme=scheme)
    size = "return [document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    wide, high = driver.execute_script(size)
    assert wide <= width
    clip = {"x": 0, "y": 0, "width": width, "height": high, "scale": 1}
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    path = screenshots / f"report-{page.folder.name.rstrip('0123456789')}-{width}-{scheme}.png"
    path.write_bytes(base64.b64decode(shot["data"]))
    assert path.stat().st_size > 20_000


def brightness(driver, of):
    colour = driver.execute_script(f"return getComputedStyle(document.body).{of}")
    return sum(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]) / (
        3 * 255
    )


def test_dark_mode_follows_the_system(gated, see):
    driver = see(gated, scheme="light")
    assert brightness(driver, "backgroundColor") > 0.9 > 0.2 > brightness(driver, "color")
    driver = see(gated, scheme="dark")
    assert brightness(driver, "backgroundColor") < 0.15 < 0.8 < brightness(driver, "color")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("name", "width"),
    [("gated", 1280), ("bare", 1280), ("broken", 1280), ("cascaded", 1280), ("gated", 390)],
)
def test_axe_finds_no_violation(name, see, axe, width, scheme, request):
    driver = see(request.getfixturevalue(name), width=width, scheme=scheme)
    driver.execute_script(axe)
    run = (
        "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done, (e)"
        " => done(String(e)))"
    )
    found = driver.execute_async_script(run)
    told = [
        (v["id"], v["help"], [node["target"] for node in v["nodes"]][:3])
        for v in found["violations"]
    ]
    assert not told
    assert len(found["passes"]) > 20


def odd_data():
    """Data that has hardly any of what the page shows: name -> logits, labels, gate."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(300, 3)) * 3
    right, wrong = table.argmax(axis=1), table.argmin(axis=1)
    mixed = np.where(rng.random(300) < 0.8, right, wrong)
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(table, mixed)
    both = mc.MetaCal(mc.Both(alpha=0.9, beta=0.5)).fit(table, mixed)
    few = mc.MetaCal(mc.MaxMiscoverage(0.001, delta=None)).fit(table[:20], mixed[:20])
    return {
        "two rows": (table[:2], mixed[:2], None),
        "one class": (table, np.full(300, 1), None),
        "all right": (table, right, gate),
        "all wrong": (table, wrong, gate),
        "nothing accepted": (np.zeros((50, 3)), np.zeros(50, dtype=int), gate),
        "everything accepted": (table, mixed, few),
        "two promises": (table, mixed, both),
        "two classes": (
            table[:, :2],
            (mixed > 0).astype(int),
            mc.TemperatureScaling().fit(table[:, :2], mixed > 0),
        ),
        "ties": (np.round(table), mixed, gate),
        **{f"two classes, {promise!r}": two_classes(promise) for promise in TWO_CLASSES},
    }


TWO_CLASSES = (
    mc.MinPrecision(0.8),
    mc.MinRecall(0.9),
    mc.MaxFalsePositiveRate(0.1),
    mc.TwoSided(mc.MinPrecision(0.8, True), mc.MinPrecision(0.8, False)),
)


def two_classes(promise):
    """Rows of two classes that a promise about one of them, or both, was not fitted on."""
    rng = np.random.default_rng(5)
    y = rng.random(2000) < 0.3
    score = rng.normal(size=2000) + 2.5 * y
    table = np.column_stack([np.zeros(2000), score])
    return table[1000:], y[1000:], mc.MetaCal(promise).fit(table[:1000], y[:1000])


@pytest.mark.filterwarnings("ignore::metacal.MetacalWarning")
def test_odd_data_open_in_peace(see, tmp_path, screenshots):
    path = tmp_path / "odd.html"
    for name, (logits, labels, gate) in odd_data().items():
        write_report(summarise(logits, labels, gate, n_resamples=0), path, title=name)
        driver = see(SimpleNamespace(address=path.as_uri()))
        assert not driver.get_log("browser"), name
        shown = driver.execute_script("return document.body.innerText")
        assert not {"undefined", "NaN", "null", "[object"} & set(
            re.findall(r"undefined|NaN|null|\[object", shown)
        ), name
        marks = (
            "return [...document.querySelectorAll('svg *')].flatMap((e) =>"
            " [...e.attributes].map((a) => a.value))"
        )
        assert not [
            value for value in driver.execute_script(marks) if "NaN" in value or "Infinity" in value
        ], name
        for slider in driver.find_elements(By.CSS_SELECTOR, "#operating, .two-handles input"):
            slider.send_keys(Keys.HOME)
            slider.send_keys(Keys.END)
        assert not driver.get_log("browser"), name


# ── the operating point ───────────────────────────────────────────────────────────────────────────


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


def shown_at(curves, k):
    """What Python says of a point, as the page should print it."""
    coverage, accuracy, miscoverage = (curves[n] for n in ("coverage", "accuracy", "miscoverage"))
    promises = [
        ("min-accuracy", curves["min_accuracy"][k]),
        ("max-miscoverage", curves["max_miscoverage"][k]),
    ]
    asked = "".join(f" --{name} {value:g}" for name, value in promises if value is not None)
    cut = curves["threshold"][k]
    command = (
        f"{curves['command']}{asked}"
        f" --at-threshold={curves['threshold_text'][k]}{curves['command_end']}"
    )
    named = {"command": command if asked else "Nothing can be promised at this point."}
    return (named if curves["command_language"] is not None else {}) | {
        "point-threshold": "∞" if cut == "inf" else f"{cut:.6g}",
        "point-coverage": percent(coverage["estimate"][k]),
        "point-coverage-bound": f"{at_least(coverage['low'][k])} to {at_most(coverage['high'][k])}",
        "point-accuracy": percent(accuracy["estimate"][k]),
        "point-accuracy-bound": f"at least {at_least(accuracy['low'][k])}",
        "point-miscoverage": percent(miscoverage["estimate"][k]),
        "point-miscoverage-bound": f"at most {at_most(miscoverage['high'][k])}",
        "point-review": f"{1000 * (1 - coverage['estimate'][k]):.1f}",
        "point-review-bound": f"at most {ends(1000 * (1 - coverage['low'][k]), 1)[1]}",
    }


def seen(driver, ids):
    return driver.execute_script(
        "return arguments[0].map((id) => document.getElementById(id).textContent)", list(ids)
    )


def at(driver):
    return int(driver.find_element(By.ID, "operating").get_property("value"))


def test_every_point_shows_the_numbers_of_python(page, see):
    driver = see(page)
    curves = page.data["curves"]
    if page.data["source"]["score"].startswith(
        "-"
    ):  # a mark of which more is surer is shown as a mark
        curves = {**curves, "threshold": [-value for value in curves["threshold"]]}
    points = range(len(curves["threshold"]))
    ids = list(shown_at(curves, 0))
    script = """
      const slider = document.getElementById("operating");
      return arguments[0].map((k) => {
        slider.value = k;
        slider.dispatchEvent(new Event("input"));
        return arguments[1].map((id) => document.getElementById(id).textContent);
      });
    """
    told = driver.execute_script(script, list(points), ids)
    assert [dict(zip(ids, texts)) for texts in told] == [shown_at(curves, k) for k in points]


def test_numbers_are_printed_as_python_prints_them(gated, see):
    driver = see(gated)
    rng = np.random.default_rng(0)
    ties = [k / 2**j for j in range(1, 14) for k in range(1, 40)]
    values = [
        *rng.random(2000),
        *ties,
        *(k / 2000 for k in range(2000)),
        *10.0 ** rng.uniform(-9, 9, 500),
        0.0,
        1.0,
    ]
    functions = modules.parse("format.js", html.read_scripts()["format.js"]).body
    script = (
        "return arguments[0].map((x) => [0, 1, 2, 4].map((n) => fixed(x, n)).concat(percent(x),"
        " general(x)))"
    )
    told = driver.execute_script(functions + script, [float(value) for value in values])
    expected = [
        [*(f"{x:.{n}f}" for n in (0, 1, 2, 4)), f"{100 * x:.2f}%", f"{x:.6g}"] for x in values
    ]
    assert told == expected


def test_arrow_keys_move_the_point(gated, see):
    driver = see(gated)
    curves = gated.data["curves"]
    slider = driver.find_element(By.ID, "operating")
    start = at(driver)
    assert start == curves["current"]
    last = len(curves["threshold"]) - 1
    steps = (
        (Keys.ARROW_RIGHT, start + 1),
        (Keys.ARROW_LEFT, start),
        (Keys.ARROW_DOWN, start - 1),
        (Keys.HOME, 0),
    )
    for key, expected in (*steps, (Keys.END, last)):
        slider.send_keys(key)
        assert at(driver) == expected
        told = shown_at(curves, expected)
        assert seen(driver, told) == list(told.values())
        assert told["point-coverage"] in slider.get_attribute("aria-valuetext")
    driver.find_element(By.ID, "reset").click()
    assert at(driver) == start


def drag(driver, element, by, kind):
    """Press on an element, move sideways in steps, let go: with the mouse, or with a finger."""
    actions = ActionBuilder(driver, mouse=PointerInput(kind, kind), duration=20)
    hand = actions.pointer_action
    hand.move_to(element).pointer_down()
    for _ in range(10):
        hand.move_by(by / 10, 0)
    hand.pointer_up()
    actions.perform()


@pytest.mark.parametrize(("chart", "width", "kind"), [(0, 1280, "mouse"), (1, 390, "touch")])
def test_dragging_moves_the_point(gated, see, chart, width, kind):
    driver = see(gated, width=width)
    curves = gated.data["curves"]
    svg = driver.find_elements(By.CSS_SELECTOR, "#curves svg")[chart]
    handle = svg.find_element(By.CSS_SELECTOR, ".handle")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    before = at(driver)
    frame = svg.rect["width"] - 64  # the margins of the axes: 52 left, 12 right
    step = round(0.02 * frame)
    drag(driver, handle, -10 * step, kind)
    after = at(driver)
    moved = curves["coverage"]["estimate"][before] - curves["coverage"]["estimate"][after]
    assert moved == pytest.approx(10 * step / frame, abs=0.01)
    told = shown_at(curves, after)
    assert seen(driver, told) == list(told.values())
    labels = [
        element.text for element in driver.find_elements(By.CSS_SELECTOR, "#curves svg .strong")
    ]
    assert labels == [percent(1 - curves["accuracy"]["estimate"][after]), told["point-miscoverage"]]
    assert driver.switch_to.active_element.get_attribute("id") == "operating"
    driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert at(driver) == after - 1


def test_the_command_can_be_copied_and_run(gated, see, tmp_path, monkeypatch):
    driver = see(gated)
    command = text(driver, "command")
    driver.find_element(By.ID, "copy").click()
    assert text(driver, "copy") == "Copied"
    driver.execute_script(
        "const t = document.createElement('textarea'); t.id = 'paste'; document.body.append(t)"
    )
    driver.find_element(By.ID, "paste").send_keys(Keys.CONTROL, "v")
    assert driver.find_element(By.ID, "paste").get_property("value") == command

    import shlex

    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(command)
    done = CliRunner().invoke(main, [*arguments, "--json"])
    assert (program, done.exit_code) == ("metacal", 0), done.output
    certificate = json.loads(done.stdout)["certificate"]
    curves = gated.data["curves"]
    k = curves["current"]
    assert Path("new-gate.json").exists()
    assert certificate["n_accepted"] >= curves["accepted"][k]


# ── what else can be done with it ─────────────────────────────────────────────────────────────────


def test_classes_sort_by_every_column(gated, see):
    driver = see(gated)
    classes = gated.data["classes"]

    def column(place):
        return [
            row.text
            for row in driver.find_elements(
                By.CSS_SELECTOR, f"#classes-table tbody tr > :nth-child({place})"
            )
        ]

    heads = driver.find_elements(By.CSS_SELECTOR, "#classes-table thead th")
    assert [head.get_attribute("aria-sort") for head in heads].count("descending") == 1
    worst = sorted(range(len(classes["name"])), key=lambda k: -classes["surely"][k])
    assert column(1) == [classes["name"][k] for k in worst]
    heads[2].find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert heads[2].get_attribute("aria-sort") == "descending"
    assert column(3) == [percent(value) for value in sorted(classes["accuracy"], reverse=True)]
    heads[2].find_element(By.TAG_NAME, "button").send_keys(Keys.SPACE)
    assert heads[2].get_attribute("aria-sort") == "ascending"
    assert column(3) == [percent(value) for value in sorted(classes["accuracy"])]
    heads[0].find_element(By.TAG_NAME, "button").click()
    assert column(1) == sorted(classes["name"])
    assert heads[2].get_attribute("aria-sort") is None


def test_every_answer_has_an_interval_and_the_promise_beside_it(gated, see):
    driver = see(gated)
    (part,) = gated.data["parts"]
    assert (
        len(driver.find_elements(By.CSS_SELECTOR, "#parts circle.spot")) == len(part["name"]) == 10
    )
    assert len(driver.find_elements(By.CSS_SELECTOR, "#parts line.target")) == 1
    assert "promised of all rows together: at least 97%" in text(driver, "parts")
    rows = driver.find_elements(By.CSS_SELECTOR, "#parts tbody tr")
    assert [row.find_element(By.TAG_NAME, "th").text for row in rows] == part["name"]
    for k, row in enumerate(rows):
        accuracy = part["accuracy"]
        assert f"{at_least(accuracy['low'][k])} to {at_most(accuracy['high'][k])}" in row.text
    bad = [high < part["limit"] for high in part["accuracy"]["high"]]
    assert len(driver.find_elements(By.CSS_SELECTOR, "#parts circle.spot.refuted")) == sum(bad)


def test_a_promise_for_each_class_is_shown_as_one(files, see, write, tmp_path):
    with np.load(files / "val.npz") as val:
        names = val["classes"]
        promise = mc.PerClass(mc.MinAccuracy(0.95))
        gate = mc.MetaCal(promise, classes=names.tolist(), reject_label="unsure").fit(
            val["logits"], val["labels"]
        )
    mc.save(gate, tmp_path / "each.json")
    page = write(tmp_path, tmp_path / "each.json", files / "test.npz")
    driver = see(page)
    assert "promised of each: at least 95%" in text(driver, "parts")
    assert "this gate has one for each class" in text(driver, "point-lead")
    worst = page.data["parts"][0]["name"][0]
    assert f"in class {worst}, where the evidence is worst" in text(driver, "answer")
    assert not driver.get_log("browser")


def test_the_note_names_the_rows_and_says_that_they_are_used_up(gated, see):
    driver = see(gated)
    note = text(driver, "command-note")
    data = gated.data
    assert f"the {data['source']['n_rows']:,} rows of {data['source']['file']}" in note
    assert "used up" in note
    assert (
        f"certifies the threshold {driver.find_element(By.ID, 'point-threshold').text} on entropy"
        in note
    )


def test_the_bins_switch(gated, see):
    driver = see(gated)
    diagram = next(
        d for d in gated.data["diagrams"] if (d["stage"], d["rows"]) == ("after", "accepted")
    )

    def dots():
        return len(driver.find_elements(By.CSS_SELECTOR, "#reliability svg circle.dot"))

    assert dots() == sum(n > 0 for n in diagram["equal_width"]["count"])
    assert f"{diagram['ece']['estimate']:.4f}" in text(driver, "reliability")
    driver.find_element(By.CSS_SELECTOR, "input[name=binning]:checked").send_keys(Keys.ARROW_RIGHT)
    assert dots() == sum(n > 0 for n in diagram["equal_mass"]["count"])
    assert f"{diagram['ece_equal_mass']['estimate']:.4f}" in text(driver, "reliability")


def test_the_numbers_can_be_downloaded(gated, see, tmp_path):
    driver = see(gated)
    driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    driver.find_element(By.ID, "download").click()
    path = tmp_path / "metacal-report.json"
    until(lambda: path.exists() and path.stat().st_size)
    assert json.loads(path.read_text(encoding="utf-8")) == gated.data
    assert not driver.get_log("browser")


def test_the_headline_says_what_was_found(gated, bare, broken, see):
    driver = see(gated)
    promise = gated.data["promise"]
    assert driver.find_element(By.TAG_NAME, "h1").text == promise["statement"]
    assert "Kept" in text(driver, "answer")
    verdict = promise["verdicts"][0]
    for key, shown in (("value", percent), ("low", at_least), ("high", at_most)):
        assert shown(verdict[key]) in text(driver, "answer")
    assert "Refuted" in text(see(broken), "answer")
    driver = see(bare)
    assert "No promise yet" in text(driver, "answer")
    ece = bare.data["evaluation"]["all_rows"]["ece"]["estimate"]
    assert f"{100 * ece:.1f} points" in driver.find_element(By.TAG_NAME, "h1").text


def test_its_own_rows_do_not_judge_a_gate(own, see):
    assert own.data["promise"]["verdict"] == "not judged"
    driver = see(own)
    badge = driver.find_element(By.CSS_SELECTOR, ".verdict")
    assert badge.get_attribute("class") == "verdict open"
    assert badge.text == "Not judged: calibration rows"
    assert "Not judged: calibration rows" in text(driver, "answer")
    command = driver.find_element(By.CSS_SELECTOR, "#answer .steps code")
    (step,) = own.data["promise"]["next_steps"]
    assert command.get_attribute("textContent") == step["command"]
    assert "new-rows.npz" in step["command"]


def test_rows_have_numbers_and_ids(gated, see):
    driver = see(gated)
    first = gated.data["mistakes"][0]
    cells = driver.find_elements(By.CSS_SELECTOR, "#rows tbody tr:first-child td")
    assert [cells[0].text, cells[1].text] == [f"{first['row']:,}", first["id"]]


# ── scores in place of logits ─────────────────────────────────────────────────────────────────────


def test_a_page_on_scores_speaks_of_the_score_and_of_no_classes(scored, see):
    driver = see(scored)
    hidden = [
        name
        for name in ("honesty", "classes", "rows")
        if not driver.find_element(By.ID, name).is_displayed()
    ]
    assert hidden == ["classes"]
    assert "classes" not in text(driver, "facts")
    assert "accept if mark ≥ this" in text(driver, "dial")
    assert "accept if mark >" in text(driver, "certificate")
    heads = [
        head.text
        for head in driver.find_elements(
            By.CSS_SELECTOR, "#rows-tables table:first-of-type thead th"
        )
    ]
    assert heads[:5] == ["Row", "Id", "mark", "P(correct)", "Gate"]
    marks = [
        float(cell.text)
        for cell in driver.find_elements(
            By.CSS_SELECTOR, "#rows-tables table tbody td:nth-child(3)"
        )
    ]
    assert all(0.0 <= mark <= 1.0 for mark in marks)


def test_a_page_on_a_cascade_says_who_answers(cascaded, see):
    driver = see(cascaded)
    table = driver.find_element("css selector", "#certificate table")
    shown = [row.text for row in table.find_elements("css selector", "tbody tr")]
    answers = cascaded.data["promise"]["answered_by"]
    for row, name in zip(shown, ("The small model", "The large model", "People"), strict=True):
        assert row.startswith(name)
    for row, one in zip(shown, answers, strict=True):
        assert f"{one['n_rows']:,}" in row
        assert f"{100 * one['share']['estimate']:.2f}%" in row
    assert "whichever model makes it" in driver.find_element("id", "point-lead").text
    assert not driver.find_elements("id", "command")
