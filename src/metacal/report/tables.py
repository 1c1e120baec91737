"""Tables of a report: classes, subgroups, and single rows worth a look.

Only the page reads these tables. They are mappings in the shape that `page/types.d.ts` describes. A
*subgroup* is a predicted class or a group of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betainc

from metacal.certificates.certificate import Certificate
from metacal.certificates.quantity import COVERAGE_ACCURACY, Quantity
from metacal.certificates.subgroup_words import format_subgroup_name
from metacal.formulas import Array, Codes, Flags, Float
from metacal.metrics.intervals import clopper_pearson_limits
from metacal.report.operating import Series

if TYPE_CHECKING:
    from metacal.report.measured import Measured

# Largest numbers of classes, subgroups and rows in a table.
MAX_CLASSES = 1000
MAX_SUBGROUPS = 500
MAX_ROWS = 20

#: One-sided error probability of the limit by which classes are ordered.
_ORDER_TAIL = 0.025
#: Smallest and largest limit if nothing is promised.
_LIMIT_MARGIN = 1e-9
#: Quantities that can be counted in each subgroup.
_COUNTED_QUANTITIES = ("coverage", "accuracy", "miscoverage")


def class_table(names: Array, measured: Measured) -> dict[str, Any]:
    """Build the table of true classes, worst first.

    Classes are ordered by the lower end of the exact 95% interval of their miscoverage, or of their
    error rate if there is no gate. A class with a single row is therefore not at the top.

    Parameters
    ----------
    names : array of shape (n_classes,)
        Names of the classes.

    measured : Measured
        Columns of the rows.

    Returns
    -------
    dict
        One entry per class of

        - column, name : column in the table and name of the class
        - n : number of rows of this true class
        - accuracy : fraction of these rows that is correct
        - ece : calibration error of the class. The mean over all classes is the class-wise ECE
        - coverage, miscoverage, accuracy_accepted : of the rows of this true class, NaN without a
          gate
        - surely : lower limit by which the classes are ordered

        and n_classes, the number of all classes (the table has at most 1,000), and order, the
        meaning of "worst".
    """
    codes = measured.codes
    correct = measured.correct
    accept = measured.accept
    n_rows = _count_codes(codes, names)
    n_correct = _count_codes(codes[correct], names)
    accuracy = _ratios(n_correct, n_rows)
    if accept is None:
        coverage = miscoverage = accepted_accuracy = np.full(len(names), np.nan)
        n_bad = n_rows - n_correct
        n_judged = n_rows
    else:
        n_accepted = _count_codes(codes[accept], names)
        n_accepted_correct = _count_codes(codes[accept & correct], names)
        coverage = _ratios(n_accepted, n_rows)
        accepted_accuracy = _ratios(n_accepted_correct, n_accepted)
        miscoverage = 1.0 - _ratios(n_accepted_correct, n_correct)
        n_bad = n_correct - n_accepted_correct
        n_judged = n_correct
    lower_limits, _ = clopper_pearson_limits(n_bad, n_judged, _ORDER_TAIL)
    lower_limits = np.where(n_judged > 0, lower_limits, np.nan)

    # Classes without a row come last. Ties are ordered by error rate, then by column.
    badness = np.nan_to_num(lower_limits, nan=-1.0)
    error_rate = np.nan_to_num(1.0 - accuracy)
    order = np.lexsort((-error_rate, -badness))[:MAX_CLASSES]
    worst = "low accuracy" if accept is None else "high miscoverage"
    return {
        "column": order,
        "name": tuple(str(names[column]) for column in order),
        "n": n_rows[order],
        "accuracy": accuracy[order],
        "ece": measured.errors[order],
        "coverage": coverage[order],
        "miscoverage": miscoverage[order],
        "accuracy_accepted": accepted_accuracy[order],
        "surely": lower_limits[order],
        "n_classes": len(names),
        "order": f"surest of a {worst} first",
    }


def make_subgroup_table(
    by: str,
    names: Array,
    codes: Codes,
    correct: Flags,
    accept: Flags | None,
    *,
    level: float,
    certificate: Certificate | None = None,
) -> dict[str, Any]:
    """Build the table of subgroups, those with the most evidence against the limit first.

    Parameters
    ----------
    by : {"class", "group"}
        Kind of the subgroups.

    names : array of shape (n_subgroups,) or (n_subgroups, 2)
        Names of the subgroups. If groups have two sides, the group and the predicted class.

    codes : array of int of shape (n_rows,)
        Subgroup of each row.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.

    accept : array of bool of shape (n_rows,) or None
        Decisions of the gate. None means that all rows are accepted.

    level : float
        Confidence level of the intervals, for all subgroups together (Bonferroni).

    certificate : Certificate, default=None
        Certificate of the gate.

    Returns
    -------
    dict
        One entry per subgroup with rows of

        - name : name of the subgroup
        - n, accepted, right : numbers of rows, accepted rows, and correct rows among these
        - coverage, accuracy, miscoverage : Series of proportions with exact intervals
        - evidence : probability of at least as many bad rows if the limit is just met. Small values
          are evidence that it is not met. The table is ordered by it, so that a subgroup with a
          single row is not at the top
        - threshold : threshold of the subgroup, NaN if it has none of its own

        and by; judged, the quantity that the evidence is about; at_most, whether small values of it
        are good; limit; promised, whether the limit is promised of "each" subgroup, of "all" rows
        together, or not ("none", the limit is then the value of all rows together); n_parts, the
        number of subgroups with rows (the table has at most 500).

    Examples
    --------
    >>> codes, correct = np.repeat([0, 1, 2], [300, 300, 1]), np.ones(601, dtype=bool)
    >>> correct[[*range(10), *range(300, 360), 600]] = False
    >>> names = np.array(["good", "bad", "one row"])
    >>> table = make_subgroup_table("class", names, codes, correct, None, level=0.95)
    >>> table["name"], table["accuracy"].estimate.round(3).tolist()
    (('bad', 'one row', 'good'), [0.8, 0.0, 0.967])
    """
    is_accepted = np.ones(len(codes), dtype=bool) if accept is None else accept
    judgement = _choose_judgement(certificate, by, is_accepted, correct)
    counts = _SubgroupCounts.from_rows(names, codes, correct, is_accepted, judgement.quantity)
    present = np.flatnonzero(counts.rows)
    counts = counts.select(present)
    max_violation_rate = judgement.quantity.max_violation_rate(judgement.limit)
    evidence = _binomial_tail(counts.violations, counts.counted_rows, max_violation_rate)
    order = np.lexsort((-counts.rows, evidence))[:MAX_SUBGROUPS]
    shown = counts.select(order)
    alpha = (1.0 - level) / max(1, len(present))
    cells = [(name, None) if np.ndim(name) == 0 else name for name in names[present[order]]]
    return {
        "by": by,
        "name": tuple(format_subgroup_name(*cell) for cell in cells),
        "n": shown.rows,
        "accepted": shown.accepted,
        "right": shown.accepted_correct,
        "coverage": _proportions(shown.accepted, shown.rows, alpha),
        "accuracy": _proportions(shown.accepted_correct, shown.accepted, alpha),
        "miscoverage": _proportions(
            shown.all_correct - shown.accepted_correct, shown.all_correct, alpha
        ),
        "evidence": evidence[order],
        "judged": judgement.quantity.short_name,
        "at_most": judgement.quantity.has_upper_limit,
        "limit": judgement.limit,
        "promised": judgement.promised,
        "threshold": _subgroup_thresholds(certificate, by, cells),
        "n_parts": len(present),
    }


@dataclass(frozen=True)
class _Judgement:
    """Limit against which subgroups are judged.

    Attributes
    ----------
    quantity : Quantity
        Quantity that is limited.

    limit : float
        Its limit.

    promised : {"each", "all", "none"}
        Rows of which the limit is promised.
    """

    quantity: Quantity
    limit: float
    promised: str


def _choose_judgement(
    certificate: Certificate | None, by: str, is_accepted: Flags, correct: Flags
) -> _Judgement:
    """Return the promised limit, or the selective accuracy of all rows if none applies.

    Parameters
    ----------
    certificate : Certificate or None
        Certificate of the gate.

    by : {"class", "group"}
        Kind of the subgroups.

    is_accepted, correct : array of bool of shape (n_rows,)
        Decisions, and whether each prediction is correct.

    Returns
    -------
    _Judgement
    """
    if certificate is not None:
        quantity, limit = certificate.limits[0]
        # The precision of a gate with two sides cannot be counted in each subgroup.
        is_counted = quantity.needs_labels and quantity.short_name in _COUNTED_QUANTITIES
        if is_counted and not quantity.is_mean_cost and not quantity.is_paired_difference:
            is_promised_of_each = (
                certificate.subgroups is not None and certificate.subgroups.by == by
            )
            return _Judgement(quantity, limit, "each" if is_promised_of_each else "all")
    n_correct, n_accepted = COVERAGE_ACCURACY.count_events(is_accepted, correct)
    accuracy = n_correct / n_accepted if n_accepted else 0.5
    limit = min(max(accuracy, _LIMIT_MARGIN), 1.0 - _LIMIT_MARGIN)
    return _Judgement(COVERAGE_ACCURACY, limit, "none")


@dataclass(frozen=True, eq=False)
class _SubgroupCounts:
    """Numbers of rows of each subgroup, arrays of shape (n_subgroups,).

    Attributes
    ----------
    rows, accepted, accepted_correct, all_correct : array
        Numbers of rows, accepted rows, accepted correct rows and correct rows.

    violations, counted_rows : array
        Number of rows that violate the limit, and of rows that the quantity counts.
    """

    rows: Float
    accepted: Float
    accepted_correct: Float
    all_correct: Float
    violations: Float
    counted_rows: Float

    @classmethod
    def from_rows(
        cls, names: Array, codes: Codes, correct: Flags, is_accepted: Flags, quantity: Quantity
    ) -> _SubgroupCounts:
        """Count the rows of each subgroup.

        Parameters
        ----------
        names : array of shape (n_subgroups, ...)
            Names of the subgroups.

        codes : array of int of shape (n_rows,)
            Subgroup of each row.

        correct, is_accepted : array of bool of shape (n_rows,)
            Whether each prediction is correct, and whether it is accepted.

        quantity : Quantity
            Quantity that is judged.

        Returns
        -------
        _SubgroupCounts
        """
        event_mask, counted_mask = quantity.compute_masks(is_accepted, correct)
        is_violation = event_mask if quantity.has_upper_limit else counted_mask & ~event_mask
        return cls(
            rows=_count_codes(codes, names),
            accepted=_count_codes(codes[is_accepted], names),
            accepted_correct=_count_codes(codes[is_accepted & correct], names),
            all_correct=_count_codes(codes[correct], names),
            violations=_count_codes(codes[is_violation], names),
            counted_rows=_count_codes(codes[counted_mask], names),
        )

    def select(self, indices: Codes) -> _SubgroupCounts:
        """Return the counts of some subgroups."""
        return _SubgroupCounts(**{name: counts[indices] for name, counts in vars(self).items()})


def _binomial_tail(n_bad: Float, n_judged: Float, limit: float) -> Float:
    """Compute P(Bin(n_judged, limit) >= n_bad) = I_limit(n_bad, n_judged - n_bad + 1)."""
    tail = betainc(np.maximum(n_bad, 1.0), n_judged - n_bad + 1.0, limit)
    return np.where(n_bad > 0, tail, 1.0)


def _subgroup_thresholds(
    certificate: Certificate | None, by: str, cells: Sequence[Sequence[Any]]
) -> Float:
    """Return the threshold of each subgroup, NaN if subgroups have no thresholds of their own."""
    if certificate is None or certificate.subgroups is None or certificate.subgroups.by != by:
        return np.full(len(cells), np.nan)
    threshold_of_cell = {}
    for part in certificate.subgroups.items:
        for cell in part.names_and_sides:
            threshold_of_cell[tuple(map(str, cell))] = part.threshold
    # A subgroup without a threshold accepts nothing.
    return np.array([threshold_of_cell.get(tuple(map(str, cell)), -np.inf) for cell in cells])


def _proportions(numerators: Float, denominators: Float, alpha: float) -> Series:
    """Compute proportions with Clopper-Pearson intervals of level 1 - alpha, NaN if empty."""
    lower_limits, upper_limits = clopper_pearson_limits(numerators, denominators, alpha / 2)
    is_defined = denominators > 0
    return Series(
        estimate=_ratios(numerators, denominators),
        low=np.where(is_defined, lower_limits, np.nan),
        high=np.where(is_defined, upper_limits, np.nan),
    )


def select_striking_rows(
    measured: Measured, is_candidate: Flags, order_by: Float, names: Array, ids: Any = None
) -> list[dict[str, Any]]:
    """List the candidate rows with the lowest values of a column.

    Parameters
    ----------
    measured : Measured
        Columns of the rows.

    is_candidate : array of bool of shape (n_rows,)
        Candidate rows.

    order_by : array of shape (n_rows,)
        Column to order by. Ties are ordered by row number.

    names : array of shape (n_classes,)
        Names of the classes, empty if there are none.

    ids : sequence, default=None
        Name of each row of the input.

    Returns
    -------
    list of dict
        At most 20 rows with their number, id, true and predicted class, score, confidence and
        decision.
    """
    candidates = np.flatnonzero(is_candidate)
    if len(candidates) > MAX_ROWS:
        # Only the rows up to the 20th value need to be sorted.
        largest_shown = np.partition(order_by[candidates], MAX_ROWS - 1)[MAX_ROWS - 1]
        candidates = candidates[order_by[candidates] <= largest_shown]
    sorted_candidates = candidates[np.argsort(order_by[candidates], kind="stable")]
    entries = []
    for index in sorted_candidates[:MAX_ROWS]:
        row_number = measured.numbers[index]
        label = predicted = ""
        if len(names):
            label = str(names[measured.codes[index]])
            predicted = str(names[measured.predicted[index]])
        entries.append(
            {
                "row": int(row_number),
                "id": None if ids is None else str(ids[row_number]),
                "label": label,
                "predicted": predicted,
                "score": float(measured.doubt[index]),
                "confidence": float(measured.confidence[index]),
                "accepted": None if measured.accept is None else bool(measured.accept[index]),
            }
        )
    return entries


def _count_codes(codes: Codes, names: Array) -> Float:
    """Count the occurrences of each code, one per name."""
    return np.bincount(codes, minlength=len(names))[: len(names)].astype(np.float64)


def _ratios(numerators: Float, denominators: Float) -> Float:
    """Divide counts; NaN if the denominator is 0."""
    return np.where(denominators > 0, numerators / np.maximum(denominators, 1.0), np.nan)
