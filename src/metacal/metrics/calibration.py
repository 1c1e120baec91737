"""Calibration errors of a probability table, and its accuracy.

All metrics except `classwise_ece` use the confidence of the top class and whether the top class is
correct. A largest probability that is tied among m classes counts 1/m (see `top_label`). Instead of
a table and its labels, these metrics also take two flat columns, confidence and correct. If you
compute several metrics of one table, call `top_label` once. The columns may also be a binary
classifier's probability of the positive class and its 0/1 outcome. The metrics are then those of
binary calibration.

Symbols in the formulas: row i has confidence conf_i and correctness c_i. Bin b has n_b of the n
rows, and g_b is the mean of c - conf over its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any

from numpy.typing import ArrayLike

from metacal.metrics import gaps
from metacal.metrics.binning import (
    Binning,
    equal_mass,
    equal_width,
    evaluate_on_sample,
)
from metacal.metrics.classwise import ClassGaps, build_classwise_ece_statistic
from metacal.metrics.registry import PROBABILITIES, TOP_LABEL, register
from metacal.metrics.smooth import build_smooth_ece_statistic
from metacal.metrics.toplabel import checked_table, read_top_label

Classes = Sequence[Any] | None

#: Decorator that registers a metric that is 0 for perfect calibration.
_register_error = partial(register, input=TOP_LABEL, calibration_error=True)


@register(
    title="accuracy",
    input=TOP_LABEL,
    statistic=gaps.build_accuracy_statistic,
    compute_counts=gaps.count_correct_rows,
    smaller_is_better=False,
    evaluated=True,
)
def accuracy(proba: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> float:
    """Compute the fraction of rows whose top class is the true class.

    A largest probability that is tied among m classes counts 1/m.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`, or two flat columns, confidence and correct.

    Returns
    -------
    float

    Examples
    --------
    >>> accuracy([[0.8, 0.2], [0.5, 0.5]], [0, 1]), accuracy([0.8, 0.5], [1, 0.5])
    (0.75, 0.75)
    """
    top_labels = read_top_label(proba, labels, classes=classes)
    return evaluate_on_sample(gaps.build_accuracy_statistic(top_labels), len(top_labels))


@_register_error(
    title="ECE, equal width",
    heading="ECE",
    statistic=gaps.build_ece_statistic,
    debiased=gaps.build_debiased_ece_statistic,
    evaluated=True,
    compared=True,
)
def ece(
    proba: ArrayLike,
    labels: ArrayLike,
    n_bins: int = 15,
    binning: Binning = equal_width,
    norm: float = 1,
    *,
    classes: Classes = None,
) -> float:
    """Compute the expected calibration error (ECE).

        ECE = (1/n) Σ_b | Σ_{i in b} (c_i - conf_i) |

    and, for the norm p, ( Σ_b (n_b/n) |g_b|^p )^(1/p). Bins are right-closed, ``(b/B, (b+1)/B]``.
    Confidence 1 is in the last bin and confidence 0 in the first. The ECE is biased upwards on
    small samples: see `debiased_ece` and `interval`.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`, or two flat columns, confidence and correct.

    n_bins : int, default=15
        Number of bins.

    binning : callable or array-like, default=equal_width
        `metacal.metrics.equal_width`, `metacal.metrics.equal_mass`, a function of (confidence,
        n_bins) that returns edges from 0 to 1, or the edges themselves. In the last case `n_bins`
        is not used.

    norm : float, default=1
        Norm p >= 1. The error never decreases with p. The norm 2 gives `rms_calibration_error` and
        ``np.inf`` gives `max_calibration_error`.

    Returns
    -------
    float

    References
    ----------
    Naeini, Cooper & Hauskrecht 2015; Guo et al. 2017. Norm p: Kumar, Liang & Ma 2019, definition
    2.1.

    Examples
    --------
    >>> table, labels = [[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1]
    >>> round(ece(table, labels, n_bins=5), 6)
    0.4
    >>> round(ece(table, labels, binning=[0, 0.8, 1]), 6)
    0.4
    >>> round(ece(table, labels, binning=[0, 1], norm=2), 6)
    0.133333
    """
    top_labels = read_top_label(proba, labels, classes=classes)
    return evaluate_on_sample(
        gaps.build_ece_statistic(top_labels, n_bins, binning, norm), len(top_labels)
    )


@_register_error(
    title="ECE, equal mass",
    heading="ECE eq. mass",
    statistic=partial(gaps.build_ece_statistic, binning=equal_mass),
    debiased=partial(gaps.build_debiased_ece_statistic, binning=equal_mass),
    evaluated=True,
    compared=True,
)
def ece_equal_mass(
    proba: ArrayLike, labels: ArrayLike, n_bins: int = 15, *, classes: Classes = None
) -> float:
    """Compute the ECE over bins with nearly equal numbers of rows.

    The bin edges are the confidences of rank ceil(n b / B). Rows of equal confidence are never
    split over two bins, so with ties there may be fewer bins, of less equal size.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`, or two flat columns, confidence and correct.

    n_bins : int, default=15
        Number of bins.

    Returns
    -------
    float

    References
    ----------
    Nixon et al. 2019.

    Examples
    --------
    >>> table = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.5, 0.5]]
    >>> round(ece_equal_mass(table, [0, 1, 1, 0], n_bins=2), 6)
    0.275
    """
    return ece(proba, labels, n_bins, equal_mass, classes=classes)


@_register_error(
    title="ECE, class-wise",
    heading="class-wise",
    input=PROBABILITIES,
    statistic=build_classwise_ece_statistic,
    make_accumulator=ClassGaps,
    evaluated=True,
)
def classwise_ece(
    proba: ArrayLike, labels: ArrayLike, n_bins: int = 15, *, classes: Classes = None
) -> float:
    """Compute the class-wise ECE: the ECE of each class, averaged over the K classes.

        (1/K) Σ_k (1/n) Σ_b | Σ_{i: p_ik in b} (1(y_i = k) - p_ik) |,  bins of equal width

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`.

    n_bins : int, default=15
        Number of bins.

    Returns
    -------
    float

    References
    ----------
    Kull et al. 2019; Nixon et al. 2019.

    Examples
    --------
    >>> round(classwise_ece([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1], n_bins=5), 6)
    0.4
    """
    table = checked_table(proba, labels, classes=classes)
    return evaluate_on_sample(build_classwise_ece_statistic(table, n_bins), len(table))


@_register_error(title="ECE, debiased", statistic=gaps.build_debiased_ece_statistic)
def debiased_ece(
    proba: ArrayLike,
    labels: ArrayLike,
    n_bins: int = 15,
    binning: Binning = equal_width,
    *,
    classes: Classes = None,
) -> float:
    """Compute the ECE minus an estimate of its bias on a finite sample.

        max(0, Σ_b (n_b/n) (2 |g_b| - E|N(g_b, s_b²)|))

    where s_b is the standard error of the accuracy in bin b. Kumar et al. draw from the normal
    distribution. Its mean has a closed form, so the value here is exact and needs no seed.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`, or two flat columns, confidence and correct.

    n_bins : int, default=15
        Number of bins.

    binning : callable or array-like, default=equal_width
        As in `ece`.

    Returns
    -------
    float

    References
    ----------
    Kumar, Liang & Ma 2019, section 5, the L1 estimator.

    Examples
    --------
    >>> table, labels = [[0.75, 0.25]] * 8, [0, 0, 0, 0, 0, 1, 1, 1]
    >>> round(ece(table, labels), 6), round(debiased_ece(table, labels), 6)
    (0.125, 0.078549)
    """
    top_labels = read_top_label(proba, labels, classes=classes)
    return evaluate_on_sample(
        gaps.build_debiased_ece_statistic(top_labels, n_bins, binning), len(top_labels)
    )


@_register_error(title="RMS calibration error", statistic=partial(gaps.build_ece_statistic, norm=2))
def rms_calibration_error(
    proba: ArrayLike,
    labels: ArrayLike,
    n_bins: int = 15,
    binning: Binning = equal_width,
    *,
    classes: Classes = None,
) -> float:
    """Compute the root-mean-square calibration error, ``sqrt(Σ_b (n_b/n) g_b²)``.

    It is never smaller than the ECE.

    Parameters
    ----------
    proba, labels, n_bins, binning, classes
        As in `ece`.

    Returns
    -------
    float

    References
    ----------
    Hendrycks et al. 2019.

    Examples
    --------
    >>> round(rms_calibration_error([[0.9, 0.1], [0.3, 0.7]], [0, 0], n_bins=10), 6)
    0.5
    """
    return ece(proba, labels, n_bins, binning, norm=2, classes=classes)


@_register_error(
    title="RMS calibration error, debiased", statistic=gaps.build_debiased_rms_statistic
)
def debiased_rms_calibration_error(
    proba: ArrayLike,
    labels: ArrayLike,
    n_bins: int = 15,
    binning: Binning = equal_width,
    *,
    classes: Classes = None,
) -> float:
    """Compute the RMS calibration error minus the sampling variance of each bin.

        sqrt(max(0, Σ_b (n_b/n) (g_b² - v_b / (n_b - 1))))

    where v_b is the variance of the correctness in bin b. A bin with one row has no variance and
    contributes 0.

    Parameters
    ----------
    proba, labels, n_bins, binning, classes
        As in `ece`.

    Returns
    -------
    float

    References
    ----------
    Kumar, Liang & Ma 2019, definition 5.1; Bröcker 2012; Ferro & Fricker 2012. Roelofs et al. 2022
    compare it with other estimators.

    Examples
    --------
    >>> round(debiased_rms_calibration_error([[0.9, 0.1]] * 3, [0, 1, 1], n_bins=5), 6)
    0.458258
    """
    top_labels = read_top_label(proba, labels, classes=classes)
    return evaluate_on_sample(
        gaps.build_debiased_rms_statistic(top_labels, n_bins, binning), len(top_labels)
    )


@_register_error(
    title="largest calibration error", statistic=partial(gaps.build_ece_statistic, norm=inf)
)
def max_calibration_error(
    proba: ArrayLike,
    labels: ArrayLike,
    n_bins: int = 15,
    binning: Binning = equal_width,
    *,
    classes: Classes = None,
) -> float:
    """Compute the largest calibration gap of any bin, ``max_b |g_b|``.

    Empty bins are ignored. A single row can determine the value.

    Parameters
    ----------
    proba, labels, n_bins, binning, classes
        As in `ece`.

    Returns
    -------
    float

    References
    ----------
    Naeini et al. 2015.

    Examples
    --------
    >>> round(max_calibration_error([[0.9, 0.1], [0.3, 0.7]], [0, 0], n_bins=10), 6)
    0.7
    """
    return ece(proba, labels, n_bins, binning, norm=inf, classes=classes)


@_register_error(
    title="ECE, sup over binnings",
    statistic=gaps.build_sup_ece_statistic,
    printed_title=None,
    evaluated=True,
    needs_errors=True,
)
def sup_ece(proba: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> float:
    """Compute the supremum of the ECE over all binnings.

        sup ECE = (1/n) Σ_z | Σ_{i: conf_i = z} (c_i - z) |   over the distinct confidences z

    By the triangle inequality the finest binning attains it. The value is meaningful for maps with
    few distinct outputs (binning methods, rejected rows). If all confidences differ, it is the mean
    of ``|c - conf|``.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`, or two flat columns, confidence and correct.

    Returns
    -------
    float

    Examples
    --------
    >>> round(sup_ece([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1]), 6)
    0.4
    """
    top_labels = read_top_label(proba, labels, classes=classes)
    return evaluate_on_sample(gaps.build_sup_ece_statistic(top_labels), len(top_labels))


@_register_error(title="ECE, smooth", statistic=build_smooth_ece_statistic, evaluated=True)
def smooth_ece(proba: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> float:
    """Compute the smooth ECE, which has no bins and a bandwidth chosen by the data.

        smECE_σ = ∫₀¹ |(1/n) Σ_i K_σ(t, conf_i)(c_i - conf_i)| dt

    K_σ is the Gaussian kernel reflected at 0 and 1. The value is the σ* with smECE_σ* = σ*. It is
    computed on a mesh of 4,096 cells, which changes values above 0.005 by less than 1e-5.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`, or two flat columns, confidence and correct.

    Returns
    -------
    float

    References
    ----------
    Błasiok & Nakkiran 2023.

    Examples
    --------
    >>> round(smooth_ece([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1]), 4)
    0.2169
    """
    top_labels = read_top_label(proba, labels, classes=classes)
    return evaluate_on_sample(build_smooth_ece_statistic(top_labels), len(top_labels))


@_register_error(title="KS calibration error", statistic=gaps.build_ks_statistic)
def ks_error(proba: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> float:
    """Compute the Kolmogorov-Smirnov calibration error, the largest cumulative gap.

        max_z (1/n) |Σ_{i: conf_i <= z} (c_i - conf_i)|

    It has no bins and no parameter. The maximum is over the ends of blocks of equal confidence, so
    the order of tied rows does not matter.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`, or two flat columns, confidence and correct.

    Returns
    -------
    float

    References
    ----------
    Gupta et al. 2021.

    Examples
    --------
    >>> round(ks_error([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1]), 6)
    0.133333
    """
    top_labels = read_top_label(proba, labels, classes=classes)
    return evaluate_on_sample(gaps.build_ks_statistic(top_labels), len(top_labels))
