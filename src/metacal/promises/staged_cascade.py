r"""Certification of a cascade of models from their scores alone.

Models of rising cost are asked one after the other. Model j answers a row if its score is within its
threshold, and otherwise passes the row on. The last model, or people, answer the remaining rows.

Terms of this module:

- An answer is *bad* if it differs from the answer of the last model. If people answer the remaining
  rows, or if an accuracy is promised, an answer is bad if it is wrong.
- R is the probability that an earlier model answers and its answer is bad. R <= ε implies that at
  most ε more answers are wrong than with the last model alone. It needs no true label.
- *Pilot rows* are labelled rows that fix the thresholds to test. They are not tested.

**Two models.** R(s) = P(h <= s, bad) increases with the threshold s, so neither a test sequence nor
pilot rows are needed. Let k be the largest number with P(Bin(n, ε) <= k) <= δ. The small model answers
the rows whose score is strictly below that of the (k+1)-th bad row.

*Proof.*

1. Let s₀ = inf{s: R(s) > ε}. R is continuous from the right, so R(s₀) >= ε.
2. If R just below the threshold t exceeds ε, then t > s₀.
3. In this case at most k of the rows with h <= s₀ are bad.
4. The number of such rows is Bin(n, R(s₀)), so step 3 has probability at most δ. ∎

*For a pool* of N rows, n of them are drawn at random and answered by the last model. k is the largest
number with P(Hyp(N, E+1+k, n) <= k) <= δ, where E = ⌊εN⌋.

1. The drawn rows keep the last model's answer. So more than E rows get a bad answer just if at most k
   of the first E+1+k bad rows, in order of score, were drawn.
2. The number of drawn rows among them is hypergeometric, for every fixed pool.

In both cases the test counts the smallest number of rows that has the same k. More rows would only
lower the threshold.

**More models.** A path of threshold vectors, from strict to lax, is fixed without the tested rows. The
certified point is the last one before the count of bad rows first exceeds k.

*Proof.*

1. The first point of the path with R > ε, if there is one, does not depend on the tested rows.
2. Its number of bad rows is Bin(n, R) with R > ε, or for a pool Hyp(N, E+1, n) at the most. It is at
   most k with probability at most δ.
3. A certified point beyond it implies that it passed. No risk needs to be monotone. ∎

To test all points and take the best one that passes is not valid: each test fails with probability up
to δ, and nothing would bound their union.

**Accuracy** (`MinAccuracy`). Of the a tested rows that are answered at a fixed point, the number of
wrong ones is Bin(a, error rate) given a. The p-value is P(Bin(a, 1-β) <= wrong). The same paths are
used, but each starts at the point with the smallest p-value that the pilot rows let expect, because
stricter points answer hardly any row.

**Two paths** are tested at δ/2 each, and the cheaper end point is used
(`metacal.promises.threshold_paths`): one with a common rank for all models, one by a price of a bad
answer. The risk of an answer is estimated on a fifth of the rows: from the model's own score, over all
rows, or with `uses_joint_risk` from all scores up to the model's. The first fails if the rows that are passed
on are harder than their score suggests, the second if there are few of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metacal.certificates.certificate import Certificate
from metacal.certification.ranking import Evidence
from metacal.errors import InfeasibleTargetError, UnsupportedPromiseError
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import RELATIVE_GRID
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.bad_answer_limit import (
    BadAnswerTest,
    compute_rows_needed_without_bad_answer,
)
from metacal.promises.cascade import N_THRESHOLD_PATHS, MaxLoss
from metacal.promises.cascade_tests import make_accuracy_error
from metacal.promises.promise import Promise
from metacal.promises.staged_certificate import build_accuracy_certificate, build_loss_certificate
from metacal.promises.threshold_paths import PilotScores, find_answering_model
from metacal.rows.draws import RowDraws
from metacal.statistics import bounds

# This share of the labelled rows chooses the thresholds and is left out of the tests.
_PILOT_SHARE = 0.2
# There are at least this many pilot rows, whatever the number of labelled rows.
_MIN_PILOT_ROWS = 20


class _RowSplit(NamedTuple):
    """Labelled rows, split at random into pilot rows and tested rows."""

    pilot_rows: Codes
    tested_rows: Codes


class AnswerCounts(NamedTuple):
    """Number of rows that models of a cascade answer, and of bad answers."""

    n_answered: int
    n_bad: int

    def certifies_accuracy(self, min_accuracy: float, *, significance_level: float) -> bool:
        """Check whether the numbers of answers and of wrong answers certify an accuracy."""
        if self.n_answered == 0:
            return False
        p_value = bounds.binomial_p_value(self.n_bad, self.n_answered, 1.0 - min_accuracy)
        return bool(p_value <= significance_level)


class _PathTest(NamedTuple):
    """Result of the tests along a path of threshold vectors.

    Attributes
    ----------
    certified_points : list of array of shape (m,)
        Threshold vectors that passed.
    failed_counts : AnswerCounts or None
        Counts at the point that failed. None if all points passed.
    """

    certified_points: list[Float]
    failed_counts: AnswerCounts | None


@dataclass(frozen=True, eq=False)
class CascadeScores(Evidence):
    """Scores of several models for the same rows, with their bad answers.

    Attributes
    ----------
    uncertainty : array of shape (n, m)
        Score of each model that may pass a row on. Higher is less certain.
    is_bad : array of bool of shape (n, m) or (n, m + 1)
        Whether the answer of each model differs from that of the last model. With people in its
        place, or if an accuracy is promised, whether it is wrong. For an accuracy without people,
        the last model has a column too.
    costs : array of shape (m + 1,)
        Cost of asking each model, the last model or people included.
    unlabelled_uncertainty : array of shape (N - n, m)
        Scores of rows without labels.
    is_finite_pool : bool
        Whether the promise is about all N rows, of which the n labelled ones were drawn at random.
    has_human_review : bool
        Whether people answer the rows that no model accepts.
    random_state : int, optional
        Seed of the draw of the pilot rows and of the counted rows. By default it is derived from
        the scores and the bad answers.
    uses_joint_risk : bool
        Whether the risk of an answer is estimated from all scores up to the model's.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random((2000, 1))
    >>> is_bad = rng.random((2000, 1)) < scores**3 / 4
    >>> rows = CascadeScores(scores, is_bad, np.array([1.0, 10.0]), scores[:0])
    >>> certificate = MaxLoss(0.01).certify(rows)
    >>> certificate.statement
    "At most 1% of all answers differ from the large model's, so at most 1% more are wrong, with 90% confidence."
    >>> round(certificate.stages.models[0].n_rows / certificate.n_rows, 2)
    0.57
    """

    uncertainty: Float
    is_bad: Flags
    costs: Float
    unlabelled_uncertainty: Float
    is_finite_pool: bool = False
    has_human_review: bool = False
    random_state: int | None = None
    uses_joint_risk: bool = False

    @property
    def n_gated_models(self) -> int:
        """Number of models with a threshold, so the last model is not counted."""
        return self.uncertainty.shape[1]

    @property
    def has_one_threshold(self) -> bool:
        """Whether only the first model has a threshold and may pass rows on."""
        return self.n_gated_models == 1

    def certify(self, promise: Promise) -> Certificate:
        """Certify the thresholds of the cheapest cascade that keeps the promise."""
        if isinstance(promise, MinAccuracy):
            return self._certify_accuracy(promise)
        if isinstance(promise, MaxLoss):
            return self._certify_loss(promise)
        raise UnsupportedPromiseError(
            "A cascade of scores supports MaxLoss(0.01) and MinAccuracy(0.95), but got"
            f" {promise!r}."
        )

    def _certify_loss(self, promise: MaxLoss) -> Certificate:
        """Certify the cheapest thresholds with a share of bad answers below the limit."""
        random_row_order = self._draw_row_order()
        n_labelled = len(random_row_order)
        n_pilot = 0
        if not self.has_one_threshold:
            n_pilot = _compute_pilot_size(n_labelled)
        n_testable = n_labelled - n_pilot
        bad_answer_test = self._build_bad_answer_test(promise, n_pilot=n_pilot)
        # With a single threshold, the tested rows of a pool get the answer of the last model.
        max_bad_rows = bad_answer_test.find_max_passing_bad_count(
            n_testable, corrects_tested_rows=self.has_one_threshold
        )
        if max_bad_rows is None:
            raise _make_loss_error(promise, bad_answer_test, n_tested=n_testable)

        n_tested = bad_answer_test.find_min_tested_rows(
            n_bad=max_bad_rows,
            n_available=n_testable,
            corrects_tested_rows=self.has_one_threshold,
        )
        tested_rows = random_row_order[n_pilot : n_pilot + n_tested]
        if self.has_one_threshold:
            thresholds = self._find_single_threshold(tested_rows, max_bad_rows=max_bad_rows)
        else:
            pilot = self._select_pilot(random_row_order[:n_pilot])
            last_passing_points = []
            for path in self._build_threshold_paths(pilot, tolerated_bad_share=0.0):
                last_passing_point = self._find_last_passing_point(
                    path, tested_rows, max_bad_rows=max_bad_rows
                )
                last_passing_points.append(last_passing_point)
            thresholds = self._find_cheapest_thresholds(last_passing_points, tested_rows)
        return build_loss_certificate(
            self,
            promise,
            thresholds=thresholds,
            tested_rows=tested_rows,
            n_pilot=n_pilot,
            pool_size=bad_answer_test.pool_size,
        )

    def _build_bad_answer_test(self, promise: MaxLoss, *, n_pilot: int) -> BadAnswerTest:
        """Build the exact test that the share of bad answers is at most epsilon."""
        significance_level = promise.delta
        tests_threshold_paths = not self.has_one_threshold
        if tests_threshold_paths:
            # A false pass on any path breaks the promise, so each path has an equal part of delta.
            significance_level = promise.delta / N_THRESHOLD_PATHS
        pool_size = None
        if self.is_finite_pool:
            n_labelled_rows = len(self.uncertainty)
            n_unlabelled_rows = len(self.unlabelled_uncertainty)
            pool_size = n_labelled_rows + n_unlabelled_rows
        return BadAnswerTest(
            max_bad_share=promise.epsilon,
            significance_level=significance_level,
            pool_size=pool_size,
            n_pilot_rows=n_pilot,
        )

    def _certify_accuracy(self, promise: MinAccuracy) -> Certificate:
        """Certify the cheapest thresholds whose answers pass the accuracy test."""
        split = self._split_rows()
        pilot = self._select_pilot(split.pilot_rows)
        if self.has_one_threshold:
            paths = [pilot.build_common_rank_path()]
        else:
            tolerated_bad_share = 0.0
            if self.has_human_review:
                # An accuracy of at least beta allows a share 1 - beta of the answers to be wrong.
                tolerated_bad_share = 1.0 - promise.beta
            paths = self._build_threshold_paths(pilot, tolerated_bad_share)
        significance_level = (promise.delta or 0.0) / len(paths)

        path_tests = []
        for path in paths:
            path_test = self._test_accuracy_along_path(
                promise, path, pilot, split.tested_rows, significance_level=significance_level
            )
            path_tests.append(path_test)

        certified_points = []
        counts_of_failed_points = []
        for path_test in path_tests:
            certified_points += path_test.certified_points
            if path_test.failed_counts is not None:
                counts_of_failed_points.append(path_test.failed_counts)
        if not certified_points:
            reported_counts = _choose_counts_to_report(counts_of_failed_points)
            raise make_accuracy_error(
                promise,
                n_errors=reported_counts.n_bad,
                n_answered=reported_counts.n_answered,
                significance_level=significance_level,
                has_human_review=self.has_human_review,
            )
        cheapest_thresholds = self._find_cheapest_thresholds(certified_points, split.tested_rows)
        return build_accuracy_certificate(
            self,
            promise,
            thresholds=cheapest_thresholds,
            tested_rows=split.tested_rows,
            n_pilot=len(split.pilot_rows),
        )

    def _test_accuracy_along_path(
        self,
        promise: MinAccuracy,
        path: list[Float],
        pilot: PilotScores,
        tested_rows: Codes,
        *,
        significance_level: float,
    ) -> _PathTest:
        """Test the threshold vectors of a path in order, up to the first failure.

        Parameters
        ----------
        promise : MinAccuracy
            Promise to certify.
        path : list of array of shape (m,)
            Threshold vectors, from strict to lax.
        pilot : PilotScores
            Pilot rows, which choose the point where the tests begin.
        tested_rows : array of int
            Rows that are tested.
        significance_level : float
            Significance level of each test.

        Returns
        -------
        _PathTest
        """
        start_index = pilot.find_point_with_smallest_expected_p_value(
            path,
            min_accuracy=promise.beta,
            n_tested=len(tested_rows),
            has_human_review=self.has_human_review,
        )
        certified_points: list[Float] = []
        for thresholds in path[start_index:]:
            counts = self.count_answers(thresholds, tested_rows)
            if not counts.certifies_accuracy(promise.beta, significance_level=significance_level):
                return _PathTest(certified_points, failed_counts=counts)
            certified_points.append(thresholds)
        return _PathTest(certified_points, failed_counts=None)

    def _draw_row_order(self) -> Codes:
        """Draw a random order of the labelled rows."""
        draws = RowDraws(
            seed_columns=(*self.uncertainty.T, *self.is_bad.T), random_state=self.random_state
        )
        return draws.draw_row_order(purpose="staged rows")

    def _split_rows(self) -> _RowSplit:
        """Split the labelled rows at random into pilot rows and tested rows."""
        row_order = self._draw_row_order()
        n_pilot = _compute_pilot_size(len(row_order))
        return _RowSplit(pilot_rows=row_order[:n_pilot], tested_rows=row_order[n_pilot:])

    def _select_pilot(self, pilot_rows: Codes) -> PilotScores:
        """Return the scores and bad-answer flags of the pilot rows."""
        return PilotScores(
            uncertainty=self.uncertainty[pilot_rows],
            is_bad=self.select_bad_flags(pilot_rows),
            costs=self.costs,
            unlabelled_uncertainty=self.unlabelled_uncertainty,
        )

    def _build_threshold_paths(
        self, pilot: PilotScores, tolerated_bad_share: float
    ) -> list[list[Float]]:
        """Build the two paths of threshold vectors to test, from pilot rows."""
        return [
            pilot.build_common_rank_path(),
            pilot.build_price_path(tolerated_bad_share, uses_joint_risk=self.uses_joint_risk),
        ]

    def _find_single_threshold(self, tested_rows: Codes, *, max_bad_rows: int) -> Float:
        """Find the largest threshold that accepts at most `max_bad_rows` bad rows."""
        is_bad = self.is_bad[tested_rows, 0]
        bad_scores = np.sort(self.uncertainty[tested_rows, 0][is_bad])
        if len(bad_scores) <= max_bad_rows:
            return np.array([math.inf])
        first_rejected_bad_score = bad_scores[max_bad_rows]
        threshold = float(np.nextafter(first_rejected_bad_score, -np.inf))
        return np.array([RELATIVE_GRID.make_robust_to_rounding(threshold)])

    def _find_last_passing_point(
        self, path: list[Float], tested_rows: Codes, *, max_bad_rows: int
    ) -> Float:
        """Return the last threshold vector of a path before too many answers are bad."""
        last_passing_point = np.full(self.n_gated_models, -math.inf)
        for thresholds in path:
            if self.count_answers(thresholds, tested_rows).n_bad > max_bad_rows:
                break
            last_passing_point = thresholds
        return last_passing_point

    def _find_cheapest_thresholds(self, candidates: list[Float], rows: Codes) -> Float:
        """Return the threshold vector with the smallest mean cost of a row."""
        total_costs = self.costs.cumsum()

        def compute_mean_cost(thresholds: Float) -> float:
            answering_model_index = self.find_answering_model(thresholds, rows)
            return float(total_costs[answering_model_index].mean())

        return min(candidates, key=compute_mean_cost)

    def find_answering_model(self, thresholds: Float, rows: Codes) -> Codes:
        """Return the index of the model that answers each row.

        The index is m, for the last model or people, if none of the m models accepts the row.
        """
        return find_answering_model(self.uncertainty[rows], thresholds)

    def select_bad_flags(self, rows: Codes) -> Flags:
        """Return a boolean array of shape (rows, models) that is true for bad answers.

        Its last column is for the last model, or for people.
        """
        is_bad_by_model = self.is_bad[rows]
        n_model_columns = is_bad_by_model.shape[1]
        has_column_of_last_model = n_model_columns > self.n_gated_models
        if has_column_of_last_model:
            return is_bad_by_model
        # The last answer is never bad, because it is compared with itself or given by people.
        is_last_answer_bad = np.zeros(len(is_bad_by_model), dtype=bool)
        return np.column_stack([is_bad_by_model, is_last_answer_bad])

    def count_answers(self, thresholds: Float, rows: Codes) -> AnswerCounts:
        """Count the answered rows and the bad answers at the given thresholds."""
        answering_model_index = self.find_answering_model(thresholds, rows)
        is_bad_by_model = self.select_bad_flags(rows)
        is_bad_answer = is_bad_by_model[np.arange(len(rows)), answering_model_index]
        n_answered = len(rows)
        if self.has_human_review:
            n_answered = int(np.count_nonzero(answering_model_index < self.n_gated_models))
        return AnswerCounts(n_answered=n_answered, n_bad=int(is_bad_answer.sum()))


def _compute_pilot_size(n_rows: int) -> int:
    """Compute the number of labelled rows that choose the thresholds."""
    return max(_MIN_PILOT_ROWS, math.ceil(_PILOT_SHARE * n_rows))


def _choose_counts_to_report(failed_counts: list[AnswerCounts]) -> AnswerCounts:
    """Return the first counts with at least one answered row, or else the last."""
    for counts in failed_counts:
        if counts.n_answered > 0:
            return counts
    return failed_counts[-1]


def _make_loss_error(
    promise: MaxLoss, bad_answer_test: BadAnswerTest, *, n_tested: int
) -> InfeasibleTargetError:
    """Build the error for too few labelled rows to certify a loss."""
    max_bad_share = bad_answer_test.max_bad_share
    rows_needed = compute_rows_needed_without_bad_answer(
        max_bad_share, bad_answer_test.significance_level
    )
    message = (
        f"Cannot certify a loss of {max_bad_share:g} on {n_tested:,} labelled rows"
        f" {promise.confidence_phrase}. Even without a disagreement, at least {rows_needed:,} rows are"
        " required. Label more rows, or raise the limit."
    )
    return InfeasibleTargetError(message, target=max_bad_share, rows_needed=rows_needed)
