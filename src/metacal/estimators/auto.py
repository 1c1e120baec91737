"""AutoCalibrator: let cross-validation choose, and prefer the simpler map when in doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from metacal.errors import InputError
from metacal.estimators.base import Calibrator
from metacal.estimators.ensemble import EnsembleTemperatureScaling
from metacal.estimators.gp import GaussianProcessCalibration
from metacal.estimators.local import LocalTemperatureScaling
from metacal.estimators.spline import SplineCalibration
from metacal.estimators.structured import StructuredScaling
from metacal.estimators.temperature import TemperatureScaling
from metacal.gate import Gate
from metacal.maps.fitting.crossvalidation import random_folds, said_once
from metacal.maps.map import Map
from metacal.rows import Rows

#: What `AutoCalibrator` chooses from, simplest first: by the number of parameters.
CANDIDATES: tuple[Calibrator, ...] = (
    TemperatureScaling(),
    EnsembleTemperatureScaling(),
    LocalTemperatureScaling(),
    SplineCalibration(),
    GaussianProcessCalibration(),
    StructuredScaling(),
)


class AutoCalibrator(Calibrator):
    """The simplest calibrator whose cross-validated NLL is as good as the best one's.

    Every candidate is fitted on k - 1 folds and scored on the k-th. With the per-row losses l of the candidate and b of
    the best one, it is as good as the best when mean(l - b) <= 2·sd(l - b)/sqrt(n). Of those the first in the list,
    simplest first, is refitted on all rows.

    This is the one-standard-error rule (Breiman, Friedman, Olshen & Stone, "Classification and Regression Trees", 1984)
    on paired differences, whose standard error is much smaller than that of a mean loss, the classical yardstick. Two
    of them rather than one: with one, a candidate only as good as temperature scaling passes in one case of six.

    Parameters
    ----------
    candidates : sequence of calibrators, optional
        Simplest first; `CANDIDATES` when None.
    n_splits : int
        Folds.
    random_state : int
        Seed of the folds.
    input, classes, n_jobs
        As in TemperatureScaling.

    Attributes
    ----------
    best_estimator_ : calibrator
        The chosen one, refitted on all rows; `map_` is its map.
    losses_ : dict
        Cross-validated NLL of each candidate.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> auto = mc.AutoCalibrator([mc.TemperatureScaling()]).fit(data.logits[:1000], data.labels[:1000])
    >>> auto.best_estimator_
    TemperatureScaling()
    """

    best_estimator_: Calibrator
    losses_: Mapping[str, float]

    def __init__(
        self,
        candidates: Sequence[Calibrator] | None = None,
        *,
        n_splits: int = 5,
        random_state: int = 0,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.candidates = candidates
        self.n_splits = n_splits
        self.random_state = random_state
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)

    @property
    def preserves_accuracy(self) -> bool:
        """Whether the chosen map keeps every prediction."""
        check_is_fitted(self)
        return bool(self.map_.preserves_accuracy)

    @property
    def gate_(self) -> Gate:
        """The chosen calibrator's: which one it was is all that a file or an export needs to know."""
        check_is_fitted(self)
        return self.best_estimator_.gate_

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> Map:
        with said_once():
            return self._fit_best(rows, codes, weights)

    def _fit_best(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> Map:
        candidates = list(CANDIDATES if self.candidates is None else self.candidates)
        if not candidates:
            raise InputError("candidates is empty; give at least one calibrator.")
        weights = np.ones(len(codes)) if weights is None else weights
        n_splits = min(self.n_splits, len(codes))
        if len(candidates) == 1 or n_splits < 2:
            best = candidates[0]
            self.losses_ = {}
        else:
            losses = self._held_out_losses(candidates, rows, codes, weights, n_splits)
            means = np.average(losses, axis=1, weights=weights)
            self.losses_ = {repr(candidate): float(mean) for candidate, mean in zip(candidates, means)}
            best = candidates[_simplest(losses, weights)]
        best = clone(best).set_params(input=self.input, classes=self.classes, n_jobs=self.n_jobs)
        self.best_estimator_ = best.fit_rows(rows, codes, weights)
        self.best_estimator_.classes_ = self.classes_
        return self.best_estimator_.map_

    def _held_out_losses(
        self,
        candidates: list[Calibrator],
        rows: Rows,
        codes: NDArray[np.intp],
        weights: NDArray[np.float64],
        n_splits: int,
    ) -> NDArray[np.float64]:
        """The negative log-likelihood of each row under each candidate fitted without it."""
        fold = random_folds(len(codes), n_splits, self.random_state)
        losses = np.full((len(candidates), len(codes)), np.inf)
        for held in range(n_splits):
            fit, test = fold != held, fold == held
            if not (weights[fit] > 0).any():
                continue
            for i, candidate in enumerate(candidates):
                fitted = clone(candidate).fit_rows(rows.where(fit), codes[fit], weights[fit]).map_
                losses[i, test] = rows.where(test).collect(_LossOf(fitted), codes[test])
        return losses


class _LossOf:
    """-log of the probability that a map gives the true class; infinite where it gives none."""

    def __init__(self, fitted: Any) -> None:
        self.fitted = fitted

    def __call__(self, block: NDArray[Any], codes: NDArray[np.intp]) -> NDArray[np.float64]:
        own = self.fitted(block)[np.arange(len(block)), codes].astype(np.float64)
        with np.errstate(divide="ignore"):
            return np.asarray(-np.log(own))


def _simplest(losses: NDArray[np.float64], weights: NDArray[np.float64]) -> int:
    """The first candidate within two standard errors (of the paired difference) of the best."""
    counted = weights > 0
    losses, weights = losses[:, counted], weights[counted]
    # A row that every candidate calls impossible (a masked true class) tells them apart no more than any other.
    possible = np.isfinite(losses).any(axis=0)
    losses, weights = losses[:, possible], weights[possible]
    means = np.average(losses, axis=1, weights=weights)
    best = int(np.argmin(means))
    for i in range(len(losses)):
        difference = losses[i] - losses[best]
        if not np.isfinite(difference).all():
            continue
        gap = np.average(difference, weights=weights)
        spread = np.sqrt(np.average((difference - gap) ** 2, weights=weights) / weights.sum())
        if gap <= 2.0 * spread:
            return i
    return best


def chosen(calibrator: Any) -> Any:
    """The calibrator that an `AutoCalibrator` settled on; any other one as it is."""
    return calibrator.best_estimator_ if isinstance(calibrator, AutoCalibrator) else calibrator
