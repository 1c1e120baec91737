"""Temperature scaling with a uniform component: (1 - e) softmax(x / T) + e / K.

With a temperature alone, a true class of probability e^-20 costs as much as a hundred
uncertain rows, and T rises until it costs less. If the logits are logarithms of floored
probabilities, or a few labels are wrong, those rows alone determine T. The uniform component
absorbs them; its weight is zero if there are none. These are two of the three members of
ensemble temperature scaling (Zhang, Kailkhura & Han, ICML 2020). Here both parameters are
fitted together; they fit T before the weights.

`uniform_search` finds both parameters.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.formulas import Codes, Float
from metacal.formulas.temperature import uniform_temperature
from metacal.kernels.columns import RowMap
from metacal.maps.labelled import (
    LabelledRows,
    Weights,
    warn_masked_labels,
)
from metacal.maps.map import TemperedMap
from metacal.maps.row_statistics import (
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
from metacal.maps.uniform_search import LOG_B_INDEX, SearchResult, search_on_growing_samples
from metacal.rows import Rows

#: Largest weight of the uniform component, below one so that predictions are preserved.
MAX_UNIFORM = 1.0 - 2.0**-10
#: Approximate number of rows on which the starting points are compared.
_FIRST_SAMPLE_ROWS = 1_000
#: Largest number of rows used for the fit, enough for a relative error of T of 1e-4.
_MAX_ROWS = 1 << 21


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
    supports_single_precision = True
    ends_in_softmax = True
    on_device = True
    allows_any_block_size = True
    formula = staticmethod(uniform_temperature)

    @property
    def single_pass_map(self) -> RowMap:
        """Equivalent map that a device can compute in one pass."""
        return RowMap(self.inverse_temperature, self.uniform)

    def check(self) -> None:
        """Raise InputError unless the fields are valid."""
        super().check()
        if not (isinstance(self.uniform, int | float) and 0.0 <= self.uniform < 1.0):
            raise InputError(
                f"uniform must be at least 0 and less than 1, but got {self.uniform!r}."
            )

    def write_probabilities(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        if self.uniform == 0.0:
            kernels.softmax(block, self.inverse_temperature, out)
        else:
            kernels.mixture_softmax(block, self.inverse_temperature, self.uniform, out)

    def try_writing_clipped_probabilities(self, block: NDArray[Any], out: NDArray[Any]) -> bool:
        """Write clipped probabilities in one pass if a kernel supports the map."""
        return kernels.try_writing_clipped_probabilities(
            block, self.inverse_temperature, out, uniform_weight=self.uniform
        )


@dataclass(frozen=True)
class UniformFit:
    """Fitted map and the row statistics of the last pass, which later fits can reuse."""

    fitted: UniformTemperatureMap
    statistics: RowStatistics


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
    sample = sample.every_nth_row(stride).move_labels_to_device_of_logits()
    growing_samples = _build_growing_samples(sample)
    is_sampled = len(growing_samples) > 1
    smallest_sample = growing_samples[0]
    margin = compute_typical_margin(smallest_sample.rows)
    plain_inverse_temperature = _fit_plain_temperature(
        smallest_sample, margin, is_sampled=is_sampled
    )
    statistics_functions = [
        make_row_statistics_function(subsample) for subsample in growing_samples
    ]
    if margin == 0.0:
        # The median margin can be zero in the smallest sample but not in all rows.
        margin = compute_typical_margin(sample.rows)
    if margin == 0.0:
        # All logits of every row are equal, so no temperature changes anything.
        plain_map = UniformTemperatureMap(plain_inverse_temperature, uniform=0.0)
        compute_full_statistics = statistics_functions[-1]
        return UniformFit(plain_map, compute_full_statistics(plain_inverse_temperature))

    box = _build_search_box(margin)
    search_result = search_on_growing_samples(
        statistics_functions, plain_inverse_temperature, box, n_rows=len(sample.rows)
    )
    search_result.minimum.warn_unless_converged("temperature scaling with a uniform part")
    if is_sampled:
        # If there are no samples, the fit of the plain temperature has issued the same warnings.
        _warn_about_fit(search_result, box)
    log_b, uniform = search_result.minimum.point
    fitted = UniformTemperatureMap(float(np.exp(log_b)), float(uniform))
    return UniformFit(fitted, search_result.statistics)


def _build_growing_samples(sample: LabelledRows) -> list[LabelledRows]:
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


def _warn_about_fit(result: SearchResult, box: Float) -> None:
    """Warn about masked labels and about a temperature at its bound."""
    n_rows = len(result.statistics)
    n_masked = n_rows - len(result.statistics.drop_masked_labels())
    if n_masked:
        warn_masked_labels(n_masked, n_rows)
    log_b = result.minimum.point[LOG_B_INDEX]
    lowest_log_b, highest_log_b = box[:, LOG_B_INDEX]
    if log_b in (lowest_log_b, highest_log_b):
        warn_temperature_at_bound(
            all_correct=bool(log_b == highest_log_b), temperature=float(np.exp(-log_b))
        )
