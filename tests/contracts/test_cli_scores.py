"""Scores that are not logits, on the command line: an LLM-judge-like file from real logits, through
every command.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shlex
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main

DATA = mc.datasets.load("cifar10-resnet110")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """judge.jsonl to fit on and new.jsonl to judge by: the maximum probability to two digits, so
    with heavy ties.
    """
    logits = np.asarray(DATA.logits, dtype=np.float64)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probability = powers.max(axis=1) / powers.sum(axis=1)
    right = logits.argmax(axis=1) == DATA.labels
    folder = tmp_path_factory.mktemp("scores")
    for name, rows in (("judge", range(5000)), ("new", range(5000, len(right)))):
        with (folder / f"{name}.jsonl").open("w") as file:
            for k in rows:
                row = {
                    "id": f"q{k}",
                    "answer": "...",
                    "confidence": round(float(probability[k]), 2),
                    "ok": bool(right[k]),
                }
                file.write(json.dumps(row) + "\n")
    return folder


@pytest.fixture
def run(folder, monkeypatch):
    monkeypatch.chdir(folder)

    def run(line, code=0, **options):
        done = CliRunner().invoke(main, shlex.split(line), **options)
        assert done.exit_code == code, (done.output, done.exception)
        return done

    return run


@pytest.fixture(scope="module")
def gates(folder):
    """What is fitted once: a gate on the scores, and one on logits."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=300)
    np.savez(
        folder / "logits.npz",
        logits=rng.normal(size=(300, 3)) + 3 * np.eye(3)[labels],
        labels=labels,
    )
    asked = {
        "cal.json": "judge.jsonl --score-key confidence --correct-key ok --min-accuracy 0.95",
        "logits.json": "logits.npz --max-miscoverage 0.2",
    }
    with contextlib.chdir(folder):
        for name, line in asked.items():
            done = CliRunner().invoke(main, ["fit", *shlex.split(line), "-o", name])
            assert done.exit_code == 0, done.output
    return {name: (folder / name).read_bytes() for name in asked}


@pytest.fixture
def fitted(run, gates, folder):
    for name, data in gates.items():
        (folder / name).write_bytes(data)
    return run


def test_fit_prints_the_certificate_in_the_words_of_the_score(run):
    done = run(
        "fit judge.jsonl --score-key confidence --correct-key ok --min-accuracy 0.95 -o cal.json"
    )
    assert (
        "Accepted predictions are correct at least 95% of the time, with 90% confidence."
        in done.stdout
    )
    assert "accept if confidence > 0.87\n" in done.stdout
    assert "not covered by the promise" in done.stdout
    assert " ".join(done.output.split()).count("share their score with other rows") == 1
    answer = json.loads(
        run("fit judge.jsonl --score-key confidence --min-accuracy 0.95 --json").stdout
    )
    assert answer["accept_if"] == "confidence > 0.87"
    assert answer["certificate"]["score"] == "-confidence"
    assert answer["artifact"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "promise",
    [
        "--max-miscoverage 0.05",
        "--min-accuracy 0.9 --max-miscoverage 0.1",
        "--after-looking --min-accuracy 0.9",
        "--in-expectation --min-accuracy 0.95",
    ],
)
def test_every_promise(run, promise):
    run(f"fit judge.jsonl --score-key confidence {promise} -o other.json")
    assert not run("verify other.json new.jsonl").stdout.startswith("refuted")


@pytest.mark.slow
def test_apply_gives_accept_score_and_confidence(fitted, folder):
    done = fitted("apply cal.json new.jsonl -o out.jsonl")
    assert "10,000 rows, 9,504 accepted (95.0%)" in done.stderr
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    given = [json.loads(line) for line in (folder / "new.jsonl").read_text().splitlines()]
    assert list(rows[0]) == ["id", "ok", "accept", "score", "confidence"]
    assert [row["id"] for row in rows] == [row["id"] for row in given]
    assert [row["score"] for row in rows] == [row["confidence"] for row in given]
    assert [row["accept"] for row in rows] == [row["confidence"] > 0.87 for row in given]
    by_score = sorted((row["score"], row["confidence"]) for row in rows)
    assert all(one[1] <= other[1] for one, other in pairwise(by_score))
    counts = json.loads(fitted("apply cal.json new.jsonl --json").stdout)
    assert (counts["n_rows"], counts["n_accepted"], counts["n_without_score"]) == (10000, 9504, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "tsv", "npz", "parquet", "arrow", "feather", "jsonl"])
def test_apply_writes_every_kind_of_file_and_reads_its_own(fitted, kind):
    fitted(f"apply cal.json new.jsonl -o out.{kind}")
    counts = json.loads(fitted(f"apply cal.json out.{kind} --score-key score --json").stdout)
    assert counts["n_accepted"] == 9504


def test_rows_without_a_score_are_rejected_and_counted(fitted):
    text = "confidence,ok\n0.99,1\n,1\n0.2,0\n"
    done = fitted("apply cal.json - -o -", input=text)
    assert [row["accept"] for row in csv.DictReader(io.StringIO(done.stdout))] == [
        "true",
        "false",
        "false",
    ]
    assert "1 of 3 rows have no score: they are rejected." in done.stderr
    assert "left out" in fitted("evaluate cal.json - --resamples 0", input=text).stderr
    assert "2 of -" in fitted("verify cal.json -", input=text).stdout


@pytest.mark.slow
def test_verify_says_whether_the_promise_stands(fitted, folder):
    assert not fitted("verify cal.json new.jsonl").stdout.startswith("refuted")
    assert fitted("verify cal.json judge.jsonl", code=1).stdout.startswith("not judged")
    turned = (folder / "new.jsonl").read_text().replace('"ok": true', '"ok": false', 2000)
    (folder / "turned.jsonl").write_text(turned)
    assert "refuted: " in fitted("verify cal.json turned.jsonl", code=3).stdout
    answer = json.loads(fitted("verify cal.json new.jsonl --json").stdout)
    assert answer["refuted"] is False
    assert answer["fit_rows"] is None


@pytest.mark.slow
def test_evaluate_measures_gate_ranking_and_confidence(fitted):
    done = fitted("evaluate cal.json new.jsonl --resamples 50")
    assert "measured  kept: selective accuracy 0.9521" in done.stdout
    assert "ECE, equal width" in done.stdout
    answer = json.loads(fitted("evaluate cal.json new.jsonl --resamples 50 --json").stdout)
    assert answer["promise"]["kept"] is True
    assert answer["all_rows"]["ece"]["estimate"] < 0.01
    assert answer["n_classes"] == 0
    bare = json.loads(
        fitted("evaluate new.jsonl --score-key confidence --resamples 50 --json").stdout
    )
    assert bare["promise"] is None
    assert bare["gate"]["auroc"]["estimate"] == answer["gate"]["auroc"]["estimate"]
    other = fitted(
        "evaluate new.jsonl --score-key confidence --higher-is doubtful --resamples 50 --json"
    )
    assert json.loads(other.stdout)["gate"]["auroc"]["estimate"] == pytest.approx(
        1 - bare["gate"]["auroc"]["estimate"]
    )


def test_show_explains_it(fitted):
    text = fitted("show cal.json").stdout
    assert "a gate on a score (ScoreGate), without logits" in text
    assert "confidence: higher is surer; a row without one is rejected" in text
    answer = json.loads(fitted("show cal.json --json").stdout)
    assert (answer["kind"], answer["input"], answer["higher_is"]) == (
        "ScoreGate",
        "scores",
        "surer",
    )


@pytest.mark.slow
def test_report_without_probabilities(fitted, folder):
    done = fitted("report cal.json new.jsonl -o report.html --resamples 20")
    assert "measured  kept: selective accuracy 0.9521" in done.stdout
    answer = json.loads(
        fitted("report cal.json new.jsonl -o report.html --resamples 20 --json").stdout
    )
    assert answer["source"]["n_classes"] == 0
    assert answer["source"]["score"] == "-confidence"
    assert [(d["stage"], d["rows"]) for d in answer["diagrams"]] == [("after", "all")]
    assert answer["curves"]["command"] == (
        "metacal fit new.jsonl --score-key confidence --correct-key ok"
    )
    point = answer["curves"]["current"]
    assert answer["curves"]["accepted"][point] == 9504
    assert -answer["curves"]["threshold"][point] == pytest.approx(
        0.879
    )  # as people read it: confidence >= 0.87
    assert answer["mistakes"][0]["id"].startswith("q")
    bare = json.loads(
        fitted("report new.jsonl --score-key confidence -o report.html --resamples 0 --json").stdout
    )
    assert bare["promise"] is None
    assert bare["diagrams"] == []
    assert bare["mistakes"][0]["confidence"] is None


@pytest.mark.slow
def test_the_command_under_the_point_certifies_it(fitted):
    answer = json.loads(
        fitted("report cal.json new.jsonl -o report.html --resamples 0 --json").stdout
    )
    curves, at = answer["curves"], answer["curves"]["current"]
    promises = (
        f" --min-accuracy {curves['min_accuracy'][at]} --max-miscoverage"
        f" {curves['max_miscoverage'][at]}"
    )
    line = (
        f"{curves['command']}{promises}"
        f" --at-threshold={curves['threshold_text'][at]}{curves['command_end']}"
    )
    done = fitted(line.removeprefix("metacal ").replace("new-gate.json", "picked.json"))
    assert (
        "certified"
        in json.loads(fitted("show picked.json --json").stdout)["certificate"]["guarantee"]
    )
    assert "accept if confidence" in done.stdout
    assert curves["threshold_text"][at] == "0.879"
    assert json.loads(fitted("apply picked.json new.jsonl --json").stdout)["n_accepted"] == 9504


@pytest.mark.slow
def test_export(fitted):
    pytest.importorskip("onnxruntime")
    done = fitted("export cal.json -o gate.onnx --json")
    assert json.loads(done.stdout)["outputs"] == ["accept", "confidence"]
    assert "--input" in fitted("export cal.json -o gate.onnx --input logits", code=2).stderr


def test_losses_are_doubtful(run, folder):
    rows = [json.loads(line) for line in (folder / "judge.jsonl").read_text().splitlines()]
    np.savez(
        folder / "loss.npz",
        loss=[1 - row["confidence"] for row in rows],
        correct=[row["ok"] for row in rows],
    )
    done = run(
        "fit loss.npz --score-key loss --higher-is doubtful --min-accuracy 0.95 -o loss.json"
    )
    assert "accept if loss < 0.13\n" in done.stdout
    assert (
        "Leave out --higher-is"
        in run("apply loss.json loss.npz --higher-is surer --json", code=2).stderr
    )
    assert (
        "--higher-is doubtful"
        in run("fit loss.npz --score-key loss --min-accuracy 0.95", code=1).stderr
    )


WRONG = {
    "fit judge.jsonl --score-key nope --min-accuracy 0.9": (
        2,
        "--score-key names 'nope', which the file",
    ),
    "fit judge.jsonl --score-key answer --min-accuracy 0.9": (
        2,
        "judge.jsonl:1: the answer must be a number, but it is '...'. Leave out rows without a number.",
    ),
    "fit judge.jsonl --score-key confidence --correct-key id --min-accuracy 0.9": (
        2,
        "judge.jsonl:1: id must mark whether the row is correct, but it is 'q0'.",
    ),
    "fit judge.jsonl --score-key confidence --correct-key confidence --min-accuracy 0.9": (
        2,
        "'confidence' already has another meaning. Name another column",
    ),
    "fit judge.jsonl --score-key confidence --min-accuracy 0.999": (
        1,
        "on these 4,929 rows",
    ),
    "fit judge.jsonl --score-key confidence": (2, "No promise given"),
    "fit judge.jsonl --correct-key ok --min-accuracy 0.9": (
        2,
        "--correct-key requires scores instead of logits",
    ),
    "fit judge.jsonl --higher-is surer --min-accuracy 0.9": (
        2,
        "--higher-is requires scores instead of logits",
    ),
    "fit judge.jsonl --score-key confidence --score margin --min-accuracy 0.9": (
        2,
        "--score requires logits",
    ),
    "fit judge.jsonl --score-key confidence --calibrator spline --min-accuracy 0.9": (
        2,
        "--calibrator requires logits",
    ),
    "fit judge.jsonl --score-key confidence --label-key ok --min-accuracy 0.9": (
        2,
        "--label-key ok requires --prediction-key",
    ),
    "fit judge.jsonl --score-key confidence --input probabilities --min-accuracy 0.9": (
        2,
        "--input requires logits",
    ),
    "apply cal.json new.jsonl --json --rejected uniform": (2, "--rejected requires logits"),
    "apply cal.json logits.npz --json": (
        2,
        "(cal.json is a gate on the score 'confidence', not on logits.)",
    ),
    "apply logits.json new.jsonl --json --score-key confidence": (
        2,
        "logits.json was fitted on logits",
    ),
    "apply logits.json new.jsonl --json": (2, "new.jsonl:1: the entry 'answer' is"),
    "verify cal.json unlabelled.jsonl": (
        2,
        "no column 'ok' found, so metacal cannot tell which",
    ),
    "compare judge.jsonl --score-key confidence": (2, "this command needs logits"),
    "attach model.onnx cal.json -o served.onnx": (
        2,
        "cal.json holds a gate on the score 'confidence'",
    ),
    "report cal.json new.jsonl --compare": (2, "--compare requires logits"),
}


@pytest.mark.parametrize("line", WRONG)
def test_what_cannot_be_meant_is_said(fitted, folder, line):
    (folder / "unlabelled.jsonl").write_text('{"confidence": 0.5}\n')
    code, complaint = WRONG[line]
    assert complaint in " ".join(fitted(line, code=code).stderr.split())


def test_one_row_of_each_question_counts(run, folder):
    rows = [json.loads(line) for line in (folder / "judge.jsonl").read_text().splitlines()]
    with (folder / "thrice.jsonl").open("w") as file:  # three answers to each question
        for k, row in enumerate(rows):
            file.write(json.dumps({**row, "question": f"q{k // 3}"}) + "\n")
    done = run(
        "fit thrice.jsonl --score-key confidence --unit-key question --min-accuracy 0.95 -o"
        " units.json"
    )
    assert "one random row from each of 1,667 clusters (5,000 rows in total)" in " ".join(
        done.stdout.split()
    )
    certificate = json.loads(run("show units.json --json").stdout)["certificate"]
    assert certificate["n_rows"] == 1626
    assert "any row of a new cluster" in certificate["words"]["assumptions"][0]
    assert (
        "--unit-key names 'video', which the"
        in run(
            "fit thrice.jsonl --score-key confidence --unit-key video --min-accuracy 0.9", code=2
        ).stderr
    )


def test_a_signed_gate(fitted, folder):
    (folder / "secret.key").write_text("0123456789abcdef" * 4)
    (folder / "secret.key").chmod(0o600)
    fitted(
        "fit judge.jsonl --score-key confidence --min-accuracy 0.95 -o signed.json --sign"
        " secret.key"
    )
    assert "signed by hmac-sha256, verified" in fitted("show signed.json --key secret.key").stdout
    assert (
        "the file is not signed"
        in fitted("apply cal.json new.jsonl --json --key secret.key", code=2).stderr
    )
