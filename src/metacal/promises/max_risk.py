"""Promises about losses and costs: MaxRisk, MaxCost and Cheapest.

A *loss* is a number between 0 and 1 that states how bad a prediction is. A *cost* is the price of
an incorrect prediction or of a review, in any unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from metacal import kernels
from metacal.certificates.certificate import Certificate
from metacal.certificates.quantities import COST, COST_PER_ROW, RISK
from metacal.certificates.quantity import Limits
from metacal.certification.cheapest import CHEAPEST_CANDIDATES, CheapestThreshold
from metacal.certification.losses import (
    EXPECTED_LOSS_RULE,
    LOSS_BETTING_RULE,
    ROUNDED_LOSSES_RULE,
    MeanLossLimit,
)
from metacal.certification.row_losses import (
    Costs,
    ErrorCosts,
    Losses,
    has_uniform_costs,
    validate_error_costs,
    validate_positive_cost,
)
from metacal.certification.rules.fixed_sequence import FIXED_SEQUENCE_RULE
from metacal.errors import ClassMismatchError, InputError
from metacal.formulas import Codes, Flags
from metacal.promises.promise import Promise
from metacal.rows import Rows
from metacal.rows.arrays import check_fraction, to_numpy

# A cost table with more classes than this is not printed, only its size.
_MAX_PRINTED_CLASSES = 4


def get_largest_cost(promise: Promise | None) -> float | None:
    """Return the largest cost of a row, or None if the promise limits no cost."""
    return promise.largest if isinstance(promise, CostPromise) else None


class CostPromise(Promise):
    """Base class of the promises about losses and costs."""

    # Cost of an incorrect prediction, or a table with the costs wrong[true class][prediction].
    wrong: ErrorCosts

    # Seed of the random draws. If it is None, a seed is derived from the rows.
    random_state: int | None

    @property
    def costs(self) -> Costs:
        """Costs of predictions and of reviews."""
        return Costs(self.wrong, self.review_cost)

    @property
    def review_cost(self) -> float:
        """Cost of a rejected row."""
        return 0.0

    @property
    def largest(self) -> float:
        """Largest cost of a row."""
        return self.costs.max_row_cost

    def losses(self, codes: Codes, answers: Codes) -> Losses:
        """Compute the cost of each row from its true class and its prediction."""
        return self.costs.losses_from_predictions(codes, answers)

    def compute_losses(self, rows: Rows, labels: Any) -> Losses:
        """Compute the cost of each prediction."""
        self.check_cost_table_size(rows.n_classes)
        predicted_codes = rows.compute_column(kernels.predict_classes)
        true_codes = np.asarray(to_numpy(labels, "labels"))
        return self.losses(true_codes, predicted_codes)

    def losses_from_correctness(self, correct: Flags) -> Losses:
        """Compute the cost of each row from whether its prediction is correct."""
        return self.costs.losses_from_correctness(correct)

    def mean_loss_follows_from_error_count(self, certificate: Certificate) -> bool:
        """Check whether the number of errors determines the mean loss of a certificate."""
        procedure = self.procedure()
        if not isinstance(procedure, MeanLossLimit):
            return False
        return procedure.mean_loss_follows_from_error_count(certificate)

    def check_cost_table_size(self, n_classes: int) -> None:
        """Raise InputError if the cost matrix does not have `n_classes` classes."""
        error_costs = self.wrong
        if isinstance(error_costs, float):
            return
        if len(error_costs) != n_classes:
            raise ClassMismatchError(
                f"The cost matrix has {len(error_costs)} classes, but the logits have"
                f" {n_classes} columns. Pass a matrix with one row and one column for each"
                " class."
            )

    def __repr__(self) -> str:
        other_params = self.get_params()
        error_costs = other_params.pop("wrong")
        error_costs_text = str(error_costs)
        if not isinstance(error_costs, float) and len(error_costs) > _MAX_PRINTED_CLASSES:
            n_classes = len(error_costs)
            error_costs_text = f"<{n_classes} x {n_classes} costs of up to {self.largest:g}>"
        params_text = ", ".join(f"{name}={value!r}" for name, value in other_params.items())
        return f"{type(self).__name__}(wrong={error_costs_text}, {params_text})"


@dataclass(frozen=True)
class MaxRisk(CostPromise):
    """Accepted rows have a mean loss of at most `limit`.

    A loss between 0 and 1 states how bad an answer is: 1 - F1, the share of incorrect fields or of
    missed labels, or a judge's grade (`metacal.losses` has common ones). If answers are only right
    or wrong, the mean loss is the error rate.

    Parameters
    ----------
    limit : float
        Largest mean loss of the accepted rows.

    delta : float or None, default=0.1
        The promise fails with at most this probability over the calibration rows. If None, it holds
        approximately in expectation.

    near_binary : bool, default=False
        Whether nearly every loss is 0 or 1. With fewer than 50 / limit rows, each loss is then
        rounded at random, up with a probability equal to the loss, and the exact tests of 0/1 losses
        certify the rounded losses, which have the same mean. With more rows, the first bets expect
        the variance of 0 and 1. Decide this before you look at the rows, because the better of two
        tests on the same rows would break more promises than `delta` allows.

    random_state : int, optional
        Seed of the order of bets and of the rounding. By default it is derived from the rows. A
        seed that you pass is recorded in the certificate.

    Notes
    -----
    Losses of an integer type, and answers that are right or wrong, are certified by exact tests.
    Losses of a floating type are certified by bets, in an order that depends on no loss, even if
    all of them happen to be 0 or 1.

    *Why the type decides.*

    1. The type is known before any loss is read, so a single test is made. It fails with
       probability at most delta.
    2. The invalid shortcut is to use the exact test if the tested losses happen to be 0 or 1, and
       bets otherwise. The promise is then broken if either test fails on its part of the draws,
       with probability up to 2 delta.

    *Why rounding is valid.*

    1. Let B = 1[U < L] with U uniform and independent of the rest. Then E[B | row] = L.
    2. So a mean of B is the mean of L in any part of the ranking. The proof for errors
       (`promises.accuracy`) needs no more.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> score = rng.random(2000)
    >>> from metacal.promises import Sample
    >>> losses = Losses.from_graded(score**2 * rng.random(2000))
    >>> certificate = MaxRisk(0.1).certify(Sample(score, losses.if_accepted == 0.0, losses))
    >>> certificate.statement
    'Accepted predictions have a mean loss of at most 0.1, with 90% confidence.'
    >>> round(certificate.coverage, 2), round(certificate.mean_cost, 3)
    (0.74, 0.094)
    >>> MaxRisk(10)
    Traceback (most recent call last):
    metacal.errors.InputError: limit must be strictly between 0 and 1, but got 10. Write 10% as 0.1.
    """

    limit: float
    delta: float | None = 0.1
    near_binary: bool = False
    random_state: int | None = None

    wrong: ClassVar[ErrorCosts] = 1.0  # type: ignore[misc]
    quantities: ClassVar = {"limit": RISK}
    rules: ClassVar = (LOSS_BETTING_RULE, EXPECTED_LOSS_RULE)
    supports_row_losses: ClassVar = True

    @property
    def possible_rules(self) -> tuple[str, ...]:
        """Names of the rules that may certify the promise, depending on the losses."""
        if self.delta is None:
            return (self.rule,)
        if self.near_binary:
            return (LOSS_BETTING_RULE, FIXED_SEQUENCE_RULE, ROUNDED_LOSSES_RULE)
        return (LOSS_BETTING_RULE, FIXED_SEQUENCE_RULE)

    def procedure(self) -> MeanLossLimit:
        """Return the procedure that limits the mean loss of the accepted rows."""
        holds_in_expectation = self.delta is None
        return MeanLossLimit(
            quantity=RISK,
            limit=self.limit,
            costs=self.costs,
            noun_in_messages="risk",
            bets_rule_name=self.rule,
            is_near_binary=self.near_binary,
            runs_test_sequence=not holds_in_expectation,
            random_state=self.random_state,
        )


@dataclass(frozen=True, repr=False)
class MaxCost(CostPromise):
    """Accepted rows have a mean cost of at most `limit`.

    Parameters
    ----------
    wrong : float or table
        Cost of an incorrect prediction in any unit, or K rows of K costs, `wrong[truth][answer]`,
        in the order of the columns.

    limit : float
        Largest mean cost of the accepted rows, in the same unit.

    delta : float or None, default=0.1
        The promise fails with at most this probability over the calibration rows. If None, it holds
        approximately in expectation.

    random_state : int, optional
        Seed of the order of bets, if there is a table. By default it is derived from the rows. A
        seed that you pass is recorded in the certificate.

    Notes
    -----
    The promise is `MaxRisk` for costs divided by the largest cost. A single cost of every error is
    a promise of an accuracy of at least 1 - limit/wrong. The exact binomial tests of `MinAccuracy`
    then certify it.

    Examples
    --------
    >>> import numpy as np
    >>> scores, correct = np.arange(1000.0), np.arange(1000) < 900
    >>> print(MaxCost(wrong=50, limit=2.5).certify(scores, correct))
    Accepted predictions cost at most 2.5 a row on average, with 90% confidence.
      gate         accept if score < 937
      ...
      on these     coverage 0.9370, selective accuracy 0.9605, miscoverage 0.0000, cost 1.97439
      ...
    """

    wrong: ErrorCosts
    limit: float
    delta: float | None = 0.1
    random_state: int | None = None

    quantities: ClassVar = {"limit": COST}
    rules: ClassVar = (LOSS_BETTING_RULE, EXPECTED_LOSS_RULE)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wrong", validate_error_costs(self.wrong))
        object.__setattr__(self, "limit", validate_positive_cost("limit", self.limit))
        if self.delta is not None:
            check_fraction("delta", self.delta)
        if self.limit >= self.largest:
            raise InputError(
                f"limit must be less than {self.largest:g}, the largest cost, but got"
                f" {self.limit:g}. No mean cost exceeds the largest cost."
            )

    @property
    def rule(self) -> str:
        """Name of the rule, which is an accuracy rule if all errors cost the same."""
        if self.delta is not None and has_uniform_costs(self.wrong):
            return FIXED_SEQUENCE_RULE
        return super().rule

    def procedure(self) -> MeanLossLimit:
        """Return the procedure that limits the mean cost of the accepted rows."""
        holds_in_expectation = self.delta is None
        every_error_costs_the_same = has_uniform_costs(self.wrong)
        return MeanLossLimit(
            quantity=COST,
            limit=self.limit,
            costs=self.costs,
            noun_in_messages="cost",
            bets_rule_name=self.rule,
            runs_test_sequence=not holds_in_expectation,
            mean_follows_from_error_count=every_error_costs_the_same,
            random_state=self.random_state,
        )


@dataclass(frozen=True, repr=False)
class Cheapest(CostPromise):
    """Threshold at which a row costs least on average, with a certified cost bound.

    A row costs what its prediction costs if it is accepted, and `review` if it is rejected.
    `metacal.certification.losses.CheapestThreshold` has the bound and its proof.

    Parameters
    ----------
    wrong, random_state
        As for `MaxCost`.

    review : float
        Cost of the review of a row, in the same unit.

    delta : float, default=0.1
        The certified bound on the cost fails with at most this probability over the calibration
        rows.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> certificate = Cheapest(wrong=20, review=1).certify(scores, rng.random(2000) > scores**3 / 2)
    >>> print(certificate.statement)
    Errors and reviews together cost at most 0.760356 a row on average, with 90% confidence.
    >>> round(certificate.coverage, 3), round(certificate.mean_cost, 3)
    (0.459, 0.622)
    """

    wrong: ErrorCosts
    review: float
    delta: float = 0.1
    random_state: int | None = None

    quantities: ClassVar = {}
    rules: ClassVar = (CHEAPEST_CANDIDATES,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wrong", validate_error_costs(self.wrong))
        object.__setattr__(self, "review", validate_positive_cost("review", self.review))
        # No rule bounds the cost in expectation, so delta must not be None.
        check_fraction("delta", self.delta)

    @property
    def review_cost(self) -> float:
        """Cost of a rejected row."""
        return self.review

    @property
    def limits(self) -> Limits:
        """Quantity that the promise limits. Its limit is infinite until rows are certified."""
        return ((COST_PER_ROW, math.inf),)

    def procedure(self) -> CheapestThreshold:
        """Return the procedure that chooses the threshold and bounds its cost."""
        return CheapestThreshold(costs=self.costs, random_state=self.random_state)

    def _expected_limits(self, certificate: Certificate) -> Limits:
        """Return the bound on the cost that the certificate states."""
        return ((COST_PER_ROW, certificate.target),)
