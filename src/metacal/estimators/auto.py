"""AutoCalibrator: several calibrators, weighed by cross-validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from metacal.errors import InputError
from metacal.estimators.base import Calibrator, Fitted, calibrator_from, name_of
from metacal.formulas import Codes, Float
from metacal.gate import Recipe
from metacal.maps.map import Map
from metacal.maps.members import default_members, fit_members
from metacal.maps.stack import StackMap, stack
from metacal.rows import Rows


class AutoCalibrator(Calibrator[StackMap]):
    """A mixture of calibrators, Σ_m w_m map_m(x), weighed by how they do on rows they have not
    seen.

    Every candidate is fitted on some folds of the rows and gives the true classes of the others a
    probability; the weights on the simplex make their mixture likely, a candidate that can learn
    more being asked for more. Of few rows it is hard to do better than temperature scaling and its
    next of kin: what their own mixture loses against that of all decides how much each counts.
    Weights below 3% are dropped, the rest is fitted on all rows. Which member is the best nobody
    knows beforehand; a mixture is about as good, and often better.

    Measured on rows not used, against every method of every peer: `docs/quality.md`.

    Parameters
    ----------
    candidates : sequence of names or calibrators, optional
        What is mixed; when None: temperature scaling, the same with a uniform part, the usual
        spline on top of that, local temperature, IRM, and a Gaussian process on the uniform part;
        on top of that process intercepts, structured scaling, and Dirichlet calibration at three
        strengths (of more than 300 classes: structured scaling at three). Of two classes increasing
        curves alone, so that the mixture increases too: `MonotoneCalibration`, beta calibration,
        isotonic regression. To choose one of them in place of mixing: `metacal.compare`.
    keep_predictions : bool
        Whether only candidates that keep every prediction take part.
    n_splits : int, optional
        Folds; when None 5, of up to 1,000 rows of 3 to 300 classes 10, of up to 2,000 rows of more
        3. Of large tables some of them are enough: 2,000 to 10,000 rows that have been held out.
    random_state : int
        Seed of the folds.
    input, classes, positive, n_jobs
        As in TemperatureScaling.

    Attributes
    ----------
    map_ : StackMap
        The fitted mixture, a frozen value.
    weights_ : dict
        The weight of each member that was kept.
    losses_ : dict
        Cross-validated log loss of each candidate.
    preserves_accuracy : bool
        Whether the fitted map keeps every prediction.

    References
    ----------
    Wolpert, "Stacked generalization", Neural Networks 1992; Smyth & Wolpert, "Linearly combining
    density estimators via stacking", Machine Learning 1999.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> auto = mc.AutoCalibrator(["temperature", "structured"]).fit(data.logits[:3000], data.labels[:3000])
    >>> {name: round(weight, 1) for name, weight in auto.weights_.items()}
    {'temperature': 0.4, 'structured': 0.6}
    """

    candidates: Sequence[Any] | None = field(default=None, kw_only=False)
    keep_predictions: bool = False
    n_splits: int | None = None
    random_state: int = 0

    losses_: Mapping[str, float] = field(init=False)
    weights_: Mapping[str, float] = field(init=False)

    preserves_accuracy = Fitted[bool]()

    def recipe(self) -> Recipe:
        """How it is fitted, the candidates by their names."""
        plain = super().recipe()
        candidates = None if self.candidates is None else tuple(map(name_of, self.candidates))
        return Recipe(plain.estimator, {**plain.parameters, "candidates": candidates})

    def _fit_map(self, rows: Rows, codes: Codes, weights: Float | None) -> StackMap:
        given = list(
            default_members(rows.n_classes) if self.candidates is None else self.candidates
        )
        if not given:
            raise InputError("candidates is empty; give at least one calibrator.")
        named = {name_of(candidate): candidate for candidate in given}
        if len(named) < len(given):
            named = {repr(candidate): candidate for candidate in given}

        def fit(names: Sequence[str], *sample: Any) -> dict[str, Map]:
            return {name: calibrator_from(named[name]).fit_rows(*sample).map_ for name in names}

        by_name = all(isinstance(candidate, str) for candidate in given)
        names, how = (
            given if by_name else list(named),
            (self.keep_predictions, self.n_splits, self.random_state),
        )
        found, chosen, self.losses_ = stack(
            rows, codes, weights, fit_members if by_name else fit, names, *how
        )
        self.weights_ = dict(zip(chosen, found.weights))
        return found
