"""Does a promise still stand? An exact test on labelled rows that the fit has not seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv

from metacal.errors import InputError
from metacal.promises.certificate import Certificate, at_least, at_most
from metacal.promises.verdict import Verdict, judge
from metacal.rows.validate import fraction

#: What a test of a gate says about each kind of promise.
_TESTED = {
    "certified": "the promise itself, which at most {delta} of all fits break by bad luck",
    "approximate": "whether this gate keeps its target; the confidence of a cross-fitted gate was never exact",
    "in expectation": "whether this gate keeps its target; in expectation about half of all gates do not",
    "none": "whether this gate keeps its target, which it aims at without a promise (the paper's own rule)",
}


@dataclass(frozen=True)
class LimitTest:
    """One promised limit: `bad` of `n` rows break it, `p_value` = P(Bin(n, limit) >= bad) if it is just kept."""

    verdict: Verdict
    bad: int
    n: int
    p_value: float
    limit: float
    level: float

    @property
    def refuted(self) -> bool:
        """Whether so many bad rows are too many."""
        return self.p_value <= self.level

    @property
    def noticed(self) -> float | None:
        """The smallest rate of bad rows that n rows refute with 80% chance; None when no count would refute."""
        n, low, high = self.n, 0, self.n + 1  # the fewest bad rows that refute lie in (low, high]
        while high - low > 1:
            middle = (low + high) // 2
            enough = betainc(middle, n - middle + 1, self.limit) <= self.level
            low, high = (low, middle) if enough else (middle, high)
        return float(betaincinv(high, n - high + 1, 0.8)) if high <= n else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {**self.verdict.to_dict(), "refuted": self.refuted}
        return {**plain, "n_bad": self.bad, "n_rows": self.n, "p_value": self.p_value, "noticed_from": self.noticed}

    def lines(self) -> list[str]:
        """Counts, interval, p-value and verdict."""
        verdict, quantity = self.verdict, self.verdict.quantity
        if verdict.value is None:
            return [f"  measured     {quantity}: no row here speaks about it"]
        # The test looks to one side: its level is that of each end of the interval, not of both together.
        limits = f"{at_least(0.5 + 0.5 * verdict.level)} limits on either side [{verdict.low:.4f}, {verdict.high:.4f}]"
        return [
            f"  measured     {quantity} {verdict.value:.4f}, {limits}, promised {quantity.sign} {verdict.target:g}",
            f"  counted      {self.bad:,} {quantity.bad_rows}, of {self.n:,}",
            f"  p-value      {self.p_value:.4g}: the chance of as many or more if the promise is just kept",
        ]


@dataclass(frozen=True)
class Verification:
    """Whether labelled rows refute a certificate; prints itself.

    Attributes
    ----------
    certificate : Certificate
        What was promised.
    tests : tuple of LimitTest
        One for each promised limit: `bad` of `n` rows, `p_value`, `refuted`, and the `verdict` with its interval.
    confidence : float
        A promise that is kept is refuted with probability at most 1 - confidence.
    n_rows, n_accepted : int
    """

    certificate: Certificate
    tests: tuple[LimitTest, ...]
    confidence: float
    n_rows: int
    n_accepted: int

    @property
    def refuted(self) -> bool:
        """Whether any promised limit is."""
        return any(test.refuted for test in self.tests)

    @property
    def p_value(self) -> float:
        """Of all tests together (Bonferroni)."""
        return min(1.0, len(self.tests) * min(test.p_value for test in self.tests))

    @property
    def tested(self) -> str:
        """What the test is about, which depends on what was promised."""
        return _TESTED[self.certificate.guarantee].format(delta=at_most(self.certificate.delta or 0.0))

    @property
    def advice(self) -> str:
        """What to do now."""
        if self.refuted:
            return (
                "check that these rows and their labels come from the same source as the calibration rows; if they do, "
                "the source has changed (or the fit had bad luck): fit again on recent labelled rows, and look "
                "at what is accepted until then."
            )
        heard = [test for test in self.tests if test.noticed is not None]
        if not heard:
            return "bring rows that speak about the promise: none here is accepted or right."
        known = ", ".join(f"a {test.verdict.quantity.bad_share} of {test.noticed:.4f}" for test in heard)
        return f"nothing; but so many rows would only have noticed {known} or worse with 80% chance."

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "statement": self.certificate.statement,
            "guarantee": self.certificate.guarantee,
            "tested": self.tested,
            "n_rows": self.n_rows,
            "n_accepted": self.n_accepted,
            "confidence": self.confidence,
            "refuted": self.refuted,
            "p_value": self.p_value,
            "tests": [test.to_dict() for test in self.tests],
            "advice": self.advice,
        }

    def text(self, source: str = "") -> str:
        """For people; `source` says where the rows come from, as in "5,000 of test.npz"."""
        word = "REFUTED" if self.refuted else "not refuted"
        return "\n".join(
            [
                f"{word}: {self.certificate.statement}",
                f"  rows         {self.n_rows:,}{source}, {self.n_accepted:,} accepted",
                *(line for test in self.tests for line in test.lines()),
                f"  tested       {self.tested}; a kept promise is called refuted by at most "
                f"{at_most(1.0 - self.confidence)} of such tests",
                f"  what to do   {self.advice}",
            ]
        )

    __str__ = text


def verify_decisions(
    certificate: Certificate, accept: NDArray[np.bool_], correct: NDArray[np.bool_], confidence: float = 0.95
) -> Verification:
    """Test on labelled rows what the certificate promises.

    A promise that holds is refuted with probability at most 1 - confidence. Among n correct rows the rejected ones are
    Bin(n, F0), among n accepted rows the wrong ones Bin(n, 1 - F1): exact one-sided tests against the promised limits,
    each at (1 - confidence) / (number of limits).

    Examples
    --------
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> right = np.ones(1000, dtype=bool)
    >>> certificate = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 1000), right)
    >>> verify_decisions(certificate, np.arange(1000) >= 70, right).refuted
    True
    """
    if fraction("confidence", confidence) <= 0.5:
        raise InputError(f"confidence must be above 0.5, got {confidence}; say how surely a kept promise passes: 0.95.")
    each = (1.0 - confidence) / len(certificate.limits)
    verdict = judge(certificate, accept, correct, round(1.0 - 2.0 * each, 12))
    tests = tuple(_test(part, accept, correct, each) for part in verdict.parts)
    return Verification(certificate, tests, confidence, len(accept), int(accept.sum()))


def _test(verdict: Verdict, accept: NDArray[np.bool_], correct: NDArray[np.bool_], level: float) -> LimitTest:
    bad, n = verdict.quantity.bad(accept, correct)
    limit = verdict.quantity.limit_on_bad(verdict.target)
    # P(Bin(n, p) >= k) is the incomplete beta function I_p(k, n - k + 1).
    p_value = float(betainc(bad, n - bad + 1, limit)) if bad else 1.0
    return LimitTest(verdict, bad, n, p_value, limit, level)
