"""Texts of a certificate about calibration rows that were not tested.

*Pilot rows* choose where the tests begin: at a rank, or at a value of the score. If few rows are
correct, the least certain rows are *planning rows*: they are read before the tests are planned, and
are rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate


def describe_pilot_rows(certificate: Certificate) -> str:
    """Describe how many calibration rows were used only to choose the tests.

    The text continues a sentence. It is empty if every row was tested.
    """
    design = certificate.design
    n_pilot_rows = design.n_pilot_rows
    if design.tests_score_values and not design.n_planning_rows:
        # Each value of the score has a test, and the pilot rows chose which value is tested first.
        chooser_text = f"{n_pilot_rows:,} pilot rows" if n_pilot_rows else "other rows"
        return f"; the scores of {chooser_text} chose the first value"
    pilot_rows_text = ""
    if n_pilot_rows:
        pilot_rows_text = f"; {n_pilot_rows:,} pilot rows were set aside to plan the tests"
    return pilot_rows_text + _describe_planning_rows(certificate)


def _describe_planning_rows(certificate: Certificate) -> str:
    """Describe how many of the least certain rows were used only to plan the tests."""
    n_planning_rows = certificate.design.n_planning_rows
    if not n_planning_rows:
        return ""
    subgroups = certificate.subgroups
    if subgroups is None:
        return f"; the {n_planning_rows:,} least certain rows were only read to plan them, and are rejected"
    if subgroups.is_two_sided_without_groups:
        return (
            f"; the {n_planning_rows:,} rows least likely to be of a class were only read to plan them,"
            " and are not accepted as it"
        )
    return (
        f"; the least certain rows of a {subgroups.by}, {n_planning_rows:,} in all, were only read to plan"
        " them, and are rejected"
    )
