r"""The marginal check: are the rows predicted as each class right as often as their confidence
says?

A confidence that is right on average over all rows may be too high for one predicted class and too
low for another: a wrong offset, which every error of the top label hides, as its bins mix the
classes. Let D_j = Σ (c_i - p_i) over the rows predicted j, c_i whether row i is right and p_i its
confidence. If p is calibrated the D_j are independent given the rows, with mean 0 and variance V_j
= Σ p_i (1 - p_i): Σ_j D_j² / V_j is about χ² with a degree of freedom for each class. V comes from
the confidences and never from the residuals: where few rows are wrong, these say it too small.

Classes with little to tell (V_j < 2) are taken together. The variance of D²/V is 2 + κ/V² with κ =
Σ pq (1 - 6pq) the fourth cumulant, so the statistic is compared with a·χ²_f of its own two moments
(Satterthwaite 1946).

**On rows of the fit** the residuals are smaller than chance in the directions that were fitted. A
map that changes how sure rows are, and not which class they are of, moves the log-odds of p_i by
g(p_i)·θ to first order, so we take out all functions g of the confidence, as steps on 10 bins: D̃ =
D - C I⁻¹ S with S_b = Σ (c_i - p_i) over bin b, I_b = Σ p_i (1
- p_i) there and C_jb the part of it that is predicted j. *Proof* that D̃ has covariance V - C I⁻¹
  Cᵀ whatever was
fitted: it is linear in c with that covariance at the true θ, and its derivative in θ, -(C - C I⁻¹
I)·g, is 0 (Neyman's C(α) test, 1959). ∎ It compares classes at equal confidence. Of a map that has
an offset for each class nothing is left on its own rows: look at others.

>>> random = np.random.default_rng(0)
>>> shown, predicted = random.uniform(0.6, 1.0, 4000), random.integers(2, size=4000)
>>> honest = random.random(4000) < shown
>>> shifted = random.random(4000) < shown + np.where(predicted == 0, 0.05, -0.05)
>>> [checked(shown, right, predicted, classes=None, fitted=False).off for right in (honest, shifted)]
[False, True]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtrc

from metacal.formulas import Array, Codes, Flags, Float
from metacal.metrics.toplabel import CheckedTable, TopLabel, checked_table

#: Rows of a class, or of a bin, whose variance is smaller are taken together with others.
_LEAST = 2.0
#: Bins of the confidence on rows of the fit, at most, and what each needs.
_BINS, _LEAST_IN_BIN = 10, 5.0
#: A rarer statistic is no chance.
LEVEL = 0.05
#: Gaps that matter: in points of probability, or as a share of how often rows are said to be wrong.
_POINT, _SHARE = 0.02, 0.25


@dataclass(frozen=True)
class MarginalCheck:
    """How far the confidence of rows is off by predicted class, and whether that could be chance.

    Attributes
    ----------
    statistic, dof, p_value : float
        The statistic, its degrees of freedom under calibration, and how often chance alone gives as
        much. With no degree of freedom there is nothing to go by: p_value is 1.
    gap : float
        The mean over rows of the gap of their predicted class, less what chance gives.
    wrong : float
        How often rows are wrong by their confidence.
    worst : label or None
        The class that is furthest off, its column where classes have no names; None where classes
        are taken together.
    worst_rows, worst_right, worst_confidence : int, float, float
        Of the rows predicted as such: how many, how often right, and with which mean confidence.
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
        """Whether it is no chance, at 5%."""
        return self.p_value < LEVEL

    @property
    def fails(self) -> bool:
        """Whether it is no chance and matters: by two points of probability, or by a quarter of the
        errors expected.
        """
        return self.off and self.gap > min(_POINT, _SHARE * self.wrong)

    @property
    def failure(self) -> dict[str, Any] | None:
        """What a note says where it fails: the gap, and of the rows that are furthest off the
        facts; else None.
        """
        if not self.fails:
            return None
        which = {
            "predicted": None if self.worst is None else str(self.worst),
            "rows": self.worst_rows,
        }
        return {"gap": self.gap, **which, "right": self.worst_right, "said": self.worst_confidence}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "fails": self.fails}

    def __str__(self) -> str:
        if not self.dof:
            return "by predicted class: these rows cannot tell"
        chance = f"p = {self.p_value:.2g}" if self.off else "which chance explains"
        return (
            f"by predicted class confidence is {100 * self.gap:.1f} points off beyond chance,"
            f" {chance}"
        )


def marginal_check(
    proba: ArrayLike,
    labels: ArrayLike,
    *,
    classes: Sequence[Any] | None = None,
    fitted: bool = False,
) -> MarginalCheck:
    """Check whether rows predicted as each class are right as often as their confidence says.

    Parameters
    ----------
    proba, labels, classes
        As in `top_label`.
    fitted : bool
        Whether the calibrator was fitted on these very rows: classes are then compared at equal
        confidence.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> logit = random.normal(0.0, 2.0, 5000)
    >>> labels = (random.random(5000) < 1.0 / (1.0 + np.exp(1.0 - logit))).astype(int)
    >>> off = 1.0 / (1.0 + np.exp(-logit))                                  # the offset of -1 is missing
    >>> found = marginal_check(np.stack([1.0 - off, off], axis=1), labels)
    >>> found.fails, found.worst, round(found.worst_right, 3), round(found.worst_confidence, 3)
    (True, 1, 0.613, 0.783)
    """
    table = checked_table(proba, labels, classes=classes)
    top = table.top_label()
    return checked(
        top.confidence, top.correct, predicted_columns(table), classes=classes, fitted=fitted
    )


class ByClass(NamedTuple):
    """What the marginal check needs: the predicted column of each row, names, whether a map was
    fitted on the rows.
    """

    predicted: Codes
    classes: Sequence[Any] | Array | None = None
    fitted: bool = False

    def checked(self, top: TopLabel, accept: Flags | None) -> MarginalCheck | None:
        """The check of the accepted rows, of all without a gate; None where nothing is accepted."""
        own = slice(None) if accept is None else accept
        columns = top.confidence[own], top.correct[own], self.predicted[own]
        return (
            checked(*columns, classes=self.classes, fitted=self.fitted) if len(columns[0]) else None
        )


def predicted_columns(table: CheckedTable) -> Codes:
    """The first of the largest columns of each row."""
    return np.concatenate([block.argmax(axis=1) for _, block in table.blocks()])


def checked(
    confidence: Float,
    correct: ArrayLike,
    predicted: Codes,
    *,
    classes: Sequence[Any] | Array | None,
    fitted: bool,
) -> MarginalCheck:
    """The check from columns; `predicted` may be any number of a row that does not depend on its
    label.
    """
    correct = np.asarray(correct, dtype=np.float64)
    spread = confidence * (1.0 - confidence)
    cells = _cells(predicted, spread)
    counts, right, sure, variance, fourth = (
        np.bincount(cells, values)
        for values in (
            np.ones(len(cells)),
            correct,
            confidence,
            spread,
            spread * (1.0 - 6.0 * spread),
        )
    )
    gaps = np.subtract(right, sure, dtype=np.float64)
    own, values, vectors = variance, np.asarray(variance, np.float64), np.eye(len(variance))
    if fitted:
        gaps, covariance = _projected(gaps, np.diag(variance), cells, confidence, correct, spread)
        (values, vectors), own = np.linalg.eigh(covariance), np.maximum(np.diag(covariance), 0.0)
    told = values > 1e-6 * variance.max(initial=0.0)
    dof = float(told.sum())
    if not dof or variance.max() < _LEAST:
        return MarginalCheck(0.0, 0.0, 1.0, 0.0, 0.0, None, 0, 0.0, 0.0)
    statistic = float(((vectors[:, told].T @ gaps) ** 2 / values[told]).sum())
    scale = 1.0 + float((fourth / np.maximum(variance, _LEAST) ** 2).sum()) / (2.0 * dof)
    worst = int(np.argmax(np.abs(gaps)))
    first, *others = np.unique(predicted[cells == worst]).tolist()
    return MarginalCheck(
        statistic,
        dof,
        float(chdtrc(dof / scale, statistic / scale)),
        max(0.0, float((np.abs(gaps) - np.sqrt(2.0 / np.pi * own)).sum() / len(cells))),
        float(1.0 - confidence.mean()),
        None if others else first if classes is None else np.asarray(classes)[first].tolist(),
        int(counts[worst]),
        float(right[worst] / counts[worst]),
        float(sure[worst] / counts[worst]),
    )


def _cells(predicted: Codes, spread: Float) -> Codes:
    """The cell of each row: its predicted class, or one for all classes that have little to
    tell.
    """
    known, codes = np.unique(predicted, return_inverse=True)
    small = np.bincount(codes, spread, len(known)) < _LEAST
    cells = np.cumsum(~small)
    return np.asarray(np.where(small, 0, cells) if small.any() else cells - 1)[codes]


def _projected(
    gaps: Float, covariance: Float, cells: Codes, confidence: Float, correct: Float, spread: Float
) -> tuple[Float, Float]:
    """Gaps and their covariance without what any function of the confidence explains."""
    order = np.argsort(confidence, kind="stable")
    above = np.cumsum(spread[order])
    n_bins = int(np.clip(above[-1] / _LEAST_IN_BIN, 1, _BINS)) if len(above) else 1
    bins = np.empty(len(order), dtype=np.intp)
    bins[order] = np.minimum((n_bins * above / max(above[-1], 1e-300)).astype(np.intp), n_bins - 1)
    information = np.maximum(np.bincount(bins, spread, n_bins), 1e-300)
    shared = np.bincount(cells * n_bins + bins, spread, len(gaps) * n_bins).reshape(
        len(gaps), n_bins
    )
    taken = shared / information
    return (
        gaps - taken @ np.bincount(bins, correct - confidence, n_bins),
        covariance - taken @ shared.T,
    )
