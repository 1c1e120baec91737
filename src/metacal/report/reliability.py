"""The reliability diagrams of the report: one for each stage and set of rows, with exact limits per
bin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metacal.formulas import Float
from metacal.metrics.binning import (
    ReliabilityCurve,
    bin_codes,
    equal_mass,
    equal_width,
    reliability_table,
)
from metacal.metrics.intervals import Interval, exact_limits
from metacal.metrics.toplabel import TopLabel

if TYPE_CHECKING:
    from metacal.report.measured import Measured, Settings

#: Bins of the confidence histogram.
HISTOGRAM_BINS = 40


@dataclass(frozen=True, eq=False)
class Bins:
    """A reliability table: bin b is (edges[b], edges[b+1]]; empty bins hold NaN.

    `low` and `high` are exact (Clopper-Pearson) limits of the accuracy of each bin, together at the
    summary's level by Bonferroni over the bins that hold a row: a calibrated table leaves the band
    anywhere with probability 1 - level.
    """

    edges: Float
    count: Float
    confidence: Float
    accuracy: Float
    low: Float
    high: Float


@dataclass(frozen=True, eq=False)
class Diagram:
    """Reliability of one table of probabilities.

    Attributes
    ----------
    stage : "before" (softmax of the logits) or "after" (calibrated)
    rows : "all" or "accepted"
    accuracy, confidence : float
        Means over these rows.
    ece, ece_equal_mass : dict
        estimate, low, high, level, method: the numbers of `metacal.metrics.evaluate`.
    equal_width, equal_mass : Bins
    histogram_edges, histogram : arrays
        Rows per confidence bin (equal width, finer than the reliability bins).
    """

    stage: str
    rows: str
    title: str
    n_rows: int
    accuracy: float
    confidence: float
    ece: dict[str, Any]
    ece_equal_mass: dict[str, Any]
    equal_width: Bins
    equal_mass: Bins
    histogram_edges: Float
    histogram: Float


def diagrams(rows: Measured, settings: Settings) -> tuple[Diagram, ...]:
    """Before on all rows; then with a gate both on its accepted rows, with a calibrator after on
    all rows.

    Where there is no softmax to begin with, the gate's confidence on all rows.
    """
    before, after, accept, found = rows.before, rows.after, rows.accept, rows.evaluation
    raw = found.after if found.before is None else found.before
    wanted: list[tuple[str, str, TopLabel | None, Mapping[str, Interval] | None]] = []
    wanted.append(("before", "all", before, raw.all_rows))
    if accept is None or before is None:
        wanted.append(("after", "all", after, found.after.all_rows))
    elif accept.any():
        wanted.append(("before", "accepted", before, raw.accepted_rows))
        wanted.append(("after", "accepted", after, found.after.accepted_rows))
    titles = {"before": "Before: softmax of the logits", "after": "After: calibrated"}
    if before is None:
        titles["after"] = "Calibrated confidence"
    drawn = []
    for stage, which, top, metrics in wanted:
        if top is not None and metrics is not None:
            own = top if which == "all" else TopLabel(top.confidence[accept], top.correct[accept])
            drawn.append(
                diagram(own, stage, which, f"{titles[stage]}, {which} rows", metrics, settings)
            )
    return tuple(drawn)


def diagram(
    top: TopLabel,
    stage: str,
    rows: str,
    title: str,
    metrics: Mapping[str, Interval],
    settings: Settings,
) -> Diagram:
    """The diagram of two columns; `metrics` are those of `evaluate` on the same rows."""
    edges, n_bins = equal_width(top.confidence, HISTOGRAM_BINS), settings.n_bins
    return Diagram(
        stage=stage,
        rows=rows,
        title=title,
        n_rows=len(top),
        accuracy=float(top.correct.mean()),
        confidence=float(top.confidence.mean()),
        ece=metrics["ece"].to_dict(),
        ece_equal_mass=metrics["ece_equal_mass"].to_dict(),
        equal_width=with_limits(
            reliability_table(top, equal_width(top.confidence, n_bins)), settings.level
        ),
        equal_mass=with_limits(
            reliability_table(top, equal_mass(top.confidence, n_bins)), settings.level
        ),
        histogram_edges=edges,
        histogram=np.bincount(bin_codes(top.confidence, edges), minlength=HISTOGRAM_BINS).astype(
            np.float64
        ),
    )


def with_limits(curve: ReliabilityCurve, level: float) -> Bins:
    """Add Clopper-Pearson limits of each bin's accuracy that hold for all bins at once with
    probability `level`.

    Given how many rows fall in a bin, its right ones are binomial; Bonferroni over the bins that
    hold a row. A tied top probability counts in part: such counts are rounded outwards.

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
    low = exact_limits(np.floor(right + 1e-9), count, tail)[0]
    high = exact_limits(np.ceil(right - 1e-9), count, tail)[1]
    limits = (np.where(count > 0, end, np.nan) for end in (low, high))
    return Bins(curve.edges, count, curve.mean_confidence, curve.accuracy, *limits)
