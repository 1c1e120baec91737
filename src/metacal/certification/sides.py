"""Promise about the rows that are accepted as one of two classes.

A row is *accepted as* a class if the gate predicts the class and does not send the row to review.
`certification.two_sides` certifies one promise or two, and has the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metacal.certificates.counts import Counts
from metacal.certificates.quantity import Quantity
from metacal.certificates.subgroups import Name
from metacal.certification.plans import PilotRows
from metacal.certification.procedures import RowRequirement
from metacal.certification.ranking import Ranking
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.rule import (
    NOTHING_CERTIFIED,
    ThresholdResult,
    ThresholdRule,
    run_rule,
)
from metacal.certification.unsuitable_rows import build_unknown_class_error

# Largest declared share of the predicted class at which correct rows count as rare.
_MAX_SHARE_OF_RARE_CORRECT_ROWS = 0.5

# Largest declared share at which a class counts as rare when the level is divided.
_MAX_RARE_CLASS_SHARE = 0.2

# Fraction of the significance level that the promise about a rare class receives.
_RARE_CLASS_LEVEL_FRACTION = 0.8

# Fraction of the significance level that each promise receives if no class is rare.
_EQUAL_LEVEL_FRACTION = 0.5

# Code of the first class.
_FIRST_CLASS = 0

# Code of the second class, which is the positive class by default.
_SECOND_CLASS = 1


@dataclass(frozen=True)
class ClassPromise:
    """Promise about the rows that are accepted as one of two classes.

    Attributes
    ----------
    quantity : Quantity
        Quantity that is limited.

    target : float
        Promised limit of the quantity.

    rule : ThresholdRule
        Rule that certifies the promise. The rows are ranked so that the rows most likely to be of
        the predicted class come first.

    positive : str, int or None
        Name of the positive class. None for the second class.

    is_about_predicted_positives : bool
        Whether the promise is about the rows that are accepted as positive. Otherwise it is about
        the rows that are accepted as negative.

    declared_class_share : float or None
        Share of the predicted class among all rows, if the user declared it for a precision.

    level_fraction : float
        Fraction of the significance level that the promise receives.
    """

    quantity: Quantity
    target: float
    rule: ThresholdRule
    positive: Name | None = None
    is_about_predicted_positives: bool = True
    declared_class_share: float | None = None
    level_fraction: float = 1.0

    @property
    def is_precision(self) -> bool:
        """Whether the promise is a precision: the share of the class among the accepted rows.

        The other promises limit the share of the other class that is accepted as this class.
        """
        return not self.quantity.conditions_on_true_class

    @property
    def limit(self) -> float:
        """Limit that the rule tests. It follows from the target."""
        return self.rule.convert_target_to_limit(self.quantity, self.target)

    def get_positive_code(self, class_names: Sequence[Name]) -> int:
        """Return the index of the positive class of the promise."""
        if self.positive is None:
            return _SECOND_CLASS
        if self.positive not in list(class_names):
            raise build_unknown_class_error(self.positive, class_names)
        return list(class_names).index(self.positive)

    def get_predicted_code(self, class_names: Sequence[Name]) -> int:
        """Return the index of the class that accepted rows are predicted as."""
        positive_code = self.get_positive_code(class_names)
        if self.is_about_predicted_positives:
            return positive_code
        # The classes have the codes 0 and 1, so this is the code of the other class.
        return 1 - positive_code

    def is_trivially_kept(self, rows: CalibrationRows) -> bool:
        """Check whether predicting the class for every row would meet the promise."""
        if not self.is_precision or len(rows) == 0:
            return False
        is_of_class = rows.true_class_codes == self.get_predicted_code(rows.class_names)
        precision_of_all_rows = float(is_of_class.mean())
        return precision_of_all_rows >= self.target

    def compute_row_requirement(
        self, rows: CalibrationRows, significance_level: float
    ) -> RowRequirement:
        """Count the reference rows, and compute how many the rule requires.

        All rows are counted for a precision, so that labels have no influence. Otherwise the rows of
        the other class are counted.

        Parameters
        ----------
        rows : CalibrationRows
            Rows of both classes.

        significance_level : float
            Significance level of both class promises together.

        Returns
        -------
        RowRequirement
        """
        n_required_rows = self.compute_required_rows(significance_level)
        if self.is_precision:
            return RowRequirement(n_reference_rows=len(rows), n_required_rows=n_required_rows)
        is_of_other_class = rows.true_class_codes != self.get_predicted_code(rows.class_names)
        return RowRequirement(
            n_reference_rows=int(is_of_other_class.sum()), n_required_rows=n_required_rows
        )

    def compute_required_rows(self, significance_level: float) -> int:
        """Compute the smallest number of reference rows that certifies the promise."""
        return self.rule.compute_required_rows(
            self.limit, self.compute_level_of_promise(significance_level)
        )

    def certify(
        self,
        ranking: Ranking,
        significance_level: float,
        pilot_rows: PilotRows | None,
        max_tested_rank: int | None = None,
    ) -> ThresholdResult:
        """Certify how many rows may be accepted as the class.

        Parameters
        ----------
        ranking : Ranking
            Rows in the order of `CalibrationRows.rank_for_class`.

        significance_level : float
            Significance level of both class promises together.

        pilot_rows : PilotRows or None
            Pilot rows, with scores that decrease as the class becomes more likely. A pilot row is
            correct if it is of the class.

        max_tested_rank : int, optional
            If given, at most this many rows are accepted.

        Returns
        -------
        ThresholdResult
        """
        no_row_may_be_accepted = max_tested_rank == 0
        if no_row_may_be_accepted:
            return NOTHING_CERTIFIED
        correct_rows_are_rare = None
        if self.declared_class_share is not None:
            correct_rows_are_rare = self.declared_class_share <= _MAX_SHARE_OF_RARE_CORRECT_ROWS
        return run_rule(
            self.rule,
            ranking,
            self.limit,
            self.compute_level_of_promise(significance_level),
            pilot_rows=pilot_rows,
            max_tested_rank=max_tested_rank,
            correct_rows_are_rare=correct_rows_are_rare,
        )

    def supports(self, counts: Counts, significance_level: float) -> bool:
        """Check whether the counts of accepted rows support the promise."""
        return self.rule.supports(
            counts, self.limit, self.compute_level_of_promise(significance_level)
        )

    def compute_level_of_promise(self, significance_level: float) -> float:
        """Compute the significance level of this promise from the total level."""
        return significance_level * self.level_fraction


def divide_level_between_classes(
    promises_by_class: dict[int, ClassPromise],
) -> dict[int, ClassPromise]:
    """Divide the significance level between two class promises.

    Parameters
    ----------
    promises_by_class : dict of int to ClassPromise
        Promise about each of the classes 0 and 1.

    Returns
    -------
    dict of int to ClassPromise
    """
    level_fraction_of_first = _choose_level_fraction_of_first_class(promises_by_class)
    level_fractions = (level_fraction_of_first, 1.0 - level_fraction_of_first)
    return {
        class_code: replace(class_promise, level_fraction=level_fractions[class_code])
        for class_code, class_promise in promises_by_class.items()
    }


def _choose_level_fraction_of_first_class(promises_by_class: dict[int, ClassPromise]) -> float:
    """Return the fraction of the significance level for the first class.

    It is a half, unless both promises are precisions and a class is declared to be rare.
    """
    share_of_first_class = None
    if all(class_promise.is_precision for class_promise in promises_by_class.values()):
        share_of_first_class = _get_declared_share_of_first_class(promises_by_class)
    if share_of_first_class is None:
        return _EQUAL_LEVEL_FRACTION
    return _choose_level_fraction_by_share(share_of_first_class)


def _get_declared_share_of_first_class(
    promises_by_class: dict[int, ClassPromise],
) -> float | None:
    """Return the share of the first class, from the last promise that declares a share."""
    share_of_first_class = None
    for class_code, class_promise in promises_by_class.items():
        declared_share = class_promise.declared_class_share
        if declared_share is not None and class_code == _FIRST_CLASS:
            share_of_first_class = declared_share
        elif declared_share is not None:
            share_of_first_class = 1.0 - declared_share
    return share_of_first_class


def _choose_level_fraction_by_share(class_share: float) -> float:
    """Choose the fraction of the level for a class from its declared share."""
    if class_share <= _MAX_RARE_CLASS_SHARE:
        return _RARE_CLASS_LEVEL_FRACTION
    is_other_class_rare = class_share >= 1.0 - _MAX_RARE_CLASS_SHARE
    if is_other_class_rare:
        return 1.0 - _RARE_CLASS_LEVEL_FRACTION
    return _EQUAL_LEVEL_FRACTION
