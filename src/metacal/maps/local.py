"""Local temperature scaling: softmax(b(x)·x), the inverse temperature a small positive function of
the row.

Adaptive temperatures were proposed by Mozafari et al. 2018, Balanya, Maroñas & Ramos, "Adaptive
temperature scaling for robust calibration of deep neural networks", 2022 (the entropy as the one
feature), and Joy et al., "Sample-dependent adaptive temperature scaling for improved calibration",
AAAI 2023. Here log b is linear in three standardised features, which keeps the fit to four numbers,
and is shrunk towards one temperature for all rows.

**Another method has this name**: Ding, Han, Liu & Niethammer, "Local temperature scaling for
probability calibration", ICCV 2021, the one that the Meta-Cal paper cites. It is for the
segmentation of images: a convolutional network looks at the image and its map of logits and gives
each *pixel* a temperature. A table of logits has neither pixels nor neighbours, so there is nothing
here for that network to look at; what is left without it, a temperature per row as a function of
that row's logits, is what this file has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.formulas.logits import within_reach
from metacal.formulas.operations import NUMPY
from metacal.formulas.rowwise import gaps
from metacal.formulas.temperature import (
    FARTHEST,
    LARGEST_LOG,
    local_features,
    local_inverse,
    local_temperature,
)
from metacal.maps.fitting.lbfgs import minimise
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import Map, positive
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

#: The features of a row, all of its tempered logits, in the order of the coefficients.
FEATURES = ("entropy", "log(1 + margin)", "log(1 + norm)")
#: exp(-800) is zero: keeps 0 · (-inf) = NaN out of the moments.
_ZERO = -800.0


@dataclass(frozen=True, eq=False)
class LocalTemperatureMap(Map):
    """softmax(b(x)·x) with log b(x) = c_0 + Σ_k c_k z_k(x), the z_k standardised features of the
    row.

    The features are those of the tempered logits t = b₀·x: the entropy of softmax(t), log(1 +
    margin of t) and log(1 + root mean square of t about its mean). Every class of a row has the
    same b(x) > 0: no prediction changes.

    Attributes
    ----------
    inverse_temperature : float
        b₀, that of plain temperature scaling.
    coefficients : array of shape (4,)
        c; the first is the logarithm of b for a row with average features.
    means, scales : arrays of shape (3,)
        z = (feature - mean) / scale, cut off at ±3.

    Examples
    --------
    >>> plain = LocalTemperatureMap(0.5, np.array([np.log(0.5), 0.0, 0.0, 0.0]), np.zeros(3), np.ones(3))
    >>> plain(np.array([[2.0, 0.0]])).round(3)
    array([[0.731, 0.269]])
    """

    inverse_temperature: float
    coefficients: Float
    means: Float
    scales: Float

    preserves_accuracy = ends_in_softmax = True
    formula = staticmethod(local_temperature)

    def check(self) -> None:
        """Raise unless the fields make a map."""
        positive("inverse_temperature", self.inverse_temperature)
        size = len(FEATURES)
        for name, wanted in (("coefficients", size + 1), ("means", size), ("scales", size)):
            array = getattr(self, name)
            if array.shape != (wanted,) or not np.isfinite(array).all():
                raise InputError(f"{name} must be {wanted} finite numbers, got {array!r}.")
        if not (self.scales > 0.0).all():
            raise InputError(f"scales must be positive, got {self.scales!r}.")

    def temperatures(self, rows: Rows) -> Float:
        """T(x) = 1/b(x) of every row."""
        return 1.0 / rows.collect(self._inverse_temperatures)

    def _inverse_temperatures(self, block: NDArray[Any]) -> Float:
        return np.asarray(NUMPY.run(local_inverse, self, _gaps(block))[:, 0])


def fit_local_temperature(
    rows: Rows, labels: Codes, weights: Weights = None, *, penalty: float = 100.0
) -> LocalTemperatureMap:
    """Minimise Σ_rows -log softmax(b(x)·x)_y + (penalty/2) Σ_{k>0} c_k² over the coefficients c of
    log b(x).

    Starts from plain temperature scaling (c_k = 0 for k > 0), with Fisher's information there as
    curvature. The loss is convex in b but not quite in log b: the result is a minimum, and never
    worse on these rows than one temperature.
    """
    positive("penalty", penalty)
    sample = Labelled(rows, labels, weights).usable()
    rows, labels, weights = sample
    b = fit_temperature(rows, labels, weights).inverse_temperature
    features = rows.collect(partial(_features, inverse_temperature=b))
    total = sample.total
    means = np.average(features, axis=0, weights=weights)
    spread = np.sqrt(np.average((features - means) ** 2, axis=0, weights=weights))
    scales = np.where(spread > 1e-6, spread, 1.0)
    design = _design(features, means, scales)
    ridge = penalty * np.diag([0.0, *np.ones(len(FEATURES))])

    def sums(coefficients: Float) -> Float:
        return rows.sum(partial(_loss, coefficients=coefficients), labels, weights, design)

    def objective(coefficients: Float) -> tuple[float, Float]:
        found = sums(coefficients)
        shrunk = ridge @ coefficients
        value = found[0] + 0.5 * coefficients @ shrunk
        return float(value / total), np.asarray((found[1 : 1 + len(shrunk)] + shrunk) / total)

    start = np.array([np.log(b), *np.zeros(len(FEATURES))])
    fisher = sums(start)[1 + len(start) :].reshape(len(start), -1) + ridge
    fisher[0, 0] += 1e-12 * total + np.finfo(np.float64).tiny
    inverse = np.linalg.pinv(fisher / total, hermitian=True)
    found = minimise(
        objective, start, lambda gradient: np.asarray(inverse @ gradient), tolerance=1e-12
    )
    found.warn_unless_converged("local temperature scaling")
    return LocalTemperatureMap(b, found.point, means, scales)


def _features(block: NDArray[Any], inverse_temperature: float) -> Float:
    """The features of each row, one column each; a constant added to the row changes none."""
    return np.concatenate(NUMPY.run(local_features, _gaps(block) * inverse_temperature), axis=1)


def _gaps(block: NDArray[Any]) -> Float:
    return np.asarray(gaps(NUMPY, np.asarray(within_reach(block), dtype=np.float64)))


def _design(features: Float, means: Float, scales: Float) -> Float:
    """(1, z): a column of ones and the standardised features."""
    standard = np.clip((features - means) / scales, -FARTHEST, FARTHEST)
    return np.column_stack([np.ones(len(features)), standard])


def _loss(
    block: NDArray[Any], labels: Codes, weights: Float | None, design: Float, coefficients: Float
) -> Float:
    """Sum over rows of L = log Σ e^{b d} - b d_y, its gradient b (E d - d_y) φ, and Fisher's b²
    Var(d) φ φᵀ.
    """
    b = np.exp(np.clip(design @ coefficients, -LARGEST_LOG, LARGEST_LOG))
    gaps = block.astype(np.float64)
    gaps -= gaps.max(axis=1, keepdims=True)
    own = gaps[np.arange(len(gaps)), labels]
    np.maximum(gaps, (_ZERO / b)[:, None], out=gaps)
    terms = np.exp(gaps * b[:, None])
    mass = terms.sum(axis=1)
    terms *= gaps
    first = terms.sum(axis=1) / mass
    terms *= gaps
    variance = np.maximum(terms.sum(axis=1) / mass - first * first, 0.0)
    counts = np.ones(len(gaps)) if weights is None else weights
    slope = counts * b * (first - own)
    information = (design * (counts * b * b * variance)[:, None]).T @ design
    return np.concatenate(
        [[counts @ (np.log(mass) - b * own)], slope @ design, information.ravel()]
    )
