"""Random numbers: generators, and draws from rows that decide what a certificate says.

**Draws that certify.** Some certificates depend on a random draw: one row of each cluster, rows
kept in proportion to their weights, pilot rows, the order in which losses are bet on. If the user
could try twenty seeds and keep the best certificate, the promise would fail far more often than
delta allows. So the seed of such a draw is derived from the rows (`RowDraws`): the same rows always
give the same draw. The order of the rows has no influence. Rows are brought into a canonical order
before they are drawn, so that shuffling or sorting a file gives the same certificate. The names of
clusters have no influence either.

**What is assumed.** The digest of the rows is treated as independent of the outcome of the draw, as
if every set of rows had a seed of its own that was drawn beforehand. SplitMix64 and SHA-256 make
the seed; no proof says that they do this for every population, and simulations show no deviation
(`benchmarks/derived_seeds.py`). The assumption needs columns that take many values together. Rows
that are equal in every column at hand are interchangeable, and which of them is drawn depends on
the order of the rows. Whoever changes the rows on purpose (drops one, rescales a score) gets
another draw: a derived seed prevents an easy search, not a fraud.

**A seed that the user gives** is mixed with the digest. It is recorded in the certificate, because
somebody who tried several seeds has used up the confidence that the certificate states.

**Generators.** `make_generator` separates our random numbers from those that a caller draws from the
same seed. Without this the scores that a caller makes with `default_rng(0).random(n)` would decide
which of their rows are drawn.
"""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError
from metacal.rows.row_hashes import RowsDigest, digest_rows, hash_rows

#: Sets these numbers apart from all others that a seed gives.
_SEED_MARK = 0x6D657461


def make_generator(random_state: Any = 0) -> np.random.Generator:
    """Return a generator that shares no numbers with `default_rng(random_state)`.

    A `Generator` is returned as it is.

    >>> bool(make_generator(0).random() == np.random.default_rng(0).random())
    False
    >>> bool(make_generator(0).random() == make_generator(0).random())
    True
    """
    whole = isinstance(random_state, int | np.integer)
    return np.random.default_rng([int(random_state), _SEED_MARK] if whole else random_state)


class RowDraws:
    """Random draws from rows. They depend on the values of the rows, not on the order of the rows.

    Parameters
    ----------
    *columns : array-like of shape (n_rows,) or None
        Columns that tell the rows apart: scores, correctness, labels, weights. None is ignored.
    units : array of int of shape (n_rows,), optional
        The cluster of each row, as a number from 0. Renumbering the clusters changes nothing.
    random_state : int, optional
        A seed that the user chose. None: the draws follow from the columns alone.

    Examples
    --------
    >>> score, correct = np.array([0.5, 0.25, 0.75, 0.1]), np.array([True, False, True, True])
    >>> one = RowDraws(score, correct).draw_row_order("pilot rows")
    >>> other = RowDraws(score[::-1], correct[::-1]).draw_row_order("pilot rows")
    >>> score[one].tolist() == score[::-1][other].tolist()
    True
    """

    def __init__(
        self,
        *columns: ArrayLike | None,
        units: NDArray[np.intp] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.random_state = check_random_state(random_state)
        self._hashes = hash_rows(*(column for column in columns if column is not None))
        self._units = units

    def draw_row_order(self, purpose: str) -> NDArray[np.intp]:
        """Return the rows in random order. Draws for different purposes are independent."""
        return self._canonical_rows[_shuffled(self._bits(purpose, len(self._hashes)))]

    def draw_uniform_numbers(self, purpose: str) -> NDArray[np.float64]:
        """Return an independent uniform number in [0, 1) for each row."""
        numbers = np.empty(len(self._hashes))
        bits = self._bits(purpose, len(self._hashes))
        numbers[self._canonical_rows] = (bits >> np.uint64(11)) * 2.0**-53
        return numbers

    def draw_cluster_numbers(self, purpose: str) -> NDArray[np.intp]:
        """Return for each row the number of its cluster, where the clusters are numbered in random
        order.
        """
        assert self._units is not None
        turns = _shuffled(self._bits(purpose, len(self._unit_ranks)))
        numbers = np.empty(len(turns), dtype=np.intp)
        numbers[turns] = np.arange(len(turns))
        return numbers[self._unit_ranks[self._units]]

    def derive_seed(self, purpose: str) -> int:
        """Return a seed for draws from anything that is in a canonical order already, such as
        ranks.
        """
        return int(self._bits(purpose, 1)[0])

    @cached_property
    def _digest(self) -> RowsDigest:
        """The digest of the rows, and of which rows are in one cluster."""
        if self._units is None:
            return digest_rows(self._hashes)
        return digest_rows(hash_rows(self._hashes, self._unit_hashes[self._units]))

    @cached_property
    def _unit_hashes(self) -> NDArray[np.uint64]:
        """A hash of the rows of each cluster, whatever their order."""
        assert self._units is not None
        sums = np.zeros(int(self._units.max(initial=-1)) + 1, dtype=np.uint64)
        np.add.at(sums, self._units, hash_rows(self._hashes))
        return sums

    @cached_property
    def _unit_ranks(self) -> NDArray[np.intp]:
        """The place of each cluster in an order that follows from its rows, not from its number."""
        ranks = np.empty(len(self._unit_hashes), dtype=np.intp)
        ranks[_stable_order(self._unit_hashes)] = np.arange(len(ranks))
        return ranks

    @cached_property
    def _canonical_rows(self) -> NDArray[np.intp]:
        """The rows in an order that follows from their values: by cluster, then by row hash."""
        if self._units is None:
            return _stable_order(self._hashes)
        return np.lexsort((self._hashes, self._unit_ranks[self._units]))

    def _bits(self, purpose: str, size: int) -> NDArray[np.uint64]:
        """Return random 64-bit words. They are the same in every version of NumPy."""
        entropy = [self._digest.derive_seed(), zlib.crc32(purpose.encode()), _SEED_MARK]
        if self.random_state is not None:
            entropy.append(self.random_state)
        return np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(size)


def check_random_state(random_state: Any) -> int | None:
    """Return a seed as an int, or None. Raise InputError if it is neither."""
    if random_state is None:
        return None
    if not isinstance(random_state, int | np.integer) or random_state < 0:
        raise InputError(
            "random_state must be a whole number from 0, or None to derive it from the rows; got"
            f" {random_state!r}."
        )
    return int(random_state)


def _shuffled(bits: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return a random permutation, the order of random words."""
    return _stable_order(bits)


def _stable_order(hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the order of the hashes, equal ones as they come. The quick sort is tried first."""
    order = np.argsort(hashes)
    ordered = hashes[order]
    if (ordered[1:] == ordered[:-1]).any():
        return np.argsort(hashes, kind="stable")
    return order
