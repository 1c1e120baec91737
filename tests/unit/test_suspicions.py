"""Tables that are not what they are said to be: noticed from a few rows, said once, never guessed
at.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import metacal as mc
from metacal.certificates.notes import note_suspicious_input
from metacal.maps.methods import METHODS, get_calibrator_class
from metacal.rows.plausibility import (
    Suspicion,
    draw_sample,
    find_suspicion_about_logits,
    judge_sample,
    skip_plausibility_checks,
    warn_if_implausible,
)
from metacal.rows.stored import StoredTable

PROMISE = mc.MaxMiscoverage(0.1)


def softmax(logits):
    scaled = np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64)
    return scaled / scaled.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def rows():
    data = mc.datasets.load("cifar10-resnet110")
    return data.logits[:3000], data.labels[:3000]


def kind_of(table):
    found = find_suspicion_about_logits(table)
    assert found == judge_sample(draw_sample(table)), (
        "what two rows clear, all of the sample clears"
    )
    return None if found is None else found.kind


@pytest.mark.slow
@pytest.mark.parametrize("name", mc.datasets.names())
def test_real_logits_are_beyond_suspicion_and_their_softmax_is_not(name):
    logits = mc.datasets.load(name).logits
    p = softmax(logits)
    for fine in (
        logits,
        logits.astype(np.float16),
        logits - logits.mean(axis=1, keepdims=True),
        logits / 8,
    ):
        assert kind_of(fine) is None
    with np.errstate(divide="ignore"):
        assert kind_of(np.log(p)) is None  # logarithms of probabilities are logits
    for odd in (p, p.astype(np.float32), p.astype(np.float16), p.round(4)):
        assert kind_of(odd) == "probabilities"
    assert kind_of(np.log(np.clip(p, 1e-7, None))) == "floor"
    assert kind_of(np.log(p + 1e-12)) == "floor"
    assert kind_of(np.rint(logits * 4)) == "whole numbers"
    assert kind_of(np.repeat(logits[:1], 500, axis=0)) == "alike"
    assert kind_of(np.eye(p.shape[1])[p.argmax(axis=1)]) == "one-hot"


def test_masks_and_bad_rows_are_not_judged(rows):
    x, _ = rows
    masked = np.where(np.arange(10) == 3, -np.inf, x)
    assert kind_of(masked) is None
    assert kind_of(softmax(masked)) == "probabilities"
    assert kind_of(np.where(np.arange(3000)[:, None] == 0, np.nan, softmax(x))) is None
    assert kind_of(np.where(np.arange(3000)[:, None] == 0, np.inf, softmax(x))) is None


def test_few_rows_may_be_whole_or_alike_but_not_probabilities():
    assert kind_of(np.array([[2.0, 0.0], [0.0, 1.0]])) is None
    assert kind_of(np.zeros((5, 3))) is None
    assert kind_of(np.array([[0.25, 0.75]])) == "probabilities"


class Watched(StoredTable):
    """A table that counts the rows that are read."""

    def __init__(self, table):
        super().__init__(table.shape, table.dtype)
        self.table, self.n_read = table, 0

    def read(self, start, stop):
        self.n_read += stop - start
        return self.table[start:stop]


def test_only_a_few_rows_are_read_whatever_the_size_of_the_table():
    table = np.broadcast_to(np.array([0.25, 0.75]), (5_000_000, 2))
    watched = Watched(table)
    assert find_suspicion_about_logits(watched).kind == "alike"
    assert watched.n_read <= 514
    watched = Watched(np.array([[2.5, 0.5], [0.5, 2.5]] * 1000))
    assert find_suspicion_about_logits(watched) is None
    assert watched.n_read == 2
    wide = Watched(np.broadcast_to(np.float32(0.5), (1000, 50_000)))
    assert draw_sample(wide).shape == (20, 50_000)
    assert wide.n_read == 20


def test_the_sample_reaches_the_end_of_the_table(rows):
    x, _ = rows
    late = np.concatenate([np.tile(softmax(x), (10, 1)), x[-200:]])
    assert kind_of(late) is None  # not every row sums to one


@pytest.mark.parametrize("name", METHODS)
def test_every_calibrator_says_it_once(rows, name):
    x, y = rows
    x, y = x[:300], y[:300]
    p = softmax(x)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        get_calibrator_class(name)().fit(p, y)
    mine = [found for found in said if str(found.message) == Suspicion("probabilities").remark]
    assert len(mine) == 1
    assert mine[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", mc.MetacalWarning)
        get_calibrator_class(name)(input="probabilities").fit(p, y)


def test_metacal_says_it_once_and_writes_it_down(rows):
    x, y = rows
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cal = mc.MetaCal(PROMISE).fit(softmax(x), y)
        mc.MetaCal(PROMISE, calibrator=mc.AutoCalibrator([mc.TemperatureScaling()])).fit(
            softmax(x), y
        )
    assert [str(found.message) for found in said] == [Suspicion("probabilities").remark] * 2
    assert {found.filename for found in said} == {__file__}
    assert cal.certificate_.notes == (note_suspicious_input(looks="probabilities", lowest=None),)
    assert mc.MetaCal(PROMISE, input="probabilities").fit(softmax(x), y).certificate_.notes == ()


def test_probabilities_that_are_said_to_be_are_not_questioned(rows):
    x, y = rows
    p = np.where(softmax(x) < 1e-4, 0.0, softmax(x))
    p /= p.sum(axis=1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", mc.MetacalWarning)
        mc.TemperatureScaling(input="probabilities").fit(p, y)
        mc.compare(p, y, ["temperature"], input="probabilities", n_repeats=1, n_splits=2)
    with pytest.warns(mc.MetacalWarning, match="as probabilities do") as said:
        mc.compare(p, y, ["temperature", "vector"], n_repeats=1, n_splits=2)
    assert sum("as probabilities do" in str(found.message) for found in said) == 1


def test_a_classifier_s_own_zeros_are_not_a_floor():
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.frozen import FrozenEstimator

    X, y = load_digits(return_X_y=True)
    forest = FrozenEstimator(RandomForestClassifier(20, random_state=0).fit(X[:600], y[:600]))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        mc.CalibratedClassifier(forest, PROMISE).fit(X[600:], y[600:])
        mc.CalibratedClassifier(forest).fit(X[600:], y[600:])
    assert not [found for found in said if "floor" in str(found.message)]
    with pytest.warns(mc.MetacalWarning, match="floor"):
        warn_if_implausible(np.log(np.clip(forest.predict_proba(X), 1e-9, None)))
    with skip_plausibility_checks(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert warn_if_implausible(forest.predict_proba(X)) is None


def test_tensors_and_frames_are_looked_at_too(rows):
    pandas, torch = pytest.importorskip("pandas"), pytest.importorskip("torch")
    x, y = rows
    for table in (
        torch.tensor(softmax(x)),
        torch.tensor(softmax(x)).bfloat16(),
        pandas.DataFrame(softmax(x)),
    ):
        with pytest.warns(mc.MetacalWarning, match="as probabilities do"):
            mc.TemperatureScaling().fit(table, y)


@pytest.mark.parametrize("shape", [(0, 3), (1, 0), (40, 0), (0, 0)])
def test_a_table_without_rows_or_columns_is_left_to_others(shape):
    assert find_suspicion_about_logits(np.zeros(shape)) is None
