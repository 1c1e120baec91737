"""Out-of-fold log loss and confidence of the rows under a map.

The *temperature map* of a fitted map is the temperature scaling with a uniform component that
the fitted map consists of or begins with. Temperature scaling, uniform temperature scaling and
the default pair of `metacal.maps.composed` have one. The folds of these maps are fitted to row
statistics, without another pass over the table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from metacal import kernels
from metacal.formulas import Codes, Flags, Float
from metacal.maps.averaged_spline import BinaryRows, fit_averaged_splines
from metacal.maps.composed import ComposedMap, ensure_min_uniform_component
from metacal.maps.fitting.box_newton import minimise_in_box
from metacal.maps.labelled import Weights
from metacal.maps.map import FitMap, Map
from metacal.maps.row_statistics import RowStatistics
from metacal.maps.temperature import TemperatureMap
from metacal.maps.uniform import MAX_UNIFORM, UniformTemperatureMap
from metacal.rows import Rows

#: Largest difference in log b between the map of a fold and the map of all rows.
_MAX_LOG_B_DISTANCE = 0.5
#: Expected decrease of the mean loss at which the Newton steps of a fold stop.
_NEWTON_TOLERANCE = 1e-5
#: Spacing of the grid of log-odds to which the splines of the folds are fitted.
_LOG_ODDS_SPACING = 1.0 / 16.0
#: Upper limit of the loss of a row: the loss of a true class with probability 1e-12.
_MAX_LOSS = -float(np.log(1e-12))


@dataclass(frozen=True)
class RowQuality:
    """Log loss and confidence of each row under a map."""

    loss: Float
    confidence: Float

    @classmethod
    def with_capped_loss(cls, loss: Float, confidence: Float) -> RowQuality:
        """Build an instance from losses that may be NaN or infinite."""
        finite_loss = np.where(np.isnan(loss), _MAX_LOSS, loss)
        return cls(loss=np.minimum(finite_loss, _MAX_LOSS), confidence=confidence)


@dataclass(frozen=True)
class QualityComparison:
    """Quality of the same rows under a map and under the softmax of the logits.

    Attributes
    ----------
    calibrated, uncalibrated : RowQuality
        Loss and confidence under the map and under the softmax of the logits.

    correct : array of shape (n_rows,)
        1 if the prediction of the row is correct, else 0.

    predicted_codes : array of int of shape (n_rows,)
        Column index of the predicted class of each row.
    """

    calibrated: RowQuality
    uncalibrated: RowQuality
    correct: Float
    predicted_codes: Codes


def find_temperature_map(fitted: Map) -> UniformTemperatureMap | None:
    """Return the temperature map of a fitted map, or None if it has none."""
    if isinstance(fitted, ComposedMap):
        if fitted.temperature_and_spline_maps is None:
            return None
        temperature_map, _ = fitted.temperature_and_spline_maps
        return temperature_map
    if isinstance(fitted, TemperatureMap):
        return UniformTemperatureMap(fitted.inverse_temperature, uniform=0.0)
    if isinstance(fitted, UniformTemperatureMap):
        return fitted
    return None


def compute_softmax_quality(softmax_statistics: RowStatistics) -> RowQuality:
    """Compute loss and confidence of each row under the softmax of the logits."""
    exp_sum_of_others = softmax_statistics.exp_sum_of_others
    row_losses = np.log1p(exp_sum_of_others) - softmax_statistics.label_gap_to_max
    return RowQuality.with_capped_loss(row_losses, confidence=1.0 / (1.0 + exp_sum_of_others))


def compute_in_sample_quality(fitted: ComposedMap, row_statistics: RowStatistics) -> RowQuality:
    """Compute loss and confidence of the rows to which a default pair was fitted."""
    assert fitted.temperature_and_spline_maps is not None
    temperature_map, spline = fitted.temperature_and_spline_maps
    spline_log_odds = spline.curve.value(row_statistics.compute_log_odds(temperature_map))
    return _compute_quality_by_fold(
        [temperature_map],
        row_statistics,
        fold_of_row=np.zeros(len(row_statistics), dtype=np.intp),
        spline_log_odds=spline_log_odds,
    )


def compute_cross_fitted_quality(
    fitted: Map,
    temperature_map: UniformTemperatureMap,
    row_statistics: RowStatistics,
    fold_of_row: Codes,
) -> RowQuality:
    """Compute out-of-fold loss and confidence from row statistics.

    Parameters
    ----------
    fitted : Map
        Map fitted on all rows.

    temperature_map : UniformTemperatureMap
        Temperature map of `fitted`.

    row_statistics : RowStatistics
        Row statistics at the temperature of the temperature map.

    fold_of_row : array of int of shape (n_rows,)
        Fold of each row.

    Returns
    -------
    RowQuality
    """
    n_folds = int(fold_of_row.max()) + 1
    has_uniform_component = not isinstance(fitted, TemperatureMap)
    max_uniform = MAX_UNIFORM if has_uniform_component else 0.0
    has_spline = isinstance(fitted, ComposedMap)
    fold_maps = []
    for fold in range(n_folds):
        training_rows = np.flatnonzero(fold_of_row != fold)
        training_statistics = row_statistics.select(training_rows).drop_masked_labels()
        fold_map = _refit_temperature_map(training_statistics, temperature_map, max_uniform)
        if has_spline:
            fold_map = ensure_min_uniform_component(
                fold_map, len(training_statistics), training_statistics.weights
            )
        fold_maps.append(fold_map)
    spline_log_odds = None
    if has_spline:
        spline_log_odds = _compute_out_of_fold_spline(fold_maps, row_statistics, fold_of_row)
    return _compute_quality_by_fold(fold_maps, row_statistics, fold_of_row, spline_log_odds)


def _refit_temperature_map(
    training: RowStatistics, temperature_map: UniformTemperatureMap, max_uniform: float
) -> UniformTemperatureMap:
    """Fit a temperature map to training rows, starting from the map of all rows."""
    log_b = np.log(temperature_map.inverse_temperature)
    box = np.array([[log_b - _MAX_LOG_B_DISTANCE, 0.0], [log_b + _MAX_LOG_B_DISTANCE, max_uniform]])
    start_point = np.array([log_b, temperature_map.uniform])
    minimum = minimise_in_box(training.compute_mean_loss, start_point, box, _NEWTON_TOLERANCE)
    fold_log_b, fold_uniform = minimum.point
    return UniformTemperatureMap(float(np.exp(fold_log_b)), float(fold_uniform))


def _compute_out_of_fold_spline(
    fold_maps: list[UniformTemperatureMap], row_statistics: RowStatistics, fold_of_row: Codes
) -> Float:
    """Compute the out-of-fold, spline-calibrated log-odds of each row's confidence."""
    correct = row_statistics.correct
    log_odds_of_folds = []
    training_samples = []
    for fold, fold_map in enumerate(fold_maps):
        log_odds = row_statistics.compute_log_odds(fold_map)
        log_odds_of_folds.append(log_odds)
        is_training = fold_of_row != fold
        training_sample = BinaryRows(
            log_odds=log_odds[is_training],
            correct=correct[is_training],
            weights=_select_weights(row_statistics.weights, is_training),
        )
        training_samples.append(training_sample)
    splines = fit_averaged_splines(training_samples, grid_spacing=_LOG_ODDS_SPACING)
    spline_log_odds = np.empty(len(fold_of_row))
    for fold, spline in enumerate(splines):
        is_test = fold_of_row == fold
        test_log_odds = log_odds_of_folds[fold][is_test]
        spline_log_odds[is_test] = spline.curve.value(test_log_odds)
    return spline_log_odds


def _compute_quality_by_fold(
    fold_maps: list[UniformTemperatureMap],
    row_statistics: RowStatistics,
    fold_of_row: Codes,
    spline_log_odds: Float | None = None,
) -> RowQuality:
    """Compute loss and confidence of each row under the map of its fold.

    Parameters
    ----------
    fold_maps : list of UniformTemperatureMap
        Temperature map of each fold.

    row_statistics : RowStatistics
        Row statistics at a temperature near those of the temperature maps.

    fold_of_row : array of int of shape (n_rows,)
        Fold of each row.

    spline_log_odds : array of shape (n_rows,), optional
        Log-odds of the confidence after a spline. They replace the confidence of the
        temperature map.

    Returns
    -------
    RowQuality
    """
    label_gap_to_max = row_statistics.label_gap_to_max
    uniform_p = 1.0 / row_statistics.n_unmasked
    inverse_temperature_of_fold = np.array([fold_map.inverse_temperature for fold_map in fold_maps])
    uniform_share_of_fold = np.array([fold_map.uniform for fold_map in fold_maps])
    inverse_temperature = inverse_temperature_of_fold[fold_of_row]
    uniform_share = uniform_share_of_fold[fold_of_row]
    softmax_share = 1.0 - uniform_share
    # With gaps d_k = x_k - max x, softmax(b x)_k = e^{b d_k} / Σ_j e^{b d_j}.
    log_exp_sum = row_statistics.compute_log_exp_sums(inverse_temperature)
    # Rows with a single unmasked class or with a masked true class give infinities.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        softmax_p_true = np.exp(inverse_temperature * label_gap_to_max - log_exp_sum)
        softmax_p_not_predicted = -np.expm1(-log_exp_sum)
        p_true = softmax_share * softmax_p_true + uniform_share * uniform_p
        p_true[np.isneginf(label_gap_to_max)] = 0.0
        p_not_predicted = softmax_share * softmax_p_not_predicted + uniform_share * (
            1.0 - uniform_p
        )
        if spline_log_odds is None:
            return RowQuality.with_capped_loss(-np.log(p_true), confidence=1.0 - p_not_predicted)
        # The spline changes the confidence. The other classes keep their shares of the remainder.
        loss_if_correct = np.log1p(np.exp(-spline_log_odds))
        loss_of_incorrectness = np.log1p(np.exp(spline_log_odds))
        loss_if_incorrect = loss_of_incorrectness + np.log(p_not_predicted) - np.log(p_true)
        row_losses = np.where(row_statistics.correct > 0.0, loss_if_correct, loss_if_incorrect)
        return RowQuality.with_capped_loss(row_losses, confidence=expit(spline_log_odds))


def compare_refitted_map_with_softmax(
    refit: FitMap, rows: Rows, labels: Codes, weights: Weights, fold_of_row: Codes
) -> QualityComparison:
    """Refit a map without each fold and compare it with the softmax on that fold.

    Parameters
    ----------
    refit : function
        Function that fits the map.

    rows : Rows
        Sampled rows on the host.

    labels, weights, fold_of_row : arrays of shape (n_rows,)
        Label, weight and fold of each row. The weights can be None.

    Returns
    -------
    QualityComparison
    """
    logit_table = rows.to_array()
    softmax_p = np.empty(logit_table.shape, dtype=np.float64)
    kernels.softmax(logit_table, 1.0, softmax_p)
    calibrated_p = np.empty(logit_table.shape, dtype=np.float64)
    n_folds = int(fold_of_row.max()) + 1
    for fold in range(n_folds):
        is_training = fold_of_row != fold
        is_test = ~is_training
        fold_map = refit(
            Rows(logit_table[is_training]),
            labels[is_training],
            _select_weights(weights, is_training),
        )
        calibrated_p[is_test] = fold_map(logit_table[is_test])

    # The prediction is the largest logit, even if a map makes another class more probable.
    predictions = kernels.predict_classes(logit_table)
    return QualityComparison(
        calibrated=_compute_table_quality(calibrated_p, labels, predictions),
        uncalibrated=_compute_table_quality(softmax_p, labels, predictions),
        correct=(predictions == labels).astype(np.float64),
        predicted_codes=predictions,
    )


def _compute_table_quality(probabilities: Float, labels: Codes, predictions: Codes) -> RowQuality:
    """Compute loss and confidence of each row from a table of probabilities."""
    row_indices = np.arange(len(probabilities))
    with np.errstate(divide="ignore"):
        loss = -np.log(probabilities[row_indices, labels])
    return RowQuality.with_capped_loss(loss, probabilities[row_indices, predictions])


def _select_weights(weights: Weights, mask: Flags) -> Weights:
    """Return the weights for which the mask is true, or None if there are no weights."""
    if weights is None:
        return None
    return weights[mask]
