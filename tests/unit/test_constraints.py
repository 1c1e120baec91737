"""The two constraints and their certificates, rank by rank."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import warnings
from dataclasses import FrozenInstanceError
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

import metacal as mc
from metacal.certificates.certificate import accept_up_to_threshold
from metacal.certificates.counts import Traffic
from metacal.certificates.number_format import format_percent
from metacal.certification.ranking import Ranking
from metacal.certification.rules.expected_prefix import count_expected_prefix
from metacal.certification.rules.fixed_sequence import count_certified_rows, find_last_passed_rank
from metacal.io.artifact.audit import read_certificate
from metacal.kernels.grid import RELATIVE_GRID
from metacal.statistics import bounds

RNG = np.random.default_rng(0)
SCORES = RNG.random(3000)
CORRECT = RNG.random(3000) < 1 - 0.4 * SCORES**2


def test_miscoverage_threshold_is_an_order_statistic_of_the_correct_scores():
    right = np.sort(SCORES[CORRECT])
    for promise, rank in (
        (mc.MaxMiscoverage(0.05), bounds.certified_miscoverage_rank(len(right), 0.05, 0.1)),
        (mc.MaxMiscoverage(0.05, delta=None), bounds.expected_miscoverage_rank(len(right), 0.05)),
    ):
        certificate = promise.certify(SCORES, CORRECT)
        assert certificate.highest_accepted == RELATIVE_GRID.round(right)[rank - 1]
        assert certificate.threshold == RELATIVE_GRID.make_robust_to_rounding(
            certificate.highest_accepted
        )
        assert certificate.n_correct_accepted == rank
        assert certificate.miscoverage == pytest.approx(1 - rank / len(right))


def test_too_few_rows_accept_everything_and_say_so():
    with pytest.warns(mc.MetacalWarning, match="Every row is accepted: with only 44 correct rows"):
        certificate = mc.MaxMiscoverage(0.05).certify(np.arange(44.0), np.ones(44, dtype=bool))
    assert certificate.accepts_everything
    assert "at least 45 correct rows" in str(certificate.notes[0])
    assert (
        not mc.MaxMiscoverage(0.05)
        .certify(np.arange(45.0), np.ones(45, dtype=bool))
        .accepts_everything
    )


@cache
def slow_p_values(n, beta):
    return [
        bounds.binomial_p_value(np.arange(m + 1), m, 1.0 - beta).tolist() if m else []
        for m in range(n + 1)
    ]


def slow_prefix(scores, correct, beta, delta):
    """The rule as its docstring states it, one rank at a time."""
    order = np.lexsort((correct, scores))  # equal scores: wrong rows first
    ordered, right, errors = scores[order], correct[order], np.cumsum(~correct[order])
    n, rate = len(scores), 1 - bounds.to_exact_fraction(beta)

    p_values = slow_p_values(n, beta)  # [m][c]: of c errors up to rank m

    def p(wrong, m):
        return p_values[m][wrong]

    def most(m, level):
        return (
            sum(1 for _ in itertools.takewhile(lambda value: value <= level, p_values[m][:m])) - 1
        )

    first = min(Fraction("0.18"), Fraction("0.03") + 2 * rate) * n * rate
    shares = [Fraction("0.95"), Fraction("0.03"), Fraction("0.02")]
    allowed = [
        max(1, int(first)),
        int(Fraction("0.3") * n * rate),
        int(Fraction("0.65") * n * rate),
    ]
    if n * rate >= 20:
        allowed[0] = int(first + Fraction(1, 2))
    if n * rate < 10:
        shares, allowed = [Fraction(1)], [int(first) if n * rate < 8 else max(1, int(first))]
    parts, spent = [], Fraction(0)
    for wanted, share in zip(allowed, shares):
        spent += share
        level = float(spent) * delta
        limits = np.array([most(m, level) for m in range(1, n + 1)])
        # As near as can be to the rank at which it starts for delta = 0.1.
        rank = min((m for m in range(1, n + 1) if most(m, float(spent) * 0.1) >= wanted), default=n)
        starts = {
            c: int(np.argmax(limits >= c)) + 1 if limits.max() >= c else n + 1 for c in range(n + 1)
        }
        below = max([c for c, start in starts.items() if start <= rank], default=0)
        wanted = min(
            below + (rank**2 >= starts[below] * starts.get(below + 1, n + 1)), limits.max()
        )
        if wanted < 0:
            continue
        start = int(np.argmax(limits >= wanted)) + 1
        tight = [
            m for m in range(1, n + 1) if limits[m - 1] >= 0 and p(limits[m - 1], m) >= 0.75 * level
        ]
        if not parts or start > parts[-1][0]:
            parts.append((start, sorted({*tight, n}), share))
    best, level = 0, Fraction(0)
    for i, (start, ranks, share) in enumerate(parts):
        stop = parts[i + 1][0] if i + 1 < len(parts) else n + 1
        level += share
        for m in (m for m in ranks if start <= m < stop):
            end = int(np.searchsorted(ordered, ordered[m - 1], side="right"))
            if p(errors[m - 1], m) > float(level) * delta:
                level = Fraction(0)
                break
            tied_and_wrong = m < end and not right[m]
            best = int(np.searchsorted(ordered, ordered[m - 1])) if tied_and_wrong else end
    return best


@pytest.mark.parametrize("n", [5, 30, 85, 150, 310])
@pytest.mark.parametrize("beta", [0.3, 0.9, 0.95])
@pytest.mark.parametrize("delta", [0.01, 0.3])
@pytest.mark.parametrize("digits", [1, 9])
def test_the_fast_walk_is_the_slow_walk(n, beta, delta, digits):
    for seed in range(2):
        rng = np.random.default_rng([n, seed])
        scores = np.round(rng.random(n), digits)
        correct = rng.random(n) < beta + 0.1 * rng.random() - 0.3 * rng.random() * (scores - 0.4)
        fast = count_certified_rows(Ranking.from_scores(scores, correct), beta, delta)
        assert fast == slow_prefix(scores, correct, beta, delta)


@pytest.mark.parametrize("beta", [0.8, 0.9, 0.97, 0.123456789012345])
def test_expected_prefix_in_exact_arithmetic(beta):
    order = np.argsort(SCORES)
    errors = np.cumsum(~CORRECT[order])
    share = 1 - bounds.to_exact_fraction(beta)
    good = [m for m in range(1, len(order) + 1) if int(errors[m - 1]) + 1 <= share * (m + 1)]
    assert count_expected_prefix(Ranking.from_scores(SCORES, CORRECT), beta) == max(good, default=0)


def test_ties_are_accepted_or_rejected_together():
    coarse = np.round(SCORES, 1)
    certificate = mc.MinAccuracy(0.9).certify(coarse, CORRECT)
    accept = accept_up_to_threshold(coarse, certificate.threshold)
    assert 0 < accept.sum() < 3000
    assert set(coarse[accept]).isdisjoint(coarse[~accept])
    assert certificate.n_accepted == accept.sum()


def test_threshold_lies_just_below_the_first_score_not_covered():
    certificate = mc.MinAccuracy(0.9).certify(SCORES, CORRECT)
    assert certificate.threshold == RELATIVE_GRID.find_largest_threshold_rejecting(
        certificate.lowest_rejected
    )
    assert certificate.highest_accepted <= certificate.threshold < certificate.lowest_rejected


def test_a_target_that_full_coverage_meets_accepts_all():
    certificate = mc.MinAccuracy(0.5).certify(SCORES, CORRECT)
    assert certificate.threshold == math.inf
    assert certificate.coverage == 1
    assert certificate.lowest_rejected is None


def test_infeasible_says_best_and_rows_needed():
    few = slice(0, 100)
    with pytest.raises(
        mc.InfeasibleTargetError, match=r"Cannot certify an accuracy of 0\.99 on .*; the best"
    ) as caught:
        mc.MinAccuracy(0.99).certify(SCORES[few], CORRECT[few])
    error = caught.value
    assert error.target == 0.99
    assert count_certified_rows(Ranking.from_scores(SCORES[few], CORRECT[few]), error.best, 0.1) > 0
    assert (
        count_certified_rows(Ranking.from_scores(SCORES[few], CORRECT[few]), error.best + 2e-4, 0.1)
        == 0
    )
    assert error.rows_needed >= bounds.error_free_rows_needed(0.99, 0.1)
    assert f"{error.rows_needed:,} rows" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.best, again.rows_needed, str(again)) == (
        error.best,
        error.rows_needed,
        str(error),
    )


def test_infeasible_whatever_the_rows():
    with pytest.raises(mc.InfeasibleTargetError, match="no threshold that accepts") as caught:
        mc.MinAccuracy(0.95).certify(RNG.random(2000), RNG.random(2000) < 0.7)
    assert caught.value.rows_needed is None


def test_infeasible_in_expectation():
    with pytest.raises(mc.InfeasibleTargetError, match="in expectation"):
        mc.MinAccuracy(0.99, delta=None).certify(SCORES[:20], CORRECT[:20])


def test_about_that_many_rows_do():
    """The estimate is of the right order: half the promise fails, twice of it succeeds, in most
    draws.
    """

    def draw(n, seed):
        rng = np.random.default_rng(seed)
        scores = rng.random(n)
        return scores, rng.random(n) < 1 - 0.1 * scores

    with pytest.raises(mc.InfeasibleTargetError) as caught:
        mc.MinAccuracy(0.98).certify(*draw(200, 1))
    needed = caught.value.rows_needed
    assert (
        np.mean(
            [
                count_certified_rows(Ranking.from_scores(*draw(4 * needed, seed)), 0.98, 0.1) > 0
                for seed in range(50)
            ]
        )
        > 0.5
    )


@pytest.mark.parametrize(
    ("scores", "correct"),
    [
        (SCORES, CORRECT[:-1]),
        (SCORES[None], CORRECT[None]),
        (SCORES, CORRECT.astype(int)),
        (SCORES * np.nan, CORRECT),
    ],
)
def test_bad_columns(scores, correct):
    with pytest.raises(mc.InputError, match="certify requires"):
        mc.MaxMiscoverage(0.05).certify(scores, correct)


def test_certificate_is_frozen_and_round_trips():
    for promise in (mc.MaxMiscoverage(0.05), mc.MinAccuracy(0.5), mc.MinAccuracy(0.9, None)):
        certificate = promise.certify(SCORES, CORRECT)
        with pytest.raises(AttributeError):
            certificate.threshold = 1.0
        text = json.dumps(certificate.to_dict(), allow_nan=False)
        assert read_certificate(json.loads(text)) == certificate


def test_certificate_reads_well():
    certificate = mc.MinAccuracy(0.9).certify(SCORES, CORRECT)
    text = str(certificate)
    assert text.startswith(
        "Accepted predictions are correct at least 90% of the time, with 90% confidence."
    )
    assert "3,000 calibration rows" in text
    assert "assuming" in text
    html = certificate._repr_html_()
    assert "<table>" in html
    assert "&lt;=" in html  # "score <= 0.5" is escaped
    expectation = mc.MaxMiscoverage(0.05, delta=None).certify(SCORES, CORRECT)
    assert "on average" in expectation.statement
    assert expectation.confidence is None
    assert "without a guarantee" in mc.paper.MaxMiscoverage(0.05).certify(SCORES, CORRECT).statement


def test_html_in_a_score_name_is_inert():
    def score(block):
        return block.max(axis=1)

    score.__name__ = "<script>alert(1)</script>"
    logits = RNG.normal(size=(400, 3))
    cal = mc.MetaCal(mc.MaxMiscoverage(0.1), score=score).fit(
        logits, logits.argmax(axis=1) * (RNG.random(400) < 0.9)
    )
    assert "<script>" not in cal.certificate_._repr_html_()


@pytest.mark.parametrize(
    ("value", "text"), [(0.05, "5%"), (0.1, "10%"), (0.999, "99.9%"), (1 - 0.1, "90%")]
)
def test_percent(value, text):
    assert format_percent(value) == text


def test_parameters_are_searchable():
    promise = mc.MaxMiscoverage(0.05)
    assert promise.get_params() == {"alpha": 0.05, "delta": 0.1}
    assert promise.set_params(alpha=0.2).alpha == 0.2
    assert promise.alpha == 0.05
    with pytest.raises(FrozenInstanceError):
        promise.alpha = 0.2
    with pytest.raises(mc.InputError, match="has no parameter 'beta'"):
        promise.set_params(beta=0.2)
    with pytest.raises(mc.InputError, match="strictly between"):
        promise.set_params(alpha=2.0)


class TestPaper:
    def test_split_sets_aside_a_tenth_of_the_correct_rows(self):
        threshold_rows, base_rows = mc.paper.MaxMiscoverage(0.05, random_state=3).split_rows(
            CORRECT
        )
        assert threshold_rows.sum() == CORRECT.sum() // 10
        assert CORRECT[threshold_rows].all()
        assert (threshold_rows ^ base_rows).all()
        again, _ = mc.paper.MaxMiscoverage(0.05, random_state=3).split_rows(CORRECT)
        assert (again == threshold_rows).all()
        other, _ = mc.paper.MaxMiscoverage(0.05, random_state=4).split_rows(CORRECT)
        assert (other != threshold_rows).any()

    def test_split_stops_at_500(self):
        assert (
            mc.paper.MinCoverageAccuracy(0.9).split_rows(np.ones(9000, dtype=bool))[0].sum() == 500
        )

    def test_too_few_rows(self):
        with pytest.raises(mc.InputError, match="at least 10"):
            mc.paper.MinCoverageAccuracy(0.9).split_rows(np.ones(9, dtype=bool))

    def test_accuracy_above_everything_is_infeasible(self):
        with pytest.raises(
            mc.InfeasibleTargetError, match="paper's estimate of the accuracy is below"
        ):
            mc.paper.MinCoverageAccuracy(0.99).certify(RNG.random(200), RNG.random(200) < 0.5)

    def test_accuracy_below_everything_accepts_all(self):
        assert mc.paper.MinCoverageAccuracy(0.2).certify(SCORES, CORRECT).accepts_everything

    def test_curve_against_scikit_learn(self):
        from sklearn.isotonic import IsotonicRegression

        centres, accuracy = mc.paper.coverage_accuracy_curve(SCORES[:500], CORRECT[:500], 20)
        order = np.argsort(SCORES[:500])
        prefix = [CORRECT[:500][order[: 25 * j]].mean() for j in range(1, 21)]
        expected = IsotonicRegression(increasing=False).fit_transform(centres, prefix)
        np.testing.assert_allclose(accuracy, expected, rtol=1e-12)

    @pytest.mark.parametrize(
        "rule", [mc.paper.MaxMiscoverage(0.05, 0), mc.paper.MinCoverageAccuracy(0.97, 0)]
    )
    def test_the_base_is_fitted_on_what_the_algorithms_say(self, rule):
        """The accepted ones of the second part, though few of them are wrong."""
        (logits, labels), _ = mc.datasets.load("cifar10-resnet110").split(1000, random_state=0)
        scores, right = (
            mc.scores.score_rows(mc.Rows(logits), "entropy"),
            logits.argmax(axis=1) == labels,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gate = mc.MetaCal(rule).fit(logits, labels)
        _, second = rule.split_rows(right)
        used = second & (scores <= gate.certificate_.threshold)
        assert 0 < (used & ~right).sum() < 80
        expected = mc.TemperatureScaling().fit(logits[used], labels[used]).temperature_
        assert gate.gate_.source.map.temperature == expected

    @pytest.mark.parametrize(
        "rule", [mc.paper.MaxMiscoverage(0.05, 0), mc.paper.MinCoverageAccuracy(0.97, 0)]
    )
    def test_traffic_is_all_rows_though_a_part_of_them_certifies(self, rule, tmp_path):
        """Right rows alone are no picture of the traffic: more of them are accepted."""
        (logits, labels), (new, _) = mc.datasets.load("cifar100-resnet110").split(
            2000, random_state=0
        )
        correct = logits.argmax(axis=1) == labels
        if isinstance(rule, mc.paper.MinCoverageAccuracy):
            rule = mc.paper.MinCoverageAccuracy(0.9, 0)
        gate = mc.MetaCal(rule).fit(logits, labels)
        mc.save(gate, tmp_path / "gate.json")
        for found in (gate.certificate_, mc.load(tmp_path / "gate.json").certificate_):
            accept = gate.accepts(logits)
            accepted, both = int(accept.sum()), int((accept & correct).sum())
            assert found.traffic == Traffic(2000, accepted, int(correct.sum()), both, "source")
            assert (
                found.selective_accuracy == both / accepted < found.tested_counts.n_correct_accepted
            )
            assert found.n_rows == rule.split_rows(correct)[0].sum() < 300
            assert found.coverage == accepted / 2000
            assert abs(found.coverage - gate.accepts(new).mean()) < 0.03
            expected = found.next_rows(8000)
            assert expected.fewest <= (~gate.accepts(new))[:8000].sum() <= expected.most

    def test_scores_tied_with_the_threshold_are_accepted_but_not_smaller(self):
        rule, scores = mc.paper.MaxMiscoverage(0.5), np.array([1.0, 2.0, 2.0, 3.0])
        certificate = rule.certify(scores, np.ones(4, dtype=bool))
        assert certificate.n_accepted == 3
        everything = np.ones(4, dtype=bool)
        assert rule.select_map_training_rows(
            everything, scores, everything, certificate
        ).tolist() == [
            True,
            False,
            False,
            False,
        ]
        accepts_all = mc.paper.MaxMiscoverage(0.05).certify(scores, np.ones(4, dtype=bool))
        assert accepts_all.accepts_everything
        assert rule.select_map_training_rows(everything, scores, everything, accepts_all).all()


def test_certified_promises_fit_the_base_on_all_rows():
    promise, scores, correct = mc.MaxMiscoverage(0.1), np.arange(1000.0), np.arange(1000) >= 200
    everything = np.ones(1000, dtype=bool)
    assert promise.select_map_training_rows(
        everything, scores, correct, promise.certify(scores, correct)
    ).all()


@pytest.mark.slow
def test_where_nearly_every_row_is_wrong_rungs_are_not_looked_for_again_and_again(monkeypatch):
    """Labels in another order than the columns: the answer took a minute at 2,000 rows, and hours
    at 15,000.
    """
    from metacal.certification import test_sequences as sequence

    looked_for = []
    plain = sequence.BinomialRankTests.lowest_tested_rank_at_least
    monkeypatch.setattr(
        sequence.BinomialRankTests,
        "lowest_tested_rank_at_least",
        lambda ladder, rank: looked_for.append(rank) or plain(ladder, rank),
    )
    correct = np.arange(600) % 10 == 0
    with pytest.raises(mc.InfeasibleTargetError, match="Cannot certify"):
        mc.MinAccuracy(0.95).certify(np.full(600, 0.5), correct)
    assert len(looked_for) < 600


@pytest.mark.parametrize("beta", [0.8, 0.95, 0.99])
def test_skipping_what_clearly_passes_changes_no_failure(beta, monkeypatch):
    from metacal.certification import first_failure

    def every_test(n_errors, ranks, error_rate, significance_level):
        return np.zeros(len(n_errors), dtype=bool)

    rng = np.random.default_rng(0)
    for n, digits, gap in (
        (30_000, 9, 0.02),
        (30_000, 2, 0.01),
        (30_000, 9, 0.0),
        (5_000, 9, -0.03),
    ):
        scores = np.round(rng.random(n), digits)
        ranking = Ranking.from_scores(scores, rng.random(n) < beta + gap * (1.5 - 2.0 * scores))
        quick = find_last_passed_rank(ranking, beta, 0.1)
        with monkeypatch.context() as patch:
            patch.setattr(first_failure, "find_certain_passes", every_test)
            assert find_last_passed_rank(ranking, beta, 0.1) == quick
