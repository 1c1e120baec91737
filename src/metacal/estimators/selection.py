"""Choosing one of several calibrators: the simplest whose cross-validated log loss is as good as the best one's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from metacal.estimators.base import Calibrator
from metacal.maps.fitting.crossvalidation import random_folds
from metacal.maps.map import Map
from metacal.rows import Rows


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
