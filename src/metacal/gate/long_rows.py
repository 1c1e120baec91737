"""Counting and checking of tables that have too many rows to sort.

Sorting takes memory for the score of each row. For a long table, scores are instead computed again
in each of several passes, block by block, where the rows are. A block returns how many correct and
incorrect rows lie in each *cell*, an interval of scores that a *partition* defines
(`metacal.certification.passes`, which proves that the certificate is the same as with sorting). The
first pass also computes the fingerprint of the rows. A last pass returns two flags for each row:
whether it is accepted, and whether its prediction is correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.certificates.certificate import Certificate, accept_up_to_threshold
from metacal.certificates.fingerprint import Fingerprint, fingerprint_rows
from metacal.certificates.notes import Note
from metacal.certificates.row_checks import check_error_count, check_repeated_rows, check_ties
from metacal.certification.ranking import Ranking
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import RELATIVE_GRID, Grid
from metacal.kernels.keys import CellCounter, CellCounts, CellCountSum, KeyPartition
from metacal.rows import Rows
from metacal.rows.plausibility import Suspicion
from metacal.scores import Score, ScoreAndCorrectness, get_rounding_grid, score_rows

# Maximum number of rows to sort. Longer tables are counted in passes to save memory.
MAX_SORTED_ROWS = 10_000_000
# Maximum number of sampled rows in the checks for equal scores and repeated rows.
_MAX_SAMPLE_ROWS = 1 << 16
# Maximum number of sampled logits in the checks for equal scores and repeated rows.
_MAX_SAMPLE_LOGITS = 1 << 23
# Number of runs of consecutive rows in the sample, spread evenly over the table.
_N_SAMPLE_RUNS = 16
# Bit that is set in the decision byte of an accepted row.
_ACCEPTED_BIT = 1
# Position of the bit for a correct prediction in the decision byte of a row.
_CORRECT_BIT_POSITION = 1
# Bit that is set in the decision byte of a row with a correct prediction.
_CORRECT_BIT = 1 << _CORRECT_BIT_POSITION
# Column of `ScoreAndCorrectness` with the unrounded score of each row.
_SCORE_COLUMN = 0
# Column of `ScoreAndCorrectness` with 1 for a correct prediction and 0 for an incorrect one.
_CORRECTNESS_COLUMN = 1


class TableRowCounter:
    """Counter of the rows of a table in each cell of a partition of scores.

    Parameters
    ----------
    rows : Rows
        Logits.

    labels : array of int of shape (n_rows,)
        Column of the true class of each row.

    score : str or callable
        Ranking score.

    Attributes
    ----------
    rows : Rows
        Logits, which are validated after the first pass.

    fingerprint : Fingerprint or None
        Fingerprint of the rows, which the first complete pass computes.
    """

    def __init__(self, rows: Rows, labels: Codes, score: str | Score) -> None:
        self.rows = rows
        self.labels = labels
        self.score = score
        self.fingerprint: Fingerprint | None = None

    def __call__(self, score_partition: KeyPartition) -> CellCounts:
        """Count all rows in one pass, or in two if the first pass finds rows to validate.

        A kernel can count rows that are not validated, but it returns no score for a row that is
        invalid or may contain masked logits. If there is such a row, all rows are validated and
        counted again.
        """
        compute_score_and_correctness = ScoreAndCorrectness(self.score)
        kernel_can_validate = kernels.can_pass_whole_blocks(
            compute_score_and_correctness, self.rows.table
        )
        if self.rows.is_unvalidated and kernel_can_validate:
            compute_and_validate = partial(compute_score_and_correctness, is_unvalidated=True)
            cell_counts = self._count_rows_in_each_cell(compute_and_validate, score_partition)
            every_row_is_valid = cell_counts.n_missing_scores == 0
            if every_row_is_valid:
                self.rows = self.rows.mark_as_validated()
                return cell_counts
        self.rows = self.rows.as_validated()
        return self._count_rows_in_each_cell(compute_score_and_correctness, score_partition)

    def _count_rows_in_each_cell(
        self, compute_score_and_correctness: Callable[..., Float], score_partition: KeyPartition
    ) -> CellCounts:
        """Count the rows in each interval of scores, and hash rows in the first pass.

        Parameters
        ----------
        compute_score_and_correctness : callable
            Function that returns the score and the correctness of each row of a block.

        score_partition : KeyPartition
            Cells of scores, in each of which rows are counted.

        Returns
        -------
        CellCounts
        """
        needs_fingerprint = self.fingerprint is None
        make_accumulator = partial(
            _BlockAccumulator,
            score_partition,
            grid=get_rounding_grid(self.score),
            needs_fingerprint=needs_fingerprint,
        )
        # Adding the counts of each range of rows as they arrive keeps few counts in memory.
        results_of_row_ranges: Iterator[tuple[CellCounts, Fingerprint | None]] = (
            self.rows.accumulate_blocks(
                compute_score_and_correctness, make_accumulator, self.labels
            )
        )
        sum_of_counts = CellCountSum(score_partition)
        range_fingerprints: list[Fingerprint] = []
        for range_counts, range_fingerprint in results_of_row_ranges:
            sum_of_counts.add(range_counts)
            if range_fingerprint is not None:
                range_fingerprints.append(range_fingerprint)
        cell_counts = sum_of_counts.result()
        every_row_has_score = cell_counts.n_missing_scores == 0
        if needs_fingerprint and every_row_has_score:
            first_fingerprint, *other_fingerprints = range_fingerprints
            self.fingerprint = sum(other_fingerprints, start=first_fingerprint)
        return cell_counts


class _BlockAccumulator:
    """Accumulator of the counts and the fingerprint of blocks of rows.

    Parameters
    ----------
    score_partition : KeyPartition
        Cells of scores, in each of which rows are counted.

    grid : Grid
        Rounding grid of the score.

    needs_fingerprint : bool
        Whether to compute the fingerprint.
    """

    def __init__(self, score_partition: KeyPartition, grid: Grid, needs_fingerprint: bool) -> None:
        self._cell_counter = CellCounter(score_partition)
        self._score_grid = grid
        self._needs_fingerprint = needs_fingerprint
        self._fingerprint: Fingerprint | None = None

    def add(self, score_and_correctness: Float) -> None:
        """Add a block of rows, given the unrounded score and the correctness of each row.

        Fingerprints are about scores on the grid of the score. Certificates rank rows by scores on
        the relative grid, whatever the grid of the score.
        """
        unrounded_scores = score_and_correctness[:, _SCORE_COLUMN]
        is_correct = score_and_correctness[:, _CORRECTNESS_COLUMN] > 0.0
        scores_on_own_grid = self._score_grid.round(unrounded_scores)
        scores_to_rank = scores_on_own_grid
        if self._score_grid != RELATIVE_GRID:
            scores_to_rank = RELATIVE_GRID.round(scores_on_own_grid)
        self._cell_counter.add(scores_to_rank, is_correct)
        if not self._needs_fingerprint:
            return
        block_fingerprint = fingerprint_rows(scores_on_own_grid, is_correct)
        if self._fingerprint is None:
            self._fingerprint = block_fingerprint
        else:
            self._fingerprint = self._fingerprint + block_fingerprint

    def result(self) -> tuple[CellCounts, Fingerprint | None]:
        """Return the counts and the fingerprint."""
        return self._cell_counter.result(), self._fingerprint


def decide_counted_rows(
    rows: Rows, labels: Codes, score: str | Score, threshold: float
) -> tuple[Flags, Flags]:
    """Decide the rows of a long table in one pass that returns one byte per row.

    Parameters
    ----------
    rows : Rows
        Validated logits.

    labels : array of int of shape (n_rows,)
        Column of the true class of each row.

    score : str or callable
        Ranking score.

    threshold : float
        Largest accepted score.

    Returns
    -------
    is_accepted : array of bool of shape (n_rows,)
        Whether each row is accepted.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.
    """
    decide_block = _BlockDecider(score, threshold)
    decision_bytes = rows.compute_column(decide_block, labels)
    # Both expressions give bytes of 0 or 1, which can be viewed as booleans without a copy.
    is_accepted = (decision_bytes & _ACCEPTED_BIT).view(bool)
    is_correct = (decision_bytes >> _CORRECT_BIT_POSITION).view(bool)
    return is_accepted, is_correct


class _BlockDecider:
    """Function that encodes as bits whether each row is accepted and correct.

    Parameters
    ----------
    score : str or callable
        Ranking score.

    threshold : float
        Largest accepted score.
    """

    def __init__(self, score: str | Score, threshold: float) -> None:
        self.compute_score_and_correctness = ScoreAndCorrectness(score)
        self.threshold = threshold
        self.grid = get_rounding_grid(score)
        self.takes_whole_blocks = self.compute_score_and_correctness.takes_whole_blocks

    def __call__(
        self, logits: NDArray[Any], labels: Codes, **kernel_options: Any
    ) -> NDArray[np.uint8]:
        """Return one byte per row, with a bit for accepted and a bit for correct."""
        score_and_correctness = self.compute_score_and_correctness(logits, labels, **kernel_options)
        scores = self.grid.round(score_and_correctness[:, _SCORE_COLUMN])
        is_accepted = accept_up_to_threshold(scores, self.threshold)
        is_correct = score_and_correctness[:, _CORRECTNESS_COLUMN] > 0.0
        return is_accepted.view(np.uint8) + _CORRECT_BIT * is_correct.view(np.uint8)


def check_sample_of_long_table(
    rows: Rows,
    score: str | Score,
    certificate: Certificate,
    input_suspicion: Suspicion | None,
) -> list[Note]:
    """Collect notes on few errors, and on equal rows or scores in a sample.

    Parameters
    ----------
    rows : Rows
        Validated logits.

    score : str or callable
        Ranking score.

    certificate : Certificate
        Certificate of the rows.

    input_suspicion : Suspicion or None
        Reason to doubt that the table has logits.

    Returns
    -------
    list of Note
    """
    n_errors = certificate.n_rows - certificate.n_correct
    row_notes = check_error_count(n_errors, certificate.n_rows)
    if explains_repeated_rows(input_suspicion):
        return row_notes
    sampled_rows = _draw_runs_of_rows(rows)
    sample_scores = score_rows(sampled_rows, score)
    # A ranking needs the correctness of its rows, but the check for ties does not use it.
    unused_correctness = np.ones(len(sample_scores), dtype=bool)
    sample_ranking = Ranking.from_scores(sample_scores, unused_correctness)
    input_explains_ties = input_suspicion is not None
    if not input_explains_ties:
        row_notes = [*row_notes, *check_ties(sample_ranking, "sampled logits")]
    n_distinct_scores = sample_ranking.n_tie_blocks
    return [*row_notes, *check_repeated_rows(sampled_rows, sample_scores, n_distinct_scores)]


def explains_repeated_rows(input_suspicion: Suspicion | None) -> bool:
    """Check whether an implausible input explains repeated rows."""
    if input_suspicion is None:
        return False
    return input_suspicion.kind in ("alike", "one-hot")


def _draw_runs_of_rows(rows: Rows) -> Rows:
    """Return runs of consecutive rows, evenly spread over the table."""
    n_rows = len(rows)
    max_rows = min(n_rows, _MAX_SAMPLE_ROWS, _MAX_SAMPLE_LOGITS // rows.n_classes)
    run_length = max(1, max_rows // _N_SAMPLE_RUNS)
    last_run_start = n_rows - run_length
    n_gaps_between_runs = _N_SAMPLE_RUNS - 1
    sampled_runs = []
    for run_number in range(_N_SAMPLE_RUNS):
        run_start = run_number * last_run_start // n_gaps_between_runs
        run = rows.table[run_start : run_start + run_length]
        sampled_runs.append(np.asarray(run))
    return Rows(np.concatenate(sampled_runs))
