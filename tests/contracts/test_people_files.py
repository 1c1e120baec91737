"""`metacal start` on the sixty files of `people_files.py`.

It is right in fifty-seven, and says what it needs in the three that nobody can read without asking.
Right means: the gate that it writes decides about the file, and about a file of other rows with the
same columns, with the classes, the order and the truth that the file holds.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.io.file_inspection import inspect_file

LIST = Path(__file__).with_name("people_files.py")
FILES = runpy.run_path(str(LIST))["PEOPLE_FILES"]
NEW_FILES = runpy.run_path(str(LIST), init_globals={"SEED": 21})["PEOPLE_FILES"]
READABLE = [name for name, file in FILES.items() if file.content is not None]
#: Part of the question about each file that does not contain without asking.
QUESTIONS = {
    "excel-sep-line.csv": "--positive bad or --positive good",
    "unlabelled.csv": "Name the true classes with --label-key NAME",
    "one-class.csv": "Every label in 'churn' is 'No'",
}


def run(*words, codes=(0,)):
    """Run a command and return its result."""
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code in codes, (words, done.output, done.exception)
    return done


def write_files(folder, name):
    """Write a file and a file of other rows, and return their paths."""
    for subfolder, files in (("old", FILES), ("new", NEW_FILES)):
        (folder / subfolder).mkdir()
        files[name].write(folder / subfolder / name)
    return folder / "old" / name, folder / "new" / name


def test_the_list_has_sixty_files_and_three_questions():
    assert len(FILES) == 60
    assert {name for name in FILES if FILES[name].content is None} == set(QUESTIONS)


def test_exactly_three_files_need_an_answer(tmp_path):
    questions = {}
    for name, file in FILES.items():
        file.write(tmp_path / name)
        question = inspect_file(str(tmp_path / name)).question
        if question is not None:
            questions[name] = question
    assert questions.keys() == QUESTIONS.keys()
    for name, text in QUESTIONS.items():
        assert text in questions[name]


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_asked_with_exit_code_2_and_nothing_is_written(name, tmp_path):
    FILES[name].write(tmp_path / name)
    done = run("start", tmp_path / name, "--yes", "-o", tmp_path / "out", codes=(2,))
    assert QUESTIONS[name] in " ".join(done.stderr.split())
    assert "Nothing was written." in done.stderr
    assert not (tmp_path / "out").exists()


def check_decisions(gate, path, content):
    """Check that a gate reads a file without any option as the list says."""
    output = path.parent / "decisions.jsonl" if "*" not in str(path) else Path("decisions.jsonl")
    run("apply", gate, path, "-o", output)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    output.unlink()
    scored = [row for row in rows if row["score"] is not None]
    assert len(scored) == len(content.correct)
    if content.predictions is not None:
        assert [canonical(row["answer"]) for row in scored] == content.predictions.tolist()
    confidence = np.array([row["confidence"] for row in scored])
    order = np.argsort(content.confidence, kind="stable")
    if content.predictions is None:
        assert (np.diff(confidence[order]) >= -1e-9).all()
        assert np.ptp(confidence) > 0.0
    measured = json.loads(run("evaluate", gate, path, "--resamples", 0, "--json").stdout)
    if content.predictions is None:
        accuracy = measured["all_rows"]["accuracy"]["estimate"]
    else:
        accuracy = measured["uncalibrated"]["all_rows"]["accuracy"]
    assert accuracy == pytest.approx(content.correct.mean())


def check_monitor(gate, path):
    """Check that a monitor reads every row of a file, and the truth of every scored one."""
    done = run("monitor", gate, path, "--json", codes=(0, 3))
    watched = json.loads(done.stdout)
    run("apply", gate, path, "-o", "monitored.jsonl")
    assert watched["rows"] == len(Path("monitored.jsonl").read_text().splitlines())
    assert "does not contain" not in done.stderr


def first_file(path):
    """Return the file, or the first file of a folder or pattern."""
    if path.is_dir():
        return min(path.iterdir())
    return min(path.parent.glob(path.name))


def canonical(value):
    """Return a class as text, with one spelling for each number."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


@pytest.mark.slow
@pytest.mark.parametrize("name", READABLE)
def test_start_is_right_and_every_command_that_it_prints_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, new_path = write_files(tmp_path, name)
    done = run("start", path, "--yes", "--mistake-cost", 3, "-o", "out")
    (gate,) = Path("out").glob("*.gate.json")
    page = next(Path("out").glob("*.next.md")).read_text()

    check_decisions(gate, path, FILES[name].content)
    check_decisions(gate, new_path, NEW_FILES[name].content)

    check_monitor(gate, first_file(new_path))
    fitted = mc.load_gate(gate)
    printed = re.findall(r"^\$ metacal (.*)$", done.stderr, re.MULTILINE)
    on_page = re.findall(r"^metacal (.*)$", page, re.MULTILINE)
    assert len(printed) >= 3
    assert [line.split()[0] for line in on_page][-3:] == ["apply", "verify", "monitor"]
    for line in dict.fromkeys((*on_page, *printed)):  # each distinct command once
        words = [str(new_path) if word == "NEW" else word for word in shlex.split(line)]
        if words[0] == "monitor":
            words = [str(first_file(new_path)) if word == str(new_path) else word for word in words]
        run(*words)
        if words[0] == "fit" and line in on_page:
            assert mc.load_gate(gate) == fitted
    python = re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1)
    exec(python, {})
    assert mc.load_gate(gate).threshold == fitted.threshold
