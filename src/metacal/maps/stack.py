"""Stacking: a mixture of fitted maps, Σ_m w_m map_m(x), the weights from rows that the members had not seen.

Wolpert, "Stacked generalization", Neural Networks 1992; for densities and by likelihood: Smyth & Wolpert, "Linearly
combining density estimators via stacking", Machine Learning 1999. To choose one member by cross-validation is to bet on
it; a mixture hedges, and since its members err differently it is often better than each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.maps.fitting.crossvalidation import random_folds, said_once
from metacal.maps.fitting.mixture import likeliest_mixture
from metacal.maps.map import Map
from metacal.maps.members import MEMBERS, default_members, fit_members
from metacal.maps.temperature import usable_rows
from metacal.rows import Rows

Float = NDArray[np.float64]
Labels = NDArray[np.intp]
Weights = NDArray[np.float64] | None

#: Members with less than this are left out; the prior of each counts so many rows.
_LEAST, _PRIOR = 0.03, 0.2
#: Rows held out that are enough to weigh a dozen members: so many, or fewer of as many entries, but not too few.
_ENOUGH, _ENOUGH_ELEMENTS, _FEWEST = 10_000, 1 << 19, 3_000
#: Elements of the rows of a fold that are gathered into a table of their own.
_GATHERED = 1 << 25


#: fit(names, rows, labels, weights) -> the fitted maps of these names.
FitMembers = Callable[[Sequence[str], Rows, Labels, Weights], dict[str, Map]]


@dataclass(frozen=True, eq=False)
class StackMap(Map):
    """Σ_m w_m map_m(x), with weights that sum to one.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> StackMap((TemperatureMap(1.0), TemperatureMap(0.5)), (0.5, 0.5))(np.array([[2.0, 0.0]])).round(3)
    array([[0.806, 0.194]])
    """

    members: tuple[Map, ...]
    weights: tuple[float, ...]

    @property
    def preserves_accuracy(self) -> bool:
        """Whether no member ever changes a row's largest class: then it is the largest in the mixture, too."""
        return all(member.preserves_accuracy for member in self.members)

    @property
    def n_classes(self) -> int | None:
        """The number of classes the members were fitted for; None when they take any."""
        return next((member.n_classes for member in self.members if member.n_classes is not None), None)

    def check(self) -> None:
        """Raise unless the fields make a map."""
        if not self.members or not all(isinstance(member, Map) for member in self.members):
            raise InputError("members must be fitted maps, at least one.")
        if len(self.weights) != len(self.members) or not all(0.0 <= w <= 1.0 for w in self.weights):
            raise InputError(f"weights must be one number between 0 and 1 for each member, got {self.weights!r}.")
        if abs(sum(self.weights) - 1.0) > 1e-9:
            raise InputError(f"weights must sum to one, got {sum(self.weights)!r}.")
        if len({member.n_classes for member in self.members} - {None}) > 1:
            raise InputError("the members were fitted on different numbers of classes.")

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        block = block.copy() if np.may_share_memory(block, out) else block
        own, mixed = np.empty(block.shape, dtype=out.dtype), np.zeros(block.shape)
        for member, weight in zip(self.members, self.weights):
            member.write(block, own)
            mixed += weight * own
        np.copyto(out, mixed, casting="same_kind")
        if self.preserves_accuracy:
            kernels.keep_winner(kernels.predicted(block), out)


@dataclass(frozen=True)
class Stacked:
    """A stack, and how it came about: the members' names in its order, and the held-out loss of every candidate."""

    map: StackMap
    names: tuple[str, ...]
    losses: Mapping[str, float]


def fit_stack(
    rows: Rows,
    labels: Labels,
    weights: Weights = None,
    *,
    candidates: tuple[str, ...] | None = None,
    keep_predictions: bool = False,
    n_splits: int = 5,
    random_state: int = 0,
) -> StackMap:
    """Fit a stack of the candidates, by name: `MEMBERS` or methods; see `stack`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(0.0, 2.0, (400, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> fitted = fit_stack(Rows(2.0 * logits), labels, candidates=("temperature", "irm"))
    >>> bool(abs(sum(fitted.weights) - 1.0) < 1e-9), fitted.preserves_accuracy
    (True, True)
    """
    names = default_members(rows.n_classes) if candidates is None else tuple(candidates)
    return stack(rows, labels, weights, fit_members, names, keep_predictions, n_splits, random_state).map


@said_once()
def stack(
    rows: Rows,
    labels: Labels,
    weights: Weights,
    fit: FitMembers,
    names: Sequence[str],
    keep_predictions: bool,
    n_splits: int,
    random_state: int,
) -> Stacked:
    """Every candidate is fitted on k - 1 folds and gives the true classes of the k-th a probability, p_im.

    The weights on the simplex make Σ_i log Σ_m w_m p_im large (see `_worth_keeping`). Those with less than
    3% are left out and the rest weighted anew; who is left is fitted on all rows. With `keep_predictions` only
    candidates that keep every prediction take part. The folds are not stratified (see `random_folds`).
    """
    if keep_predictions:
        names = [name for name in names if name not in MEMBERS or MEMBERS[name].keeps_predictions]
    if not names:
        raise InputError("there is no candidate to stack; give at least one calibrator.")
    rows, labels, weights = usable_rows(rows, labels, weights)
    n_splits = min(n_splits, len(labels))
    losses: dict[str, float] = {}
    if len(names) > 1 and n_splits > 1:
        weigh = partial(fit_members, rough=True) if fit is fit_members else fit
        chances, seen = _held_out(rows, labels, weights, partial(weigh, names), n_splits, random_state)
        counts = None if weights is None else weights[seen]
        with np.errstate(divide="ignore"):
            losses = dict(zip(names, np.average(-np.log(chances), axis=0, weights=counts).tolist()))
    else:
        names, chances, counts = names[:1], np.ones((1, 1)), None
    handicaps = np.array([MEMBERS[name].nats(rows.n_classes) if name in MEMBERS else 0.0 for name in names])
    kept, mixture = _worth_keeping(chances, counts, handicaps)
    fitted = fit([names[i] for i in kept], rows, labels, weights)
    if keep_predictions and not all(found.preserves_accuracy for found in fitted.values()):
        kept = np.array([i for i in kept if fitted[names[i]].preserves_accuracy], dtype=np.intp)
        if not len(kept):
            raise InputError("no candidate keeps every prediction; add one that does, such as 'temperature'.")
        kept, mixture = _worth_keeping(chances, counts, handicaps, kept)
    chosen = tuple(names[i] for i in kept)
    return Stacked(StackMap(tuple(fitted[name] for name in chosen), tuple(mixture.tolist())), chosen, losses)


def _held_out(
    rows: Rows,
    labels: Labels,
    weights: Weights,
    fit: Callable[[Rows, Labels, Weights], dict[str, Map]],
    n_splits: int,
    random_state: int,
) -> tuple[Float, NDArray[np.intp]]:
    """The probability that each candidate, fitted without it, gives a row's true class; and which rows these are."""
    fold = random_folds(len(labels), n_splits, random_state)
    parts, order = [], []
    # Of a large table some of the folds are enough: the weights are few.
    enough = min(_ENOUGH, max(_FEWEST, _ENOUGH_ELEMENTS // rows.n_classes))
    for held in range(min(n_splits, -(-enough * n_splits // len(labels)))):
        used, test = fold != held, fold == held
        train, new = _gathered(rows, used), _gathered(rows, test)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MetacalWarning)  # what is wrong with all rows is said of all rows
            fitted = fit(train, labels[used], None if weights is None else weights[used])
        parts.append(np.stack([new.collect(partial(_own, found), labels[test]) for found in fitted.values()], axis=1))
        order.append(np.flatnonzero(test))
    chances, at = np.concatenate(parts), np.concatenate(order)
    possible = chances.max(axis=1) > 0.0  # a row that every candidate calls impossible tells them apart no more
    return chances[possible], at[possible]


def _own(fitted: Map, block: NDArray[Any], labels: Labels) -> Float:
    return np.asarray(fitted(block)[np.arange(len(block)), labels], dtype=np.float64)


def _gathered(rows: Rows, used: NDArray[np.bool_]) -> Rows:
    """Some of the rows, as a table of their own where that is small: they are gone through many times."""
    chosen = rows.where(used)
    if len(chosen) * rows.n_classes > _GATHERED:
        return chosen
    return Rows(chosen.gathered(), executor=rows.executor)


def _worth_keeping(
    chances: Float, weights: Weights, handicaps: Float, kept: NDArray[np.intp] | None = None
) -> tuple[NDArray[np.intp], Float]:
    """The candidates with at least 3%, and their weights when no other takes part.

    Two things keep the weights from following a few rows. A candidate with a handicap of h must make the held-out rows
    h nats likelier before it is as good as one without: its chances are divided by e^(h/n). And a prior of a fifth of a
    row for each, on which that candidate alone is right, hedges among those that are alike (a Dirichlet prior with
    exponents of 1.2).
    """
    kept = np.arange(chances.shape[1]) if kept is None else kept
    counts = np.ones(len(chances)) if weights is None else weights
    discounted = chances * np.exp(-handicaps / len(chances))
    while True:
        mixture = likeliest_mixture(
            np.concatenate([discounted[:, kept], np.eye(len(kept))]),
            np.append(counts, np.full(len(kept), _PRIOR * counts.mean())),
        )
        enough = mixture >= _LEAST
        if enough.all():
            return kept, mixture / mixture.sum()
        kept = kept[enough]
