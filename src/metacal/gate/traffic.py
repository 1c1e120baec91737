"""Traffic: what a watch keeps of rows, of those that wait for a label, and of the counts over time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Id = str | int

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
    """An id as it is kept: itself, or a digest where it is long, no plain text, or a number beyond 64 bits.

    Examples
    --------
    >>> kept_id("a"), kept_id("a" * 300) == kept_id("a" * 301), len(kept_id("a" * 300))
    ('a', False, 39)
    """
    plain = len(name) <= LONGEST_ID and name.isprintable() if isinstance(name, str) else -(2**63) <= name < 2**63
    if plain:
        return name
    return "digest:" + hashlib.blake2b(str(name).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass
class Waiting:
    """A row that waits for its label, and the row's number in the stream.

    `code` is the label where it has come and the row waits for its cohort; -1 before. Of a row that waits for the rest
    of its `unit` the `doubt` is kept, None where there is no score.
    """

    accept: bool
    top: int
    confidence: float | None
    part: str | int | None
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

    def add(self, other: Counts) -> None:
        """Add others to these."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Point:
    """The state after some rows: counts, and the logarithm of the evidence of each alarm by its name."""

    rows: int
    accepted: int
    labelled_accepted: int
    right_accepted: int
    evidence: tuple[float, ...]
