"""Comparison of a fitted map with the plain softmax by cross-fitting.

A random sample of the rows is divided into folds. Each fold is mapped by a map that was fitted
on the other folds. Temperature scaling, uniform temperature scaling and the default pair of
`metacal.maps.composed` need two passes over the sampled rows, because their folds are fitted to
row statistics. Other maps are refitted if that is affordable. `metacal.maps.cross_fitting`
does both and defines the terms *front* and *plain*.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.errors import MetacalError, MetacalWarning
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.columns import MEAN, OWN, TAIL
from metacal.maps.composed import ComposedMap
from metacal.maps.cross_fitting import (
    QualityComparison,
    cross_fit_map,
    cross_fit_statistics,
    find_front,
    in_sample_quality,
    plain_quality,
)
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import FitMap, Map
from metacal.maps.methods import CHOOSERS, method_of_map
from metacal.maps.row_statistics import RowStatistics, collect_on_host
from metacal.maps.uniform import UniformTemperatureMap
from metacal.rows import Rows
from metacal.rows.arrays import on_host
from metacal.rows.draws import generator

#: Largest number of sampled rows and of their table entries. Half of both for maps that are
#: refitted.
_MAX_ROWS = 4_000
_MAX_ENTRIES = 1 << 21
#: Smallest number of rows for which the comparison is informative.
_MIN_ROWS = 100
#: Number of folds. With few rows each fit needs a larger fraction of them.
_MANY_ROWS = 2_000
_N_FOLDS_FEW_ROWS = 5
_N_FOLDS_MANY_ROWS = 2
#: Largest number of classes for which maps with per-class parameters are refitted.
_MAX_CLASSES_TO_REFIT = 32


@dataclass(frozen=True)
class HeldOut:
    """Out-of-fold loss and confidence of sampled rows, calibrated and plain.

    Attributes
    ----------
    rows : array of int of shape (n_sampled,)
        Positions of the rows in the table.

    loss, confidence : arrays of shape (n_sampled,)
        Log loss and confidence under a map that was fitted without the row.

    plain_loss, plain_confidence : arrays of shape (n_sampled,)
        Log loss and confidence under the plain softmax.

    right : array of shape (n_sampled,)
        1 if the prediction of the row is correct, else 0.
    """

    rows: Codes
    loss: Float
    confidence: Float
    plain_loss: Float
    plain_confidence: Float
    right: Float

    def where(self, keep: Flags) -> HeldOut:
        """Return the rows for which the mask is true."""
        return HeldOut(
            rows=self.rows[keep],
            loss=self.loss[keep],
            confidence=self.confidence[keep],
            plain_loss=self.plain_loss[keep],
            plain_confidence=self.plain_confidence[keep],
            right=self.right[keep],
        )


@dataclass(frozen=True)
class _HostSample:
    """Sampled rows with labels and weights on the host."""

    positions: Codes
    rows: Rows
    labels: Codes
    weights: Float | None


def soon_fitted(fitted: Map, n_classes: int) -> bool:
    """Check whether refitting a map on the folds is fast.

    It is not for a mixture of many maps, for a map of another package, and for a map with
    per-class parameters if there are many classes.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> soon_fitted(TemperatureMap(1.0), 1000)
    True
    """
    method = method_of_map(type(fitted))
    if method is None or method.name in CHOOSERS:
        return False
    has_class_parameters = fitted.n_classes is not None
    return not has_class_parameters or n_classes <= _MAX_CLASSES_TO_REFIT


def held_out(
    fitted: Map,
    refit: FitMap,
    rows: Rows,
    labels: Codes,
    weights: Weights,
    enough: Callable[[HeldOut], bool] = lambda _: False,
) -> HeldOut | None:
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

    enough : function, optional
        Called for the default pair, whose folds take the longest to fit, with the losses under
        `fitted` itself. If it returns True, these are returned and no fold is fitted.

    Returns
    -------
    HeldOut or None
        None if there are too few rows, or if a fold cannot be fitted.

    Examples
    --------
    >>> from metacal.maps.composed import fit_composed
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(0.0, 2.0, (3000, 4))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> rows = Rows(3.0 * logits)  # three times too confident
    >>> result = held_out(fit_composed(rows, labels), fit_composed, rows, labels, None)
    >>> bool(result.loss.mean() < result.plain_loss.mean()), len(result.rows)
    (True, 3000)
    """
    front = find_front(fitted)
    max_rows = min(_MAX_ROWS, _MAX_ENTRIES // rows.n_classes)
    if front is None:
        max_rows //= 2
    if min(len(rows), max_rows) < _MIN_ROWS:
        return None
    positions = _draw_rows(len(rows), max_rows)
    table_sample = LabelledRows(rows, labels, weights).take(positions)
    host_weights = None
    if table_sample.weights is not None:
        host_weights = np.asarray(on_host(table_sample.weights))
    sample = _HostSample(
        positions=positions,
        rows=table_sample.rows,
        labels=np.asarray(on_host(table_sample.labels)),
        weights=host_weights,
    )
    if front is None:
        return _hold_out_by_refitting(refit, sample)
    return _hold_out_from_statistics(fitted, front, sample, table_sample.labels, enough)


def _hold_out_from_statistics(
    fitted: Map,
    front: UniformTemperatureMap,
    sample: _HostSample,
    table_labels: Any,
    enough: Callable[[HeldOut], bool],
) -> HeldOut:
    """Compare a map with a front to the plain softmax, in two passes.

    Parameters
    ----------
    fitted : Map
        Map fitted on all rows.

    front : UniformTemperatureMap
        Front of the map.

    sample : _HostSample
        Sampled rows.

    table_labels : array or tensor of int
        Labels of the sampled rows on the device of the table.

    enough : function
        Decides whether the losses under `fitted` itself suffice.

    Returns
    -------
    HeldOut
    """
    weights = sample.weights
    plain_statistics = collect_on_host(sample.rows, table_labels, weights, 1.0)
    statistics = collect_on_host(sample.rows, table_labels, weights, front.inverse_temperature)
    plain = plain_quality(plain_statistics)
    correct = statistics.correct
    if isinstance(fitted, ComposedMap) and weights is None:
        in_sample = QualityComparison(in_sample_quality(fitted, statistics), plain, correct)
        in_sample_result = _build_held_out(sample.positions, in_sample)
        if enough(in_sample_result):
            return in_sample_result
    fold_of_row = _assign_folds(plain_statistics, sample.labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetacalWarning)
        calibrated = cross_fit_statistics(fitted, front, statistics, fold_of_row)
    comparison = QualityComparison(calibrated, plain, correct)
    return _build_held_out(sample.positions, comparison)


def _hold_out_by_refitting(refit: FitMap, sample: _HostSample) -> HeldOut | None:
    """Compare a map to the plain softmax by refitting it; None if a fit fails."""
    host_rows = sample.rows.on_host()
    plain_statistics = collect_on_host(host_rows, sample.labels, sample.weights, 1.0)
    fold_of_row = _assign_folds(plain_statistics, sample.labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetacalWarning)
        try:
            comparison = cross_fit_map(refit, host_rows, sample.labels, sample.weights, fold_of_row)
        except MetacalError:
            # A fold has no correct prediction, or only masked classes.
            return None
    return _build_held_out(sample.positions, comparison)


def _build_held_out(positions: Codes, comparison: QualityComparison) -> HeldOut:
    """Join the positions of the sampled rows and their quality under both maps."""
    return HeldOut(
        rows=positions,
        loss=comparison.calibrated.loss,
        confidence=comparison.calibrated.confidence,
        plain_loss=comparison.plain.loss,
        plain_confidence=comparison.plain.confidence,
        right=comparison.correct,
    )


def _draw_rows(n_rows: int, max_rows: int) -> Codes:
    """Return the increasing positions of a random sample of at most `max_rows` rows.

    Every s-th row would not be a random sample of a file in which kinds of rows alternate, such
    as an image and its mirror image.
    """
    step = -(-n_rows // max_rows)
    if step == 1:
        return np.arange(n_rows)
    n_sampled = -(-n_rows // step)
    return np.sort(generator(0).permutation(n_rows)[:n_sampled])


def _assign_folds(plain_statistics: RowStatistics, labels: Codes) -> Codes:
    """Assign each row to a fold by its rank under the plain softmax.

    The order of the rows in the table has no influence.
    """
    n_rows = len(plain_statistics)
    n_folds = _N_FOLDS_FEW_ROWS if n_rows < _MANY_ROWS else _N_FOLDS_MANY_ROWS
    columns = plain_statistics.columns
    order = np.argsort(columns[TAIL])
    sorted_tail = columns[TAIL][order]
    equals_previous = np.append(False, sorted_tail[1:] == sorted_tail[:-1])
    if equals_previous.any():
        # Ties are ordered by the other properties of the rows.
        is_tied = equals_previous | np.append(equals_previous[1:], False)
        tied_ranks = np.flatnonzero(is_tied)
        tied_rows = order[tied_ranks]
        sort_keys = [
            labels[tied_rows],
            columns[OWN][tied_rows],
            columns[MEAN][tied_rows],
            columns[TAIL][tied_rows],
        ]
        if plain_statistics.weights is not None:
            sort_keys.insert(0, plain_statistics.weights[tied_rows])
        order[tied_ranks] = tied_rows[np.lexsort(sort_keys)]
    fold_of_row = np.empty(n_rows, dtype=np.intp)
    fold_of_row[order] = np.arange(n_rows) % n_folds
    return fold_of_row
