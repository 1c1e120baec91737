"""The page of a gate about cases: what it shows, and that it has no point to choose."""

from __future__ import annotations

import pytest

pytest.importorskip("selenium")
from selenium.webdriver.common.by import By


def test_the_page_counts_cases_and_item_types(documents, see):
    driver = see(documents)
    cases = documents.data["cases"]
    tiles = [tile.text for tile in driver.find_elements(By.CSS_SELECTOR, "#tiles dd")]
    assert f"{cases['n_all_accepted']:,} of 400 cases" in tiles
    assert f"{cases['n_accepted']:,} of 1,200 items" in tiles
    kinds = [kind.text for kind in driver.find_elements(By.CSS_SELECTOR, ".case-kind dd")]
    for kind, name in zip(kinds, ("n_all_accepted", "n_some_accepted", "n_none_accepted")):
        assert f"{cases[name]} of 400 cases" in kind
    rows = driver.find_elements(By.CSS_SELECTOR, "#cases-types tbody tr")
    cells = [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in rows]
    types = cases["types"]
    assert [row[0] for row in cells] == types["name"]
    assert [int(row[4]) for row in cells] == types["incorrect"]
    assert [float(row[7]) for row in cells] == pytest.approx(
        [-threshold for threshold in types["threshold"]], rel=1e-4
    )
    terms = [term.text for term in driver.find_elements(By.CSS_SELECTOR, "#certificate dt")]
    assert {"Gate", *types["name"]} <= set(terms)
    assert not driver.get_log("browser")


def test_there_is_no_point_to_choose(documents, see):
    driver = see(documents)
    for name in ("point", "frontier", "sides", "classes"):
        assert not driver.find_element(By.ID, name).is_displayed(), name


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_accessible_and_fits(documents, see, axe, width):
    driver = see(documents, width=width)
    assert driver.execute_script("return document.documentElement.scrollWidth") == width
    driver.execute_script(axe)
    found = driver.execute_async_script(
        "axe.run(document, {resultTypes: ['violations']}).then(arguments[0])"
    )
    assert [violation["id"] for violation in found["violations"]] == []
