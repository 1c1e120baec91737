"""Finite-sample bounds, one function each; nothing here draws a random number or sees a logit.

The first half is what the certificates are made of. The second half is the paper's propositions
(numbered as propositions alone, without its definitions), with the corrections that brute force
asks for; each docstring says what was changed and why.
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

#: A tail probability in a file is recomputed by another SciPy than the one that compared it with
#: delta.
SLACK = 1.0 + 1e-9


def exact(value: float) -> Fraction:
    """The decimal a person wrote, as a fraction: 0.05 is 1/20, not the binary float next to it.

    >>> exact(0.05)
    Fraction(1, 20)
    """
    return Fraction(repr(float(value)))


def binomial_p_value(errors: ArrayLike, n: ArrayLike, error_rate: float) -> Float:
    """P(Bin(n, error_rate) <= errors): the exact p-value of "the error rate is error_rate or more".

    >>> float(binomial_p_value(0, 100, 0.03).round(4))
    0.0476
    """
    return np.asarray(
        bdtr(np.asarray(errors, dtype=np.float64), np.asarray(n, dtype=np.int64), error_rate)
    )


def clopper_pearson_upper(errors: int, n: int, delta: float) -> float:
    """Upper limit of a proportion at confidence 1 - delta: the Beta(errors+1, n-errors) quantile
    (Clopper & Pearson).

    >>> round(clopper_pearson_upper(0, 100, 0.1), 4)          # 1 - 0.1 ** (1 / 100)
    0.0228
    """
    return 1.0 if errors >= n else float(betaincinv(errors + 1, n - errors, 1.0 - delta))


def clopper_pearson_lower(successes: int, n: int, delta: float) -> float:
    """Lower limit of a proportion at confidence 1 - delta: the Beta(successes, n-successes+1)
    quantile.

    >>> round(clopper_pearson_lower(100, 100, 0.1), 4)        # 0.1 ** (1 / 100)
    0.9772
    """
    return 0.0 if successes <= 0 else float(betaincinv(successes, n - successes + 1, delta))


def expected_miscoverage_rank(n_correct: int, alpha: float) -> int:
    """The smallest rank k with E[P(h > r_(k))] = (n+1-k)/(n+1) <= alpha: the paper's, in exact
    arithmetic.

    k = n + 1 - floor((n+1)·alpha). The paper's float formula ceil((n+1)(1-alpha)) is off by one in
    about 0.6% of cases. k = n + 1 means "accept everything".

    >>> expected_miscoverage_rank(99, 0.05)
    95
    """
    return n_correct + 1 - math.floor((n_correct + 1) * exact(alpha))


def miscoverage_rank(n_correct: int, alpha: float, delta: float | None) -> int:
    """How many of n right rows must be accepted, certified or in expectation (delta None); n + 1:
    all there can be.
    """
    if delta is None:
        return expected_miscoverage_rank(n_correct, alpha)
    return certified_miscoverage_rank(n_correct, alpha, delta)


def keeps_enough(n: int, kept: int, alpha: float, delta: float | None) -> bool:
    """Whether so many of n rows at or below a threshold certify that at most alpha of their kind
    lie above it.

    It takes P(Bin(n, 1-alpha) >= kept) <= delta, or in expectation (n+1-kept)/(n+1) <= alpha.

    >>> keeps_enough(1000, 960, 0.05, 0.1), keeps_enough(1000, 959, 0.05, 0.1)
    (True, False)
    """
    if delta is None:
        return kept >= expected_miscoverage_rank(n, alpha)
    return kept > 0 and miscoverage_violation(n, kept, alpha) <= SLACK * delta


def few_enough(wrong: int, n: int, beta: float, delta: float | None) -> bool:
    """Whether so few wrong ones of n rows certify an accuracy of at least beta.

    It takes P(Bin(n, 1-beta) <= wrong) <= delta, or in expectation wrong + 1 <= (1-beta)(n+1).
    Every rule that tests ranks exactly, at shares of delta that sum to delta, ends at such a rank.

    >>> few_enough(0, 45, 0.95, 0.1), few_enough(0, 44, 0.95, 0.1)
    (True, False)
    """
    if delta is None:
        return wrong + 1 <= (1 - exact(beta)) * (n + 1)
    return n > 0 and bool(binomial_p_value(wrong, n, 1.0 - beta) <= SLACK * delta)


def surely(delta: float | None) -> str:
    """How surely, behind what is not certified."""
    return " in expectation" if delta is None else f" (delta {delta:g})"


def certified_miscoverage_rank(n_correct: int, alpha: float, delta: float) -> int:
    """The smallest rank k with P(Bin(n, 1-alpha) >= k) <= delta; n + 1 ("accept everything") when
    there is none.

    The umbrella algorithm of Tong, Feng & Li (Science Advances 2018): thresholding at the k-th
    smallest score of n correct rows gives a miscoverage above alpha with probability at most delta.

    >>> certified_miscoverage_rank(1000, 0.05, 0.1), expected_miscoverage_rank(1000, 0.05)
    (960, 951)
    """
    ranks = range(1, n_correct + 1)  # P(... >= k) falls with k
    return 1 + bisect_left(
        ranks, True, key=lambda k: miscoverage_violation(n_correct, k, alpha) <= delta
    )


def miscoverage_violation(n_correct: int, rank: int, alpha: float) -> float:
    """P(F0 > alpha) for the threshold r_(rank) of n continuous scores: P(Bin(n, 1-alpha) >= rank).

    F0 ~ Beta(n+1-rank, rank) exactly. The paper reads its Equation (tong2018) as "small with high
    probability"; for its own rank it is about one half.

    >>> round(miscoverage_violation(500, expected_miscoverage_rank(500, 0.05), 0.05), 2)
    0.47
    """
    return float(bdtrc(rank - 1, n_correct, 1.0 - alpha))


def miscoverage_quantile(n_correct: int, rank: int, level: float) -> float:
    """The `level` quantile of F0 ~ Beta(n+1-rank, rank).

    >>> round(miscoverage_quantile(1000, 960, 0.9), 4)
    0.0492
    """
    return 0.0 if rank > n_correct else float(betaincinv(n_correct + 1 - rank, rank, level))


def smallest_certifiable_miscoverage(n_correct: int, delta: float | None) -> float:
    """The smallest alpha at which any row can be rejected: 1 - delta^(1/n), or 1/(n+1) in
    expectation (delta None).

    >>> round(smallest_certifiable_miscoverage(100, 0.1), 4)
    0.0228
    """
    return 1.0 / (n_correct + 1) if delta is None else -math.expm1(math.log(delta) / n_correct)


def correct_rows_needed(alpha: float, delta: float | None) -> int:
    """How many correct rows it takes before a miscoverage limit of alpha lets any row be rejected.

    >>> correct_rows_needed(0.05, 0.1)
    45
    """
    if delta is None:
        return math.ceil(1 / exact(alpha)) - 1
    return math.ceil(math.log(delta) / math.log1p(-alpha))


def largest_certifiable_accuracy(n: int, delta: float | None) -> float:
    """The cap on any certified accuracy from n rows, all of them right: delta^(1/n), or n/(n+1) in
    expectation.

    >>> round(largest_certifiable_accuracy(100, 0.1), 4)
    0.9772
    """
    return n / (n + 1) if delta is None else math.exp(math.log(delta) / n)


def error_free_rows_needed(beta: float, level: float) -> int:
    """m_min(level) = ceil(log level / log beta): rows without an error that certify accuracy beta
    at that level.

    >>> error_free_rows_needed(0.97, 0.1)
    76
    """
    return math.ceil(math.log(level) / math.log(beta))


def two_digits(rows: int) -> int:
    """About so many rows, rounded up."""
    unit = 10 ** max(0, len(str(rows)) - 2)
    return int(math.ceil(rows / unit) * unit)


def accuracy_preserving_sup_ece(accuracy: float, n_classes: int) -> float:
    """Proposition 1: sup over binnings of the ECE of an accuracy-preserving map is more than (1 -
    accuracy)/K.

    Holds when no two confidences tie: the supremum is reached with one row per bin, and no binning
    can tell tied rows apart. With ties it is false: K = 2 and four rows of confidence 0.75, three
    of them right, are perfectly calibrated under every binning, while (1 - 0.75)/2 = 0.125. The
    second half of the proposition, that an ECE is at least its binned estimate, is false on any
    finite sample: of a calibrated model, whose ECE is 0, 1,000 rows show .029 on average (15 bins,
    confidences uniform on [.5, 1]).

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
    """Proposition 3, exactly: sup-ECE of the map that says 1 on accepted rows and 1/K on rejected
    ones.

    R1·(1 - π0) + (n_rej/n)·|acc_rej - 1/K|. The paper has the first term alone, which is right when
    a rejected row counts as 1/K correct (random tie breaking, in expectation): leave
    `rejected_accuracy` out for that reading.

    >>> gate_sup_ece(0.5, 0.75)
    0.125
    >>> gate_sup_ece(0.5, 0.75, rejected_share=0.25, rejected_accuracy=0.5, n_classes=4)
    0.1875
    """
    accepted = type_2_error * (1.0 - accuracy)
    if rejected_accuracy is None:
        return accepted
    if n_classes is None:
        raise InputError(
            "gate_sup_ece needs n_classes to compare the accuracy of rejected rows with 1/K."
        )
    return accepted + rejected_share * abs(rejected_accuracy - 1.0 / n_classes)


def meta_cal_sup_ece(type_2_error: float, accuracy: float, n_classes: int) -> float:
    """Proposition 5, corrected: sup-ECE of Meta-Cal over an accuracy-preserving base is at least
    R1·(1 - π0)/K.

    The paper has w·(1 - π0)/K with w the accepted share. That is false: with K = 2, π0 = 1/2 and a
    perfect gate, R1 = 0 and every accepted row is right, so sup-ECE comes as near to 0 as one likes
    while w·(1 - π0)/K = 1/8. Only the accepted errors, R1·(1 - π0) of all rows, cost at least 1/K
    each; and they do so one by one only where accepted confidences are all different. With ties
    this bound fails as Proposition 1 does: accept four rows of confidence 3/4, K = 2, three of them
    right, and sup-ECE is 0 against 1/8.

    >>> meta_cal_sup_ece(0.5, 0.75, 2)
    0.0625
    """
    return type_2_error * (1.0 - accuracy) / n_classes


def error_below(limit: float, values: ArrayLike) -> float:
    """Proposition 7, corrected: with U = t(h) a calibrated error probability, P(error | U < limit)
    = E[U | U < limit].

    The paper writes ∫u du, which lacks the density of U (and so gives t²/2 whatever the
    distribution). `values` are draws of U; nan when none is below the limit.

    >>> error_below(0.5, [0.1, 0.3, 0.9])
    0.2
    """
    draws = np.asarray(values, dtype=np.float64)
    below = draws[draws < limit]
    return float(below.mean()) if len(below) else math.nan
