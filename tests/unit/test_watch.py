"""A watch: the same whatever the batches and the restarts, labels that come late, labels that were
sampled, drift.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

import metacal as mc
from metacal.certification.ranking import Ranking
from metacal.gate.traffic import LateLabel
from metacal.gate.watch_history import MAX_POINTS
from metacal.io.artifact.watch import decode_watch, encode_watch
from metacal.promises.sequential.alarms import Alarms
from metacal.promises.sequential.calibration_monitor import CalibrationMonitor
from metacal.promises.sequential.drift import AbstentionMonitor, ScoreMonitor, UnreadableMonitor
from metacal.promises.sequential.profile import build_profile, compute_bin_edge_ranks
from metacal.reports.status import status
from metacal.reports.status_lines import format_status_lines


def ranked(scores):
    return Ranking.from_scores(scores, np.ones(len(scores), dtype=bool))


def limit(delta, draws):
    return delta + 3.0 * math.sqrt(delta * (1.0 - delta) / draws)


@pytest.fixture(scope="module")
def cal():
    data = mc.datasets.load("cifar10-resnet110")
    return mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])


@pytest.fixture(scope="module")
def rows():
    """1,300 rows, the labels of two thirds of them, the rest of which come later; the last ones are
    often wrong.
    """
    data = mc.datasets.load("cifar10-resnet110")
    logits, labels = data.logits[5000:6300], data.labels[5000:6300].astype(object)
    labels[900::3] = (labels[900::3] + 1) % 10
    known = np.random.default_rng(0).random(1300) < 2 / 3
    return logits, np.where(known, labels, None), labels


def fed(watch, rows, cuts):
    """Rows in batches; the labels that are missing come 100 rows after their row."""
    logits, now, truth = rows
    late = [k for k in range(1300) if now[k] is None]
    for start, stop in zip([0, *cuts], [*cuts, 1300]):
        some = [
            LateLabel(k + 100 - start, k, int(truth[k])) for k in late if start <= k + 100 < stop
        ]
        watch = watch.update(
            logits[start:stop], now[start:stop], ids=list(range(start, stop)), late=some
        )
        watch = yield watch


def close(one, other):
    """The same, floats to the last digits: where a row stands in a batch may choose another
    instruction for its log.
    """
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return (
        math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
        if isinstance(one, float)
        else one == other
    )


def whole(cal, rows):
    (watch,) = fed(mc.Watch.of(cal), rows, [])
    return watch


@pytest.mark.slow
def test_batches_and_restarts_change_nothing(cal, rows, tmp_path):
    want = encode_watch(whole(cal, rows))
    assert dict(want["first"])["promise"] < 1300
    random = np.random.default_rng(1)
    for _ in range(3):
        cuts = sorted(random.choice(np.arange(1, 1300), size=6, replace=False).tolist())
        running = fed(mc.Watch.of(cal), rows, cuts)
        watch = next(running)
        for _ in cuts:
            mc.save_watch(watch, tmp_path / "state.json")  # killed here, and taken up again
            watch = mc.load_watch(tmp_path / "state.json", cal)
            watch = running.send(watch)
        found = encode_watch(watch)
        found["first"], told = (
            want["first"],
            found["first"],
        )  # said at the end of a batch: not later than in the whole
        assert close(found, want)
        assert all(dict(told)[name] <= row for name, row in want["first"])


def test_labels_that_come_late_count_like_those_that_come_at_once(cal, rows):
    logits, _, truth = rows
    at_once = mc.Watch.of(cal).update(logits, truth)
    late = mc.Watch.of(cal).update(logits, ids=range(1300)).label(range(1300), truth)
    assert late.counts == at_once.counts
    assert late.alarms.promise[0].log_evidence == pytest.approx(
        at_once.alarms.promise[0].log_evidence, abs=1e-9
    )
    assert late.label([5, "nobody"], [0, 0]).waiting.n_unknown_labels == 2  # each label once


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_late_label_that_is_missing_leaves_its_row_waiting(cal, rows, missing):
    logits, _, truth = rows
    watch = mc.Watch.of(cal).update(logits[:2], ids=["a", "b"])
    watch.update(logits[:0], late=[LateLabel(0, "a", missing, 0.5), LateLabel(0, "c", missing)])
    assert len(watch.waiting) == 2
    assert watch.counts.labelled == watch.waiting.n_unknown_labels == 0
    watch.update(logits[2:3], late=[LateLabel(0, "a", int(truth[0]))])
    assert watch.counts.labelled == 1


def test_labels_alone_and_nothing_at_all(cal, rows):
    logits, _, truth = rows
    watch = mc.Watch.of(cal).update(logits[:3], ids=["a", "b" * 500, "c"])
    watch.update(logits[:0], late=[LateLabel(0, "a", int(truth[0]))]).update([]).label([], [])
    assert (watch.counts.rows, watch.counts.labelled, len(watch.waiting)) == (3, 1, 2)
    assert (
        watch.label(["b" * 499], [0]).waiting.n_unknown_labels == 1
    )  # another id, though it begins alike
    assert watch.label(["b" * 500], [0]).counts.labelled == 2


def test_a_row_without_a_score_waits_and_is_saved(tmp_path):
    random = np.random.default_rng(0)
    mark = random.random(2000)
    gate = mc.ScoreGate(mc.MinAccuracy(0.9)).fit(mark, random.random(2000) > (1 - mark) ** 2)
    watch = mc.Watch.of(gate).update([0.9, None], ids=["a", "b"])
    mc.save_watch(watch, tmp_path / "state")
    assert (
        mc.load_watch(tmp_path / "state", gate).label(["b"], [True]).counts.labelled_accepted == 0
    )


def test_the_history_is_kept_short(cal):
    watch = mc.Watch.of(cal)
    data = mc.datasets.load("cifar10-resnet110")
    watch.history.stride = 1
    watch.history.points = [watch.current_point] * MAX_POINTS
    watch.update(data.logits[:250])
    assert (len(watch.history.points), watch.history.stride) == (MAX_POINTS // 2, 2)


@pytest.mark.slow
def test_a_class_each_and_a_group_each(tmp_path):
    data = mc.datasets.load("cifar10-resnet110")
    gate = (
        mc.MetaCal(mc.PerClass(mc.MinAccuracy(0.9)))
        .fit(data.logits[:5000], data.labels[:5000])
        .gate_
    )
    watch = mc.Watch.of(gate).update(data.logits[5000:7000], data.labels[5000:7000])
    assert (len(watch.alarms.promise), len(watch.alarms.abstention), watch.raised) == (10, 10, ())
    assert sum(one.delta for one in watch.alarms.abstention) == pytest.approx(0.05 / 6)
    wrong = np.where(data.labels[7000:9000] == 3, 5, data.labels[7000:9000])
    assert "promise" in watch.update(data.logits[7000:9000], wrong).raised
    mc.save_watch(watch, tmp_path / "state.json")
    assert mc.load_watch(tmp_path / "state.json", gate) == watch
    groups = np.arange(5000) % 2
    gate = mc.MetaCal(mc.PerGroup(mc.MinAccuracy(0.95))).fit(
        data.logits[:5000], data.labels[:5000], groups=groups
    )
    watch = mc.Watch.of(gate).update(
        data.logits[5000:6000], data.labels[5000:6000], groups=groups[:1000]
    )
    assert len(watch.alarms.promise) == 2


def test_other_gates():
    random = np.random.default_rng(0)
    mark = random.random(4000)
    gate = mc.ScoreGate(mc.MinAccuracy(0.9)).fit(
        mark[:2000], random.random(2000) > (1 - mark[:2000]) ** 2
    )
    watch = mc.Watch.of(gate).update(mark[2000:], random.random(2000) > (1 - mark[2000:]) ** 2)
    assert (watch.raised, len(list(watch.alarms)), watch.counts_by_class) == ((), 4, [])
    data = mc.datasets.load("cifar10-resnet110")
    budget = mc.MetaCal(mc.MaxReview(0.2)).fit(data.logits[:2000])
    watch = mc.Watch.of(budget).update(data.logits[2000:4000])
    assert ([alarm.name for alarm in watch.alarms], watch.estimate) == (
        ["promise", "abstention", "score"],
        None,
    )
    assert watch.alarms.promise[0].n_rows == 2000  # it needs no labels
    plain = mc.TemperatureScaling().fit(data.logits[:2000], data.labels[:2000])
    assert [alarm.name for alarm in mc.Watch.of(plain).alarms] == ["calibration"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(gate="sha256:" + "0" * 64), "another gate"),
        (lambda d: d["counts"].__setitem__(1, 10**6), "contradict"),
        (
            lambda d: d["alarms"]["promise"][0].update(limit=0.5),
            "gate does not have the quantity that this",
        ),
        (
            lambda d: d["alarms"]["promise"][0]["capital"].update(log_peak=-1.0),
            "the evidence of a monitor is greater",
        ),
        (
            lambda d: d["alarms"]["promise"][0]["capital"]["wagers"][0].update(gamblers=[]),
            "gamblers",
        ),
        (lambda d: d["alarms"].update(delta=2.0), "delta"),
        (lambda d: d["waiting"].append(d["waiting"][0]), "waits twice"),
        (lambda d: d["waiting"].append([]), "waiting"),
        (lambda d: d.update(stride=0), "history"),
        (lambda d: d.update(extra=1), "unexpected entry"),
        (lambda d: d["first"].append(["other", 1]), "first"),
        (lambda d: d.pop("classes"), "missing"),
        (lambda d: d.update(kind="MetaCal"), "not hold the state"),
    ],
)
def test_a_forged_state_is_refused(cal, rows, change, message):
    logits, now, _ = rows
    watch = mc.Watch.of(cal).update(logits[:300], now[:300], ids=range(300))
    document = json.loads(json.dumps(encode_watch(watch)))
    decode_watch(document, cal)
    change(document)
    with pytest.raises(mc.ArtifactError, match=message):
        decode_watch(document, cal)


# ── sampled labels, merged monitors ───────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_labels_sampled_with_known_probabilities():
    """A tenth of the rows is hard and labelled ten times as often: its errors must not count ten
    times.
    """
    random, delta, alarms, noticed, naive = np.random.default_rng(0), 0.1, 0, 0, 0
    for k in range(120):
        hard = random.random(4000) < 0.1
        chance = np.where(hard, 1.0, 0.1)
        told = random.random(4000) < chance
        for rate in (0.21, 0.6):  # 3% errors over all rows, which is the limit; 6.9%
            right = random.random(4000) >= np.where(hard, rate, 0.01)
            monitor = mc.PromiseMonitor("selective accuracy", 0.03, delta, least_probability=0.1)
            kept = np.ones(int(told.sum()), dtype=bool)
            raised = monitor.update(kept, right[told], probability=chance[told]).alarm
            alarms, noticed = (
                (alarms + raised, noticed) if rate == 0.21 else (alarms, noticed + raised)
            )
            if k < 20 and rate == 0.21:
                naive += (
                    mc.PromiseMonitor("selective accuracy", 0.03, delta)
                    .update(kept, right[told])
                    .alarm
                )
    assert alarms / 120 <= limit(delta, 120)
    assert noticed / 120 > 0.9
    assert naive == 20  # without the probabilities every one of them is fooled
    with pytest.raises(mc.InputError, match="the declared"):
        mc.PromiseMonitor("selective accuracy", 0.03).update([True], [True], probability=[0.5])


@pytest.mark.slow
def test_merged_monitors_keep_their_level_and_notice_together():
    random, delta, alarms = np.random.default_rng(0), 0.1, 0
    for _ in range(120):
        both = [mc.PromiseMonitor("selective accuracy", 0.05, delta) for _ in range(2)]
        raised = False
        for _ in range(5):
            for one in both:
                one.update(np.ones(150, dtype=bool), random.random(150) >= 0.05)
            raised |= both[0].merged(both[1]).alarm
        alarms += raised
    assert alarms / 120 <= limit(delta, 120)
    halves = [mc.PromiseMonitor("selective accuracy", 0.05, delta) for _ in range(4)]
    for one in halves:
        one.update(np.ones(60, dtype=bool), np.arange(60) % 8 > 0)
    assert not any(one.alarm for one in halves)
    merged = halves[0].merged(halves[1]).merged(halves[2].merged(halves[3]))
    assert merged.alarm
    assert mc.PromiseMonitor(**json.loads(json.dumps(asdict(merged)))) == merged
    with pytest.raises(mc.InputError, match="for the same promise"):
        halves[0].merged(mc.PromiseMonitor("selective accuracy", 0.1, delta))


# ── drift and calibration ─────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("digits", [15, 1])
def test_no_drift_is_no_alarm_and_drift_is_one(digits):
    """Calibration rows are drawn anew each time: 400 of them know little, and the alarms must know
    that.
    """
    random, delta, draws, false, true = np.random.default_rng(digits), 0.1, 70, 0, 0
    for _ in range(draws):
        scores = random.normal(size=400).round(digits)
        monitor = ScoreMonitor(build_profile(ranked(scores)), delta)
        false += monitor.update(random.normal(size=1500).round(digits)).alarm
        true += monitor.update(random.normal(0.5, size=1500).round(digits)).alarm
    assert false / draws <= limit(delta, draws)
    assert true / draws > 0.9


@pytest.mark.slow
def test_abstention_by_a_threshold_that_was_chosen_by_labels():
    random, delta, draws, false, true = np.random.default_rng(0), 0.1, 70, 0, 0
    for _ in range(draws):
        score = np.sort(random.random(400))
        certificate = mc.MinAccuracy(0.9).certify(score, random.random(400) > 0.6 * score**2)
        (monitor,) = AbstentionMonitor.from_certificate(certificate, delta)
        false += monitor.update(random.random(1500) <= certificate.threshold).alarm
        true += monitor.update(random.random(1500) ** 0.3 <= certificate.threshold).alarm
    assert false / draws <= limit(delta, draws)
    assert true / draws > 0.9


def test_as_many_unreadable_lines_as_are_allowed_are_no_alarm():
    random, delta, draws, false, true = np.random.default_rng(0), 0.1, 60, 0, 0
    for _ in range(draws):
        monitor = UnreadableMonitor(0.01, delta)
        false += monitor.update(random.random(4000) < 0.01).alarm
        true += monitor.update(random.random(1000) < 0.04).alarm
    assert false / draws <= limit(delta, draws)
    assert true / draws > 0.9


def test_the_urn_is_exact():
    """Bins between order statistics hold new rows as often as the urn says, whatever the law: a
    closed form.
    """
    random, n = np.random.default_rng(0), 60
    counts = np.zeros(len(compute_bin_edge_ranks(n)) + 1)
    for _ in range(1000):
        profile = build_profile(ranked(random.exponential(size=n)))
        counts += np.bincount(
            profile.assign_bins(random.exponential(size=5), random.random(5)), minlength=len(counts)
        )
    expected = 5_000 * profile.initial_urn_counts / (n + 1)
    assert (
        (counts - expected) ** 2 / expected
    ).sum() < 25  # chi-squared with 5 degrees of freedom, rows in fives


@pytest.mark.slow
def test_confidence_off_by_no_more_than_the_tolerance_is_no_alarm():
    random, delta, draws, false, true = np.random.default_rng(0), 0.1, 40, 0, 0
    for _ in range(draws):
        sure = 0.8 + 0.2 * random.random(1500)
        false += (
            CalibrationMonitor(0.02, delta).update(sure, random.random(1500) < sure - 0.02).alarm
        )
        true += (
            CalibrationMonitor(0.02, delta).update(sure, random.random(1500) < sure - 0.08).alarm
        )
    assert false / draws <= limit(delta, draws)
    assert true / draws > 0.9
    hidden = np.where(
        np.arange(1500) % 2, 0.97, 0.85
    )  # off by ten points at either level, right on average
    right = random.random(1500) < np.where(np.arange(1500) % 2, 0.87, 0.95)
    assert CalibrationMonitor(0.02, delta).update(hidden, right).alarm


def test_what_is_watched_shares_delta(cal):
    alarms = Alarms.from_certificate(cal.gate_.certificate, cal.gate_.profile, 0.06)
    assert sum(alarm.delta for alarm in alarms) == pytest.approx(0.06)
    alarms = Alarms.from_certificate(cal.gate_.certificate, None, 0.06)  # an old file
    assert {alarm.name: round(alarm.delta, 6) for alarm in alarms} == {
        "promise": 0.03,
        "abstention": 0.015,
        "calibration": 0.015,
    }


def test_an_estimate_says_what_it_is(cal):
    data = mc.datasets.load("cifar10-resnet110")
    found = mc.estimate_accuracy(cal, data.logits[5000:])
    assert "an estimate from confidence alone" in str(found)
    assert "only labels would tell" in str(found)
    few = mc.estimate_accuracy(cal, data.logits[5000:5100])
    assert few.high - few.low > found.high - found.low > 0.0
    watch = mc.Watch.of(cal).update(data.logits[5000:])
    assert watch.estimate.accuracy == pytest.approx(found.accuracy, abs=1e-6)
    with pytest.raises(mc.InputError, match="no calibrated confidence"):
        mc.estimate_accuracy(
            mc.TemperatureScaling().fit(data.logits[:99], data.labels[:99]), data.logits
        )


# ── labels by outcome, what calibration rows allow, cross-fitted rows ─────────────────────────────


@pytest.mark.parametrize(("horizon", "raised"), [(0, True), (1500, False)])
def test_labels_that_come_by_outcome_count_once_their_cohort_is_complete(cal, horizon, raised):
    data = mc.datasets.load("cifar10-resnet110")
    logits, labels = data.logits[5000:9000], data.labels[5000:9000]
    wrong = logits.argmax(axis=1) != labels
    watch = mc.Watch.of(cal, horizon=horizon)
    for start in range(
        0, 4000, 500
    ):  # labels of wrong answers come at once, the others 1,000 rows later
        batch = np.arange(start, start + 500)
        watch.update(logits[batch], ids=batch.tolist())
        watch.label(batch[wrong[batch]].tolist(), labels[batch[wrong[batch]]])
        late = batch - 1000
        late = late[(late >= 0) & ~wrong[late]]
        watch.label(late.tolist(), labels[late])
    assert ("promise" in watch.raised) is raised
    assert (watch.waiting.n_unknown_labels, watch.waiting.n_released_without_label) == (0, 0)
    assert watch.counts.labelled == (2500 if horizon else wrong[:].sum() + (~wrong[:3000]).sum())


def test_with_a_horizon_a_drop_still_alarms_and_late_labels_are_said(cal):
    data = mc.datasets.load("cifar10-resnet110")
    logits, labels = data.logits[5000:8000], data.labels[5000:8000].copy()
    labels[::8] = (labels[::8] + 1) % 10
    watch = mc.Watch.of(cal, horizon=500).update(logits, ids=list(range(3000)))
    watch.label(range(2500, 3000), labels[2500:]).label(
        range(10), labels[:10]
    )  # in time, and too late
    waiting = watch.waiting
    assert (waiting.n_unknown_labels, waiting.n_released_without_label, watch.counts.labelled) == (
        10,
        2500,
        0,
    )
    assert (
        watch.update(logits, labels).counts.labelled == 3000
    )  # those that waited, and all but 500 of these
    assert "promise" in watch.raised
    again = decode_watch(json.loads(json.dumps(encode_watch(watch))), cal)
    assert again == watch
    with pytest.raises(mc.InputError, match="horizon"):
        mc.Watch.of(cal, horizon=10**6)


@pytest.mark.parametrize("cuts", [[1], [250, 251, 640], [333, 999]])
def test_a_horizon_is_the_same_whatever_the_batches(cal, rows, cuts):
    (want,) = fed(mc.Watch.of(cal, horizon=150), rows, [])
    running = fed(mc.Watch.of(cal, horizon=150), rows, cuts)
    watch = next(running)
    for _ in cuts:
        watch = running.send(watch)
    assert watch.counts == want.counts
    assert watch.waiting == want.waiting
    assert watch.alarms.promise[0].log_evidence == pytest.approx(
        want.alarms.promise[0].log_evidence, abs=1e-9
    )


def test_calibration_is_compared_with_what_its_rows_allow():
    """A gap that was there at calibration is no alarm; one that is larger by more than chance
    is.
    """
    random = np.random.default_rng(0)
    sure = random.uniform(0.6, 0.78, 3000)
    ranking = Ranking.from_scores(np.arange(3000.0), np.ones(3000, dtype=bool))
    profile = build_profile(ranking, sure, random.random(3000) < sure - 0.08)
    new = random.uniform(0.6, 0.78, 20_000)
    as_before, worse = random.random(20_000) < new - 0.08, random.random(20_000) < new - 0.18
    assert CalibrationMonitor(delta=0.01).update(new, as_before).alarm  # 2 points are tolerated
    assert not CalibrationMonitor.from_profile(profile, 0.01, 0.02).update(new, as_before).alarm
    assert CalibrationMonitor.from_profile(profile, 0.01, 0.02).update(new, worse).alarm
    assert CalibrationMonitor.from_profile(profile, 0.01, 0.02).allowances[-1] == (
        2.0,
        2.0,
    )  # no row lay there: it cannot tell


@pytest.mark.slow
@pytest.mark.parametrize("calibrator", [None, mc.TemperatureScaling()])
@pytest.mark.filterwarnings("ignore")
def test_streams_of_the_same_source_raise_no_alarm_from_the_first_day(calibrator):
    data, any_alarm = mc.datasets.load("cifar10-resnet110"), 0
    for seed in range(25):
        random = np.random.default_rng([5, seed])
        own, new = (
            random.integers(len(data.labels), size=600),
            random.integers(len(data.labels), size=6000),
        )
        gate = (
            mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=calibrator)
            .fit(data.logits[own], data.labels[own])
            .gate_
        )
        found = gate.decide(mc.Rows(data.logits))
        right = found.predicted_codes == data.labels
        kept = (~found.accept[right]).mean() <= 0.1
        alarms = Alarms.from_certificate(gate.certificate, gate.profile, 0.05)
        alarms.add_decisions(found.accept[new], found.score[new])
        alarms.add_labelled_rows(
            found.accept[new], right[new], np.asarray(found.confidence, np.float64)[new]
        )
        any_alarm += bool(set(alarms.raised) - (set() if kept else {"promise"}))
    assert any_alarm <= 25 * limit(0.05, 25)


@pytest.mark.filterwarnings("ignore")
def test_after_cv_only_the_promise_is_watched_and_why_is_said():
    from sklearn.linear_model import LogisticRegression

    random = np.random.default_rng(0)
    X = random.normal(size=(400, 5))
    y = (X[:, 0] + random.logistic(size=400) > 0).astype(int)
    clf = mc.CalibratedClassifier(LogisticRegression(), mc.MaxMiscoverage(0.1), cv=4).fit(X, y)
    watch = mc.Watch.of(clf)
    assert [(alarm.name, alarm.delta) for alarm in watch.alarms] == [("promise", 0.05)]
    missing = {one["name"]: one["why"] for one in status(watch)["missing"]}
    assert set(missing) == {"abstention", "score", "calibration"}
    assert all("other classifiers" in why for why in missing.values())


# ── units ─────────────────────────────────────────────────────────────────────────────────────────


def in_units(seed, n=60, drop=0.0):
    """Units of 20 rows that come out nearly alike: scores, right or wrong, names."""
    rng = np.random.default_rng([seed, n])
    ease = rng.normal(size=n)
    right = rng.random(n) < 1.0 / (1.0 + np.exp(-3.2 - 1.6 * ease)) - drop
    unit, flip = np.repeat(np.arange(n), 20), rng.random(20 * n) < 0.05
    return ease[unit] + 0.3 * rng.normal(size=20 * n), right[unit] ^ flip, unit


@pytest.fixture(scope="module", params=["unit", "row"])
def of_units(request):
    score, right, unit = in_units(0, n=300)
    units = mc.Units(unit, per=request.param, largest=20 if request.param == "row" else None)
    return mc.ScoreGate(mc.MinAccuracy(0.85)).fit(score, right, units=units)


def test_a_gate_by_units_is_watched_by_units_alone(of_units, cal):
    score, right, _ = in_units(1)
    with pytest.raises(mc.InputError, match="certified on clusters"):
        mc.Watch.of(of_units).update(score, right)
    with pytest.raises(mc.InputError, match="independent rows, so it does not support units"):
        mc.Watch.of(cal).update(np.zeros((2, 10)), units=["a", "a"])
    with pytest.raises(mc.InputError, match="Row 1 has no cluster"):
        mc.Watch.of(of_units).update(score[:2], units=["a", None])


@pytest.mark.parametrize("horizon", [0, 50])
def test_units_are_the_same_whatever_the_batches_and_restarts(of_units, tmp_path, horizon):
    score, right, unit = in_units(1)
    known = [bool(one) if k % 7 else None for k, one in enumerate(right)]
    whole, piecewise = (
        mc.Watch.of(of_units, horizon=horizon),
        mc.Watch.of(of_units, horizon=horizon),
    )
    ids = [str(k) for k in range(1200)]
    late = [LateLabel(k + 3, ids[k], bool(right[k])) for k in range(0, 1197, 14)]
    whole.update(score, known, ids=ids, units=unit, late=late)
    for start, stop in zip([0, 7, 250, 251, 640], [7, 250, 251, 640, 1200]):
        part = slice(start, stop)
        some = [
            one._replace(n_batch_rows_before_label=one.n_batch_rows_before_label - start)
            for one in late
            if start <= one.n_batch_rows_before_label < stop
        ]
        piecewise.update(score[part], known[part], ids=ids[part], units=unit[part], late=some)
        mc.save_watch(piecewise, tmp_path / "watch.journal")
        piecewise = mc.load_watch(tmp_path / "watch.journal", of_units)
    assert close(encode_watch(piecewise), encode_watch(whole))
    assert (whole.waiting.complete_clusters.n_complete, len(whole.waiting)) == (
        (58, 40) if horizon else (59, 20)
    )


def test_a_unit_is_one_observation_however_often_its_rows_are_copied(of_units):
    """The evidence of a unit's rows is that of their mean: ten copies of each say nothing more (per
    unit).
    """
    score, right, unit = in_units(1, drop=0.4)
    once = mc.Watch.of(of_units).update(score, right, units=unit)
    if of_units.certificate_.design.cluster_counting == "unit":
        many = mc.Watch.of(of_units).update(
            *(np.repeat(one, 10) for one in (score, right)), units=np.repeat(unit, 10)
        )
        (one,), (other,) = once.alarms.promise, many.alarms.promise
        assert other.log_evidence == pytest.approx(one.log_evidence)
    assert "promise" in once.raised


def test_rows_that_come_after_their_unit_do_not_count_and_are_said(of_units):
    score, right, unit = in_units(1)
    watch = mc.Watch.of(of_units).update(score, right, units=unit)
    watch.update(
        score[:20], right[:20], units=unit[:20]
    )  # the last unit is complete now, and nothing else counts
    assert (watch.counts.rows, watch.counts.labelled) == (1220, 1200)
    found = status(watch)
    assert found["units"] == {"complete": 60, "strays": 20, "are_cases": False}
    assert any(
        "60 are complete; one counts once another begins; 20 rows came later" in one
        for one in format_status_lines(found)
    )


def test_labels_of_a_unit_count_until_it_is_complete(of_units):
    score, right, unit = in_units(1, n=3)
    watch = mc.Watch.of(of_units, horizon=50).update(score, ids=range(60), units=unit)
    watch.label(
        range(0, 40, 2), right[:40:2]
    )  # the first unit was complete when the third had ten rows
    waiting = watch.waiting
    assert (
        waiting.complete_clusters.n_complete,
        waiting.n_unknown_labels,
        waiting.n_released_without_label,
    ) == (
        1,
        10,
        20,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("drop", "least", "most"), [(0.0, 0.0, 0.0), (0.3, 0.9, 1.0)])
def test_units_of_the_same_source_raise_no_alarm_and_worse_ones_do(of_units, drop, least, most):
    """A few of them; `benchmarks/units.py` counts hundreds, gates drawn anew, at the limit too."""
    streams = [in_units(seed + 10, drop=drop) for seed in range(10)]
    raised = [mc.Watch.of(of_units).update(*rows, units=unit).raised for *rows, unit in streams]
    assert least <= np.mean([bool(one) for one in raised]) <= most
