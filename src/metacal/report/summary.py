"""Summary: every number of the report, as one frozen value with a JSON shape. The page and the plots draw from it.

Columns are NumPy arrays here and lists in `to_dict`; what is undefined is NaN here and None there. Nothing is rounded
before `to_dict`, which keeps seven significant digits of what is only drawn and all digits of what is printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from metacal.estimators.evaluate import Answerer

Column = NDArray[np.float64]

#: Number of the JSON shape; it changes when an entry changes its meaning.
FORMAT = 1
_DIGITS = 7


@dataclass(frozen=True, eq=False)
class Source:
    """Where the numbers come from.

    Attributes
    ----------
    file, artifact : str or None
        The file of labelled rows and the file of the fitted gate or calibrator, as the user named them.
    sha256, hashed : str
        Hash of the data, and what was hashed: "file" (its bytes) or "arrays" (table and labels).
    n_rows, n_classes, n_correct : int
        No classes where there are scores in place of logits.
    score : str
        Name of the ranking score behind every threshold.
    calibrator : str or None
        Name of the calibrator, None for the softmax of the logits as they came.
    n_without_score : int
        Rows that are left out.
    """

    file: str | None
    artifact: str | None
    sha256: str
    hashed: str
    n_rows: int
    n_classes: int
    n_correct: int
    score: str
    calibrator: str | None
    n_without_score: int = 0


@dataclass(frozen=True)
class Settings:
    """What was asked for: level of the intervals, 1 - delta of the bands, bins, bootstrap resamples, seed."""

    level: float
    delta: float
    n_bins: int
    n_resamples: int
    seed: int

    @property
    def intervals(self) -> dict[str, Any]:
        """The keywords of `evaluate_rows`: shares have their exact interval without resamples, too."""
        drawn = {"n_resamples": self.n_resamples, "random_state": self.seed}
        return {"level": self.level, "n_bins": self.n_bins, "intervals": True, **drawn}


@dataclass(frozen=True, eq=False)
class Promise:
    """The gate's promise, and whether it is kept on these rows.

    Attributes
    ----------
    statement : str
        The promise as one sentence.
    certificate : tuple of (name, text)
        The certificate in words, a line each: gate, from, on these, rule.
    threshold : float
        Accept iff score <= threshold; inf accepts everything.
    assumptions, notes : tuple of str
    verdicts : tuple of dict
        One for each promised quantity: quantity, direction ("at most" or "at least"), target, value, low, high,
        level, kept, refuted, counted (what the value is a share of), limit (the target in words), mean (whether it is
        a mean cost), curve (of `Curves`, which shows it), text (the verdict in words). value, low and high are None
        when no row speaks about it.
    kept : bool or None
        Whether every measured value keeps its target.
    refuted : bool
        Whether some exact interval lies wholly on the wrong side: more than bad luck.
    fitted_here : bool
        Whether these look like the very rows the gate was fitted on (same counts at its threshold): the promise is then
        no news, and calibration looks better than it is.
    answered_by : tuple of Answerer
        Of a cascade: who answers how much, and how right each is.
    """

    statement: str
    certificate: tuple[tuple[str, str], ...]
    threshold: float
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    verdicts: tuple[dict[str, Any], ...]
    kept: bool | None
    refuted: bool
    fitted_here: bool
    answered_by: tuple[Answerer, ...] = ()


@dataclass(frozen=True, eq=False)
class Bins:
    """A reliability table: bin b is (edges[b], edges[b+1]]; empty bins hold NaN.

    `low` and `high` are exact (Clopper-Pearson) limits of the accuracy of each bin, together at the summary's level by
    Bonferroni over the bins that hold a row: a calibrated table leaves the band anywhere with probability 1 - level.
    """

    edges: Column
    count: Column
    confidence: Column
    accuracy: Column
    low: Column
    high: Column


@dataclass(frozen=True, eq=False)
class Diagram:
    """Reliability of one table of probabilities.

    Attributes
    ----------
    stage : "before" (softmax of the logits) or "after" (calibrated)
    rows : "all" or "accepted"
    title : str
    n_rows : int
    accuracy, confidence : float
        Means over these rows.
    ece, ece_equal_mass : dict
        estimate, low, high, level, method: the numbers of `metacal.metrics.evaluate`.
    equal_width, equal_mass : Bins
    histogram_edges, histogram : arrays
        Rows per confidence bin (equal width, finer than the reliability bins).
    """

    stage: str
    rows: str
    title: str
    n_rows: int
    accuracy: float
    confidence: float
    ece: dict[str, Any]
    ece_equal_mass: dict[str, Any]
    equal_width: Bins
    equal_mass: Bins
    histogram_edges: Column
    histogram: Column


@dataclass(frozen=True, eq=False)
class Series:
    """A curve with its simultaneous band: low <= truth <= high at every point at once."""

    estimate: Column
    low: Column
    high: Column


@dataclass(frozen=True, eq=False)
class Curves:
    """Operating points by rising threshold, about 400 of them; accept iff score <= threshold.

    All bands together hold at every threshold at once with probability 1 - delta: a point may be picked after looking.

    Attributes
    ----------
    threshold : array
        The shortest decimal that separates the rows accepted at this point from the next.
    accepted : array
        Rows accepted.
    coverage, accuracy, miscoverage, review : Series
        P(accept); P(right | accept); P(reject | right); rows for review per 1,000 = 1,000 (1 - coverage).
    min_accuracy, max_miscoverage : arrays
        The promises this point can carry: `accuracy.low` rounded down and `miscoverage.high` rounded up to four
        decimals; NaN where nothing can be promised (then the command leaves that option out).
    command, command_end : str or None, str
        `command` + " --min-accuracy B" + " --max-miscoverage A" + " --at-threshold=T" + `command_end` certifies this
        very point (see `command_at`); None when the ranking score is no named one.
    threshold_text : tuple of str
        Each threshold as the command has it.
    current : int or None
        The point of the gate's own threshold; None without a gate.
    delta : float
    """

    threshold: Column
    accepted: Column
    coverage: Series
    accuracy: Series
    miscoverage: Series
    review: Series
    min_accuracy: Column
    max_miscoverage: Column
    command: str | None
    command_end: str
    current: int | None
    delta: float
    threshold_text: tuple[str, ...] = ()

    def command_at(self, point: int) -> str | None:
        """The `metacal fit` command that certifies a point; None where nothing can be promised."""
        if self.command is None:
            return None
        beta, alpha = self.min_accuracy[point], self.max_miscoverage[point]
        promises = "" if math.isnan(beta) else f" --min-accuracy {beta:g}"
        promises += "" if math.isnan(alpha) else f" --max-miscoverage {alpha:g}"
        at = f" --at-threshold={self.threshold_text[point]}"
        return f"{self.command}{promises}{at}{self.command_end}" if promises else None


@dataclass(frozen=True, eq=False)
class Frontier:
    """Both promises together: for each accuracy `beta` the smallest miscoverage `alpha` certified along with it.

    All pairs hold at once with probability 1 - delta, at the threshold beside them. `coverage` is that of these rows.
    """

    beta: Column
    alpha: Column
    threshold: Column
    coverage: Column
    delta: float


@dataclass(frozen=True, eq=False)
class ClassTable:
    """One entry per class, worst first; classes beyond the first `shown` are left out.

    Attributes
    ----------
    column : integer array
        The class's column in the table.
    name : tuple of str
    n : rows of this true class
    accuracy : share of them that is right
    ece : the class's own calibration error (their mean over all classes is the class-wise ECE)
    coverage, miscoverage, accuracy_accepted : of the rows of this true class; NaN without a gate
    surely : the least that its miscoverage (without a gate its error rate) is, by the exact 95% interval
    n_classes, order : int, str
        All classes; what "worst" means here.
    """

    column: NDArray[np.intp]
    name: tuple[str, ...]
    n: Column
    accuracy: Column
    ece: Column
    coverage: Column
    miscoverage: Column
    accuracy_accepted: Column
    surely: Column
    n_classes: int
    order: str


@dataclass(frozen=True, eq=False)
class PartTable:
    """What is accepted and how much of it is right, by predicted class or by group: the most evidence first.

    Attributes
    ----------
    by : "class" or "group"
    name : tuple of str
    n, accepted, right : arrays
        Rows, accepted ones, and right ones of these. Without a gate all are accepted.
    coverage, accuracy, miscoverage : Series
        Shares with exact intervals, which hold for all parts of the table together at the summary's level (Bonferroni).
    evidence : array
        The chance of so many bad rows, or more, if the limit is just kept: small says that it is not. The table goes by
        it, so that a part with a single row is no headline.
    judged, at_most, limit, promised : str, bool, float, str
        Which of the three the evidence is about, whether small is good, the limit, and of whom it is promised: of
        "each" part, of "all" rows together, or "none": the limit is then what all rows together have.
    threshold : array
        Where each part has its own; NaN otherwise.
    n_parts : int
        All parts that have rows here; the table may be cut.
    """

    by: str
    name: tuple[str, ...]
    n: Column
    accepted: Column
    right: Column
    coverage: Series
    accuracy: Series
    miscoverage: Series
    evidence: Column
    judged: str
    at_most: bool
    limit: float
    promised: str
    threshold: Column
    n_parts: int


@dataclass(frozen=True)
class Row:
    """A row worth a look: its number from 0, its id, true and predicted class, score, confidence, whether accepted."""

    row: int
    id: str | None
    label: str
    predicted: str
    score: float
    confidence: float
    accepted: bool | None


@dataclass(frozen=True)
class Methods:
    """How the numbers came about: definitions as (term, text), and the versions of what computed them."""

    definitions: tuple[tuple[str, str], ...]
    versions: dict[str, str]


@dataclass(frozen=True, eq=False)
class Summary:
    """Every number of the report.

    Attributes
    ----------
    source, settings : Source, Settings
    promise : Promise or None
        None without a gate.
    evaluation : dict
        What `metacal evaluate --json` prints of the same rows: n_rows, n_accepted, n_classes, level, n_bins,
        accepted_rows, all_rows, gate, uncalibrated.
    diagrams : tuple of Diagram
        Before (all rows), and with a calibrator after (all rows), and with a gate before and after (accepted rows).
    curves, frontier : Curves, Frontier
    classes : ClassTable
    parts : tuple of PartTable
        By predicted class, and by group where the rows have one.
    mistakes, hits : tuples of Row
        The most confident mistakes and the least confident right answers, most striking first.
    comparison : dict or None
        What `metacal.compare(...).to_dict()` gives.
    methods : Methods
    """

    source: Source
    settings: Settings
    promise: Promise | None
    evaluation: dict[str, Any]
    diagrams: tuple[Diagram, ...]
    curves: Curves
    frontier: Frontier
    classes: ClassTable
    parts: tuple[PartTable, ...]
    mistakes: tuple[Row, ...]
    hits: tuple[Row, ...]
    comparison: dict[str, Any] | None
    methods: Methods

    def diagram(self, stage: str, rows: str) -> Diagram | None:
        """The diagram of a stage ("before", "after") and a set of rows ("all", "accepted"), if there is one."""
        return next((found for found in self.diagrams if (found.stage, found.rows) == (stage, rows)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: None for what is undefined, "inf" for infinity.

        Evaluation, promise and curves keep every digit: the page prints them, and rounding twice would show another
        last digit than `metacal evaluate` does. The rest keeps seven significant digits.
        """
        digits = {"evaluation": 17, "promise": 17, "curves": 17, "parts": 5}
        names = [field.name for field in fields(self)]
        whole = {name: plain(getattr(self, name), digits.get(name, _DIGITS)) for name in names}
        # A threshold must go on accepting the same rows: it keeps all its digits.
        whole["frontier"]["threshold"] = plain(self.frontier.threshold, 17)
        return {"format": FORMAT, **whole}


def plain(value: Any, digits: int = _DIGITS) -> Any:
    """A value of this module as plain JSON types, floats to so many significant digits (17 keep all).

    Examples
    --------
    >>> plain({"a": np.array([1 / 3, np.nan]), "b": (True, 2)})
    {'a': [0.3333333, None], 'b': [True, 2]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), digits) for field in fields(value)}
    if isinstance(value, dict):
        return {str(name): plain(item, digits) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), digits)
    if isinstance(value, tuple | list):
        return [plain(item, digits) for item in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        rounded = float(f"{value:.{digits}g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
    return value
