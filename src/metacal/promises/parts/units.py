"""Which rows a certificate counts: all of them, one of each group, or as many as weights ask for.

Every rule takes its rows as independent draws from where new rows come from. Where they are not, rows are drawn from
them that are, and the rule is used as it is:

- **Groups** (copies, frames of one video, visits of one patient). Groups are independent, rows of one are not. One row
  is drawn from each: these are independent, each a random row of a random group, which is what is then promised about.
- **Weights** (known shift). New rows follow the source reweighted by w. Each row is kept with probability w / w_max:
  what is kept are independent draws from the target (rejection sampling, von Neumann 1951). Exact, and measured to
  accept more than weighted betting; about n · mean(w) / w_max rows are left.

Both together: one of each group first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError
from metacal.promises.certificate import Certificate
from metacal.promises.circumstances import Circumstances, under
from metacal.promises.notes import Note, kept_by_weight, one_row_of_each_unit
from metacal.promises.parts.weights import Importance
from metacal.rows.arrays import plain_array

Places = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Counted:
    """The rows that a certificate counts.

    Attributes
    ----------
    rows : array of int
        Where they stand, rising.
    speaker : array of int
        For every row the place in `rows` of the one that counts for it; -1 where none does.
    circumstances : Circumstances
        What the certificate says of it.
    notes : tuple of Note
        The same with numbers, for people.
    """

    rows: Places
    speaker: Places
    circumstances: Circumstances
    notes: tuple[Note, ...]

    def mask(self, n_rows: int) -> NDArray[np.bool_]:
        """Of each row whether it counts."""
        found = np.zeros(n_rows, dtype=bool)
        found[self.rows] = True
        return found

    def spread(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """A flag for each counted row, spread over all rows; True for rows that nobody speaks for."""
        return np.where(self.speaker < 0, True, flags[self.speaker])

    def told(self, certificate: Certificate) -> Certificate:
        """The certificate of the counted rows, which says that they were."""
        found = under(certificate, self.circumstances)
        return replace(found, notes=(*found.notes, *self.notes))


def counted_rows(
    n_rows: int, units: Any = None, importance: Importance | ArrayLike | None = None, random_state: int = 0
) -> Counted | None:
    """Draw the rows that count; None where all do.

    Examples
    --------
    >>> found = counted_rows(6, units=["a", "a", "a", "b", "c", "c"])
    >>> len(found.rows), str(found.notes[0])
    (3, '3 units of 6 rows: one row of each, drawn at random (random_state 0), is counted.')
    >>> counted_rows(6) is None
    True
    """
    if units is None and importance is None:
        return None
    rng = np.random.default_rng(random_state)
    rows, around, notes = np.arange(n_rows), Circumstances(), list[Note]()
    codes = np.arange(n_rows) if units is None else unit_codes(units, n_rows)
    if units is not None:
        order = rng.permutation(n_rows)
        rows = np.sort(order[np.unique(codes[order], return_index=True)[1]])
        around = Circumstances(units=True)
        notes.append(one_row_of_each_unit(units=len(rows), rows=n_rows, random_state=random_state))
    if importance is not None:
        given = importance if isinstance(importance, Importance) else Importance(importance)
        before = len(rows)
        rows = rows[rng.random(before) < given.shares(n_rows)[rows]]
        around = around.together(Circumstances(weights="estimated" if given.estimated else "given"))
        notes.append(kept_by_weight(kept=len(rows), rows=before, random_state=random_state))
    if not len(rows):
        raise InputError("no row is left to count: the weights are small against the largest; bring more rows.")
    place = np.full(int(codes.max()) + 1, -1, dtype=np.intp)
    place[codes[rows]] = np.arange(len(rows))
    return Counted(rows, place[codes], around, tuple(notes))


def unit_codes(units: Any, n_rows: int) -> Places:
    """A number 0, 1, … for each row, which rows of one unit share.

    Examples
    --------
    >>> unit_codes(["b", "a", "b"], 3)
    array([1, 0, 1])
    """
    found = plain_array(units, "units")
    if found.shape != (n_rows,):
        raise InputError(f"units must have shape ({n_rows},), the name of each row's unit; got {found.shape}.")
    missing = found != found if found.dtype.kind in "fc" else np.array([g is None or g != g for g in found.tolist()])
    if missing.any():
        row = int(np.argmax(missing))
        raise InputError(f"units: row {row} has no unit; give each row the name of its unit, or one of its own.")
    names = found.astype(str) if found.dtype == object else found
    return np.unique(names, return_inverse=True)[1].reshape(-1).astype(np.intp)
