"""Tests of the promises about a cascade of a small and a large model.

`metacal.promises.two_model_cascade` tests candidates in order, and has the proof.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metacal.certificates.certificate import accept_up_to_threshold
from metacal.certificates.number_format import ceil_to_4_decimals, floor_to_4_decimals
from metacal.errors import InfeasibleTargetError, MissingLabelsError, UnsupportedPromiseError
from metacal.formulas import Flags
from metacal.kernels.grid import Grid
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.bad_answer_limit import compute_rows_needed_without_bad_answer
from metacal.promises.cascade import MaxLoss
from metacal.promises.cascade_candidates import CascadePlan, OutcomeCounts, PairedPredictions
from metacal.promises.cascade_sequences import (
    CandidateSequence,
    build_accuracy_sequences,
    build_loss_sequences,
    build_review_sequences,
)
from metacal.statistics import bounds
from metacal.statistics.noninferiority import NUISANCE_LEVEL_FRACTION, certifies_noninferiority

# Losses are tested in steps of 1 / _N_LOSS_STEPS to find the smallest certifiable loss.
_N_LOSS_STEPS = 10_000


class CascadeTest(ABC):
    """Test of a promise about a cascade, and the candidates that are tested."""

    promise: MaxLoss | MinAccuracy

    @abstractmethod
    def build_sequences(
        self,
        pilot_rows: PairedPredictions,
        tested_rows: PairedPredictions,
        plan: CascadePlan,
        score_grids: tuple[Grid, Grid],
    ) -> Sequence[CandidateSequence]:
        """Build the sequences of candidate thresholds from the pilot rows.

        Parameters
        ----------
        pilot_rows, tested_rows : PairedPredictions
            Pilot rows and tested rows. Of the tested rows only the number and the missing labels
            may be used.
        plan : CascadePlan
            Options of the certification.
        score_grids : tuple of two Grid
            Grids of the scores of the small and the large model.

        Returns
        -------
        sequence of CandidateSequence
        """

    @abstractmethod
    def find_rows_needing_labels(
        self, tested_rows: PairedPredictions, small_threshold: float
    ) -> Flags:
        """Return a mask of the rows whose labels are needed to test a threshold."""

    @abstractmethod
    def passes(self, counts: OutcomeCounts, *, n_tested: int, significance_level: float) -> bool:
        """Check whether the counts certify the promise at a significance level."""

    @abstractmethod
    def make_infeasible_error(
        self,
        counts: OutcomeCounts,
        *,
        n_tested: int,
        significance_level: float,
        has_human_review: bool,
    ) -> InfeasibleTargetError:
        """Build the error for a cascade whose first candidate thresholds fail the test.

        Parameters
        ----------
        counts : OutcomeCounts
            Counts of the first candidate.
        n_tested : int
            Number of tested rows.
        significance_level : float
            Significance level of its test.
        has_human_review : bool
            Whether people answer the rows that neither model accepts.

        Returns
        -------
        InfeasibleTargetError
        """


@dataclass(frozen=True)
class LossTest(CascadeTest):
    """Exact test of the error rate of a cascade against that of its large model."""

    promise: MaxLoss

    def build_sequences(
        self,
        pilot_rows: PairedPredictions,
        tested_rows: PairedPredictions,
        plan: CascadePlan,
        score_grids: tuple[Grid, Grid],
    ) -> Sequence[CandidateSequence]:
        """Build a test sequence in which the small model answers more and more rows."""
        if plan.has_human_review:
            raise UnsupportedPromiseError(
                "MaxLoss does not support people, because the large model predicts all rows that"
                " the small model rejects. To have people in the cascade, promise MinAccuracy."
            )
        small_score_grid, _ = score_grids
        return build_loss_sequences(pilot_rows, small_score_grid)

    def find_rows_needing_labels(
        self, tested_rows: PairedPredictions, small_threshold: float
    ) -> Flags:
        """Return a mask of the rows that the small model answers unlike the large model."""
        return ~tested_rows.models_agree & accept_up_to_threshold(
            tested_rows.small_score, small_threshold
        )

    def passes(self, counts: OutcomeCounts, *, n_tested: int, significance_level: float) -> bool:
        """Check whether the counts certify a loss of at most epsilon."""
        return self._certifies_max_loss(
            self.promise.epsilon,
            counts,
            n_tested=n_tested,
            significance_level=significance_level,
        )

    def _certifies_max_loss(
        self, max_loss: float, counts: OutcomeCounts, *, n_tested: int, significance_level: float
    ) -> bool:
        """Check whether the counts certify a loss of at most `max_loss`."""
        return certifies_noninferiority(
            n_only_first_incorrect=counts.n_worse,
            n_only_second_incorrect=counts.n_better,
            n=n_tested,
            margin=max_loss,
            level=significance_level,
            nuisance_level=NUISANCE_LEVEL_FRACTION * self.promise.delta,
        )

    def make_infeasible_error(
        self,
        counts: OutcomeCounts,
        *,
        n_tested: int,
        significance_level: float,
        has_human_review: bool,
    ) -> InfeasibleTargetError:
        """Build the error that states the smallest certifiable loss and the rows needed."""
        max_loss = self.promise.epsilon
        smallest_loss = self._find_smallest_certifiable_loss(
            counts, n_tested=n_tested, significance_level=significance_level
        )
        loss_text = "these rows support no larger loss either"
        if smallest_loss is not None:
            loss_text = (
                f"the smallest these rows support {self.promise.confidence_phrase} is"
                f" {smallest_loss:.4f}"
            )
        # The test spends a part of delta on its nuisance parameter, the rate of better rows. If no
        # row is worse or better, the rest of delta must exceed the binomial p-value.
        p_value_level = self.promise.delta * (1.0 - NUISANCE_LEVEL_FRACTION)
        min_rows_needed = compute_rows_needed_without_bad_answer(
            max_bad_share=max_loss, significance_level=p_value_level
        )
        advice = "use more rows or a better small model"
        rows_needed = None
        if min_rows_needed > n_tested:
            advice = f"use at least {min_rows_needed:,} rows"
            rows_needed = min_rows_needed
        message = (
            f"Cannot certify a loss of {max_loss:g} for this cascade; {loss_text} (the small model"
            f" answers {counts.n_small:,} of {n_tested:,} rows, {counts.n_worse:,} worse than the"
            f" large model and {counts.n_better:,} better). Raise the limit, or {advice}."
        )
        return InfeasibleTargetError(
            message, target=max_loss, best=smallest_loss, rows_needed=rows_needed
        )

    def _find_smallest_certifiable_loss(
        self, counts: OutcomeCounts, *, n_tested: int, significance_level: float
    ) -> float | None:
        """Return the smallest certifiable loss, to four decimals, or None."""

        def is_certifiable(loss_step: int) -> bool:
            return self._certifies_max_loss(
                loss_step / _N_LOSS_STEPS,
                counts,
                n_tested=n_tested,
                significance_level=significance_level,
            )

        # The failing losses come first, because any loss above a certifiable loss is certifiable.
        candidate_steps = range(1, _N_LOSS_STEPS)
        n_failing_steps = bisect_left(candidate_steps, True, key=is_certifiable)
        if n_failing_steps == len(candidate_steps):
            return None
        return ceil_to_4_decimals(candidate_steps[n_failing_steps] / _N_LOSS_STEPS)


@dataclass(frozen=True)
class AccuracyTest(CascadeTest):
    """Exact binomial test of the accuracy of the answered rows."""

    promise: MinAccuracy

    def build_sequences(
        self,
        pilot_rows: PairedPredictions,
        tested_rows: PairedPredictions,
        plan: CascadePlan,
        score_grids: tuple[Grid, Grid],
    ) -> Sequence[CandidateSequence]:
        """Build the sequences of candidate thresholds, and raise if a label is missing."""
        n_missing_labels = int((~tested_rows.has_label).sum())
        if plan.has_human_review:
            n_missing_labels += int((~pilot_rows.has_label).sum())
        if n_missing_labels > 0:
            raise MissingLabelsError(
                "A promise about accuracy requires the label of every row, but"
                f" {n_missing_labels:,} rows have no label. Label these rows, or promise MaxLoss,"
                " which requires fewer labels."
            )
        if plan.has_human_review:
            return build_review_sequences(
                pilot_rows,
                n_tested=len(tested_rows),
                min_accuracy=self.promise.beta,
                review_cost=plan.review_cost,
                score_grids=score_grids,
            )
        # Without human review, the large model rejects no row, so it has no threshold.
        small_score_grid, _ = score_grids
        return build_accuracy_sequences(pilot_rows, small_score_grid)

    def find_rows_needing_labels(
        self, tested_rows: PairedPredictions, small_threshold: float
    ) -> Flags:
        """Return a mask of all rows, because an accuracy test needs every label."""
        return np.ones(len(tested_rows), dtype=bool)

    def passes(self, counts: OutcomeCounts, *, n_tested: int, significance_level: float) -> bool:
        """Check whether the answers certify an accuracy of at least beta."""
        if counts.n_answered == 0:
            return False
        max_error_rate = 1.0 - self.promise.beta
        p_value = bounds.binomial_p_value(counts.n_errors, counts.n_answered, max_error_rate)
        return bool(p_value <= significance_level)

    def make_infeasible_error(
        self,
        counts: OutcomeCounts,
        *,
        n_tested: int,
        significance_level: float,
        has_human_review: bool,
    ) -> InfeasibleTargetError:
        """Build the error that states which accuracy the first candidate certifies."""
        return make_accuracy_error(
            self.promise,
            n_errors=counts.n_errors,
            n_answered=counts.n_answered,
            significance_level=significance_level,
            has_human_review=has_human_review,
        )


def make_accuracy_error(
    promise: MinAccuracy,
    *,
    n_errors: int,
    n_answered: int,
    significance_level: float,
    has_human_review: bool,
) -> InfeasibleTargetError:
    """Build the error for a cascade whose first thresholds fail the accuracy test.

    Parameters
    ----------
    promise : MinAccuracy
        Promise that cannot be certified.
    n_errors, n_answered : int
        Number of errors, and of answered rows, at the first tested thresholds.
    significance_level : float
        Significance level of the test.
    has_human_review : bool
        Whether people answer the rows that no model accepts.

    Returns
    -------
    InfeasibleTargetError
    """
    certified_accuracy = 0.0
    if n_answered > 0:
        n_correct = n_answered - n_errors
        lower_bound = bounds.clopper_pearson_lower(n_correct, n_answered, significance_level)
        certified_accuracy = floor_to_4_decimals(lower_bound)
    best_accuracy = certified_accuracy if certified_accuracy > 0.0 else None
    review_advice = ""
    if not has_human_review:
        review_advice = "send rows that no model accepts to review, "
    message = (
        f"Cannot certify an accuracy of {promise.beta:g} for this cascade: at the first tested"
        f" thresholds, {n_errors:,} of {n_answered:,} predictions are incorrect, which supports"
        f" {certified_accuracy:.4f} {promise.confidence_phrase}. Lower the target, use more rows,"
        f" {review_advice}or use a better large model."
    )
    return InfeasibleTargetError(message, target=promise.beta, best=best_accuracy)


def make_cascade_test(promise: MaxLoss | MinAccuracy) -> CascadeTest:
    """Return the statistical test for a promise about a cascade."""
    if isinstance(promise, MaxLoss):
        return LossTest(promise)
    return AccuracyTest(promise)


def check_cascade_promise(promise: object) -> MaxLoss | MinAccuracy:
    """Check that a cascade supports a promise, and return the promise.

    Parameters
    ----------
    promise : object
        Promise that the user passed.

    Returns
    -------
    MaxLoss or MinAccuracy

    Raises
    ------
    InputError
        If a cascade cannot make the promise, or if it has no delta.
    """
    # Subclasses are refused, because they may need another procedure.
    if type(promise) is not MaxLoss and type(promise) is not MinAccuracy:
        raise UnsupportedPromiseError(
            f"A cascade supports MaxLoss(0.01) and MinAccuracy(0.95), but got {promise!r}."
        )
    if promise.delta is None:
        raise UnsupportedPromiseError(
            "A cascade requires a promise with a delta, for example MinAccuracy(0.95, 0.1)."
        )
    return promise
