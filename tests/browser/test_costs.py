"""The boxes for costs on the report, in a real browser: what a point costs, where it costs least,
how to certify it.
"""

from __future__ import annotations

import json
import math
import shlex
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.reports.html import write_report
from metacal.reports.summary import summarise

pytest.importorskip("selenium")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys


def cost_at(curves, wrong, review, k):
    """What 1,000 rows cost at a point, and at most by the bands."""
    share, right = curves["coverage"]["estimate"][k], curves["accuracy"]["estimate"][k]
    estimate = share * wrong * (1 - right) + (1 - share) * review
    answered = wrong * (1 - curves["accuracy"]["low"][k])
    end = curves["coverage"]["low" if answered < review else "high"][k]
    return 1000 * estimate, 1000 * (review + end * (answered - review))


def fill(driver, **costs):
    for name, value in costs.items():
        box = driver.find_element(By.ID, f"cost-{name}")
        box.clear()
        box.send_keys(str(value))


def text(driver, id):
    return driver.find_element(By.ID, id).text


@pytest.fixture(scope="module", name="priced")
def _priced(files, write_page, tmp_path_factory):
    """A gate that promises a cost, on other rows."""
    folder = tmp_path_factory.mktemp("priced")
    words = [
        "fit",
        files / "val.npz",
        "--cheapest",
        "--cost-wrong",
        50,
        "--cost-review",
        1,
        "-o",
        folder / "cal.json",
    ]
    assert CliRunner().invoke(main, [*map(str, words)]).exit_code == 0
    return write_page(folder, folder / "cal.json", files / "test.npz")


@pytest.mark.parametrize(("wrong", "review"), [(50, 1), (5, 2), (1000, 0.5)])
def test_the_point_and_the_cheapest_one_cost_what_python_says(gated, see, wrong, review):
    driver, curves = see(gated), gated.data["curves"]
    fill(driver, wrong=wrong, review=review)
    estimate, bound = cost_at(curves, wrong, review, curves["current"])
    told = text(driver, "cost-here")
    assert f"1,000 rows cost {estimate:,.0f}, at most {math.ceil(bound):,}." in told
    high = 1000 * (1 - curves["coverage"]["low"][curves["current"]])
    assert f"go to review, at most {math.ceil(high):,}." in told
    costs = [cost_at(curves, wrong, review, k)[0] for k in range(len(curves["threshold"]))]
    driver.find_element(By.ID, "go-cheapest").click()
    at = int(driver.find_element(By.ID, "operating").get_property("value"))
    assert (
        at
        == int(np.argmin(costs))
        == int(driver.find_element(By.CSS_SELECTOR, ".cheapest").get_dom_attribute("data-at"))
    )
    assert f"1,000 rows cost {min(costs):,.0f}, at most" in text(driver, "cost-best")


def test_what_is_no_cost_is_said(gated, see):
    driver = see(gated)
    fill(driver, wrong="0")
    assert text(driver, "cost-here") == "Fill in two positive numbers."
    assert not driver.find_element(By.ID, "go-cheapest").is_displayed()
    fill(driver, wrong="20")
    assert "1,000 rows cost" in text(driver, "cost-here")
    assert (
        driver.find_element(By.ID, "said").get_property("textContent").startswith("Of 1,000 rows")
    )


def test_reviewing_everything_may_be_cheapest(broken, see):
    driver = see(broken)
    fill(driver, wrong=100, review=1)
    assert text(driver, "cost-best") == "Reviewing everything costs least: 1,000 for 1,000 rows."


def test_the_command_certifies_the_cheapest(gated, see, tmp_path, monkeypatch):
    driver = see(gated)
    fill(driver, wrong=20, review=1)
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(text(driver, "cost-command"))
    done = CliRunner().invoke(main, [*arguments, "--json"])
    assert (program, done.exit_code) == ("metacal", 0), done.output
    certificate = json.loads(done.stdout)["certificate"]
    assert certificate["quantity"] == "cost per row"
    assert mc.load_gate("new-gate.json").promise == mc.Cheapest(20, 1)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_promised_cost_is_shown_as_a_number(priced, see, axe, screenshots, width, scheme):
    driver = see(priced, width=width, scheme=scheme)
    (verdict,) = priced.data["promise"]["verdicts"]
    answer = text(driver, "answer")
    assert f"Measured: {verdict['value']:.4g} {verdict['counted']}" in answer
    assert f"Promised: at most {verdict['limit']}." in answer
    assert f"at most {verdict['limit']} a row on average" in answer
    assert not driver.get_log("browser")
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    driver.execute_script(axe)
    run = "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done)"
    assert not driver.execute_async_script(run)["violations"]
    driver.save_screenshot(str(screenshots / f"costs-{width}-{scheme}.png"))


def test_both_sides_cost_what_python_says_and_never_cross(see, tmp_path):
    rng = np.random.default_rng(5)
    fraud = rng.random(2000) < 0.3
    score = rng.normal(size=2000) + 2.5 * fraud
    promise = mc.TwoSided(mc.MinPrecision(0.8), mc.MinRecall(0.9))
    gate = mc.MetaCal(promise).fit(score[:1000], fraud[:1000])
    summary = summarise(score[1000:], fraud[1000:], gate, n_resamples=0)
    sides, path = SimpleNamespace(**summary.sides), tmp_path / "sides.html"
    write_report(summary, path)
    driver = see(SimpleNamespace(address=path.as_uri()))
    share = sides.n_positive / sides.n_rows

    called = 1 - sides.n_below / sides.n_rows
    above = 5 * (1 - share) * sides.false_positive_rate.estimate - called
    below = 50 * share * (1 - sides.recall.estimate) + called
    cost = 1000 * (below[:, None] + above)
    assert f"1,000 rows cost {cost[sides.lower, sides.upper]:,.0f}:" in text(driver, "sides-cost")
    driver.find_element(By.ID, "sides-cheapest").click()
    n = len(sides.threshold)
    assert f"1,000 rows cost {cost[np.triu_indices(n)].min():,.0f}:" in text(driver, "sides-cost")
    driver.find_element(By.ID, "side-lower").send_keys(Keys.END)
    assert driver.find_element(By.ID, "side-upper").get_property("value") == str(n - 1)
    assert not driver.get_log("browser")
