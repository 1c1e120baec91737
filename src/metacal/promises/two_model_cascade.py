"""Certification of a cascade of a small and a large model from their predictions.

Two promises are possible. `MaxLoss` is relative: of all rows at most ε more are wrong than if the
large model answered alone. `MinAccuracy` is absolute: the answers of the cascade are correct at
least β of the time.

**Why thresholds and not ranks.** A gate of one model is tested at ranks: the m most confident rows.
The risk of a cascade depends on how *many* rows each model answers, R(s) = P(h <= s)·P(wrong | h <=
s) + P(h > s)·P(wrong | h > s). At a rank this share is a random number, which a test would take for
known. At a threshold that is fixed beforehand each row is worse, better or neither, right or wrong,
independently of the others. So pilot rows choose the thresholds and their order, before any label
of a tested row is used.

*Proof.* Let A be the pilot rows and B the tested rows.

1. Rows are independent. So given A the rows of B are i.i.d., and every candidate is a fixed
   hypothesis.
2. Relative: given A, the numbers of rows with h <= s that are worse, better and neither are
   multinomial. `noninferiority` has the exact p-value of "ε or more worse".
3. Absolute: among the m rows of B that a candidate answers, the number of errors is Bin(m, error
   rate) given m. So P(Bin(m, 1-β) <= errors) is a valid p-value.
4. Candidates are tested in order at the full level, up to the first that fails. The first bad one
   in a sequence passes with probability at most its level.
5. A second sequence has its own fraction of delta, by the union bound. The fractions sum to one. ∎

Without people, only the scores of A are used, so pilot rows need no labels. With people there are
two thresholds. The order of pairs is chosen on labelled pilot rows (Pareto testing): the pairs that
are cheapest at their estimated risk, safest first.

References
----------
Angelopoulos, Bates, Candès, Jordan & Lei, "Learn then Test", 2021. Laufer-Goldenthal, Fisch,
Barzilay & Jaakkola, "Efficiently controlling multiple risks with Pareto testing", ICLR 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from metacal.certificates.cascade_stages import StageCount, Stages
from metacal.certificates.certificate import Certificate
from metacal.certificates.design import CertificationDesign, record_design
from metacal.certificates.notes import Note, note_labels_ran_out
from metacal.certification.ranking import Evidence, ThresholdOutcome
from metacal.certification.statements import build_certificate
from metacal.errors import MissingLabelsError
from metacal.kernels.grid import RELATIVE_GRID, Grid
from metacal.promises.cascade_candidates import (
    DEFAULT_PLAN,
    Candidate,
    CascadePlan,
    OutcomeCounts,
    PairedPredictions,
    count_outcomes,
    split_pilot_rows,
)
from metacal.promises.cascade_sequences import CandidateSequence
from metacal.promises.cascade_tests import CascadeTest, check_cascade_promise, make_cascade_test
from metacal.promises.promise import Promise


@dataclass(frozen=True, eq=False)
class TwoModelEvidence(Evidence):
    """Predictions of two models for the same rows, from which a cascade is certified.

    Attributes
    ----------
    rows : PairedPredictions
        Calibration rows.
    plan : CascadePlan
        Options of the certification.
    score_grids : tuple of two Grid
        Grids of the scores of the small and the large model. A threshold lies between two points.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.promises.cascade import MaxLoss
    >>> rng = np.random.default_rng(0)
    >>> score = rng.random(2000)
    >>> small, large = rng.random(2000) > score / 3, rng.random(2000) > 0.02
    >>> every_row = np.ones(2000, dtype=bool)
    >>> rows = PairedPredictions(score, rng.random(2000), small, large, small & large, every_row)
    >>> certificate = MaxLoss(0.02).certify(TwoModelEvidence(rows))
    >>> certificate.statement
    'Of all answers at most 2% more are incorrect than if the large model answered alone, with 90% confidence.'
    >>> round(certificate.stages.models[0].n_rows / certificate.n_rows, 2)
    0.32
    """

    rows: PairedPredictions
    plan: CascadePlan = DEFAULT_PLAN
    score_grids: tuple[Grid, Grid] = (RELATIVE_GRID, RELATIVE_GRID)

    def certify(self, promise: Promise) -> Certificate:
        """Certify the last candidate in the test sequences that passes its test."""
        cascade_test = make_cascade_test(check_cascade_promise(promise))
        pilot_rows, tested_rows = split_pilot_rows(self.rows, self.plan)
        sequences = cascade_test.build_sequences(
            pilot_rows, tested_rows, self.plan, self.score_grids
        )
        sequence_result = _test_sequences(cascade_test, tested_rows, sequences)
        if sequence_result.last_passed is None:
            first_sequence = sequences[0]
            first_counts = count_outcomes(tested_rows, first_sequence.candidates[0])
            assert promise.delta is not None
            significance_level = first_sequence.delta_fraction * promise.delta
            raise cascade_test.make_infeasible_error(
                first_counts,
                n_tested=len(tested_rows),
                significance_level=significance_level,
                has_human_review=self.plan.has_human_review,
            )
        needs_label = cascade_test.find_rows_needing_labels(
            tested_rows, sequence_result.highest_tested_threshold
        )
        return self._build_certificate(
            promise,
            tested_rows,
            sequence_result.last_passed,
            n_labels=int(needs_label.sum()),
            ran_out_of_labels=sequence_result.ran_out_of_labels,
        )

    def _build_certificate(
        self,
        promise: Promise,
        tested_rows: PairedPredictions,
        candidate: Candidate,
        *,
        n_labels: int,
        ran_out_of_labels: bool,
    ) -> Certificate:
        """Build the certificate of a candidate that passed its test.

        Parameters
        ----------
        promise : Promise
            Certified promise.
        tested_rows : PairedPredictions
            Tested rows.
        candidate : Candidate
            Certified thresholds.
        n_labels : int
            Number of tested rows whose label was needed.
        ran_out_of_labels : bool
            Whether the tests ended because labels were missing.

        Returns
        -------
        Certificate
        """
        counts = count_outcomes(tested_rows, candidate)
        has_all_labels = bool(tested_rows.has_label.all())
        n_correct = 0
        if has_all_labels:
            n_correct = counts.n_answered - counts.n_errors
        stages = Stages(
            _build_stage_counts(candidate, counts, counts_errors=has_all_labels),
            has_human_review=self.plan.has_human_review,
            n_only_cascade_wrong=counts.n_worse,
            n_only_reference_wrong=counts.n_better,
            n_pilot_rows=len(self.rows) - len(tested_rows),
            n_labels=n_labels,
        )
        outcome = ThresholdOutcome(
            n_rows=len(tested_rows),
            n_correct=n_correct,
            n_accepted=counts.n_answered,
            n_correct_accepted=n_correct,
            highest_accepted=None,
            lowest_rejected=None,
        )
        rule_name = promise.get_cascade_rule(has_human_review=self.plan.has_human_review)
        notes: tuple[Note, ...] = ()
        if ran_out_of_labels:
            notes = (note_labels_ran_out(),)
        quantity, target = promise.limits[0]
        certificate = build_certificate(
            quantity,
            target=target,
            delta=promise.delta,
            rule_name=rule_name,
            threshold=candidate.small_threshold,
            outcome=outcome,
            notes=notes,
        )
        certificate = replace(certificate, has_labels=has_all_labels, stages=stages)
        # The seed is recorded only if pilot rows were drawn, because nothing else uses a seed.
        random_state = None
        if stages.n_pilot_rows > 0:
            random_state = self.plan.random_state
        return record_design(certificate, CertificationDesign(random_state=random_state))


def _build_stage_counts(
    candidate: Candidate, counts: OutcomeCounts, *, counts_errors: bool
) -> tuple[StageCount, StageCount]:
    """Build the stages of the small and the large model, with their counts.

    Parameters
    ----------
    candidate : Candidate
        Certified thresholds.
    counts : OutcomeCounts
        Counts of the tested rows at these thresholds.
    counts_errors : bool
        Whether the errors are counted, which needs all labels.

    Returns
    -------
    small_stage, large_stage : StageCount
    """
    n_small_errors = None
    n_large_errors = None
    if counts_errors:
        n_small_errors = counts.n_small_errors
        n_large_errors = counts.n_large_errors
    small_stage = StageCount(
        name="small",
        score="score",
        threshold=candidate.small_threshold,
        n_rows=counts.n_small,
        n_wrong=n_small_errors,
    )
    large_stage = StageCount(
        name="large",
        score="score",
        threshold=candidate.large_threshold,
        n_rows=counts.n_large,
        n_wrong=n_large_errors,
    )
    return small_stage, large_stage


class _SequenceResult(NamedTuple):
    """Result of testing sequences of candidates.

    Attributes
    ----------
    last_passed : Candidate or None
        Last candidate that passed. None if none did.
    highest_tested_threshold : float
        Highest tested threshold of the small model.
    ran_out_of_labels : bool
        Whether the tests ended because labels were missing.
    """

    last_passed: Candidate | None
    highest_tested_threshold: float
    ran_out_of_labels: bool


def _test_sequences(
    cascade_test: CascadeTest,
    tested_rows: PairedPredictions,
    sequences: Sequence[CandidateSequence],
) -> _SequenceResult:
    """Test the candidates of each sequence in order, up to the first failure.

    A later sequence is tested only if no candidate of the earlier ones passed. If labels are
    missing, the tests end early, which is valid whatever was observed before.
    """
    delta = cascade_test.promise.delta
    assert delta is not None
    last_passing_candidate: Candidate | None = None
    highest_tested_threshold = -math.inf
    for sequence in sequences:
        significance_level = sequence.delta_fraction * delta
        for candidate in sequence.candidates:
            n_missing_labels = _count_missing_labels(cascade_test, tested_rows, candidate)
            if n_missing_labels > 0:
                if last_passing_candidate is None:
                    raise _build_missing_labels_error(n_missing_labels)
                return _SequenceResult(
                    last_passing_candidate, highest_tested_threshold, ran_out_of_labels=True
                )
            highest_tested_threshold = max(highest_tested_threshold, candidate.small_threshold)
            candidate_passes = cascade_test.passes(
                count_outcomes(tested_rows, candidate),
                n_tested=len(tested_rows),
                significance_level=significance_level,
            )
            if not candidate_passes:
                break
            last_passing_candidate = candidate
        if last_passing_candidate is not None:
            break
    return _SequenceResult(
        last_passing_candidate, highest_tested_threshold, ran_out_of_labels=False
    )


def _count_missing_labels(
    cascade_test: CascadeTest, tested_rows: PairedPredictions, candidate: Candidate
) -> int:
    """Count the unlabelled rows whose labels are needed to test a candidate."""
    needs_label = cascade_test.find_rows_needing_labels(tested_rows, candidate.small_threshold)
    return int((needs_label & ~tested_rows.has_label).sum())


def _build_missing_labels_error(n_missing_labels: int) -> MissingLabelsError:
    """Build the error for labels that are missing in the test of the first candidate."""
    return MissingLabelsError(
        f"{n_missing_labels:,} rows have no label, although the two models disagree on them and the"
        " small model is most confident. Label these rows. Rows on which the models agree do not"
        " require labels."
    )
