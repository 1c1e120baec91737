r"""Explanations for rows that do not certify an accuracy.

The rules for an accuracy report the highest accuracy that the rows support, about how many rows
would be needed, and which thresholds the rows rule out. None of this influences a certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import betainc

from metacal.certificates.number_format import format_percent_ceil, format_percent_floor
from metacal.certification.rank_tests import BinomialRankTests
from metacal.certification.ranking import FinerCountsNeeded, Ranking
from metacal.certification.rows_needed import StartingTest, estimate_rows_needed
from metacal.certification.rules.rule import Certifies, Shortfall
from metacal.certification.test_sequences import plan_rank_ranges
from metacal.statistics import bounds

# Number of steps between accuracies 0 and 1 in the search for the best accuracy.
ACCURACY_STEPS_PER_UNIT = 10_000

# Number of bisections to try in advance if one of them needs finer counts of the rows.
_N_BISECTIONS_AHEAD = 3

# Number of ranks at which a rule in expectation is checked to estimate how many rows are needed.
_N_EXPECTED_RANKS = 40


def find_accuracy_shortfall(
    ranking: Ranking, limit: float, significance_level: float | None, certifies: Certifies
) -> Shortfall:
    """Find the highest accuracy that is certified and the number of rows needed.

    Parameters
    ----------
    ranking : Ranking
        Calibration rows that do not certify the limit.

    limit : float
        Accuracy that was asked for.

    significance_level : float or None
        Significance level, or None for a rule in expectation.

    certifies : callable
        Function that returns whether the rows certify another accuracy.

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
    best_limit = None
    if best_step > 0:
        best_limit = best_step / ACCURACY_STEPS_PER_UNIT
    return Shortfall(
        best_limit=best_limit,
        rows_needed=estimate_rows_needed_for_accuracy(ranking, limit, significance_level),
    )


def estimate_rows_needed_for_accuracy(
    ranking: Ranking, limit: float, significance_level: float | None
) -> int | None:
    """Estimate how many rows would certify an accuracy, or return None if none would."""
    return estimate_rows_needed(
        ranking, lambda n_rows: plan_starting_tests(n_rows, limit, significance_level)
    )


@lru_cache(maxsize=1000)  # Subgroups request the same tests many times.
def plan_starting_tests(
    n_rows: int, limit: float, significance_level: float | None
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

    Returns
    -------
    list of StartingTest
        Rank of each test, and the largest number of errors with which it passes.

    Examples
    --------
    >>> [tuple(test) for test in plan_starting_tests(1000, 0.95, 0.1)]
    [(236, 7), (424, 9), (807, 23)]
    """
    if significance_level is None:
        return _plan_tests_in_expectation(n_rows, limit)
    starting_tests = []
    for rank_range in plan_rank_ranges(n_rows, accuracy=limit, delta=significance_level):
        rank_tests = BinomialRankTests(
            n_rows,
            error_rate=1.0 - limit,
            significance_level=float(rank_range.delta_fraction) * significance_level,
        )
        max_errors = rank_tests.max_passing_errors(rank_range.start_rank)
        starting_tests.append(StartingTest(rank_range.start_rank, max_errors))
    return starting_tests


def _plan_tests_in_expectation(n_rows: int, accuracy: float) -> list[StartingTest]:
    """Plan tests of an accuracy that holds in expectation, at ranks in a geometric sequence."""
    ranks = np.unique(np.geomspace(1, n_rows, _N_EXPECTED_RANKS).astype(int))
    tests = []
    for rank in ranks.tolist():
        # A rank passes with E errors if E + 1 <= (1 - accuracy)(rank + 1).
        max_errors = math.floor((1.0 - accuracy) * (rank + 1)) - 1
        tests.append(StartingTest(rank, max_errors))
    return tests


def find_highest_certified_step(
    certified_step: int,
    uncertified_step: int,
    certifies: Callable[[float], bool],
    n_bisections_ahead: int = _N_BISECTIONS_AHEAD,
) -> int:
    """Find the highest certified accuracy by bisection, in steps of 1 / 10,000.

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
        except FinerCountsNeeded as request:
            if n_bisections_ahead == 0:
                raise
            # It is unknown which half contains the result, so both halves request their cells.
            requested_cells = request.cells
            halves = ((certified_step, middle_step), (middle_step, uncertified_step))
            for lower_step, upper_step in halves:
                try:
                    find_highest_certified_step(
                        certified_step=lower_step,
                        uncertified_step=upper_step,
                        certifies=certifies,
                        n_bisections_ahead=n_bisections_ahead - 1,
                    )
                except FinerCountsNeeded as later_request:
                    requested_cells.extend(later_request.cells)
            raise FinerCountsNeeded(requested_cells) from None
        if is_certified:
            certified_step = middle_step
        else:
            uncertified_step = middle_step
    return certified_step


def find_smallest_ruled_out_coverage(
    ranking: Ranking, accuracy: float, delta: float
) -> float | None:
    """Find the coverage from which on every threshold is known to be inaccurate.

    With probability 1 - delta, no threshold that accepts at least this share of all rows has the
    accuracy. The statement says nothing about thresholds that accept less. The most certain rows,
    fewer than the calibration rows can show, may be accurate.

    Let q = 1 - accuracy, and let E_m be the number of errors among the first m rows, where m is the
    end of a tie block. Let m* be the lowest such m from which on every m has P(Bin(m, q) >= E_m) <=
    delta / 2, and let k be the end of the block before it, or 0. The returned share c is the upper
    confidence limit of a share at level delta / 2 from k of n rows.

    *Proof.* (1) Let u be the largest share of all rows that a threshold accepts with the accuracy.
    It is fixed. N rows of the sample lie below that threshold. N is 0 or the end of a block. Given
    N, the errors among them are binomial with a rate of at most q. (2) The statement is false only
    if c <= u. (3) If N >= m*, the test at N has rejected. This is a single test with probability at
    most delta / 2. Because all later tests must reject too, the number of tests needs no
    correction. (4) If N < m*, then N <= k, and c is at least the upper confidence limit from N of n
    rows. That limit lies at or below u with probability at most delta / 2. ∎

    Parameters
    ----------
    ranking : Ranking
        Calibration rows with their errors.

    accuracy : float
        Accuracy that was asked for.

    delta : float
        Probability that the statement is false.

    Returns
    -------
    float or None
        None if the test at all rows does not reject, or if the rows were only counted.

    Examples
    --------
    >>> errors_at_the_end = Ranking.from_scores(np.arange(1000.0), np.arange(1000) < 30)
    >>> round(find_smallest_ruled_out_coverage(errors_at_the_end, 0.9, 0.1), 3)
    0.048
    >>> find_smallest_ruled_out_coverage(Ranking.from_scores(np.arange(1000.0), np.arange(1000) % 20 > 0), 0.9, 0.1) is None
    True
    """
    if ranking.has_unknown_order is not None or ranking.n_rows == 0:
        return None
    n_errors = ranking.cumulative_errors
    ranks = ranking.tie_block_end_ranks
    # Half of delta is for the tests of the ranks, and half for the bound on the share of rows.
    half_delta = 0.5 * delta
    # P(Bin(m, q) >= e) is the incomplete beta function I_q(e, m - e + 1) for e > 0.
    upper_tails = betainc(np.maximum(n_errors, 1), ranks - n_errors + 1.0, 1.0 - accuracy)
    p_values = np.where(n_errors > 0, upper_tails, 1.0)
    blocks_not_rejected = np.flatnonzero(p_values > half_delta)
    if len(blocks_not_rejected) == 0:
        return bounds.clopper_pearson_upper(0, ranking.n_rows, half_delta)
    last_block_not_rejected = blocks_not_rejected[-1]
    if last_block_not_rejected == len(ranks) - 1:
        return None
    n_rows_not_rejected = int(ranks[last_block_not_rejected])
    return bounds.clopper_pearson_upper(n_rows_not_rejected, ranking.n_rows, half_delta)


def describe_ruled_out(
    ranking: Ranking, accuracy: float, delta: float | None, predicate: str
) -> str | None:
    """Describe the thresholds that the rows rule out, or return None.

    Parameters
    ----------
    ranking : Ranking
        Calibration rows with their errors.

    accuracy : float
        Accuracy that was asked for.

    delta : float or None
        Probability that the statement is false. Nothing is ruled out in expectation.

    predicate : str
        Predicate that does not hold for these thresholds, for example "is that accurate".
    """
    # A promise that holds in expectation has no delta, and rules nothing out.
    if delta is None:
        return None
    min_coverage = find_smallest_ruled_out_coverage(ranking, accuracy, delta)
    if min_coverage is None:
        return None
    confidence_level = format_percent_floor(1.0 - delta)
    coverage_rounded_up = math.ceil(1e4 * min_coverage) / 1e4
    sentence = (
        f"With {confidence_level} confidence, no threshold that accepts"
        f" {format_percent_ceil(coverage_rounded_up)} of the rows or more {predicate}."
    )
    # A threshold with a lower coverage accepts enough error-free rows only among this many rows.
    n_accepted_needed = bounds.error_free_rows_needed(accuracy, delta)
    n_rows_needed = bounds.round_up_to_two_digits(math.ceil(n_accepted_needed / min_coverage))
    has_enough_rows = n_rows_needed <= ranking.n_rows
    if has_enough_rows:
        return sentence
    return (
        f"{sentence} One that accepts fewer may be; to certify it takes about {n_rows_needed:,} rows or"
        " more."
    )
