"""Finite-sample bounds on error rates, accuracies and miscoverages.

All functions are deterministic, and take counts, rates and confidence levels rather than logits.

The first half holds the bounds that certificates use. The second half holds the propositions of
the Meta-Cal paper, numbered among the propositions alone (its definitions are not counted). Some
of them are corrected, because brute-force enumeration contradicts the published version. The
docstring of each corrected proposition states the correction and its reason.

Throughout, n is a number of rows, `alpha` an upper limit on the miscoverage P(rejected | correct),
`beta` a lower limit on the selective accuracy P(correct | accepted), and 1 - `delta` a confidence
level. If `delta` is None, the limit holds in expectation over calibration samples instead.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, bdtrc, betaincinv

from metacal.errors import InputError
from metacal.formulas import Float

#: Factor by which a recomputed tail probability may exceed delta.
#: Saved certificates may come from a version of SciPy that rounds differently.
ONE_PLUS_ROUNDING_ERROR = 1.0 + 1e-9


def to_exact_fraction(value: float) -> Fraction:
    """Convert a float to an exact fraction, from its shortest decimal form.

    The value 0.05 becomes 1/20, and not the binary fraction that is nearest to 1/20.

    >>> to_exact_fraction(0.05)
    Fraction(1, 20)
    """
    return Fraction(repr(float(value)))


def binomial_p_value(errors: ArrayLike, n: ArrayLike, error_rate: float) -> Float:
    """Compute the exact p-value of "the error rate is at least `error_rate`".

    The p-value is P(Bin(n, error_rate) <= errors).

    >>> float(binomial_p_value(0, 100, 0.03).round(4))
    0.0476
    """
    error_counts = np.asarray(errors, dtype=np.float64)
    row_counts = np.asarray(n, dtype=np.int64)
    return np.asarray(bdtr(error_counts, row_counts, error_rate))


def clopper_pearson_upper(errors: int, n: int, delta: float) -> float:
    """Compute the Clopper-Pearson upper confidence limit of a proportion.

    At confidence level 1 - delta, it is the (1 - delta)-quantile of Beta(errors + 1, n - errors).

    >>> round(clopper_pearson_upper(0, 100, 0.1), 4)          # 1 - 0.1 ** (1 / 100)
    0.0228
    """
    if errors >= n:
        return 1.0
    return float(betaincinv(errors + 1, n - errors, 1.0 - delta))


def clopper_pearson_lower(successes: int, n: int, delta: float) -> float:
    """Compute the Clopper-Pearson lower confidence limit of a proportion.

    At confidence level 1 - delta, it is the delta-quantile of Beta(successes, n - successes + 1).

    >>> round(clopper_pearson_lower(100, 100, 0.1), 4)        # 0.1 ** (1 / 100)
    0.9772
    """
    if successes <= 0:
        return 0.0
    return float(betaincinv(successes, n - successes + 1, delta))


def expected_miscoverage_rank(n_correct: int, alpha: float) -> int:
    """Return the smallest threshold rank with an expected miscoverage of at most alpha.

    The threshold is the k-th smallest score r_(k) of n correct rows. Its expected miscoverage is
    E[P(h > r_(k))] = (n + 1 - k) / (n + 1), and the smallest k for which this is at most alpha is
    k = n + 1 - floor((n + 1)·alpha). The value k = n + 1 means "accept everything".

    The paper computes the same rank in floating point as ceil((n + 1)(1 - alpha)), which is off by
    one in about 0.6% of cases. This function uses exact arithmetic.

    >>> expected_miscoverage_rank(99, 0.05)
    95
    """
    max_n_rejected = math.floor((n_correct + 1) * to_exact_fraction(alpha))
    return n_correct + 1 - max_n_rejected


def smallest_rank_keeping_miscoverage(n_correct: int, alpha: float, delta: float | None) -> int:
    """Return the number of correct rows to accept for a miscoverage of at most alpha.

    The limit is certified at confidence level 1 - delta, or holds in expectation if `delta` is
    None. The value n + 1 means "accept everything".
    """
    if delta is None:
        return expected_miscoverage_rank(n_correct, alpha)
    return certified_miscoverage_rank(n_correct, alpha, delta)


def certifies_violation_rate(
    n_rows: int, n_without_violation: int, max_rate: float, delta: float | None
) -> bool:
    """Check whether a count certifies that the rate of violations is at most a limit.

    For the miscoverage, the rows are correct, and a violation is a rejected row. For n rows, k of
    them without a violation, the condition is P(Bin(n, 1 - max_rate) >= k) <= delta, or
    (n + 1 - k) / (n + 1) <= max_rate in expectation.

    Parameters
    ----------
    n_rows, n_without_violation : int
        Number of rows, and of those without a violation.
    max_rate : float
        Limit on the rate of violations.
    delta : float or None
        Probability with which the limit may fail. None if it holds in expectation.

    Returns
    -------
    bool

    Examples
    --------
    >>> certifies_violation_rate(1000, n_without_violation=960, max_rate=0.05, delta=0.1)
    True
    >>> certifies_violation_rate(1000, n_without_violation=959, max_rate=0.05, delta=0.1)
    False
    """
    if delta is None:
        return n_without_violation >= expected_miscoverage_rank(n_rows, max_rate)
    if n_without_violation <= 0:
        return False
    p_value = miscoverage_violation(n_rows, n_without_violation, max_rate)
    return p_value <= ONE_PLUS_ROUNDING_ERROR * delta


def certifies_accuracy(n_incorrect: int, n_rows: int, beta: float, delta: float | None) -> bool:
    """Check whether the errors among accepted rows certify an accuracy.

    The accuracy is at least beta. For n rows, of which e are incorrect, the condition is
    P(Bin(n, 1 - beta) <= e) <= delta, or e + 1 <= (1 - beta)(n + 1) in expectation. It is necessary
    for every rule that tests ranks exactly and splits delta among its tests: the rank that such a
    rule returns satisfies it.

    Parameters
    ----------
    n_incorrect, n_rows : int
        Number of incorrect accepted rows, and of all accepted rows.
    beta : float
        Limit on the accuracy.
    delta : float or None
        Probability with which the limit may fail. None if it holds in expectation.

    Returns
    -------
    bool

    Examples
    --------
    >>> certifies_accuracy(0, 45, 0.95, 0.1), certifies_accuracy(0, 44, 0.95, 0.1)
    (True, False)
    """
    if delta is None:
        return _is_accurate_in_expectation(n_incorrect, n_rows, beta)
    if n_rows <= 0:
        return False
    p_value = binomial_p_value(n_incorrect, n_rows, 1.0 - beta)
    return bool(p_value <= ONE_PLUS_ROUNDING_ERROR * delta)


def _is_accurate_in_expectation(n_incorrect: int, n_rows: int, accuracy: float) -> bool:
    """Check whether accepted rows have an expected accuracy of at least a limit."""
    allowed_error_rate = 1 - to_exact_fraction(accuracy)
    return n_incorrect + 1 <= allowed_error_rate * (n_rows + 1)


def format_confidence_suffix(delta: float | None) -> str:
    """Format the confidence level of a guarantee as a suffix for error messages."""
    if delta is None:
        return " in expectation"
    return f" (delta {delta:g})"


def certified_miscoverage_rank(n_correct: int, alpha: float, delta: float) -> int:
    """Return the smallest threshold rank that certifies a miscoverage of at most alpha.

    The rank is the smallest k with P(Bin(n, 1 - alpha) >= k) <= delta, or n + 1 ("accept
    everything") if no k satisfies this. It is the rank of the umbrella algorithm of Tong, Feng & Li
    (Science Advances 2018): a threshold at the k-th smallest score of n correct rows has a
    miscoverage above alpha with probability at most delta.

    >>> certified_miscoverage_rank(1000, 0.05, 0.1), expected_miscoverage_rank(1000, 0.05)
    (960, 951)
    """

    def is_certified(rank: int) -> bool:
        return miscoverage_violation(n_correct, rank, alpha) <= delta

    # Bisection is valid because the violation probability falls as the rank rises.
    candidate_ranks = range(1, n_correct + 1)
    n_uncertified_ranks = bisect_left(candidate_ranks, True, key=is_certified)
    return n_uncertified_ranks + 1


def miscoverage_violation(n_correct: int, rank: int, alpha: float) -> float:
    """Compute the probability that a threshold at `rank` violates a miscoverage limit.

    The threshold is the `rank`-th smallest of n continuous scores of correct rows. Its miscoverage
    F0 has exactly the distribution Beta(n + 1 - rank, rank), so that
    P(F0 > alpha) = P(Bin(n, 1 - alpha) >= rank).

    The paper reads its Equation (tong2018) as "small with high probability". For the rank that the
    paper uses, this probability is about one half.

    >>> round(miscoverage_violation(500, expected_miscoverage_rank(500, 0.05), 0.05), 2)
    0.47
    """
    return float(bdtrc(rank - 1, n_correct, 1.0 - alpha))


def miscoverage_quantile(n_correct: int, rank: int, level: float) -> float:
    """Compute a quantile of the miscoverage of a threshold at `rank`.

    The miscoverage has the distribution Beta(n + 1 - rank, rank), as in `miscoverage_violation`.

    >>> round(miscoverage_quantile(1000, 960, 0.9), 4)
    0.0492
    """
    if rank > n_correct:
        return 0.0
    return float(betaincinv(n_correct + 1 - rank, rank, level))


def smallest_certifiable_miscoverage(n_correct: int, delta: float | None) -> float:
    """Return the smallest miscoverage limit at which any row can be rejected.

    It is 1 - delta^(1/n) for n correct rows, or 1 / (n + 1) in expectation (`delta` is None).

    >>> round(smallest_certifiable_miscoverage(100, 0.1), 4)
    0.0228
    """
    if delta is None:
        return 1.0 / (n_correct + 1)
    return -math.expm1(math.log(delta) / n_correct)


def correct_rows_needed(alpha: float, delta: float | None) -> int:
    """Return the number of correct rows that are needed to reject any row.

    The miscoverage is limited to alpha, at confidence level 1 - delta.

    >>> correct_rows_needed(0.05, 0.1)
    45
    """
    if delta is None:
        return math.ceil(1 / to_exact_fraction(alpha)) - 1
    return math.ceil(math.log(delta) / math.log1p(-alpha))


def largest_certifiable_accuracy(n: int, delta: float | None) -> float:
    """Return the largest accuracy that n rows can certify if all n are correct.

    It is delta^(1/n), or n / (n + 1) in expectation (`delta` is None).

    >>> round(largest_certifiable_accuracy(100, 0.1), 4)
    0.9772
    """
    if delta is None:
        return n / (n + 1)
    return math.exp(math.log(delta) / n)


def error_free_rows_needed(beta: float, level: float) -> int:
    """Return the number of error-free rows that certify an accuracy of beta at `level`.

    The number is m_min(level) = ceil(log level / log beta).

    >>> error_free_rows_needed(0.97, 0.1)
    76
    """
    return math.ceil(math.log(level) / math.log(beta))


def round_up_to_two_digits(n_rows: int) -> int:
    """Round a number of rows up to two significant digits."""
    n_digits = len(str(n_rows))
    rounding_step = 10 ** max(0, n_digits - 2)
    return int(math.ceil(n_rows / rounding_step) * rounding_step)


def accuracy_preserving_sup_ece(accuracy: float, n_classes: int) -> float:
    """Compute the lower bound of Proposition 1 on a sup-ECE.

    It is about an accuracy-preserving map.

    The sup-ECE is the supremum of the expected calibration error (ECE) over all binnings. For K
    classes, Proposition 1 states that it is more than (1 - accuracy) / K.

    The proposition holds if no two confidences tie: the supremum is reached with one row per bin,
    and no binning separates tied rows. With ties it is false. For K = 2, four rows of confidence
    0.75, three of them correct, are perfectly calibrated under every binning, while
    (1 - 0.75) / 2 = 0.125.

    The second half of the proposition, that an ECE is at least its binned estimate, is false on any
    finite sample. For a calibrated model, whose ECE is 0, the binned estimate from 1,000 rows is
    .029 on average (15 bins, confidences uniform on [.5, 1]).

    >>> accuracy_preserving_sup_ece(0.75, 2)
    0.125
    """
    return (1.0 - accuracy) / n_classes


def gate_sup_ece(
    type_2_error: float,
    accuracy: float,
    rejected_share: float = 0.0,
    rejected_accuracy: float | None = None,
    n_classes: int | None = None,
) -> float:
    """Compute the exact sup-ECE of a gate with constant confidences.

    This is Proposition 3. The sup-ECE is the supremum of the expected calibration error (ECE) over
    all binnings.

    The gate assigns confidence 1 to accepted rows and 1/K to rejected rows. Its sup-ECE is
    R1·(1 - π0) + (n_rej / n)·|acc_rej - 1/K|. The paper has the first term alone. That is correct
    if a rejected row counts as 1/K correct (random tie breaking, in expectation). For this reading,
    leave `rejected_accuracy` out.

    Parameters
    ----------
    type_2_error : float
        Share R1 of the incorrect rows that the gate accepts.
    accuracy : float
        Accuracy π0 of the classifier on all rows.
    rejected_share : float
        Share n_rej / n of the rows that the gate rejects.
    rejected_accuracy : float, optional
        Accuracy acc_rej of the classifier on rejected rows.
    n_classes : int, optional
        Number of classes K. It is required if `rejected_accuracy` is given.

    Returns
    -------
    float
        The sup-ECE.

    Raises
    ------
    InputError
        If `rejected_accuracy` is given without `n_classes`.

    Examples
    --------
    >>> gate_sup_ece(0.5, 0.75)
    0.125
    >>> gate_sup_ece(0.5, 0.75, rejected_share=0.25, rejected_accuracy=0.5, n_classes=4)
    0.1875
    """
    ece_of_accepted_rows = type_2_error * (1.0 - accuracy)
    if rejected_accuracy is None:
        return ece_of_accepted_rows
    if n_classes is None:
        raise InputError(
            "gate_sup_ece requires n_classes, because it compares the accuracy of rejected rows"
            " with 1/K."
        )
    rejected_confidence = 1.0 / n_classes
    ece_of_rejected_rows = rejected_share * abs(rejected_accuracy - rejected_confidence)
    return ece_of_accepted_rows + ece_of_rejected_rows


def meta_cal_sup_ece(type_2_error: float, accuracy: float, n_classes: int) -> float:
    """Compute the corrected lower bound of Proposition 5 on the sup-ECE of Meta-Cal.

    Over an accuracy-preserving base map, the sup-ECE of Meta-Cal is at least R1·(1 - π0) / K.

    The paper has w·(1 - π0) / K, where w is the share of accepted rows. That is false. With K = 2,
    π0 = 1/2 and a perfect gate, R1 = 0 and every accepted row is correct, so the sup-ECE can be
    arbitrarily close to 0, while w·(1 - π0) / K = 1/8. Only the accepted errors, which are
    R1·(1 - π0) of all rows, contribute at least 1/K each.

    The bound requires that all accepted confidences differ. With ties it fails as Proposition 1
    does: if four rows of confidence 3/4 are accepted, K = 2 and three of them are correct, then the
    sup-ECE is 0, and the bound is 1/8.

    >>> meta_cal_sup_ece(0.5, 0.75, 2)
    0.0625
    """
    return type_2_error * (1.0 - accuracy) / n_classes


def error_below(limit: float, values: ArrayLike) -> float:
    """Estimate the error rate of rows whose error probability is below a limit.

    This is Proposition 7, corrected. If U = t(h) is a calibrated error probability, then
    P(error | U < limit) = E[U | U < limit]. The paper writes ∫u du, which lacks the density of U
    and therefore gives t²/2 for every distribution.

    The argument `values` holds draws of U. The result is NaN if no draw is below the limit.

    >>> error_below(0.5, [0.1, 0.3, 0.9])
    0.2
    """
    probability_draws = np.asarray(values, dtype=np.float64)
    draws_below_limit = probability_draws[probability_draws < limit]
    if len(draws_below_limit) == 0:
        return math.nan
    return float(draws_below_limit.mean())
