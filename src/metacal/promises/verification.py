"""Does a promise still stand? An exact test on labelled rows that the fit has not seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv

from metacal import display
from metacal.display import outward
from metacal.errors import InputError
from metacal.promises.certificate import Certificate
from metacal.promises.rules import betting
from metacal.promises.rules.costs import Losses
from metacal.promises.rules.noninferiority import GAMMA, kept_p_value
from metacal.promises.shares import at_least, at_most, rounded_up
from metacal.promises.verdict import Verdict, against, costs_of, differences, judge
from metacal.rows.validate import fraction

#: What a test of a gate says about each kind of promise.
_TESTED = {
    "certified": "the promise itself, which at most {delta} of all fits break by bad luck",
    "approximate": "whether this gate keeps its target; the confidence of a cross-fitted gate was never exact",
    "in expectation": "whether this gate keeps its target; in expectation about half of all gates do not",
    "none": "whether this gate keeps its target, which it aims at without a promise (the paper's own rule)",
}


#: Tests that are shown, of a promise for each class or group.
_FEW = 8


@dataclass(frozen=True)
class LimitTest:
    """One promised limit: `bad` of `n` rows break it, `p_value` = P(Bin(n, limit) >= bad) if it is just kept.

    For a mean cost `bad` is what the n rows cost together, `limit` and what is `noticed` are shares of the `largest`
    cost of a row; where the costs are of many sizes the p-value comes from bets (`metacal.promises.rules.betting`). For
    the loss of a cascade `bad` rows are answered worse than by its last model alone, and as many as `better` better.
    """

    verdict: Verdict
    bad: float
    n: int
    p_value: float
    limit: float
    level: float
    largest: float = 1.0
    counted: bool = True
    better: int | None = None

    @property
    def refuted(self) -> bool:
        """Whether so many bad rows are too many."""
        return self.p_value <= self.level

    @property
    def noticed(self) -> float | None:
        """The smallest rate of bad rows that n rows refute with 80% chance; None when no count would refute."""
        if not self.counted:
            return None
        n, low, high = self.n, 0, self.n + 1  # the fewest bad rows that refute lie in (low, high]
        while high - low > 1:
            middle = (low + high) // 2
            enough = betainc(middle, n - middle + 1, self.limit) <= self.level
            low, high = (low, middle) if enough else (middle, high)
        return float(betaincinv(high, n - high + 1, 0.8)) if high <= n else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {**self.verdict.to_dict(), "refuted": self.refuted}
        return {**plain, "n_bad": self.bad, "n_rows": self.n, "p_value": self.p_value, "noticed_from": self.noticed} | (
            {} if self.better is None else {"n_better": self.better}
        )

    def _interval(self) -> str:
        low, high = self.verdict.low, self.verdict.high
        return "" if low is None or high is None else outward(low, high)

    def lines(self) -> list[str]:
        """Counts, interval, p-value and verdict."""
        verdict, quantity = self.verdict, self.verdict.quantity
        if verdict.part is not None and verdict.value is not None:
            return [
                f"  {'REFUTED' if self.refuted else 'measured':<12} {verdict.part}: {quantity} {verdict.value:.4f} "
                f"{self._interval()}, {self.bad:,} of {self.n:,} {quantity.bad_among}, "
                f"p-value {self.p_value:.4g}"
            ]
        if verdict.value is None:
            return [f"  measured     {quantity}: no row here speaks about it"]
        # The test looks to one side: its level is that of each end of the interval, not of both together.
        limits = f"{at_least(0.5 + 0.5 * verdict.level)} limits on either side {self._interval()}"
        counted = f"{self.bad:,} {quantity.bad_rows}, of {self.n:,}"
        chance = (
            "the chance of as many or more"
            if self.counted or self.better is not None
            else "at most the chance of such bets to win so much"
        )
        if self.better is not None:
            counted = f"{self.bad:,} answered worse than by the last model alone, {self.better:,} better, of {self.n:,}"
        if quantity.mean:
            counted = f"a cost of {self.bad:,.6g} in all, of {self.n:,} rows"
        return [
            f"  measured     {quantity} {verdict.value:.4f}, {limits}, promised {quantity.sign} {verdict.target:g}",
            f"  counted      {counted}",
            f"  p-value      {self.p_value:.4g}: {chance} if the promise is just kept",
        ]


@dataclass(frozen=True)
class Verification:
    """Whether labelled rows refute a certificate: prints itself, is a table in a notebook, `to_frame` for pandas.

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
        parts = self.certificate.parts
        if parts is not None and parts.shares == "each" and self.certificate.guarantee == "certified":
            few = at_most(self.certificate.delta or 0.0)
            return f"the promise of each {parts.by}, which at most {few} of them break by bad luck"
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
        heard = [(test, test.noticed) for test in self.tests if test.noticed is not None]
        if not heard and any(test.n and not test.counted for test in self.tests):
            return "nothing; but few rows notice little: the interval says what they leave open."
        if not heard:
            return "bring rows that speak about the promise: none here is accepted or right."
        if self.certificate.parts is not None:
            worst = max(noticed for _, noticed in heard)
            share, by = heard[0][0].verdict.quantity.bad_share, self.certificate.parts.by
            least = f"a {share} of {rounded_up(worst):.4f} in the least known {by}"
            return f"nothing; but so many rows would only have noticed {least} with 80% chance."
        known = ", ".join(
            f"a {test.verdict.quantity.bad_share} of {rounded_up(test.largest * noticed):.4f}"
            for test, noticed in heard
        )
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
                *(line for test in self.tests[:_FEW] for line in test.lines()),
                *self._rest(),
                f"  tested       {self.tested}; a kept promise is called refuted by at most "
                f"{at_most(1.0 - self.confidence)} of such tests",
                f"  what to do   {self.advice}",
            ]
        )

    __str__ = __repr__ = text

    def _repr_html_(self) -> str:
        statement, *lines = self.text().splitlines()
        return display.facts(statement, display.named(lines))

    def to_frame(self) -> Any:
        """A `pandas.DataFrame`, a row for each promised limit, or for each class or group, the worst first."""
        columns = ("quantity", "part", "target", "value", "low", "high", "level")
        plain = [{"part": None, **test.to_dict()} for test in self.tests]
        more = ("n_bad", "n_rows", "p_value", "refuted")
        return display.frame([{name: test[name] for name in (*columns, *more)} for test in plain])

    def _rest(self) -> list[str]:
        parts, left = self.certificate.parts, len(self.tests) - _FEW
        return [f"  measured     and {left:,} more, with less against them"] if parts and left > 0 else []


def verify_decisions(
    certificate: Certificate,
    accept: NDArray[np.bool_],
    correct: NDArray[np.bool_] | None,
    confidence: float = 0.95,
    losses: Losses | None = None,
    names: NDArray[Any] | None = None,
) -> Verification:
    """Test on labelled rows what the certificate promises.

    `correct` may be None where nothing is promised that needs labels; `losses`, what each row costs, is needed where a
    cost is promised (`Gate.losses`): that is tested by bets in the order of the rows.

    A promise that holds is refuted with probability at most 1 - confidence. Among n correct rows the rejected ones are
    Bin(n, F0), among n accepted rows the wrong ones Bin(n, 1 - F1): exact one-sided tests against the promised limits,
    each at (1 - confidence) / (number of limits). Where each class or group has its own promise, `names` are those of
    the rows; each that rows speak about is tested, at (1 - confidence) / (number of tests), the worst first.

    Examples
    --------
    >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
    >>> right = np.ones(1000, dtype=bool)
    >>> certificate = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 1000), right)
    >>> verify_decisions(certificate, np.arange(1000) >= 70, right).refuted
    True
    """
    if fraction("confidence", confidence) <= 0.5:
        raise InputError(f"confidence must be above 0.5, got {confidence}; say how surely a kept promise passes: 0.95.")
    if certificate.parts is not None:
        if correct is None:
            raise InputError("what each class or group is promised needs labels; give them.")
        return _verify_parts(certificate, accept, correct, confidence, names)
    each = (1.0 - confidence) / len(certificate.limits)
    verdict = judge(certificate, accept, correct, round(1.0 - 2.0 * each, 12), losses)
    tests = tuple(_test(part, accept, correct, each, losses) for part in verdict.parts)
    return Verification(certificate, tests, confidence, len(accept), int(accept.sum()))


def _verify_parts(
    certificate: Certificate, accept: NDArray[np.bool_], correct: NDArray[np.bool_], confidence: float, names: Any
) -> Verification:
    """A test for each class or group; two-sided intervals at twice the level that their tests have."""
    assert certificate.parts is not None
    level = round(1.0 - 2.0 * (1.0 - confidence), 12)
    verdict = judge(certificate, accept, correct, level, names=names)
    by_name = {part.name: rows for part, rows in certificate.parts.rows(names)}
    each = (1.0 - confidence) / max(1, len(verdict.of_parts))
    tests = []
    for own in verdict.of_parts:
        rows = by_name[own.part]  # type: ignore[index]
        tests.append(_test(own, accept[rows], correct[rows], each, None))
    if not tests:
        tests = [_test(verdict, accept & False, correct & False, each, None)]
    return Verification(certificate, tuple(tests), confidence, len(accept), int(accept.sum()))


def _test(
    verdict: Verdict,
    accept: NDArray[np.bool_],
    correct: NDArray[np.bool_] | None,
    level: float,
    losses: Losses | None,
) -> LimitTest:
    if verdict.quantity.paired:
        worse, better, n = differences(verdict.quantity, losses)
        p_value = kept_p_value(worse, better, n, verdict.target, GAMMA * level)
        return LimitTest(verdict, worse, n, p_value, verdict.target, level, counted=False, better=better)
    if verdict.quantity.mean:
        return _cost_test(verdict, accept, level, losses)
    bad, n = verdict.quantity.bad(accept, correct)
    limit = verdict.quantity.limit_on_bad(verdict.target)
    return LimitTest(verdict, bad, n, against(verdict.quantity, verdict.target, accept, correct), limit, level)


def _cost_test(verdict: Verdict, accept: NDArray[np.bool_], level: float, losses: Losses | None) -> LimitTest:
    costs = costs_of(verdict.quantity, accept, losses)
    values, n, limit = costs.values, len(costs.values), verdict.target / costs.largest
    if costs.all_or_nothing:
        p_value = _p_value(int((values > 0.0).sum()), n, limit)
    else:
        p_value = betting.p_value_above(values, limit, level) if limit < 1.0 else 1.0
    total = float(costs.largest * values.sum())
    return LimitTest(verdict, total, n, p_value, limit, level, costs.largest, costs.all_or_nothing)


def _p_value(bad: int, n: int, limit: float) -> float:
    """P(Bin(n, limit) >= bad), the incomplete beta function I_limit(bad, n - bad + 1)."""
    return float(betainc(bad, n - bad + 1, limit)) if bad else 1.0
