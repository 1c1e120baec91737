"""Older rows that say where tests begin: they help on the same source, and no promise breaks whatever they were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import metacal as mc
from metacal.promises.rules.memory import Memory
from metacal.promises.rules.sequence import Ladder, last_passed, rungs, usual_starts
from metacal.promises.sample import Ranking


def drawn(n, seed, rate=lambda u: 0.06 * u):
    rng = np.random.default_rng(seed)
    score = rng.random(n)
    return score, rng.random(n) > rate(score)


def test_ladders_as_arrays_are_the_ladders():
    ladder = Ladder(700, 0.05, 0.1)
    tested = [m for m in range(1, 701) if ladder.at_or_above(m) == m]
    assert [column.tolist() for column in rungs(ladder)] == [tested, [ladder.most_errors(m) for m in tested]]


def test_older_rows_gain_on_the_same_source():
    """300 rows, 0.97: the usual start allows an error where these rows rather have none."""
    older = Memory.of(Ranking.of(*drawn(2000, 0, lambda u: 0.5 * u**2)))
    assert older.starts(300, 0.97, 0.1) != usual_starts(300, 0.97, 0.1)
    plain = [Ranking.of(*drawn(300, seed, lambda u: 0.5 * u**2)) for seed in range(1, 41)]
    without = sum(last_passed(rows, 0.97, 0.1) > 0 for rows in plain)
    assert sum(last_passed(replace(rows, memory=older), 0.97, 0.1) > 0 for rows in plain) > without + 10


@pytest.mark.parametrize("declared", [False, True])
def test_no_promise_breaks_whatever_the_older_rows_were(declared):
    """On a population that is wrong a little too often nothing may be accepted: delta + 3 standard errors."""
    places, draws = np.arange(2000.0), 200
    for right in (places >= 0, places % 10 > 0):
        older = Memory.of(Ranking.of(places, right), declared=declared)
        rows = (Ranking.of(*drawn(200, seed, lambda u: np.full_like(u, 0.1001))) for seed in range(draws))
        broken = sum(last_passed(replace(own, memory=older), 0.9, 0.1) > 0 for own in rows)
        assert broken / draws <= 0.1 + 3 * np.sqrt(0.09 / draws)


def test_a_gate_remembers_what_its_rows_do():
    """Gate, estimator and rows lead to the same start; the certificate says that they had a say."""
    (logits, labels), _ = mc.datasets.load("cifar100-resnet110").split(2300, random_state=0)
    (old, old_labels), new = (logits[300:], labels[300:]), (logits[:300], labels[:300])
    older = mc.MetaCal(mc.MinAccuracy(0.9)).fit(old, old_labels)
    fits = [
        mc.MetaCal(mc.MinAccuracy(0.9)).fit(*new, prior=prior).certificate_
        for prior in (older, older.gate_, (old, old_labels))
    ]
    assert len({one.threshold for one in fits}) == 1
    assert "2,000 older rows had a say" in str(fits[0].notes[-1]) + str(fits[0].notes[0])
    declared = mc.MetaCal(mc.MinAccuracy(0.9)).fit(*new, prior=mc.SameSource(older)).certificate_
    assert any("up to 1 of delta" in str(note) for note in declared.notes)
    for promise in (mc.MaxMiscoverage(0.1), mc.PerClass(mc.MinAccuracy(0.9)), mc.MinAccuracy(0.9, delta=None)):
        with pytest.raises(mc.InputError, match=f"{type(promise).__name__} has no such tests"):
            mc.MetaCal(promise).fit(*new, prior=older)
    with pytest.raises(mc.InputError, match=r"\(logits, labels\)"):
        mc.MetaCal(mc.MinAccuracy(0.9)).fit(*new, prior=old)


def test_given_scores_remember_too():
    score, right = drawn(1000, 3)
    older, both = (-score.round(1), right), mc.Both(0.9, 0.95)
    gate = mc.ScoreGate(mc.MinAccuracy(0.95)).fit(*older)
    for promise, prior in ((gate.promise, older), (gate.promise, gate), (both, mc.SameSource(older))):
        new, correct = drawn(1000, 4)
        fitted = mc.ScoreGate(promise).fit(-new.round(1), correct, prior=prior).certificate_
        assert fitted.n_rows == (1000 if isinstance(prior, mc.SameSource) else 968)  # whether any was set aside
        assert fitted.circumstances.by_value
        assert any("older rows had a say" in str(note) for note in fitted.notes)
    with pytest.raises(mc.InputError, match="PerGroup has no such tests"):
        mc.ScoreGate(mc.PerGroup(gate.promise)).fit(-new, correct, groups=correct, prior=gate)


def test_a_gate_of_the_very_rows_that_are_tested_is_refused():
    """The start would depend on the rows, and nothing would be proved."""
    data = mc.datasets.load("cifar100-resnet110")
    rows = data.logits[:1000], data.labels[:1000]
    gate = mc.MetaCal(mc.MinAccuracy(0.9)).fit(*rows)
    for prior in (gate, gate.gate_, mc.SameSource(gate)):
        with pytest.raises(mc.InputError, match="prior must be a gate of other rows"):
            mc.MetaCal(mc.MinAccuracy(0.9)).fit(*rows, prior=prior)
    score, right = drawn(1000, 3)
    scored = mc.ScoreGate(mc.MinAccuracy(0.95)).fit(-score, right)
    with pytest.raises(mc.InputError, match="prior must be a gate of other rows"):
        mc.ScoreGate(mc.MinAccuracy(0.95)).fit(-score, right, prior=scored)
    with pytest.raises(mc.InputError, match="MaxMiscoverage has no such tests"):  # rather than ignored
        mc.ScoreGate(mc.MaxMiscoverage(0.1)).fit(-score, right, prior=-score[:500])
