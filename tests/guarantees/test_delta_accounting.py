"""How delta is divided, and which rows are tested: each test fails if a share of delta is spent
twice.

Most tests build rows whose evidence lies between two levels: a test at its own share of delta
fails, and the same test at all of delta passes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import metacal as mc
from metacal.certification.pilot import PilotPolicy
from metacal.certification.plans import PilotRows
from metacal.certification.row_selection import build_row_selection
from metacal.promises import Sample
from metacal.promises.cascade_candidates import CascadePlan, PairedPredictions, draw_pilot_rows
from metacal.promises.staged_cascade import CascadeScores
from metacal.promises.two_model_cascade import TwoModelEvidence
from metacal.statistics import bounds, replicating_bets

DELTA, BETA = 0.1, 0.9


def accepted_share(promise, sample):
    """The share of rows that is accepted; 0 if nothing can be certified."""
    try:
        return promise.certify(sample).coverage
    except mc.InfeasibleTargetError:
        return 0.0


# ── whole clusters ───────────────────────────────────────────────────────────────────────────────


def in_clusters(wrong_rows, n=2000):
    """Clusters of one row each; the rows at these ranks are wrong."""
    score, correct = np.linspace(0.0, 1.0, n), np.ones(n, dtype=bool)
    correct[wrong_rows] = False
    selection = build_row_selection(n, mc.Units(np.arange(n), per="row", largest=1))
    return Sample.of(score, correct, units=selection.draw(score, correct).clusters)


def test_the_starts_of_whole_clusters_share_delta(monkeypatch):
    """The surest rows have nearly as many errors as is allowed, so that the first start fails."""
    levels = []
    plain = replicating_bets.certifies_mean_below

    def spied(values, limit, level, **options):
        levels.append(level)
        return plain(values, limit, level, **options)

    monkeypatch.setattr(replicating_bets, "certifies_mean_below", spied)
    certificate = mc.MinAccuracy(BETA, DELTA).certify(in_clusters(np.arange(0, 130, 11)))
    assert certificate.accepts_everything
    assert levels[0] == pytest.approx(0.9 * DELTA)
    assert levels[1:] == pytest.approx([0.1 * DELTA] * (len(levels) - 1))  # the first share is lost


def test_a_start_of_whole_clusters_that_passes_hands_on_its_share(monkeypatch):
    levels = []
    plain = replicating_bets.certifies_mean_below
    monkeypatch.setattr(
        replicating_bets,
        "certifies_mean_below",
        lambda values, limit, level: levels.append(level) or plain(values, limit, level),
    )
    mc.MinAccuracy(BETA, DELTA).certify(in_clusters(np.arange(0, 2000, 100)))
    assert levels == sorted(levels)
    assert sorted(set(levels)) == pytest.approx([0.9 * DELTA, DELTA])


def test_pilot_clusters_are_not_tested():
    certificate = mc.MinAccuracy(0.8).certify(in_clusters(np.arange(0, 2000, 50)))
    assert certificate.n_rows == 1800  # a tenth of 2,000 clusters of one row chose the thresholds


# ── pilot rows ───────────────────────────────────────────────────────────────────────────────────


def test_pilot_rows_of_a_score_with_ties_are_not_tested():
    rng = np.random.default_rng(0)
    score = rng.integers(5, size=900) / 4.0
    correct = rng.random(900) > 0.05
    gate = mc.ScoreGate(mc.MinAccuracy(BETA), higher_is="doubtful").fit(score, correct)
    certificate = gate.certificate_
    assert certificate.design.n_pilot_rows == 30
    assert certificate.n_rows == 870
    assert sum(rows for _, rows, _ in certificate.score_value_counts) == 870


def test_pilot_rows_and_tested_rows_are_disjoint():
    rng = np.random.default_rng(1)
    score = rng.permutation(1000) // 5 / 200.0
    sample = Sample.of(score, np.arange(1000) % 10 > 0, part=np.arange(1000) % 2, names=["a", "b"])
    tested = PilotPolicy().withhold_pilot_rows(sample.rows)
    together = np.sort(np.concatenate([tested.scores, tested.pilot_rows.scores]))
    assert tested.pilot_rows.n_withheld > 0
    assert np.array_equal(together, np.sort(sample.score))


def test_pooled_pilot_rows_are_not_tested():
    rng = np.random.default_rng(2)
    codes = rng.integers(40, size=800)
    sample = Sample.of(rng.random(800), rng.random(800) > 0.02, part=codes, names=list(range(40)))
    pool = mc.PerClass(mc.MinAccuracy(BETA), fallback="pooled").certify(sample).subgroups.items[-1]
    assert len(pool.names) == 40
    assert pool.n_rows == 600


def test_pilot_rows_of_a_cascade_are_not_tested():
    rng = np.random.default_rng(3)
    score, right = rng.random((2, 1000)), rng.random((2, 1000)) > 0.02
    rows = PairedPredictions(*score, *right, right[0] == right[1], np.ones(1000, dtype=bool))
    aside = draw_pilot_rows(rows.small_score, rows.large_score, rows.models_agree, CascadePlan())
    broken = rows.small_correct.copy()
    broken[aside] = False  # what pilot rows say of errors must not count
    certificates = [
        mc.MaxLoss(0.05).certify(TwoModelEvidence(own))
        for own in (rows, replace(rows, small_correct=broken))
    ]
    assert certificates[0].n_rows == 1000 - len(aside)
    assert (
        certificates[0].stages.n_only_cascade_wrong == certificates[1].stages.n_only_cascade_wrong
    )


# ── subgroups, sides, two promises at once ───────────────────────────────────────────────────────


def just_certified(n, beta, level):
    """The most errors of n rows that an exact test at a level allows."""
    return max(
        wrong for wrong in range(n) if bounds.binomial_p_value(wrong, n, 1.0 - beta) <= level
    )


def errors_last(n, wrong):
    """Rows of which the least sure are wrong. All are accepted if the errors pass a test on all
    rows.
    """
    return np.arange(float(n)), np.arange(n) < n - wrong


def errors_first(n, wrong):
    """Rows of which the surest are wrong: nothing can be accepted."""
    return np.arange(float(n)), np.arange(n) >= wrong


def rows_of(groups):
    """The rows of several groups, as a sample."""
    score, correct = (np.concatenate(columns) for columns in zip(*groups, strict=True))
    codes = np.repeat(np.arange(len(groups)), [len(group[0]) for group in groups])
    return Sample.of(score, correct, part=codes, names=[f"group {k}" for k in range(len(groups))])


@pytest.mark.parametrize(
    ("shares", "level"), [("together", DELTA / 4), ("each", DELTA), ("fcr", DELTA / 4)]
)
def test_subgroups_share_delta(shares, level):
    """Three of four groups can accept nothing, so the fourth is tested at its own share."""
    n = 300
    most = just_certified(n, BETA, level)
    assert most < just_certified(n, BETA, DELTA) or level == DELTA
    promise = mc.PerGroup(mc.MinAccuracy(BETA, DELTA), shares=shares)
    for wrong, accepts_all in ((most, True), (most + 1, False)):
        sample = rows_of([errors_last(n, wrong), *[errors_first(n, 100)] * 3])
        first = promise.certify(sample).subgroups.items[0]
        assert (first.n_accepted == n) == accepts_all
        assert first.delta == pytest.approx(level)


def test_two_promises_at_once_have_half_of_delta_each():
    n = 300
    most = just_certified(n, BETA, DELTA / 2)
    assert just_certified(n, BETA, DELTA) > most
    promise = mc.Both(alpha=0.5, beta=BETA, delta=DELTA)
    for wrong, accepts_all in ((most, True), (most + 1, False)):
        sample = Sample.of(*errors_last(n, wrong))
        assert (accepted_share(promise, sample) == 1.0) == accepts_all


def test_the_miscoverage_of_two_promises_is_tested_at_half_of_delta():
    """Right rows, then wrong ones, then right rows that are lost: how many may be lost."""
    n, alpha = 400, 0.05
    lost = n - bounds.smallest_rank_keeping_miscoverage(n, alpha, DELTA / 2)
    assert n - bounds.smallest_rank_keeping_miscoverage(n, alpha, DELTA) > lost
    promise = mc.Both(alpha=alpha, beta=0.9, delta=DELTA)
    for n_lost, certified in ((lost, True), (lost + 1, False)):
        correct = np.repeat([True, False, True], [n - n_lost, 200, n_lost])
        sample = Sample.of(np.arange(n + 200.0), correct)
        assert (accepted_share(promise, sample) > 0.0) == certified


def test_the_starts_of_graded_losses_share_delta(monkeypatch):
    """If the first test of every sequence fails, the levels of these tests add up to delta."""
    levels = []

    def fails(sequences, limit, significance_level, **options):
        levels.append(significance_level)
        return np.zeros(len(sequences), dtype=bool)

    monkeypatch.setattr(replicating_bets, "find_means_below", fails)
    rng = np.random.default_rng(8)
    gate = mc.ScoreGate(mc.MaxRisk(0.1, DELTA), higher_is="doubtful")
    with pytest.raises(mc.InfeasibleTargetError):
        gate.fit(rng.random(3000), loss=0.05 * rng.random(3000))
    n_starts = len(set(levels))
    assert n_starts > 1
    assert sum(levels[:n_starts]) == pytest.approx(DELTA)


def test_two_limits_chosen_after_looking_have_half_of_delta_each():
    rng = np.random.default_rng(3)
    score = rng.random(2000)
    correct = rng.random(2000) > 0.4 * score**2
    with_both_limits = mc.AfterLooking(alpha=0.9, beta=BETA, delta=DELTA).certify(score, correct)
    at_half = mc.AfterLooking(beta=BETA, delta=DELTA / 2).certify(score, correct)
    at_delta = mc.AfterLooking(beta=BETA, delta=DELTA).certify(score, correct)
    assert with_both_limits.threshold == at_half.threshold
    assert at_half.n_accepted < at_delta.n_accepted


def test_both_sides_of_two_classes_share_delta():
    """The recall of each class is certified at delta / 2: how many rows of a class may be called
    wrongly.
    """
    promise = mc.TwoSided(mc.MinRecall(0.9), mc.MinRecall(0.9, positive=0), delta=DELTA)
    rng = np.random.default_rng(4)
    truth = np.repeat([0, 1], 200)
    sample = Sample.of(rng.normal(size=400) + 6.0 * truth, truth == 1, truth=truth)
    levels = [part.delta for part in promise.certify(sample).subgroups.items]
    assert sum(levels) == pytest.approx(DELTA)


# ── sequences of tests ───────────────────────────────────────────────────────────────────────────


def test_a_sequence_of_tests_stops_at_its_first_failure():
    """The middle of the ranking is bad, its end is good again: what follows a failure is not
    accepted.
    """
    wrong = np.zeros(3000, dtype=bool)
    wrong[600:1000] = True
    certificate = mc.MinAccuracy(0.8).certify(np.arange(3000.0), ~wrong)
    assert certificate.n_accepted < 900  # at the last rank only 13% are wrong
    pilot = np.arange(50.0) * 60
    sample = Sample.of(np.arange(3000.0), ~wrong)
    with_pilot = replace(sample, pilot=PilotRows(pilot, requires_score_value_tests=True))
    assert mc.MinAccuracy(0.8).certify(with_pilot).n_accepted < 900


def test_a_cascade_stops_at_its_first_failure():
    """The small model is bad in the middle of its ranking, and good again at the end."""
    n = 3000
    order = np.random.default_rng(5).permutation(n)
    small_right = np.ones(n, dtype=bool)
    small_right[900:1100] = False
    score = np.arange(float(n))
    everything = np.ones(n, dtype=bool)
    rows = PairedPredictions(score, score, small_right, everything, small_right, everything).take(
        order
    )
    certificate = mc.MaxLoss(0.07).certify(TwoModelEvidence(rows))
    assert certificate.threshold < 1500  # with every answer of the small model the loss is 6.7%
    strict = mc.MaxLoss(0.05).certify(TwoModelEvidence(rows))
    assert strict.threshold < 1100


def test_the_two_starts_of_a_cascade_share_delta():
    """The large model is never wrong; the small one always is. Only the start without it, at delta
    / 10, can pass.
    """
    n, beta = 400, 0.98
    rng = np.random.default_rng(6)
    levels = {}
    for wrong in range(12):
        large_right = np.ones(n, dtype=bool)
        large_right[rng.permutation(n)[:wrong]] = False
        small_right = np.zeros(n, dtype=bool)
        rows = PairedPredictions(
            rng.random(n),
            rng.random(n),
            small_right,
            large_right,
            ~large_right,
            np.ones(n, dtype=bool),
        )
        try:
            certificate = mc.MinAccuracy(beta, DELTA).certify(TwoModelEvidence(rows))
        except mc.InfeasibleTargetError:
            continue
        wrong_answers = certificate.n_accepted - certificate.n_correct_accepted
        levels[wrong] = bounds.binomial_p_value(wrong_answers, certificate.n_accepted, 1.0 - beta)
    assert levels  # the last start does certify
    assert max(levels.values()) <= DELTA / 10


def test_the_paths_of_a_cascade_of_scores_share_delta():
    """Two models before the last: thresholds are certified on several paths, each at its share of
    delta.
    """
    n = 600
    found = []
    for seed in range(12):
        rng = np.random.default_rng([7, seed])
        doubt = rng.random((n, 2))
        wrong = np.column_stack([rng.random((n, 2)) < 0.075, rng.random(n) < 0.075])
        rows = CascadeScores(doubt, wrong, np.array([1.0, 2.0, 4.0]), doubt[:0])
        try:
            certificate = mc.MinAccuracy(BETA, DELTA).certify(rows)
        except mc.InfeasibleTargetError:
            continue
        bad = certificate.n_accepted - certificate.n_correct_accepted
        found.append(bounds.binomial_p_value(bad, certificate.n_accepted, 1.0 - BETA))
    assert found
    assert max(found) <= DELTA / 2


def test_labels_that_arrive_share_delta_with_a_declared_extension():
    rng = np.random.default_rng(8)
    score = np.sort(rng.random(4000))
    correct = rng.random(4000) > 0.3 * score
    promise = mc.MinAccuracy(BETA, DELTA)
    certifier = mc.Certifier(promise, score, labels=400, may_extend=True, higher_is="doubtful")
    for stage, share in (("first", 0.8), ("extended", 0.2)):
        while len(rows := certifier.propose()):
            certifier.update(rows, correct[rows])
        drawn = certifier.drawn_rows
        alone = promise.with_delta_fraction(share).certify(score[drawn], correct[drawn]).threshold
        if stage == "first":
            assert certifier.threshold == alone
            first = alone
            certifier.extend()
        else:
            assert certifier.threshold == max(first, alone)
