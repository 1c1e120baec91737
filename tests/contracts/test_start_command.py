"""`metacal start` as a command: its questions, the rows that it holds out, and what it offers."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main

IDS = np.array([f"C{row:05d}" for row in range(4000)])


def write_churn(path, n_rows=1000, noise=1.0, seed=0):
    """Write a file with the probability of one of two classes."""
    rng = np.random.default_rng(seed)
    is_churn = rng.random(n_rows) < 0.4
    log_odds = 4.0 * is_churn - 2.0 + noise * rng.normal(size=n_rows)
    write_csv(
        path,
        {
            "customer_id": IDS[:n_rows],
            "tenure": rng.integers(1, 72, size=n_rows),
            "p_churn": (1.0 / (1.0 + np.exp(-log_odds))).round(6),
            "churn": np.where(is_churn, "Yes", "No"),
        },
    )


def write_csv(path, columns):
    """Write columns to a csv file."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(np.asarray(column).tolist() for column in columns.values())))


def run(*words, codes=(0,)):
    """Run a command and return its result."""
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code in codes, (words, done.output, done.exception)
    return done


def commands_in(text):
    """Return the words of every command in a text, without "metacal"."""
    assert "metacal" in text or "Nothing was written." in text
    lines = re.findall(r"^(?:\$ )?metacal (.*)$", text, re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Run every test in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def test_the_gate_is_judged_on_rows_that_were_held_out():
    write_churn("churn.csv")
    done = run("start", "churn.csv", "--yes")
    assert "about 700, drawn at random, fit the gate. The other 300 judge it." in done.stderr
    assert "280 calibration rows" not in done.stdout
    assert "from         695 calibration rows" in done.stdout  # five are pilot rows
    assert "300 of churn.csv through churn.gate.json" in done.stdout
    assert "Warning" not in done.stderr
    assert "not judged" not in done.stdout
    everything = run("verify", "churn.gate.json", "churn.csv", codes=(1,))
    assert "not judged" in everything.stdout


def test_two_classes_get_promises_in_their_names_and_every_command_runs():
    write_churn("churn.csv")
    done = run("start", "churn.csv", "--yes")
    for sentence in (
        "of the rows accepted as 'Yes' are 'Yes'",
        "of the rows accepted as 'No' are 'No'",
        "of the rows that are 'Yes' are accepted as 'Yes' or reviewed",
    ):
        assert sentence in done.stderr
    commands = commands_in(done.stderr)
    assert {"--min-precision", "--min-npv", "--min-recall"} <= {
        word for words in commands for word in words
    }
    for words in commands:
        run(*words)


@pytest.mark.parametrize("promise", ["precision", "npv", "recall"])
def test_a_promise_about_one_class_is_fitted_and_judged(promise):
    write_churn("churn.csv")
    run("start", "churn.csv", "--yes", "--promise", promise)
    gate = mc.load_gate("churn.gate.json")
    page = Path("churn.next.md").read_text()
    python = re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1)
    exec(python, {})
    assert mc.load_gate("churn.gate.json").certificate == gate.certificate


def test_a_promise_about_one_class_needs_two_classes():
    rng = np.random.default_rng(0)
    scores = rng.random(400)
    write_csv("judge.csv", {"score": scores, "ok": rng.random(400) < scores})
    done = run("start", "judge.csv", "--yes", "--promise", "recall", codes=(2,))
    assert "requires two classes" in done.stderr


def test_too_few_rows_are_not_judged_and_start_says_what_to_do():
    write_churn("churn.csv", n_rows=200, noise=0.5)
    done = run("start", "churn.csv", "--yes")
    assert "Not judged:" in done.stderr
    assert "Label at least 90 new rows" in done.stderr
    assert "$ metacal verify churn.gate.json NEW" in done.stderr
    write_churn("NEW", n_rows=100, noise=0.5, seed=1)
    for words in commands_in(done.stderr):
        run(*words)


def test_a_target_that_is_not_supported_gives_the_best_one_certified_on_other_rows():
    write_churn("churn.csv", n_rows=3000, noise=2.5)
    done = run("start", "churn.csv", "--yes", "--mistake-cost", 500)
    assert "The target is not supported" in done.stderr
    certificate = mc.load_gate("churn.gate.json").certificate
    assert 0.5 < certificate.target < 0.998
    assert certificate.n_rows == 895
    assert "Not judged: every row" in done.stderr
    write_churn("NEW", n_rows=500, noise=2.5, seed=1)
    for words in commands_in(done.stderr):
        run(*words)
    page = Path("churn.next.md").read_text()
    for words in commands_in(page):
        run(*words)


def test_if_no_target_can_be_certified_nothing_is_printed_to_run():
    write_churn("churn.csv", n_rows=120, noise=4.0)
    done = run("start", "churn.csv", "--yes", "--mistake-cost", 500, codes=(1,))
    assert "Nothing was written." in done.stderr
    assert commands_in(done.stderr) == []
    assert sorted(os.listdir()) == ["churn.csv"]


def test_more_reviews_than_possible_give_a_command_that_runs():
    write_churn("churn.csv", noise=3.0)
    done = run("start", "churn.csv", "--yes", "--review", 0.05, "--mistake-cost", 8)
    (words,) = [words for words in commands_in(done.stderr) if "--max-review" in words]
    run(*words)


def test_without_a_terminal_start_points_to_yes():
    write_churn("churn.csv")
    done = subprocess.run(
        [sys.executable, "-m", "metacal", "start", "churn.csv"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Add --yes" in " ".join(done.stderr.split())
    assert sorted(os.listdir()) == ["churn.csv"]


def test_standard_input_is_refused():
    done = run("start", "-", "--yes", codes=(2,))
    assert "standard input" in " ".join(done.stderr.split())


@pytest.mark.skipif(os.name == "nt", reason="there are no pseudo-terminals")
def test_questions_on_a_terminal():
    import pty

    write_churn("churn.csv")
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "metacal", "start", "churn.csv"],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.write(controller, b"10\n2\n0.5\n")
    output, _ = process.communicate(timeout=120)
    os.close(terminal)
    os.close(controller)
    assert process.returncode == 0, output
    assert "How many reviews does one mistake cost?" in output
    assert "2  precision: at least 90% of the rows accepted as 'Yes' are 'Yes'" in output
    assert "Which share of the rows can be reviewed?" in output
    assert "--min-precision 0.9" in output


def test_other_columns_in_a_new_file_are_named():
    write_churn("churn.csv")
    run("start", "churn.csv", "--yes")
    write_csv("new.csv", {"customer_id": IDS[:5], "p_left": [0.1, 0.2, 0.3, 0.4, 0.5]})
    done = run("apply", "churn.gate.json", "new.csv", "-o", "out.csv", codes=(2,))
    assert "no column 'p_churn', from which churn.gate.json reads its input." in done.stderr


def test_rows_of_a_part_are_always_the_same_and_clusters_stay_together():
    write_churn("churn.csv", n_rows=100)
    reading = {"logits_key": "p_churn", "input": "probabilities", "label_key": "churn"}
    rows = mc.read_predictions("churn.csv", id_key="customer_id", **reading)
    first, second = rows.draw_part(0, 0.7), rows.draw_part(0.7, 1)
    assert len(first) == 70
    assert set(first.ids) | set(second.ids) == set(rows.ids)
    assert set(first.ids) & set(second.ids) == set()
    np.testing.assert_array_equal(first.table, rows.draw_part(0, 0.7).table)
    rows = mc.read_predictions("churn.csv", unit_key="tenure", **reading)
    first, second = rows.draw_part(0, 0.5), rows.draw_part(0.5, 1)
    assert len(first) + len(second) == 100
    assert set(first.units) & set(second.units) == set()


@pytest.mark.parametrize("part", ["1:0.5", "a:b", "0:2", "0.5:0.5"])
def test_a_part_that_is_none_is_refused(part):
    write_churn("churn.csv", n_rows=20)
    words = ["fit", "churn.csv", "--logits-key", "p_churn", "--max-review", 0.5, "--rows", part]
    assert "A range of rows must be two fractions" in run(*words, codes=(2,)).stderr


def test_a_part_without_rows_is_refused():
    write_churn("churn.csv", n_rows=20)
    words = ["fit", "churn.csv", "--logits-key", "p_churn", "--input", "probabilities"]
    done = run(*words, "--label-key", "churn", "--max-review", 0.5, "--rows", "0:0.01", codes=(2,))
    assert "Pass a larger range with --rows" in done.stderr


def test_what_differs_in_a_new_file_is_named():
    rng = np.random.default_rng(0)
    table = rng.dirichlet(np.ones(3) / 5.0, size=400)
    names = np.array(["billing", "shipping", "other"])
    columns = {f"p({name})": column for name, column in zip(names, table.T)}
    label = names[[rng.choice(3, p=row) for row in table]]
    write_csv("tickets.csv", {**columns, "category": label})
    run("start", "tickets.csv", "--yes", "--mistake-cost", 3)
    write_csv("new-class.csv", {**columns, "p(refund)": np.zeros(400)})
    done = run("apply", "tickets.gate.json", "new-class.csv", "-o", "out.csv")
    assert "'p(refund)' look like classes" in done.stderr
    columns.pop("p(other)")
    write_csv("lost-class.csv", columns)
    done = run("apply", "tickets.gate.json", "lost-class.csv", "-o", "out.csv", codes=(2,))
    assert "no columns for the classes 'other'." in done.stderr
    write_csv("judge.csv", {"mark": table[:, 0], "ok": rng.random(400) < 0.5 + table[:, 0] / 2})
    run("start", "judge.csv", "--yes", "--mistake-cost", 2)
    done = run("apply", "judge.gate.json", "tickets.csv", "-o", "out.csv", codes=(2,))
    assert "no column 'mark', from which judge.gate.json reads its input." in done.stderr
    assert "another classifier" not in done.stderr


def test_a_part_of_a_table_in_a_file_stays_in_the_file():
    (logits, labels), _ = mc.datasets.load("cifar10-resnet110").split(2000, random_state=0)
    mc.io.write_table("val.parquet", {"logits": logits, "label": labels})
    stored = mc.read_predictions("val.parquet", stream=True).draw_part(0, 0.7)
    in_memory = mc.read_predictions("val.parquet", stream=False).draw_part(0, 0.7)
    assert not isinstance(stored.table, np.ndarray)
    np.testing.assert_array_equal(np.asarray(stored.table), in_memory.table)
    gates = [
        mc.MetaCal(mc.MinAccuracy(0.9)).fit(rows.table, rows.labels) for rows in (stored, in_memory)
    ]
    assert gates[0].threshold_ == gates[1].threshold_


def test_labels_in_a_second_file():
    (logits, labels), _ = mc.datasets.load("cifar10-resnet110").split(1000, random_state=0)
    np.save("logits.npy", logits)
    np.savetxt("labels.txt", labels, fmt="%d")
    run("start", "logits.npy", "--labels", "labels.txt", "--yes")
    page = Path("logits.next.md").read_text()
    assert "metacal verify logits.gate.json NEW --labels NEWLABELS" in page


def write_fields(path, n_documents=500, seed=0):
    """Write a file with scores of the fields of documents."""
    rng = np.random.default_rng(seed)
    is_correct = rng.random((n_documents, 3)) < [0.9, 0.97, 0.85]
    log_odds = 3.0 * is_correct + rng.normal(size=is_correct.shape)
    columns = {
        "doc_id": np.repeat(IDS[:n_documents], 3),
        "field": np.tile(["date", "name", "total"], n_documents),
        "confidence": (1.0 / (1.0 + np.exp(-log_odds))).round(6).ravel(),
        "ok": is_correct.astype(int).ravel(),
    }
    write_csv(path, columns)


def test_documents_with_fields_get_promises_about_cases_and_every_command_runs():
    write_fields("fields.csv")
    done = run("start", "fields.csv", "--yes")
    gate = mc.load_gate("fields.gate.json")
    assert gate.promise == mc.MaxCaseErrors(0.1, among="automated")
    assert "about 350, drawn at random, fit the gate. The other 150 judge it." in done.stderr
    assert "of all cases ('doc_id'), at most 10% contain an incorrect accepted item" in done.stderr
    page = Path("fields.next.md").read_text()
    python = re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1)
    exec(python, {})
    assert mc.load_gate("fields.gate.json").certificate == gate.certificate
    write_fields("NEW", seed=1)
    commands = [*commands_in(done.stderr), *commands_in(page)]
    assert any("--among-automated" in words for words in commands)
    assert any("--unit-key" in words for words in commands)
    for words in commands:
        run(*words)


@pytest.mark.parametrize("name", ["receipt", "tweet_id", "image", "run"])
def test_the_column_of_the_cases_is_recognised_by_its_name(name):
    write_fields("fields.csv", n_documents=300)
    text = Path("fields.csv").read_text().replace("doc_id", name, 1)
    Path("fields.csv").write_text(text)
    done = run("start", "fields.csv", "--yes")
    assert f"cases: {name} " in done.stderr
    assert isinstance(mc.load_gate("fields.gate.json").promise, mc.MaxCaseErrors)


def test_start_takes_documents_with_fields_that_have_no_label():
    write_fields("fields.csv")
    lines = Path("fields.csv").read_text().splitlines()
    for number in range(2, 60, 5):
        lines[number] = lines[number].rpartition(",")[0] + ","
    Path("fields.csv").write_text("\n".join(lines) + "\n")
    done = run("start", "fields.csv", "--yes")
    assert "have an unlabelled item and were left out" in " ".join(done.stderr.split())
    for words in commands_in(done.stderr):
        run(*words)


def test_the_cost_of_a_mistake_limits_the_share_of_cases():
    write_fields("fields.csv")
    run("start", "fields.csv", "--yes", "--promise", "all-cases", "--mistake-cost", 5)
    assert mc.load_gate("fields.gate.json").promise == mc.MaxCaseErrors(0.2)


def test_a_limit_on_cases_that_is_not_supported_gives_the_best_one_certified_on_other_cases():
    write_fields("fields.csv", n_documents=300)
    done = run("start", "fields.csv", "--yes", "--mistake-cost", 200)
    assert "The target is not supported" in done.stderr
    certificate = mc.load_gate("fields.gate.json").certificate
    assert 0.005 < certificate.target < 0.5
    assert certificate.cases.n_tested + certificate.cases.n_pilot == 90
    assert "Label at least 90 new cases" in done.stderr


def test_a_promise_about_cases_needs_a_column_of_cases():
    write_fields("fields.csv")
    text = Path("fields.csv").read_text().replace("doc_id", "source", 1)
    Path("fields.csv").write_text(text)
    words = ["start", "fields.csv", "--yes", "--promise", "all-cases"]
    done = run(*words, codes=(2,))
    assert "with --case-key NAME" in " ".join(done.stderr.split())
    run(*words, "--case-key", "source")
    assert mc.load_gate("fields.gate.json").promise == mc.MaxCaseErrors(0.1)


@pytest.mark.skipif(os.name == "nt", reason="there are no pseudo-terminals")
def test_questions_about_cases_on_a_terminal():
    import pty

    write_fields("fields.csv")
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "metacal", "start", "fields.csv"],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.write(controller, b"2\n8\n")
    output, _ = process.communicate(timeout=120)
    os.close(terminal)
    os.close(controller)
    assert process.returncode == 0, output
    assert "1  automated cases: of the cases ('doc_id') with an accepted item" in output
    assert mc.load_gate("fields.gate.json").promise == mc.MaxCaseErrors(0.125)


@pytest.mark.parametrize("has_name", [True, False])
def test_documents_with_a_list_of_fields_are_recognised(has_name):
    write_fields("fields.csv")
    with open("fields.csv", newline="", encoding="utf-8") as file:
        items = list(csv.DictReader(file))
    lines = []
    for start in range(0, len(items), 3):
        fields = [
            {"name": item["field"], "score": float(item["confidence"]), "ok": item["ok"] == "1"}
            for item in items[start : start + 3]
        ]
        document = {"document": items[start]["doc_id"]} if has_name else {}
        lines.append(json.dumps({**document, "fields": fields}))
    Path("documents.jsonl").write_text("\n".join(lines) + "\n")
    Path("NEW").write_text("\n".join(lines) + "\n")
    done = run("start", "documents.jsonl", "--yes")
    gate = mc.load_gate("documents.gate.json")
    assert gate.promise == mc.MaxCaseErrors(0.1, among="automated")
    assert gate.file_layout.case_key == ("document" if has_name else "line")
    assert gate.file_layout.group_key == "fields[*].name"
    assert "about 350, drawn at random, fit the gate. The other 150 judge it." in done.stderr
    commands = [*commands_in(done.stderr), *commands_in(Path("documents.next.md").read_text())]
    for words in commands:
        codes = (0, 1) if "NEW" in words else (0,)  # NEW has the rows of the fit.
        run(*words, codes=codes)


def write_rare(path, n_rows=2000, distance=1.5):
    """Write a file with the score of a rare class, which it tells apart only in part."""
    rng = np.random.default_rng(3)
    is_rare = rng.random(n_rows) < 0.12
    log_odds = distance * is_rare - 2.5 + rng.normal(size=n_rows)
    columns = {
        "p_deny": (1.0 / (1.0 + np.exp(-log_odds))).round(6),
        "deny": np.where(is_rare, "yes", "no"),
    }
    write_csv(path, columns)


def test_a_promise_that_holds_without_a_gate_is_not_offered():
    write_rare("loans.csv")
    done = run("start", "loans.csv", "--yes", "--mistake-cost", 5)
    assert "at least 80% of the rows accepted as 'no' are 'no'. That holds without a gate." in (
        done.stderr
    )
    commands = commands_in(done.stderr)
    assert not [words for words in commands if "--min-npv" in words]
    for words in commands:
        run(*words)
    done = run(
        *("start", "loans.csv", "--yes", "--mistake-cost", 5, "--promise", "npv", "-o", "npv"),
        codes=(2,),
    )
    assert "requires no gate" in done.stderr
    assert "Nothing was written. Pass a higher --mistake-cost" in done.stderr
    assert not os.listdir("npv")


def test_an_offer_that_is_not_supported_has_the_best_target_of_other_rows():
    write_rare("loans.csv", n_rows=4000, distance=2.0)
    done = run("start", "loans.csv", "--yes", "--mistake-cost", 10)
    offer = re.search(
        r"of the rows accepted as 'yes' are 'yes'\.\n  These rows do not support it\. The rows that"
        r" were held out certify ([0-9.]+)%.*\n\$ metacal (.*)",
        done.stderr,
    )
    words = shlex.split(offer[2])
    assert words[words.index("--rows") + 1] == "0.7:1"
    run(*words)
    certificate = mc.load_gate("loans.gate.json").certificate
    assert 0.5 < certificate.target == pytest.approx(float(offer[1]) / 100)


def test_a_lower_target_that_holds_without_a_gate_is_no_target():
    write_rare("loans.csv")
    done = run("start", "loans.csv", "--yes", "--promise", "precision", codes=(1,))
    assert "Cannot certify a precision of at least 0.95 for 'yes'" in done.stderr
    assert "Nothing was written." in done.stderr
