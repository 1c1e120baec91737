"""mc.evaluate: the same numbers as from whole tables of probabilities, by strips, in place and in
other processes.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

import metacal as mc
from metacal.cli import main
from metacal.estimators.evaluate import evaluate_table as evaluate_gate_table
from metacal.gate import LogitsSource
from metacal.metrics import evaluate as evaluate_table
from metacal.metrics.resampling import Resampling
from metacal.rows import Rows
from metacal.rows.executors import is_remote

DATA = mc.datasets.load("cifar10-resnet110")
FIT, NEW, LABELS = (
    (DATA.logits[:3000], DATA.labels[:3000]),
    DATA.logits[3000:4500],
    DATA.labels[3000:4500],
)
GROUPS = np.where(np.arange(4500) % 3, "a", "b")


PROMISE = mc.MinAccuracy(0.95)
GATES = {
    "one threshold": mc.MetaCal(PROMISE),
    "per class": mc.MetaCal(mc.PerClass(PROMISE), calibrator="matrix"),
    "per group": mc.MetaCal(mc.PerGroup(PROMISE)),
    "a calibrator": mc.VectorScaling(),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", GATES)
def test_the_numbers_of_whole_tables(kind):
    by_group = kind == "per group"
    cal = GATES[kind].fit(*FIT, **({"groups": GROUPS[:3000]} if by_group else {}))
    groups = GROUPS[3000:] if by_group else None
    gate = cal.gate_
    told = gate.decide(Rows(NEW), groups=groups)
    accept = None if gate.is_calibrator else told.accept
    correct = told.predicted_codes == LABELS
    expected = evaluate_table(
        told.probabilities, LABELS, accept=accept, correct=correct, score=told.score, n_resamples=10
    )
    found = mc.evaluate(cal, NEW, LABELS, groups=groups, n_resamples=10)
    after, whole = found.after.to_dict(), expected.to_dict()
    if (
        gate.is_calibrator
    ):  # rows go by their largest logit there, by their largest probability here
        after["marginal"], whole["marginal"] = None, None
    assert after == whole
    softmax = mc.Gate.from_source(
        LogitsSource(mc.TemperatureScaling().fit(*FIT).map_, np.arange(10))
    )
    plain = type(softmax.source.map)(1.0)(NEW)
    before = evaluate_table(plain, LABELS, accept=accept, correct=correct, intervals=False)
    assert found.before.to_dict() == before.to_dict()
    assert (found.verdict is None) == gate.is_calibrator


@pytest.mark.slow
def test_a_table_that_is_ours_is_written_over(monkeypatch):
    gate = mc.MetaCal(mc.MinAccuracy(0.95)).fit(*FIT).gate_
    plan = Resampling(n_resamples=5)
    table = NEW.copy()
    _, kept = evaluate_gate_table(gate, Rows(table), LABELS, plan, 15, None)
    assert np.array_equal(table, NEW)
    assert (
        evaluate_gate_table(gate, Rows(table), LABELS, plan, 15, None, overwrite=True)[1].to_dict()
        == kept.to_dict()
    )
    np.testing.assert_array_equal(table, gate(NEW))


def test_without_a_gate_and_with_what_is_none():
    found = mc.evaluate(None, NEW, LABELS, n_resamples=0)
    assert found.before is None
    assert found.after.n_accepted is None
    assert found.to_dict()["promise"] is None
    assert "rows" in str(found)
    with pytest.raises(
        mc.InputError, match=r"a fitted gate, or an estimator that contains one, but got str\."
    ):
        mc.evaluate("cal.json", NEW, LABELS)
    gate = mc.MetaCal(mc.MinAccuracy(0.95)).fit(*FIT)
    assert mc.evaluate(gate, *FIT, n_resamples=0).fit_rows.n_fit_rows == len(FIT[1])


def test_other_processes_look_at_what_they_read(tmp_path):
    gate = mc.MetaCal(mc.MinAccuracy(0.95)).fit(*FIT)
    spoiled = NEW.copy()
    spoiled[1400, 3] = np.nan
    for name, rows in (("fine", NEW), ("spoiled", spoiled)):
        np.save(tmp_path / f"{name}-0.npy", rows[:700])
        np.save(tmp_path / f"{name}-1.npy", rows[700:])
    fine, bad = (
        mc.read_predictions(str(tmp_path / f"{name}-*.npy"), stream=True).table
        for name in ("fine", "spoiled")
    )
    with ProcessPoolExecutor(1) as pool:
        assert is_remote(pool)
        found = mc.evaluate(gate, fine, LABELS, n_resamples=0, executor=pool).to_dict()
        with pytest.raises(
            mc.InputError, match=r"row 1400 \(row 700 of .*spoiled-1\.npy\), column 3 is NaN"
        ):
            mc.evaluate(gate, bad, LABELS, n_resamples=0, executor=pool)
    here = mc.evaluate(gate, NEW, LABELS, n_resamples=0).to_dict()
    assert found == here  # the class-wise ECE among it, from whole numbers


def test_a_gate_on_scores_is_measured_on_rows_that_have_one():
    mark, right = DATA.logits.max(axis=1).astype(float), DATA.logits.argmax(axis=1) == DATA.labels
    gate = mc.ScoreGate(PROMISE).fit(mark[:3000], right[:3000])
    new = mark[3000:4500].copy()
    new[:100] = np.nan
    found = mc.evaluate(gate, new, right[3000:4500], n_resamples=0)
    accept = gate.accepts(new)
    assert (found.after.n_rows, found.after.n_accepted) == (1400, accept.sum())
    assert found.after.gate["selective_accuracy"].estimate == right[3000:4500][accept].mean()
    assert found.certificate == gate.certificate_
    assert found.to_dict()["promise"]["verdict"] == "kept"
    assert found.fit_rows is None
    assert (
        mc.evaluate(gate.gate_, mark[:3000], right[:3000], n_resamples=0).verdict.word
        == "not judged"
    )
    with pytest.raises(mc.InputError, match="No row has a score"):
        mc.evaluate(gate, [None], [True])


def test_around_a_classifier_features_are_measured():
    X, y = DATA.logits[:4500], DATA.labels[:4500]
    cal = mc.CalibratedClassifier(
        FrozenEstimator(LogisticRegression(max_iter=50).fit(X[:500], y[:500])), PROMISE
    ).fit(X[500:3000], y[500:3000])
    found = mc.evaluate(cal, X[3000:], y[3000:], n_resamples=0)
    assert found.after.n_accepted == cal.accepts(X[3000:]).sum()


def test_python_prints_what_the_command_prints(tmp_path):
    """One list of quantities, each under one name: no number stands twice under two names."""
    cal = mc.MetaCal(PROMISE).fit(*FIT)
    cal.save(tmp_path / "gate.json")
    np.savez(tmp_path / "new.npz", logits=NEW, labels=LABELS)
    words = ["evaluate", tmp_path / "gate.json", tmp_path / "new.npz", "--resamples", 50]
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == 0, done.output
    printed = done.stdout.partition("\n\nprobabilities")[2].rstrip()
    evaluation = cal.evaluate(NEW, LABELS, n_resamples=50)
    assert str(evaluation).partition("\n\nprobabilities")[2] == printed
    assert str(evaluation).count(str(evaluation.after.gate["miscoverage"])) == 1
    assert evaluation.after.gate["type_1_error"] == evaluation.after.gate["miscoverage"]
    assert "type I error" not in evaluation._repr_html_()
