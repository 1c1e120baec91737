"""What a cascade promises: a small model answers what its gate accepts, a large one the rest,
people what is left.

Two promises. *Relative*, `MaxLoss`: of all rows at most ε more are wrong than if the large model
answered alone. Rows on which the two give the same answer add nothing to the difference, so labels
are needed only where they disagree. *Absolute*, `MinAccuracy`: what the cascade answers is right at
least β of the time.

**Why not ranks.** A gate on one model is tested at ranks: the m most confident rows. What a cascade
risks depends on how *many* rows each model answers, R(s) = P(h <= s)·P(wrong | h <= s) + P(h >
s)·P(wrong | h > s), and at a rank that share is a random number which the test would take for
known. At a threshold fixed beforehand all is simple: each row is worse, better or neither, right or
wrong, independently. So thresholds come from rows of their own, and are walked in an order fixed
before any label of the tested rows is looked at.

*Proof.* Let A be the rows that choose thresholds and their order, B the others, which are tested;
rows are independent, so given A the rows of B are i.i.d. and every candidate is a fixed hypothesis.
(1) Relative: given A the counts of rows with h <= s that are worse, better and neither are
multinomial, and `noninferiority` has the exact p-value of "ε or more worse". (2) Absolute: among
the m rows of B that the candidate answers the wrong ones are Bin(m, error rate), given m: P(Bin(m,
1-β) <= errors) is a valid p-value. (3) Candidates are tested one after the other, at the full
level, up to the first that fails: the first bad one on the way passes with probability at most its
level. A second walk has a share of its own, by the union bound. The shares sum to δ.

Of A, the relative promise and the absolute one without people look at scores alone: labels of those
rows are not needed. With people in the cascade there are two thresholds, and the order in which
pairs of them are tested is chosen on A with labels (Pareto testing): of all pairs those that are
cheapest at their risk as A shows it, safest first.

References
----------
Angelopoulos, Bates, Candès, Jordan & Lei, "Learn then Test", 2021. Laufer-Goldenthal, Fisch,
Barzilay & Jaakkola, "Efficiently controlling multiple risks with Pareto testing", ICLR 2023.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from metacal.certificates.cascade_stages import StageCount, Stages
from metacal.certificates.certificate import Certificate, accepts
from metacal.certificates.circumstances import Circumstances, add_circumstances
from metacal.certificates.notes import labels_ran_out
from metacal.certificates.number_format import ceil_to_4_decimals, floor_to_4_decimals
from metacal.certificates.quantity import DISAGREEMENT, LOSS, Limits
from metacal.certificates.rule_texts import DRAWN_FROM_POOL, SAME_SOURCE_OF_BOTH, register_rule
from metacal.certification.pilot import PilotPolicy
from metacal.certification.ranking import Evidence, ThresholdOutcome
from metacal.certification.rows import CalibrationRows
from metacal.certification.statements import build_certificate
from metacal.errors import InfeasibleTargetError, InputError
from metacal.formulas import Flags, Float
from metacal.kernels.grid import RELATIVE, Grid
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.cascade_candidates import (
    DEFAULT_PLAN,
    Candidate,
    CandidateSequence,
    CascadePlan,
    OutcomeCounts,
    PairedPredictions,
    build_accuracy_sequences,
    build_loss_sequences,
    build_review_sequences,
    count_outcomes,
    split_pilot_rows,
)
from metacal.promises.promise import Promise
from metacal.statistics import bounds
from metacal.statistics.noninferiority import NUISANCE_LEVEL_FRACTION, certifies_noninferiority

LOSS_DIFFERENCE_RULE = register_rule(
    "cascade-difference",
    "exact tests of the difference of two error rates at fixed thresholds, in a fixed sequence "
    "(Hsueh, Liu & Chen 2001; Angelopoulos et al. 2021)",
    SAME_SOURCE_OF_BOTH,
)
_DIFFERENT = "exact {} test of how often an earlier model answers otherwise than the last one{}"
_PATH = (
    ", at the points of two paths of thresholds that were fixed before (Angelopoulos et al. 2021)"
)
#: By scores alone, of the source or of a pool, one threshold or several: `promises.staged_cascade`.
AGREEMENT_RULES = {
    (pool, path): register_rule(
        f"cascade-{'path' if path else 'joint'}{'-pool' if pool else ''}",
        _DIFFERENT.format("hypergeometric" if pool else "binomial", _PATH if path else ""),
        DRAWN_FROM_POOL if pool else SAME_SOURCE_OF_BOTH,
    )
    for pool in (False, True)
    for path in (False, True)
}


@dataclass(frozen=True)
class MaxLoss(Promise):
    """Of all answers at most `epsilon` more are wrong than if the large model answered alone.

    A cascade over scores is told only whether each answer is the large model's. It then promises
    that at most `epsilon` of all answers differ, which implies this promise.

    Examples
    --------
    >>> MaxLoss(0.01)
    MaxLoss(epsilon=0.01, delta=0.1)
    >>> MaxLoss(1)
    Traceback (most recent call last):
    metacal.errors.InputError: epsilon must be strictly between 0 and 1, got 1.
    """

    epsilon: float
    delta: float = 0.1
    quantities: ClassVar = {"epsilon": LOSS}
    rules: ClassVar = (LOSS_DIFFERENCE_RULE,)
    cascade_rules: ClassVar = (LOSS_DIFFERENCE_RULE,)

    def rules_allowed_in(self, certificate: Certificate) -> tuple[str, ...]:
        stages = certificate.stages
        if stages is None:
            return ()
        own = tuple(
            rule for (pool, _), rule in AGREEMENT_RULES.items() if pool == (stages.pool is not None)
        )
        return own if stages.people or stages.pool is not None else (LOSS_DIFFERENCE_RULE, *own)

    def _expected_limits(self, certificate: Certificate) -> Limits:
        """Return the limit on the loss, or on the disagreement if only agreement was observed."""
        stages = certificate.stages
        of_agreement = (
            stages is not None and not stages.people and certificate.rule != LOSS_DIFFERENCE_RULE
        )
        return ((DISAGREEMENT if of_agreement else LOSS, float(self.epsilon)),)

    def procedure(self) -> CascadeLoss:
        """Return how a certificate is checked. Rows of one model cannot certify a loss."""
        return CascadeLoss(self.epsilon)


@dataclass(frozen=True)
class CascadeLoss:
    """Procedure of a promise that is certified from the answers of two models (`TwoModelEvidence`).

    Implements `metacal.certification.procedures.Procedure`.
    """

    epsilon: float

    def certify_all(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Raise an error, because the rows are those of one model."""
        raise InputError(
            "MaxLoss compares two models; fit a Cascade with it, or ask for MinAccuracy(0.97)."
        )

    def pilot_policy(
        self, random_state: int | None = None, declared_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return None, because rows of one model are not certified."""
        return None

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Check that the counts of a cascade support the loss."""
        assert delta is not None
        stages = certificate.stages
        if stages is None:
            return "a loss is promised of a cascade alone"
        if certificate.rule != LOSS_DIFFERENCE_RULE:
            from metacal.promises.bad_answer_limit import BadAnswerLimit

            alone = certificate.rule in (
                AGREEMENT_RULES[False, False],
                AGREEMENT_RULES[True, False],
            )
            of = None if stages.pool is None else stages.pool - (0 if alone else stages.n_aside)
            law = BadAnswerLimit(self.epsilon, delta * (1.0 if alone else 0.5), of, stages.pool)
            n_bad = stages.n_worse if stages.n_differ is None else stages.n_differ
            chance = law.compute_p_value(n_bad or 0, certificate.n_rows, one_threshold=alone)
            whole = stages.pool is None or stages.pool >= stages.n_aside + certificate.n_rows
            fine = not stages.n_better and whole and chance <= bounds.ROUNDING_SLACK * law.delta
        else:
            counts = stages.n_worse or 0, stages.n_better or 0, certificate.n_rows
            fine = certifies_noninferiority(
                *counts,
                self.epsilon,
                bounds.ROUNDING_SLACK * delta,
                NUISANCE_LEVEL_FRACTION * delta,
            )
        return None if fine else "the counts do not certify what is promised"


@dataclass(frozen=True, eq=False)
class TwoModelEvidence(Evidence):
    """The answers of two models to the same rows: what a cascade is certified from.

    `grids` are those of the two scores: a threshold stands between two of their points.

    >>> rng = np.random.default_rng(0)
    >>> score = rng.random(2000)
    >>> small, large = rng.random(2000) > score / 3, rng.random(2000) > 0.02
    >>> rows = PairedPredictions(score, rng.random(2000), small, large, small & large, np.ones(2000, dtype=bool))
    >>> certificate = MaxLoss(0.02).certify(TwoModelEvidence(rows))
    >>> certificate.statement
    'Of all answers at most 2% more are wrong than if the large model answered alone, with 90% confidence.'
    >>> round(certificate.stages.items[0].n_rows / certificate.n_rows, 2)
    0.32
    """

    rows: PairedPredictions
    plan: CascadePlan = DEFAULT_PLAN
    grids: tuple[Grid, Grid] = (RELATIVE, RELATIVE)

    def certify(self, promise: Promise) -> Certificate:
        """The thresholds at which the small model answers most (or which cost least), with their
        certificate.
        """
        test: PairTest = TESTS[type(check_cascade_promise(promise))](promise)
        aside, tested = split_pilot_rows(self.rows, self.plan)
        walks, people = (
            test.build_test_sequences(aside, tested, self.plan, self.grids),
            self.plan.has_people,
        )
        found, highest, ran_out = _walked(test, tested, walks)
        if found is None:
            first, *_ = walks[0].candidates
            level = walks[0].delta_fraction * (promise.delta or 0.0)
            raise test.make_infeasible_error(
                count_outcomes(tested, first), len(tested), level, people=people
            )
        seen, whole = count_outcomes(tested, found), bool(tested.has_label.all())
        small = StageCount(
            "small",
            "score",
            found.small_threshold,
            seen.n_small,
            seen.n_small_errors if whole else None,
        )
        large = StageCount(
            "large",
            "score",
            found.large_threshold,
            seen.n_large,
            seen.n_large_errors if whole else None,
        )
        stages = Stages(
            (small, large),
            people=people,
            n_worse=seen.n_worse,
            n_better=seen.n_better,
            n_aside=len(self.rows) - len(tested),
            n_labels=int(test.find_rows_needing_labels(tested, highest).sum()),
        )
        right = seen.n_answered - seen.n_errors if whole else 0
        outcome = ThresholdOutcome(len(tested), right, seen.n_answered, right, None, None)
        notes = (labels_ran_out(),) if ran_out else ()
        certificate = build_certificate(
            *promise.limits[0],
            promise.delta,
            promise.cascade_rules[people],
            found.small_threshold,
            outcome,
            notes,
        )
        certificate = replace(certificate, labelled=whole, stages=stages)
        seed = self.plan.random_state if stages.n_aside else None
        return add_circumstances(certificate, Circumstances(random_state=seed))


def _walked(
    test: PairTest, tested: PairedPredictions, walks: Sequence[CandidateSequence]
) -> tuple[Candidate | None, float, bool]:
    """Test the candidates of each walk up to the first that fails; a later walk only where the
    former found nothing.

    The last that passed, the highest threshold that was tested, and whether labels ran out: walks
    end early there, as to stop is always allowed, whatever was seen before.
    """
    delta, found, highest = test.promise.delta or 0.0, None, -math.inf
    for walk in walks:
        for candidate in walk.candidates:
            missing = int(
                (
                    test.find_rows_needing_labels(tested, candidate.small_threshold)
                    & ~tested.has_label
                ).sum()
            )
            if missing and found is None:
                raise InputError(
                    f"{missing:,} rows on which the two models disagree have no label, where the"
                    " small one is surest; label them (where the two agree none is needed)."
                )
            if missing:
                return found, highest, True
            highest = max(highest, candidate.small_threshold)
            if not test.passes(
                count_outcomes(tested, candidate), len(tested), walk.delta_fraction * delta
            ):
                break
            found = candidate
        if found is not None:
            break
    return found, highest, False


# ── what is tested ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class LossTest:
    """The loss against the large model, by the exact test of a difference."""

    promise: MaxLoss

    def build_test_sequences(
        self,
        aside: PairedPredictions,
        tested: PairedPredictions,
        plan: CascadePlan,
        grids: tuple[Grid, Grid],
    ) -> Sequence[CandidateSequence]:
        if plan.has_people:
            raise InputError(
                "MaxLoss compares with the large model, which answers all of the rest: nothing is"
                " left to people. Ask for MinAccuracy to have people in the cascade."
            )
        return build_loss_sequences(aside, grids[0])

    def find_rows_needing_labels(self, tested: PairedPredictions, highest: float) -> Flags:
        """Those that the small model answers otherwise than the large one."""
        return ~tested.models_agree & accepts(tested.small_score, highest)

    def passes(self, seen: OutcomeCounts, n: int, level: float) -> bool:
        return certifies_noninferiority(
            seen.n_worse,
            seen.n_better,
            n,
            self.promise.epsilon,
            level,
            NUISANCE_LEVEL_FRACTION * self.promise.delta,
        )

    def make_infeasible_error(
        self, seen: OutcomeCounts, n: int, level: float, *, people: bool
    ) -> InfeasibleTargetError:
        epsilon, surely = self.promise.epsilon, self.promise.confidence_phrase

        def shown(k: int) -> bool:
            return LossTest(replace(self.promise, epsilon=k / 1e4)).passes(seen, n, level)

        at = bisect_left(range(1, 10_000), True, key=shown) + 1
        least = ceil_to_4_decimals(at / 1e4) if at < 10_000 else None
        needed = math.ceil(
            math.log(self.promise.delta * (1.0 - NUISANCE_LEVEL_FRACTION)) / math.log1p(-epsilon)
        )
        few = (
            f"use at least {needed:,} rows"
            if needed > n
            else "use more rows, or a better small model"
        )
        can = (
            f"the smallest certifiable on these {n:,} rows {surely} is {least:.4f}"
            if least
            else "nothing is"
        )
        where = (
            f"{seen.n_small:,} of {n:,} rows ({seen.n_worse:,} worse than the large one,"
            f" {seen.n_better:,} better)"
        )
        said = (
            f"max loss {epsilon:g} cannot be certified, not even where the small model answers"
            f" {where}: {can}"
        )
        more = needed if needed > n else None
        return InfeasibleTargetError(
            f"{said}; allow more, or {few}.", target=epsilon, best=least, rows_needed=more
        )


@dataclass(frozen=True)
class AccuracyTest:
    """The accuracy of what is answered, by exact binomial tests."""

    promise: MinAccuracy

    def build_test_sequences(
        self,
        aside: PairedPredictions,
        tested: PairedPredictions,
        plan: CascadePlan,
        grids: tuple[Grid, Grid],
    ) -> Sequence[CandidateSequence]:
        missing = sum(
            int((~part.has_label).sum())
            for part in ((tested, aside) if plan.has_people else (tested,))
        )
        if missing:
            raise InputError(
                f"{missing:,} rows have no label, and an accuracy needs them all; MaxLoss needs"
                " fewer."
            )
        if plan.has_people:
            return build_review_sequences(
                aside, len(tested), self.promise.beta, plan.review_cost, grids
            )
        return build_accuracy_sequences(aside, grids[0])

    def find_rows_needing_labels(self, tested: PairedPredictions, highest: float) -> Flags:
        return np.ones(len(tested), dtype=bool)

    def passes(self, seen: OutcomeCounts, n: int, level: float) -> bool:
        p_value = bounds.binomial_p_value(seen.n_errors, seen.n_answered, 1.0 - self.promise.beta)
        return seen.n_answered > 0 and bool(p_value <= level)

    def make_infeasible_error(
        self, seen: OutcomeCounts, n: int, level: float, *, people: bool
    ) -> InfeasibleTargetError:
        return make_accuracy_error(
            self.promise, seen.n_errors, seen.n_answered, level, people=people
        )


def make_accuracy_error(
    promise: MinAccuracy, wrong: int, answered: int, level: float, *, people: bool
) -> InfeasibleTargetError:
    """What is said where a cascade failed at the first point that was tested."""
    best = (
        floor_to_4_decimals(bounds.clopper_pearson_lower(answered - wrong, answered, level))
        if answered
        else 0.0
    )
    or_people = "" if people else "let people answer what no model accepts, "
    first = f"{wrong:,} of {answered:,} answers are wrong, which certifies {best:.4f} {promise.confidence_phrase}"
    said = (
        f"min accuracy {promise.beta:g} cannot be certified for this cascade: where it was tested"
        f" first, {first}"
    )
    said += f"; lower the target, use more rows, {or_people}or find a better large model."
    return InfeasibleTargetError(said, target=promise.beta, best=best or None)


#: What a promise asks of two models: which labels, which walks, which test.
PairTest = LossTest | AccuracyTest
#: The promises that a cascade can make, and how each is tested.
TESTS: dict[type, Any] = {MaxLoss: LossTest, MinAccuracy: AccuracyTest}


def check_cascade_promise(value: Any) -> Promise:
    """The promise of a cascade, or InputError with those that there are."""
    if type(value) not in TESTS:
        raise InputError(f"a cascade promises MaxLoss(0.01) or MinAccuracy(0.95); got {value!r}.")
    if value.delta is None:
        raise InputError(
            "a cascade is certified with a confidence; give delta, say MinAccuracy(0.95, 0.1)."
        )
    return value
