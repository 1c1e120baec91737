"""Laws of the core, under hypothesis."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import metacal as mc
from metacal import rows as rows_module
from metacal.certification.ranking import Ranking
from metacal.certification.rules.expected_prefix import count_expected_prefix
from metacal.kernels import numpy as kernels
from metacal.kernels.grid import RELATIVE_GRID
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows
from metacal.scores import NAMED, score_rows

pytestmark = pytest.mark.filterwarnings("ignore::metacal.MetacalWarning")


@st.composite
def tables(draw, min_rows=30, max_rows=400):
    """A noisy classifier's logits and labels; distinct values, so that no two classes tie."""
    seed = draw(st.integers(0, 2**32 - 1))
    n, k = draw(st.integers(min_rows, max_rows)), draw(st.integers(2, 12))
    scale = draw(st.sampled_from([0.5, 2.0, 8.0]))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n)
    logits = rng.normal(size=(n, k)) * scale + scale * 1.5 * np.eye(k)[labels]
    correct = logits.argmax(axis=1) == labels
    assume(5 < correct.sum() < n - 2)
    return logits, labels


def constraints():
    return st.sampled_from(
        [
            mc.MaxMiscoverage(0.1),
            mc.MaxMiscoverage(0.2, None),
            mc.MinAccuracy(0.3),
            mc.MinAccuracy(0.4, None),
        ]
    )


def knots(estimator):
    """Those of the spline in the default base of many classes; none where there is no such
    spline.
    """
    return getattr(getattr(estimator.calibrator_.map_, "then", None), "knots", ())


def fitted(promise, logits, labels, **options):
    try:
        return mc.MetaCal(promise, **options).fit(logits, labels)
    except mc.InfeasibleTargetError:
        assume(False)


@pytest.mark.slow
@given(tables(), constraints(), st.sampled_from(sorted(NAMED)), st.randoms(use_true_random=False))
def test_permuting_rows_changes_nothing_but_order(table, promise, score, shuffler):
    logits, labels = table
    order = np.array(shuffler.sample(range(len(labels)), len(labels)))
    plain, shuffled = (
        fitted(promise, logits, labels, score=score),
        fitted(promise, logits[order], labels[order], score=score),
    )
    assert shuffled.threshold_ == plain.threshold_
    np.testing.assert_array_equal(shuffled.accepts(logits), plain.accepts(logits))
    # Knots of the default base stand on a grid: where one of them is a step further for a last bit,
    # so are its slopes.
    near = 1e-7 if np.array_equal(knots(shuffled), knots(plain)) else 1e-2
    np.testing.assert_allclose(
        shuffled.predict_proba(logits), plain.predict_proba(logits), rtol=near, atol=1e-12
    )


@pytest.mark.slow
@given(tables(), constraints(), st.sampled_from(sorted(NAMED)), st.randoms(use_true_random=False))
def test_relabelling_classes_changes_nothing_but_columns(table, promise, score, shuffler):
    logits, labels = table
    k = logits.shape[1]
    order = np.array(shuffler.sample(range(k), k))
    place = np.argsort(order)
    plain = fitted(promise, logits, labels, score=score)
    renamed = fitted(promise, logits[:, order], place[labels], score=score)
    np.testing.assert_allclose(renamed.threshold_, plain.threshold_, rtol=1e-12)
    np.testing.assert_allclose(
        renamed.calibrator_.predict_proba(logits[:, order]),
        plain.calibrator_.predict_proba(logits)[:, order],
        rtol=1e-9,
        atol=1e-12,
    )
    named = np.append(order, -1)[renamed.predict(logits[:, order])]
    near = np.abs(plain.ranking_scores(logits) - plain.threshold_) < 1e-9 * (
        1 + abs(plain.threshold_)
    )
    np.testing.assert_array_equal(named[~near], plain.predict(logits)[~near])


@pytest.mark.slow
@given(tables(), st.integers(2, 4))
def test_duplicating_every_row_leaves_the_temperature(table, copies):
    logits, labels = table
    once = fit_temperature(Rows(logits), labels).temperature
    again = fit_temperature(Rows(np.tile(logits, (copies, 1))), np.tile(labels, copies)).temperature
    assert again == pytest.approx(once, rel=1e-8)


@pytest.mark.slow
@settings(max_examples=30)
@given(tables(min_rows=200, max_rows=900), st.integers(1, 1000), st.integers(2, 5))
def test_block_size_and_threads_leave_every_bit(table, block_rows, threads):
    logits, labels = table
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(threads) as pool:
        patch.setattr(
            rows_module.strips, "STRIP_ELEMENTS", 64
        )  # so that these small tables have many strips
        patch.setattr(rows_module, "BLOCK_ELEMENTS", 256)
        plain = Rows(logits)
        other = Rows(logits, block_rows=block_rows, executor=pool)
        assert fit_temperature(other, labels) == fit_temperature(plain, labels)
        for score in NAMED:
            assert score_rows(other, score).tobytes() == score_rows(plain, score).tobytes()
        keep = np.arange(len(labels)) % 3 > 0
        loss = partial(kernels.tempered_loss_and_derivatives, inverse_temperature=0.7)
        kept = other.select(keep).sum(loss, labels[keep], None)
        assert kept.tobytes() == plain.select(keep).sum(loss, labels[keep], None).tobytes()
        one, many = (
            mc.MetaCal(mc.MaxMiscoverage(0.1)),
            mc.MetaCal(mc.MaxMiscoverage(0.1), n_jobs=threads),
        )
        one.fit(logits, labels)
        many.fit(logits, labels)
        assert one.certificate_ == many.certificate_
        assert one.predict_proba(logits).tobytes() == many.predict_proba(logits).tobytes()


@given(
    st.lists(
        st.tuples(st.floats(-1e300, 1e300) | st.sampled_from([0.0, -0.0, 1.5]), st.booleans()),
        min_size=1,
    )
)
def test_one_sort_of_numbers_ranks_as_finding_the_order_does(rows):
    raw, correct = (np.array(column) for column in zip(*rows))
    scores = RELATIVE_GRID.round(raw)
    ranking = Ranking.from_scores(scores, correct)
    order = np.argsort(scores, kind="stable")
    last = np.append(scores[order][1:] != scores[order][:-1], True)
    assert np.array_equal(ranking.tie_block_end_ranks, np.flatnonzero(last) + 1)
    assert np.array_equal(ranking.tie_block_scores, scores[order][last])
    assert np.array_equal(ranking.cumulative_errors, np.cumsum(~correct[order])[last])
    odd = Ranking.from_scores(
        np.nextafter(scores, np.inf), correct
    )  # no grid points: the last bit is not free
    assert np.array_equal(odd.tie_block_end_ranks, ranking.tie_block_end_ranks)
    assert np.array_equal(odd.cumulative_errors, ranking.cumulative_errors)


@pytest.mark.slow
@given(tables(), constraints(), st.floats(-1e3, 1e3))
def test_adding_a_constant_to_a_row_changes_nothing(table, promise, shift):
    logits, labels = table
    shifts = np.where(np.arange(len(labels)) % 2, shift, -shift / 3)[:, None]
    plain = fitted(promise, logits, labels)
    moved = fitted(promise, logits + shifts, labels)
    assert moved.calibrator_.temperature_ == pytest.approx(plain.calibrator_.temperature_, rel=1e-7)
    assert moved.threshold_ == pytest.approx(plain.threshold_, rel=1e-7)
    np.testing.assert_allclose(
        moved.calibrator_.predict_proba(logits), plain.calibrator_.predict_proba(logits), rtol=1e-6
    )


@pytest.mark.slow
@given(tables(), constraints())
def test_single_and_double_precision_agree(table, promise):
    logits, labels = table
    logits = logits.astype(np.float32)
    single, double = (
        fitted(promise, logits, labels),
        fitted(promise, logits.astype(np.float64), labels),
    )
    assert single.threshold_ == pytest.approx(double.threshold_, rel=1e-5)
    assert single.calibrator_.temperature_ == pytest.approx(
        double.calibrator_.temperature_, rel=1e-5
    )
    # The usual base is fitted to confidences that differ in their last single bit: its knots, and
    # with them its curve, move by more than that (2.6e-5 on one table of 364 rows).
    np.testing.assert_allclose(
        single.predict_proba(logits), double.predict_proba(logits.astype(np.float64)), atol=1e-4
    )


@pytest.mark.slow
@given(tables(), st.floats(0.05, 20.0))
def test_temperature_scales_with_the_logits(table, factor):
    logits, labels = table
    once = fit_temperature(Rows(logits), labels).temperature
    assert fit_temperature(Rows(logits * factor), labels).temperature == pytest.approx(
        once * factor, rel=1e-7
    )


@pytest.mark.slow
@given(tables())
def test_the_temperature_is_a_minimum(table):
    logits, labels = table
    fit = fit_temperature(Rows(logits), labels)

    def loss(b):
        return Rows(logits).sum(
            partial(kernels.tempered_loss_and_derivatives, inverse_temperature=b), labels, None
        )[0]

    best = loss(fit.inverse_temperature)
    assert best <= min(
        loss(fit.inverse_temperature * 1.001), loss(fit.inverse_temperature / 1.001)
    ) + 1e-9 * abs(best)


@pytest.mark.slow
@given(tables(), st.floats(0.02, 0.5), st.floats(0.02, 0.5))
def test_a_looser_promise_never_accepts_fewer(table, first, second):
    """More allowed miscoverage lowers the threshold; a lower accuracy target raises it."""
    logits, labels = table
    strict, loose = sorted((first, second))
    scores, correct = kernels.entropy(logits), logits.argmax(axis=1) == labels
    thresholds = [
        mc.MaxMiscoverage(alpha).certify(scores, correct).threshold for alpha in (strict, loose)
    ]
    assert thresholds[1] <= thresholds[0]
    ranking = Ranking.from_scores(scores, correct)
    assert count_expected_prefix(ranking, 1 - loose) >= count_expected_prefix(ranking, 1 - strict)


@pytest.mark.slow
@given(tables(), constraints())
def test_probabilities_are_probabilities(table, promise):
    logits, labels = table
    cal = fitted(promise, logits, labels)
    proba = cal.predict_proba(logits)
    assert np.isfinite(proba).all()
    assert (proba >= 0).all()
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-12)
    accept = cal.accepts(logits)
    if cal.gate_.source.map.preserves_accuracy:  # that of two classes has an offset
        np.testing.assert_array_equal(proba[accept].argmax(axis=1), logits[accept].argmax(axis=1))
