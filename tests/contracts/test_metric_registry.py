"""A metric is one row: registered once, it is evaluated, compared, reported and has an interval."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal import metrics
from metacal.cli.evaluate import command
from metacal.metrics.binning import build_mean_statistic, evaluate_on_sample
from metacal.metrics.ranking import RANKING
from metacal.metrics.registry import DECISION, METRICS, PROBABILITIES, TOP_LABEL, register
from metacal.metrics.toplabel import checked_table, top_label
from metacal.reports.summary import summarise


def spherical_losses(checked):
    table = checked.table.astype(np.float64)
    return 1.0 - checked.true_probability / np.linalg.norm(table, axis=1)


def spherical(proba, labels):
    """Spherical score, a mean over rows."""
    return float(spherical_losses(checked_table(proba, labels)).mean())


def overconfidence_statistic(top):
    return build_mean_statistic(top.confidence - top.correct)


def overconfidence(proba, labels):
    """Mean confidence less accuracy, of the top class."""
    return evaluate_on_sample(overconfidence_statistic(top_label(proba, labels)), len(labels))


def lift_statistic(ranking):
    return ranking.build_statistic(
        lambda blocks: blocks.rows_before_block.max(axis=1, initial=0.0) / blocks.total_rows[:, 0]
    )


def lift(score, correct):
    """Share of rows surer than the last wrong one."""
    ranking = RANKING(score, correct)
    return evaluate_on_sample(lift_statistic(ranking), len(ranking))


def rejected_wrong(accept, correct):
    """Share of the rejected that is wrong."""
    return np.mean(~correct[~accept])


def rejected_wrong_counts(accept, correct):
    return int((~accept & ~correct).sum()), int((~accept).sum())


TOYS = {
    spherical: {
        "title": "spherical score",
        "heading": "spherical",
        "input": PROBABILITIES,
        "losses": spherical_losses,
        "evaluated": True,
        "compared": True,
        "proper": True,
    },
    overconfidence: {
        "title": "overconfidence",
        "printed_title": "too sure by",
        "input": TOP_LABEL,
        "statistic": overconfidence_statistic,
        "range": (-1.0, 1.0),
        "smaller_is_better": False,  # not so; it shows that the direction is taken from the row
        "evaluated": True,
        "compared": True,
    },
    lift: {"title": "lift", "input": RANKING, "statistic": lift_statistic, "evaluated": True},
    rejected_wrong: {
        "title": "P(wrong | reject)",
        "input": DECISION,
        "compute_counts": rejected_wrong_counts,
        "evaluated": True,
        "smaller_is_better": False,
    },
}


@pytest.fixture
def _registered():
    for function, facts in TOYS.items():
        assert register(**facts)(function) is function
    yield
    for function in TOYS:
        del METRICS[function.__name__]


@pytest.fixture(scope="module")
def gate():
    (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(
        5000, random_state=0
    )
    cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y)
    return cal, new_x[:1500], new_y[:1500]


@pytest.mark.usefixtures("_registered")
def test_a_registered_metric_is_evaluated_with_an_interval(gate):
    cal, logits, labels = gate
    proba, accept, score = (
        cal.predict_proba(logits),
        cal.accepts(logits),
        cal.ranking_scores(logits),
    )
    correct = logits.argmax(axis=1) == labels
    found = metrics.evaluate(
        proba, labels, accept=accept, correct=correct, score=score, n_resamples=50
    )
    for function in (spherical, overconfidence):
        alone = metrics.interval(function, proba, labels, n_resamples=50)
        assert found.all_rows[function.__name__] == alone
        assert alone.estimate == pytest.approx(function(proba, labels), abs=1e-12)
        assert alone.low < alone.estimate < alone.high
        kept = metrics.interval(function, proba[accept], labels[accept], n_resamples=50)
        assert found.accepted_rows[function.__name__] == kept
    assert found.gate["lift"] == metrics.interval(lift, score, correct, n_resamples=50)
    assert found.gate["rejected_wrong"] == metrics.interval(rejected_wrong, accept, correct)
    assert found.gate["rejected_wrong"].method == "Clopper-Pearson"
    for title in ("spherical score", "too sure by", "lift", "P(wrong | reject)"):
        assert title in str(found)
    assert set(found.to_dict()["all_rows"]) >= {"spherical", "overconfidence", "ece", "nll"}


@pytest.mark.usefixtures("_registered")
def test_a_registered_metric_is_compared(gate):
    _, logits, labels = gate
    found = mc.compare(logits, labels, ["temperature", "histogram"], n_splits=2, n_repeats=1)
    table = found.to_dict()
    assert list(table["best"])[:3] == ["nll", "brier", "spherical"]  # proper scores first
    means = {
        entry["name"]: entry["metrics"]["overconfidence"]["mean"] for entry in table["calibrators"]
    }
    assert table["best"]["overconfidence"] == max(means, key=means.get)
    assert found.best("overconfidence") in found.near_best("overconfidence")
    assert "spherical" in str(found).splitlines()[2]


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("n_resamples", [0, 20])
def test_a_registered_metric_is_reported(gate, n_resamples):
    """By blocks without intervals, and from the whole table with them."""
    cal, logits, labels = gate
    summary = summarise(logits, labels, cal, n_resamples=n_resamples)
    found = summary.evaluation
    titles = {metric["name"]: metric["title"] for metric in summary.calibration_metrics}
    assert titles["spherical"] == "Spherical score"
    assert titles["overconfidence"] == "Too sure by"
    proba = cal.predict_proba(logits)
    for function in (spherical, overconfidence):
        assert found["all_rows"][function.__name__]["estimate"] == pytest.approx(
            function(proba, labels), abs=1e-6
        )
        assert function.__name__ in found["uncalibrated"]["accepted_rows"]
    assert {"lift", "rejected_wrong"} <= set(found["gate"])


@pytest.mark.usefixtures("_registered")
def test_a_registered_metric_is_on_the_command_line(gate, tmp_path):
    _, logits, labels = gate
    np.savez(tmp_path / "rows.npz", logits=logits, labels=labels)
    options = [str(tmp_path / "rows.npz"), "--resamples", "0"]
    said = CliRunner().invoke(command, options).output
    assert "too sure by" in said
    assert "spherical score" in said
    assert "sup over binnings" not in said  # a row may keep out of what people see
    machine = json.loads(CliRunner().invoke(command, [*options, "--json"]).output)
    assert {"spherical", "sup_ece"} <= set(machine["all_rows"])


def test_names_are_taken_once():
    with pytest.raises(mc.InputError, match="metric named 'ece' is already"):
        register(title="mine", input=TOP_LABEL)(metrics.ece)
    assert not {function.__name__ for function in TOYS} & set(METRICS)


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_every_row_says_one_thing_and_is_public(metric):
    assert getattr(metrics, metric.name) is metric.function
    assert metric.name in metrics.__all__
    assert metric.function.__doc__
    assert sum(part is not None for part in (metric.statistic, metric.losses)) == (
        metric.input is not DECISION
    )
    assert metric.range[0] < metric.range[1]
    assert metric.heading or not metric.compared


@pytest.mark.slow
@pytest.mark.parametrize("name", ["calibration", "registry"])
def test_the_doctests_of_one_file_run_alone(name):
    """The file must not be imported twice, because it registers metrics."""
    root = Path(__file__).resolve().parents[2]
    arguments = ["-q", "-n", "0", "-p", "no:cacheprovider", f"src/metacal/metrics/{name}.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
