"""Acknowledging alarms: what is kept, what begins again, and the state in files."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

import metacal as mc
from metacal.io.artifact.watch import decode_watch, encode_watch
from metacal.reports.status import status
from metacal.reports.status_lines import format_next_step_lines, format_status_lines
from metacal.reports.telemetry import format_exposition

TIME = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)


@pytest.fixture(scope="module")
def data():
    data = mc.datasets.load("cifar10-resnet110")
    return data.logits, data.labels


@pytest.fixture(scope="module")
def cal(data):
    logits, labels = data
    return mc.MetaCal(mc.MinAccuracy(0.97)).fit(logits[:5000], labels[:5000])


@pytest.fixture
def alarmed(cal, data):
    """A watch in alarm after 1,000 rows, half of which have a wrong label."""
    logits, labels = data
    wrong = labels[5000:6000].copy()
    wrong[::2] = (wrong[::2] + 1) % 10
    return mc.Watch.of(cal).update(logits[5000:6000], wrong)


def test_alarms_begin_again_and_stay_in_the_record(alarmed, cal, data):
    logits, labels = data
    before = {alarm.name: alarm for alarm in alarmed.alarms}
    assert alarmed.acknowledge("labels repaired", time=TIME) is alarmed
    assert alarmed.raised == ()
    (period,) = alarmed.acknowledgements
    assert (period.time, period.reason) == ("2026-03-01T09:30:00+00:00", "labels repaired")
    assert (period.n_rows, period.names) == (1000, ("promise", "calibration"))
    assert period.alarms[0].log_peak == before["promise"].log_highest_evidence
    for alarm in alarmed.alarms:
        assert (alarm.log_evidence, alarm.log_highest_evidence) == (0.0, 0.0)
        assert (alarm.delta, alarm.log_evidence_for_alarm) == (
            before[alarm.name].delta,
            before[alarm.name].log_evidence_for_alarm,
        )
    assert (alarmed.counts.rows, alarmed.n_acknowledged_rows) == (1000, 1000)
    later = logits[6000:7000], labels[6000:7000]
    fresh = mc.Watch.of(cal).update(*later)
    again = alarmed.update(*later)
    assert again.alarms.promise == fresh.alarms.promise
    assert again.alarms.abstention == fresh.alarms.abstention
    assert again.alarms.calibration == fresh.alarms.calibration
    assert again.counts.rows == 2000


def test_without_an_alarm_there_is_nothing_to_acknowledge(cal, data):
    logits, labels = data
    watch = mc.Watch.of(cal).update(logits[5000:6000], labels[5000:6000])
    with pytest.raises(mc.InputError, match="No alarm was raised, so there is"):
        watch.acknowledge("all is well")
    assert watch.acknowledgements == []


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "x" * 1001, "\x1b[31m", None])
def test_a_reason_is_one_line_of_text(alarmed, reason):
    with pytest.raises(mc.InputError, match="reason must be"):
        alarmed.acknowledge(reason)
    assert "promise" in alarmed.raised


def test_a_time_has_a_zone(alarmed):
    with pytest.raises(mc.InputError, match="time zone"):
        alarmed.acknowledge("repaired", time=datetime(2026, 3, 1))


def test_labels_of_earlier_rows_are_counted_and_are_no_evidence(cal, data):
    logits, labels = data
    wrong = (labels[5000:7000] + 1) % 10
    watch = mc.Watch.of(cal).update(logits[5000:6000], ids=range(1000))
    watch.label(range(500), wrong[:500])
    assert "promise" in watch.raised
    watch.acknowledge("labels repaired").label(range(500, 1000), wrong[500:1000])
    assert watch.raised == ()
    assert watch.alarms.promise[0].n_rows == 0
    assert watch.counts.labelled == 1000
    watch.update(logits[6000:7000], wrong[1000:])
    assert "promise" in watch.raised


def test_a_cluster_that_began_earlier_is_no_evidence():
    random = np.random.default_rng(0)
    scores = random.random(1200)
    correct = random.random(1200) < 0.95
    units = np.repeat(np.arange(300), 4)
    gate = mc.ScoreGate(mc.MinAccuracy(0.8)).fit(scores, correct, units=units)
    watch = mc.Watch.of(gate)
    wrong = np.zeros(402, dtype=bool)
    watch.update(random.random(402), wrong, units=1000 + np.arange(402) // 4)
    assert "promise" in watch.raised
    watch.acknowledge("repaired")
    watch.update(random.random(10), wrong[:10], units=1000 + np.arange(402, 412) // 4)
    # The cluster of rows 400 to 403 began before the acknowledgement; that of 404 to 407 did not.
    (monitor,) = watch.alarms.promise
    assert monitor.n_rows <= 4
    assert watch.waiting.complete_clusters.n_complete == 102


@pytest.mark.parametrize("cut", [1, 300, 700, 1299])
def test_a_saved_watch_goes_on_exactly(alarmed, data, cal, tmp_path, cut):
    logits, labels = data
    alarmed.acknowledge("labels repaired", time=TIME)
    mc.save_watch(alarmed, tmp_path / "watch.journal")
    loaded = mc.load_watch(tmp_path / "watch.journal", cal)
    assert loaded == alarmed
    rows, truth = logits[6000:7300], labels[6000:7300]
    whole = alarmed.update(rows, truth)
    loaded.update(rows[:cut], truth[:cut])
    mc.save_watch(loaded, tmp_path / "watch.journal")
    parts = mc.load_watch(tmp_path / "watch.journal", cal).update(rows[cut:], truth[cut:])
    assert parts.acknowledgements == whole.acknowledgements
    for one, other in zip(parts.alarms, whole.alarms):
        assert one.log_highest_evidence == pytest.approx(other.log_highest_evidence, abs=1e-9)
        assert one.descriptions == other.descriptions


@pytest.mark.parametrize(
    "change",
    [
        {"time": "yesterday"},
        {"time": "2026-03-01T09:30:00"},
        {"reason": ""},
        {"n_rows": 10**6},
        {"n_rows": -1},
        {"alarms": ()},
    ],
)
def test_a_forged_acknowledgement_is_refused(alarmed, cal, change):
    alarmed.acknowledge("labels repaired", time=TIME)
    forged = replace(alarmed.acknowledgements[0], **change)
    document = encode_watch(replace(alarmed, acknowledgements=[forged]))
    with pytest.raises(mc.ArtifactError):
        decode_watch(document, cal)


def test_the_status_has_the_acknowledgement_and_no_step(alarmed):
    in_alarm = status(alarmed, command="metacal monitor cal.json new.csv", has_state=True)
    commands = [step["command"] for step in in_alarm["next_steps"]]
    assert commands[-1] == (
        "metacal monitor cal.json new.csv --acknowledge 'what was found and done'"
    )
    assert commands[-1] in format_next_step_lines(in_alarm, str.strip)[-1]
    alarmed.acknowledge("labels repaired", time=TIME)
    state = status(alarmed)
    assert (state["alarm"], state["next_steps"]) == (False, [])
    (period,) = state["acknowledged"]
    assert (period["at_row"], period["reason"]) == (1000, "labels repaired")
    text = "\n".join(format_status_lines(state))
    assert "labels repaired" in text
    assert "each of the 2 armed periods" in text
    exposition = format_exposition(state)
    assert 'metacal_acknowledged_alarms_total{alarm="promise"} 1' in exposition
    assert 'metacal_acknowledged_alarms_total{alarm="score"} 0' in exposition
    assert 'metacal_alarm{alarm="promise"} 0' in exposition
