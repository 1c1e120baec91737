"""Subgroups of calibration rows, and the results of their tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from metacal.certificates.subgroups import Name
from metacal.certification.procedures import SubgroupResult
from metacal.certification.rows import CalibrationRows
from metacal.formulas import Flags


@dataclass(frozen=True)
class Subgroup:
    """Rows that share one threshold.

    Attributes
    ----------
    codes : tuple of int
        Integer codes of the classes or groups in the subgroup. There is more than
        one code if the subgroup is pooled.

    names : tuple of str or int
        Names of these classes or groups, in the same order.

    rows : CalibrationRows
        Calibration rows used to certify the subgroup.
    """

    codes: tuple[int, ...]
    names: tuple[Name, ...]
    rows: CalibrationRows


@dataclass(frozen=True)
class SubgroupTest:
    """Outcome of the test of one subgroup.

    Attributes
    ----------
    subgroup : Subgroup
        The subgroup.

    result : SubgroupResult or None
        Result of the test, or None if the subgroup has too few rows to be tested.

    significance_level : float or None
        Significance level of the test, or None if the subgroup was not tested.
    """

    subgroup: Subgroup
    result: SubgroupResult | None = None
    significance_level: float | None = None

    @property
    def every_test_passed(self) -> bool:
        """Whether the subgroup was tested and every test in its sequence passed."""
        return self.result is not None and self.result.every_test_passed


def build_subgroup(
    rows: CalibrationRows, codes: tuple[int, ...], is_tested: Flags | None = None
) -> Subgroup:
    """Build a subgroup from the rows of one or more classes or groups.

    If `is_tested` is given, rows for which it is False are left out.
    """
    assert rows.subgroups is not None
    if len(codes) == 1:
        # A comparison is faster than `isin`.
        is_in_subgroup = rows.subgroups.codes == codes[0]
    else:
        is_in_subgroup = np.isin(rows.subgroups.codes, codes)
    if is_tested is not None:
        is_in_subgroup &= is_tested
    subgroup_rows = rows.take(is_in_subgroup)
    if rows.pilot_rows is not None:
        subgroup_rows = replace(subgroup_rows, pilot_rows=rows.pilot_rows.select_subgroups(codes))
    names = tuple(rows.subgroups.names[code] for code in codes)
    return Subgroup(codes=codes, names=names, rows=subgroup_rows)
