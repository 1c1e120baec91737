r"""Prediction interval of the number of new rows that go to review.

The interval is computed before any of the rows has been seen. The
*review rate* is the probability that a row is rejected. Its distribution depends on the promise:

- The threshold is the k-th smallest of n scores, and this row is accepted (MaxReview, and
  MaxMiscoverage among the correct rows). Then P(score <= threshold) ~ Beta(k, n-k+1), so the review
  rate is Beta(n-k+1, k), for every distribution of the scores.
- The threshold lies just below the (m+1)-th smallest of n scores (accuracy). The review rate is
  Beta(n-m, m+1). This is exact if the rank was fixed beforehand. If labels chose the rank, 90%
  intervals cover 89 to 93% in simulations.
- The incorrect rows have no influence on a threshold for miscoverage. If a0 of n0 incorrect rows are
  accepted, their review rate is Beta(n0-a0+1/2, a0+1/2) (Jeffreys prior). All rows are a mixture of
  n1 correct and n0 incorrect rows.
- If each class or group has a threshold, all rows are a mixture of the subgroups.

A mixture Σ w_j R_j with w ~ Dirichlet(counts + 1/2) and independent beta rates R_j has a known mean
and variance. It is approximated by the beta distribution with the same mean and variance. The number
of reviewed rows among N new rows then has a beta-binomial distribution. The tempting shortcut, a
binomial distribution with the observed review rate, covers only 76 to 80%, because it ignores that a
finite calibration set only estimates the rate.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from scipy.special import gammaln

from metacal.errors import GroupsError, InputError
from metacal.rows.arrays import check_fraction

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate
    from metacal.certificates.counts import Traffic
    from metacal.certificates.quantity import Quantity
    from metacal.certificates.subgroups import (
        Name,
        SubgroupCertificate,
        SubgroupCertificates,
    )

#: Largest number of new rows, because the probability of each count is computed.
_MAX_ROWS = 10_000_000


class ReviewRate(NamedTuple):
    """Beta distribution of a review rate, estimated from calibration rows.

    Attributes
    ----------
    n_calibration_rows : float
        Number of calibration rows of this kind.
    rejected_pseudocount, accepted_pseudocount : float
        Parameters a and b of the beta distribution. If a is 0, no row is reviewed. If b is 0, every
        row is reviewed.
    """

    n_calibration_rows: float
    rejected_pseudocount: float
    accepted_pseudocount: float

    @classmethod
    def from_counts_at_threshold(
        cls,
        n_rows: int,
        n_accepted: int,
        threshold: float,
        *,
        last_accepted_row_sets_threshold: bool,
    ) -> Self:
        """Return the beta distribution of the review rate, given counts at a threshold.

        Parameters
        ----------
        n_rows, n_accepted : int
            Number of calibration rows, and of those at or below the threshold.
        threshold : float
            The threshold; no row is reviewed if it is +inf, and all rows if it is -inf.
        last_accepted_row_sets_threshold : bool
            Whether the threshold is the score of an accepted row. If not, it lies just below the
            score of the first rejected row.

        Returns
        -------
        ReviewRate
        """
        accepts_every_row = threshold == math.inf
        accepts_no_row = threshold == -math.inf
        if accepts_every_row:
            return cls(
                n_calibration_rows=n_rows, rejected_pseudocount=0.0, accepted_pseudocount=1.0
            )
        if accepts_no_row:
            return cls(
                n_calibration_rows=n_rows, rejected_pseudocount=1.0, accepted_pseudocount=0.0
            )
        n_rejected = n_rows - n_accepted
        if last_accepted_row_sets_threshold:
            return cls(
                n_calibration_rows=n_rows,
                rejected_pseudocount=n_rejected + 1.0,
                accepted_pseudocount=n_accepted,
            )
        # A rejected pseudo-count of 0 would mean that no row is ever reviewed.
        return cls(
            n_calibration_rows=n_rows,
            rejected_pseudocount=max(1.0, n_rejected),
            accepted_pseudocount=n_accepted + 1.0,
        )

    @classmethod
    def approximate_mixture(cls, components: Sequence[ReviewRate]) -> ReviewRate:
        """Return the beta distribution with the mean and variance of a mixture.

        A random row belongs to component j with an unknown probability w_j, estimated from the
        numbers of calibration rows.

        >>> ReviewRate.approximate_mixture([ReviewRate(100, 10, 91), ReviewRate(100, 0, 1)])
        ReviewRate(n_calibration_rows=200, rejected_pseudocount=9.99..., accepted_pseudocount=191.9...)
        """
        if len(components) == 1:
            return components[0]
        n_rows, a, b = (np.array(column, dtype=np.float64) for column in zip(*components))
        rate_means = a / (a + b)
        rate_second_moments = rate_means * (a + 1.0) / (a + b + 1.0)
        # If a = 0 or b = 0, the rate R is 0 or 1, so that E[R²] = E[R].
        is_constant_rate = a * b == 0.0
        rate_second_moments = np.where(is_constant_rate, rate_means, rate_second_moments)
        # The weights of the components have the posterior distribution Dirichlet(n_rows + 1/2).
        dirichlet_weights = n_rows + 0.5
        weight_sum = float(dirichlet_weights.sum())
        mean = float(dirichlet_weights @ rate_means) / weight_sum
        # E[(Σ w_j R_j)²] is (Σ E[w_j R_j])², with E[w_j² R_j²] in place of each E[w_j R_j]².
        second_moment_corrections = (
            dirichlet_weights * (dirichlet_weights + 1.0) * rate_second_moments
            - (dirichlet_weights * rate_means) ** 2
        )
        scaled_second_moment = (weight_sum * mean) ** 2 + float(second_moment_corrections.sum())
        variance = scaled_second_moment / (weight_sum * (weight_sum + 1.0)) - mean**2
        a_plus_b = 1.0
        if 0.0 < mean < 1.0:
            a_plus_b = mean * (1.0 - mean) / variance - 1.0
        return cls(
            n_calibration_rows=int(n_rows.sum()),
            rejected_pseudocount=mean * a_plus_b,
            accepted_pseudocount=(1.0 - mean) * a_plus_b,
        )


def estimate_review_rate(certificate: Certificate, subgroup_name: Name | None = None) -> ReviewRate:
    """Estimate the review rate of all rows, or of the rows of one class or group.

    Parameters
    ----------
    certificate : Certificate
        Certificate of the gate.
    subgroup_name : str or int, optional
        Class or group, if each has its own threshold; all rows by default.

    Returns
    -------
    ReviewRate

    Raises
    ------
    InputError
        If the certificate has no such class or group.
    """
    if certificate.cases is not None and subgroup_name is None:
        return certificate.cases.estimate_review_rate(certificate.traffic)
    if certificate.subgroups is not None:
        return _estimate_subgroup_review_rate(certificate, certificate.subgroups, subgroup_name)
    if subgroup_name is not None:
        raise GroupsError(
            "This gate has the same threshold for all rows, so it has no threshold for"
            f" {subgroup_name!r}. Leave out the subgroup, or fit the gate with PerClass or"
            " PerGroup."
        )
    return _estimate_review_rate_of_all_rows(certificate)


def _estimate_review_rate_of_all_rows(certificate: Certificate) -> ReviewRate:
    """Estimate the review rate of a gate that has the same threshold for all rows."""
    if certificate.accepts_everything:
        threshold = math.inf
    else:
        # A finite threshold keeps the review rate above 0. In a cascade, the threshold of the first
        # model may be +inf although people review rows.
        threshold = min(certificate.threshold, sys.float_info.max)
    rate_of_independent_rows = _estimate_review_rate_from_counts(
        certificate.quantity, certificate.traffic, threshold
    )
    # In the worst case, a cluster of the largest size is as informative as a single row.
    max_cluster_size = certificate.design.largest_cluster_size or 1
    return ReviewRate(
        n_calibration_rows=rate_of_independent_rows.n_calibration_rows,
        rejected_pseudocount=_divide_by_cluster_size(
            rate_of_independent_rows.rejected_pseudocount, max_cluster_size
        ),
        accepted_pseudocount=_divide_by_cluster_size(
            rate_of_independent_rows.accepted_pseudocount, max_cluster_size
        ),
    )


def _divide_by_cluster_size(pseudocount: float, max_cluster_size: int) -> float:
    """Divide a pseudo-count by the largest cluster size, without falling below 1."""
    if pseudocount > 1.0:
        return max(1.0, pseudocount / max_cluster_size)
    return pseudocount


def _estimate_subgroup_review_rate(
    certificate: Certificate, subgroups: SubgroupCertificates, subgroup_name: Name | None
) -> ReviewRate:
    """Estimate the review rate of one class or group, or of all of them together."""
    if subgroup_name is None:
        selected_subgroups = [subgroup for subgroup in subgroups.items if subgroup.n_rows > 0]
    else:
        selected_subgroups = [
            subgroup for subgroup in subgroups.items if subgroup_name in subgroup.names
        ]
    if not selected_subgroups:
        raise GroupsError(
            f"Unknown {subgroups.by} {subgroup_name!r}. Pass one of"
            f" {', '.join(map(str, subgroups.names))}."
        )
    # Untested rows of the pooled subgroup count for its share of all rows, but not for its review
    # rate. All rows of other subgroups are tested.
    n_tested_rows = sum(subgroup.n_rows for subgroup in subgroups.items)
    n_untested_pooled_rows = certificate.n_rows - n_tested_rows
    subgroup_rates = []
    for subgroup in selected_subgroups:
        subgroup_rate = _estimate_review_rate_from_counts(
            certificate.quantity, subgroup, subgroup.threshold
        )
        if subgroup.is_pooled:
            n_pooled_rows = subgroup_rate.n_calibration_rows + n_untested_pooled_rows
            subgroup_rate = subgroup_rate._replace(n_calibration_rows=n_pooled_rows)
        subgroup_rates.append(subgroup_rate)
    return ReviewRate.approximate_mixture(subgroup_rates)


def _estimate_review_rate_from_counts(
    quantity: Quantity, counts: Traffic | SubgroupCertificate, threshold: float
) -> ReviewRate:
    """Estimate the review rate of rows that have the same threshold.

    How the threshold was chosen depends on the quantity. If only rejections can break the promise,
    the threshold is the score of the last accepted row: of the correct rows if labels are needed
    (miscoverage), else of all rows (review rate). For other quantities, it lies just below the
    score of the first rejected row.

    Parameters
    ----------
    quantity : Quantity
        Quantity that the promise limits.
    counts : Traffic or SubgroupCertificate
        Counts of the rows.
    threshold : float
        Threshold of these rows.

    Returns
    -------
    ReviewRate
    """
    threshold_depends_on_correct_rows_only = (
        quantity.limits_only_rejections and quantity.needs_labels
    )
    if not threshold_depends_on_correct_rows_only:
        return ReviewRate.from_counts_at_threshold(
            n_rows=counts.n_rows,
            n_accepted=counts.n_accepted,
            threshold=threshold,
            last_accepted_row_sets_threshold=quantity.limits_only_rejections,
        )
    rate_of_correct = ReviewRate.from_counts_at_threshold(
        n_rows=counts.n_correct,
        n_accepted=counts.n_correct_accepted,
        threshold=threshold,
        last_accepted_row_sets_threshold=True,
    )
    # The threshold does not depend on incorrect rows, so the number of rejected errors is binomial.
    n_incorrect = counts.n_rows - counts.n_correct
    if n_incorrect == 0:
        return rate_of_correct
    n_incorrect_accepted = counts.n_accepted - counts.n_correct_accepted
    n_incorrect_rejected = n_incorrect - n_incorrect_accepted
    jeffreys_pseudocount = 0.5 if math.isfinite(threshold) else 0.0
    rate_of_incorrect = ReviewRate(
        n_calibration_rows=n_incorrect,
        rejected_pseudocount=n_incorrect_rejected + jeffreys_pseudocount,
        accepted_pseudocount=n_incorrect_accepted + jeffreys_pseudocount,
    )
    return ReviewRate.approximate_mixture([rate_of_correct, rate_of_incorrect])


@dataclass(frozen=True)
class NextRows:
    """Prediction interval of the number of new rows that go to review.

    Attributes
    ----------
    rows : int
        Number of new rows.
    level : float
        Probability that the interval contains the number of reviewed rows.
    fewest, most : int
        Ends of the interval.
    each : "row", "unit" or "case"
        "unit" if the calibration rows come in clusters, and "case" if they are items of cases. The
        new rows are then one row of each of `rows` clusters or cases.

    Examples
    --------
    >>> print(predict_review_count(1000, 0.9, ReviewRate(1000, 108, 893)))
    of the next 1,000 rows 86 to 131 go to review (90% interval)
    >>> print(predict_review_count(50, 0.9, ReviewRate(200, 0, 1)))
    none of the next 50 rows goes to review
    """

    rows: int
    level: float
    fewest: int
    most: int
    each: Literal["row", "unit", "case"] = "row"

    def __str__(self) -> str:
        rows_text = f"{self.rows:,} rows"
        if self.each == "unit":
            rows_text += ", each of its own cluster,"
        elif self.each == "case":
            rows_text = f"{self.rows:,} items, each of its own case,"
        if self.most == 0:
            return f"none of the next {rows_text} goes to review"
        level_text = f"{100 * self.level:.6g}%"
        return (
            f"of the next {rows_text} {self.fewest:,} to {self.most:,} go to review"
            f" ({level_text} interval)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction interval as JSON types."""
        return vars(self).copy()


def predict_review_count(
    n_rows: int,
    level: float,
    review_rate: ReviewRate,
    *,
    sampled_unit: Literal["row", "unit", "case"] = "row",
) -> NextRows:
    """Compute the equal-tailed beta-binomial interval of the number of reviewed rows.

    Parameters
    ----------
    n_rows : int
        Number of new rows.
    level : float
        Probability that the interval contains the number of reviewed rows.
    review_rate : ReviewRate
        Distribution of the probability that a row is reviewed.
    sampled_unit : "row", "unit" or "case", default="row"
        Whether the new rows are independent, or one row of each of as many clusters or cases.

    Returns
    -------
    NextRows

    Raises
    ------
    InputError
        If the number of rows or the level is out of range.
    """
    is_whole_number = isinstance(n_rows, int | np.integer) and not isinstance(n_rows, bool)
    if not is_whole_number or not 1 <= n_rows <= _MAX_ROWS:
        raise InputError(
            f"rows must be an integer between 1 and {_MAX_ROWS:,}, but got {n_rows!r}."
        )
    check_fraction("level", level)
    # The number k of reviewed rows among n has a beta-binomial distribution.
    n = int(n_rows)
    a = review_rate.rejected_pseudocount
    b = review_rate.accepted_pseudocount
    no_row_is_reviewed = a == 0.0
    every_row_is_reviewed = b == 0.0
    if no_row_is_reviewed:
        return NextRows(rows=n, level=float(level), fewest=0, most=0, each=sampled_unit)
    if every_row_is_reviewed:
        return NextRows(rows=n, level=float(level), fewest=n, most=n, each=sampled_unit)
    k = np.arange(n + 1.0)
    log_binomial_coefficient = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
    log_beta_binomial = log_binomial_coefficient + gammaln(k + a) + gammaln(n - k + b)
    unscaled_probability = np.exp(log_beta_binomial - log_beta_binomial.max())
    cumulative_probability = np.cumsum(unscaled_probability) / unscaled_probability.sum()
    tail_probability = (1.0 - level) / 2.0
    fewest = int(np.searchsorted(cumulative_probability, tail_probability, side="right"))
    most = int(np.searchsorted(cumulative_probability, 1.0 - tail_probability, side="left"))
    return NextRows(rows=n, level=float(level), fewest=fewest, most=min(most, n), each=sampled_unit)
