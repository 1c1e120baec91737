"""Interfaces of the procedures that certify calibration rows.

A procedure stands between a promise and the rules. It builds rankings from the rows, calls its
rules, and builds a certificate from their results.

Every procedure certifies all rows together (`Procedure`). Some procedures can also certify each
subgroup of rows (`SubgroupProcedure`). `scopes` then divides the error probability among the
subgroups and calls the procedure for each of them. `one_threshold.OneThresholdProcedure` has one
rule and one threshold. `two_sides.TwoClassProcedure` has a threshold for each of two classes.

Terms used in this module:

- *reference rows*: the rows that a rule counts, for example all correct rows. They are the
  denominator of the limited rate.
- *significance level*: error probability of the test of one subgroup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from metacal.certificates.certificate import Certificate
from metacal.certificates.design import CertificationDesign
from metacal.certificates.quantity import Quantity
from metacal.certificates.subgroups import Name, SubgroupCertificate
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.rule import ThresholdResult
from metacal.formulas import Codes, Flags, Float

if TYPE_CHECKING:
    from metacal.certification.pilot import PilotPolicy


class PromisedLimit(NamedTuple):
    """Quantity with its promised limit.

    Attributes
    ----------
    quantity : Quantity
        Quantity that is limited.

    target : float
        Promised limit of the quantity.
    """

    quantity: Quantity
    target: float


class RowRequirement(NamedTuple):
    """Number of reference rows, and the number that a test requires.

    Attributes
    ----------
    n_reference_rows : int
        Number of rows that the rule counts.

    n_required_rows : int
        Smallest number of reference rows with which a test can pass.
    """

    n_reference_rows: int
    n_required_rows: int

    @property
    def is_met(self) -> bool:
        """Whether there are enough reference rows for a test."""
        return self.n_reference_rows >= self.n_required_rows


@dataclass(frozen=True)
class SubgroupResult:
    """Certified thresholds of one subgroup.

    Attributes
    ----------
    threshold_results : tuple of (ThresholdResult or None)
        One result per threshold: a single one, or one for each of two classes. None if nothing is
        promised about a class, or if the promise is trivially kept in this subgroup.
    """

    threshold_results: tuple[ThresholdResult | None, ...]

    @property
    def accepts_any_row(self) -> bool:
        """Whether at least one row is accepted."""
        return any(
            result is not None and result.n_accepted > 0 for result in self.threshold_results
        )

    @property
    def design(self) -> CertificationDesign:
        """Design that records the kind of tests and the rows read to plan the tests."""
        tested_results = [result for result in self.threshold_results if result is not None]
        return CertificationDesign(
            tests_score_values=any(result.tests_tie_blocks for result in tested_results),
            n_planning_rows=sum(result.n_planning_rows for result in tested_results),
        )

    @property
    def every_test_passed(self) -> bool:
        """Whether there is a single threshold, and all its tests passed."""
        if len(self.threshold_results) != 1:
            return False
        only_result = self.threshold_results[0]
        return only_result is not None and only_result.every_test_passed

    def count_accepted(self, threshold_index: int) -> int:
        """Return the number of rows that a threshold accepts."""
        threshold_result = self.threshold_results[threshold_index]
        if threshold_result is None:
            return 0
        return threshold_result.n_accepted

    def get_threshold(self, threshold_index: int) -> float | None:
        """Return a threshold, or None if it is not certified."""
        threshold_result = self.threshold_results[threshold_index]
        if threshold_result is None:
            return None
        return threshold_result.threshold


class DecisionColumns(NamedTuple):
    """Columns from which a gate decides whether to accept each row.

    Attributes
    ----------
    uncertainty : array of float of shape (n_rows,)
        Score that is compared with the threshold.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.

    threshold_indices : array of int of shape (n_rows,)
        Index of the threshold of each row within its subgroup.
    """

    uncertainty: Float
    correct: Flags
    threshold_indices: Codes


class Procedure(Protocol):
    """Interface of the procedures that certify all rows together."""

    def certify_promise(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Certify a promise about all rows.

        Raises
        ------
        InfeasibleTargetError
            If the rows do not support the promise.
        """

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Describe why a certificate from a file cannot be genuine, or return None.

        Only the counts of a certificate are available, not its rows. The description names
        `promise`.
        """

    def build_pilot_policy(
        self, random_state: int | None = None, declared_score_values: Float | None = None
    ) -> PilotPolicy | None:
        """Build the policy that chooses pilot rows, or None if none are used."""


class SubgroupProcedure(Procedure, Protocol):
    """Interface of the procedures that can also certify each subgroup."""

    @property
    def promised_limits(self) -> tuple[PromisedLimit, ...]:
        """Promised limits, in the order in which the promise names them."""

    @property
    def rule_name(self) -> str:
        """Name of the rule in certificates and files."""

    @property
    def score_name(self) -> str | None:
        """Name of the score that thresholds apply to, or None if the caller chooses it."""

    @property
    def fallback_threshold(self) -> float:
        """Threshold of a subgroup for which nothing is certified."""

    def get_main_limit(self, rows: CalibrationRows) -> PromisedLimit:
        """Return the limit that the certificate names first."""

    def compute_row_requirements(
        self, rows: CalibrationRows, significance_level: float
    ) -> list[RowRequirement]:
        """Count the reference rows and the required rows of each rule of the procedure."""

    def certify_subgroup(
        self,
        rows: CalibrationRows,
        significance_level: float,
        plan_significance_level: float | None = None,
    ) -> SubgroupResult:
        """Certify the thresholds of a subgroup.

        Parameters
        ----------
        rows : CalibrationRows
            Rows of the subgroup.

        significance_level : float
            Significance level of the tests.

        plan_significance_level : float, optional
            Significance level that the tests are planned for, by default `significance_level`.

        Returns
        -------
        SubgroupResult
        """

    def build_subgroup_certificates(
        self,
        subgroup_names: tuple[Name, ...],
        rows: CalibrationRows,
        result: SubgroupResult | None,
        significance_level: float | None,
        significance_level_if_untested: float,
    ) -> tuple[SubgroupCertificate, ...]:
        """Build the certificates of a subgroup, one for each of its thresholds.

        Parameters
        ----------
        subgroup_names : tuple of str or int
            Names of the classes or groups in the subgroup.

        rows : CalibrationRows
            Rows of the subgroup.

        result : SubgroupResult or None
            Result of the test, or None if the subgroup was not tested.

        significance_level : float or None
            Significance level of the test, or None if the subgroup was not tested.

        significance_level_if_untested : float
            Significance level for which the number of required rows is computed if the subgroup
            was not tested.

        Returns
        -------
        tuple of SubgroupCertificate
        """

    def compute_decision_columns(
        self, rows: CalibrationRows, decision_log_odds: float | Float
    ) -> DecisionColumns:
        """Compute the columns from which a gate decides whether to accept each row."""

    def find_contradiction_in_subgroup(
        self,
        subgroup_certificates: tuple[SubgroupCertificate, ...],
        significance_level: float,
        promise: object,
    ) -> str | None:
        """Describe why certificates of a subgroup cannot be genuine, or return None."""

    def with_early_starts(self) -> SubgroupProcedure:
        """Return the procedure with test sequences that start at lower ranks."""
