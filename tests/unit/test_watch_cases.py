"""Watch on a gate whose promise is about cases: whole cases count, with all of their labels."""

from __future__ import annotations

import json

import numpy as np
import pytest

import metacal as mc
from metacal.errors import InputError
from metacal.gate.waiting_rows import MAX_WAITING_ROWS
from metacal.gate.watch import Watch
from metacal.io.artifact.watch import decode_watch, encode_watch
from metacal.promises.sequential.monitor import PromiseMonitor

FIELDS = ("date", "name", "total")
PROMISES = [
    mc.MaxCaseErrors(0.2),
    mc.MaxCaseErrors(0.2, among="automated"),
    mc.MinCaseRecall(0.8),
    mc.MaxErrorsPerCase(0.3, largest=3),
]


def draw_items(n_cases, seed):
    """Draw scores, correctness, cases and types of the items of cases."""
    rng = np.random.default_rng(seed)
    correct = rng.random((n_cases, 3)) < [0.9, 0.97, 0.7]
    score = 2.0 * correct + rng.normal(size=correct.shape)
    cases = np.repeat([f"doc{case}" for case in range(n_cases)], 3)
    return score.ravel(), correct.ravel(), cases, np.tile(FIELDS, n_cases)


def fit(promise=PROMISES[0]):
    score, correct, cases, types = draw_items(600, 0)
    return mc.ScoreGate(promise).fit(score, correct, cases=cases, groups=types)


def evidence(watch):
    """Return the counted cases, the broken ones and the evidence against the promise."""
    (monitor,) = watch.alarms.promise
    return monitor.n_rows, monitor.event_sum, monitor.log_evidence


@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_the_evidence_is_that_of_the_outcomes_of_whole_cases(promise):
    gate = fit(promise)
    score, correct, cases, types = draw_items(500, 1)
    watch = Watch.of(gate).update(score, correct, groups=types, cases=cases)

    accept = gate.accepts(score, groups=types).reshape(500, 3)[:-1]  # The last case is open.
    is_correct = correct.reshape(500, 3)[:-1]
    n_errors = (accept & ~is_correct).sum(axis=1)
    if isinstance(promise, mc.MinCaseRecall):
        is_broken, is_counted = (is_correct & ~accept).any(axis=1), is_correct.any(axis=1)
    elif promise == PROMISES[1]:
        is_broken, is_counted = n_errors > 0, accept.any(axis=1)
    else:
        is_broken, is_counted = n_errors > 0, np.ones(499, dtype=bool)
    events = n_errors / 3 if isinstance(promise, mc.MaxErrorsPerCase) else is_broken
    n_counted, n_events, _ = evidence(watch)
    assert n_counted == is_counted.sum()
    assert n_events == pytest.approx(events[is_counted].sum())
    assert [alarm.name for alarm in watch.alarms] == ["promise"]
    assert watch.raised == ()


def test_many_broken_cases_raise_the_alarm():
    gate = fit()
    score, correct, cases, types = draw_items(500, 1)
    watch = Watch.of(gate).update(score, ~correct, groups=types, cases=cases)
    assert watch.raised == ("promise",)


def test_the_evidence_depends_neither_on_batches_nor_on_a_restart():
    gate = fit()
    score, correct, cases, types = draw_items(300, 1)
    ids = [f"row{row}" for row in range(900)]
    whole = Watch.of(gate)
    whole.update(score, groups=types, cases=cases, ids=ids)
    parts = Watch.of(gate)
    for start in range(0, 900, 70):
        part = slice(start, start + 70)
        parts.update(score[part], groups=types[part], cases=cases[part], ids=ids[part])
        parts = decode_watch(json.loads(json.dumps(encode_watch(parts))), gate)
    for watch in (whole, parts):
        watch.label(ids[:450], correct[:450])
    parts = decode_watch(json.loads(json.dumps(encode_watch(parts))), gate)
    for watch in (whole, parts):
        watch.label(ids[450:], correct[450:])
    assert evidence(whole) == evidence(parts)
    assert evidence(whole)[0] == 299


def test_a_case_counts_when_its_last_label_comes():
    gate = fit()
    score, correct, cases, types = draw_items(3, 1)
    watch = Watch.of(gate)
    ids = list(range(9))
    watch.update(score, groups=types, cases=cases, ids=ids)
    watch.label([0, 1, 3, 4, 5], correct[[0, 1, 3, 4, 5]])
    assert evidence(watch)[0] == 1  # The second case.
    watch.label([2], correct[[2]])
    assert evidence(watch)[0] == 2
    watch.label([6, 7, 8], correct[6:])
    assert evidence(watch)[0] == 2  # The third case may have further rows.
    watch.update([0.5], [True], groups=["date"], cases=["next"])
    assert evidence(watch)[0] == 3


def test_a_case_without_accepted_items_waits_for_its_labels_too():
    # It cannot break the promise, but counting it earlier than others would distort the share.
    gate = fit()
    watch = Watch.of(gate)
    watch.update([-9.0] * 3, groups=FIELDS, cases=["a"] * 3, ids=[0, 1, 2])
    watch.update([9.0], [True], groups=["date"], cases=["b"])
    assert watch.counts.accepted == 1
    assert evidence(watch)[0] == 0
    watch.label([0, 1, 2], [False, True, False])
    assert evidence(watch)[0] == 1


def test_with_a_horizon_the_rows_of_cases_may_be_mixed():
    gate = fit()
    score, correct, cases, types = draw_items(200, 1)
    order = np.argsort(np.arange(600) + np.random.default_rng(0).integers(0, 30, size=600))
    watch = Watch.of(gate, horizon=90)
    watch.update(score[order], correct[order], groups=types[order], cases=cases[order])
    n_counted, n_broken, _ = evidence(watch)
    accept = gate.accepts(score, groups=types)
    is_broken = (accept & ~correct).reshape(200, 3).any(axis=1)
    first_row = np.array([np.flatnonzero(cases[order] == f"doc{case}")[0] for case in range(200)])
    is_complete = first_row + 90 < 600
    assert n_counted == is_complete.sum() > 150
    assert n_broken == is_broken[is_complete].sum()
    unlabelled = Watch.of(gate, horizon=90)
    labels = np.where(np.arange(600) % 3 == 0, None, correct)
    unlabelled.update(score, labels, groups=types, cases=cases)
    assert evidence(unlabelled)[0] == 0
    assert unlabelled.waiting.n_released_without_label == (600 - 90) // 3


def test_a_late_row_of_a_counted_case_is_not_used():
    gate = fit()
    watch = Watch.of(gate)
    watch.update([9.0, 9.0, 9.0], [True] * 3, groups=["date"] * 3, cases=["a", "b", "a"])
    assert evidence(watch)[:2] == (1, 0)
    assert watch.waiting.complete_clusters.n_stray_rows == 1


def test_a_case_is_forgotten_as_a_whole():
    gate = fit()
    watch = Watch.of(gate)
    n_rows = MAX_WAITING_ROWS + 1
    cases = np.repeat(np.arange(n_rows // 3 + 1), 3)[:n_rows]
    watch.update(np.full(n_rows, 9.0), groups=["date"] * n_rows, cases=cases, ids=range(n_rows))
    assert watch.waiting.n_dropped_rows == 3
    watch.label([1, 2], [False, False])
    assert evidence(watch)[0] == 0


@pytest.mark.parametrize(
    "columns", [{}, {"units": ["a"], "cases": ["a"]}, {"cases": ["a"], "probability": [0.5]}]
)
def test_columns_that_do_not_suit_cases_are_refused(columns):
    with pytest.raises(InputError, match="cases"):
        Watch.of(fit()).update([1.0], [True], groups=["date"], **columns)


def test_cases_need_a_promise_about_cases():
    score, correct, cases, _ = draw_items(400, 0)
    gate = mc.ScoreGate(mc.MinAccuracy(0.8)).fit(score, correct)
    with pytest.raises(InputError, match="not a promise about cases"):
        Watch.of(gate).update(score, correct, cases=cases)


def test_a_monitor_of_outcomes_gives_the_same_evidence():
    gate = fit()
    score, correct, cases, types = draw_items(400, 1)
    watch = Watch.of(gate).update(score, correct, groups=types, cases=cases)
    accept = gate.accepts(score, groups=types)
    is_broken = (accept & ~correct).reshape(400, 3).any(axis=1)[:-1]
    (monitor,) = PromiseMonitor.of(gate.certificate_, 0.05)
    monitor.update(accept.reshape(400, 3).any(axis=1)[:-1], ~is_broken)
    assert evidence(watch) == pytest.approx(
        (monitor.n_rows, monitor.event_sum, monitor.log_evidence)
    )
