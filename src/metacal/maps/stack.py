"""Stacking: a mixture of fitted maps, Σ_m w_m map_m(x), the weights from rows that the members had
not seen.

Wolpert, "Stacked generalization", Neural Networks 1992; for densities and by likelihood: Smyth &
Wolpert, "Linearly combining density estimators via stacking", Machine Learning 1999. To choose one
member by cross-validation is to bet on it; a mixture hedges, and since its members err differently
it is often better than each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.formulas import Codes, Flags, Float
from metacal.formulas import parts as formulas
from metacal.maps.fitting.crossvalidation import random_folds, said_once
from metacal.maps.fitting.mixture import likeliest_mixture
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import CombinedMap, Map
from metacal.maps.members import MEMBERS, Member, default_members, fit_members
from metacal.rows import Rows

#: Members with less than this are left out. The prior of each counts so many rows: among all, and
#: among those near temperature scaling. What the mixture of all must gain, in nats, to be as
#: probable as that of those near.
_LEAST, _PRIOR, _PRIOR_NEAR, _ODDS = 0.03, 0.05, 1.0, 3.0
#: Folds, and those of no more rows than this, where what a tenth more of them would teach a member
#: counts most.
_FOLDS, _FOLDS_OF_FEW, _FEW = 5, 10, 1_000
#: Of more classes than this, and no more rows than are held out of many, so many: a fit costs as
#: much with few rows.
_MANY_CLASSES, _FOLDS_OF_MANY = 300, 3
#: Rows held out that are enough to weigh a dozen members: so many, or fewer of as many entries, but
#: not too few.
_ENOUGH, _ENOUGH_ELEMENTS, _FEWEST = 10_000, 1 << 18, 2_000
#: Elements of the rows of a fold that are gathered into a table of their own.
_GATHERED = 1 << 25


@dataclass(frozen=True, eq=False)
class StackMap(CombinedMap):
    """Σ_m w_m map_m(x), with weights that sum to one.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> StackMap((TemperatureMap(1.0), TemperatureMap(0.5)), (0.5, 0.5))(np.array([[2.0, 0.0]])).round(3)
    array([[0.806, 0.194]])
    """

    members: tuple[Map, ...]
    weights: tuple[float, ...]

    formula = staticmethod(formulas.stack)

    def check(self) -> None:
        """Raise unless the fields make a map."""
        if not self.members or not all(isinstance(member, Map) for member in self.members):
            raise InputError("members must be fitted maps, at least one.")
        if len(self.weights) != len(self.members) or not all(0.0 <= w <= 1.0 for w in self.weights):
            raise InputError(
                f"weights must be one number between 0 and 1 for each member, got {self.weights!r}."
            )
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
    """Fit a stack of the candidates, by name: `MEMBERS` or methods; see `stack`."""
    names = default_members(rows.n_classes) if candidates is None else tuple(candidates)
    return stack(
        rows, labels, weights, fit_members, names, keep_predictions, n_splits, random_state
    )[0]


@said_once()
def stack(
    rows: Rows,
    labels: Codes,
    weights: Weights,
    fit: Callable[[Sequence[str], Rows, Codes, Weights], dict[str, Map]],
    names: Sequence[str],
    keep_predictions: bool,
    n_splits: int | None,
    random_state: int,
) -> tuple[StackMap, tuple[str, ...], dict[str, float]]:
    """A stack, the names of its members, and the held-out loss of every candidate; `fit` fits those
    of some names.

    Every candidate is fitted on k - 1 folds and gives the true classes of the k-th a probability,
    p_im.

    The weights on the simplex make Σ_i log Σ_m w_m p_im large (see `likeliest`). Those with less
    than 3% are left out; who is left is fitted on all rows. With `keep_predictions` only candidates
    that keep every prediction take part. Without a number of folds there are 5, of up to 1,000 rows
    of 3 to 300 classes 10, of up to 2,000 rows of more 3. They are not stratified (see
    `random_folds`).
    """
    if keep_predictions:
        names = [name for name in names if name not in MEMBERS or MEMBERS[name].keeps_predictions]
    if not names:
        raise InputError("there is no candidate to stack; give at least one calibrator.")
    rows, labels, weights = sample = Labelled(rows, labels, weights).usable()
    # Of two classes the candidates differ little.
    usual = _FOLDS_OF_FEW if len(labels) <= _FEW and rows.n_classes > 2 else _FOLDS
    if rows.n_classes > _MANY_CLASSES and len(labels) <= _FEWEST:
        usual = _FOLDS_OF_MANY
    n_splits = min(n_splits or usual, len(labels))
    losses: dict[str, float] = {}
    if len(names) > 1 and n_splits > 1:
        part = partial(fit_members, rough=True) if fit is fit_members else fit
        chances, seen = _held_out(sample, partial(part, names), n_splits, random_state)
        counts = None if weights is None else weights[seen]
        with np.errstate(divide="ignore"):
            losses = dict(zip(names, np.average(-np.log(chances), axis=0, weights=counts).tolist()))
    else:
        names, chances, counts = names[:1], np.ones((1, 1)), None
    known = [MEMBERS.get(name, Member(name)) for name in names]
    handicaps, near = (
        np.array([one.nats(rows.n_classes) for one in known]),
        np.array([one.near for one in known]),
    )
    mixture = likeliest(chances, counts, handicaps, near)
    fitted = fit([name for name, weight in zip(names, mixture) if weight], rows, labels, weights)
    if keep_predictions and not all(found.preserves_accuracy for found in fitted.values()):
        keeps = np.array([name in fitted and fitted[name].preserves_accuracy for name in names])
        if not keeps.any():
            raise InputError(
                "no candidate keeps every prediction; add one that does, such as 'temperature'."
            )
        mixture = np.zeros(len(names))
        mixture[keeps] = likeliest(chances[:, keeps], counts, handicaps[keeps], near[keeps])
    chosen = {name: weight for name, weight in zip(names, mixture.tolist()) if weight}
    return (
        StackMap(tuple(fitted[name] for name in chosen), tuple(chosen.values())),
        tuple(chosen),
        losses,
    )


def _held_out(
    sample: Labelled,
    fit: Callable[[Rows, Codes, Weights], dict[str, Map]],
    n_splits: int,
    random_state: int,
) -> tuple[Float, Codes]:
    """The probability that each candidate, fitted without it, gives a row's true class; and which
    rows these are.
    """
    n, n_classes = len(sample.labels), sample.rows.n_classes
    fold = random_folds(n, n_splits, random_state)
    parts, order = [], []
    # Of a large table some of the folds are enough: the weights are few.
    enough = min(_ENOUGH, max(_FEWEST, _ENOUGH_ELEMENTS // n_classes))
    for held in range(min(n_splits, -(-enough * n_splits // n))):
        train, new = (_gathered(sample.where(used)) for used in (fold != held, fold == held))
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", MetacalWarning
            )  # what is wrong with all rows is said of all rows
            fitted = fit(*train)
        own = [new.rows.collect(partial(_own, found), new.labels) for found in fitted.values()]
        parts.append(np.stack(own, axis=1))
        order.append(np.flatnonzero(fold == held))
    chances, at = np.concatenate(parts), np.concatenate(order)
    possible = (
        chances.max(axis=1) > 0.0
    )  # a row that every candidate calls impossible tells them apart no more
    return chances[possible], at[possible]


def _own(fitted: Map, block: NDArray[Any], labels: Codes) -> Float:
    return np.asarray(fitted(block)[np.arange(len(block)), labels], dtype=np.float64)


def _gathered(sample: Labelled) -> Labelled:
    """The rows as a table of their own where that is small: they are gone through many times."""
    rows = sample.rows
    if len(rows) * rows.n_classes > _GATHERED:
        return sample
    return sample._replace(rows=Rows(rows.gathered(), executor=rows.executor))


def likeliest(chances: Float, counts: Weights, handicaps: Float, near: Flags) -> Float:
    """The weights of candidates with these handicaps, some near temperature scaling; those below 3%
    are left out.

    Two mixtures are weighed against each other. One is of the candidates that differ little from
    temperature scaling, each with a prior of a row on which it alone is right (a Dirichlet prior
    with exponents of 2): of few rows it is hard to do better. The other is of all, hardly held; a
    candidate with a handicap of h must make the held-out rows h nats likelier before it is as good
    as one without, so its chances are divided by e^(h/n). The second has the share of the answer
    that Bayes' rule gives it when it is e³ times less probable beforehand: σ(gain in nats - 3).
    """
    counts = np.ones(len(chances)) if counts is None else counts
    mixture = np.zeros(len(near))
    if near.any():
        possible = chances[:, near].max(axis=1) > 0.0
        mixture[near] = _likeliest(chances[possible][:, near], counts[possible], _PRIOR_NEAR)
    if not near.all():
        free = _likeliest(chances * np.exp(-handicaps / len(chances)), counts, _PRIOR)
        with np.errstate(divide="ignore"):
            gains = np.log(chances @ free) - np.log(chances @ mixture)
        gain = float(np.average(gains, weights=counts)) * len(gains) - float(handicaps @ free)
        share = float(expit(gain - _ODDS))
        mixture = share * free + (1.0 - share) * mixture
    mixture[mixture < min(_LEAST, mixture.max())] = 0.0
    return np.asarray(mixture / mixture.sum())


def _likeliest(chances: Float, counts: Float, prior: float) -> Float:
    """The likeliest mixture, with a prior of so many rows for each candidate, on which it alone is
    right.
    """
    own = np.full(chances.shape[1], prior * counts.mean())
    return likeliest_mixture(np.concatenate([chances, np.eye(len(own))]), np.append(counts, own))
