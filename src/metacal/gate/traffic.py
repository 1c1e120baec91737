"""Traffic: what a watch keeps of rows, of those that wait for a label, and of the counts over
time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from metacal.certificates.certificate import Certificate
from metacal.certification.row_selection import unit_codes
from metacal.errors import InputError
from metacal.formulas import Flags, Float
from metacal.promises.sequential.profile import drawn_from_positions
from metacal.promises.sequential.wager import Together

Id = str | int

#: Where the numbers begin that draw a row from each unit: others order rows of one score.
_DRAWS = 1 << 40
LONGEST_ID = 200  # longer ones are kept by a digest of 128 bits


class Late(NamedTuple):
    """A label of an earlier row, which came after so many rows of a batch."""

    after: int
    id: Id
    label: Any
    probability: float | None = None


class Lines(NamedTuple):
    """The lines of a batch: which could not be read, and on which each row stood."""

    unreadable: Flags
    rows: Sequence[int]


def kept_id(name: Id) -> Id:
    """An id as it is kept: itself, or a digest where it is long, no plain text, or a number beyond
    64 bits.

    Examples
    --------
    >>> kept_id("a"), kept_id("a" * 300) == kept_id("a" * 301), len(kept_id("a" * 300))
    ('a', False, 39)
    """
    plain = (
        len(name) <= LONGEST_ID and name.isprintable()
        if isinstance(name, str)
        else -(2**63) <= name < 2**63
    )
    if plain:
        return name
    return (
        "digest:"
        + hashlib.blake2b(str(name).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    )


@dataclass
class Waiting:
    """A row that waits for its label, and the row's number in the stream.

    `group` is None where the gate goes by none. `code` is the label where it has come and the row
    waits for its cohort; -1 before. Of a row that waits for the rest of its `unit` the `doubt` is
    kept, None where there is no score.
    """

    accept: bool
    top: int
    confidence: float | None
    group: str | int | None
    probability: float | None
    position: int = 0
    code: float = -1
    unit: Id | None = None
    doubt: float | None = None


@dataclass
class Counts:
    """Rows so far: all, accepted, labelled, labelled and accepted, right among those."""

    rows: int = 0
    accepted: int = 0
    labelled: int = 0
    labelled_accepted: int = 0
    right_accepted: int = 0

    def add(self, **more: int) -> None:
        """Add others to these."""
        for name, value in more.items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Point:
    """The state after some rows: counts, and the logarithm of the evidence of each alarm by its
    name.
    """

    rows: int
    accepted: int
    labelled_accepted: int
    right_accepted: int
    evidence: tuple[float, ...]


def known(column: Float) -> list[float | None]:
    """The numbers of a column, None where there is none."""
    return [one if one == one else None for one in np.asarray(column, dtype=np.float64).tolist()]


def together(rows: Sequence[Waiting], largest: int | None) -> Together:
    """Rows of whole units, unit after unit, with a row of each, drawn at random.

    `largest` is S where every row counts, 0 where a unit counts by its mean.

    >>> rows = [Waiting(True, 0, None, None, None, k, unit=name) for k, name in enumerate("aab")]
    >>> together(rows, None).codes.tolist(), together(rows, None).sizes.tolist()
    ([0, 0, 1], [2.0, 1.0])
    """
    n_rows = np.array(
        [len(list(own)) for _, own in groupby(rows, key=lambda row: row.unit)], dtype=np.intp
    )
    first = np.cumsum(n_rows) - n_rows
    draw = [drawn_from_positions(_DRAWS + rows[at].position, 1)[0] for at in first]
    drawn = np.zeros(len(rows), dtype=bool)
    drawn[first + (np.array(draw) * n_rows).astype(np.intp)] = True
    sizes = np.asarray(
        n_rows if largest is None else np.full(len(n_rows), largest), dtype=np.float64
    )
    return Together(np.repeat(np.arange(len(n_rows)), n_rows), drawn, sizes)


def check_units(certificate: Certificate | None, *, given: bool) -> None:
    """InputError where a gate was certified by units and none are given, or the other way round."""
    by_unit = certificate is not None and certificate.circumstances.units is not None
    if by_unit and not given:
        raise InputError(
            "this gate was certified by units, rows that belong together: say of which unit each"
            " row is (units=, --unit-key), the rows of a unit one after another or within the"
            " horizon."
        )
    if given and not by_unit:
        raise InputError(
            "this gate was certified on independent rows: watch it without units, or fit it with"
            " units= (fit --unit-key) and watch that."
        )


def unit_names(certificate: Certificate | None, units: Any, n: int) -> list[Id] | None:
    """The unit of each of n rows as it is kept; InputError where one is missing, or the gate wants
    none.
    """
    if n or units is not None:
        check_units(certificate, given=units is not None)
    if units is None:
        return None
    unit_codes(units, n)
    given = units.tolist() if hasattr(units, "tolist") else list(units)
    return [kept_id(one if isinstance(one, str | int) else str(one)) for one in given]
