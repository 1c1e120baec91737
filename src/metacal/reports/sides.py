"""Precision, recall and related curves of two classes, at thresholds of the log-odds.

The log-odds are those of the positive class, which is the second class. Rows with log-odds above a
threshold are *called* positive, the others negative. A gate with two *sides* has a lower threshold,
up to which it calls rows negative, and an upper threshold, above which it calls rows positive.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from metacal.formulas import Array
from metacal.maps.monotone import log_odds
from metacal.metrics.intervals import clopper_pearson
from metacal.metrics.ranking import auroc
from metacal.reports.operating import (
    CurveWithBand,
    choose_accepted_counts,
    choose_short_thresholds,
    convert_band,
)
from metacal.statistics.bands import operating_bands

if TYPE_CHECKING:
    from metacal.formulas import Codes, Flags, Float
    from metacal.gate import Gate
    from metacal.rows import Rows

#: Approximate number of thresholds.
_N_THRESHOLDS = 200
#: One in 20 rows counts as near a threshold, on each side of it.
_NEAR_ROWS_DIVISOR = 20
#: Smallest number of rows near a threshold, on each side of it.
_MIN_NEAR_ROWS = 50

#: Codes of the negative and of the positive class, and of the sides of a gate.
_NEGATIVE = 0
_POSITIVE = 1


def compute_side_curves(
    gate: Gate, rows: Rows, codes: Codes, names: Array, delta: float, level: float
) -> dict[str, Any]:
    """Compute precision, recall and related curves at about 200 log-odds thresholds.

    Parameters
    ----------
    gate : Gate
        Gate or calibrator.

    rows : Rows
        Logits of two classes.

    codes : array of int of shape (n_rows,)
        True classes, 1 for the positive class.

    names : array of shape (2,)
        Names of the classes, the negative class first.

    delta : float
        All bands hold at all thresholds at once with probability 1 - delta.

    level : float
        Confidence level of the intervals near the thresholds.

    Returns
    -------
    dict
        "called" is P(above). "recall" and "false_positive_rate" are P(above | positive) and P(above
        | negative), the ROC curve. "precision" and "npv" are P(positive | above) and P(negative |
        not above). "lower" and "upper" are the indices of the thresholds of the gate, None if a side
        is closed or the gate has no sides. "near" has the calibration of the rows next to these
        thresholds, or next to the decision threshold.
    """
    is_positive = codes == _POSITIVE
    row_log_odds = rows.compute_column(log_odds)
    n_rows = len(row_log_odds)
    sorted_log_odds = np.sort(row_log_odds)
    gate_thresholds = _get_gate_thresholds(gate)
    n_below_gate_threshold = {
        side: int(np.searchsorted(sorted_log_odds, threshold, side="right"))
        for side, threshold in gate_thresholds.items()
    }
    counts_by_side = [
        choose_accepted_counts(sorted_log_odds, _N_THRESHOLDS, n_below_gate_threshold.get(side, 0))
        for side in (_NEGATIVE, _POSITIVE)
    ]
    n_below = np.unique(np.concatenate(counts_by_side))
    thresholds = choose_short_thresholds(sorted_log_odds, n_below)

    negative_bands = operating_bands(row_log_odds, ~is_positive, delta / 2.0, thresholds)
    # Rows with log-odds equal to a threshold are called negative, so they are excluded here.
    negated_thresholds = np.nextafter(-thresholds, -np.inf)
    positive_bands = operating_bands(-row_log_odds, is_positive, delta / 2.0, negated_thresholds)
    false_negative_rate = convert_band(positive_bands.miscoverage)

    gate_threshold_indices = {
        side: int(np.searchsorted(n_below, count))
        for side, count in n_below_gate_threshold.items()
        if count
    }
    examined_thresholds = gate_thresholds or {_POSITIVE: gate.logits_source.decision_at}
    positive_probability = rows.compute_column(partial(_compute_positive_probability, gate))
    return {
        "names": [str(name) for name in names],
        "n_rows": n_rows,
        "n_positive": int(is_positive.sum()),
        "threshold": thresholds,
        "called": 1.0 - n_below / n_rows,
        "recall": CurveWithBand(
            estimate=1.0 - false_negative_rate.estimate,
            low=1.0 - false_negative_rate.high,
            high=1.0 - false_negative_rate.low,
        ),
        "false_positive_rate": convert_band(negative_bands.miscoverage),
        "precision": convert_band(positive_bands.accuracy),
        "npv": convert_band(negative_bands.accuracy),
        "auroc": auroc(-row_log_odds, is_positive),
        "lower": gate_threshold_indices.get(_NEGATIVE),
        "upper": gate_threshold_indices.get(_POSITIVE),
        "near": _compare_near_thresholds(
            positive_probability, row_log_odds, is_positive, examined_thresholds, level
        ),
        "delta": delta,
    }


def _get_gate_thresholds(gate: Gate) -> dict[int, float]:
    """Return the log-odds thresholds of a two-sided gate, keyed by side.

    The result is empty if the gate is not two-sided, or if each group has its own thresholds.
    """
    certificate = gate.certificate
    if (
        certificate is None
        or certificate.subgroups is None
        or not certificate.subgroups.is_two_sided_without_groups
    ):
        return {}
    thresholds = {}
    for side, side_certificate in enumerate(certificate.subgroups.items):
        # The score of a side is the negated distance of the log-odds from the decision threshold.
        margin = 0.0 if side_certificate.accepts_everything else -side_certificate.threshold
        if np.isfinite(margin):
            signed_margin = margin if side == _POSITIVE else -margin
            thresholds[side] = certificate.decision_at + signed_margin
    return thresholds


def _compute_positive_probability(gate: Gate, logits: Array) -> Float:
    """Compute the calibrated probability of the positive class for rows of logits."""
    probabilities = gate.logits_source.map(logits)
    return np.asarray(probabilities[:, _POSITIVE], dtype=np.float64)


def _compare_near_thresholds(
    positive_probability: Float,
    row_log_odds: Float,
    is_positive: Flags,
    thresholds: dict[int, float],
    level: float,
) -> list[dict[str, float]]:
    """Compare probability and frequency of the positive class near each threshold.

    Parameters
    ----------
    positive_probability : array of shape (n_rows,)
        Calibrated probability of the positive class.

    row_log_odds : array of shape (n_rows,)
        Log-odds of the positive class.

    is_positive : array of bool of shape (n_rows,)
        Whether the true class is the positive class.

    thresholds : dict of int to float
        Thresholds keyed by side.

    level : float
        Confidence level of the intervals.

    Returns
    -------
    list of dict
        Two entries per threshold, for the rows just below (side 0) and just above it (side 1).
    """
    n_near = max(_MIN_NEAR_ROWS, len(row_log_odds) // _NEAR_ROWS_DIVISOR)
    order = np.argsort(row_log_odds, kind="stable")
    entries = []
    for threshold in sorted(set(thresholds.values())):
        n_below = int(np.searchsorted(row_log_odds[order], threshold, side="right"))
        rows_below = order[max(0, n_below - n_near) : n_below]
        rows_above = order[n_below : n_below + n_near]
        for side, near_rows in ((_NEGATIVE, rows_below), (_POSITIVE, rows_above)):
            if not len(near_rows):
                continue
            n_positive = int(is_positive[near_rows].sum())
            frequency = clopper_pearson(n_positive, len(near_rows), level)
            entries.append(
                {
                    "at": threshold,
                    "side": side,
                    "n_rows": len(near_rows),
                    "stated": float(positive_probability[near_rows].mean()),
                    "share": frequency.estimate,
                    "low": frequency.low,
                    "high": frequency.high,
                }
            )
    return entries
