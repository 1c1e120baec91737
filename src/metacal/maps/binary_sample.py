"""Log-odds with a binary outcome, from which monotone curves are fitted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metacal.formulas import Flags, Float
from metacal.maps.fitting.monotone_curves import TINY


@dataclass(frozen=True)
class BinarySample:
    """Log-odds, outcome and weight of each row."""

    log_odds: Float
    is_positive: Flags
    weights: Float

    def swap_classes(self) -> BinarySample:
        """Exchange the roles of positive and negative rows."""
        return BinarySample(-self.log_odds, ~self.is_positive, self.weights)

    def select(self, mask: Flags) -> BinarySample:
        """Return the rows for which the mask is true."""
        return BinarySample(self.log_odds[mask], self.is_positive[mask], self.weights[mask])


@dataclass(frozen=True)
class ClassFrequency:
    """Fraction of positive rows, r, and its mixture weight, e."""

    value: float
    weight: float


def is_mostly_positive(sample: BinarySample) -> bool:
    """Check whether positive rows outweigh negative rows; log-odds break a tie."""
    total_weight = float(sample.weights.sum())
    excess_weight = float(sample.weights @ sample.is_positive) - 0.5 * total_weight
    if excess_weight == 0.0:
        return float(np.clip(sample.log_odds, -1e300, 1e300).sum()) < 0.0
    return excess_weight > 0.0


def count_effective_rows(weights: Float) -> float:
    """Return the number of rows that the sample weights represent.

    It is their sum, or the effective sample size (Σw)² / Σw² if that is larger, which is
    the case for weights that are fractions.
    """
    if not len(weights):
        return 1.0
    total_weight = float(weights.sum())
    return max(total_weight, total_weight**2 / float(weights @ weights))


def estimate_class_frequency(sample: BinarySample, n_rows: float) -> ClassFrequency:
    """Estimate the fraction of positive rows and its weight in the average."""
    total_weight = float(sample.weights.sum())
    n_positive = float(sample.weights @ sample.is_positive) * n_rows / max(total_weight, TINY)
    n_rarer = min(n_positive, n_rows - n_positive)
    return ClassFrequency(
        value=float((n_positive + 1.0) / (n_rows + 2.0)),
        weight=min(0.5, 2.0 / (n_rarer + 1.0) ** 2),
    )
