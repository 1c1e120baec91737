"""AutoCalibrator: several calibrators, weighed by cross-validation; or the simplest one that is as good as the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from metacal.errors import InputError
from metacal.estimators.base import Calibrator, calibrator_from, name_of
from metacal.gate import Gate, Recipe
from metacal.maps.map import Map
from metacal.maps.members import default_members, fit_members
from metacal.maps.stack import Stacked, StackMap, simplest, stack
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
        Folds; when None 5, of up to 1,000 rows of 3 to 300 classes 10, of up to 2,000 rows of more 3. Of large tables
        some of them are enough: 2,000 to 10,000 rows that have been held out.
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
        return super().gate_ if self.settled is self else self.settled.gate_

    @property
    def settled(self) -> Calibrator:
        """Itself; with "select" the chosen one."""
        return self.best_estimator_ if self.combine == "select" else self

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
        how = (self.keep_predictions, self.n_splits, self.random_state)
        usual = CANDIDATES if self.combine == "select" else default_members(rows.n_classes)
        given = list(usual if self.candidates is None else self.candidates)
        if self.combine == "stack" and all(isinstance(candidate, str) for candidate in given):
            return self._told(stack(rows, codes, weights, fit_members, given, *how))
        named = {name_of(candidate): candidate for candidate in given}
        if len(named) < len(given):
            named = {repr(candidate): candidate for candidate in given}

        def fit(names: Sequence[str], *sample: Any) -> dict[str, Map]:
            return {name: calibrator_from(named[name]).fit_rows(*sample).map_ for name in names}

        if self.combine == "stack":
            return self._told(stack(rows, codes, weights, fit, list(named), *how))
        mixed = self._told(stack(rows, codes, weights, fit, list(named), *how, simplest))
        (name,), (self.map_,) = self.weights_, mixed.members
        best = calibrator_from(named[name]).set_params(input=self.input, classes=self.classes, n_jobs=self.n_jobs)
        best.classes_, best.n_features_in_, best.map_ = self.classes_, rows.n_classes, self.map_
        self.best_estimator_ = best
        return self.map_

    def _told(self, found: Stacked) -> StackMap:
        """The mixture; losses and weights are kept."""
        self.losses_, self.weights_ = found.losses, dict(zip(found.names, found.map.weights))
        return found.map
