"""Promises about rows that belong together: kept as often as they say, by unit and by row, and not
refuted by luck.
"""

import numpy as np
import pytest

import metacal as mc
from metacal.certification.row_selection import build_row_selection
from metacal.promises import Sample
from metacal.promises.verification import verify_decisions

DELTA, LARGEST = 0.1, 12


def drawn(rng, n_units):
    """Few large units that err often, many small ones that hardly do; within a unit errors come
    together.
    """
    size = np.where(rng.random(n_units) < 0.25, LARGEST, rng.integers(1, 4, n_units))
    unit = np.repeat(np.arange(n_units), size)
    score, luck = rng.random(len(unit)), np.exp(0.7 * rng.normal(size=n_units) - 0.245)
    chance = np.where(size[unit] == LARGEST, 0.28, 0.04) * (0.2 + 1.6 * score) * luck[unit]
    return score, rng.random(len(unit)) > chance, unit


def truth(n_units=60_000):
    score, right, unit = drawn(np.random.default_rng(99), n_units)
    order = np.argsort(score)
    return score[order], right[order], unit[order]


SCORE, RIGHT, UNIT = truth()
WEIGHT = 1.0 / np.bincount(UNIT)[UNIT]


def accuracy(threshold, weight=None):
    accept = threshold >= SCORE
    return np.average(RIGHT[accept], weights=None if weight is None else weight[accept])


def sampled(seed, n_units, per, largest=LARGEST):
    score, right, unit = drawn(np.random.default_rng(seed), n_units)
    selection = build_row_selection(
        len(score), mc.Units(unit, per, largest if per == "row" else None)
    )
    counted = selection.draw(score, right)
    sample = Sample.of(score[counted.indices], right[counted.indices], units=counted.clusters)
    return sample, counted


@pytest.mark.slow
def test_a_promise_by_unit_says_nothing_about_rows_and_a_promise_by_row_does():
    promise, broken = mc.MinAccuracy(0.88, DELTA), {"unit": 0, "row": 0}
    rows_below = 0
    for seed in range(40):
        for per, weight in (("unit", WEIGHT), ("row", None)):
            sample, _ = sampled(seed, 700, per)
            try:
                threshold = promise.certify(sample).threshold
            except mc.InfeasibleTargetError:
                continue
            broken[per] += accuracy(threshold, weight) < 0.88
            rows_below += per == "unit" and accuracy(threshold) < 0.88
    assert max(broken.values()) <= 40 * DELTA + 3 * np.sqrt(40 * DELTA * (1 - DELTA))
    assert rows_below > 35


@pytest.mark.slow
@pytest.mark.parametrize(
    ("promise", "kept"),
    [
        (mc.MinAccuracy(0.86, DELTA), lambda t: accuracy(t) >= 0.86),
        (mc.MaxMiscoverage(0.1, DELTA), lambda t: RIGHT[t < SCORE].sum() <= 0.1 * RIGHT.sum()),
        (mc.MaxReview(0.2, DELTA), lambda t: (t < SCORE).mean() <= 0.2),
    ],
    ids=["accuracy", "miscoverage", "review"],
)
def test_promises_by_row_are_kept(promise, kept):
    broken, certified, draws = 0, 0, 60
    for seed in range(draws):
        sample, counted = sampled(seed, 1500, "row")
        try:
            found = promise.certify(sample)
            found = counted.annotate_certificate(
                found.with_counts_of_all_rows(sample.score <= found.threshold, sample.correct)
            )
        except mc.InfeasibleTargetError:
            continue
        assert promise.contradiction(found) is None
        broken, certified = broken + (not kept(found.threshold)), certified + 1
    assert certified > 0.6 * draws
    assert broken <= draws * DELTA + 3 * np.sqrt(draws * DELTA * (1 - DELTA))


@pytest.mark.parametrize("per", ["unit", "row"])
def test_a_promise_that_is_just_kept_is_refuted_in_5_of_100_cases_at_most(per):
    """60 units of 20 rows each, whose errors come together."""
    rng, sample = np.random.default_rng(0), sampled(0, 300, per)
    certificate = sample[1].annotate_certificate(mc.MinAccuracy(0.5).certify(sample[0]))
    refuted = without = 0
    for _ in range(200):
        unit = np.repeat(np.arange(60), 20)
        right = rng.random(1200) > rng.beta(1.0, 1.0, 60)[unit]
        accept = np.ones(1200, dtype=bool)
        refuted += verify_decisions(certificate, accept, right, units=mc.Units(unit)).refuted
        without += verify_decisions(certificate, accept, right).refuted
    assert refuted <= 10 + 3 * np.sqrt(200 * 0.05 * 0.95)
    assert without > 40


def labelled(rng, n, k=6):
    """Scores and truths of several labels: rows that show few labels err more."""
    hard = rng.random((n, 1)) < 0.5
    score = np.where(
        hard & (rng.random((n, k)) < 0.6), 0.01 * rng.random((n, k)), rng.random((n, k))
    )
    return score, rng.random((n, k)) < np.where(hard, 0.1 + 0.8 * score, score**0.4)


def mean_of_rows(promise, given, truth):
    """The mean precision of rows that are given labels, or the mean recall of those that have
    some.
    """
    of = given if isinstance(promise, mc.MinAccuracy) else truth
    some = of.any(axis=1)
    return float(((given & truth)[some].sum(axis=1) / of[some].sum(axis=1)).mean())


@pytest.mark.slow
@pytest.mark.parametrize("promise", [mc.MinAccuracy(0.7, DELTA), mc.MaxMiscoverage(0.3, DELTA)])
def test_the_mean_over_rows_of_what_their_labels_lose_is_kept(promise):
    rng, broken, draws = np.random.default_rng(3), 0, 25
    score, truth = labelled(rng, 20_000)
    for _ in range(draws):
        given = mc.ScoreGate(promise).fit(*labelled(rng, 300)).accepts(score)
        broken += mean_of_rows(promise, given, truth) < 0.7
    assert broken <= draws * DELTA + 3 * np.sqrt(draws * DELTA * (1 - DELTA))


@pytest.mark.parametrize("promise", [mc.MinAccuracy(0.7, DELTA), mc.MaxMiscoverage(0.3, DELTA)])
def test_several_labels_of_a_row_together_are_promised_by_the_mean_of_each_row(promise, tmp_path):
    rng = np.random.default_rng(3)
    gate = mc.ScoreGate(promise).fit(*labelled(rng, 400))
    certificate, (score, truth) = gate.certificate_, labelled(rng, 600)
    assert certificate.statement.startswith(
        "On average over clusters, each by the mean of its rows, "
    )
    assert (
        certificate.design.cluster_counting,
        certificate.design.largest_cluster_size,
    ) == ("mean", 6)
    assert certificate.guarantee == "certified"
    mc.save(gate, tmp_path / "gate.json")
    assert mc.load(tmp_path / "gate.json").certificate_ == certificate
    rows = np.repeat(np.arange(len(score)), 6)
    found = mc.verify(gate, score.ravel(), truth.ravel(), units=rows)
    shown = mean_of_rows(promise, gate.accepts(score), truth)
    assert found.tests[0].value == pytest.approx(
        shown if isinstance(promise, mc.MinAccuracy) else 1.0 - shown
    )
    assert (found.units, found.refuted) == ("mean", False)
    watch = mc.Watch.of(gate)
    watch.update(score.ravel(), truth.ravel(), units=rows)
    assert not any(alarm.raised for alarm in watch.alarms)


def test_the_statement_says_which():
    score, right, unit = drawn(np.random.default_rng(1), 900)
    gates = [
        mc.ScoreGate(mc.MinAccuracy(0.8), higher_is="doubtful")
        .fit(score, right, units=units)
        .certificate_
        for units in (unit, mc.Units(unit, "row", LARGEST), mc.Units(unit, "row"))
    ]
    assert gates[0].statement.startswith(
        "For a random row of a random cluster, accepted predictions are correct"
    )
    assert gates[1].statement.startswith(
        "For a random row of any cluster, accepted predictions are correct"
    )
    assert gates[1].guarantee == "certified"
    assert gates[1].traffic.n_rows == len(score) > gates[1].tested_counts.n_rows
    assert gates[2].guarantee == "approximate"
    assert gates[2].statement.endswith(
        "(approximate, not certified: no largest unit was declared)."
    )
    assert "each of its own cluster" in str(gates[1].next_rows(100))


def test_what_cannot_be_counted_by_row(tmp_path):
    score, right, unit = drawn(np.random.default_rng(2), 300)
    every = mc.Units(unit, "row", LARGEST)
    for promise in (mc.Both(0.1, 0.9), mc.MinAccuracy(0.8, delta=None), mc.MaxCost(1.0, 0.3)):
        with pytest.raises(mc.InputError, match="Count one row of each"):
            mc.ScoreGate(promise).fit(score, right, units=every)
    with pytest.raises(mc.InputError, match=r"the declared maximum is largest=5\."):
        mc.ScoreGate(mc.MinAccuracy(0.8)).fit(score, right, units=mc.Units(unit, "row", 5))
    with pytest.raises(mc.InputError, match="largest has no effect"):
        mc.Units(unit, largest=5)
    with pytest.raises(
        mc.InfeasibleTargetError, match=r"Cannot certify .* on average over clusters"
    ):
        mc.ScoreGate(mc.MinAccuracy(0.99)).fit(score, right, units=mc.Units(unit, "mean"))
    with pytest.raises(mc.InputError, match="per must be"):
        mc.Units(unit, "rows")
    with pytest.raises(mc.InfeasibleTargetError, match=r"Cannot certify .* of all rows"):
        mc.ScoreGate(mc.MinAccuracy(0.99)).fit(score, right, units=every)
    gate = mc.ScoreGate(mc.MaxMiscoverage(0.2), higher_is="doubtful").fit(score, right, units=every)
    mc.save(gate, tmp_path / "gate.json")
    assert mc.load(tmp_path / "gate.json").certificate_ == gate.certificate_
    found = mc.verify(gate, score, right, units=unit)
    assert (found.units, found.to_dict()["units"]) == ("row", "row")
    with pytest.raises(mc.InputError, match="units must have one entry"):
        mc.verify(gate, score, right, units=unit[:5])


def test_weights_are_certified_with_a_declared_largest_alone():
    """Two-point weights: where the rare heavy rows are missing, nothing in the rows says so."""
    rng = np.random.default_rng(0)
    score, right = rng.random(800), rng.random(800) > 0.02
    weights = np.ones(800)
    bare = mc.ScoreGate(mc.MinAccuracy(0.9)).fit(score, right, importance=weights).certificate_
    assert bare.guarantee == "approximate"
    assert bare.statement.endswith("(approximate, not certified: no largest weight was declared).")
    known = (
        mc.ScoreGate(mc.MinAccuracy(0.9))
        .fit(score, right, importance=mc.Importance(weights, 2.0))
        .certificate_
    )
    assert known.guarantee == "certified"
    assert "certified" not in known.statement
    with pytest.raises(mc.InputError, match="No calibration row is classified correctly"):
        mc.ScoreGate(mc.MinAccuracy(0.9)).fit(score, right, importance=np.where(right, 1e-9, 1.0))


def test_draws_are_not_those_of_the_callers_seed():
    """Scores from the caller's seed 0: were rows kept by the same numbers, sure rows alone would
    be.
    """
    score = np.random.default_rng(0).random(5000)
    right = np.random.default_rng(1).random(5000) > 0.25 * score
    kept = (
        build_row_selection(5000, importance=mc.Importance(np.full(5000, 0.5), 1.0))
        .draw(score, right)
        .indices
    )
    assert abs(score[kept].mean() - score.mean()) < 0.02
    half, promise = mc.Importance(np.full(5000, 0.5), 1.0), mc.MinAccuracy(0.93)
    gate = mc.ScoreGate(promise, higher_is="doubtful").fit(score, right, importance=half)
    assert gate.certificate_.coverage < 0.7


def test_a_pool_with_copies_is_warned_of():
    data = mc.datasets.load("cifar100-resnet110")
    with pytest.warns(mc.MetacalWarning, match="repeat the logits of an earlier row"):
        certifier = mc.Certifier(
            mc.MinAccuracy(0.5), np.repeat(data.logits[:100], 5, axis=0), labels=300
        )
    certifier.update(
        certifier.drawn_rows, labels=np.repeat(data.labels[:100], 5)[certifier.drawn_rows]
    )
    assert "repeated_rows" in [note.kind for note in certifier.certificate.notes]
    with pytest.warns(mc.MetacalWarning, match="share their score"):
        mc.Certifier(mc.MinAccuracy(0.5), np.repeat(np.arange(50.0), 5), labels=50)
