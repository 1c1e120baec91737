"""What all commands have in common: the names in their JSON, --quiet, each warning once, and
`metacal config`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import SUMMARIES, main

#: What earlier versions called things, and what they are called now.
FORMER = {
    "n": "n_rows",
    "accepted": "n_accepted",
    "saved": "artifact",
    "with": "artifact",
    "report": "output",
}
#: Commands that read FILE, and commands that read or write ARTIFACT.
READS = {"fit", "apply", "evaluate", "verify", "compare", "report"}
HOLDS = {"fit", "apply", "evaluate", "verify", "report", "show", "export", "attach"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("words")
    rng = np.random.default_rng(5)
    table = rng.normal(size=(2000, 3)).astype(np.float32) * 3
    labels = (table + rng.normal(size=table.shape)).argmax(axis=1)
    np.savez(path / "val.npz", logits=table[:1000], labels=labels[:1000])
    np.savez(path / "test.npz", logits=table[1000:], labels=labels[1000:])
    copies = np.r_[table[:500], table[:100]], np.r_[labels[:500], labels[:100]]
    np.savez(path / "copies.npz", logits=copies[0], labels=copies[1])
    assert (
        ran("fit", path / "val.npz", "--min-accuracy", 0.9, "-o", path / "cal.json").exit_code == 0
    )
    return path


def ran(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


def calls(folder, out):
    """One call of every command that has --json, by its name."""
    cal, test = folder / "cal.json", folder / "test.npz"
    return {
        "demo": ("--dataset", "cifar10-resnet110", "-o", out / "demo.html"),
        "fit": (folder / "val.npz", "--min-accuracy", 0.9, "-o", out / "cal.json"),
        "apply": (cal, test, "-o", out / "rows.csv"),
        "evaluate": (cal, test, "--resamples", 5),
        "show": (cal,),
        "verify": (cal, test),
        "compare": (folder / "val.npz", "--calibrators", "temperature", "--repeats", 1),
        "report": (cal, test, "--resamples", 0, "-o", out / "report.html"),
        "export": (cal, "-o", out / "gate.onnx"),
        "config": (),
    }


def keys_of(answer):
    """Every key of every object in an answer, but for tables by column, whose names are the
    columns'.
    """
    if isinstance(answer, dict):
        for key, value in answer.items():
            yield key, value
            yield from keys_of(value)
    elif isinstance(answer, list):
        for value in answer:
            yield from keys_of(value)


@pytest.mark.slow
def test_a_thing_has_one_name_in_the_json_of_all_commands(folder, tmp_path):
    pytest.importorskip("onnx")
    tried = calls(folder, tmp_path)
    assert set(tried) <= set(SUMMARIES)
    for name, args in tried.items():
        done = ran(name, *args, "--json")
        assert done.exit_code == 0, (name, done.output)
        answer = json.loads(done.stdout)
        for key, value in keys_of(answer):
            assert key not in FORMER or isinstance(value, list | bool), (
                f"{name}: {key} is called {FORMER.get(key)}"
            )
        assert ("file" in answer) == (name in READS), name
        assert ("artifact" in answer) == (name in HOLDS), name
        if name in READS:
            assert isinstance(answer["n_rows"], int), name
        if name in ("demo", "apply", "report", "export"):
            assert str(answer["output"]).startswith(str(tmp_path)), name


@pytest.mark.slow
def test_quiet_leaves_results_and_errors(folder, tmp_path):
    pytest.importorskip("onnx")
    for name, args in calls(folder, tmp_path).items():
        done = ran(name, *args, "--quiet")
        assert done.exit_code == 0, (name, done.output)
        assert done.stderr == "", name
    warned = ran("fit", folder / "copies.npz", "--min-accuracy", 0.85)
    assert " ".join(warned.output.split()).count("100 of 600 rows repeat") == 1
    assert ran("fit", folder / "copies.npz", "--min-accuracy", 0.85, "-q").stderr == ""
    assert ran("fit", folder / "none.npz", "--min-accuracy", 0.85, "-q").stderr.startswith(
        "Error: "
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs script(1)")
def test_on_a_terminal_a_note_of_the_certificate_is_not_said_twice(folder):
    program = f"{sys.executable} -c 'from metacal.cli import main; main()'"
    typed = f"{program} fit {folder}/copies.npz --min-accuracy 0.85"
    said = subprocess.run(
        ["script", "-qec", typed, "/dev/null"], capture_output=True, text=True, check=True
    ).stdout
    assert "  note " in said
    assert said.count("100 of 600 rows repeat") == 1


@pytest.mark.slow
def test_a_warning_of_every_fold_is_said_once():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=200)
    table = 40.0 * np.eye(3)[labels] + rng.normal(
        size=(200, 3)
    )  # every row is right: each fold's T is bounded
    for fit in (
        lambda: mc.compare(table, labels, ["temperature"]),
        lambda: mc.AutoCalibrator().fit(table, labels),
    ):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            fit()
        assert sum("lower temperatures always" in str(one.message) for one in heard) == 1


def test_config_shows_what_a_report_of_a_problem_needs(monkeypatch):
    monkeypatch.setenv("METACAL_TRACEBACK", "1")
    answer = json.loads(ran("config", "--json").stdout)
    assert answer == mc.show_config().to_dict()
    assert answer["kernel"] in ("numpy", "fused")
    assert answer["numpy"] == np.__version__
    assert answer["environment"]["METACAL_TRACEBACK"] == "1"
    said = ran("config").stdout
    assert said.strip() == str(mc.show_config())
    assert "METACAL_TRACEBACK" in said
    assert ran("config", "rows.npz").exit_code == 2
