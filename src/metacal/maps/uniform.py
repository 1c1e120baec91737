"""Temperature scaling with a uniform component: (1 - e) softmax(x / T) + e / K.

With a temperature alone, a true class of probability e^-20 costs as much as a hundred
uncertain rows, and T rises until it costs less. If the logits are logarithms of floored
probabilities, or a few labels are wrong, those rows alone determine T. The uniform component
absorbs them; its weight is zero if there are none. These are two of the three members of
ensemble temperature scaling (Zhang, Kailkhura & Han, ICML 2020). Here both parameters are
fitted together; they fit T before the weights.

The search runs in the parameters (log b, e) with b = 1/T, called a *point*. One pass over the
table at an inverse temperature gives the loss at all points nearby (`RowStatistics`). So the
search alternates between a pass and Newton steps that need no pass.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.formulas import Codes, Float
from metacal.formulas.temperature import uniform_temperature
from metacal.kernels.columns import RowMap
from metacal.maps.fitting.box_newton import TOLERANCE as NEWTON_TOLERANCE
from metacal.maps.fitting.box_newton import VALUE_INDEX, minimise_in_box
from metacal.maps.fitting.lbfgs import Minimum
from metacal.maps.labelled import (
    LabelledRows,
    Weights,
    build_all_labels_masked_error,
    warn_masked_labels,
)
from metacal.maps.map import TemperedMap
from metacal.maps.row_statistics import (
    ComputeRowStatistics,
    RowStatistics,
    make_row_statistics_function,
)
from metacal.maps.temperature import (
    SAMPLE_TOLERANCE,
    TOLERANCE,
    compute_typical_margin,
    fit_temperature_to_sample,
    get_inverse_temperature_bounds,
    get_second_sample_strides,
    warn_temperature_at_bound,
)
from metacal.rows import Rows

#: Index of log b in a point (log b, uniform) of the search.
_LOG_B_INDEX = 0
#: Largest weight of the uniform component, below one so that predictions are preserved.
MAX_UNIFORM = 1.0 - 2.0**-10
#: Weights of the uniform component at the starting points of the search.
_SMALL_UNIFORM = 1.0 / 400.0
_LARGE_UNIFORM = 1.0 / 20.0
#: Ratio of the inverse temperatures of the third and the first starting point.
_SHARPENING_FACTOR = 3.0
#: Approximate number of rows on which the starting points are compared.
_FIRST_SAMPLE_ROWS = 1_000
#: Largest number of rows used, which determines T to a relative error of 1e-4.
_MAX_ROWS = 1 << 21
#: Largest distance in log b over which the statistics of one pass are used.
_MAX_LOG_B_DISTANCE = 0.5
#: The error of a search is estimated by this power of its last step in log b.
_ERROR_ORDER = 4
#: A search on a small table stops at this estimated error.
_MAX_ERROR = 1e-10
#: A search on all rows that starts from the minimum of a sample stops at this error.
_MAX_ERROR_AFTER_SAMPLE = 1e-7
#: A search on a sample stops at this error.
_SAMPLE_MAX_ERROR = 1e-4
#: Expected decrease of the mean loss at which Newton steps on a sample stop.
_SAMPLE_NEWTON_TOLERANCE = 1e-5
#: Difference of mean losses below which two losses count as equal.
_NEGLIGIBLE_LOSS_DIFFERENCE = 1e-9
#: Smallest decrease of the mean loss after which the search continues.
_MIN_LOSS_DECREASE = 1e-10
#: Largest difference of the mean losses of two searches that found the same minimum.
_MAX_LOSS_DIFFERENCE_OF_MINIMUM = 1e-4
#: Factor by which the step in log b is reduced if the loss increased.
_STEP_REDUCTION = 0.25
#: Largest number of passes over the rows in a search.
_MAX_PASSES = 50


@dataclass(frozen=True)
class UniformTemperatureMap(TemperedMap):
    """Temperature scaling with a uniform component: (1 - e) softmax(b x) + e / K.

    The inverse temperature b = 1/T is positive and 0 <= e < 1. Masked classes have no share
    of the uniform component; the unmasked classes share e.

    Examples
    --------
    >>> UniformTemperatureMap(inverse_temperature=0.5, uniform=0.1)(np.array([[2.0, 0.0]])).round(3)
    array([[0.708, 0.292]])
    """

    inverse_temperature: float
    uniform: float

    preserves_accuracy = True
    in_table_precision = True
    ends_in_softmax = True
    on_device = True
    allows_any_block_size = True
    formula = staticmethod(uniform_temperature)

    @property
    def row_map(self) -> RowMap:
        """The map as a function of few numbers per row."""
        return RowMap(self.inverse_temperature, self.uniform)

    def check(self) -> None:
        """Raise InputError unless the fields are valid."""
        super().check()
        if not (isinstance(self.uniform, int | float) and 0.0 <= self.uniform < 1.0):
            raise InputError(
                f"uniform must be at least 0 and less than 1, but got {self.uniform!r}."
            )

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        if self.uniform == 0.0:
            kernels.softmax(block, self.inverse_temperature, out)
        else:
            kernels.mixture_softmax(block, self.inverse_temperature, self.uniform, out)

    def write_final(self, block: NDArray[Any], out: NDArray[Any]) -> bool:
        """Write the final probabilities of a block in one pass, if a kernel can."""
        return kernels.write_final_probabilities(
            block, self.inverse_temperature, out, uniform_weight=self.uniform
        )


@dataclass(frozen=True)
class UniformFit:
    """Fitted map and the row statistics of the last pass, which later fits can reuse."""

    fitted: UniformTemperatureMap
    statistics: RowStatistics


@dataclass(frozen=True)
class _SearchResult:
    """Minimum found by a search and the row statistics of its last pass."""

    minimum: Minimum
    statistics: RowStatistics


@dataclass(frozen=True)
class _Expansion:
    """Series of the mean loss around a point (log b, uniform), from one pass.

    Attributes
    ----------
    point : array of shape (2,)
        Point around which the loss is expanded.

    statistics : RowStatistics
        Statistics of all rows at this point.

    usable_statistics : RowStatistics
        Statistics of the rows whose true class is not masked.

    loss_derivatives : array of shape (6,)
        Mean loss at the point, with its first and second derivatives.
    """

    point: Float
    statistics: RowStatistics
    usable_statistics: RowStatistics
    loss_derivatives: Float

    @classmethod
    def compute(cls, compute_row_statistics: ComputeRowStatistics, point: Float) -> _Expansion:
        """Expand the loss around a point, with one pass over the rows."""
        statistics = compute_row_statistics(float(np.exp(point[_LOG_B_INDEX])))
        usable_statistics = statistics.drop_masked_labels()
        if not len(usable_statistics):
            raise build_all_labels_masked_error()
        loss_derivatives = usable_statistics.compute_mean_loss(point)
        return cls(point, statistics, usable_statistics, loss_derivatives)

    @property
    def loss(self) -> Any:
        """Mean loss at the point."""
        return self.loss_derivatives[VALUE_INDEX]

    def minimise_nearby(self, max_log_b_step: float, box: Float, tolerance: float) -> Minimum:
        """Minimise the series within `max_log_b_step` of the point in log b."""
        log_b = self.point[_LOG_B_INDEX]
        lower_limits = [log_b - max_log_b_step, 0.0]
        upper_limits = [log_b + max_log_b_step, 1.0]
        nearby_box = np.clip(box, lower_limits, upper_limits)
        return minimise_in_box(
            self.usable_statistics.compute_mean_loss,
            self.point,
            box=nearby_box,
            tolerance=tolerance,
            derivatives_at_point=self.loss_derivatives,
        )


def fit_uniform_temperature(
    rows: Rows, labels: Codes, weights: Weights = None
) -> UniformTemperatureMap:
    """Fit temperature and uniform component together by maximum likelihood.

    The problem is convex in e but not in b. On about 1,000 rows, the search starts from the
    plain temperature with a small e and from b = 1. If these end at different minima, it
    also starts from a sharper temperature with a larger e. The best minimum is the starting
    point for more rows, so a large table needs one or two passes.

    If every prediction is correct, or the true class of some rows is masked, the fit behaves
    as `fit_temperature` does.

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
    UniformTemperatureMap
    """
    return fit_uniform_temperature_with_statistics(LabelledRows(rows, labels, weights)).fitted


def fit_uniform_temperature_with_statistics(sample: LabelledRows) -> UniformFit:
    """Fit temperature and uniform component, and keep the row statistics of the fit."""
    sample = sample.drop_zero_weight_rows()
    stride = math.ceil(len(sample.rows) / _MAX_ROWS)
    sample = sample.every_nth_row(stride).move_to_table_device()
    subsamples = _build_nested_samples(sample)
    is_sampled = len(subsamples) > 1
    smallest_sample = subsamples[0]
    margin = compute_typical_margin(smallest_sample.rows)
    plain_inverse_temperature = _fit_plain_temperature(
        smallest_sample, margin, is_sampled=is_sampled
    )
    statistics_functions = [make_row_statistics_function(subsample) for subsample in subsamples]
    if margin == 0.0:
        margin = compute_typical_margin(sample.rows)
    if margin == 0.0:
        # All logits of every row are equal, so no temperature changes anything.
        plain_map = UniformTemperatureMap(plain_inverse_temperature, uniform=0.0)
        compute_statistics_of_all_rows = statistics_functions[-1]
        return UniformFit(plain_map, compute_statistics_of_all_rows(plain_inverse_temperature))

    box = _build_search_box(margin)
    search_result = _search_on_growing_samples(
        statistics_functions, plain_inverse_temperature, box, n_rows=len(sample.rows)
    )
    search_result.minimum.warn_unless_converged("temperature scaling with a uniform part")
    if is_sampled:
        # Without samples, the fit of the plain temperature has issued the same warnings.
        _warn_about_fit(search_result, box)
    log_b, uniform = search_result.minimum.point
    fitted = UniformTemperatureMap(float(np.exp(log_b)), float(uniform))
    return UniformFit(fitted, search_result.statistics)


def _build_nested_samples(sample: LabelledRows) -> list[LabelledRows]:
    """Build samples of increasing size, the last of which contains all rows."""
    n_rows = len(sample.rows)
    first_stride = max(1, n_rows // _FIRST_SAMPLE_ROWS)
    strides = [first_stride, *get_second_sample_strides(n_rows), 1]
    distinct_strides = list(dict.fromkeys(strides))
    return [sample.every_nth_row(stride) for stride in distinct_strides]


def _fit_plain_temperature(sample: LabelledRows, margin: float, *, is_sampled: bool) -> float:
    """Fit the inverse temperature without a uniform component.

    Warnings about a sample are suppressed, because they need not hold for all rows.
    """
    with warnings.catch_warnings():
        if is_sampled:
            warnings.simplefilter("ignore", MetacalWarning)
        tolerance = SAMPLE_TOLERANCE if is_sampled else TOLERANCE
        return fit_temperature_to_sample(sample, margin, tolerance).inverse_temperature


def _build_search_box(margin: float) -> Float:
    """Return the lowest and the highest point (log b, uniform) of a search."""
    lowest_b, highest_b = get_inverse_temperature_bounds(margin)
    lowest_point = [np.log(lowest_b), 0.0]
    highest_point = [np.log(highest_b), MAX_UNIFORM]
    return np.array([lowest_point, highest_point])


def _warn_about_fit(result: _SearchResult, box: Float) -> None:
    """Warn about masked labels and about a temperature at its bound."""
    n_rows = len(result.statistics)
    n_masked = n_rows - len(result.statistics.drop_masked_labels())
    if n_masked:
        warn_masked_labels(n_masked, n_rows)
    log_b = result.minimum.point[_LOG_B_INDEX]
    lowest_log_b, highest_log_b = box[:, _LOG_B_INDEX]
    if log_b in (lowest_log_b, highest_log_b):
        warn_temperature_at_bound(
            all_correct=bool(log_b == highest_log_b), temperature=float(np.exp(-log_b))
        )


def _search_on_growing_samples(
    statistics_functions: list[ComputeRowStatistics],
    plain_inverse_temperature: float,
    box: Float,
    n_rows: int,
) -> _SearchResult:
    """Search on the smallest sample, then continue on larger ones from its minimum.

    Parameters
    ----------
    statistics_functions : list of functions
        Computes the row statistics of each sample, from the smallest to all rows.

    plain_inverse_temperature : float
        Inverse temperature without a uniform component.

    box : array of shape (2, 2)
        Smallest and largest allowed point.

    n_rows : int
        Number of all rows.

    Returns
    -------
    _SearchResult
    """
    is_sampled = len(statistics_functions) > 1
    first_max_error = _SAMPLE_MAX_ERROR if is_sampled else _MAX_ERROR
    search_result = _search_from_several_starts(
        statistics_functions[0], plain_inverse_temperature, box=box, max_error=first_max_error
    )
    lowest_point, _ = box
    # A sample may contain none of the few rows that need a uniform component.
    min_uniform = 1.0 / (n_rows + 1.0)
    for compute_row_statistics in statistics_functions[1:]:
        start_point = np.maximum(
            search_result.minimum.point, [lowest_point[_LOG_B_INDEX], min_uniform]
        )
        is_last = compute_row_statistics is statistics_functions[-1]
        max_error = _MAX_ERROR_AFTER_SAMPLE if is_last else _SAMPLE_MAX_ERROR
        search_result = _search_by_expansions(
            compute_row_statistics, start=start_point, box=box, max_error=max_error
        )
    return search_result


def _search_from_several_starts(
    compute_row_statistics: ComputeRowStatistics,
    plain_inverse_temperature: float,
    box: Float,
    max_error: float,
) -> _SearchResult:
    """Search from several starting points and return the best minimum.

    Parameters
    ----------
    compute_row_statistics : function
        Computes the row statistics at an inverse temperature.

    plain_inverse_temperature : float
        Inverse temperature without a uniform component.

    box : array of shape (2, 2)
        Smallest and largest allowed point.

    max_error : float
        Error of the result at which a search stops.

    Returns
    -------
    _SearchResult
        The plain temperature if a uniform component does not decrease the loss.
    """
    search_from = partial(_search_from, compute_row_statistics, box=box, max_error=max_error)
    result_from_plain = search_from(
        inverse_temperature=plain_inverse_temperature, uniform=_SMALL_UNIFORM
    )
    result_from_untempered = search_from(inverse_temperature=1.0, uniform=_LARGE_UNIFORM)
    search_results = [result_from_plain, result_from_untempered]
    loss_difference = abs(result_from_plain.minimum.value - result_from_untempered.minimum.value)
    if loss_difference > _MAX_LOSS_DIFFERENCE_OF_MINIMUM:
        sharper_inverse_temperature = plain_inverse_temperature * _SHARPENING_FACTOR
        result_from_sharper = search_from(
            inverse_temperature=sharper_inverse_temperature, uniform=_LARGE_UNIFORM
        )
        search_results.append(result_from_sharper)
    best_result = min(search_results, key=lambda result: result.minimum.value)

    # The plain temperature is preferred if a uniform component does not decrease the loss.
    plain_point = np.clip([np.log(plain_inverse_temperature), 0.0], *box)
    statistics = compute_row_statistics(float(np.exp(plain_point[_LOG_B_INDEX])))
    plain_derivatives = statistics.drop_masked_labels().compute_mean_loss(plain_point)
    plain_loss = float(plain_derivatives[VALUE_INDEX])
    if plain_loss > best_result.minimum.value + _NEGLIGIBLE_LOSS_DIFFERENCE:
        return best_result
    plain_minimum = Minimum(
        point=plain_point,
        value=plain_loss,
        remaining_decrease=0.0,
        gradient_norm=0.0,
        n_steps=0,
        converged=True,
    )
    return _SearchResult(plain_minimum, statistics)


def _search_from(
    compute_row_statistics: ComputeRowStatistics,
    inverse_temperature: float,
    uniform: float,
    box: Float,
    max_error: float,
) -> _SearchResult:
    """Search from the point (log b, uniform), clipped to the box.

    Parameters
    ----------
    compute_row_statistics, box, max_error
        See `_search_by_expansions`.

    inverse_temperature : float
        Inverse temperature to start from.

    uniform : float
        Weight of the uniform component to start from.

    Returns
    -------
    _SearchResult
    """
    start_point = np.clip([np.log(inverse_temperature), uniform], *box)
    return _search_by_expansions(
        compute_row_statistics, start=start_point, box=box, max_error=max_error
    )


def _search_by_expansions(
    compute_row_statistics: ComputeRowStatistics, start: Float, box: Float, max_error: float
) -> _SearchResult:
    """Minimise the loss by expanding it in a series around each new point.

    Parameters
    ----------
    compute_row_statistics : function
        Computes the row statistics at an inverse temperature.

    start : array of shape (2,)
        Point to start from.

    box : array of shape (2, 2)
        Smallest and largest allowed point.

    max_error : float
        Error of the result at which to stop.

    Returns
    -------
    _SearchResult

    Raises
    ------
    InputError
        If the true class of every row is masked.
    """
    newton_tolerance = NEWTON_TOLERANCE
    if max_error >= _SAMPLE_MAX_ERROR:
        newton_tolerance = _SAMPLE_NEWTON_TOLERANCE
    max_log_b_step = _MAX_LOG_B_DISTANCE
    current_expansion = _Expansion.compute(compute_row_statistics, point=start)
    for _ in range(_MAX_PASSES):
        minimum = current_expansion.minimise_nearby(max_log_b_step, box, newton_tolerance)
        log_b_step = abs(minimum.point[_LOG_B_INDEX] - current_expansion.point[_LOG_B_INDEX])
        estimated_error = log_b_step**_ERROR_ORDER
        if estimated_error <= max_error:
            return _SearchResult(minimum, current_expansion.statistics)
        next_expansion = _Expansion.compute(compute_row_statistics, point=minimum.point)
        if next_expansion.loss > current_expansion.loss + _NEGLIGIBLE_LOSS_DIFFERENCE:
            # The loss increased, so the series was not accurate at this distance.
            max_log_b_step = _STEP_REDUCTION * log_b_step
            continue
        if current_expansion.loss - next_expansion.loss <= _MIN_LOSS_DECREASE:
            return _SearchResult(minimum, next_expansion.statistics)
        current_expansion = next_expansion
    unconverged_minimum = Minimum(
        point=current_expansion.point,
        value=float(current_expansion.loss),
        remaining_decrease=np.inf,
        gradient_norm=np.inf,
        n_steps=_MAX_PASSES,
        converged=False,
    )
    return _SearchResult(unconverged_minimum, current_expansion.statistics)
