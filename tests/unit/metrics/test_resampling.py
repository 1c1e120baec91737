"""Batches of resamples: many at once is each alone, subsets are not copied, and draws do not depend
on the batch.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from metacal.metrics import replicates
from metacal.metrics.binning import GroupSums, evaluate_on_sample
from metacal.metrics.classwise import ClassGaps
from metacal.metrics.ranked_errors import read_ranking
from metacal.metrics.registry import DECISION, METRICS, PROBABILITIES, TOP_LABEL
from metacal.metrics.toplabel import checked_table, top_label

DRAWN = [metric for metric in METRICS.values() if metric.input is not DECISION]


@pytest.fixture(scope="module")
def sources():
    random = np.random.default_rng(4)
    logits = random.standard_normal((300, 5)) * 2
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    proba[::7] = 0.2  # rejected rows: ties of the confidence, and of the top class
    labels = random.integers(5, size=300)
    top = top_label(proba, labels)
    ranking = read_ranking(np.round(1 - top.confidence, 2), top.correct == 1)
    return {PROBABILITIES: checked_table(proba, labels), TOP_LABEL: top}, ranking


def prepared(metric, sources):
    tables, ranking = sources
    return metric.prepare_statistic(tables.get(metric.input, ranking))


def batches(signs):
    random = np.random.default_rng(0)
    if signs:
        return np.asfortranarray(2.0 * random.integers(2, size=(21, 300)) - 1)
    drawn = [np.bincount(random.integers(300, size=300), minlength=300) for _ in range(21)]
    return np.asfortranarray(drawn, dtype=np.float64)


@pytest.mark.parametrize(
    ("metric", "signs"),
    # Only calibration errors are asked about chance.
    [
        (metric, signs)
        for metric in DRAWN
        for signs in ((False, True) if metric.calibration_error else (False,))
    ],
    ids=lambda value: getattr(value, "name", "signs" if value else "counts"),
)
def test_a_batch_gives_what_each_resample_gives_alone(metric, sources, signs):
    statistic, batch = prepared(metric, sources), batches(signs)
    alone = [statistic(weights[None].astype(np.intp))[0] for weights in batch]
    np.testing.assert_allclose(
        statistic(batch), alone, rtol=1e-11, atol=2e-6 if metric.name == "smooth_ece" else 1e-13
    )


def test_rows_selected_twice_are_the_rows_of_both_masks(sources):
    whole = sources[0][PROBABILITIES]
    is_even, is_third = np.arange(300) % 2 == 0, np.arange(300) % 3 == 0
    twice = whole.subset(is_even).subset(is_third[is_even])
    once = whole.subset(is_even & is_third)
    assert np.array_equal(twice.table, once.table)
    assert np.array_equal(twice.top_label().correct, once.top_label().correct)


@pytest.mark.parametrize(
    "metric", [metric for metric in DRAWN if metric.input is PROBABILITIES], ids=lambda m: m.name
)
def test_some_rows_of_a_table_are_a_table(metric, sources):
    whole = sources[0][PROBABILITIES]
    keep = np.random.default_rng(1).random(300) < 0.6
    some, copied = (
        whole.subset(keep),
        checked_table(whole.full_table[keep], whole.label_codes[keep]),
    )
    assert some.full_table is whole.full_table
    assert len(some) == keep.sum()
    assert np.array_equal(some.table, copied.table)
    assert np.array_equal(np.concatenate([block for _, block in some.blocks()]), copied.table)
    assert np.array_equal(some.top_label().correct, copied.top_label().correct)
    assert evaluate_on_sample(metric.prepare_statistic(some), len(some)) == evaluate_on_sample(
        metric.prepare_statistic(copied), len(copied)
    )
    weights = batches(signs=False)[:, : len(some)]
    assert np.array_equal(
        metric.prepare_statistic(some)(weights), metric.prepare_statistic(copied)(weights)
    )


def test_single_precision_moves_wide_tables_by_less_than_rounding():
    random = np.random.default_rng(2)
    logits = random.standard_normal((3000, 200)) * 3
    wide = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    narrow, labels = wide.astype(np.float32), random.integers(200, size=3000)
    weights = np.stack(
        [np.bincount(random.integers(3000, size=3000), minlength=3000) for _ in range(4)]
    )
    prepare = METRICS["classwise_ece"].prepare_statistic
    of_single = prepare(checked_table(narrow, labels))
    exact = prepare(checked_table(narrow.astype(np.float64), labels))
    np.testing.assert_allclose(of_single(weights), exact(weights), rtol=0, atol=2e-9)
    assert of_single(weights[:1])[0] == pytest.approx(
        exact(weights[:1])[0], abs=1e-15
    )  # one alone: in double


def test_sums_by_code_are_sums_over_rows():
    random = np.random.default_rng(3)
    codes, row = random.integers(4, size=50), random.integers(20, size=50)
    values, batch = random.standard_normal(50), random.integers(5, size=(6, 20))
    expected = [
        [(weights[row] * values)[codes == code].sum() for code in range(5)] for weights in batch
    ]
    np.testing.assert_allclose(GroupSums(codes, 5, values, row)(batch), expected, atol=1e-12)
    np.testing.assert_allclose(
        GroupSums(codes, 5, values, row)(batch[:1]), expected[:1], atol=1e-12
    )


@pytest.mark.parametrize("elements", [1, 1000, 1 << 21])
def test_draws_do_not_depend_on_the_batch(monkeypatch, elements):
    def drawn():
        random = np.random.default_rng(7)
        found = replicates.draw_batches(
            37, 90, lambda: np.bincount(random.integers(90, size=90), minlength=90)
        )
        return np.concatenate([batch.copy() for batch in found])

    usual = drawn()
    monkeypatch.setattr(replicates, "_BATCH_ELEMENTS", elements)
    assert np.array_equal(drawn(), usual)
    assert usual.shape == (37, 90)
    assert (usual.sum(axis=1) == 90).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gaps_of_classes_are_the_same_in_any_order_and_parts(dtype):
    random = np.random.default_rng(4)
    table = random.dirichlet(np.full(12, 0.3), size=900).astype(dtype)
    labels = np.array([random.choice(12, p=row / row.sum()) for row in table.astype(np.float64)])
    whole = ClassGaps(12, 15)
    whole.add(checked_table(table, labels))
    order, parts = random.permutation(900), ClassGaps(12, 15)
    for rows in np.array_split(order, [1, 7, 400]):
        part = ClassGaps(12, 15)
        part.add(checked_table(table[rows], labels[rows]))
        parts += pickle.loads(pickle.dumps(part))
    assert parts.value() == whole.value() == METRICS["classwise_ece"].function(table, labels)
    gap = (labels[:, None] == np.arange(12)) - table.astype(np.float64)
    bins = np.maximum(np.ceil(table.astype(np.float64) * 15), 1)
    expected = sum(
        np.abs(np.where(bins == b, gap, 0.0).sum(axis=0)).sum() for b in range(1, 16)
    ) / (900 * 12)
    assert whole.value() == pytest.approx(expected, abs=1e-15)
    assert np.isnan(ClassGaps(12).value())
