"""MaxLoss: of all answers of a cascade at most so many more are wrong than if its last model answered alone.

P(cascade wrong) - P(last model wrong) <= epsilon, with probability 1 - delta over the calibration rows. Rows on which
the models give the same answer add nothing to the difference: labels are needed only where they disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metacal.errors import InputError
from metacal.promises.certificate import Certificate
from metacal.promises.promise import Promise
from metacal.promises.quantity import LOSS
from metacal.promises.rules.bounds import SLACK
from metacal.promises.rules.noninferiority import GAMMA, shows_at_most
from metacal.promises.sample import Sample
from metacal.promises.words import SAME_SOURCE_OF_BOTH, register_rule

DIFFERENCE = register_rule(
    "cascade-difference",
    "exact tests of the difference of two error rates at fixed thresholds, in a fixed sequence "
    "(Hsueh, Liu & Chen 2001; Angelopoulos et al. 2021)",
    SAME_SOURCE_OF_BOTH,
)


@dataclass
class MaxLoss(Promise):
    """Of all answers at most `epsilon` more are wrong than if the large model answered alone.

    Examples
    --------
    >>> MaxLoss(0.01)
    MaxLoss(epsilon=0.01, delta=0.1)
    >>> MaxLoss(1)
    Traceback (most recent call last):
    metacal.errors.InputError: epsilon must be strictly between 0 and 1, got 1.
    """

    epsilon: float
    delta: float = 0.1
    limited: ClassVar = {"epsilon": LOSS}
    rules: ClassVar = (DIFFERENCE,)
    cascade_rules: ClassVar = (DIFFERENCE,)

    def from_sample(self, sample: Sample) -> Certificate:
        """It takes the answers of two models: `metacal.promises.rules.cascade.Pair`."""
        raise InputError("MaxLoss compares two models; fit a Cascade with it, or ask for MinAccuracy(0.97).")

    def impossible(self, certificate: Certificate) -> str | None:
        """Whether the differences between the models are too many to certify the loss."""
        stages, gamma = certificate.stages, GAMMA * self.delta
        if stages is None:
            return "a loss is promised of a cascade alone"
        counts = stages.n_worse, stages.n_better, certificate.n_rows
        if shows_at_most(*counts, self.epsilon, SLACK * self.delta, gamma):
            return None
        return "the counts do not certify what is promised"
