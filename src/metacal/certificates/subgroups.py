"""Thresholds and counts of each subgroup of a certificate.

A *subgroup* is a class or a group of rows with its own threshold, or several of them that are pooled
because they have too few rows. If a promise is about two classes, a subgroup is a *side*: the rows
that are predicted to be of one of the two classes, among all rows or among the rows of one group.
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
#: Name of a class or group, with the type that the user passed.
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
    best_target : float or None
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
    best_target: float | None = field(default=None, metadata=stored_as("best"))
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
    def name_without_side(self) -> str:
        """Name of the class or group, or the number of pooled ones."""
        if len(self.names) == 1:
            return str(self.names[0])
        return f"{len(self.names)} pooled"

    @property
    def name(self) -> str:
        """Name of the subgroup, with the predicted class if it has one."""
        return format_subgroup_name(self.name_without_side, self.predicted_class)

    @property
    def label(self) -> Name:
        """Name of a single class or group in its type, or a text for other subgroups."""
        if self.predicted_class is None and len(self.names) == 1:
            return self.names[0]
        return self.name

    @property
    def names_and_sides(self) -> tuple[tuple[Name, Name | None], ...]:
        """Pairs of class or group and predicted class, which is None for one threshold."""
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

    def find_rows(self, row_names: NDArray[Any]) -> Flags:
        """Return a mask of the rows that belong to the subgroup.

        Parameters
        ----------
        row_names : ndarray of shape (n_rows,) or (n_rows, 2)
            Class or group of each row; with the predicted class as a second column if the subgroup
            is a side of a group (`Gate.get_row_subgroups`).

        Returns
        -------
        ndarray of bool, shape (n_rows,)
        """
        subgroup_names = np.array(self.names)
        if self.predicted_class is not None:
            row_groups = row_names[:, 0]
            row_predictions = row_names[:, 1]
            is_in_group = np.isin(row_groups, subgroup_names.astype(str))
            return is_in_group & (row_predictions == str(self.predicted_class))
        subgroup_names_are_text = subgroup_names.dtype.kind == "U"
        row_names_are_text = row_names.dtype.kind == "U"
        if subgroup_names_are_text != row_names_are_text:
            # NumPy would compare numbers as text, but a text name never equals a numeric name.
            return np.zeros(len(row_names), dtype=bool)
        return np.isin(row_names, subgroup_names)

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


class SubgroupRows(NamedTuple):
    """Rows on which the promise of a subgroup is judged.

    Attributes
    ----------
    subgroup : SubgroupCertificate
        The subgroup that has the promise.
    row_mask : ndarray of bool, shape (n_rows,)
        Mask of the rows that its quantity counts.
    accept, correct : ndarray of bool
        For each of these rows, whether it is accepted and correct.
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
    def hold_together(self) -> bool:
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
        self, row_names: NDArray[Any], accept: Flags, correct: Flags
    ) -> Iterator[SubgroupRows]:
        """Iterate over the subgroups that have a promise, with the rows that it counts.

        A quantity of a side may count all rows of a class (`Quantity.conditions_on_true_class`). It is then judged
        on the rows of both sides. With two classes, a row is of the class of a side if it is
        predicted so and correct, or predicted otherwise and incorrect.

        Parameters
        ----------
        row_names : ndarray
            Class or group of each row, as for `SubgroupCertificate.find_rows`.
        accept, correct : ndarray of bool, shape (n_rows,)
            Whether each row is accepted, and whether its prediction is correct.

        Yields
        ------
        SubgroupRows
        """
        for sides_of_group in self.sides_by_group:
            side_masks = [side.find_rows(row_names) for side in sides_of_group]
            group_mask = np.logical_or.reduce(side_masks)
            for side, side_mask in zip(sides_of_group, side_masks):
                has_promise = side.quantity is not None or not self.is_two_sided
                if side.quantity is not None and side.quantity.conditions_on_true_class:
                    is_accepted_on_side = accept & side_mask
                    is_of_predicted_class = side_mask == correct
                    yield SubgroupRows(
                        side,
                        row_mask=group_mask,
                        accept=is_accepted_on_side[group_mask],
                        correct=is_of_predicted_class[group_mask],
                    )
                elif has_promise:
                    yield SubgroupRows(
                        side,
                        row_mask=side_mask,
                        accept=accept[side_mask],
                        correct=correct[side_mask],
                    )

    @property
    def sides_by_group(self) -> tuple[tuple[SubgroupCertificate, ...], ...]:
        """Subgroups of each class or group: one, or one for each predicted class."""
        n_sides = 2 if self.is_two_sided else 1
        group_starts = range(0, len(self.items), n_sides)
        return tuple(self.items[start : start + n_sides] for start in group_starts)

    @property
    def open_sides(self) -> tuple[SubgroupCertificate, ...]:
        """Side of each class with a promise that accepts rows, the second class first.

        With groups, it is the side of the first group, and a row of any group may be accepted.
        """
        return self._select_sides(are_closed=False)

    @property
    def closed_sides(self) -> tuple[SubgroupCertificate, ...]:
        """Side of each class with a promise that accepts no row of any group."""
        return self._select_sides(are_closed=True)

    def _select_sides(self, *, are_closed: bool) -> tuple[SubgroupCertificate, ...]:
        """Return the sides of the first group that are closed, or that are open.

        A side is closed if it accepts no row in any group.
        """
        if not self.is_two_sided:
            return ()
        # The two sides of a group follow each other, so every second item has the same class.
        sides_of_second_class = self.items[1::2]
        sides_of_first_class = self.items[0::2]
        selected_sides = []
        for sides_of_class in (sides_of_second_class, sides_of_first_class):
            side_of_first_group = sides_of_class[0]
            accepts_no_row = all(side.threshold == -math.inf for side in sides_of_class)
            if side_of_first_group.quantity is not None and accepts_no_row == are_closed:
                selected_sides.append(side_of_first_group)
        return tuple(selected_sides)

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
            if len(subgroup.names) > 1:
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
