r"""Pilot rows: calibration rows that determine where tests begin and are not tested themselves.

Scores that a user passes, such as the marks of a judge or confidences with two decimals, are often
equal. A test at a rank inside a block of equal scores says nothing about the block. Sorting the
errors of a block first is valid, but leaves little to certify. So the *values* of the score are
tested, each on all rows at or below it, from a first value upward.

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
If no two of the first ten pilot rows are equal, no more rows are withheld. Rows of a pool that stay
unlabelled can be pilot rows too. A bad choice of the first value costs coverage, never validity.

**Not valid**: ordering equal scores at random, and accepting up to the last end of a block below the
last rank that passed. This end may never have been tested. For two values with 0.02 and 0.98 of the
rows, the first with 1.002 times the allowed errors, this breaks 0.19 of the promises at delta = 0.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from metacal.certificates.circumstances import Circumstances
from metacal.certification.plans import PilotRows
from metacal.certification.rows import CalibrationRows
from metacal.formulas import Codes, Flags, Float

# With fewer rows no row is withheld, unless the values of the score are declared.
_MIN_ROWS = 100

# Number of pilot rows that show whether more of them are needed.
_N_FIRST_PILOT_ROWS = 10

# For a promise about classes, values are tested if a row has so many equal rows on average.
_MIN_EQUAL_ROWS = 8.0

# Largest number of values of a score that a certificate lists.
_MAX_LISTED_VALUES = 25


@dataclass(frozen=True, eq=False)
class PilotPolicy:
    """Choice of the pilot rows among the calibration rows.

    Parameters
    ----------
    random_state : int, optional
        Seed that the user passed. By default, the seed is derived from the rows.

    declared_values : array of float, optional
        Values that the score can have, as declared by the user.

    is_about_classes : bool, default=False
        Whether the promise is about the rows of two classes.

    reads_labels : bool, default=False
        Whether the labels of the pilot rows are read, to estimate the share of a class. A random
        sqrt(n) of the rows is then withheld even if no scores are equal.
    """

    random_state: int | None = None
    declared_values: Float | None = None
    is_about_classes: bool = False
    reads_labels: bool = False

    def withhold_pilot_rows(self, rows: CalibrationRows) -> CalibrationRows:
        """Withhold pilot rows from the calibration rows.

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
        is_pilot_row = self._choose(rows)
        if not is_pilot_row.any():
            return rows
        withheld = rows.take(is_pilot_row)
        pilot = PilotRows(
            scores=withheld.scores,
            tests_score_values=self.should_test_score_values(withheld.scores, len(rows)),
            class_codes=withheld.class_codes,
            subgroup_codes=None if withheld.subgroups is None else withheld.subgroups.codes,
            n_withheld=len(withheld),
        )
        return replace(rows.take(~is_pilot_row), pilot=pilot)

    def should_test_score_values(self, pilot_scores: Float, n_rows: int) -> bool:
        """Check whether scores are equal so often that values are tested instead of ranks."""
        if self.declared_values is not None:
            return True
        min_probability = 1.0 / math.sqrt(n_rows)
        if self.is_about_classes:
            # The rows of one class may be rare.
            min_probability = min(min_probability, _MIN_EQUAL_ROWS / n_rows)
        return probability_of_tie(pilot_scores) >= min_probability

    def build_circumstances(self, pilot: PilotRows) -> Circumstances:
        """Return what a certificate records about the pilot rows."""
        return Circumstances(
            by_value=pilot.tests_score_values,
            aside=pilot.n_withheld,
            random_state=self.random_state if pilot.n_withheld else None,
        )

    def count_rows_per_score_value(
        self, rows: CalibrationRows
    ) -> tuple[tuple[float, int, int], ...]:
        """Count the rows and the errors at each value of a score with few values.

        Returns
        -------
        tuple of (float, int, int)
            Value, number of tested rows and number of errors. Empty if the score has many values,
            if ranks are tested, or if the counts would not describe all rows.
        """
        has_graded_losses = rows.losses is not None and not rows.losses.all_or_nothing
        if rows.pilot is None or not rows.pilot.tests_score_values:
            return ()
        if rows.subgroups is not None or has_graded_losses:
            return ()
        ranking = rows.ranking
        values = ranking.scores
        if self.declared_values is not None:
            values = np.union1d(self.declared_values, values)
        if len(values) > _MAX_LISTED_VALUES:
            return ()
        n_blocks_up_to = np.searchsorted(ranking.scores, values, side="right")
        n_rows = np.diff(np.append(0, ranking.ranks)[n_blocks_up_to], prepend=0)
        n_errors = np.diff(np.append(0, ranking.errors)[n_blocks_up_to], prepend=0)
        return tuple(zip(values.tolist(), n_rows.tolist(), n_errors.tolist()))

    def _choose(self, rows: CalibrationRows) -> Flags:
        """Draw the pilot rows of each subgroup and return a mask of them."""
        is_pilot_row = np.zeros(len(rows), dtype=bool)
        withholds_root = self.reads_labels or self.declared_values is not None
        for drawn in self._draw_orders(rows):
            if len(drawn) < _MIN_ROWS and self.declared_values is None:
                continue
            first_scores = rows.scores[drawn[:_N_FIRST_PILOT_ROWS]]
            n_pilot = _count_pilot_rows(first_scores, len(drawn), withholds_root=withholds_root)
            is_pilot_row[drawn[:n_pilot]] = True
        return is_pilot_row

    def _draw_orders(self, rows: CalibrationRows) -> list[Codes]:
        """Return the rows of each subgroup in random order."""
        order = rows.build_row_draws(self.random_state).order("pilot scores")
        if rows.subgroups is None:
            return [order]
        codes_in_order = rows.subgroups.codes[order]
        return [order[codes_in_order == code] for code in range(len(rows.subgroups.names))]


def choose_pilot_rows_of_pool(pool_scores: Float, n_drawn: int) -> PilotRows:
    """Choose pilot rows among the rows of a pool that are not drawn for labelling.

    If these are fewer than the square root of the number of drawn rows, some of the drawn rows are
    withheld too. Only scores determine how many.

    Parameters
    ----------
    pool_scores : array of float of shape (n_pool,)
        Scores of the pool, in random order. The first `n_drawn` rows are drawn.

    n_drawn : int
        Number of rows that are drawn.

    Returns
    -------
    PilotRows
        `n_withheld` is the number of drawn rows that become pilot rows.
    """
    n_pilot = len(pool_scores) - n_drawn
    if n_pilot**2 < n_drawn and n_drawn >= _MIN_ROWS:
        last_scores = pool_scores[-_N_FIRST_PILOT_ROWS:]
        n_pilot = max(n_pilot, _count_pilot_rows(last_scores, n_drawn, withholds_root=False))
    n_tested = len(pool_scores) - n_pilot
    scores = pool_scores[n_tested:]
    test_values = n_pilot > 0 and probability_of_tie(scores) >= 1.0 / math.sqrt(n_tested)
    return PilotRows(scores=scores, tests_score_values=test_values, n_withheld=n_drawn - n_tested)


def probability_of_tie(scores: Float) -> float:
    """Compute the share of pairs of rows that have equal scores.

    Examples
    --------
    >>> probability_of_tie(np.array([1.0, 1.0, 2.0, 3.0]))
    0.16666666666666666
    """
    n_rows = len(scores)
    if n_rows < 2:
        return 0.0
    counts = np.unique(scores, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1.0)).sum() / (n_rows * (n_rows - 1.0)))


def _count_pilot_rows(first_scores: Float, n_rows: int, *, withholds_root: bool) -> int:
    """Compute how many of n rows are withheld: sqrt(n) if scores are equal, else ten."""
    if withholds_root or probability_of_tie(first_scores) > 0.0:
        return round(math.sqrt(n_rows))
    return _N_FIRST_PILOT_ROWS
