"""Certificate: the facts of a promise. Its threshold, its limits, how surely, by which rule, from
how many rows.

Sentences are made from them in `metacal.certificates.words`, and are never read back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from metacal import display
from metacal.certificates import words
from metacal.certificates.cascade_stages import Stages
from metacal.certificates.circumstances import Circumstances
from metacal.certificates.counts import OPTIONAL, Population, TestedCounts, Traffic
from metacal.certificates.estimate import NextRows, estimate_review_rate, predict_review_count
from metacal.certificates.notes import Note
from metacal.certificates.quantity import MISCOVERAGE, Limits, Quantity, get_quantity
from metacal.certificates.subgroups import (
    Name,
    SubgroupCertificate,
    SubgroupCertificates,
    convert_to_json,
)
from metacal.formulas import Flags, Float

Guarantee = Literal["certified", "approximate", "in expectation", "none"]


def accepts(score: Float, threshold: float | Float) -> Flags:
    """Accept iff h <= s. The one function that decides it, ties and NaN (never accepted) included.

    The threshold is one number, or one for each row where classes or groups have their own.

    >>> accepts(np.array([0.1, 0.2, np.nan]), 0.1)
    array([ True, False, False])
    """
    return np.asarray(score <= threshold)


_NOTHING_PARTICULAR = Circumstances()
#: Entries that are null in a file where the calibration rows had no labels.
LABEL_COUNT_FIELDS = ("n_correct", "n_correct_accepted")
#: Columns of a frame, of a certificate as of each of its parts.
_COUNTED = (
    "threshold",
    "n_rows",
    "n_correct",
    "n_accepted",
    "n_correct_accepted",
    "coverage",
    "coverage_accuracy",
)


@dataclass(frozen=True)
class Certificate:
    """A threshold together with the promise it carries.

    Attributes
    ----------
    quantity : Quantity
        What is limited, "miscoverage" (P(reject | correct), from above) or "coverage accuracy"
        (P(correct | accept), from below): an object that is equal to its name. A name will do to
        make a certificate.
    target : float
        The limit: alpha or beta.
    delta : float or None
        The promise fails with probability at most delta over the draw of the calibration rows;
        None: no such statement.
    guarantee : "certified", "approximate", "in expectation" or "none"
        "certified": holds with probability 1 - delta; "in expectation": on average over calibration
        sets; "approximate": the same rule on cross-fitted rows, where no exact statement is
        possible; "none": the paper's own rule, kept for comparison.
    threshold : float
        Accept iff score <= threshold. It lies in the middle between two numbers that a score can be
        (`kernels.grid`).
    rule : str
        The name of how the threshold was chosen; `words.rule(certificate)` has its words, with the
        reference.
    n_rows, n_correct : int
        Calibration rows that certify, and how many of them the classifier got right. What describes
        the traffic is `traffic`.
    n_accepted, n_correct_accepted : int
        How many of those fall at or below the threshold.
    highest_accepted, lowest_rejected : float or None
        The calibration scores on either side of the threshold.
    score : str
        Name of the ranking score.
    max_miscoverage : float or None
        The second limit where both are promised at once: `quantity` is then "coverage accuracy"
        with its `target`.
    notes : tuple of Note
        What the reader should know about this fit: `str(note)` is a sentence.
    mean_cost : float or None
        What the calibration rows cost on average, of those that a promise about costs looks at;
        None for other promises.
    labelled : bool
        Whether labels were there to say what is right. If not, the counts of right rows are 0, and
        null in a file.
    parts : SubgroupCertificates or None
        Where each class or group has its own threshold: all of them. `threshold` is then -inf,
        which accepts nothing: whoever decides without looking at the parts is wrong on the safe
        side.
    labels : int or None
        Where labels were asked for (`metacal.certification.arriving`): how many of the `n_rows` that were drawn
        have one, all accepted ones among them. `n_correct` then counts the right ones among those
        with a label.
    circumstances : Circumstances
        What was particular about the fit: scores that shared delta, units, weights, folds.
    stages : Stages or None
        Of a cascade: the models that answer, each with its threshold and counts. `threshold` and
        `score` are then the first one's, a row is accepted where any of them answers.
    marks : tuple of (float, int, int)
        Of a score of few values, a judge's marks: each as the gate sees it (higher is less sure),
        with how many rows have it and how many of those are wrong.
    decision_at : float
        Of two classes: the log-odds above which a row is called by the second; 0 is the
        classifier's own decision.
    other_traffic : Traffic or None
        Where only some of the calibration rows certify, as in the paper's split: the counts of all
        of them.

    Examples
    --------
    >>> import metacal as mc
    >>> doubt, correct = [0.1, 0.2, 0.3, 0.4, 0.9], [True, True, True, True, False]
    >>> certificate = mc.MaxMiscoverage(0.5, delta=0.1).certify(doubt, correct)
    >>> certificate.statement
    'At most 50% of the correct predictions are rejected, with 90% confidence.'
    >>> certificate.n_accepted, certificate.coverage
    (4, 0.8)
    """

    quantity: Quantity
    target: float
    delta: float | None
    guarantee: Guarantee
    threshold: float
    rule: str
    n_rows: int
    n_correct: int
    n_accepted: int
    n_correct_accepted: int
    highest_accepted: float | None
    lowest_rejected: float | None
    score: str = "score"
    notes: tuple[Note, ...] = ()
    max_miscoverage: float | None = field(default=None, metadata=OPTIONAL)
    mean_cost: float | None = field(default=None, metadata=OPTIONAL)
    labelled: bool = field(default=True, metadata=OPTIONAL)
    parts: SubgroupCertificates | None = field(default=None, metadata=OPTIONAL)
    labels: int | None = field(default=None, metadata=OPTIONAL)
    circumstances: Circumstances = field(default=_NOTHING_PARTICULAR, metadata=OPTIONAL)
    stages: Stages | None = field(default=None, metadata=OPTIONAL)
    marks: tuple[tuple[float, int, int], ...] = field(default=(), metadata=OPTIONAL)
    decision_at: float = field(default=0.0, metadata=OPTIONAL)
    other_traffic: Traffic | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "quantity", get_quantity(self.quantity))

    def with_notes(self, *notes: Note) -> Certificate:
        """The same with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    @property
    def limits(self) -> Limits:
        """Every promised quantity with its limit: one, or two where both are promised at once."""
        first = (self.quantity, self.target)
        return (
            (first,)
            if self.max_miscoverage is None
            else (first, (MISCOVERAGE, self.max_miscoverage))
        )

    @property
    def confidence(self) -> float | None:
        """1 - delta, or None where nothing is promised with a probability."""
        return None if self.delta is None else 1.0 - self.delta

    @property
    def accepts_everything(self) -> bool:
        """Whether the threshold is +inf, so that no row is ever rejected; where there are parts,
        that of each.
        """
        if self.parts is not None:
            return all(part.accepts_everything for part in self.parts.items)
        if self.stages is not None:
            return not self.stages.people
        return self.threshold == math.inf

    @property
    def tested_counts(self) -> TestedCounts:
        """The rows that certify, and nothing else: `traffic` says what arrives."""
        return TestedCounts(self.n_rows, self.n_accepted, self.n_correct, self.n_correct_accepted)

    @property
    def traffic(self) -> Traffic:
        """The rows that describe the traffic: those that certify, or all of which they are a
        part.
        """
        population: Population = "source" if self.circumstances.weights is None else "target"
        return Traffic(
            **{
                **vars(self.tested_counts),
                **vars(self.other_traffic or self.tested_counts),
                "population": population,
            }
        )

    def with_traffic(self, accept: Flags, correct: Flags) -> Certificate:
        """The same where only some of the rows certify: all of them, accepted or not, describe the
        traffic.
        """
        accepted, right, both = (int(flags.sum()) for flags in (accept, correct, accept & correct))
        return replace(self, other_traffic=Traffic(len(accept), accepted, right, both))

    @property
    def coverage(self) -> float:
        """Share of the traffic that is accepted, as the calibration rows show it."""
        return self.traffic.coverage

    @property
    def every_row_labelled(self) -> bool:
        """Whether the fit knew of every calibration row if it is correct or, in a cascade, if the
        models agree.
        """
        return self.stages is not None or (self.labelled and self.labels is None)

    @property
    def coverage_accuracy(self) -> float:
        """Accuracy of what is accepted of the traffic, on the calibration rows; nan when nothing
        is.
        """
        return self.traffic.accuracy if self.labelled else math.nan

    @property
    def miscoverage(self) -> float:
        """Share of the correct calibration rows that is rejected; nan where no labels say which
        are.
        """
        known = self.labelled and self.labels in (None, self.n_rows) and self.stages is None
        right, kept = self.traffic.n_correct, self.traffic.n_correct_accepted
        return 1.0 - kept / right if known and right else math.nan

    @property
    def loss(self) -> float | None:
        """How much more often a cascade is wrong on these rows than its last model; None if that
        was not observed.
        """
        if self.stages is None or self.stages.n_worse is None or self.stages.n_better is None:
            return None
        return (self.stages.n_worse - self.stages.n_better) / self.n_rows

    @property
    def disagreement(self) -> float | None:
        """Share of these rows that a cascade answers otherwise than its last model, if that is what
        was observed.
        """
        if self.stages is None or self.stages.n_differ is None:
            return None
        return self.stages.n_differ / self.n_rows

    def next_rows(self, rows: int, level: float = 0.9, *, part: Name | None = None) -> NextRows:
        """How many of the next `rows` rows go to review: an interval that holds with probability
        `level`.

        Where each class or group has its own threshold, `part` asks about the rows of one.

        >>> from metacal.promises.miscoverage import MaxMiscoverage
        >>> c = MaxMiscoverage(0.1).certify(np.linspace(0, 1, 900), np.ones(900, dtype=bool))
        >>> print(c.next_rows(1000))
        of the next 1,000 rows 67 to 110 go to review (90% interval)
        """
        alone = self.circumstances.units is None
        return predict_review_count(
            rows, level, estimate_review_rate(self, part), each="row" if alone else "unit"
        )

    @property
    def statement(self) -> str:
        """The promise as one sentence."""
        return words.state_promise(self)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the promise rests on, a sentence each."""
        return words.list_assumptions(self)

    def to_dict(self, *, words: bool = False) -> dict[str, Any]:
        """The facts as plain JSON types, and with `words` the sentences; an infinite threshold is
        "inf" or "-inf".

        >>> from metacal.promises.miscoverage import MaxMiscoverage
        >>> c = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
        >>> c.to_dict()["n_accepted"], c.to_dict()["coverage"]
        (99, 0.99)
        """
        there = [
            name
            for name in STORED_FIELDS
            if name not in OMITTED_DEFAULTS or getattr(self, name) != OMITTED_DEFAULTS[name]
        ]
        plain = {name: getattr(self, name) for name in there}
        if not self.labelled:
            plain |= dict.fromkeys(LABEL_COUNT_FIELDS)
        shares = {
            name: getattr(self, name) for name in ("coverage", "coverage_accuracy", "miscoverage")
        }
        shares |= {} if self.loss is None else {"loss": self.loss}
        shares |= {} if self.disagreement is None else {"disagreement": self.disagreement}
        # Right rows are counted again where other rows certified.
        silent = [name for name in LABEL_COUNT_FIELDS if not getattr(self.other_traffic, name, 0)]
        traffic = {name: value for name, value in vars(self.traffic).items() if name not in silent}
        plain |= {"quantity": self.quantity.name, "traffic": traffic, **shares}
        return {**convert_to_json(plain), **(self._words() if words else {})}

    def _words(self) -> dict[str, Any]:
        own = {
            "rule": words.describe_rule(self),
            "assumptions": list(self.assumptions),
            "notes": list(map(str, self.notes)),
        }
        return {"statement": self.statement, "words": own}

    def __str__(self) -> str:
        told, named = [self.statement], ""
        for name, text in self._told():
            told.append(f"  {'' if name == named == 'assuming' else name:<12} {text}")
            named = name
        return "\n".join(told)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return display.make_facts_html(self.statement, self._told())

    def _told(self) -> list[tuple[str, str]]:
        assuming = (("assuming", text) for text in self.assumptions)
        return [*self.description_lines, *assuming, *(("note", str(note)) for note in self.notes)]

    def to_frame(self) -> Any:
        """A `pandas.DataFrame`, a row for each class or group, or one row: threshold, counts of
        calibration rows.
        """
        own: Sequence[Certificate | SubgroupCertificate] = (
            (self,) if self.parts is None else self.parts.items
        )
        names = ["all rows"] if self.parts is None else [part.label for part in self.parts.items]
        silent = {} if self.labelled else dict.fromkeys(LABEL_COUNT_FIELDS)
        records = [{**{name: getattr(each, name) for name in _COUNTED}, **silent} for each in own]
        return display.make_frame(records, names, ["rows" if self.parts is None else self.parts.by])

    @property
    def condition(self) -> str:
        """What an accepted row fulfils, in words: "entropy <= 0.3", or "mark >= 0.3" where the
        score is "-mark".

        >>> from dataclasses import replace
        >>> from metacal.promises.miscoverage import MaxMiscoverage
        >>> marks = np.repeat([0.9, 0.8, 0.7], [80, 15, 5])
        >>> found = MaxMiscoverage(0.2).certify(-marks, np.ones(100, dtype=bool))
        >>> replace(found, score="-mark", threshold=-0.7000001, lowest_rejected=-0.7).condition
        'mark > 0.7'
        """
        return words.describe_condition(self)

    @property
    def description_lines(self) -> list[tuple[str, str]]:
        """The certificate in words, a (name, text) a line: gate, from, on these, rule."""
        return words.list_lines(self)


#: What a file says of a certificate, besides its traffic and the shares that follow from counts.
STORED_FIELDS = tuple(each.name for each in fields(Certificate) if each.name != "other_traffic")
#: Those that are there only where they say something, and what they are where they are not there.
OMITTED_DEFAULTS: dict[str, Any] = {
    each.name: each.default for each in fields(Certificate) if each.metadata
}
