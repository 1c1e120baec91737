"""compare(): the table, its marks, and that it is the same twice."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import metacal as mc
from metacal.estimators.compare import DEFAULT_BUDGET
from metacal.estimators.comparison import Comparison, ComparisonEntry, Estimate
from metacal.estimators.cost import count_affordable_folds, estimate_fold_seconds
from metacal.maps.methods import METHODS
from metacal.metrics.paired import compare_by_rows
from metacal.metrics.registry import list_compared_metrics

FAST = ["temperature", "spline", "histogram"]
METRICS = [metric.name for metric in list_compared_metrics()]


@pytest.fixture(scope="module")
def rows():
    data = mc.datasets.load("cifar10-resnet110")
    return data.logits[:1200], data.labels[:1200]


@pytest.fixture(scope="module")
def table(rows):
    return mc.compare(*rows, FAST, n_splits=4, n_repeats=2)


def test_every_metric_of_every_calibrator(table):
    assert [entry.name for entry in table.entries[:1]] == [table.best("nll")]
    assert {entry.name for entry in table.entries} == {"uncalibrated", *FAST}
    means = [entry.metrics["nll"].mean for entry in table.entries]
    assert means == sorted(means)
    for entry in table.entries:
        assert list(entry.metrics) == METRICS
        assert entry.fit_seconds >= 0


def test_the_means_are_held_out_means(rows, table):
    """Uncalibrated rows need no fit: over whole folds the mean NLL is that of all rows, up to
    unequal fold sizes.
    """
    from scipy.special import softmax

    logits, labels = rows
    plain = next(entry for entry in table.entries if entry.name == "uncalibrated")
    assert plain.metrics["nll"].mean == pytest.approx(
        mc.metrics.nll(softmax(logits, axis=1), labels), rel=1e-5
    )


def test_marks(table):
    text = str(table)
    assert "*" in text
    assert "1,200 rows, 10 classes" in text
    best = table.best("nll")
    assert best in table.near_best("nll")
    assert "uncalibrated" not in table.near_best("nll")


def test_the_best_is_near_the_best_and_clear_losers_are_not(rows):
    """Paired rows: a temperature that is off is not near the best, though the error bars
    overlap.
    """
    logits, labels = rows

    class Off(mc.TemperatureScaling):
        def predict_proba(self, X):
            return super().predict_proba(1.5 * X)

    found = mc.compare(
        logits,
        labels,
        {"temperature": mc.TemperatureScaling(), "off": Off()},
        n_splits=4,
        n_repeats=1,
    )
    best, off = found.entries
    assert (best.name, found.near_best("nll")) == ("temperature", ("temperature",))
    lower_end = off.metrics["nll"].mean - off.metrics["nll"].standard_error
    assert lower_end < best.metrics["nll"].mean + best.metrics["nll"].standard_error
    assert found.to_dict()["near_best"]["nll"] == ["temperature"]


def test_a_method_near_the_best_is_at_most_three_standard_errors_worse():
    difference = np.tile([-1.0, 1.0], 50)  # its standard error is 0.1005
    losses = np.array([np.zeros(100), difference + 0.3, difference + 0.31])
    assert compare_by_rows(losses, np.arange(100)).near_best == [0, 1]
    assert compare_by_rows(-losses, np.arange(100), smaller_is_better=False).near_best == [0, 1]


def test_no_confidence_level_is_claimed(table):
    """A method with a huge loss on one row in n looks best in a third of all samples, so none could
    be kept.
    """
    random = np.random.default_rng(0)
    n_rows, n_samples, lost = 300, 200, 0
    for _ in range(n_samples):
        has_huge_loss = random.random(n_rows) < 1.0 / n_rows
        usual = random.normal(0.0, 0.01, n_rows)
        losses = np.array(
            [np.full(n_rows, 0.03), usual + 10.0 * has_huge_loss]
        )  # means 0.03 and 0.033
        lost += 0 not in compare_by_rows(losses, np.arange(n_rows)).near_best
    assert lost > 0.2 * n_samples
    assert not {"confidence", "level"} & set(table.to_dict())
    assert "no confidence level" in str(table)


def test_the_ece_of_all_held_out_rows_is_not_chance():
    """Of calibrated logits the mean over folds would be several points; pooled and debiased it is
    near 0.
    """
    random = np.random.default_rng(0)
    logits = random.normal(0.0, 2.0, (3000, 4))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    found = mc.compare(logits, labels, ["temperature"], n_splits=5, n_repeats=1)
    assert all(entry.metrics["ece"].mean < 0.02 for entry in found.entries)


@pytest.mark.slow
def test_auto_is_a_name(rows):
    logits, labels = rows
    found = mc.compare(logits[:300], labels[:300], ["temperature", "auto"], n_splits=2, n_repeats=1)
    assert {entry.name for entry in found.entries} == {"uncalibrated", "temperature", "auto"}


def test_the_same_twice_and_with_threads(rows, table):
    again = mc.compare(*rows, FAST, n_splits=4, n_repeats=2, n_jobs=2)
    for one, two in zip(table.entries, again.entries):
        assert (one.name, one.metrics) == (two.name, two.metrics)
    other = mc.compare(*rows, FAST, n_splits=4, n_repeats=2, random_state=1)
    assert other.entries[0].metrics != table.entries[0].metrics


def test_json(table):
    plain = json.loads(json.dumps(table.to_dict(), allow_nan=False))
    assert plain["best"]["nll"] == table.best("nll")
    assert [metric["name"] for metric in plain["metrics"]] == METRICS
    assert plain["metrics"][0] == {"name": "nll", "heading": "log loss", "smaller_is_better": True}
    assert plain["calibrators"][0]["metrics"]["nll"]["mean"] == table.entries[0].metrics["nll"].mean


def test_anyone_s_estimator_can_join(rows):
    mine = {
        "temperature": mc.TemperatureScaling(),
        "logistic": LogisticRegression(C=0.01, max_iter=500),
    }
    assert {
        entry.name for entry in mc.compare(*rows, mine, n_splits=3, n_repeats=1).entries
    } == set(mine)


def test_a_calibrator_that_cannot_be_fitted_is_named_not_fatal(rows):
    class Picky(mc.TemperatureScaling):
        def fit(self, X, y, sample_weight=None):
            raise mc.InputError("never enough")

    found = mc.compare(
        *rows, {"temperature": mc.TemperatureScaling(), "picky": Picky()}, n_splits=2, n_repeats=1
    )
    assert found.entries[-1].error_message == "never enough"
    assert "failed: never enough" in str(found)
    assert found.to_dict()["calibrators"][-1] == {"name": "picky", "failed": "never enough"}


def test_infinite_losses_do_not_break_the_table():
    finite = dict.fromkeys(METRICS, Estimate(0.1, 0.01))
    infinite = {**finite, "nll": Estimate(math.inf, math.nan)}
    table = Comparison(
        (ComparisonEntry("a", finite, 0.0), ComparisonEntry("b", infinite, 0.0)), 10, 2, 2, 1, 2
    )
    assert table.best("nll") == "a"
    assert json.dumps(table.to_dict(), allow_nan=False)


def test_progress_sees_every_fit(rows):
    seen = []

    def progress(fits, total):
        for fit in fits:
            seen.append(total)
            yield fit

    mc.compare(*rows, ["temperature"], n_splits=3, n_repeats=2, progress=progress)
    assert seen == [12] * 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"calibrators": ["temprature"]}, "Unknown calibrator 'temprature'"),
        ({"n_splits": 1}, "n_splits must be between 2"),
        ({"input": "probabilities"}, "must lie in"),
    ],
)
def test_wrong_arguments(rows, arguments, message):
    with pytest.raises(mc.InputError, match=message):
        mc.compare(*rows, **arguments)


def test_string_labels(rows):
    logits, labels = rows
    names = np.array([f"class {i}" for i in range(10)])
    by_name = mc.compare(
        logits, names[labels], ["temperature"], classes=names, n_splits=2, n_repeats=1
    )
    by_number = mc.compare(logits, labels, ["temperature"], n_splits=2, n_repeats=1)
    assert by_name.entries[0].metrics == by_number.entries[0].metrics


def test_an_infinite_loss_is_printed_with_its_cause(rows):
    logits, labels = rows

    class Sure:
        """Gives one class everything."""

        def get_params(self, deep=True):
            return {}

        def fit(self, logits, labels):
            return self

        def predict_proba(self, logits):
            return np.eye(logits.shape[1])[logits.argmax(axis=1)]

    found = mc.compare(
        logits,
        labels,
        {"temperature": mc.TemperatureScaling(), "sure": Sure()},
        n_splits=2,
        n_repeats=1,
    )
    wrong = int((logits.argmax(axis=1) != labels).sum())
    assert (
        f"sure: infinite, since the true class of {wrong:,} held-out rows got probability 0"
        in str(found)
    )
    assert "nan" not in str(found)
    assert found.to_dict()["calibrators"][-1]["impossible_rows"] == wrong


def test_a_large_table_is_measured_on_fewer_folds(rows):
    found = mc.compare(*rows, ["temperature"], n_splits=4, n_repeats=2, budget=1e-9)
    assert found.n_folds == 1
    assert "1 of 2 x 4 folds" in str(found)
    assert found.best() == "temperature" in found.near_best()


def test_what_a_large_table_will_take_is_said_beforehand(capsys):
    from metacal.cli.compare import print_cost_note

    every = list(METHODS)
    assert (
        estimate_fold_seconds(every, 25_000, 1000)
        * count_affordable_folds(every, 25_000, 1000, 10, DEFAULT_BUDGET)
        <= DEFAULT_BUDGET
    )
    print_cost_note(every, (25_000, 1000), 10)
    assert (
        "up to about 10 min of CPU time, less if classes are alike, for 2 of 10 folds"
        in capsys.readouterr().err
    )
    print_cost_note(["temperature"], (25_000, 1000), 10)
    assert capsys.readouterr().err == ""
