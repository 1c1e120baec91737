"""Ranking scores as ONNX nodes.

In onnxruntime, an exponential in double precision takes ten times as long as in single precision.
A wide float32 table is therefore scored in two steps:

1. All rows are scored in single precision, with a bound on the error.
2. A row needs rescoring if its score is within the bound of the threshold, or is not a finite number.
   Such rows are scored again in double precision, as in Python.

The decision on every row is that of double precision. The score of any other row is accurate up
to the bound. Comparing the single-precision score with the threshold directly would be faster, but
would change decisions.

Numbers per row have the shape (n,) in step 1. An operator on shape (n, 1) and a single number takes
six times as long in onnxruntime, because it calls its inner loop once per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.export.onnx.operations import (
    GraphValue,
    OnnxOperations,
    branch_on_masks,
    replace_finite_masks,
)
from metacal.formulas import rowwise
from metacal.scores.registry import NAMED

# Unit roundoff of float32, which is half the distance from 1 to the next number.
_UNIT_ROUNDOFF = 2.0**-24

# For fewer classes, the additional nodes cost more time than exponentials in double precision.
_MIN_CLASSES_FOR_SINGLE_PRECISION = 33

# The largest probability among this many columns has almost never underflowed.
_N_REFERENCE_COLUMNS = 4

# A smaller float32 probability may have lost digits to underflow.
_MIN_ACCURATE_PROBABILITY = 1e-36

# Upper bound on the absolute value of log p for p > _MIN_ACCURATE_PROBABILITY.
_MAX_ABS_LOG_PROBABILITY = 83.0

# Scores and sums of logits beyond this value are treated as infinite.
_MAX_FINITE = 1e30


@dataclass(frozen=True)
class ScoreEstimate:
    """Score in single precision, with the scale of its rounding error.

    Attributes
    ----------
    score : GraphValue of shape (n,)
        Estimated score.

    error_scale : GraphValue of shape (n,) or None
        Number that the rounding error is proportional to. None if the error is bounded by a
        constant.

    is_valid : GraphValue of shape (n,)
        Whether all logits of the row are finite, and the estimate has lost no digits to underflow.
    """

    score: GraphValue
    error_scale: GraphValue | None
    is_valid: GraphValue


@dataclass(frozen=True)
class TopLogit:
    """Largest logit of each row.

    Attributes
    ----------
    prediction : GraphValue of shape (n, 1)
        Column of the largest logit.

    value : GraphValue of shape (n,)
        Largest logit.
    """

    prediction: GraphValue
    value: GraphValue


def _estimate_entropy(
    xp: OnnxOperations, logits: GraphValue, top: TopLogit | None
) -> ScoreEstimate:
    """Estimate the entropy as log Σ e^x - Σ p x.

    The estimate of a row is not finite if one of its logits is not.
    """
    log_sum_exp = _append_log_sum_exp(xp, logits, top)
    mean_logit = xp.squeeze(xp.sum(xp.softmax(logits) * logits))
    return ScoreEstimate(
        score=log_sum_exp.value - mean_logit,
        error_scale=log_sum_exp.magnitude,
        is_valid=log_sum_exp.is_accurate,
    )


def _estimate_one_minus_max(
    xp: OnnxOperations, logits: GraphValue, top: TopLogit | None
) -> ScoreEstimate:
    """Estimate 1 - max p, where p are the probabilities of a row.

    A row is valid if the sum of its logits is finite, because then all of them are.
    """
    largest_probability = _append_largest_probability(xp, logits, top)
    is_finite_row = xp.absolute(xp.squeeze(xp.sum(logits))) < _MAX_FINITE
    return ScoreEstimate(score=1.0 - largest_probability, error_scale=None, is_valid=is_finite_row)


def _estimate_energy(xp: OnnxOperations, logits: GraphValue, top: TopLogit | None) -> ScoreEstimate:
    """Estimate the energy -log Σ e^x."""
    log_sum_exp = _append_log_sum_exp(xp, logits, top)
    is_finite_row = xp.absolute(xp.squeeze(xp.sum(logits))) < _MAX_FINITE
    return ScoreEstimate(
        score=-log_sum_exp.value,
        error_scale=log_sum_exp.magnitude,
        is_valid=log_sum_exp.is_accurate & is_finite_row,
    )


@dataclass(frozen=True)
class _LogSumExp:
    """Logarithm of the sum of exponentials of each row, in single precision.

    Attributes
    ----------
    value : GraphValue of shape (n,)
        log Σ e^x.

    magnitude : GraphValue of shape (n,)
        Absolute value of log Σ e^x, which its rounding error is proportional to.

    is_accurate : GraphValue of shape (n,)
        Whether the value has lost no digits to underflow.
    """

    value: GraphValue
    magnitude: GraphValue
    is_accurate: GraphValue


def _append_largest_probability(
    xp: OnnxOperations, logits: GraphValue, top: TopLogit | None
) -> GraphValue:
    """Append the largest probability of each row, of shape (n,)."""
    if top is None:
        return xp.squeeze(xp.max(xp.softmax(logits)))
    return xp.squeeze(xp.append_node("GatherElements", xp.softmax(logits), top.prediction, axis=1))


def _append_log_sum_exp(xp: OnnxOperations, logits: GraphValue, top: TopLogit | None) -> _LogSumExp:
    """Append the nodes that compute log Σ e^x from one column of each row.

    log Σ e^x = x_j - log p_j for every column j, unless p_j has underflowed. If the largest logit
    is not known, the largest of a few columns is used. It almost never has underflowed, and not
    searching for the largest logit of the row saves two passes over the table.
    """
    if top is None:
        reference_logit = xp.squeeze(xp.max(_select_few_columns(xp, logits)))
        reference_prob = xp.squeeze(xp.max(_select_few_columns(xp, xp.softmax(logits))))
    else:
        reference_logit = top.value
        reference_prob = _append_largest_probability(xp, logits, top)
    # log p_j = x_j - log Σ e^x, where j is the class of the reference.
    log_sum_exp = reference_logit - xp.log(reference_prob)
    return _LogSumExp(
        value=log_sum_exp,
        magnitude=xp.absolute(log_sum_exp),
        is_accurate=reference_prob > _MIN_ACCURATE_PROBABILITY,
    )


def _select_few_columns(xp: OnnxOperations, table: GraphValue) -> GraphValue:
    """Append the nodes that select a few evenly spaced columns of a table."""
    column_step = math.ceil(xp.n_classes / _N_REFERENCE_COLUMNS)
    start = xp.graph.add_integers(0)
    end = xp.graph.add_integers(np.iinfo(np.int64).max)
    class_axis = xp.graph.add_integers(1)
    step = xp.graph.add_integers(column_step)
    return xp.append_node("Slice", table, start, end, class_axis, step)


@dataclass(frozen=True)
class SinglePrecisionScores:
    """Scores in single precision, with a flag for those that rounding cannot affect.

    Attributes
    ----------
    estimate : GraphValue of shape (n,)
        Score in single precision.

    is_finite : GraphValue of shape (n,)
        Whether the score is finite. All logits of such a row are finite.

    is_decision_exact : GraphValue of shape (n,)
        Whether the score is finite, and rounding errors cannot have changed the decision.

    is_finite_for_huge_logits : bool
        Whether the score can be finite for logits so large that a multiple of them overflows.
    """

    estimate: GraphValue
    is_finite: GraphValue
    is_decision_exact: GraphValue
    is_finite_for_huge_logits: bool

    def estimates_in_double(self, xp: OnnxOperations) -> GraphValue:
        """Append the single-precision scores as doubles of shape (n,)."""
        return xp.with_dtype("float64").cast(self.estimate)

    def rescore_rows_near_threshold(
        self, xp: OnnxOperations, logits: GraphValue, score_name: str
    ) -> GraphValue:
        """Append scores of shape (n,), with rows near the threshold scored in double precision."""
        double_xp = xp.with_dtype("float64")
        needs_rescoring = ~xp.graph_value(self.is_decision_exact)
        row_indices, scatter_indices = double_xp.find_true_rows(needs_rescoring)
        logits_to_rescore = double_xp.cast(xp.take(logits, row_indices))
        estimates = self.estimates_in_double(xp)
        exact_scores = _append_score_formula(double_xp, logits_to_rescore, score_name)
        return double_xp.append_node("ScatterND", estimates, scatter_indices, exact_scores)


@dataclass(frozen=True)
class DoublePrecisionScores:
    """Scores of all rows in double precision, with the interface of `SinglePrecisionScores`.

    Attributes
    ----------
    score : GraphValue of shape (n,)
        Score in double precision, NaN if the row is invalid.

    is_finite, is_decision_exact : GraphValue of shape (n,)
        Whether the score is finite. No logit of such a row is NaN or +inf.

    is_finite_for_huge_logits : bool
        Whether the score can be finite for logits so large that a multiple of them overflows.
    """

    score: GraphValue
    is_finite: GraphValue
    is_decision_exact: GraphValue
    is_finite_for_huge_logits: bool = True

    def estimates_in_double(self, xp: OnnxOperations) -> GraphValue:
        """Return the scores, of shape (n,)."""
        return xp.with_dtype("float64").graph_value(self.score)

    def rescore_rows_near_threshold(
        self, xp: OnnxOperations, logits: GraphValue, score_name: str
    ) -> GraphValue:
        """Return the scores, of shape (n,). They are in double precision already."""
        return self.estimates_in_double(xp)


def append_single_precision_scores(
    xp: OnnxOperations,
    logits: GraphValue,
    score_name: str,
    threshold: float,
    find_top_logit: Callable[[OnnxOperations, GraphValue], TopLogit] | None = None,
) -> SinglePrecisionScores | None:
    """Append the nodes that score a wide float32 table in single precision.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    logits : GraphValue of shape (n, K)
        Logits.

    score_name : str
        Name of the score.

    threshold : float
        Threshold that the score is compared with.

    find_top_logit : callable or None, default=None
        Function that appends the largest logit of each row, if other nodes need it as well. The
        score then needs fewer nodes.

    Returns
    -------
    SinglePrecisionScores or None
        None if single precision is not faster, or the score has no estimate.
    """
    score_formula = NAMED[score_name].formula_function()
    estimate_score = ESTIMATORS_BY_FORMULA.get(score_formula)
    is_wide = xp.n_classes >= _MIN_CLASSES_FOR_SINGLE_PRECISION
    if estimate_score is None or xp.dtype == "float64" or not is_wide:
        return None
    top = None if find_top_logit is None else find_top_logit(xp, logits)
    estimate = estimate_score(xp, logits, top)
    finite_threshold = threshold if np.isfinite(threshold) else 0.0
    distance = xp.absolute(estimate.score - finite_threshold)
    is_finite = (distance < _MAX_FINITE) & estimate.is_valid
    has_constant_error = estimate.error_scale is None
    if estimate.error_scale is not None:
        is_finite = is_finite & (estimate.error_scale < _MAX_FINITE)
    # No rounding error moves a finite score across an infinite threshold.
    is_decision_exact = is_finite
    if np.isfinite(threshold):
        is_decision_exact = is_finite & (distance > _bound_error(xp, estimate, threshold))
    return SinglePrecisionScores(
        estimate=estimate.score,
        is_finite=is_finite,
        is_decision_exact=is_decision_exact,
        # Other errors have the scale log Σ e^x, so a finite scale limits the logits.
        is_finite_for_huge_logits=has_constant_error,
    )


def _bound_error(xp: OnnxOperations, estimate: ScoreEstimate, threshold: float) -> Any:
    """Append the distance from the threshold beyond which rounding changes no decision.

    Proof of the bound, with u the unit roundoff:

    1. A sum over K classes is computed with at least four partial sums, so its relative error is at
       most (K/4 + a few) u.
    2. Σ p |x| is at most |log Σ e^x| + h, where h is the entropy.
    3. The logarithm of a probability above 1e-36 is at most 83 in absolute value, and its error at
       most four units of that.

    All comparisons are false for NaN, so a row with NaN needs rescoring. Testing that the score is
    *within* the bound and negating the result would not be valid, because NaN would count as exact.
    """
    max_roundings_of_sum = xp.n_classes / 4.0 + 64.0
    relative_error = max_roundings_of_sum * _UNIT_ROUNDOFF
    log_probability_error = 4.0 * _MAX_ABS_LOG_PROBABILITY * _UNIT_ROUNDOFF
    constant_error = relative_error * (1.0 + abs(threshold)) + log_probability_error
    if estimate.error_scale is None:
        return constant_error
    return estimate.error_scale * relative_error + constant_error


def append_double_precision_scores(
    xp: OnnxOperations, logits: GraphValue, score_name: str
) -> GraphValue:
    """Append the nodes that compute the score of each row in double precision.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    logits : GraphValue of shape (n, K)
        Logits.

    score_name : str
        Name of the score.

    Returns
    -------
    GraphValue of shape (n,)
        Score, or NaN for a row that Python would reject as invalid.
    """
    double_xp = xp.with_dtype("float64")
    if NAMED[score_name].formula_function() is rowwise.negative_margin:
        # The margin needs only the two largest logits in double precision, not the whole table.
        return double_xp.squeeze(_append_negative_margin(xp, logits))
    return _append_score_formula(double_xp, double_xp.cast_if_needed(logits), score_name)


def _append_score_formula(
    double_xp: OnnxOperations, double_logits: GraphValue, score_name: str
) -> GraphValue:
    """Append the nodes that evaluate the formula of a score. Invalid rows get NaN."""
    named_score = NAMED[score_name]
    formula = named_score.formula_function()

    def score_without_masks(branch_xp: OnnxOperations) -> GraphValue:
        return formula(branch_xp, branch_xp.graph_value(double_logits))

    def score_with_masks(branch_xp: OnnxOperations) -> GraphValue:
        return formula(branch_xp, replace_finite_masks(branch_xp, double_logits))

    if named_score.replaces_finite_masks:
        scores = branch_on_masks(
            double_xp,
            double_logits,
            write_unmasked=score_without_masks,
            write_masked=score_with_masks,
        )
    else:
        scores = score_without_masks(double_xp)
    is_valid = is_valid_row(double_xp, double_logits)
    return double_xp.squeeze(double_xp.where(is_valid, scores, np.nan))


def _append_negative_margin(xp: OnnxOperations, logits: GraphValue) -> GraphValue:
    """Append the second largest logit minus the largest logit of each row (n × 1).

    Only the two largest logits are converted to double precision, so the difference is exact for
    float32 logits. It is the most negative double if all other classes are masked, and NaN if a
    logit is NaN or the largest one is infinite.
    """
    double_xp = xp.with_dtype("float64")
    two_largest, has_no_nan = _append_two_largest(xp, logits)
    largest = xp.column(two_largest, 0)
    second_largest = xp.column(two_largest, 1)
    # If the map also needs the largest logit of each row, it then reuses this column.
    xp.graph.declare_reduction("ReduceMax", logits.name, largest.name)
    double_largest = double_xp.cast(largest)
    double_second = double_xp.cast(second_largest)
    negative_margin = double_xp.maximum(double_second - double_largest, -np.finfo(np.float64).max)
    is_valid = (double_xp.absolute(double_largest) < np.inf) & has_no_nan
    return double_xp.where(is_valid, negative_margin, np.nan)


def _append_two_largest(xp: OnnxOperations, logits: GraphValue) -> tuple[GraphValue, GraphValue]:
    """Append the nodes that find the two largest logits of each row.

    TopK is used if there are rows and no sum of a row is NaN. TopK of an empty table divides by
    zero in many versions of onnxruntime and ends the process. A sum is NaN if a logit is NaN, but
    also if huge logits of both signs occur.

    Returns
    -------
    two_largest : GraphValue of shape (n, 2)
        Largest logit, and second largest logit.

    has_no_nan : GraphValue of shape (n, 1)
        Whether the row contains no NaN.
    """
    single_xp = xp.with_dtype("float32")
    is_sum_a_number = ~xp.append_node("IsNaN", xp.sum(logits))
    # The minimum is 0 or 1, or +inf if there are no rows.
    smallest_flag = single_xp.append_node("ReduceMin", single_xp.cast(is_sum_a_number), keepdims=0)

    def use_top_k(branch_xp: OnnxOperations) -> list[GraphValue]:
        n_largest = branch_xp.graph.add_integers(2)
        largest_values_name, _largest_indices_name = branch_xp.graph.append_multi_output_node(
            "TopK", 2, logits.name, n_largest, axis=1
        )
        two_largest = branch_xp.graph_value(largest_values_name)
        return [two_largest, branch_xp.append_node("Identity", is_sum_a_number)]

    def use_two_maxima(branch_xp: OnnxOperations) -> list[GraphValue]:
        table = branch_xp.graph_value(logits)
        other_logits = branch_xp.replace_class_entry(table, branch_xp.argmax(table), -np.inf)
        two_largest = branch_xp.join_columns(branch_xp.max(table), branch_xp.max(other_logits))
        return [two_largest, is_valid_row(branch_xp, table)]

    has_rows_and_no_nan_sum = smallest_flag == 1.0
    two_largest, has_no_nan = xp.if_else(
        has_rows_and_no_nan_sum, use_top_k, use_two_maxima, [xp.dtype, "bool"]
    )
    return two_largest, has_no_nan


def is_valid_row(xp: OnnxOperations, logits: GraphValue) -> GraphValue:
    """Append a flag for each row of logits that is valid (n × 1).

    A valid row contains no NaN, and its largest logit is finite. Python rejects other rows.
    """
    single_xp = xp.with_dtype("float32")
    is_nan = single_xp.cast(xp.append_node("IsNaN", logits))
    largest_nan_flag = single_xp.max(is_nan)
    largest_logit = xp.max(logits)
    has_finite_maximum = (largest_logit > -np.inf) & (largest_logit < np.inf)
    return has_finite_maximum & (largest_nan_flag == 0.0)


#: Function that estimates a score in single precision. Its parameters are the operations, the
#: logits, and the largest logit of each row if it is known.
ScoreEstimator = Callable[[OnnxOperations, GraphValue, TopLogit | None], ScoreEstimate]

#: Functions that estimate a score in single precision, keyed by the formula of the score.
ESTIMATORS_BY_FORMULA: dict[Callable[..., Any], ScoreEstimator] = {
    rowwise.entropy: _estimate_entropy,
    rowwise.one_minus_max_probability: _estimate_one_minus_max,
    rowwise.free_energy: _estimate_energy,
}
