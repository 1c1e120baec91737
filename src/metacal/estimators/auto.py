"""Mixture of calibrators with weights chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any, NamedTuple

from metacal.errors import InputError
from metacal.estimators.base import Calibrator, MapAttribute
from metacal.estimators.calibrator_factory import get_calibrator_name, make_calibrator
from metacal.formulas import Codes, Float
from metacal.gate import Recipe
from metacal.maps.map import Map
from metacal.maps.members import fit_members, get_default_members
from metacal.maps.stack import StackMap, fit_weighted_stack
from metacal.rows import Rows


class AutoCalibrator(Calibrator[StackMap]):
    """Mixture of calibrators, weighted by their predictions on held-out rows.

    The probabilities are Σ_m w_m map_m(x). The fit proceeds in these steps.

    1. Each candidate is fitted on some folds of the rows and applied to the others.
    2. The weights on the simplex maximise the likelihood of the mixture on these held-out rows. A
       candidate with more parameters must show a larger gain.
    3. On few rows, it is hard to improve on temperature scaling and similar methods. The mixture is
       therefore averaged with a mixture of these methods alone, according to how much that one
       loses on held-out rows.
    4. Members with a weight below 3% are dropped, and the others are fitted on all rows.

    A mixture is about as good as its best member, which is not known beforehand, and often better.
    `docs/quality.md` compares it with the methods of other packages on held-out rows.

    Parameters
    ----------
    candidates : sequence of str or calibrators, or None, default=None
        Calibrators to mix. The default for three or more classes is: temperature scaling;
        temperature scaling with a uniform part, alone and followed by the default spline; local
        temperature; IRM; a Gaussian process on the uniform part, alone and followed by intercepts,
        by structured scaling, and by Dirichlet calibration at three strengths. For more than 300
        classes, structured scaling at three strengths replaces Dirichlet calibration. The default
        for two classes has increasing curves only, so that the mixture increases too:
        `MonotoneCalibration`, beta calibration and isotonic regression. To select one calibrator
        instead of mixing several, use `metacal.compare`.
    keep_predictions : bool, default=False
        Whether to use only candidates that keep every prediction.
    n_splits : int or None, default=None
        Number of folds. If None, it is 10 for up to 1,000 rows of 3 to 300 classes, 3 for up to
        2,000 rows of more classes, and 5 otherwise. For a large table only some folds are used, so
        that 2,000 to 10,000 rows are held out.
    random_state : int, default=0
        Seed of the folds.
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    Attributes
    ----------
    map_ : StackMap
        Fitted mixture, a frozen value.
    weights_ : dict
        Weight of each member of the mixture.
    losses_ : dict
        Cross-validated log loss of each candidate.
    preserves_accuracy : bool
        Whether the fitted map keeps every prediction.

    See Also
    --------
    compare : Compare calibrators by cross-validation.
    ComposedCalibration : One calibrator after another.

    References
    ----------
    Wolpert, "Stacked generalization", Neural Networks 1992.
    Smyth & Wolpert, "Linearly combining density estimators via stacking", Machine Learning 1999.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> auto = mc.AutoCalibrator(["temperature", "structured"])
    >>> auto = auto.fit(data.logits[:3000], data.labels[:3000])
    >>> {name: round(weight, 1) for name, weight in auto.weights_.items()}
    {'temperature': 0.4, 'structured': 0.6}
    """

    candidates: Sequence[Any] | None = field(default=None, kw_only=False)
    keep_predictions: bool = False
    n_splits: int | None = None
    random_state: int = 0

    losses_: Mapping[str, float] = field(init=False)
    weights_: Mapping[str, float] = field(init=False)

    preserves_accuracy = MapAttribute[bool]()

    def recipe(self) -> Recipe:
        """Return the class name and the parameters, with candidates as names."""
        recipe = super().recipe()
        candidate_names = None
        if self.candidates is not None:
            candidate_names = tuple(get_calibrator_name(candidate) for candidate in self.candidates)
        return Recipe(recipe.estimator, {**recipe.parameters, "candidates": candidate_names})

    def _fit_map(self, rows: Rows, codes: Codes, weights: Float | None) -> StackMap:
        """Fit the mixture, and store its weights and the losses of the candidates."""
        if self.candidates is None:
            candidates = list(get_default_members(rows.n_classes))
        else:
            candidates = list(self.candidates)
        if not candidates:
            raise InputError("The list of candidates is empty. Pass at least one calibrator.")
        fitters = _make_candidate_fitters(candidates)
        mixture, member_names, log_loss_by_candidate = fit_weighted_stack(
            rows,
            codes,
            weights,
            fit=fitters.fit,
            fit_candidates_for_comparison=fitters.fit_for_comparison,
            names=fitters.candidate_names,
            keep_predictions=self.keep_predictions,
            n_splits=self.n_splits,
            random_state=self.random_state,
        )
        self.losses_ = log_loss_by_candidate
        self.weights_ = dict(zip(member_names, mixture.weights))
        return mixture


class _CandidateFitters(NamedTuple):
    """Names of the candidates of a mixture, and functions that fit them by name.

    Attributes
    ----------
    candidate_names : list of str
        Names of all candidates.
    fit : callable
        Function that fits the candidates for use.
    fit_for_comparison : callable
        Function that fits the candidates for their cross-validated losses.
    """

    candidate_names: list[str]
    fit: Callable[..., dict[str, Map]]
    fit_for_comparison: Callable[..., dict[str, Map]]


def _make_candidate_fitters(candidates: list[Any]) -> _CandidateFitters:
    """Make functions that fit the candidates, given as names or as estimators."""
    all_are_names = all(isinstance(candidate, str) for candidate in candidates)
    if all_are_names:
        return _CandidateFitters(
            candidate_names=candidates,
            fit=fit_members,
            fit_for_comparison=partial(fit_members, for_comparison=True),
        )
    candidate_by_name = _name_candidates(candidates)
    fit_named_candidates = partial(_fit_candidates, candidate_by_name)
    return _CandidateFitters(
        candidate_names=list(candidate_by_name),
        fit=fit_named_candidates,
        fit_for_comparison=fit_named_candidates,
    )


def _name_candidates(candidates: Sequence[Any]) -> dict[str, Any]:
    """Key the candidates by their names, or by their repr if two names are equal."""
    candidate_by_name = {get_calibrator_name(candidate): candidate for candidate in candidates}
    names_are_distinct = len(candidate_by_name) == len(candidates)
    if names_are_distinct:
        return candidate_by_name
    return {repr(candidate): candidate for candidate in candidates}


def _fit_candidates(
    candidate_by_name: Mapping[str, Any],
    names: Sequence[str],
    rows: Rows,
    codes: Codes,
    weights: Float | None,
) -> dict[str, Map]:
    """Fit new copies of the named candidates, and return their maps.

    Parameters
    ----------
    candidate_by_name : mapping of str to calibrator
        All candidates.
    names : sequence of str
        Names of the candidates to fit.
    rows : Rows
        Logits.
    codes : array of int of shape (n_rows,)
        Column of each label.
    weights : array of shape (n_rows,) or None
        Weight of each row.

    Returns
    -------
    dict of str to Map
    """
    map_by_name = {}
    for name in names:
        unfitted_copy = make_calibrator(candidate_by_name[name])
        fitted_calibrator = unfitted_copy.fit_rows(rows, codes, weights)
        map_by_name[name] = fitted_calibrator.map_
    return map_by_name
