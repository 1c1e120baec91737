"""Fingerprints of calibration rows, to recognise them in a later evaluation.

A gate stores two things about the rows that it was fitted on. Both ignore the order of the rows.

- `data_hash` identifies the multiset of all rows. A row is represented by its ranking score, rounded to 12 bits
  so that all kernels agree on it, and whether its prediction is correct.
- A `RowSketch` has the smallest row hashes of the finely rounded scores. The rows with these hashes
  are a random sample of the rows: a row of the sample that occurs again reveals that some of the
  rows were used before.

**Equal scores are no evidence by themselves.** Two samples of one population share many scores if
the score has few distinct values. So both comparisons ask how likely the observation is for rows
that are drawn independently of the calibration rows, and count as evidence only what happens with
probability at most `MAX_COINCIDENCE_PROBABILITY`.

1. *Equal digests.* Let c_1, ..., c_m be how often each distinct row occurs among the n rows. For every population, n
   independent rows have exactly these counts with probability at most n! prod_i (c_i / n)^c_i /
   c_i!, which is the largest probability that any multinomial distribution gives them.
2. *Rows of the sketch that occur again.* Consider the scores that occur exactly twice in both samples together. Let the
   calibration rows have score v at rate a, and the other rows at rate b. The two occurrences lie in
   different samples with probability 2ab / (a + b)^2, which is at most 1/2 for every a and b, so
   also after a shift. With x such scores in different samples and w in the same sample,
   P(Binomial(x + w, 1/2) >= x) bounds the probability of at least x. Rows that were used before add
   to x and never to w.

The tempting shortcut, to count the scores that occur again, calls any two samples of one population
the same rows if the score is a mark from 1 to 5.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, gammaln

from metacal import kernels
from metacal.certificates.overlap_with_fit import OverlapWithFit
from metacal.errors import InputError
from metacal.formulas import Flags, Float
from metacal.kernels.grid import RELATIVE_GRID, Grid
from metacal.rows.row_hashes import RowsDigest, digest_rows, hash_rows

#: Largest probability of mistaking new rows for calibration rows.
MAX_COINCIDENCE_PROBABILITY = 1e-5
#: Maximum number of row hashes in a sketch. About 17 repeated hashes reveal an overlap.
SKETCH_SIZE = 256
#: Grid to which `data_hash` rounds scores, because kernels differ in the last bits of a score.
_COARSE_GRID = Grid(RELATIVE_GRID.even_below, bits=12)
#: Number of rows that are hashed at once, so that a block fits into the cache of a core.
_BLOCK_SIZE = 1 << 16
#: Number of rows of the first block, whose hashes bound those of the later blocks.
_FIRST_BLOCK_SIZE = 1 << 12
#: Largest value of a row hash, which has 64 bits.
_LARGEST_HASH = 2**64 - 1
#: Number of hexadecimal digits of a row hash.
_HASH_DIGITS = 16
#: Largest count of a row hash that is stored. Greater counts are capped at this number.
_LARGEST_STORED_COUNT = 3


@dataclass(frozen=True)
class RowSketch:
    """Random sample of the calibration rows: those with the smallest row hashes.

    Attributes
    ----------
    n_rows : int
        Number of calibration rows.
    bound : str
        The largest row hash that the sketch covers, as 16 hexadecimal digits. All calibration rows
        whose hash is at most `bound` are in the sketch.
    hashes : str
        The distinct row hashes up to `bound` in rising order, 16 hexadecimal digits each.
    counts : str
        How many calibration rows have each of these hashes, one digit each: "1", "2", or "3" for
        three or more.
    """

    n_rows: int
    bound: str
    hashes: str
    counts: str

    def __post_init__(self) -> None:
        n_hashes = len(self.counts)
        has_valid_bound = _is_hexadecimal(self.bound, n_digits=_HASH_DIGITS)
        has_valid_hashes = _is_hexadecimal(self.hashes, n_digits=_HASH_DIGITS * n_hashes)
        has_valid_counts = re.fullmatch("[123]*", self.counts) is not None
        if not (has_valid_bound and has_valid_hashes and has_valid_counts):
            raise InputError(
                "A sketch of rows must have one hash of 16 hexadecimal digits for each count."
            )
        row_hashes = self.hash_values
        largest_hash = np.uint64(self.largest_covered_hash)
        is_strictly_rising = bool((row_hashes[1:] > row_hashes[:-1]).all())
        is_within_bound = bool((row_hashes <= largest_hash).all())
        if n_hashes > SKETCH_SIZE or not is_strictly_rising or not is_within_bound:
            raise InputError(
                f"A sketch of rows must have at most {SKETCH_SIZE} different hashes in ascending"
                " order, none of them above the bound."
            )
        n_counted_rows = sum(int(digit) * self.counts.count(digit) for digit in "123")
        if n_counted_rows > self.n_rows:
            raise InputError(
                "The counts of a sketch must not add up to more than the number of rows."
            )

    @property
    def hash_values(self) -> NDArray[np.uint64]:
        """Distinct row hashes as integers, in ascending order."""
        return np.frombuffer(bytes.fromhex(self.hashes), dtype=">u8").astype(np.uint64)

    @property
    def hash_counts(self) -> NDArray[np.uint8]:
        """Number of calibration rows with each hash of `hash_values`, capped at 3."""
        return np.frombuffer(self.counts.encode(), dtype=np.uint8) - ord("0")

    @property
    def largest_covered_hash(self) -> int:
        """Largest row hash that the sketch covers, as an integer."""
        return int(self.bound, base=16)

    def count_common_rows(self, scores: Float) -> int:
        """Estimate how many rows of a sample are among the calibration rows.

        Parameters
        ----------
        scores : ndarray of shape (n_rows,)
            Ranking score of each row.

        Returns
        -------
        int
            Zero unless the overlap is beyond coincidence.

        Examples
        --------
        >>> scores = np.random.default_rng(0).random(3000)
        >>> sketch = fingerprint_rows(scores[:2000], np.ones(2000, dtype=bool)).sketch
        >>> sketch.count_common_rows(scores[2000:]), abs(sketch.count_common_rows(scores[1000:]) - 1000) < 150
        (0, True)
        """
        new_hashes, new_hash_counts = _count_hashes_up_to(self.largest_covered_hash, scores)
        repeated_hashes = _count_repeated_hashes(
            self.hash_values,
            self.hash_counts,
            other_hashes=new_hashes,
            n_rows_by_other_hash=new_hash_counts,
        )
        if repeated_hashes.n_once_in_each_sample == 0:
            return 0
        # In independent samples, a repeated hash is in both samples with probability at most 1/2.
        n_repeated_hashes = (
            repeated_hashes.n_once_in_each_sample + repeated_hashes.n_twice_in_one_sample
        )
        p_value = bdtrc(repeated_hashes.n_once_in_each_sample - 1, n_repeated_hashes, 0.5)
        if p_value > MAX_COINCIDENCE_PROBABILITY:
            return 0
        # By chance, at most about as many hashes occur in both samples as occur twice within one.
        n_reused_hashes = max(
            1, repeated_hashes.n_once_in_each_sample - repeated_hashes.n_twice_in_one_sample
        )
        n_hashes_that_occur_once = int((self.hash_counts == 1).sum())
        reused_share = n_reused_hashes / n_hashes_that_occur_once
        n_reused_rows = round(reused_share * self.n_rows)
        return max(1, min(n_reused_rows, self.n_rows, len(scores)))


def _is_hexadecimal(text: str, *, n_digits: int) -> bool:
    """Check whether a text consists of `n_digits` lower-case hexadecimal digits."""
    return re.fullmatch(f"[0-9a-f]{{{n_digits}}}", text) is not None


class _RepeatedHashes(NamedTuple):
    """Numbers of row hashes that occur exactly twice in two pooled samples.

    Attributes
    ----------
    n_once_in_each_sample : int
        Number of hashes that one row of each sample has.
    n_twice_in_one_sample : int
        Number of hashes that two rows of one sample have, and no row of the other.
    """

    n_once_in_each_sample: int
    n_twice_in_one_sample: int


def _count_repeated_hashes(
    hashes: NDArray[np.uint64],
    n_rows_by_hash: NDArray[np.uint8],
    *,
    other_hashes: NDArray[np.uint64],
    n_rows_by_other_hash: NDArray[np.int64],
) -> _RepeatedHashes:
    """Count the row hashes that occur exactly twice in two pooled samples.

    Parameters
    ----------
    hashes, other_hashes : ndarray of uint64
        Distinct row hashes of each sample.
    n_rows_by_hash, n_rows_by_other_hash : ndarray of int
        How many rows of the sample have each hash.

    Returns
    -------
    _RepeatedHashes
    """
    _, common_index, other_common_index = np.intersect1d(
        hashes, other_hashes, assume_unique=True, return_indices=True
    )
    occurs_once_in_both = (n_rows_by_hash[common_index] == 1) & (
        n_rows_by_other_hash[other_common_index] == 1
    )
    n_repeated_in_sample = np.count_nonzero(np.delete(n_rows_by_hash, common_index) == 2)
    n_repeated_in_other_sample = np.count_nonzero(
        np.delete(n_rows_by_other_hash, other_common_index) == 2
    )
    return _RepeatedHashes(
        n_once_in_each_sample=int(np.count_nonzero(occurs_once_in_both)),
        n_twice_in_one_sample=int(n_repeated_in_sample + n_repeated_in_other_sample),
    )


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Digest and smallest row hashes of some rows.

    Fingerprints of disjoint rows can be added.

    Attributes
    ----------
    digest : RowsDigest
        Digest of coarsely rounded scores and correctness.
    smallest_hashes, n_rows_by_hash : ndarray of uint64, ndarray of int64
        The smallest distinct hashes of the finely rounded scores, one more than a sketch has, and
        how many rows have each.
    """

    digest: RowsDigest
    smallest_hashes: NDArray[np.uint64]
    n_rows_by_hash: NDArray[np.int64]

    def __add__(self, other: Fingerprint) -> Fingerprint:
        smallest_hashes, n_rows_by_hash = _merge_smallest_hashes(
            np.concatenate([self.smallest_hashes, other.smallest_hashes]),
            np.concatenate([self.n_rows_by_hash, other.n_rows_by_hash]),
        )
        return Fingerprint(
            digest=self.digest + other.digest,
            smallest_hashes=smallest_hashes,
            n_rows_by_hash=n_rows_by_hash,
        )

    @property
    def largest_sketch_hash(self) -> int:
        """Largest row hash that the sketch of these rows covers."""
        if len(self.smallest_hashes) <= SKETCH_SIZE:
            return _LARGEST_HASH
        return int(self.smallest_hashes[SKETCH_SIZE - 1])

    @property
    def data_hash(self) -> str:
        """Digest of all rows, in the text form that a gate stores."""
        return f"sha256:{self.digest.hexdigest()}"

    @property
    def sketch(self) -> RowSketch:
        """Sketch of the rows, in the text form that a gate stores."""
        big_endian_hashes = self.smallest_hashes[:SKETCH_SIZE].astype(">u8")
        stored_counts = np.minimum(self.n_rows_by_hash[:SKETCH_SIZE], _LARGEST_STORED_COUNT)
        ascii_digits = (stored_counts + ord("0")).astype(np.uint8)
        return RowSketch(
            n_rows=self.digest.n_rows,
            bound=f"{self.largest_sketch_hash:0{_HASH_DIGITS}x}",
            hashes=big_endian_hashes.tobytes().hex(),
            counts=ascii_digits.tobytes().decode("ascii"),
        )


#: Fingerprint of no rows.
_EMPTY_FINGERPRINT = Fingerprint(
    digest_rows(np.empty(0, dtype=np.uint64)),
    np.empty(0, dtype=np.uint64),
    np.empty(0, dtype=np.int64),
)


def fingerprint_rows(scores: Any, correct: Any) -> Fingerprint:
    """Compute the fingerprint of rows from their scores and their correctness.

    Parameters
    ----------
    scores : array of shape (n_rows,)
        Ranking score of each row.
    correct : array of bool, shape (n_rows,)
        Whether each prediction is correct; all False if labels are unknown.

    Examples
    --------
    >>> scores, correct = np.array([0.1, 0.2, 0.3]), np.array([True, False, True])
    >>> whole = fingerprint_rows(scores, correct)
    >>> blocks = fingerprint_rows(scores[1:], correct[1:]) + fingerprint_rows(scores[:1], correct[:1])
    >>> whole.data_hash == blocks.data_hash, whole.sketch == blocks.sketch
    (True, True)
    """
    correct = np.asarray(correct, dtype=bool)
    fingerprint = _EMPTY_FINGERPRINT
    start = 0
    # The first block is small, because its hashes have no bound and are all sorted.
    stop = _FIRST_BLOCK_SIZE
    while start < len(correct):
        block = slice(start, stop)
        # Row hashes above the bound of the sketch are left out, because they cannot enter it.
        block_digest, smallest_hashes = _hash_block(
            scores[block], correct[block], largest_hash=fingerprint.largest_sketch_hash
        )
        distinct_hashes, n_rows_by_hash = np.unique(smallest_hashes, return_counts=True)
        block_fingerprint = Fingerprint(
            digest=block_digest, smallest_hashes=distinct_hashes, n_rows_by_hash=n_rows_by_hash
        )
        # The sum of two fingerprints is the fingerprint of the rows of both.
        fingerprint += block_fingerprint
        start, stop = stop, stop + _BLOCK_SIZE
    return fingerprint


def _hash_block(
    scores: Any, correct: Flags, *, largest_hash: int
) -> tuple[RowsDigest, NDArray[np.uint64]]:
    """Return the digest of a block of rows, and the hashes of its rounded scores.

    Parameters
    ----------
    scores : array of shape (n_rows,)
        Ranking score of each row.
    correct : array of bool, shape (n_rows,)
        Whether each prediction is correct.
    largest_hash : int
        Larger hashes are not returned.

    Returns
    -------
    digest : RowsDigest
    hashes : ndarray of uint64
    """
    hash_scores = getattr(kernels.host_kernels, "hash_scores", None)
    if hash_scores is not None:
        sums, hashes = hash_scores(scores, correct, _COARSE_GRID, RELATIVE_GRID, largest_hash)
        return RowsDigest(len(correct), sums), hashes
    digest = digest_rows(_hash_coarse_scores(scores, correct))
    hashes = _hash_fine_scores(scores)
    return digest, hashes[hashes <= np.uint64(largest_hash)]


def hash_in_order(scores: Any) -> str:
    """Compute a digest of the rounded scores in their order.

    >>> hash_in_order(np.array([0.1, 0.2])) == hash_in_order(np.array([0.2, 0.1]))
    False
    """
    rounded_scores = np.asarray(kernels.round_to_grid(scores, _COARSE_GRID))
    little_endian_scores = np.ascontiguousarray(rounded_scores.astype("<f8", copy=False))
    score_digest = hashlib.sha256(little_endian_scores.data).hexdigest()
    return f"sha256:{score_digest}"


def find_overlap(
    data_hash: str, sketch: RowSketch, scores: Any, correct: Flags | None
) -> OverlapWithFit | None:
    """Estimate how many calibration rows occur among the rows of an evaluation.

    Parameters
    ----------
    data_hash, sketch : str, RowSketch
        What the gate stores about its calibration rows.
    scores : array of shape (n_rows,)
        Ranking score of each row.
    correct : array of bool, shape (n_rows,), or None
        Whether each prediction is correct. If None, only the sketch is compared.

    Returns
    -------
    OverlapWithFit or None
        None if no calibration row was found, or if equal scores may be a coincidence.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores, correct = rng.integers(5, size=1000), rng.random(1000) < 0.9
    >>> found = fingerprint_rows(scores, correct)
    >>> order = rng.permutation(1000)
    >>> print(find_overlap(found.data_hash, found.sketch, scores[order], correct[order]))
    all 1,000 rows were part of the fit
    >>> print(find_overlap(found.data_hash, found.sketch, scores, rng.permutation(correct)))
    None
    """
    n_rows = len(scores)
    if correct is not None:
        correct = np.asarray(correct, dtype=bool)
        if _matches_data_hash(data_hash, scores, correct):
            return OverlapWithFit(
                n_fit_rows=min(sketch.n_rows, n_rows), n_rows=n_rows, is_estimate=False
            )
    n_common_rows = sketch.count_common_rows(scores)
    if n_common_rows == 0:
        return None
    return OverlapWithFit(n_fit_rows=n_common_rows, n_rows=n_rows, is_estimate=True)


def _matches_data_hash(data_hash: str, scores: Any, correct: Flags) -> bool:
    """Check whether rows match a stored digest, and not merely by coincidence."""
    row_hashes = _hash_in_blocks(_hash_coarse_scores, scores, correct)
    row_digest = digest_rows(row_hashes).hexdigest()
    if f"sha256:{row_digest}" != data_hash:
        return False
    n_rows = len(row_hashes)
    _, n_occurrences = np.unique(row_hashes, return_counts=True)
    # Any multinomial gives the counts c a probability of at most n! prod_i (c_i / n)^c_i / c_i!.
    log_max_multinomial_probability = (
        gammaln(n_rows + 1.0)
        + (n_occurrences * np.log(n_occurrences / n_rows) - gammaln(n_occurrences + 1.0)).sum()
    )
    is_unlikely_by_chance = log_max_multinomial_probability <= np.log(MAX_COINCIDENCE_PROBABILITY)
    return bool(is_unlikely_by_chance)


def _count_hashes_up_to(
    largest_hash: int, scores: Any
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Count the rows with each distinct row hash up to `largest_hash`."""

    def hash_block(block_scores: Any) -> NDArray[np.uint64]:
        block_hashes = _hash_fine_scores(block_scores)
        return block_hashes[block_hashes <= np.uint64(largest_hash)]

    return np.unique(_hash_in_blocks(hash_block, scores), return_counts=True)


def _hash_in_blocks(
    hash_block: Callable[..., NDArray[np.uint64]], *columns: Any
) -> NDArray[np.uint64]:
    """Hash rows in blocks, and concatenate the hashes."""
    n_rows = len(columns[0])
    block_hashes = [np.empty(0, dtype=np.uint64)]
    for start in range(0, n_rows, _BLOCK_SIZE):
        block_columns = [column[start : start + _BLOCK_SIZE] for column in columns]
        block_hashes.append(hash_block(*block_columns))
    return np.concatenate(block_hashes)


def _hash_coarse_scores(scores: Any, correct: Flags) -> NDArray[np.uint64]:
    """Hash each row by its correctness and its score, rounded to 12 bits."""
    return hash_rows(np.asarray(kernels.round_to_grid(scores, _COARSE_GRID)), correct)


def _hash_fine_scores(scores: Any) -> NDArray[np.uint64]:
    """Hash each row by its score, rounded to a fine grid."""
    return hash_rows(np.asarray(kernels.round_to_grid(scores, RELATIVE_GRID)))


def _merge_smallest_hashes(
    hashes: NDArray[np.uint64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Merge equal hashes, and return the smallest hashes with their counts.

    One more hash is returned than a sketch has, so that the bound of the sketch is known.
    """
    distinct_hashes, hash_index = np.unique(hashes, return_inverse=True)
    total_counts = np.zeros(len(distinct_hashes), dtype=np.int64)
    np.add.at(total_counts, hash_index, counts)
    return distinct_hashes[: SKETCH_SIZE + 1], total_counts[: SKETCH_SIZE + 1]
