"""Stacking: a mixture of fitted maps Σ_m w_m map_m(x) with cross-validated weights.

Wolpert, "Stacked generalization", Neural Networks, 1992; for densities and by likelihood: Smyth &
Wolpert, "Linearly combining density estimators via stacking", Machine Learning, 1999. Choosing a
single member by cross-validation risks choosing the wrong one. A mixture hedges, and because its
members err differently it is often better than each of them.
"""

from __future__ import annotations

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
#: Number of prior rows of each member, in the mixture of all members and in that of the members
#: near temperature scaling.
_PRIOR_ROWS = 0.05
_PRIOR_ROWS_NEAR = 1.0
#: Gain in nats at which the mixture of all members is as probable as that of the near members.
_PRIOR_LOG_ODDS = 3.0
#: Number of folds. With few rows, a tenth more training rows matters most. With many classes, a
#: fit takes as long with few rows as with many.
_N_FOLDS = 5
_N_FOLDS_FEW_ROWS = 10
_FEW_ROWS = 1_000
_N_FOLDS_MANY_CLASSES = 3
_MANY_CLASSES = 300
#: Number of held-out rows that suffice to weight a dozen members: so many, or fewer rows with so
#: many entries, but not fewer than the smallest number.
_MAX_HELD_OUT_ROWS = 10_000
_MAX_HELD_OUT_ENTRIES = 1 << 18
_MIN_HELD_OUT_ROWS = 2_000
#: Number of entries up to which the rows of a fold are copied into a table of their own.
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
            kernels.restore_predictions(kernels.predicted(block), out)


@dataclass(frozen=True)
class _HeldOutProbabilities:
    """Out-of-fold probabilities of the true class.

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
    near: Flags


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
    """Fit a stack of candidates with the given names.

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
    n_splits = min(n_splits or _default_n_splits(sample), len(sample.labels))
    if len(names) > 1 and n_splits > 1:
        fit_roughly = partial(fit_members, rough=True) if fit is fit_members else fit
        held_out = _hold_out(sample, partial(fit_roughly, names), n_splits, random_state)
        losses = _mean_losses(names, held_out)
    else:
        names = names[:1]
        held_out = _HeldOutProbabilities(np.ones((1, 1)), None)
        losses = {}

    priors = _candidate_priors(names, sample.rows.n_classes)
    mixture = weight_candidates(held_out.table, held_out.weights, priors.handicaps, priors.near)
    used_names = [name for name, weight in zip(names, mixture, strict=True) if weight]
    maps = fit(used_names, sample.rows, sample.labels, sample.weights)
    if keep_predictions:
        mixture = _drop_changing_predictions(names, maps, mixture, held_out, priors)
    fitted, member_names = _build_stack(names, maps, mixture)
    return fitted, member_names, losses


def _build_stack(
    names: Sequence[str], maps: dict[str, Map], mixture: Float
) -> tuple[StackMap, tuple[str, ...]]:
    """Build the stack of the candidates with a weight; return it with their names."""
    member_weights = {
        name: weight for name, weight in zip(names, mixture.tolist(), strict=True) if weight
    }
    members = tuple(maps[name] for name in member_weights)
    return StackMap(members, tuple(member_weights.values())), tuple(member_weights)


def _default_n_splits(sample: LabelledRows) -> int:
    """Return the default number of folds."""
    n_rows = len(sample.labels)
    n_classes = sample.rows.n_classes
    if n_classes > _MANY_CLASSES and n_rows <= _MIN_HELD_OUT_ROWS:
        return _N_FOLDS_MANY_CLASSES
    # For two classes, the candidates differ little.
    if n_rows <= _FEW_ROWS and n_classes > 2:
        return _N_FOLDS_FEW_ROWS
    return _N_FOLDS


def _mean_losses(names: Sequence[str], held_out: _HeldOutProbabilities) -> dict[str, float]:
    """Compute the mean held-out loss of every candidate."""
    with np.errstate(divide="ignore"):
        losses = -np.log(held_out.table)
    means = np.average(losses, axis=0, weights=held_out.weights)
    return dict(zip(names, means.tolist(), strict=True))


def _candidate_priors(names: Sequence[str], n_classes: int) -> _CandidatePriors:
    """Look up the handicaps of the candidates; an unknown one has none."""
    members = [MEMBERS.get(name, Member(name)) for name in names]
    return _CandidatePriors(
        handicaps=np.array([member.nats(n_classes) for member in members]),
        near=np.array([member.near for member in members]),
    )


def _drop_changing_predictions(
    names: Sequence[str],
    maps: dict[str, Map],
    mixture: Float,
    held_out: _HeldOutProbabilities,
    priors: _CandidatePriors,
) -> Float:
    """Compute the weights again without the maps that can change a prediction.

    Parameters
    ----------
    names : sequence of str
        Names of the candidates.

    maps : dict
        Maps of the candidates that have a weight.

    mixture : array of shape (n_candidates,)
        Weights of all candidates, returned if every map preserves the predictions.

    held_out : _HeldOutProbabilities
        Out-of-fold probabilities.

    priors : _CandidatePriors
        Handicaps of the candidates.

    Returns
    -------
    array of shape (n_candidates,)
    """
    if all(fitted.preserves_accuracy for fitted in maps.values()):
        return mixture
    preserves = np.array([name in maps and maps[name].preserves_accuracy for name in names])
    if not preserves.any():
        raise InputError(
            "no candidate keeps every prediction; add one that does, such as 'temperature'."
        )
    mixture = np.zeros(len(names))
    mixture[preserves] = weight_candidates(
        held_out.table[:, preserves],
        held_out.weights,
        priors.handicaps[preserves],
        priors.near[preserves],
    )
    return mixture


def _hold_out(
    sample: LabelledRows,
    fit: Callable[[Rows, Codes, Weights], dict[str, Map]],
    n_splits: int,
    random_state: int,
) -> _HeldOutProbabilities:
    """Compute the out-of-fold probabilities of the true classes.

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
    _HeldOutProbabilities
        Rows to which every candidate gives probability zero are omitted, because they do not
        distinguish the candidates.
    """
    n_rows = len(sample.labels)
    n_entry_rows = _MAX_HELD_OUT_ENTRIES // sample.rows.n_classes
    n_sufficient = min(_MAX_HELD_OUT_ROWS, max(_MIN_HELD_OUT_ROWS, n_entry_rows))
    n_used_folds = min(n_splits, -(-n_sufficient * n_splits // n_rows))
    fold_of_row = random_folds(n_rows, n_splits, random_state)
    fold_tables = []
    fold_rows = []
    for fold in range(n_used_folds):
        training = _copy_if_small(sample.where(fold_of_row != fold))
        test = _copy_if_small(sample.where(fold_of_row == fold))
        with warnings.catch_warnings():
            # The final fit on all rows issues the warnings.
            warnings.simplefilter("ignore", MetacalWarning)
            maps = fit(training.rows, training.labels, training.weights)
        columns = [
            test.rows.collect(partial(_true_class_probability, fitted), test.labels)
            for fitted in maps.values()
        ]
        fold_tables.append(np.stack(columns, axis=1))
        fold_rows.append(np.flatnonzero(fold_of_row == fold))
    table = np.concatenate(fold_tables)
    is_informative = table.max(axis=1) > 0.0
    positions = np.concatenate(fold_rows)[is_informative]
    weights = None if sample.weights is None else sample.weights[positions]
    return _HeldOutProbabilities(table[is_informative], weights)


def _true_class_probability(fitted: Map, block: NDArray[Any], labels: Codes) -> Float:
    """Compute the probability of the true class of each row."""
    probabilities = fitted(block)
    return np.asarray(probabilities[np.arange(len(block)), labels], dtype=np.float64)


def _copy_if_small(sample: LabelledRows) -> LabelledRows:
    """Copy the rows into a table of their own if it is small, because they are read often."""
    rows = sample.rows
    if len(rows) * rows.n_classes > _MAX_COPIED_ENTRIES:
        return sample
    return replace(sample, rows=Rows(rows.gathered(), executor=rows.executor))


def weight_candidates(
    probabilities: Float, weights: Weights, handicaps: Float, near: Flags
) -> Float:
    """Compute the weights of the candidates; those below 3% become zero.

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

    near : array of bool of shape (n_candidates,)
        Which candidates are near temperature scaling.

    Returns
    -------
    array of shape (n_candidates,)
        Weights, which sum to one.
    """
    row_weights = np.ones(len(probabilities)) if weights is None else weights
    mixture = np.zeros(len(near))
    if near.any():
        is_informative = probabilities[:, near].max(axis=1) > 0.0
        near_table = probabilities[is_informative][:, near]
        mixture[near] = _mixture_with_prior(
            near_table, row_weights[is_informative], _PRIOR_ROWS_NEAR
        )
    if not near.all():
        penalised_table = probabilities * np.exp(-handicaps / len(probabilities))
        free_mixture = _mixture_with_prior(penalised_table, row_weights, _PRIOR_ROWS)
        with np.errstate(divide="ignore"):
            row_gains = np.log(probabilities @ free_mixture) - np.log(probabilities @ mixture)
        mean_gain = float(np.average(row_gains, weights=row_weights))
        gain = mean_gain * len(row_gains) - float(handicaps @ free_mixture)
        free_share = float(expit(gain - _PRIOR_LOG_ODDS))
        mixture = free_share * free_mixture + (1.0 - free_share) * mixture
    mixture[mixture < min(_MIN_WEIGHT, mixture.max())] = 0.0
    return np.asarray(mixture / mixture.sum())


def _mixture_with_prior(table: Float, row_weights: Float, prior_rows: float) -> Float:
    """Compute the maximum-likelihood mixture with prior rows on which one candidate is correct."""
    n_candidates = table.shape[1]
    prior_weights = np.full(n_candidates, prior_rows * row_weights.mean())
    extended_table = np.concatenate([table, np.eye(n_candidates)])
    return fit_mixture_weights(extended_table, np.append(row_weights, prior_weights))
