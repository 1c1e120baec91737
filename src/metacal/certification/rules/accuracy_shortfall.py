"""Explanations of why rows do not certify an accuracy.

The rules for an accuracy report the highest accuracy that the rows support and about how many rows
would be needed. `metacal.certification.ruled_out` has what the rows rule out. None of this influences
a certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from metacal.certification.plans import plan_tests_of_unread_ranks
from metacal.certification.rank_tests import BinomialRankTests
from metacal.certification.ranking import FinerCountsNeeded, Ranking
from metacal.certification.rows_needed import StartingTest, estimate_rows_needed
from metacal.certification.rules.rule import Certifies, Shortfall
from metacal.certification.start_policies import USUAL_STARTS
from metacal.statistics import bounds

# Number of steps between accuracies 0 and 1 in the search for the best accuracy.
ACCURACY_STEPS_PER_UNIT = 10_000

# Number of bisection steps to try in advance if one of the steps needs finer row counts.
_N_BISECTIONS_AHEAD = 3

# Number of ranks at which tests are planned to estimate the rows needed in expectation.
_N_RANKS_IN_EXPECTATION = 40


def find_accuracy_shortfall(
    ranking: Ranking,
    limit: float,
    significance_level: float | None,
    certifies: Certifies,
    n_planning_rows: int = 0,
) -> Shortfall:
    """Find the highest accuracy that is certified and the number of rows needed.

    Parameters
    ----------
    ranking : Ranking
        Calibration rows that do not certify the limit.

    limit : float
        Promised accuracy.

    significance_level : float or None
        Significance level, or None for a rule in expectation.

    certifies : callable
        Function that returns whether the rows certify another accuracy.

    n_planning_rows : int, default=0
        Number of rows that were only read to plan the tests of the others.

    Returns
    -------
    Shortfall
        `best_limit` has four decimals.
    """
    highest_accuracy = bounds.largest_certifiable_accuracy(ranking.n_rows, significance_level)
    highest_step = math.floor(ACCURACY_STEPS_PER_UNIT * highest_accuracy)
    best_step = find_highest_certified_step(
        certified_step=0, uncertified_step=highest_step + 1, certifies=certifies
    )
    best_accuracy = None
    if best_step > 0:
        best_accuracy = best_step / ACCURACY_STEPS_PER_UNIT
    return Shortfall(
        best_limit=best_accuracy,
        rows_needed=estimate_rows_needed_for_accuracy(
            ranking, limit, significance_level, n_planning_rows
        ),
    )


def estimate_rows_needed_for_accuracy(
    ranking: Ranking, limit: float, significance_level: float | None, n_planning_rows: int = 0
) -> int | None:
    """Estimate how many rows would certify an accuracy, or return None.

    `n_planning_rows` of the present rows were only read to plan the tests of the others. This share
    is assumed to stay the same.
    """
    tested_share = 1.0 - n_planning_rows / max(ranking.n_rows, 1)
    return estimate_rows_needed(
        ranking,
        lambda n_rows: plan_starting_tests(n_rows, limit, significance_level, tested_share),
    )


@lru_cache(maxsize=1000)  # Subgroups request the same tests many times.
def plan_starting_tests(
    n_rows: int, limit: float, significance_level: float | None, tested_share: float = 1.0
) -> list[StartingTest]:
    """Plan the first test of each rank range for an accuracy.

    The accuracy is certified if one of these tests passes.

    Parameters
    ----------
    n_rows : int
        Number of rows.

    limit : float
        Accuracy to certify.

    significance_level : float or None
        Significance level, or None for a rule in expectation.

    tested_share : float, default=1.0
        Share of the rows that are tested. The others, which are the least certain, are only read to
        plan the tests (`certification.peeling`).

    Returns
    -------
    list of StartingTest
        Rank of each test, and the largest number of errors with which it passes.

    Examples
    --------
    >>> [tuple(test) for test in plan_starting_tests(1000, 0.95, 0.1)]
    [(236, 7), (424, 9), (807, 23)]
    >>> [tuple(test) for test in plan_starting_tests(1000, 0.95, 0.1, tested_share=0.2)]
    [(45, 0)]
    """
    if significance_level is None:
        return _plan_tests_in_expectation(n_rows, limit)
    n_tested_rows = round(tested_share * n_rows)
    rank_plan = plan_tests_of_unread_ranks(
        USUAL_STARTS, n_rows, n_tested_rows, limit, significance_level
    )
    level_by_starting_rank = {
        rank_range.start_rank: float(rank_range.level_fraction) * significance_level
        for rank_range in rank_plan.rank_ranges
    }
    only_starting_rank = rank_plan.tests_every_rank_from
    if only_starting_rank is not None and only_starting_rank <= n_tested_rows:
        level_by_starting_rank = {only_starting_rank: significance_level}

    starting_tests = []
    for starting_rank, level_of_test in level_by_starting_rank.items():
        rank_tests = BinomialRankTests(
            n_tested_rows, error_rate=1.0 - limit, significance_level=level_of_test
        )
        max_errors = rank_tests.max_passing_errors(starting_rank)
        starting_tests.append(StartingTest(starting_rank, max_errors))
    return starting_tests


def _plan_tests_in_expectation(n_rows: int, accuracy: float) -> list[StartingTest]:
    """Plan tests of an accuracy in expectation, at geometrically spaced ranks."""
    tested_ranks = np.unique(np.geomspace(1, n_rows, _N_RANKS_IN_EXPECTATION).astype(int))
    starting_tests = []
    for rank in tested_ranks.tolist():
        # A rank passes with E errors if E + 1 <= (1 - accuracy)(rank + 1).
        max_errors = math.floor((1.0 - accuracy) * (rank + 1)) - 1
        starting_tests.append(StartingTest(rank, max_errors))
    return starting_tests


def find_highest_certified_step(
    certified_step: int,
    uncertified_step: int,
    certifies: Callable[[float], bool],
    n_bisections_ahead: int = _N_BISECTIONS_AHEAD,
) -> int:
    """Find the highest certified accuracy by bisection, in units of 1 / 10,000.

    Parameters
    ----------
    certified_step, uncertified_step : int
        Accuracies between which the result lies, in units of 1 / 10,000. The lower one is taken to
        be certified, and the higher one not to be.

    certifies : callable
        Function that returns whether an accuracy is certified.

    n_bisections_ahead : int
        If a bisection needs finer counts, the next ones in both directions are tried too, so that
        one more pass over the rows decides several of them.

    Returns
    -------
    int
        Accuracy in units of 1 / 10,000.

    Raises
    ------
    FinerCountsNeeded
        If the rows were only counted, and the result depends on their order within cells.
    """
    while uncertified_step - certified_step > 1:
        middle_step = (certified_step + uncertified_step) // 2
        try:
            is_certified = certifies(middle_step / ACCURACY_STEPS_PER_UNIT)
        except FinerCountsNeeded as recount_request:
            if n_bisections_ahead == 0:
                raise
            # Either half of the interval may contain the result, so the cells of both are requested.
            cells_of_lower_half = _find_cells_to_recount(
                certified_step, middle_step, certifies, n_bisections_ahead - 1
            )
            cells_of_upper_half = _find_cells_to_recount(
                middle_step, uncertified_step, certifies, n_bisections_ahead - 1
            )
            raise FinerCountsNeeded(
                cells_to_recount={
                    *recount_request.cells_to_recount,
                    *cells_of_lower_half,
                    *cells_of_upper_half,
                }
            ) from None
        if is_certified:
            certified_step = middle_step
        else:
            uncertified_step = middle_step
    return certified_step


def _find_cells_to_recount(
    certified_step: int,
    uncertified_step: int,
    certifies: Callable[[float], bool],
    n_bisections_ahead: int,
) -> list[int]:
    """Return the cells of scores that the bisection needs to count again.

    The list is empty if the present counts determine the step.
    """
    try:
        find_highest_certified_step(
            certified_step, uncertified_step, certifies, n_bisections_ahead=n_bisections_ahead
        )
    except FinerCountsNeeded as recount_request:
        return recount_request.cells_to_recount
    return []
