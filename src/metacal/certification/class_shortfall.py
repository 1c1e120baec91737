"""Explanation of why the rows do not certify a promise about one of two classes.

It has the best value that the rows certify, and about how many rows would certify the promised one.
None of this influences a certificate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from metacal.certificates.subgroups import Name
from metacal.certification.plans import PilotRows
from metacal.certification.rows import CalibrationRows
from metacal.certification.rows_needed import estimate_rows_needed_by_resampling
from metacal.certification.ruled_out import RuledOut, find_ruled_out_thresholds
from metacal.certification.rules.accuracy_shortfall import (
    ACCURACY_STEPS_PER_UNIT,
    estimate_rows_needed_for_accuracy,
    find_highest_certified_step,
)
from metacal.certification.sides import ClassPromise
from metacal.formulas import Codes
from metacal.statistics import bounds

# Smallest share of a class for which error curves estimate the number of rows needed.
# Error curves suit rankings of mostly correct rows, so resampling is used for rarer classes.
_MIN_SHARE_FOR_ERROR_CURVES = 0.2

# Maximum number of rows to resample, because resampling more rows takes seconds.
_MAX_ROWS_TO_RESAMPLE = 30_000


@dataclass(frozen=True)
class ClassShortfall:
    """Explanation of why a promise about one of two classes is not certified.

    Attributes
    ----------
    class_promise : ClassPromise
        Promise for which no row may be accepted.

    predicted_class, positive_class, other_class : str, bool, int or float
        Class that rows would be accepted as, positive class of the promise, and the class of the
        rows that must not be accepted so.

    n_rows, n_rows_of_other_class : int
        Number of tested rows, and how many of them are of the other class.

    class_share : float
        Share of the predicted class among the tested rows.

    significance_level : float
        Significance level of this promise.

    best_target : float or None
        Best value that these rows certify and that accepting every row does not reach. None if
        there is none.

    n_required_rows : int
        Smallest number of rows with which a test passes: accepted rows for a precision, and rows
        of the other class for a recall or a false-positive rate.

    rows_needed : int or None
        Approximate number of rows, of both classes, that would certify the promise.

    ruled_out : RuledOut or None
        What the rows prove about all thresholds on a precision.
    """

    class_promise: ClassPromise
    predicted_class: Name
    positive_class: Name
    other_class: Name
    n_rows: int
    n_rows_of_other_class: int
    class_share: float
    significance_level: float
    best_target: float | None
    n_required_rows: int
    rows_needed: int | None
    ruled_out: RuledOut | None


def find_class_shortfall(
    class_promise: ClassPromise,
    rows: CalibrationRows,
    pilot_rows: PilotRows | None,
    significance_level: float,
    class_code: int,
) -> ClassShortfall:
    """Find the best target that the rows certify, and estimate the rows needed.

    Parameters
    ----------
    class_promise : ClassPromise
        Promise for which the rows certify nothing.

    rows : CalibrationRows
        Tested rows of both classes.

    pilot_rows : PilotRows or None
        Pilot rows, with scores that decrease as the class becomes more likely.

    significance_level : float
        Significance level of both class promises together.

    class_code : int
        Index of the class that rows are accepted as.

    Returns
    -------
    ClassShortfall
    """
    n_rows_of_class = int((rows.true_class_codes == class_code).sum())
    class_share = n_rows_of_class / max(len(rows), 1)
    positive_code = class_promise.get_positive_code(rows.class_names)
    level_of_promise = class_promise.compute_level_of_promise(significance_level)
    best_target = _find_best_target(
        class_promise,
        rows,
        pilot_rows,
        significance_level=significance_level,
        class_code=class_code,
        class_share=class_share,
    )
    rows_needed = _estimate_rows_needed(
        class_promise,
        rows,
        pilot_rows,
        significance_level=significance_level,
        class_code=class_code,
        class_share=class_share,
    )
    ruled_out_thresholds = None
    if class_promise.is_precision:
        class_ranking = rows.rank_for_class(class_code)
        ruled_out_thresholds = find_ruled_out_thresholds(
            class_ranking, class_promise.limit, level_of_promise
        )
    return ClassShortfall(
        class_promise=class_promise,
        predicted_class=rows.class_names[class_code],
        positive_class=rows.class_names[positive_code],
        other_class=rows.class_names[1 - class_code],
        n_rows=len(rows),
        n_rows_of_other_class=len(rows) - n_rows_of_class,
        class_share=class_share,
        significance_level=level_of_promise,
        best_target=best_target,
        n_required_rows=class_promise.compute_required_rows(significance_level),
        rows_needed=rows_needed,
        ruled_out=ruled_out_thresholds,
    )


def _find_best_target(
    class_promise: ClassPromise,
    rows: CalibrationRows,
    pilot_rows: PilotRows | None,
    significance_level: float,
    class_code: int,
    class_share: float,
) -> float | None:
    """Find the certifiable target that is nearest to the promised target.

    The search is over the share of the reference rows that do not violate the promise, so a larger
    share is a stricter promise. It is the target of a precision or a recall, and the complement of the
    target of a false-positive rate. Targets have four decimals.
    """
    class_ranking = rows.rank_for_class(class_code)
    has_upper_limit = class_promise.quantity.has_upper_limit
    is_precision = class_promise.is_precision

    def complement_if_upper_limit(share: float) -> float:
        if has_upper_limit:
            return round(1.0 - share, 4)
        return round(share, 4)

    def certifies_share_without_violation(share_without_violation: float) -> bool:
        weaker_promise = replace(
            class_promise, target=complement_if_upper_limit(share_without_violation)
        )
        threshold_result = weaker_promise.certify(class_ranking, significance_level, pilot_rows)
        return threshold_result.n_accepted > 0

    lowest_share = 0.0
    if is_precision:
        # A precision below the share of the class would be met by accepting every row.
        precision_of_all_rows = class_share
        lowest_share = precision_of_all_rows
    promised_share = complement_if_upper_limit(class_promise.target)
    lowest_step = math.floor(ACCURACY_STEPS_PER_UNIT * lowest_share)
    promised_step = math.ceil(ACCURACY_STEPS_PER_UNIT * promised_share)
    highest_certified_step = find_highest_certified_step(
        certified_step=lowest_step,
        uncertified_step=promised_step,
        certifies=certifies_share_without_violation,
    )
    nothing_is_certified = highest_certified_step == lowest_step
    if nothing_is_certified:
        return None
    best_share = highest_certified_step / ACCURACY_STEPS_PER_UNIT
    return complement_if_upper_limit(best_share)


def _estimate_rows_needed(
    class_promise: ClassPromise,
    rows: CalibrationRows,
    pilot_rows: PilotRows | None,
    significance_level: float,
    class_code: int,
    class_share: float,
) -> int | None:
    """Estimate the number of rows of both classes that certifies the promise."""
    is_precision = class_promise.is_precision
    if is_precision and class_share >= _MIN_SHARE_FOR_ERROR_CURVES:
        return _estimate_rows_by_error_curves(
            class_promise, rows, pilot_rows, significance_level, class_code
        )
    if not is_precision:
        # A recall or a false-positive rate is computed from the rows of the other class.
        n_rows_of_other_class_needed = class_promise.compute_required_rows(significance_level)
        share_of_other_class = 1.0 - class_share
        if share_of_other_class == 0.0:
            return None
        min_rows_of_both_classes = math.ceil(n_rows_of_other_class_needed / share_of_other_class)
        if min_rows_of_both_classes > len(rows):
            return bounds.round_up_to_two_digits(min_rows_of_both_classes)
    if len(rows) > _MAX_ROWS_TO_RESAMPLE:
        return None
    return _estimate_rows_by_resampling(
        class_promise, rows, pilot_rows, significance_level, class_code
    )


def _estimate_rows_by_error_curves(
    class_promise: ClassPromise,
    rows: CalibrationRows,
    pilot_rows: PilotRows | None,
    significance_level: float,
    class_code: int,
) -> int | None:
    """Estimate the rows needed to certify a precision from fitted error curves."""
    class_ranking = rows.rank_for_class(class_code)
    threshold_result = class_promise.certify(class_ranking, significance_level, pilot_rows)
    level_of_promise = class_promise.compute_level_of_promise(significance_level)
    return estimate_rows_needed_for_accuracy(
        class_ranking, class_promise.limit, level_of_promise, threshold_result.n_planning_rows
    )


def _estimate_rows_by_resampling(
    class_promise: ClassPromise,
    rows: CalibrationRows,
    pilot_rows: PilotRows | None,
    significance_level: float,
    class_code: int,
) -> int | None:
    """Estimate the rows needed to certify a promise by resampling the rows."""
    indices_by_score = np.argsort(rows.scores, kind="stable")

    def sample_certifies_promise(drawn_positions: Codes) -> bool:
        drawn_rows = rows.take(indices_by_score[drawn_positions])
        class_ranking = drawn_rows.rank_for_class(class_code)
        threshold_result = class_promise.certify(class_ranking, significance_level, pilot_rows)
        return threshold_result.n_accepted > 0

    return estimate_rows_needed_by_resampling(len(rows), sample_certifies_promise)
