"""Tables of a report: classes, subgroups, and the most striking single rows.

The tables are dicts of columns for the HTML page, as `page/types.d.ts` describes them. A *subgroup*
is a predicted class or a group of rows. A *code* is the index of a class or of a subgroup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betainc

from metacal.certificates.certificate import Certificate
from metacal.certificates.quantities import SELECTIVE_ACCURACY
from metacal.certificates.quantity import Quantity
from metacal.certificates.subgroup_words import format_subgroup_name
from metacal.certificates.subgroups import Name
from metacal.formulas import Array, Codes, Flags, Float
from metacal.gate import Gate
from metacal.gate.thresholds import check_groups
from metacal.metrics.intervals import compute_clopper_pearson_limits
from metacal.reports.operating import CurveWithBand

if TYPE_CHECKING:
    from metacal.reports.report_rows import ReportRows

#: Largest number of classes in the table of classes.
MAX_CLASSES = 1000
#: Largest number of subgroups in the table of subgroups.
MAX_SUBGROUPS = 500

#: One-sided error probability of the lower limit by which classes are ordered.
_ORDER_TAIL_PROBABILITY = 0.025
#: Smallest distance of a reference limit from 0 and 1, if nothing is promised.
_MIN_DISTANCE_FROM_0_AND_1 = 1e-9
#: Reference limit if nothing is promised and no row is accepted.
_ACCURACY_WITHOUT_ROWS = 0.5
#: Short names of the quantities that can be counted in each subgroup.
_COUNTED_QUANTITIES = ("coverage", "accuracy", "miscoverage")


def make_class_table(names: Array, report_rows: ReportRows) -> dict[str, Any]:
    """Build the table of true classes, worst first.

    Classes are ordered by the lower end of the exact 95% interval of their miscoverage, or of their
    error rate if there is no gate. A class with a single row is therefore not at the top.

    Parameters
    ----------
    names : array of shape (n_classes,)
        Names of the classes.

    report_rows : ReportRows
        Labelled rows of the report.

    Returns
    -------
    dict
        Columns with one entry per class:

        - column, name : column in the table and name of the class
        - n : number of rows of this true class
        - accuracy : fraction of these rows that is correct
        - ece : calibration error of the class. The mean over all classes is the class-wise ECE
        - coverage, miscoverage, selective_accuracy : of the rows of this true class, NaN without a
          gate
        - surely : lower limit by which the classes are ordered

        and n_classes, the number of all classes (the table has at most 1,000), and order, the
        meaning of "worst".
    """
    true_codes = report_rows.true_codes
    correct = report_rows.correct
    accept = report_rows.accept
    n_rows = _count_codes(true_codes, names)
    n_correct = _count_codes(true_codes[correct], names)
    accuracy = _divide_counts(n_correct, n_rows)
    if accept is None:
        coverage = miscoverage = accepted_accuracy = np.full(len(names), np.nan)
        n_violations = n_rows - n_correct
        n_trials = n_rows
    else:
        n_accepted = _count_codes(true_codes[accept], names)
        n_accepted_correct = _count_codes(true_codes[accept & correct], names)
        coverage = _divide_counts(n_accepted, n_rows)
        accepted_accuracy = _divide_counts(n_accepted_correct, n_accepted)
        miscoverage = 1.0 - _divide_counts(n_accepted_correct, n_correct)
        n_violations = n_correct - n_accepted_correct
        n_trials = n_correct
    lower_limits, _ = compute_clopper_pearson_limits(
        n_violations, n_trials, _ORDER_TAIL_PROBABILITY
    )
    lower_limits = np.where(n_trials > 0, lower_limits, np.nan)

    # Classes without a row come last. Ties are ordered by error rate, then by column.
    sortable_limits = np.nan_to_num(lower_limits, nan=-1.0)
    error_rate = np.nan_to_num(1.0 - accuracy)
    class_order = np.lexsort((-error_rate, -sortable_limits))[:MAX_CLASSES]
    worst_meaning = "low accuracy" if accept is None else "high miscoverage"
    return {
        "column": class_order,
        "name": tuple(str(names[column]) for column in class_order),
        "n": n_rows[class_order],
        "accuracy": accuracy[class_order],
        "ece": report_rows.class_calibration_errors[class_order],
        "coverage": coverage[class_order],
        "miscoverage": miscoverage[class_order],
        "selective_accuracy": accepted_accuracy[class_order],
        "surely": lower_limits[class_order],
        "n_classes": len(names),
        "order": f"surest of a {worst_meaning} first",
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
    """Build the table of subgroups, strongest evidence of a violated limit first.

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
        Columns with one entry per subgroup that has rows:

        - name : name of the subgroup
        - n, accepted, right : numbers of rows, accepted rows, and correct rows among these
        - coverage, accuracy, miscoverage : CurveWithBand of proportions with exact intervals
        - evidence : p-value of the test that the limit is met. Small values are evidence that it is
          not met. The table is ordered by it, so that a subgroup with a single row is not at the top
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
    reference = _choose_reference_limit(certificate, by, is_accepted, correct)
    all_counts = _SubgroupCounts.from_rows(names, codes, correct, is_accepted, reference.quantity)
    nonempty_codes = np.flatnonzero(all_counts.rows)
    nonempty_counts = all_counts.select(nonempty_codes)
    max_violation_rate = reference.quantity.max_violation_rate(reference.limit)
    p_values = _compute_binomial_tail(
        nonempty_counts.violations, nonempty_counts.counted_rows, max_violation_rate
    )
    subgroup_order = np.lexsort((-nonempty_counts.rows, p_values))[:MAX_SUBGROUPS]
    listed_counts = nonempty_counts.select(subgroup_order)
    # Bonferroni's correction makes the intervals of all subgroups hold at once.
    alpha = (1.0 - level) / max(1, len(nonempty_codes))
    listed_names = names[nonempty_codes[subgroup_order]]
    names_with_predicted_class = [
        (name, None) if np.ndim(name) == 0 else name for name in listed_names
    ]
    return {
        "by": by,
        "name": tuple(
            format_subgroup_name(name, predicted_class)
            for name, predicted_class in names_with_predicted_class
        ),
        "n": listed_counts.rows,
        "accepted": listed_counts.accepted,
        "right": listed_counts.accepted_correct,
        "coverage": _compute_proportions(listed_counts.accepted, listed_counts.rows, alpha),
        "accuracy": _compute_proportions(
            listed_counts.accepted_correct, listed_counts.accepted, alpha
        ),
        "miscoverage": _compute_proportions(
            listed_counts.all_correct - listed_counts.accepted_correct,
            listed_counts.all_correct,
            alpha,
        ),
        "evidence": p_values[subgroup_order],
        "judged": reference.quantity.short_name,
        "at_most": reference.quantity.has_upper_limit,
        "limit": reference.limit,
        "promised": reference.promise_scope,
        "threshold": list_subgroup_thresholds(certificate, by, names_with_predicted_class),
        "n_parts": len(nonempty_codes),
    }


@dataclass(frozen=True)
class _ReferenceLimit:
    """Limit that the value of each subgroup is compared with.

    Attributes
    ----------
    quantity : Quantity
        Quantity that is limited.

    limit : float
        Limit of the quantity.

    promise_scope : {"each", "all", "none"}
        Whether the limit is promised of each subgroup, of all rows together, or not at all.
    """

    quantity: Quantity
    limit: float
    promise_scope: str


def _choose_reference_limit(
    certificate: Certificate | None, by: str, is_accepted: Flags, correct: Flags
) -> _ReferenceLimit:
    """Choose the limit that the value of each subgroup is compared with.

    It is the promised limit, or else the selective accuracy of all rows.

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
    _ReferenceLimit
    """
    if certificate is not None:
        first_limit = certificate.limits[0]
        quantity, promised_limit = first_limit
        if _is_proportion_of_rows(quantity):
            subgroups = certificate.subgroups
            is_promised_of_each = subgroups is not None and subgroups.by == by
            promise_scope = "each" if is_promised_of_each else "all"
            return _ReferenceLimit(quantity, promised_limit, promise_scope)
    n_correct, n_accepted = SELECTIVE_ACCURACY.count_events(is_accepted, correct)
    selective_accuracy = n_correct / n_accepted if n_accepted else _ACCURACY_WITHOUT_ROWS
    limit = min(
        max(selective_accuracy, _MIN_DISTANCE_FROM_0_AND_1), 1.0 - _MIN_DISTANCE_FROM_0_AND_1
    )
    return _ReferenceLimit(SELECTIVE_ACCURACY, limit, "none")


def _is_proportion_of_rows(quantity: Quantity) -> bool:
    """Check whether a quantity is a proportion of the rows of a subgroup."""
    # The precision of a two-sided gate, for example, cannot be counted in each subgroup.
    is_rate_of_rows = quantity.short_name in _COUNTED_QUANTITIES
    is_cost_or_difference = quantity.is_mean_cost or quantity.is_paired_difference
    return quantity.needs_labels and is_rate_of_rows and not is_cost_or_difference


@dataclass(frozen=True, eq=False)
class _SubgroupCounts:
    """Row counts of the subgroups, as arrays of shape (n_subgroups,).

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
        """Count accepted, correct and violating rows of each subgroup.

        Parameters
        ----------
        names : array of shape (n_subgroups, ...)
            Names of the subgroups.

        codes : array of int of shape (n_rows,)
            Subgroup of each row.

        correct, is_accepted : array of bool of shape (n_rows,)
            Whether each prediction is correct, and whether it is accepted.

        quantity : Quantity
            Limited quantity, which defines the violating rows.

        Returns
        -------
        _SubgroupCounts
        """
        event_mask, counted_mask = quantity.compute_numerator_and_denominator_masks(
            is_accepted, correct
        )
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
        """Return the counts of the subgroups with these indices."""
        return _SubgroupCounts(**{name: counts[indices] for name, counts in vars(self).items()})


def _compute_binomial_tail(n_successes: Float, n_trials: Float, probability: float) -> Float:
    """Compute P(Bin(n, p) >= k) for k successes in n trials, as I_p(k, n - k + 1)."""
    tail = betainc(np.maximum(n_successes, 1.0), n_trials - n_successes + 1.0, probability)
    return np.where(n_successes > 0, tail, 1.0)


def list_subgroup_thresholds(
    certificate: Certificate | None,
    by: str,
    names_with_predicted_class: Sequence[tuple[Name, Name | None]],
) -> Float:
    """List the thresholds of subgroups, or NaN if all rows share a threshold.

    Parameters
    ----------
    certificate : Certificate or None
        Certificate of the gate.

    by : {"class", "group"}
        Kind of the subgroups.

    names_with_predicted_class : sequence of tuple
        Class or group of each subgroup, and its predicted class. The second is None if the
        threshold does not depend on the predicted class.

    Returns
    -------
    array of shape (n_subgroups,)
    """
    certified_subgroups = None if certificate is None else certificate.subgroups
    if certified_subgroups is None or certified_subgroups.by != by:
        return np.full(len(names_with_predicted_class), np.nan)
    threshold_by_key = {}
    for subgroup in certified_subgroups.items:
        for name, predicted_class in subgroup.names_with_predicted_class:
            threshold_by_key[str(name), str(predicted_class)] = subgroup.threshold
    subgroup_keys = [
        (str(name), str(predicted_class)) for name, predicted_class in names_with_predicted_class
    ]
    # A subgroup that the certificate does not list accepts nothing, which is a threshold of -inf.
    return np.array([threshold_by_key.get(key, -np.inf) for key in subgroup_keys])


def _compute_proportions(numerators: Float, denominators: Float, alpha: float) -> CurveWithBand:
    """Compute proportions with Clopper-Pearson intervals of level 1 - alpha each."""
    lower_limits, upper_limits = compute_clopper_pearson_limits(numerators, denominators, alpha / 2)
    is_defined = denominators > 0
    return CurveWithBand(
        estimate=_divide_counts(numerators, denominators),
        low=np.where(is_defined, lower_limits, np.nan),
        high=np.where(is_defined, upper_limits, np.nan),
    )


def make_subgroup_tables(
    gate: Gate, report_rows: ReportRows, names: Array, groups: Any, level: float
) -> list[dict[str, Any]]:
    """Build the tables of predicted classes and of groups.

    Parameters
    ----------
    gate : Gate
        Gate that accepts or rejects the rows.

    report_rows : ReportRows
        Labelled rows of the report.

    names : array of shape (n_classes,)
        Names of the classes.

    groups : sequence or None
        Group of each row of the input.

    level : float
        Confidence level of the intervals.

    Returns
    -------
    list of dict
    """
    tables = []
    if len(names):
        class_table = make_subgroup_table(
            "class",
            names,
            report_rows.predicted_codes,
            report_rows.correct,
            report_rows.accept,
            level=level,
            certificate=gate.certificate,
        )
        tables.append(class_table)
    if groups is not None:
        row_groups = check_groups(groups)[report_rows.row_indices]
        row_subgroups: Any = None
        if gate.thresholds.group_decision_offsets:
            # A two-sided gate has a subgroup for each group and predicted class.
            row_subgroups = gate.get_row_subgroups(report_rows.predicted_codes, row_groups)
        if row_subgroups is None:
            row_subgroups = row_groups
        group_names, group_codes = np.unique(row_subgroups, axis=0, return_inverse=True)
        group_table = make_subgroup_table(
            "group",
            group_names,
            group_codes.ravel(),
            report_rows.correct,
            report_rows.accept,
            level=level,
            certificate=gate.certificate,
        )
        tables.append(group_table)
    return tables


def _count_codes(codes: Codes, names: Array) -> Float:
    """Count the rows with each code from 0 to len(names) - 1."""
    return np.bincount(codes, minlength=len(names))[: len(names)].astype(np.float64)


def _divide_counts(numerators: Float, denominators: Float) -> Float:
    """Divide arrays of counts, with NaN for denominators of 0."""
    return np.where(denominators > 0, numerators / np.maximum(denominators, 1.0), np.nan)
