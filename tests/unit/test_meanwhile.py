"""The base map is fitted while another thread ranks the rows; nobody can tell from the outcome."""

from __future__ import annotations

import numpy as np
import pytest

import metacal as mc
from benchmarks.speed.sizes import fill_table
from metacal.gate import LogitsData
from metacal.gate.background_map import plan_background_map
from metacal.gate.calibrate import calibrate
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows
from metacal.rows.executors import open_executor


@pytest.fixture(scope="module")
def rows():
    table = np.empty((1 << 15, 5), dtype=np.float32)
    return table, fill_table(table, seed=0)


@pytest.mark.parametrize("calibrator", [None, "temperature"])
@pytest.mark.parametrize("promise", [mc.MinAccuracy(0.85), mc.PerClass(mc.MinAccuracy(0.75))])
def test_threads_give_the_same_gate(rows, calibrator, promise):
    alone, shared = (mc.MetaCal(promise, calibrator, n_jobs=n).fit(*rows) for n in (None, 2))
    assert alone.gate_ == shared.gate_
    assert alone.calibrator_.map_ == shared.calibrator_.map_ == shared.gate_.source.map


def test_it_begins_before_the_certificate_is_there_and_what_is_wrong_with_the_promise_comes_first(
    rows,
):
    table, labels = rows
    called = []

    def fails(given, codes, weights):
        called.append(len(given))
        raise ValueError("no map")

    with open_executor(2) as pool:
        given = Rows(table, executor=pool)
        data = LogitsData(given, labels, "entropy", fails)
        with pytest.raises(mc.errors.InfeasibleTargetError):
            calibrate(data, mc.MinAccuracy(0.9999))
        assert called == [len(table)]
        with pytest.raises(ValueError, match="no map"):
            calibrate(data, mc.MinAccuracy(0.85))
        assert called == [len(table)] * 2
        for promise, codes in (
            (mc.paper.MaxMiscoverage(0.1), labels),
            (mc.MaxMiscoverage(0.1), np.append(-1, labels[1:])),  # a label that no column has
        ):
            assert plan_background_map(given, promise, fit_temperature, codes, None) is None
        assert (
            plan_background_map(Rows(table), mc.MaxMiscoverage(0.1), fit_temperature, labels, None)
            is None
        )
