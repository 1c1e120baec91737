"""PerGroup: a promise for every group of rows, each with a threshold of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.promises.parts.part import By, Name
from metacal.promises.parts.per import Parted
from metacal.promises.parts.thresholds import group_codes, group_names


@dataclass
class PerGroup(Parted):
    """`promise` for every group of rows (a hospital, a language, a camera), each with a threshold of its own.

    As `PerClass`, with groups that come with the rows: one name, a string or a whole number, for each, in
    `cal.fit(X, y, groups=...)` and `cal.accepts(X, groups=...)` alike. A row of a group that the fit has not seen is
    always rejected.

    Parameters
    ----------
    promise, shares, fallback
        As for `PerClass`.

    Examples
    --------
    >>> from metacal.promises.rules.miscoverage import MaxMiscoverage
    >>> rng = np.random.default_rng(0)
    >>> scores, groups = rng.random(1000), rng.choice(["north", "south"], size=1000)
    >>> promise = PerGroup(MaxMiscoverage(0.1))
    >>> promise.certify_parts(scores, scores < 0.9, *rows_of_groups(groups, 1000)).statement
    'For every group, at most 10% of the correct predictions are rejected, with 90% confidence for all groups together.'
    """

    @property
    def by(self) -> By:
        """What comes with the rows."""
        return "group"


def rows_of_groups(groups: Any, n_rows: int) -> tuple[NDArray[np.intp], Sequence[Name]]:
    """The number of each row's group, and the groups' names.

    Examples
    --------
    >>> rows_of_groups(["north", "south", "north"], 3)
    (array([0, 1, 0]), ('north', 'south'))
    """
    if groups is None:
        raise InputError("PerGroup needs the group of every row: fit(X, y, groups=...) (--group-key NAME).")
    names = group_names(groups)
    codes = group_codes(groups, names)
    if len(codes) != n_rows:
        raise InputError(f"there are {n_rows} rows but {len(codes)} groups; each row needs one.")
    return codes, names
