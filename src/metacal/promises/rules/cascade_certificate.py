"""CascadeCertificate: the thresholds of a cascade, what is promised, how surely, and from which counts."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from metacal import shown
from metacal.errors import InputError
from metacal.promises.notes import Note
from metacal.promises.rules import bounds
from metacal.promises.rules.accuracy import MinAccuracy
from metacal.promises.rules.noninferiority import shows_at_most
from metacal.promises.shares import at_least, at_most
from metacal.promises.words import SAME_SOURCE_OF_BOTH, register_rule, rule_named
from metacal.rows.validate import fraction

#: Of delta, what the exact test of a difference spends on the limit of its nuisance parameter.
GAMMA = 0.05
#: A tail probability is recomputed by another SciPy than the one that compared it with delta.
_SLACK = 1.0 + 1e-9


@dataclass(frozen=True)
class MaxLoss:
    """Of all answers at most `epsilon` more are wrong than if the large model answered alone.

    P(cascade wrong) - P(large wrong) <= epsilon, with probability 1 - `delta` over the calibration rows. Labels are
    needed only where the two models disagree.

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

    def __post_init__(self) -> None:
        fraction("epsilon", self.epsilon)
        fraction("delta", self.delta)


CascadePromise = MaxLoss | MinAccuracy

#: How the thresholds were chosen, by promise and whether people are in the cascade.
RULES: dict[tuple[type, bool], str] = {
    (MaxLoss, False): register_rule(
        "cascade-difference",
        "exact tests of the difference of two error rates at fixed thresholds, in a fixed sequence "
        "(Hsueh, Liu & Chen 2001; Angelopoulos et al. 2021)",
        SAME_SOURCE_OF_BOTH,
    ),
    (MinAccuracy, False): register_rule(
        "cascade-binomial",
        "exact binomial tests at fixed thresholds, in a fixed sequence (Angelopoulos et al. 2021)",
        SAME_SOURCE_OF_BOTH,
    ),
    (MinAccuracy, True): register_rule(
        "cascade-pareto",
        "exact binomial tests at fixed pairs of thresholds, cheapest at their risk, safest first "
        "(Pareto testing, Laufer-Goldenthal et al. 2023)",
        SAME_SOURCE_OF_BOTH,
    ),
}


@dataclass(frozen=True)
class CascadeCertificate:
    """Two thresholds together with the promise they carry.

    Attributes
    ----------
    promise : MaxLoss or MinAccuracy
        What is promised, with its limit and delta.
    threshold, large_threshold : float
        The small model answers iff its score is at most the first; the large one, of the rest, iff its score is at most
        the second (+inf: always).
    rule : str
        The name of how they were chosen.
    n_rows, n_aside, n_labels : int
        Rows tested, rows set aside before to choose thresholds, and how many labels the tests needed.
    n_small, n_large, n_person : int
        Who answers how many of the tested rows.
    n_worse, n_better : int
        Of those the small model answers: it alone is wrong, the large one alone would be.
    n_wrong_small, n_wrong_large : int or None
        Wrong answers of each; None where labels are missing.
    people : bool
        Whether what neither model accepts is left to people.
    score, large_score : str
        Names of the ranking scores.
    notes : tuple of Note
        What the reader should know about this fit.
    """

    promise: CascadePromise
    threshold: float
    large_threshold: float
    rule: str
    n_rows: int
    n_aside: int
    n_labels: int
    n_small: int
    n_large: int
    n_person: int
    n_worse: int
    n_better: int
    n_wrong_small: int | None
    n_wrong_large: int | None
    people: bool = False
    score: str = "score"
    large_score: str = "score"
    notes: tuple[Note, ...] = ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the promise rests on."""
        return rule_named(self.rule).assumptions

    @property
    def share_small(self) -> float:
        """Share of the tested rows that the small model answers."""
        return self.n_small / self.n_rows

    @property
    def share_large(self) -> float:
        """Share of the tested rows that the large model answers."""
        return self.n_large / self.n_rows

    @property
    def share_person(self) -> float:
        """Share of the tested rows that is left to people."""
        return self.n_person / self.n_rows

    @property
    def loss(self) -> float:
        """By how much the cascade erred more often on the tested rows than the large model would have alone."""
        return (self.n_worse - self.n_better) / self.n_rows

    @property
    def accuracy(self) -> float | None:
        """Accuracy of what the cascade answers on the tested rows; None where labels are missing."""
        if self.n_wrong_small is None or self.n_wrong_large is None:
            return None
        answered = self.n_small + self.n_large
        return 1.0 - (self.n_wrong_small + self.n_wrong_large) / answered if answered else None

    @property
    def statement(self) -> str:
        """The promise as one sentence."""
        assert self.promise.delta is not None
        surely = f"with {at_least(1.0 - self.promise.delta)} confidence."
        if isinstance(self.promise, MaxLoss):
            limit = at_most(self.promise.epsilon)
            return f"Of all answers at most {limit} more are wrong than if the large model answered alone, {surely}"
        return f"What the cascade answers is right at least {at_least(self.promise.beta)} of the time, {surely}"

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The certificate in words, a (name, text) a line."""
        rest = "the rest" if not self.people else f"of the rest, if {self.large_score} <= {self.large_threshold:.6g}"
        if self.people and self.large_threshold == math.inf:
            rest = "all of the rest"
        answers = f"small {self.share_small:.4f}, large {self.share_large:.4f}"
        answers += f", people {self.share_person:.4f}" if self.people else ""
        aside = f", {self.n_aside:,} more set aside to choose thresholds" if self.n_aside else ""
        found = [
            ("small", f"answers if {self.score} <= {self.threshold:.6g}"),
            ("large", f"answers {rest}"),
            ("from", f"{self.n_rows:,} calibration rows; {self.n_labels:,} of their labels were needed{aside}"),
            ("on these", answers),
            (
                "difference",
                f"{self.n_worse:,} worse by the small model, {self.n_better:,} better: {self.loss:+.4f} of all",
            ),
        ]
        if self.accuracy is not None:
            found.append(("accuracy", f"{self.accuracy:.4f} of what is answered"))
        return [*found, ("rule", rule_named(self.rule).text)]

    def contradiction(self) -> str | None:
        """What in the counts cannot be, or does not certify what is promised; None when all agrees."""
        if self.n_small + self.n_large + self.n_person != self.n_rows or self.n_rows < 1:
            return "the rows that each answers do not sum to all rows"
        if self.n_worse + self.n_better > self.n_small or self.n_labels > self.n_rows:
            return "more rows differ, or have a label, than there are"
        if min(vars(self)[name] for name in _COUNTS) < 0:
            return "a count is negative"
        if (self.n_wrong_small is None) != (self.n_wrong_large is None):
            return "the wrong answers are known of one model alone"
        if not self._wrong_can_be():
            return "more answers are wrong than were given, or fewer than differ"
        if self.n_person and not self.people:
            return "rows are left to people in a cascade without people"
        if not self.people and self.large_threshold != math.inf:
            return "the large model turns rows away in a cascade without people"
        if self.rule != RULES.get((type(self.promise), self.people)):
            return "the rule is none that this promise uses"
        return None if self._certified() else "the counts do not certify what is promised"

    def _wrong_can_be(self) -> bool:
        small, large = self.n_wrong_small, self.n_wrong_large
        if small is None or large is None:
            return True
        return self.n_worse <= small <= self.n_small - self.n_better and 0 <= large <= self.n_large

    def _certified(self) -> bool:
        promise = self.promise
        assert promise.delta is not None
        level = _SLACK * promise.delta
        if isinstance(promise, MaxLoss):
            gamma = GAMMA * promise.delta
            return shows_at_most(self.n_worse, self.n_better, self.n_rows, promise.epsilon, level, gamma)
        if self.n_wrong_small is None or self.n_wrong_large is None:
            return False
        wrong = self.n_wrong_small + self.n_wrong_large
        return binomial_shows(wrong, self.n_small + self.n_large, promise.beta, level)

    def to_dict(self, *, words: bool = False) -> dict[str, Any]:
        """The facts as plain JSON types, and with `words` the sentences; infinite thresholds are "inf" or "-inf"."""
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "promise"}
        for name in ("threshold", "large_threshold"):
            if math.isinf(plain[name]):
                plain[name] = "inf" if plain[name] > 0 else "-inf"
        plain["notes"] = [note.to_dict() for note in self.notes]
        return {
            "promise": {"type": type(self.promise).__name__, **asdict(self.promise)},
            **plain,
            "share_small": self.share_small,
            "share_large": self.share_large,
            "share_person": self.share_person,
            "loss": self.loss,
            "accuracy": self.accuracy,
            **(self._words() if words else {}),
        }

    def _words(self) -> dict[str, Any]:
        own = {"rule": rule_named(self.rule).text, "assumptions": list(self.assumptions)}
        return {"statement": self.statement, "words": {**own, "notes": list(map(str, self.notes))}}

    def __str__(self) -> str:
        lines = [self.statement, *(f"  {name:<12} {value}" for name, value in self.lines)]
        lines += [f"  assuming     {text}" for text in self.assumptions]
        return "\n".join([*lines, *(f"  note         {text}" for text in self.notes)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [
            *self.lines,
            *(("assuming", text) for text in self.assumptions),
            *(("note", str(n)) for n in self.notes),
        ]
        return shown.facts(self.statement, rows)


_COUNTS = ("n_rows", "n_aside", "n_labels", "n_small", "n_large", "n_person", "n_worse", "n_better")


def binomial_shows(wrong: int, answered: int, beta: float, level: float) -> bool:
    """Whether so few wrong answers show, at this level, an accuracy of at least beta.

    Examples
    --------
    >>> binomial_shows(0, 45, 0.95, 0.1), binomial_shows(0, 44, 0.95, 0.1)
    (True, False)
    """
    return answered > 0 and bool(bounds.binomial_p_value(wrong, answered, 1.0 - beta) <= level)


def cascade_promise(kind: Any, **given: Any) -> CascadePromise:
    """The promise of this name.

    Examples
    --------
    >>> cascade_promise("MaxLoss", epsilon=0.01, delta=0.1)
    MaxLoss(epsilon=0.01, delta=0.1)
    """
    known: dict[str, type[MaxLoss] | type[MinAccuracy]] = {
        "MaxLoss": MaxLoss,
        "MinAccuracy": MinAccuracy,
    }
    if kind not in known:
        raise InputError(f"a cascade promises {' or '.join(known)}, not {kind!r}.")
    return known[kind](**given)
