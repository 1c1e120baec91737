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
        """Number of incorrect answers; None if labels are missing."""
        total = 0
        for stage in self.items:
            if stage.n_wrong is None:
                return None
            total += stage.n_wrong
        return total

    @property
    def n_answered_early(self) -> int:
        """Number of rows answered before the last stage, which is people or the last model."""
        if self.has_human_review:
            return self.n_answered
        return self.n_answered - self.items[-1].n_rows

    def find_contradiction(self, certificate: Certificate) -> str | None:
        """Describe the first inconsistency of the counts with a certificate, or return None."""
        return (
            self._find_mismatch_with_certificate(certificate)
            or self._find_impossible_counts(certificate)
            or self._find_impossible_errors()
        )

    def _find_mismatch_with_certificate(self, certificate: Certificate) -> str | None:
        """Describe a threshold, score or count that differs from that of the certificate."""
        first_stage = self.items[0]
        has_same_score = certificate.score == first_stage.score
        if certificate.threshold != first_stage.threshold or not has_same_score:
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
        """Describe counts of rows that are missing, negative or too large."""
        n_rows = certificate.n_rows
        counts_with_labels = [self.n_worse, self.n_better]
        counts_without_labels = [self.n_disagreements]
        if certificate.quantity.uses_agreement_only:
            required_counts = counts_without_labels
            forbidden_counts = counts_with_labels
        else:
            required_counts = counts_with_labels
            forbidden_counts = counts_without_labels
        has_forbidden_counts = any(count is not None for count in forbidden_counts)
        if None in required_counts or has_forbidden_counts:
            return "worse and better rows belong to labels, differing ones to agreement"
        difference_counts = [count for count in required_counts if count is not None]
        stage_counts = [stage.n_rows for stage in self.items]
        if min(*difference_counts, self.n_pilot_rows, self.n_labels, *stage_counts) < 0:
            return "a count is negative"
        problem = self._find_unanswered_rows(n_rows)
        if problem is not None:
            return problem
        n_different = sum(difference_counts)
        if n_different > self.n_answered_early or self.n_labels > n_rows:
            return "more rows differ, or have a label, than there are"
        return None

    def _find_unanswered_rows(self, n_rows: int) -> str | None:
        """Describe rows that no stage answers in a cascade without people."""
        if len(self.items) < 2 or self.n_answered > n_rows:
            return "the rows that each answers do not sum to all rows"
        if self.has_human_review:
            return None
        if self.n_answered < n_rows:
            return "rows are left to people in a cascade without people"
        if self.items[-1].threshold != math.inf:
            return "the last model turns rows away in a cascade without people"
        return None

    def _find_impossible_errors(self) -> str | None:
        """Describe numbers of incorrect answers that the other counts exclude."""
        if self.n_wrong is None:
            if any(stage.n_wrong is not None for stage in self.items):
                return "the wrong answers are known of some models alone"
            return None
        if self.n_worse is None or self.n_better is None:
            return "wrong answers are counted, and only agreement was observed"
        *earlier_errors, last_errors = [stage.n_wrong or 0 for stage in self.items]
        # A worse answer is an error, and a better answer is not.
        max_earlier_errors = self.n_answered_early - self.n_better
        are_earlier_errors_possible = (
            min(earlier_errors) >= 0 and self.n_worse <= sum(earlier_errors) <= max_earlier_errors
        )
        are_last_errors_possible = 0 <= last_errors <= self.items[-1].n_rows
        if not (are_earlier_errors_possible and are_last_errors_possible):
            return "more answers are wrong than were given, or fewer than differ"
        return None
