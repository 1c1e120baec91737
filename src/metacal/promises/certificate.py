"""Certificate: the threshold, what is promised, how surely, under which assumptions, from how many rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metacal import shown
from metacal.kernels.grid import RELATIVE, Grid, settled_between
from metacal.promises.next_rows import NextRows, next_rows
from metacal.promises.parts import Name, Part, Parts
from metacal.promises.quantity import MISCOVERAGE, Limits, Quantity, quantity
from metacal.promises.shares import at_least, at_most, nearest

Guarantee = Literal["certified", "approximate", "in expectation", "none"]


#: How "on average over calibration sets" goes on; where accepting can break a promise, some sets certify nothing.
_HALF = " (about half of them may exceed it)"
_NOTHING_KEPT = ", one that certifies nothing counting as kept (about half of the others may miss it)"


def accepts(score: NDArray[np.float64], threshold: float | NDArray[np.float64]) -> NDArray[np.bool_]:
    """Accept iff h <= s. The one function that decides it, ties and NaN (never accepted) included.

    The threshold is one number, or one for each row where classes or groups have their own.

    Examples
    --------
    >>> accepts(np.array([0.1, 0.2, np.nan]), 0.1)
    array([ True, False, False])
    """
    return np.asarray(score <= threshold)


#: Entries that a certificate in a file has only where they say something, and what they are where they are not there.
OPTIONAL: dict[str, Any] = {
    "max_miscoverage": None,
    "mean_cost": None,
    "labelled": True,
    "parts": None,
    "labels": None,
}
#: Entries that are null in a file where the calibration rows had no labels.
COUNTED_BY_LABELS = ("n_correct", "n_correct_accepted")
#: Columns of a frame, of a certificate as of each of its parts.
_COUNTED = ("threshold", "n_rows", "n_correct", "n_accepted", "n_correct_accepted", "coverage", "coverage_accuracy")


@dataclass(frozen=True)
class Certificate:
    """A threshold together with the promise it carries.

    Attributes
    ----------
    quantity : Quantity
        What is limited, "miscoverage" (P(reject | correct), from above) or "coverage accuracy" (P(correct | accept),
        from below): an object that is equal to its name. A name will do to make a certificate.
    target : float
        The limit: alpha or beta.
    delta : float or None
        The promise fails with probability at most delta over the draw of the calibration rows; None: no such statement.
    guarantee : "certified", "approximate", "in expectation" or "none"
        "certified": holds with probability 1 - delta; "in expectation": on average over calibration sets;
        "approximate": the same rule on cross-fitted rows, where no exact statement is possible;
        "none": the paper's own rule, kept for comparison.
    threshold : float
        Accept iff score <= threshold. It lies in the middle between two numbers that a score can be (`kernels.grid`).
    rule : str
        How the threshold was chosen, with its reference.
    n_rows, n_correct : int
        Calibration rows looked at, and how many of them the classifier got right.
    n_accepted, n_correct_accepted : int
        How many of those fall at or below the threshold.
    highest_accepted, lowest_rejected : float or None
        The calibration scores on either side of the threshold.
    score : str
        Name of the ranking score.
    max_miscoverage : float or None
        The second limit where both are promised at once: `quantity` is then "coverage accuracy" with its `target`.
    assumptions, notes : tuple of str
        What the promise rests on; what the reader should know about this fit.
    mean_cost : float or None
        What the calibration rows cost on average, of those that a promise about costs looks at; None for other
        promises.
    labelled : bool
        Whether labels were there to say what is right. If not, the counts of right rows are 0, and null in a file.
    parts : Parts or None
        Where each class or group has its own threshold: all of them. `threshold` is then -inf, which accepts nothing:
        whoever decides without looking at the parts is wrong on the safe side.
    labels : int or None
        Where labels were asked for (`metacal.promises.answers`): how many of the `n_rows` that were drawn have one, all
        accepted ones among them. `n_correct` then counts the right ones among those with a label.

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
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    max_miscoverage: float | None = None
    mean_cost: float | None = None
    labelled: bool = True
    parts: Parts | None = None
    labels: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "quantity", quantity(self.quantity))

    def with_names(self, classes: Sequence[Name]) -> Certificate:
        """The same where parts are classes that have been called by the numbers of their columns."""
        if self.parts is None or self.parts.by != "class":
            return self
        return replace(self, parts=self.parts.renamed(classes))

    @property
    def limits(self) -> Limits:
        """Every promised quantity with its limit: one, or two where both are promised at once."""
        first = (self.quantity, self.target)
        return (first,) if self.max_miscoverage is None else (first, (MISCOVERAGE, self.max_miscoverage))

    @property
    def confidence(self) -> float | None:
        """1 - delta, or None where nothing is promised with a probability."""
        return None if self.delta is None else 1.0 - self.delta

    @property
    def accepts_everything(self) -> bool:
        """Whether the threshold is +inf, so that no row is ever rejected; where there are parts, that of each."""
        if self.parts is not None:
            return all(part.accepts_everything for part in self.parts.items)
        return self.threshold == math.inf

    def settled_threshold(self, grid: Grid) -> float:
        """The threshold to decide by: this one, or, in a file from before scores were rounded, the middle next to it.

        Where the scores on either side are one number on the grid, such rows are accepted if the promise is about
        rejecting too many, and rejected if it is about accepting wrong ones: the side that cannot break it.
        """
        keep = self.quantity.accepting_is_safe
        return settled_between(grid, self.threshold, self.highest_accepted, self.lowest_rejected, accept_tied=keep)

    @property
    def coverage(self) -> float:
        """Share of the calibration rows that is accepted."""
        return self.n_accepted / self.n_rows

    @property
    def coverage_accuracy(self) -> float:
        """Accuracy of the accepted calibration rows; nan when none is accepted, or nobody knows."""
        return self.n_correct_accepted / self.n_accepted if self.n_accepted and self.labelled else math.nan

    @property
    def miscoverage(self) -> float:
        """Share of the correct calibration rows that is rejected; nan where no labels say which are."""
        known = self.labelled and self.labels in (None, self.n_rows)
        return 1.0 - self.n_correct_accepted / self.n_correct if known else math.nan

    def next_rows(self, rows: int, level: float = 0.9) -> NextRows:
        """How many of the next `rows` rows go to review: an interval that holds with probability `level`.

        Examples
        --------
        >>> from metacal.promises.miscoverage import MaxMiscoverage
        >>> c = MaxMiscoverage(0.1).certify(np.linspace(0, 1, 900), np.ones(900, dtype=bool))
        >>> print(c.next_rows(1000))
        of the next 1,000 rows 66 to 109 go to review (90% interval)
        """
        return next_rows(rows, level, accepted=self.n_accepted, of=self.n_rows)

    @property
    def statement(self) -> str:
        """The promise as one sentence.

        Examples
        --------
        >>> from metacal.promises.miscoverage import MaxMiscoverage
        >>> MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool)).statement
        'At most 5% of the correct predictions are rejected, with 90% confidence.'
        """
        return self._stated(at_least, at_most)

    @property
    def former_statements(self) -> tuple[str, ...]:
        """The sentence as earlier versions wrote it: with shares rounded to the nearest, or a shorter "on average"."""
        shorter = self._stated(at_least, at_most).replace(_NOTHING_KEPT, _HALF)
        former = self._stated(nearest, nearest)
        return former, shorter, former.replace(_NOTHING_KEPT, _HALF)

    def _stated(self, at_least: Callable[[float], str], at_most: Callable[[float], str]) -> str:
        claim, *more = (promised.claim(limit, at_least, at_most) for promised, limit in self.limits)
        claim = " and ".join([claim, *(text[0].lower() + text[1:] for text in more)])
        if self.parts is not None and self.delta is not None:
            approximate = self.guarantee == "approximate"
            sure = f"{'about ' if approximate else ''}{at_least(1.0 - self.delta)}"
            surely = self.parts.surely(sure, at_most(self.delta))
            return f"{self.parts.claim(claim)}, {surely}{' (approximate, not certified)' if approximate else ''}."
        if self.guarantee == "certified" and self.confidence is not None:
            return f"{claim}, {'both ' if more else ''}with {at_least(self.confidence)} confidence."
        if self.guarantee == "approximate":
            surely = (
                "on average over calibration sets"
                if self.confidence is None
                else (f"with about {at_least(self.confidence)} confidence")
            )
            return f"{claim}, {surely} (approximate, not certified)."
        if self.guarantee == "in expectation":
            always = all(promised.accepting_is_safe for promised, _ in self.limits)
            return f"{claim}, on average over calibration sets{_HALF if always else _NOTHING_KEPT}."
        return f"Aimed at, without a guarantee: {claim[0].lower()}{claim[1:]}."

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON types; an infinite threshold becomes the string "inf" or "-inf".

        Examples
        --------
        >>> from metacal.promises.miscoverage import MaxMiscoverage
        >>> c = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
        >>> Certificate.from_dict(c.to_dict()) == c
        True
        """
        plain = {name: _jsonable(value) for name, value in asdict(replace(self, parts=None)).items()}
        plain["quantity"] = self.quantity.name
        if not self.labelled:
            plain |= dict.fromkeys(COUNTED_BY_LABELS)
        plain["parts"] = None if self.parts is None else self.parts.to_dict()
        for name, silent in OPTIONAL.items():  # not there where there is nothing to say, as it always was
            if plain[name] is silent:
                del plain[name]
        return {
            **plain,
            "statement": self.statement,
            "coverage": self.coverage,
            "coverage_accuracy": _jsonable(self.coverage_accuracy),
            "miscoverage": _jsonable(self.miscoverage),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Certificate:
        """The inverse of `to_dict`; derived entries are recomputed, not read."""
        values = {field.name: data[field.name] for field in fields(cls) if field.name not in OPTIONAL}
        values |= {name: data.get(name, silent) for name, silent in OPTIONAL.items()}
        values["parts"] = None if values["parts"] is None else Parts.from_dict(values["parts"])
        values |= {name: values[name] or 0 for name in COUNTED_BY_LABELS}
        for name in ("threshold", "highest_accepted", "lowest_rejected"):
            values[name] = None if values[name] is None else float(values[name])
        for name in ("assumptions", "notes"):
            values[name] = tuple(values[name])
        return cls(**values)

    def __str__(self) -> str:
        lines = [self.statement]
        lines += [f"  {name:<12} {value}" for name, value in self.lines]
        lines += [f"  assuming     {self.assumptions[0]}"] if self.assumptions else []
        lines += [f"               {text}" for text in self.assumptions[1:]]
        lines += [f"  note         {text}" for text in self.notes]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [*self.lines, *(("assuming", text) for text in self.assumptions), *(("note", t) for t in self.notes)]
        return shown.facts(self.statement, rows)

    def to_frame(self) -> Any:
        """A `pandas.DataFrame`, a row for each class or group, or one row: threshold, counts of calibration rows."""
        own: Sequence[Certificate | Part] = (self,) if self.parts is None else self.parts.items
        names = (
            ["all rows"]
            if self.parts is None
            else [part.names[0] if len(part.names) == 1 else part.name for part in self.parts.items]
        )
        silent = {} if self.labelled else dict.fromkeys(COUNTED_BY_LABELS)
        records = [{**{name: getattr(each, name) for name in _COUNTED}, **silent} for each in own]
        return shown.frame(records, names, ["rows" if self.parts is None else self.parts.by])

    @property
    def condition(self) -> str:
        """What an accepted row fulfils, in words: "entropy <= 0.3", or "mark >= 0.3" where the score is "-mark".

        Where the number shown is itself a score that was rejected, as with scores of few digits, the sign says so.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from metacal.promises.miscoverage import MaxMiscoverage
        >>> marks = np.repeat([0.9, 0.8, 0.7], [80, 15, 5])
        >>> found = MaxMiscoverage(0.2).certify(-marks, np.ones(100, dtype=bool))
        >>> replace(found, score="-mark", threshold=-0.7000001, lowest_rejected=-0.7).condition
        'mark > 0.7'
        """
        surer = self.score.startswith("-")
        shown = f"{-self.threshold if surer else self.threshold:.6g}"
        doubt = RELATIVE.rounded([-float(shown) if surer else float(shown)])[0]
        strict = self.lowest_rejected is not None and bool(doubt == RELATIVE.rounded([self.lowest_rejected])[0])
        return f"{self.score.removeprefix('-')} {'>' if surer else '<'}{'' if strict else '='} {shown}"

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The certificate in words, a (name, text) a line: gate, from, on these, rule."""
        gate = "accept every row" if self.accepts_everything else f"accept if {self.condition}"
        gate = "accept no row" if self.threshold == -math.inf else gate
        if self.parts is not None:
            which = "the predicted class" if self.parts.by == "class" else "the row's group"
            gate = f"accept if {self.score} <= the threshold of {which}"
        accuracy = "-" if not self.n_accepted else f"{self.coverage_accuracy:.4f}"
        known = "without labels" if not self.labelled else f"{self.n_correct:,} of them right"
        told = f", accuracy of accepted {accuracy}"
        told += "" if math.isnan(self.miscoverage) else f", miscoverage {self.miscoverage:.4f}"
        source = f"{self.n_rows:,} calibration rows, {known}"
        if self.labels is not None:
            source = (
                f"{self.n_rows:,} rows drawn from a pool, {self.labels:,} of them labelled, {self.n_correct:,} right"
            )
        cost = "" if self.mean_cost is None else f", {self.quantity} {self.mean_cost:.6g}"
        return [
            ("gate", gate),
            ("from", source),
            ("on these", f"coverage {self.coverage:.4f}{told if self.labelled else ''}{cost}"),
            ("rule", self.rule),
            *(() if self.parts is None else self.parts.lines(lambda value: "-" if value is None else f"{value:.4f}")),
        ]


def _jsonable(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
