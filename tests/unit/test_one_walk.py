"""Every row is validated, scored and mapped once: in fit, decide, evaluate, verify and report."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import metacal as mc
from metacal import kernels
from metacal.maps.temperature import TemperatureMap
from metacal.maps.uniform import UniformTemperatureMap

DATA = mc.datasets.load("cifar10-resnet110")
N = 2000
FIT, NEW = (DATA.logits[:N], DATA.labels[:N]), (DATA.logits[N : 2 * N], DATA.labels[N : 2 * N])
#: What goes through each row once; the softmax stands beside the gate's own probabilities.
ONCE = {"validated": N, "scored": N, "mapped": N, "softmax": N}


@pytest.fixture
def counted(monkeypatch):
    """How many rows go through the check of logits, the score, the gate's map and the softmax of
    the logits.
    """
    rows: Counter[str] = Counter()

    def counting(name, original, which):
        def call(*args, **keywords):
            rows[name] += len(args[which])
            return original(*args, **keywords)

        return call

    monkeypatch.setattr(kernels, "inspect_logits", counting("validated", kernels.inspect_logits, 0))
    for name, kind in (("mapped", UniformTemperatureMap), ("softmax", TemperatureMap)):
        write_probabilities = kind.write_clipped_probabilities
        counting_method = counting(name, write_probabilities, 1)
        monkeypatch.setattr(kind, "write_clipped_probabilities", counting_method)
    return rows


def gate_of(rows):
    """A gate whose score counts what it is asked for."""

    def margin(block):
        rows["scored"] += len(block)
        largest = np.sort(np.asarray(block, dtype=np.float64), axis=1)
        return largest[:, -2] - largest[:, -1]

    return mc.MetaCal(mc.MinAccuracy(0.95), calibrator="uniform-temperature", score=margin)


def test_fit(counted):
    gate_of(counted).fit(*FIT)
    assert (counted["validated"], counted["scored"]) == (N, N)


DOES = {
    "decide": lambda cal, folder: cal.decide(NEW[0]),
    "predict_proba": lambda cal, folder: cal.predict_proba(NEW[0]),
    "verify": lambda cal, folder: mc.verify(cal, *NEW),
    "evaluate": lambda cal, folder: mc.evaluate(cal, *NEW, n_resamples=5),
    "evaluate without intervals": lambda cal, folder: mc.evaluate(cal, *NEW, n_resamples=0),
    "report": lambda cal, folder: mc.report(cal, *NEW, folder / "report.html", n_resamples=5),
    "report without intervals": lambda cal, folder: mc.report(
        cal, *NEW, folder / "report.html", n_resamples=0
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DOES)
def test_once(name, counted, tmp_path):
    cal = gate_of(counted).fit(*FIT)
    counted.clear()
    DOES[name](cal, tmp_path)
    assert all(counted[what] <= times for what, times in ONCE.items()), counted
    # Calibrated probabilities of all rows need no scores.
    n_scored = 0 if name == "predict_proba" else N
    assert (counted["validated"], counted["scored"]) == (N, n_scored)
    assert counted["mapped"] == (0 if name == "verify" else N)
