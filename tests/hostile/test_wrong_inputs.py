"""Wrong inputs through the command line: each is told its cause, in words that were read and
kept.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import metacal as mc

_SPEC = importlib.util.spec_from_file_location(
    "wrong_inputs", Path(__file__).with_name("wrong_inputs.py")
)
wrong_inputs = sys.modules["wrong_inputs"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(wrong_inputs)

KEPT = wrong_inputs.kept()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("wrong")
    wrong_inputs.make_files(path)
    return path


def test_every_command_has_its_message_and_there_are_many():
    assert list(KEPT) == wrong_inputs.COMMANDS
    assert len(KEPT) >= 60


@pytest.mark.parametrize("words", wrong_inputs.COMMANDS)
def test_a_wrong_input_is_told_what_is_wrong(folder, words):
    needed = wrong_inputs.needs(words)
    if needed is not None:
        pytest.importorskip(needed)
    said = wrong_inputs.answer(folder, words)
    assert said == KEPT[words], (
        "read the new message; if it is better: python tests/hostile/wrong_inputs.py"
    )
    assert "Error: " in said or "Warning: " in said
    assert "Traceback" not in said
    assert "unexpected error; please report" not in said
    lines = said.splitlines()
    assert len(set(lines)) == len(lines), "said twice"


CAUSES = {
    "softmax.npz": "as probabilities do",
    "rounded.csv": "as probabilities do",
    "floor.npz": "log-probabilities with a floor",
    "whole.npz": "Every logit is a whole number",
    "alike.npz": "All rows are alike",
    "decisions.npz": "a single 1 among zeros",
    "duplicated.npz": "repeat the logits of an earlier row",
    "latency.csv": "Column 'latency_s' is left out",
    "unnamed.csv": "Column 'Unnamed: 0' is read as a class",
    "split.csv": "Column 'split' is left out",
}


@pytest.mark.parametrize("file", CAUSES)
def test_no_certificate_without_its_cause(folder, tmp_path, file):
    out = tmp_path / "cal.json"
    said = wrong_inputs.answer(folder, f"fit {file} --max-miscoverage 0.1 -o {out}")
    assert CAUSES[file] in said
    notes = [str(note) for note in mc.load(out).certificate_.notes]
    assert sum(CAUSES[file] in note for note in notes) == 1
    out.unlink()
    strict = wrong_inputs.answer(folder, f"fit {file} --max-miscoverage 0.1 -o {out} --strict")
    assert strict.startswith("exit 2\nError: ")
    assert CAUSES[file] in strict
    assert not out.exists()


@pytest.mark.parametrize(
    "words",
    [
        "fit val.npz --max-miscoverage 0.1",
        "fit val.csv --max-miscoverage 0.1",
        "apply cal.json val.npz --json",
    ],
)
def test_a_good_file_is_not_questioned(folder, words):
    assert wrong_inputs.answer(folder, f"{words} --strict") == "exit 0"


def test_a_gate_fitted_on_softmax_takes_softmax(folder):
    assert wrong_inputs.answer(folder, "apply softmax.json softmax.npz --json --strict") == "exit 0"
    said = wrong_inputs.answer(folder, "verify probabilities.json probabilities.npz")
    assert said.startswith("exit 1\n")  # rows of the fit
    assert said.count("Warning") == 1


def test_standard_output_by_any_name(folder):
    from click.testing import CliRunner

    from metacal.cli import main

    words = ["apply", str(folder / "cal.json"), str(folder / "val.npz"), "-o"]
    plain, device = (
        CliRunner().invoke(main, [*words, name]).stdout for name in ("-", "/dev/stdout")
    )
    assert plain == device
    assert plain.startswith("labels,prediction,answer,confidence,accept")
