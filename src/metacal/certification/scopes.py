"""Certification of a promise separately for each subgroup.

A promise can apply to all rows or to each subgroup of rows. In the second case each
subgroup has its own threshold, and several hypotheses are tested at once. This
module splits the rows into subgroups and corrects for multiple testing.

Terms used in this module:

- *subgroup*: the rows of one predicted class or of one user-defined group, or of
  several of them that were pooled. All rows of a subgroup share one threshold.
- *delta*: error probability of the whole promise. The confidence level of the
  promise is 1 - delta.
- *significance level*: error probability of the test of one subgroup. It is at most
  delta, and the multiple-testing correction determines how much smaller it is.
- *pooling pilot rows*: the rows used to choose which subgroups are pooled.
- *starting rank*: first rank of the sequence of tests that a procedure runs within
  a subgroup.

**Proofs.** Given how many rows each subgroup has, the rows of a subgroup are i.i.d., and the rows of
different subgroups are independent. Whatever certifies a threshold for all rows therefore certifies
one for a subgroup, and the division of delta may depend on the numbers of rows.

1. *Family-wise error rate.* A subgroup that cannot pass a test at its share of delta, however few
   errors it has, receives none. Sort the subgroups by decreasing number of rows. The k largest share
   delta, where k is the largest number for which the k-th has enough rows for a test at delta / k.
   Each is tested at delta / k, and the union bound applies.
2. *Passing levels on* (Holm's step-down correction). A subgroup whose every test has passed needs no
   level. The remaining subgroups are tested again, at the same ranks, at delta divided by their
   number. Call a subgroup vulnerable if a threshold that breaks the promise is among its tests, and
   let there be v of them. A test that passes at one level passes at any higher level. At level l a
   breaking test of a vulnerable subgroup passes with probability at most l. So with probability 1 -
   v (delta / v) none passes at delta / v. On that event no vulnerable subgroup has all its tests
   passed. The levels that are passed on are those of other subgroups, at most delta / v is reached,
   and no breaking test passes.
3. *Each.* Every subgroup is tested at delta, and violates the promise with probability at most
   delta.
4. *False-coverage rate* (Benjamini & Yekutieli 2005). K subgroups have enough rows for a test at
   delta. All are tested at delta r / K with r = K. Those that certify nothing drop out, r becomes the
   number of the others, and these are tested again, until none drops out. R subgroups accept what
   they certify at delta R / K. For one subgroup i let R(i) be where this ends if i never drops out,
   whatever its rows are. R(i) depends on the other subgroups alone. If i accepts rows, it has never
   dropped out, and R = R(i). So i contributes 1 / R(i) if it accepts rows and violates the promise.
   Given the others, a breaking test of it passes with probability at most delta R(i) / K. The
   expected contribution is at most delta / K for each subgroup and delta for all. Each level has tests
   of its own, so nothing is assumed about how tests at different levels depend on each other.
5. *Pooling.* A random quarter of the rows are pooling pilot rows. Their counts determine which
   subgroups are pooled. The pool is tested on its rows outside the quarter. Given the pilot rows, the
   other rows of the pool are i.i.d. from the mixture of the pooled subgroups, so the promise holds for
   them together and for no single one of them.

**Not valid**: choosing the pool by all counts. Subgroups that have few rows by chance would enter it,
and its rows would not be a random sample of future rows. Also not valid: every fourth row as a pilot
row. In a file that is sorted by subgroup, the pilot rows would then reveal the counts of the tested
rows (broken in 0.27 to 0.35 of draws at delta = 0.1).

References
----------
Benjamini & Yekutieli, "False discovery rate-adjusted multiple confidence intervals for selected
parameters", Journal of the American Statistical Association, 2005.
Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics,
1979.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metacal.certificates.subgroups import DeltaSharing, SubgroupKind
from metacal.certification.procedures import RowRequirement, SubgroupProcedure, SubgroupResult
from metacal.certification.rows import CalibrationRows
from metacal.certification.subgroups import Subgroup, SubgroupTest, build_subgroup
from metacal.formulas import Flags

# Number of rows per random pilot row. The pilot rows determine which subgroups are pooled.
_ROWS_PER_POOLING_PILOT_ROW = 4

# A subgroup is small if it has fewer rows than this multiple of the rows that a test requires.
_REQUIRED_ROWS_FACTOR = 2

# Smallest number of small subgroups for which pooling has an effect.
_MIN_POOLED_SUBGROUPS = 2


@dataclass(frozen=True)
class EachSubgroup:
    """Scope of a promise that holds separately for each subgroup.

    Parameters
    ----------
    by : {"class", "group"}
        Whether a subgroup is a predicted class or a user-defined group.

    error_rate : {"together", "each", "fcr"}, default="together"
        Error rate that delta bounds:

        - "together": the family-wise error rate, which is the probability that at
          least one subgroup violates the promise;
        - "each": the probability that a given subgroup violates the promise;
        - "fcr": the false-coverage rate, which is the expected fraction of
          violating subgroups among the subgroups that accept any row.

    pool_small : bool, default=False
        Whether to merge the subgroups with few rows into one subgroup. The promise
        then holds for the merged rows as a whole, not for each class or group in
        them.
    """

    by: SubgroupKind
    error_rate: DeltaSharing = "together"
    pool_small: bool = False

    @property
    def controls_family_wise_error_rate(self) -> bool:
        """Whether delta bounds the probability that any subgroup violates the promise."""
        return self.error_rate == "together"

    @property
    def controls_false_coverage_rate(self) -> bool:
        """Whether delta bounds the false-coverage rate."""
        return self.error_rate == "fcr"

    def split(
        self, procedure: SubgroupProcedure, rows: CalibrationRows, delta: float
    ) -> list[Subgroup]:
        """Split the calibration rows into subgroups, and pool small ones if requested.

        Parameters
        ----------
        procedure : SubgroupProcedure
            Certification procedure. It determines how many rows a test requires.

        rows : CalibrationRows
            Calibration rows with subgroup codes.

        delta : float
            Error probability of the whole promise.

        Returns
        -------
        list of Subgroup
            The pooled subgroup, if there is one, comes last.
        """
        assert rows.subgroups is not None
        all_codes = range(len(rows.subgroups.names))
        if not self.pool_small:
            return [build_subgroup(rows, codes=(code,)) for code in all_codes]

        is_pooling_pilot_row = _draw_pooling_pilot_rows(rows)
        pooled_codes = self._find_small_subgroups(procedure, rows, is_pooling_pilot_row, delta)
        if len(pooled_codes) < _MIN_POOLED_SUBGROUPS:
            return [build_subgroup(rows, codes=(code,)) for code in all_codes]

        single_subgroups = [
            build_subgroup(rows, codes=(code,)) for code in all_codes if code not in pooled_codes
        ]
        # The pilot rows determined which classes or groups are pooled, so they are not tested.
        pooled_subgroup = build_subgroup(
            rows, codes=tuple(pooled_codes), is_tested=~is_pooling_pilot_row
        )
        return [*single_subgroups, pooled_subgroup]

    def certify_subgroups(
        self, procedure: SubgroupProcedure, subgroups: Sequence[Subgroup], delta: float
    ) -> list[SubgroupTest]:
        """Certify each subgroup with a correction for multiple testing.

        Parameters
        ----------
        procedure : SubgroupProcedure
            Certification procedure for one subgroup.

        subgroups : sequence of Subgroup
            Subgroups returned by `split`.

        delta : float
            Bound on the error rate named by `error_rate`.

        Returns
        -------
        list of SubgroupTest
            One entry per subgroup, in the order of `subgroups`.
        """
        testable_indices = self._find_testable_subgroups(procedure, subgroups, delta)
        if self.controls_family_wise_error_rate:
            return _control_family_wise_error_rate(procedure, subgroups, testable_indices, delta)
        if self.controls_false_coverage_rate:
            # Tests start at low ranks, because the level rises with the number of certified subgroups.
            return _control_false_coverage_rate(
                procedure.with_early_starts(), subgroups, testable_indices, delta
            )
        return _test_without_correction(procedure, subgroups, testable_indices, delta)

    def compute_level_of_next_subgroup(self, n_tested: int, delta: float) -> float:
        """Compute the significance level for one additional subgroup.

        It is used to report how many rows an untested subgroup lacks.

        Parameters
        ----------
        n_tested : int
            Number of subgroups that were tested.

        delta : float
            Error probability of the whole promise.

        Returns
        -------
        float
        """
        if self.controls_family_wise_error_rate:
            return delta / (n_tested + 1)
        return delta

    def _find_small_subgroups(
        self,
        procedure: SubgroupProcedure,
        rows: CalibrationRows,
        is_pooling_pilot_row: Flags,
        delta: float,
    ) -> list[int]:
        """Return the codes of the subgroups that have too few rows for their own test.

        The number of rows is estimated from the pooling pilot rows.
        """
        assert rows.subgroups is not None
        n_subgroups = len(rows.subgroups.names)
        significance_level = delta
        if self.controls_family_wise_error_rate:
            significance_level = delta / n_subgroups

        small_codes = []
        for code in range(n_subgroups):
            pilot_rows = rows.take(is_pooling_pilot_row & (rows.subgroups.codes == code))
            row_requirements = procedure.compute_row_requirements(pilot_rows, significance_level)
            if any(_is_estimated_as_small(requirement) for requirement in row_requirements):
                small_codes.append(code)
        return small_codes

    def _find_testable_subgroups(
        self, procedure: SubgroupProcedure, subgroups: Sequence[Subgroup], delta: float
    ) -> list[int]:
        """Return the indices of the subgroups that have enough rows for a test.

        For the family-wise error rate, the number of tested subgroups k determines
        the significance level delta / k, which in turn determines how many rows a
        test requires. The k largest subgroups are tested, for the largest k at which
        they all have enough rows.
        """
        if not self.controls_family_wise_error_rate:
            return [
                index
                for index, subgroup in enumerate(subgroups)
                if _has_enough_rows(procedure, subgroup, delta)
            ]

        indices_by_decreasing_size = sorted(
            range(len(subgroups)),
            key=lambda index: _count_reference_rows(procedure, subgroups[index], delta),
            reverse=True,
        )
        # Later subgroups have fewer rows but require more, so the testable ones come first.
        n_testable = 0
        for n_tested, index in enumerate(indices_by_decreasing_size, start=1):
            significance_level = delta / n_tested
            if _has_enough_rows(procedure, subgroups[index], significance_level):
                n_testable += 1
        testable_indices = indices_by_decreasing_size[:n_testable]
        return sorted(testable_indices)


def _test_without_correction(
    procedure: SubgroupProcedure,
    subgroups: Sequence[Subgroup],
    testable_indices: Sequence[int],
    delta: float,
) -> list[SubgroupTest]:
    """Test every subgroup with enough rows at significance level delta.

    Parameters
    ----------
    procedure : SubgroupProcedure
        Certification procedure for one subgroup.

    subgroups : sequence of Subgroup
        All subgroups.

    testable_indices : sequence of int
        Indices of the subgroups that have enough rows for a test.

    delta : float
        Error probability of each subgroup.

    Returns
    -------
    list of SubgroupTest
        One entry per subgroup, in the order of `subgroups`.
    """
    subgroup_tests = _build_untested_subgroups(subgroups)
    for index in testable_indices:
        subgroup = subgroups[index]
        subgroup_result = procedure.certify_subgroup(subgroup.rows, significance_level=delta)
        subgroup_tests[index] = SubgroupTest(
            subgroup=subgroup, result=subgroup_result, significance_level=delta
        )
    return subgroup_tests


def _control_family_wise_error_rate(
    procedure: SubgroupProcedure,
    subgroups: Sequence[Subgroup],
    testable_indices: Sequence[int],
    delta: float,
) -> list[SubgroupTest]:
    """Test the subgroups with Holm's step-down correction.

    Each of k subgroups is tested at significance level delta / k. A subgroup in
    which every test passed needs no further testing. The remaining subgroups divide
    delta among themselves and are tested again, until a round finishes no subgroup.

    Parameters
    ----------
    procedure : SubgroupProcedure
        Certification procedure for one subgroup.

    subgroups : sequence of Subgroup
        All subgroups.

    testable_indices : sequence of int
        Indices of the subgroups that have enough rows for a test.

    delta : float
        Bound on the probability that at least one subgroup violates the promise.

    Returns
    -------
    list of SubgroupTest
        One entry per subgroup, in the order of `subgroups`.

    References
    ----------
    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian
    Journal of Statistics, 1979.
    """
    subgroup_tests = _build_untested_subgroups(subgroups)
    remaining_indices = list(testable_indices)
    if not remaining_indices:
        return subgroup_tests

    # Holm's correction requires the same hypotheses in every round, so the plan does not change.
    plan_significance_level = delta / len(remaining_indices)
    while remaining_indices:
        significance_level = delta / len(remaining_indices)
        for index in remaining_indices:
            subgroup = subgroups[index]
            subgroup_result = procedure.certify_subgroup(
                subgroup.rows,
                significance_level=significance_level,
                plan_significance_level=plan_significance_level,
            )
            subgroup_tests[index] = SubgroupTest(
                subgroup=subgroup,
                result=subgroup_result,
                significance_level=significance_level,
            )
        unfinished_indices = [
            index for index in remaining_indices if not subgroup_tests[index].every_test_passed
        ]
        no_subgroup_finished = len(unfinished_indices) == len(remaining_indices)
        if no_subgroup_finished:
            break
        remaining_indices = unfinished_indices
    return subgroup_tests


def _control_false_coverage_rate(
    procedure: SubgroupProcedure,
    subgroups: Sequence[Subgroup],
    testable_indices: Sequence[int],
    delta: float,
) -> list[SubgroupTest]:
    """Test the subgroups with the Benjamini-Yekutieli correction.

    All K testable subgroups are tested at significance level delta. If only r of
    them certify something, these r are tested again at delta * r / K, until every
    subgroup in a round certifies something or none is left.

    Parameters
    ----------
    procedure : SubgroupProcedure
        Certification procedure for one subgroup.

    subgroups : sequence of Subgroup
        All subgroups.

    testable_indices : sequence of int
        Indices of the subgroups that have enough rows for a test.

    delta : float
        Bound on the false-coverage rate.

    Returns
    -------
    list of SubgroupTest
        One entry per subgroup, in the order of `subgroups`. Every tested subgroup
        has the significance level of the last round.

    References
    ----------
    Benjamini & Yekutieli, "False discovery rate-adjusted multiple confidence
    intervals for selected parameters", Journal of the American Statistical
    Association, 2005.
    """
    result_by_index: dict[int, SubgroupResult] = {}
    significance_level = delta
    remaining_indices = list(testable_indices)
    while remaining_indices:
        significance_level = delta * len(remaining_indices) / len(testable_indices)
        for index in remaining_indices:
            result_by_index[index] = procedure.certify_subgroup(
                subgroups[index].rows,
                significance_level=significance_level,
                plan_significance_level=significance_level,
            )
        certified_indices = [
            index for index in remaining_indices if result_by_index[index].accepts_any_row
        ]
        no_subgroup_dropped_out = len(certified_indices) == len(remaining_indices)
        if no_subgroup_dropped_out:
            break
        remaining_indices = certified_indices

    subgroup_tests = _build_untested_subgroups(subgroups)
    for index in testable_indices:
        subgroup_tests[index] = SubgroupTest(
            subgroup=subgroups[index],
            result=result_by_index[index],
            significance_level=significance_level,
        )
    return subgroup_tests


def _build_untested_subgroups(subgroups: Sequence[Subgroup]) -> list[SubgroupTest]:
    """Build one `SubgroupTest` without a result for each subgroup."""
    return [SubgroupTest(subgroup=subgroup) for subgroup in subgroups]


def _has_enough_rows(
    procedure: SubgroupProcedure, subgroup: Subgroup, significance_level: float
) -> bool:
    """Check whether a subgroup has enough rows for at least one rule of the procedure."""
    row_requirements = procedure.compute_row_requirements(subgroup.rows, significance_level)
    return any(requirement.is_met for requirement in row_requirements)


def _count_reference_rows(
    procedure: SubgroupProcedure, subgroup: Subgroup, significance_level: float
) -> int:
    """Return the largest number of rows that any rule of the procedure counts."""
    row_requirements = procedure.compute_row_requirements(subgroup.rows, significance_level)
    return max(requirement.n_reference_rows for requirement in row_requirements)


def _is_estimated_as_small(pilot_requirement: RowRequirement) -> bool:
    """Estimate from pilot rows whether a subgroup has too few rows for a test."""
    n_estimated_rows = _ROWS_PER_POOLING_PILOT_ROW * pilot_requirement.n_reference_rows
    min_rows_to_stand_alone = _REQUIRED_ROWS_FACTOR * pilot_requirement.n_required_rows
    return n_estimated_rows < min_rows_to_stand_alone


def _draw_pooling_pilot_rows(rows: CalibrationRows) -> Flags:
    """Draw a mask of the rows that determine which subgroups are pooled."""
    shuffled_indices = rows.build_row_draws().draw_row_order("pooled subgroups")
    n_pilot_rows = len(rows) // _ROWS_PER_POOLING_PILOT_ROW
    is_pooling_pilot_row = np.zeros(len(rows), dtype=bool)
    is_pooling_pilot_row[shuffled_indices[:n_pilot_rows]] = True
    return is_pooling_pilot_row
