"""The reliability diagrams of the report: one for each stage and set of rows, with exact limits per bin."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from metacal.metrics.binning import ReliabilityCurve, bin_codes, equal_mass, equal_width, reliability_table
from metacal.metrics.evaluation import RowMetrics
from metacal.metrics.toplabel import TopLabel
from metacal.report.summary import Bins, Diagram, Settings

#: Bins of the confidence histogram.
HISTOGRAM_BINS = 40


def diagram(
    top: TopLabel, stage: str, rows: str, title: str, *, metrics: dict[str, Any], n_bins: int, level: float
) -> Diagram:
    """The diagram of two columns; `metrics` are those of `evaluate` on the same rows, as JSON."""
    edges = equal_width(top.confidence, HISTOGRAM_BINS)
    return Diagram(
        stage=stage,
        rows=rows,
        title=title,
        n_rows=len(top),
        accuracy=float(top.correct.mean()),
        confidence=float(top.confidence.mean()),
        ece=metrics["ece"],
        ece_equal_mass=metrics["ece_equal_mass"],
        equal_width=with_limits(reliability_table(top, equal_width(top.confidence, n_bins)), level),
        equal_mass=with_limits(reliability_table(top, equal_mass(top.confidence, n_bins)), level),
        histogram_edges=edges,
        histogram=np.bincount(bin_codes(top.confidence, edges), minlength=HISTOGRAM_BINS).astype(np.float64),
    )


def with_limits(curve: ReliabilityCurve, level: float) -> Bins:
    """Add Clopper-Pearson limits of each bin's accuracy that hold for all bins at once with probability `level`.

    Given how many rows fall in a bin, its right ones are binomial; Bonferroni over the bins that hold a row. A tied top
    probability counts in part: such counts are rounded outwards.

    Examples
    --------
    >>> from metacal import metrics
    >>> bins = with_limits(metrics.reliability_curve([0.9] * 50 + [0.4] * 50, [1] * 45 + [0] * 55, n_bins=2), 0.95)
    >>> bins.accuracy, bins.low.round(3), bins.high.round(3)
    (array([0. , 0.9]), array([0. , 0.764]), array([0.084, 0.972]))
    """
    count = curve.counts.astype(np.float64)
    right = np.nan_to_num(curve.accuracy * count)
    tail = (1.0 - level) / (2.0 * max(int((count > 0).sum()), 1))
    low = _lower(np.floor(right + 1e-9), count, tail)
    high = 1.0 - _lower(np.floor(count - right + 1e-9), count, tail)
    empty = count == 0
    return Bins(
        edges=curve.edges,
        count=count,
        confidence=curve.mean_confidence,
        accuracy=curve.accuracy,
        low=np.where(empty, np.nan, low),
        high=np.where(empty, np.nan, high),
    )


def _lower(successes: NDArray[np.float64], n: NDArray[np.float64], tail: float) -> NDArray[np.float64]:
    at = np.maximum(successes, 1.0)
    return np.where(successes > 0, betaincinv(at, np.maximum(n, at) - at + 1.0, tail), 0.0)


def diagrams(
    before: RowMetrics,
    shown: RowMetrics,
    accept: NDArray[np.bool_] | None,
    evaluation: dict[str, Any],
    settings: Settings,
) -> tuple[Diagram, ...]:
    """Before on all rows; then with a gate both on its accepted rows, with a calibrator after on all rows."""
    raw = evaluation["uncalibrated"]
    options: dict[str, Any] = {"n_bins": settings.n_bins, "level": settings.level}
    all_raw = evaluation["all_rows"] if raw is None else _as_intervals(raw["all_rows"], settings.level)
    found = [
        diagram(before.top, "before", "all", "Before: softmax of the logits, all rows", metrics=all_raw, **options)
    ]
    if raw is None:
        return tuple(found)
    if accept is None:
        metrics = evaluation["all_rows"]
        return (*found, diagram(shown.top, "after", "all", "After: calibrated, all rows", metrics=metrics, **options))
    if not accept.any():
        return tuple(found)
    kept_raw = _as_intervals(raw["accepted_rows"], settings.level)
    title = "Before: softmax of the logits, accepted rows"
    top = before.subset(accept).top
    found.append(diagram(top, "before", "accepted", title, metrics=kept_raw, **options))
    top, title = shown.subset(accept).top, "After: calibrated, accepted rows"
    metrics = evaluation["accepted_rows"]
    return (*found, diagram(top, "after", "accepted", title, metrics=metrics, **options))


def _as_intervals(points: dict[str, Any], level: float) -> dict[str, Any]:
    return {
        name: {"estimate": value, "low": None, "high": None, "level": level, "method": "none"}
        for name, value in points.items()
    }
