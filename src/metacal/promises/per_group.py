"""PerGroup: a promise for every group of rows, each with a threshold of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.promises.parted import Parted
from metacal.promises.parts import By, Name
from metacal.promises.thresholds import group_codes, group_names


@dataclass
class PerGroup(Parted):
    """`promise` for every group of rows (a hospital, a language, a camera), each with a threshold of its own.

    As `PerClass`, with groups that come with the rows: `groups` has one name, a string or a whole number, for each row
    that will be fitted on. New rows bring theirs: `cal.accepts(X, groups=...)`. A row of a group that the fit has not
    seen is always rejected.

    Parameters
    ----------
    promise, shares, fallback
        As for `PerClass`.
    groups : array of shape (n,)
        The group of each row of the fit; not saved with the gate, which knows their names and thresholds.

    Examples
    --------
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> rng = np.random.default_rng(0)
    >>> scores, groups = rng.random(1000), rng.choice(["north", "south"], size=1000)
    >>> promise = PerGroup(MaxMiscoverage(0.1), groups=groups)
    >>> found = promise.certify_parts(scores, scores < 0.9, *promise.rows_and_names(1000))
    >>> found.statement
    'For every group, at most 10% of the correct predictions are rejected, with 90% confidence for all groups together.'
    """

    groups: Any = field(default=None, repr=False, compare=False, metadata={"saved": False})

    @property
    def by(self) -> By:
        """What comes with the rows."""
        return "group"

    def rows_and_names(self, n_rows: int) -> tuple[NDArray[np.intp], Sequence[Name]]:
        """The number of each row's group, and the groups' names."""
        if self.groups is None:
            raise InputError("PerGroup needs the group of every row to be fitted on: PerGroup(promise, groups=...).")
        names = group_names(self.groups)
        codes = group_codes(self.groups, names)
        if len(codes) != n_rows:
            raise InputError(f"there are {n_rows} rows but {len(codes)} groups; each row needs one.")
        return codes, names
