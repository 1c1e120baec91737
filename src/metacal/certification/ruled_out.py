"""Thresholds that calibration rows rule out for an accuracy.

No statement rules out every threshold, or says that no number of rows would certify the accuracy. The
most certain rows, fewer than the calibration rows can show, may have the accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import betainc

from metacal.certificates.number_format import format_percent_ceil, format_percent_floor
from metacal.certification.ranking import Ranking
from metacal.certification.rows_needed import MAX_SIMULATED_ROW_FACTOR
from metacal.statistics import bounds


@dataclass(frozen=True)
class RuledOut:
    """Thresholds that the rows rule out for an accuracy.

    Attributes
    ----------
    smallest_coverage : float or None
        With probability 1 - delta, no threshold that accepts at least this share of all rows has the
        accuracy. None if the rows neither certify the accuracy nor rule it out.

    min_rows : int or None
        Smallest number of rows that can certify a threshold with a lower coverage, if it exceeds the
        number of present rows. A test takes log(delta) / log(accuracy) rows without an error, and
        these are less than `smallest_coverage` of the rows.

    delta : float
        Probability that `smallest_coverage` is false.
    """

    smallest_coverage: float | None
    min_rows: int | None
    delta: float

    def explain_missing_estimate(self, ruled_out_predicate: str) -> str:
        """Explain why there is no estimate of the rows needed for the accuracy.

        Parameters
        ----------
        ruled_out_predicate : str
            Predicate that does not hold for the ruled-out thresholds, for example "is that accurate".
        """
        if self.smallest_coverage is None:
            return (
                f"These rows do not rule it out, but in a simulation {MAX_SIMULATED_ROW_FACTOR} times"
                " as many would not be enough."
            )
        confidence_level = format_percent_floor(1.0 - self.delta)
        rounded_coverage = format_percent_ceil(math.ceil(1e4 * self.smallest_coverage) / 1e4)
        ruled_out_sentence = (
            f"With {confidence_level} confidence, no threshold that accepts {rounded_coverage} of the"
            f" rows or more {ruled_out_predicate}."
        )
        if self.min_rows is None:
            return ruled_out_sentence
        return (
            f"{ruled_out_sentence} A threshold that accepts fewer may be; certifying it takes at least"
            f" about {self.min_rows:,} rows."
        )


def get_error_fields(ruled_out: RuledOut | None) -> dict[str, Any]:
    """Return the fields of an `InfeasibleTargetError` about the ruled-out thresholds."""
    if ruled_out is None:
        return {}
    return {
        "ruled_out_coverage": ruled_out.smallest_coverage,
        "min_rows_needed": ruled_out.min_rows,
    }


def find_ruled_out_thresholds(
    ranking: Ranking, accuracy: float, delta: float | None
) -> RuledOut | None:
    """Find the thresholds at which the rows rule out an accuracy.

    Parameters
    ----------
    ranking : Ranking
        Calibration rows with their errors, which do not certify the accuracy.

    accuracy : float
        Promised accuracy.

    delta : float or None
        Probability that the result is false. Nothing is ruled out in expectation.

    Returns
    -------
    RuledOut or None
        None in expectation, and if the rows were only counted.

    Examples
    --------
    >>> errors_at_the_end = Ranking.from_scores(np.arange(1000.0), np.arange(1000) < 10)
    >>> find_ruled_out_thresholds(errors_at_the_end, 0.97, 0.1)
    RuledOut(smallest_coverage=0.018141892240076254, min_rows=4200, delta=0.1)
    """
    if delta is None or not ranking.has_known_order or ranking.n_rows == 0:
        return None
    smallest_coverage = find_smallest_ruled_out_coverage(ranking, accuracy, delta)
    if smallest_coverage is None:
        return RuledOut(smallest_coverage=None, min_rows=None, delta=delta)
    n_accepted_needed = bounds.error_free_rows_needed(accuracy, delta)
    n_rows_needed = n_accepted_needed / smallest_coverage
    min_rows_above_present = None
    if n_rows_needed > ranking.n_rows:
        min_rows_above_present = bounds.round_up_to_two_digits(math.ceil(n_rows_needed))
    return RuledOut(
        smallest_coverage=smallest_coverage, min_rows=min_rows_above_present, delta=delta
    )


def find_smallest_ruled_out_coverage(
    ranking: Ranking, accuracy: float, delta: float
) -> float | None:
    """Compute the smallest coverage from which every threshold is ruled out.

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
        Promised accuracy.

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
    if not ranking.has_known_order or ranking.n_rows == 0:
        return None
    cumulative_errors = ranking.cumulative_errors
    block_end_ranks = ranking.tie_block_end_ranks
    # Half of delta is spent on the tests at ranks, and half on the bound on the share of rows.
    half_delta = 0.5 * delta
    # P(Bin(m, q) >= e) is the incomplete beta function I_q(e, m - e + 1) for e > 0.
    upper_tails = betainc(
        np.maximum(cumulative_errors, 1), block_end_ranks - cumulative_errors + 1.0, 1.0 - accuracy
    )
    p_values = np.where(cumulative_errors > 0, upper_tails, 1.0)
    plausible_blocks = np.flatnonzero(p_values > half_delta)
    if len(plausible_blocks) == 0:
        return bounds.clopper_pearson_upper(0, ranking.n_rows, half_delta)
    last_plausible_block = plausible_blocks[-1]
    last_block = len(block_end_ranks) - 1
    if last_plausible_block == last_block:
        return None
    last_plausible_rank = int(block_end_ranks[last_plausible_block])
    return bounds.clopper_pearson_upper(last_plausible_rank, ranking.n_rows, half_delta)
