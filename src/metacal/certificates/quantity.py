"""Quantity that a promise limits, with its counts and its texts.

A *quantity* is the rate of an *event* among the *counted rows*, for example the rate of correct
predictions among the accepted rows, or the mean of a cost over the counted rows. A promise limits a
quantity from above ("at most") or from below ("at least"). A row *violates* the promise if it moves
the quantity away from the limit in the bad direction: an incorrect accepted prediction violates a
promise about selective accuracy.

A quantity is a string, its name, so that files and callers may compare
`certificate.quantity == "miscoverage"`. The modules of metacal use its attributes instead.

`metacal.certificates.quantities` defines and registers the quantities of metacal.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from metacal.errors import InputError, MissingLabelsError
from metacal.formulas import Flags

#: Function that formats a promised share as text.
FormatShare = Callable[[float], str]


class EventCount(NamedTuple):
    """Number of events, and number of rows among which they are counted."""

    n_events: int
    n_rows: int


class Quantity(str):
    """A rate that a promise limits, from above ("at most") or from below ("at least").

    Attributes
    ----------
    mask_function : callable
        mask_function(accept, correct) -> (event_mask, counted_mask). All four are boolean arrays
        with an entry per row, and every event is a counted row. `correct` is true if the row is of
        the predicted class.
    has_upper_limit : bool, default=True
        Whether the promise is "at most". If not, the promise is "at least".
    limits_only_rejections : bool, default=False
        Whether the promise limits only which rows are rejected, so that accepting one more row can
        never break it. If so, a row whose score may equal the threshold is accepted, otherwise it
        is rejected.
    claim_template : str
        The promise as a sentence without its full stop, with {} in place of the limit.
    short_name : str
        Short name, also of its curve in a report; the name of the quantity by default.
    measured_template : str
        Text after a measured percentage: "of the {n:,} accepted predictions are correct", with {n} in place
        of the number of counted rows.
    violations_text : str
        Name of the rows that violate the promise: "incorrect predictions among the accepted".
    violations_suffix : str
        The same after "2 of 100": "incorrect among the accepted".
    violation_rate_name : str
        Name of the rate of violations; the name of the quantity by default.
    needs_labels : bool, default=True
        Whether it can be counted only if the labels are known.
    is_mean_cost : bool, default=False
        Whether it is the mean of a cost over the counted rows, in a unit that the user chose. The
        cost of each row is then a separate column (`metacal.certification.row_losses.Losses`).
    conditions_on_true_class : bool, default=False
        For two classes: whether the counted rows are all rows of a true class, whatever the
        classifier predicts.
    uses_graded_losses : bool, default=False
        Whether a prediction may be partly correct. "Correct" then means a loss of zero.
    is_paired_difference : bool, default=False
        Whether it is the difference of two error rates on the same rows. The loss of a row is then
        1 (worse), -1 (better) or 0.
    uses_agreement_only : bool, default=False
        Whether `correct` means that a cascade returns the answer of its last model. It is then not
        known which answers are correct.
    case_outcome : "incorrect", "missed" or None, default=None
        If the quantity counts cases, and not rows: which items make up the outcome of a case: incorrect
        accepted ones or missed true ones (`metacal.certification.case_outcomes`). The
        arguments of `mask_function` then have an entry for each case.

    In `claim_template`, `measured_template` and the texts about violations, "{name}" stands for the
    class that the promise is about. If all counted rows are predicted to be of this class, `correct`
    is true for the rows of the class, see `PRECISION`.

    Examples
    --------
    >>> from metacal.certificates.quantities import SELECTIVE_ACCURACY, MISCOVERAGE
    >>> accept, correct = np.array([True, True, False, False]), np.array([True, False, True, False])
    >>> MISCOVERAGE.count_events(accept, correct), SELECTIVE_ACCURACY.count_events(accept, correct)
    (EventCount(n_events=1, n_rows=2), EventCount(n_events=1, n_rows=2))
    >>> SELECTIVE_ACCURACY.count_violations(accept, correct), SELECTIVE_ACCURACY.max_violation_rate(0.97)
    (EventCount(n_events=1, n_rows=2), 0.030000000000000027)
    >>> MISCOVERAGE == "miscoverage", MISCOVERAGE.is_kept(0.04, 0.05), SELECTIVE_ACCURACY.is_kept(0.96, 0.97)
    (True, True, False)
    """

    mask_function: Callable[[Flags, Flags], tuple[Flags, Flags]]
    claim_template: str
    short_name: str
    measured_template: str
    violations_text: str
    violations_suffix: str
    violation_rate_name: str
    has_upper_limit: bool = True
    limits_only_rejections: bool = False
    needs_labels: bool = True
    is_mean_cost: bool = False
    uses_graded_losses: bool = False
    is_paired_difference: bool = False
    uses_agreement_only: bool = False
    conditions_on_true_class: bool = False
    case_outcome: Literal["incorrect", "missed"] | None = None

    def __new__(cls, name: str, **attributes: Any) -> Self:
        """Create a quantity from its name and the attributes that the class documents."""
        attributes = {"short_name": name, "violation_rate_name": name, **attributes}
        allowed_names = set(cls.__annotations__)
        required_names = {
            attribute for attribute in cls.__annotations__ if not hasattr(cls, attribute)
        }
        given_names = set(attributes)
        invalid_names = (required_names - given_names) | (given_names - allowed_names)
        if invalid_names:
            raise InputError(
                f"The quantity {name!r} has missing or unknown facts:"
                f" {', '.join(sorted(invalid_names))}."
            )
        self = super().__new__(cls, name)
        self.__dict__.update(attributes)
        return self

    @property
    def name(self) -> str:
        """Name of the quantity in files, as a plain string."""
        return str(self)

    @property
    def counts_cases(self) -> bool:
        """Whether the quantity counts cases, and not rows."""
        return self.case_outcome is not None

    @property
    def limits_accepted_errors_of_cases(self) -> bool:
        """Whether the quantity counts cases by their incorrect accepted items."""
        return self.case_outcome == "incorrect"

    @property
    def limits_missed_items_of_cases(self) -> bool:
        """Whether the quantity counts cases by their true items that are not accepted."""
        return self.case_outcome == "missed"

    def name_with_class(self, class_name: str | float | None) -> str:
        """Return the name of the quantity, such as "recall of fraud".

        >>> from metacal.certificates.quantities import RECALL
        >>> RECALL.name_with_class("fraud"), RECALL.name_with_class(None)
        ('recall of fraud', 'recall')
        """
        return self.name if class_name is None else f"{self.name} of {class_name}"

    @property
    def comparison_sign(self) -> str:
        """Sign between the quantity and its limit, "<=" or ">="."""
        return "<=" if self.has_upper_limit else ">="

    @property
    def direction(self) -> str:
        """Words in front of the limit, "at most" or "at least"."""
        return "at most" if self.has_upper_limit else "at least"

    def compute_numerator_and_denominator_masks(
        self, accept: Flags, correct: Flags | None
    ) -> tuple[Flags, Flags]:
        """Return the masks of the events and of the counted rows.

        Parameters
        ----------
        accept : ndarray of bool, shape (n_rows,)
            Whether each row is accepted.
        correct : ndarray of bool, shape (n_rows,), or None
            Whether each prediction is correct. None is allowed if the quantity needs no labels.

        Returns
        -------
        event_mask, counted_mask : ndarray of bool, shape (n_rows,)

        Raises
        ------
        InputError
            If labels are needed and missing.

        Examples
        --------
        >>> from metacal.certificates.quantities import MISCOVERAGE, REVIEW
        >>> REVIEW.compute_numerator_and_denominator_masks(np.array([True, False]), None)[0]
        array([False,  True])
        >>> MISCOVERAGE.compute_numerator_and_denominator_masks(np.array([True, False]), None)
        Traceback (most recent call last):
        metacal.errors.MissingLabelsError: The test of miscoverage requires labelled rows, but ...
        """
        if self.needs_labels:
            self.check_labels(correct)
        if correct is None:
            correct = np.zeros_like(accept)
        return self.mask_function(accept, correct)

    def check_labels(self, correct: Flags | None) -> None:
        """Raise InputError if it is not known which predictions are correct."""
        if correct is None:
            raise MissingLabelsError(
                f"The test of {self} requires labelled rows, but the rows have no labels. Pass"
                " the true labels."
            )

    def count_events(self, accept: Flags, correct: Flags | None) -> EventCount:
        """Count the events, and the rows among which they are counted."""
        event_mask, counted_mask = self.compute_numerator_and_denominator_masks(accept, correct)
        return EventCount(n_events=int(event_mask.sum()), n_rows=int(counted_mask.sum()))

    def count_violations(self, accept: Flags, correct: Flags | None) -> EventCount:
        """Count the violations of a promise, and the rows to which the promise applies."""
        n_events, n_rows = self.count_events(accept, correct)
        n_violations = n_events if self.has_upper_limit else n_rows - n_events
        return EventCount(n_events=n_violations, n_rows=n_rows)

    def find_violations(self, accept: Flags, correct: Flags | None) -> Flags:
        """Return a mask of the violations of the promise among the counted rows."""
        event_mask, counted_mask = self.compute_numerator_and_denominator_masks(accept, correct)
        is_event = event_mask[counted_mask]
        return is_event if self.has_upper_limit else ~is_event

    def max_violation_rate(self, target: float) -> float:
        """Return the largest rate of violations that a promise with this limit allows."""
        return target if self.has_upper_limit else 1.0 - target

    def is_kept(self, value: float, target: float) -> bool:
        """Check whether a value of the quantity meets the limit."""
        return value <= target if self.has_upper_limit else value >= target

    def is_refuted(self, low: float, high: float, target: float) -> bool:
        """Check whether a confidence interval lies entirely beyond the limit."""
        return low > target if self.has_upper_limit else high < target

    def format_claim(
        self,
        limit: float,
        format_lower_bound: FormatShare,
        format_upper_bound: FormatShare,
        class_name: str | float | None = "positive",
    ) -> str:
        """Format the promise as a sentence without its full stop.

        Parameters
        ----------
        limit : float
            The promised limit.
        format_lower_bound, format_upper_bound : callable
            Functions that format a share that is promised from below or from above.
        class_name : str, bool, int, float or None, default="positive"
            The class that the quantity is about. Most quantities do not mention it.

        Returns
        -------
        str
        """
        limit_text = self.format_limit(limit, format_lower_bound, format_upper_bound)
        return self.claim_template.format(limit_text, name=class_name)

    def format_limit(
        self, limit: float, format_lower_bound: FormatShare, format_upper_bound: FormatShare
    ) -> str:
        """Format the limit, rounded towards the weaker promise.

        Parameters
        ----------
        limit : float
            The promised limit.
        format_lower_bound, format_upper_bound : callable
            Functions that format a share that is promised from below or from above. A mean cost is
            formatted as a plain number instead.

        Returns
        -------
        str
        """
        if self.is_mean_cost:
            return format_cost_ceil(limit)
        if self.has_upper_limit:
            return format_upper_bound(limit)
        return format_lower_bound(limit)


#: Promised quantities, each with its limit.
Limits = tuple[tuple[Quantity, float], ...]


def format_cost_ceil(cost: float) -> str:
    """Format an upper bound on a cost with six digits, rounded up.

    >>> format_cost_ceil(2.0), format_cost_ceil(0.12345612), format_cost_ceil(12345678.0)
    ('2', '0.123457', '12345700')
    """
    round_up_context = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)
    rounded_cost = round_up_context.create_decimal(repr(float(cost)))
    return f"{rounded_cost.normalize():f}"
