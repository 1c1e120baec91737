"""Comparison of methods on the same rows, and selection of those near the best.

The losses of two methods on the same rows go up and down together. The standard error of their
difference is often ten times smaller than that of either loss. Only the difference shows whether
two methods can be distinguished.

**Near the best.** A method is near the best one if its estimate is worse by at most
`STANDARD_ERRORS` standard errors of the difference. This is a rule of thumb without a confidence
level, for three reasons:

1. A standard error comes from the rows of the sample. If a method has a huge loss on one row in n,
   more than a third of all samples of n rows lack such a row. No multiple of the standard error
   corrects for the missing row, and a log loss has no upper bound that could replace it.
2. The methods were fitted on folds that overlap, so the losses of the rows are not independent.
3. The standard error reflects the choice of the measured rows. It does not include the variation
   of a fit with the rows that it was fitted on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np
from numpy.typing import ArrayLike

from metacal.formulas import Codes, Float
from metacal.metrics.binning import Statistic, Weights, evaluate_on_sample
from metacal.metrics.replicates import Target, compute_replicates, draw_batches
from metacal.rows.draws import make_generator

#: Number of standard errors of the difference by which a method near the best one may be worse.
STANDARD_ERRORS = 3.0
#: Number of resamples for the standard error of a statistic that is not a mean.
_N_RESAMPLES = 100
#: Seed of the resamples, so that a comparison is reproducible.
_RESAMPLING_SEED = 0


@dataclass(frozen=True, eq=False)
class PairedEstimates:
    """Estimates of one metric for several methods, with paired replicates.

    Attributes
    ----------
    estimates : array of shape (n_methods,)
        Estimate of each method.

    replicates : array of shape (n_methods, n_replicates)
        Losses of rows, values of folds, or values of resamples. A column belongs to the same row,
        fold or resample for all methods.

    standard_error_per_deviation : float
        Ratio of the standard error of an estimate to the standard deviation of its replicates. It is
        1/√n for a mean of n replicates, and 1 for values of resamples.

    smaller_is_better : bool
        Whether smaller values of the metric are better.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> rows = random.exponential(size=1000)  # hard and easy rows, the same for all methods
    >>> noise = random.normal(0.0, 0.05, (3, 1000))
    >>> paired = compare_by_rows(rows + noise + [[0.0], [0.001], [0.02]], np.arange(1000))
    >>> paired.near_best, bool(paired.standard_error(2) > 10 * paired.standard_error(2, 0))
    ([0, 1], True)
    """

    estimates: Float
    replicates: Float
    standard_error_per_deviation: float
    smaller_is_better: bool

    def standard_error(self, method: int, other: int | None = None) -> float:
        """Compute the standard error of an estimate or of a difference of two.

        Parameters
        ----------
        method : int
            Index of a method.

        other : int, default=None
            Index of the method to subtract.

        Returns
        -------
        float
            NaN if there are fewer than two replicates.
        """
        if self.replicates.shape[1] < 2:
            return float("nan")
        other_replicates = 0.0 if other is None else self.replicates[other]
        # The difference of two infinite losses is NaN, which NumPy would warn about.
        with np.errstate(invalid="ignore"):
            differences = self.replicates[method] - other_replicates
            return self.standard_error_per_deviation * float(differences.std(ddof=1))

    @property
    def near_best(self) -> list[int]:
        """Indices of the best method and of all methods near the best one.

        If the standard error of a difference is unknown, any difference counts as worse.
        """
        losses = self.estimates if self.smaller_is_better else -self.estimates
        best_method = int(np.argmin(losses))
        best_loss = losses[best_method]
        near_methods = []
        for method, loss in enumerate(losses):
            standard_error = self.standard_error(method, best_method)
            if not isfinite(standard_error):
                standard_error = 0.0
            max_difference = STANDARD_ERRORS * standard_error
            is_best = loss <= best_loss
            if is_best or loss - best_loss <= max_difference:
                near_methods.append(method)
        return near_methods


def compare_by_rows(
    losses: ArrayLike, row_of_entry: Codes, smaller_is_better: bool = True
) -> PairedEstimates:
    """Compare methods by their losses on the same rows.

    Parameters
    ----------
    losses : array of shape (n_methods, n_entries)
        Loss of each method on each entry.

    row_of_entry : array of int of shape (n_entries,)
        Row of each entry. A row with several entries counts once, with its mean loss.

    smaller_is_better : bool, default=True
        Whether smaller values are better.

    Returns
    -------
    PairedEstimates
    """
    distinct_rows, n_entries_of_row = np.unique(row_of_entry, return_counts=True)
    row_losses_of_methods = []
    for entry_losses in np.asarray(losses, np.float64):
        loss_sum_of_row = np.bincount(row_of_entry, entry_losses)[distinct_rows]
        mean_loss_of_row = loss_sum_of_row / n_entries_of_row
        row_losses_of_methods.append(mean_loss_of_row)
    loss_by_method_and_row = np.array(row_losses_of_methods)
    n_rows = len(distinct_rows)
    return PairedEstimates(
        estimates=loss_by_method_and_row.mean(axis=1),
        replicates=loss_by_method_and_row,
        standard_error_per_deviation=1.0 / sqrt(n_rows),
        smaller_is_better=smaller_is_better,
    )


def compare_by_folds(values: ArrayLike, smaller_is_better: bool = True) -> PairedEstimates:
    """Compare methods by their values on the same folds.

    `values` has the shape (n_methods, n_folds).
    """
    fold_values = np.asarray(values, dtype=np.float64)
    return PairedEstimates(
        estimates=fold_values.mean(axis=1),
        replicates=fold_values,
        standard_error_per_deviation=1.0 / sqrt(fold_values.shape[1]),
        smaller_is_better=smaller_is_better,
    )


def compare_by_resamples(
    statistics: Sequence[Statistic], n_rows: int, smaller_is_better: bool = True
) -> PairedEstimates:
    """Compare methods by one statistic per method, on the same resamples of rows."""
    random = make_generator(_RESAMPLING_SEED)

    def draw_weights() -> Weights:
        drawn_rows = random.integers(n_rows, size=n_rows)
        return np.bincount(drawn_rows, minlength=n_rows)

    sample_values = []
    targets = {}
    for method_index, statistic in enumerate(statistics):
        sample_values.append(evaluate_on_sample(statistic, n_rows))
        targets[str(method_index)] = Target(statistic)
    weight_batches = draw_batches(_N_RESAMPLES, n_rows, draw_weights)
    replicates_by_target = compute_replicates(targets, weight_batches)
    return PairedEstimates(
        estimates=np.array(sample_values),
        replicates=np.array([replicates_by_target[name] for name in targets]),
        # The standard deviation of a statistic over resamples estimates its standard error.
        standard_error_per_deviation=1.0,
        smaller_is_better=smaller_is_better,
    )
