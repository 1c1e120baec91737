"""Comparison of a calibration map with the plain softmax on accepted rows, by cross-fitting.

A map that was fitted on few rows can be worse than no map. Log loss and expected calibration error
(ECE) of accepted rows are therefore compared with and without the map. *Uncalibrated* probabilities
are the softmax of the logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from metacal.certificates.notes import Note, note_harmful_calibration
from metacal.formulas import Array, Codes, Flags, Float
from metacal.maps.heldout import OutOfFoldQuality, compute_out_of_fold_quality
from metacal.maps.map import FitMap, Map
from metacal.metrics.binning import equal_width
from metacal.metrics.marginal import MarginalCheck, check_predicted_classes
from metacal.rows import Rows
from metacal.rows.draws import make_generator

# Minimum number of accepted rows for comparing a map with the softmax.
_MIN_ACCEPTED_ROWS = 50
# Number of bootstrap samples for the standard error of a difference in ECE.
_N_BOOTSTRAP_SAMPLES = 25
# Seed of the bootstrap samples.
_BOOTSTRAP_SEED = 0
# Number of parameters of the default map. With more parameters, a map can overfit more.
_N_MAP_PARAMETERS = 10.0
# A gain in log loss counts only above this factor times n_parameters / n_rows.
# Overfitting alone cannot explain such a gain.
_MIN_LOSS_GAIN_PER_PARAMETER = 4.0
# Number of confidence bins of the expected calibration error (ECE).
_N_BINS = 15


@dataclass(frozen=True)
class MetricComparison:
    """Metric of the same rows with and without calibration. Lower is better.

    Attributes
    ----------
    calibrated, uncalibrated : float
        Metric with and without the map.

    standard_error : float
        Standard error of the difference.
    """

    calibrated: float
    uncalibrated: float
    standard_error: float

    @property
    def is_increased_by_map(self) -> bool:
        """Whether calibration increases the metric by more than one standard error.

        Examples
        --------
        >>> MetricComparison(0.31, 0.30, 0.004).is_increased_by_map
        True
        >>> MetricComparison(0.31, 0.30, 0.02).is_increased_by_map
        False
        """
        return self.calibrated - self.uncalibrated > self.standard_error

    def get_calibrated_uncalibrated_and_standard_error(self) -> tuple[float, float, float]:
        """Return the two metrics and the standard error, as notes store them."""
        return self.calibrated, self.uncalibrated, self.standard_error


@dataclass(frozen=True)
class SoftmaxComparison:
    """Log loss and ECE of accepted rows with and without calibration.

    Attributes
    ----------
    log_loss, ece : MetricComparison
        The two metrics.

    n_rows : int
        Number of accepted rows that were compared.

    check_by_predicted_class : MarginalCheck or None
        Check of the calibrated confidence by predicted class, if one was made.
    """

    log_loss: MetricComparison
    ece: MetricComparison
    n_rows: int
    check_by_predicted_class: MarginalCheck | None = None

    @property
    def map_increases_a_metric(self) -> bool:
        """Whether calibration makes the log loss or the ECE worse."""
        return self.log_loss.is_increased_by_map or self.ece.is_increased_by_map

    def build_note(self, *, uses_softmax: bool) -> Note:
        """Build the note for a map that makes a metric worse.

        Parameters
        ----------
        uses_softmax : bool
            Whether the softmax replaces the map.

        Returns
        -------
        Note

        Examples
        --------
        >>> log_loss = MetricComparison(0.31, 0.30, 0.004)
        >>> ece = MetricComparison(0.02, 0.02, 0.001)
        >>> print(SoftmaxComparison(log_loss, ece, 800).build_note(uses_softmax=False))
        Calibration does not improve the probabilities of accepted rows (cross-fitted on 800 rows): log loss 0.3100, without 0.3000 (± 0.0040).
        """
        increased_log_loss = None
        if self.log_loss.is_increased_by_map:
            increased_log_loss = self.log_loss.get_calibrated_uncalibrated_and_standard_error()
        increased_ece = None
        if self.ece.is_increased_by_map:
            increased_ece = self.ece.get_calibrated_uncalibrated_and_standard_error()
        return note_harmful_calibration(
            rows=self.n_rows,
            log_loss=increased_log_loss,
            ece=increased_ece,
            softmax=uses_softmax,
        )


def compare_with_softmax(
    fitted_map: Map,
    fit_map_without_side_effects: FitMap,
    rows: Rows,
    labels: Codes,
    weights: Float | None,
    *,
    is_accepted: Flags,
    class_names: Array,
) -> SoftmaxComparison | None:
    """Compare a map with the softmax on out-of-fold rows that the gate accepts.

    Parameters
    ----------
    fitted_map : Map
        Map fitted on all rows.

    fit_map_without_side_effects : callable
        Function that fits such a map without side effects.

    rows : Rows
        Logits of the rows that the map was fitted on.

    labels : array of int of shape (n_rows,)
        Column of the true class of each row.

    weights : array of float of shape (n_rows,) or None
        Weight of each row.

    is_accepted : array of bool of shape (n_rows,)
        Whether the gate accepts each row.

    class_names : array of shape (n_classes,)
        Names of the classes.

    Returns
    -------
    SoftmaxComparison or None
        None if too few rows are accepted, or if no fold can be fitted.

    Notes
    -----
    The check by predicted class uses rejected rows as well, because the threshold depends on the
    labels of accepted rows. It is not made for a map with parameters for each class, because such a
    map was fitted to pass it.
    """

    def is_cross_fitting_unnecessary(in_sample_quality: OutOfFoldQuality) -> bool:
        accepted_quality = in_sample_quality.select(is_accepted[in_sample_quality.positions])
        has_too_few_rows = len(accepted_quality.positions) < _MIN_ACCEPTED_ROWS
        n_fit_rows = len(in_sample_quality.positions)
        return has_too_few_rows or is_clearly_better(accepted_quality, n_fit_rows=n_fit_rows)

    quality = compute_out_of_fold_quality(
        fitted_map,
        fit_map_without_side_effects,
        rows=rows,
        labels=labels,
        weights=weights,
        in_sample_quality_suffices=is_cross_fitting_unnecessary,
    )
    if quality is None:
        return None
    accepted_quality = quality.select(is_accepted[quality.positions])
    if len(accepted_quality.positions) < _MIN_ACCEPTED_ROWS:
        return None
    comparison = compare_metrics(accepted_quality)
    has_class_parameters = fitted_map.n_classes is not None
    if has_class_parameters:
        return comparison
    check_by_predicted_class = check_predicted_classes(
        quality.confidence,
        quality.correct,
        quality.predicted_codes,
        classes=class_names,
        fitted=True,
    )
    return replace(comparison, check_by_predicted_class=check_by_predicted_class)


def is_clearly_better(accepted_quality: OutOfFoldQuality, n_fit_rows: int) -> bool:
    """Check whether a map improves training rows by more than overfitting explains.

    A map with p parameters has a log loss that is smaller by p/(2n) per row on its n training rows
    than in expectation, and larger by p/(2n) on new rows. A map that is fitted on half of the rows
    loses p/n on new rows. Both together are 1.5·p/n, and the improvement must exceed 4·p/n. The
    log-odds have an error of about √(4p/n), and confidences of at most a quarter of it, √(p/n)/2. The
    ECE must improve by more than that.

    Parameters
    ----------
    accepted_quality : OutOfFoldQuality
        Quality of the accepted training rows under the map that was fitted on them.

    n_fit_rows : int
        Number of training rows, accepted or not.

    Returns
    -------
    bool
    """
    log_loss_decreases = accepted_quality.uncalibrated_log_losses - accepted_quality.log_losses
    mean_log_loss_decrease = float(log_loss_decreases.mean())
    calibrated_bins = _ConfidenceBins(accepted_quality.confidence, accepted_quality.correct)
    uncalibrated_bins = _ConfidenceBins(
        accepted_quality.uncalibrated_confidence, accepted_quality.correct
    )
    ece_decrease = uncalibrated_bins.compute_ece() - calibrated_bins.compute_ece()
    max_overfitting_of_log_loss = _MIN_LOSS_GAIN_PER_PARAMETER * _N_MAP_PARAMETERS / n_fit_rows
    log_odds_error = math.sqrt(4.0 * _N_MAP_PARAMETERS / n_fit_rows)
    max_logistic_slope = 0.25
    max_overfitting_of_ece = max_logistic_slope * log_odds_error
    is_log_loss_clearly_smaller = mean_log_loss_decrease > max_overfitting_of_log_loss
    is_ece_clearly_smaller = ece_decrease > max_overfitting_of_ece
    return is_log_loss_clearly_smaller and is_ece_clearly_smaller


def compare_metrics(quality: OutOfFoldQuality) -> SoftmaxComparison:
    """Compare log loss and ECE with and without calibration, with standard errors."""
    log_loss_increases = quality.log_losses - quality.uncalibrated_log_losses
    n_rows = len(log_loss_increases)
    log_loss = MetricComparison(
        calibrated=float(quality.log_losses.mean()),
        uncalibrated=float(quality.uncalibrated_log_losses.mean()),
        standard_error=float(log_loss_increases.std()) / math.sqrt(n_rows),
    )
    calibrated_bins = _ConfidenceBins(quality.confidence, quality.correct)
    uncalibrated_bins = _ConfidenceBins(quality.uncalibrated_confidence, quality.correct)
    calibrated_ece = calibrated_bins.compute_ece()
    uncalibrated_ece = uncalibrated_bins.compute_ece()
    ece_standard_error = 0.0
    # The standard error is used only if calibration increased the ECE.
    if calibrated_ece > uncalibrated_ece:
        ece_standard_error = _bootstrap_ece_difference(calibrated_bins, uncalibrated_bins)
    ece = MetricComparison(
        calibrated=calibrated_ece,
        uncalibrated=uncalibrated_ece,
        standard_error=ece_standard_error,
    )
    return SoftmaxComparison(log_loss=log_loss, ece=ece, n_rows=n_rows)


class _ConfidenceBins:
    """Confidence bins of equal width, with the calibration error of each row.

    Parameters
    ----------
    confidence : array of float of shape (n_rows,)
        Confidence of each row.

    correct : array of float of shape (n_rows,)
        1 if the prediction of a row is correct, else 0.
    """

    def __init__(self, confidence: Float, correct: Float) -> None:
        inner_edges = equal_width(confidence, _N_BINS)[1:-1]
        # For few edges, comparing each row with all edges is faster than a binary search.
        is_at_most_edge = confidence <= inner_edges[:, None]
        self.bin_of_row = (~is_at_most_edge).sum(axis=0)
        self.residuals = correct - confidence

    def compute_ece(self) -> float:
        """Compute the ECE, (1/n) Σ_b |Σ_{i in bin b} (correct_i - confidence_i)|."""
        residual_sums = np.bincount(self.bin_of_row, weights=self.residuals, minlength=_N_BINS)
        return float(np.abs(residual_sums).sum() / len(self.bin_of_row))

    def compute_resampled_ece(self, row_samples: Codes) -> Float:
        """Compute the ECE of each sample of rows, given as an array (n_samples, n_rows)."""
        n_samples, n_rows = row_samples.shape
        # Sample i uses the bin numbers from i * _N_BINS on, so one call of bincount serves all samples.
        first_bin_of_sample = _N_BINS * np.arange(n_samples)[:, None]
        bins_of_rows = self.bin_of_row[row_samples] + first_bin_of_sample
        residual_sums = np.bincount(
            bins_of_rows.ravel(),
            weights=self.residuals[row_samples].ravel(),
            minlength=n_samples * _N_BINS,
        )
        residual_sums = residual_sums.reshape(n_samples, _N_BINS)
        return np.asarray(np.abs(residual_sums).sum(axis=1) / n_rows)


def _bootstrap_ece_difference(
    calibrated_bins: _ConfidenceBins, uncalibrated_bins: _ConfidenceBins
) -> float:
    """Estimate the standard error of a difference in ECE by the bootstrap."""
    n_rows = len(calibrated_bins.bin_of_row)
    generator = make_generator(_BOOTSTRAP_SEED)
    row_samples = generator.integers(n_rows, size=(_N_BOOTSTRAP_SAMPLES, n_rows))
    calibrated_ece = calibrated_bins.compute_resampled_ece(row_samples)
    uncalibrated_ece = uncalibrated_bins.compute_resampled_ece(row_samples)
    ece_differences = calibrated_ece - uncalibrated_ece
    return float(ece_differences.std())
