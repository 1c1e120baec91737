"""Statistics of each row from which uniform temperature scaling is fitted.

One pass over the table at an inverse temperature b₀ computes a few numbers per row. From
them, a series gives the loss of (1 - e) softmax(b x) + e / K for every e and every b near
b₀, without another pass over the table. See `metacal.kernels.columns`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.formulas import Codes, Float
from metacal.kernels.columns import (
    IS_CORRECT,
    LABEL_GAP,
    MEAN_GAP,
    N_POSSIBLE,
    OTHERS_SUM,
    log_partition,
)
from metacal.maps.labelled import LabelledRows
from metacal.maps.temperature import MIN_ROWS_TO_SAMPLE_TWICE
from metacal.rows import Rows
from metacal.rows.arrays import to_numpy

if TYPE_CHECKING:
    from metacal.maps.uniform import UniformTemperatureMap

#: Number of statistics of a row that `kernels.temperature_statistics` computes.
_N_STATISTICS = 8
#: Number of inverse temperatures whose statistics are cached, for large and for small samples.
_LARGE_CACHE_SIZE = 2
_SMALL_CACHE_SIZE = 8
#: Smallest number of rows whose statistics stay on the device of the table.
_MIN_ROWS_ON_DEVICE = MIN_ROWS_TO_SAMPLE_TWICE


@dataclass(frozen=True)
class RowStatistics:
    """Statistics of each row at one inverse temperature.

    Attributes
    ----------
    columns : array or tensor of shape (8, n_rows)
        Columns of `kernels.temperature_statistics`, on the device of the table.

    weights : array, tensor or None
        Weight of each row.

    inverse_temperature : float
        Inverse temperature b₀ at which the statistics were computed.

    pool : ThreadPoolExecutor or None
        Threads that share the sums over the rows.
    """

    columns: Any
    weights: Any
    inverse_temperature: float
    pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def compute_mean_loss(self, point: Float) -> Float:
        """Compute the mean loss at (log b, e) with its first and second derivatives.

        Returns
        -------
        array of shape (6,)
            Loss, two first derivatives and three second derivatives.
        """
        total_weight = float(len(self))
        if self.weights is not None:
            total_weight = float(self.weights.sum())
        log_b, uniform = point
        # The loss of a row whose true class is masked is infinite.
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            loss_and_derivative_sums = kernels.mixture_loss_and_derivatives(
                self.columns,
                self.weights,
                self.inverse_temperature,
                float(np.exp(log_b)),
                float(uniform),
                self.pool,
            )
            return loss_and_derivative_sums / total_weight

    def compute_log_odds(self, fitted: UniformTemperatureMap) -> Float:
        """Compute the log-odds of the confidence of each row under a map, on the host."""
        return kernels.confidence_log_odds(
            self.columns,
            self.inverse_temperature,
            fitted.inverse_temperature,
            fitted.uniform,
            self.pool,
        )

    def compute_log_exp_sums(self, inverse_temperatures: Float) -> Float:
        """Compute log Σ e^{b d} of each row, where d = x - max x and b is near b₀."""
        log_exp_sums, _, _ = log_partition(
            np, self.columns, b_change=inverse_temperatures - self.inverse_temperature
        )
        return np.asarray(log_exp_sums)

    @property
    def exp_sum_of_others(self) -> Any:
        """Sum of e^{b₀ d} over the classes but the predicted one, with d = x - max x."""
        return self.columns[OTHERS_SUM]

    @property
    def mean_gap(self) -> Any:
        """Mean of the gaps d = x - max x under softmax(b₀ x)."""
        return self.columns[MEAN_GAP]

    @property
    def label_gap_to_max(self) -> Any:
        """Gap d = x - max x of the true class, -inf if the true class is masked."""
        return self.columns[LABEL_GAP]

    @property
    def n_unmasked(self) -> Any:
        """Number of unmasked classes of each row."""
        return self.columns[N_POSSIBLE]

    @property
    def correct(self) -> Float:
        """Indicator, on the host, of rows whose largest logit is the true class."""
        is_correct = self.columns[IS_CORRECT]
        if isinstance(is_correct, np.ndarray):
            return is_correct
        # Booleans take an eighth of the time to copy to the host.
        return np.asarray(to_numpy(is_correct > 0.0), dtype=np.float64)

    def drop_masked_labels(self) -> RowStatistics:
        """Return the statistics of the rows whose true class is not masked."""
        has_no_masked_label = len(self) > 0 and float(self.label_gap_to_max.min()) > -np.inf
        if has_no_masked_label:
            return self
        return self.select(self.label_gap_to_max > -np.inf)

    def select(self, mask_or_indices: Any) -> RowStatistics:
        """Return the statistics of the rows selected by a mask or by indices."""
        weights = None if self.weights is None else self.weights[mask_or_indices]
        return replace(self, columns=self.columns[:, mask_or_indices], weights=weights)


#: Function that computes the statistics at an inverse temperature.
ComputeRowStatistics = Callable[[float], RowStatistics]


def collect_statistics_on_host(
    rows: Rows, labels: Any, weights: Any, inverse_temperature: float
) -> RowStatistics:
    """Compute row statistics at an inverse temperature and store them on the host.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array or tensor of int
        Column index of the true class of each row.

    weights : array or None
        Weight of each row.

    inverse_temperature : float
        Inverse temperature at which the statistics are computed.

    Returns
    -------
    RowStatistics
    """
    kernel = partial(kernels.temperature_statistics, inverse_temperature=inverse_temperature)
    statistics_table = rows.compute_column(kernel, labels)
    return RowStatistics(
        columns=np.ascontiguousarray(statistics_table.T),
        weights=weights,
        inverse_temperature=inverse_temperature,
    )


def make_row_statistics_function(sample: LabelledRows) -> ComputeRowStatistics:
    """Return a cached function from an inverse temperature to the row statistics.

    Parameters
    ----------
    sample : LabelledRows
        Rows whose statistics the function computes, in one pass over the table.

    Returns
    -------
    function
    """
    rows = sample.rows
    thread_pool = rows.executor if isinstance(rows.executor, ThreadPoolExecutor) else None
    # Sums over few rows are faster on the host than on a device.
    keep_on_device = len(rows) >= _MIN_ROWS_ON_DEVICE
    weights = sample.weights if keep_on_device else to_numpy(sample.weights)
    cache_size = _LARGE_CACHE_SIZE if keep_on_device else _SMALL_CACHE_SIZE

    @lru_cache(maxsize=cache_size)
    def compute_row_statistics(inverse_temperature: float) -> RowStatistics:
        statistic_columns = _compute_statistic_columns(
            rows, sample.labels, inverse_temperature, keep_on_device=keep_on_device
        )
        return RowStatistics(
            columns=statistic_columns,
            weights=weights,
            inverse_temperature=inverse_temperature,
            pool=thread_pool,
        )

    return compute_row_statistics


def _compute_statistic_columns(
    rows: Rows, labels: Codes, inverse_temperature: float, *, keep_on_device: bool
) -> Any:
    """Compute the statistics of each row in one pass over the table.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array or tensor of int of shape (n_rows,)
        Column index of the true class of each row.

    inverse_temperature : float
        Inverse temperature at which the statistics are computed.

    keep_on_device : bool
        Whether the statistics of a table on a device stay on the device.

    Returns
    -------
    array or tensor of shape (8, n_rows)
    """
    if rows.gives_kernels_whole_blocks:
        # Each thread writes the statistics of its rows directly into the shared columns.
        statistic_columns = np.empty((_N_STATISTICS, len(rows)))
        statistics_of_rows = statistic_columns.T
        write_statistics = partial(_write_statistics, inverse_temperature)
        rows.fill_columns(write_statistics, statistics_of_rows, labels, allows_any_block_size=True)
        return statistic_columns
    compute_statistics = partial(
        kernels.temperature_statistics, inverse_temperature=inverse_temperature
    )
    statistics_of_rows = rows.compute_column(
        compute_statistics, labels, keep_on_device=keep_on_device
    )
    return _transpose_contiguously(statistics_of_rows)


def _transpose_contiguously(table: Any) -> Any:
    """Return the transpose of an array or a tensor in contiguous memory."""
    if isinstance(table, np.ndarray):
        return np.ascontiguousarray(table.T)
    return table.T.contiguous()


def _write_statistics(
    inverse_temperature: float, block: NDArray[Any], out: Float, labels: Codes
) -> None:
    """Write the statistics of a block of rows into `out`."""
    kernels.temperature_statistics(block, labels, inverse_temperature, out=out)
