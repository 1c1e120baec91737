"""Fits of a comparison: one estimator, fitted without a fold and evaluated on it.

The fits may run in worker processes, so they draw the folds from the seed themselves, and read a
table that stays in its files only once per process.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from metacal.formulas import Array, Codes, Flags, Float
from metacal.maps.fitting.crossvalidation import draw_random_folds
from metacal.metrics import registry
from metacal.metrics.binning import evaluate_on_sample
from metacal.metrics.toplabel import TopLabel, checked_table
from metacal.rows.draws import make_generator
from metacal.rows.plausibility import skip_plausibility_checks
from metacal.rows.stored import StoredTable

#: Logits that this worker process has read from files, at most one table, keyed by its pickle.
_logits_by_pickled_table: dict[bytes, Array] = {}


@dataclass(frozen=True, eq=False)
class FoldResult:
    """Metrics of one fitted estimator on the held-out rows of a fold.

    Attributes
    ----------
    losses : dict of str to array
        Losses of each row, keyed by metric.
    top_label : TopLabel
        Confidence and correctness of each row.
    value_by_metric : dict of str to float
        Metrics that are neither a mean of losses nor a function of the top label.
    fit_seconds : float
        CPU seconds of the fit.
    n_zero_probability_rows : int
        Number of rows whose true class got probability 0.
    """

    losses: dict[str, Float]
    top_label: TopLabel
    value_by_metric: dict[str, float]
    fit_seconds: float
    n_zero_probability_rows: int


def fit_and_evaluate(
    codes: Codes,
    draw_mask_of_fold: Callable[[int], Flags],
    table: Any,
    estimator: Any,
    fold: int,
) -> FoldResult | str:
    """Fit an estimator without one fold, and compute its metrics on the rows of this fold.

    Parameters
    ----------
    codes : array of int of shape (n_rows,)
        Column of each label.
    draw_mask_of_fold : callable
        Returns the mask of the held-out rows of a fold.
    table : array or stored table
        Logits.
    estimator : estimator
        Unfitted estimator.
    fold : int
        Number of the fold.

    Returns
    -------
    FoldResult or str
        Error message if the estimator cannot be fitted.
    """
    logits = _load_logits(table)
    is_held_out = draw_mask_of_fold(fold)
    fold_estimator = clone(estimator)
    start_time = time.thread_time()
    try:
        with skip_plausibility_checks():
            fold_estimator.fit(logits[~is_held_out], codes[~is_held_out])
    except ValueError as error:
        return str(error)
    fit_seconds = time.thread_time() - start_time
    probabilities = fold_estimator.predict_proba(logits[is_held_out])
    probability_table = checked_table(probabilities, codes[is_held_out])
    losses_by_metric = {}
    value_by_metric = {}
    for metric in registry.list_compared_metrics():
        compute_row_losses = metric.losses
        if compute_row_losses is not None:
            losses_by_metric[metric.name] = compute_row_losses(probability_table)
        elif not metric.reads_top_label:
            statistic = metric.prepare_statistic(probability_table)
            value_by_metric[metric.name] = evaluate_on_sample(statistic, len(probability_table))
    has_zero_probability = probability_table.true_probability <= 0.0
    return FoldResult(
        losses=losses_by_metric,
        top_label=probability_table.top_label(),
        value_by_metric=value_by_metric,
        fit_seconds=fit_seconds,
        n_zero_probability_rows=int(has_zero_probability.sum()),
    )


def draw_held_out_mask(n_rows: int, n_splits: int, random_state: int, fold: int) -> Flags:
    """Draw the folds from the seed, and return the mask of the held-out rows of one.

    Parameters
    ----------
    n_rows : int
        Number of rows.
    n_splits : int
        Number of folds of a repetition.
    random_state : int
        Seed of the folds.
    fold : int
        Number of the fold, counted over all repetitions.

    Returns
    -------
    array of bool of shape (n_rows,)
    """
    generator = make_generator(random_state)
    n_earlier_repetitions, fold_in_repetition = divmod(fold, n_splits)
    for _ in range(n_earlier_repetitions):
        # The repetitions share one generator, so earlier repetitions are drawn and discarded.
        draw_random_folds(n_rows, n_splits, generator)
    fold_of_row = draw_random_folds(n_rows, n_splits, generator)
    return np.asarray(fold_of_row == fold_in_repetition)


def _load_logits(table: Any) -> Array:
    """Return a table as an array, and read a stored table once per worker process."""
    if not isinstance(table, StoredTable):
        return np.asarray(table)
    pickled_table = pickle.dumps(table)
    if pickled_table not in _logits_by_pickled_table:
        _logits_by_pickled_table.clear()
        _logits_by_pickled_table[pickled_table] = np.asarray(table)
    return _logits_by_pickled_table[pickled_table]
