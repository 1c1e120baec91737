"""The switch that turns skips into failures, `METACAL_REQUIRE_ALL=1`."""

from __future__ import annotations

import pytest

#: The data folder is nobody's to install: its absence alone is no failure.
NO_DATA = "further logits not found: set METACAL_DATA to their folder"


class SkipsAreFailures:
    """A plugin that fails what skips: single tests, and whole files whose package is missing."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        return fail_if_skipped((yield))

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        return fail_if_skipped((yield))


def fail_if_skipped(report):
    reason = str(report.longrepr)
    if report.skipped and not hasattr(report, "wasxfail") and NO_DATA not in reason:
        report.outcome = "failed"
        report.longrepr = f"skipped although METACAL_REQUIRE_ALL=1: {reason}"
    return report
