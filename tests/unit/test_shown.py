"""What is found shows itself: text that says it, HTML that is escaped and well formed, frames with
the same numbers.
"""

from __future__ import annotations

import math
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

import metacal as mc
from metacal.promises.cascade_candidates import PairedPredictions
from metacal.promises.sequential import wager
from metacal.promises.two_model_cascade import TwoModelEvidence

MARKUP = "<img src=x onerror=alert(1)>"


class Strict(HTMLParser):
    """Fails on tags that are not closed in order, and on what a notebook should not be given; keeps
    header cells.
    """

    def __init__(self):
        super().__init__()
        self.open, self.text, self.headers = [], [], []

    def handle_starttag(self, tag, attrs):
        assert tag in {
            "div",
            "p",
            "strong",
            "table",
            "caption",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "span",
            "code",
        }, tag
        assert {name for name, _ in attrs} <= {"style", "scope"}
        assert "color" not in dict(attrs).get("style", "")
        assert tag != "th" or dict(attrs)["scope"] in ("row", "col")
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if "th" in self.open:
            self.headers.append(data)


def read(html):
    page = Strict()
    page.feed(html)
    page.close()
    assert not page.open
    return page


@pytest.fixture(scope="module")
def split():
    (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(
        2000, random_state=0
    )
    return fit_x, fit_y, new_x[:3000], new_y[:3000]


@pytest.fixture(scope="module")
def gate(split):
    return mc.MetaCal(mc.MinAccuracy(0.95)).fit(*split[:2])


@pytest.fixture(scope="module")
def found(split, gate):
    """One of everything that is handed back."""
    logits, labels = split[2:]
    right, decided = logits.argmax(axis=1) == labels, gate.decide(logits)
    (monitor,) = mc.PromiseMonitor.of(gate.certificate_)
    score, yes = np.linspace(0, 1, 1000), np.ones(1000, dtype=bool)
    rows = PairedPredictions(score, score, yes, yes, yes, yes)
    cascade = mc.MaxLoss(0.01).certify(TwoModelEvidence(rows))
    evaluation = mc.metrics.evaluate(
        gate.predict_proba(logits),
        labels,
        accept=decided.accept,
        correct=right,
        score=decided.score,
        n_resamples=9,
    )
    return {
        "evaluation": evaluation,
        "interval": evaluation.all_rows["ece"],
        "comparison": mc.compare(
            split[0], split[1], ["temperature", "histogram"], n_splits=2, n_repeats=1
        ),
        "certificate": gate.certificate_,
        "verification": mc.verify(gate, logits, labels),
        "monitor": monitor.update(decided.accept, right),
        "cascade": cascade,
        "gate": gate.gate_,
        "calibrator": mc.TemperatureScaling().fit(*split[:2]).gate_,
        "decision": decided,
    }


ALL = (
    "evaluation",
    "interval",
    "comparison",
    "certificate",
    "verification",
    "monitor",
    "cascade",
    "gate",
    "calibrator",
)


@pytest.mark.parametrize("name", [*ALL])
def test_the_page_is_well_formed_and_has_header_cells(found, name):
    page = read(found[name]._repr_html_())
    assert name in ("interval", "calibrator") or page.headers
    assert all(text.strip() for text in page.headers)


def test_text_and_page_say_the_same(found):
    for name in ("evaluation", "comparison", "certificate", "verification"):
        value = found[name]
        assert repr(value) == str(value)
        told = "".join(read(value._repr_html_()).text)
        words = [
            word
            for word in str(value).split()
            if word not in ("*", "·") and not word.startswith(("[", "±"))
        ]
        missing = [word for word in words if word not in told]
        assert not missing, (name, missing)
    assert (
        repr(found["decision"])
        == f"Decision(3,000 rows, {found['decision'].accept.sum():,} accepted)"
    )
    assert found["certificate"].statement in repr(found["gate"])
    assert "\n" not in repr(found["gate"])
    again = eval(repr(found["monitor"]), {**vars(wager), "PromiseMonitor": mc.PromiseMonitor})
    assert again == found["monitor"]


def test_an_alarm_is_said_in_words():
    monitor = mc.PromiseMonitor("selective accuracy", limit=0.03)
    assert "No alarm" in monitor._repr_html_()
    monitor.update(accepted=[True] * 200, correct=[True, True, True, False] * 50)
    assert "ALARM" in monitor._repr_html_()
    assert monitor.to_frame()["alarm"].item()


def test_a_watch_shows_its_alarms(split, gate):
    logits, labels = split[2:]
    watch = mc.Watch.of(gate).update(logits, labels)
    assert repr(watch).endswith("3,000 labelled: no alarm)")
    frame = watch.to_frame()
    assert list(frame.index) == [alarm.name for alarm in watch.alarms]
    assert not frame["raised"].any()
    watch.update(logits, (labels + 1) % 10)
    told = "".join(read(watch._repr_html_()).text)
    assert "labelled rows refute the promise" in told
    assert watch.to_frame().loc["promise", "raised"]
    assert repr(watch).endswith("ALARM on promise, calibration)")
    estimated = watch.estimate
    assert estimated.to_frame()["accuracy"].item() == estimated.accuracy
    assert str(estimated) == "".join(read(estimated._repr_html_()).text)


def test_the_evaluation_of_a_gate_has_the_uncalibrated_estimates_beside_its_own(split, gate):
    found = mc.evaluate(gate, *split[2:], n_resamples=9)
    assert repr(found) == str(found)
    told = "".join(read(found._repr_html_()).text)
    assert found.certificate.statement in told
    frame = found.to_frame()
    assert frame.loc[("all rows", "nll"), "uncalibrated"] == found.before.all_rows["nll"].estimate
    assert frame.loc[("all rows", "nll"), "estimate"] == found.after.all_rows["nll"].estimate
    assert len(frame) == len(found.after.to_frame())


def test_names_from_outside_are_escaped(split):
    fit_x, fit_y, new_x, new_y = split
    names = [MARKUP, *"bcdefghij"]
    classes = np.array(names)
    gate = mc.MetaCal(mc.PerClass(mc.MinAccuracy(0.9)), classes=names).fit(fit_x, classes[fit_y])
    monitors = mc.PromiseMonitor.of(gate.certificate_)
    shown = [gate.certificate_, mc.verify(gate, new_x, classes[new_y]), *monitors]
    assert any(MARKUP in "".join(read(value._repr_html_()).text) for value in shown)
    compared = mc.compare(fit_x, fit_y, {MARKUP: mc.TemperatureScaling()}, n_splits=2, n_repeats=1)
    assert MARKUP in read(compared._repr_html_()).headers


def test_frames_have_the_numbers(found, gate):
    evaluation = found["evaluation"].to_frame()
    assert evaluation.index.names == ["rows", "metric"]
    assert len(evaluation) == sum(
        len(getattr(found["evaluation"], name)) for name in ("all_rows", "accepted_rows", "gate")
    )
    own = found["evaluation"].accepted_rows["ece"]
    row = evaluation.loc[("accepted rows", "ece")]
    assert (row["estimate"], row["low"], row["high"], row["method"]) == (
        own.estimate,
        own.low,
        own.high,
        own.method,
    )
    assert found["interval"].to_frame()["high"].item() == found["interval"].high

    comparison = found["comparison"]
    table = comparison.to_frame()
    assert list(table.index) == [entry.name for entry in comparison.entries]
    assert table["nll"].idxmin() == comparison.best("nll")
    assert table.loc["temperature", "ece_standard_error"] == next(
        entry.metrics["ece"].standard_error
        for entry in comparison.entries
        if entry.name == "temperature"
    )

    certificate = gate.certificate_.to_frame()
    assert certificate.loc["all rows", "threshold"] == gate.threshold_
    assert found["verification"].to_frame()["p_value"].item() == found["verification"].p_value
    monitor = found["monitor"]
    assert monitor.to_frame()["evidence"].item() == pytest.approx(math.exp(monitor.log_evidence))
    decided = found["decision"].to_frame()
    assert list(decided) == ["label", "answer", "confidence", "accept", "score"]
    assert np.array_equal(decided["accept"], found["decision"].accept)


def test_a_frame_for_each_class(split):
    gate = mc.MetaCal(mc.PerClass(mc.MinAccuracy(0.9))).fit(*split[:2])
    frame = gate.certificate_.to_frame()
    assert frame.index.name == "class"
    assert list(frame.index) == [part.names[0] for part in gate.certificate_.subgroups.items]
    assert frame["n_rows"].sum() == 2000
    tests = mc.verify(gate, *split[2:]).to_frame()
    assert set(tests["part"]) <= set(map(str, frame.index))


def test_without_labels_a_frame_does_not_count_right_rows(split):
    certificate = mc.MaxReview(0.2).certify(np.linspace(0, 1, 500), None)
    assert (
        certificate.to_frame()[["n_correct", "n_correct_accepted", "selective_accuracy"]]
        .isna()
        .all(axis=None)
    )


def test_without_pandas_the_extra_is_named(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    for name in (
        "evaluation",
        "interval",
        "comparison",
        "certificate",
        "verification",
        "monitor",
        "decision",
    ):
        with pytest.raises(mc.MissingExtraError, match=r"metacal\[pandas\]"):
            found[name].to_frame()
