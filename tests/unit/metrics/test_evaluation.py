"""The one look: side by side, dilution, JSON, and what happens without `correct`."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from metacal import metrics
from metacal.errors import InputError, MetacalWarning


@pytest.fixture
def gated():
    """Probabilities of a gate: 10 classes, rejected rows uniform, accepted ones surer than 0.3."""
    random = np.random.default_rng(6)
    logits = 2.5 * random.standard_normal((800, 10))
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (
        random.random((800, 1)) > np.cumsum(proba**0.8 / (proba**0.8).sum(1, keepdims=True), axis=1)
    ).sum(axis=1)
    labels = labels.clip(0, 9)
    score, correct = 1 - proba.max(axis=1), proba.argmax(axis=1) == labels
    accept = score <= 0.4
    # Balanced classes among the rejected, so that their mean correctness is exactly 1/K in every
    # sense.
    return np.where(accept[:, None], proba, 0.1), labels, accept, correct, score


def test_dilution(gated):
    proba, labels, accept, _, _ = gated
    share = accept.mean()
    kept = proba[accept], labels[accept]
    rounding = len(labels) * np.finfo(float).eps  # of a sum of as many terms, each at most one
    assert metrics.ece(proba, labels) == pytest.approx(share * metrics.ece(*kept), abs=rounding)
    assert metrics.sup_ece(proba, labels) == pytest.approx(
        share * metrics.sup_ece(*kept), abs=rounding
    )


def test_sides_and_gate_are_the_plain_metrics(gated):
    proba, labels, accept, correct, score = gated
    found = metrics.evaluate(
        proba, labels, accept=accept, correct=correct, score=score, n_resamples=30
    )
    for name, interval in found.all_rows.items():
        assert interval == metrics.interval(
            getattr(metrics, name), proba, labels, n_resamples=30
        ), name
    for name, interval in found.accepted_rows.items():
        alone = metrics.interval(
            getattr(metrics, name), proba[accept], labels[accept], n_resamples=30
        )
        assert interval == alone, name
    for name in ("miscoverage", "selective_accuracy", "type_1_error", "type_2_error"):
        assert found.gate[name] == metrics.interval(getattr(metrics, name), accept, correct)
    for name in ("aurc", "e_aurc", "augrc", "auroc"):
        assert found.gate[name] == metrics.interval(
            getattr(metrics, name), score, correct, n_resamples=30
        )
    assert found.gate["coverage"].estimate == accept.mean()
    assert (found.n_rows, found.n_accepted, found.n_classes) == (800, int(accept.sum()), 10)
    for side in (found.all_rows, found.accepted_rows, found.gate):
        assert all(interval.estimate in interval for interval in side.values())


def test_without_a_gate_only_all_rows_are_reported(gated):
    proba, labels, *_ = gated
    found = metrics.evaluate(proba, labels, intervals=False)
    assert (found.accepted_rows, found.n_accepted, dict(found.gate)) == (None, None, {})
    assert math.isnan(found.all_rows["ece"].low)
    assert found.all_rows["ece"].estimate == metrics.ece(proba, labels)
    assert "accepted" not in str(found)


def test_to_dict_is_strict_json(gated):
    proba, labels, accept, correct, score = gated
    found = metrics.evaluate(
        proba, labels, accept=accept, correct=correct, score=score, n_resamples=10
    )
    again = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert again["accepted_rows"]["ece"]["estimate"] == found.accepted_rows["ece"].estimate
    assert again["gate"]["coverage"]["method"] == "Clopper-Pearson"
    bare = metrics.evaluate(
        proba, labels, accept=~accept & False, correct=correct, intervals=False
    ).to_dict()
    assert bare["gate"]["selective_accuracy"]["estimate"] is None
    assert bare["accepted_rows"] is None
    json.dumps(bare, allow_nan=False)


def test_the_printed_table_is_aligned_and_shows_both_sides(gated):
    proba, labels, accept, correct, score = gated
    text = str(
        metrics.evaluate(proba, labels, accept=accept, correct=correct, score=score, n_resamples=10)
    )
    lines = text.splitlines()
    header = next(line for line in lines if line.startswith("probabilities"))
    row = next(line for line in lines if line.startswith("ECE, equal width"))
    assert header.index("accepted rows") == row.index("0.")
    assert "all rows" in header
    assert "selective accuracy, P(correct | accept)" in text
    assert all(len(line) <= 120 for line in lines)


def test_nothing_accepted_is_said_so(gated):
    proba, labels, _, correct, _ = gated
    found = metrics.evaluate(
        proba, labels, accept=np.zeros(800, bool), correct=correct, intervals=False
    )
    assert found.accepted_rows is None
    assert "undefined" in str(found)


def test_without_correct_uniform_rejected_rows_are_unknown_not_wrong(gated):
    proba, labels, accept, correct, score = gated
    with pytest.warns(MetacalWarning, match="Pass correct="):
        found = metrics.evaluate(proba, labels, accept=accept, score=score, intervals=False)
    assert math.isnan(found.gate["miscoverage"].estimate)
    assert math.isnan(found.gate["aurc"].estimate)
    assert found.gate["selective_accuracy"].estimate == metrics.selective_accuracy(accept, correct)


def test_without_correct_it_is_read_from_probabilities_that_show_it():
    proba = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.55, 0.45]]
    found = metrics.evaluate(
        proba, [0, 1, 1, 0], accept=[True, True, False, False], intervals=False
    )
    assert found.gate["miscoverage"].estimate == 1 / 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accept": [True]}, "same number of rows"),
        ({"correct": [True]}, "same number of rows"),
        ({"score": [0.5]}, "same number of rows"),
        ({"accept": [0.3, 1]}, "True or False"),
        ({"n_bins": 0}, "n_bins"),
        ({"level": 1.0}, "level"),
        ({"n_resamples": 0}, "intervals=False"),
    ],
)
def test_bad_requests_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        metrics.evaluate([[0.9, 0.1], [0.2, 0.8]], [0, 1], **options)
