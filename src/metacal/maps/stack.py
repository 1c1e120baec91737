"""Stacking: a mixture of fitted maps Σ_m w_m map_m(x) with cross-validated weights.

Wolpert, "Stacked generalization", Neural Networks, 1992; for densities and by likelihood: Smyth &
Wolpert, "Linearly combining density estimators via stacking", Machine Learning, 1999. Choosing a
single member by cross-validation risks choosing the wrong one. A mixture hedges, and because its
members err differently it is often better than each of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.formulas import Codes, Flags, Float
from metacal.formulas import parts as formulas
from metacal.maps.fitting.crossvalidation import deduplicate_warnings, random_folds
from metacal.maps.fitting.mixture import fit_mixture_weights
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import CombinedMap, Map
from metacal.maps.members import MEMBERS, Member, fit_members, get_default_members
from metacal.rows import Rows

#: Weight below which a member is omitted.
_MIN_WEIGHT = 0.03
#: Number of prior rows of each member in the mixture of all members.
_PRIOR_ROWS = 0.05
#: Number of prior rows of each member in the mixture of members near temperature scaling.
_NEAR_PRIOR_ROWS = 1.0
#: Gain in nats at which the mixture of all members is as probable as that of the near ones.
_PRIOR_LOG_ODDS = 3.0
#: Default number of folds.
_N_FOLDS = 5
#: Number of folds for few rows, so that each fit has more training rows.
_N_FOLDS_FEW_ROWS = 10
_FEW_ROWS = 1_000
#: Number of folds for many classes, whose fits are slow for any number of rows.
_N_FOLDS_MANY_CLASSES = 3
_MANY_CLASSES = 300
#: Number of held-out rows that suffice to weight a dozen members.
_MAX_HELD_OUT_ROWS = 10_000
#: Number of held-out table entries that suffice to weight a dozen members.
_MAX_HELD_OUT_ENTRIES = 1 << 18
#: Number of rows that are held out if available, whatever the number of classes.
_MIN_HELD_OUT_ROWS = 2_000
#: Largest number of entries of a fold that is copied into a separate table.
_MAX_COPIED_ENTRIES = 1 << 25

#: Function that fits the candidates with the given names.
FitCandidates = Callable[[Sequence[str], Rows, Codes, Weights], dict[str, Map]]


@dataclass(frozen=True, eq=False)
class StackMap(CombinedMap):
    """Mixture of maps, Σ_m w_m map_m(x), with weights that sum to one.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> fitted = StackMap((TemperatureMap(1.0), TemperatureMap(0.5)), (0.5, 0.5))
    >>> fitted(np.array([[2.0, 0.0]])).round(3)
    array([[0.806, 0.194]])
    """

    members: tuple[Map, ...]
    weights: tuple[float, ...]

    formula = staticmethod(formulas.stack)

    def check(self) -> None:
        """Raise InputError unless there are members with valid weights."""
        if not self.members or not all(isinstance(member, Map) for member in self.members):
            raise InputError("members must be fitted maps, at least one.")
        are_fractions = all(0.0 <= weight <= 1.0 for weight in self.weights)
        if len(self.weights) != len(self.members) or not are_fractions:
            raise InputError(
                f"weights must be one number between 0 and 1 for each member, got {self.weights!r}."
            )
        if abs(sum(self.weights) - 1.0) > 1e-9:
            raise InputError(f"weights must sum to one, got {sum(self.weights)!r}.")
        numbers_of_classes = {member.n_classes for member in self.members} - {None}
        if len(numbers_of_classes) > 1:
            raise InputError("the members were fitted on different numbers of classes.")

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        if np.may_share_memory(block, out):
            block = block.copy()
        member_p = np.empty(block.shape, dtype=out.dtype)
        mixture = np.zeros(block.shape)
        for member, weight in zip(self.members, self.weights, strict=True):
            member.write(block, member_p)
            mixture += weight * member_p
        np.copyto(out, mixture, casting="same_kind")
        if self.preserves_accuracy:
            kernels.restore_predictions(kernels.predict_classes(block), out)


@dataclass(frozen=True)
class _OutOfFoldProbabilities:
    """Out-of-fold probabilities of the true class of each row, by candidate.

    Attributes
    ----------
    table : array of shape (n_held_out, n_candidates)
        Probability that each candidate, fitted without the row, gives its true class.

    weights : array of shape (n_held_out,) or None
        Weight of each row.
    """

    table: Float
    weights: Weights


@dataclass(frozen=True)
class _CandidatePriors:
    """Handicap of each candidate, and whether it is near temperature scaling."""

    handicaps: Float
    is_near_temperature: Flags


def fit_stack(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    candidates: tuple[str, ...] | None = None,
    keep_predictions: bool = False,
    n_splits: int | None = None,
    random_state: int = 0,
) -> StackMap:
    """Fit a mixture of calibration methods with cross-validated weights.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    candidates : tuple of str, optional
        Names of `MEMBERS` or of methods. None means the default members.

    keep_predictions, n_splits, random_state
        See `fit_weighted_stack`.

    Returns
    -------
    StackMap
    """
    names = get_default_members(rows.n_classes) if candidates is None else tuple(candidates)
    fitted, _, _ = fit_weighted_stack(
        rows,
        labels,
        weights,
        fit=fit_members,
        names=names,
        keep_predictions=keep_predictions,
        n_splits=n_splits,
        random_state=random_state,
    )
    return fitted


@deduplicate_warnings()
def fit_weighted_stack(
    rows: Rows,
    labels: Codes,
    weights: Weights,
    *,
    fit: FitCandidates,
    names: Sequence[str],
    keep_predictions: bool,
    n_splits: int | None,
    random_state: int,
) -> tuple[StackMap, tuple[str, ...], dict[str, float]]:
    """Fit candidates and weight them by the likelihood of held-out rows.

    Every candidate is fitted on all folds but one and gives the true classes of that fold
    probabilities p_im. The weights maximise Σ_i log Σ_m w_m p_im with a prior (see `weight_candidates`).
    Candidates with less than 3% are omitted; the others are fitted on all rows. The folds are
    not stratified (see `random_folds`).

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,) or None
        Weight of each row.

    fit : function
        Fits the candidates with the given names.

    names : sequence of str
        Names of the candidates.

    keep_predictions : bool
        Whether only candidates that preserve every prediction are used.

    n_splits : int or None
        Number of folds. None means 5; 10 for up to 1,000 rows of 3 to 300 classes; 3 for up to
        2,000 rows of more than 300 classes.

    random_state : int
        Seed of the folds.

    Returns
    -------
    fitted : StackMap
        The stack.

    member_names : tuple of str
        Names of its members.

    losses : dict
        Held-out mean loss of every candidate by name; empty if there is one candidate only.
    """
    if keep_predictions:
        names = [name for name in names if name not in MEMBERS or MEMBERS[name].keeps_predictions]
    if not names:
        raise InputError("there is no candidate to stack; give at least one calibrator.")
    sample = LabelledRows(rows, labels, weights).drop_unusable_rows()
    n_splits = min(n_splits or _choose_n_splits(sample), len(sample.labels))
    if len(names) > 1 and n_splits > 1:
        fit_for_comparison = fit
        if fit is fit_members:
            fit_for_comparison = partial(fit_members, for_comparison=True)
        out_of_fold = _compute_out_of_fold_probabilities(
            sample, partial(fit_for_comparison, names), n_splits, random_state
        )
        losses = _compute_mean_losses(names, out_of_fold)
    else:
        names = names[:1]
        out_of_fold = _OutOfFoldProbabilities(np.ones((1, 1)), None)
        losses = {}

    priors = _get_candidate_priors(names, sample.rows.n_classes)
    mixture = weight_candidates(
        out_of_fold.table, out_of_fold.weights, priors.handicaps, priors.is_near_temperature
    )
    weighted_names = [name for name, weight in zip(names, mixture, strict=True) if weight]
    maps = fit(weighted_names, sample.rows, sample.labels, sample.weights)
    if keep_predictions:
        mixture = _reweight_prediction_preserving(names, maps, mixture, out_of_fold, priors)
    fitted, member_names = _build_stack(names, maps, mixture)
    return fitted, member_names, losses


def _build_stack(
    names: Sequence[str], maps: dict[str, Map], mixture: Float
) -> tuple[StackMap, tuple[str, ...]]:
    """Build the stack of the candidates with positive weight; return it with their names."""
    member_weights = {
        name: weight for name, weight in zip(names, mixture.tolist(), strict=True) if weight
    }
    members = tuple(maps[name] for name in member_weights)
    return StackMap(members, tuple(member_weights.values())), tuple(member_weights)


def _choose_n_splits(sample: LabelledRows) -> int:
    """Choose the number of folds from the numbers of rows and classes."""
    n_rows = len(sample.labels)
    n_classes = sample.rows.n_classes
    if n_classes > _MANY_CLASSES and n_rows <= _MIN_HELD_OUT_ROWS:
        return _N_FOLDS_MANY_CLASSES
    # For two classes the candidates are similar, so more training rows change little.
    if n_rows <= _FEW_ROWS and n_classes > 2:
        return _N_FOLDS_FEW_ROWS
    return _N_FOLDS


def _compute_mean_losses(
    names: Sequence[str], out_of_fold: _OutOfFoldProbabilities
) -> dict[str, float]:
    """Compute the mean held-out log loss of every candidate, by name."""
    with np.errstate(divide="ignore"):
        losses = -np.log(out_of_fold.table)
    means = np.average(losses, axis=0, weights=out_of_fold.weights)
    return dict(zip(names, means.tolist(), strict=True))


def _get_candidate_priors(names: Sequence[str], n_classes: int) -> _CandidatePriors:
    """Return the priors of the candidates; methods that are no member have none."""
    members = [MEMBERS.get(name, Member(name)) for name in names]
    return _CandidatePriors(
        handicaps=np.array([member.compute_handicap(n_classes) for member in members]),
        is_near_temperature=np.array([member.is_near_temperature for member in members]),
    )


def _reweight_prediction_preserving(
    names: Sequence[str],
    maps: dict[str, Map],
    mixture: Float,
    out_of_fold: _OutOfFoldProbabilities,
    priors: _CandidatePriors,
) -> Float:
    """Recompute the mixture weights without maps that can change a prediction.

    Parameters
    ----------
    names : sequence of str
        Names of the candidates.

    maps : dict
        Maps of the candidates that have a weight.

    mixture : array of shape (n_candidates,)
        Weights of all candidates, returned if every map preserves the predictions.

    out_of_fold : _OutOfFoldProbabilities
        Out-of-fold probabilities.

    priors : _CandidatePriors
        Handicaps of the candidates.

    Returns
    -------
    array of shape (n_candidates,)
    """
    if all(fitted.preserves_accuracy for fitted in maps.values()):
        return mixture
    preserves_predictions = np.array(
        [name in maps and maps[name].preserves_accuracy for name in names]
    )
    if not preserves_predictions.any():
        raise InputError(
            "no candidate keeps every prediction; add one that does, such as 'temperature'."
        )
    mixture = np.zeros(len(names))
    mixture[preserves_predictions] = weight_candidates(
        out_of_fold.table[:, preserves_predictions],
        out_of_fold.weights,
        priors.handicaps[preserves_predictions],
        priors.is_near_temperature[preserves_predictions],
    )
    return mixture


def _compute_out_of_fold_probabilities(
    sample: LabelledRows,
    fit: Callable[[Rows, Codes, Weights], dict[str, Map]],
    n_splits: int,
    random_state: int,
) -> _OutOfFoldProbabilities:
    """Compute the out-of-fold probabilities of the true classes, by candidate.

    Parameters
    ----------
    sample : LabelledRows
        Rows with labels.

    fit : function
        Fits all candidates.

    n_splits : int
        Number of folds.

    random_state : int
        Seed of the folds.

    Returns
    -------
    _OutOfFoldProbabilities
        Rows to which every candidate gives probability zero are omitted, because they do not
        distinguish the candidates.
    """
    n_used_folds = _count_used_folds(sample, n_splits)
    fold_of_row = random_folds(len(sample.labels), n_splits, random_state)
    fold_tables = []
    fold_rows = []
    for fold in range(n_used_folds):
        training = _copy_if_small(sample.select(fold_of_row != fold))
        test = _copy_if_small(sample.select(fold_of_row == fold))
        with warnings.catch_warnings():
            # The final fit on all rows issues the same warnings.
            warnings.simplefilter("ignore", MetacalWarning)
            maps = fit(training.rows, training.labels, training.weights)
        columns = [
            test.rows.compute_column(partial(_compute_true_class_probability, fitted), test.labels)
            for fitted in maps.values()
        ]
        fold_tables.append(np.stack(columns, axis=1))
        fold_rows.append(np.flatnonzero(fold_of_row == fold))
    table = np.concatenate(fold_tables)
    is_informative = table.max(axis=1) > 0.0
    informative_rows = np.concatenate(fold_rows)[is_informative]
    weights = None if sample.weights is None else sample.weights[informative_rows]
    return _OutOfFoldProbabilities(table[is_informative], weights)


def _count_used_folds(sample: LabelledRows, n_splits: int) -> int:
    """Count the folds that are needed to hold out enough rows to weight the candidates."""
    max_rows = max(_MIN_HELD_OUT_ROWS, _MAX_HELD_OUT_ENTRIES // sample.rows.n_classes)
    n_sufficient_rows = min(_MAX_HELD_OUT_ROWS, max_rows)
    n_sufficient_folds = math.ceil(n_sufficient_rows * n_splits / len(sample.labels))
    return min(n_splits, n_sufficient_folds)


def _compute_true_class_probability(fitted: Map, block: NDArray[Any], labels: Codes) -> Float:
    """Compute the probability that a map gives the true class of each row."""
    probabilities = fitted(block)
    return np.asarray(probabilities[np.arange(len(block)), labels], dtype=np.float64)


def _copy_if_small(sample: LabelledRows) -> LabelledRows:
    """Copy the logits into a separate table if it is small, because it is read often."""
    rows = sample.rows
    if len(rows) * rows.n_classes > _MAX_COPIED_ENTRIES:
        return sample
    return replace(sample, rows=Rows(rows.to_array(), executor=rows.executor))


def weight_candidates(
    probabilities: Float, weights: Weights, handicaps: Float, is_near_temperature: Flags
) -> Float:
    """Compute the mixture weights of the candidates, zero instead of less than 3%.

    The result combines two mixtures:

    1. The mixture of the candidates near temperature scaling, each with a prior of one row on
       which only it is correct (a Dirichlet prior with exponents of 2). With few rows it is hard
       to improve on.
    2. The mixture of all candidates with a weak prior. A candidate with a handicap of h must
       make the held-out rows h nats more likely to be as good as one without, so its
       probabilities are divided by e^(h/n).

    The second mixture has the posterior probability that Bayes' rule gives it if it is e³ times
    less probable a priori: σ(gain in nats - 3).

    Parameters
    ----------
    probabilities : array of shape (n_rows, n_candidates)
        Out-of-fold probabilities of the true class.

    weights : array of shape (n_rows,) or None
        Weight of each row.

    handicaps : array of shape (n_candidates,)
        Handicaps in nats.

    is_near_temperature : array of bool of shape (n_candidates,)
        Mask of the candidates near temperature scaling.

    Returns
    -------
    array of shape (n_candidates,)
        Weights, which sum to one.
    """
    row_weights = np.ones(len(probabilities)) if weights is None else weights
    near_temperature_mixture = np.zeros(len(is_near_temperature))
    if is_near_temperature.any():
        is_informative = probabilities[:, is_near_temperature].max(axis=1) > 0.0
        near_temperature_table = probabilities[is_informative][:, is_near_temperature]
        near_temperature_mixture[is_near_temperature] = _fit_mixture_with_prior(
            near_temperature_table, row_weights[is_informative], _NEAR_PRIOR_ROWS
        )
    mixture = near_temperature_mixture
    if not is_near_temperature.all():
        penalised_table = probabilities * np.exp(-handicaps / len(probabilities))
        full_mixture = _fit_mixture_with_prior(penalised_table, row_weights, _PRIOR_ROWS)
        with np.errstate(divide="ignore"):
            full_log_likelihood = np.log(probabilities @ full_mixture)
            row_gains = full_log_likelihood - np.log(probabilities @ near_temperature_mixture)
        mean_gain = float(np.average(row_gains, weights=row_weights))
        gain_in_nats = mean_gain * len(row_gains) - float(handicaps @ full_mixture)
        p_full = float(expit(gain_in_nats - _PRIOR_LOG_ODDS))
        mixture = p_full * full_mixture + (1.0 - p_full) * near_temperature_mixture
    is_negligible = mixture < min(_MIN_WEIGHT, mixture.max())
    mixture[is_negligible] = 0.0
    return np.asarray(mixture / mixture.sum())


def _fit_mixture_with_prior(table: Float, row_weights: Float, prior_rows: float) -> Float:
    """Fit mixture weights with prior rows that favour each candidate equally."""
    n_candidates = table.shape[1]
    prior_weights = np.full(n_candidates, prior_rows * row_weights.mean())
    extended_table = np.concatenate([table, np.eye(n_candidates)])
    return fit_mixture_weights(extended_table, np.append(row_weights, prior_weights))
