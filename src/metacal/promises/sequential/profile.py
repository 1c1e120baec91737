r"""Profile: what a gate keeps of its calibration rows, to know later whether new rows look like
them.

Of the scores it keeps 19 order statistics, which cut them into 20 bins; of the accepted rows, in
four bins of the confidence, how many there were, how many were right, and how confident the map
was. A few numbers, whatever the number of rows.

**Why order statistics.** Let k_1 < … < k_m be ranks fixed by n alone. The chances p_0, …, p_m that
a new score falls into the bins between the order statistics of those ranks depend on the
calibration rows, and are exactly Dirichlet(k_1, k_2 - k_1, …, n + 1 - k_m) distributed over them,
whatever the law of the scores (Wilks 1942). So the bins of new rows from the same source are draws
from an urn: after N_b of t rows in bin b, the next falls there with probability (α_b + N_b) / (n +
1 + t), α being those differences. Nothing is estimated, and nothing is assumed but that calibration
rows and new rows are independent draws from one source.

Ties: rows of one score are put in order by a number drawn for each, independently of everything. Of
the calibration rows those of the edges are kept (`shares`); new rows draw theirs from their
position in the stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metacal.certification.ranking import Ranking
from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.rows.draws import generator

#: Bins of the score; fewer where there are not ten rows for each.
MAX_SCORE_BINS = 20
_ROWS_PER_BIN = 10
#: Where the bins of the confidence begin.
CONFIDENCE_BIN_STARTS = (0.0, 0.8, 0.95, 0.99)
#: Rows of one score whose places are drawn one by one.
_DRAWN = 1 << 20


@dataclass(frozen=True)
class Profile:
    """What is kept of the calibration rows.

    Attributes
    ----------
    n_rows : int
        Calibration rows.
    edges : tuple of float
        The scores at the ranks of `compute_edge_ranks(n_rows)`.
    shares : tuple of float
        Where each edge stands among rows of the same score: between 0 and 1.
    by_confidence : tuple of (int, int, float)
        Of the accepted rows whose confidence was looked at, in each bin of `CONFIDENCE_BIN_STARTS`: how many
        there were, how many of them were right, and the sum of their calibrated confidence. Empty
        where none was.

    >>> profile = build_profile(Ranking.from_scores(np.arange(1000.0), np.ones(1000, dtype=bool)))
    >>> profile.edges[:3], profile.assign_bins(np.array([-5.0, 49.0, 50.5, 2000.0]), np.zeros(4)).tolist()
    ((49.0, 99.0, 149.0), [0, 0, 1, 19])
    >>> profile.prior_bin_counts[:3].tolist(), int(profile.prior_bin_counts.sum())
    ([50, 50, 50], 1001)
    """

    n_rows: int
    edges: tuple[float, ...]
    shares: tuple[float, ...]
    by_confidence: tuple[tuple[int, int, float], ...] = ()

    def __post_init__(self) -> None:
        if (
            self.n_rows < 1
            or len(self.edges) != len(compute_edge_ranks(self.n_rows))
            or len(self.shares) != len(self.edges)
        ):
            raise InputError(
                f"a profile of {self.n_rows} rows has {len(compute_edge_ranks(max(self.n_rows, 1)))} edges."
            )
        placed = list(zip(self.edges, self.shares))
        if placed != sorted(placed) or not all(0.0 <= share <= 1.0 for share in self.shares):
            raise InputError("the edges of a profile rise, and their shares lie between 0 and 1.")
        if len(self.by_confidence) not in (0, len(CONFIDENCE_BIN_STARTS)):
            raise InputError(
                f"a profile has {len(CONFIDENCE_BIN_STARTS)} bins of the confidence, or none."
            )
        for least, (rows, right, sure) in zip(CONFIDENCE_BIN_STARTS, self.by_confidence):
            if (
                not 0 <= right <= rows
                or not least * rows <= sure * (1.0 + 1e-9)
                or not sure <= rows * (1.0 + 1e-9)
            ):
                raise InputError(
                    "a bin has no more right rows than rows, and their confidence lies in it."
                )

    @property
    def prior_bin_counts(self) -> NDArray[np.int64]:
        """α: what the urn holds of each bin before any new row."""
        ranks = np.array(compute_edge_ranks(self.n_rows), dtype=np.int64)
        return np.diff(ranks, prepend=0, append=self.n_rows + 1)

    def assign_bins(self, scores: Float, ties: Float) -> Codes:
        """The bin of each score; `ties` are numbers between 0 and 1 that put rows of one score in
        order.

        A row without a score counts as the least sure.
        """
        score = np.where(np.isnan(scores), np.inf, scores)[:, None]
        edges, shares = np.array(self.edges), np.array(self.shares)
        beyond = (edges < score) | ((edges == score) & (shares < ties[:, None]))
        return np.asarray(beyond.sum(axis=1))


def compute_edge_ranks(n: int) -> tuple[int, ...]:
    """The ranks of the edges among n rows: fixed by n alone.

    >>> compute_edge_ranks(99)[:3], len(compute_edge_ranks(99)), len(compute_edge_ranks(1000)), compute_edge_ranks(5)
    ((11, 22, 33), 8, 19, ())
    """
    bins = min(MAX_SCORE_BINS, n // _ROWS_PER_BIN)
    return tuple(j * (n + 1) // bins for j in range(1, bins))


def build_profile(
    ranking: Ranking, confidence: Float | None = None, correct: Flags | None = None
) -> Profile:
    """The profile of a ranking; confidence and correctness are those of accepted rows, some or
    all.
    """
    ranks = np.array(compute_edge_ranks(ranking.n_rows), dtype=np.intp)
    blocks = np.searchsorted(ranking.block_end_ranks, ranks)
    # The numbers that order rows of one score are drawn here, once; they depend on nothing.
    random, shares = generator(0), np.empty(len(ranks))
    for block in np.unique(blocks).tolist():
        tied, first = (
            np.flatnonzero(blocks == block),
            int(ranking.block_end_ranks[block - 1]) if block else 0,
        )
        shares[tied] = _smallest_of(
            random, int(ranking.block_end_ranks[block]) - first, ranks[tied] - first
        )
    bins: tuple[tuple[int, int, float], ...] = ()
    if confidence is not None and correct is not None and len(confidence):
        sure, at = (
            np.clip(np.asarray(confidence, np.float64), 0.0, 1.0),
            assign_confidence_bins(confidence),
        )
        sums = (
            np.bincount(at, values, len(CONFIDENCE_BIN_STARTS)).tolist()
            for values in (np.ones(len(sure)), correct, sure)
        )
        bins = tuple(
            (int(rows), int(right), total) for rows, right, total in zip(*sums, strict=True)
        )
    return Profile(
        ranking.n_rows, tuple(ranking.block_scores[blocks].tolist()), tuple(shares.tolist()), bins
    )


def assign_confidence_bins(confidence: Float) -> Codes:
    """The bin of each confidence."""
    return np.searchsorted(CONFIDENCE_BIN_STARTS, confidence, side="right") - 1


def _smallest_of(random: np.random.Generator, n: int, ranks: Codes) -> Float:
    """Order statistics of n uniform numbers; of many by their gaps, which are gamma over their sum
    (Rényi).
    """
    if n <= _DRAWN:
        return np.sort(random.random(n))[ranks - 1]
    gaps = random.standard_gamma(np.diff(ranks, prepend=0, append=n + 1))
    return np.asarray(np.cumsum(gaps)[:-1] / gaps.sum())


def uniform_numbers_at_positions(start: int, n: int) -> Float:
    """A number in [0, 1) for each of the rows start, start + 1, …: the same whenever it is asked
    for (SplitMix64).

    >>> bool((uniform_numbers_at_positions(0, 10)[4:] == uniform_numbers_at_positions(4, 6)).all())
    True
    """
    with np.errstate(over="ignore"):
        z = (np.arange(start, start + n, dtype=np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return np.asarray((z >> np.uint64(11)).astype(np.float64) * 2.0**-53)
