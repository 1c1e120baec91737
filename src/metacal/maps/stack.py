"""Stacking: a mixture Σ_m w_m map_m(x) of maps with cross-validated weights.

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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import ClassMismatchError, InputError, MetacalWarning
from metacal.formulas import Codes, Flags, Float
from metacal.formulas import parts as formulas
from metacal.maps.candidate_weights import compute_candidate_weights
from metacal.maps.fitting.crossvalidation import deduplicate_warnings, draw_random_folds
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import CombinedMap, Map
from metacal.maps.members import MEMBERS, Member, fit_members, get_default_members
from metacal.rows import Rows

#: Largest distance of the sum of the weights from one.
_MAX_WEIGHT_SUM_ERROR = 1e-9
#: Default number of folds.
_N_FOLDS = 5
#: Number of folds for few rows, so that each fit has more training rows.
_N_FOLDS_FEW_ROWS = 10
_FEW_ROWS = 1_000
#: Number of folds for many classes, whose fits are slow for any number of rows.
_N_FOLDS_MANY_CLASSES = 3
_MANY_CLASSES = 300
#: Number of held-out rows that suffice to estimate the weights of a dozen members.
_MAX_HELD_OUT_ROWS = 10_000
#: Number of held-out table entries that suffice to estimate the weights of a dozen members.
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
            raise InputError("members must contain at least one fitted map.")
        are_fractions = all(0.0 <= weight <= 1.0 for weight in self.weights)
        if len(self.weights) != len(self.members) or not are_fractions:
            raise InputError(
                "weights must have one number between 0 and 1 for each member, but got"
                f" {self.weights!r}."
            )
        if abs(sum(self.weights) - 1.0) > _MAX_WEIGHT_SUM_ERROR:
            raise InputError(f"weights must sum to one, but they sum to {sum(self.weights)!r}.")
        numbers_of_classes = {member.n_classes for member in self.members} - {None}
        if len(numbers_of_classes) > 1:
            raise ClassMismatchError("All members must be fitted on the same number of classes.")

    def write_probabilities(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        if np.may_share_memory(block, out):
            block = block.copy()
        member_p = np.empty(block.shape, dtype=out.dtype)
        mixture = np.zeros(block.shape)
        for member, weight in zip(self.members, self.weights, strict=True):
            member.write_probabilities(block, member_p)
            mixture += weight * member_p
        np.copyto(out, mixture, casting="same_kind")
        if self.preserves_accuracy:
            kernels.ensure_predictions_are_largest(kernels.predict_classes(block), out)


class WeightedStack(NamedTuple):
    """Fitted stack, with the comparison of its candidates.

    Attributes
    ----------
    stack : StackMap
        The stack.

    member_names : tuple of str
        Names of its members.

    losses : dict
        Held-out mean loss of every candidate by name; empty if there is one candidate only.
    """

    stack: StackMap
    member_names: tuple[str, ...]
    losses: dict[str, float]


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
    candidate_names = (
        get_default_members(rows.n_classes) if candidates is None else tuple(candidates)
    )
    weighted_stack = fit_weighted_stack(
        rows,
        labels,
        weights,
        fit=fit_members,
        fit_candidates_for_comparison=partial(fit_members, for_comparison=True),
        names=candidate_names,
        keep_predictions=keep_predictions,
        n_splits=n_splits,
        random_state=random_state,
    )
    return weighted_stack.stack


@deduplicate_warnings()
def fit_weighted_stack(
    rows: Rows,
    labels: Codes,
    weights: Weights,
    *,
    fit: FitCandidates,
    fit_candidates_for_comparison: FitCandidates,
    names: Sequence[str],
    keep_predictions: bool,
    n_splits: int | None,
    random_state: int,
) -> WeightedStack:
    """Fit candidates and weight them by the likelihood of held-out rows.

    Every candidate is fitted on all folds but one and gives the true classes of that fold
    probabilities p_im. The weights maximise Σ_i log Σ_m w_m p_im with a prior (see `compute_candidate_weights`).
    Candidates with less than 3% are omitted; the others are fitted on all rows. The folds are
    not stratified (see `draw_random_folds`).

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

    fit_candidates_for_comparison : function
        Fits them less precisely, to compare them on held-out rows.

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
    WeightedStack
    """
    if keep_predictions:
        names = [name for name in names if name not in MEMBERS or MEMBERS[name].keeps_predictions]
    if not names:
        raise InputError("The list of candidates is empty. Pass at least one calibrator.")
    sample = LabelledRows(rows, labels, weights).drop_unusable_rows()
    n_splits = min(n_splits or _choose_n_splits(sample), len(sample.labels))
    can_compare = len(names) > 1 and n_splits > 1
    if can_compare:
        out_of_fold = _compute_out_of_fold_probabilities(
            sample, partial(fit_candidates_for_comparison, names), n_splits, random_state
        )
        losses = _compute_mean_losses(names, out_of_fold)
    else:
        # The first candidate gets all the weight, because the only row gives it probability one.
        names = names[:1]
        out_of_fold = _OutOfFoldProbabilities(table=np.ones((1, 1)), weights=None)
        losses = {}

    priors = _get_candidate_priors(names, sample.rows.n_classes)
    candidate_weights = compute_candidate_weights(
        out_of_fold.table, out_of_fold.weights, priors.handicaps, priors.is_near_temperature
    )
    used_names = []
    for name, weight in zip(names, candidate_weights, strict=True):
        if weight != 0.0:
            used_names.append(name)
    maps_by_name = fit(used_names, sample.rows, sample.labels, sample.weights)
    all_keep_predictions = all(fitted.preserves_accuracy for fitted in maps_by_name.values())
    if keep_predictions and not all_keep_predictions:
        candidate_weights = _compute_weights_without_prediction_changes(
            names, maps_by_name, out_of_fold, priors
        )
    stack, member_names = _build_stack(names, maps_by_name, candidate_weights)
    return WeightedStack(stack, member_names, losses)


def _build_stack(
    names: Sequence[str], maps_by_name: dict[str, Map], candidate_weights: Float
) -> tuple[StackMap, tuple[str, ...]]:
    """Build the stack of the candidates with positive weight, with their names."""
    weight_by_name = {}
    for name, weight in zip(names, candidate_weights.tolist(), strict=True):
        if weight != 0.0:
            weight_by_name[name] = weight
    stack = StackMap(
        members=tuple(maps_by_name[name] for name in weight_by_name),
        weights=tuple(weight_by_name.values()),
    )
    return stack, tuple(weight_by_name)


def _choose_n_splits(sample: LabelledRows) -> int:
    """Choose the number of folds from the numbers of rows and classes."""
    n_rows = len(sample.labels)
    n_classes = sample.rows.n_classes
    if n_classes > _MANY_CLASSES and n_rows <= _MIN_HELD_OUT_ROWS:
        return _N_FOLDS_MANY_CLASSES
    # For two classes the candidates are similar, so larger training folds change little.
    if n_rows <= _FEW_ROWS and n_classes > 2:
        return _N_FOLDS_FEW_ROWS
    return _N_FOLDS


def _compute_mean_losses(
    names: Sequence[str], out_of_fold: _OutOfFoldProbabilities
) -> dict[str, float]:
    """Compute the mean held-out log loss of every candidate, by name."""
    with np.errstate(divide="ignore"):
        losses = -np.log(out_of_fold.table)
    mean_losses = np.average(losses, axis=0, weights=out_of_fold.weights)
    return dict(zip(names, mean_losses.tolist(), strict=True))


def _get_candidate_priors(names: Sequence[str], n_classes: int) -> _CandidatePriors:
    """Return the priors of the candidates. Other methods have no handicap."""
    members = [MEMBERS.get(name, Member(name)) for name in names]
    return _CandidatePriors(
        handicaps=np.array([member.compute_handicap(n_classes) for member in members]),
        is_near_temperature=np.array([member.is_near_temperature for member in members]),
    )


def _compute_weights_without_prediction_changes(
    names: Sequence[str],
    maps_by_name: dict[str, Map],
    out_of_fold: _OutOfFoldProbabilities,
    priors: _CandidatePriors,
) -> Float:
    """Recompute the mixture weights without maps that can change a prediction.

    Parameters
    ----------
    names : sequence of str
        Names of the candidates.

    maps_by_name : dict
        Fitted maps of some candidates. The others get weight zero.

    out_of_fold : _OutOfFoldProbabilities
        Out-of-fold probabilities.

    priors : _CandidatePriors
        Handicaps of the candidates.

    Returns
    -------
    array of shape (n_candidates,)
    """
    # Candidates without weight were not fitted, so they have no map.
    preserves_predictions = np.array(
        [name in maps_by_name and maps_by_name[name].preserves_accuracy for name in names]
    )
    if not preserves_predictions.any():
        raise InputError(
            "None of the candidates preserves every prediction. Add a candidate that does, such"
            " as 'temperature'."
        )
    candidate_weights = np.zeros(len(names))
    candidate_weights[preserves_predictions] = compute_candidate_weights(
        out_of_fold.table[:, preserves_predictions],
        out_of_fold.weights,
        priors.handicaps[preserves_predictions],
        priors.is_near_temperature[preserves_predictions],
    )
    return candidate_weights


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
    # In a large table, a few of the folds hold out enough rows.
    n_used_folds = _count_used_folds(sample, n_splits)
    fold_of_row = draw_random_folds(len(sample.labels), n_splits, random_state)
    tables_of_folds = []
    held_out_rows_by_fold = []
    for fold in range(n_used_folds):
        training_sample = _copy_if_small(sample.select(fold_of_row != fold))
        test_sample = _copy_if_small(sample.select(fold_of_row == fold))
        with warnings.catch_warnings():
            # The final fit on all rows issues the same warnings.
            warnings.simplefilter("ignore", MetacalWarning)
            maps_by_name = fit(
                training_sample.rows, training_sample.labels, training_sample.weights
            )
        tables_of_folds.append(_tabulate_true_class_probabilities(maps_by_name, test_sample))
        held_out_rows_by_fold.append(np.flatnonzero(fold_of_row == fold))
    probability_table = np.concatenate(tables_of_folds)
    is_informative = probability_table.max(axis=1) > 0.0
    informative_rows = np.concatenate(held_out_rows_by_fold)[is_informative]
    weights = None if sample.weights is None else sample.weights[informative_rows]
    return _OutOfFoldProbabilities(probability_table[is_informative], weights)


def _tabulate_true_class_probabilities(
    maps_by_name: dict[str, Map], test_sample: LabelledRows
) -> Float:
    """Compute the probability that each map gives the true class of each row.

    Returns
    -------
    array of shape (n_rows, n_maps)
    """
    probability_columns = []
    for fitted in maps_by_name.values():
        compute_probability = partial(_compute_true_class_probability, fitted)
        probability_column = test_sample.rows.compute_column(
            compute_probability, test_sample.labels
        )
        probability_columns.append(probability_column)
    return np.stack(probability_columns, axis=1)


def _count_used_folds(sample: LabelledRows, n_splits: int) -> int:
    """Count the folds needed to hold out enough rows for the candidate weights."""
    max_rows = max(_MIN_HELD_OUT_ROWS, _MAX_HELD_OUT_ENTRIES // sample.rows.n_classes)
    n_sufficient_rows = min(_MAX_HELD_OUT_ROWS, max_rows)
    n_sufficient_folds = math.ceil(n_sufficient_rows * n_splits / len(sample.labels))
    return min(n_splits, n_sufficient_folds)


def _compute_true_class_probability(fitted: Map, block: NDArray[Any], labels: Codes) -> Float:
    """Compute the probability that a map gives the true class of each row."""
    probabilities = fitted(block)
    return np.asarray(probabilities[np.arange(len(block)), labels], dtype=np.float64)


def _copy_if_small(sample: LabelledRows) -> LabelledRows:
    """Copy the logits of a few rows into a separate table."""
    rows = sample.rows
    if len(rows) * rows.n_classes > _MAX_COPIED_ENTRIES:
        return sample
    return replace(sample, rows=Rows(rows.to_array(), executor=rows.executor))
