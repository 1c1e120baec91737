"""Numbers of rows that each model of a certified cascade answers."""

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
    models : tuple of StageCount
        The models in the order in which rows reach them.
    has_human_review : bool
        Whether people review the rows that no model answers.
    n_only_cascade_wrong, n_only_reference_wrong : int or None
        Numbers of tested rows on which only the answer of the cascade is incorrect, or only the
        answer of the *reference*: the last model, or people if the promise is about their answers.
        An earlier model answered these rows. None if only agreement was observed.
    n_disagreements : int or None
        If only agreement was observed: number of tested rows that an earlier model answers
        differently from the last model.
    n_pilot_rows, n_labels : int
        Number of pilot rows, which chose the thresholds, and of labels that the tests needed.
    pool_size : int or None
        Number of rows of the pool, if the promise is about a pool and not about its source.
    """

    models: tuple[StageCount, ...] = field(metadata=stored_as("items"))
    has_human_review: bool = field(metadata=stored_as("people"))
    n_only_cascade_wrong: int | None = field(metadata=stored_as("n_worse"))
    n_only_reference_wrong: int | None = field(metadata=stored_as("n_better"))
    n_pilot_rows: int = field(metadata=stored_as("n_aside"))
    n_labels: int
    pool_size: int | None = field(default=None, metadata=stored_as("pool"))
    n_disagreements: int | None = field(default=None, metadata=stored_as("n_differ"))

    @property
    def n_answered(self) -> int:
        """Number of rows that some model answers."""
        return sum(stage.n_rows for stage in self.models)

    @property
    def n_wrong(self) -> int | None:
        """Number of incorrect answers of all models, None if labels are missing."""
        n_wrong_answers = 0
        for stage in self.models:
            if stage.n_wrong is None:
                return None
            n_wrong_answers += stage.n_wrong
        return n_wrong_answers

    @property
    def n_answered_without_reference(self) -> int:
        """Number of rows that a model answers before they reach the last model or people."""
        if self.has_human_review:
            return self.n_answered
        return self.n_answered - self.models[-1].n_rows

    def find_contradiction(self, certificate: Certificate) -> str | None:
        """Describe the first count that contradicts a certificate, or return None."""
        return (
            self._find_mismatch_with_certificate(certificate)
            or self._find_impossible_counts(certificate)
            or self._find_impossible_errors()
        )

    def _find_mismatch_with_certificate(self, certificate: Certificate) -> str | None:
        """Describe a threshold, score or count that contradicts the certificate."""
        first_stage = self.models[0]
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
        counts_from_labels = [self.n_only_cascade_wrong, self.n_only_reference_wrong]
        counts_from_agreement = [self.n_disagreements]
        if certificate.quantity.uses_agreement_only:
            required_counts, forbidden_counts = counts_from_agreement, counts_from_labels
        else:
            required_counts, forbidden_counts = counts_from_labels, counts_from_agreement
        counts_of_differing_rows = [count for count in required_counts if count is not None]
        lacks_required_count = len(counts_of_differing_rows) < len(required_counts)
        has_forbidden_count = any(count is not None for count in forbidden_counts)
        if lacks_required_count or has_forbidden_count:
            return "worse and better rows belong to labels, differing ones to agreement"
        counts_of_answered_rows = [stage.n_rows for stage in self.models]
        all_counts = [
            *counts_of_differing_rows,
            *counts_of_answered_rows,
            self.n_pilot_rows,
            self.n_labels,
        ]
        if min(all_counts) < 0:
            return "a count is negative"
        contradiction = self._find_unanswered_rows(certificate.n_rows)
        if contradiction is not None:
            return contradiction
        # The cascade can differ from the reference only on rows that the reference does not answer.
        n_differing_rows = sum(counts_of_differing_rows)
        has_too_many_differences = n_differing_rows > self.n_answered_without_reference
        if has_too_many_differences or self.n_labels > certificate.n_rows:
            return "more rows differ, or have a label, than there are"
        return None

    def _find_unanswered_rows(self, n_rows: int) -> str | None:
        """Describe why models and people cannot have answered all rows, or return None."""
        is_single_model = len(self.models) < 2
        if is_single_model or self.n_answered > n_rows:
            return "the rows that each answers do not sum to all rows"
        if self.has_human_review:
            return None
        if self.n_answered < n_rows:
            return "rows are left to people in a cascade without people"
        last_stage = self.models[-1]
        if last_stage.threshold != math.inf:
            return "the last model turns rows away in a cascade without people"
        return None

    def _find_impossible_errors(self) -> str | None:
        """Describe why the numbers of incorrect answers are impossible, or return None."""
        if self.n_wrong is None:
            if any(stage.n_wrong is not None for stage in self.models):
                return "the wrong answers are known of some models alone"
            return None
        if self.n_only_cascade_wrong is None or self.n_only_reference_wrong is None:
            return "wrong answers are counted, and only agreement was observed"
        *error_counts_of_earlier_models, n_errors_of_last_model = [
            stage.n_wrong for stage in self.models if stage.n_wrong is not None
        ]
        # Earlier models err on each row on which only the cascade is wrong. They are correct on
        # each row on which only the reference is wrong.
        min_errors_of_earlier_models = self.n_only_cascade_wrong
        max_errors_of_earlier_models = (
            self.n_answered_without_reference - self.n_only_reference_wrong
        )
        n_errors_of_earlier_models = sum(error_counts_of_earlier_models)
        has_possible_errors_of_earlier_models = (
            min(error_counts_of_earlier_models) >= 0
            and min_errors_of_earlier_models
            <= n_errors_of_earlier_models
            <= max_errors_of_earlier_models
        )
        n_answers_of_last_model = self.models[-1].n_rows
        has_possible_errors_of_last_model = 0 <= n_errors_of_last_model <= n_answers_of_last_model
        if not (has_possible_errors_of_earlier_models and has_possible_errors_of_last_model):
            return "more answers are wrong than were given, or fewer than differ"
        return None
