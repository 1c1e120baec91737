"""Certificate: a certified threshold, with the promise, the rule and the counts behind it.

The *tested* rows are the calibration rows that certified the promise. The *traffic* is the stream of
rows that the gate receives; the calibration rows describe it. Texts about a certificate are made from
its fields (`metacal.certificates.words`) and are never parsed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from metacal import display
from metacal.certificates import words
from metacal.certificates.cascade_stages import Stages
from metacal.certificates.case_counts import CaseCounts
from metacal.certificates.counts import (
    COUNTS_THAT_NEED_LABELS,
    ScoreValueCount,
    TestedCounts,
    Traffic,
)
from metacal.certificates.design import CertificationDesign
from metacal.certificates.frames import make_certificate_frame
from metacal.certificates.next_rows import NextRows, estimate_review_rate, predict_review_count
from metacal.certificates.notes import Note
from metacal.certificates.quantities import MISCOVERAGE, get_quantity
from metacal.certificates.quantity import Limits, Quantity
from metacal.certificates.stored_fields import (
    OPTIONAL,
    get_stored_key,
    is_optional_field,
    stored_as,
)
from metacal.certificates.subgroup_words import Line
from metacal.certificates.subgroups import (
    Name,
    SubgroupCertificates,
    convert_to_json,
)
from metacal.formulas import Flags, Float

Guarantee = Literal["certified", "approximate", "in expectation", "none"]


def accept_up_to_threshold(score: Float, threshold: float | Float) -> Flags:
    """Return whether the score of each row is at most its threshold.

    A NaN score is never accepted.

    Parameters
    ----------
    score : ndarray of shape (n_rows,)
        Uncertainty of each row.
    threshold : float or ndarray of shape (n_rows,)
        Threshold of all rows, or of each row if subgroups have their own.

    Returns
    -------
    ndarray of bool, shape (n_rows,)

    Examples
    --------
    >>> accept_up_to_threshold(np.array([0.1, 0.2, np.nan]), 0.1)
    array([ True, False, False])
    """
    return np.asarray(score <= threshold)


_DEFAULT_DESIGN = CertificationDesign()

#: Width of the headings of a printed certificate, in characters.
_HEADING_WIDTH = 12


@dataclass(frozen=True)
class Certificate:
    """A threshold with the promise that it satisfies, and the counts that certify it.

    Attributes
    ----------
    quantity : Quantity
        The limited quantity, for example "miscoverage" (P(reject | correct), limited from above) or
        "selective accuracy" (P(correct | accept), limited from below). The constructor also accepts
        its name.
    target : float
        Limit of the quantity: alpha or beta.
    delta : float or None
        Largest probability that the promise is broken, over the draw of the calibration rows. None
        if no such probability is stated.
    guarantee : "certified", "approximate", "in expectation" or "none"
        "certified": holds with probability 1 - delta. "in expectation": holds on average over
        calibration sets. "approximate": the same rule with a design that does not allow an exact
        statement, such as cross-fitting. "none": the rule of the paper, for comparison.
    threshold : float
        A row is accepted iff score <= threshold. The threshold lies in the middle between two
        possible scores (`kernels.grid`).
    rule : str
        Name of the rule that chose the threshold; `words.describe_rule(certificate)` describes it.
    n_rows, n_correct : int
        Number of tested rows, and how many of their predictions are correct.
    n_accepted, n_correct_accepted : int
        How many of those rows have a score of at most the threshold.
    highest_accepted, lowest_rejected : float or None
        Calibration scores on either side of the threshold.
    score : str
        Name of the ranking score.
    notes : tuple of Note
        Notes for the reader; `str(note)` is a sentence.
    max_miscoverage : float or None
        Limit of the miscoverage if both quantities are promised. `quantity` is then "coverage
        accuracy".
    mean_cost : float or None
        Mean cost of the calibration rows that the promise counts; None if the promise is not about
        costs.
    has_labels : bool
        Whether the calibration rows had labels. If not, the counts of correct rows are 0, and null
        in a file.
    subgroups : SubgroupCertificates or None
        Certificates of all classes or groups, if each has its own threshold. `threshold` is then
        -inf, so that code which ignores the subgroups accepts nothing.
    n_labels : int or None
        If labels were requested row by row (`metacal.certification.arriving`): how many of the
        `n_rows` drawn rows have one, including all accepted rows. `n_correct` then counts correct
        rows among the labelled rows.
    design : CertificationDesign
        How the calibration rows were sampled and used: competing scores, clusters, weights, folds
        and pilot rows. Files store it under the key "circumstances".
    stages : Stages or None
        Models of a cascade, each with its threshold and counts. `threshold` and `score` are then
        those of the first model, and a row is accepted if any model answers it.
    cases : CaseCounts or None
        Counts of cases, if the promise is about cases. `subgroups` are then types of items, which
        have a threshold each, and the promise is about all of them together.
    score_value_counts : tuple of ScoreValueCount
        Counts for each value of a score that has few values, such as a rating from 1 to 5.
    decision_at : float
        For two classes: log-odds above which the second class is predicted. 0 means that the
        classifier's own decision is used.
    all_rows_traffic : Traffic or None
        Counts of all calibration rows, if only some of them were tested, as in the split of the
        paper.

    Examples
    --------
    >>> import metacal as mc
    >>> uncertainty, correct = [0.1, 0.2, 0.3, 0.4, 0.9], [True, True, True, True, False]
    >>> certificate = mc.MaxMiscoverage(0.5, delta=0.1).certify(uncertainty, correct)
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
    has_labels: bool = field(default=True, metadata=stored_as("labelled", is_optional=True))
    subgroups: SubgroupCertificates | None = field(
        default=None, metadata=stored_as("parts", is_optional=True)
    )
    n_labels: int | None = field(default=None, metadata=stored_as("labels", is_optional=True))
    design: CertificationDesign = field(
        default=_DEFAULT_DESIGN, metadata=stored_as("circumstances", is_optional=True)
    )
    stages: Stages | None = field(default=None, metadata=OPTIONAL)
    cases: CaseCounts | None = field(default=None, metadata=OPTIONAL)
    score_value_counts: tuple[ScoreValueCount, ...] = field(
        default=(), metadata=stored_as("marks", is_optional=True)
    )
    decision_at: float = field(default=0.0, metadata=OPTIONAL)
    all_rows_traffic: Traffic | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "quantity", get_quantity(self.quantity))

    def with_notes(self, *notes: Note) -> Certificate:
        """Return a copy of the certificate with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    # ── the promise ───────────────────────────────────────────────────────────────────────────────

    @property
    def limits(self) -> Limits:
        """Pairs of a promised quantity and its limit, at most two."""
        first_limit = (self.quantity, self.target)
        if self.max_miscoverage is None:
            return (first_limit,)
        return (first_limit, (MISCOVERAGE, self.max_miscoverage))

    @property
    def confidence(self) -> float | None:
        """Confidence level 1 - delta, or None if the promise has no delta."""
        return None if self.delta is None else 1.0 - self.delta

    @property
    def accepts_everything(self) -> bool:
        """Whether no row is ever rejected."""
        if self.subgroups is not None:
            return all(subgroup.accepts_everything for subgroup in self.subgroups.items)
        if self.stages is not None:
            return not self.stages.has_human_review
        return self.threshold == math.inf

    @property
    def has_promise_per_subgroup(self) -> bool:
        """Whether each class or group has its own promise, and not only its own threshold."""
        return self.subgroups is not None and self.cases is None

    # ── counts and rates ──────────────────────────────────────────────────────────────────────────

    @property
    def tested_counts(self) -> TestedCounts:
        """Counts of the rows that certified the promise."""
        return TestedCounts(
            n_rows=self.n_rows,
            n_accepted=self.n_accepted,
            n_correct=self.n_correct,
            n_correct_accepted=self.n_correct_accepted,
        )

    @property
    def traffic(self) -> Traffic:
        """Counts of all calibration rows, which represent the rows that a gate receives."""
        counts = self.all_rows_traffic or self.tested_counts
        has_weights = self.design.weights_origin is not None
        return Traffic(
            n_rows=counts.n_rows,
            n_accepted=counts.n_accepted,
            n_correct=counts.n_correct,
            n_correct_accepted=counts.n_correct_accepted,
            population="target" if has_weights else "source",
        )

    def with_counts_of_all_rows(self, accept: Flags, correct: Flags) -> Certificate:
        """Return a copy with the counts of all calibration rows.

        Parameters
        ----------
        accept, correct : ndarray of bool, shape (n_rows,)
            Whether each calibration row is accepted, and whether its prediction is correct.

        Returns
        -------
        Certificate
        """
        all_rows_traffic = Traffic(
            n_rows=len(accept),
            n_accepted=int(accept.sum()),
            n_correct=int(correct.sum()),
            n_correct_accepted=int((accept & correct).sum()),
        )
        return replace(self, all_rows_traffic=all_rows_traffic)

    @property
    def every_row_labelled(self) -> bool:
        """Whether correctness (in a cascade, agreement) is known for every row."""
        if self.stages is not None:
            return True
        return self.has_labels and self.n_labels is None

    @property
    def coverage(self) -> float:
        """Accepted share of the calibration rows."""
        return self.traffic.coverage

    @property
    def selective_accuracy(self) -> float:
        """Selective accuracy on the calibration rows, NaN if it is not known."""
        return self.traffic.accuracy if self.has_labels else math.nan

    @property
    def miscoverage(self) -> float:
        """Rejected share of the correct calibration rows, NaN if it is not known."""
        has_all_labels = self.has_labels and self.n_labels in (None, self.n_rows)
        n_correct = self.traffic.n_correct
        if not has_all_labels or self.stages is not None or n_correct == 0:
            return math.nan
        return 1.0 - self.traffic.n_correct_accepted / n_correct

    @property
    def loss(self) -> float | None:
        """Error rate of a cascade minus that of its last model, None if unknown."""
        if self.stages is None:
            return None
        n_only_cascade_wrong = self.stages.n_only_cascade_wrong
        n_only_reference_wrong = self.stages.n_only_reference_wrong
        if n_only_cascade_wrong is None or n_only_reference_wrong is None:
            return None
        return (n_only_cascade_wrong - n_only_reference_wrong) / self.n_rows

    @property
    def disagreement(self) -> float | None:
        """Share of rows on which a cascade and its last model disagree, None if unknown."""
        if self.stages is None or self.stages.n_disagreements is None:
            return None
        return self.stages.n_disagreements / self.n_rows

    def next_rows(self, rows: int, level: float = 0.9, *, part: Name | None = None) -> NextRows:
        """Predict an interval for the number of new rows that go to review.

        Parameters
        ----------
        rows : int
            Number of new rows.
        level : float, default=0.9
            Probability that the interval contains the number of reviewed rows.
        part : str or int, optional
            Class or group of the new rows, if each has its own threshold.

        Returns
        -------
        NextRows

        Examples
        --------
        >>> from metacal.promises.miscoverage import MaxMiscoverage
        >>> c = MaxMiscoverage(0.1).certify(np.linspace(0, 1, 900), np.ones(900, dtype=bool))
        >>> print(c.next_rows(1000))
        of the next 1,000 rows 67 to 110 go to review (90% interval)
        """
        sampled_unit: Literal["row", "unit", "case"] = "row"
        if self.cases is not None:
            sampled_unit = "case"
        elif self.design.cluster_counting is not None:
            sampled_unit = "unit"
        review_rate = estimate_review_rate(self, subgroup_name=part)
        return predict_review_count(rows, level, review_rate, sampled_unit=sampled_unit)

    # ── texts ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def statement(self) -> str:
        """Promise in one sentence."""
        return words.state_promise(self)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the promise, each as a text."""
        return words.list_assumptions(self)

    @property
    def condition(self) -> str:
        """Condition for accepting a row, for example "entropy <= 0.3".

        If the name of the score starts with a minus sign, the condition is about the score without
        the sign: "mark >= 0.3" for the score "-mark".

        >>> from dataclasses import replace
        >>> from metacal.promises.miscoverage import MaxMiscoverage
        >>> marks = np.repeat([0.9, 0.8, 0.7], [80, 15, 5])
        >>> certificate = MaxMiscoverage(0.2).certify(-marks, np.ones(100, dtype=bool))
        >>> replace(certificate, score="-mark", threshold=-0.7000001, lowest_rejected=-0.7).condition
        'mark > 0.7'
        """
        return words.describe_condition(self)

    @property
    def description_lines(self) -> list[Line]:
        """Lines that describe the gate, the calibration rows and the rule, without notes."""
        return words.list_description_lines(self)

    def _list_all_lines(self) -> list[Line]:
        """List all lines of a printed certificate, including assumptions and notes."""
        assumption_lines = [("assuming", assumption) for assumption in self.assumptions]
        note_lines = [("note", str(note)) for note in self.notes]
        return [*self.description_lines, *assumption_lines, *note_lines]

    def __str__(self) -> str:
        printed_lines = [self.statement]
        previous_heading = ""
        for heading, text in self._list_all_lines():
            continues_assumptions = heading == "assuming" and previous_heading == "assuming"
            printed_heading = "" if continues_assumptions else heading
            padded_heading = printed_heading.ljust(_HEADING_WIDTH)
            printed_lines.append(f"  {padded_heading} {text}")
            previous_heading = heading
        return "\n".join(printed_lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return display.make_facts_html(self.statement, self._list_all_lines())

    # ── conversions ───────────────────────────────────────────────────────────────────────────────

    def to_dict(self, *, words: bool = False) -> dict[str, Any]:
        """Convert the certificate to JSON types.

        Parameters
        ----------
        words : bool, default=False
            Whether to add the statement, the assumptions and other texts.

        Returns
        -------
        dict
            An infinite threshold is "inf" or "-inf".

        Examples
        --------
        >>> from metacal.promises.miscoverage import MaxMiscoverage
        >>> c = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
        >>> c.to_dict()["n_accepted"], c.to_dict()["coverage"]
        (99, 0.99)
        """
        stored_entries: dict[str, Any] = {}
        for stored_key, attribute_name in ATTRIBUTE_BY_STORED_KEY.items():
            attribute_value = getattr(self, attribute_name)
            is_optional = stored_key in DEFAULT_BY_OPTIONAL_KEY
            if is_optional and attribute_value == DEFAULT_BY_OPTIONAL_KEY[stored_key]:
                continue
            stored_entries[stored_key] = attribute_value
        if not self.has_labels:
            stored_entries |= dict.fromkeys(COUNTS_THAT_NEED_LABELS, None)
        stored_entries["quantity"] = self.quantity.name
        stored_entries["traffic"] = self._traffic_entries()
        stored_entries |= self._rate_entries()
        json_object: dict[str, Any] = convert_to_json(stored_entries)
        if words:
            json_object |= self._text_entries()
        return json_object

    def _traffic_entries(self) -> dict[str, Any]:
        """Return the traffic counts that are stored in a file."""
        traffic_entries = dict(vars(self.traffic))
        for count_name in COUNTS_THAT_NEED_LABELS:
            count_of_all_rows = getattr(self.all_rows_traffic, count_name, 0)
            if count_of_all_rows == 0:
                del traffic_entries[count_name]
        return traffic_entries

    def _rate_entries(self) -> dict[str, float]:
        """Return the coverage and the other rates that follow from the counts."""
        rates = {
            "coverage": self.coverage,
            "selective_accuracy": self.selective_accuracy,
            "miscoverage": self.miscoverage,
        }
        if self.loss is not None:
            rates["loss"] = self.loss
        if self.disagreement is not None:
            rates["disagreement"] = self.disagreement
        return rates

    def _text_entries(self) -> dict[str, Any]:
        """Return the statement, the rule, the assumptions and the notes as texts."""
        texts = {
            "rule": words.describe_rule(self),
            "assumptions": list(self.assumptions),
            "notes": [str(note) for note in self.notes],
        }
        return {"statement": self.statement, "words": texts}

    def to_frame(self) -> Any:
        """Convert thresholds and counts to a `pandas.DataFrame`.

        Returns
        -------
        pandas.DataFrame
            A row for each subgroup, or a single row if there is one threshold for all rows.
        """
        return make_certificate_frame(self)


#: Certificate attribute that is stored under each key of a file.
ATTRIBUTE_BY_STORED_KEY: dict[str, str] = {
    get_stored_key(certificate_field): certificate_field.name
    for certificate_field in fields(Certificate)
    if certificate_field.name != "all_rows_traffic"
}
#: Default of each optional key. A file omits the key if the attribute has this value.
DEFAULT_BY_OPTIONAL_KEY: dict[str, Any] = {
    get_stored_key(certificate_field): certificate_field.default
    for certificate_field in fields(Certificate)
    if is_optional_field(certificate_field)
}
