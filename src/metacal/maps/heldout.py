"""Comparison of a fitted map with the uncalibrated softmax by cross-fitting.

A random sample of the rows is divided into folds. Each fold is mapped by a map that was fitted
on the other folds. Temperature scaling, uniform temperature scaling and the default pair of
`metacal.maps.composed` need two passes over the sampled rows, because their folds are fitted to
row statistics. Other maps are refitted if that is affordable. `metacal.maps.cross_fitting`
does both and defines the term *temperature map*.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from metacal import kernels
from metacal.errors import MetacalError, MetacalWarning
from metacal.formulas import Codes, Flags, Float
from metacal.maps.composed import ComposedMap
from metacal.maps.cross_fitting import (
    QualityComparison,
    compare_refitted_map_with_softmax,
    compute_cross_fitted_quality,
    compute_in_sample_quality,
    compute_softmax_quality,
    find_temperature_map,
)
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import FitMap, Map
from metacal.maps.methods import AUTOMATIC_METHODS, find_map_method
from metacal.maps.row_statistics import RowStatistics, collect_statistics_on_host
from metacal.maps.uniform import UniformTemperatureMap
from metacal.rows import Rows
from metacal.rows.arrays import to_numpy
from metacal.rows.draws import make_generator
from metacal.rows.executors import start_in_thread_or_defer

#: Largest number of sampled rows, halved for maps that are refitted on each fold.
_MAX_ROWS = 4_000
#: Largest number of table entries in the sampled rows, halved for maps that are refitted.
_MAX_ENTRIES = 1 << 21
#: Seed of the random sample of rows, fixed so that comparisons are reproducible.
_SAMPLING_SEED = 0
#: Smallest number of rows for which the comparison is informative.
_MIN_ROWS = 100
#: Smallest number of rows for which two folds suffice, because each fold has enough rows.
_MANY_ROWS = 2_000
_N_FOLDS_FEW_ROWS = 5
_N_FOLDS_MANY_ROWS = 2
#: Largest number of classes for which maps with per-class parameters are refitted.
_MAX_CLASSES_TO_REFIT = 32


@dataclass(frozen=True)
class OutOfFoldQuality:
    """Out-of-fold loss and confidence of sampled rows, calibrated and uncalibrated.

    Attributes
    ----------
    positions : array of int of shape (n_sampled,)
        Positions of the rows in the table.

    log_losses, confidence : arrays of shape (n_sampled,)
        Log loss and confidence under a map that was fitted without the row.

    uncalibrated_log_losses, uncalibrated_confidence : arrays of shape (n_sampled,)
        Log loss and confidence under the softmax of the logits.

    correct : array of shape (n_sampled,)
        1 if the prediction of the row is correct, else 0.

    predicted_codes : array of int of shape (n_sampled,)
        Column index of the predicted class of the row.
    """

    positions: Codes
    log_losses: Float
    confidence: Float
    uncalibrated_log_losses: Float
    uncalibrated_confidence: Float
    correct: Float
    predicted_codes: Codes

    def select(self, mask: Flags) -> OutOfFoldQuality:
        """Return the quality of the rows for which the mask is true."""
        return OutOfFoldQuality(
            positions=self.positions[mask],
            log_losses=self.log_losses[mask],
            confidence=self.confidence[mask],
            uncalibrated_log_losses=self.uncalibrated_log_losses[mask],
            uncalibrated_confidence=self.uncalibrated_confidence[mask],
            correct=self.correct[mask],
            predicted_codes=self.predicted_codes[mask],
        )


@dataclass(frozen=True)
class _HostSample:
    """Sampled rows whose labels and weights are on the host."""

    positions: Codes
    rows: Rows
    labels: Codes
    weights: Float | None


def is_fast_to_refit(fitted: Map, n_classes: int) -> bool:
    """Check whether a map can be refitted on cross-fitting folds in a short time.

    Refitting is slow for a mixture of many maps and for a map with per-class parameters if
    there are many classes. The time for a map of another package is unknown.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> is_fast_to_refit(TemperatureMap(1.0), 1000)
    True
    """
    method = find_map_method(type(fitted))
    if method is None or method.name in AUTOMATIC_METHODS:
        return False
    has_class_parameters = fitted.n_classes is not None
    return not has_class_parameters or n_classes <= _MAX_CLASSES_TO_REFIT


def _never_suffices(in_sample_quality: OutOfFoldQuality) -> bool:
    """Return False, because in-sample quality is never a substitute for cross-fitting."""
    return False


def compute_out_of_fold_quality(
    fitted: Map,
    refit: FitMap,
    rows: Rows,
    labels: Codes,
    weights: Weights,
    in_sample_quality_suffices: Callable[[OutOfFoldQuality], bool] = _never_suffices,
) -> OutOfFoldQuality | None:
    """Compute out-of-fold losses and confidences for a random sample of the rows.

    Parameters
    ----------
    fitted : Map
        Map fitted on all rows.

    refit : function
        Function that fits such a map.

    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,) or None
        Weight of each row.

    in_sample_quality_suffices : function, optional
        Called for the default pair, whose folds take the longest to fit, with the in-sample
        quality of `fitted`. If it returns True, that quality is returned and no fold is fitted.

    Returns
    -------
    OutOfFoldQuality or None
        None if there are too few rows, or if a fold cannot be fitted.

    Examples
    --------
    >>> from metacal.maps.composed import fit_composed
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(0.0, 2.0, (3000, 4))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> rows = Rows(3.0 * logits)  # three times too confident
    >>> fitted = fit_composed(rows, labels)
    >>> quality = compute_out_of_fold_quality(fitted, fit_composed, rows, labels, None)
    >>> bool(quality.log_losses.mean() < quality.uncalibrated_log_losses.mean()), len(quality.positions)
    (True, 3000)
    """
    temperature_map = find_temperature_map(fitted)
    max_rows = _get_max_sampled_rows(rows)
    if temperature_map is None:
        # Half as many rows are sampled, because the map is refitted on each fold.
        max_rows //= 2
    n_sampled_rows = min(len(rows), max_rows)
    if n_sampled_rows < _MIN_ROWS:
        return None
    # The array is shared by all callers, so each gets a copy.
    positions = _draw_row_positions(len(rows), max_rows).copy()
    device_sample = LabelledRows(rows, labels, weights).take(positions)
    host_sample = _copy_labels_to_host(device_sample, positions)
    if temperature_map is None:
        return _compare_by_refitting(refit, host_sample)
    return _compare_by_statistics(
        fitted,
        temperature_map,
        host_sample,
        device_labels=device_sample.labels,
        in_sample_quality_suffices=in_sample_quality_suffices,
    )


def prefetch_out_of_fold_sample(rows: Rows) -> None:
    """Start drawing the sample for `compute_out_of_fold_quality` in another thread.

    The drawn positions stay in a cache. Drawing them takes as long as several reads of a column.
    Without another thread, nothing is drawn here.
    """
    max_rows = _get_max_sampled_rows(rows)
    if _MIN_ROWS <= max_rows < len(rows):
        start_in_thread_or_defer(
            rows.executor,
            _draw_row_positions,
            len(rows),
            max_rows,
            may_use_helper_thread=rows.is_on_device,
        )


def _get_max_sampled_rows(rows: Rows) -> int:
    """Return the largest number of sampled rows of a table."""
    return min(_MAX_ROWS, _MAX_ENTRIES // rows.n_classes)


def _copy_labels_to_host(device_sample: LabelledRows, positions: Codes) -> _HostSample:
    """Copy labels and weights, but not the logits, of sampled rows to the host."""
    host_weights = None
    if device_sample.weights is not None:
        host_weights = np.asarray(to_numpy(device_sample.weights))
    return _HostSample(
        positions=positions,
        rows=device_sample.rows,
        labels=np.asarray(to_numpy(device_sample.labels)),
        weights=host_weights,
    )


def _compare_by_statistics(
    fitted: Map,
    temperature_map: UniformTemperatureMap,
    sample: _HostSample,
    device_labels: Any,
    in_sample_quality_suffices: Callable[[OutOfFoldQuality], bool],
) -> OutOfFoldQuality:
    """Compare a map with the softmax by means of row statistics, in two passes.

    Parameters
    ----------
    fitted : Map
        Map fitted on all rows.

    temperature_map : UniformTemperatureMap
        Temperature map of `fitted`.

    sample : _HostSample
        Sampled rows.

    device_labels : array or tensor of int
        Labels of the sampled rows on the device of the table.

    in_sample_quality_suffices : function
        Decides whether the in-sample quality of `fitted` suffices.

    Returns
    -------
    OutOfFoldQuality
    """
    weights = sample.weights
    softmax_statistics = collect_statistics_on_host(
        sample.rows, device_labels, weights, inverse_temperature=1.0
    )
    tempered_statistics = collect_statistics_on_host(
        sample.rows,
        device_labels,
        weights,
        inverse_temperature=temperature_map.inverse_temperature,
    )
    uncalibrated_quality = compute_softmax_quality(softmax_statistics)
    correct = tempered_statistics.correct
    predicted_codes = _find_predicted_codes(sample, correct)
    if isinstance(fitted, ComposedMap) and weights is None:
        in_sample_comparison = QualityComparison(
            calibrated=compute_in_sample_quality(fitted, tempered_statistics),
            uncalibrated=uncalibrated_quality,
            correct=correct,
            predicted_codes=predicted_codes,
        )
        in_sample_quality = _build_out_of_fold_quality(sample.positions, in_sample_comparison)
        if in_sample_quality_suffices(in_sample_quality):
            return in_sample_quality
    fold_of_row = _assign_folds(softmax_statistics, sample.labels)
    with warnings.catch_warnings():
        # The fit on all rows has already issued the same warnings.
        warnings.simplefilter("ignore", MetacalWarning)
        calibrated_quality = compute_cross_fitted_quality(
            fitted, temperature_map, tempered_statistics, fold_of_row
        )
    out_of_fold_comparison = QualityComparison(
        calibrated=calibrated_quality,
        uncalibrated=uncalibrated_quality,
        correct=correct,
        predicted_codes=predicted_codes,
    )
    return _build_out_of_fold_quality(sample.positions, out_of_fold_comparison)


def _find_predicted_codes(sample: _HostSample, correct: Float) -> Codes:
    """Find the predicted class of each sampled row.

    A correct prediction is the label, so on the host only the logits of the other rows are read. A
    device reads all rows in less time than it takes to copy some of them.
    """
    if sample.rows.is_on_device:
        return sample.rows.compute_column(kernels.predict_classes)
    predicted_codes = np.array(sample.labels, dtype=np.intp)
    incorrect_rows = np.flatnonzero(correct != 1.0)
    if len(incorrect_rows) > 0:
        predicted_codes[incorrect_rows] = sample.rows.take(incorrect_rows).compute_column(
            kernels.predict_classes
        )
    return predicted_codes


def _compare_by_refitting(refit: FitMap, sample: _HostSample) -> OutOfFoldQuality | None:
    """Refit a map on folds to compare it with the softmax; None if a fit fails."""
    host_rows = sample.rows.to_host()
    softmax_statistics = collect_statistics_on_host(
        host_rows, sample.labels, sample.weights, inverse_temperature=1.0
    )
    fold_of_row = _assign_folds(softmax_statistics, sample.labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetacalWarning)
        try:
            comparison = compare_refitted_map_with_softmax(
                refit, host_rows, sample.labels, sample.weights, fold_of_row
            )
        except MetacalError:
            # A fit can fail, for example on a fold without any correct prediction.
            return None
    return _build_out_of_fold_quality(sample.positions, comparison)


def _build_out_of_fold_quality(positions: Codes, comparison: QualityComparison) -> OutOfFoldQuality:
    """Build the out-of-fold quality from row positions and a comparison of two maps."""
    return OutOfFoldQuality(
        positions=positions,
        log_losses=comparison.calibrated.loss,
        confidence=comparison.calibrated.confidence,
        uncalibrated_log_losses=comparison.uncalibrated.loss,
        uncalibrated_confidence=comparison.uncalibrated.confidence,
        correct=comparison.correct,
        predicted_codes=comparison.predicted_codes,
    )


@lru_cache(maxsize=4)
def _draw_row_positions(n_rows: int, max_rows: int) -> Codes:
    """Draw at random the sorted positions of at most `max_rows` rows.

    The positions depend only on the arguments, so a result is kept for the next call. Every s-th row would not be a random sample of a file in which kinds of rows alternate, such
    as an image and its mirror image.
    """
    rows_per_draw = math.ceil(n_rows / max_rows)
    if rows_per_draw == 1:
        return np.arange(n_rows)
    n_sampled = math.ceil(n_rows / rows_per_draw)
    shuffled_positions = make_generator(_SAMPLING_SEED).permutation(n_rows)
    return np.sort(shuffled_positions[:n_sampled])


def _assign_folds(softmax_statistics: RowStatistics, labels: Codes) -> Codes:
    """Assign each row to a fold by the rank of its confidence under the softmax.

    The folds do not depend on the order of the rows in the table.
    """
    n_rows = len(softmax_statistics)
    n_folds = _N_FOLDS_FEW_ROWS if n_rows < _MANY_ROWS else _N_FOLDS_MANY_ROWS
    rows_by_confidence = _sort_rows_by_confidence(softmax_statistics, labels)
    fold_of_row = np.empty(n_rows, dtype=np.intp)
    fold_of_row[rows_by_confidence] = np.arange(n_rows) % n_folds
    return fold_of_row


def _sort_rows_by_confidence(softmax_statistics: RowStatistics, labels: Codes) -> Codes:
    """Sort the rows by confidence, and rows of equal confidence by other properties."""
    # With the exponential sum of the other classes, the confidence is 1 / (1 + sum).
    odds_against_prediction = softmax_statistics.exp_sum_of_others
    sorted_rows = np.argsort(odds_against_prediction)
    sorted_odds = odds_against_prediction[sorted_rows]
    equals_previous = np.append(False, sorted_odds[1:] == sorted_odds[:-1])
    if not equals_previous.any():
        return sorted_rows
    equals_next = np.append(equals_previous[1:], False)
    tied_ranks = np.flatnonzero(equals_previous | equals_next)
    tied_rows = sorted_rows[tied_ranks]
    # `lexsort` uses the last key as the primary key, so the other keys only order ties.
    sort_keys = [
        labels[tied_rows],
        softmax_statistics.label_gap_to_max[tied_rows],
        softmax_statistics.mean_gap[tied_rows],
        odds_against_prediction[tied_rows],
    ]
    if softmax_statistics.weights is not None:
        sort_keys.insert(0, softmax_statistics.weights[tied_rows])
    order_of_tied_rows = np.lexsort(sort_keys)
    sorted_rows[tied_ranks] = tied_rows[order_of_tied_rows]
    return sorted_rows
