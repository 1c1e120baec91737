"""metacal monitor on the command line: streams of every kind, exit codes, JSON, metrics, restarts,
what it cannot.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.gate import ScoreCascadeData
from metacal.gate.calibrate import calibrate

NAMES = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]


def run(*args, **options):
    return CliRunner().invoke(main, ["monitor", *map(str, args)], **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A gate; good.csv with half of the labels; bad.jsonl with labels that come 50 rows later, many
    of them wrong.
    """
    folder = tmp_path_factory.mktemp("monitor")
    data = mc.datasets.load("cifar10-resnet110")
    names = np.array(NAMES)
    gate = mc.MetaCal(mc.MinAccuracy(0.97), classes=NAMES, reject_label="?")
    mc.save(gate.fit(data.logits[:5000], names[data.labels[:5000]]), folder / "cal.json")
    lines = ["id," + ",".join(f"logits_{name}" for name in NAMES[::-1]) + ",label,p\n"]
    for k in range(5000, 6000):
        label = NAMES[data.labels[k]] if k % 2 else ""
        lines.append(
            f"{k}," + ",".join(map(repr, data.logits[k][::-1].tolist())) + f",{label},0.5\n"
        )
    (folder / "good.csv").write_text("".join(lines), encoding="utf-8")
    told = []
    for k in range(5000, 7000):
        told.append({"id": k, "logits": data.logits[k].tolist()})
        if k >= 5050:
            told.append({"id": k - 50, "label": NAMES[(data.labels[k - 50] + (k % 8 == 0)) % 10]})
    (folder / "bad.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in told), encoding="utf-8"
    )
    np.savez(
        folder / "good.npz", logits=data.logits[5000:6000], labels=names[data.labels[5000:6000]]
    )
    return folder


@pytest.mark.slow
def test_a_good_stream(folder, tmp_path):
    done = run(folder / "cal.json", folder / "good.csv", "--prometheus", tmp_path / "m.prom")
    assert done.exit_code == 0
    assert "labelled     500, accepted 4" in done.stdout
    assert "at most 5% false alarms in all, ever: promise 2.5%, abstention 0.63%" in " ".join(
        done.stdout.split()
    )
    assert "from confidence alone: not valid if the rows have changed" in " ".join(
        done.stdout.split()
    )
    assert 'metacal_alarm{alarm="promise"} 0\n' in (tmp_path / "m.prom").read_text()
    whole = json.loads(run(folder / "cal.json", folder / "good.npz", "--json").stdout)
    assert (whole["rows"], whole["labelled"], whole["alarm"]) == (1000, 1000, False)
    sampled = run(
        folder / "cal.json",
        folder / "good.csv",
        "--probability-key",
        "p",
        "--least-probability",
        0.5,
        "--json",
    )
    assert json.loads(sampled.stdout)["alarm"] is False


@pytest.mark.slow
def test_a_broken_promise(folder):
    done = run(folder / "cal.json", folder / "bad.jsonl", "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["raised"]) == (3, ["promise", "calibration"])
    assert (found["rows"], found["labelled"], found["waiting"], found["unknown"]) == (
        2000,
        1950,
        50,
        0,
    )
    assert found["alarms"][0]["at_row"] < 2000
    assert "ALARM by row" in run(folder / "cal.json", folder / "bad.jsonl").stdout


@pytest.mark.slow
def test_standard_input_as_it_comes(folder):
    call = [sys.executable, "-m", "metacal", "monitor", folder / "cal.json", "-", "--json", "-q"]
    done = subprocess.run(
        call, stdin=(folder / "good.csv").open("rb"), capture_output=True, text=True
    )
    assert (done.returncode, json.loads(done.stdout)["rows"], done.stderr) == (0, 1000, "")


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_as_if_it_had_not_been(folder, tmp_path):
    want = json.loads(run(folder / "cal.json", folder / "bad.jsonl", "--json").stdout)
    lines = (folder / "bad.jsonl").read_bytes().splitlines(keepends=True)
    grows, state = tmp_path / "grows.jsonl", tmp_path / "state.json"
    random, written = np.random.default_rng(0), 0
    for share in (0.3, 0.7):
        written = int(share * len(lines)) + int(random.integers(50))
        grows.write_bytes(
            b"".join(lines[:written]) + lines[written][:100]
        )  # the last line is not whole yet
        call = [
            sys.executable,
            "-m",
            "metacal",
            "monitor",
            folder / "cal.json",
            grows,
            "--follow",
            "--state",
            state,
        ]
        running = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end, before = time.monotonic() + 60, state.stat().st_mtime_ns if state.exists() else 0
        while time.monotonic() < end and (not state.exists() or state.stat().st_mtime_ns == before):
            time.sleep(0.02)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
    grows.write_bytes(b"".join(lines))
    found = json.loads(run(folder / "cal.json", grows, "--state", state, "--json").stdout)
    again = json.loads(
        run(folder / "cal.json", grows, "--state", state, "--json").stdout
    )  # nothing is new
    for told in (found, again):
        for name in ("rows", "accepted", "labelled", "correct_accepted", "waiting", "raised"):
            assert told[name] == want[name], name
        one, other = ([alarm["log_evidence"] for alarm in each["alarms"]] for each in (told, want))
        assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.slow
def test_a_state_belongs_to_its_stream_and_its_gate(folder, tmp_path):
    state = tmp_path / "state.json"
    assert run(folder / "cal.json", folder / "good.csv", "--state", state).exit_code == 0
    other = run(folder / "cal.json", folder / "bad.jsonl", "--state", state)
    assert (
        other.exit_code,
        "does not continue the stream" in other.stderr,
        "--append" in other.stderr,
    ) == (
        2,
        True,
        True,
    )
    again = run(folder / "cal.json", folder / "good.csv", "--state", state, "--append", "--json")
    assert (
        json.loads(again.stdout)["rows"] == 1000
    )  # a file that the state knows is not counted twice
    more = run(folder / "cal.json", folder / "good.npz", "--state", state, "--append", "--json")
    assert json.loads(more.stdout)["rows"] == 2000
    assert (
        "a different --confidence"
        in run(
            folder / "cal.json", folder / "good.csv", "--state", state, "--confidence", 0.9
        ).stderr
    )
    data = mc.datasets.load("cifar10-resnet110")
    gate = mc.MetaCal(mc.MinAccuracy(0.96), classes=NAMES, reject_label="?")
    mc.save(
        gate.fit(data.logits[:5000], np.array(NAMES)[data.labels[:5000]]), tmp_path / "other.json"
    )
    assert (
        "another gate" in run(tmp_path / "other.json", folder / "good.csv", "--state", state).stderr
    )
    state.write_text(state.read_text().replace('"counts":[2', '"counts":[3', 1))
    assert (
        "state.json:2: this record is damaged"
        in run(folder / "cal.json", folder / "good.csv", "--state", state).stderr
    )


def test_evaluate_without_labels_estimates_and_says_so(folder, tmp_path):
    data = mc.datasets.load("cifar10-resnet110")
    np.savez(tmp_path / "bare.npz", logits=data.logits[5000:7000])
    call = ["evaluate", str(folder / "cal.json"), str(tmp_path / "bare.npz")]
    done = CliRunner().invoke(main, call)
    assert (
        done.exit_code,
        "an estimate from confidence alone" in " ".join(done.stdout.split()),
    ) == (0, True)
    assert "estimated instead of measured" in done.stderr
    assert (
        json.loads(CliRunner().invoke(main, [*call, "--json", "-q"]).stdout)["estimate"]["n_rows"]
        == 2000
    )


def test_scores_in_place_of_logits(tmp_path):
    random = np.random.default_rng(0)
    mark = random.random(3000).round(3)
    right = random.random(3000) > (1.0 - mark) ** 2
    gate = mc.ScoreGate(mc.MinAccuracy(0.9), score_name="mark").fit(mark[:1500], right[:1500])
    mc.save(gate, tmp_path / "judge.json")
    rows = [f"{m},{'yes' if r else 'no'}\n" for m, r in zip(mark[1500:], right[1500:])]
    (tmp_path / "new.csv").write_text("mark,ok\n" + "".join(rows) + ",\n", encoding="utf-8")
    found = json.loads(run(tmp_path / "judge.json", tmp_path / "new.csv", "--json").stdout)
    assert (found["rows"], found["labelled"], found["alarm"], found["classes"]) == (
        1501,
        1500,
        False,
        [],
    )


def test_what_cannot_be_watched_is_said(folder, tmp_path):
    fixtures = os.path.join(os.path.dirname(__file__), "fixtures")
    old = run(os.path.join(fixtures, "artifact-v3-gate.json"), folder / "none.csv")
    assert (old.exit_code, "file does not exist" in old.stderr) == (2, True)
    gate = mc.load_gate(os.path.join(fixtures, "artifact-v3-gate.json"))
    width = gate.n_classes
    (tmp_path / "rows.csv").write_text(
        ",".join(f"logits_{name}" for name in gate.classes) + "\n" + ",".join("1" * width) + "\n",
        encoding="utf-8",
    )
    told = run(os.path.join(fixtures, "artifact-v3-gate.json"), tmp_path / "rows.csv").stdout
    assert "score        cannot be watched: it was saved without a profile" in told
    for promise, says in (
        ("accuracy", "needs whole files"),
        ("loss", "two predictions for a row"),
    ):
        done = run(os.path.join(fixtures, "cascade-v3", f"{promise}.json"), folder / "good.csv")
        assert (done.exit_code, says in " ".join(done.stderr.split())) == (2, True), done.stderr


@pytest.fixture(scope="module")
def cascade(tmp_path_factory):
    """A cascade of three models on scores, and a function that writes traffic: a line for each
    row.
    """
    folder, rng = tmp_path_factory.mktemp("cascade"), np.random.default_rng(3)

    def traffic(n, worse=0.0):
        hard, noise = rng.random(n), rng.random((2, n))
        scores = [(1.0 - 0.9 * hard - 0.1 * one).round(4) for one in noise]
        good = [rng.random(n) >= 0.3 * hard**3 + worse, rng.random(n) >= 0.1 * hard**3 + worse]
        return scores, good

    scores, good = traffic(2000)
    data = ScoreCascadeData(scores, agrees=good, score_names=["small.p", "middle.p"])
    gate = calibrate(data, mc.MaxLoss(0.03))
    mc.save(gate, folder / "cascade.json")
    return folder, traffic


def lines_of(folder, scores, good, gate):
    """Traffic as it is logged: by.jsonl says of each model whether it is good, late.jsonl only of
    what was given.
    """
    by = gate.decide(*scores, np.zeros(len(scores[0]))).by
    given = (by == 2) | np.stack(good)[np.minimum(by, 1), np.arange(len(by))]
    rows, late = [], []
    for k, who in enumerate(by.tolist()):
        row = {
            "id": k,
            "small": {"p": scores[0][k]},
            **({"middle": {"p": scores[1][k]}} if who else {}),
        }
        late += [row, {"id": k, "agrees": bool(given[k])}]
        told = {
            name: {**row.get(name, {}), "same": bool(one[k])}
            for name, one in zip(("small", "middle"), good)
        }
        rows.append(row | told)
    for name, some in (("by.jsonl", rows), ("late.jsonl", late)):
        (folder / name).write_text(
            "".join(json.dumps(one) + "\n" for one in some), encoding="utf-8"
        )


def test_traffic_of_a_cascade(cascade, tmp_path):
    folder, traffic = cascade
    gate = mc.load_gate(folder / "cascade.json")
    scores, good = traffic(1500)
    lines_of(tmp_path, scores, good, gate)
    want = mc.Watch.of(gate, most_unreadable=0.01).update(scores, good)
    keys = ["--agree-key", "small.same,middle.same"]
    columns = dict(zip(("small.p", "middle.p", "small.same", "middle.same"), [*scores, *good]))
    np.savez(tmp_path / "whole.npz", **columns)
    texts = zip(*(map(str, one.tolist()) for one in columns.values()))
    (tmp_path / "by.csv").write_text(
        "\n".join(map(",".join, [tuple(columns), *texts])) + "\n", encoding="utf-8"
    )
    for file, more in (
        ("by.jsonl", keys),
        ("late.jsonl", []),
        ("whole.npz", keys),
        ("by.csv", keys),
    ):
        done = run(folder / "cascade.json", tmp_path / file, *more, "--json")
        found = json.loads(done.stdout)
        assert (done.exit_code, found["rows"], found["labelled"], found["unreadable"]) == (
            0,
            1500,
            1500,
            0,
        )
        assert found["correct_accepted"] == want.counts.correct_accepted
        assert found["alarms"][0]["log_evidence"] == pytest.approx(
            next(iter(want.alarms)).log_evidence
        )


def test_a_cascade_goes_on_from_its_state(cascade, tmp_path):
    folder, traffic = cascade
    lines_of(tmp_path, *traffic(600, worse=0.2), mc.load_gate(folder / "cascade.json"))
    call = [folder / "cascade.json", tmp_path / "late.jsonl"]
    want = json.loads(run(*call, "--json").stdout)
    whole = (tmp_path / "late.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "late.jsonl").write_bytes(b"".join(whole[:301]))  # a row waits for its label
    state = ["--state", tmp_path / "watch.journal", "--json"]
    assert json.loads(run(*call, *state).stdout)["waiting"] == 1
    (tmp_path / "late.jsonl").write_bytes(b"".join(whole))
    done = run(*call, *state)
    found = json.loads(done.stdout)
    assert (done.exit_code, found["raised"]) == (3, ["promise"])
    assert [found[name] for name in ("rows", "labelled", "correct_accepted")] == [
        600,
        600,
        want["correct_accepted"],
    ]


def test_what_does_not_fit_a_cascade_is_said(cascade, tmp_path):
    folder = cascade[0]
    (tmp_path / "rows.jsonl").write_text(
        '{"id": 1, "small": {"p": 0.9}, "middle": {"p": "odd"}}\n{"id": 1, "small": {"same":'
        " true}}\n",
        encoding="utf-8",
    )
    (tmp_path / "rows.csv").write_text("id,small.p\n1,0.5\n", encoding="utf-8")
    keys = ["--agree-key", "small.same,middle.same"]
    for args, says in [
        (
            ["rows.jsonl", *keys, "--strict"],
            "rows.jsonl:1: 'middle.p' holds 'odd', which is not a number",
        ),
        (
            ["rows.jsonl", *keys],
            ("rows.jsonl:2: a late label must be in the column 'agrees'"),
        ),
        (
            ["rows.jsonl", "--agree-key", "small.same"],
            "2 names in --score-key and 2 names in --agree-key",
        ),
        (
            ["rows.jsonl", "--loss-key", "small.same"],
            "Name the columns with --agree-key",
        ),
        (["rows.csv"], "the file has no column 'middle.p'"),
        (["rows.csv", "--large", "rows.csv"], "as .npz or .parquet"),
    ]:
        done = run(folder / "cascade.json", tmp_path / args[0], *args[1:])
        assert (done.exit_code, says in " ".join(done.stderr.split())) == (2, True), done.stderr


@pytest.mark.parametrize("kind", ["logits", pytest.param("probabilities", marks=pytest.mark.slow)])
def test_a_cascade_over_tables_by_whole_files(kind, tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=2000)
    small, large = (rng.normal(size=(2000, 3)) + gap * np.eye(3)[y] for gap in (2.0, 4.0))
    if kind == "probabilities":
        small, large = (
            np.exp(one) / np.exp(one).sum(axis=1, keepdims=True) for one in (small, large)
        )
    fitted = mc.Cascade(promise=mc.MinAccuracy(0.8), input=kind).fit(
        small[:1000], y[:1000], large=large[:1000]
    )
    mc.save(fitted, tmp_path / "cascade.json")
    np.savez(tmp_path / "small.npz", **{kind: small[1000:]}, labels=y[1000:])
    np.savez(tmp_path / "large.npz", **{kind: large[1000:]})
    call = [tmp_path / "cascade.json", tmp_path / "small.npz", "--json"]
    found = json.loads(run(*call, "--large", tmp_path / "large.npz").stdout)
    want = mc.Watch.of(fitted, most_unreadable=0.01).update([small[1000:], large[1000:]], y[1000:])
    assert [found[name] for name in vars(want.counts)] == list(vars(want.counts).values())
    assert "--large LARGEFILE" in run(*call).stderr
    call[1] = tmp_path / "large.npz"  # without labels
    found = json.loads(run(*call, "--large", tmp_path / "large.npz").stdout)
    assert (found["rows"], found["labelled_accepted"]) == (1000, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (
            ["good.csv", "--input", "probabilities"],
            2,
            "FILE must hold logits, because",
        ),
        (["good.csv", "--score-key", "mark"], 2, "--score-key requires scores instead of logits"),
        (["good.csv", "--state", "nowhere/state.json"], 2, "does not exist"),
        (["good.csv", "--append"], 2, "--append has no effect without --state"),
        (["good.csv", "--least-probability", 0.1], 2, "--probability-key"),
        (["good.csv", "--state", "good.csv"], 2, "Error: good.csv is also an input file"),
        (
            ["good.csv", "--state", "odd.csv"],
            2,
            "odd.csv: the file is not a journal of 'metacal monitor'. Pass another name",
        ),
        (
            ["wide.jsonl", "--format", "csv"],
            2,
            "wide.jsonl: the file looks like JSON, but it is read as csv. Pass --format",
        ),
        (["good.npz", "--probability-key", "p"], 2, "support only text formats"),
        (["good.csv", "--probability-key", "q"], 2, "--probability-key names 'q'"),
        (
            ["good.csv", "--probability-key", "p", "--least-probability", 0.9],
            2,
            "--least-probability 0.9",
        ),
        (["good.csv", "--silence", 5], 2, "--silence requires a stream"),
        (
            ["good.csv", "--state", "a.x", "--quarantine", "a.x"],
            2,
            "--state and --quarantine name the same file",
        ),
        (
            ["good.csv", "--state", "a.x", "--quarantine", "./a.x"],
            2,
            "--state and --quarantine name the same file",
        ),
        (["odd.csv", "--strict"], 2, "odd.csv:3: the label 'z'"),
        (["odd.csv"], 0, "odd.csv:3: the label 'z'"),
        (
            ["short.csv"],
            2,
            "short.csv: no line could be read. The first error is: short.csv:2: this line has 2 cells",
        ),
        (["text.csv"], 2, "text.csv:2: 'logits_a' holds 'x'"),
        (["nan.csv", "--strict"], 2, "nan.csv:3: number 2 of the row is NaN; drop such rows"),
        (
            ["two.jsonl", "--strict"],
            2,
            "two.jsonl:2: number 1 of the row is NaN",
        ),  # the first, whoever notices it
        (
            ["wide.jsonl", "--strict"],
            2,
            "wide.jsonl:2: this row has 3 numbers, but the gate was fitted on 10 classes",
        ),
        (["lost.jsonl", "--strict"], 2, "lost.jsonl:2: a line without a row"),
        (["torn.jsonl", "--strict"], 2, "torn.jsonl:2: this line is not one complete JSON object"),
    ],
)
def test_wrong_usage_and_wrong_rows(folder, args, code, says, monkeypatch):
    monkeypatch.chdir(folder)
    head = "id," + ",".join(f"logits_{name}" for name in NAMES) + ",label\n"
    row = ",".join("1234567890") + ","
    (folder / "odd.csv").write_text(f"{head}1,{row}a\n2,{row}z\n", encoding="utf-8")
    (folder / "short.csv").write_text(f"{head}1,2\n", encoding="utf-8")
    (folder / "text.csv").write_text(f"{head}1,x,{row[2:]}a\n", encoding="utf-8")
    first = json.dumps({"id": 1, "logits": list(range(10))}) + "\n"
    (folder / "nan.csv").write_text(f"{head}1,{row}a\n2,1,nan,{row[4:]}a\n", encoding="utf-8")
    (folder / "wide.jsonl").write_text(first + '{"id": 2, "logits": [1, 2, 3]}\n', encoding="utf-8")
    odd = '{"id": 2, "logits": [NaN, 1, 2, 3, 4, 5, 6, 7, 8, 9]}\n{"id": 3, "logits": [1, 2, 3]}\n'
    (folder / "two.jsonl").write_text(first + odd, encoding="utf-8")
    (folder / "lost.jsonl").write_text(first + '{"id": 1}\n', encoding="utf-8")
    (folder / "torn.jsonl").write_text(first + '{"id": 1\n', encoding="utf-8")
    done = run("cal.json", *args)
    assert (done.exit_code, says in done.stderr) == (code, True), done.stderr


def test_why_a_row_is_put_aside(tmp_path):
    """Found by reading: of probabilities it was said that they are -infinity in every class."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([0.5, 0.5], 400)
    labels = (rng.random(400) < probabilities[:, 1]).astype(int)
    gate = mc.MetaCal(mc.MaxMiscoverage(0.2), input="probabilities").fit(probabilities, labels)
    mc.save(gate, tmp_path / "cal.json")
    rows = ["a,b,label", "0.25,0.75,1", "0.25,0.25,1", "nan,1,0", "0.5,0.5,"]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    run(tmp_path / "cal.json", tmp_path / "rows.csv", "--quarantine", tmp_path / "aside.jsonl")
    aside = [json.loads(line) for line in (tmp_path / "aside.jsonl").read_text().splitlines()]
    assert [(one["place"][-1], one["reason"][:38]) for one in aside] == [
        ("3", "the row holds no probabilities: they s"),
        ("4", "number 1 of the row is NaN; drop such "),
    ]


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_a_gate_by_units_wants_to_know_the_units(folder, tmp_path, kind):
    data, names = mc.datasets.load("cifar10-resnet110"), np.array(NAMES)
    units, path = np.repeat(np.arange(500), 3), tmp_path / f"rows.{kind}"
    gate = mc.MetaCal(mc.MinAccuracy(0.95), classes=NAMES)
    mc.save(
        gate.fit(data.logits[:1500], names[data.labels[:1500]], units=units), tmp_path / "cal.json"
    )
    rows, labels, patient = (
        data.logits[1500:1800],
        names[data.labels[1500:1800]],
        [f"p{k // 3}" for k in range(300)],
    )
    if kind == "npz":
        np.savez(path, logits=rows, labels=labels, patient=np.array(patient))
    else:
        cells = [[*map(repr, row.tolist()), *beside] for row, *beside in zip(rows, labels, patient)]
        head = [*(f"logits_{name}" for name in NAMES), "label", "patient"]
        path.write_text("".join(",".join(line) + "\n" for line in [head, *cells]), encoding="utf-8")
    refused = run(tmp_path / "cal.json", path)
    assert refused.exit_code == 2
    assert "This gate was certified on" in " ".join(refused.output.split())
    found = json.loads(run(tmp_path / "cal.json", path, "--unit-key", "patient", "--json").stdout)
    assert found["units"] == {"complete": 99, "strays": 0, "are_cases": False}
    assert found["alarm"] is False
    other = run(folder / "cal.json", folder / "good.csv", "--unit-key", "p")
    assert other.exit_code == 2
    assert "was certified on independent rows" in " ".join(other.output.split())
