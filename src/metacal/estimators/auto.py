"""AutoCalibrator: several calibrators, weighed by cross-validation; or the simplest one that is as good as the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from metacal.errors import InputError
from metacal.estimators.base import Calibrator, calibrator_from, name_of
from metacal.gate import Gate, Recipe
from metacal.maps.fitting.crossvalidation import random_folds, said_once
from metacal.maps.map import Map
from metacal.maps.members import default_members, fit_members
from metacal.maps.stack import Stacked, stack
from metacal.rows import Rows

#: What is chosen from with `combine="select"`, simplest first: by the number of parameters.
CANDIDATES = ("temperature", "uniform-temperature", "local-temperature", "spline", "gaussian-process", "structured")


class AutoCalibrator(Calibrator):
    """A mixture of calibrators, Σ_m w_m map_m(x), weighed by how they do on rows they have not seen.

    Every candidate is fitted on some folds of the rows and gives the true classes of the others a probability; the
    weights on the simplex make their mixture likely, a candidate that can learn more being asked for more. Of few rows
    it is hard to do better than temperature scaling and its next of kin: what their own mixture loses against that of
    all decides how much each counts. Weights below 3% are dropped, the rest is fitted on all rows. Which member is the
    best nobody knows beforehand; a mixture is about as good, and often better.

    Measured on rows not used, against every method of every peer: `docs/quality.md`.

    Parameters
    ----------
    candidates : sequence of names or calibrators, optional
        What is mixed; when None: temperature scaling, the same with a uniform part, the usual spline on top of that,
        local temperature, IRM, and a Gaussian process on the uniform part; on top of that process intercepts,
        structured scaling, and Dirichlet calibration at three strengths (of more than 300 classes: structured scaling
        at three). Of two classes increasing curves alone, so that the mixture increases too: `MonotoneCalibration`,
        beta calibration, isotonic regression. With "select": simplest first.
    combine : "stack" or "select"
        "select" takes the simplest candidate whose cross-validated log loss is as good as the best one's: within two
        standard errors of the paired difference (the rule of Breiman, Friedman, Olshen & Stone 1984, for pairs).
    keep_predictions : bool
        Whether only candidates that keep every prediction take part.
    n_splits : int, optional
        Folds; when None 5, of up to 1,000 rows of more than two classes 10. Of large tables some of them are enough:
        2,000 to 10,000 rows that have been held out.
    random_state : int
        Seed of the folds.
    input, classes, positive, n_jobs
        As in TemperatureScaling.

    Attributes
    ----------
    map_ : StackMap
        The fitted mixture, a frozen value; with "select" the map of `best_estimator_`.
    weights_ : dict
        The weight of each member that was kept.
    losses_ : dict
        Cross-validated log loss of each candidate.
    best_estimator_ : calibrator
        With "select" only: the chosen one, fitted on all rows.

    References
    ----------
    Wolpert, "Stacked generalization", Neural Networks 1992; Smyth & Wolpert, "Linearly combining density estimators via
    stacking", Machine Learning 1999.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> auto = mc.AutoCalibrator(["temperature", "structured"]).fit(data.logits[:3000], data.labels[:3000])
    >>> {name: round(weight, 1) for name, weight in auto.weights_.items()}
    {'temperature': 0.4, 'structured': 0.6}
    """

    candidates: Sequence[Any] | None = field(default=None, kw_only=False)
    combine: str = "stack"
    keep_predictions: bool = False
    n_splits: int | None = None
    random_state: int = 0

    best_estimator_: Calibrator = field(init=False)
    losses_: Mapping[str, float] = field(init=False)
    weights_: Mapping[str, float] = field(init=False)

    @property
    def preserves_accuracy(self) -> bool:
        """Whether the fitted map keeps every prediction."""
        check_is_fitted(self)
        return bool(self.map_.preserves_accuracy)

    @property
    def gate_(self) -> Gate:
        """The fitted map as a gate; where one was chosen, the chosen calibrator's: a file needs to know no more."""
        check_is_fitted(self)
        return super().gate_ if self.combine == "stack" else self.best_estimator_.gate_

    def recipe(self) -> Recipe:
        """How it is fitted, the candidates by their names."""
        plain = super().recipe()
        own = {name: value for name, value in plain.parameters.items() if name != "combine"}
        candidates = None if self.candidates is None else tuple(map(name_of, self.candidates))
        return Recipe(plain.estimator, {**own, "candidates": candidates})

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> Map:
        if self.combine not in ("stack", "select"):
            raise InputError(f"combine must be 'stack' or 'select', got {self.combine!r}.")
        if self.candidates is not None and not len(self.candidates):
            raise InputError("candidates is empty; give at least one calibrator.")
        if self.combine == "select":
            with said_once():
                return self._select(rows, codes, weights)
        found = self._stack(rows, codes, weights)
        self.losses_, self.weights_ = found.losses, dict(zip(found.names, found.map.weights))
        return found.map

    def _stack(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> Stacked:
        how = (self.keep_predictions, self.n_splits, self.random_state)
        given = default_members(rows.n_classes) if self.candidates is None else list(self.candidates)
        if all(isinstance(candidate, str) for candidate in given):
            return stack(rows, codes, weights, fit_members, given, *how)
        named = {name_of(candidate): candidate for candidate in given}
        if len(named) < len(given):
            named = {repr(candidate): candidate for candidate in given}

        def fit(names: Sequence[str], *sample: Any) -> dict[str, Map]:
            return {name: calibrator_from(named[name]).fit_rows(*sample).map_ for name in names}

        return stack(rows, codes, weights, fit, list(named), *how)

    def _select(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> Map:
        candidates = [
            calibrator_from(candidate) for candidate in (CANDIDATES if self.candidates is None else self.candidates)
        ]
        counts = np.ones(len(codes)) if weights is None else weights
        n_splits = min(self.n_splits or 5, len(codes))
        best, self.losses_ = candidates[0], {}
        if len(candidates) > 1 and n_splits > 1:
            losses = held_out_losses(candidates, rows, codes, counts, n_splits, self.random_state)
            means = np.average(losses, axis=1, weights=counts)
            self.losses_ = {repr(candidate): float(mean) for candidate, mean in zip(candidates, means)}
            best = candidates[simplest(losses, counts)]
        self.weights_ = {repr(best): 1.0}
        best = clone(best).set_params(input=self.input, classes=self.classes, n_jobs=self.n_jobs)
        self.best_estimator_ = best.fit_rows(rows, codes, weights)
        self.best_estimator_.classes_ = self.classes_
        return self.best_estimator_.map_


def chosen(calibrator: Any) -> Any:
    """The calibrator that an `AutoCalibrator` has chosen; any other one, and one that mixes, as it is."""
    selects = isinstance(calibrator, AutoCalibrator) and calibrator.combine == "select"
    return calibrator.best_estimator_ if selects else calibrator


def held_out_losses(
    candidates: Sequence[Calibrator],
    rows: Rows,
    codes: NDArray[np.intp],
    weights: NDArray[np.float64],
    n_splits: int,
    random_state: int,
) -> NDArray[np.float64]:
    """The negative log-likelihood of each row under each candidate fitted without it."""
    fold = random_folds(len(codes), n_splits, random_state)
    losses = np.full((len(candidates), len(codes)), np.inf)
    for held in range(n_splits):
        fit, test = fold != held, fold == held
        if not (weights[fit] > 0).any():
            continue
        for i, candidate in enumerate(candidates):
            fitted = clone(candidate).fit_rows(rows.where(fit), codes[fit], weights[fit]).map_
            losses[i, test] = rows.where(test).collect(partial(_loss, fitted), codes[test])
    return losses


def simplest(losses: NDArray[np.float64], weights: NDArray[np.float64]) -> int:
    """The first candidate within two standard errors (of the paired difference) of the best.

    This is the one-standard-error rule (Breiman, Friedman, Olshen & Stone, "Classification and Regression Trees", 1984)
    on paired differences, whose standard error is much smaller than that of a mean loss, the classical yardstick. Two
    of them rather than one: with one, a candidate only as good as temperature scaling passes in one case of six.

    Examples
    --------
    >>> simplest(np.array([[1.0, 2.0, 1.0, 2.0], [1.0, 1.9, 1.1, 1.9]]), np.ones(4))
    0
    """
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


def _loss(fitted: Map, block: NDArray[Any], codes: NDArray[np.intp]) -> NDArray[np.float64]:
    """-log of the probability that a map gives the true class; infinite where it gives none."""
    own = fitted(block)[np.arange(len(block)), codes].astype(np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(own))
