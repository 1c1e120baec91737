r"""Marginal check: test whether confidence matches accuracy for each predicted class.

A confidence that is right on average over all rows may be too high for one predicted class and too
low for another. This happens if the offset of a class is wrong. Calibration errors of the top label
hide it, because their bins mix the classes.

**The test.** Row i has confidence p_i and correctness c_i.

1. Let D_j = Σ (c_i - p_i) over the rows predicted as class j. If p is calibrated, the D_j are
   independent given the rows, with mean 0 and variance V_j = Σ p_i (1 - p_i).
2. Hence Σ_j D_j² / V_j is approximately χ² distributed, with one degree of freedom for each class.
3. V comes from the confidences. It must not be estimated from the residuals, which make it too small
   if few rows are incorrect.
4. Classes with a small variance (V_j < 2) are pooled.
5. The variance of D²/V is 2 + κ/V², where κ = Σ pq (1 - 6pq) is the fourth cumulant and q = 1 - p.
   The statistic is therefore compared with a·χ²_f that has the same two moments (Satterthwaite
   1946).

**On the rows of the fit** the residuals are smaller than chance in the directions that were fitted.
A map that changes the confidence of rows but not their predicted class changes the log-odds of p_i
by g(p_i)·θ to first order. The check removes all functions g of the confidence, as steps on 10 bins:
D̃ = D - C I⁻¹ S, where S_b = Σ (c_i - p_i) over bin b, I_b = Σ p_i (1 - p_i) over bin b, and C_jb is
the part of I_b from rows predicted as class j.

*Proof* that D̃ has covariance V - C I⁻¹ Cᵀ, whatever was fitted (Neyman's C(α) test, 1959):

1. D̃ is linear in c, and has this covariance at the true θ.
2. Its derivative in θ, -(C - C I⁻¹ I)·g, is 0, so the fitted θ does not change it to first order. ∎

This version compares the classes at equal confidence. Nothing is left to test on the rows of the fit
if the map has an offset for each class. Use other rows for such a map.

>>> random = np.random.default_rng(0)
>>> confidence, predicted = random.uniform(0.6, 1.0, 4000), random.integers(2, size=4000)
>>> calibrated = random.random(4000) < confidence
>>> shifted = random.random(4000) < confidence + np.where(predicted == 0, 0.05, -0.05)
>>> check_predicted_classes(confidence, calibrated, predicted, classes=None, fitted=False).off
False
>>> check_predicted_classes(confidence, shifted, predicted, classes=None, fitted=False).off
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc

from metacal.formulas import Array, Codes, Flags, Float
from metacal.metrics.toplabel import CheckedTable, TopLabel, checked_table

#: Smallest variance of a class that is tested on its own. Smaller classes are pooled.
_MIN_VARIANCE = 2.0
#: Largest number of confidence bins, and smallest variance of the rows of a bin.
#: Both constants limit how much of the gaps the bins can explain.
_MAX_BINS = 10
_MIN_BIN_VARIANCE = 5.0
#: Replacement for a variance of 0 in a denominator.
_SMALLEST_DIVISOR = 1e-300
#: Eigenvalues smaller than this fraction of the largest variance count as 0.
_RELATIVE_RANK_TOLERANCE = 1e-6
#: Smallest number of cells for which LAPACK multiplies matrices, so that BLAS may start threads.
_MIN_CELLS_OF_THREADS = 25
#: Lock of the number of threads of BLAS.
_blas_lock = Lock()
#: Significance level of the test.
LEVEL = 0.05
#: Smallest gap that matters, as a probability and as a fraction of the expected error rate.
_RELEVANT_GAP = 0.02
_RELEVANT_GAP_RATIO = 0.25


@dataclass(frozen=True)
class MarginalCheck:
    """Result of the marginal check.

    Attributes
    ----------
    statistic : float
        Test statistic.

    dof : float
        Degrees of freedom of the statistic under calibration. If 0, the rows are too few for a
        test and `p_value` is 1.

    p_value : float
        Probability of a statistic at least as large if the confidence is calibrated.

    gap : float
        Mean over rows of the absolute gap of their predicted class, minus what chance contributes.

    wrong : float
        Error rate that the confidence predicts.

    worst : label or None
        Predicted class with the largest gap, or its column number if the classes have no names.
        None if the largest gap is that of pooled classes.

    worst_rows : int
        Number of rows predicted as the worst class.

    worst_right, worst_confidence : float
        Accuracy and mean confidence of these rows.
    """

    statistic: float
    dof: float
    p_value: float
    gap: float
    wrong: float
    worst: Any
    worst_rows: int
    worst_right: float
    worst_confidence: float

    @property
    def off(self) -> bool:
        """Whether the gaps are significant at the 5% level."""
        return self.p_value < LEVEL

    @property
    def fails(self) -> bool:
        """Whether the gaps are significant and large enough to matter.

        A gap matters if it is above 0.02, or above a quarter of the expected error rate.
        """
        return self.off and self.gap > min(_RELEVANT_GAP, _RELEVANT_GAP_RATIO * self.wrong)

    def get_note_arguments(self) -> dict[str, Any]:
        """Return the numbers that a note about a failed check states."""
        return {
            "gap": self.gap,
            "predicted": None if self.worst is None else str(self.worst),
            "rows": self.worst_rows,
            "right": self.worst_right,
            "said": self.worst_confidence,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types, with the verdict under "fails"."""
        return {**asdict(self), "fails": self.fails}

    def __str__(self) -> str:
        if not self.dof:
            return "by predicted class: these rows cannot tell"
        significance = f"p = {self.p_value:.2g}" if self.off else "which chance explains"
        return (
            f"by predicted class confidence is {100 * self.gap:.1f} points off beyond chance,"
            f" {significance}"
        )


#: Result of a check with too few rows for a test.
_NO_RESULT = MarginalCheck(
    statistic=0.0,
    dof=0.0,
    p_value=1.0,
    gap=0.0,
    wrong=0.0,
    worst=None,
    worst_rows=0,
    worst_right=0.0,
    worst_confidence=0.0,
)


def marginal_check(
    proba: ArrayLike,
    labels: ArrayLike,
    *,
    classes: Sequence[Any] | None = None,
    fitted: bool = False,
) -> MarginalCheck:
    """Test whether the confidence matches the accuracy for each predicted class.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`.

    fitted : bool, default=False
        Whether the calibrator was fitted on these rows. The classes are then compared at equal
        confidence.

    Returns
    -------
    MarginalCheck

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> logit = random.normal(0.0, 2.0, 5000)
    >>> labels = (random.random(5000) < 1.0 / (1.0 + np.exp(1.0 - logit))).astype(int)
    >>> off = 1.0 / (1.0 + np.exp(-logit))  # the offset of -1 is missing
    >>> check = marginal_check(np.stack([1.0 - off, off], axis=1), labels)
    >>> check.fails, check.worst, round(check.worst_right, 3), round(check.worst_confidence, 3)
    (True, 1, 0.613, 0.783)
    """
    table = checked_table(proba, labels, classes=classes)
    top_labels = table.top_label()
    predicted = find_predicted_columns(table)
    return check_predicted_classes(
        top_labels.confidence, top_labels.correct, predicted, classes=classes, fitted=fitted
    )


class PredictedClasses(NamedTuple):
    """Predicted classes of the rows, for the marginal check.

    Attributes
    ----------
    predicted : array of int of shape (n_rows,)
        Column of the predicted class of each row.

    classes : sequence or None
        Class of each column.

    fitted : bool
        Whether the calibrator was fitted on these rows.
    """

    predicted: Codes
    classes: Sequence[Any] | Array | None = None
    fitted: bool = False

    def check_confidence(self, top_labels: TopLabel, accept: Flags | None) -> MarginalCheck | None:
        """Run the marginal check on the accepted rows, or on all rows without a gate.

        Return None if no row is accepted.
        """
        is_checked = np.ones(len(top_labels), dtype=bool) if accept is None else accept
        if not is_checked.any():
            return None
        return check_predicted_classes(
            top_labels.confidence[is_checked],
            top_labels.correct[is_checked],
            self.predicted[is_checked],
            classes=self.classes,
            fitted=self.fitted,
        )


def find_predicted_columns(table: CheckedTable) -> Codes:
    """Find the column of the largest probability of each row, the first one for ties."""
    return np.concatenate([block.argmax(axis=1) for _, block in table.blocks()])


def check_predicted_classes(
    confidence: Float,
    correct: ArrayLike,
    predicted: Codes,
    *,
    classes: Sequence[Any] | Array | None,
    fitted: bool,
) -> MarginalCheck:
    """Run the marginal check on columns of confidence and correctness.

    Parameters
    ----------
    confidence : array of shape (n_rows,)
        Confidence of each row.

    correct : array of shape (n_rows,)
        Correctness of each row.

    predicted : array of int of shape (n_rows,)
        Column of the predicted class. Any other code that does not depend on the label is valid,
        too.

    classes : sequence or None
        Class of each column.

    fitted : bool
        Whether the calibrator was fitted on these rows.

    Returns
    -------
    MarginalCheck
    """
    is_correct = np.asarray(correct, dtype=np.float64)
    row_variance = confidence * (1.0 - confidence)
    cell_of_row = _assign_cells(predicted, row_variance)
    n_correct = np.bincount(cell_of_row, is_correct)
    confidence_sums = np.bincount(cell_of_row, confidence)
    cell_variance = np.asarray(np.bincount(cell_of_row, row_variance), np.float64)
    gaps = np.subtract(n_correct, confidence_sums, dtype=np.float64)
    if fitted:
        gaps, gap_covariance = _remove_gaps_explained_by_confidence(
            gaps, np.diag(cell_variance), cell_of_row, confidence, is_correct
        )
        eigenvalues, eigenvectors = _decompose(gap_covariance)
        gap_variance = np.maximum(np.diag(gap_covariance), 0.0)
    else:
        eigenvalues = cell_variance
        eigenvectors = np.eye(len(cell_variance))
        gap_variance = cell_variance

    is_tested = eigenvalues > _RELATIVE_RANK_TOLERANCE * cell_variance.max(initial=0.0)
    degrees_of_freedom = float(is_tested.sum())
    if degrees_of_freedom == 0.0 or cell_variance.max() < _MIN_VARIANCE:
        return _NO_RESULT
    tested_components = eigenvectors[:, is_tested].T @ gaps
    chi_squared = float((tested_components**2 / eigenvalues[is_tested]).sum())
    chi_squared_scale = _compute_satterthwaite_scale(
        cell_of_row, row_variance, cell_variance, degrees_of_freedom
    )
    p_value = float(chdtrc(degrees_of_freedom / chi_squared_scale, chi_squared / chi_squared_scale))
    gaps_expected_by_chance = np.sqrt(2.0 / np.pi * gap_variance)
    excess_gaps = np.abs(gaps) - gaps_expected_by_chance
    worst_cell = int(np.argmax(np.abs(gaps)))
    is_in_worst_cell = cell_of_row == worst_cell
    n_worst = int(is_in_worst_cell.sum())
    return MarginalCheck(
        statistic=chi_squared,
        dof=degrees_of_freedom,
        p_value=p_value,
        gap=max(0.0, float(excess_gaps.sum() / len(cell_of_row))),
        wrong=float(1.0 - confidence.mean()),
        worst=_find_class_of_cell(predicted[is_in_worst_cell], classes),
        worst_rows=n_worst,
        worst_right=float(n_correct[worst_cell] / n_worst),
        worst_confidence=float(confidence_sums[worst_cell] / n_worst),
    )


def _decompose(covariance: Float) -> tuple[Float, Float]:
    """Compute eigenvalues and eigenvectors of a covariance matrix in one thread.

    The threads of OpenBLAS wait for each other in a loop. On a busy machine, two of them take a
    hundred times as long as one for a matrix of a hundred cells.
    """
    if len(covariance) < _MIN_CELLS_OF_THREADS:
        eigenvalues, eigenvectors = np.linalg.eigh(covariance)
        return eigenvalues, eigenvectors
    # Without the lock, a thread could restore the limit that another thread has set meanwhile.
    with _blas_lock, _find_blas().limit(limits=1):
        eigenvalues, eigenvectors = np.linalg.eigh(covariance)
    return eigenvalues, eigenvectors


@cache
def _find_blas() -> Any:
    """Return the cached controller of the BLAS threads."""
    # scikit-learn depends on threadpoolctl, so the module is installed.
    threadpoolctl = import_module("threadpoolctl")
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def _assign_cells(predicted: Codes, row_variance: Float) -> Codes:
    """Assign each row to the cell of its predicted class. Small classes share a cell."""
    class_of_row = _number_classes(predicted)
    variance_of_class = np.bincount(class_of_row, row_variance)
    is_small = variance_of_class < _MIN_VARIANCE
    # Cell 0 is the common cell if there are small classes.
    n_common_cells = int(is_small.any())
    rank_among_large = np.cumsum(~is_small) - 1
    cell_of_class = np.where(is_small, 0, n_common_cells + rank_among_large)
    return np.asarray(cell_of_class)[class_of_row]


def _number_classes(predicted: Codes) -> Codes:
    """Number the classes that occur among the predictions from 0, in increasing order."""
    largest_column = len(predicted)
    if predicted.min(initial=0) < 0 or predicted.max(initial=0) > largest_column:
        return np.unique(predicted, return_inverse=True)[1]
    # Counting the columns is faster than sorting them.
    occurs = np.bincount(predicted) > 0
    number_of_column = np.cumsum(occurs) - 1
    return np.asarray(number_of_column[predicted])


def _compute_satterthwaite_scale(
    cells: Codes, row_variance: Float, cell_variance: Float, degrees_of_freedom: float
) -> float:
    """Compute the scale of the χ² distribution with the moments of the statistic.

    Parameters
    ----------
    cells : array of int of shape (n_rows,)
        Cell of each row.

    row_variance : array of shape (n_rows,)
        p_i (1 - p_i) of each row.

    cell_variance : array of shape (n_cells,)
        Sums of `row_variance` over the cells.

    degrees_of_freedom : float
        Number of tested components of the gaps.

    Returns
    -------
    float
    """
    fourth_cumulant_of_cell = np.bincount(cells, row_variance * (1.0 - 6.0 * row_variance))
    excess_variance = (
        fourth_cumulant_of_cell / np.maximum(cell_variance, _MIN_VARIANCE) ** 2
    ).sum()
    return 1.0 + float(excess_variance) / (2.0 * degrees_of_freedom)


def _find_class_of_cell(predicted: Codes, classes: Sequence[Any] | Array | None) -> Any:
    """Return the class of the rows of a cell, None if they have several classes."""
    if (predicted != predicted[0]).any():
        return None
    column = int(predicted[0])
    if classes is None:
        return column
    return np.asarray(classes)[column].tolist()


def _remove_gaps_explained_by_confidence(
    gaps: Float, covariance: Float, cell_of_row: Codes, confidence: Float, correct: Float
) -> tuple[Float, Float]:
    """Remove the part of the gaps that step functions of the confidence explain.

    Parameters
    ----------
    gaps : array of shape (n_cells,)
        Gap D of each cell, the sum of correctness minus confidence over its rows.

    covariance : array of shape (n_cells, n_cells)
        Covariance V of the gaps.

    cell_of_row : array of int of shape (n_rows,)
        Cell of each row.

    confidence, correct : arrays of shape (n_rows,)
        Confidence and correctness of each row.

    Returns
    -------
    gaps : array of shape (n_cells,)
        D - C I⁻¹ S.

    covariance : array of shape (n_cells, n_cells)
        V - C I⁻¹ Cᵀ.
    """
    n_cells = len(gaps)
    row_variance = confidence * (1.0 - confidence)
    bin_of_row, n_bins = _assign_bins_of_equal_variance(confidence, row_variance)
    # Each bin has a variance I and a gap S, and each pair of cell and bin has a variance C.
    bin_variance = np.bincount(bin_of_row, weights=row_variance, minlength=n_bins)
    bin_variance = np.maximum(bin_variance, _SMALLEST_DIVISOR)
    bin_gaps = np.bincount(bin_of_row, weights=correct - confidence, minlength=n_bins)
    cell_and_bin_of_row = cell_of_row * n_bins + bin_of_row
    cell_bin_variance = np.bincount(
        cell_and_bin_of_row, weights=row_variance, minlength=n_cells * n_bins
    )
    cell_bin_variance = cell_bin_variance.reshape(n_cells, n_bins)
    regression_coefficients = cell_bin_variance / bin_variance
    remaining_gaps = gaps - regression_coefficients @ bin_gaps
    remaining_covariance = covariance - regression_coefficients @ cell_bin_variance.T
    return remaining_gaps, remaining_covariance


def _sort_stably(values: Float) -> Codes:
    """Return the indices that sort values, in the given order where values are equal."""
    # NumPy's default sort is several times faster, and unique values have a single order.
    order = np.argsort(values)
    sorted_values = values[order]
    if (sorted_values[1:] > sorted_values[:-1]).all():
        return order
    return np.argsort(values, kind="stable")


def _assign_bins_of_equal_variance(confidence: Float, row_variance: Float) -> tuple[Codes, int]:
    """Assign the rows to confidence bins with nearly equal variances.

    Returns
    -------
    bin_of_row : array of int of shape (n_rows,)
        Bin of each row.

    n_bins : int
        Number of bins.
    """
    confidence_order = _sort_stably(confidence)
    cumulative_variance = np.cumsum(row_variance[confidence_order])
    total_variance = cumulative_variance[-1]
    n_bins = int(np.clip(total_variance / _MIN_BIN_VARIANCE, 1, _MAX_BINS))
    divisor = max(total_variance, _SMALLEST_DIVISOR)
    bins_in_order = (n_bins * cumulative_variance / divisor).astype(np.intp)
    last_bin = n_bins - 1
    bin_of_row = np.empty(len(confidence_order), dtype=np.intp)
    bin_of_row[confidence_order] = np.minimum(bins_in_order, last_bin)
    return bin_of_row, n_bins
