r"""Estimate of the selective accuracy from calibrated confidences.

The estimate needs no labels and has no guarantee.

A row with calibrated confidence c is correct with probability c, so the mean confidence c̄ of N
accepted rows estimates their accuracy. It has three errors:

- chance: given the confidences, the accuracy has the standard deviation √(Σ c(1 - c)) / N;
- level: the calibrator was fitted on n accepted rows with accuracy p, so its level has the standard
  error √(p(1 - p) / n);
- shape: on these calibration rows, mean confidence and accuracy differ by a gap g.

The half-width of the interval is z · √(chance² + level²) + |g|, where z is the normal quantile of the
level. The estimate holds for rows from the source of the calibration rows. **It is wrong under
shift**, which confidences do not reveal: a classifier is often confident and incorrect on unusual
rows. Only labels reveal it, and monitors use them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from metacal import display
from metacal.errors import MissingLabelsError
from metacal.formulas import Flags
from metacal.rows.arrays import check_fraction

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate
    from metacal.promises.sequential.profile import Profile


@dataclass(frozen=True)
class AccuracyEstimate:
    """Selective accuracy, estimated from the confidences of accepted rows alone.

    Attributes
    ----------
    accuracy : float or None
        The estimate; None if no row was accepted.
    low, high : float or None
        Ends of its interval.
    level : float
        Nominal coverage of the interval, for rows from the source of the calibration rows.
    n_rows, n_accepted : int
        Number of rows, and of accepted rows.
    """

    accuracy: float | None
    low: float | None
    high: float | None
    level: float
    n_rows: int
    n_accepted: int

    def to_dict(self) -> dict[str, Any]:
        """Convert the estimate to a dictionary, with its basis as text."""
        return {
            **vars(self),
            "basis": "calibrated confidence of accepted rows, no labels; wrong under shift",
        }

    def to_frame(self) -> Any:
        """Convert the estimate to a `pandas.DataFrame` with one row."""
        return display.make_frame([vars(self)])

    def _repr_html_(self) -> str:
        return display.make_paragraphs_html(str(self))

    def __str__(self) -> str:
        if self.accuracy is None or self.low is None or self.high is None:
            return f"No row of {self.n_rows:,} was accepted: there is nothing to estimate."
        return (
            f"About {100 * self.accuracy:.2f}% of the {self.n_accepted:,} accepted predictions are correct,"
            f" {100 * self.low:.2f}% to {100 * self.high:.2f}%: an estimate from confidence alone,"
            f" at {self.level:.0%}. If the rows have shifted since calibration it is wrong; only"
            " labels would tell."
        )


@dataclass(frozen=True)
class AcceptedSums:
    """Sums of confidences and variances, from which an accuracy is estimated.

    Attributes
    ----------
    n_rows, n_accepted : int
        Number of rows, and of accepted rows.
    confidence_sum : float
        Sum of the confidences c of the accepted rows.
    variance_sum : float
        Sum of c(1 - c) over the accepted rows.
    """

    n_rows: int
    n_accepted: int
    confidence_sum: float
    variance_sum: float


def sum_accepted_confidences(confidence: NDArray[Any], accept: Flags) -> AcceptedSums:
    """Sum the confidences and the Bernoulli variances of accepted rows."""
    accepted_confidence = np.asarray(confidence, dtype=np.float64)[accept]
    bernoulli_variance = accepted_confidence * (1.0 - accepted_confidence)
    return AcceptedSums(
        n_rows=len(accept),
        n_accepted=len(accepted_confidence),
        confidence_sum=float(accepted_confidence.sum()),
        variance_sum=float(bernoulli_variance.sum()),
    )


def infer_accuracy_from_sums(
    certificate: Certificate | None,
    profile: Profile | None,
    sums: AcceptedSums,
    *,
    level: float = 0.95,
) -> AccuracyEstimate:
    """Estimate the selective accuracy from sums of confidences of accepted rows.

    Parameters
    ----------
    certificate : Certificate or None
        Certificate of the gate.
    profile : Profile or None
        Profile of the calibration rows. It has their confidences and correctness.
    sums : AcceptedSums
        Sums over the rows.
    level : float, default=0.95
        Nominal coverage of the interval.

    Returns
    -------
    AccuracyEstimate

    Raises
    ------
    InputError
        If the gate was fitted without labels or without a promise.

    Examples
    --------
    >>> from metacal.promises.accuracy import MinAccuracy
    >>> from metacal.promises.sequential.profile import build_profile
    >>> from metacal.certification.ranking import Ranking
    >>> scores, correct = np.arange(2000.0), np.arange(2000) % 100 > 0
    >>> certificate = MinAccuracy(0.97).certify(scores, correct)
    >>> profile = build_profile(Ranking.from_scores(scores, correct), np.full(2000, 0.99), correct)
    >>> sums = AcceptedSums(n_rows=1000, n_accepted=900, confidence_sum=891.0, variance_sum=8.91)
    >>> infer_accuracy_from_sums(certificate, profile, sums)
    AccuracyEstimate(accuracy=0.99, low=0.98..., high=0.99..., level=0.95, n_rows=1000, n_accepted=900)
    """
    check_fraction("level", level)
    if certificate is None or not certificate.has_labels:
        raise MissingLabelsError(
            "This gate has no calibrated confidence, so the accuracy cannot be estimated without"
            " labels. Pass labels, or fit the gate on labelled rows."
        )
    n_accepted = sums.n_accepted
    if n_accepted == 0:
        return AccuracyEstimate(
            accuracy=None, low=None, high=None, level=level, n_rows=sums.n_rows, n_accepted=0
        )
    n_accepted_fit_rows = certificate.traffic.n_accepted
    n_correct_fit_rows = certificate.traffic.n_correct_accepted
    calibration_gap = 0.0
    confidence_bins = () if profile is None else profile.confidence_bins
    has_confidences = any(confidence_bin.n_rows > 0 for confidence_bin in confidence_bins)
    if has_confidences:
        n_accepted_fit_rows = sum(confidence_bin.n_rows for confidence_bin in confidence_bins)
        n_correct_fit_rows = sum(confidence_bin.n_correct for confidence_bin in confidence_bins)
        fit_confidence_sum = sum(
            confidence_bin.confidence_sum for confidence_bin in confidence_bins
        )
        calibration_gap = abs(
            fit_confidence_sum / n_accepted_fit_rows - n_correct_fit_rows / n_accepted_fit_rows
        )
    # A pseudo-count of 1/2 for each outcome keeps the variance positive if all rows are correct.
    smoothed_accuracy = (n_correct_fit_rows + 0.5) / (n_accepted_fit_rows + 1.0)
    accuracy_variance = smoothed_accuracy * (1.0 - smoothed_accuracy) / (n_accepted_fit_rows + 1.0)
    outcome_variance = sums.variance_sum / n_accepted**2
    standard_error = math.sqrt(outcome_variance + accuracy_variance)
    normal_quantile = float(ndtri(0.5 + 0.5 * level))
    half_width = normal_quantile * standard_error + calibration_gap
    mean_confidence = sums.confidence_sum / n_accepted
    return AccuracyEstimate(
        accuracy=mean_confidence,
        low=max(0.0, mean_confidence - half_width),
        high=min(1.0, mean_confidence + half_width),
        level=level,
        n_rows=sums.n_rows,
        n_accepted=n_accepted,
    )
