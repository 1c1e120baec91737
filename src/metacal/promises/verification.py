"""Does a promise still stand? An exact test on labelled rows that the fit has not seen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal import display
from metacal.display import outward
from metacal.errors import InputError
from metacal.promises.certificate import Certificate
from metacal.promises.circumstances import CountedBy
from metacal.promises.parts.units import Units, counted_rows
from metacal.promises.sample import WholeUnits
from metacal.promises.verdict import Seen, Verdict, judge
from metacal.promises.words import at_least, at_most, rounded_up
from metacal.rows.arrays import fraction

if TYPE_CHECKING:
    from metacal.promises.rules.costs import Losses

#: What a test of a gate says about each kind of promise.
_TESTED = {
    "certified": "the promise itself, which at most {delta} of all fits break by bad luck",
    "approximate": "whether this gate keeps its target; the confidence of a cross-fitted gate was never exact",
    "in expectation": "whether this gate keeps its target; in expectation about half of all gates do not",
    "none": "whether this gate keeps its target, which it aims at without a promise (the paper's own rule)",
}
#: How rows were counted that belong together.
_UNITS = {None: "", "unit": "; one row of each unit", "row": "; bets on whole units"}
#: Tests that are shown, of a promise for each class or group.
_FEW = 8


@dataclass(frozen=True)
class LimitTest:
    """One promised limit, tested at a level of its own: what was seen, and the p-value if the promise is just kept."""

    verdict: Verdict
    level: float

    @property
    def seen(self) -> Seen:
        """The rows that it is tested on."""
        assert self.verdict.seen is not None
        return self.verdict.seen

    @property
    def bad(self) -> float:
        """How many rows count against it or, of a mean cost, what all of them cost."""
        return self.seen.bad if self.seen.total is None else self.seen.total

    @property
    def n(self) -> int:
        """How many rows speak about it."""
        return self.seen.n

    @cached_property
    def p_value(self) -> float:
        """The chance of as many bad rows or more if the promise is just kept."""
        return self.seen.p_value(self.level)

    @property
    def refuted(self) -> bool:
        """Whether so many bad rows are too many."""
        return self.p_value <= self.level

    @cached_property
    def noticed(self) -> float | None:
        """The smallest rate of bad rows that n rows refute with 80% chance; None when no count would refute."""
        return self.seen.noticed(self.level)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        better = {} if self.seen.better is None else {"n_better": self.seen.better}
        counts = {"n_bad": self.bad, "n_rows": self.n, "p_value": self.p_value, "noticed_from": self.noticed}
        return {**self.verdict.to_dict(), "refuted": self.refuted, **counts, **better}

    def lines(self) -> list[str]:
        """Counts, interval, p-value and verdict."""
        verdict, promised, better = self.verdict, self.verdict.quantity, self.seen.better
        if verdict.value is None or verdict.low is None or verdict.high is None:
            return [f"  measured     {promised}: no row here speaks about it"]
        interval = outward(verdict.low, verdict.high)
        if verdict.part is not None:
            return [
                f"  {'REFUTED' if self.refuted else 'measured':<12} {verdict.part}: {promised} {verdict.value:.4f} "
                f"{interval}, {self.bad:,} of {self.n:,} {promised.bad_among}, p-value {self.p_value:.4g}"
            ]
        # The test looks to one side: its level is that of each end of the interval, not of both together.
        limits = f"{at_least(0.5 + 0.5 * verdict.level)} limits on either side {interval}"
        counted = f"{self.bad:,} {promised.bad_rows}, of {self.n:,}"
        if better is not None:
            counted = f"{self.bad:,} answered worse than by the last model alone, {better:,} better, of {self.n:,}"
        if promised.mean:
            counted = f"a cost of {self.bad:,.6g} in all, of {self.n:,} rows"
        bets = self.seen.costs is not None or self.seen.units is not None
        chance = "at most the chance of such bets to win so much" if bets else "the chance of as many or more"
        return [
            f"  measured     {promised} {verdict.value:.4f}, {limits}, promised {promised.sign} {verdict.target:g}",
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
        Of the rows that were tested.
    units : "unit", "row" or None
        Where rows belong together: whether one row of each unit was tested, or every row by bets on whole units.
    """

    certificate: Certificate
    tests: tuple[LimitTest, ...]
    confidence: float
    n_rows: int
    n_accepted: int
    units: CountedBy | None = None

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
        if not heard and any(test.n and not test.seen.counted for test in self.tests):
            return "nothing; but few rows notice little: the interval says what they leave open."
        if not heard:
            return "bring rows that speak about the promise: none here is accepted or right."
        if self.certificate.parts is not None:
            worst = max(noticed for _, noticed in heard)
            share, by = heard[0][0].verdict.quantity.bad_share, self.certificate.parts.by
            least = f"a {share} of {rounded_up(worst):.4f} in the least known {by}"
            return f"nothing; but so many rows would only have noticed {least} with 80% chance."
        known = ", ".join(
            f"a {test.verdict.quantity.bad_share} of {rounded_up(test.seen.largest * noticed):.4f}"
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
            **({} if self.units is None else {"units": self.units}),
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
                f"  rows         {self.n_rows:,}{source}, {self.n_accepted:,} accepted{_UNITS[self.units]}",
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
    units: Units | None = None,
) -> Verification:
    """Test on labelled rows what the certificate promises.

    `correct` may be None where nothing is promised that needs labels; `losses`, what each row costs, is needed where a
    cost is promised (`Gate.losses`): that is tested by bets in the order of the rows.

    A promise that holds is refuted with probability at most 1 - confidence. Among n correct rows the rejected ones are
    Bin(n, F0), among n accepted rows the wrong ones Bin(n, 1 - F1): exact one-sided tests against the promised limits,
    each at (1 - confidence) / (number of limits). Where each class or group has its own promise, `names` are those of
    the rows; each that rows speak about is tested, at (1 - confidence) / (number of tests), the worst first.

    Where rows belong together (`units`), counts of them are not binomial. A promise about a random row of a random unit
    is tested on one row of each, drawn at random; one about rows by bets on whole units.

    >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
    >>> right = np.ones(1000, dtype=bool)
    >>> certificate = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 1000), right)
    >>> verify_decisions(certificate, np.arange(1000) >= 70, right).refuted
    True
    """
    if fraction("confidence", confidence) <= 0.5:
        raise InputError(f"confidence must be above 0.5, got {confidence}; say how surely a kept promise passes: 0.95.")
    level, by, whole = 1.0 - confidence, None, None
    if units is not None:
        by, codes = certificate.circumstances.units or "row", units.codes(len(accept))
        if by == "unit" and (counted := counted_rows(len(accept), codes)) is not None:
            picked = counted.rows
            accept, correct = accept[picked], None if correct is None else correct[picked]
            losses, names = None if losses is None else losses.where(picked), None if names is None else names[picked]
        elif by == "row":
            known = max(units.largest or 0, certificate.circumstances.largest_unit or 0)
            whole = WholeUnits(codes, max(known, int(np.bincount(codes).max())))
    # The intervals are two-sided, at twice the level that the tests have.
    both = 2.0 * level if certificate.parts is not None else 2.0 * level / len(certificate.limits)
    verdict = judge(certificate, accept, correct, round(1.0 - both, 12), losses, names, whole)
    tested = verdict.of_parts or verdict.parts
    tests = tuple(LimitTest(one, level / len(tested)) for one in tested)
    return Verification(certificate, tests, confidence, len(accept), int(accept.sum()), by)
