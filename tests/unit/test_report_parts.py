"""The report's tables of classes and groups, its command, and bounds that are rounded outward."""

from __future__ import annotations

import shlex
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.display import format_interval
from metacal.reports.summary import summarise
from metacal.reports.tables import make_subgroup_table


@pytest.fixture(scope="module")
def data():
    found = mc.datasets.load("cifar10-resnet110")
    return found.logits, found.labels


@pytest.fixture(scope="module")
def per_class(data):
    logits, labels = data
    return mc.MetaCal(mc.PerClass(mc.MinAccuracy(0.95))).fit(logits[:5000], labels[:5000])


def test_a_class_of_one_row_is_no_headline(cifar10):
    correct, codes = cifar10.correct.copy(), cifar10.logits.argmax(axis=1)
    codes[0], correct[0] = 10, False
    found = make_subgroup_table("class", np.arange(11), codes, correct, None, level=0.95)
    assert found["name"][0] != "10"
    assert found["accuracy"].estimate.min() == 0.0  # by the share alone it would be the first
    assert (np.diff(found["evidence"]) >= 0).all()


def test_shares_and_intervals_are_those_of_the_rows(data, per_class):
    logits, labels = (column[5000:] for column in data)
    groups = np.arange(len(labels)) % 4
    found = summarise(logits, labels, per_class, n_resamples=0, groups=groups)
    by_class, by_group = found.parts
    assert (by_class["by"], by_group["by"]) == ("class", "group")
    assert (by_class["promised"], by_group["promised"]) == ("each", "all")
    accept, top = per_class.accepts(logits), logits.argmax(axis=1)
    for table, codes in ((by_class, top), (by_group, groups)):
        for k, name in enumerate(table["name"]):
            own = codes == int(name)
            assert table["n"][k] == own.sum()
            assert table["accepted"][k] == (own & accept).sum()
            assert table["right"][k] == (own & accept & (top == labels)).sum()
            exact = mc.metrics.intervals.clopper_pearson(
                int(table["right"][k]), int(table["accepted"][k]), 1.0 - 0.05 / len(table["name"])
            )
            assert table["accuracy"].low[k] == pytest.approx(exact.low, abs=1e-9)
            assert table["accuracy"].high[k] == pytest.approx(exact.high, abs=1e-9)
    own = dict(
        zip(
            per_class.gate_.thresholds.subgroup_names,
            per_class.gate_.thresholds.subgroup_thresholds,
        )
    )
    assert [own[int(name)] for name in by_class["name"]] == by_class["threshold"].tolist()
    assert "in class" in found.promise.verdicts[0]["counted"]


@pytest.mark.slow
@pytest.mark.parametrize("score", ["entropy", "margin"])
def test_the_command_certifies_the_very_threshold_shown(data, tmp_path, monkeypatch, score):
    monkeypatch.chdir(tmp_path)
    logits, labels = (column[5000:8000] for column in data)
    np.savez("test.npz", logits=logits, labels=labels)
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1), score=score).fit(*(column[:5000] for column in data))
    curves = summarise(logits, labels, gate, n_resamples=0, file="test.npz").curves
    for point in (100, 250, 370):
        command = curves.command_at(point)
        done = CliRunner().invoke(main, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
        certificate = mc.load_gate("new-gate.json").certificate
        assert certificate.n_accepted == curves.accepted[point]
        assert certificate.guarantee == "certified"
        limits = dict(certificate.limits)
        assert limits["selective accuracy"] == curves.min_accuracy[point]
        assert limits["miscoverage"] == curves.max_miscoverage[point]


def test_a_threshold_that_does_not_carry_it(data):
    logits, labels = (column[:2000] for column in data)
    with pytest.raises(
        mc.InfeasibleTargetError,
        match=r"The threshold 1 does not support the promise.* accuracy of 0\.9",
    ):
        mc.MetaCal(mc.AfterLooking(beta=0.99, threshold=1.0)).fit(logits, labels)
    with pytest.raises(mc.InputError, match="finite"):
        mc.AfterLooking(beta=0.9, threshold=float("inf"))


def test_a_chosen_threshold_is_saved_and_loaded(data, tmp_path):
    logits, labels = (column[:2000] for column in data)
    cal = mc.MetaCal(mc.AfterLooking(beta=0.9, threshold=0.05)).fit(logits, labels)
    mc.save(cal, tmp_path / "cal.json")
    assert mc.load(tmp_path / "cal.json").promise == cal.promise
    assert cal.accepts(logits).sum() == (cal.ranking_scores(logits) <= 0.05).sum()


def test_bounds_are_rounded_outward():
    assert format_interval(0.96999, 0.97001) == "[0.9699, 0.9701]"
    assert (
        format_interval(0.1 + 0.2, 0.7) == "[0.3000, 0.7000]"
    )  # what a float's last bit adds is no bound
    assert format_interval(0.0, 1.0) == "[0.0000, 1.0000]"
    assert format_interval(-0.00011, 0.00011) == "[-0.0002, 0.0002]"
    rng = np.random.default_rng(0)
    for low, high in np.sort(rng.random((200, 2)), axis=1):
        below, above = (float(end) for end in format_interval(low, high).strip("[]").split(","))
        assert below <= low + 1e-9
        assert above >= high - 1e-9


def test_both_sides_are_those_of_the_rows():
    rng = np.random.default_rng(0)
    score = 2.0 * rng.normal(size=3000)
    fraud = rng.random(3000) < 1.0 / (1.0 + np.exp(2.0 - score))
    names = np.where(fraud, "fraud", "fine")
    promise = mc.TwoSided(mc.MinPrecision(0.7), mc.MinRecall(0.9))
    gate = mc.MetaCal(promise, positive="fraud").fit(score[:1500], names[:1500])
    found = summarise(score[1500:], names[1500:], gate, n_resamples=0).sides
    found = SimpleNamespace(**found)
    s, y, said = score[1500:], fraud[1500:], gate.predict(score[1500:])
    assert found.names == ["fine", "fraud"]
    for k in (found.lower, found.upper, 10):
        above = s > found.threshold[k]
        assert found.n_below[k] == (~above).sum()
        assert found.recall.estimate[k] == pytest.approx(above[y].mean())
        assert found.false_positive_rate.estimate[k] == pytest.approx(above[~y].mean())
        assert found.precision.estimate[k] == pytest.approx(y[above].mean())
        assert found.npv.estimate[k] == pytest.approx(1.0 - y[~above].mean())
    assert np.array_equal(s > found.threshold[found.upper], said == "fraud")
    assert np.array_equal(s <= found.threshold[found.lower], said == "fine")
    for series in (found.recall, found.false_positive_rate, found.precision, found.npv):
        known = ~np.isnan(series.estimate)
        assert (series.low[known] <= series.estimate[known]).all()
        assert (series.estimate[known] <= series.high[known]).all()
    assert found.auroc == pytest.approx((s[y][:, None] > s[~y]).mean())
    chance = gate.gate_.source.map(np.column_stack([0.0 * s, s]))[:, 1]
    just_above = np.argsort(s)[(s <= found.near[3]["at"]).sum() :][: found.near[3]["n_rows"]]
    assert found.near[3]["stated"] == pytest.approx(chance[just_above].mean())
    assert found.near[3]["share"] == pytest.approx(y[just_above].mean())
