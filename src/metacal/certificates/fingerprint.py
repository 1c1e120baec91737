"""Fingerprint of the calibration rows, by which a gate recognises them in rows that are to judge
it.

A gate stores two things about the rows that it was fitted on. Both ignore the order of the rows.

- `data_hash` identifies the whole multiset of rows. A row is its ranking score, rounded to 12 bits
  so that all kernels agree on it, and whether its prediction is correct.
- A `RowSketch` has the smallest row hashes of the finely rounded scores. The rows with these hashes
  are a random sample of the rows: a row of the sample that occurs again reveals that some of the
  rows were used before.

**Equal scores are no evidence by themselves.** Two samples of one population share many scores if
the score has few distinct values. So both comparisons ask how likely the observation is for rows
that are drawn independently of the calibration rows, and count as evidence only what happens with
probability at most `COINCIDENCE`.

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
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, gammaln

from metacal import kernels
from metacal.errors import InputError
from metacal.formulas import Flags, Float
from metacal.kernels.grid import RELATIVE, Grid
from metacal.rows.row_hashes import RowsDigest, digest_rows, hash_rows

#: Rows are taken for calibration rows only if independent rows look like this with at most this
#: probability.
COINCIDENCE = 1e-5
#: Number of distinct row hashes in a sketch. The smallest overlap that a sketch reveals is about 17
#: of these.
SKETCH_SIZE = 256
#: Scores in `data_hash` keep so few bits that kernels differ in a row with probability 2^-32.
_COARSE = Grid(RELATIVE.floor, bits=12)
#: Rows that are hashed at a time, so that they stay in the cache of a core.
_BLOCK = 1 << 16
_LARGEST_HASH = 2**64 - 1
#: Hexadecimal digits of a row hash.
_DIGITS = 16


@dataclass(frozen=True)
class FitRows:
    """Rows of the fit that occur among rows which are to judge the gate.

    Attributes
    ----------
    n_fit_rows, n_rows : int
        How many of the rows were part of the fit, and how many rows there are.
    is_estimate : bool
        Whether `n_fit_rows` is estimated from a sample of the rows.
    """

    n_fit_rows: int
    n_rows: int
    is_estimate: bool

    def __str__(self) -> str:
        if self.is_estimate:
            return (
                f"about {float(f'{self.n_fit_rows:.2g}'):,.0f} of these {self.n_rows:,} rows were"
                " part of the fit"
            )
        if self.n_fit_rows < self.n_rows:
            return f"{self.n_fit_rows:,} of these {self.n_rows:,} rows were part of the fit"
        return f"all {self.n_rows:,} rows were part of the fit"

    @property
    def advice(self) -> str:
        """What to do, as a sentence."""
        others = "labelled rows that were not used to fit it, and that come from the same source."
        if self.n_fit_rows < self.n_rows:
            return f"leave out the rows that were part of the fit; judge the gate on {others}"
        return f"judge the gate on {others}"


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
        formed = re.fullmatch(f"[0-9a-f]{{{_DIGITS}}}", self.bound) and re.fullmatch(
            "[123]*", self.counts
        )
        if not formed or not re.fullmatch(f"[0-9a-f]{{{_DIGITS * n_hashes}}}", self.hashes):
            raise InputError(
                "a sketch of rows has 16 hexadecimal digits and one count for each hash."
            )
        words = self.words
        if (
            n_hashes > SKETCH_SIZE
            or (words[1:] <= words[:-1]).any()
            or (words > np.uint64(int(self.bound, 16))).any()
        ):
            raise InputError(
                f"a sketch of rows has at most {SKETCH_SIZE} different hashes up to its bound, in"
                " order."
            )
        if sum(map(int, self.counts)) > self.n_rows:
            raise InputError("a sketch of rows counts more rows than there are.")

    @property
    def words(self) -> NDArray[np.uint64]:
        """The row hashes as numbers."""
        return np.frombuffer(bytes.fromhex(self.hashes), dtype=">u8").astype(np.uint64)

    def count_common_rows(self, scores: Float) -> int:
        """Estimate how many of some rows are calibration rows.

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
        found, found_counts = _distinct_up_to(int(self.bound, 16), scores)
        counts = np.frombuffer(self.counts.encode(), dtype=np.uint8) - ord("0")
        _, mine, theirs = np.intersect1d(self.words, found, assume_unique=True, return_indices=True)
        n_across = int(((counts[mine] == 1) & (found_counts[theirs] == 1)).sum())
        n_within = int((counts == 2).sum() - (counts[mine] == 2).sum())
        n_within += int((found_counts == 2).sum() - (found_counts[theirs] == 2).sum())
        if not n_across or bdtrc(n_across - 1, n_across + n_within, 0.5) > COINCIDENCE:
            return 0
        # As many of the scores in both samples are coincidences as there are pairs within one, at
        # most.
        share = max(1, n_across - n_within) / int((counts == 1).sum())
        return max(1, min(round(share * self.n_rows), self.n_rows, len(scores)))


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Digest and smallest row hashes of some rows. Fingerprints of disjoint blocks of rows can be
    added.

    Attributes
    ----------
    digest : RowsDigest
        Digest of coarsely rounded scores and correctness.
    hashes, counts : ndarray of uint64, ndarray of int64
        The smallest distinct hashes of the finely rounded scores, one more than a sketch has, and
        their counts.
    """

    digest: RowsDigest
    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]

    def __add__(self, other: Fingerprint) -> Fingerprint:
        hashes = np.concatenate([self.hashes, other.hashes])
        counts = np.concatenate([self.counts, other.counts])
        return Fingerprint(self.digest + other.digest, *_smallest(hashes, counts))

    @property
    def bound(self) -> int:
        """The largest row hash that the sketch of these rows covers."""
        if len(self.hashes) <= SKETCH_SIZE:
            return _LARGEST_HASH
        return int(self.hashes[SKETCH_SIZE - 1])

    @property
    def data_hash(self) -> str:
        """Digest of all rows, as a gate stores it."""
        return f"sha256:{self.digest.hexdigest()}"

    @property
    def sketch(self) -> RowSketch:
        """Sample of the rows, as a gate stores it."""
        hashes = self.hashes[:SKETCH_SIZE].astype(">u8").tobytes().hex()
        counts = "".join(str(min(count, 3)) for count in self.counts[:SKETCH_SIZE].tolist())
        return RowSketch(self.digest.n_rows, f"{self.bound:016x}", hashes, counts)


#: Fingerprint of no rows, to which those of blocks are added.
_NO_ROWS = Fingerprint(
    digest_rows(np.empty(0, dtype=np.uint64)),
    np.empty(0, dtype=np.uint64),
    np.empty(0, dtype=np.int64),
)


def fingerprint_rows(scores: Any, correct: Any) -> Fingerprint:
    """Compute the fingerprint of rows.

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
    found = _NO_ROWS
    for start in range(0, len(correct), _BLOCK):
        block = slice(start, start + _BLOCK)
        digest = digest_rows(_coarse_hashes(scores[block], correct[block]))
        # Larger hashes than those of the sketch so far need no sorting.
        small_hashes = _up_to(found.bound, _fine_hashes(scores[block]))
        hashes, counts = np.unique(small_hashes, return_counts=True)
        found += Fingerprint(digest, hashes, counts)
    return found


def hash_in_order(scores: Any) -> str:
    """Hash coarsely rounded scores in their order: another order has another hash.

    >>> hash_in_order(np.array([0.1, 0.2])) == hash_in_order(np.array([0.2, 0.1]))
    False
    """
    rounded = np.asarray(kernels.rounded(scores, _COARSE)).astype("<f8", copy=False)
    return f"sha256:{hashlib.sha256(np.ascontiguousarray(rounded).data).hexdigest()}"


def find_fit_rows(
    data_hash: str, sketch: RowSketch, scores: Any, correct: Flags | None
) -> FitRows | None:
    """Find calibration rows among some rows.

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
    FitRows or None
        None if no row is known, or if equal scores may be a coincidence.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores, correct = rng.integers(5, size=1000), rng.random(1000) < 0.9
    >>> found = fingerprint_rows(scores, correct)
    >>> order = rng.permutation(1000)
    >>> print(find_fit_rows(found.data_hash, found.sketch, scores[order], correct[order]))
    all 1,000 rows were part of the fit
    >>> print(find_fit_rows(found.data_hash, found.sketch, scores, rng.permutation(correct)))
    None
    """
    n_rows = len(scores)
    if correct is not None and _is_same_multiset(
        data_hash, scores, np.asarray(correct, dtype=bool)
    ):
        return FitRows(min(sketch.n_rows, n_rows), n_rows, is_estimate=False)
    n_common = sketch.count_common_rows(scores)
    return FitRows(n_common, n_rows, is_estimate=True) if n_common else None


def _is_same_multiset(data_hash: str, scores: Any, correct: Flags) -> bool:
    """Return whether the rows have this digest, and equal counts by coincidence are out of the
    question.
    """
    hashes = _by_blocks(_coarse_hashes, scores, correct)
    if f"sha256:{digest_rows(hashes).hexdigest()}" != data_hash:
        return False
    counts, n = np.unique(hashes, return_counts=True)[1], len(hashes)
    log_probability = gammaln(n + 1.0) + (counts * np.log(counts / n) - gammaln(counts + 1.0)).sum()
    return bool(log_probability <= np.log(COINCIDENCE))


def _distinct_up_to(bound: int, scores: Any) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the distinct row hashes up to a bound, and how many rows have each."""
    hashes = _by_blocks(lambda block: _up_to(bound, _fine_hashes(block)), scores)
    return np.unique(hashes, return_counts=True)


def _up_to(bound: int, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return hashes[hashes <= np.uint64(bound)]


def _by_blocks(hash_block: Callable[..., NDArray[np.uint64]], *columns: Any) -> NDArray[np.uint64]:
    """Hash the rows of some columns block by block."""
    blocks = range(0, len(columns[0]), _BLOCK)
    hashed = [
        hash_block(*(column[start : start + _BLOCK] for column in columns)) for start in blocks
    ]
    return np.concatenate([np.empty(0, dtype=np.uint64), *hashed])


def _coarse_hashes(scores: Any, correct: Flags) -> NDArray[np.uint64]:
    return hash_rows(np.asarray(kernels.rounded(scores, _COARSE)), correct)


def _fine_hashes(scores: Any) -> NDArray[np.uint64]:
    return hash_rows(np.asarray(kernels.rounded(scores, RELATIVE)))


def _smallest(
    hashes: NDArray[np.uint64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Add up the counts of equal hashes, and return the smallest hashes, one more than a sketch
    has.
    """
    distinct, place = np.unique(hashes, return_inverse=True)
    totals = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(totals, place, counts)
    return distinct[: SKETCH_SIZE + 1], totals[: SKETCH_SIZE + 1]
