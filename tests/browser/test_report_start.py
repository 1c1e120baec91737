"""The page of each kind of gate starts at the numbers of `metacal evaluate`, and its commands run.

`tests/contracts/test_report_start.py` tests the same for every promise, without a browser.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from browser.conftest import Page
from contracts.reported_gates import report_gate

pytest.importorskip("selenium")
from selenium.webdriver.common.by import By

#: Kind of rows, promise and variant of each page.
GATES = [
    ("logits", "MinAccuracy", ""),
    ("logits", "MaxMiscoverage", ""),
    ("logits", "Both", ""),
    ("logits", "Cheapest", ""),
    ("logits", "MaxRisk", ""),
    ("logits", "MinAccuracy", "PerClass"),
    ("logits", "MaxMiscoverage", "PerGroup"),
    ("logits", "MinPrecision", ""),
    ("logits", "MinRecall", ""),
    ("logits", "TwoSided", ""),
    ("logits", "TwoSided", "PerGroup"),
    ("logits", "MaxReview", "two classes"),
    ("probabilities", "paper.MaxMiscoverage", ""),
    ("scores", "MaxCost", ""),
    ("scores", "MinAccuracy", "PerGroup"),
    ("cascade", "MinAccuracy", ""),
    ("cascade", "MaxLoss", ""),
    ("score cascade", "MinAccuracy", ""),
]
#: A function of this name stands for the installed program.
METACAL_FUNCTION = 'metacal() { "$METACAL_TEST_PYTHON" -m metacal "$@"; }'


@pytest.fixture(params=GATES, ids=" ".join)
def gate(request, tmp_path):
    reported = report_gate(*request.param, tmp_path)
    assert reported is not None
    return reported


def percent(value):
    return "–" if value is None else f"{100 * value:.2f}%"


def read_texts(driver, selector):
    """Return the text of each element, also of those outside of the window."""
    script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
    return driver.execute_script(script, selector)


def run_in_shell(command, folder):
    """Run a command as it is pasted into a shell in the folder of the files."""
    environment = {**os.environ, "METACAL_TEST_PYTHON": sys.executable}
    script = f"{METACAL_FUNCTION}\n{command}"
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_the_page_starts_at_the_gate(gate, see):
    driver = see(Page(gate.folder / "report.html", gate.folder))
    measured = gate.evaluation["gate"]
    tiles = read_texts(driver, "#tiles dd:nth-of-type(1)")
    expected = [
        percent(measured[name]["estimate"])
        for name in ("coverage", "selective_accuracy", "miscoverage")
    ]
    assert tiles[:3] == expected
    if driver.find_element(By.ID, "point").is_displayed():
        shown = [
            driver.find_element(By.ID, f"point-{name}").text
            for name in ("coverage", "accuracy", "miscoverage", "review")
        ]
        n_reviewed = 1000 * (1 - measured["coverage"]["estimate"])
        assert shown == [*expected, f"{n_reviewed:.1f}"]
        driver.execute_script("document.getElementById('operating').focus()")
    sides = gate.report["sides"]
    if sides is not None:
        rows = driver.find_elements(By.CSS_SELECTOR, "#sides-told tbody tr")
        shares = [row.find_elements(By.TAG_NAME, "td")[1].text for row in rows]
        positive, negative = sides["gate"]["called_positive"], sides["gate"]["called_negative"]
        n_review = gate.evaluation["n_rows"] - gate.evaluation["n_accepted"]
        review = n_review / gate.evaluation["n_rows"]
        assert shares == [percent(positive), percent(review), percent(negative)]
        cells = rows[0].find_elements(By.TAG_NAME, "td")
        if sides["gate"]["precision"] is not None:
            assert percent(sides["gate"]["precision"]) in cells[2].text
        assert percent(sides["gate"]["recall"]) in cells[3].text
    assert not driver.get_log("browser")


def test_every_command_of_the_page_runs_in_a_shell(gate, see):
    driver = see(Page(gate.folder / "report.html", gate.folder))
    if (
        gate.report["curves"]["command_language"] is None
        or not driver.find_element(By.ID, "point").is_displayed()
    ):
        assert not [text for text in read_texts(driver, "code") if text.startswith("metacal")]
        return
    if gate.report["curves"]["current"] is None:
        # A gate with several thresholds is on no point, so that one is chosen first.
        slider = "const slider = document.getElementById('operating');"
        driver.execute_script(f"{slider} slider.dispatchEvent(new Event('input'))")
    commands = [text for text in read_texts(driver, "code") if text.startswith("metacal")]
    assert len(commands) == 2
    for command in commands:
        done = run_in_shell(command, gate.folder)
        assert done.returncode in (0, 1, 3), (command, done.stderr)
        assert done.returncode != 1 or "Cannot certify" in done.stderr, done.stderr
