r"""Profile: summary of the calibration rows that monitors compare new rows with.

A profile contains 19 order statistics of the scores, which divide the scores into 20 bins. For the
accepted rows in each of four bins of the confidence it contains the number of rows, the number of
correct rows and the sum of the confidence. Its size does not depend on the number of rows.

**Why order statistics.** Let k_1 < … < k_m be ranks that depend on n alone. The probabilities
p_0, …, p_m that a new score falls between the order statistics of these ranks depend on the
calibration rows. Over the draw of the calibration rows they have exactly the distribution
Dirichlet(k_1, k_2 - k_1, …, n + 1 - k_m), whatever the distribution of the scores (Wilks 1942). So
the bins of new rows from the same source are draws from a Pólya urn: if N_b of t rows fell into bin
b, the next row falls there with probability (α_b + N_b) / (n + 1 + t), where α_b are the parameters
above. Nothing is estimated. The only assumption is that calibration rows and new rows are
independent draws from one source.

**Ties.** Rows with equal scores are ordered by a random number for each row, which is independent
of everything else. A profile stores the numbers of its edges (`edge_tie_breakers`). The number of a new row is
derived from its position in the stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.stored_fields import stored_as
from metacal.certification.ranking import Ranking
from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.rows.draws import make_generator

#: Largest number of bins into which a profile divides the scores.
MAX_SCORE_BINS = 20
#: Each bin of the scores has at least this many calibration rows.
_MIN_ROWS_PER_BIN = 10
#: Lowest confidence in each bin. A bin ends where the next one begins.
CONFIDENCE_BIN_STARTS = (0.0, 0.8, 0.95, 0.99)
#: For more tied rows than this, order statistics are drawn directly, without a sort.
_MAX_DRAWN_NUMBERS = 1 << 20
#: A sum of confidences in a file may be off by this factor, because of rounding.
_ONE_PLUS_ROUNDING_ERROR = 1.0 + 1e-9
# Increment and multipliers of the generator SplitMix64.
_SPLITMIX_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_SPLITMIX_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_SPLITMIX_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)

#: Seed of the tie breakers. It is fixed, so that the tie breakers do not depend on the rows.
_TIE_BREAKER_SEED = 0


class ConfidenceBin(NamedTuple):
    """Counts of the accepted calibration rows whose confidence lies in a bin."""

    n_rows: int
    n_correct: int
    confidence_sum: float


@dataclass(frozen=True)
class Profile:
    """Summary of calibration rows that monitors compare new rows with.

    Attributes
    ----------
    n_rows : int
        Number of calibration rows.
    bin_edges : tuple of float
        Scores at the ranks of `compute_bin_edge_ranks(n_rows)`.
    edge_tie_breakers : tuple of float
        Position of each edge among the rows with the same score, from 0 to 1.
    confidence_bin_counts : tuple of (int, int, float)
        For each bin of `CONFIDENCE_BIN_STARTS`: the number of accepted rows, the number of correct
        rows among them, and the sum of their confidence. Empty if the confidence is not known.

    Examples
    --------
    >>> profile = build_profile(Ranking.from_scores(np.arange(1000.0), np.ones(1000, dtype=bool)))
    >>> new_scores = np.array([-5.0, 49.0, 50.5, 2000.0])
    >>> profile.bin_edges[:3], profile.assign_bins(new_scores, np.zeros(4)).tolist()
    ((49.0, 99.0, 149.0), [0, 0, 1, 19])
    >>> profile.initial_urn_counts[:3].tolist(), int(profile.initial_urn_counts.sum())
    ([50, 50, 50], 1001)
    """

    n_rows: int
    bin_edges: tuple[float, ...] = field(metadata=stored_as("edges"))
    edge_tie_breakers: tuple[float, ...] = field(metadata=stored_as("shares"))
    confidence_bin_counts: tuple[tuple[int, int, float], ...] = field(
        default=(), metadata=stored_as("by_confidence")
    )

    def __post_init__(self) -> None:
        n_edges = len(compute_bin_edge_ranks(max(self.n_rows, 1)))
        has_all_edges = len(self.bin_edges) == len(self.edge_tie_breakers) == n_edges
        if self.n_rows < 1 or not has_all_edges:
            raise InputError(f"A profile of {self.n_rows} rows cannot have {n_edges} bin edges.")
        edge_sort_keys = list(zip(self.bin_edges, self.edge_tie_breakers))
        has_valid_tie_breakers = all(0.0 <= share <= 1.0 for share in self.edge_tie_breakers)
        if edge_sort_keys != sorted(edge_sort_keys) or not has_valid_tie_breakers:
            raise InputError(
                "The bin edges of a profile must increase, and their tie breakers must lie"
                " between 0 and 1."
            )
        if len(self.confidence_bin_counts) not in (0, len(CONFIDENCE_BIN_STARTS)):
            raise InputError(
                f"A profile must have {len(CONFIDENCE_BIN_STARTS)} confidence bins, or none."
            )
        for bin_start, confidence_bin in zip(CONFIDENCE_BIN_STARTS, self.confidence_bins):
            _check_confidence_bin(bin_start, confidence_bin)

    @property
    def confidence_bins(self) -> tuple[ConfidenceBin, ...]:
        """Counts of the rows in each bin of confidence. Empty if they are not known."""
        return tuple(ConfidenceBin(*counts) for counts in self.confidence_bin_counts)

    @property
    def initial_urn_counts(self) -> NDArray[np.int64]:
        """Initial content α_b of the Pólya urn for each score bin."""
        ranks = np.array(compute_bin_edge_ranks(self.n_rows), dtype=np.int64)
        return np.diff(ranks, prepend=0, append=self.n_rows + 1)

    def assign_bins(self, scores: Float, tie_breakers: Float) -> Codes:
        """Return the bin index of each score.

        Parameters
        ----------
        scores : array
            Scores of new rows. NaN counts as the largest score.
        tie_breakers : array
            Random numbers between 0 and 1, which order rows with equal scores.

        Returns
        -------
        array of int
        """
        score_column = np.where(np.isnan(scores), np.inf, scores)[:, None]
        edges = np.array(self.bin_edges)
        edge_tie_breakers = np.array(self.edge_tie_breakers)
        is_tied_below = (edges == score_column) & (edge_tie_breakers < tie_breakers[:, None])
        is_edge_below = (edges < score_column) | is_tied_below
        return np.asarray(is_edge_below.sum(axis=1))


def _check_confidence_bin(bin_start: float, confidence_bin: ConfidenceBin) -> None:
    """Raise InputError if the counts of a confidence bin contradict each other."""
    n_rows, n_correct, confidence_sum = confidence_bin
    has_min_confidence_sum = bin_start * n_rows <= confidence_sum * _ONE_PLUS_ROUNDING_ERROR
    has_max_confidence_sum = confidence_sum <= n_rows * _ONE_PLUS_ROUNDING_ERROR
    has_possible_count = 0 <= n_correct <= n_rows
    if not (has_possible_count and has_min_confidence_sum and has_max_confidence_sum):
        raise InputError(
            "A confidence bin must have at least as many rows as correct rows, and the mean"
            " confidence must lie in the bin."
        )


def compute_bin_edge_ranks(n_rows: int) -> tuple[int, ...]:
    """Return the ranks of the bin edges among the calibration scores.

    The ranks depend on the number of rows alone.

    >>> compute_bin_edge_ranks(99)[:3], len(compute_bin_edge_ranks(99)), len(compute_bin_edge_ranks(1000))
    ((11, 22, 33), 8, 19)
    >>> compute_bin_edge_ranks(5)
    ()
    """
    n_bins = min(MAX_SCORE_BINS, n_rows // _MIN_ROWS_PER_BIN)
    return tuple(edge * (n_rows + 1) // n_bins for edge in range(1, n_bins))


def build_profile(
    ranking: Ranking, confidence: Float | None = None, correct: Flags | None = None
) -> Profile:
    """Summarize scores and confidences of calibration rows as a profile.

    Parameters
    ----------
    ranking : Ranking
        Ranking of the calibration rows.
    confidence : array, optional
        Calibrated confidence of accepted rows, of some or all of them.
    correct : boolean array, optional
        Whether the prediction of each of these accepted rows is correct.

    Returns
    -------
    Profile
    """
    edge_ranks = np.array(compute_bin_edge_ranks(ranking.n_rows), dtype=np.intp)
    # Rows with the same score form a tie block, which may contain several edges. The first block
    # whose last rank is not below the rank of an edge contains the edge.
    edge_tie_blocks = np.searchsorted(ranking.tie_block_end_ranks, edge_ranks)
    tie_breakers = _draw_edge_tie_breakers(
        edge_ranks, edge_tie_blocks=edge_tie_blocks, tie_block_end_ranks=ranking.tie_block_end_ranks
    )
    confidence_bin_counts: tuple[ConfidenceBin, ...] = ()
    if confidence is not None and correct is not None and len(confidence):
        confidence_bin_counts = _count_by_confidence(confidence, correct)
    return Profile(
        n_rows=ranking.n_rows,
        bin_edges=tuple(ranking.tie_block_scores[edge_tie_blocks].tolist()),
        edge_tie_breakers=tuple(tie_breakers.tolist()),
        confidence_bin_counts=confidence_bin_counts,
    )


def _draw_edge_tie_breakers(
    edge_ranks: Codes, *, edge_tie_blocks: Codes, tie_block_end_ranks: Codes
) -> Float:
    """Draw a random number for each bin edge to break ties with equal scores.

    Parameters
    ----------
    edge_ranks : array of int
        Rank of each edge, from 1.
    edge_tie_blocks : array of int
        Index of the block of tied rows that contains each edge.
    tie_block_end_ranks : array of int
        Rank of the last row of each block of tied rows.

    Returns
    -------
    array
    """
    rng = make_generator(_TIE_BREAKER_SEED)
    n_rows_below_block = np.where(edge_tie_blocks > 0, tie_block_end_ranks[edge_tie_blocks - 1], 0)
    tie_block_sizes = tie_block_end_ranks[edge_tie_blocks] - n_rows_below_block
    has_no_ties = (tie_block_sizes == 1).all()
    if has_no_ties:
        return rng.random(len(edge_ranks))
    ranks_in_block = edge_ranks - n_rows_below_block
    tie_breakers = np.empty(len(edge_ranks))
    for block in sorted(set(edge_tie_blocks.tolist())):
        edges_in_block = np.flatnonzero(edge_tie_blocks == block)
        first_edge = edges_in_block[0]
        # Among tied rows, the row with rank k has the k-th smallest random number.
        tie_breakers[edges_in_block] = _draw_uniform_order_statistics(
            rng,
            n_numbers=int(tie_block_sizes[first_edge]),
            ranks=ranks_in_block[edges_in_block],
        )
    return tie_breakers


def _draw_uniform_order_statistics(
    rng: np.random.Generator, *, n_numbers: int, ranks: Codes
) -> Float:
    """Draw the order statistics of uniform random numbers at the given ranks.

    For many numbers they are cumulative sums of gamma variables, divided by the total (Rényi).
    """
    if n_numbers <= _MAX_DRAWN_NUMBERS:
        return np.sort(rng.random(n_numbers))[ranks - 1]
    gaps = rng.standard_gamma(np.diff(ranks, prepend=0, append=n_numbers + 1))
    return np.asarray(np.cumsum(gaps)[:-1] / gaps.sum())


def _count_by_confidence(confidence: Float, correct: Flags) -> tuple[ConfidenceBin, ...]:
    """Count rows and correct rows, and sum confidences, in each bin of confidence."""
    n_bins = len(CONFIDENCE_BIN_STARTS)
    bin_of_row = assign_confidence_bins(confidence)
    clipped_confidence = np.clip(np.asarray(confidence, np.float64), 0.0, 1.0)
    row_counts = np.bincount(
        bin_of_row, weights=np.ones(len(bin_of_row)), minlength=n_bins
    ).tolist()
    correct_counts = np.bincount(bin_of_row, weights=correct, minlength=n_bins).tolist()
    confidence_sums = np.bincount(bin_of_row, weights=clipped_confidence, minlength=n_bins).tolist()
    return tuple(
        ConfidenceBin(int(n_rows), int(n_correct), confidence_sum)
        for n_rows, n_correct, confidence_sum in zip(row_counts, correct_counts, confidence_sums)
    )


def assign_confidence_bins(confidence: Float) -> Codes:
    """Return the index of the confidence bin of each row."""
    return np.searchsorted(CONFIDENCE_BIN_STARTS, confidence, side="right") - 1


def generate_uniform_numbers(first_position: int, n_positions: int) -> Float:
    """Return a pseudorandom number in [0, 1) for each of some consecutive positions.

    The number of a position never changes. The generator is SplitMix64.

    >>> bool((generate_uniform_numbers(0, 10)[4:] == generate_uniform_numbers(4, 6)).all())
    True
    """
    positions = np.arange(first_position, first_position + n_positions, dtype=np.uint64)
    # SplitMix64 computes modulo 2^64, so the products are meant to overflow.
    with np.errstate(over="ignore"):
        splitmix_states = (positions + np.uint64(1)) * _SPLITMIX_INCREMENT
        bits = (splitmix_states ^ (splitmix_states >> np.uint64(30))) * _SPLITMIX_MULTIPLIER_1
        bits = (bits ^ (bits >> np.uint64(27))) * _SPLITMIX_MULTIPLIER_2
        bits ^= bits >> np.uint64(31)
    highest_53_bits = bits >> np.uint64(11)
    return np.asarray(highest_53_bits.astype(np.float64) * 2.0**-53)
