"""A report starts at its gate: its numbers there are those of `metacal evaluate`, for each promise.

Each command that the page shows runs in the folder of the files.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import metacal as mc
from contracts import composition
from contracts.reported_gates import (
    ReportedGate,
    call,
    find_starting_numbers,
    find_starting_sides,
    list_commands,
    report_all,
    report_gate,
    run_commands,
)
from metacal.promises.kinds import PROMISES

#: Exit codes of a command that ran: certified, nothing can be certified, a promise is refuted.
RAN = (0, 1, 3)


def check_start(gate: ReportedGate) -> None:
    """Compare the start of a page with the evaluation of the gate, float for float."""
    evaluation, report = gate.evaluation, gate.report
    assert report["evaluation"]["gate"] == evaluation["gate"], gate.name
    expected = {
        name: evaluation["gate"][name]["estimate"]
        for name in ("coverage", "selective_accuracy", "miscoverage")
    }
    assert find_starting_numbers(report) == expected, gate.name
    verdicts = report["promise"]["verdicts"]
    first = {name: verdicts[0][name] for name in ("quantity", "value", "low", "high", "verdict")}
    assert first == {name: evaluation["promise"][name] for name in first}, gate.name
    sides = report["sides"]
    if sides is None:
        return
    assert find_starting_sides(sides) == sides["gate"], gate.name
    n_accepted = sides["n_rows"] * (
        sides["gate"]["called_positive"] + sides["gate"]["called_negative"]
    )
    assert round(n_accepted) == evaluation["n_accepted"], gate.name
    values = {verdict["quantity"]: verdict["value"] for verdict in verdicts}
    for quantity, name in (
        ("precision", "precision"),
        ("false-positive rate", "false_positive_rate"),
    ):
        # A promise for each group shows the group with the most evidence against it.
        if quantity in values and sides["lower"] is not None:
            assert values[quantity] == sides["gate"][name], gate.name


def check_commands(gate: ReportedGate) -> None:
    """Run the commands of a page in its folder, with the gate in place afterwards."""
    gate_bytes = (gate.folder / "gate.json").read_bytes()
    for command, code, error in run_commands(list_commands(gate.report), gate.folder):
        assert code in RAN, (gate.name, command, error)
    assert (gate.folder / "gate.json").read_bytes() == gate_bytes


#: Kinds of input. Probabilities use the code of logits after they are read, so that their 40 reports
#: are made with --long only.
KINDS = [
    pytest.param(kind, marks=pytest.mark.long) if kind == "probabilities" else kind
    for kind in composition.KINDS
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_report_starts_at_its_gate_and_its_commands_run(kind, tmp_path):
    n_gates = 0
    for gate in report_all(kind, tmp_path):
        check_start(gate)
        check_commands(gate)
        n_gates += 1
    least = {"logits": 40, "probabilities": 40, "scores": 14, "cascade": 4, "score cascade": 2}
    assert n_gates >= least[kind]


def test_each_registered_promise_is_reported():
    named = {name.partition(",")[0] for name in composition.EXAMPLES}
    assert {*named, "PerClass", "PerGroup"} == set(PROMISES)


@pytest.mark.parametrize(
    ("name", "variant"),
    [("MaxMiscoverage", ""), ("MinPrecision", ""), ("TwoSided", ""), ("MinAccuracy", "PerClass")],
)
def test_a_report_starts_at_its_gate(name, variant, tmp_path):
    gate = report_gate("logits", name, variant, tmp_path)
    check_start(gate)
    check_commands(gate)


# ── files whose columns only the gate knows ───────────────────────────────────────────────────────


def write_named_columns(folder: Path) -> list[str]:
    """Class columns with names, a label column and a column that is no class."""
    for prefix, half in zip(("", "new-"), composition.halves()):
        columns = {name: half.logits[:, k] for k, name in enumerate(("cat", "dog", "fox", "owl"))}
        truth = np.array(["cat", "dog", "fox", "owl"])[half.labels]
        mc.io.write_table(
            str(folder / f"{prefix}rows.csv"),
            {**columns, "truth": truth, "age": np.arange(len(truth)), "who": half.unit},
        )
    return ["rows.csv", "--label-key", "truth", "--drop", "age", "--id-key", "who"]


def write_unnamed_classes(folder: Path) -> list[str]:
    """Labels that are names, in a table whose columns have none."""
    for prefix, half in zip(("", "new-"), composition.halves()):
        truth = np.array(["cat", "dog", "fox", "owl"])[half.labels]
        np.savez(folder / f"{prefix}rows.npz", logits=half.logits, labels=truth)
    return ["rows.npz", "--classes", "cat,dog,fox,owl"]


def write_one_score_of_two_classes(folder: Path) -> list[str]:
    """A single score for two named classes."""
    for prefix, half in zip(("", "new-"), composition.halves(2)):
        truth = np.array(["fair", "fraud"])[half.labels]
        margin = half.logits[:, 1] - half.logits[:, 0]
        mc.io.write_table(str(folder / f"{prefix}rows.csv"), {"margin": margin, "truth": truth})
    positive = ["--positive-key", "margin", "--positive", "fraud"]
    return ["rows.csv", *positive, "--label-key", "truth"]


def write_nested_scores(folder: Path) -> list[str]:
    """A score inside an object, lower for a better answer, and a mark of correct answers."""
    for prefix, half in zip(("", "new-"), composition.halves()):
        lines = [
            {"judge": {"doubt": 1.0 - score}, "fine": ok}
            for score, ok in zip(half.scores.tolist(), half.right.tolist())
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{prefix}rows.jsonl").write_text(text, "utf-8")
    return [
        *("rows.jsonl", "--score-key", "judge.doubt"),
        *("--higher-is", "doubtful", "--correct-key", "fine"),
    ]


def write_compared_answers(folder: Path) -> list[str]:
    """A score, an answer and the true answer; the answer is correct if both are equal."""
    for prefix, half in zip(("", "new-"), composition.halves()):
        columns = {
            "sim": half.scores,
            "said": half.logits.argmax(axis=1),
            "true answer": half.labels,
        }
        mc.io.write_table(str(folder / f"{prefix}my rows.csv"), columns)
    keys = ["--prediction-key", "said", "--label-key", "true answer"]
    return ["my rows.csv", "--score-key", "sim", *keys]


LAYOUTS = {
    "named columns": write_named_columns,
    "unnamed classes": write_unnamed_classes,
    "one score of two classes": write_one_score_of_two_classes,
    "nested scores": write_nested_scores,
    "compared answers": write_compared_answers,
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_commands_name_the_columns_that_the_gate_remembers(layout, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, *options = LAYOUTS[layout](tmp_path)
    fitted = call("fit", file, *options, "--min-accuracy", "0.85", "-o", "gate.json")
    assert fitted.exit_code == 0, fitted.output
    done = call("report", "gate.json", f"new-{file}", "--resamples", "2", "--json")
    assert done.exit_code == 0, done.output
    commands = list_commands(json.loads(done.stdout))
    assert len(commands) >= 3
    for command, code, error in run_commands(commands, tmp_path):
        assert code == 0, (command, error)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [["--unit-key", "unit"], ["--decision", "calibrated", "--positive", "1"]],
    ids=["clusters", "learned decision"],
)
def test_a_gate_that_no_point_can_replace_has_no_command(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for prefix, half in zip(("", "new-"), composition.halves(2)):
        columns = {"logits": half.logits, "labels": half.labels, "unit": half.unit}
        np.savez(tmp_path / f"{prefix}rows.npz", **columns)
    fitted = call("fit", "rows.npz", "--min-accuracy", "0.85", *options, "-o", "gate.json")
    assert fitted.exit_code == 0, fitted.output
    done = call("report", "gate.json", "new-rows.npz", "--resamples", "2", "--json")
    assert json.loads(done.stdout)["curves"]["command_language"] is None


def test_a_command_never_writes_the_file_of_the_gate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit, new = composition.halves()
    np.savez("fit.npz", logits=fit.logits, labels=fit.labels)
    np.savez("new.npz", logits=new.logits, labels=new.labels)
    for name, written in (("cal.json", "new-gate.json"), ("new-gate.json", "new-gate-2.json")):
        assert call("fit", "fit.npz", "--min-accuracy", "0.85", "-o", name).exit_code == 0
        done = call("report", name, "new.npz", "--resamples", "0", "--json")
        assert json.loads(done.stdout)["curves"]["command_end"] == f" -o {written}"


def test_a_point_of_a_report_on_arrays_is_certified_in_python():
    fit, new = composition.halves()
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(fit.logits, fit.labels)
    curves = mc.reports.summary.summarise(new.logits, new.labels, gate, n_resamples=0).curves
    assert (curves.command_language, curves.command) == ("python", None)
    for point in (curves.current, len(curves.threshold) - 1):
        promise = eval(curves.command_at(point), {"mc": mc})
        again = mc.MetaCal(promise).fit(new.logits, new.labels)
        assert again.certificate_.n_accepted == curves.accepted[point]


# ── rows that were part of the fit ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options", [[], ["--title", "A & B", "--id-key", "who"]])
def test_a_report_on_rows_of_the_fit_has_a_command_for_other_rows(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit, new = composition.halves()
    for name, half in (("my rows.npz", fit), ("other.npz", new)):
        np.savez(name, logits=half.logits, labels=half.labels, who=half.unit)
    assert call("fit", "my rows.npz", "--min-accuracy", "0.85", "-o", "cal.json").exit_code == 0
    arguments = ["report", "cal.json", "my rows.npz", *options, "--resamples", "0"]
    done = call(*arguments, "--json")
    promise = json.loads(done.stdout)["promise"]
    assert promise["verdict"] == "not judged"
    (step,) = promise["next_steps"]
    assert "new-rows.npz, with the columns of my rows.npz" in step["text"]
    assert f"  {step['command']}\n" in call(*arguments).stdout

    Path("other.npz").rename("new-rows.npz")
    ((_, code, error),) = run_commands([f"{step['command']} --json"], tmp_path)
    assert code == 0, error
    judged = call(*arguments[:2], "new-rows.npz", *arguments[3:], "--json")
    again = json.loads(judged.stdout)["promise"]
    assert (again["verdict"], again["next_steps"]) == ("kept", [])


def test_judged_rows_have_no_next_step(tmp_path):
    gate = report_gate("logits", "MaxMiscoverage", "", tmp_path)
    assert gate.report["promise"]["next_steps"] == []
