"""Learned ranking scores: how likely the prediction of a row is wrong, learned from rows of their
own.

A fitted ranker is a score as `MetaCal` takes it: a function of a block of logits that returns one
number per row, higher = less sure. A certificate needs a score that has not seen the labels of the
rows it is certified on, so **rows that trained a ranker must not certify**: `split_rows` parts a
table once, before anything is fitted.

The features of a row are numbers that a row of any class has: entropy, 1 - max p and its logarithm,
the sorted top logits as gaps to the largest (the first gap is the margin), the largest logit and
log Σ e^x. The last two are not invariant to a constant added to a row, which is what they are good
for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.formulas import Flags, Float
from metacal.kernels.grid import ABSOLUTE
from metacal.rows import Rows, validate
from metacal.rows.arrays import fraction
from metacal.rows.draws import generator

#: Gaps beyond this many log-odds count as this many, and so do those to masked classes.
LARGEST_GAP = 100.0
#: Standardised features are cut off here.
FARTHEST = 10.0
_NEWTON_STEPS = 50

LogitsAndLabels = tuple[NDArray[Any], NDArray[Any]]


def split_rows(
    logits: ArrayLike,
    labels: ArrayLike,
    share: float = 0.2,
    random_state: int | np.random.Generator = 0,
) -> tuple[LogitsAndLabels, LogitsAndLabels]:
    """Part the rows at random: `share` of them to train a ranker, the others to certify and
    calibrate.

    Examples
    --------
    >>> (train_x, train_y), (rest_x, rest_y) = split_rows(np.zeros((10, 3)), np.arange(10) % 3, share=0.2)
    >>> train_x.shape, rest_y.shape
    ((2, 3), (8,))
    """
    table, codes = np.asarray(logits), np.asarray(labels)
    if len(table) != len(codes) or len(table) < 2:
        raise InputError(
            f"split_rows needs at least 2 rows and one label per row; got {len(table)} and"
            f" {len(codes)}."
        )
    n_train = min(max(1, round(fraction("share", share) * len(table))), len(table) - 1)
    order = generator(random_state).permutation(len(table))
    train, rest = order[:n_train], order[n_train:]
    return (table[train], codes[train]), (table[rest], codes[rest])


def row_features(block: NDArray[Any], n_top: int = 5) -> Float:
    """The features of each row, one column each, finite for every legal row.

    Examples
    --------
    >>> row_features(np.array([[2.0, 0.0, -np.inf]]), n_top=3).round(2)
    array([[   0.37,    0.12,   -2.13,   -2.  , -100.  ,    2.  ,    2.13]])
    """
    doubt = kernels.doubt(block)
    n_top = min(n_top, block.shape[1])
    leading = np.partition(block, block.shape[1] - n_top, axis=1)[:, -n_top:].astype(np.float64)
    leading.sort(axis=1)
    gaps = np.maximum(leading[:, -2::-1] - leading[:, -1:], -LARGEST_GAP)
    invariant = kernels.entropy(block), doubt, np.log(np.maximum(doubt, np.exp(-LARGEST_GAP))), gaps
    return np.column_stack([*invariant, leading[:, -1], -kernels.free_energy(block)])


@dataclass(eq=False)
class Ranker(ABC):
    """A score that is linear in standardised features of a row once it is fitted: a few numbers,
    which a file can hold.

    A copy by `sklearn.base.clone` keeps what was learned: inside a `MetaCal` that is cloned
    (cross-validation, a grid search) a ranker is a fixed score, trained on rows that nobody else
    sees.

    Parameters
    ----------
    n_top : int
        How many of the largest logits are features.
    input : "logits" or "probabilities"
        What the columns are that `fit` reads; as a score it is always given logits.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    penalty : float
        Half of it times the squared coefficients (of standardised features) is added to the summed
        loss.
    """

    n_top: int = 5
    input: str = "logits"
    classes: Sequence[Any] | None = None
    penalty: float = 1.0

    n_classes_ = 0
    #: A sum of terms of either sign: its error is absolute, and so is the grid it is rounded to.
    grid = ABSOLUTE

    @property
    def __name__(self) -> str:
        """How a certificate names the score."""
        return type(self).__qualname__

    def __sklearn_clone__(self) -> Self:
        return deepcopy(self)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn which predictions are wrong, from a table of logits and the true labels."""
        if (
            isinstance(self.n_top, bool)
            or not isinstance(self.n_top, int | np.integer)
            or self.n_top < 2
        ):
            raise InputError(f"n_top must be a whole number of at least 2, got {self.n_top!r}.")
        table = validate.logits_from(X, self.input)
        codes = validate.label_codes(
            y, len(table), validate.class_list(self.classes, table.shape[1])
        )
        wrong = table.argmax(axis=1) != codes
        if wrong.all() or not wrong.any():
            raise InputError(
                f"a ranker learns to tell wrong predictions from right ones; {int(wrong.sum())} of"
                f" {len(wrong)} are wrong. Bring more rows, or use score='entropy', which needs no"
                " training."
            )
        features = Rows(table).collect(partial(row_features, n_top=self.n_top))
        self.means_ = features.mean(axis=0)
        spread = features.std(axis=0)
        self.scales_ = np.where(spread > 1e-9, spread, 1.0)
        ridge = _positive("penalty", self.penalty) / len(wrong)
        self.coefficients_ = self._learned(self._standard(features), wrong, ridge)
        self.n_classes_ = table.shape[1]
        return self

    def __call__(self, block: NDArray[Any]) -> Float:
        """One number per row, higher = less sure."""
        if not self.n_classes_:
            raise InputError(
                f"this {type(self).__name__} has not been trained; call fit(logits, labels) first."
            )
        if block.shape[1] != self.n_classes_:
            raise InputError(
                f"this {type(self).__name__} was trained on {self.n_classes_} classes, the table"
                f" has {block.shape[1]}."
            )
        return np.asarray(self._standard(row_features(block, self.n_top)) @ self.coefficients_)

    def _standard(self, features: Float) -> Float:
        return np.asarray(np.clip((features - self.means_) / self.scales_, -FARTHEST, FARTHEST))

    @abstractmethod
    def _learned(self, features: Float, wrong: Flags, ridge: float) -> Float:
        """The coefficients, by features of the rows and which of them are wrong; `ridge` is the
        penalty by row.
        """

    def restored(self, n_classes: int, means: Float, scales: Float, coefficients: Float) -> Self:
        """Return this ranker with what an equal one has learned.

        Examples
        --------
        >>> ranker = LogisticRanker(n_top=2).restored(2, np.zeros(6), np.ones(6), np.eye(6)[0])
        >>> ranker(np.array([[0.0, 0.0], [4.0, 0.0]])).round(3)  # the first feature is the entropy
        array([0.693, 0.09 ])
        """
        size = 4 + min(self.n_top, n_classes)
        _positive("penalty", self.penalty)
        if self.n_top < 2 or n_classes < 2:
            raise InputError(
                f"n_top and n_classes must be at least 2, got {self.n_top} and {n_classes}."
            )
        for name, numbers in (("means", means), ("scales", scales), ("coefficients", coefficients)):
            if numbers.shape != (size,) or not np.isfinite(numbers).all():
                raise InputError(
                    f"{name} must be {size} finite numbers, one per feature; got shape"
                    f" {numbers.shape}."
                )
        if not (scales > 0).all():
            raise InputError("scales must be positive.")
        self.n_classes_, self.means_, self.scales_, self.coefficients_ = (
            n_classes,
            means,
            scales,
            coefficients,
        )
        return self


@dataclass(eq=False)
class LogisticRanker(Ranker):
    """The log-odds of being wrong, by logistic regression on the features of a row.

    Parameters
    ----------
    penalty : float
        Half of it times the squared coefficients (of standardised features) is added to the summed
        loss.
    n_top, input, classes
        See `Ranker`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> (train_x, train_y), (rest_x, rest_y) = split_rows(data.logits, data.labels, share=0.1)
    >>> ranker = LogisticRanker().fit(train_x, train_y)
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97), score=ranker).fit(rest_x, rest_y)
    >>> cal.certificate_.score
    'LogisticRanker'
    """

    def _learned(self, features: Float, wrong: Flags, ridge: float) -> Float:
        sides = np.where(wrong, 1.0, -1.0)
        points = np.column_stack([features, np.ones(len(wrong))]) * sides[:, None]
        # The intercept is not penalised, and does not change the ranking.
        return _logistic_through_origin(points, np.append(np.full(features.shape[1], ridge), 0.0))[
            :-1
        ]


@dataclass(eq=False)
class PairwiseRanker(Ranker):
    """A linear score that puts wrong predictions above right ones, pair by pair.

    Minimises the mean of log(1 + e^{s_right - s_wrong}) over pairs of a wrong and a right row (the
    loss of RankNet, Burges et al., ICML 2005), plus a ridge, by Newton's method. Every pair is used
    while there are at most `max_pairs`; beyond that as many are drawn with `random_state`.

    Parameters
    ----------
    penalty : float
        Half of it times the squared coefficients (of standardised features) is added to the mean
        loss times the rows.
    max_pairs : int
        The most pairs to learn from.
    random_state : int
        Which pairs, when there are more.
    n_top, input, classes
        See `Ranker`.

    Examples
    --------
    >>> logits = np.array([[3.0, 0.0], [2.0, 0.0], [0.1, 0.0], [0.3, 0.0]])
    >>> score = PairwiseRanker().fit(logits, [0, 0, 1, 1])(logits)
    >>> bool(score[2:].min() > score[:2].max())
    True
    """

    max_pairs: int = 100_000
    random_state: int = 0

    def _learned(self, features: Float, wrong: Flags, ridge: float) -> Float:
        pairs = self._pairs(features[wrong], features[~wrong])
        return _logistic_through_origin(pairs, np.full(features.shape[1], ridge))

    def _pairs(self, doubtful: Float, sure: Float) -> Float:
        """Differences of features, wrong minus right."""
        if len(doubtful) * len(sure) <= self.max_pairs:
            return np.asarray(
                (doubtful[:, None, :] - sure[None, :, :]).reshape(-1, doubtful.shape[1])
            )
        random = generator(self.random_state)
        picks = (
            random.integers(len(doubtful), size=self.max_pairs),
            random.integers(len(sure), size=self.max_pairs),
        )
        return np.asarray(doubtful[picks[0]] - sure[picks[1]])


def _positive(name: str, value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | np.integer | np.floating)
        or not value > 0
    ):
        raise InputError(f"{name} must be a positive number, got {value!r}.")
    return float(value)


def _logistic_through_origin(points: Float, ridge: Float) -> Float:
    """The w that minimises mean log(1 + e^{-w·point}) + ½ Σ ridge_j w_j², by Newton steps halved
    until the loss falls.

    Examples
    --------
    >>> _logistic_through_origin(np.array([[1.0], [1.0], [-1.0]]), np.zeros(1)).round(6)  # log-odds of 2 to 1
    array([0.693147])
    """

    def loss(w: Float) -> float:
        return float(np.logaddexp(0.0, -(points @ w)).mean() + 0.5 * (ridge * w) @ w)

    w = np.zeros(points.shape[1])
    value = loss(w)
    for _ in range(_NEWTON_STEPS):
        chance = 0.5 - 0.5 * np.tanh(0.5 * (points @ w))  # σ(-w·point)
        gradient = ridge * w - points.T @ chance / len(points)
        curvature = (points * (chance * (1.0 - chance))[:, None]).T @ points / len(
            points
        ) + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        length = 1.0
        while (lower := loss(w - length * step)) > value and length > 1e-8:
            length *= 0.5
        w, value = w - length * step, min(lower, value)
        if float(step @ gradient) < 1e-12:
            break
    return w
