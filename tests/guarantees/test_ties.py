"""Scores that tie: values are tested from a start that other rows choose, and the promise is
kept.
"""

import numpy as np
import pytest

import metacal as mc
from metacal.certificates.design import CertificationDesign
from metacal.certification.pilot import PilotPolicy, choose_pilot_rows_of_pool
from metacal.certification.plans import PilotRows
from metacal.certification.ranking import Ranking
from metacal.certification.rules.fixed_sequence import find_last_passed_rank
from metacal.certification.test_sequences import choose_first_tested_score
from metacal.errors import InfeasibleTargetError
from metacal.promises import Sample

#: Mass and error of each value, the surest first: two marks that break a rule that accepts an end
#: it never tested, a flat population, one whose errors go up and down, one with a mass point on
#: top, and a scale of five.
POPULATIONS = {
    "two marks": ([0.02, 0.98], [0.1002, 0.08]),
    "flat": ([0.1] * 10, [0.1001] * 10),
    "oscillating": ([0.1] * 10, [0.14, 0.07] * 5),
    "mass point": ([0.5, *[0.05] * 10], [0.1002, *np.linspace(0.05, 0.4, 10)]),
    "falling": ([0.05, 0.15, 0.3, 0.5], [0.3, 0.14, 0.09, 0.07]),
}


def ranking_of(mass, error, n, rng, n_pilot):
    """n rows of a population, and pilot rows."""
    value = rng.choice(len(mass), size=n + n_pilot, p=np.array(mass) / sum(mass))
    right = rng.random(n) >= np.array(error)[value[:n]]
    pilot = PilotRows(value[n:].astype(float), requires_score_value_tests=True)
    return Ranking.from_scores(value[:n].astype(float), right), pilot


@pytest.mark.parametrize("delta", [0.1, 0.01])
@pytest.mark.parametrize("name", POPULATIONS)
def test_the_promise_is_kept_whatever_ties(name, delta):
    mass, error = POPULATIONS[name]
    accuracy = 1.0 - np.cumsum(np.multiply(mass, error)) / np.cumsum(mass)
    rng, draws, broken = np.random.default_rng(7), 400, 0
    for _ in range(draws):
        ranking, pilot = ranking_of(mass, error, 1000, rng, 32)
        passed = find_last_passed_rank(ranking, 0.9, delta, pilot)
        if passed:
            last = int(ranking.tie_block_scores[ranking.find_tie_block(passed)])
            broken += accuracy[last] < 0.9 - 1e-12
    assert broken <= draws * delta + 3 * np.sqrt(draws * delta * (1 - delta))


def test_five_marks_are_certified():
    mass, error = [0.45, 0.25, 0.15, 0.1, 0.05], [0.02, 0.08, 0.15, 0.3, 0.5]
    rng = np.random.default_rng(0)
    accepted = []
    for _ in range(60):
        ranking, pilot = ranking_of(mass, error, 4930, rng, 70)
        accepted.append(
            ranking.count_accepted_after_passing_rank(passed) / 4930
            if (passed := find_last_passed_rank(ranking, 0.97, 0.1, pilot))
            else 0.0
        )
    assert np.mean(accepted) >= 0.42  # .45 at best; with the wrong rows of a tie first .03


def test_pilot_rows_are_of_each_group_and_ties_decide():
    rng = np.random.default_rng(0)
    score = rng.random(1000)
    sample = Sample.of(score, score < 0.9, part=np.arange(1000) % 2, names=["a", "b"])
    tested = PilotPolicy(3).withhold_pilot_rows(sample.rows)
    assert tested.pilot_rows is not None
    assert not tested.pilot_rows.requires_score_value_tests
    assert tested.pilot_rows.n_withheld == 20 == 1000 - len(tested)
    assert len(tested.pilot_rows.select_subgroups([0]).scores) == 10
    coarse = Sample.of(score.round(1), score < 0.9).rows
    assert PilotPolicy().withhold_pilot_rows(coarse).pilot_rows.requires_score_value_tests
    assert PilotPolicy().withhold_pilot_rows(coarse.take(np.arange(50))).pilot_rows is None
    assert not choose_pilot_rows_of_pool(coarse.scores[:50], 50).requires_score_value_tests
    for drawn, aside in ((500, 0), (990, 21), (1000, 32)):  # a square root of a pool is never drawn
        pilot = choose_pilot_rows_of_pool(coarse.scores, drawn)
        assert (pilot.requires_score_value_tests, pilot.n_withheld) == (True, aside)
        assert len(pilot.scores) == 1000 - drawn + aside
    fine = choose_pilot_rows_of_pool(np.arange(1000.0), 1000)
    assert (fine.requires_score_value_tests, fine.n_withheld) == (False, 10)


def test_a_start_is_where_the_first_test_of_ranks_would_be():
    assert choose_first_tested_score(np.arange(100.0), 1000, 0.95, 0.1) == 23.0
    assert choose_first_tested_score(np.zeros(1), 5, 0.95, 0.1) == 0.0
    nothing = Ranking.from_scores(np.ones(50), np.ones(50, dtype=bool))
    assert (
        find_last_passed_rank(
            nothing, 0.9, 0.1, PilotRows(np.zeros(3), requires_score_value_tests=True)
        )
        == 0
    )


@pytest.mark.parametrize(
    "promise",
    [
        mc.MinAccuracy(0.9),
        mc.Both(alpha=0.4, beta=0.9),
        mc.MaxCost(wrong=10, limit=1),
        mc.PerGroup(mc.MinAccuracy(0.9)),
    ],
)
def test_every_promise_in_sequence_takes_marks(promise, tmp_path):
    rng = np.random.default_rng(1)
    mark = rng.choice([1, 2, 3], p=[0.1, 0.3, 0.6], size=1500)
    right = rng.random(1500) > np.array([0, 0.5, 0.09, 0.01])[mark]
    groups = np.arange(1500) % 2 if isinstance(promise, mc.PerGroup) else None
    gate = mc.ScoreGate(promise, marks=[1, 2, 3]).fit(mark, right, groups=groups)
    assert gate.certificate_.design.tests_score_values
    assert gate.accepts([3, 2, 1], None if groups is None else [0, 0, 1]).tolist() == [
        True,
        True,
        False,
    ]
    mc.save(gate, tmp_path / "gate.json")
    assert mc.load(tmp_path / "gate.json").certificate_ == gate.certificate_
    if groups is None:
        assert [row[0] for row in gate.certificate_.score_value_counts] == [-3.0, -2.0, -1.0]
        assert "3: " in str(gate.certificate_)
        assert "not certified, rejected" in str(gate.certificate_)


def test_marks_must_be_those_that_were_declared():
    with pytest.raises(mc.InputError, match=r"not one of the marks 1, 2, for example 3\."):
        mc.ScoreGate(mc.MinAccuracy(0.9), marks=[1, 2]).fit([1, 2, 3], [True, True, False])
    with pytest.raises(mc.InputError, match="at least two numbers"):
        mc.ScoreGate(mc.MinAccuracy(0.9), marks=[1]).fit([1, 1], [True, False])
    with pytest.raises(InfeasibleTargetError):
        mc.ScoreGate(mc.MinAccuracy(0.9), marks=[1, 2, 3]).fit(
            np.repeat([1, 2], 60), np.arange(120) % 2 == 0
        )


@pytest.mark.parametrize(("pool", "aside"), [(2000, 0), (1000, 32)])
def test_a_certifier_takes_the_rest_of_its_pool_as_scouts(pool, aside):
    rng = np.random.default_rng(2)
    mark = rng.choice([1, 2, 3], p=[0.1, 0.3, 0.6], size=pool)
    right = rng.random(pool) > np.array([0, 0.8, 0.09, 0.01])[mark]
    certifier = mc.Certifier(mc.MinAccuracy(0.9), mark, labels=1000)
    while not certifier.finished:
        rows = certifier.propose()
        certifier.update(rows, right[rows])
    assert certifier.n_drawn == 1000 - aside
    assert certifier.certificate.design == CertificationDesign(
        tests_score_values=True, n_pilot_rows=aside
    )
    assert certifier.threshold == pytest.approx(-1, abs=1e-6)
    assert certifier.gate().accepts([3, 2, 1]).tolist() == [True, True, False]
