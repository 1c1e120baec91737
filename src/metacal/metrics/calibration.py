"""How far confidence is from accuracy: the calibration errors of a probability table.

All look at the top class, its probability (confidence) and whether it is right, except
`classwise_ece`, which looks at every class. A tie of the top probability among m classes counts 1/m
(see `top_label`). In place of a table and its labels they take two flat columns, confidence and
correct: for several metrics of one table call `top_label` once. The columns may also be a binary
classifier's probability of the positive class and its 0/1 outcome; the metrics are then those of
binary calibration.
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
    ReliabilityCurve,
    bin_edges,
    equal_mass,
    equal_width,
    reliability_table,
)
from metacal.metrics.classwise import ClassGaps, classwise_ece_statistic
from metacal.metrics.registry import PROBABILITIES, TOP_LABEL, register, value
from metacal.metrics.smooth import smooth_ece_statistic
from metacal.metrics.toplabel import top_columns

Classes = Sequence[Any] | None


#: Enters a metric that is 0 under perfect calibration.
_error = partial(register, input=TOP_LABEL, calibration_error=True)


@register(
    title="accuracy",
    input=TOP_LABEL,
    statistic=gaps.accuracy_statistic,
    counts=gaps.accuracy_counts,
    smaller_is_better=False,
    evaluated=True,
)
def accuracy(proba: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> float:
    """Share of rows whose top class is the true one; a tie among m classes counts 1/m.

    Examples
    --------
    >>> accuracy([[0.8, 0.2], [0.5, 0.5]], [0, 1]), accuracy([0.8, 0.5], [1, 0.5])
    (0.75, 0.75)
    """
    return value(TOP_LABEL, gaps.accuracy_statistic, (proba, labels), classes=classes)


@_error(
    title="ECE, equal width",
    heading="ECE",
    statistic=gaps.ece_statistic,
    debiased=gaps.debiased_ece_statistic,
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
    """ECE, the expected calibration error: over bins of equal width unless others are asked for.

        ECE = (1/n) Σ_b | Σ_{i in b} (c_i - conf_i) |,      in the norm p:  ( Σ_b (n_b/n) |g_b|^p
        )^(1/p)

    with g_b the mean gap c - conf of bin b. Bins are right-closed, ``(b/B, (b+1)/B]``; confidence 1
    falls in the last, 0 in the first. (Naeini, Cooper & Hauskrecht 2015; Guo et al. 2017; L_p:
    Kumar, Liang & Ma 2019, definition 2.1.) Biased upwards on few rows: see `debiased_ece` and the
    interval.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`; or two flat columns, confidence and correct.
    n_bins : int
        Bins that `binning` makes.
    binning : function or edges
        `metacal.metrics.equal_width`, `metacal.metrics.equal_mass`, a function of (confidence,
        n_bins) that returns edges from 0 to 1, or the edges themselves (`n_bins` is then not used).
    norm : float
        p >= 1. It never falls as p grows: 2 is `rms_calibration_error`, ``np.inf`` is
        `max_calibration_error`.

    Examples
    --------
    >>> table, labels = [[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1]
    >>> round(ece(table, labels, n_bins=5), 6)
    0.4
    >>> round(ece(table, labels, binning=[0, 0.8, 1]), 6), round(ece(table, labels, binning=[0, 1], norm=2), 6)
    (0.4, 0.133333)
    """
    return value(
        TOP_LABEL, gaps.ece_statistic, (proba, labels), n_bins, binning, norm, classes=classes
    )


@_error(
    title="ECE, equal mass",
    heading="ECE eq. mass",
    statistic=partial(gaps.ece_statistic, binning=equal_mass),
    debiased=partial(gaps.debiased_ece_statistic, binning=equal_mass),
    evaluated=True,
    compared=True,
)
def ece_equal_mass(
    proba: ArrayLike, labels: ArrayLike, n_bins: int = 15, *, classes: Classes = None
) -> float:
    """ECE over bins of nearly equal counts (Nixon et al. 2019), edges at the confidences of rank
    ceil(n b / B).

    Rows of equal confidence are never split over two bins, so bins may be fewer and less equal
    where values tie.

    Examples
    --------
    >>> round(ece_equal_mass([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.5, 0.5]], [0, 1, 1, 0], n_bins=2), 6)
    0.275
    """
    return ece(proba, labels, n_bins, equal_mass, classes=classes)


@_error(
    title="ECE, class-wise",
    heading="class-wise",
    input=PROBABILITIES,
    statistic=classwise_ece_statistic,
    sums=ClassGaps,
    evaluated=True,
)
def classwise_ece(
    proba: ArrayLike, labels: ArrayLike, n_bins: int = 15, *, classes: Classes = None
) -> float:
    """ECE of each class's own probability, averaged over the K classes (Kull et al. 2019; Nixon et
    al. 2019).

        (1/K) Σ_k (1/n) Σ_b | Σ_{i: p_ik in b} (1(y_i = k) - p_ik) |,  equal-width bins

    Examples
    --------
    >>> round(classwise_ece([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1], n_bins=5), 6)
    0.4
    """
    return value(PROBABILITIES, classwise_ece_statistic, (proba, labels), n_bins, classes=classes)


@_error(title="ECE, debiased", statistic=gaps.debiased_ece_statistic)
def debiased_ece(
    proba: ArrayLike,
    labels: ArrayLike,
    n_bins: int = 15,
    binning: Binning = equal_width,
    *,
    classes: Classes = None,
) -> float:
    """ECE less its expected excess on a sample of this size (Kumar, Liang & Ma 2019, section 5, the
    L1 estimator).

    With g_b the mean gap of bin b and s_b the standard error of its accuracy,

        max(0, Σ_b (n_b/n) (2 |g_b| - E|N(g_b, s_b²)|)).

    Kumar et al. sample the normal; its mean is a closed form, so here the answer is exact and needs
    no seed.

    `binning` is `metacal.metrics.equal_width` or `metacal.metrics.equal_mass`: what places the
    edges.

    Examples
    --------
    >>> table = [[0.75, 0.25]] * 8
    >>> round(ece(table, [0, 0, 0, 0, 0, 1, 1, 1]), 6), round(debiased_ece(table, [0, 0, 0, 0, 0, 1, 1, 1]), 6)
    (0.125, 0.078549)
    """
    return value(
        TOP_LABEL, gaps.debiased_ece_statistic, (proba, labels), n_bins, binning, classes=classes
    )


@_error(title="RMS calibration error", statistic=partial(gaps.ece_statistic, norm=2))
def rms_calibration_error(
    proba: ArrayLike,
    labels: ArrayLike,
    n_bins: int = 15,
    binning: Binning = equal_width,
    *,
    classes: Classes = None,
) -> float:
    """Root-mean-square calibration error, ``sqrt(Σ_b (n_b/n) g_b²)`` (Hendrycks et al. 2019); never
    below the ECE.

    Examples
    --------
    >>> round(rms_calibration_error([[0.9, 0.1], [0.3, 0.7]], [0, 0], n_bins=10), 6)
    0.5
    """
    return ece(proba, labels, n_bins, binning, norm=2, classes=classes)


@_error(title="RMS calibration error, debiased", statistic=gaps.debiased_rms_statistic)
def debiased_rms_calibration_error(
    proba: ArrayLike,
    labels: ArrayLike,
    n_bins: int = 15,
    binning: Binning = equal_width,
    *,
    classes: Classes = None,
) -> float:
    """Root-mean-square calibration error with each bin's sampling variance taken off.

        sqrt(max(0, Σ_b (n_b/n) (g_b² - v_b / (n_b - 1)))),   v_b the variance of the correctness in
        bin b

    (Kumar, Liang & Ma 2019, definition 5.1; Bröcker 2012; Ferro & Fricker 2012. Roelofs et al. 2022
    compare it with others.) A bin of one row has no variance and contributes nothing.

    Examples
    --------
    >>> round(debiased_rms_calibration_error([[0.9, 0.1]] * 3, [0, 1, 1], n_bins=5), 6)
    0.458258
    """
    return value(
        TOP_LABEL, gaps.debiased_rms_statistic, (proba, labels), n_bins, binning, classes=classes
    )


@_error(title="largest calibration error", statistic=partial(gaps.ece_statistic, norm=inf))
def max_calibration_error(
    proba: ArrayLike,
    labels: ArrayLike,
    n_bins: int = 15,
    binning: Binning = equal_width,
    *,
    classes: Classes = None,
) -> float:
    """Largest gap of any bin that holds a row, ``max_b |g_b|`` (Naeini et al. 2015). One row can
    decide it.

    Examples
    --------
    >>> round(max_calibration_error([[0.9, 0.1], [0.3, 0.7]], [0, 0], n_bins=10), 6)
    0.7
    """
    return ece(proba, labels, n_bins, binning, norm=inf, classes=classes)


@_error(
    title="ECE, sup over binnings",
    statistic=gaps.sup_ece_statistic,
    words=None,
    evaluated=True,
    needs_errors=True,
)
def sup_ece(proba: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> float:
    """Supremum of the ECE: the largest that any binning gives.

        sup ECE = (1/n) Σ_z | Σ_{i: conf_i = z} (c_i - z) |   over the distinct confidences z

    The finest binning attains it, by the triangle inequality. Meaningful for maps with few distinct
    outputs (binning methods, rejected rows); where all confidences differ it is just the mean of
    ``|c - conf|``.

    Examples
    --------
    >>> round(sup_ece([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1]), 6)
    0.4
    """
    return value(TOP_LABEL, gaps.sup_ece_statistic, (proba, labels), classes=classes)


@_error(title="ECE, smooth", statistic=smooth_ece_statistic, evaluated=True)
def smooth_ece(proba: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> float:
    """Smooth ECE (Błasiok & Nakkiran 2023): no bins, and a bandwidth that the data choose.

        smECE_σ = ∫₀¹ |(1/n) Σ_i K_σ(t, conf_i)(c_i - conf_i)| dt,  K_σ the Gaussian reflected at 0
        and 1; the value is the σ* with smECE_σ* = σ*.

    Computed on a mesh of 4,096 cells, which moves values above 0.005 by less than 1e-5.

    Examples
    --------
    >>> round(smooth_ece([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1]), 4)
    0.2169
    """
    return value(TOP_LABEL, smooth_ece_statistic, (proba, labels), classes=classes)


@_error(title="KS calibration error", statistic=gaps.ks_statistic)
def ks_error(proba: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> float:
    """Kolmogorov-Smirnov calibration error (Gupta et al. 2021): the largest cumulative gap, no bins
    and no parameter.

        max_z (1/n) |Σ_{i: conf_i <= z} (c_i - conf_i)|

    Only ends of blocks of equal confidence are looked at, so the order of tied rows does not
    matter.

    Examples
    --------
    >>> round(ks_error([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], [0, 1, 1]), 6)
    0.133333
    """
    return value(TOP_LABEL, gaps.ks_statistic, (proba, labels), classes=classes)


def reliability_curve(
    proba: ArrayLike,
    labels: ArrayLike,
    n_bins: int = 15,
    binning: Binning = equal_width,
    *,
    classes: Classes = None,
) -> ReliabilityCurve:
    """Table behind a reliability diagram: edges, counts, mean confidence and accuracy per bin.

    Examples
    --------
    >>> curve = reliability_curve([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1], n_bins=4)
    >>> curve.counts
    array([0, 0, 2, 1])
    >>> curve.accuracy
    array([nan, nan, 0.5, 1. ])
    """
    top = top_columns(proba, labels, classes=classes)
    return reliability_table(top, bin_edges(binning, top.confidence, n_bins))
