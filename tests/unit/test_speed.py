"""What the fast paths promise: one pass, the same answers, buffers of the caller's, and no
scikit-learn to wait for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
from sklearn.base import clone

import metacal as mc
from benchmarks.speed.passes import exact_temperature, passes_of_temperature_fit
from benchmarks.speed.sizes import fill_table
from metacal import kernels
from metacal.errors import InputError, MetacalWarning
from metacal.gate import LogitsData
from metacal.gate.calibrate import calibrate
from metacal.kernels import numpy as definition
from metacal.kernels.buffers import widen_float16
from metacal.maps.composed import fit_composed
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows


@pytest.fixture(scope="module")
def large():
    table = np.empty((12_000, 40), dtype=np.float32)
    return table, fill_table(table, seed=3)


# --- one pass ------------------------------------------------------------------------------------------------------


def test_a_warm_start_leaves_at_most_two_passes(large):
    table, labels = large
    assert passes_of_temperature_fit(table, labels) <= 2
    exact = exact_temperature(table, labels, start=1.8)
    assert fit_temperature(Rows(table), labels).temperature == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("scale", [0.02, 0.3, 7.0, 60.0])
def test_the_solver_finds_far_temperatures(large, scale):
    table, labels = large
    exact = exact_temperature(table, labels, start=1.8)
    found = fit_temperature(Rows(table * np.float32(scale)), labels).temperature
    assert found == pytest.approx(exact * scale, rel=2e-6)


def test_masked_truths_are_found_when_the_loss_says_so(large):
    table, labels = large
    masked = table.copy()
    masked[[5, 700], labels[[5, 700]]] = -np.inf
    others = np.ones(len(table), dtype=bool)
    others[[5, 700]] = False
    with pytest.warns(MetacalWarning, match="2 of 12000 rows"):
        found = fit_temperature(Rows(masked), labels)
    assert found == fit_temperature(Rows(masked).select(others), labels[others])


def test_samples_of_kept_rows_are_those_of_a_copy(large):
    table, labels = large
    keep = np.random.default_rng(0).random(len(table)) < 0.8
    copy = fit_temperature(Rows(table[keep]), labels[keep])
    assert fit_temperature(Rows(table).select(keep), labels[keep]).temperature == pytest.approx(
        copy.temperature, rel=1e-6
    )
    sample = Rows(table).select(keep).take_every(7)
    np.testing.assert_array_equal(
        sample.compute_column(lambda block: block[:, 0]), table[keep][::7, 0]
    )


def test_views_of_gathered_rows_are_not_written_over():
    table = np.arange(400_000.0).reshape(-1, 4)
    keep = np.ones(len(table), dtype=bool)
    keep[::3] = False
    np.testing.assert_array_equal(
        Rows(table).select(keep).compute_column(lambda block: block[:, 1]), table[keep, 1]
    )
    np.testing.assert_array_equal(
        Rows(table).select(keep).compute_column(lambda block: block), table[keep]
    )


# --- the new kernels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 9, 33, 200])
def test_members_are_the_true_class_under_each_member(dtype, n_classes):
    rng = np.random.default_rng(n_classes)
    logits = (rng.normal(size=(50, n_classes)) * 4.0).astype(dtype)
    labels = rng.integers(n_classes, size=50)
    holes = rng.random(logits.shape) < 0.3
    holes[np.arange(50), labels] = False
    logits[holes] = -np.inf
    wide = logits.astype(np.float64)

    def softmax(x):
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return (e / e.sum(axis=1, keepdims=True))[np.arange(50), labels]

    expected = np.stack([softmax(0.4 * wide), softmax(wide), 1.0 / (~holes).sum(axis=1)], axis=1)
    for module in (definition, kernels.host_kernels):
        found = module.ensemble_label_probabilities(logits, labels, 0.4)
        np.testing.assert_allclose(found, expected, rtol=1e-12 if dtype == np.float64 else 2e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 8, 13, 70])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, "masked"])
def test_the_first_bad_row_is_found(dtype, n_classes, bad):
    table = np.random.default_rng(0).normal(size=(20, n_classes)).astype(dtype)
    table[:, 0] = -np.inf
    for module in (definition, kernels.host_kernels):
        assert module.inspect_logits(table)[0] is None
        for column in (0, n_classes - 1):
            spoilt = table.copy()
            spoilt[7:9, slice(None) if bad == "masked" else column] = (
                -np.inf if bad == "masked" else bad
            )
            assert module.inspect_logits(spoilt)[0] == 7


def test_half_precision_is_converted_exactly():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = every[~np.isnan(every) & (every < np.inf)].reshape(1, -1)
    np.testing.assert_array_equal(widen_float16(every), every.astype(np.float32))


# --- a buffer of the caller's --------------------------------------------------------------------------------------


ESTIMATORS = {
    "temperature": mc.TemperatureScaling(),
    "ensemble": mc.EnsembleTemperatureScaling(),
    "vector": mc.VectorScaling(regularisation=1.0),
    "gate": mc.MetaCal(mc.MaxMiscoverage(0.1)),
    "gate of vectors": mc.MetaCal(
        mc.MaxMiscoverage(0.1), calibrator=mc.VectorScaling(regularisation=1.0)
    ),
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_out_is_written_and_returned(large, name, dtype):
    table, labels = (column[:1500] for column in large)
    table = table.astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetacalWarning)
        fitted = clone(ESTIMATORS[name]).fit(table, labels)
    expected = fitted.predict_proba(table)
    out = np.full_like(expected, np.nan)
    assert fitted.predict_proba(table, out=out) is out
    np.testing.assert_array_equal(out, expected)
    columns = np.full(expected.shape[::-1], np.nan, dtype=expected.dtype).T  # not contiguous
    np.testing.assert_array_equal(fitted.predict_proba(table, out=columns), expected)


@pytest.mark.parametrize("name", ["temperature", "vector", "gate"])
def test_an_unfit_out_is_refused(large, name):
    table, labels = (column[:1500] for column in large)
    fitted = clone(ESTIMATORS[name]).fit(table, labels)
    frozen = np.empty(table.shape, dtype=np.float32)
    frozen.setflags(write=False)
    for out in (
        np.empty((3, 40), np.float32),
        np.empty(table.shape),
        frozen,
        [[0.0]],
        np.empty(table.size, np.float32),
    ):
        with pytest.raises(
            InputError, match=r"out must be a writeable float32 array of shape \(1500, 40\)"
        ):
            fitted.predict_proba(table, out=out)


# --- the gate without its estimator --------------------------------------------------------------------------------


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_the_gate_is_the_estimators(large, n_jobs):
    table, labels = large
    cal = mc.MetaCal(mc.MinAccuracy(0.9), n_jobs=n_jobs).fit(table, labels)
    gate = calibrate(LogitsData(Rows(table), labels, "entropy", fit_composed), cal.promise)
    assert gate == cal.gate_


def command(*arguments):
    code = "from metacal.cli import main; main(prog_name='metacal')"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("calibrator", ["temperature", "ensemble-temperature"])
def test_the_command_saves_what_the_estimator_saves(large, tmp_path, calibrator):
    table, labels = (column[:3000] for column in large)
    names = [f"class {k}" for k in range(40)]
    np.savez(tmp_path / "val.npz", logits=table, labels=np.asarray(names)[labels])
    done = command(
        "fit",
        str(tmp_path / "val.npz"),
        *("--max-miscoverage", "0.1", "--calibrator", calibrator, "--classes", ",".join(names)),
        *("-o", str(tmp_path / "command.json"), "--json"),
    )
    assert done.returncode == 0, done.stderr
    base = {
        "temperature": mc.TemperatureScaling,
        "ensemble-temperature": mc.EnsembleTemperatureScaling,
    }[calibrator]()
    cal = mc.MetaCal(
        mc.MaxMiscoverage(0.1), calibrator=base, reject_label="rejected", classes=names
    )
    mc.save(cal.fit(table, np.asarray(names)[labels]), tmp_path / "estimator.json")
    assert (tmp_path / "command.json").read_bytes() == (tmp_path / "estimator.json").read_bytes()
    assert json.loads(done.stdout)["certificate"] == json.loads(
        json.dumps(cal.certificate_.to_dict(words=True))
    )


@pytest.mark.slow
def test_fitting_a_temperature_imports_no_scikit_learn(large, tmp_path):
    table, labels = (column[:3000] for column in large)
    np.savez(tmp_path / "val.npz", logits=table, labels=labels)
    code = (
        "import sys; from metacal.cli import main\ntry: main(['fit', sys.argv[1], '--min-accuracy',"
        " '0.8', '-o', sys.argv[1] + '.json'], prog_name='metacal')\nexcept SystemExit as end:"
        " assert not end.code\nassert not {'sklearn', 'scipy.stats', 'scipy.optimize', 'torch',"
        " 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "val.npz")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
