"""Both promises together and promises after looking: thresholds, messages, files, estimators."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone

import metacal as mc
from metacal.certification.ranking import Ranking
from metacal.certification.rules.fixed_sequence import count_certified_rows
from metacal.io.artifact.audit import read_certificate
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.miscoverage import MaxMiscoverage
from metacal.promises.verification import verify_decisions
from metacal.statistics import bounds
from metacal.statistics.bands import certified_frontier


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    scores = rng.random(5000)
    return scores, rng.random(5000) > scores**3 / 2


def test_both_takes_the_threshold_of_the_accuracy_at_half_delta(columns):
    found = mc.Both(alpha=0.3, beta=0.95).certify(*columns)
    assert found.threshold == MinAccuracy(0.95, 0.05).certify(*columns).threshold
    assert found.threshold >= MaxMiscoverage(0.3, 0.05).certify(*columns).threshold
    assert found.limits == (("selective accuracy", 0.95), ("miscoverage", 0.3))
    assert (
        "and at most 30% of the correct predictions are rejected, both with 90% confidence"
        in found.statement
    )


def test_each_is_verified_at_half_of_what_is_left_to_chance(columns):
    """Found by a mutant: with twice the level instead of half of it nothing else noticed."""
    scores, correct = columns
    certificate = mc.Both(alpha=0.3, beta=0.95).certify(scores, correct)
    verified = verify_decisions(
        certificate, scores < certificate.threshold, correct, confidence=0.96
    )
    assert [test.level for test in verified.tests] == pytest.approx([0.98, 0.98])


def test_in_expectation_both_halves_are(columns):
    found = mc.Both(alpha=0.3, beta=0.95, delta=None).certify(*columns)
    assert found.guarantee == "in expectation"
    assert found.threshold == MinAccuracy(0.95, None).certify(*columns).threshold


@pytest.mark.parametrize("delta", [0.1, None])
def test_the_error_names_the_nearest_pairs_and_they_are_certified(columns, delta):
    with pytest.raises(mc.InfeasibleTargetError) as caught:
        mc.Both(alpha=0.1, beta=0.95, delta=delta).certify(*columns)
    error = caught.value
    assert mc.Both(alpha=error.best, beta=0.95, delta=delta).certify(*columns).target == 0.95
    with pytest.raises(mc.InfeasibleTargetError):
        mc.Both(alpha=round(error.best - 2e-4, 4), beta=0.95, delta=delta).certify(*columns)
    best_beta = float(str(error).split("supports an accuracy of ")[1].split()[0].rstrip("."))
    assert mc.Both(alpha=0.1, beta=best_beta, delta=delta).certify(*columns).max_miscoverage == 0.1
    assert pickle.loads(pickle.dumps(error)).best == error.best


def test_an_accuracy_out_of_reach_is_said_as_for_itself(columns):
    with pytest.raises(
        mc.InfeasibleTargetError,
        match=r"Cannot certify an accuracy of 0.9999 on these .* rows .*; the best they support",
    ):
        mc.Both(alpha=0.5, beta=0.9999).certify(*columns)


def test_accepting_everything_keeps_any_miscoverage():
    scores, correct = np.arange(200.0), np.arange(200) % 20 != 0
    found = mc.Both(alpha=0.001, beta=0.8).certify(scores, correct)
    assert found.accepts_everything
    assert found.miscoverage == 0.0


def test_after_looking_certifies_every_pair_of_the_frontier(columns):
    frontier = certified_frontier(*columns, 0.1)
    for k in range(0, len(frontier.beta), max(1, len(frontier.beta) // 12)):
        alpha, beta = min(float(frontier.alpha[k]), 1 - 1e-12), float(frontier.beta[k])
        found = mc.AfterLooking(alpha=alpha, beta=beta).certify(*columns)
        assert found.threshold >= frontier.threshold[k]
        assert found.highest_accepted == pytest.approx(frontier.threshold[k])
        assert found.guarantee == "certified"


def test_after_looking_costs_a_little_coverage(columns):
    before, after = (
        rule.certify(*columns) for rule in (mc.MinAccuracy(0.95), mc.AfterLooking(beta=0.95))
    )
    assert 0 < before.coverage - after.coverage < 0.06
    before, after = (
        rule.certify(*columns) for rule in (mc.MaxMiscoverage(0.2), mc.AfterLooking(alpha=0.2))
    )
    assert 0 < after.coverage - before.coverage < 0.05


def test_after_looking_with_too_few_rows_accepts_everything():
    found = mc.AfterLooking(alpha=0.01).certify(np.arange(5.0), np.ones(5, dtype=bool))
    assert found.accepts_everything


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"beta": 0.9999}, "they support at all thresholds at once"),
        ({"beta": 0.97, "alpha": 0.05}, "needs a miscoverage of"),
        ({"beta": 0.9999, "alpha": 0.05}, "at a threshold chosen on these"),
    ],
)
def test_after_looking_says_what_is_possible(columns, asked, says):
    with pytest.raises(mc.InfeasibleTargetError, match=says):
        mc.AfterLooking(**asked).certify(*columns)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: mc.AfterLooking(), "alpha, beta or both"),
        (lambda: mc.AfterLooking(alpha=1.5), "alpha"),
        (lambda: mc.AfterLooking(beta=0.9, delta=0.0), "delta"),
        (lambda: mc.Both(alpha=0.0, beta=0.9), "alpha"),
        (lambda: mc.Both(alpha=0.1, beta=2), "beta"),
    ],
)
def test_parameters_are_checked(make, says):
    with pytest.raises(mc.InputError, match=says):
        make()


@pytest.mark.parametrize(
    "promise",
    [
        mc.Both(alpha=0.12, beta=0.97),
        mc.Both(alpha=0.12, beta=0.97, delta=None),
        mc.AfterLooking(alpha=0.12, beta=0.96),
        mc.AfterLooking(alpha=0.12),
        mc.AfterLooking(beta=0.96),
    ],
)
def test_in_the_estimator_and_through_a_file(cifar10, tmp_path, promise):
    fitted = mc.MetaCal(clone(promise, safe=False)).fit(
        cifar10.logits[:4000], cifar10.labels[:4000]
    )
    mc.save(fitted, tmp_path / "cal.json")
    again = mc.load(tmp_path / "cal.json")
    assert again.certificate_ == fitted.certificate_
    assert again.promise == promise
    assert np.array_equal(
        again.accepts(cifar10.logits[4000:]), fitted.accepts(cifar10.logits[4000:])
    )
    assert read_certificate(fitted.certificate_.to_dict()) == fitted.certificate_


def test_a_file_that_promises_other_limits_than_its_constraint_is_refused(cifar10):
    from metacal.io.artifact.document import SavedContent, decode_document, encode_document

    gate = (
        mc.MetaCal(mc.Both(alpha=0.12, beta=0.97))
        .fit(cifar10.logits[:4000], cifar10.labels[:4000])
        .gate_
    )
    document = encode_document(SavedContent(gate))
    document["certificate"]["max_miscoverage"] = 0.01
    with pytest.raises(mc.ArtifactError, match="does not belong to the promise"):
        decode_document(document)


def test_the_html_of_gate_and_certificate_is_small_escaped_and_without_scripts(cifar10):
    gate = mc.MetaCal(
        mc.Both(alpha=0.12, beta=0.97),
        classes=[f"<b>{k}" for k in range(10)],
        reject_label="<script>",
    )
    assert "Not fitted" in gate._repr_html_()
    gate.fit(cifar10.logits[:4000], np.array([f"<b>{k}" for k in cifar10.labels[:4000]]))
    for text in (
        gate._repr_html_(),
        gate._repr_mimebundle_()["text/html"],
        gate.certificate_._repr_html_(),
    ):
        assert len(text) < 4000
        assert "<script" not in text
        assert "<b>" not in text
    assert gate.certificate_.statement in gate._repr_html_()


@pytest.mark.slow
def test_half_of_delta_each_is_nearly_all_that_there_is():
    """One threshold alone keeps both promises, and what lies around it gives little warning of
    either side.
    """
    rng, n, draws, broken = np.random.default_rng(0), 2000, 300, 0
    only = (
        0.6 * 0.95 / 0.85
    )  # right up to 0.6, then wrong until accuracy is 0.9, then wrong a tenth of the time
    kept = 0.6 + 0.05 * (only - 0.6)
    alpha = 1 - kept / (kept + 0.8995 * (1 - only))
    for _ in range(draws):
        scores = rng.random(n)
        correct = rng.random(n) > np.where(scores < 0.6, 0.0, np.where(scores < only, 0.95, 0.1005))
        ranking = Ranking.from_scores(scores, correct)
        if rank := count_certified_rows(ranking, 0.9, 0.1):
            accepted = scores <= ranking.largest_threshold_after_passing_rank(rank)
            broken += (correct & accepted).sum() >= bounds.smallest_rank_keeping_miscoverage(
                int(correct.sum()), alpha, 0.1
            )
    assert 0.1 < broken / draws <= 0.2 + 3 * (0.16 / draws) ** 0.5
