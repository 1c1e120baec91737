"""metacal label: what an annotation team does with the file, the mistakes it makes, and the gate at
the end.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.io.disk import DISK, Disk

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


@pytest.mark.slow
def test_a_team_labels_until_nothing_more_can_be_certified(run, truth):
    logits, labels = truth
    first = run("label pool.csv --min-accuracy 0.95 --labels 400 -o labels.csv")
    assert (
        "0 of 400 labels certify nothing yet; a coverage of 100% is within reach." in first.stderr
    )
    assert "10 rows wait in labels.csv" in first.stderr
    assert first.stdout == ""
    assert lines()[0] == ["row", "id", "label"]  # nothing that could lead whoever answers
    fill(labels, 4)
    assert (
        "10 rows wait" in run("label pool.csv -o labels.csv").stderr
    )  # half filled in: taken as far as it goes
    coverage = 0.0
    for step in range(60):
        fill(labels, delimiter=",;\t"[step % 3], bom=step % 2 == 1)
        answer = json.loads(
            run("label pool.csv -o labels.csv --gate cal.json --batch 20 --json").stdout
        )
        assert (
            (answer["coverage"] is None)
            == (answer["certificate"] is None)
            == (answer["gate"] is None)
        )
        assert (answer["coverage"] or 0.0) >= coverage
        coverage = answer["coverage"] or 0.0
        if answer["finished"]:
            break
        assert answer["n_waiting"] == len(lines()) - 1
    assert answer["finished"]
    assert answer["file"] is None
    assert answer["within_reach"] == coverage > 0.5
    assert answer["n_labels"] < 400 == answer["n_drawn"]
    again = run("label pool.csv -o labels.csv --gate cal.json")
    assert f"400 rows drawn from a pool, {answer['n_labels']} of them labelled" in again.stdout
    gate = mc.load_gate("cal.json")
    accepted = gate.accepts(mc.Rows(logits))
    assert (logits.argmax(axis=1) == labels)[accepted].mean() > 0.94
    told = run(
        "verify cal.json val.npz --classes cat,dog,=bird", code=1
    ).stdout  # the labelled rows are among them
    assert told.startswith("not judged")
    run("show cal.json")


def test_what_spreadsheets_and_pandas_do_to_a_sheet(run, truth):
    first = run("label pool.csv --min-accuracy 0.95 --batch 12 -o labels.csv --gate cal.json")
    assert "cal.json is not written: no gate is certified yet." in first.stderr
    assert not Path("cal.json").exists()
    header, *body = lines()
    cells = [
        [f"{line[0]}.0", *line[1:-1], CLASSES[truth[1][int(line[0])]].upper()] for line in body
    ]
    Path("labels.csv").write_bytes("\r".join(",".join(line) for line in [header, *cells]).encode())
    again = run("label pool.csv -o labels.csv").stderr
    assert "12 of 800 labels" in again
    assert "12 rows wait" in again  # as many as the first call said


def test_numbers_of_classes_may_have_decimals_that_say_nothing(run):
    data = np.load("val.npz")
    np.savez("numbers.npz", logits=data["logits"])
    run("label numbers.npz --min-accuracy 0.95 -o labels.csv")
    header, *body = lines()
    Path("labels.csv").write_text(
        "\n".join(",".join(line) for line in [header, *([row, "1.0"] for row, _ in body)])
    )
    assert f"{len(body)} of 800 labels" in run("label numbers.npz -o labels.csv").stderr


def test_what_the_first_call_said_of_the_pool_is_remembered(run, truth):
    logits, labels = truth
    surest, right = logits.max(axis=1), logits.argmax(axis=1) == labels
    np.savez("judge.npz", mark=surest)
    run("label judge.npz --score-key mark --min-accuracy 0.95 -o labels.csv")
    header, *body = lines()
    for answers, code, says in (
        (
            ["maybe", "perhaps"],
            2,
            "the answer must mark whether the row is correct, but it is 'maybe'.",
        ),
        (["1.0", "TRUE"], 0, "2 of 800"),
    ):
        rows = [row for row, _ in body if right[int(row)]]
        Path("labels.csv").write_text(
            "\n".join(",".join(line) for line in [header, *zip(rows, answers)])
        )
        said = run("label judge.npz -o labels.csv", code=code).stderr
        assert says in said
        assert ("1 more" in said) == (code == 2)
    assert "the first call" in run("label judge.npz --confidence .99 -o labels.csv", code=2).stderr
    assert (
        "only in the first call" in run("label judge.npz --show text -o labels.csv", code=2).stderr
    )
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.savez("chances.npz", probabilities=chances)
    run("label chances.npz --input probabilities --min-accuracy 0.95 -o other.csv")
    assert "0 of 800" in run("label chances.npz -o other.csv").stderr


def test_a_target_that_is_lost_says_so_after_few_labels_and_claims_nothing_of_the_others(run):
    run("label pool.csv --min-accuracy 0.95 --labels 200 --batch 3 -o labels.csv")
    header, *body = lines()
    with open("labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *([*line[:-1], "none"] for line in body)])
    said = run("label pool.csv -o labels.csv", code=1).stderr
    assert "no outcome of the remaining labels can reach the target" in said
    gone = run("label pool.csv -o new.csv", code=2).stderr
    assert "No promise given, and new.journal does not exist yet" in gone


def edited(line, cell, value):
    """A line with a cell changed; the rest of it filled in."""
    changed = [*line[:-1], "cat"]
    changed[cell] = value
    return changed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda body: [edited(body[0], -1, "dgo")],
            "labels.csv:2: 'dgo' is not one of the classes; did you mean 'dog'?",
        ),
        (
            lambda body: [edited(body[0], -1, "yes")],
            "labels.csv:2: 'yes' is not one of the classes; they are cat, dog",
        ),
        (
            lambda body: [edited(body[0], -1, "right")],
            "labels.csv:2: 'right' is not one of the classes",
        ),  # of what?
        (lambda body: [edited(body[0], 0, "2999999")], "the pool does not have this row."),
        (lambda body: [edited(body[0], 0, body[1][0])], "check the order of the lines"),
        (lambda body: [edited(body[0], 0, "img")], "Restore the original column"),
        (lambda body: [body[0], body[0]], "occurs twice, first in line 2."),
        (lambda body: [body[0][:-1]], "the line has 2 cells, but the header has 3"),
    ],
    ids=["class", "hint", "blind", "row", "mixed", "number", "twice", "short"],
)
def test_mistakes_in_the_file_are_told_with_their_line_and_nothing_is_taken(run, change, says):
    run("label pool.csv --min-accuracy 0.95 -o labels.csv")
    header, *body = lines()
    with open("labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *change(body)])
    before = Path("labels.csv").read_bytes()
    assert says in run("label pool.csv -o labels.csv", code=2).stderr
    assert Path("labels.csv").read_bytes() == before
    with open("labels.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [header, [*body[0][:-1], "none"]]
        )  # a class of no column: the prediction is wrong
    assert "1 of 800 labels" in run("label pool.csv -o labels.csv").stderr
    with open("labels.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [header, [*body[0][:-1], "none"]]
        )  # the same file once more changes nothing
    assert "1 of 800 labels" in run("label pool.csv -o labels.csv").stderr
    predicted = run_prediction(body[0])
    with open("labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, [*body[0][:-1], predicted]])
    refused = run("label pool.csv -o labels.csv", code=2).stderr
    assert "labels.csv:2: Row" in refused
    assert "already has a different answer" in refused


def run_prediction(line):
    """What the model says of a row, as the file of classes names it."""
    with open("pool.csv", newline="") as file:
        rows = list(csv.reader(file))
    name = CLASSES[int(np.argmax([float(cell) for cell in rows[1 + int(line[0])][1:]]))]
    return f"'{name}" if name.startswith("=") else name


def test_wrong_usage_says_what_to_do(run):
    assert "No promise given" in run("label pool.csv -o labels.csv", code=2).stderr
    assert ".csv or .tsv" in run("label pool.csv --min-accuracy .9 -o labels.npz", code=2).stderr
    assert (
        "POOL has none"
        in run("label pool.csv --min-accuracy .9 --replay -o nolabels.csv", code=2).stderr
    )
    open("labels.csv", "w").close()
    assert (
        "labels.csv exists, but"
        in run("label pool.csv --min-accuracy .9 -o labels.csv", code=2).stderr
    )
    assert Path("labels.csv").read_bytes() == b""
    run("label pool.csv --min-accuracy .9 --labels 200 -o other.csv")
    for change, says in (
        ("--min-accuracy .8", "Leave out the promise"),
        (
            "--labels 400",
            "started with labels=200, but got 400. This setting cannot change after labels are known.",
        ),
        ("--seed 3", "random_state=None, but got 3."),
        ("--extend", "without a declared extension"),
        ("--may-extend", "may_extend=False, but got True"),
    ):
        assert says in run(f"label pool.csv {change} -o other.csv", code=2).stderr
    assert (
        "must be different files"
        in run("label pool.csv -o other.csv --gate other.journal", code=2).stderr
    )


def test_a_second_call_is_told_who_is_at_work(run):
    run("label pool.csv --min-accuracy .9 -o labels.csv")
    with DISK.lock("labels.journal.lock"):
        busy = run("label pool.csv -o labels.csv", code=2)
    assert f"labels.journal is in use by process {os.getpid()} on" in busy.stderr
    run("label pool.csv -o labels.csv")


def answered_rows(path="labels.journal"):
    """The rows whose answers a journal holds."""
    records = [
        json.loads(line.partition(" ")[2]) for line in Path(path).read_text().splitlines()[2:]
    ]
    return [row for record in records for row in record["rows"]]


def test_answers_saved_while_the_next_sheet_is_written_are_taken(run, truth, monkeypatch):
    run("label pool.csv --min-accuracy 0.95 --labels 400 --batch 20 -o labels.csv")
    asked = {int(line[0]) for line in lines()[1:]}
    fill(truth[1], 10)
    append = Disk.append

    def append_while_a_person_saves(disk, path, content):
        append(disk, path, content)
        if Path(path).name.startswith(".labels.csv.") and len(answered_rows()) == 10:
            fill(truth[1])

    monkeypatch.setattr(Disk, "append", append_while_a_person_saves)
    done = run("label pool.csv -o labels.csv --json")
    assert "labels.csv was saved during this call. It was not overwritten" in " ".join(
        done.stderr.split()
    )
    assert json.loads(done.stdout)["saved_meanwhile"] is True
    assert set(answered_rows()) == asked
    assert len(answered_rows()) == 20
    assert asked.isdisjoint(int(line[0]) for line in lines()[1:])
    assert json.loads(run("label pool.csv -o labels.csv --json").stdout)["saved_meanwhile"] is False


def test_a_sheet_left_by_a_call_that_was_killed_is_not_lost(run, truth):
    run("label pool.csv --min-accuracy 0.95 --labels 400 -o labels.csv")
    blank = Path("labels.csv").read_bytes()
    fill(truth[1])
    Path("labels.csv").rename(".labels.csv.0123456789ab.part.csv")  # killed between two exchanges
    Path(".labels.csv.ba9876543210.part.csv").write_bytes(blank)  # killed before the exchange
    Path("labels.csv").write_bytes(blank)
    done = run("label pool.csv -o labels.csv")
    assert "labels.saved-1.csv" in done.stderr
    assert sorted(path.name for path in Path().glob("*labels*csv")) == [
        "labels.csv",
        "labels.saved-1.csv",
    ]
    Path("labels.csv").write_bytes(Path("labels.saved-1.csv").read_bytes())
    run("label pool.csv -o labels.csv")
    assert len(answered_rows()) == 10


def test_an_incomplete_last_record_is_reported(run, truth):
    run("label pool.csv --min-accuracy 0.95 --labels 400 -o labels.csv")
    fill(truth[1])
    run("label pool.csv -o labels.csv")
    content = Path("labels.journal").read_bytes()
    Path("labels.journal").write_bytes(content[:-30])
    done = run("label pool.csv -o labels.csv")
    assert "labels.journal.tail-1" in done.stderr
    last_line = content[content.rfind(b"\n", 0, -1) + 1 :]
    assert Path("labels.journal.tail-1").read_bytes() == last_line[:-30]


def test_two_copies_of_a_journal_go_on_and_nobody_notices(run, truth):
    """What docs/labels.md says of copies."""
    run("label pool.csv --min-accuracy 0.95 --labels 400 -o labels.csv")
    for name in ("copy.csv", "copy.journal"):
        Path(name).write_bytes(Path(f"labels.{name.partition('.')[2]}").read_bytes())
    fill(truth[1])
    run("label pool.csv -o labels.csv")
    run("label pool.csv -o copy.csv")  # the same rows wait there
    assert len(answered_rows()) == 10
    assert answered_rows("copy.journal") == []
    header, *asked = csv.reader(Path("copy.csv").read_text().splitlines())
    assert {int(line[0]) for line in asked} == set(answered_rows())
    for k, line in enumerate(asked):
        line[-1] = CLASSES[(truth[1][int(line[0])] + (k == 0)) % 3]
    with open("copy.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *asked])
    run("label pool.csv -o copy.csv")  # another answer to the first row
    assert set(answered_rows("copy.journal")) == set(answered_rows())
    with open("labels.journal", "ab") as file:  # but one cannot be put behind the other
        file.write(Path("copy.journal").read_bytes().splitlines(keepends=True)[-1])
    assert (
        "labels.journal:4: this record is damaged"
        in run("label pool.csv -o labels.csv", code=2).stderr
    )


@pytest.mark.slow
def test_with_a_key_the_second_call_works_as_the_first(run, truth):
    (Path.cwd() / "secret.key").write_text("0123456789abcdef" * 4)
    os.chmod("secret.key", 0o600)
    for call in range(3):
        promise = "" if call else "--min-accuracy .9"
        answer = json.loads(
            run(f"label pool.csv {promise} --key secret.key -o labels.csv --json").stdout
        )
        assert answer["n_labels"] == 10 * call
        fill(truth[1])
    assert (
        "this journal is signed; give its key with every call: --key KEYFILE"
        in run("label pool.csv -o labels.csv", code=2).stderr
    )
    run("label val.npz --min-accuracy .9 --replay --key secret.key -o signed.csv --gate cal.json")
    assert "signed" in run("show cal.json --key secret.key").stdout


@pytest.mark.slow
def test_a_replay_answers_from_the_file_and_a_pool_may_be_scores(run, truth):
    done = run("label val.npz --max-miscoverage 0.1 --replay -o labels.csv --gate cal.json")
    assert (
        "At most 10% of the correct predictions are rejected, with 90% confidence." in done.stdout
    )
    assert (
        "400 rows drawn from a pool, 400 of them labelled" in done.stdout
    )  # a miscoverage takes them all
    logits, labels = truth
    margin = np.sort(logits, axis=1)[:, -1] - np.sort(logits, axis=1)[:, -2]
    with open("judge.jsonl", "w") as file:
        for mark, right in zip(margin.tolist(), (logits.argmax(axis=1) == labels).tolist()):
            file.write(json.dumps({"mark": mark, "ok": right}) + "\n")
    line = "label judge.jsonl --score-key mark --min-accuracy 0.95"
    asked = run(f"{line} -o marks.csv")
    assert "fill in 'right'" in asked.stderr
    with open("marks.csv", newline="") as file:
        assert next(csv.reader(file)) == ["row", "right"]
    done = run(f"{line} --replay -o again.csv --gate judge.json")
    assert "accept if mark >=" in done.stdout
    assert "were part of the fit" in run("verify judge.json judge.jsonl", code=1).stdout
    assert "no predictions" in run(f"{line} --show-prediction -o a.csv", code=2).stderr


def test_columns_are_shown_where_the_first_call_asks_for_them(run, truth):
    logits, labels = truth
    np.savez("shown.npz", logits=logits, text=[f"photograph {k}" for k in range(len(labels))])
    run("label shown.npz --show text --show-prediction --min-accuracy 0.9 -o shown.csv")
    for _ in range(2):  # the second call knows it
        with open("shown.csv", newline="") as file:
            header, *body = csv.reader(file)
        assert header == ["row", "prediction", "text", "label"]
        assert all(line[2] == f"photograph {line[0]}" for line in body)
        assert [line[1] for line in body] == [str(logits[int(line[0])].argmax()) for line in body]
        with open("shown.csv", "w", newline="") as file:
            csv.writer(file).writerows([header, *([*line[:-1], "right"] for line in body)])
        run("label shown.npz -o shown.csv")
    assert (
        "Leave out --group-key"
        in run("label shown.npz --group-key text --min-accuracy .9 -o a.csv", code=2).stderr
    )


@pytest.mark.slow
def test_a_coverage_that_is_reached_or_out_of_reach_ends_it_and_it_can_go_on(run):
    enough = run("label val.npz --min-accuracy 0.95 --coverage 0.4 --replay -o labels.csv --json")
    answer = json.loads(enough.stdout)
    assert 0.4 <= answer["coverage"] < 0.5
    assert not answer["finished"]
    assert answer["n_waiting"] == 0
    beyond = run("label val.npz --coverage 0.99 --replay -o labels.csv")
    assert "A coverage of 99% is out of reach. " in beyond.stderr
    assert "Accepted predictions are correct at least 95%" in beyond.stdout
    done = run("label val.npz --replay -o labels.csv --json")
    assert json.loads(done.stdout)["finished"]


def test_an_extension_that_was_declared(run):
    line = (
        "label val.npz --min-accuracy 0.95 --labels 200 --may-extend --replay -o labels.csv --json"
    )
    first = json.loads(run(line).stdout)
    more = json.loads(run("label val.npz --extend --replay -o labels.csv --json").stdout)
    assert (first["n_drawn"], more["n_drawn"]) == (200, 800)
    assert more["certificate"]["threshold"] >= first["certificate"]["threshold"]


def test_where_nothing_can_be_certified_it_says_so_and_ends(run):
    hopeless = run("label val.npz --min-accuracy 0.9999 --labels 1000 --replay -o none.csv", code=1)
    assert "Cannot certify an accuracy of 0.9999" in hopeless.stderr
    answer = run("label val.npz -o none.csv --json", code=1).stdout
    assert json.loads(answer)["within_reach"] is None
