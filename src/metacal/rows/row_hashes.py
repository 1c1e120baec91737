"""Hashes of rows, and hashes of sets of rows that ignore their order.

A *row hash* is a 64-bit number computed from one row of some columns. A *digest* identifies the
multiset of row hashes: shuffling the rows leaves it unchanged, and any other change of the rows
changes it. Digests of disjoint blocks of rows can be added, so a table that does not fit in memory
is hashed block by block.

The digest is the vector of sums, modulo 2^64, of four independent mixes of each row hash (an
additive multiset hash; Clarke et al., *Incremental multiset hash functions*, ASIACRYPT 2003). It
recognises rows that were seen before. It is not meant to resist somebody who constructs a collision
on purpose.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Constants of the SplitMix64 generator (Steele, Lea and Flood, OOPSLA 2014).
_SPLITMIX64_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_SPLITMIX64_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SPLITMIX64_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
#: Number of sums in a digest: 4 x 64 bits.
_N_SUMS_OF_DIGEST = 4


@dataclass(frozen=True)
class RowsDigest:
    """Digest of a multiset of rows. Digests of disjoint blocks of rows can be added.

    Attributes
    ----------
    n_rows : int
        Number of rows.
    sums : tuple of int
        Sums of the mixed row hashes, modulo 2^64.
    """

    n_rows: int
    sums: tuple[int, ...]

    def __add__(self, other: RowsDigest) -> RowsDigest:
        sums = tuple(
            (mine + theirs) % 2**64 for mine, theirs in zip(self.sums, other.sums, strict=True)
        )
        return RowsDigest(self.n_rows + other.n_rows, sums)

    def hexdigest(self) -> str:
        """Return the digest as 64 hexadecimal digits."""
        numbers = np.array([self.n_rows, *self.sums], dtype="<u8")
        return hashlib.sha256(numbers.tobytes()).hexdigest()

    def derive_seed(self) -> int:
        """Return a 64-bit seed for draws from these rows."""
        return int(self.hexdigest()[:16], 16)


def hash_rows(*columns: ArrayLike) -> NDArray[np.uint64]:
    """Hash each row of some columns to 64 bits.

    Parameters
    ----------
    *columns : array-like of shape (n_rows,)
        Columns of floats, integers or booleans. The order of the columns matters; -0.0 and 0.0 are
        the same value, and so are all NaNs.

    Returns
    -------
    ndarray of uint64, shape (n_rows,)

    Examples
    --------
    >>> hashes = hash_rows([0.5, 0.25, 0.5], [True, False, True])
    >>> bool(hashes[0] == hashes[2]), bool(hashes[0] == hashes[1])
    (True, False)
    """
    hashes = np.zeros(len(np.asarray(columns[0])), dtype=np.uint64)
    for column in columns:
        hashes = _apply_splitmix64(hashes ^ _as_words(np.asarray(column)))
    return hashes


def digest_rows(hashes: NDArray[np.uint64]) -> RowsDigest:
    """Compute the digest of a multiset of row hashes.

    Examples
    --------
    >>> hashes = hash_rows([0.5, 0.25, 0.5])
    >>> digest_rows(hashes) == digest_rows(hashes[::-1])
    True
    >>> digest_rows(hashes) == digest_rows(hashes[:1]) + digest_rows(hashes[1:])
    True
    >>> digest_rows(hashes) == digest_rows(hashes[:2])
    False
    """
    sums = []
    mixed = hashes
    for _ in range(_N_SUMS_OF_DIGEST):
        mixed = _apply_splitmix64(mixed)
        sums.append(int(mixed.sum(dtype=np.uint64)))
    return RowsDigest(len(hashes), tuple(sums))


def _as_words(column: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Return the values of a column as 64-bit words, equal words for equal values."""
    if column.dtype.kind in "bui":
        return column.astype(np.uint64)
    values = (
        column.astype(np.float64) + 0.0
    )  # Adding 0.0 converts -0.0 to 0.0, because equal values must have equal hashes.
    values[np.isnan(values)] = np.nan
    return values.view(np.uint64)


def _apply_splitmix64(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply one step of SplitMix64 to each word."""
    # All steps share a buffer, because allocating an array takes longer than a step.
    mixed = words + _SPLITMIX64_INCREMENT
    shifted = np.empty_like(mixed)
    *earlier_shifts, last_shift = _SPLITMIX64_SHIFTS
    for shift, multiplier in zip(earlier_shifts, _SPLITMIX64_MULTIPLIERS, strict=True):
        np.right_shift(mixed, shift, out=shifted)
        np.bitwise_xor(mixed, shifted, out=mixed)
        np.multiply(mixed, multiplier, out=mixed)
    np.right_shift(mixed, last_shift, out=shifted)
    np.bitwise_xor(mixed, shifted, out=mixed)
    return mixed
