"""Ranking scores as ONNX nodes.

In onnxruntime, an exponential in double precision takes ten times as long as in single precision.
A wide float32 table is therefore scored in two steps:

1. All rows are scored in single precision, with a bound on the error.
2. A row is *unsettled* if its score is within the bound of the threshold, or is not a finite number.
   Unsettled rows are scored again in double precision, as in Python.

The decision on every row is that of double precision. The score of a settled row is accurate up to
the bound. Comparing the single-precision score with the threshold directly would be faster, but
would change decisions.
"""

from __future__ import annotations

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

# Unit roundoff of float32: half the distance from 1 to the next number.
_UNIT_ROUNDOFF = 2.0**-24

# Largest number of classes for which everything is scored in double precision. For few classes,
# additional nodes cost more than slow exponentials.
_MAX_DOUBLE_CLASSES = 32

# Number of columns among which `_log_sum_exp` chooses a probability that has not underflowed.
_N_REFERENCE_COLUMNS = 4

# Smallest probability that has not lost digits to underflow.
_MIN_PROBABILITY = 1e-36

# Bound on the absolute value of the logarithm of such a probability.
_MAX_LOG_PROBABILITY = 83.0

# Scores and sums beyond this value are treated as not finite.
_MAX_FINITE = 1e30


@dataclass(frozen=True)
class Estimate:
    """Score in single precision.

    Attributes
    ----------
    score : GraphValue of shape (n, 1)
        Estimated score.

    error_scale : GraphValue of shape (n, 1) or None
        Number that the rounding error is proportional to. None if the error is bounded by a
        constant.

    is_valid : GraphValue of shape (n, 1)
        Whether all logits of the row are finite, and the estimate has lost no digits to underflow.
    """

    score: GraphValue
    error_scale: GraphValue | None
    is_valid: GraphValue


def _entropy_estimate(xp: OnnxOperations, x: GraphValue) -> Estimate:
    """Estimate the entropy as log Σ e^x - Σ p x, which is not finite if a logit is not."""
    log_sum_exp, error_scale, is_valid = _log_sum_exp(xp, x)
    entropy = log_sum_exp - xp.sum(xp.softmax(x) * x)
    return Estimate(score=entropy, error_scale=error_scale, is_valid=is_valid)


def _doubt_estimate(xp: OnnxOperations, x: GraphValue) -> Estimate:
    """Estimate 1 - max p. The sum of the logits is finite only if all of them are."""
    largest_probability = xp.max(xp.softmax(x))
    is_valid = xp.absolute(xp.sum(x)) < _MAX_FINITE
    return Estimate(score=1.0 - largest_probability, error_scale=None, is_valid=is_valid)


def _energy_estimate(xp: OnnxOperations, x: GraphValue) -> Estimate:
    """Estimate the energy -log Σ e^x."""
    log_sum_exp, error_scale, has_digits = _log_sum_exp(xp, x)
    is_finite = xp.absolute(xp.sum(x)) < _MAX_FINITE
    return Estimate(score=-log_sum_exp, error_scale=error_scale, is_valid=has_digits & is_finite)


def _log_sum_exp(xp: OnnxOperations, x: GraphValue) -> tuple[GraphValue, GraphValue, GraphValue]:
    """Append the nodes that compute log Σ e^x without the largest logit.

    The largest logit of the row is not needed, which saves two passes over the table:
    log Σ e^x = x_j - log p_j for every column j, unless p_j has underflowed. The largest of a few
    columns almost never has.

    Returns
    -------
    log_sum_exp : GraphValue of shape (n, 1)

    error_scale : GraphValue of shape (n, 1)
        Absolute value of the result, which its error is proportional to.

    has_digits : GraphValue of shape (n, 1)
        Whether the result has lost no digits to underflow.
    """
    logit = xp.max(_reference_columns(xp, x))
    probability = xp.max(_reference_columns(xp, xp.softmax(x)))
    log_sum_exp = logit - xp.log(probability)
    return log_sum_exp, xp.absolute(log_sum_exp), probability > _MIN_PROBABILITY


def _reference_columns(xp: OnnxOperations, table: GraphValue) -> GraphValue:
    """Select a few evenly spaced columns of a table."""
    step = -(-xp.n_classes // _N_REFERENCE_COLUMNS)
    start_index = xp.graph.integers(0)
    end_index = xp.graph.integers(np.iinfo(np.int64).max)
    axis = xp.graph.integers(1)
    return xp.op("Slice", table, start_index, end_index, axis, xp.graph.integers(step))


@dataclass(frozen=True)
class QuickScores:
    """Scores in single precision, and which of them are settled.

    Attributes
    ----------
    estimate : GraphValue of shape (n, 1)
        Score in single precision.

    settled : GraphValue of shape (n, 1)
        Whether rounding errors cannot have changed the decision. All logits of a settled row are
        finite.

    unbounded : bool
        Whether the logits of a settled row can be so large that a multiple of them overflows.
    """

    estimate: GraphValue
    settled: GraphValue
    unbounded: bool

    def estimates_in_double(self, xp: OnnxOperations) -> GraphValue:
        """Return the single-precision scores (n) as doubles."""
        return xp.to("float64").cast(xp.squeeze(self.estimate))

    def with_exact_unsettled(self, xp: OnnxOperations, x: GraphValue, score: str) -> GraphValue:
        """Return the scores (n), with those of unsettled rows computed in double precision."""
        double = xp.to("float64")
        row_indices, scatter_indices = double.rows_where(~xp.squeeze(self.settled))
        unsettled_rows = double.cast(xp.take(x, row_indices))
        estimates = self.estimates_in_double(xp)
        exact = _double_scores(double, unsettled_rows, score)
        return double.op("ScatterND", estimates, scatter_indices, exact)


def quick_scores(
    xp: OnnxOperations, x: GraphValue, score: str, threshold: float
) -> QuickScores | None:
    """Append the nodes that score a wide float32 table in single precision.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    x : GraphValue of shape (n, K)
        Logits.

    score : str
        Name of the score.

    threshold : float
        Threshold that the score is compared with.

    Returns
    -------
    QuickScores or None
        None if single precision does not pay, or the score has no estimate.
    """
    estimate_function = ESTIMATES.get(NAMED[score].formula_function())
    is_narrow = xp.n_classes <= _MAX_DOUBLE_CLASSES
    if estimate_function is None or xp.dtype == "float64" or is_narrow:
        return None
    estimate = estimate_function(xp, x)
    return QuickScores(
        estimate=estimate.score,
        settled=_is_settled(xp, estimate, threshold),
        unbounded=estimate.error_scale is None,
    )


def _is_settled(xp: OnnxOperations, estimate: Estimate, threshold: float) -> GraphValue:
    """Append the nodes that check whether rounding cannot have changed the decision (n × 1).

    Proof of the bound, with u the unit roundoff:

    1. A sum over K classes is computed with at least four partial sums, so its relative error is at
       most (K/4 + a few) u.
    2. Σ p |x| is at most |log Σ e^x| + h, where h is the entropy.
    3. The logarithm of a probability above 1e-36 is at most 83 in absolute value, and its error at
       most four units of that.

    All comparisons are false for NaN, so a row with NaN is not settled. Testing that the score is
    *within* the bound and negating the result would not be valid, because NaN would be settled.
    """
    has_threshold = np.isfinite(threshold)
    distance = xp.absolute(estimate.score - (threshold if has_threshold else 0.0))
    is_settled: GraphValue = (distance < _MAX_FINITE) & estimate.is_valid
    if not has_threshold:
        if estimate.error_scale is None:
            return is_settled
        return is_settled & (estimate.error_scale < _MAX_FINITE)
    relative_error = (xp.n_classes / 4.0 + 64.0) * _UNIT_ROUNDOFF
    constant_error = relative_error * (1.0 + abs(threshold))
    constant_error += 4.0 * _MAX_LOG_PROBABILITY * _UNIT_ROUNDOFF
    if estimate.error_scale is None:
        return is_settled & (distance > constant_error)
    return is_settled & (distance > estimate.error_scale * relative_error + constant_error)


def exact_scores(xp: OnnxOperations, x: GraphValue, score: str) -> GraphValue:
    """Append the nodes that compute the score of each row in double precision.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    x : GraphValue of shape (n, K)
        Logits.

    score : str
        Name of the score.

    Returns
    -------
    GraphValue of shape (n,)
        Score, or NaN for a row that Python would reject as invalid.
    """
    double = xp.to("float64")
    if NAMED[score].formula_function() is rowwise.negative_margin:
        # Only two columns are converted to double precision, not the whole table.
        return double.squeeze(_negative_margin(xp, x))
    double_logits = double.value(x) if xp.dtype == "float64" else double.cast(x)
    return _double_scores(double, double_logits, score)


def _double_scores(double: OnnxOperations, x: GraphValue, score: str) -> GraphValue:
    """Append the formula of a score for logits in double precision."""
    formula = NAMED[score].formula_function()

    def score_unmasked(xp: OnnxOperations) -> GraphValue:
        return formula(xp, xp.value(x))

    def score_masked(xp: OnnxOperations) -> GraphValue:
        return formula(xp, replace_finite_masks(xp, x))

    if NAMED[score].replaces_finite_masks:
        scores = branch_on_masks(double, x, score_unmasked, score_masked)
    else:
        scores = score_unmasked(double)
    return double.squeeze(double.where(is_valid_row(double, x), scores, np.nan))


def _negative_margin(xp: OnnxOperations, x: GraphValue) -> GraphValue:
    """Append the nodes that compute the second largest logit minus the largest (n × 1).

    Only the two largest logits are converted to double precision, so the difference is exact for
    float32 logits. It is the most negative double if all other classes are masked, and NaN if a
    logit is NaN or the largest one is infinite.
    """
    double = xp.to("float64")
    top_two, has_no_nan = _two_largest(xp, x)
    largest = xp.column(top_two, 0)
    second = xp.column(top_two, 1)
    xp.graph.declare_reduction("ReduceMax", x.name, largest.name)
    largest = double.cast(largest)
    second = double.cast(second)
    margin = double.maximum(second - largest, -np.finfo(np.float64).max)
    is_valid = (double.absolute(largest) < np.inf) & has_no_nan
    return double.where(is_valid, margin, np.nan)


def _two_largest(xp: OnnxOperations, x: GraphValue) -> list[GraphValue]:
    """Append the nodes that find the two largest logits of each row.

    TopK is used if there are rows and the sum of every row is a number. TopK of an empty table
    divides by zero in many versions of onnxruntime and ends the process. A sum is NaN if a logit
    is, but also if huge logits of both signs occur.

    Returns
    -------
    list of GraphValue
        The two largest logits (n × 2), and whether the row contains no NaN (n × 1).
    """
    single = xp.to("float32")
    is_number = ~xp.op("IsNaN", xp.sum(x))
    # The minimum is 0 or 1, or +inf if there are no rows.
    smallest_flag = single.op("ReduceMin", single.cast(is_number), keepdims=0)

    def use_top_k(inner: OnnxOperations) -> list[GraphValue]:
        top_values, _ = inner.graph.ops("TopK", 2, x.name, inner.graph.integers(2), axis=1)
        return [inner.value(top_values), inner.op("Identity", is_number)]

    def use_two_maxima(inner: OnnxOperations) -> list[GraphValue]:
        table = inner.value(x)
        others = inner.replace_class_entry(table, inner.argmax(table), -np.inf)
        return [inner.join_columns(inner.max(table), inner.max(others)), is_valid_row(inner, table)]

    return xp.choose(smallest_flag == 1.0, use_top_k, use_two_maxima, [xp.dtype, "bool"])


def is_valid_row(xp: OnnxOperations, x: GraphValue) -> GraphValue:
    """Append the nodes that check whether each row is valid (n × 1).

    A valid row contains no NaN, and its largest logit is finite. Python rejects other rows.
    """
    single = xp.to("float32")
    nan_flag = single.max(single.cast(xp.op("IsNaN", x)))
    largest_logit = xp.max(x)
    is_finite = (largest_logit > -np.inf) & (largest_logit < np.inf)
    return is_finite & (nan_flag == 0.0)


#: Functions that estimate a score in single precision, by the formula of the score.
ESTIMATES: dict[Callable[..., Any], Callable[[OnnxOperations, GraphValue], Estimate]] = {
    rowwise.entropy: _entropy_estimate,
    rowwise.one_minus_max_probability: _doubt_estimate,
    rowwise.free_energy: _energy_estimate,
}
