"""The page of a gate for one of two named classes: thresholds in one unit, promises that fit it."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main

pytest.importorskip("selenium")
from selenium.webdriver.common.by import By

RANDOM = np.random.default_rng(7)
LOG_ODDS = 2.0 * RANDOM.normal(size=6000) - 1.0
LABELS = np.where(RANDOM.random(6000) < 1 / (1 + np.exp(-LOG_ODDS)), "Yes", "No")
PARTS = {"fit": slice(0, 2000), "new": slice(2000, 4000), "other": slice(4000, None)}


@pytest.fixture(scope="module")
def churn(tmp_path_factory, write_page):
    """The report on files of a gate that accepts rows as No."""
    folder = tmp_path_factory.mktemp("churn")
    for name, rows in PARTS.items():
        columns = {"score": LOG_ODDS[rows], "churn": LABELS[rows]}
        mc.io.write_table(str(folder / f"{name}.csv"), columns)
    run(
        f"fit {folder}/fit.csv --logits-key score --positive Yes --label-key churn --min-npv 0.9",
        f"-o {folder}/gate.json",
    )
    return write_page(folder, folder / "gate.json", folder / "new.csv")


def run(*words):
    """Run a command."""
    done = CliRunner().invoke(main, " ".join(words).split())
    assert done.exit_code == 0, (words, done.output)


def advice(driver):
    """Return the sentence about promises at the thresholds."""
    return driver.find_element(By.ID, "sides-promise").text


def test_the_promises_at_the_gate_are_about_its_own_side_and_hold_on_other_rows(churn, see):
    text = advice(see(churn))
    options = re.findall(r"(--min-[a-z]+) ([0-9.]+)", text)
    assert [option for option, _ in options] == ["--min-npv", "--min-recall"]
    assert text.endswith("for the rows called No.")
    for option, level in options:
        run(
            f"fit {churn.folder}/other.csv --logits-key score --positive Yes --label-key churn",
            f"{option} {level} -o {churn.folder}/next.json",
        )


def test_a_report_from_python_shows_promises_of_python(see, tmp_path):
    gate = mc.MetaCal(mc.MinPrecision(0.9, positive="No"), positive="Yes")
    gate.fit(LOG_ODDS[PARTS["fit"]], LABELS[PARTS["fit"]])
    path = tmp_path / "report.html"
    gate.report(LOG_ODDS[PARTS["new"]], LABELS[PARTS["new"]], path, n_resamples=0)
    text = advice(see(SimpleNamespace(address=path.as_uri())))
    found = re.search(
        r"(MinPrecision\([0-9.]+\)) about No or (MinRecall\([0-9.]+\)) about Yes", text
    )
    for promise, positive in zip(found.groups(), ("No", "Yes")):
        promise = eval(f"mc.{promise}").set_params(positive=positive)
        mc.MetaCal(promise, positive="Yes").fit(LOG_ODDS[PARTS["other"]], LABELS[PARTS["other"]])


def test_a_threshold_is_shown_in_one_unit(churn, see):
    """Both sides have thresholds of the log-odds; the score of the rows is another one."""
    driver = see(churn)
    headings = [one.text for one in driver.find_elements(By.CSS_SELECTOR, "#parts thead th")]
    assert not [heading for heading in headings if heading.startswith("Threshold")]
    certificate = driver.find_element(By.ID, "certificate").get_property("textContent")
    threshold = re.search(r"log-odds < (-?[0-9.]+)", certificate)[1]
    assert f"up to {threshold}" in driver.find_element(By.ID, "sides-told").text


def test_thresholds_of_classes_name_their_score(see, tmp_path):
    (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(
        5000, random_state=0
    )
    gate = mc.MetaCal(mc.PerClass(mc.MinAccuracy(0.95))).fit(fit_x, fit_y)
    path = tmp_path / "report.html"
    gate.report(new_x, new_y, path, n_resamples=0)
    driver = see(SimpleNamespace(address=path.as_uri()))
    headings = [one.text for one in driver.find_elements(By.CSS_SELECTOR, "#parts thead th")]
    assert "Threshold (entropy)" in headings


def test_high_costs_are_written_out(churn, see):
    driver = see(churn)
    miss = driver.find_element(By.ID, "side-miss")
    driver.execute_script(
        "arguments[0].value = 5000; arguments[0].dispatchEvent(new Event('input'))", miss
    )
    assert re.match(
        r"1,000 rows cost \d{3},\d{3}: 0 for ", driver.find_element(By.ID, "sides-cost").text
    )


def test_a_short_id_stays_on_one_line_on_a_phone(churn, see, tmp_path):
    columns = {
        "id": [f"C{row:05d}" for row in range(2000)],
        "score": LOG_ODDS[PARTS["new"]],
        "churn": LABELS[PARTS["new"]],
    }
    mc.io.write_table(str(tmp_path / "rows.csv"), columns)
    files = f"{churn.folder}/gate.json {tmp_path}/rows.csv"
    run(f"report {files} --id-key id --resamples 0 -o {tmp_path}/report.html")
    driver = see(SimpleNamespace(address=(tmp_path / "report.html").as_uri()), width=390)
    cells = driver.find_elements(By.CSS_SELECTOR, "#rows-tables tbody td.name:nth-child(2)")
    ids = [cell for cell in cells if cell.text.startswith("C0")]
    assert len(ids) >= 10
    heights = [
        driver.execute_script(
            "const range = document.createRange(); range.selectNodeContents(arguments[0]);"
            "return range.getClientRects().length",
            cell,
        )
        for cell in ids
    ]
    assert set(heights) == {1}
