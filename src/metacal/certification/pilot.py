r"""Pilot rows: untested calibration rows that determine where tests begin.

**Rare correct rows.** Ten random rows are pilot rows, or five if the rows are logits. If at most half
of them are correct, the least certain rows are read before the tests are planned
(`metacal.certification.peeling`). Otherwise no row is read, and nothing more is withheld unless
scores are equal.

**Equal scores.** Scores that a user passes are often equal, for example grades by an LLM judge or
confidences with two decimals. A threshold cannot separate equal scores, so a test at a rank inside
a block of equal scores certifies no threshold. Sorting the errors of a block first is valid, but
leaves little to certify. Instead, the *values* of the score are tested, each on all rows at or
below it, from a first value upward.

**Proof.** Let the first value v0 be independent of the tested rows, and let R(v) be the true error
rate of the rows that score at most v. All values from v0 on are tested in increasing order at level
delta. The tests are exact: given that N(v) rows have a score of at most v, the number of errors is
E(v) ~ Bin(N(v), R(v)). A value that no row has stands for the counts of the value below it. The
first value whose test fails ends the sequence, and the values below it are accepted. Let l be the
lowest value from v0 on at which, or immediately above which, R exceeds q = 1 - limit. Then R(l) >=
q. If the accepted rows have an error rate above q, the test at l has passed, which has a probability
of at most delta. Nothing is assumed about how errors depend on the score. ∎

**Why rows are withheld.** A first value that depends on the counts of the tested rows is not
independent of them: if values with many errors were skipped because they have few rows, their errors
would be skipped too. So a random sqrt(n) of the rows are pilot rows. They also show whether scores
are equal. If two rows are equal with a probability below 1 / sqrt(n), ranks are tested as for logits.
If no two of the first ten pilot rows are equal, no more rows are withheld. If correct rows are rare,
no more are withheld either, because the rows that are read show whether scores are rounded
(`plans.FirstTieBlock`). Rows of a pool that stay unlabelled can be pilot rows too. A bad
choice of the first value costs coverage, never validity.

**Not valid**: ordering equal scores at random, and accepting up to the last end of a block below the
last rank that passed. This end may never have been tested. For two values with 0.02 and 0.98 of the
rows, the first with 1.002 times the allowed errors, this breaks 0.19 of the promises at delta = 0.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from metacal.certificates.certificate import Certificate
from metacal.certificates.counts import ScoreValueCount
from metacal.certificates.design import CertificationDesign
from metacal.certificates.subgroups import Name
from metacal.certification.plans import PilotRows
from metacal.certification.ranking import Ranking
from metacal.certification.rows import CalibrationRows
from metacal.formulas import Codes, Flags, Float
from metacal.rows.draws import convert_word_to_uniform

# Smallest number of rows from which pilot rows are withheld if no score values are declared.
_MIN_ROWS_TO_WITHHOLD = 100

# Number of initial pilot rows. If their scores tie, more pilot rows are withheld.
_N_INITIAL_PILOT_ROWS = 10

# Number of pilot rows if the scores are logits, which are not checked for ties.
_N_PILOT_ROWS_OF_LOGITS = 5

# Smallest mean number of ties per row at which a two-class promise tests score values.
_MIN_TIES_PER_ROW = 8.0

# Largest number of score values that a certificate lists.
_MAX_LISTED_VALUES = 25


@dataclass(frozen=True, eq=False)
class PilotPolicy:
    """Policy that chooses the pilot rows among the calibration rows.

    Parameters
    ----------
    random_state : int, optional
        Seed that the user passed. By default, the seed is derived from the rows.

    declared_score_values : array of float, optional
        Values that the score can have, as declared by the user.

    get_tested_class_codes : callable, optional
        For a promise about two classes, a function that returns the codes of the classes that rows
        are accepted as, given the names of both classes.
    """

    random_state: int | None = None
    declared_score_values: Float | None = None
    get_tested_class_codes: Callable[[Sequence[Name]], Sequence[int]] | None = None

    def withhold_pilot_rows(self, rows: CalibrationRows) -> CalibrationRows:
        """Set some calibration rows aside as pilot rows, which plan the tests.

        Parameters
        ----------
        rows : CalibrationRows
            All calibration rows.

        Returns
        -------
        CalibrationRows
            The rows that are tested, with the pilot rows attached. The rows are returned unchanged
            if none is withheld.
        """
        row_draws = rows.build_row_draws(self.random_state)
        is_pilot_row = self._draw_pilot_mask(rows, row_draws.draw_row_order("pilot scores"))
        if not is_pilot_row.any():
            return rows
        pilot_scores = rows.scores[is_pilot_row]
        pilot_rows = _build_pilot_rows(
            rows,
            is_pilot_row,
            requires_score_value_tests=self.should_test_score_values(pilot_scores, len(rows)),
            tie_break_number=row_draws.draw_uniform_number("order of ties"),
        )
        return replace(rows.take(~is_pilot_row), pilot_rows=pilot_rows)

    def withhold_pilot_rows_of_logits(self, rows: CalibrationRows) -> CalibrationRows:
        """Set five rows of logits aside as pilot rows, without a check for ties.

        The ranking of the tested rows is derived from the ranking of all rows, which is faster than
        sorting again.

        Parameters
        ----------
        rows : CalibrationRows
            All calibration rows, ranked by a score of their logits.

        Returns
        -------
        CalibrationRows
            The rows that are tested, with the pilot rows attached. The rows are returned unchanged
            if there are too few, if there are subgroups, or if losses are graded.
        """
        # Subgroups often have too few rows to set some of these aside as pilot rows.
        has_subgroups = rows.subgroups is not None
        # Graded losses are tested by bets, which are planned without pilot rows of logits.
        is_tested_by_bets = _has_graded_losses(rows)
        has_too_few_rows = len(rows) < _MIN_ROWS_TO_WITHHOLD
        if has_subgroups or is_tested_by_bets or has_too_few_rows:
            return rows
        pilot_ranks, tie_break_number = _draw_ranks_and_tie_break(
            rows.ranking, _N_PILOT_ROWS_OF_LOGITS
        )
        is_pilot_row = _find_rows_at_ranks(rows, pilot_ranks)
        pilot_rows = _build_pilot_rows(rows, is_pilot_row, tie_break_number=tie_break_number)
        return replace(
            rows.take(~is_pilot_row),
            pilot_rows=pilot_rows,
            precomputed_ranking=rows.ranking.without_ranks(pilot_ranks),
        )

    def should_test_score_values(self, pilot_scores: Float, n_rows: int) -> bool:
        """Check whether frequent ties require tests of score values, not of ranks."""
        if self.declared_score_values is not None:
            return True
        min_tie_probability = 1.0 / math.sqrt(n_rows)
        if self.get_tested_class_codes is not None:
            # If one class is rare, its few rows are affected even by ties that are rare among all rows.
            min_tie_probability = min(min_tie_probability, _MIN_TIES_PER_ROW / n_rows)
        return compute_tie_probability(pilot_scores) >= min_tie_probability

    def build_design(self, pilot_rows: PilotRows, certificate: Certificate) -> CertificationDesign:
        """Build a design that records the number and the use of the pilot rows."""
        random_state = None
        if pilot_rows.n_withheld > 0:
            random_state = self.random_state
        # Ties among the least certain rows decide which tests are made, if these rows were read.
        # Otherwise, ties among the pilot rows decide.
        least_certain_rows_were_read = certificate.design.n_planning_rows > 0
        tests_score_values = (
            pilot_rows.requires_score_value_tests and not least_certain_rows_were_read
        )
        return CertificationDesign(
            tests_score_values=tests_score_values,
            n_pilot_rows=pilot_rows.n_withheld,
            random_state=random_state,
        )

    def count_rows_per_score_value(self, rows: CalibrationRows) -> tuple[ScoreValueCount, ...]:
        """Count the rows and the errors at each value of a score with few distinct values.

        Returns
        -------
        tuple of ScoreValueCount
            Counts of the tested rows. Empty if the score has many values, or if the counts would
            not describe all rows.
        """
        if rows.subgroups is not None or _has_graded_losses(rows):
            return ()
        ranking = rows.ranking
        score_values = ranking.tie_block_scores
        if self.declared_score_values is not None:
            score_values = np.union1d(self.declared_score_values, score_values)
        if len(score_values) > _MAX_LISTED_VALUES:
            return ()

        # A tie block has all rows with one score. A declared value that no row has adds no block.
        n_rows_up_to_block = np.append(0, ranking.tie_block_end_ranks)
        n_errors_up_to_block = np.append(0, ranking.cumulative_errors)
        n_blocks_up_to_value = np.searchsorted(ranking.tie_block_scores, score_values, side="right")
        n_rows_by_value = np.diff(n_rows_up_to_block[n_blocks_up_to_value], prepend=0)
        n_errors_by_value = np.diff(n_errors_up_to_block[n_blocks_up_to_value], prepend=0)
        return tuple(
            ScoreValueCount(score_value, n_rows, n_errors)
            for score_value, n_rows, n_errors in zip(
                score_values.tolist(), n_rows_by_value.tolist(), n_errors_by_value.tolist()
            )
        )

    def _draw_pilot_mask(self, rows: CalibrationRows, shuffled_indices: Codes) -> Flags:
        """Choose pilot rows at random in each subgroup, and return a mask of them."""
        has_declared_score_values = self.declared_score_values is not None
        is_pilot_row = np.zeros(len(rows), dtype=bool)
        for subgroup_indices in _split_by_subgroup(rows, shuffled_indices):
            n_subgroup_rows = len(subgroup_indices)
            if n_subgroup_rows < _MIN_ROWS_TO_WITHHOLD and not has_declared_score_values:
                continue
            n_pilot_rows = self._choose_number_of_pilot_rows(rows, subgroup_indices)
            is_pilot_row[subgroup_indices[:n_pilot_rows]] = True
        return is_pilot_row

    def _choose_number_of_pilot_rows(self, rows: CalibrationRows, shuffled_indices: Codes) -> int:
        """Choose how many of the shuffled rows of a subgroup become pilot rows.

        Ten rows suffice, unless score values may be tested, which takes sqrt(n) pilot rows.
        """
        initial_indices = shuffled_indices[:_N_INITIAL_PILOT_ROWS]
        if self._are_rows_to_accept_rare(rows.take(initial_indices)):
            # Ten pilot rows suffice, because ties among the least certain rows decide which tests run.
            return _N_INITIAL_PILOT_ROWS
        has_declared_score_values = self.declared_score_values is not None
        may_test_score_values = has_declared_score_values or _has_ties(rows.scores[initial_indices])
        return _count_required_pilot_rows(
            n_rows=len(shuffled_indices), may_test_score_values=may_test_score_values
        )

    def _are_rows_to_accept_rare(self, initial_pilot_rows: CalibrationRows) -> bool:
        """Check whether at most half of the initial pilot rows should be accepted.

        These are the correct rows, or for a promise about two classes, the rows of a tested class. If
        rows are accepted as both classes, each class must be that rare.
        """
        has_too_few_pilot_rows = len(initial_pilot_rows) < _N_INITIAL_PILOT_ROWS
        if has_too_few_pilot_rows or _has_graded_losses(initial_pilot_rows):
            return False
        if self.get_tested_class_codes is None:
            is_correctness_known = initial_pilot_rows.correct is not None
            return is_correctness_known and _are_at_most_half_true(initial_pilot_rows.is_correct)
        true_codes = initial_pilot_rows.true_class_codes
        tested_codes = self.get_tested_class_codes(initial_pilot_rows.class_names)
        return all(_are_at_most_half_true(true_codes == code) for code in tested_codes)


def _are_at_most_half_true(flags: Flags) -> bool:
    """Check whether at most half of the flags are true."""
    return 2 * int(flags.sum()) <= len(flags)


def _has_graded_losses(rows: CalibrationRows) -> bool:
    """Check whether losses may lie strictly between 0 and the largest loss."""
    return rows.losses is not None and not rows.losses.is_all_or_nothing


def _build_pilot_rows(
    rows: CalibrationRows,
    is_pilot_row: Flags,
    *,
    tie_break_number: float,
    requires_score_value_tests: bool = False,
) -> PilotRows:
    """Build `PilotRows` from the withheld rows and their columns."""
    withheld_rows = rows.take(is_pilot_row)
    subgroup_codes = None
    if withheld_rows.subgroups is not None:
        subgroup_codes = withheld_rows.subgroups.codes
    # Tests of graded losses are planned from the losses of the pilot rows, not from correctness.
    is_planned_from_losses = _has_graded_losses(withheld_rows)
    pilot_correctness = None
    if not is_planned_from_losses:
        pilot_correctness = withheld_rows.correct
    relative_losses = None
    if withheld_rows.losses is not None:
        relative_losses = withheld_rows.losses.if_accepted / withheld_rows.losses.max_loss
    return PilotRows(
        scores=withheld_rows.scores,
        requires_score_value_tests=requires_score_value_tests,
        relative_losses=relative_losses,
        correct=pilot_correctness,
        class_codes=withheld_rows.class_codes,
        tie_break_number=tie_break_number,
        subgroup_codes=subgroup_codes,
        n_withheld=len(withheld_rows),
    )


def _split_by_subgroup(rows: CalibrationRows, shuffled_indices: Codes) -> list[Codes]:
    """Split shuffled row indices by subgroup, and keep their order."""
    if rows.subgroups is None:
        return [shuffled_indices]
    shuffled_codes = rows.subgroups.codes[shuffled_indices]
    return [shuffled_indices[shuffled_codes == code] for code in range(len(rows.subgroups.names))]


def _draw_ranks_and_tie_break(ranking: Ranking, n_ranks: int) -> tuple[Codes, float]:
    """Draw distinct ranks of a ranking, and a number that breaks ties at random.

    The seed is derived from the scores and the ranks of the errors, so that it does not depend on
    the order of the rows. Drawing from a ranking takes less time than hashing each row
    (`metacal.rows.draws`).

    Returns
    -------
    ranks : array of int of shape (n_ranks,)
        Ranks, from 1, in increasing order.

    tie_break_number : float
        Uniform number in [0, 1).
    """
    seed = int.from_bytes(ranking.digest, "little")
    bit_generator = np.random.PCG64(np.random.SeedSequence(seed))
    drawn_ranks: set[int] = set()
    while len(drawn_ranks) < n_ranks:
        drawn_ranks.add(1 + int(bit_generator.random_raw()) % ranking.n_rows)
    tie_break_number: float = convert_word_to_uniform(int(bit_generator.random_raw()))
    return np.array(sorted(drawn_ranks)), tie_break_number


def _find_rows_at_ranks(rows: CalibrationRows, ranks: Codes) -> Flags:
    """Return a mask of the rows at the given ranks.

    Rows with the same score and correctness are interchangeable, so any of them is chosen.
    """
    ranking = rows.ranking
    tie_blocks = np.searchsorted(ranking.tie_block_end_ranks, ranks)
    scores_at_ranks = ranking.tie_block_scores[tie_blocks].tolist()
    correctness_at_ranks = (~ranking.are_errors_at(ranks)).tolist()
    is_correct = rows.is_correct
    is_chosen = np.zeros(len(rows), dtype=bool)
    # The array is reused, because new memory for each rank takes longer than a comparison.
    is_tied = np.empty(len(rows), dtype=bool)
    for score_at_rank, is_row_at_rank_correct in zip(scores_at_ranks, correctness_at_ranks):
        tied_indices = np.flatnonzero(np.equal(rows.scores, score_at_rank, out=is_tied))
        has_same_correctness = is_correct[tied_indices] == is_row_at_rank_correct
        is_candidate = has_same_correctness & ~is_chosen[tied_indices]
        first_candidate = tied_indices[np.argmax(is_candidate)]
        is_chosen[first_candidate] = True
    return is_chosen


def choose_pilot_rows_of_pool(scores_in_draw_order: Float, n_rows_to_label: int) -> PilotRows:
    """Choose pilot rows among the pool rows that are not drawn for labelling.

    If these are fewer than the square root of the number of rows to label, some rows that were drawn
    last are withheld from labelling too. Their number depends on scores only.

    Parameters
    ----------
    scores_in_draw_order : array of float of shape (n_pool,)
        Scores of the pool, in random order. The first `n_rows_to_label` rows are drawn.

    n_rows_to_label : int
        Number of rows that are drawn for labelling.

    Returns
    -------
    PilotRows
        `n_withheld` is the number of drawn rows that become pilot rows.
    """
    n_pool_rows = len(scores_in_draw_order)
    n_pilot_rows = n_pool_rows - n_rows_to_label
    has_too_few_pilot_rows = n_pilot_rows**2 < n_rows_to_label
    if has_too_few_pilot_rows and n_rows_to_label >= _MIN_ROWS_TO_WITHHOLD:
        initial_pilot_scores = scores_in_draw_order[-_N_INITIAL_PILOT_ROWS:]
        n_required_pilot_rows = _count_required_pilot_rows(
            n_rows_to_label, may_test_score_values=_has_ties(initial_pilot_scores)
        )
        n_pilot_rows = max(n_pilot_rows, n_required_pilot_rows)
    n_tested_rows = n_pool_rows - n_pilot_rows
    pilot_scores = scores_in_draw_order[n_tested_rows:]
    has_frequent_ties = False
    if n_pilot_rows > 0:
        min_tie_probability = 1.0 / math.sqrt(n_tested_rows)
        has_frequent_ties = compute_tie_probability(pilot_scores) >= min_tie_probability
    n_pilot_rows_drawn_for_labelling = n_rows_to_label - n_tested_rows
    return PilotRows(
        scores=pilot_scores,
        requires_score_value_tests=has_frequent_ties,
        n_withheld=n_pilot_rows_drawn_for_labelling,
    )


def compute_tie_probability(scores: Float) -> float:
    """Compute the share of pairs of rows that have equal scores.

    Examples
    --------
    >>> compute_tie_probability(np.array([1.0, 1.0, 2.0, 3.0]))
    0.16666666666666666
    """
    n_rows = len(scores)
    if n_rows < 2:
        return 0.0
    _, value_counts = np.unique(scores, return_counts=True)
    rows_per_value = value_counts.astype(np.float64)
    n_tied_pairs = (rows_per_value * (rows_per_value - 1.0)).sum()
    return float(n_tied_pairs / (n_rows * (n_rows - 1.0)))


def _has_ties(scores: Float) -> bool:
    """Check whether two rows have the same score."""
    return compute_tie_probability(scores) > 0.0


def _count_required_pilot_rows(n_rows: int, *, may_test_score_values: bool) -> int:
    """Return the number of pilot rows: sqrt(n) for tests of score values, else ten."""
    if may_test_score_values:
        return round(math.sqrt(n_rows))
    return _N_INITIAL_PILOT_ROWS
