"""The displays: scikit-learn's pattern, drawn from the summary, and an error that names the
extra.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

import metacal as mc
from metacal.reports import plots
from metacal.reports.summary import summarise

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

DISPLAYS = (
    plots.ReliabilityDisplay,
    plots.ConfidenceHistogramDisplay,
    plots.RiskCoverageDisplay,
    plots.ThresholdDisplay,
)


@pytest.fixture(scope="module")
def data():
    return mc.datasets.load("cifar100-resnet110")


@pytest.fixture(scope="module")
def gate(data):
    return mc.MetaCal(mc.MinAccuracy(0.85)).fit(data.logits[:3000], data.labels[:3000])


@pytest.fixture(autouse=True)
def _close():
    yield
    pyplot.close("all")


@pytest.mark.slow
@pytest.mark.parametrize("display", DISPLAYS)
def test_from_estimator_from_predictions_and_from_a_summary(data, gate, display, tmp_path):
    logits, labels = data.logits[3000:5000], data.labels[3000:5000]
    shown = display.from_estimator(gate, logits, labels)
    assert shown.figure_ is shown.ax_.figure
    assert shown.ax_.get_xlabel()
    assert shown.ax_.get_ylabel()
    assert shown.ax_.get_legend() is not None
    shown.figure_.savefig(tmp_path / "shown.png")
    proba = (
        mc.TemperatureScaling().fit(data.logits[:3000], data.labels[:3000]).predict_proba(logits)
    )
    _, ax = pyplot.subplots()
    drawn = display.from_predictions(labels, proba, ax=ax)
    assert drawn.ax_ is ax
    swapped = display.from_predictions(proba, labels)
    assert np.array_equal(
        swapped.ax_.lines[-1].get_xydata(), drawn.ax_.lines[-1].get_xydata(), equal_nan=True
    )
    again = display(shown.summary).plot()
    assert again.ax_ is not shown.ax_
    for ours, theirs in zip(shown.ax_.lines, again.ax_.lines, strict=True):
        assert np.array_equal(ours.get_xydata(), theirs.get_xydata(), equal_nan=True)


def test_what_is_drawn_is_what_the_summary_says(data, gate):
    logits, labels = data.logits[3000:5000], data.labels[3000:5000]
    summary = summarise(logits, labels, gate, n_resamples=0)
    reliability = plots.ReliabilityDisplay(summary).plot(binning="equal_mass")
    bins = summary.diagrams[-1].equal_mass
    x, y = reliability.ax_.lines[-1].get_xydata().T
    assert np.array_equal(x, bins.confidence)
    assert np.array_equal(y, bins.accuracy)
    risk = plots.RiskCoverageDisplay(summary).plot()
    curve, own = risk.ax_.lines[0].get_xydata(), risk.ax_.lines[-1].get_xydata()
    assert np.array_equal(curve[:, 0], summary.curves.coverage.estimate)
    accept = gate.accepts(logits)
    assert own[0, 0] == mc.metrics.coverage(accept)
    assert own[0, 1] == pytest.approx(
        1 - mc.metrics.selective_accuracy(accept, logits.argmax(axis=1) == labels)
    )
    histogram = plots.ConfidenceHistogramDisplay(summary).plot(log=True)
    assert histogram.ax_.get_yscale() == "log"


def test_options_reach_the_plot_and_the_summary(data, gate):
    logits, labels = data.logits[3000:4000], data.labels[3000:4000]
    shown = plots.ReliabilityDisplay.from_estimator(
        gate, logits, labels, binning="equal_mass", n_bins=5, level=0.9
    )
    assert shown.summary.settings.n_bins == 5
    assert "90%" in shown.ax_.get_title()
    with pytest.raises(mc.InputError, match="equal_width"):
        plots.ReliabilityDisplay(shown.summary).plot(binning="uniform")


@pytest.mark.parametrize("score", ["margin", "energy", "max_probability"])
def test_thresholds_of_other_scores_fit_on_the_axis(data, score):
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1), score=score).fit(
        data.logits[:2000], data.labels[:2000]
    )
    shown = plots.ThresholdDisplay.from_estimator(
        gate, data.logits[2000:4000], data.labels[2000:4000]
    )
    low, high = shown.ax_.get_xlim()
    assert low < gate.threshold_ < high
    assert score in shown.ax_.get_xlabel()


@pytest.mark.slow
@pytest.mark.parametrize("display", DISPLAYS)
def test_several_stand_on_one_axis(data, gate, display):
    """Each with its own name and colour; the diagonal, the limit and the accuracy once; limits that
    hold all.
    """
    logits, labels = data.logits[3000:4000], data.labels[3000:4000]
    plain = mc.TemperatureScaling().fit(data.logits[:3000], data.labels[:3000])
    first = display.from_estimator(gate, logits, labels, name="gate")
    alone = first.ax_.get_xlim(), first.ax_.get_ylim()
    second = display.from_estimator(plain, logits, labels, name="plain", ax=first.ax_)
    third = display.from_predictions(
        labels, logits, input="logits", name="as it is", ax=first.ax_, lw=3, color="0.3"
    )
    assert first.ax_ is second.ax_ is third.ax_
    told = [text.get_text() for text in third.ax_.get_legend().get_texts()]
    assert len(told) == len(set(told))
    for name in ("gate", "plain", "as it is"):
        assert any(text.startswith(name) for text in told), told
    counted = [
        line for line in (*third.ax_.lines, *third.ax_.patches) if line.get_gid() == "metacal-named"
    ]
    asked = [
        line.get_edgecolor() if hasattr(line, "get_edgecolor") else line.get_color()
        for line in counted
    ]
    colours = [matplotlib.colors.to_hex(colour) for colour in asked]
    assert len(counted) == 3
    assert len(set(colours)) == 3
    assert counted[-1].get_linewidth() == 3
    assert colours[-1] == matplotlib.colors.to_hex("0.3")
    for before, now in zip(alone, (third.ax_.get_xlim(), third.ax_.get_ylim()), strict=True):
        assert now[0] <= before[0]
        assert now[1] >= before[1]


def test_what_is_asked_of_a_line_reaches_the_calibrated_curve_alone(data, gate):
    summary = summarise(data.logits[3000:4000], data.labels[3000:4000], gate, n_resamples=0)
    shown = plots.ReliabilityDisplay(summary).plot(linestyle=":", label="mine")
    before, after = shown.ax_.lines[-2:]
    assert (before.get_linestyle(), after.get_linestyle()) == ("-", ":")
    assert after.get_label() == "mine"
    with pytest.raises(AttributeError, match="'linewidht'"):
        plots.RiskCoverageDisplay(summary).plot(linewidht=3)
    with pytest.raises(AttributeError, match="'colour'"):
        plots.RiskCoverageDisplay.from_estimator(
            gate, data.logits[:50], data.labels[:50], colour="red"
        )


def test_without_matplotlib_the_extra_is_named(data, gate, monkeypatch):
    summary = summarise(data.logits[:100], data.labels[:100], n_resamples=0)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(mc.MissingExtraError, match=r"metacal\[plot\]"):
        plots.ThresholdDisplay(summary).plot()
