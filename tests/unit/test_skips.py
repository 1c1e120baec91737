"""What `METACAL_REQUIRE_ALL=1` does to tests and files that skip."""

from __future__ import annotations

import pytest

from skips import NO_DATA, SkipsAreFailures

pytest_plugins = ["pytester"]

TESTS = f"""
import pytest

def test_passes():
    pass

def test_skips():
    pytest.skip("no such tool")

def test_lacks_the_data_folder():
    pytest.skip({NO_DATA!r})

@pytest.mark.xfail(reason="not yet")
def test_fails_as_expected():
    assert False
"""


def run(pytester, *plugins):
    pytester.makepyfile(test_some=TESTS, test_none="import pytest\npytest.importorskip('no_such')")
    pytester.makepyfile(imports_what_is_missing='"""\n>>> 1\n1\n"""\nimport no_such')
    options = (
        "--doctest-modules",
        "--doctest-ignore-import-errors",
        "--continue-on-collection-errors",
    )
    return pytester.inline_run(*options, plugins=plugins)


def test_a_skip_is_a_skip(pytester):
    assert run(pytester).ret == pytest.ExitCode.OK


def test_every_skip_but_that_of_the_data_fails_where_all_is_required(pytester):
    found = run(pytester, SkipsAreFailures())
    assert found.ret == pytest.ExitCode.TESTS_FAILED
    failed = {report.nodeid for report in found.getfailures()}
    assert failed == {"test_some.py::test_skips", "test_none.py", "imports_what_is_missing.py"}
    assert all("METACAL_REQUIRE_ALL" in str(report.longrepr) for report in found.getfailures())
