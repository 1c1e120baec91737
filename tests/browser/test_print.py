"""On paper: every class, every row and every number of the charts, whatever is folded on the
screen.
"""

from __future__ import annotations

import base64
import io
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from types import SimpleNamespace

import numpy as np
import pytest

import metacal as mc
from metacal.reports.html import write_report
from metacal.reports.summary import summarise

pytest.importorskip("selenium")
pypdf = pytest.importorskip("pypdf", reason="pypdf not found: pip install pypdf")


def printed(driver):
    """The page as Chromium prints it: the text of all pages, and how many there are."""
    told = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    pages = pypdf.PdfReader(io.BytesIO(base64.b64decode(told["data"]))).pages
    return "\n".join(page.extract_text() for page in pages), len(pages)


def percent(value):
    return f"{100 * value:.2f}%"


def outward(value, rounding):
    """In percent, away from what it bounds; what a float's last bits add is no part of the
    number.
    """
    return f"{Decimal(repr(100 * value)).quantize(Decimal('1e-9')).quantize(Decimal('0.01'), rounding):.2f}%"


def at_least(value):
    return outward(value, ROUND_FLOOR)


def at_most(value):
    return outward(value, ROUND_CEILING)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Sixty classes: the table begins folded."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(3000, 60)) * 3
    labels = (table + rng.normal(size=table.shape)).argmax(axis=1)
    names = [f"class-{k:02d}-name" for k in range(60)]
    gate = mc.MetaCal(mc.MaxMiscoverage(0.2)).fit(table[:1500], labels[:1500])
    path = tmp_path_factory.mktemp("many") / "many.html"
    write_report(
        summarise(table[1500:], labels[1500:], gate, n_resamples=0, class_names=names), path
    )
    return SimpleNamespace(address=path.as_uri(), names=names)


def visible_classes(driver):
    rows = "[...document.querySelectorAll('#classes-table tbody tr')]"
    return driver.execute_script(f"return {rows}.filter((row) => row.checkVisibility()).length")


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.long)])
def test_all_classes_are_printed(many, see, width):
    driver = see(many, width=width)
    assert visible_classes(driver) == 15
    text, _ = printed(driver)
    assert [name for name in many.names if name not in text] == []
    assert "Show all" not in text
    assert visible_classes(driver) == 15
    driver.find_element("css selector", "#classes-table > div > button").click()
    assert visible_classes(driver) == 60
    assert driver.switch_to.active_element.get_attribute("role") == "region"


def test_all_tables_are_printed_and_fold_again(gated, see):
    driver = see(gated)
    driver.execute_script("document.querySelector('details.certificate').open = false")
    states = "return [...document.querySelectorAll('details')].map((part) => part.open)"
    assert set(driver.execute_script(states)) == {False}
    text, n_pages = printed(driver)
    words = " ".join(text.split())
    data = gated.data
    frontier = data["frontier"]
    for x, y in zip(frontier["beta"], frontier["alpha"]):
        assert f"{at_least(x)} {at_most(y)}" in words
    for diagram in data["diagrams"][1:]:
        for right, low in zip(diagram["equal_width"]["accuracy"], diagram["equal_width"]["low"]):
            assert right is None or f"{percent(right)} {at_least(low)}" in words
    for row in (*data["mistakes"], *data["hits"]):
        assert row["id"] in words
    for name in data["classes"]["name"]:
        assert name in words
    for _, line in data["promise"]["certificate"]:
        assert line.replace("<=", "≤") in words
    assert "The certificate" in words
    assert all(
        word not in words for word in ("Show the numbers", "Download", "Copy", "Back to the gate")
    )
    assert 4 <= n_pages <= 9
    assert set(driver.execute_script(states)) == {False}
    assert not driver.get_log("browser")


def test_paper_is_white_in_the_dark_too(gated, see):
    driver = see(gated, scheme="dark")
    media = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    colour = (
        "return [getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.body).color]"
    )
    try:
        assert driver.execute_script(colour) == ["rgb(255, 255, 255)", "rgb(26, 30, 38)"]
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
