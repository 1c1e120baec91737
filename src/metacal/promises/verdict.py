"""Verdict: whether labelled rows show that a promise is kept.

A verdict compares the measured value and its exact interval with the promised target:

- *kept*: the measured value meets the target;
- *refuted*: the whole interval lies on the wrong side of the target;
- *undecided*: the value misses the target, but the interval contains it;
- *not judged*: some of the rows were part of the fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from scipy.special import ndtri

from metacal.certificates.overlap_with_fit import OverlapWithFit
from metacal.certificates.quantity import Quantity
from metacal.display import format_interval
from metacal.promises.measurement import Measurement

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate
    from metacal.certificates.subgroups import Name


# The advice to label more rows states at most this multiple of the current rows.
_MAX_ROW_MULTIPLE = 100

# The advice to label more rows states at least this multiple of the current rows.
_MIN_ROW_MULTIPLE = 2

# A value within this distance of the target counts as equal to the target.
_MIN_DIFFERENCE = 1e-12

# Values have at least this many printed decimals, and more if they would look like the target.
_MIN_DECIMALS = 4
_MAX_DECIMALS = 16

_ADVICE_IF_REFUTED = (
    "Check that these rows and their labels come from the same source as the"
    " calibration rows; if they do, fit again on recent labelled rows, and have a"
    " person look at what is accepted until then."
)


@dataclass(frozen=True)
class Verdict:
    """Result of judging a promise on labelled rows.

    Attributes
    ----------
    quantity, target : Quantity, float
        Promised quantity and its limit.
    value, low, high : float or None
        Measured value and the ends of its interval. None if the quantity counts none of the rows.
    level : float
        Confidence level of the interval.
    kept : bool
        Whether the measured value meets the target. For several promises: whether all do.
    refuted : bool
        Whether the whole interval lies on the wrong side of the target. For several promises:
        whether any does.
    measurement : Measurement
        Counts from which the value and the interval were computed.
    subgroup : str or None
        Predicted class or group whose rows were counted. None for all rows.
    class_name : str, int or None
        For promises about two classes: the class of the quantity, as in "recall of fraud".
    components : tuple of Verdict
        One verdict for each promised quantity, or for each subgroup with rows, if there are
        several. Subgroups with the smallest p-value come first. The numbers of this verdict are
        those of its first component.
    fit_rows : OverlapWithFit or None
        How many of the rows were part of the fit. If any were, nothing is measured.
    """

    quantity: Quantity
    target: float
    value: float | None
    low: float | None
    high: float | None
    level: float
    kept: bool
    refuted: bool
    measurement: Measurement = field(repr=False, compare=False)
    subgroup: str | None = None
    class_name: Name | None = None
    components: tuple[Self, ...] = ()
    fit_rows: OverlapWithFit | None = None

    @classmethod
    def from_measurement(
        cls,
        measurement: Measurement,
        level: float,
        subgroup: str | None = None,
        class_name: Name | None = None,
    ) -> Self:
        """Compare a measurement and its interval with the promised target.

        Parameters
        ----------
        measurement : Measurement
            Measured quantity.
        level : float
            Confidence level of the interval.
        subgroup : str, optional
            Predicted class or group of the measured rows. None for all rows.
        class_name : str or int, optional
            Class that the quantity is about, for a promise about two classes.

        Returns
        -------
        Verdict
        """
        quantity = measurement.quantity
        target = measurement.target
        value = measurement.value
        low = None
        high = None
        is_kept = False
        is_refuted = False
        if value is not None:
            low, high = measurement.compute_interval(level)
            is_kept = quantity.is_kept(value, target)
            is_refuted = quantity.is_refuted(low, high, target)
        return cls(
            quantity=quantity,
            target=target,
            value=value,
            low=low,
            high=high,
            level=level,
            kept=is_kept,
            refuted=is_refuted,
            measurement=measurement,
            subgroup=subgroup,
            class_name=class_name,
        )

    @classmethod
    def not_judged(
        cls, certificate: Certificate, overlap_with_fit: OverlapWithFit, level: float
    ) -> Self:
        """Build the verdict for rows that were part of the fit."""
        verdicts = []
        for quantity, target in certificate.limits:
            no_rows = Measurement(quantity, target, value=None, n_bad=0, n_rows=0)
            verdict = cls.from_measurement(no_rows, level)
            verdicts.append(replace(verdict, fit_rows=overlap_with_fit))
        return cls.combine(verdicts)

    @classmethod
    def combine(cls, verdicts: list[Self]) -> Self:
        """Combine verdicts: kept if all are kept, refuted if any is refuted."""
        first_verdict = verdicts[0]
        is_single_verdict_on_all_rows = len(verdicts) == 1 and first_verdict.subgroup is None
        if is_single_verdict_on_all_rows:
            return first_verdict
        return replace(
            first_verdict,
            kept=all(verdict.kept for verdict in verdicts),
            refuted=any(verdict.refuted for verdict in verdicts),
            components=tuple(verdicts),
        )

    @property
    def word(self) -> str:
        """Name of the verdict: kept, undecided, refuted or not judged."""
        if self.fit_rows is not None:
            return "not judged"
        if self.refuted:
            return "refuted"
        return "kept" if self.kept else "undecided"

    @property
    def tests(self) -> tuple[Self, ...]:
        """One verdict for each promised quantity, or for each subgroup with rows."""
        return self.components or (self,)

    @property
    def subgroup_verdicts(self) -> tuple[Self, ...]:
        """Verdicts of the classes or groups, if each has its own promise."""
        return () if self.subgroup is None else self.components

    @property
    def verdict_on_second_limit(self) -> Self | None:
        """Verdict on the second of two promised limits, or None for a single limit.

        The fields of a combined verdict are those of the first limit.
        """
        has_two_limits = bool(self.components) and not self.subgroup_verdicts
        return self.components[1] if has_two_limits else None

    @property
    def measured_quantity(self) -> str:
        """Name of the quantity with its class, as in "recall of fraud"."""
        return self.quantity.name_with_class(self.class_name)

    @property
    def headline_verdicts(self) -> tuple[Self, ...]:
        """Verdicts to show first: one per quantity, or that of the worst subgroup."""
        if self.subgroup_verdicts:
            worst_verdict = replace(self, components=())
            return (worst_verdict,)
        return self.tests

    @property
    def p_value(self) -> float:
        """P-value of the hypothesis that the promise is kept."""
        significance_level = 0.5 * (1.0 - self.level)
        return self.measurement.compute_p_value(significance_level)

    @property
    def advice(self) -> str:
        """Sentence that recommends the next step."""
        overlap_with_fit = self.fit_rows
        if overlap_with_fit is not None:
            return overlap_with_fit.advice
        if self.refuted:
            return _ADVICE_IF_REFUTED
        inconclusive_verdicts = [
            verdict for verdict in self.tests if not verdict._whole_interval_meets_target
        ]
        if not inconclusive_verdicts:
            return "None needed."
        rows_or_cases = self._rows_or_cases
        has_nothing_to_measure = any(verdict.value is None for verdict in inconclusive_verdicts)
        if has_nothing_to_measure:
            return f"Label {rows_or_cases} that the promise is about: there is none here."
        largest_multiple = max(
            verdict._estimate_multiple_of_rows_needed() for verdict in inconclusive_verdicts
        )
        number_needed_text = _describe_row_multiple(largest_multiple)
        if self.kept:
            return (
                "None needed. The estimate meets the target, but the interval includes values that"
                f" miss it; {number_needed_text} labelled {rows_or_cases} would settle it."
            )
        return (
            f"Label more {rows_or_cases} before you rely on the gate: {number_needed_text} would settle"
            " it, if they look the same."
        )

    @property
    def _whole_interval_meets_target(self) -> bool:
        """Whether both ends of the interval meet the target. False without an interval."""
        if self.low is None or self.high is None:
            return False
        low_end_meets_target = self.quantity.is_kept(self.low, self.target)
        high_end_meets_target = self.quantity.is_kept(self.high, self.target)
        return low_end_meets_target and high_end_meets_target

    @property
    def _rows_or_cases(self) -> str:
        """Unit that the quantity counts, "rows" or "cases"."""
        return "cases" if self.quantity.counts_cases else "rows"

    def _estimate_multiple_of_rows_needed(self) -> int:
        """Estimate how many times as many rows are needed for a decisive interval.

        The value is assumed to stay the same. Multiples above 100 are returned as 101.
        """
        assert self.value is not None
        max_row_multiple = _MAX_ROW_MULTIPLE + 1
        distance_from_target = self.value - self.target
        if abs(distance_from_target) < _MIN_DIFFERENCE:
            return max_row_multiple
        if self.measurement.is_binomial:
            row_multiple = self._estimate_binomial_row_multiple(distance_from_target)
        else:
            # The width of an interval shrinks with the square root of the number of rows.
            interval_end_near_target = self.low if distance_from_target > 0.0 else self.high
            assert interval_end_near_target is not None
            half_width = self.value - interval_end_near_target
            row_multiple = (half_width / distance_from_target) ** 2
        return max(_MIN_ROW_MULTIPLE, math.ceil(min(row_multiple, max_row_multiple)))

    def _estimate_binomial_row_multiple(self, distance_from_target: float) -> float:
        """Estimate the factor of rows needed, by the normal approximation of a binomial."""
        measurement = self.measurement
        two_sided_quantile = float(ndtri(0.5 + 0.5 * self.level))
        bad_share = measurement.max_bad_share
        relative_distance = distance_from_target / measurement.largest_cost
        n_rows_needed = two_sided_quantile**2 * bad_share * (1.0 - bad_share) / relative_distance**2
        return n_rows_needed / measurement.n_rows

    def to_dict(self) -> dict[str, Any]:
        """Convert the verdict to a dictionary of JSON types."""
        record: dict[str, Any] = {
            "quantity": self.quantity.name,
            "target": self.target,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "level": self.level,
            "kept": self.kept,
            "refuted": self.refuted,
            "verdict": self.word,
        }
        if self.subgroup is not None:
            record["part"] = self.subgroup
        if self.class_name is not None:
            record["class"] = self.class_name
        if self.subgroup_verdicts:
            record["of_parts"] = [verdict.to_dict() for verdict in self.subgroup_verdicts]
        if self.verdict_on_second_limit is not None:
            record["also"] = self.verdict_on_second_limit.to_dict()
        return record

    def __str__(self) -> str:
        if self.fit_rows is not None:
            return self.summary
        if not self.subgroup_verdicts:
            return "; ".join(test.summary.rstrip(".") for test in self.tests) + "."
        n_subgroups = len(self.subgroup_verdicts)
        n_kept = sum(verdict.kept for verdict in self.subgroup_verdicts)
        n_refuted = sum(verdict.refuted for verdict in self.subgroup_verdicts)
        n_undecided = n_subgroups - n_kept - n_refuted
        worst_verdict = self.subgroup_verdicts[0]
        return (
            f"{self.word}: of {n_subgroups:,}, {n_kept:,} kept, {n_undecided:,} undecided,"
            f" {n_refuted:,} refuted; worst {self.subgroup}, {worst_verdict.summary}"
        )

    @property
    def summary(self) -> str:
        """Line with the verdict, the measured value and its interval."""
        overlap_with_fit = self.fit_rows
        if overlap_with_fit is not None:
            return f"{self.word}: {overlap_with_fit}."
        if self.value is None or self.low is None or self.high is None:
            return f"{self.word}: these {self._rows_or_cases} do not show the {self.measured_quantity}."
        value_text = _format_distinct_from_target(self.value, self.target)
        interval_text = format_interval(self.low, self.high)
        return (
            f"{self.word}: {self.measured_quantity} {value_text} {interval_text}, promised"
            f" {self.quantity.direction} {self.target:g}."
        )


def _describe_row_multiple(row_multiple: int) -> str:
    """Describe the factor by which the number of rows must grow.

    >>> _describe_row_multiple(2), _describe_row_multiple(7)
    ('twice as many', 'about 7 times as many')
    """
    if row_multiple > _MAX_ROW_MULTIPLE:
        return f"more than {_MAX_ROW_MULTIPLE} times as many"
    if row_multiple == _MIN_ROW_MULTIPLE:
        return "twice as many"
    return f"about {row_multiple} times as many"


def _format_distinct_from_target(value: float, target: float) -> str:
    """Format a value with enough decimals to differ from the target.

    >>> _format_distinct_from_target(0.95, 0.9), _format_distinct_from_target(0.950001, 0.95)
    ('0.9500', '0.950001')
    """
    for n_decimals in range(_MIN_DECIMALS, _MAX_DECIMALS + 1):
        value_text = f"{value:.{n_decimals}f}"
        if float(value_text) != target:
            return value_text
    return repr(value)
