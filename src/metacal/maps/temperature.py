"""Temperature scaling: softmax(x / T) with one positive temperature T.

Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

The fit works with the inverse temperature b = 1/T, in which the loss is convex. A large
table is solved on a sample of its rows first. The *typical margin* of a table, the median
difference of the two largest logits of a row, gives the scale of the logits and bounds b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import NumberError, warn_caller
from metacal.formulas import Codes, Float
from metacal.formulas.temperature import temperature
from metacal.kernels.columns import RowMap
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import TemperedMap
from metacal.rows import Rows

#: Lower bound on b times the typical margin, the calibrated log-odds of a typical row.
_MIN_LOG_ODDS = 1e-3
#: Upper bound on b times the typical margin, the calibrated log-odds of a typical row.
_MAX_LOG_ODDS = 100.0
#: Relative accuracy of b for small tables.
TOLERANCE = 1e-9
#: Relative accuracy of b on all rows if the search starts from the solution on a sample.
_TOLERANCE_AFTER_SAMPLE = 1e-6
#: Relative accuracy of the solution on a sample, whose sampling error is much larger.
SAMPLE_TOLERANCE = 1e-3
#: Smallest number of rows for which a first sample is used.
_MIN_ROWS_TO_SAMPLE = 4_000
#: Number of table entries in the first sample, unless it has too few or too many rows.
_FIRST_SAMPLE_ENTRIES = 1 << 18
_FIRST_SAMPLE_MIN_ROWS = 250
_FIRST_SAMPLE_MAX_ROWS = 1_000
#: Smallest number of rows for which a second sample is used.
MIN_ROWS_TO_SAMPLE_TWICE = 8_000
#: Bounds on the number of rows of the second sample.
_SECOND_SAMPLE_MIN_ROWS = 4_000
_SECOND_SAMPLE_MAX_ROWS = 20_000
#: Largest number of passes over the rows.
_MAX_PASSES = 100
#: Limit of r = slope · third / curvature² in Halley's step, whose denominator 1 - r/2 is zero at 2.
_MAX_HALLEY_RATIO = 1.5
#: Value of r above which the logarithmic step, which exists only for r < 1, is not used.
_MAX_LOGARITHMIC_RATIO = 0.9
#: Absolute value of r below which both third-order steps agree up to rounding.
_NEGLIGIBLE_RATIO = 1e-8
#: Smallest typical margin; its inverse is the largest one. 100 divided by it fits into float32.
_MIN_MARGIN = 1e-30


@dataclass(frozen=True)
class TemperatureMap(TemperedMap):
    """Temperature scaling: softmax(b x) with the inverse temperature b = 1/T > 0.

    Examples
    --------
    >>> TemperatureMap(inverse_temperature=0.5)(np.array([[2.0, 0.0]])).round(3)
    array([[0.731, 0.269]])
    """

    inverse_temperature: float

    preserves_accuracy = True
    supports_single_precision = True
    ends_in_softmax = True
    on_device = True
    allows_any_block_size = True
    formula = staticmethod(temperature)

    @property
    def single_pass_map(self) -> RowMap:
        """Equivalent map that a device can compute in one pass."""
        return RowMap(self.inverse_temperature)

    def write_probabilities(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        kernels.softmax(block, self.inverse_temperature, out)

    def try_writing_clipped_probabilities(self, block: NDArray[Any], out: NDArray[Any]) -> bool:
        """Write clipped probabilities in one pass if a kernel supports the map."""
        return kernels.try_writing_clipped_probabilities(block, self.inverse_temperature, out)

    def try_computing_confidences(
        self, block: NDArray[Any], rows: Codes | None = None
    ) -> Float | None:
        """Compute the clipped probability of the predicted class of each row."""
        return kernels.try_computing_confidences(block, self.inverse_temperature, rows=rows)


class _MaskedLabelError(Exception):
    """Error for an infinite loss, caused by a row whose true class is masked."""


def fit_temperature(rows: Rows, labels: Codes, weights: Weights = None) -> TemperatureMap:
    """Fit the temperature of temperature scaling by maximum likelihood.

    The mean negative log-likelihood of softmax(b x) is convex in b. Third-order steps,
    computed from its first three derivatives and kept inside a shrinking bracket, start from
    the solution on a sample of the rows. That solution itself starts from the one on at most
    a thousand rows. One or two passes over a large table reach a relative error of 1e-6;
    fewer than 4,000 rows are solved to 1e-9.

    If every prediction is correct, the likelihood has no maximum. The temperature is then
    bounded, with a warning. Rows whose true class is masked have probability zero at every
    temperature. They are omitted, with a warning.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    Returns
    -------
    TemperatureMap
    """
    return fit_temperature_to_sample(LabelledRows(rows, labels, weights))


def fit_temperature_to_sample(
    sample: LabelledRows, margin: float | None = None, tolerance: float = TOLERANCE
) -> TemperatureMap:
    """Fit the temperature to labelled rows, given their typical margin if it is known.

    Parameters
    ----------
    sample : LabelledRows
        Rows with labels.

    margin : float, optional
        Typical margin of the rows, if it is known.

    tolerance : float
        Relative accuracy of b for small tables.

    Returns
    -------
    TemperatureMap
    """
    sample = sample.drop_zero_weight_rows().move_labels_to_device_of_logits()
    try:
        return _fit_on_growing_samples(sample, margin, tolerance)
    except _MaskedLabelError:
        # Rows with a masked true class are searched only after a failure, because this takes a pass.
        return _fit_on_growing_samples(
            sample.drop_unusable_rows(), margin, tolerance, masked_labels_dropped=True
        )


def _fit_on_growing_samples(
    sample: LabelledRows,
    margin: float | None,
    tolerance: float,
    *,
    masked_labels_dropped: bool = False,
) -> TemperatureMap:
    """Fit the temperature on successively larger samples of the rows.

    Parameters
    ----------
    sample : LabelledRows
        Rows with labels.

    margin : float or None
        Typical margin of the rows, if it is known.

    tolerance : float
        Relative accuracy of b for small tables.

    masked_labels_dropped : bool, default=False
        Whether rows whose true class is masked were dropped already.

    Returns
    -------
    TemperatureMap

    Raises
    ------
    _MaskedLabelError
        If the true class of some row is masked.
    """
    strides = _choose_sample_strides(len(sample.rows), sample.rows.n_classes)
    subsamples = [sample.every_nth_row(stride) for stride in strides]
    is_sampled = len(strides) > 1
    if margin is None:
        margin = compute_typical_margin(subsamples[0].rows)
        if margin == 0.0 and is_sampled:
            margin = compute_typical_margin(sample.rows)
    if margin == 0.0:
        warn_caller(
            "The logits of every row are equal, so the temperature has no effect and is set to 1."
        )
        return TemperatureMap(1.0)
    _check_margin(margin)

    bounds = get_inverse_temperature_bounds(margin)
    inverse_temperature = float(np.clip(1.0, *bounds))
    for subsample, stride in zip(subsamples, strides, strict=True):
        if stride > 1:
            subsample_tolerance = SAMPLE_TOLERANCE
        elif is_sampled:
            subsample_tolerance = _TOLERANCE_AFTER_SAMPLE
        else:
            subsample_tolerance = tolerance
        compute_loss_derivatives = partial(_sum_loss_derivatives, subsample, masked_labels_dropped)
        inverse_temperature = _find_minimum(
            compute_loss_derivatives,
            start=inverse_temperature,
            bounds=bounds,
            tolerance=subsample_tolerance,
        )
    if inverse_temperature in bounds:
        _, upper_bound = bounds
        warn_temperature_at_bound(
            all_correct=inverse_temperature == upper_bound, temperature=1.0 / inverse_temperature
        )
    return TemperatureMap(inverse_temperature)


def _check_margin(margin: float) -> None:
    """Raise InputError if the typical margin is NaN or not representable in float32."""
    if _MIN_MARGIN <= margin <= 1.0 / _MIN_MARGIN:
        return
    if margin < 1.0:
        size_problem = "small"
        remedy = "Multiply"
    else:
        size_problem = "large"
        remedy = "Divide"
    raise NumberError(
        f"The logits are too {size_problem} to fit a temperature, because the two largest logits"
        f" of a typical row differ by {margin:.3g}. {remedy} all logits by a constant, and do the"
        " same for new rows."
    )


def _sum_loss_derivatives(sample: LabelledRows, masked_labels_dropped: bool, b: float) -> Float:
    """Sum the loss over the rows, and its first three derivatives in b."""
    compute_derivatives = partial(kernels.tempered_loss_and_derivatives, inverse_temperature=b)
    loss_and_derivatives = sample.rows.sum(compute_derivatives, sample.labels, sample.weights)
    _, slope, _, _ = loss_and_derivatives
    if np.isfinite(slope):
        return loss_and_derivatives
    # The loss is infinite if a true class is masked, or if a difference of logits overflows.
    if not masked_labels_dropped:
        raise _MaskedLabelError
    raise NumberError(
        "The logits of a row differ by so much that their difference overflows. Divide all"
        " logits by a constant, and check why they are so large."
    )


def _choose_sample_strides(n_rows: int, n_classes: int) -> list[int]:
    """Return decreasing strides of nested samples, the last of which is 1.

    Examples
    --------
    >>> _choose_sample_strides(3_000, 10), _choose_sample_strides(5_000, 10), _choose_sample_strides(25_000, 10)
    ([1], [5, 1], [25, 6, 1])
    >>> _choose_sample_strides(1_000_000, 1_000)
    [3816, 50, 1]
    """
    strides = []
    if n_rows >= _MIN_ROWS_TO_SAMPLE:
        n_sampled = max(_FIRST_SAMPLE_ENTRIES // n_classes, _FIRST_SAMPLE_MIN_ROWS)
        strides.append(n_rows // min(n_sampled, _FIRST_SAMPLE_MAX_ROWS))
    return [*strides, *get_second_sample_strides(n_rows), 1]


def get_second_sample_strides(n_rows: int) -> list[int]:
    """Return a list of the stride of the second sample, empty for small tables.

    The sample is a tenth of the rows, within bounds.
    """
    if n_rows < MIN_ROWS_TO_SAMPLE_TWICE:
        return []
    n_sampled = min(max(n_rows // 10, _SECOND_SAMPLE_MIN_ROWS), _SECOND_SAMPLE_MAX_ROWS)
    return [n_rows // n_sampled]


def compute_typical_margin(rows: Rows) -> float:
    """Compute the median difference between the two largest logits of a row.

    If more than half of the rows tie, the result is the mean difference, and if that is zero
    the mean range of the logits. It is 0 if all logits of every row are equal.
    """
    margins = -rows.compute_column(kernels.negative_margin)
    margins = margins[margins < np.finfo(np.float64).max]
    if not len(margins):
        return 0.0
    median = _compute_median(margins)
    return median or float(margins.mean()) or float(rows.compute_column(kernels.spread).mean())


def _compute_median(values: Float) -> float:
    """Compute the median of finite values.

    `np.median` returns the same number, but first imports `numpy.ma`, which takes longer than some
    fits.

    Examples
    --------
    >>> _compute_median(np.array([3.0, 1.0, 2.0])), _compute_median(np.array([4.0, 1.0, 2.0, 3.0]))
    (2.0, 2.5)
    """
    middle_index = len(values) // 2
    if len(values) % 2 == 1:
        return float(np.partition(values, middle_index)[middle_index])
    partitioned = np.partition(values, [middle_index - 1, middle_index])
    return float((partitioned[middle_index - 1] + partitioned[middle_index]) / 2.0)


def _find_minimum(
    compute_loss_derivatives: Callable[[float], Float],
    start: float,
    bounds: tuple[float, float],
    tolerance: float,
) -> float:
    """Find the inverse temperature between two bounds that minimises the loss.

    Parameters
    ----------
    compute_loss_derivatives : function
        Returns the loss and its first three derivatives at an inverse temperature.

    start : float
        Inverse temperature to start from.

    bounds : tuple of float
        Lower and upper bound. A bound is the result if the root lies beyond it.

    tolerance : float
        Relative accuracy.

    Returns
    -------
    float
    """
    inverse_temperature = start
    lower_bound, upper_bound = bounds
    low, high = bounds
    for _ in range(_MAX_PASSES):
        _, slope, curvature, third_derivative = compute_loss_derivatives(inverse_temperature)
        is_minimum_above_bounds = inverse_temperature == upper_bound and slope < 0.0
        is_minimum_below_bounds = inverse_temperature == lower_bound and slope > 0.0
        if slope == 0.0 or is_minimum_above_bounds or is_minimum_below_bounds:
            return inverse_temperature
        if slope > 0.0:
            high = inverse_temperature
        else:
            low = inverse_temperature
        step, step_error = _compute_third_order_step(slope, curvature, third_derivative)
        next_inverse_temperature = inverse_temperature - step
        step_leaves_bracket = not low < next_inverse_temperature < high
        if step_leaves_bracket:
            # The bound is tried before the bracket is halved, because the solution may be at the bound.
            bound_downhill = upper_bound if slope < 0.0 else lower_bound
            is_bound_untried = bound_downhill in (low, high)
            middle_of_bracket = float(np.sqrt(low * high))
            next_inverse_temperature = bound_downhill if is_bound_untried else middle_of_bracket
        else:
            relative_error = max(
                abs(step / next_inverse_temperature) ** 3, step_error / next_inverse_temperature
            )
            if relative_error < tolerance:
                return float(next_inverse_temperature)
        inverse_temperature = float(next_inverse_temperature)
    warn_caller(
        f"Temperature scaling did not converge: the slope of the loss is {slope:.3g} after"
        f" {_MAX_PASSES} passes."
    )
    return inverse_temperature


def _compute_third_order_step(
    slope: float, curvature: float, third_derivative: float
) -> tuple[float, float]:
    """Compute a third-order step downhill and an estimate of its error.

    With Newton's step n and r = slope · third / curvature², there are two steps of third
    order: Halley's n / (1 - r/2), and n (-log(1 - r) / r), which is exact if the curvature
    decreases exponentially. The second is used if it exists, because its error was smaller
    on all tables tried and it does not overshoot from far above. The difference of both
    estimates the error.
    """
    if curvature <= 0.0:
        infinite_step = float(np.copysign(np.inf, slope))
        return infinite_step, np.inf
    newton_step = slope / curvature
    derivative_ratio = slope * third_derivative / curvature**2
    halley_step = newton_step / (1.0 - 0.5 * min(derivative_ratio, _MAX_HALLEY_RATIO))
    allows_logarithmic_step = derivative_ratio < _MAX_LOGARITHMIC_RATIO
    if not allows_logarithmic_step:
        return float(halley_step), np.inf
    step = halley_step
    if abs(derivative_ratio) > _NEGLIGIBLE_RATIO:
        step = newton_step * (-np.log1p(-derivative_ratio) / derivative_ratio)
    error_estimate = float(abs(step - halley_step))
    return float(step), error_estimate


def get_inverse_temperature_bounds(margin: float) -> tuple[float, float]:
    """Return the smallest and largest inverse temperature for a typical margin."""
    return _MIN_LOG_ODDS / margin, _MAX_LOG_ODDS / margin


def warn_temperature_at_bound(all_correct: bool, temperature: float) -> None:
    """Warn that the fitted temperature lies at its bound.

    Parameters
    ----------
    all_correct : bool
        Whether it is the lower bound, which happens if every prediction is correct.

    temperature : float
        The bound.
    """
    if all_correct:
        reason = (
            "Every row is correct, so lower temperatures always fit better (check that the"
            " rows are not training data)"
        )
    else:
        reason = (
            "The logits do not help to predict the labels, so higher temperatures always fit better"
        )
    warn_caller(f"{reason}. The temperature is set to its bound {temperature:.3g}.")
