"""Statistics of each row from which uniform temperature scaling is fitted.

One pass over the table at an inverse temperature b₀ computes a few numbers per row. With
them, the loss of (1 - e) softmax(b x) + e / K is known by a series for every e and every b
near b₀, without another pass. See `metacal.kernels.columns`.
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
from metacal.kernels.columns import OWN, RIGHT
from metacal.maps.labelled import LabelledRows
from metacal.maps.temperature import MIN_ROWS_TO_SAMPLE_TWICE
from metacal.rows import Rows
from metacal.rows.arrays import on_host

if TYPE_CHECKING:
    from metacal.maps.uniform import UniformTemperatureMap

_N_COLUMNS = 8


@dataclass(frozen=True)
class RowStatistics:
    """Statistics of each row at one inverse temperature.

    Attributes
    ----------
    columns : array or tensor of shape (8, n_rows)
        Columns of `kernels.temperature_statistics`. If the table is on a device, so are they.

    weights : array, tensor or None
        Weight of each row.

    computed_at : float
        Inverse temperature of the pass.

    pool : ThreadPoolExecutor or None
        Threads that share the sums over the rows.
    """

    columns: Any
    weights: Any
    computed_at: float
    pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def mean_loss(self, point: Float) -> Float:
        """Compute the mean loss at (log b, e) with its gradient and Hessian.

        Returns
        -------
        array of shape (6,)
            Loss, two first derivatives and three second derivatives.
        """
        total_weight = float(len(self))
        if self.weights is not None:
            total_weight = float(self.weights.sum())
        b = float(np.exp(point[0]))
        uniform = float(point[1])
        # The loss of a row whose true class is masked is infinite.
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            sums = kernels.mixture_loss_sums(
                self.columns, self.weights, self.computed_at, b, uniform, self.pool
            )
            return sums / total_weight

    def log_odds(self, fitted: UniformTemperatureMap) -> Float:
        """Compute the log-odds of each confidence under a map, on the host."""
        return kernels.mixture_log_odds(
            self.columns,
            self.computed_at,
            fitted.inverse_temperature,
            fitted.uniform,
            self.pool,
        )

    @property
    def correct(self) -> Float:
        """1 for each row whose largest logit is the true class, else 0; on the host."""
        return np.asarray(on_host(self.columns[RIGHT]))

    def drop_masked_labels(self) -> RowStatistics:
        """Return the rows whose true class is not masked."""
        is_unmasked = self.columns[OWN] > -np.inf
        if bool(is_unmasked.all()):
            return self
        return self.where(is_unmasked)

    def where(self, selection: Any) -> RowStatistics:
        """Return the rows selected by a mask or by indices."""
        weights = None if self.weights is None else self.weights[selection]
        return replace(self, columns=self.columns[:, selection], weights=weights)


#: Function that computes the statistics at an inverse temperature.
StatisticsPass = Callable[[float], RowStatistics]


def collect_on_host(rows: Rows, labels: Any, weights: Any, b: float) -> RowStatistics:
    """Compute the statistics at inverse temperature b, on the host.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array or tensor of int
        Column index of the true class of each row.

    weights : array or None
        Weight of each row.

    b : float
        Inverse temperature of the pass.

    Returns
    -------
    RowStatistics
    """
    table = rows.collect(partial(kernels.temperature_statistics, inverse_temperature=b), labels)
    return RowStatistics(columns=np.ascontiguousarray(table.T), weights=weights, computed_at=b)


def statistics_pass(sample: LabelledRows) -> StatisticsPass:
    """Return a function that computes the statistics of a sample at a temperature.

    The function caches its latest results.
    """
    rows = sample.rows
    labels = sample.labels
    pool = rows.executor if isinstance(rows.executor, ThreadPoolExecutor) else None
    # Sums over few rows are faster on the host than on a device.
    is_large = len(rows) >= MIN_ROWS_TO_SAMPLE_TWICE
    weights = sample.weights if is_large else on_host(sample.weights)

    @lru_cache(maxsize=2 if is_large else 8)
    def run_pass(b: float) -> RowStatistics:
        if rows.in_place:
            # Threads write the columns directly to their place.
            columns: Any = np.empty((_N_COLUMNS, len(rows)))
            rows.fill(partial(_write_columns, b), columns.T, labels, whole=True)
        else:
            kernel = partial(kernels.temperature_statistics, inverse_temperature=b)
            columns = _contiguous_transpose(rows.collect(kernel, labels, there=is_large))
        return RowStatistics(columns=columns, weights=weights, computed_at=b, pool=pool)

    return run_pass


def _contiguous_transpose(table: Any) -> Any:
    """Transpose an array or a tensor into contiguous memory."""
    if isinstance(table, np.ndarray):
        return np.ascontiguousarray(table.T)
    return table.T.contiguous()


def _write_columns(b: float, block: NDArray[Any], out: Float, labels: Codes) -> None:
    """Write the statistics of a block of rows into `out`."""
    kernels.temperature_statistics(block, labels, b, out=out)
