"""How often a fit reads the whole table, and how exact its answer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.rows import Rows

_BLOCK_ELEMENTS = 1 << 18


class CountedRows(Rows):
    """Rows that count how often all of them are read; what reads a part (`take_every`, `select`) is not
    counted.

    A function that looks only at the entries of its labels (is the true class masked?) does not
    read the table.

    Examples
    --------
    >>> rows = CountedRows(np.ones((3, 2)))
    >>> rows.sum(lambda block: block.sum(axis=0))
    array([3., 3.])
    >>> rows.passes
    1
    """

    passes = 0

    def sum(self, fn: Callable[..., NDArray[Any]], *columns: NDArray[Any] | None) -> NDArray[Any]:
        """Count, then sum."""
        self.passes += 1
        return super().sum(fn, *columns)

    def compute_column(
        self,
        fn: Callable[..., NDArray[Any]],
        *columns: NDArray[Any] | None,
        keep_on_device: bool = False,
    ) -> NDArray[Any]:
        """Count, then compute the column."""
        self.passes += not self._only_labels(fn, columns)
        return super().compute_column(fn, *columns, keep_on_device=keep_on_device)

    def _only_labels(self, fn: Callable[..., NDArray[Any]], columns: tuple[Any, ...]) -> bool:
        """Whether changing every entry but those of the labels leaves the answer as it was."""
        if len(columns) != 1 or columns[0] is None:
            return False
        block, labels = np.array(self.table[:16]), columns[0][:16]
        changed = np.full_like(block, np.nan)
        at = np.arange(len(block))
        changed[at, labels] = block[at, labels]
        with np.errstate(invalid="ignore"):
            return np.array_equal(fn(block, labels), fn(changed, labels))


def passes_of_temperature_fit(table: NDArray[Any], labels: NDArray[np.int64]) -> int:
    """Full passes over the table that a temperature fit makes."""
    from metacal.maps.temperature import fit_temperature

    rows = CountedRows(table)
    fit_temperature(rows, labels)
    return rows.passes


def exact_temperature(table: NDArray[Any], labels: NDArray[np.int64], start: float) -> float:
    """T solved in float64 from end to end, by Newton's method in b = 1/T, sharing no code with what
    is timed.

    Examples
    --------
    >>> logits = np.log([[0.9, 0.1]] * 10) * 3.0
    >>> round(exact_temperature(logits, np.array([0] * 9 + [1]), start=1.0), 12)
    3.0
    """
    b = 1.0 / start
    for _ in range(50):
        slope, curvature = _slope_and_curvature(table, labels, b)
        step = max(-b, min(slope / curvature, 0.5 * b))
        b -= step
        if abs(step) < 1e-12 * b:
            break
    return 1.0 / b


def _slope_and_curvature(
    table: NDArray[Any], labels: NDArray[np.int64], b: float
) -> tuple[float, float]:
    slope = curvature = 0.0
    rows = max(1, _BLOCK_ELEMENTS // table.shape[1])
    for start in range(0, len(table), rows):
        gaps = table[start : start + rows].astype(np.float64)
        gaps -= gaps.max(axis=1, keepdims=True)
        own = gaps[np.arange(len(gaps)), labels[start : start + rows]]
        chances = np.exp(b * gaps)
        chances /= chances.sum(axis=1, keepdims=True)
        first = np.einsum("ij,ij->i", chances, gaps)
        gaps -= first[:, None]
        gaps *= gaps
        slope += float((first - own).sum())
        curvature += float(np.einsum("ij,ij->", chances, gaps))
    return slope, curvature
