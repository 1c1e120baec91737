"""Tests of one ranking, fixed before its labels are read.

`metacal.certification.plans` makes the plans of test sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metacal.certification.test_sequences import RankRange


@dataclass(frozen=True)
class FirstTieBlock:
    """First tie block that is tested, given by a rank.

    The test at the rank comes before those at the ends of tie blocks. For this test, rows with equal
    scores are in random order.

    Attributes
    ----------
    rank : int
        Rank, which may lie inside a tie block.

    tie_break_number : float
        Random number in [0, 1), which draws the rows of the block that are up to the rank. For 1,
        these are the errors.
    """

    rank: int
    tie_break_number: float


@dataclass(frozen=True)
class RankPlan:
    """Tests of one ranking, fixed before its labels are read.

    A plan of `FixedSequenceRule` has rank ranges, a first tested rank, a first tested tie block or a
    first tested score. A plan without any of them tests nothing. The plans of other rules contain
    only the limit.

    Attributes
    ----------
    limit : float
        Limit that each test is about.

    rank_ranges : tuple of RankRange
        Ranks to test, with the fraction of the significance level that each range adds.

    tests_every_rank_from : int or None
        If given, every rank from this one upward is tested at the whole significance level.

    first_tested_tie_block : FirstTieBlock or None
        If given, every tie block from this one upward is tested at the whole significance level.

    first_tested_score : float or None
        If given, every score value from this one upward is tested at the whole significance level.
    """

    limit: float
    rank_ranges: tuple[RankRange, ...] = ()
    tests_every_rank_from: int | None = None
    first_tested_tie_block: FirstTieBlock | None = None
    first_tested_score: float | None = None

    @property
    def tests_tie_blocks(self) -> bool:
        """Whether tests are made at the ends of tie blocks."""
        return self.first_tested_tie_block is not None
