"""Learned ranking scores: the probability that a prediction is incorrect.

A fitted ranker is a score function that `MetaCal` accepts: it maps a block of logits to one
number per row, higher for less certain rows. A certificate requires a score that has not used the
labels of the rows it is certified on, so **rows that trained a ranker must not certify**.
`split_rows` splits a table once, before anything is fitted.

The features of a row do not depend on the order of the classes: entropy, 1 - max p and its
logarithm, the largest logits as gaps to the largest one (the first gap is the margin), the
largest logit, and log Σ e^x. The last two change with a constant added to a row, which makes them
informative.
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
from metacal.errors import (
    ClassMismatchError,
    InputError,
    OneOutcomeError,
    TooFewRowsError,
    UnfittedError,
)
from metacal.formulas import Flags, Float
from metacal.kernels.grid import ABSOLUTE_GRID
from metacal.rows import Rows, validate
from metacal.rows.arrays import check_fraction
from metacal.rows.draws import make_generator

#: Largest absolute gap to the largest logit, also used as the gap of a masked class.
MAX_LOGIT_GAP = 100.0
#: Largest size of a standardised feature; larger ones are clipped.
MAX_STANDARDISED_FEATURE = 10.0
#: Standard deviation below which a feature counts as constant.
_MIN_DEVIATION = 1e-9
_MAX_NEWTON_STEPS = 50
#: Fraction of a Newton step below which the step is not halved again.
_MIN_STEP_FRACTION = 1e-8
#: Squared Newton decrement at which the iteration stops.
_NEWTON_TOLERANCE = 1e-12
#: Number of features of a row besides one feature for each of its largest logits.
_N_OTHER_FEATURES = 4

LogitsAndLabels = tuple[NDArray[Any], NDArray[Any]]


def split_rows(
    logits: ArrayLike,
    labels: ArrayLike,
    share: float = 0.2,
    random_state: int | np.random.Generator = 0,
) -> tuple[LogitsAndLabels, LogitsAndLabels]:
    """Split the rows at random into rows to train a ranker and rows to certify.

    Parameters
    ----------
    logits : array of shape (n_rows, n_classes)
        Logits.

    labels : array of shape (n_rows,)
        True labels.

    share : float, default=0.2
        Fraction of the rows to train on.

    random_state : int or numpy.random.Generator, default=0
        Seed.

    Returns
    -------
    (train_logits, train_labels), (rest_logits, rest_labels)

    Examples
    --------
    >>> logits, labels = np.zeros((10, 3)), np.arange(10) % 3
    >>> (train_x, train_y), (rest_x, rest_y) = split_rows(logits, labels, share=0.2)
    >>> train_x.shape, rest_y.shape
    ((2, 3), (8,))
    """
    logit_table = np.asarray(logits)
    label_column = np.asarray(labels)
    n_rows = len(logit_table)
    if n_rows != len(label_column) or n_rows < 2:
        raise TooFewRowsError(
            f"split_rows requires at least 2 rows and one label per row, but got {n_rows} rows"
            f" and {len(label_column)} labels."
        )
    n_train_requested = round(check_fraction("share", share) * n_rows)
    n_train = min(max(1, n_train_requested), n_rows - 1)
    shuffled_rows = make_generator(random_state).permutation(n_rows)
    train_rows = shuffled_rows[:n_train]
    certify_rows = shuffled_rows[n_train:]
    train_data = (logit_table[train_rows], label_column[train_rows])
    certify_data = (logit_table[certify_rows], label_column[certify_rows])
    return train_data, certify_data


def compute_row_features(block: NDArray[Any], n_top: int = 5) -> Float:
    """Compute the features from which a ranker computes the score of a row.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    n_top : int, default=5
        Number of the largest logits used.

    Returns
    -------
    array of shape (n_rows, n_features)

    Examples
    --------
    >>> compute_row_features(np.array([[2.0, 0.0, -np.inf]]), n_top=3).round(2)
    array([[   0.37,    0.12,   -2.13,   -2.  , -100.  ,    2.  ,    2.13]])
    """
    n_classes = block.shape[1]
    n_top = min(n_top, n_classes)
    error_probability = kernels.one_minus_max_probability(block)
    smallest_error_probability = np.exp(-MAX_LOGIT_GAP)
    log_error_probability = np.log(np.maximum(error_probability, smallest_error_probability))
    partitioned_logits = np.partition(block, n_classes - n_top, axis=1)
    top_logits = partitioned_logits[:, -n_top:].astype(np.float64)
    top_logits.sort(axis=1)
    descending_logits = top_logits[:, ::-1]
    largest_logit = descending_logits[:, 0]
    other_top_logits = descending_logits[:, 1:]
    gaps_to_largest = np.maximum(other_top_logits - largest_logit[:, None], -MAX_LOGIT_GAP)
    return np.column_stack(
        [
            kernels.entropy(block),
            error_probability,
            log_error_probability,
            gaps_to_largest,
            largest_logit,
            -kernels.free_energy(block),
        ]
    )


@dataclass(eq=False)
class Ranker(ABC):
    """Base class of learned scores, which are linear in features of a row.

    A fitted ranker consists of a few numbers, which can be saved. `sklearn.base.clone` copies
    the fitted numbers as well. Inside a `MetaCal` that is cloned (cross-validation, a grid
    search), a ranker is a fixed score that was trained on separate rows.

    Parameters
    ----------
    n_top : int
        Number of the largest logits that are features.
    input : "logits" or "probabilities"
        Kind of table that `fit` receives. As a score, the ranker always receives logits.
    classes : sequence, optional
        Labels in column order. None means 0 to K-1.
    penalty : float
        Half of it times the squared coefficients (of standardised features) is added to the
        summed loss.
    """

    n_top: int = 5
    input: str = "logits"
    classes: Sequence[Any] | None = None
    penalty: float = 1.0

    n_classes_ = 0
    #: Grid with absolute steps, because the score is a sum of terms of either sign.
    grid = ABSOLUTE_GRID

    @property
    def __name__(self) -> str:
        """Name of the score in certificates."""
        return type(self).__qualname__

    def __sklearn_clone__(self) -> Self:
        return deepcopy(self)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn to distinguish incorrect from correct predictions.

        Parameters
        ----------
        X : array of shape (n_rows, n_classes)
            Logits or probabilities, see `input`.

        y : array of shape (n_rows,)
            True labels.

        Returns
        -------
        self
        """
        is_integer = isinstance(self.n_top, int | np.integer) and not isinstance(self.n_top, bool)
        if not is_integer or self.n_top < 2:
            raise InputError(f"n_top must be an integer of at least 2, but got {self.n_top!r}.")
        table = validate.read_logits(X, self.input)
        class_names = validate.check_classes(self.classes, table.shape[1])
        label_codes = validate.encode_labels(y, len(table), class_names)
        is_incorrect = table.argmax(axis=1) != label_codes
        if is_incorrect.all() or not is_incorrect.any():
            raise OneOutcomeError(
                "Training a ranker requires both correct and incorrect predictions, but"
                f" {int(is_incorrect.sum())} of {len(is_incorrect)} are incorrect. Pass more"
                " rows, or use score='entropy', which requires no training."
            )
        features = Rows(table).compute_column(partial(compute_row_features, n_top=self.n_top))
        self.means_ = features.mean(axis=0)
        standard_deviations = features.std(axis=0)
        is_varying = standard_deviations > _MIN_DEVIATION
        self.scales_ = np.where(is_varying, standard_deviations, 1.0)
        penalty_per_row = _check_positive("penalty", self.penalty) / len(is_incorrect)
        standardised_features = self._standardise(features)
        self.coefficients_ = self._fit_coefficients(
            standardised_features, is_incorrect, penalty_per_row
        )
        self.n_classes_ = table.shape[1]
        return self

    def __call__(self, block: NDArray[Any]) -> Float:
        """Compute the score of each row, higher for less certain rows."""
        if not self.n_classes_:
            raise UnfittedError(
                f"This {type(self).__name__} is not trained. Call fit(logits, labels) first."
            )
        if block.shape[1] != self.n_classes_:
            raise ClassMismatchError(
                f"This {type(self).__name__} was trained on {self.n_classes_} classes, but the"
                f" table has {block.shape[1]} columns. Pass logits of the same classes."
            )
        features = self._standardise(compute_row_features(block, self.n_top))
        return np.asarray(features @ self.coefficients_)

    def _standardise(self, features: Float) -> Float:
        """Standardise and clip the features."""
        standardised_features = (features - self.means_) / self.scales_
        return np.asarray(
            np.clip(standardised_features, -MAX_STANDARDISED_FEATURE, MAX_STANDARDISED_FEATURE)
        )

    @abstractmethod
    def _fit_coefficients(
        self, features: Float, is_incorrect: Flags, penalty_per_row: float
    ) -> Float:
        """Fit the coefficients of standardised features.

        Parameters
        ----------
        features : array of shape (n_rows, n_features)
            Standardised features.

        is_incorrect : array of bool of shape (n_rows,)
            Whether the prediction of each row is incorrect.

        penalty_per_row : float
            Factor on half the squared coefficients, which is added to the mean loss.

        Returns
        -------
        array of shape (n_features,)
        """

    def restore(self, n_classes: int, means: Float, scales: Float, coefficients: Float) -> Self:
        """Restore a saved ranker from its fitted numbers.

        Parameters
        ----------
        n_classes : int
            Number of classes.

        means, scales, coefficients : arrays of shape (n_features,)
            Fitted numbers.

        Returns
        -------
        self

        Examples
        --------
        >>> ranker = LogisticRanker(n_top=2).restore(2, np.zeros(6), np.ones(6), np.eye(6)[0])
        >>> ranker(np.array([[0.0, 0.0], [4.0, 0.0]])).round(3)  # the first feature is the entropy
        array([0.693, 0.09 ])
        """
        n_features = _N_OTHER_FEATURES + min(self.n_top, n_classes)
        _check_positive("penalty", self.penalty)
        if self.n_top < 2 or n_classes < 2:
            raise InputError(
                f"n_top and n_classes must be at least 2, but got {self.n_top} and {n_classes}."
            )
        fitted_arrays = {"means": means, "scales": scales, "coefficients": coefficients}
        for name, array in fitted_arrays.items():
            if array.shape != (n_features,) or not np.isfinite(array).all():
                raise InputError(
                    f"{name} must be {n_features} finite numbers, one per feature, but got an"
                    f" array of shape {array.shape}."
                )
        if not (scales > 0).all():
            raise InputError("scales must contain only positive numbers.")
        self.n_classes_ = n_classes
        self.means_ = means
        self.scales_ = scales
        self.coefficients_ = coefficients
        return self


@dataclass(eq=False)
class LogisticRanker(Ranker):
    """Log-odds of an incorrect prediction, by logistic regression.

    Parameters
    ----------
    penalty : float
        Half of it times the squared coefficients (of standardised features) is added to the
        summed loss.
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

    def _fit_coefficients(
        self, features: Float, is_incorrect: Flags, penalty_per_row: float
    ) -> Float:
        outcome_signs = np.where(is_incorrect, 1.0, -1.0)
        design = np.column_stack([features, np.ones(len(is_incorrect))])
        # The intercept is not penalised, because it does not change the ranking.
        penalties = np.append(np.full(features.shape[1], penalty_per_row), 0.0)
        coefficients = _fit_logistic_regression(design * outcome_signs[:, None], penalties)
        return coefficients[:-1]


@dataclass(eq=False)
class PairwiseRanker(Ranker):
    """Linear score that ranks incorrect above correct predictions, pair by pair.

    It minimises the mean of log(1 + e^{s_correct - s_incorrect}) over pairs of an incorrect and a
    correct row (the loss of RankNet, Burges et al., ICML 2005) plus a ridge, by Newton's method.
    All pairs are used if there are at most `max_pairs`. Otherwise that many are drawn with
    `random_state`.

    Parameters
    ----------
    penalty : float
        Half of it times the squared coefficients (of standardised features) is added to the mean
        loss times the rows.
    max_pairs : int
        Largest number of pairs.
    random_state : int
        Seed for drawing pairs.
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

    def _fit_coefficients(
        self, features: Float, is_incorrect: Flags, penalty_per_row: float
    ) -> Float:
        differences = self._compute_pair_differences(
            features[is_incorrect], features[~is_incorrect]
        )
        penalties = np.full(features.shape[1], penalty_per_row)
        return _fit_logistic_regression(differences, penalties)

    def _compute_pair_differences(
        self, incorrect_features: Float, correct_features: Float
    ) -> Float:
        """Compute features of an incorrect row minus those of a correct row, by pair."""
        n_incorrect, n_features = incorrect_features.shape
        n_correct = len(correct_features)
        if n_incorrect * n_correct <= self.max_pairs:
            differences = incorrect_features[:, None, :] - correct_features[None, :, :]
            return np.asarray(differences.reshape(-1, n_features))
        rng = make_generator(self.random_state)
        incorrect_rows = rng.integers(n_incorrect, size=self.max_pairs)
        correct_rows = rng.integers(n_correct, size=self.max_pairs)
        return np.asarray(incorrect_features[incorrect_rows] - correct_features[correct_rows])


def _check_positive(name: str, value: object) -> float:
    """Return a positive number as a float, or raise InputError."""
    is_number = isinstance(value, int | float | np.integer | np.floating)
    is_number = is_number and not isinstance(value, bool)
    if not is_number or not value > 0:  # type: ignore[operator]
        raise InputError(f"{name} must be a positive number, but got {value!r}.")
    return float(value)  # type: ignore[arg-type]


def _fit_logistic_regression(features_times_sign: Float, penalties: Float) -> Float:
    """Fit a logistic regression with an L2 penalty by damped Newton steps.

    The coefficients w minimise mean log(1 + e^{-w·u}) + ½ Σ penalty_j w_j² over the rows u.

    Parameters
    ----------
    features_times_sign : array of shape (n_rows, n_features)
        Features u of each row times the sign of its outcome, +1 or -1. So w·u is the log-odds of
        the observed outcome.

    penalties : array of shape (n_features,)
        Penalty on each coefficient.

    Returns
    -------
    array of shape (n_features,)
        Coefficients w.

    Examples
    --------
    >>> features_times_sign = np.array([[1.0], [1.0], [-1.0]])
    >>> _fit_logistic_regression(features_times_sign, np.zeros(1)).round(6)  # log-odds of 2 to 1
    array([0.693147])
    """

    def compute_loss(coefficients: Float) -> float:
        mean_loss = np.logaddexp(0.0, -(features_times_sign @ coefficients)).mean()
        return float(mean_loss + 0.5 * (penalties * coefficients) @ coefficients)

    n_rows, n_features = features_times_sign.shape
    coefficients = np.zeros(n_features)
    current_loss = compute_loss(coefficients)
    for _ in range(_MAX_NEWTON_STEPS):
        # This is the logistic function of -w·u, in a form that cannot overflow.
        log_odds_of_outcome = features_times_sign @ coefficients
        p_other_outcome = 0.5 - 0.5 * np.tanh(0.5 * log_odds_of_outcome)
        gradient = penalties * coefficients - features_times_sign.T @ p_other_outcome / n_rows
        variance = p_other_outcome * (1.0 - p_other_outcome)
        information = (features_times_sign * variance[:, None]).T @ features_times_sign / n_rows
        hessian = information + np.diag(penalties)
        newton_step = np.linalg.solve(hessian, gradient)
        step_fraction = 1.0
        trial_loss = compute_loss(coefficients - newton_step)
        while trial_loss > current_loss and step_fraction > _MIN_STEP_FRACTION:
            step_fraction *= 0.5
            trial_loss = compute_loss(coefficients - step_fraction * newton_step)
        coefficients = coefficients - step_fraction * newton_step
        current_loss = min(trial_loss, current_loss)
        squared_newton_decrement = float(newton_step @ gradient)
        if squared_newton_decrement < _NEWTON_TOLERANCE:
            break
    return coefficients
