"""What the scores of a stage are compared with: `One` threshold for all rows, or `Thresholds` by
class or group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.certificate import Certificate
from metacal.certificates.subgroups import By, Name
from metacal.errors import InputError, spelled
from metacal.formulas import Codes, Float
from metacal.rows.labels import check_labels, find_class_columns


@dataclass(frozen=True)
class One:
    """One threshold for all rows; +inf accepts every row that has a score.

    >>> One(0.5).of(None), One().threshold
    (0.5, inf)
    """

    threshold: float = math.inf
    by: ClassVar[By | None] = None
    at: ClassVar[tuple[float, ...]] = ()

    def of(self, codes: Codes | None = None, called: Codes | None = None) -> float:
        """Return the threshold, which is the same for every row."""
        return self.threshold


@dataclass(frozen=True)
class Thresholds:
    """A threshold by class or group: a row is accepted iff its score is at most that of its part.

    Groups of two classes may have two sides each: a row is then called by the second class above
    the log-odds `at` of its group, and there is a pair of `values`, for rows that are called by
    either class.

    >>> two = Thresholds("group", ("north", "south"), (0.5, -math.inf))
    >>> two.codes(["south", "north", "moon"])
    array([ 1,  0, -1])
    >>> two.of(two.codes(["south", "north", "moon"]))
    array([-inf,  0.5, -inf])
    >>> sides = Thresholds("group", ("north", "south"), ((0.5, 0.7), (-math.inf, 0.9)), at=(0.1, 1.5))
    >>> sides.of(np.array([0, 0, 1, -1]), np.array([0, 1, 1, 1])), moved_by(sides, np.array([0, 0, 1, -1]))
    (array([ 0.5,  0.7,  0.9, -inf]), array([0.1, 0.1, 1.5, 0. ]))
    """

    by: By
    names: tuple[Name, ...]
    values: tuple[float, ...] | tuple[tuple[float, float], ...]
    at: tuple[float, ...] = ()
    #: What whoever decides without looking at the parts compares with: nothing is accepted.
    threshold: ClassVar[float] = -math.inf

    @cached_property
    def table(self) -> Float:
        """A row for each part, a column for each side. The last is found with code -1: one not seen
        in the fit.
        """
        own = np.array(self.values, dtype=np.float64).reshape(len(self.names), -1)
        return np.vstack([own, np.full((1, own.shape[1]), -math.inf)])

    def of(self, codes: Codes | None = None, called: Codes | None = None) -> Float:
        """The threshold of each row by its part and, of two sides, what it is called; -inf where it
        is in no part.
        """
        assert codes is not None
        return self.table[codes, called if self.at else 0]

    def codes(self, groups: Any) -> Codes:
        """The number of each row's group among the names, -1 for one that the fit has not seen."""
        return group_codes(groups, self.names)


#: What the scores of a stage are compared with.
Policy = One | Thresholds


def moved_by(policy: Policy, codes: Codes) -> Float:
    """Of two sides: the log-odds above which each row is called by the second class, by the number
    of its group.
    """
    return np.array([*policy.at, 0.0])[codes]


def policy_of(certificate: Certificate, classes: NDArray[Any]) -> Policy:
    """The threshold of a certificate, or those of its parts.

    Where they go by class they are in the order of the columns: a row's code is the column of its
    largest logit.
    """
    parts = certificate.parts
    if parts is None:
        return One(certificate.threshold)
    own: dict[Name, Any] = {name: part.threshold for part in parts.items for name in part.names}
    names = tuple(classes.tolist() if parts.by == "class" else sorted(own))
    at = {name: part.at for part in parts.items for name in part.names if part.called is not None}
    if at:
        own = {
            name: (lower.threshold, upper.threshold)
            for lower, upper in parts.families
            for name in lower.names
        }
    return Thresholds(
        parts.by, names, tuple(own[name] for name in names), tuple(at[name] for name in names if at)
    )


def group_codes(groups: Any, names: tuple[Name, ...]) -> Codes:
    """The number of each row's group among the names; -1 for one that is none of them."""
    given, known = plain_groups(groups), np.array(names)
    if not len(given) or (given.dtype.kind == "U") != (known.dtype.kind == "U"):
        return np.full(len(given), -1, dtype=np.intp)
    codes, _ = find_class_columns(given, known)
    return np.where(known[codes] == given, codes, -1)


def rows_of_groups(groups: Any, n_rows: int) -> tuple[Codes, tuple[Name, ...]]:
    """The number of each row's group, and the groups' names.

    >>> rows_of_groups(["north", "south", "north"], 3)
    (array([0, 1, 0]), ('north', 'south'))
    """
    if groups is None:
        how = spelled("fit(X, y, groups=...)", "--group-key NAME")
        raise InputError(f"PerGroup needs the group of every row: {how}.")
    names = tuple(np.unique(plain_groups(groups)).tolist())
    codes = group_codes(groups, names)
    if len(codes) != n_rows:
        raise InputError(f"there are {n_rows} rows but {len(codes)} groups; each row needs one.")
    return codes, names


def plain_groups(groups: Any) -> NDArray[Any]:
    """One group per row, integers or strings."""
    names = check_labels(groups, "group")
    kind = names.dtype.kind
    if kind == "b" or (
        kind == "f" and np.isfinite(names).all() and (names == np.floor(names)).all()
    ):
        names = names.astype(np.int64)
    if names.dtype.kind not in "iuU":
        raise InputError(
            "groups must be integers or strings, one per row; missing ones are a group of their own"
            " name."
        )
    return names
