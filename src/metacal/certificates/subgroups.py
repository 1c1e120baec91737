"""Thresholds and counts of each subgroup of a certificate.

A *subgroup* is a class or a group of rows with its own threshold, or several of them that are pooled
because they have too few rows. If a promise is about two classes, a subgroup is a *side*: the rows
that are predicted to be of one of the two classes, among all rows or among the rows of one group.
The two sides of the same rows are a *pair*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.quantities import get_quantity
from metacal.certificates.quantity import Quantity
from metacal.certificates.stored_fields import (
    OPTIONAL,
    get_stored_key,
    get_stored_values,
    is_optional_field,
    stored_as,
)
from metacal.certificates.subgroup_words import format_subgroup_name
from metacal.formulas import Flags

#: What determines the subgroup of a row: its predicted class, or a group passed with it.
SubgroupKind = Literal["class", "group"]
#: What delta limits: the familywise error, the error of each subgroup, or the false-coverage rate.
DeltaSharing = Literal["together", "each", "fcr"]
#: Name of a class or group, in the type that the user passed.
Name = str | bool | int | float
#: Whether and why rows of a subgroup are accepted.
Status = Literal["certified", "accepts everything", "always rejected"]

_PLURAL = {"class": "classes", "group": "groups"}


def convert_to_json(value: Any) -> Any:
    """Convert a value to JSON types.

    Infinity becomes "inf" or "-inf", and NaN becomes None.

    >>> convert_to_json((0.5, -math.inf, math.nan))
    [0.5, '-inf', None]
    """
    if hasattr(value, "to_dict"):
        return convert_to_json(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return convert_to_json(get_stored_values(value))
    if isinstance(value, Mapping):
        return {key: convert_to_json(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [convert_to_json(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


@dataclass(frozen=True)
class SubgroupCertificate:
    """Threshold and counts of a subgroup.

    Attributes
    ----------
    names : tuple of str or int
        The class or group; more than one if classes or groups with too few rows are pooled.
    n_rows, n_correct, n_accepted, n_correct_accepted : int
        Counts of the calibration rows of the subgroup, as in a certificate.
    threshold : float
        Rows of the subgroup are accepted iff score <= threshold; -inf: never.
    highest_accepted, lowest_rejected : float or None
        Calibration scores of the subgroup on either side of the threshold.
    delta : float or None
        Significance level of the test; None if there was nothing to test.
    best_supported_target : float or None
        If the rows do not support the target: the best target that they support.
    rows_needed : int or None
        If the rows do not support the target: approximate number of rows that would; None if more
        rows would not help.
    quantity, target : Quantity, float, or None
        If each side has its own promise (`metacal.certification.two_sides`): the limited quantity and
        its limit; None if the side has no promise, so that its rows go to review.
    predicted_class, decision_log_odds : str, int or None, and float
        For a side of a group: the predicted class of its rows, and the log-odds above which rows of
        the group are predicted to be of the second class.
    promised_class : str, int or None
        For promises about two classes: the class that `quantity` is about. The recall of one class
        limits which rows are predicted to be of the other class.

    Examples
    --------
    >>> SubgroupCertificate(("cat",), 40, 39, 0, 0, -math.inf, None, 0.1, 0.01, 0.89, 120).status
    'always rejected'
    """

    names: tuple[Name, ...]
    n_rows: int
    n_correct: int
    n_accepted: int
    n_correct_accepted: int
    threshold: float
    highest_accepted: float | None
    lowest_rejected: float | None
    delta: float | None = None
    best_supported_target: float | None = field(default=None, metadata=stored_as("best"))
    rows_needed: int | None = None
    quantity: Quantity | None = field(default=None, metadata=OPTIONAL)
    target: float | None = field(default=None, metadata=OPTIONAL)
    predicted_class: Name | None = field(
        default=None, metadata=stored_as("called", is_optional=True)
    )
    decision_log_odds: float = field(default=0.0, metadata=stored_as("at", is_optional=True))
    promised_class: Name | None = field(default=None, metadata=stored_as("about", is_optional=True))

    def __post_init__(self) -> None:
        if self.quantity is not None:
            object.__setattr__(self, "quantity", get_quantity(self.quantity))

    @property
    def is_pooled(self) -> bool:
        """Whether several classes or groups with too few rows share the threshold."""
        return len(self.names) > 1

    @property
    def name_without_side(self) -> str:
        """Name of the class or group, or the number of pooled ones."""
        if self.is_pooled:
            return f"{len(self.names)} pooled"
        return str(self.names[0])

    @property
    def predicted_class_name(self) -> str:
        """Name of the class that is predicted for the rows of a side."""
        if self.predicted_class is None:
            # If there are no groups, a side is named after its predicted class.
            return str(self.names[0])
        return str(self.predicted_class)

    @property
    def accepts_nothing(self) -> bool:
        """Whether every row is rejected."""
        return self.threshold == -math.inf

    @property
    def name(self) -> str:
        """Name of the subgroup, with the predicted class if it has one."""
        return format_subgroup_name(self.name_without_side, self.predicted_class)

    @property
    def label(self) -> Name:
        """Name of a single class or group in its own type, or a text for other subgroups."""
        is_side_of_group = self.predicted_class is not None
        if is_side_of_group or self.is_pooled:
            return self.name
        return self.names[0]

    @property
    def names_with_predicted_class(self) -> tuple[tuple[Name, Name | None], ...]:
        """Pairs of each class or group and its predicted class, which may be None."""
        return tuple((name, self.predicted_class) for name in self.names)

    @property
    def accepts_everything(self) -> bool:
        """Whether every row with a score is accepted."""
        return self.threshold == math.inf

    @property
    def status(self) -> Status:
        """Whether the subgroup is certified, accepts everything or is always rejected."""
        if math.isfinite(self.threshold):
            return "certified"
        return "accepts everything" if self.accepts_everything else "always rejected"

    @property
    def coverage(self) -> float | None:
        """Accepted share of the calibration rows; None if there are no rows."""
        return self.n_accepted / self.n_rows if self.n_rows else None

    @property
    def selective_accuracy(self) -> float | None:
        """Accuracy of the accepted calibration rows; None if no row is accepted."""
        return self.n_correct_accepted / self.n_accepted if self.n_accepted else None

    def contains_rows(self, subgroup_of_row: NDArray[Any]) -> Flags:
        """Return a mask of the rows that belong to the subgroup.

        Parameters
        ----------
        subgroup_of_row : ndarray of shape (n_rows,) or (n_rows, 2)
            Class or group of each row. If the subgroup is a side of a group, the columns are the
            group and the predicted class, both as text (`Gate.get_row_subgroups`).

        Returns
        -------
        ndarray of bool, shape (n_rows,)
        """
        names = np.array(self.names)
        is_side_of_group = self.predicted_class is not None
        if is_side_of_group:
            group_of_row = subgroup_of_row[:, 0]
            predicted_class_of_row = subgroup_of_row[:, 1]
            is_in_group = np.isin(group_of_row, names.astype(str))
            return is_in_group & (predicted_class_of_row == str(self.predicted_class))
        names_are_text = names.dtype.kind == "U"
        row_names_are_text = subgroup_of_row.dtype.kind == "U"
        if names_are_text != row_names_are_text:
            # NumPy would convert numbers to text, so that the number 1 would equal the text "1".
            return np.zeros(len(subgroup_of_row), dtype=bool)
        return np.isin(subgroup_of_row, names)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, without optional fields at their defaults."""
        stored_entries = {}
        for stored_field in fields(self):
            field_value = getattr(self, stored_field.name)
            has_default_value = field_value == stored_field.default
            if not (is_optional_field(stored_field) and has_default_value):
                stored_entries[get_stored_key(stored_field)] = field_value
        if self.quantity is not None:
            stored_entries["quantity"] = self.quantity.name
        stored_entries["status"] = self.status
        return convert_to_json(stored_entries)


class SidePair(NamedTuple):
    """Sides of both predicted classes, among all rows or among the rows of one group."""

    first_class: SubgroupCertificate
    second_class: SubgroupCertificate


class SubgroupRows(NamedTuple):
    """Rows on which the promise of a subgroup is judged.

    Attributes
    ----------
    subgroup : SubgroupCertificate
        The subgroup that has the promise.
    row_mask : ndarray of bool, shape (n_rows,)
        Mask of the rows that its quantity counts.
    accept, correct : ndarray of bool
        For each of these rows, whether it is accepted, and whether its prediction is correct. If the
        quantity counts all rows of a class, `correct` is instead whether the row is of the class of
        the side.
    """

    subgroup: SubgroupCertificate
    row_mask: Flags
    accept: Flags
    correct: Flags


@dataclass(frozen=True)
class SubgroupCertificates:
    """Subgroups of a certificate, in class order, with pooled ones last.

    Attributes
    ----------
    by : "class" or "group"
        Origin of the subgroups.
    delta_sharing : "together", "each" or "fcr"
        Error rate that delta limits: the probability that the promise of any subgroup is broken
        ("together"), that of each subgroup by itself ("each"), or the expected share of broken
        subgroups among those that accept rows, which is the false-coverage rate ("fcr").
    items : tuple of SubgroupCertificate
        The subgroups. The two sides of a group follow each other.
    """

    by: SubgroupKind
    delta_sharing: DeltaSharing = field(metadata=stored_as("shares"))
    items: tuple[SubgroupCertificate, ...]

    @property
    def plural(self) -> str:
        """Plural of the kind of subgroup: "classes" or "groups"."""
        return _PLURAL[self.by]

    @property
    def promises_hold_jointly(self) -> bool:
        """Whether all promises hold at once with probability 1 - delta."""
        return self.delta_sharing == "together"

    @property
    def is_two_sided(self) -> bool:
        """Whether the subgroups are sides of two classes, each with its own promise."""
        return any(subgroup.quantity is not None for subgroup in self.items)

    @property
    def is_two_sided_without_groups(self) -> bool:
        """Whether the subgroups are the two sides of all rows together."""
        return self.is_two_sided and self.by == "class"

    def iterate_judged_rows(
        self, subgroup_of_row: NDArray[Any], accept: Flags, correct: Flags
    ) -> Iterator[SubgroupRows]:
        """Iterate over the subgroups that have a promise, with the rows to judge it on.

        A quantity of a side may count all rows of a class (`Quantity.conditions_on_true_class`). It
        is then judged on the rows of both sides.

        Parameters
        ----------
        subgroup_of_row : ndarray
            Class or group of each row, as for `SubgroupCertificate.contains_rows`.
        accept, correct : ndarray of bool, shape (n_rows,)
            Whether each row is accepted, and whether its prediction is correct.

        Yields
        ------
        SubgroupRows
        """
        for sides in self.sides_by_group:
            side_masks = [side.contains_rows(subgroup_of_row) for side in sides]
            is_on_any_side = np.logical_or.reduce(side_masks)
            for side, is_on_side in zip(sides, side_masks):
                side_has_promise = side.quantity is not None or not self.is_two_sided
                if side.quantity is not None and side.quantity.conditions_on_true_class:
                    is_accepted_on_side = accept & is_on_side
                    # For two classes, a correct prediction on this side, or an error on the other
                    # side, means that the true class is that of this side.
                    is_of_class_of_side = is_on_side == correct
                    yield SubgroupRows(
                        subgroup=side,
                        row_mask=is_on_any_side,
                        accept=is_accepted_on_side[is_on_any_side],
                        correct=is_of_class_of_side[is_on_any_side],
                    )
                elif side_has_promise:
                    yield SubgroupRows(
                        subgroup=side,
                        row_mask=is_on_side,
                        accept=accept[is_on_side],
                        correct=correct[is_on_side],
                    )

    @property
    def sides_by_group(self) -> tuple[tuple[SubgroupCertificate, ...], ...]:
        """Subgroups of each class or group: one, or one for each predicted class."""
        n_sides = 2 if self.is_two_sided else 1
        group_starts = range(0, len(self.items), n_sides)
        return tuple(self.items[start : start + n_sides] for start in group_starts)

    @property
    def side_pairs(self) -> tuple[SidePair, ...]:
        """Pairs of the sides of each group, empty if the gate is not two-sided."""
        if not self.is_two_sided:
            return ()
        return tuple(SidePair(*sides_of_group) for sides_of_group in self.sides_by_group)

    @property
    def sides_of_accepted_classes(self) -> tuple[SubgroupCertificate, ...]:
        """Sides with the promise of each predicted class that some group accepts.

        The second class comes first. All groups have the same promises, so that each side stands for
        the sides of all groups.
        """
        return tuple(
            sides_of_class[0]
            for sides_of_class in self._list_promised_sides_by_class()
            if not all(side.accepts_nothing for side in sides_of_class)
        )

    @property
    def sides_of_never_predicted_classes(self) -> tuple[SubgroupCertificate, ...]:
        """Sides with the promise of each predicted class that no group accepts.

        The second class comes first.
        """
        return tuple(
            sides_of_class[0]
            for sides_of_class in self._list_promised_sides_by_class()
            if all(side.accepts_nothing for side in sides_of_class)
        )

    def _list_promised_sides_by_class(self) -> list[list[SubgroupCertificate]]:
        """List the sides of the second class in all groups, then those of the first class.

        A class without a promise is omitted, because its rows go to review in every group.
        """
        if not self.is_two_sided:
            return []
        sides_of_second_class = [pair.second_class for pair in self.side_pairs]
        sides_of_first_class = [pair.first_class for pair in self.side_pairs]
        return [
            sides_of_class
            for sides_of_class in (sides_of_second_class, sides_of_first_class)
            if sides_of_class[0].quantity is not None
        ]

    @property
    def names(self) -> tuple[Name, ...]:
        """Names of all classes or groups, without repetition."""
        names_in_order: dict[Name, None] = {}
        for subgroup in self.items:
            names_in_order |= dict.fromkeys(subgroup.names)
        return tuple(names_in_order)

    @property
    def pooled_names(self) -> tuple[Name, ...]:
        """Names of the classes or groups that share one threshold."""
        for subgroup in self.items:
            if subgroup.is_pooled:
                return subgroup.names
        return ()

    @property
    def always_rejected(self) -> tuple[SubgroupCertificate, ...]:
        """Subgroups whose rows are always rejected."""
        return tuple(subgroup for subgroup in self.items if subgroup.status == "always rejected")

    def map_thresholds(self, convert: Callable[[float], float]) -> SubgroupCertificates:
        """Return a copy with every threshold converted by a function."""
        converted_items = tuple(
            replace(subgroup, threshold=convert(subgroup.threshold)) for subgroup in self.items
        )
        return replace(self, items=converted_items)
