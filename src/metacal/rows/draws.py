"""Random generators, and draws that depend only on the values of rows.

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
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError
from metacal.rows.row_hashes import RowsDigest, digest_rows, hash_rows

#: Constant that is mixed into every seed, so that `default_rng(seed)` gives other numbers.
_SEED_SALT = 0x6D657461


def make_generator(
    random_state: int | np.integer[Any] | np.random.Generator | None = 0,
) -> np.random.Generator:
    """Create a generator that differs from `default_rng(random_state)`.

    A `Generator` is returned as it is.

    >>> bool(make_generator(0).random() == np.random.default_rng(0).random())
    False
    >>> bool(make_generator(0).random() == make_generator(0).random())
    True
    """
    if isinstance(random_state, int | np.integer):
        return np.random.default_rng([int(random_state), _SEED_SALT])
    return np.random.default_rng(random_state)


def convert_word_to_uniform(random_words: Any) -> Any:
    """Convert random 64-bit words to uniform numbers in [0, 1).

    A float64 has 53 bits of precision, so the top 53 bits are used.
    """
    return (random_words >> 11) * 2.0**-53


class RowDraws:
    """Random draws from rows that do not depend on the order of the rows.

    Parameters
    ----------
    seed_columns : sequence of array-like of shape (n_rows,) or None
        Columns that the seed is derived from and that distinguish the rows: scores, correctness,
        labels, weights. None is ignored. The draws depend on the order of the columns, and not on
        the order of the rows.

    cluster_codes : array of int of shape (n_rows,), optional
        Cluster of each row, numbered from 0. Renumbering the clusters changes nothing.

    random_state : int, optional
        Seed that the user chose. If None, the draws depend on the columns alone.

    Examples
    --------
    >>> score, correct = np.array([0.5, 0.25, 0.75, 0.1]), np.array([True, False, True, True])
    >>> order = RowDraws((score, correct)).draw_row_order("pilot rows")
    >>> reverse_order = RowDraws((score[::-1], correct[::-1])).draw_row_order("pilot rows")
    >>> score[order].tolist() == score[::-1][reverse_order].tolist()
    True
    """

    def __init__(
        self,
        seed_columns: Iterable[ArrayLike | None],
        *,
        cluster_codes: NDArray[np.intp] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.random_state = check_random_state(random_state)
        self._hashes = hash_rows(*(column for column in seed_columns if column is not None))
        self._cluster_codes = cluster_codes

    def draw_row_order(self, purpose: str) -> NDArray[np.intp]:
        """Draw a random permutation of the rows."""
        random_words = self._draw_words(purpose, len(self._hashes))
        random_order = _argsort_with_stable_ties(random_words)
        return self._canonical_rows[random_order]

    def draw_uniform_numbers(self, purpose: str) -> NDArray[np.float64]:
        """Draw an independent uniform number in [0, 1) for each row."""
        uniform_numbers = np.empty(len(self._hashes))
        random_words = self._draw_words(purpose, len(self._hashes))
        uniform_numbers[self._canonical_rows] = convert_word_to_uniform(random_words)
        return uniform_numbers

    def draw_cluster_numbers(self, purpose: str) -> NDArray[np.intp]:
        """Number the clusters in random order, and return the number for each row."""
        assert self._cluster_codes is not None
        n_clusters = len(self._canonical_cluster_ranks)
        random_order = _argsort_with_stable_ties(self._draw_words(purpose, n_clusters))
        random_numbers = np.empty(n_clusters, dtype=np.intp)
        random_numbers[random_order] = np.arange(n_clusters)
        return random_numbers[self._canonical_cluster_ranks[self._cluster_codes]]

    def draw_uniform_number(self, purpose: str) -> float:
        """Draw one number in [0, 1) that does not depend on the order of the rows."""
        random_word = self.derive_seed(purpose)
        uniform_number: float = convert_word_to_uniform(random_word)
        return uniform_number

    def derive_seed(self, purpose: str) -> int:
        """Derive a seed from the data, independent of the order of the rows."""
        return int(self._draw_words(purpose, 1)[0])

    @cached_property
    def _digest(self) -> RowsDigest:
        """Digest of the rows and of their division into clusters."""
        if self._cluster_codes is None:
            return digest_rows(self._hashes)
        return digest_rows(hash_rows(self._hashes, self._cluster_hashes[self._cluster_codes]))

    @cached_property
    def _cluster_hashes(self) -> NDArray[np.uint64]:
        """Hash of the rows of each cluster, which does not depend on their order."""
        assert self._cluster_codes is not None
        n_clusters = int(self._cluster_codes.max(initial=-1)) + 1
        hash_sums = np.zeros(n_clusters, dtype=np.uint64)
        np.add.at(hash_sums, self._cluster_codes, hash_rows(self._hashes))
        return hash_sums

    @cached_property
    def _canonical_cluster_ranks(self) -> NDArray[np.intp]:
        """Rank of each cluster in an order that depends only on the rows of the clusters."""
        ranks = np.empty(len(self._cluster_hashes), dtype=np.intp)
        ranks[_argsort_with_stable_ties(self._cluster_hashes)] = np.arange(len(ranks))
        return ranks

    @cached_property
    def _canonical_rows(self) -> NDArray[np.intp]:
        """Row indices by cluster and hash, in an order that depends only on the values."""
        if self._cluster_codes is None:
            return _argsort_with_stable_ties(self._hashes)
        return np.lexsort((self._hashes, self._canonical_cluster_ranks[self._cluster_codes]))

    def _draw_words(self, purpose: str, n_words: int) -> NDArray[np.uint64]:
        """Draw random 64-bit words, which are the same in every version of NumPy."""
        entropy = [self._digest.derive_seed(), zlib.crc32(purpose.encode()), _SEED_SALT]
        if self.random_state is not None:
            entropy.append(self.random_state)
        return np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(n_words)


def check_random_state(random_state: object) -> int | None:
    """Return a seed as an int, or None; raise InputError if it is neither."""
    if random_state is None:
        return None
    if not isinstance(random_state, int | np.integer) or random_state < 0:
        raise InputError(
            "random_state must be a nonnegative integer, or None to derive it from the rows, but"
            f" got {random_state!r}."
        )
    return int(random_state)


def _argsort_with_stable_ties(words: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the indices that sort 64-bit words stably."""
    # The default sort is faster than the stable one, and equal words are rare.
    order = np.argsort(words)
    sorted_words = words[order]
    has_ties = (sorted_words[1:] == sorted_words[:-1]).any()
    if has_ties:
        return np.argsort(words, kind="stable")
    return order
