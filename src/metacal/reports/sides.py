"""Precision, recall and related curves of two classes, at thresholds of the log-odds.

The log-odds are those of the positive class, which is the second class. Rows with log-odds above a
threshold are *called* positive, the others negative. A gate with two *sides* has a lower threshold,
up to which it calls rows negative, and an upper threshold, above which it calls rows positive.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    from metacal.reports.report_rows import ReportRows, Settings
    from metacal.rows import Rows

#: Target for the number of thresholds of the curves.
_N_SIDE_THRESHOLDS = 200
#: Near a threshold means the closest 1/20 of all rows on each side of it.
_NEAR_ROWS_DIVISOR = 20
#: Smallest number of rows near a threshold, on each side of it.
_MIN_NEAR_ROWS = 50

#: Codes of the negative and of the positive class, and of the sides of a gate.
_NEGATIVE_CODE = 0
_POSITIVE_CODE = 1


def compute_side_curves(
    gate: Gate, report_rows: ReportRows, rows: Rows, names: Array, settings: Settings
) -> dict[str, Any]:
    """Compute precision, recall and related curves at about 200 log-odds thresholds.

    Parameters
    ----------
    gate : Gate
        Gate or calibrator.

    report_rows : ReportRows
        Labelled rows of the report, with the decisions of the gate.

    rows : Rows
        Logits of two classes.

    names : array of shape (2,)
        Names of the classes, the negative class first.

    settings : Settings
        Settings of the report. All bands hold at all thresholds at once with probability 1 - delta.

    Returns
    -------
    dict
        "n_below" is the number of rows at or below each threshold. "recall" and "false_positive_rate" are P(above | positive) and P(above
        | negative), the ROC curve. "precision" and "npv" are P(positive | above) and P(negative |
        not above). "lower" and "upper" are the indices of the thresholds of the gate, as
        `_GateCounts` defines them. "gate" has the numbers of the gate itself, None without a gate.
        "is_two_sided" says whether the promise is about the sides. "near" has the calibration of the
        rows next to the certified thresholds, or next to the decision threshold.
    """
    row_log_odds = rows.compute_column(log_odds)
    gate_counts = _GateCounts.from_decisions(report_rows, row_log_odds)
    sorted_log_odds = np.sort(row_log_odds)
    n_below = _choose_numbers_below(sorted_log_odds, gate_counts)
    thresholds = choose_short_thresholds(sorted_log_odds, n_below)
    lower_index, upper_index = gate_counts.find_threshold_indices(n_below)
    certified_thresholds = _certified_log_odds_thresholds(gate)
    for side, index in ((_NEGATIVE_CODE, lower_index), (_POSITIVE_CODE, upper_index)):
        _insert_certified_threshold(
            thresholds, index, certified_thresholds.get(side), sorted_log_odds, n_below
        )

    is_positive = report_rows.true_codes == _POSITIVE_CODE
    examined_thresholds = certified_thresholds or {_POSITIVE_CODE: gate.logits_source.decision_at}
    positive_probability = rows.compute_column(partial(_compute_positive_probability, gate))
    certificate = gate.certificate
    subgroups = None if certificate is None else certificate.subgroups
    return {
        "names": [str(name) for name in names],
        "n_rows": len(row_log_odds),
        "n_positive": int(is_positive.sum()),
        "threshold": thresholds,
        "n_below": n_below,
        **_compute_rate_curves(row_log_odds, is_positive, thresholds, settings.delta),
        "auroc": auroc(-row_log_odds, is_positive),
        "lower": lower_index,
        "upper": upper_index,
        "gate": _measure_gate_rates(report_rows),
        "is_two_sided": subgroups is not None and subgroups.is_two_sided,
        "near": _compare_calibration_near(
            positive_probability, row_log_odds, is_positive, examined_thresholds, settings.level
        ),
        "delta": settings.delta,
    }


@dataclass(frozen=True)
class _GateCounts:
    """Numbers of rows below the thresholds of a gate, counted from its decisions.

    Attributes
    ----------
    n_below_lower : int or None
        Number of rows that the gate calls negative. None without a gate, or if no threshold of the
        log-odds separates these rows from the others, as for a gate with thresholds by group.

    n_below_upper : int or None
        Number of rows that the gate does not call positive.

    n_rows : int
        Number of all rows.
    """

    n_below_lower: int | None
    n_below_upper: int | None
    n_rows: int

    @classmethod
    def from_decisions(cls, report_rows: ReportRows, row_log_odds: Float) -> _GateCounts:
        """Count the rows on each side, if the sides are intervals of the log-odds."""
        n_rows = len(row_log_odds)
        accept = report_rows.accept
        no_counts = cls(n_below_lower=None, n_below_upper=None, n_rows=n_rows)
        if accept is None:
            return no_counts
        called_negative = accept & (report_rows.predicted_codes == _NEGATIVE_CODE)
        called_positive = accept & (report_rows.predicted_codes == _POSITIVE_CODE)
        is_negative_side_lowest = _has_smaller_values(row_log_odds, called_negative)
        is_positive_side_highest = _has_smaller_values(row_log_odds, ~called_positive)
        if not (is_negative_side_lowest and is_positive_side_highest):
            return no_counts
        n_negative = int(called_negative.sum())
        n_positive = int(called_positive.sum())
        return cls(n_below_lower=n_negative, n_below_upper=n_rows - n_positive, n_rows=n_rows)

    def find_threshold_indices(self, n_rows_below: Codes) -> tuple[int | None, int | None]:
        """Find the two thresholds of the gate in a grid, by the rows below each.

        `n_rows_below` has the number of rows at or below each threshold of the grid, in increasing
        order. A side without rows is closed. The lower index is then -1, and the upper index is the
        number of thresholds.
        """
        if self.n_below_lower is None or self.n_below_upper is None:
            return None, None
        lower_index = -1
        has_negative_side = self.n_below_lower > 0
        if has_negative_side:
            lower_index = int(np.searchsorted(n_rows_below, self.n_below_lower))
        n_thresholds = len(n_rows_below)
        upper_index = n_thresholds
        has_positive_side = self.n_below_upper < self.n_rows
        if has_positive_side:
            upper_index = int(np.searchsorted(n_rows_below, self.n_below_upper))
        return lower_index, upper_index


def _has_smaller_values(values: Float, is_selected: Flags) -> bool:
    """Check whether all selected values are smaller than all other values."""
    if is_selected.all() or not is_selected.any():
        return True
    return bool(values[is_selected].max() < values[~is_selected].min())


def _choose_numbers_below(sorted_log_odds: Float, gate_counts: _GateCounts) -> Codes:
    """Choose the numbers of rows below the thresholds, including those of the gate."""
    counts_by_side = [
        choose_accepted_counts(sorted_log_odds, _N_SIDE_THRESHOLDS, n_below or 0)
        for n_below in (gate_counts.n_below_lower, gate_counts.n_below_upper)
    ]
    return np.unique(np.concatenate(counts_by_side))


def _insert_certified_threshold(
    thresholds: Float,
    index: int | None,
    certified_threshold: float | None,
    sorted_log_odds: Float,
    n_below: Codes,
) -> None:
    """Replace a threshold by the certified one if both separate equal numbers of rows."""
    is_open_side = index is not None and 0 <= index < len(thresholds)
    if certified_threshold is None or index is None or not is_open_side:
        return
    n_below_certified = int(np.searchsorted(sorted_log_odds, certified_threshold, side="right"))
    if n_below_certified == n_below[index]:
        thresholds[index] = certified_threshold


def _compute_rate_curves(
    row_log_odds: Float, is_positive: Flags, thresholds: Float, delta: float
) -> dict[str, CurveWithBand]:
    """Compute recall, false-positive rate, precision and NPV with confidence bands."""
    delta_of_each_side = delta / 2.0
    # `operating_bands` accepts rows up to a threshold: first those called negative, then, with the
    # opposite sign, those called positive.
    bands_of_called_negative = operating_bands(
        row_log_odds, correct=~is_positive, delta=delta_of_each_side, thresholds=thresholds
    )
    # Rows with log-odds equal to a threshold are called negative, so they are excluded here.
    negated_thresholds = np.nextafter(-thresholds, -np.inf)
    bands_of_called_positive = operating_bands(
        -row_log_odds, correct=is_positive, delta=delta_of_each_side, thresholds=negated_thresholds
    )
    # Miscoverage is P(not accepted | correct). For the rows that are called positive, it is the
    # false-negative rate, and for the others the false-positive rate.
    false_negative_rate = convert_band(bands_of_called_positive.miscoverage)
    false_positive_rate = convert_band(bands_of_called_negative.miscoverage)
    positive_log_odds = np.sort(row_log_odds[is_positive])
    n_missed = np.searchsorted(positive_log_odds, thresholds, side="right")
    n_positive = len(positive_log_odds)
    return {
        "recall": CurveWithBand(
            # The exact quotient of counts is equal to the recall of a gate to the last bit.
            estimate=(n_positive - n_missed) / n_positive,
            low=1.0 - false_negative_rate.high,
            high=1.0 - false_negative_rate.low,
        ),
        "false_positive_rate": false_positive_rate,
        "precision": convert_band(bands_of_called_positive.accuracy),
        "npv": convert_band(bands_of_called_negative.accuracy),
    }


def _measure_gate_rates(report_rows: ReportRows) -> dict[str, float] | None:
    """Compute precision, recall and other rates of the decisions of a gate, if any.

    "called_positive" and "called_negative" are shares of all rows. "recall" is P(called positive |
    positive), and "caught" is P(not called negative | positive). Rates without rows are NaN.
    """
    accept = report_rows.accept
    if accept is None:
        return None
    is_positive = report_rows.true_codes == _POSITIVE_CODE
    called_positive = accept & (report_rows.predicted_codes == _POSITIVE_CODE)
    called_negative = accept & (report_rows.predicted_codes == _NEGATIVE_CODE)
    return {
        "called_positive": float(called_positive.mean()),
        "called_negative": float(called_negative.mean()),
        "precision": _compute_proportion(is_positive, called_positive),
        "npv": _compute_proportion(~is_positive, called_negative),
        "recall": _compute_proportion(called_positive, is_positive),
        "caught": _compute_proportion(~called_negative, is_positive),
        "false_positive_rate": _compute_proportion(called_positive, ~is_positive),
    }


def _compute_proportion(has_event: Flags, is_counted: Flags) -> float:
    """Compute the proportion of counted rows with an event, or NaN for no rows."""
    n_counted = int(is_counted.sum())
    if n_counted == 0:
        return float("nan")
    return int((has_event & is_counted).sum()) / n_counted


def _certified_log_odds_thresholds(gate: Gate) -> dict[int, float]:
    """Return the certified log-odds thresholds of a two-sided gate, keyed by side.

    The result is empty if the gate is not two-sided, or if each group has its own thresholds.
    """
    certificate = gate.certificate
    if (
        certificate is None
        or certificate.subgroups is None
        or not certificate.subgroups.is_two_sided_without_groups
    ):
        return {}
    decision_threshold = certificate.decision_at
    thresholds_by_side = {}
    for side, side_certificate in enumerate(certificate.subgroups.items):
        # The score of a side is the negated distance of the log-odds from the decision threshold.
        min_distance = 0.0 if side_certificate.accepts_everything else -side_certificate.threshold
        accepts_some_rows = np.isfinite(min_distance)
        if not accepts_some_rows:
            continue
        if side == _POSITIVE_CODE:
            thresholds_by_side[side] = decision_threshold + min_distance
        else:
            thresholds_by_side[side] = decision_threshold - min_distance
    return thresholds_by_side


def _compute_positive_probability(gate: Gate, logits: Array) -> Float:
    """Compute the calibrated probability of the positive class for rows of logits."""
    class_probabilities = gate.logits_source.map(logits)
    return np.asarray(class_probabilities[:, _POSITIVE_CODE], dtype=np.float64)


def _compare_calibration_near(
    positive_probability: Float,
    row_log_odds: Float,
    is_positive: Flags,
    thresholds_by_side: dict[int, float],
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

    thresholds_by_side : dict of int to float
        Log-odds thresholds keyed by side.

    level : float
        Confidence level of the intervals.

    Returns
    -------
    list of dict
        Two entries per threshold, for the rows just below (side 0) and just above it (side 1).
    """
    n_near_each_side = max(_MIN_NEAR_ROWS, len(row_log_odds) // _NEAR_ROWS_DIVISOR)
    sorted_rows = np.argsort(row_log_odds, kind="stable")
    sorted_log_odds = row_log_odds[sorted_rows]
    comparisons = []
    for threshold in sorted(set(thresholds_by_side.values())):
        n_below = int(np.searchsorted(sorted_log_odds, threshold, side="right"))
        rows_below = sorted_rows[max(0, n_below - n_near_each_side) : n_below]
        rows_above = sorted_rows[n_below : n_below + n_near_each_side]
        for side, near_rows in ((_NEGATIVE_CODE, rows_below), (_POSITIVE_CODE, rows_above)):
            if not len(near_rows):
                continue
            n_positive = int(is_positive[near_rows].sum())
            frequency = clopper_pearson(n_positive, len(near_rows), level)
            comparisons.append(
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
    return comparisons
