r"""Labels that arrive one after the other, for rows that were drawn beforehand.

N rows of a pool are drawn at random, where N is fixed before the first label. Their scores are known
from the beginning, so the test sequence of an accuracy is known too. The test at a rank needs the
labels of the rows up to that rank and no others. If rows are labelled from the most certain one
upward, then at every moment

- the certified rank is the highest rank that passed among those up to which every row has its label;
- the reachable rank is the rank that would pass if every missing label were correct. More errors
  increase each p-value and decrease each level, so whatever passes in the end passes then.

**Why this is valid at any stopping time.** The ranks that have passed by now are some of those that
pass when all N labels are known, because labels above a rank do not change its test or the tests
before it. With probability 1 - delta none of the latter is bad (`rules.fixed_sequence`), so with the
same probability none of the former is, whenever labelling stops. For the same reason it does not
matter which rows are labelled first. When nothing more can be certified, the threshold is that of all
N labels.

**Not valid**: changing N after labels were seen. Another N gives another sequence, and two sequences
at full delta break more than delta of the promises. An extension that was declared before the first
label shares delta with it (`DELTA_FRACTIONS_WITH_EXTENSION`).

**Other promises** are certified when all N labels are known. For a miscoverage, for example, the rank
of the threshold depends on the number of correct rows, and nearly every label is needed to know it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.certificate import Certificate
from metacal.certificates.quantity import Quantity
from metacal.certification.certify import CertifiablePromise, certify
from metacal.certification.one_threshold import OneThresholdProcedure
from metacal.certification.plans import PilotRows
from metacal.certification.ranking import Evidence, Ranking
from metacal.certification.rows import CalibrationRows
from metacal.certification.ruled_out import find_ruled_out_thresholds
from metacal.certification.rules.rule import ACCEPT_ALL_ROWS, ThresholdResult
from metacal.certification.statements import (
    build_incomplete_labels_error,
    build_infeasible_accuracy_error,
    build_target_ruled_out_error,
)
from metacal.errors import InfeasibleTargetError, InputError, LabellingError, TooFewRowsError
from metacal.formulas import Float
from metacal.kernels.grid import RELATIVE_GRID
from metacal.spelling import choose_spelling
from metacal.statistics import bounds

# Codes of incorrect, correct and unlabelled rows in `PartialLabels.states`.
INCORRECT, CORRECT, UNKNOWN = 0, 1, -1

# Number of errors that the promise allows among the default number of rows to label.
_N_ALLOWED_ERRORS_BY_DEFAULT = 40

# Fractions of delta for the first sample and for the sample after an extension.
DELTA_FRACTIONS_WITH_EXTENSION = (0.8, 0.2)

# Factor by which an extension of the sample increases the number of rows.
EXTENSION_FACTOR = 4


@dataclass(frozen=True)
class PartialLabels(Evidence):
    """Rows that were drawn, with the labels that are known so far.

    Attributes
    ----------
    scores : array of float of shape (n_rows,)
        Ranking score of each row.

    states : array of int8 of shape (n_rows,)
        CORRECT, INCORRECT or UNKNOWN.

    pilot_rows : PilotRows, optional
        Rows of the pool that were not drawn.

    Examples
    --------
    >>> states = np.array([UNKNOWN, CORRECT, INCORRECT, UNKNOWN], dtype=np.int8)
    >>> labels = PartialLabels(np.array([0.3, 0.1, 0.2, 0.2]), states)
    >>> labels.n_labelled, labels.last_fully_labelled_rank  # one of the two rows at 0.2 has no label
    (2, 1)
    """

    scores: Float
    states: NDArray[np.int8]
    pilot_rows: PilotRows | None = None

    @property
    def n_labelled(self) -> int:
        """Number of rows with a label."""
        return int(np.count_nonzero(self.states != UNKNOWN))

    @property
    def is_complete(self) -> bool:
        """Whether every row has a label."""
        return self.n_labelled == len(self.scores)

    @cached_property
    def last_fully_labelled_rank(self) -> int:
        """Highest rank up to which every label is known.

        It is the end of a block of equal scores.
        """
        unknown_scores = self.scores[self.states == UNKNOWN]
        if len(unknown_scores) == 0:
            return len(self.scores)
        return int(np.count_nonzero(self.scores < unknown_scores.min()))

    @cached_property
    def ranking_if_missing_correct(self) -> Ranking:
        """Ranking if every missing label were correct."""
        return Ranking.from_scores(self.scores, self.states != INCORRECT)

    @cached_property
    def ranking_if_missing_incorrect(self) -> Ranking:
        """Ranking if every missing label were incorrect."""
        return Ranking.from_scores(self.scores, self.states == CORRECT)

    def certify(self, promise: CertifiablePromise) -> Certificate:
        """Certify a promise, and count every row without a label as incorrect."""
        return certify_labels(promise, self)


class LabellingProgress(NamedTuple):
    """Progress of labelling: the certified threshold and the reachable one.

    Attributes
    ----------
    threshold : float or None
        Threshold that is certified by now, or None.

    reachable_threshold : float or None
        Threshold that would be certified if every missing label were correct, or None.

    n_rows_whose_labels_matter : int
        Only the labels of this many most certain rows can still change the result.
    """

    threshold: float | None
    reachable_threshold: float | None
    n_rows_whose_labels_matter: int


def assess_progress(promise: CertifiablePromise, labels: PartialLabels) -> LabellingProgress:
    """Find the certified threshold and the threshold that is still reachable."""
    partial_label_procedure = get_procedure_for_partial_labels(promise)
    if partial_label_procedure is None:
        return _assess_if_all_labels_needed(promise, labels)

    best_case_ranking = labels.ranking_if_missing_correct
    best_case_result = partial_label_procedure.find_threshold(
        best_case_ranking, promise.delta, pilot_rows=labels.pilot_rows
    )
    certified_result = _find_threshold_by_known_labels(
        partial_label_procedure, labels, promise.delta
    )
    return LabellingProgress(
        threshold=_round_threshold_if_certified(certified_result),
        reachable_threshold=_round_threshold_if_certified(best_case_result),
        n_rows_whose_labels_matter=_count_rows_up_to_highest_passed_rank(
            best_case_ranking, best_case_result
        ),
    )


def _count_rows_up_to_highest_passed_rank(
    ranking: Ranking, threshold_result: ThresholdResult
) -> int:
    """Count the rows up to the highest rank that passed a test, including ties.

    The labels of later rows cannot change which ranks pass.
    """
    test_sequence = threshold_result.trace
    if threshold_result.threshold is None or test_sequence is None:
        return 0
    # Rows with equal scores are accepted together, so the whole block of ties is counted.
    last_block = ranking.find_tie_block(test_sequence.highest_passed_rank)
    return int(ranking.tie_block_end_ranks[last_block])


def _find_threshold_by_known_labels(
    procedure: OneThresholdProcedure,
    labels: PartialLabels,
    delta: float | None,
    target: float | None = None,
) -> ThresholdResult:
    """Find the threshold certified by the labels before the first missing label.

    Only ranks up to the last fully labelled one are tested. Their tests do not depend on the missing
    labels, so these may be counted as correct.
    """
    return procedure.find_threshold(
        labels.ranking_if_missing_correct,
        delta,
        target=target,
        pilot_rows=labels.pilot_rows,
        max_tested_rank=labels.last_fully_labelled_rank,
    )


def certify_labels(promise: CertifiablePromise, labels: PartialLabels) -> Certificate:
    """Certify a promise from the labels that are known so far.

    Missing labels count as incorrect.

    Raises
    ------
    InfeasibleTargetError
        If the labels certify nothing by now.
    """
    partial_label_procedure = get_procedure_for_partial_labels(promise)
    if partial_label_procedure is None:
        return _certify_complete_labels(promise, labels)

    threshold_result = _find_threshold_by_known_labels(
        partial_label_procedure, labels, promise.delta
    )
    if threshold_result.threshold is None:
        raise _build_infeasible_error(partial_label_procedure, labels, promise.delta)
    certificate = partial_label_procedure.build_certificate_at(
        labels.ranking_if_missing_incorrect, threshold_result.threshold, promise.delta
    )
    return replace(certificate, n_labels=labels.n_labelled)


def get_procedure_for_partial_labels(promise: CertifiablePromise) -> OneThresholdProcedure | None:
    """Return the procedure that certifies a promise from partial labels.

    Returns None if all labels are needed.
    """
    procedure = promise.procedure()
    if not isinstance(procedure, OneThresholdProcedure) or promise.scope is not None:
        return None
    if not procedure.rule.tests_ranks_sequentially:
        return None
    return procedure


def default_number_of_labels(promise: CertifiablePromise) -> int:
    """Compute the default number of rows to label for a promise.

    Raises
    ------
    InputError
        If the promise has no share of rows as its limit.
    """
    allowed_error_rates = [
        _compute_allowed_error_rate(quantity, target)
        for quantity, target in promise.limits
        if not quantity.is_mean_cost
    ]
    if not allowed_error_rates:
        raise LabellingError(
            f"The promise {promise!r} requires a number of rows to label. Pass"
            f" {choose_spelling('labels=N', '--labels N')}."
        )
    strictest_error_rate = min(allowed_error_rates)
    return math.ceil(_N_ALLOWED_ERRORS_BY_DEFAULT / strictest_error_rate)


def _compute_allowed_error_rate(quantity: Quantity, target: float) -> Fraction:
    """Compute the largest error rate that a promised limit allows, as a fraction."""
    exact_target = bounds.to_exact_fraction(target)
    if quantity.has_upper_limit:
        # For an upper limit, the target is the allowed error rate.
        return exact_target
    # For a lower limit, the target is 1 minus the allowed error rate.
    return 1 - exact_target


def choose_sample_sizes(
    promise: CertifiablePromise, n_labels: int | None, *, n_available: int, may_extend: bool
) -> tuple[int, ...]:
    """Choose the numbers of rows to draw before and after a declared extension.

    Parameters
    ----------
    promise : CertifiablePromise
        Promise to certify, which determines the default number.

    n_labels : int or None
        Number of rows to draw that the user requested.

    n_available : int
        Number of rows that can be drawn.

    may_extend : bool
        Whether an extension is declared.

    Returns
    -------
    tuple of int
        Number of rows to draw, and the number after the extension if one is declared.

    Raises
    ------
    InputError
        If the requested number is not a positive integer, or exceeds the available rows.
    """
    n_rows_to_draw = n_labels
    if n_rows_to_draw is None:
        n_rows_to_draw = min(default_number_of_labels(promise), n_available)
    # The exact type is compared, because `isinstance(True, int)` is true.
    if type(n_rows_to_draw) is not int or n_rows_to_draw < 1:
        raise InputError(f"labels must be a positive integer, but got {n_labels!r}.")
    if n_rows_to_draw > n_available:
        raise TooFewRowsError(
            f"Cannot draw {n_rows_to_draw:,} rows, because only {n_available:,} rows of the pool have"
            " a score. Label fewer rows, or use a larger pool."
        )
    if not may_extend:
        return (n_rows_to_draw,)
    n_rows_after_extension = min(EXTENSION_FACTOR * n_rows_to_draw, n_available)
    return (n_rows_to_draw, n_rows_after_extension)


def _assess_if_all_labels_needed(
    promise: CertifiablePromise, labels: PartialLabels
) -> LabellingProgress:
    """Assess the labelling progress of a promise that needs all labels."""
    n_rows = len(labels.scores)
    try:
        certificate = _certify_complete_labels(promise, labels)
    except InfeasibleTargetError:
        # If labels are missing, the rows may still certify a threshold that accepts every row.
        reachable_threshold = None if labels.is_complete else ACCEPT_ALL_ROWS
        return LabellingProgress(
            threshold=None,
            reachable_threshold=reachable_threshold,
            n_rows_whose_labels_matter=n_rows,
        )
    return LabellingProgress(
        threshold=certificate.threshold,
        reachable_threshold=certificate.threshold,
        n_rows_whose_labels_matter=n_rows,
    )


def _certify_complete_labels(promise: CertifiablePromise, labels: PartialLabels) -> Certificate:
    """Certify a promise that needs the labels of all rows."""
    n_rows = len(labels.scores)
    if not labels.is_complete:
        _quantity, target = promise.limits[0]
        raise build_incomplete_labels_error(
            type(promise).__name__, target, n_rows, labels.n_labelled
        )
    labelled_rows = CalibrationRows.from_columns(labels.scores, labels.states == CORRECT)
    certificate = certify(promise, replace(labelled_rows, pilot_rows=labels.pilot_rows))
    return replace(certificate, n_labels=n_rows)


def _build_infeasible_error(
    procedure: OneThresholdProcedure, labels: PartialLabels, delta: float | None
) -> InfeasibleTargetError:
    """Build the error for labels that do not certify any threshold so far."""

    def known_labels_certify(target: float) -> bool:
        threshold_result = _find_threshold_by_known_labels(procedure, labels, delta, target)
        return threshold_result.threshold is not None

    worst_case_ranking = labels.ranking_if_missing_incorrect
    shortfall = procedure.rule.find_shortfall(
        worst_case_ranking, procedure.limit, delta, certifies=known_labels_certify
    )
    if labels.is_complete:
        return build_infeasible_accuracy_error(
            target=procedure.target,
            delta=delta,
            n_rows=worst_case_ranking.n_rows,
            best_limit=shortfall.best_limit,
            rows_needed=shortfall.rows_needed,
            ruled_out=find_ruled_out_thresholds(worst_case_ranking, procedure.limit, delta),
        )
    return build_target_ruled_out_error(
        target=procedure.target,
        n_rows=worst_case_ranking.n_rows,
        n_labelled=labels.n_labelled,
        best_limit=shortfall.best_limit,
        rows_needed=shortfall.rows_needed,
    )


def _round_threshold_if_certified(result: ThresholdResult) -> float | None:
    """Round a certified threshold to a midpoint of the score grid."""
    if result.threshold is None:
        return None
    return RELATIVE_GRID.make_robust_to_rounding(result.threshold)
