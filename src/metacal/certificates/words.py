"""Sentences and lines that describe a certificate.

All texts are made from the fields of the certificate and are never parsed. A *line* is a pair of a
short heading and a text.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from metacal.certificates.case_words import (
    describe_calibration_cases,
    describe_case_outcome,
    list_type_lines,
)
from metacal.certificates.number_format import (
    format_percent,
    format_percent_ceil,
    format_percent_floor,
)
from metacal.certificates.pilot_texts import describe_pilot_rows
from metacal.certificates.rule_texts import RULES as RULES
from metacal.certificates.rule_texts import SAME_SOURCE as SAME_SOURCE
from metacal.certificates.rule_texts import find_rule
from metacal.certificates.rule_texts import register_rule as register_rule
from metacal.certificates.subgroup_words import (
    Line,
    describe_two_sided_condition,
    format_accepted_range,
    list_subgroup_lines,
    lower_first_letter,
    state_never_predicted_classes,
    state_side_claims,
    state_subgroup_claim,
    state_subgroup_confidence,
)
from metacal.kernels.grid import RELATIVE_GRID

if TYPE_CHECKING:
    from metacal.certificates.cascade_stages import StageCount, Stages
    from metacal.certificates.certificate import Certificate
    from metacal.certificates.counts import ScoreValueCount
    from metacal.certificates.design import CertificationDesign
    from metacal.certificates.subgroups import DeltaSharing, SubgroupCertificates

_ESTIMATED_WEIGHTS = "the weights are estimates: how far they are off is not accounted for"
_CHOSEN_SEED = (
    "random_state={seed} was chosen before the rows were seen, and no other seed was tried"
)
#: Further assumption of a certificate if scores are out-of-fold.
_FOLDS_ARE_ALIKE = (
    "the classifier in use, fitted on all rows, ranks and errs like the fold classifiers that"
    " scored the rows"
)

#: Words after "on average over calibration sets", if every calibration set certifies a threshold.
_CAVEAT_IF_ALWAYS_CERTIFIED = " (about half of them may exceed it)"
#: Words after "on average over calibration sets", if some sets do not certify any threshold.
_CAVEAT_IF_NOT_ALWAYS_CERTIFIED = (
    ", one that certifies nothing counting as kept (about half of the others may miss it)"
)

#: First words of a claim about clusters, for each way of counting their rows.
_CLUSTER_SCOPES = {
    "unit": "For a random row of a random cluster",
    "row": "For a random row of any cluster",
    "mean": "On average over clusters, each by the mean of its rows",
}
#: Texts that describe how subgroups share delta.
_DELTA_SHARING_TEXTS: dict[DeltaSharing, str] = {
    "together": "delta shared by all (Holm 1979)",
    "each": "delta for each",
    "fcr": (
        "delta times the share of those that accept (false-coverage rate, Benjamini & Yekutieli"
        " 2005)"
    ),
}


# ── the promise ───────────────────────────────────────────────────────────────────────────────────


def state_promise(certificate: Certificate) -> str:
    """State the promise of a certificate, and which classes are never predicted."""
    claim = _state_claim(certificate)
    claim_with_confidence = _state_guarantee(certificate, claim)
    seed_text = ""
    seed = certificate.design.random_state
    if seed is not None:
        seed_text = f" (random_state={seed} chosen by the user)"
    never_predicted_text = ""
    if certificate.subgroups is not None and certificate.subgroups.is_two_sided:
        never_predicted_text = state_never_predicted_classes(certificate.subgroups)
    return f"{claim_with_confidence}{seed_text}.{never_predicted_text}"


def _state_claim(certificate: Certificate) -> str:
    """State the promised limits as a clause, without the confidence level."""
    subgroups = certificate.subgroups
    if subgroups is not None and subgroups.is_two_sided:
        claim = state_side_claims(subgroups, format_percent_floor, format_percent_ceil)
    else:
        claim = _state_limits(certificate)
    cluster_counting = certificate.design.cluster_counting
    if cluster_counting is None:
        return claim
    return f"{_CLUSTER_SCOPES[cluster_counting]}, {lower_first_letter(claim)}"


def _state_limits(certificate: Certificate) -> str:
    """State the promised limits as a clause about all rows, or about the pool."""
    stages = certificate.stages
    if stages is not None and stages.has_human_review and certificate.quantity.is_paired_difference:
        max_error_rate = format_percent_ceil(certificate.target)
        claim = f"Of all answers at most {max_error_rate} are wrong, people's counted as right"
    else:
        first_claim, *other_claims = [
            quantity.format_claim(limit, format_percent_floor, format_percent_ceil)
            for quantity, limit in certificate.limits
        ]
        continued_claims = [lower_first_letter(other_claim) for other_claim in other_claims]
        claim = " and ".join([first_claim, *continued_claims])
    if stages is not None and stages.pool_size is not None:
        claim += f", of the pool of {stages.pool_size:,} rows"
    return claim


def _state_guarantee(certificate: Certificate, claim: str) -> str:
    """Combine a claim with the kind of guarantee and its confidence level."""
    subgroups = certificate.subgroups
    guarantee = certificate.guarantee
    confidence_level = certificate.confidence
    has_promise_per_subgroup = certificate.has_promise_per_subgroup
    if subgroups is not None and has_promise_per_subgroup and certificate.delta is not None:
        return _state_subgroup_guarantee(certificate, subgroups, certificate.delta, claim)
    if guarantee == "certified" and confidence_level is not None:
        has_two_limits = len(certificate.limits) > 1
        scope_text = "both " if has_two_limits else ""
        return f"{claim}, {scope_text}with {format_percent_floor(confidence_level)} confidence"
    if guarantee == "approximate":
        if confidence_level is None:
            confidence_text = "on average over calibration sets"
        else:
            confidence_text = f"with about {format_percent_floor(confidence_level)} confidence"
        return f"{claim}, {confidence_text} {_explain_approximation(certificate)}"
    if guarantee == "in expectation":
        # Every calibration set certifies some threshold if only rejections can break the promise,
        # because a gate that accepts every row keeps the promise.
        is_always_certified = all(
            quantity.limits_only_rejections for quantity, _ in certificate.limits
        )
        caveat = _CAVEAT_IF_NOT_ALWAYS_CERTIFIED
        if is_always_certified:
            caveat = _CAVEAT_IF_ALWAYS_CERTIFIED
        return f"{claim}, on average over calibration sets{caveat}"
    return f"Aimed at, without a guarantee: {lower_first_letter(claim)}"


def _state_subgroup_guarantee(
    certificate: Certificate, subgroups: SubgroupCertificates, delta: float, claim: str
) -> str:
    """Combine a claim about subgroups with the confidence level of the promise.

    Parameters
    ----------
    certificate : Certificate
        The certificate that the sentence is about.
    subgroups : SubgroupCertificates
        Its subgroups.
    delta : float
        Its delta.
    claim : str
        The claim about all rows.

    Returns
    -------
    str
        The sentence without a full stop.
    """
    subgroup_claim = state_subgroup_claim(subgroups, claim)
    confidence_percent = format_percent_floor(1.0 - delta)
    is_approximate = certificate.guarantee == "approximate"
    confidence_clause = state_subgroup_confidence(
        subgroups,
        confidence_text=f"about {confidence_percent}" if is_approximate else confidence_percent,
        delta_text=format_percent_ceil(delta),
    )
    sentence = f"{subgroup_claim}, {confidence_clause}"
    if is_approximate:
        sentence += f" {_explain_approximation(certificate)}"
    return sentence


def _explain_approximation(certificate: Certificate) -> str:
    """Explain in parentheses why a promise is only approximate."""
    reason = certificate.design.inexactness
    if reason is None:
        return "(approximate, not certified)"
    return f"(approximate, not certified: {reason})"


# ── the rule and its assumptions ──────────────────────────────────────────────────────────────────


def describe_rule(certificate: Certificate) -> str:
    """Describe how the threshold was chosen, and cite the method.

    >>> import numpy as np
    >>> from metacal.certificates.design import CertificationDesign, record_design
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> plain = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
    >>> print(describe_rule(record_design(plain, CertificationDesign(n_competing_scores=3, delta_fraction=0.8, cluster_counting="unit"))))
    umbrella order statistic of the correct scores (Tong, Feng & Li 2018), the best of 3 scores, this one at 0.8 of
    delta, one row of each cluster
    """
    rule = find_rule(certificate.rule)
    design = certificate.design
    subgroups = certificate.subgroups
    rule_description = rule.description
    if design.tests_score_values:
        rule_description = rule.score_value_description
    shares_delta = certificate.has_promise_per_subgroup
    if subgroups is not None and shares_delta and not subgroups.is_two_sided_without_groups:
        delta_sharing_text = _DELTA_SHARING_TEXTS[subgroups.delta_sharing]
        rule_description += f"; each {subgroups.by} by itself, {delta_sharing_text}"
    return rule_description + _describe_row_selection(design) + describe_pilot_rows(certificate)


def _describe_row_selection(design: CertificationDesign) -> str:
    """Describe how a fit selected scores and rows, if there was a selection.

    The text continues a sentence. It is empty if every calibration row was used once.
    """
    selection_text = ""
    if design.n_competing_scores > 1:
        selection_text += f", the best of {design.n_competing_scores} scores, this one at {design.delta_fraction:g} of delta"
    counts_one_row_per_cluster = design.cluster_counting == "unit"
    if counts_one_row_per_cluster:
        selection_text += ", one row of each cluster"
    if design.weights_origin:
        selection_text += f", on rows kept in proportion to {_name_weights_origin(design)} weights"
    if design.n_folds:
        selection_text += f", on out-of-fold scores of {design.n_folds} folds"
    return selection_text


def list_assumptions(certificate: Certificate) -> tuple[str, ...]:
    """List the assumptions of a promise, starting with the source of new rows."""
    assumptions = list(find_rule(certificate.rule).assumptions)
    design = certificate.design
    has_clusters = design.cluster_counting is not None
    has_weights = design.weights_origin is not None
    has_folds = design.n_folds > 0
    if has_clusters or has_weights or has_folds:
        # The first assumption of a rule is about the source of independent, equally weighted rows.
        assumptions[:1] = [_describe_source(design)]
    if design.weights_origin == "estimated":
        assumptions.append(_ESTIMATED_WEIGHTS)
    if design.n_folds:
        assumptions.append(_FOLDS_ARE_ALIKE)
    if design.random_state is not None:
        assumptions.append(_CHOSEN_SEED.format(seed=design.random_state))
    return tuple(assumptions)


def _describe_source(design: CertificationDesign) -> str:
    """State the assumption about the source of new rows or clusters."""
    rows_or_clusters = "clusters" if design.cluster_counting else "rows"
    if design.n_folds:
        source_text = f"{rows_or_clusters} given to fit"
    else:
        source_text = f"calibration {rows_or_clusters}, which the classifier was not trained on"
    assumption_text = f"new {rows_or_clusters} come from the same source as the {source_text}"
    if design.weights_origin:
        assumption_text += (
            f", reweighted by the {_name_weights_origin(design)} weights, of which none is larger"
            " than the largest used"
        )
    counts_every_row = design.cluster_counting == "row"
    counts_one_row_per_cluster = design.cluster_counting == "unit"
    if counts_every_row:
        assumption_text += f"; no cluster has more than {design.largest_cluster_size:,} rows"
    elif counts_one_row_per_cluster:
        assumption_text += "; a new row is any row of a new cluster"
    return assumption_text


def _name_weights_origin(design: CertificationDesign) -> str:
    """Return "estimated" for estimated weights, and "given" for other weights."""
    return "estimated" if design.weights_origin == "estimated" else "given"


# ── the certificate line by line ──────────────────────────────────────────────────────────────────


def describe_condition(certificate: Certificate) -> str:
    """Describe the condition for accepting a row, for example "entropy <= 0.3".

    If the name of the score starts with a minus sign, the condition is about the score without the
    sign: "mark >= 0.3" for the score "-mark". If the printed threshold is itself a rejected score,
    as may happen with scores of few digits, the comparison is strict.
    """
    subgroups = certificate.subgroups
    if subgroups is not None and subgroups.is_two_sided:
        return describe_two_sided_condition(certificate, subgroups)
    score_name = certificate.score.removeprefix("-")
    is_negated = score_name != certificate.score
    comparison = ">=" if is_negated else "<="
    if subgroups is not None:
        subgroup_text = "the predicted class" if subgroups.by == "class" else "the row's group"
        if certificate.cases is not None:
            subgroup_text = "the item's type"
        return f"{score_name} {comparison} the threshold of {subgroup_text}"
    sign = -1.0 if is_negated else 1.0
    printed_threshold = f"{sign * certificate.threshold:.6g}"
    rounded_threshold = sign * float(printed_threshold)
    if _equals_rejected_score(rounded_threshold, lowest_rejected_score=certificate.lowest_rejected):
        comparison = ">" if is_negated else "<"
    return f"{score_name} {comparison} {printed_threshold}"


def _equals_rejected_score(
    rounded_threshold: float, *, lowest_rejected_score: float | None
) -> bool:
    """Check whether a rounded threshold equals the lowest rejected score.

    Both are rounded to the floating-point grid of the scores first.
    """
    if lowest_rejected_score is None:
        return False
    threshold_on_grid, rejected_score_on_grid = RELATIVE_GRID.round(
        [rounded_threshold, lowest_rejected_score]
    )
    return bool(threshold_on_grid == rejected_score_on_grid)


def list_description_lines(certificate: Certificate) -> list[Line]:
    """Return the lines that describe the gate, the counts and the rule."""
    if certificate.stages is not None:
        stage_lines = _list_stage_lines(certificate, certificate.stages)
        return [*stage_lines, ("rule", describe_rule(certificate))]
    if certificate.cases is not None:
        return [
            ("gate", _describe_gate(certificate)),
            ("from", describe_calibration_cases(certificate, certificate.cases)),
            ("on these", describe_case_outcome(certificate, certificate.cases)),
            ("rule", describe_rule(certificate)),
            *list_type_lines(certificate),
        ]
    description_lines = [
        ("gate", _describe_gate(certificate)),
        ("from", _describe_calibration_rows(certificate)),
        ("on these", _describe_outcome(certificate)),
        ("rule", describe_rule(certificate)),
        *_list_score_value_lines(certificate),
    ]
    if certificate.subgroups is not None:
        description_lines += list_subgroup_lines(certificate.subgroups, certificate.score)
    return description_lines


def _describe_gate(certificate: Certificate) -> str:
    """Describe which rows the gate accepts."""
    subgroups = certificate.subgroups
    if subgroups is not None:
        condition = describe_condition(certificate)
        return condition if subgroups.is_two_sided else f"accept if {condition}"
    if certificate.threshold == -math.inf:
        gate_text = "accept no row"
    elif certificate.accepts_everything:
        gate_text = "accept every row"
    else:
        gate_text = f"accept if {describe_condition(certificate)}"
    if certificate.decision_at:
        gate_text += (
            f"; the second class is answered where log-odds > {certificate.decision_at:.6g}"
        )
    return gate_text


def _describe_calibration_rows(certificate: Certificate) -> str:
    """Describe the numbers of calibration rows and of correct predictions."""
    n_rows = certificate.n_rows
    if certificate.n_labels is not None:
        return (
            f"{n_rows:,} rows drawn from a pool, {certificate.n_labels:,} of them labelled,"
            f" {certificate.n_correct:,} correct"
        )
    if not certificate.has_labels:
        return f"{n_rows:,} calibration rows, without labels"
    correct_text = "without loss" if certificate.quantity.uses_graded_losses else "correct"
    return f"{n_rows:,} calibration rows, {certificate.n_correct:,} of them {correct_text}"


def _describe_outcome(certificate: Certificate) -> str:
    """Describe coverage, accuracy, miscoverage and cost on the calibration rows."""
    traffic = certificate.traffic
    outcome_text = f"coverage {traffic.coverage:.4f}"
    if certificate.all_rows_traffic is not None:
        outcome_text += f" of all {traffic.n_rows:,} rows"
    if certificate.has_labels and not certificate.quantity.uses_graded_losses:
        outcome_text += f", selective accuracy {_format_share(certificate.selective_accuracy)}"
        if not math.isnan(certificate.miscoverage):
            outcome_text += f", miscoverage {certificate.miscoverage:.4f}"
    if certificate.mean_cost is not None:
        outcome_text += f", {certificate.quantity} {certificate.mean_cost:.6g}"
    return outcome_text


def _format_share(share: float) -> str:
    """Format a share with four decimals, or as "-" if it is NaN."""
    return "-" if math.isnan(share) else f"{share:.4f}"


def _list_score_value_lines(certificate: Certificate) -> list[Line]:
    """Return a line for each distinct score, most confident score first."""
    sign = -1.0 if certificate.score.startswith("-") else 1.0
    score_value_lines = []
    for value_count in certificate.score_value_counts:
        is_accepted = value_count.score <= certificate.threshold
        decision_text = "accepted" if is_accepted else "not certified, rejected"
        # 0.0 is added so that a score of -0.0 is printed as 0.
        user_score = sign * value_count.score + 0.0
        line_text = f"{user_score:.6g}: {_format_value_count(value_count)}; {decision_text}"
        score_value_lines.append(("mark", line_text))
    return score_value_lines


def _format_value_count(value_count: ScoreValueCount) -> str:
    """Format the numbers of rows and of incorrect rows with one value of the score."""
    if value_count.n_rows == 0:
        return "no row"
    error_rate = format_percent(round(value_count.n_wrong / value_count.n_rows, 3))
    return f"{value_count.n_rows:,} rows, {value_count.n_wrong:,} wrong ({error_rate})"


# ── the models of a cascade ───────────────────────────────────────────────────────────────────────


def _list_stage_lines(certificate: Certificate, stages: Stages) -> list[Line]:
    """Return lines about the models of a cascade."""
    n_rows = certificate.n_rows
    stage_lines = [
        (stage.name, f"answers {_describe_answered_rows(stage, index, stages)}")
        for index, stage in enumerate(stages.models)
    ]
    label_text = "entries of agreement" if certificate.quantity.uses_agreement_only else "labels"
    source_text = (
        f"{n_rows:,} calibration rows; {stages.n_labels:,} of their {label_text} were needed"
    )
    if stages.n_pilot_rows:
        source_text += f", {stages.n_pilot_rows:,} more set aside to choose thresholds"
    stage_lines.append(("from", source_text))
    share_texts = [f"{stage.name} {stage.n_rows / n_rows:.4f}" for stage in stages.models]
    if stages.has_human_review:
        share_texts.append(f"people {1.0 - stages.n_answered / n_rows:.4f}")
    stage_lines.append(("on these", ", ".join(share_texts)))
    stage_lines.append(("difference", _compare_with_last_model(certificate, stages)))
    if not math.isnan(certificate.selective_accuracy):
        accuracy_text = f"{certificate.selective_accuracy:.4f} of what is answered"
        stage_lines.append(("accuracy", accuracy_text))
    return stage_lines


def _describe_answered_rows(stage: StageCount, index: int, stages: Stages) -> str:
    """Describe which rows a model of a cascade answers."""
    is_first_stage = index == 0
    if stage.threshold == math.inf:
        return "all of the rest" if stages.has_human_review else "the rest"
    if stage.threshold == -math.inf:
        return "no row" if is_first_stage else "none of the rest"
    score_name = stage.score.removeprefix("-")
    condition = f"{score_name} {format_accepted_range(stage.score, stage.threshold)}"
    return f"if {condition}" if is_first_stage else f"of the rest, if {condition}"


def _compare_with_last_model(certificate: Certificate, stages: Stages) -> str:
    """Describe how often a cascade and its last model give different answers."""
    n_rows = certificate.n_rows
    last_model_name = stages.models[-1].name
    if stages.n_disagreements is not None:
        return (
            f"{stages.n_disagreements:,} answers differ from the {last_model_name} model's:"
            f" {stages.n_disagreements / n_rows:.4f} of all"
        )
    assert stages.n_only_cascade_wrong is not None
    assert stages.n_only_reference_wrong is not None
    is_compared_with_people = stages.has_human_review and certificate.quantity.is_paired_difference
    reference_name = "people" if is_compared_with_people else f"the {last_model_name} model"
    error_rate_difference = (stages.n_only_cascade_wrong - stages.n_only_reference_wrong) / n_rows
    return (
        f"{stages.n_only_cascade_wrong:,} worse than by {reference_name} alone,"
        f" {stages.n_only_reference_wrong:,} better: {error_rate_difference:+.4f} of all"
    )
