"""The monitor: alarms while the promise is kept are as rare as promised, and a broken promise is
noticed.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

import metacal as mc
from metacal.promises.sequential.monitor import PromiseMonitor

STREAMS, ROWS = 500, 2000


def alarms(quantity, limit, delta, rate, rows=ROWS, streams=STREAMS, seed=0):
    """The share of streams with an alarm at any time; the rate of events may differ from row to
    row.
    """
    random = np.random.default_rng(seed)
    count = 0
    for _ in range(streams):
        events = random.random(rows) < rate
        if quantity == "selective accuracy":
            monitor = PromiseMonitor(quantity, limit, delta).update(
                np.ones(rows, dtype=bool), ~events
            )
        else:
            monitor = PromiseMonitor(quantity, limit, delta).update(
                ~events, np.ones(rows, dtype=bool)
            )
        count += monitor.alarm
    return count / streams


def tolerance(delta):
    return delta + 3.0 * np.sqrt(delta * (1.0 - delta) / STREAMS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantity", "limit", "delta"), [("selective accuracy", 0.03, 0.1), ("miscoverage", 0.13, 0.05)]
)
def test_a_kept_promise_raises_an_alarm_at_most_delta_of_the_time(quantity, limit, delta):
    assert alarms(quantity, limit, delta, limit) <= tolerance(
        delta
    )  # at the limit itself: the worst case


@pytest.mark.slow
def test_a_rate_that_moves_but_stays_below_the_limit_is_no_alarm():
    wave = 0.03 * (0.5 + 0.5 * np.sin(np.arange(ROWS) / 50.0))
    assert alarms("selective accuracy", 0.03, 0.1, wave) <= tolerance(0.1)


@pytest.mark.slow
def test_a_broken_promise_is_noticed():
    assert alarms("selective accuracy", 0.03, 0.05, 0.06, rows=1500, streams=200) > 0.95
    late = np.where(np.arange(ROWS) < 1000, 0.02, 0.08)  # a good start must not hide a bad end
    assert alarms("miscoverage", 0.03, 0.05, late, streams=200) > 0.95


def test_batches_and_single_rows_and_a_restart_agree():
    random = np.random.default_rng(1)
    accepted, correct = random.random(500) < 0.8, random.random(500) < 0.9
    whole = PromiseMonitor("selective accuracy", 0.05).update(accepted, correct)
    single = PromiseMonitor("selective accuracy", 0.05)
    for a, c in zip(accepted, correct):
        single.update(bool(a), bool(c))
        single = PromiseMonitor(**asdict(single))
    assert (
        (single.n_rows, single.event_sum)
        == (whole.n_rows, whole.event_sum)
        == (int(accepted.sum()), int((accepted & ~correct).sum()))
    )
    assert single.log_evidence == pytest.approx(whole.log_evidence, abs=1e-9)
    assert single.log_highest_evidence == pytest.approx(whole.log_highest_evidence, abs=1e-9)


def test_the_limit_of_a_certificate():
    data = mc.datasets.load("cifar10-resnet110")
    for promise, limit in ((mc.MaxMiscoverage(0.05), 0.05), (mc.MinAccuracy(0.97), 0.03)):
        cal = mc.MetaCal(promise).fit(data.logits[:5000], data.labels[:5000])
        (monitor,) = mc.PromiseMonitor.of(cal.certificate_, delta=0.1)
        right = data.logits[5000:].argmax(axis=1) == data.labels[5000:]
        monitor.update(cal.accepts(data.logits[5000:]), right)
        assert monitor.limit == pytest.approx(limit)
        assert monitor.quantity == cal.certificate_.quantity
        assert not monitor.alarm
        shuffled = np.random.default_rng(0).permutation(data.labels[5000:])
        monitor.update(
            cal.accepts(data.logits[5000:]), data.logits[5000:].argmax(axis=1) == shuffled
        )
        assert (
            monitor.alarm
        )  # a right answer by chance is rejected as often as any: more often than 5%


def test_two_promises_have_two_monitors_at_half_the_level():
    data = mc.datasets.load("cifar10-resnet110")
    cal = mc.MetaCal(mc.Both(alpha=0.3, beta=0.96)).fit(data.logits[:5000], data.labels[:5000])
    found = [
        (m.quantity, round(m.limit, 6), m.delta)
        for m in mc.PromiseMonitor.of(cal.certificate_, delta=0.1)
    ]
    assert found == [("selective accuracy", 0.04, 0.05), ("miscoverage", 0.3, 0.05)]


def test_no_row_that_counts_changes_nothing():
    monitor = PromiseMonitor("selective accuracy", 0.05).update([], [])
    assert (monitor.update([False], [True]).n_rows, monitor.evidence) == (0, 1.0)
    assert "0 of 0 incorrect among the accepted, limit 5%: evidence 1, no alarm." in str(monitor)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PromiseMonitor("accuracy", 0.05), "quantity must be"),
        (lambda: PromiseMonitor("miscoverage", 5), "Write 5% as 0.05"),
        (
            lambda: PromiseMonitor("miscoverage", 0.05).update([1, 0], [True, True]),
            "accepted must have one boolean",
        ),
        (lambda: PromiseMonitor("miscoverage", 0.05).update([True], [True, True]), "got 1 and 2"),
    ],
)
def test_errors(call, message):
    with pytest.raises(mc.InputError, match=message):
        call()
