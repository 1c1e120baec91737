"""Counts of the stages of a certified cascade: which model answers which rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from metacal.certificates.stored_fields import stored_as

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate


@dataclass(frozen=True)
class StageCount:
    """Threshold and counts of one model of a cascade.

    A model answers the rows that reach it iff its score is at most the threshold.

    Attributes
    ----------
    name, score : str
        Names of the model and of its ranking score.
    threshold : float
        Largest answered score; +inf if the model answers every row that reaches it.
    n_rows : int
        Number of tested rows that the model answers.
    n_wrong : int or None
        Number of incorrect answers among them; None if labels are missing.
    """

    name: str
    score: str
    threshold: float
    n_rows: int
    n_wrong: int | None


@dataclass(frozen=True)
class Stages:
    """Models of a cascade, and the comparison of the cascade with its last model.

    Attributes
    ----------
    items : tuple of StageCount
        The models in the order in which rows reach them.
    has_human_review : bool
        Whether people review the rows that no model answers.
    n_worse, n_better : int or None
        Tested rows that an earlier model answers, by outcome: only the earlier model is incorrect,
        or only the last model would be. None if only agreement was observed.
    n_disagreements : int or None
        If only agreement was observed: tested rows that an earlier model answers, with an answer
        that differs from that of the last model.
    n_pilot_rows, n_labels : int
        Number of pilot rows, which chose the thresholds, and of labels that the tests needed.
    pool_size : int or None
        Number of rows of the pool, if the promise is about a pool and not about its source.
    """

    items: tuple[StageCount, ...]
    has_human_review: bool = field(metadata=stored_as("people"))
    n_worse: int | None
    n_better: int | None
    n_pilot_rows: int = field(metadata=stored_as("n_aside"))
    n_labels: int
    pool_size: int | None = field(default=None, metadata=stored_as("pool"))
    n_disagreements: int | None = field(default=None, metadata=stored_as("n_differ"))

    @property
    def n_answered(self) -> int:
        """Number of rows that some model answers."""
        return sum(stage.n_rows for stage in self.items)

    @property
    def n_wrong(self) -> int | None:
        """Number of incorrect answers, None if labels are missing."""
        total = 0
        for stage in self.items:
            if stage.n_wrong is None:
                return None
            total += stage.n_wrong
        return total

    @property
    def n_answered_early(self) -> int:
        """Number of rows answered before the last model or before people."""
        if self.has_human_review:
            return self.n_answered
        return self.n_answered - self.items[-1].n_rows

    def find_contradiction(self, certificate: Certificate) -> str | None:
        """Describe the first contradiction to a certificate, or return None."""
        return (
            self._find_mismatch_with_certificate(certificate)
            or self._find_impossible_counts(certificate)
            or self._find_impossible_errors()
        )

    def _find_mismatch_with_certificate(self, certificate: Certificate) -> str | None:
        """Describe a threshold, score or count that the certificate states differently."""
        first_stage = self.items[0]
        has_same_threshold = certificate.threshold == first_stage.threshold
        has_same_score = certificate.score == first_stage.score
        if not has_same_threshold or not has_same_score:
            return "the first model's threshold or score is not the certificate's"
        if self.n_wrong is None:
            has_same_counts = not certificate.has_labels
        else:
            n_correct = self.n_answered - self.n_wrong
            has_same_counts = (
                certificate.has_labels
                and certificate.n_correct == n_correct
                and certificate.n_correct_accepted == n_correct
            )
        if certificate.n_accepted != self.n_answered or not has_same_counts:
            return "the models answer other rows than are accepted"
        return None

    def _find_impossible_counts(self, certificate: Certificate) -> str | None:
        """Describe a count of rows that is missing, unexpected, negative or too large."""
        counts_from_labels = [self.n_worse, self.n_better]
        counts_from_agreement = [self.n_disagreements]
        if certificate.quantity.uses_agreement_only:
            expected_counts, unexpected_counts = counts_from_agreement, counts_from_labels
        else:
            expected_counts, unexpected_counts = counts_from_labels, counts_from_agreement
        known_counts = [count for count in expected_counts if count is not None]
        lacks_expected_count = len(known_counts) < len(expected_counts)
        has_unexpected_count = any(count is not None for count in unexpected_counts)
        if lacks_expected_count or has_unexpected_count:
            return "worse and better rows belong to labels, differing ones to agreement"
        answered_counts = [stage.n_rows for stage in self.items]
        if min(*known_counts, self.n_pilot_rows, self.n_labels, *answered_counts) < 0:
            return "a count is negative"
        contradiction = self._find_unanswered_rows(certificate.n_rows)
        if contradiction is not None:
            return contradiction
        n_rows_with_other_outcome = sum(known_counts)
        has_too_many_differences = n_rows_with_other_outcome > self.n_answered_early
        if has_too_many_differences or self.n_labels > certificate.n_rows:
            return "more rows differ, or have a label, than there are"
        return None

    def _find_unanswered_rows(self, n_rows: int) -> str | None:
        """Describe why the stages cannot have answered all rows, or return None."""
        is_single_model = len(self.items) < 2
        if is_single_model or self.n_answered > n_rows:
            return "the rows that each answers do not sum to all rows"
        if self.has_human_review:
            return None
        if self.n_answered < n_rows:
            return "rows are left to people in a cascade without people"
        last_stage = self.items[-1]
        if last_stage.threshold != math.inf:
            return "the last model turns rows away in a cascade without people"
        return None

    def _find_impossible_errors(self) -> str | None:
        """Describe a number of incorrect answers that contradicts the other counts."""
        if self.n_wrong is None:
            if any(stage.n_wrong is not None for stage in self.items):
                return "the wrong answers are known of some models alone"
            return None
        if self.n_worse is None or self.n_better is None:
            return "wrong answers are counted, and only agreement was observed"
        *earlier_error_counts, n_last_errors = [stage.n_wrong or 0 for stage in self.items]
        # Each of the `n_worse` answers is incorrect, and each of the `n_better` answers is correct.
        min_earlier_errors = self.n_worse
        max_earlier_errors = self.n_answered_early - self.n_better
        n_earlier_errors = sum(earlier_error_counts)
        are_earlier_errors_possible = (
            min(earlier_error_counts) >= 0
            and min_earlier_errors <= n_earlier_errors <= max_earlier_errors
        )
        are_last_errors_possible = 0 <= n_last_errors <= self.items[-1].n_rows
        if not (are_earlier_errors_possible and are_last_errors_possible):
            return "more answers are wrong than were given, or fewer than differ"
        return None
