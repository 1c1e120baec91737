"""What every promise is: from evidence, rows with their scores and whether they are right, to a
`Certificate`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from metacal.errors import InfeasibleTargetError, InputError
from metacal.formulas import Flags, Float
from metacal.kernels.grid import RELATIVE
from metacal.promises.certificate import Certificate, Guarantee
from metacal.promises.counts import impossible_labels, other_marks, other_traffic
from metacal.promises.notes import Note
from metacal.promises.parts.part import Name, Part
from metacal.promises.quantity import Limits, Quantity
from metacal.promises.sample import Evidence, Outcome, Ranking, Sample
from metacal.promises.words import SAME_SOURCE, at_least, register_rule
from metacal.rows.arrays import fraction

if TYPE_CHECKING:
    from metacal.promises.sequential.answers import Answers


#: Where rows belong together and every one counts: `promises.rules.whole_units`.
WHOLE_UNITS = register_rule(
    "whole-units",
    "bets on whole units (Waudby-Smith & Ramdas 2024) at thresholds from the scores of a tenth of"
    " them, in a fixed sequence (Wiens 2003)",
    SAME_SOURCE,
)


class Standing(NamedTuple):
    """Where labels that arrive have led.

    Attributes
    ----------
    threshold : float or None
        What is certified by now; None: nothing.
    reach : float or None
        What would be certified if every further answer were right; None: nothing any more.
    asked : int
        Labels of the so many surest rows can still matter.
    """

    threshold: float | None
    reach: float | None
    asked: int


class Promise(ABC):
    """A promise: a dataclass of its limits and `delta`, which says four things and inherits the
    rest.

    A subclass is a `@dataclass` with

    - `limited`: what its parameters limit, {"beta": COVERAGE_ACCURACY};
    - `rules`: the names of its rules (`words.register_rule`), certified and in expectation;
    - `from_sample(sample)`: the threshold, given to `_certificate`; InfeasibleTargetError where the
      rows cannot carry the target. Of a `ByRanking` it is `from_ranking(ranking)`, which rows that
      are only counted have too;
    - `impossible(certificate)`: what in a certificate's counts cannot be, whatever the rows were.

    `from_answers` is the rule for labels that arrive, where it has one of its own. `split`,
    `for_base` and `guarantee` are overridden where threshold and calibrator must not share rows, or
    where nothing is guaranteed. A row in `promises.kinds` makes it a kind that files can hold.
    """

    #: Parameter -> what it limits, in the order of certificates. A parameter that is None limits
    #: nothing.
    limited: ClassVar[Mapping[str, Quantity]]
    #: The rules of its certificates: that with a delta, and that in expectation.
    rules: ClassVar[Sequence[str]]
    #: The rules that certify it of a cascade, without people in it and with; none where there are
    #: none.
    cascade_rules: ClassVar[tuple[str, ...]] = ()
    #: The calibrator that goes with it, by its name on the command line; None: the usual one.
    calibrator: ClassVar[str | None] = None
    #: Whether it is about a loss of each row, a number between 0 and 1, and not only about right
    #: and wrong.
    takes_losses: ClassVar[bool] = False
    #: The promise fails with at most this probability; None: it holds in expectation.
    delta: float | None

    def __post_init__(self) -> None:
        """Raise unless each limit and delta is a number strictly between 0 and 1; None where that
        is allowed.
        """
        optional = {"delta", *(field.name for field in fields(self) if field.default is None)}  # type: ignore[arg-type]
        for name in (*self.limited, "delta"):
            if (value := getattr(self, name)) is not None or name not in optional:
                fraction(name, value)

    def certify(self, evidence: Any, correct: Any = None) -> Certificate:
        """The threshold and its certificate; InfeasibleTargetError where the evidence cannot carry
        the target.

        Evidence is a `Sample` of rows, or its two columns: scores, and whether each row is right;
        `Passes` over rows that nobody can sort; or `Answers`, labels that arrive.

        >>> import metacal as mc
        >>> mc.MaxReview(0.05).certify(np.arange(100.0), np.ones(100, dtype=bool)).n_accepted
        99
        """
        return (
            evidence if isinstance(evidence, Evidence) else Sample.of(evidence, correct)
        ).certify(self)

    @abstractmethod
    def from_sample(self, sample: Sample) -> Certificate:
        """The rule for rows."""

    def from_units(self, sample: Sample) -> Certificate:
        """The rule for rows that belong together, where every row counts."""
        raise InputError(
            "every row of a unit counts for MinAccuracy, MaxMiscoverage and MaxReview with a"
            f" delta; for {self!r} take one row of each: units=names, or Units(names, per='unit')."
        )

    def impossible_of_units(self, certificate: Certificate) -> str | None:
        """What cannot be in a certificate from whole units; None when all agrees."""
        return "it is never certified from whole units"

    @abstractmethod
    def impossible(self, certificate: Any) -> str | None:
        """What in the counts of a certificate, or of a part, cannot be under this promise; None
        when all agrees.
        """

    def from_answers(self, answers: Answers) -> Certificate:
        """The rule for labels that arrive: what they certify by now. A promise that does not walk
        needs all of them.
        """
        n, labels = len(answers.scores), answers.labels
        if not answers.complete:
            raise InfeasibleTargetError(
                f"{type(self).__name__} is certified once all {n:,} rows that were drawn have a"
                f" label; {n - labels:,} are missing.",
                target=self.limits[0][1],
                rows_needed=n,
            )
        return replace(
            self.certify(Sample.of(answers.scores, answers.right == 1, scouts=answers.scouts)),
            labels=n,
        )

    @property
    def walks(self) -> bool:
        """Whether labels from the surest row upward certify it step by step
        (`promises.sequential.answers`).
        """
        return False

    @property
    def scouted(self) -> bool:
        """Whether it takes tests in a sequence, which scouts can lay out for scores that tie
        (`promises.scouts`).
        """
        return False

    @property
    def sided(self) -> bool:
        """Whether it is about what rows of two classes are called (`rules.two_sided`)."""
        return False

    def standing(self, answers: Answers) -> Standing:
        """Where labels that arrive have led."""
        n = len(answers.scores)
        try:
            threshold = self.certify(answers).threshold
        except InfeasibleTargetError:
            return Standing(None, None if answers.complete else np.inf, n)
        return Standing(threshold, threshold, n)

    @property
    def limits(self) -> Limits:
        """What is promised, as a certificate lists it: each quantity with its limit."""
        values = ((quantity, getattr(self, name)) for name, quantity in self.limited.items())
        return tuple((quantity, float(value)) for quantity, value in values if value is not None)

    @property
    def rule(self) -> str:
        """The rule of its certificates."""
        return self.rules[-1 if self.delta is None else 0]

    @property
    def all_rules(self) -> tuple[str, ...]:
        """The rules that its certificates may have, where the rows decide among several."""
        return (self.rule,)

    def rules_for(self, certificate: Certificate) -> tuple[str, ...]:
        """Those that a certificate like this one may have."""
        stages = certificate.stages
        return self.all_rules if stages is None else self.cascade_rules[: stages.people + 1]

    @property
    def guarantee(self) -> Guarantee:
        """What its certificates call it."""
        return "in expectation" if self.delta is None else "certified"

    @property
    def surely(self) -> str:
        """How surely, as errors say it."""
        return (
            "in expectation" if self.delta is None else f"at {at_least(1 - self.delta)} confidence"
        )

    @property
    def needs_labels(self) -> bool:
        """Whether it can be certified only from labelled rows."""
        return any(quantity.needs_labels for quantity, _ in self.limits)

    @property
    def split_seed(self) -> int | None:
        """The seed that the user gave for `split`; None: `split` draws nothing, or derives its seed
        from the rows.
        """
        return None

    def split(self, correct: Flags, score: Float | None = None) -> tuple[Flags, Flags]:
        """All rows for both purposes: the score looks at no label, so threshold and calibrator may
        share them.
        """
        everything = np.ones(len(correct), dtype=bool)
        return everything, everything

    def for_base(
        self, available: Flags, scores: Float, correct: Flags, certificate: Certificate
    ) -> Flags:
        """All of them: a calibrator learns from errors, and accepted rows have few."""
        return available

    def at(self, share: float) -> Self:
        """The same promise with a share of its delta: several of them hold together where the
        shares add up to one.
        """
        return self if share == 1.0 or self.delta is None else self.at_level(self.delta * share)

    def at_level(self, delta: float | None) -> Self:
        """The same promise with another delta."""
        return type(self)(**{**self.get_params(), "delta": delta})

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, so that scikit-learn can clone it and search over it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def set_params(self, **params: Any) -> Self:
        """Change arguments in place, checked as in the constructor."""
        known = self.get_params(deep=False)
        for name, value in params.items():
            if name not in known:
                raise InputError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}."
                )
            setattr(self, name, value)
        type(self)(**self.get_params(deep=False))
        return self

    def _certificate(
        self, sample: Sample, threshold: float, notes: tuple[Note, ...] = ()
    ) -> Certificate:
        """A certificate for `threshold`, settled, with what the calibration rows look like under
        it.
        """
        return replace(
            self._ranked(sample.ranking, threshold, notes), labelled=sample.correct is not None
        )

    def _ranked(
        self, ranking: Ranking, threshold: float, notes: tuple[Note, ...] = ()
    ) -> Certificate:
        """The same of rows with labels, by their ranking.

        The scores are grid points: settling the threshold moves it past none of them.
        """
        threshold = RELATIVE.settled(threshold)
        return self._certified(threshold, ranking.outcome(threshold), notes)

    def _certified(
        self,
        threshold: float,
        outcome: Outcome,
        notes: tuple[Note, ...] = (),
        *,
        labelled: bool = True,
    ) -> Certificate:
        """The same where it is known what the rows look like under the threshold, which is
        settled.
        """
        (quantity, target), *second = self.limits
        return Certificate(
            quantity=quantity,
            target=target,
            delta=self.delta,
            guarantee=self.guarantee,
            threshold=threshold,
            rule=self.rule,
            **outcome._asdict(),
            notes=notes,
            max_miscoverage=second[0][1] if second else None,
            labelled=labelled,
        )

    # ── certificates that are read from a file ────────────────────────────────────────────────────

    def contradiction(self, certificate: Certificate) -> str | None:
        """What in a certificate is not as this promise makes it, or cannot be true; None when all
        agrees.

        Rule, limits and counts are recomputed from one another. They need the counts alone, not the
        rows: an umbrella order statistic is certified by how many right rows it keeps, a binomial
        test by how many accepted rows are wrong, whatever sequence of tests led there.

        >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
        >>> promise = MaxMiscoverage(0.05)
        >>> certificate = promise.certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
        >>> promise.contradiction(certificate)
        >>> promise.contradiction(replace(certificate, rule="paper-algorithm-1"))
        'the rule is none that this promise uses'
        """
        # The paper's split shows the certificate a part of the rows; any other rule sees them all.
        split, around = self.guarantee == "none", certificate.circumstances
        wrong = around.impossible(
            max(certificate.n_rows, around.folds) if split else certificate.n_rows, self.delta
        )
        if wrong is not None:
            return wrong
        said = (certificate.limits, certificate.delta, certificate.guarantee)
        if said != (self._limits_in(certificate), self.delta, around.guarantee(self.guarantee)):
            return f"it does not belong to the promise {self!r}; fit again"
        stages = certificate.stages
        by_units, mine = around.whole_units, self.at(around.share)
        if certificate.rule not in ((WHOLE_UNITS,) if by_units else self.rules_for(certificate)):
            return "the rule is none that this promise uses"
        return (
            other_traffic(certificate, split or by_units or around.aside > 0)
            or (None if stages is None else stages.contradiction(certificate))
            or other_marks(certificate)
            or impossible_labels(certificate, some_will_do=self.walks)
            or (mine.impossible_of_units if by_units else mine.impossible)(certificate)
        )

    def _limits_in(self, certificate: Certificate) -> Limits:
        """The limits that a certificate of this promise has: its own."""
        return self.limits


class ByRanking(Promise):
    """A promise whose rule takes the ranking of the rows and no more."""

    def from_sample(self, sample: Sample) -> Certificate:
        """The rule for a ranking."""
        return replace(self.from_ranking(sample.ranking), labelled=sample.correct is not None)

    @abstractmethod
    def from_ranking(self, ranking: Ranking) -> Certificate:
        """The rule for a ranking; `Undecided` where rows are only counted and it must know more."""


class ByPart(Promise):
    """A promise that can be made for each class or group by itself (`promises.parts.per`)."""

    #: The threshold of a part that has too few rows, or fails: -inf, or +inf where accepting breaks
    #: nothing.
    unproven: ClassVar[float]

    @abstractmethod
    def settle(self, sample: Sample, level: float, planned: float) -> tuple[Any, bool]:
        """The threshold at a level, by tests that were laid out for the planned one, and whether
        every test passed.

        None where no test has passed. Of two sides: how many rows may be called by either class.
        """

    @abstractmethod
    def takes(self, sample: Sample, level: float) -> list[tuple[int, int]]:
        """How many of these rows it counts, and how many a test at this level takes at least; of
        each side.
        """

    @abstractmethod
    def parts_of(
        self, names: tuple[Name, ...], sample: Sample, found: Any, level: float | None, spare: float
    ) -> tuple[Part, ...]:
        """What a certificate says of one class or group; `spare` is the level that it would have,
        had it one.
        """

    # What follows is that of a promise with one threshold; one with two sides has its own.

    def decided(self, sample: Sample, at: Float) -> tuple[Float, Flags, Any]:
        """Doubt, whether the answer is right and, of two sides, what rows are called, each changing
        `at` its score.
        """
        return sample.score, sample.right, 0

    def told(self, certificate: Certificate) -> Certificate:
        """The certificate as it speaks of all parts together."""
        return certificate

    def impossible_part(self, family: tuple[Part, ...], level: float) -> str | None:
        """What cannot be in a part that was tested at a level; None when all agrees."""
        return self.at_level(level).impossible(family[0])


class OneThreshold(ByPart):
    """One that gives each class or group one threshold."""

    @abstractmethod
    def lacking(self, sample: Sample, level: float) -> tuple[float | None, int | None]:
        """The limit that rows which fail could carry, and how many rows would do."""

    def parts_of(
        self, names: tuple[Name, ...], sample: Sample, found: Any, level: float | None, spare: float
    ) -> tuple[Part, ...]:
        """The one part, its threshold where it has one or what it lacks."""
        threshold = RELATIVE.settled(self.unproven if found is None else found)
        best, needed = (
            (None, None)
            if found is not None
            else self.lacking(sample, spare if level is None else level)
        )
        seen = sample.ranking.outcome(threshold)._asdict()
        return (
            Part(names, threshold=threshold, delta=level, best=best, rows_needed=needed, **seen),
        )


def cannot_certify(
    promise: Promise,
    what: str,
    n: int,
    best: float | None,
    at_best: str,
    needed: int | None,
    loosen: str,
    ruled_out: str | None,
) -> InfeasibleTargetError:
    """Build the InfeasibleTargetError: best certifiable limit, rows needed, suggested action.

    `ruled_out` is a proved sentence about thresholds, or None. It is said if no number of rows is
    known.
    """
    can = f"these {n:,} rows certify nothing {promise.surely}"
    if best is not None:
        can = f"the best certifiable on these {n:,} rows {promise.surely} is {at_best}"
    do = f"{loosen}, or improve the model"
    if needed is not None:
        do = f"{loosen}; about {needed:,} rows may be enough (a rough estimate)"
    said, ((_, target), *_) = f"{what} cannot be certified: {can}; {do}.", promise.limits
    if needed is None and ruled_out is not None:
        said += f" {ruled_out}"
    return InfeasibleTargetError(said, target=target, best=best, rows_needed=needed)
