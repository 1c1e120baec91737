"""metacal verify: does the promise still stand? An exact test on labelled rows, and an exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import Reading, json_option, key_option, reading_options, share
from metacal.cli.printing import echo, note, say_json, wrapped

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from metacal.cli.verdict import Verdict
    from metacal.promises.certificate import Certificate

#: What a test of this gate says about each kind of promise.
_TESTED = {
    "certified": "the promise itself, which at most {delta} of all fits break by bad luck",
    "approximate": "whether this gate keeps its target; the confidence of a cross-fitted gate was never exact",
    "in expectation": "whether this gate keeps its target; in expectation about half of all gates do not",
    "none": "whether this gate keeps its target, which it aims at without a promise (the paper's own rule)",
}


def surer_than_half(value: Any) -> float:
    """Parse a confidence above 0.5."""
    number = share(value)
    if number <= 0.5:
        raise click.BadParameter(f"{value} is not above 0.5; give how surely a kept promise passes, such as 0.95.")
    return number


@click.command()
@click.argument("artifact", type=click.Path())
@click.argument("file", type=click.Path())
@click.option(
    "--confidence",
    type=surer_than_half,
    metavar="C",
    default=0.95,
    show_default=True,
    help="A promise that is kept is called refuted with probability at most 1 - C.",
)
@reading_options()
@key_option
@json_option
@click.pass_context
def command(ctx: click.Context, artifact: str, file: str, confidence: float, reading: Reading, as_json: bool) -> None:
    """Check on labelled rows whether the promise of a saved gate still stands.

    ARTIFACT is what `metacal fit` saved; FILE holds logits and true labels of rows that it has not seen: last week's
    traffic, say. An exact binomial test: the right answers that were turned away among the right ones, or the wrong
    ones among the accepted. Both where both are promised, each at half of 1 - C.

    The exit code is 0 when the promise is not refuted, 1 when it is.

    \b
    Examples:
      metacal verify cal.json lastweek.npz
      metacal verify cal.json lastweek.csv --confidence 0.99 --json
      metacal verify cal.json lastweek.npz || alert "fit again"
    """  # noqa: D301
    from metacal.cli.reading import labels_as_columns, load_gate, read_for
    from metacal.rows import Rows

    gate = load_gate(artifact)
    if gate.certificate is None:
        kind = "a calibrator" if gate.recipe is None else gate.recipe.estimator
        raise click.UsageError(
            f"{artifact} holds {kind} without a gate: it promises nothing. metacal evaluate measures its calibration."
        )
    found = read_for(gate, artifact, file, reading)
    codes = labels_as_columns(found, gate.classes)
    rows = Rows(gate.read(found.table, by_rows=True))
    decision = gate.decide(rows, probabilities=False)
    correct = decision.top == codes
    fitted_here = gate.fitted_on(rows, decision.score, correct)
    if fitted_here:
        note(f"Warning: {file} holds the very rows that {artifact} was fitted on; they say nothing new.")
    result = verify(gate.certificate, decision.accept, correct, confidence)
    if as_json:
        say_json({"file": file, "artifact": artifact, **result.to_dict(), "fitted_here": fitted_here})
    else:
        echo(result.text(artifact, file))
    if result.refuted:
        ctx.exit(1)


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
        from scipy.special import betainc, betaincinv

        n, low, high = self.n, 0, self.n + 1  # the fewest bad rows that refute lie in (low, high]
        while high - low > 1:
            middle = (low + high) // 2
            enough = betainc(middle, n - middle + 1, self.limit) <= self.level
            low, high = (low, middle) if enough else (middle, high)
        return float(betaincinv(high, n - high + 1, 0.8)) if high <= n else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {**self.verdict.to_dict(), "refuted": self.refuted}
        return {**plain, "bad": self.bad, "n": self.n, "p_value": self.p_value, "noticed_from": self.noticed}

    def lines(self) -> list[str]:
        """Counts, interval, p-value and verdict."""
        verdict = self.verdict
        if verdict.value is None:
            return [f"  measured     {verdict.quantity}: no row here speaks about it"]
        miscoverage = verdict.quantity == "miscoverage"
        counted = "right answers turned away" if miscoverage else "wrong answers among the accepted"
        sign = "<=" if miscoverage else ">="
        interval = f"{100 * verdict.level:.6g}% interval [{verdict.low:.4f}, {verdict.high:.4f}]"
        return [
            f"  measured     {verdict.quantity} {verdict.value:.4f}, {interval}, promised {sign} {verdict.target:g}",
            f"  counted      {self.bad:,} {counted}, of {self.n:,}",
            f"  p-value      {self.p_value:.4g}: the chance of as many or more if the promise is just kept",
        ]


@dataclass(frozen=True)
class Verification:
    """Whether labelled rows refute a certificate."""

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
        from metacal.promises.certificate import at_most

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
        known = ", ".join(
            f"a {'miscoverage' if t.verdict.quantity == 'miscoverage' else 'share of errors'} of {t.noticed:.4f}"
            for t in heard
        )
        return f"nothing; but so many rows would only have noticed {known} or worse with 80% chance."

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "statement": self.certificate.statement,
            "guarantee": self.certificate.guarantee,
            "tested": self.tested,
            "n": self.n_rows,
            "accepted": self.n_accepted,
            "confidence": self.confidence,
            "refuted": self.refuted,
            "p_value": self.p_value,
            "tests": [test.to_dict() for test in self.tests],
            "advice": self.advice,
        }

    def text(self, artifact: str, file: str) -> str:
        """For people."""
        from metacal.promises.certificate import at_least

        word = "REFUTED" if self.refuted else "not refuted"
        lines = [
            f"{word} with {at_least(self.confidence)} confidence: {self.certificate.statement}",
            f"  rows         {self.n_rows:,} of {file} through {artifact}, {self.n_accepted:,} accepted",
            *(line for test in self.tests for line in test.lines()),
            f"  tested       {self.tested}",
            f"  what to do   {self.advice}",
        ]
        return "\n".join(wrapped(line) for line in lines)


def verify(
    certificate: Certificate, accept: NDArray[np.bool_], correct: NDArray[np.bool_], confidence: float = 0.95
) -> Verification:
    """Test on labelled rows what the certificate promises.

    A promise that holds is refuted with probability at most 1 - confidence. Among n correct rows the rejected ones are
    Bin(n, F0), among n accepted rows the wrong ones Bin(n, 1 - F1): exact one-sided tests against the promised limits,
    each at (1 - confidence) / (number of limits).

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> right = np.ones(1000, dtype=bool)
    >>> certificate = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 1000), right)
    >>> verify(certificate, np.arange(1000) >= 70, right).refuted
    True
    """
    from metacal.cli.verdict import judge

    each = (1.0 - confidence) / len(certificate.limits)
    verdict = judge(certificate, accept, correct, round(1.0 - 2.0 * each, 12))
    tests = tuple(_test(part, accept, correct, each) for part in verdict.parts)
    return Verification(certificate, tests, confidence, len(accept), int(accept.sum()))


def _test(verdict: Verdict, accept: NDArray[np.bool_], correct: NDArray[np.bool_], level: float) -> LimitTest:
    from scipy.special import betainc

    if verdict.quantity == "miscoverage":
        bad, n, limit = int((correct & ~accept).sum()), int(correct.sum()), verdict.target
    else:
        bad, n, limit = int((accept & ~correct).sum()), int(accept.sum()), 1.0 - verdict.target
    # P(Bin(n, p) >= k) is the incomplete beta function I_p(k, n - k + 1).
    p_value = float(betainc(bad, n - bad + 1, limit)) if bad else 1.0
    return LimitTest(verdict, bad, n, p_value, limit, level)
