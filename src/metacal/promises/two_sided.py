"""Promises about two classes: precision, recall and false-positive rate.

`metacal.certification.two_sides` has the procedure and its proof.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from metacal.certificates.certificate import Certificate
from metacal.certificates.quantities import FALSE_POSITIVE_RATE, PRECISION, RECALL
from metacal.certificates.quantity import Limits
from metacal.certificates.subgroups import Name
from metacal.certification.rules.fixed_sequence import FixedSequenceRule
from metacal.certification.rules.order_statistics import AcceptanceRateRule
from metacal.certification.rules.rule import ThresholdRule
from metacal.certification.sides import ClassPromise
from metacal.certification.two_sides import TWO_SIDED, TwoClassProcedure
from metacal.errors import InputError
from metacal.promises.promise import SubgroupPromise
from metacal.rows.arrays import check_fraction


@dataclass(frozen=True)
class SidePromise(SubgroupPromise):
    """Base class of the promises about the rows that are predicted as one class.

    Rows that are not predicted as this class go to review.
    """

    level: float
    positive: Name | None = None
    delta: float = 0.1

    rules: ClassVar = (TWO_SIDED, TWO_SIDED)

    # True for a promise about predicted positives, False for one about predicted negatives.
    is_about_predicted_positives: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        # No rule certifies such a promise in expectation, so delta must not be None.
        check_fraction("delta", self.delta)
        # A NumPy scalar is converted, because saved files hold only Python scalars.
        item_method = getattr(self.positive, "item", None)
        if item_method is not None:
            object.__setattr__(self, "positive", item_method())

    @property
    def positive_classes(self) -> tuple[Name | None, ...]:
        """Positive class of the promise, None for the second class."""
        return (self.positive,)

    def with_positive_class(self, positive: Name) -> Self:
        """Return a copy that is about this positive class, unless it names another one."""
        if self.positive is not None:
            return self
        return replace(self, positive=positive)

    def build_class_promise(self) -> ClassPromise:
        """Return the promise as a `ClassPromise`, which the two-class procedure certifies."""
        promised_quantity, _ = self.limits[0]
        return ClassPromise(
            quantity=promised_quantity,
            target=self.level,
            rule=self._make_threshold_rule(),
            positive=self.positive,
            is_about_predicted_positives=self.is_about_predicted_positives,
        )

    def procedure(self) -> TwoClassProcedure:
        """Return the procedure that certifies the promise on calibration rows."""
        return TwoClassProcedure(class_promises=(self.build_class_promise(),))

    def _make_threshold_rule(self) -> ThresholdRule:
        """Return the rule that certifies the threshold of the class."""
        return AcceptanceRateRule()

    def _expected_limits(self, certificate: Certificate) -> Limits:
        """Return the limit that a certificate for two classes states first."""
        return find_limit_of_second_class(certificate)


@dataclass(frozen=True)
class MinPrecision(SidePromise):
    """At least `level` of the rows that are called positive are positive.

    For the other class this is the negative predictive value: `MinPrecision(0.99, positive="fine")`.
    All rows that are not called by the class go to review.

    Parameters
    ----------
    level : float
        Precision, or positive predictive value.

    positive : label, optional
        Positive class. By default the second class.

    delta : float, default=0.1
        The promise fails with at most this probability over the calibration rows.

    share : float, optional
        Approximate share of the positive class among all rows, from training labels or from
        experience. It must not be computed from the calibration labels. If it is at most a half, the
        rows least likely to be positive are read before the tests are planned. By default, ten
        random rows of each group show whether the class is so rare. `certify` with bare columns
        withholds no rows, and reads none. `TwoSided` gives a rare class the larger part of delta.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.promises import Sample
    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=4000)
    >>> fraud = rng.random(4000) < 1 / (1 + np.exp(3 - 2 * s))
    >>> found = MinPrecision(0.6, share=0.15).certify(Sample(s, fraud, classes=("fine", "fraud")))
    >>> print(found.statement)
    At least 60% of the rows predicted fraud are fraud, with 90% confidence.
    """

    share: float | None = None

    quantities: ClassVar = {"level": PRECISION}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share is not None:
            check_fraction("share", self.share)

    def build_class_promise(self) -> ClassPromise:
        """Return the promise about the positive class, with its declared share."""
        return ClassPromise(
            quantity=PRECISION,
            target=self.level,
            rule=FixedSequenceRule(name=TWO_SIDED),
            positive=self.positive,
            declared_class_share=self.share,
        )


@dataclass(frozen=True)
class MinRecall(SidePromise):
    """At least `level` of the positive rows are called positive or go to review.

    At most 1 - `level` of the positive rows are called negative. All rows that are not called
    negative go to review. The threshold is an exact order statistic of the positive rows.

    Parameters
    ----------
    level : float
        Recall, or sensitivity.

    positive : label, optional
        Positive class. By default the second class.

    delta : float, default=0.1
        The promise fails with at most this probability over the calibration rows.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.promises import Sample
    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=4000)
    >>> fraud = rng.random(4000) < 1 / (1 + np.exp(3 - 2 * s))
    >>> found = MinRecall(0.95).certify(Sample(s, fraud, classes=("fine", "fraud")))
    >>> print(found.statement)
    At least 95% of the fraud rows are predicted fraud or sent to review, with 90% confidence.
    >>> round(found.coverage, 2)
    0.48
    """

    quantities: ClassVar = {"level": RECALL}
    is_about_predicted_positives: ClassVar[bool] = False


@dataclass(frozen=True)
class MaxFalsePositiveRate(SidePromise):
    """At most `level` of the negative rows are called positive.

    All rows that are not called positive go to review. The threshold is an exact order statistic of
    the negative rows.

    Parameters
    ----------
    level : float
        False-positive rate, 1 - specificity.

    positive : label, optional
        Positive class. By default the second class.

    delta : float, default=0.1
        The promise fails with at most this probability over the calibration rows.
    """

    quantities: ClassVar = {"level": FALSE_POSITIVE_RATE}


@dataclass(frozen=True)
class TwoSided(SubgroupPromise):
    """Two promises that hold together, about positive and negative predictions.

    Rows are called positive, called negative, or go to review in between.

    Parameters
    ----------
    first, second : MinPrecision, MinRecall or MaxFalsePositiveRate
        One promise about the rows called positive (`MinPrecision(0.9)`,
        `MaxFalsePositiveRate(0.01)`) and one about the rows called negative (`MinRecall(0.95)`,
        `MinPrecision(0.99, positive=0)`). Their own `delta` is ignored.

    delta : float, default=0.1
        The promises fail to hold together with at most this probability.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.promises import Sample
    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=4000) * 2
    >>> fraud = rng.random(4000) < 1 / (1 + np.exp(1 - 2 * s))
    >>> promise = TwoSided(MinPrecision(0.9), MinRecall(0.95))
    >>> found = promise.certify(Sample(s, fraud, classes=("fine", "fraud")))
    >>> print(found.statement)
    At least 90% of the rows predicted fraud are fraud, and at least 95% of the fraud rows are predicted fraud or sent to review, with 90%
    confidence for both together.
    >>> print(found.description_lines[0][1])
    called fraud if log-odds > 0.874561, called fine if log-odds < -0.331437, else review
    """

    first: SidePromise
    second: SidePromise
    delta: float = 0.1

    quantities: ClassVar = {}
    rules: ClassVar = (TWO_SIDED, TWO_SIDED)

    def __post_init__(self) -> None:
        for side in (self.first, self.second):
            if not isinstance(side, SidePromise):
                raise InputError(
                    "TwoSided requires two of MinPrecision(...), MinRecall(...) and"
                    f" MaxFalsePositiveRate(...), but got {side!r}."
                )
        check_fraction("delta", self.delta)

    def with_positive_class(self, positive: Name) -> Self:
        """Return a copy with this positive class on each side that names no class."""
        return replace(
            self,
            first=self.first.with_positive_class(positive),
            second=self.second.with_positive_class(positive),
        )

    @property
    def positive_classes(self) -> tuple[Name | None, ...]:
        """Positive classes of both promises, None for the second class."""
        return (self.first.positive, self.second.positive)

    @property
    def limits(self) -> Limits:
        """Limits of both promises."""
        return (*self.first.limits, *self.second.limits)

    def procedure(self) -> TwoClassProcedure:
        """Return the procedure that certifies the promise on calibration rows."""
        return TwoClassProcedure(
            class_promises=(self.first.build_class_promise(), self.second.build_class_promise())
        )

    def _expected_limits(self, certificate: Certificate) -> Limits:
        """Return the limit that a certificate for two classes states first."""
        return find_limit_of_second_class(certificate)


def find_limit_of_second_class(certificate: Certificate) -> Limits:
    """Return the limit on the side of the second class, if there is one.

    A certificate about two classes names this limit first.
    """
    if certificate.subgroups is None:
        return ()
    second_class_first = certificate.subgroups.items[1::-1]
    for subgroup in second_class_first:
        if subgroup.quantity is not None and subgroup.target is not None:
            return ((subgroup.quantity, subgroup.target),)
    return ()
