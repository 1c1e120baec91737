"""Thresholds of one stage of a gate: one for all rows, or one for each class or group.

A *stage* computes an uncertainty score for each row, and accepts the row if the score is at most
the threshold. A *subgroup* is a predicted class or a group of rows (such as a hospital) with a
threshold of its own. A *subgroup code* is the index of a subgroup among the names of all subgroups,
or -1 for a subgroup that did not occur in the calibration rows.

With two classes, a group may also have a *decision offset*: the second class is predicted if its
log-odds exceed the offset. Such a group has two thresholds, one for each predicted class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.certificate import Certificate
from metacal.certificates.subgroups import Name, SubgroupCertificates, SubgroupKind
from metacal.errors import GroupsError, ShapeError, warn_caller
from metacal.formulas import Codes, Float
from metacal.kernels.grid import Grid
from metacal.rows.labels import check_labels, find_indices_of_names
from metacal.spelling import choose_spelling

# Code of a group that has no threshold.
_UNKNOWN_GROUP = -1
# Maximum number of group names that an error message lists.
_MAX_LISTED_GROUPS = 5


@dataclass(frozen=True)
class SingleThreshold:
    """One threshold for all rows.

    A threshold of +inf accepts every row that has a score.

    Examples
    --------
    >>> SingleThreshold(0.5).get_row_thresholds(None), SingleThreshold().threshold
    (0.5, inf)
    """

    threshold: float = math.inf
    subgroup_kind: ClassVar[SubgroupKind | None] = None
    group_decision_offsets: ClassVar[tuple[float, ...]] = ()
    has_two_thresholds_per_group: ClassVar[bool] = False
    depend_on_predicted_class: ClassVar[bool] = False

    def get_row_thresholds(
        self, subgroup_codes: Codes | None = None, predicted_codes: Codes | None = None
    ) -> float:
        """Return the threshold, which is the same for every row."""
        return self.threshold

    def for_unrounded_scores(self, grid: Grid) -> SingleThreshold:
        """Return an equivalent threshold for scores that are not rounded to a grid."""
        return SingleThreshold(grid.make_robust_to_rounding(self.threshold))


@dataclass(frozen=True)
class SubgroupThresholds:
    """Thresholds of each class or group.

    A group with a decision offset has two thresholds, one for each predicted class.

    Attributes
    ----------
    subgroup_kind : "class" or "group"
        Kind of the subgroups.
    subgroup_names : tuple of str or int
        Names of the subgroups. The index of a name is the code of the subgroup.
    subgroup_thresholds : tuple of float, or tuple of (float, float)
        Threshold of each subgroup. If there are decision offsets: a pair for each group, with the
        thresholds of rows predicted as the first and as the second class.
    group_decision_offsets : tuple of float
        Log-odds above which the second of two classes is predicted, for each group. Empty if all
        groups have the same offset.
    unknown_threshold : float
        Threshold of groups without a name in `subgroup_names`. It is -inf, so that their rows are
        rejected. For a recall of cases it is +inf, so that no true item of them is missed.

    Examples
    --------
    >>> by_group = SubgroupThresholds("group", ("north", "south"), (0.5, -math.inf))
    >>> group_codes = by_group.encode_groups(["south", "north", "moon"])
    >>> group_codes
    array([ 1,  0, -1])
    >>> by_group.get_row_thresholds(group_codes)
    array([-inf,  0.5, -inf])

    With a decision offset in each group:

    >>> with_offsets = SubgroupThresholds(
    ...     "group",
    ...     ("north", "south"),
    ...     ((0.5, 0.7), (-math.inf, 0.9)),
    ...     group_decision_offsets=(0.1, 1.5),
    ... )
    >>> group_codes = np.array([0, 0, 1, -1])
    >>> with_offsets.get_row_thresholds(group_codes, predicted_codes=np.array([0, 1, 1, 1]))
    array([ 0.5,  0.7,  0.9, -inf])
    >>> get_decision_offsets(with_offsets, group_codes)
    array([0.1, 0.1, 1.5, 0. ])
    """

    subgroup_kind: SubgroupKind
    subgroup_names: tuple[Name, ...]
    subgroup_thresholds: tuple[float | tuple[float, float], ...]
    group_decision_offsets: tuple[float, ...] = ()
    unknown_threshold: float = -math.inf
    #: Threshold for callers that ignore the subgroups. It rejects every row.
    threshold: ClassVar[float] = -math.inf

    @property
    def has_two_thresholds_per_group(self) -> bool:
        """Whether each group has a decision offset and a threshold for each class."""
        return len(self.group_decision_offsets) > 0

    @property
    def depend_on_predicted_class(self) -> bool:
        """Whether the threshold of a row depends on its predicted class."""
        return self.subgroup_kind == "class" or self.has_two_thresholds_per_group

    @cached_property
    def thresholds_by_code_and_prediction(self) -> Float:
        """Thresholds by subgroup code (rows) and predicted class (columns).

        Only groups with two thresholds have two columns. The last row is `unknown_threshold`.
        Unknown groups have the code -1, so indexing finds this row.
        """
        n_subgroups = len(self.subgroup_names)
        known_thresholds = np.array(self.subgroup_thresholds, dtype=np.float64)
        known_threshold_table = known_thresholds.reshape(n_subgroups, -1)
        n_columns = known_threshold_table.shape[1]
        row_of_unknown_group = np.full((1, n_columns), self.unknown_threshold)
        return np.vstack([known_threshold_table, row_of_unknown_group])

    @property
    def thresholds_with_unknown_last(self) -> Float:
        """Thresholds by subgroup code, if they do not depend on the prediction as well.

        The last entry is `unknown_threshold`, which the code -1 of unknown groups finds.
        """
        return self.thresholds_by_code_and_prediction[:, 0]

    def get_row_thresholds(
        self, subgroup_codes: Codes | None = None, predicted_codes: Codes | None = None
    ) -> Float:
        """Return the threshold of the subgroup of each row.

        Parameters
        ----------
        subgroup_codes : ndarray of int, shape (n_rows,)
            Code of the subgroup of each row.
        predicted_codes : ndarray of int, shape (n_rows,), or None
            Predicted class of each row, 0 or 1. Used only if there are decision offsets.
        """
        assert subgroup_codes is not None
        if self.has_two_thresholds_per_group:
            return self.thresholds_by_code_and_prediction[subgroup_codes, predicted_codes]
        return self.thresholds_with_unknown_last[subgroup_codes]

    def for_unrounded_scores(self, grid: Grid) -> SubgroupThresholds:
        """Return equivalent thresholds for scores that are not rounded to a grid."""
        if grid not in self._moved_thresholds_by_grid:
            midpoint_thresholds = tuple(
                _move_to_grid_midpoint(threshold, grid) for threshold in self.subgroup_thresholds
            )
            self._moved_thresholds_by_grid[grid] = replace(
                self, subgroup_thresholds=midpoint_thresholds
            )
        return self._moved_thresholds_by_grid[grid]

    @cached_property
    def _moved_thresholds_by_grid(self) -> dict[Grid, SubgroupThresholds]:
        """Cached results of `for_unrounded_scores`, by rounding grid."""
        return {}

    def encode_groups(self, groups: Any) -> Codes:
        """Encode the group of each row, with -1 for a group without a threshold."""
        return encode_groups(groups, self.subgroup_names)


def _move_to_grid_midpoint(
    threshold: float | tuple[float, float], grid: Grid
) -> float | tuple[float, float]:
    """Move a threshold, or a pair of thresholds, to the midpoint of grid points."""
    if isinstance(threshold, tuple):
        first_class_threshold, second_class_threshold = threshold
        return (
            grid.make_robust_to_rounding(first_class_threshold),
            grid.make_robust_to_rounding(second_class_threshold),
        )
    return grid.make_robust_to_rounding(threshold)


#: Thresholds of a stage: one for all rows, or one for each subgroup.
Thresholds = SingleThreshold | SubgroupThresholds


def get_decision_offsets(thresholds: Thresholds, group_codes: Codes) -> Float:
    """Return the log-odds above which each row is predicted as the second class.

    The offset of an unknown group, which has the code -1, is 0.
    """
    offset_of_unknown_group = 0.0
    offset_by_code = np.array([*thresholds.group_decision_offsets, offset_of_unknown_group])
    return offset_by_code[group_codes]


def get_thresholds_of_rows(
    thresholds: Thresholds, *, group_codes: Codes | None, predicted_codes: Codes | None
) -> float | Float:
    """Return the threshold of each row, by its group or else by its predicted class."""
    subgroup_codes = predicted_codes if group_codes is None else group_codes
    return thresholds.get_row_thresholds(subgroup_codes, predicted_codes)


def get_certified_thresholds(certificate: Certificate, class_names: NDArray[Any]) -> Thresholds:
    """Return the threshold of a certificate, or the thresholds of its subgroups.

    Parameters
    ----------
    certificate : Certificate
        Certificate with one threshold, or with a threshold for each class or group.
    class_names : ndarray of shape (n_classes,)
        Names of the classes in column order, for thresholds by class. They are not used for
        groups, whose codes have the order of their sorted names.
    """
    subgroups = certificate.subgroups
    if subgroups is None:
        return SingleThreshold(certificate.threshold)
    threshold_of_unknown_groups = -math.inf
    promise_limits_missed_items = certificate.quantity.limits_missed_items_of_cases
    if promise_limits_missed_items:
        # A rejected item of an unknown group could be missed, so all such items are accepted.
        threshold_of_unknown_groups = math.inf
    have_two_thresholds_per_group = any(
        subgroup.predicted_class is not None for subgroup in subgroups.items
    )
    if have_two_thresholds_per_group:
        return _build_thresholds_by_group_and_prediction(subgroups, threshold_of_unknown_groups)
    threshold_by_name = {
        name: subgroup.threshold for subgroup in subgroups.items for name in subgroup.names
    }
    subgroup_names = tuple(sorted(threshold_by_name))
    if subgroups.by == "class":
        subgroup_names = tuple(class_names.tolist())
    return SubgroupThresholds(
        subgroup_kind=subgroups.by,
        subgroup_names=subgroup_names,
        subgroup_thresholds=tuple(threshold_by_name[name] for name in subgroup_names),
        unknown_threshold=threshold_of_unknown_groups,
    )


def _build_thresholds_by_group_and_prediction(
    subgroups: SubgroupCertificates, threshold_of_unknown_groups: float
) -> SubgroupThresholds:
    """Build the thresholds of groups that have one for each of two predicted classes."""
    threshold_pair_by_group: dict[Name, tuple[float, float]] = {}
    decision_log_odds_by_group: dict[Name, float] = {}
    for certificate_of_first_class, certificate_of_second_class in subgroups.sides_by_group:
        for group_name in certificate_of_first_class.names:
            threshold_pair_by_group[group_name] = (
                certificate_of_first_class.threshold,
                certificate_of_second_class.threshold,
            )
            # Both certificates of a group store the same decision offset.
            decision_log_odds_by_group[group_name] = certificate_of_second_class.decision_log_odds
    group_names = tuple(sorted(threshold_pair_by_group))
    return SubgroupThresholds(
        subgroup_kind=subgroups.by,
        subgroup_names=group_names,
        subgroup_thresholds=tuple(threshold_pair_by_group[name] for name in group_names),
        group_decision_offsets=tuple(decision_log_odds_by_group[name] for name in group_names),
        unknown_threshold=threshold_of_unknown_groups,
    )


def encode_groups(groups: Any, names: tuple[Name, ...]) -> Codes:
    """Encode the group of each row as an index in a list of names, or as -1.

    Strings never match integers: the group "1" is not the group 1.
    """
    row_groups = check_groups(groups)
    known_groups = np.array(names)
    row_groups_are_strings = row_groups.dtype.kind == "U"
    known_groups_are_strings = known_groups.dtype.kind == "U"
    if len(row_groups) == 0 or row_groups_are_strings != known_groups_are_strings:
        return np.full(len(row_groups), _UNKNOWN_GROUP, dtype=np.intp)
    # `find_indices_of_names` gives unknown groups a code too, so the names are compared.
    candidate_codes, _ = find_indices_of_names(row_groups, known_groups)
    is_known = known_groups[candidate_codes] == row_groups
    return np.where(is_known, candidate_codes, _UNKNOWN_GROUP)


def encode_groups_if_needed(thresholds: Thresholds, groups: Any, n_rows: int) -> Codes | None:
    """Encode the group of each row, or return None if thresholds have no groups.

    A warning names a group without a threshold, if there is one.

    Raises
    ------
    InputError
        If groups are missing, not needed, or not one for each of the `n_rows` rows.
    """
    has_group_thresholds = thresholds.subgroup_kind == "group"
    if not has_group_thresholds or not isinstance(thresholds, SubgroupThresholds):
        if groups is not None:
            raise GroupsError(
                "This gate has the same threshold for all rows, so groups has no effect. Leave"
                " out groups, or fit the gate with PerGroup."
            )
        return None
    if groups is None:
        shown_names = ", ".join(
            repr(name) for name in thresholds.subgroup_names[:_MAX_LISTED_GROUPS]
        )
        lists_all_names = len(thresholds.subgroup_names) <= _MAX_LISTED_GROUPS
        ellipsis = "" if lists_all_names else ", ..."
        raise GroupsError(
            f"This gate has one threshold for each group ({shown_names}{ellipsis}). Pass the"
            f" group of every row with {choose_spelling('groups=...', '--group-key NAME')}."
        )
    group_codes = thresholds.encode_groups(groups)
    if len(group_codes) != n_rows:
        raise ShapeError(
            f"groups must have one entry for each row, but got {len(group_codes)} entries for"
            f" {n_rows} rows."
        )
    has_unknown_group = group_codes == _UNKNOWN_GROUP
    if has_unknown_group.any():
        unknown_groups = check_groups(groups)[has_unknown_group]
        decision_text = "rejected"
        if thresholds.unknown_threshold == math.inf:
            decision_text = "accepted, so that none of their true items is missed"
        warn_caller(
            "Some rows belong to a group that this gate was not fitted on, for example"
            f" {unknown_groups[0]!s}. These rows are {decision_text}."
        )
    return group_codes


def factorize_groups(groups: Any, n_rows: int) -> tuple[Codes, tuple[Name, ...]]:
    """Encode the group of each row as an integer. Return codes and group names.

    Raises
    ------
    InputError
        If `groups` is None, or does not have one entry for each of the `n_rows` rows.

    Examples
    --------
    >>> factorize_groups(["north", "south", "north"], 3)
    (array([0, 1, 0]), ('north', 'south'))
    """
    if groups is None:
        option_text = choose_spelling("fit(X, y, groups=...)", "--group-key NAME")
        raise GroupsError(f"PerGroup requires the group of every row. Pass {option_text}.")
    group_names = tuple(np.unique(check_groups(groups)).tolist())
    group_codes = encode_groups(groups, group_names)
    if len(group_codes) != n_rows:
        raise ShapeError(
            f"groups must have one entry for each row, but got {len(group_codes)} entries for"
            f" {n_rows} rows."
        )
    return group_codes, group_names


def check_groups(groups: Any) -> NDArray[Any]:
    """Convert the groups of rows to an array of integers or strings.

    Booleans, and floats that are all whole numbers, become integers.
    """
    row_groups = check_labels(groups, "group")
    is_boolean = row_groups.dtype.kind == "b"
    if is_boolean or _holds_whole_floats(row_groups):
        row_groups = row_groups.astype(np.int64)
    is_integer = row_groups.dtype.kind in "iu"
    is_string = row_groups.dtype.kind == "U"
    if not is_integer and not is_string:
        raise GroupsError(
            "groups must be integers or strings, one per row, without missing values. Name a"
            " separate group for rows whose group is missing."
        )
    return row_groups


def get_subgroup_names(
    thresholds: Thresholds, classes: NDArray[Any], predicted_codes: Codes, groups: Any
) -> NDArray[Any] | None:
    """Return the name of each row's subgroup, or None if all rows have one threshold.

    Parameters
    ----------
    thresholds : SingleThreshold or SubgroupThresholds
        Thresholds of the gate.
    classes : ndarray of shape (n_classes,)
        Labels in column order.
    predicted_codes : ndarray of int, shape (n_rows,)
        Column of the largest logit of each row.
    groups : array-like of shape (n_rows,) or None
        Group of each row.

    Returns
    -------
    ndarray of shape (n_rows,) or (n_rows, 2), or None
        The predicted class or the group of each row, or two columns with both if each group has
        a threshold for each predicted class. None if all rows have one threshold.
    """
    if isinstance(thresholds, SingleThreshold):
        return None
    if thresholds.subgroup_kind == "class":
        return classes[predicted_codes]
    row_groups = check_groups(groups)
    if not thresholds.has_two_thresholds_per_group:
        return row_groups
    predicted_names = classes.astype(str)[predicted_codes]
    return np.column_stack([row_groups.astype(str), predicted_names])


def _holds_whole_floats(row_groups: NDArray[Any]) -> bool:
    """Check whether an array has a float type but holds only whole, finite numbers."""
    is_float = row_groups.dtype.kind == "f"
    if not is_float or not np.isfinite(row_groups).all():
        return False
    return bool((row_groups == np.floor(row_groups)).all())
