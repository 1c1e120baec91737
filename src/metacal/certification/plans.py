"""Plans of the ranks or score values at which an accuracy is tested.

A plan is fixed before any label of the tested rows is read. Every guarantee of this package rests
on this condition: the labels that are tested must not influence which tests are made. A `RankPlan`
is built from the number of rows, the accuracy, the significance level and pilot rows. None of them
contains a label of a tested row, so the condition holds by construction. Only
`ThresholdRule.certify`, which runs a plan, receives the ranking.

Terms used in this module:

- *error*: a row whose prediction is incorrect.
- *rank*: number of rows, counted from the most certain one. A test at rank m is about the first m
  rows.
- *start*: first rank of a range of tested ranks. It is given by the number of errors that its test
  tolerates.
- *significance level*: largest allowed probability that a test passes although the promise is
  violated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from metacal.certification.peeling import LeastCertainRowReader, read_until_loss_is_low
from metacal.certification.rank_plan import FirstTieBlock, RankPlan
from metacal.certification.rank_tests import BinomialRankTests
from metacal.certification.start_policies import RARE_CORRECT_STARTS, StartPolicy
from metacal.certification.test_sequences import (
    RangeStarts,
    choose_first_tested_score,
    choose_main_start_rank,
    plan_rank_ranges,
)
from metacal.formulas import Codes, Flags, Float
from metacal.rows.draws import convert_word_to_uniform
from metacal.statistics import bounds

# Smallest share of correct rows in a window at which no more of the least certain rows are read, as a
# fraction of the accuracy that is tested.
_WINDOW_CORRECT_FRACTION = 0.25

# Smallest number of unread rows, as a multiple of the rows that an error-free test requires.
_MIN_UNREAD_FACTOR = 1.3

# Ties are checked only in the most certain fifth of the window that was read last, because its other
# rows may be a large block of errors with equal scores.
_WINDOW_ROWS_PER_ROW_CHECKED_FOR_TIES = 5

# Scores count as rounded if at least this share of the pairs of read rows have equal scores. It is the
# share of equal pairs if scores with two decimals take a hundred values equally often.
_MIN_TIE_PROBABILITY_OF_ROUNDED_SCORES = 0.01

# Value of `PilotRows.tie_break_number` for which errors come first among equal scores.
_TIE_BREAK_PUTTING_ERRORS_FIRST = 1.0


@dataclass(frozen=True, eq=False)
class PilotRows:
    """Rows that determine where the tests begin, and that are not tested.

    Attributes
    ----------
    scores : array of float of shape (n_pilot,)
        Score of each pilot row.

    requires_score_value_tests : bool
        Whether to test values of the score instead of ranks, because many scores are equal.

    relative_losses : array of float of shape (n_pilot,), optional
        Loss of each pilot row if it is accepted, as a fraction of the largest loss.

    correct : array of bool of shape (n_pilot,), optional
        Whether the prediction of each pilot row is correct. None if pilot rows have no labels.

    class_codes : array of int of shape (n_pilot,), optional
        For a promise about two classes, the true class of each pilot row.

    tie_break_number : float, default=1.0
        Random number in [0, 1), which draws an order of equal scores. For 1, errors come first.

    subgroup_codes : array of int of shape (n_pilot,), optional
        Subgroup of each pilot row. None if all subgroups share the pilot rows.

    n_withheld : int
        Number of calibration rows among the pilot rows, which are therefore not tested. 0 if the
        pilot rows come from elsewhere.
    """

    scores: Float
    requires_score_value_tests: bool = False
    relative_losses: Float | None = None
    correct: Flags | None = None
    class_codes: Codes | None = None
    tie_break_number: float = _TIE_BREAK_PUTTING_ERRORS_FIRST
    subgroup_codes: Codes | None = None
    n_withheld: int = 0

    def select_subgroups(self, selected_codes: Sequence[int]) -> PilotRows:
        """Select the pilot rows of the given subgroups.

        All pilot rows are returned if they belong to no subgroup, because every subgroup uses them.
        """
        if self.subgroup_codes is None:
            return self
        is_selected = np.isin(self.subgroup_codes, selected_codes)
        # Either all pilot rows of subgroups are withheld calibration rows, or none of them is.
        n_selected_withheld = min(self.n_withheld, int(is_selected.sum()))
        selected_losses = None
        if self.relative_losses is not None:
            selected_losses = self.relative_losses[is_selected]
        selected_correctness = None
        if self.correct is not None:
            selected_correctness = self.correct[is_selected]
        selected_class_codes = None
        if self.class_codes is not None:
            selected_class_codes = self.class_codes[is_selected]
        return replace(
            self,
            scores=self.scores[is_selected],
            relative_losses=selected_losses,
            correct=selected_correctness,
            class_codes=selected_class_codes,
            tie_break_number=_derive_tie_break_number(self.tie_break_number, selected_codes),
            subgroup_codes=None,
            n_withheld=n_selected_withheld,
        )

    @property
    def shows_few_correct_rows(self) -> bool:
        """Whether at most half of the pilot rows are correct. False without labels."""
        if self.correct is None or len(self.correct) == 0:
            return False
        return 2 * int(self.correct.sum()) <= len(self.correct)

    @property
    def max_score_kept_unread(self) -> float:
        """Highest score of the rows that must stay unread while the tests are planned.

        If the most certain pilot rows tie, many tested rows may have their score, and peeling would
        read all of them together. This is prevented if most of these pilot rows are correct. If every
        row may be read, the score is -inf.
        """
        if self.correct is None or len(self.scores) == 0:
            return -math.inf
        lowest_score = float(self.scores.min())
        has_lowest_score = self.scores == lowest_score
        n_rows_with_lowest_score = int(has_lowest_score.sum())
        n_correct_with_lowest_score = int(self.correct[has_lowest_score].sum())
        most_certain_rows_tie = n_rows_with_lowest_score >= 2
        most_tied_rows_are_correct = 2 * n_correct_with_lowest_score > n_rows_with_lowest_score
        if most_certain_rows_tie and most_tied_rows_are_correct:
            return lowest_score
        return -math.inf


def _derive_tie_break_number(tie_break_number: float, subgroup_codes: Sequence[int]) -> float:
    """Derive the tie-break number of subgroups from the number for all rows."""
    if tie_break_number == _TIE_BREAK_PUTTING_ERRORS_FIRST:
        return tie_break_number
    # A float in [0, 1) has 53 random bits, which are restored as an integer.
    random_bits = int(tie_break_number * 2.0**53)
    seed_sequence = np.random.SeedSequence([random_bits, *subgroup_codes])
    random_word = np.random.PCG64(seed_sequence).random_raw()
    return convert_word_to_uniform(int(random_word))


def plan_test_sequence(
    start_policy: StartPolicy,
    n_rows: int,
    min_accuracy: float,
    significance_level: float,
    pilot_rows: PilotRows | None = None,
    row_reader: LeastCertainRowReader | None = None,
) -> RankPlan:
    """Plan tests of an accuracy at ranks, at ends of tie blocks or at score values.

    Parameters
    ----------
    start_policy : StartPolicy
        Choice of the ranks at which the tests start.

    n_rows : int
        Number of rows that are tested.

    min_accuracy : float
        Accuracy that is tested.

    significance_level : float
        Significance level that the tests are planned for.

    pilot_rows : PilotRows, optional
        Pilot rows. If many of their scores are equal, values are tested instead of ranks. The
        starts are those for the number of rows before pilot rows were withheld.

    row_reader : LeastCertainRowReader, optional
        Reader of the least certain rows, if correct rows are rare. Rows are read from the bottom,
        and only the rows that stay unread are tested.

    Returns
    -------
    RankPlan
    """
    if row_reader is not None:
        n_rows_of_last_window = _read_least_certain_rows(
            row_reader, min_accuracy, significance_level
        )
        if row_reader.n_read_rows > 0:
            return _plan_tests_of_unread_rows(
                start_policy,
                row_reader,
                n_rows_of_last_window,
                min_accuracy,
                significance_level,
                pilot_rows,
            )

    n_withheld_rows = 0
    if pilot_rows is not None:
        n_withheld_rows = pilot_rows.n_withheld
        if pilot_rows.requires_score_value_tests and len(pilot_rows.scores) > 0:
            return _plan_tests_of_score_values(
                start_policy, pilot_rows.scores, n_rows, min_accuracy, significance_level
            )

    # The starts are chosen for the number of rows before pilot rows were withheld. For slightly fewer
    # rows, a start might tolerate one error less, and would then be at a much lower rank.
    n_rows_before_withholding = n_rows + n_withheld_rows
    range_starts = start_policy.choose_range_starts(
        n_rows_before_withholding, min_accuracy, significance_level
    )
    return _plan_tests_of_ranks(
        start_policy, n_rows, min_accuracy, significance_level, range_starts
    )


def _plan_tests_of_score_values(
    start_policy: StartPolicy,
    pilot_scores: Float,
    n_rows: int,
    min_accuracy: float,
    significance_level: float,
) -> RankPlan:
    """Plan tests of all score values that are at least a quantile of the pilot scores."""
    range_starts = start_policy.choose_range_starts(n_rows, min_accuracy, significance_level)
    first_tested_score = choose_first_tested_score(
        np.sort(pilot_scores), n_rows, min_accuracy, significance_level, range_starts
    )
    return RankPlan(limit=min_accuracy, first_tested_score=first_tested_score)


def _read_least_certain_rows(
    row_reader: LeastCertainRowReader, min_accuracy: float, significance_level: float
) -> int:
    """Read the least certain rows until correct rows are frequent among them.

    Returns
    -------
    int
        Number of rows of the window that was read last, or 0 if no row was read.
    """
    n_required = bounds.error_free_rows_needed(min_accuracy, significance_level)
    return read_until_loss_is_low(
        row_reader,
        max_window_loss=1.0 - _WINDOW_CORRECT_FRACTION * min_accuracy,
        min_unread_rows=math.ceil(_MIN_UNREAD_FACTOR * n_required),
    )


def _plan_tests_of_unread_rows(
    start_policy: StartPolicy,
    row_reader: LeastCertainRowReader,
    n_rows_of_last_window: int,
    min_accuracy: float,
    significance_level: float,
    pilot_rows: PilotRows | None,
) -> RankPlan:
    """Plan the tests of the unread rows, at ranks or at the ends of tie blocks."""
    n_unread_rows = row_reader.n_unread_rows
    no_test_can_pass = n_unread_rows < bounds.error_free_rows_needed(
        min_accuracy, significance_level
    )
    if no_test_can_pass:
        return RankPlan(limit=min_accuracy, rank_ranges=())
    if not _has_large_tie_blocks(row_reader, n_rows_of_last_window):
        return plan_tests_of_unread_ranks(
            start_policy, row_reader.n_rows, n_unread_rows, min_accuracy, significance_level
        )

    # Most read rows are errors, so correct rows are rare if most rows were read.
    correct_rows_are_rare = 2 * n_unread_rows < row_reader.n_rows
    if correct_rows_are_rare:
        range_starts = RARE_CORRECT_STARTS.choose_range_starts_for_tie_blocks(
            n_unread_rows, min_accuracy
        )
    else:
        range_starts = start_policy.choose_range_starts(
            n_unread_rows, min_accuracy, significance_level
        )
    first_tested_rank = choose_main_start_rank(
        n_unread_rows, min_accuracy, significance_level, range_starts
    )
    tie_break_number = _TIE_BREAK_PUTTING_ERRORS_FIRST
    if pilot_rows is not None:
        tie_break_number = pilot_rows.tie_break_number
    first_tie_block = FirstTieBlock(first_tested_rank, tie_break_number)
    return RankPlan(limit=min_accuracy, first_tested_tie_block=first_tie_block)


def plan_tests_of_unread_ranks(
    start_policy: StartPolicy,
    n_rows: int,
    n_unread_rows: int,
    min_accuracy: float,
    significance_level: float,
) -> RankPlan:
    """Plan tests at ranks among the rows that stayed unread.

    Parameters
    ----------
    start_policy : StartPolicy
        Choice of the starts if at least half of the rows are unread.

    n_rows : int
        Number of all rows.

    n_unread_rows : int
        Number of rows that stayed unread.

    min_accuracy : float
        Accuracy that is tested.

    significance_level : float
        Significance level that the tests are planned for.

    Returns
    -------
    RankPlan
    """
    # Most read rows are errors, so correct rows are rare if most rows were read.
    correct_rows_are_rare = 2 * n_unread_rows < n_rows
    if correct_rows_are_rare:
        start_policy = RARE_CORRECT_STARTS
    range_starts = start_policy.choose_range_starts(n_unread_rows, min_accuracy, significance_level)
    return _plan_tests_of_ranks(
        start_policy, n_unread_rows, min_accuracy, significance_level, range_starts
    )


def _has_large_tie_blocks(rows: LeastCertainRowReader, n_rows_of_last_window: int) -> bool:
    """Check whether tests at ranks would often fall inside a large tie block.

    Scores of the unread rows must not be looked at, so this is a guess from the rows that were read.
    Either the last of them, next to the unread rows, have many ties. Or scores are equal so often
    that they must be rounded. Then the most certain rows may share one value, such as 1.00.
    """
    n_checked_rows = max(1, n_rows_of_last_window // _WINDOW_ROWS_PER_ROW_CHECKED_FOR_TIES)
    if rows.compute_mean_ties_next_to_unread_rows(n_checked_rows) >= math.sqrt(rows.n_unread_rows):
        return True
    return rows.compute_tie_probability() >= _MIN_TIE_PROBABILITY_OF_ROUNDED_SCORES


def _plan_tests_of_ranks(
    start_policy: StartPolicy,
    n_rows: int,
    min_accuracy: float,
    significance_level: float,
    range_starts: RangeStarts,
) -> RankPlan:
    """Plan tests at ranks, and at every rank if few errors are expected.

    Otherwise only some ranks of each range are tested (`BinomialRankTests`).
    """
    if start_policy.tests_every_rank(n_rows, min_accuracy):
        rank_tests = BinomialRankTests(
            n_rows, error_rate=1.0 - min_accuracy, significance_level=significance_level
        )
        first_start = range_starts[0]
        first_tested_rank = rank_tests.lowest_rank_passing_with(first_start.n_tolerated_errors)
        return RankPlan(limit=min_accuracy, tests_every_rank_from=first_tested_rank)
    rank_ranges = plan_rank_ranges(n_rows, min_accuracy, significance_level, range_starts)
    return RankPlan(limit=min_accuracy, rank_ranges=rank_ranges)
