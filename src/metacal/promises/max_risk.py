"""Promises about losses: MaxRisk, MaxCost and Cheapest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from metacal.certificates.certificate import Certificate
from metacal.certificates.quantity import COST, COST_PER_ROW, RISK, Limits
from metacal.certification.cheapest import CHEAPEST_CANDIDATES, CheapestThreshold
from metacal.certification.losses import (
    BETTING,
    EXPECTED_LOSS,
    ROUNDED,
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
from metacal.certification.rules.fixed_sequence import FALLBACK_SEQUENCE
from metacal.errors import InputError
from metacal.formulas import Codes, Flags
from metacal.promises.promise import Promise
from metacal.rows.arrays import check_fraction


class CostPromise(Promise):
    """Base of the promises about costs: a dataclass with `wrong`."""

    wrong: ErrorCosts
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
        return self.costs.max_cost

    def losses(self, codes: Codes, answers: Codes) -> Losses:
        """Compute the cost of each row from its true class and its prediction."""
        return self.costs.losses_from_predictions(codes, answers)

    def losses_from_correctness(self, correct: Flags) -> Losses:
        """Compute the cost of each row from whether its prediction is correct."""
        return self.costs.losses_from_correctness(correct)

    def counts_errors_in(self, certificate: Certificate) -> bool:
        """Check whether the mean loss in a certificate follows from its number of errors."""
        procedure = self.procedure()
        return isinstance(procedure, MeanLossLimit) and procedure.counts_errors_in(certificate)

    def check_cost_table_size(self, n_classes: int) -> None:
        """Raise if the table of costs has another number of classes."""
        if not isinstance(self.wrong, float) and len(self.wrong) != n_classes:
            raise InputError(
                f"the table of costs is for {len(self.wrong)} classes, and the logits have"
                f" {n_classes} columns; it needs a row and a column for each."
            )

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.get_params().items() if name != "wrong"}
        table: Any = self.wrong
        if not isinstance(table, float) and len(table) > 4:
            table = f"<{len(table)} x {len(table)} costs of up to {self.largest:g}>"
        listed = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}(wrong={table}, {listed})"


@dataclass(frozen=True)
class MaxRisk(CostPromise):
    """What is accepted has a mean loss of at most `limit`, each loss a number between 0 and 1.

    A loss says how bad an answer is: 1 - F1, the share of wrong fields, of missed labels, a judge's
    mark turned around (`metacal.losses` has those in use). Where answers are only right or wrong,
    it is the error rate.

    Parameters
    ----------
    limit : float
        The most that an accepted row may lose on average.
    delta : float or None
        The promise fails with at most this probability over the calibration rows; None: it holds on
        average, nearly.
    near_binary : bool
        Say so where nearly every loss is 0 or 1: each is then rounded at random, up with its own
        probability, and the exact tests of 0/1 losses certify the rounded ones, which have the same
        mean. To be settled before looking at the rows: of two tests on the same rows the better one
        would break more promises than `delta` allows.
    random_state : int, optional
        Seed of the order in which rows are bet on, and of the rounding. By default it is derived
        from the rows; a seed that you give is recorded in the certificate.

    Losses of an integer type, 0 or 1, and right or wrong take the exact tests; floats are certified
    by bets in an order that looks at no loss, even where these rows have only zeros and ones. Where
    a loss could be graded and seldom is, say `near_binary`: what is rounded and what need not be
    are then one test.

    *Why the type decides.* It is settled before any loss is looked at, so that one test is made,
    which fails with probability at most delta. Whoever takes the exact test where the tested losses
    happen to be 0 or 1, and bets where they do not, breaks the promise if either fails on its part
    of the draws: delta for each, 2 delta in all.

    *Why rounding holds.* B = 1[U < L] with U uniform and independent of the rest has E[B | row] =
    L: a mean of B is the mean of L, in any part of the ranking. The proof for errors
    (`promises.accuracy`) asks no more of them.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> score = rng.random(2000)
    >>> from metacal.promises import Sample
    >>> losses = Losses.from_graded(score**2 * rng.random(2000))
    >>> certificate = MaxRisk(0.1).certify(Sample(score, losses.if_accepted == 0.0, losses))
    >>> certificate.statement
    'What is accepted has a mean loss of at most 0.1, with 90% confidence.'
    >>> round(certificate.coverage, 2), round(certificate.mean_cost, 3)
    (0.74, 0.092)
    >>> MaxRisk(10)
    Traceback (most recent call last):
    metacal.errors.InputError: limit must be strictly between 0 and 1, got 10; write 10% as 0.1.
    """

    limit: float
    delta: float | None = 0.1
    near_binary: bool = False
    random_state: int | None = None

    wrong: ClassVar[ErrorCosts] = 1.0  # type: ignore[misc]
    quantities: ClassVar = {"limit": RISK}
    rules: ClassVar = (BETTING, EXPECTED_LOSS)
    supports_row_losses: ClassVar = True

    @property
    def possible_rules(self) -> tuple[str, ...]:
        """Rules that a certificate may have. The losses determine which one."""
        if self.delta is None:
            return (self.rule,)
        return (BETTING, FALLBACK_SEQUENCE, ROUNDED)

    def procedure(self) -> MeanLossLimit:
        """Return how rows are certified."""
        return MeanLossLimit(
            quantity=RISK,
            limit=self.limit,
            costs=self.costs,
            noun="risk",
            bets_rule_name=self.rule,
            rounds_losses=self.near_binary,
            uses_pilot_rows=self.delta is not None,
            random_state=self.random_state,
        )


@dataclass(frozen=True, repr=False)
class MaxCost(CostPromise):
    """What is accepted costs at most `limit` a row on average.

    Parameters
    ----------
    wrong : float or table
        What a wrong answer costs, in any unit; or K rows of K costs, `wrong[truth][answer]`, in the
        order of the columns.
    limit : float
        The most that an accepted row may cost on average, in the same unit.
    delta : float or None
        The promise fails with at most this probability over the calibration rows; None: it holds on
        average, nearly.
    random_state : int, optional
        Seed of the order in which rows are bet on, if there is a table. By default it is derived
        from the rows; a seed that you give is recorded in the certificate.

    It is `MaxRisk` of what an answer costs, as a share of the most that one can. One cost for every
    wrong answer is a promise of accuracy, at least 1 - limit/wrong: the exact binomial tests of
    `MinAccuracy` certify it.

    Examples
    --------
    >>> import numpy as np
    >>> scores, correct = np.arange(1000.0), np.arange(1000) < 900
    >>> print(MaxCost(wrong=50, limit=2.5).certify(scores, correct))
    What is accepted costs at most 2.5 a row on average, with 90% confidence.
      gate         accept if score < 937
      ...
      on these     coverage 0.9370, accuracy of accepted 0.9605, miscoverage 0.0000, cost 1.97439
      ...
    """

    wrong: ErrorCosts
    limit: float
    delta: float | None = 0.1
    random_state: int | None = None

    quantities: ClassVar = {"limit": COST}
    rules: ClassVar = (BETTING, EXPECTED_LOSS)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wrong", validate_error_costs(self.wrong))
        object.__setattr__(self, "limit", validate_positive_cost("limit", self.limit))
        if self.delta is not None:
            check_fraction("delta", self.delta)
        if self.limit >= self.largest:
            raise InputError(
                f"limit must be less than the largest cost, {self.largest:g}: no mean cost is"
                f" above it; got {self.limit:g}."
            )

    @property
    def rule(self) -> str:
        """Rule of the certificates. One cost for every error is a promise of accuracy."""
        if self.delta is not None and has_uniform_costs(self.wrong):
            return FALLBACK_SEQUENCE
        return super().rule

    def procedure(self) -> MeanLossLimit:
        """Return how rows are certified."""
        return MeanLossLimit(
            quantity=COST,
            limit=self.limit,
            costs=self.costs,
            noun="cost",
            bets_rule_name=self.rule,
            uses_pilot_rows=self.delta is not None,
            counts_errors=has_uniform_costs(self.wrong),
            random_state=self.random_state,
        )


@dataclass(frozen=True, repr=False)
class Cheapest(CostPromise):
    """The threshold at which a row costs least on average, with a certified bound on this cost.

    A row costs what its prediction costs if it is accepted, and `review` if it is rejected.
    `metacal.certification.losses.CheapestThreshold` has the bound and its proof.

    Parameters
    ----------
    wrong, random_state
        As for `MaxCost`.
    review : float
        What it costs to review a row, in the same unit.
    delta : float
        The certified bound of the cost fails with at most this probability over the calibration
        rows.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> certificate = Cheapest(wrong=20, review=1).certify(scores, rng.random(2000) > scores**3 / 2)
    >>> print(certificate.statement)
    Wrong answers and reviews together cost at most 0.760356 a row on average, with 90% confidence.
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
        # None is not allowed here.
        check_fraction("delta", self.delta)

    @property
    def review_cost(self) -> float:
        """Cost of a rejected row."""
        return self.review

    @property
    def limits(self) -> Limits:
        """The quantity. Its limit is known when the rows are certified."""
        return ((COST_PER_ROW, math.inf),)

    def procedure(self) -> CheapestThreshold:
        """Return how rows are certified."""
        return CheapestThreshold(costs=self.costs, random_state=self.random_state)

    def _expected_limits(self, certificate: Certificate) -> Limits:
        return ((COST_PER_ROW, certificate.target),)
