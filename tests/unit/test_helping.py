"""Never worse in silence: what calibration does to accepted rows is compared, and said."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.certificates.notes import note_not_compared, note_weights_not_certified
from metacal.cli import main
from metacal.gate.softmax_comparison import (
    MetricComparison,
    SoftmaxComparison,
    compare_metrics,
    is_clearly_better,
)
from metacal.maps.composed import fit_composed, make_softmax_map
from metacal.maps.cross_fitting import (
    compare_refitted_map_with_softmax,
    compute_cross_fitted_quality,
    compute_softmax_quality,
    find_temperature_map,
)
from metacal.maps.heldout import (
    OutOfFoldQuality,
    compute_out_of_fold_quality,
)
from metacal.maps.row_statistics import collect_statistics_on_host
from metacal.maps.temperature import TemperatureMap, fit_temperature
from metacal.maps.uniform import fit_uniform_temperature
from metacal.reports.summary import summarise
from metacal.rows import Rows
from metacal.rows.executors import open_executor

SAYS_SO = "Calibration does not improve the probabilities of accepted rows"


@pytest.fixture(scope="module")
def honest():
    """Logits that are calibrated already."""
    data = mc.datasets.load("cifar10-resnet110")
    logits = data.logits / np.float32(
        mc.TemperatureScaling().fit(data.logits, data.labels).temperature_
    )
    logits.flags.writeable = False
    return logits, data.labels


def fitted(*arguments, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mc.MetaCal(mc.MaxMiscoverage(0.1), *arguments).fit(**keywords)


def test_the_usual_base_gives_way_where_it_does_not_help(honest, tmp_path):
    logits, labels = honest
    with pytest.warns(mc.MetacalWarning, match=SAYS_SO):
        gate = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(logits[:300], labels[:300])
    assert gate.gate_.source.map == gate.calibrator_.map_ == make_softmax_map(gate.gate_.n_classes)
    assert str(gate.certificate_.notes[-1]).endswith("The softmax of the logits is used instead.")
    accept = gate.accepts(logits)
    np.testing.assert_allclose(
        gate.predict_proba(logits)[accept], TemperatureMap(1.0)(logits)[accept], atol=1e-6
    )
    mc.save(gate, tmp_path / "gate.json")
    assert mc.load(tmp_path / "gate.json").gate_ == gate.gate_
    assert "does not improve" in str(mc.load(tmp_path / "gate.json").certificate_)


def test_a_calibrator_that_was_named_stays_and_the_certificate_says_so(honest):
    logits, labels = honest
    gate = fitted("histogram", X=logits[:500], y=labels[:500])
    assert type(gate.gate_.source.map).__name__ == "PiecewiseMap"
    assert str(gate.certificate_.notes[-1]).startswith(SAYS_SO)
    assert not str(gate.certificate_.notes[-1]).endswith("is used instead.")


def test_where_it_helps_nothing_is_said_and_what_is_not_compared_is(honest):
    logits, labels = 2.0 * honest[0][:1000], honest[1][:1000]
    for calibrator in (None, "temperature", "spline"):
        assert fitted(calibrator, X=logits, y=labels).certificate_.notes == ()
    weighted = fitted(None, X=logits, y=labels, sample_weight=np.linspace(0.0, 1.0, 1000))
    assert weighted.certificate_.notes == (note_weights_not_certified(),)
    assert fitted(mc.AutoCalibrator(["temperature"]), X=logits, y=labels).certificate_.notes == (
        note_not_compared(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paper = mc.MetaCal(mc.paper.MaxMiscoverage(0.1)).fit(honest[0][:300], honest[1][:300])
    assert not [note for note in paper.certificate_.notes if "help" in str(note)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("fit", "sure", "loss"),
    [
        (fit_temperature, 2e-5, 2e-4),
        (fit_uniform_temperature, 2e-5, 2e-3),
        (fit_composed, 2e-3, 2e-2),
    ],
)
def test_two_walks_say_what_fitting_every_fold_anew_says(honest, fit, sure, loss, weighted):
    logits, labels = 2.0 * honest[0][:1500].astype(np.float64), honest[1][:1500].copy()
    logits[5, :4], labels[5] = -np.inf, 2  # a true class that is masked
    fold, weights = np.arange(1500) % 5, 1.0 + np.arange(1500) % 3 if weighted else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = fit(Rows(logits), labels, weights)
        front = find_temperature_map(fitted)
        plain_statistics, statistics = (
            collect_statistics_on_host(Rows(logits), labels, weights, b)
            for b in (1.0, front.inverse_temperature)
        )
        plain = compute_softmax_quality(plain_statistics)
        calibrated = compute_cross_fitted_quality(fitted, front, statistics, fold)
        refitted = compare_refitted_map_with_softmax(fit, Rows(logits), labels, weights, fold)
    np.testing.assert_allclose(plain.loss, refitted.uncalibrated.loss, atol=1e-12)
    np.testing.assert_allclose(plain.confidence, refitted.uncalibrated.confidence, atol=1e-12)
    np.testing.assert_array_equal(statistics.correct, refitted.correct)
    np.testing.assert_allclose(calibrated.confidence, refitted.calibrated.confidence, atol=sure)
    np.testing.assert_allclose(calibrated.loss, refitted.calibrated.loss, atol=loss)
    # A standard error is 0.003 and more.
    np.testing.assert_allclose(calibrated.loss.mean(), refitted.calibrated.loss.mean(), atol=1e-4)


def test_threads_change_no_bit_of_what_is_held_out(honest):
    logits, labels = np.tile(honest[0], (40, 1)), np.tile(honest[1], 40)
    fitted = fit_temperature(Rows(logits), labels)
    alone = compute_out_of_fold_quality(fitted, fit_temperature, Rows(logits), labels, None)
    with open_executor(2) as pool:
        shared = compute_out_of_fold_quality(
            fitted, fit_temperature, Rows(logits, executor=pool, block_rows=1), labels, None
        )
    for name in OutOfFoldQuality.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(alone, name), getattr(shared, name))
    assert len(alone.positions) <= 4000
    assert (
        compute_out_of_fold_quality(fitted, fit_temperature, Rows(logits[:60]), labels[:60], None)
        is None
    )


@pytest.mark.parametrize(("factor", "clear"), [(3.0, True), (1.0, False)])
def test_no_fold_is_fitted_where_the_rows_themselves_leave_no_doubt(honest, factor, clear):
    logits, labels = factor * honest[0][:3000], honest[1][:3000]
    fitted = fit_composed(Rows(logits), labels)
    own = compute_out_of_fold_quality(
        fitted, fit_composed, Rows(logits), labels, None, lambda own: True
    )
    assert is_clearly_better(own, 3000) is clear
    chances = fitted(logits)
    np.testing.assert_allclose(own.confidence, chances.max(axis=1), atol=1e-5)
    np.testing.assert_allclose(own.log_losses, -np.log(chances[np.arange(3000), labels]), atol=1e-3)
    crossed = compare_metrics(
        compute_out_of_fold_quality(
            fitted, fit_composed, Rows(logits), labels, None, lambda own: False
        )
    )
    assert crossed.log_loss.calibrated > compare_metrics(own).log_loss.calibrated
    assert not (clear and crossed.map_increases_a_metric)


def test_harm_is_more_than_a_standard_error():
    random = np.random.default_rng(0)
    chance = random.uniform(0.5, 1.0, 4000)
    right = (random.random(4000) < chance).astype(float)
    loss = -np.log(np.where(right > 0, chance, 1.0 - chance))
    sharper = chance**2 / (chance**2 + (1.0 - chance) ** 2)
    worse = -np.log(np.where(right > 0, sharper, 1.0 - sharper))
    rows = np.arange(4000)
    found = compare_metrics(OutOfFoldQuality(rows, worse, sharper, loss, chance, right, rows))
    assert found.ece.calibrated == pytest.approx(mc.metrics.ece(sharper, right), abs=1e-12)
    assert found.ece.uncalibrated == pytest.approx(mc.metrics.ece(chance, right), abs=1e-12)
    assert found.map_increases_a_metric
    assert found.log_loss.is_increased_by_map
    assert found.ece.is_increased_by_map
    assert " rows): log loss " in str(found.build_note(uses_softmax=False))
    assert " and ECE " in str(found.build_note(uses_softmax=False))
    assert not compare_metrics(
        OutOfFoldQuality(rows, loss, chance, worse, sharper, right, rows)
    ).map_increases_a_metric
    assert not SoftmaxComparison(
        MetricComparison(0.3, 0.3, 0.0), MetricComparison(0.02, 0.015, 0.006), 100
    ).map_increases_a_metric


@pytest.mark.slow
def test_evaluate_and_the_page_say_so_in_words(honest, tmp_path):
    logits, labels = honest
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1), "temperature").fit(3.0 * logits[:1000], labels[:1000])
    mc.save(gate, tmp_path / "gate.json")
    np.savez(
        tmp_path / "test.npz", logits=logits[1000:4000], labels=labels[1000:4000]
    )  # other logits than it is for
    arguments = [
        "evaluate",
        str(tmp_path / "gate.json"),
        str(tmp_path / "test.npz"),
        "--resamples",
        "50",
    ]
    assert (
        "Calibration does not help on these accepted rows: log loss"
        in CliRunner().invoke(main, arguments).output
    )
    said = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)["calibration"]
    assert said.startswith("Calibration does not help on these accepted rows")
    summary = summarise(logits[1000:4000], labels[1000:4000], gate=gate, n_resamples=0)
    assert "does not help" in summary.evaluation["calibration"]
    assert (
        summarise(3.0 * logits[1000:4000], labels[1000:4000], gate=gate, n_resamples=0).evaluation[
            "calibration"
        ]
        is None
    )


@pytest.mark.parametrize("order", ["alternating", "shuffled"])
def test_the_check_is_no_other_where_two_kinds_of_rows_alternate(order):
    """Every second row is four times too sure: one temperature for both helps, though not the rows
    of either kind.
    """
    rng = np.random.default_rng(0)
    logits = rng.normal(0.0, 2.0, (6000, 4))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    logits[1::2] *= 4.0
    rows = np.arange(6000) if order == "alternating" else rng.permutation(6000)
    cal = mc.MetaCal(mc.MaxReview(0.3), "temperature").fit(logits[rows], labels[rows])
    assert "calibration_harms" not in {note.kind for note in cal.certificate_.notes}
