"""MaxLoss: a cascade makes few more errors than its large model alone.

A cascade is a small model, a large model and, if so planned, people. The small model answers the
rows that its gate accepts, the large model answers the rest or what its own gate accepts of it, and
people answer the remaining rows. Rows on which both models give the same answer do not change the
difference of their errors. So a loss needs labels only for rows on which the models disagree.

Evidence for a loss comes from logits of two models (`metacal.promises.two_model_cascade`), or from
scores of several models and their agreement (`metacal.promises.staged_cascade`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metacal.certificates.cascade_stages import Stages
from metacal.certificates.certificate import Certificate
from metacal.certificates.quantities import DISAGREEMENT, LOSS
from metacal.certificates.quantity import Limits
from metacal.certificates.rule_texts import DRAWN_FROM_POOL, SAME_SOURCE_OF_BOTH, register_rule
from metacal.certification.pilot import PilotPolicy
from metacal.certification.rows import CalibrationRows
from metacal.errors import UnsupportedPromiseError
from metacal.formulas import Float
from metacal.promises.bad_answer_limit import BadAnswerTest
from metacal.promises.promise import Promise
from metacal.statistics import bounds
from metacal.statistics.noninferiority import NUISANCE_LEVEL_FRACTION, certifies_noninferiority

# Name of the rule that uses labels to test the difference between two error rates.
LOSS_DIFFERENCE_RULE = register_rule(
    "cascade-difference",
    "exact tests of the difference of two error rates at fixed thresholds, in a fixed sequence "
    "(Hsueh, Liu & Chen 2001; Angelopoulos et al. 2021)",
    SAME_SOURCE_OF_BOTH,
)


def _register_agreement_rule(*, has_pool: bool, has_one_threshold: bool) -> str:
    """Register a rule that tests how often a cascade and its last model disagree."""
    rule_name = "cascade-joint" if has_one_threshold else "cascade-path"
    distribution_name = "binomial"
    assumption_about_rows = SAME_SOURCE_OF_BOTH
    if has_pool:
        rule_name += "-pool"
        distribution_name = "hypergeometric"
        assumption_about_rows = DRAWN_FROM_POOL
    rule_description = f"exact {distribution_name} test of how often an earlier model answers otherwise than the last one"
    tests_paths_of_thresholds = not has_one_threshold
    if tests_paths_of_thresholds:
        rule_description += (
            ", at the points of two paths of thresholds that were fixed before (Angelopoulos et al."
            " 2021)"
        )
    return register_rule(rule_name, rule_description, assumption_about_rows)


# If several models have a threshold, delta is divided among this many threshold paths.
N_THRESHOLD_PATHS = 2

# Map from (has_pool, has_one_threshold) to the name of a rule that needs no labels.
_AGREEMENT_RULES = {
    (has_pool, has_one_threshold): _register_agreement_rule(
        has_pool=has_pool, has_one_threshold=has_one_threshold
    )
    for has_pool in (False, True)
    for has_one_threshold in (True, False)
}


def get_agreement_rule(*, has_pool: bool, has_one_threshold: bool) -> str:
    """Return the name of the rule that tests how often the models disagree.

    Parameters
    ----------
    has_pool : bool
        Whether the promise is about a finite pool of rows, and not about their source.
    has_one_threshold : bool
        Whether the cascade has a single threshold. If not, vectors of thresholds are tested along
        two paths.

    Returns
    -------
    str
    """
    return _AGREEMENT_RULES[has_pool, has_one_threshold]


@dataclass(frozen=True)
class MaxLoss(Promise):
    """At most `epsilon` more of the answers are wrong than with the large model.

    A cascade of scores observes only whether each answer is that of the large model. It then
    promises that at most `epsilon` of all answers differ, which implies this promise.

    Parameters
    ----------
    epsilon : float
        Largest share of additional errors.

    delta : float, default=0.1
        The promise fails with at most this probability over the calibration rows.

    Examples
    --------
    >>> MaxLoss(0.01)
    MaxLoss(epsilon=0.01, delta=0.1)
    >>> MaxLoss(1)
    Traceback (most recent call last):
    metacal.errors.InputError: epsilon must be strictly between 0 and 1, but got 1.
    """

    epsilon: float
    delta: float = 0.1
    quantities: ClassVar = {"epsilon": LOSS}
    rules: ClassVar = (LOSS_DIFFERENCE_RULE,)
    cascade_rules: ClassVar = (LOSS_DIFFERENCE_RULE,)

    def rules_allowed_in(self, certificate: Certificate) -> tuple[str, ...]:
        """Return the names of the rules that can certify the loss of a cascade."""
        stages = certificate.stages
        if stages is None:
            return ()
        has_pool = stages.pool_size is not None
        agreement_rules = (
            get_agreement_rule(has_pool=has_pool, has_one_threshold=True),
            get_agreement_rule(has_pool=has_pool, has_one_threshold=False),
        )
        can_compare_error_rates = not stages.has_human_review and not has_pool
        if can_compare_error_rates:
            return (LOSS_DIFFERENCE_RULE, *agreement_rules)
        return agreement_rules

    def _expected_limits(self, certificate: Certificate) -> Limits:
        """Return the limit on the loss, or on the disagreement rate without labels."""
        stages = certificate.stages
        is_certified_without_labels = (
            stages is not None
            and not stages.has_human_review
            and certificate.rule != LOSS_DIFFERENCE_RULE
        )
        limited_quantity = DISAGREEMENT if is_certified_without_labels else LOSS
        return ((limited_quantity, float(self.epsilon)),)

    def procedure(self) -> CascadeLoss:
        """Return a procedure that can check certificates but cannot issue them."""
        return CascadeLoss(self.epsilon)


@dataclass(frozen=True)
class CascadeLoss:
    """Procedure of a promise that needs the answers of several models.

    Implements `metacal.certification.procedures.Procedure`.
    """

    epsilon: float

    def certify_promise(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Raise InputError, because the promise needs predictions of several models."""
        raise UnsupportedPromiseError(
            "MaxLoss compares two models, so it requires a cascade. Fit a Cascade with this"
            " promise, or promise MinAccuracy(0.97)."
        )

    def build_pilot_policy(
        self, random_state: int | None = None, declared_score_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return None, because no pilot rows are drawn for a single model."""
        return None

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Return why the counts of a cascade contradict the promised loss, or None."""
        assert delta is not None
        stages = certificate.stages
        if stages is None:
            return "a loss is promised of a cascade alone"
        if certificate.rule == LOSS_DIFFERENCE_RULE:
            max_loss = self.epsilon
            is_supported = certifies_noninferiority(
                n_only_first_incorrect=stages.n_only_cascade_wrong or 0,
                n_only_second_incorrect=stages.n_only_reference_wrong or 0,
                n=certificate.n_rows,
                margin=max_loss,
                level=bounds.ONE_PLUS_ROUNDING_ERROR * delta,
                nuisance_level=NUISANCE_LEVEL_FRACTION * delta,
            )
        else:
            is_supported = self._supports_agreement_rule(certificate, stages, delta)
        if is_supported:
            return None
        return "the counts do not certify what is promised"

    def _supports_agreement_rule(
        self, certificate: Certificate, stages: Stages, delta: float
    ) -> bool:
        """Check whether the models disagree rarely enough to pass the test of the rule."""
        # Without labels, no answer can be shown to be better than that of the last model.
        claims_better_answers = bool(stages.n_only_reference_wrong)
        if claims_better_answers:
            return False
        n_tested_rows = certificate.n_rows
        has_one_threshold = certificate.rule in (
            get_agreement_rule(has_pool=False, has_one_threshold=True),
            get_agreement_rule(has_pool=True, has_one_threshold=True),
        )
        if has_one_threshold:
            # With a single threshold, one test uses all of delta and all labelled rows.
            significance_level = delta
            n_untested_pilot_rows = 0
        else:
            significance_level = delta / N_THRESHOLD_PATHS
            n_untested_pilot_rows = stages.n_pilot_rows
        if stages.pool_size is not None:
            n_labelled_rows = stages.n_pilot_rows + n_tested_rows
            if n_labelled_rows > stages.pool_size:
                return False
        bad_answer_test = BadAnswerTest(
            max_bad_share=self.epsilon,
            significance_level=bounds.ONE_PLUS_ROUNDING_ERROR * significance_level,
            pool_size=stages.pool_size,
            n_pilot_rows=n_untested_pilot_rows,
        )
        return bad_answer_test.passes(
            n_bad=_get_bad_answer_count(stages),
            n_tested=n_tested_rows,
            corrects_tested_rows=has_one_threshold,
        )


def _get_bad_answer_count(stages: Stages) -> int:
    """Return the number of answers that differ from those of the last model or people."""
    if stages.n_disagreements is not None:
        return stages.n_disagreements
    # Human answers count as correct, so each error of a model is a bad answer.
    return stages.n_only_cascade_wrong or 0
