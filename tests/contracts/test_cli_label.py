"""metacal label: what an annotation team does with the file, the mistakes it makes, and the gate at the end."""

from __future__ import annotations

import csv
import json
import shlex

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main

CLASSES = ("cat", "dog", "=bird")


@pytest.fixture(scope="module")
def truth():
    """Which class each row of the pool is, and the pool's logits: sure rows are right."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=3000)
    logits = rng.normal(size=(3000, 3)) + rng.uniform(0.0, 8.0, size=(3000, 1)) * np.eye(3)[labels]
    return logits, labels


@pytest.fixture
def run(tmp_path, monkeypatch, truth):
    monkeypatch.chdir(tmp_path)
    logits, labels = truth
    with open("pool.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", *("cat", "dog", "'=bird")])
        table.writerows([f"img{k}", *row] for k, row in enumerate(logits.tolist()))
    np.savez("val.npz", logits=logits, labels=labels)

    def run(line, code=0):
        done = CliRunner().invoke(main, shlex.split(line))
        assert done.exit_code == code, (done.output, done.exception)
        return done

    return run


def lines():
    with open("labels.csv", encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def fill(labels, rows=None, *, delimiter=",", bom=False):
    """Fill the file in, all of it or its first rows, as a spreadsheet would save it."""
    header, *body = lines()
    for line in body[:rows]:
        name = CLASSES[labels[int(line[0])]]
        line[-1] = f"'{name}" if name.startswith("=") else name
    with open("labels.csv", "w", encoding="utf-8-sig" if bom else "utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *body[::-1]])


def test_a_team_labels_until_it_is_certified(run, truth):
    logits, labels = truth
    first = run("label pool.csv --min-accuracy 0.95 --coverage 0.6 -o labels.csv")
    assert "50 rows wait in labels.csv" in first.stderr
    assert first.stdout == ""
    assert lines()[0] == ["row", "id", "prediction", "entropy", "label"]
    fill(labels, 20)
    assert "30 rows wait" in run("label pool.csv -o labels.csv").stderr  # half filled in: taken as far as it goes
    for step in range(40):
        fill(labels, delimiter=",;\t"[step % 3], bom=step % 2 == 1)
        answer = json.loads(run("label pool.csv -o labels.csv --gate cal.json --json").stdout)
        assert answer["finished"] == answer["certified"] == (answer["certificate"] is not None)
        if answer["finished"]:
            break
        assert answer["forecast"] > 0
        assert answer["n_waiting"] == len(lines()) - 1
    assert answer["certified"]
    assert answer["gate"] == "cal.json"
    again = run("label pool.csv -o labels.csv --gate cal.json")
    assert f"{answer['n_labels']} of them labelled" in again.stdout
    gate = mc.load_gate("cal.json")
    accepted = gate.accepts(mc.Rows(logits))
    assert 0.5 < accepted.mean() < 0.7
    assert (logits.argmax(axis=1) == labels)[accepted].mean() > 0.94
    assert "not refuted" in run("verify cal.json val.npz --classes cat,dog,=bird").stdout
    run("show cal.json")
    assert "no gate yet" in run("show labels.state.json", code=1).stderr


def edited(line, cell, value):
    """A line with a cell changed; the rest of it filled in."""
    changed = [*line[:-1], "cat"]
    changed[cell] = value
    return changed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda body: [edited(body[0], -1, "dgo")], "labels.csv:2: 'dgo' is none of the classes; did you mean 'dog'?"),
        (lambda body: [edited(body[0], 0, "2999999")], "the pool has no row 2999999"),
        (lambda body: [edited(body[0], 0, body[1][0])], "lines were mixed up"),
        (lambda body: [edited(body[0], 2, "=cat")], "has the prediction"),
        (lambda body: [edited(body[0], 0, "img")], "leave that column as it was"),
        (lambda body: [body[0], body[0]], "stands there twice, before in line 2; keep one"),
        (lambda body: [body[0][:-1]], "4 cells where the header has 5"),
    ],
    ids=["class", "row", "mixed", "prediction", "number", "twice", "short"],
)
def test_mistakes_in_the_file_are_told_with_their_line_and_nothing_is_taken(run, change, says):
    run("label pool.csv --min-accuracy 0.95 --coverage 0.6 -o labels.csv")
    header, *body = lines()
    with open("labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *change(body)])
    assert says in run("label pool.csv -o labels.csv", code=1).stderr
    with open("labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, [*body[0][:-1], "wrong"]])  # a word will do; a class of no column is wrong
    assert "49 rows wait" in run("label pool.csv -o labels.csv").stderr
    with open("labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, [*body[0][:-1], "right"]])
    assert "answered otherwise before" in run("label pool.csv -o labels.csv", code=1).stderr


def test_wrong_usage_says_what_to_do(run):
    assert "give a promise" in run("label pool.csv -o labels.csv", code=2).stderr
    assert "not both" in run("label pool.csv --min-accuracy .9 --max-miscoverage .1 -o labels.csv", code=2).stderr
    assert ".csv or .tsv" in run("label pool.csv --min-accuracy .9 -o labels.npz", code=2).stderr
    assert "has none" in run("label pool.csv --min-accuracy .9 --replay -o labels.csv", code=1).stderr
    open("labels.csv", "w").close()
    assert "move labels.csv away" in run("label pool.csv --min-accuracy .9 -o labels.csv", code=1).stderr
    run("label pool.csv --min-accuracy .9 --coverage .6 -o other.csv")
    assert "leave the promise out" in run("label pool.csv --min-accuracy .8 -o other.csv", code=2).stderr


def test_a_replay_answers_from_the_file_and_a_pool_may_be_scores(run, truth):
    done = run("label val.npz --max-miscoverage 0.1 --replay -o labels.csv --gate cal.json")
    assert "At most 10% of the correct predictions are rejected, with 90% confidence." in done.stdout
    assert "of them labelled" in done.stdout
    logits, labels = truth
    margin = np.sort(logits, axis=1)[:, -1] - np.sort(logits, axis=1)[:, -2]
    with open("judge.jsonl", "w") as file:
        for mark, right in zip(margin.tolist(), (logits.argmax(axis=1) == labels).tolist()):
            file.write(json.dumps({"mark": mark, "ok": right}) + "\n")
    line = "label judge.jsonl --score-key mark --min-accuracy 0.95 --coverage 0.6"
    asked = run(f"{line} -o marks.csv")
    assert "fill in 'right'" in asked.stderr
    done = run(f"{line} --replay -o again.csv --gate judge.json")
    assert "accept if mark >=" in done.stdout
    run("verify judge.json judge.jsonl")
    hopeless = run("label val.npz --min-accuracy 0.9999 --coverage 0.99 --replay -o none.csv", code=1)
    assert "coverage accuracy 0.9999 is not certified by" in hopeless.stderr
