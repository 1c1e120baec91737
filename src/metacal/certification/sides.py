"""Side: a promise about the rows that are called by one of two classes.

`certification.two_sides` certifies one side or two, and has the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metacal.certificates.counts import Counts
from metacal.certificates.quantity import Quantity
from metacal.certificates.subgroups import Name
from metacal.certification.plans import PilotRows
from metacal.certification.procedures import (
    RowRequirement,
)
from metacal.certification.ranking import Ranking
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.rule import (
    NOTHING_CERTIFIED,
    ThresholdResult,
    ThresholdRule,
)
from metacal.certification.statements import (
    unknown_class_error,
)


@dataclass(frozen=True)
class ClassPromise:
    """Promise about the rows that are called by one of two classes.

    Attributes
    ----------
    quantity : Quantity
        Quantity that is limited.

    target : float
        Promised limit of the quantity.

    rule : ThresholdRule
        Rule that certifies the side, on rows ranked from the end of its class.

    positive : str, int or None
        Name of the positive class. None for the second class.

    calls_positive : bool
        Whether the side is the rows that are called positive. Otherwise the rows that are called
        negative.

    declared_share : float or None
        Share of the class of this side among all rows, if the user declared it.

    level_share : float
        Fraction of the significance level that the side receives.
    """

    quantity: Quantity
    target: float
    rule: ThresholdRule
    positive: Name | None = None
    is_predicted_positive: bool = True
    declared_class_share: float | None = None
    level_fraction: float = 1.0

    @property
    def limit(self) -> float:
        """Limit that the tests of the rule are about."""
        return self.rule.convert_target_to_limit(self.quantity, self.target)

    def get_positive_code(self, class_names: Sequence[Name]) -> int:
        """Return the index of the positive class, which the promise is about."""
        if self.positive is None:
            return 1
        if self.positive not in list(class_names):
            raise unknown_class_error(self.positive, class_names)
        return list(class_names).index(self.positive)

    def get_predicted_code(self, class_names: Sequence[Name]) -> int:
        """Return the index of the class that the rows of this side are called by."""
        positive_code = self.get_positive_code(class_names)
        if self.is_predicted_positive:
            return positive_code
        return 1 - positive_code

    def is_trivially_kept(self, rows: CalibrationRows) -> bool:
        """Check whether calling every row by the class would keep the promise."""
        if self.quantity.conditions_on_true_class or len(rows) == 0:
            return False
        is_of_class = rows.true_class_codes == self.get_predicted_code(rows.class_names)
        return float(is_of_class.mean()) >= self.target

    def count_rows_and_requirement(
        self, rows: CalibrationRows, significance_level: float
    ) -> RowRequirement:
        """Count the rows that the rule uses, without reading labels if they are tested."""
        n_required = self.compute_required_rows(significance_level)
        if not self.quantity.conditions_on_true_class:
            return RowRequirement(len(rows), n_required)
        is_counted = rows.true_class_codes != self.get_predicted_code(rows.class_names)
        return RowRequirement(int(is_counted.sum()), n_required)

    def compute_required_rows(self, significance_level: float) -> int:
        """Compute the smallest number of counted rows with which the side can be certified."""
        return self.rule.compute_required_rows(self.limit, self._own_level(significance_level))

    def certify(
        self,
        ranking: Ranking,
        significance_level: float,
        pilot: PilotRows | None,
        class_code: int,
        last_rank: int | None = None,
    ) -> ThresholdResult:
        """Certify how many rows from the end of the class may be called by it.

        Parameters
        ----------
        ranking : Ranking
            Rows ranked from the end of the class.

        significance_level : float
            Significance level of both sides together.

        pilot : PilotRows or None
            Pilot rows, with scores that increase from the end of the class.

        class_code : int
            Index of the class of this side.

        last_rank : int, optional
            If given, at most this many rows are accepted.
        """
        if last_rank == 0:
            return NOTHING_CERTIFIED
        rule = self._rule_with_class_share(pilot, class_code)
        own_level = self._own_level(significance_level)
        plan = rule.plan(ranking.n_rows, self.limit, own_level, pilot)
        return rule.certify(ranking, plan, own_level, last_rank)

    def supports(self, counts: Counts, significance_level: float) -> bool:
        """Check whether counts of the rows called by the class support the promise."""
        return self.rule.supports(counts, self.limit, self._own_level(significance_level))

    def _own_level(self, significance_level: float) -> float:
        return significance_level * self.level_fraction

    def _rule_with_class_share(self, pilot: PilotRows | None, class_code: int) -> ThresholdRule:
        """Return the rule for the declared share of the class or the share in the pilot rows."""
        if self.declared_class_share is not None:
            return self.rule.with_correct_share(self.declared_class_share)
        if pilot is None:
            return self.rule
        class_share = pilot.estimate_class_share(class_code)
        if class_share is None:
            return self.rule
        return self.rule.with_correct_share(class_share)
