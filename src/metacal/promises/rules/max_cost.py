"""MaxCost: what is accepted costs at most so much a row on average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metacal.errors import InputError
from metacal.promises.certificate import Certificate
from metacal.promises.quantity import COST
from metacal.promises.rules.accuracy import FALLBACK_SEQUENCE
from metacal.promises.rules.costs import Wrong, checked_costs, is_uniform, largest_cost, positive
from metacal.promises.rules.max_risk import MeanLimit
from metacal.rows.arrays import fraction


@dataclass(repr=False)
class MaxCost(MeanLimit):
    """What is accepted costs at most `limit` a row on average.

    Parameters
    ----------
    wrong : float or table
        What a wrong answer costs, in any unit; or K rows of K costs, `wrong[truth][answer]`, in the order of the
        columns.
    limit : float
        The most that an accepted row may cost on average, in the same unit.
    delta : float or None
        The promise fails with at most this probability over the calibration rows; None: it holds on average, nearly.
    random_state : int
        Seed of the order in which rows are bet on, where there is a table.

    It is `MaxRisk` of what an answer costs, as a share of the most that one can. One cost for every wrong answer is a
    promise of accuracy, at least 1 - limit/wrong: the exact binomial tests of `MinAccuracy` certify it.

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

    wrong: Wrong
    limit: float
    delta: float | None = 0.1
    random_state: int = 0

    called: ClassVar = "cost"
    limited: ClassVar = {"limit": COST}

    def __post_init__(self) -> None:
        self.wrong = checked_costs(self.wrong)
        self.limit = positive("limit", self.limit)
        if self.delta is not None:
            fraction("delta", self.delta)
        if self.limit >= largest_cost(self.wrong):
            raise InputError(
                f"limit must be less than the largest cost, {largest_cost(self.wrong):g}: no mean cost is above it; "
                f"got {self.limit:g}."
            )

    @property
    def rule(self) -> str:
        """Bets where there is a table; one cost for every wrong answer is a promise of accuracy."""
        return FALLBACK_SEQUENCE if self.delta is not None and is_uniform(self.wrong) else super().rule

    @property
    def all_rules(self) -> tuple[str, ...]:
        return (self.rule,)

    def _is_counted(self, certificate: Certificate) -> bool:
        return is_uniform(self.wrong)
