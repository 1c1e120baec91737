"""A gate remembers how its file is read: later commands need no option again."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main

N_ROWS = 600
RANDOM = np.random.default_rng(0)
IS_CHURN = RANDOM.random(N_ROWS) < 0.4
P_CHURN = (1.0 / (1.0 + np.exp(2.0 - 4.0 * IS_CHURN - RANDOM.normal(size=N_ROWS)))).round(5)
CHURN = np.where(IS_CHURN, "Yes", "No")
SHOP = np.where(np.arange(N_ROWS) % 2 == 0, "north", "south")
CUSTOMERS = np.array([f"C{row:04d}" for row in range(N_ROWS)])


def run(*words, code=0, **more):
    """Run a command and return its result."""
    done = CliRunner().invoke(main, [*map(str, words)], **more)
    assert done.exit_code == code, (done.output, done.exception)
    return done


def write_csv(path, columns):
    """Write columns to a csv file."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(np.asarray(column).tolist() for column in columns.values())))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with a file of two classes, in which commands run."""
    monkeypatch.chdir(tmp_path)
    columns = {"customer": CUSTOMERS, "shop": SHOP, "p_churn": P_CHURN, "churn": CHURN}
    write_csv("churn.csv", columns)
    first_rows = {name: column[:50] for name, column in columns.items() if name != "churn"}
    write_csv("new.csv", first_rows)
    write_csv("renamed.csv", {"customer": CUSTOMERS, "p_left": P_CHURN, "churn": CHURN})
    return tmp_path


FIT = (
    *("fit", "churn.csv", "--logits-key", "p_churn", "--input", "probabilities"),
    *("--label-key", "churn", "--positive", "Yes", "--id-key", "customer"),
    *("--min-precision", 0.8, "-o", "gate.json"),
)


def test_every_later_command_finds_the_columns_by_itself(folder):
    run(*FIT)
    run("apply", "gate.json", "new.csv", "-o", "out.csv")
    assert (folder / "out.csv").read_text().startswith("customer,shop,prediction,answer,")
    assert (
        json.loads(run("evaluate", "gate.json", "churn.csv", "--json").stdout)["n_rows"] == N_ROWS
    )
    assert "not judged" in run("verify", "gate.json", "churn.csv", code=1).stdout
    run("report", "gate.json", "churn.csv", "-o", "report.html")
    watched = run("monitor", "gate.json", "churn.csv", "--json")
    assert json.loads(watched.stdout)["rows"] == N_ROWS


def test_the_error_names_the_column_that_a_file_lacks(folder):
    run(*FIT)
    lacks_input = run("apply", "gate.json", "renamed.csv", "-o", "out.csv", code=2).stderr
    assert "no column 'p_churn', from which gate.json reads its input." in lacks_input
    assert "--logits-key NAME" in lacks_input
    lacks_labels = run("verify", "gate.json", "new.csv", code=2).stderr
    assert "no column 'churn' found, so metacal cannot tell which" in lacks_labels
    run("apply", "gate.json", "renamed.csv", "--logits-key", "p_left", "-o", "out.csv")


def test_groups_and_units_are_found_again(folder):
    fit_words = ("fit", "churn.csv", "--logits-key", "p_churn", "--input", "probabilities")
    run(
        *fit_words,
        *("--label-key", "churn", "--positive", "Yes", "--group-key", "shop"),
        *("--min-accuracy", 0.8, "-o", "gate.json"),
    )
    run("apply", "gate.json", "new.csv", "-o", "out.csv")
    lacks_groups = run(
        "apply", "gate.json", "renamed.csv", "--logits-key", "p_left", "-o", "-", code=2
    )
    assert "no column 'shop', from which gate.json reads the groups." in lacks_groups.stderr
    run(
        *fit_words,
        *("--label-key", "churn", "--positive", "Yes", "--unit-key", "customer"),
        *("--min-accuracy", 0.8, "-o", "gate.json"),
    )
    run("monitor", "gate.json", "churn.csv")


def test_columns_named_by_a_pattern(folder):
    columns = {"p(Yes)": P_CHURN, "p(No)": 1.0 - P_CHURN, "churn": CHURN, "shop": SHOP}
    write_csv("patterned.csv", columns)
    run(
        *("fit", "patterned.csv", "--logits-key", "p(*)", "--input", "probabilities"),
        *("--label-key", "churn", "--min-accuracy", 0.8, "-o", "gate.json"),
    )
    assert mc.load_gate("gate.json").classes.tolist() == ["Yes", "No"]
    run("apply", "gate.json", "patterned.csv", "-o", "out.csv")
    write_csv("plain.csv", {"Yes": P_CHURN, "No": 1.0 - P_CHURN})
    message = run("apply", "gate.json", "plain.csv", "-o", "out.csv", code=2).stderr
    assert "no column 'p(*)', from which gate.json reads its input." in message
    run("apply", "gate.json", "plain.csv", "--logits-key", "*", "-o", "out.csv")


def test_answers_are_compared_with_labels_in_every_format(folder):
    answer = np.where(RANDOM.random(N_ROWS) < P_CHURN, CHURN, "maybe")
    columns = {"y_true": CHURN, "y_pred": answer, "sure": P_CHURN}
    write_csv("answers.csv", columns)
    rows = [dict(zip(columns, row)) for row in zip(*(c.tolist() for c in columns.values()))]
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    np.savez("answers.npz", **columns)
    expected = answer == CHURN
    for suffix in ("csv", "jsonl", "npz"):
        scores = mc.io.read_scores(
            f"answers.{suffix}", score_key="sure", prediction_key="y_pred", label_key="y_true"
        )
        np.testing.assert_array_equal(scores.correct, expected)
    run(
        *("fit", "answers.csv", "--score-key", "sure", "--prediction-key", "y_pred"),
        *("--label-key", "y_true", "--min-accuracy", 0.7, "-o", "gate.json"),
    )
    watched = json.loads(run("monitor", "gate.json", "answers.jsonl", "--json").stdout)
    assert watched["labelled"] == N_ROWS
    write_csv("unlabelled.csv", {"sure": P_CHURN})
    run("apply", "gate.json", "unlabelled.csv", "-o", "out.csv")
    message = run("verify", "gate.json", "unlabelled.csv", code=2).stderr
    assert "no column 'y_true' found" in message


def test_what_apply_leaves_out_is_said(folder):
    run(*FIT)
    rows = {"customer": CUSTOMERS, "p_churn": P_CHURN, "score": P_CHURN, "note": SHOP}
    write_csv("scored.csv", rows)
    done = run("apply", "gate.json", "scored.csv", "-o", "out.csv")
    assert "Left out: 'score'." in done.stderr
    assert (folder / "out.csv").read_text().startswith("customer,note,prediction,")
    np.savez("wide.npz", p_churn=P_CHURN, customer=CUSTOMERS, shop=SHOP, embedding=np.eye(N_ROWS))
    done = run("apply", "gate.json", "wide.npz", "-o", "out.csv")
    assert "Left out: 'embedding'." in done.stderr
    assert (folder / "out.csv").read_text().startswith("customer,shop,prediction,")


def test_rows_without_a_score_are_expected_by_a_monitor(folder):
    rng = np.random.default_rng(0)
    scores = rng.random(900)
    lines = [
        json.dumps({"score": None if row % 9 == 0 else score, "ok": bool(rng.random() < score)})
        for row, score in enumerate(scores.tolist())
    ]
    for name in ("old", "new"):
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    run("fit", "old.jsonl", "--score-key", "score", "--min-accuracy", 0.6, "-o", "gate.json")
    watched = json.loads(run("monitor", "gate.json", "new.jsonl", "--json").stdout)
    assert watched["rows"] == 900


def test_a_monitor_that_is_started_again_still_knows_the_delimiter(folder):
    text = "kunde;wahrscheinlichkeit;weg\n"
    for row in range(N_ROWS):
        cell = str(P_CHURN[row]).replace(".", ",")
        text += f"{CUSTOMERS[row]};{cell};{'ja' if IS_CHURN[row] else 'nein'}\n"
    (folder / "kunden.csv").write_text(text)
    run(
        *("fit", "kunden.csv", "--logits-key", "wahrscheinlichkeit", "--input", "probabilities"),
        *("--label-key", "weg", "--positive", "ja", "--min-accuracy", 0.8, "-o", "gate.json"),
    )
    lines = text.splitlines(keepends=True)
    (folder / "traffic.csv").write_text("".join(lines[:301]))
    words = ("monitor", "gate.json", "traffic.csv", "--state", "state.journal", "--json")
    assert json.loads(run(*words).stdout)["rows"] == 300
    with open("traffic.csv", "a") as file:
        file.writelines(lines[301:])
    assert json.loads(run(*words).stdout)["rows"] == N_ROWS
