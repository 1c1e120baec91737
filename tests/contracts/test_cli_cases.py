"""Promises about cases on the command line: fit, apply, evaluate and verify without further options."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main

FIELDS = ("date", "name", "total")
FIT = "fit cal.csv --score-key confidence --correct-key ok"
CASES = "--case-key document --group-key field"


def draw_items(n_cases, seed):
    """Draw scores of the fields of documents, and whether each is correct."""
    rng = np.random.default_rng(seed)
    scores = rng.random((n_cases, len(FIELDS))) ** 0.4
    return scores, rng.random(scores.shape) < scores


def write_items(path, scores, correct, *, without_label=()):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["document", "field", "confidence", "ok"])
        for case, (case_scores, case_correct) in enumerate(zip(scores, correct, strict=True)):
            for field, score, is_correct in zip(FIELDS, case_scores, case_correct, strict=True):
                label = "" if case in without_label else int(is_correct)
                writer.writerow([f"doc{case}", field, f"{score:.6f}", label])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_items("cal.csv", *draw_items(400, 0))
    write_items("new.csv", *draw_items(300, 1))
    return tmp_path


def run(command, code=0):
    done = CliRunner().invoke(main, command.split())
    assert done.exit_code == code, done.stdout + done.stderr
    return done


def test_a_gate_about_cases_is_fitted_judged_and_applied(folder):
    fitted = run(f"{FIT} {CASES} --max-case-errors 0.2 -o gate.json --json")
    certificate = json.loads(fitted.stdout)["certificate"]
    assert certificate["cases"]["n_tested"] + certificate["cases"]["n_pilot"] == 400

    scores, correct = draw_items(300, 1)
    gate = mc.load("gate.json")
    types = np.tile(FIELDS, 300)
    accept = gate.accepts(scores.round(6).ravel(), groups=types).reshape(scores.shape)
    n_broken = int((accept & ~correct).any(axis=1).sum())
    assert 0 < n_broken < 300

    verified = json.loads(run("verify gate.json new.csv --json").stdout)
    assert verified["verdict"] == "kept"
    assert verified["tests"][0]["n_bad"] == n_broken
    evaluated = json.loads(run("evaluate gate.json new.csv --resamples 0 --json").stdout)
    assert evaluated["promise"]["verdict"] == "kept"
    run("apply gate.json new.csv -o out.csv")
    with open("out.csv", newline="") as file:
        applied = [row["accept"] == "true" for row in csv.DictReader(file)]
    np.testing.assert_array_equal(applied, accept.ravel())


def test_evaluate_says_that_its_metrics_are_about_items_and_which_cases_it_left_out(folder):
    run(f"{FIT} {CASES} --max-case-errors 0.2 -o gate.json")
    write_items("new.csv", *draw_items(300, 1), without_label=range(30))
    done = run("evaluate gate.json new.csv --resamples 0")
    assert "treat items of one case as independent" in " ".join(done.stdout.split())
    assert "30 of 300 cases" in " ".join(done.stderr.split())
    assert "have no score" not in done.stderr
    rows = run(
        "fit cal.csv --score-key confidence --correct-key ok --min-accuracy 0.7 -o rows.json"
    )
    assert rows.exit_code == 0
    assert "of one case" not in run("evaluate rows.json cal.csv --resamples 0").stdout


def test_the_command_certifies_what_python_certifies(folder):
    run(f"{FIT} {CASES} --max-case-errors 0.2 -o gate.json")
    scores, correct = draw_items(400, 0)
    documents = np.repeat([f"doc{case}" for case in range(400)], len(FIELDS))
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.2), score_name="confidence").fit(
        scores.round(6).ravel(),
        correct.ravel(),
        cases=documents,
        groups=np.tile(FIELDS, 400),
    )
    assert str(mc.load("gate.json").certificate_) == str(gate.certificate_)


@pytest.mark.parametrize(
    ("promise", "expected"),
    [
        ("--max-case-errors 0.3 --among-automated", mc.MaxCaseErrors(0.3, among="automated")),
        ("--max-case-errors 0.3 --same-scale", mc.MaxCaseErrors(0.3, same_scale=True)),
        ("--min-case-recall 0.7", mc.MinCaseRecall(0.7)),
        ("--max-errors-per-case 0.3 --largest-per-case 3", mc.MaxErrorsPerCase(0.3, largest=3)),
    ],
)
def test_every_promise_about_cases_has_an_option(folder, promise, expected):
    run(f"{FIT} {CASES} {promise} -o gate.json")
    assert mc.load("gate.json").promise == expected


def test_cases_with_unlabelled_items_are_left_out(folder):
    write_items("cal.csv", *draw_items(400, 0), without_label=range(50))
    done = run(f"{FIT} {CASES} --max-case-errors 0.2 -o gate.json --json")
    cases = json.loads(done.stdout)["certificate"]["cases"]
    assert cases["n_tested"] + cases["n_pilot"] == 350
    assert "50 of 400 cases" in done.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{FIT} --max-case-errors 0.2", "Name the column of cases with --case-key"),
        (
            f"{FIT} --case-key document --min-accuracy 0.9",
            "--case-key has no effect without a promise",
        ),
        (f"{FIT} {CASES} --max-errors-per-case 0.2", "requires --largest-per-case"),
        (
            "fit cal.csv --case-key document --max-case-errors 0.1",
            "requires scores instead of logits",
        ),
        (f"{FIT} {CASES} --max-case-errors 0.1 --min-accuracy 0.9", "cannot be combined"),
    ],
)
def test_options_that_do_not_fit_are_refused(folder, command, message):
    assert message in " ".join(run(command, code=2).stderr.split())


def test_a_file_without_the_case_column_is_refused(folder):
    run(f"{FIT} {CASES} --max-case-errors 0.2 -o gate.json")
    text = (folder / "new.csv").read_text().replace("document", "page", 1)
    (folder / "new.csv").write_text(text)
    assert "cases" in run("verify gate.json new.csv", code=2).stderr
    run("apply gate.json new.csv -o out.csv")


# ── a list of items on each line ──────────────────────────────────────────────────────────────────

LISTS = "--score-key fields[*].score --correct-key fields[*].ok --group-key fields[*].name"


def write_documents(path, n_cases, seed, *, is_labelled=True):
    """Write a line for each document, with a list of its fields."""
    scores, correct = draw_items(n_cases, seed)
    with open(path, "w") as file:
        for case, (case_scores, case_correct) in enumerate(zip(scores, correct, strict=True)):
            fields = [
                {"name": field, "score": round(float(score), 6)}
                for field, score in zip(FIELDS, case_scores, strict=True)
            ]
            if is_labelled:
                for field, is_correct in zip(fields, case_correct, strict=True):
                    field["ok"] = bool(is_correct)
            file.write(json.dumps({"document": f"doc{case}", "fields": fields}) + "\n")


@pytest.mark.parametrize("case_option", ["--case-key document", ""])
def test_a_list_of_items_on_each_line_is_read_directly(folder, case_option):
    write_documents("cal.jsonl", 400, 0)
    write_documents("new.jsonl", 300, 1)
    run(f"{FIT} {CASES} --max-case-errors 0.2 --seed 0 -o flat.json")
    run(f"fit cal.jsonl {LISTS} {case_option} --max-case-errors 0.2 --seed 0 -o gate.json")
    flat, nested = mc.load("flat.json").certificate_, mc.load("gate.json").certificate_
    assert nested.cases.n_tested == flat.cases.n_tested
    if case_option:
        assert nested.n_accepted == flat.n_accepted
    evaluated = json.loads(run("evaluate gate.json new.jsonl --resamples 0 --json").stdout)
    assert evaluated["promise"]["verdict"] in ("kept", "undecided")
    assert evaluated["n_rows"] == 900


def test_apply_writes_a_row_for_each_item_with_its_document(folder):
    write_documents("cal.jsonl", 400, 0)
    write_documents("new.jsonl", 300, 1, is_labelled=False)
    run(f"fit cal.jsonl {LISTS} --case-key document --max-case-errors 0.2 -o gate.json")
    run("apply gate.json new.jsonl -o out.jsonl")
    with open("out.jsonl") as file:
        rows = [json.loads(line) for line in file]
    assert [row["document"] for row in rows[:4]] == ["doc0", "doc0", "doc0", "doc1"]
    assert [row["fields[*].name"] for row in rows[:3]] == list(FIELDS)
    scores, _ = draw_items(300, 1)
    accept = mc.load("gate.json").accepts(scores.round(6).ravel(), groups=np.tile(FIELDS, 300))
    assert [row["accept"] for row in rows] == accept.tolist()


def test_lists_are_read_in_python_with_the_line_as_the_case(folder):
    write_documents("new.jsonl", 20, 1)
    with open("new.jsonl", "a") as file:
        file.write('{"document": "empty", "fields": []}\n')
        file.write('{"document": "partial", "fields": [{"name": "date", "score": null}]}\n')
    rows = mc.io.read_scores(
        "new.jsonl",
        score_key="fields[*].score",
        correct_key="fields[*].ok",
        group_key="fields[*].name",
    )
    assert len(rows) == 61
    assert rows.cases[[0, 2, 3, 60]].tolist() == [
        "new.jsonl:1",
        "new.jsonl:1",
        "new.jsonl:2",
        "new.jsonl:22",
    ]
    assert np.isnan(rows.score[60])
    assert np.isnan(rows.correct[60])


def test_an_entry_that_is_no_list_is_named_with_its_line(folder):
    (folder / "bad.jsonl").write_text('{"fields": [{"score": 1}]}\n{"fields": {"score": 1}}\n')
    done = run(f"fit bad.jsonl {LISTS} --max-case-errors 0.2 -o gate.json", code=2)
    assert "bad.jsonl:2" in done.stderr
    assert "requires a list of items" in " ".join(done.stderr.split())


def test_the_items_of_one_line_are_a_cluster_of_a_promise_about_rows(folder):
    write_documents("cal.jsonl", 400, 0)
    write_documents("new.jsonl", 300, 1)
    columns = LISTS.partition(" --group-key")[0]
    run(f"fit cal.jsonl {columns} --min-accuracy 0.7 -o gate.json")
    gate = mc.load("gate.json")
    assert gate.certificate_.design.cluster_counting == "unit"
    assert gate.certificate_.n_rows + gate.certificate_.design.n_pilot_rows == 400
    assert "one row of each cluster" in run("verify gate.json new.jsonl").stdout
    run("apply gate.json new.jsonl -o out.jsonl")


# ── missing labels ────────────────────────────────────────────────────────────────────────────────

N_UNLABELLED = 90


def write_unlabelled_items(n_cases=400, n_new=300):
    """Write items of which the first cases have no label for any field."""
    unlabelled = range(N_UNLABELLED // len(FIELDS))
    write_items("cal.csv", *draw_items(n_cases, 0), without_label=unlabelled)
    write_items("new.csv", *draw_items(n_new, 1), without_label=unlabelled)


@pytest.mark.parametrize(
    "options", ["--group-key field --min-accuracy 0.7", "--unit-key document --min-accuracy 0.7"]
)
def test_items_without_a_label_are_left_out_and_counted(folder, options):
    write_unlabelled_items()
    fitted = run(f"{FIT} {options} -o gate.json --json")
    certificate = mc.load("gate.json").certificate_
    (note,) = [note for note in certificate.notes if note.kind == "unlabelled_entries"]
    assert dict(note.facts) == {"unlabelled": N_UNLABELLED, "entries": 1200}
    assert "90 of 1,200 entries have no label" in " ".join(fitted.stderr.split())

    with open("new.csv", newline="") as file:
        items = [item for item in csv.DictReader(file) if item["ok"]]
    with open("labelled.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, items[0].keys())
        writer.writeheader()
        writer.writerows(items)
    for command in ("verify", "evaluate --resamples 0", "report"):
        name, *further = command.split()
        output = ["-o", "report.html"] if name == "report" else []
        words = " ".join([*further, *output, "--json"])
        with_gaps = run(f"{name} gate.json new.csv {words}")
        assert "90 of 900 entries have no label" in " ".join(with_gaps.stderr.split())
        assert "have no score" not in with_gaps.stderr
        without_gaps = run(f"{name} gate.json labelled.csv {words}")
        found, expected = json.loads(with_gaps.stdout), json.loads(without_gaps.stdout)
        if name == "verify":
            assert found["tests"] == expected["tests"]
        assert found.get("n_rows") == expected.get("n_rows")
    run("monitor gate.json new.csv --json")


def test_rows_of_a_plain_file_all_need_a_label(folder):
    write_unlabelled_items()
    done = run(f"{FIT} --min-accuracy 0.7 -o gate.json", code=2)
    assert "cal.csv:2: ok is missing" in " ".join(done.stderr.split())


def test_a_wrong_label_of_an_item_is_named_with_its_line(folder):
    write_unlabelled_items()
    text = (folder / "cal.csv").read_text().splitlines()
    text[100] = text[100].rpartition(",")[0] + ",maybe"
    (folder / "cal.csv").write_text("\n".join(text))
    for options in ("--group-key field --min-accuracy 0.7", f"{CASES} --max-case-errors 0.2"):
        done = run(f"{FIT} {options} -o gate.json", code=2)
        assert (
            "cal.csv:101: ok must mark whether the row is correct, but it is 'maybe'"
            in " ".join(done.stderr.split())
        )


# ── monitor ───────────────────────────────────────────────────────────────────────────────────────


def monitor(command, code=0):
    return json.loads(run(f"monitor gate.json {command} --json", code=code).stdout)


def test_monitor_bets_on_whole_cases(folder):
    run(f"{FIT} {CASES} --max-case-errors 0.2 -o gate.json")
    found = monitor("new.csv")
    assert found["units"] == {"complete": 299, "strays": 0, "are_cases": True}
    assert [alarm["name"] for alarm in found["alarms"]] == ["promise", "unreadable"]
    assert found["raised"] == []
    with open("new.csv", newline="") as file:
        items = list(csv.DictReader(file))
    columns = {name: [item[name] for item in items] for name in ("document", "field")}
    columns["confidence"] = [float(item["confidence"]) for item in items]
    columns["ok"] = [int(item["ok"]) for item in items]
    mc.io.write_table("new.parquet", {name: np.array(column) for name, column in columns.items()})
    assert monitor("new.parquet")["alarms"][0]["seen"] == found["alarms"][0]["seen"]
    scores, correct = draw_items(300, 1)
    write_items("new.csv", scores, ~correct)
    assert monitor("new.csv", code=3)["raised"] == ["promise"]


def test_labels_of_cases_may_come_on_later_lines_and_after_a_restart(folder):
    run(f"{FIT} {CASES} --max-case-errors 0.2 -o gate.json")
    whole = monitor("new.csv")
    with open("new.csv", newline="") as file:
        items = list(csv.DictReader(file))
    rows, labels = [], []
    for number, item in enumerate(items):
        row = {"id": f"i{number}", "document": item["document"], "field": item["field"]}
        rows.append({**row, "confidence": float(item["confidence"])})
        labels.append({"id": f"i{number}", "ok": item["ok"] == "1"})
    for name, lines in (("rows.jsonl", rows), ("labels.jsonl", labels)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = monitor("rows.jsonl --state state.json")
    assert before["units"]["complete"] == 0
    after = monitor("labels.jsonl --state state.json --append")
    assert after["units"] == whole["units"]
    assert after["alarms"][0]["seen"] == whole["alarms"][0]["seen"]


def test_a_stream_without_cases_is_refused(folder):
    run(f"{FIT} {CASES} --max-case-errors 0.2 -o gate.json")
    text = (folder / "new.csv").read_text().replace("document", "page", 1)
    (folder / "new.csv").write_text(text)
    done = run("monitor gate.json new.csv", code=2)
    assert "the line has no case" in " ".join(done.stderr.split())
    monitor("new.csv --case-key page")
    done = run("monitor gate.json new.csv --probability-key p", code=2)
    assert "does not support a promise about cases" in " ".join(done.stderr.split())


@pytest.mark.parametrize("case_key", ["document", "line"])
def test_a_monitor_reads_a_list_of_items_from_each_line(folder, case_key):
    write_documents("cal.jsonl", 400, 0)
    run(f"fit cal.jsonl {LISTS} --case-key {case_key} --max-case-errors 0.2 -o gate.json")
    write_documents("new.jsonl", 300, 1)
    found = monitor("new.jsonl")
    assert found["units"] == {"complete": 299, "strays": 0, "are_cases": True}
    write_items("items.csv", *draw_items(300, 1))
    columns = "--score-key confidence --correct-key ok --case-key document --group-key field"
    of_items = monitor(f"items.csv {columns}")
    assert found["alarms"][0]["seen"] == of_items["alarms"][0]["seen"]


def test_labels_of_a_list_of_items_may_come_on_a_later_line(folder):
    write_documents("cal.jsonl", 400, 0)
    run(f"fit cal.jsonl {LISTS} --case-key document --max-case-errors 0.2 -o gate.json")
    write_documents("new.jsonl", 300, 1)
    whole = monitor("new.jsonl")
    documents = [json.loads(line) for line in (folder / "new.jsonl").read_text().splitlines()]
    rows, labels = [], []
    for document in documents:
        name = document["document"]
        items = document["fields"]
        unlabelled = [{key: item[key] for key in item if key != "ok"} for item in items]
        rows.append({"id": name, "document": name, "fields": unlabelled})
        labels.append({"id": name, "fields": [{"ok": item["ok"]} for item in items]})
    for name, lines in (("rows.jsonl", rows), ("labels.jsonl", labels)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert monitor("rows.jsonl --state state.json")["units"]["complete"] == 0
    after = monitor("labels.jsonl --state state.json --append")
    assert after["units"] == whole["units"]
    assert after["alarms"][0]["seen"] == whole["alarms"][0]["seen"]


def test_a_line_without_a_list_is_unreadable_for_a_monitor(folder):
    write_documents("new.jsonl", 300, 1)
    run(f"fit new.jsonl {LISTS} --case-key document --max-case-errors 0.2 -o gate.json")
    with open("new.jsonl", "a") as file:
        file.write('{"document": "x", "fields": {"score": 1}}\n{"document": "y", "fields": []}\n')
    assert monitor("new.jsonl")["unreadable"] == 1
