"""MinAccuracy: a promise about the selective accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metacal.certificates.quantities import SELECTIVE_ACCURACY
from metacal.certificates.rule_texts import SAME_SOURCE_OF_BOTH, register_rule
from metacal.certification.one_threshold import OneThresholdProcedure
from metacal.certification.rules.expected_prefix import EXPECTED_PREFIX, ExpectedPrefixRule
from metacal.certification.rules.fixed_sequence import FIXED_SEQUENCE_RULE, FixedSequenceRule
from metacal.promises.promise import SubgroupPromise

# Names of the rules for a cascade without human review and with human review.
CASCADE_RULES = (
    register_rule(
        "cascade-binomial",
        "exact binomial tests at fixed thresholds, in a fixed sequence (Angelopoulos et al. 2021)",
        SAME_SOURCE_OF_BOTH,
    ),
    register_rule(
        "cascade-pareto",
        "exact binomial tests at fixed pairs of thresholds, cheapest at their risk, safest first "
        "(Pareto testing, Laufer-Goldenthal et al. 2023)",
        SAME_SOURCE_OF_BOTH,
    ),
)


@dataclass(frozen=True)
class MinAccuracy(SubgroupPromise):
    """Accepted predictions are correct at least `beta` of the time.

    Parameters
    ----------
    beta : float
        Smallest selective accuracy, the accuracy of the accepted predictions.

    delta : float or None, default=0.1
        The promise fails with at most this probability over the calibration rows, whatever the
        accuracy does along the ranking (`metacal.certification.rules.fixed_sequence`). If None, the
        promise holds in expectation over calibration sets, where a set that certifies nothing counts
        as kept (`metacal.certification.rules.expected_prefix`).

    Examples
    --------
    >>> import numpy as np
    >>> scores, correct = np.arange(1000.0), np.arange(1000) % 100 < 99
    >>> MinAccuracy(0.95).certify(scores, correct).accepts_everything
    True
    >>> MinAccuracy(0.999).certify(scores, correct)
    Traceback (most recent call last):
    metacal.errors.InfeasibleTargetError: Cannot certify an accuracy of 0.999 ...
    """

    beta: float
    delta: float | None = 0.1

    quantities: ClassVar = {"beta": SELECTIVE_ACCURACY}
    rules: ClassVar = (FIXED_SEQUENCE_RULE, EXPECTED_PREFIX)
    cascade_rules: ClassVar = CASCADE_RULES

    def procedure(self) -> OneThresholdProcedure:
        """Return the procedure that certifies the promise on calibration rows."""
        if self.delta is None:
            return OneThresholdProcedure(SELECTIVE_ACCURACY, self.beta, ExpectedPrefixRule())
        return OneThresholdProcedure(SELECTIVE_ACCURACY, self.beta, FixedSequenceRule())
