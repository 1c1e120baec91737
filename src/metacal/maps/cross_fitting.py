"""Out-of-fold log loss and confidence of the rows under a map.

Terms used in this module:

- *plain*: the uncalibrated softmax.
- *front*: temperature scaling with a uniform component. The front of temperature scaling, of
  uniform temperature scaling and of the default pair of `metacal.maps.composed` is known. The
  folds of these maps are fitted to row statistics, without another pass over the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from metacal import kernels
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.columns import OWN, POSSIBLE, TAIL, log_partition
from metacal.maps.averaged_spline import BinaryRows, fit_averaged_splines
from metacal.maps.composed import ComposedMap, raise_uniform_component
from metacal.maps.fitting.box_newton import minimise_in_box
from metacal.maps.map import FitMap, Map
from metacal.maps.row_statistics import RowStatistics
from metacal.maps.temperature import TemperatureMap
from metacal.maps.uniform import MAX_UNIFORM, UniformTemperatureMap
from metacal.rows import Rows

#: Largest difference in log b between the map of a fold and the map of all rows.
_MAX_DISTANCE = 0.5
#: Expected decrease of the mean loss at which the Newton steps of a fold stop.
_NEWTON_TOLERANCE = 1e-5
#: Spacing of the grid of log-odds to which the splines of the folds are fitted.
_GRID = 1.0 / 16.0
#: Upper limit of the loss of a row, that of a probability of 1e-12.
LARGEST_LOSS = -float(np.log(1e-12))


@dataclass(frozen=True)
class RowQuality:
    """Log loss and confidence of each row under a map."""

    loss: Float
    confidence: Float

    @classmethod
    def with_capped_loss(cls, loss: Float, confidence: Float) -> RowQuality:
        """Build from losses that may be NaN or infinite."""
        finite_loss = np.where(np.isnan(loss), LARGEST_LOSS, loss)
        return cls(loss=np.minimum(finite_loss, LARGEST_LOSS), confidence=confidence)


@dataclass(frozen=True)
class QualityComparison:
    """Loss and confidence under a map and under the plain softmax.

    Attributes
    ----------
    calibrated, plain : RowQuality
        Loss and confidence under the map and under the plain softmax.

    correct : array of shape (n_rows,)
        1 if the prediction of the row is correct, else 0.
    """

    calibrated: RowQuality
    plain: RowQuality
    correct: Float


def find_front(fitted: Map) -> UniformTemperatureMap | None:
    """Return the front of a map, or None if its folds must be refitted."""
    if isinstance(fitted, ComposedMap):
        return None if fitted.default_pair is None else fitted.default_pair[0]
    if isinstance(fitted, TemperatureMap):
        return UniformTemperatureMap(fitted.inverse_temperature, 0.0)
    if isinstance(fitted, UniformTemperatureMap):
        return fitted
    return None


def plain_quality(plain_statistics: RowStatistics) -> RowQuality:
    """Compute loss and confidence under the plain softmax."""
    tail = plain_statistics.columns[TAIL]
    loss = np.log1p(tail) - plain_statistics.columns[OWN]
    return RowQuality.with_capped_loss(loss, 1.0 / (1.0 + tail))


def in_sample_quality(fitted: ComposedMap, statistics: RowStatistics) -> RowQuality:
    """Compute loss and confidence under the default pair fitted on all rows."""
    assert fitted.default_pair is not None
    front, spline = fitted.default_pair
    fold_of_row = np.zeros(len(statistics), dtype=np.intp)
    spline_log_odds = spline.curve.value(statistics.log_odds(front))
    return _quality_of_fronts([front], statistics, fold_of_row, spline_log_odds)


def cross_fit_statistics(
    fitted: Map, front: UniformTemperatureMap, statistics: RowStatistics, fold_of_row: Codes
) -> RowQuality:
    """Compute out-of-fold loss and confidence from row statistics.

    Parameters
    ----------
    fitted : Map
        Map fitted on all rows.

    front : UniformTemperatureMap
        Front of the map.

    statistics : RowStatistics
        Row statistics at the temperature of the front.

    fold_of_row : array of int of shape (n_rows,)
        Fold of each row.

    Returns
    -------
    RowQuality
    """
    n_folds = int(fold_of_row.max()) + 1
    max_uniform = 0.0 if isinstance(fitted, TemperatureMap) else MAX_UNIFORM
    training_statistics = []
    for fold in range(n_folds):
        training = statistics.where(np.flatnonzero(fold_of_row != fold))
        training_statistics.append(training.drop_masked_labels())
    fronts = [_refit_front(training, front, max_uniform) for training in training_statistics]
    if not isinstance(fitted, ComposedMap):
        return _quality_of_fronts(fronts, statistics, fold_of_row)
    fronts = [
        raise_uniform_component(fold_front, training, training.weights)
        for fold_front, training in zip(fronts, training_statistics, strict=True)
    ]
    spline_log_odds = _cross_fit_splines(fronts, statistics, fold_of_row)
    return _quality_of_fronts(fronts, statistics, fold_of_row, spline_log_odds)


def _refit_front(
    training: RowStatistics, front: UniformTemperatureMap, max_uniform: float
) -> UniformTemperatureMap:
    """Fit the front of a fold, starting from the front of all rows."""
    log_b = np.log(front.inverse_temperature)
    box = np.array([[log_b - _MAX_DISTANCE, 0.0], [log_b + _MAX_DISTANCE, max_uniform]])
    start = np.array([log_b, front.uniform])
    minimum = minimise_in_box(training.mean_loss, start, box, _NEWTON_TOLERANCE)
    fold_log_b, fold_uniform = minimum.point
    return UniformTemperatureMap(float(np.exp(fold_log_b)), float(fold_uniform))


def _cross_fit_splines(
    fronts: list[UniformTemperatureMap], statistics: RowStatistics, fold_of_row: Codes
) -> Float:
    """Return the out-of-fold spline-calibrated log-odds of each row."""
    correct = statistics.correct
    fold_log_odds = [statistics.log_odds(front) for front in fronts]
    training_samples = []
    for fold, log_odds in enumerate(fold_log_odds):
        is_training = fold_of_row != fold
        training_samples.append(
            BinaryRows(
                log_odds=log_odds[is_training],
                correct=correct[is_training],
                weights=_select(statistics.weights, is_training),
            )
        )
    splines = fit_averaged_splines(training_samples, grid=_GRID)
    spline_log_odds = np.empty(len(fold_of_row))
    for fold, spline in enumerate(splines):
        is_test = fold_of_row == fold
        spline_log_odds[is_test] = spline.curve.value(fold_log_odds[fold][is_test])
    return spline_log_odds


def _quality_of_fronts(
    fronts: list[UniformTemperatureMap],
    statistics: RowStatistics,
    fold_of_row: Codes,
    spline_log_odds: Float | None = None,
) -> RowQuality:
    """Compute loss and confidence of each row under the map of its fold.

    Parameters
    ----------
    fronts : list of UniformTemperatureMap
        Front of each fold.

    statistics : RowStatistics
        Row statistics at a temperature near those of the fronts.

    fold_of_row : array of int of shape (n_rows,)
        Fold of each row.

    spline_log_odds : array of shape (n_rows,), optional
        Log-odds of the confidence after a spline, which replaces the confidence of the front.

    Returns
    -------
    RowQuality
    """
    columns = statistics.columns
    uniform_p = 1.0 / columns[POSSIBLE]
    b = np.array([front.inverse_temperature for front in fronts])[fold_of_row]
    uniform = np.array([front.uniform for front in fronts])[fold_of_row]
    log_sum, _, _ = log_partition(np, columns, b - statistics.computed_at)
    # A row can have one unmasked class only, or a masked true class.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        p_true = (1.0 - uniform) * np.exp(b * columns[OWN] - log_sum) + uniform * uniform_p
        p_true[np.isneginf(columns[OWN])] = 0.0
        p_others = -(1.0 - uniform) * np.expm1(-log_sum) + uniform * (1.0 - uniform_p)
        if spline_log_odds is None:
            return RowQuality.with_capped_loss(-np.log(p_true), 1.0 - p_others)
        loss_if_correct = np.log1p(np.exp(-spline_log_odds))
        loss_if_incorrect = np.log1p(np.exp(spline_log_odds)) + np.log(p_others) - np.log(p_true)
        loss = np.where(statistics.correct > 0.0, loss_if_correct, loss_if_incorrect)
        return RowQuality.with_capped_loss(loss, expit(spline_log_odds))


def cross_fit_map(
    refit: FitMap, rows: Rows, labels: Any, weights: Any, fold_of_row: Any
) -> QualityComparison:
    """Compute out-of-fold loss and confidence by refitting the map on each fold.

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
    table = rows.gathered()
    plain_p = np.empty(table.shape, dtype=np.float64)
    kernels.softmax(table, 1.0, plain_p)
    calibrated_p = np.empty(table.shape, dtype=np.float64)
    for fold in range(int(fold_of_row.max()) + 1):
        is_training = fold_of_row != fold
        fitted = refit(Rows(table[is_training]), labels[is_training], _select(weights, is_training))
        calibrated_p[~is_training] = fitted(table[~is_training])

    # The prediction is the largest logit, even if a map makes another class more probable.
    predictions = kernels.predicted(table)
    return QualityComparison(
        calibrated=_table_quality(calibrated_p, labels, predictions),
        plain=_table_quality(plain_p, labels, predictions),
        correct=(predictions == labels).astype(np.float64),
    )


def _table_quality(probabilities: Float, labels: Codes, predictions: Codes) -> RowQuality:
    """Compute loss and confidence of each row from a table of probabilities."""
    row_indices = np.arange(len(probabilities))
    with np.errstate(divide="ignore"):
        loss = -np.log(probabilities[row_indices, labels])
    return RowQuality.with_capped_loss(loss, probabilities[row_indices, predictions])


def _select(weights: Any, mask: Flags) -> Any:
    """Select weights by a mask; None stays None."""
    return None if weights is None else weights[mask]
