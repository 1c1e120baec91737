"""Search for the temperature and the uniform component with the smallest loss.

The search runs in the parameters (log b, e) with b = 1/T, called a *point*. One pass over the
table at an inverse temperature gives the loss at all points nearby (`RowStatistics`). So the
search alternates between a pass and Newton steps that need no pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from metacal.formulas import Float
from metacal.maps.fitting.box_newton import TOLERANCE as NEWTON_TOLERANCE
from metacal.maps.fitting.box_newton import VALUE_INDEX, minimise_in_box
from metacal.maps.fitting.lbfgs import Minimum
from metacal.maps.labelled import build_all_labels_masked_error
from metacal.maps.row_statistics import ComputeRowStatistics, RowStatistics

#: Index of log b in a point (log b, uniform) of the search.
LOG_B_INDEX = 0
#: Weights of the uniform component at the starting points of the search.
_SMALL_UNIFORM = 1.0 / 400.0
_LARGE_UNIFORM = 1.0 / 20.0
#: Ratio of the inverse temperatures of the third and the first starting point.
_SHARPENING_FACTOR = 3.0
#: Largest distance in log b over which the statistics of one pass are used.
_MAX_LOG_B_DISTANCE = 0.5
#: Power of the last step in log b that estimates the error of a search.
_ERROR_ORDER = 4
#: Estimated error at which a search on a small table stops.
_MAX_ERROR = 1e-10
#: Estimated error at which a search on all rows stops if it starts from a sample's minimum.
_MAX_ERROR_AFTER_SAMPLE = 1e-7
#: Estimated error at which a search on a sample stops.
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
class SearchResult:
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
        statistics = compute_row_statistics(float(np.exp(point[LOG_B_INDEX])))
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
        """Minimise the series where log b differs by at most `max_log_b_step`."""
        log_b = self.point[LOG_B_INDEX]
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


def search_on_growing_samples(
    statistics_functions: list[ComputeRowStatistics],
    plain_inverse_temperature: float,
    box: Float,
    n_rows: int,
) -> SearchResult:
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
    SearchResult
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
            search_result.minimum.point, [lowest_point[LOG_B_INDEX], min_uniform]
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
) -> SearchResult:
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
    SearchResult
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
    plain_result = _evaluate_plain_temperature(
        compute_row_statistics, plain_inverse_temperature, box
    )
    uniform_decreases_loss = (
        plain_result.minimum.value > best_result.minimum.value + _NEGLIGIBLE_LOSS_DIFFERENCE
    )
    return best_result if uniform_decreases_loss else plain_result


def _evaluate_plain_temperature(
    compute_row_statistics: ComputeRowStatistics, plain_inverse_temperature: float, box: Float
) -> SearchResult:
    """Compute the loss without a uniform component, in the form of a search result.

    Parameters
    ----------
    compute_row_statistics, plain_inverse_temperature, box
        See `_search_from_several_starts`.

    Returns
    -------
    SearchResult
    """
    plain_point = np.clip([np.log(plain_inverse_temperature), 0.0], *box)
    statistics = compute_row_statistics(float(np.exp(plain_point[LOG_B_INDEX])))
    loss_derivatives = statistics.drop_masked_labels().compute_mean_loss(plain_point)
    plain_minimum = Minimum(
        point=plain_point,
        value=float(loss_derivatives[VALUE_INDEX]),
        remaining_decrease=0.0,
        gradient_norm=0.0,
        n_steps=0,
        converged=True,
    )
    return SearchResult(plain_minimum, statistics)


def _search_from(
    compute_row_statistics: ComputeRowStatistics,
    inverse_temperature: float,
    uniform: float,
    box: Float,
    max_error: float,
) -> SearchResult:
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
    SearchResult
    """
    start_point = np.clip([np.log(inverse_temperature), uniform], *box)
    return _search_by_expansions(
        compute_row_statistics, start=start_point, box=box, max_error=max_error
    )


def _search_by_expansions(
    compute_row_statistics: ComputeRowStatistics, start: Float, box: Float, max_error: float
) -> SearchResult:
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
    SearchResult

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
        log_b_step = abs(minimum.point[LOG_B_INDEX] - current_expansion.point[LOG_B_INDEX])
        estimated_error = log_b_step**_ERROR_ORDER
        if estimated_error <= max_error:
            return SearchResult(minimum, current_expansion.statistics)
        next_expansion = _Expansion.compute(compute_row_statistics, point=minimum.point)
        if next_expansion.loss > current_expansion.loss + _NEGLIGIBLE_LOSS_DIFFERENCE:
            # The loss increased, so the series was not accurate at this distance.
            max_log_b_step = _STEP_REDUCTION * log_b_step
            continue
        if current_expansion.loss - next_expansion.loss <= _MIN_LOSS_DECREASE:
            return SearchResult(minimum, next_expansion.statistics)
        current_expansion = next_expansion
    unconverged_minimum = Minimum(
        point=current_expansion.point,
        value=float(current_expansion.loss),
        remaining_decrease=np.inf,
        gradient_norm=np.inf,
        n_steps=_MAX_PASSES,
        converged=False,
    )
    return SearchResult(unconverged_minimum, current_expansion.statistics)
