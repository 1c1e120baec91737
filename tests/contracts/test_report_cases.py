"""Report on a gate whose promise is about cases: its numbers are those of the evaluation."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.errors import InputError
from metacal.reports.summary import summarise

FIELDS = ("date", "name", "total")
PROMISES = [
    mc.MaxCaseErrors(0.2),
    mc.MaxCaseErrors(0.2, among="automated"),
    mc.MinCaseRecall(0.8),
    mc.MaxErrorsPerCase(0.3, largest=3),
]


def draw_items(n_cases, seed):
    """Draw scores, correctness, cases and types of items; the type "total" is the worst."""
    rng = np.random.default_rng(seed)
    correct = rng.random((n_cases, 3)) < [0.9, 0.97, 0.7]
    score = 2.0 * correct + rng.normal(size=correct.shape)
    cases = np.repeat([f"doc{case}" for case in range(n_cases)], 3)
    return score.ravel(), correct.ravel(), cases, np.tile(FIELDS, n_cases)


def fit(promise, seed=0):
    score, correct, cases, types = draw_items(500, seed)
    return mc.ScoreGate(promise).fit(score, correct, cases=cases, groups=types)


@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_the_numbers_are_those_of_the_evaluation(promise):
    gate = fit(promise)
    score, correct, cases, types = draw_items(400, 1)
    score[::50] = np.nan
    labels = correct.astype(float)
    labels[1] = np.nan  # Its case is left out.
    found = summarise(score, labels, gate, cases=cases, groups=types, n_resamples=0)
    evaluation = mc.evaluate(gate, score, labels, cases=cases, groups=types, n_resamples=0)

    assert found.promise.verdict == evaluation.verdict.word
    (verdict,) = found.promise.verdicts
    expected = evaluation.to_dict()
    assert verdict["value"] == expected["promise"]["value"]
    assert (verdict["low"], verdict["high"]) == tuple(
        expected["promise"][name] for name in ("low", "high")
    )
    for name, metric in expected["gate"].items():
        assert found.evaluation["gate"][name]["estimate"] == metric["estimate"], name
    counts = found.cases
    assert counts["n_accepted"] == expected["n_accepted"]

    accept = gate.accepts(score, groups=types).reshape(400, 3)[1:]
    is_correct = correct.reshape(400, 3)[1:]
    n_accepted = accept.sum(axis=1)
    assert (counts["n_cases"], counts["n_left_out"]) == (399, 1)
    assert counts["n_all_accepted"] == (n_accepted == 3).sum()
    assert counts["n_none_accepted"] == (n_accepted == 0).sum()
    assert counts["n_some_accepted"] == ((n_accepted > 0) & (n_accepted < 3)).sum()
    is_violation = is_correct & ~accept if counts["is_recall"] else accept & ~is_correct
    assert counts["n_broken"] == is_violation.any(axis=1).sum()
    rejected = (~accept).sum(axis=0)
    by_type = counts["types"]
    order = [FIELDS.index(name) for name in by_type["name"]]
    assert sorted(rejected, reverse=True) == rejected[order].tolist()
    for name, expected_counts in (
        ("accepted", accept.sum(axis=0)),
        ("incorrect", (accept & ~is_correct).sum(axis=0)),
        ("missed", (is_correct & ~accept).sum(axis=0)),
        ("broken", is_violation.sum(axis=0)),
    ):
        assert by_type[name].tolist() == expected_counts[order].tolist(), name


def test_the_share_of_broken_cases_is_the_measured_value():
    gate = fit(mc.MaxCaseErrors(0.2))
    score, correct, cases, types = draw_items(400, 1)
    found = summarise(score, correct, gate, cases=cases, groups=types, n_resamples=0)
    assert found.promise.verdicts[0]["value"] == found.cases["n_broken"] / found.cases["n_cases"]


def test_the_cases_of_the_fit_are_not_judged():
    gate = fit(mc.MaxCaseErrors(0.2))
    score, correct, cases, types = draw_items(500, 0)
    found = summarise(score, correct, gate, cases=cases, groups=types, n_resamples=0)
    assert found.promise.verdict == "not judged"


def test_a_table_has_a_case_in_each_row():
    gate = fit(mc.MaxCaseErrors(0.2))
    score, correct, cases, types = draw_items(400, 1)
    long = summarise(score, correct, gate, cases=cases, groups=types, n_resamples=0)
    table = summarise(
        score.reshape(400, 3), correct.reshape(400, 3), gate, groups=FIELDS, n_resamples=0
    )
    assert table.to_dict()["cases"] == long.to_dict()["cases"]


def test_items_of_one_type_have_no_table_of_types():
    score, correct, cases, _ = draw_items(500, 0)
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.4)).fit(score, correct, cases=cases)
    score, correct, cases, _ = draw_items(400, 1)
    found = summarise(score, correct, gate, cases=cases, n_resamples=0)
    assert found.cases["types"] is None
    assert found.curves.command_language is None


def test_cases_need_a_promise_about_cases():
    score, correct, cases, _ = draw_items(400, 1)
    gate = mc.ScoreGate(mc.MinAccuracy(0.9)).fit(score, correct)
    with pytest.raises(InputError, match="is not a promise about cases"):
        summarise(score, correct, gate, cases=cases, n_resamples=0)


def test_the_command_writes_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("cal", 0), ("new", 1)):
        score, correct, cases, types = draw_items(400, seed)
        columns = {"document": cases, "field": types, "score": score, "ok": correct.astype(int)}
        mc.io.write_table(f"{name}.csv", columns)
    for command in (
        "fit cal.csv --score-key score --case-key document --group-key field"
        " --max-case-errors 0.2 -o gate.json",
        "report gate.json new.csv --resamples 0 --json",
    ):
        done = CliRunner().invoke(main, command.split())
        assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["cases"]["n_cases"] == 400
    assert found["mistakes"][0]["id"].startswith("doc")
    assert (tmp_path / "report.html").stat().st_size > 50_000
