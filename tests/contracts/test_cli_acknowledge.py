"""`metacal monitor --acknowledge`: an alarm is acknowledged in the state, and later rows are tested.

Each command that the monitor shows under an alarm runs in the folder of its files.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main

N_BAD, N_GOOD = 1200, 1200


@pytest.fixture(scope="module")
def lines():
    """JSON lines of rows: first some with wrong labels, then some with correct ones."""
    (_, _), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    labels = new_y[: N_BAD + N_GOOD].copy()
    labels[:N_BAD:3] = (labels[:N_BAD:3] + 1) % 10
    rows = zip(new_x.tolist(), labels.tolist())
    return [json.dumps({"logits": row, "label": label}) + "\n" for row, label in rows]


@pytest.fixture
def folder(tmp_path, monkeypatch, lines):
    """A folder with a gate, and traffic that breaks its promise."""
    (fit_x, fit_y), _ = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    mc.save(mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y), tmp_path / "cal.json")
    (tmp_path / "my traffic.jsonl").write_text("".join(lines[:N_BAD]), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def monitor(*options, code=0):
    arguments = ["monitor", "cal.json", "my traffic.jsonl", *map(str, options)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == code, (done.output, done.exception)
    return done


def append(folder, lines):
    with (folder / "my traffic.jsonl").open("a", encoding="utf-8") as file:
        file.write("".join(lines))


def test_an_alarm_is_acknowledged_and_later_rows_are_tested(folder, lines):
    monitor("--state", "watch.journal", code=3)
    reason = ["--acknowledge", "labels repaired"]
    done = monitor("--state", "watch.journal", *reason, "--json")
    assert "Acknowledged: promise, calibration" in done.stderr
    state = json.loads(done.stdout)
    assert (state["alarm"], state["raised"], state["rows"]) == (False, [], N_BAD)
    (period,) = state["acknowledged"]
    assert (period["at_row"], period["reason"]) == (N_BAD, "labels repaired")
    assert [alarm["name"] for alarm in period["alarms"]] == ["promise", "calibration"]

    append(folder, lines[N_BAD:])
    later = json.loads(monitor("--state", "watch.journal", "--json").stdout)
    assert (later["alarm"], later["rows"], later["acknowledged"]) == (
        False,
        N_BAD + N_GOOD,
        [period],
    )
    (promise,) = [alarm for alarm in later["alarms"] if alarm["name"] == "promise"]
    # The evidence is that of a monitor that has seen only the later rows.
    (folder / "my traffic.jsonl").write_text("".join(lines[N_BAD:]), "utf-8")
    alone = json.loads(monitor("--json").stdout)
    assert promise["log_evidence"] == pytest.approx(alone["alarms"][0]["log_evidence"], abs=1e-9)
    assert promise["seen"] == alone["alarms"][0]["seen"]


def test_the_same_rows_raise_the_alarm_again(folder, lines):
    monitor("--state", "watch.journal", code=3)
    append(folder, lines[:N_BAD])
    done = monitor("--state", "watch.journal", "--acknowledge", "nothing was done", code=3)
    assert "acknowledged" in done.stdout
    state = json.loads(monitor("--state", "watch.journal", "--json", code=3).stdout)
    assert state["alarms"][0]["at_row"] > N_BAD


def test_python_reads_what_the_command_has_acknowledged(folder):
    monitor("--state", "watch.journal", code=3)
    gate = mc.load_gate("cal.json")
    watch = mc.load_watch("watch.journal", gate)
    watch.acknowledge("repaired in Python")
    mc.save_watch(watch, "other.journal")
    state = json.loads(monitor("--state", "other.journal", "--append", "--json", code=3).stdout)
    assert state["acknowledged"][0]["reason"] == "repaired in Python"
    monitor("--state", "watch.journal", "--acknowledge", "repaired")
    assert mc.load_watch("watch.journal", gate).acknowledgements[0].reason == "repaired"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--acknowledge", "repaired"], "--state"),
        (
            ["--state", "new.journal", "--acknowledge", "repaired"],
            "No alarm was raised, so there is",
        ),
        (["--state", "watch.journal", "--acknowledge", " "], "reason must be one line"),
    ],
)
def test_what_cannot_be_acknowledged(folder, options, words):
    monitor("--state", "watch.journal", code=3)
    journal = (folder / "watch.journal").read_bytes()
    assert words in monitor(*options, code=2).stderr
    assert (folder / "watch.journal").read_bytes() == journal


def list_shown_commands(done):
    """Return the commands in a text, each on a line of its own."""
    lines = [line.strip() for line in done.stdout.splitlines()]
    return [line for line in lines if line.startswith("metacal ")]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--state", "my watch.journal"],
        ["--confidence", "0.9", "--tolerance", "0.03", "--horizon", "10", "--strict"],
        ["--state", "w.journal", "--max-unreadable", "0.05", "--prometheus", "m.prom", "--quiet"],
    ],
)
def test_every_command_under_an_alarm_runs(folder, options):
    (command,) = list_shown_commands(monitor(*options, code=3))
    program, *arguments = shlex.split(command)
    for option in set(options) - {"--quiet"}:
        assert option in arguments
    done = CliRunner().invoke(main, arguments)
    # Without a state, the command begins one, and raises the alarm again.
    expected = 0 if "--acknowledge" in arguments else 3
    assert (program, done.exit_code) == ("metacal", expected), done.output


def test_lines_are_counted_in_all_periods(folder, lines):
    append(folder, ["{broken\n"] * 3)
    first = json.loads(monitor("--state", "w.journal", "--json", code=3).stdout)
    assert (first["lines"], first["unreadable"]) == (N_BAD + 3, 3)
    append(folder, [*lines[N_BAD:], "{broken\n"])
    options = ["--state", "w.journal", "--acknowledge", "repaired", "--json"]
    second = json.loads(monitor(*options).stdout)
    assert (second["lines"], second["unreadable"]) == (N_BAD + N_GOOD + 4, 4)


def test_a_stream_that_cannot_be_read_again_has_no_command(folder, lines):
    call = [sys.executable, "-m", "metacal", "monitor", "cal.json", "-", "--format", "jsonl"]
    with (folder / "my traffic.jsonl").open("rb") as stream:
        done = subprocess.run(call, stdin=stream, capture_output=True, text=True)
    assert done.returncode == 3
    assert list_shown_commands(done) == []
    assert "Watch with --state" in done.stdout


def test_evidence_is_shown_as_a_frequency(folder, lines):
    shown = monitor(code=3).stdout
    assert "alarm at 1 in 40" in shown
    assert "e+" not in shown
    from metacal.reports.evidence import format_evidence

    random = np.random.default_rng(0)
    for log_evidence in random.uniform(0.1, 34.0, size=200):
        text = format_evidence(log_evidence)
        sizes = {"million": 1e6, "billion": 1e9, "trillion": 1e12}
        number, *unit = text.removeprefix("1 in ").replace(",", "").split()
        shown_number = float(number) * sizes.get("".join(unit), 1.0)
        assert shown_number <= np.exp(log_evidence) * (1 + 1e-8)
        assert shown_number >= np.exp(log_evidence) * 0.89
