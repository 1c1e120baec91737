"""Does a promise still stand? An exact test on labelled rows that the fit has not seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal import display
from metacal.certificates.certificate import Certificate
from metacal.certificates.circumstances import CountedBy
from metacal.certificates.fingerprint import FitRows
from metacal.certificates.number_format import format_percent_ceil, format_percent_floor
from metacal.certification.row_selection import build_row_selection
from metacal.certification.rows import Clusters
from metacal.certification.units import Units
from metacal.display import format_interval
from metacal.errors import InputError
from metacal.formulas import Flags
from metacal.promises.verdict import Verdict, judge
from metacal.rows.arrays import check_fraction
from metacal.rows.draws import RowDraws

if TYPE_CHECKING:
    from metacal.certification.row_losses import Losses

#: What a test of a gate says about each kind of promise.
_TESTED = {
    "certified": "the promise itself, which at most {delta} of all fits break by bad luck",
    "approximate": (
        "whether this gate keeps its target; the confidence of a cross-fitted gate was never exact"
    ),
    "in expectation": (
        "whether this gate keeps its target; in expectation about half of all gates do not"
    ),
    "none": (
        "whether this gate keeps its target, which it aims at without a promise (the paper's own"
        " rule)"
    ),
}
#: How rows were counted that belong together.
_UNITS = {
    None: "",
    "unit": "; one row of each unit",
    "row": "; bets on whole units",
    "mean": "; bets on the mean of each unit",
}
#: Tests that are shown, of a promise for each class or group.
_FEW = 8


@dataclass(frozen=True)
class Verification:
    """Whether a promise stands on labelled rows: prints itself, is a table in a notebook,
    `to_frame` for pandas.

    Attributes
    ----------
    certificate : Certificate
        What was promised.
    verdict : Verdict
        What the rows say of it: `verdict.word` is kept, undecided, refuted or, if the rows were
        part of the fit, not judged; `verdict.advice` is what to do.
    confidence : float
        Of the intervals; a promise that is kept is refuted with probability at most (1 -
        confidence) / 2.
    n_rows, n_accepted : int
        Of the rows that were tested.
    units : "unit", "row", "mean" or None
        Where rows belong together: whether one row of each unit was tested, or every row by bets on
        whole units.
    """

    certificate: Certificate
    verdict: Verdict
    confidence: float
    n_rows: int
    n_accepted: int
    units: CountedBy | None = None

    @property
    def tests(self) -> tuple[Verdict, ...]:
        """A verdict for each promised limit, or for each class or group, the worst first; none if
        not judged.
        """
        return () if self.verdict.fit_rows is not None else self.verdict.tests

    @property
    def refuted(self) -> bool:
        """Whether any promised limit is."""
        return self.verdict.refuted

    @property
    def p_value(self) -> float | None:
        """Of all tests together (Bonferroni); None if not judged."""
        if not self.tests:
            return None
        return min(1.0, len(self.tests) * min(test.p_value for test in self.tests))

    @property
    def advice(self) -> str:
        """What to do now, in one sentence."""
        return self.verdict.advice

    @property
    def tested(self) -> str:
        """What the test is about, which depends on what was promised."""
        parts = self.certificate.parts
        if (
            parts is not None
            and parts.shares != "together"
            and self.certificate.guarantee == "certified"
        ):
            few = format_percent_ceil(self.certificate.delta or 0.0)
            return f"the promise of each {parts.by}, which at most {few} of them break by bad luck"
        return _TESTED[self.certificate.guarantee].format(
            delta=format_percent_ceil(self.certificate.delta or 0.0)
        )

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
            "verdict": self.verdict.word,
            "refuted": self.refuted,
            "fit_rows": None if self.verdict.fit_rows is None else vars(self.verdict.fit_rows),
            "p_value": self.p_value,
            "tests": [_plain(test) for test in self.tests],
            "advice": self.advice,
        }

    def text(self, source: str = "") -> str:
        """For people; `source` says where the rows come from, as in "5,000 of test.npz"."""
        head = [
            f"{self.verdict.word}: {self.certificate.statement}",
            (
                f"  rows         {self.n_rows:,}{source}, {self.n_accepted:,}"
                f" accepted{_UNITS[self.units]}"
            ),
        ]
        if self.verdict.fit_rows is not None:
            return "\n".join(
                [*head, f"  why          {self.verdict.fit_rows}", f"  what to do   {self.advice}"]
            )
        left = len(self.tests) - _FEW if self.certificate.parts else 0
        rest = [f"  measured     and {left:,} more, with less against them"] if left > 0 else []
        return "\n".join(
            [
                *head,
                *(line for test in self.tests[:_FEW] for line in _lines(test)),
                *rest,
                (
                    f"  tested       {self.tested}; a kept promise is called refuted by at most "
                    f"{format_percent_ceil(0.5 * (1.0 - self.confidence))} of such tests"
                ),
                f"  what to do   {self.advice}",
            ]
        )

    __str__ = __repr__ = text

    def _repr_html_(self) -> str:
        statement, *lines = self.text().splitlines()
        return display.make_facts_html(statement, display.split_named_lines(lines))

    def to_frame(self) -> Any:
        """A `pandas.DataFrame`, a row for each promised limit, or for each class or group, the
        worst first.
        """
        columns = ("quantity", "class", "part", "target", "value", "low", "high", "level")
        plain = [
            {**_plain(test), "part": test.subgroup, "class": test.class_name} for test in self.tests
        ]
        more = ("n_bad", "n_rows", "p_value", "verdict")
        return display.make_frame(
            [{name: test[name] for name in (*columns, *more)} for test in plain]
        )


def _bad(test: Verdict) -> float:
    """How many rows count against it or, of a mean cost, what all of them cost."""
    return (
        test.measurement.n_bad
        if test.measurement.total_cost is None
        else test.measurement.total_cost
    )


def _plain(test: Verdict) -> dict[str, Any]:
    """Plain JSON types."""
    better = {} if test.measurement.n_better is None else {"n_better": test.measurement.n_better}
    return {
        **test.to_dict(),
        "n_bad": _bad(test),
        "n_rows": test.measurement.n_rows,
        "p_value": test.p_value,
        **better,
    }


def _lines(test: Verdict) -> list[str]:
    """Counts, interval and p-value."""
    seen, promised = test.measurement, test.quantity
    if test.value is None or test.low is None or test.high is None:
        return [f"  measured     no row here says anything about the {test.measured_quantity}"]
    interval, bad, better = format_interval(test.low, test.high), _bad(test), seen.n_better
    if test.subgroup is not None:
        return [
            f"  {test.word:<12} {test.subgroup}: {test.measured_quantity} {test.value:.4f} {interval},"
            f" {bad:,} of {seen.n_rows:,} {promised.violations_suffix.format(name=test.class_name)}, p-value"
            f" {test.p_value:.4g}"
        ]
    counted = f"{bad:,} {promised.violations_text.format(name=test.class_name)}, of {seen.n_rows:,}"
    if better is not None:
        counted = f"{bad:,} answered worse than by the last model alone, {better:,} better, of {seen.n_rows:,}"
    if promised.is_mean_cost:
        counted = f"a {'loss' if promised.uses_graded_losses else 'cost'} of {bad:,.6g} in all, of {seen.n_rows:,} rows"
    bets = seen.relative_costs is not None or seen.cluster_counts is not None
    chance = (
        "at most the chance of such bets to win so much"
        if bets
        else "the chance of as many or more"
    )
    level = f"{format_percent_floor(test.level)} interval"
    return [
        (
            f"  measured     {test.measured_quantity} {test.value:.4f}, {level} {interval}, "
            f"promised {promised.comparison_sign} {test.target:g}"
        ),
        f"  counted      {counted}",
        f"  p-value      {test.p_value:.4g}: {chance} if the promise is just kept",
    ]


def verify_decisions(
    certificate: Certificate,
    accept: Flags,
    correct: Flags | None,
    confidence: float = 0.95,
    losses: Losses | None = None,
    names: NDArray[Any] | None = None,
    units: Units | None = None,
    fit_rows: FitRows | None = None,
) -> Verification:
    """Test on labelled rows what the certificate promises.

    `correct` may be None where nothing is promised that needs labels; `losses`, what each row
    costs, is needed where a cost is promised (`Gate.losses`): that is tested by bets in the order
    of the rows.

    Among n correct rows the rejected ones are Bin(n, F0), among n accepted rows the wrong ones
    Bin(n, 1 - F1): exact intervals, which `judge` and with it evaluate and report use too. A
    promise that holds is refuted, which is to lie outside of one end, with probability at most (1 -
    confidence) / 2. Where each class or group has its own promise, `names` are those of the rows;
    each that rows speak about is tested, the worst first.

    Where rows belong together (`units`), counts of them are not binomial. A promise about a random
    row of a random unit is tested on one row of each, drawn at random; one about rows, or means of
    units, by bets on whole units.

    If there are `fit_rows` among the rows, nothing is tested: the verdict is "not judged".

    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> right = np.ones(1000, dtype=bool)
    >>> certificate = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 1000), right)
    >>> verify_decisions(certificate, np.arange(1000) >= 70, right).refuted
    True
    """
    if check_fraction("confidence", confidence) <= 0.5:
        raise InputError(
            f"confidence must be above 0.5, got {confidence}; say how surely a kept promise passes:"
            " 0.95."
        )
    by, whole = None, None
    if units is not None:
        by, codes = certificate.circumstances.units or "row", units.encode_names(len(accept))
        columns = accept, correct, None if losses is None else losses.answered
        if by == "unit" and (selection := build_row_selection(len(accept), codes)) is not None:
            picked = selection.draw(*columns).indices
            accept, correct = accept[picked], None if correct is None else correct[picked]
            losses, names = (
                None if losses is None else losses.where(picked),
                None if names is None else names[picked],
            )
        elif certificate.circumstances.counts_whole_units or by == "row":
            known = max(units.largest or 0, certificate.circumstances.largest_unit or 0)
            numbers = RowDraws(*columns, units=codes).unit_numbers("whole units")
            max_size = max(known, int(np.bincount(codes).max()))
            whole = Clusters.from_codes(numbers, max_size, count_means=by == "mean")
    verdict = judge(certificate, accept, correct, confidence, losses, names, whole, fit_rows)
    return Verification(certificate, verdict, confidence, len(accept), int(accept.sum()), by)
