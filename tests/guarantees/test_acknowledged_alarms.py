"""Alarms after an acknowledgement: each armed period raises a false alarm with at most delta.

A bound of a rate is delta plus three standard errors of a binomial. The draws have fixed seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import metacal as mc
from metacal.promises.sequential.monitor import PromiseMonitor

#: Error rate of a row with this score: a population whose true rates are known.
ERROR_SCALE, ERROR_POWER = 0.5, 3


def bound(delta, n_trials):
    return delta + 3.0 * math.sqrt(delta * (1.0 - delta) / n_trials)


def draw(random, n_rows, shift=0.0):
    """Scores, of which higher values are more confident, and correctness."""
    doubt = random.random(n_rows)
    error_rate = np.minimum(ERROR_SCALE * doubt**ERROR_POWER + shift, 1.0)
    return 1.0 - doubt, random.random(n_rows) >= error_rate


def true_accuracy(gate):
    """Selective accuracy in the population: the mean of 1 - s d^p over doubts d up to a limit."""
    limit = min(1.0 + gate.gate_.threshold, 1.0)
    return 1.0 - ERROR_SCALE * limit**ERROR_POWER / (ERROR_POWER + 1)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.05, 0.3])
def test_a_promise_at_its_limit_alarms_in_at_most_delta_of_the_periods(delta):
    """Errors exactly at the limit are the worst case. Every alarm is acknowledged at once."""
    random = np.random.default_rng(0)
    n_periods, n_alarms = 0, 0
    for _ in range(250):
        monitor = PromiseMonitor("selective accuracy", limit=0.1, delta=delta)
        n_periods += 1
        for _ in range(40):
            correct = random.random(50) >= 0.1
            if monitor.update(np.ones(50, dtype=bool), correct).alarm:
                n_alarms += 1
                n_periods += 1
                monitor = monitor.restart()
    assert n_alarms / n_periods <= bound(delta, n_periods)
    # The test could not fail if the stream never raised an alarm.
    assert n_alarms > 0


@pytest.mark.slow
def test_a_period_after_a_true_alarm_alarms_falsely_at_most_delta_of_the_time():
    """Rows change, the alarm is acknowledged, and rows are again as at calibration."""
    random = np.random.default_rng(1)
    delta, n_false, n_watched = 0.2, 0, 0
    for _ in range(200):
        gate = mc.ScoreGate(mc.MinAccuracy(0.9)).fit(*draw(random, 500))
        watch = mc.Watch.of(gate, delta=delta)
        watch.update(*draw(random, 400, shift=0.3))
        assert watch.raised
        watch.acknowledge("the shift was removed")
        for _ in range(4):
            watch.update(*draw(random, 300))
        is_kept = true_accuracy(gate) >= 0.9
        false_alarms = [name for name in watch.raised if is_kept or name != "promise"]
        n_watched += 1
        n_false += bool(false_alarms)
    assert n_false / n_watched <= bound(delta, n_watched)


@pytest.mark.slow
def test_labels_of_earlier_rows_raise_no_alarm_in_the_next_period():
    """Labels of the bad period arrive after the acknowledgement, as complaints do."""
    random = np.random.default_rng(2)
    delta, n_false, n_streams = 0.05, 0, 60
    for _ in range(n_streams):
        gate = mc.ScoreGate(mc.MinAccuracy(0.9)).fit(*draw(random, 500))
        watch = mc.Watch.of(gate, delta=delta)
        watch.update(*draw(random, 300, shift=0.4))
        scores, correct = draw(random, 300, shift=0.4)
        watch.update(scores, ids=range(300))
        assert "promise" in watch.raised
        watch.acknowledge("the shift was removed").label(range(300), correct)
        assert watch.counts.labelled == 600
        n_false += "promise" in watch.raised
    assert n_false <= n_streams * bound(delta, n_streams)


@pytest.mark.slow
def test_a_change_that_lasts_raises_the_alarm_again():
    random = np.random.default_rng(3)
    gate = mc.ScoreGate(mc.MinAccuracy(0.9)).fit(*draw(random, 2000))
    watch = mc.Watch.of(gate)
    for n_acknowledged in range(1, 6):
        watch.update(*draw(random, 600, shift=0.3))
        assert "promise" in watch.raised
        watch.acknowledge("nothing was done")
        assert (watch.raised, len(watch.acknowledgements)) == ((), n_acknowledged)


def test_ties_are_broken_by_new_random_numbers():
    """All rows of a bin edge tie, so that only the random numbers decide on their bins."""
    random = np.random.default_rng(4)
    scores = random.integers(0, 4, size=2000) / 4
    gate = mc.ScoreGate(mc.MaxReview(0.3)).fit(scores, random.random(2000) < 0.9)
    watch = mc.Watch.of(gate).update(scores[:500])
    (monitor,) = watch.alarms.score
    again = monitor.restart()
    assert again.n_rows_before_restart == monitor.n_rows == 500
    uncertainty = np.full(400, -0.5)
    assert (
        again.update(uncertainty).bin_counts
        != type(monitor)(monitor.profile).update(uncertainty).bin_counts
    )
