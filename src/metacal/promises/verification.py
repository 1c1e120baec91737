"""Verification: an exact test of a promise on new labelled rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal import display
from metacal.certificates.certificate import Certificate
from metacal.certificates.design import CountedBy
from metacal.certificates.number_format import format_percent_ceil, format_percent_floor
from metacal.certificates.overlap_with_fit import OverlapWithFit
from metacal.certification.row_selection import build_row_selection
from metacal.certification.rows import Clusters
from metacal.certification.units import Units
from metacal.display import format_interval
from metacal.errors import InputError
from metacal.formulas import Codes, Flags
from metacal.promises.judging import judge
from metacal.promises.verdict import Verdict
from metacal.rows.arrays import check_fraction
from metacal.rows.draws import RowDraws

if TYPE_CHECKING:
    import pandas as pd

    from metacal.certification.row_losses import Losses

# Description of the tested claim for each kind of guarantee.
_TESTED_CLAIM_BY_GUARANTEE = {
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

# Text that follows the number of rows and states how dependent rows were tested.
_CLUSTER_TEXTS: dict[CountedBy | None, str] = {
    None: "",
    "unit": "; one row of each cluster",
    "row": "; bets on whole units",
    "mean": "; bets on the mean of each cluster",
}

# Largest number of tests that are printed, if each class or group has its own promise.
_MAX_PRINTED_TESTS = 8

# Columns of the data frame of the tests.
_FRAME_COLUMNS = (
    "quantity",
    "class",
    "part",
    "target",
    "value",
    "low",
    "high",
    "level",
    "n_bad",
    "n_rows",
    "p_value",
    "verdict",
)


@dataclass(frozen=True)
class Verification:
    """Result of testing a promise on labelled rows.

    It prints as text, shows as a table in a notebook, and converts to a data frame.

    Attributes
    ----------
    certificate : Certificate
        Certificate of the promise.
    verdict : Verdict
        Verdict on the promise. `verdict.word` is kept, undecided, refuted or, if some of the rows
        were part of the fit, not judged. `verdict.advice` is a sentence about what to do next.
    confidence : float
        Confidence level of the intervals. A promise that is kept is refuted with probability at
        most (1 - confidence) / 2.
    n_rows, n_accepted : int
        Number of tested rows, and how many of them were accepted. For a promise about cases: number
        of tested cases, and how many of them have an accepted item or, for a recall, miss none.
    units : {"unit", "row", "mean"} or None
        How dependent rows were tested: one row of each cluster, every row by bets on whole
        clusters, or the means of clusters. None for independent rows.
    """

    certificate: Certificate
    verdict: Verdict
    confidence: float
    n_rows: int
    n_accepted: int
    units: CountedBy | None = None

    @property
    def tests(self) -> tuple[Verdict, ...]:
        """Verdicts on the promised limits or on the subgroups, the worst verdict first.

        The tuple is empty if some of the rows were part of the fit.
        """
        return () if self.verdict.fit_rows is not None else self.verdict.tests

    @property
    def refuted(self) -> bool:
        """Whether any promised limit is refuted."""
        return self.verdict.refuted

    @property
    def p_value(self) -> float | None:
        """P-value of all tests together (Bonferroni), or None if nothing was tested."""
        if not self.tests:
            return None
        smallest_p_value = min(test.p_value for test in self.tests)
        return min(1.0, len(self.tests) * smallest_p_value)

    @property
    def advice(self) -> str:
        """Sentence that recommends the next step."""
        return self.verdict.advice

    @property
    def tested_claim(self) -> str:
        """Description of the tested claim: the promise itself, or one with a weaker guarantee."""
        guarantee = self.certificate.guarantee
        delta_percent = format_percent_ceil(self.certificate.delta or 0.0)
        subgroups = self.certificate.subgroups
        if subgroups is None or subgroups.promises_hold_jointly or guarantee != "certified":
            return _TESTED_CLAIM_BY_GUARANTEE[guarantee].format(delta=delta_percent)
        # Each subgroup has its own failure probability, so delta limits a share of the subgroups.
        return (
            f"the promise of each {subgroups.by}, which at most {delta_percent} of them break by bad"
            " luck"
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to a dictionary of JSON types."""
        overlap_with_fit = self.verdict.fit_rows
        record: dict[str, Any] = {
            "statement": self.certificate.statement,
            "guarantee": self.certificate.guarantee,
            "tested": self.tested_claim,
            "n_rows": self.n_rows,
            "n_accepted": self.n_accepted,
        }
        if self.units is not None:
            record["units"] = self.units
        record |= {
            "confidence": self.confidence,
            "verdict": self.verdict.word,
            "refuted": self.refuted,
            "fit_rows": None if overlap_with_fit is None else vars(overlap_with_fit),
            "p_value": self.p_value,
            "tests": [_make_test_record(test) for test in self.tests],
            "advice": self.advice,
        }
        return record

    def text(self, source: str = "") -> str:
        """Return the result as text.

        Parameters
        ----------
        source : str, default=""
            Text after the number of rows that names their source, such as " of test.npz".

        Returns
        -------
        str
        """
        lines = [
            f"{self.verdict.word}: {self.certificate.statement}",
            self._format_row_counts(source),
        ]
        if self.verdict.fit_rows is not None:
            lines.append(f"  why          {self.verdict.fit_rows}")
        else:
            lines += self._format_tests()
        lines.append(f"  what to do   {self.advice}")
        return "\n".join(lines)

    __str__ = __repr__ = text

    def _format_row_counts(self, source: str) -> str:
        """Return the printed line with the numbers of tested and accepted rows or cases."""
        if self.certificate.cases is not None:
            return f"  cases        {self.n_rows:,}{source}"
        return (
            f"  rows         {self.n_rows:,}{source}, {self.n_accepted:,}"
            f" accepted{_CLUSTER_TEXTS[self.units]}"
        )

    def _format_tests(self) -> list[str]:
        """Return the printed lines of the tests and of the tested claim."""
        printed_lines = []
        for tested_limit in self.tests[:_MAX_PRINTED_TESTS]:
            printed_lines += _format_test(tested_limit)
        n_omitted_tests = len(self.tests) - _MAX_PRINTED_TESTS
        if self.certificate.has_promise_per_subgroup and n_omitted_tests > 0:
            printed_lines.append(
                f"  measured     and {n_omitted_tests:,} more, with less against them"
            )
        max_false_refutation_rate = 0.5 * (1.0 - self.confidence)
        printed_lines.append(
            f"  tested       {self.tested_claim}; a kept promise is called refuted by at most "
            f"{format_percent_ceil(max_false_refutation_rate)} of such tests"
        )
        return printed_lines

    def _repr_html_(self) -> str:
        statement, *lines = self.text().splitlines()
        return display.make_facts_html(statement, display.split_named_lines(lines))

    def to_frame(self) -> pd.DataFrame:
        """Return a data frame with a row for each test, the worst one first."""
        frame_rows = []
        for test in self.tests:
            record = _make_test_record(test)
            record["part"] = test.subgroup
            record["class"] = test.class_name
            frame_rows.append({column: record[column] for column in _FRAME_COLUMNS})
        return display.make_frame(frame_rows)


def _get_bad_count_or_total_cost(test: Verdict) -> float:
    """Return the number of bad rows or, for a mean cost, their total cost."""
    measurement = test.measurement
    if measurement.total_cost is not None:
        return measurement.total_cost
    return measurement.n_bad


def _make_test_record(test: Verdict) -> dict[str, Any]:
    """Return the verdict of a test with its counts and p-value, as JSON types."""
    measurement = test.measurement
    record = test.to_dict()
    record["n_bad"] = _get_bad_count_or_total_cost(test)
    record["n_rows"] = measurement.n_rows
    record["p_value"] = test.p_value
    if measurement.n_better is not None:
        record["n_better"] = measurement.n_better
    return record


def _format_test(test: Verdict) -> list[str]:
    """Return the printed lines of a test: measured value, counts and p-value."""
    if test.value is None or test.low is None or test.high is None:
        return [f"  measured     these rows do not show the {test.measured_quantity}"]
    interval_text = format_interval(test.low, test.high)
    if test.subgroup is not None:
        violations_text = test.quantity.violations_suffix.format(name=test.class_name)
        return [
            f"  {test.word:<12} {test.subgroup}: {test.measured_quantity} {test.value:.4f}"
            f" {interval_text}, {_get_bad_count_or_total_cost(test):,} of {test.measurement.n_rows:,}"
            f" {violations_text}, p-value {test.p_value:.4g}"
        ]
    return [
        (
            f"  measured     {test.measured_quantity} {test.value:.4f},"
            f" {format_percent_floor(test.level)} interval {interval_text}, promised"
            f" {test.quantity.direction} {test.target:g}"
        ),
        f"  counted      {_format_counts(test)}",
        (
            f"  p-value      {test.p_value:.4g}: {_describe_p_value(test)} if the promise is just"
            " kept"
        ),
    ]


def _format_counts(test: Verdict) -> str:
    """Return the counts of a test as text, such as "3 wrong answers, of 100"."""
    quantity = test.quantity
    measurement = test.measurement
    n_rows = measurement.n_rows
    if quantity.is_mean_cost and quantity.counts_cases:
        return f"{_get_bad_count_or_total_cost(test):,.6g} incorrect accepted items, in {n_rows:,} cases"
    if quantity.is_mean_cost:
        noun = "loss" if quantity.uses_graded_losses else "cost"
        return f"a {noun} of {_get_bad_count_or_total_cost(test):,.6g} in all, of {n_rows:,} rows"
    if measurement.n_better is not None:
        return (
            f"{measurement.n_bad:,} answered worse than by the last model alone,"
            f" {measurement.n_better:,} better, of {n_rows:,}"
        )
    violations_text = quantity.violations_text.format(name=test.class_name)
    return f"{_get_bad_count_or_total_cost(test):,} {violations_text}, of {n_rows:,}"


def _describe_p_value(test: Verdict) -> str:
    """Describe in words what the p-value of a test measures."""
    measurement = test.measurement
    if measurement.relative_costs is not None or measurement.cluster_counts is not None:
        return "at most the chance of such bets to win so much"
    return "the chance of as many or more"


@dataclass(frozen=True, eq=False)
class _LabelledRows:
    """Columns of the rows on which a promise is tested.

    Attributes
    ----------
    accept : array of bool of shape (n_rows,)
        Whether each row is accepted.
    correct : array of bool of shape (n_rows,) or None
        Whether each prediction is correct.
    losses : Losses or None
        Cost of each row.
    row_subgroups : array of shape (n_rows,) or (n_rows, 2), or None
        Predicted class or group of each row, as for `judge`.
    clusters : Clusters or None
        Clusters of dependent rows whose every row counts.
    """

    accept: Flags
    correct: Flags | None
    losses: Losses | None
    row_subgroups: NDArray[Any] | None
    clusters: Clusters | None = None

    @property
    def seed_columns(self) -> tuple[Flags, Flags | None, NDArray[np.float64] | None]:
        """Columns from which the seed of random draws is derived."""
        row_losses = None if self.losses is None else self.losses.if_accepted
        return self.accept, self.correct, row_losses

    def take(self, index: Codes) -> _LabelledRows:
        """Return the rows at the given positions."""
        return _LabelledRows(
            accept=self.accept[index],
            correct=None if self.correct is None else self.correct[index],
            losses=None if self.losses is None else self.losses.select_rows(index),
            row_subgroups=None if self.row_subgroups is None else self.row_subgroups[index],
        )


def verify_decisions(
    certificate: Certificate,
    accept: Flags,
    correct: Flags | None,
    confidence: float = 0.95,
    losses: Losses | None = None,
    row_subgroups: NDArray[Any] | None = None,
    units: Units | None = None,
    overlap_with_fit: OverlapWithFit | None = None,
) -> Verification:
    """Test the promise of a certificate on labelled rows.

    Among n correct rows the number of rejected ones is Bin(n, F0). Among n accepted rows the number
    of errors is Bin(n, 1 - F1). So the intervals are exact; `judge` has them too. A promise that is
    kept is refuted with probability at most (1 - confidence) / 2. A mean cost is tested by bets on
    the rows.

    Counts of dependent rows are not binomial. A promise about a random row of a random cluster is
    tested on one random row of each cluster, and a promise about rows or about means of clusters by
    bets on whole clusters.

    Parameters
    ----------
    certificate : Certificate
        Certificate of the promise.
    accept : array of bool of shape (n_rows,)
        Whether each row is accepted.
    correct : array of bool of shape (n_rows,) or None
        Whether each prediction is correct. None if no promised quantity needs labels.
    confidence : float, default=0.95
        Confidence level of the intervals, above 0.5.
    losses : Losses, optional
        Cost of each row, required if a cost is promised (`Gate.losses`).
    row_subgroups : array of shape (n_rows,) or (n_rows, 2), optional
        Predicted class or group of each row, as for `judge`.
    units : Units, optional
        Clusters of dependent rows.
    overlap_with_fit : OverlapWithFit, optional
        How many of the rows were part of the fit, if any were. The promise is then not tested.

    Returns
    -------
    Verification

    Examples
    --------
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> correct = np.ones(1000, dtype=bool)
    >>> certificate = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 1000), correct)
    >>> verify_decisions(certificate, np.arange(1000) >= 70, correct).refuted
    True
    """
    if check_fraction("confidence", confidence) <= 0.5:
        raise InputError(
            f"confidence must be greater than 0.5, but got {confidence}. Pass, for example, 0.95."
        )
    labelled_rows = _LabelledRows(
        accept=accept, correct=correct, losses=losses, row_subgroups=row_subgroups
    )
    cluster_counting: CountedBy | None = None
    if units is not None:
        design = certificate.design
        cluster_counting = design.cluster_counting or "row"
        if cluster_counting == "unit":
            labelled_rows = _draw_one_row_of_each_cluster(labelled_rows, units)
        else:
            labelled_rows = _group_into_clusters(
                labelled_rows,
                units,
                declared_cluster_size=max(units.largest or 0, design.largest_cluster_size or 0),
                counts_cluster_means=cluster_counting == "mean",
            )
    verdict = judge(
        certificate,
        accept=labelled_rows.accept,
        correct=labelled_rows.correct,
        confidence_level=confidence,
        losses=labelled_rows.losses,
        row_subgroups=labelled_rows.row_subgroups,
        clusters=labelled_rows.clusters,
        overlap_with_fit=overlap_with_fit,
    )
    return Verification(
        certificate=certificate,
        verdict=verdict,
        confidence=confidence,
        n_rows=len(labelled_rows.accept),
        n_accepted=int(labelled_rows.accept.sum()),
        units=cluster_counting,
    )


def _draw_one_row_of_each_cluster(rows: _LabelledRows, units: Units) -> _LabelledRows:
    """Draw one random row of each cluster, so that the drawn rows are independent."""
    n_rows = len(rows.accept)
    cluster_codes = units.encode_names(n_rows)
    selection = build_row_selection(n_rows, cluster_codes)
    assert selection is not None
    return rows.take(selection.draw(*rows.seed_columns).indices)


def _group_into_clusters(
    rows: _LabelledRows, units: Units, *, declared_cluster_size: int, counts_cluster_means: bool
) -> _LabelledRows:
    """Return the rows with their clusters, numbered in random order for betting tests.

    Parameters
    ----------
    rows : _LabelledRows
        Tested rows.
    units : Units
        Names of the clusters.
    declared_cluster_size : int
        Declared largest number of rows of a cluster. 0 if none is declared.
    counts_cluster_means : bool
        Whether a cluster counts once, by the mean of its rows.

    Returns
    -------
    _LabelledRows
    """
    cluster_of_row = units.encode_names(len(rows.accept))
    draws = RowDraws(rows.seed_columns, cluster_codes=cluster_of_row)
    # Clusters are tested in the order of their numbers, so the numbers are drawn at random.
    random_cluster_of_row = draws.draw_cluster_numbers(purpose="whole units")
    largest_observed_size = int(np.bincount(cluster_of_row).max())
    clusters = Clusters.from_codes(
        random_cluster_of_row,
        max_size=max(declared_cluster_size, largest_observed_size),
        uses_cluster_means=counts_cluster_means,
    )
    return replace(rows, clusters=clusters)
