"""Options that would fill the memory, never end, or write over what is read."""

from __future__ import annotations

import os

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal import cli


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("options")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    logits = rng.normal(size=(300, 3)) + 3 * np.eye(3)[labels]
    np.savez(folder / "val.npz", logits=logits, labels=labels)
    np.save(folder / "z.npy", logits)
    (folder / "y.txt").write_text("\n".join(map(str, labels)))
    (folder / "names.csv").write_text("0\n1\n2\n")
    mc.save(mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(logits, labels), folder / "cal.json")
    return folder


def run(folder, *words):
    here = os.getcwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(cli.main, list(words))
    finally:
        os.chdir(here)


HUGE = "99999999999999999999999"


@pytest.mark.parametrize(
    "words",
    [
        ["report", "val.npz", "--bins", "10000000"],
        ["report", "val.npz", "--bins", "0"],
        ["report", "val.npz", "--bins", HUGE],
        ["report", "val.npz", "--resamples", "10000000"],
        ["report", "val.npz", "--seed", HUGE],
        ["report", "val.npz", "--confidence", "nan"],
        ["report", "val.npz", "--level", "1e999"],
        ["evaluate", "val.npz", "--bins", "10000000"],
        ["evaluate", "val.npz", "--resamples", "1000000000"],
        ["evaluate", "val.npz", "--seed", "-1"],
        ["compare", "val.npz", "--folds", "1000000"],
        ["compare", "val.npz", "--repeats", "1000000000"],
        ["compare", "val.npz", "--seed", HUGE],
        ["demo", "--seed", HUGE],
        ["bench", "speed", "--repeats", "100000000"],
        ["bench", "paper", "--runs", "1000000000"],
        ["bench", "paper", "--draws", "100000000000"],
        ["bench", "paper", "-n", "100000"],
        ["bench", "selective", "--draws", "100000000000"],
        *(
            [command, *rest, "-n", n]
            for n in ("5000", "-5000", "0", HUGE, "1.5", "many")
            for command, *rest in (
                ["fit", "val.npz", "--max-miscoverage", "0.1"],
                ["apply", "cal.json", "val.npz", "-o", "out.csv"],
                ["evaluate", "val.npz"],
                ["compare", "val.npz"],
                ["report", "val.npz"],
            )
        ),
        ["fit", "val.npz", "--max-miscoverage", "0.1", "--seed", HUGE],
        ["fit", "val.npz", "--max-miscoverage", "0"],
        ["fit", "val.npz", "--min-accuracy", "1e-400"],
        ["fit", "val.npz", "--min-accuracy", "0." + "9" * 400],
        ["fit", "val.npz", "--max-miscoverage", "0.1", "--confidence", "inf"],
        ["export", "cal.json", "-o", "out.onnx", "--opset", HUGE],
        ["export", "cal.json", "-o", "out.onnx", "--ir-version", "-3"],
    ],
)
def test_absurd_numbers_are_refused(folder, words):
    result = run(folder, *words)
    assert result.exit_code in (1, 2), result.output
    assert isinstance(result.exception, SystemExit)
    assert "unexpected" not in result.output
    assert "Error: " in result.output
    left = {"cal.json", "val.npz", "z.npy", "y.txt", "names.csv"}
    assert set(os.listdir(folder)) == left


def test_the_cap_is_said(folder):
    assert (
        "10000000 is not in the range 1<=x<=1000"
        in run(folder, "report", "val.npz", "--bins", "10000000").output
    )
    assert (
        "at most 1024"
        in run(folder, "fit", "val.npz", "--max-miscoverage", "0.1", "-n", "5000").output
    )


@pytest.mark.slow
@pytest.mark.parametrize("folds", ["300", "1000"])
def test_more_folds_than_rows_allow(folder, folds):
    result = run(
        folder,
        "compare",
        "val.npz",
        "--folds",
        folds,
        "--repeats",
        "1",
        "--calibrators",
        "temperature",
    )
    assert "unexpected" not in result.output
    assert result.exit_code in (0, 2)


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "val.npz", "--max-miscoverage", "0.1", "-o", "val.npz"],
        ["fit", "val.npz", "--max-miscoverage", "0.1", "-o", "./val.npz"],
        ["fit", "val.npz", "--max-miscoverage", "0.1", "-o", "hard.npz"],
        ["fit", "val.npz", "--max-miscoverage", "0.1", "-o", "soft.npz"],
        [
            "fit",
            "val.npz",
            "--max-miscoverage",
            "0.1",
            "--classes",
            "@names.csv",
            "-o",
            "names.csv",
        ],
        ["fit", "z.npy", "--labels", "y.txt", "--max-miscoverage", "0.1", "-o", "y.txt"],
        ["apply", "cal.json", "val.npz", "-o", "val.npz"],
        ["apply", "cal.json", "val.npz", "-o", "hard.npz"],
        ["apply", "cal.json", "val.npz", "-o", "cal.json", "--output-format", "csv"],
        ["apply", "cal.json", "val.npz", "--classes", "@names.csv", "-o", "names.csv"],
        ["report", "val.npz", "-o", "val.npz"],
        ["report", "cal.json", "val.npz", "-o", "cal.json"],
        ["report", "val.npz", "--classes", "@names.csv", "-o", "names.csv"],
        ["export", "gate.onnx", "-o", "gate.onnx"],
        ["attach", "model.onnx", "cal.json", "-o", "model.onnx"],
    ],
)
def test_what_is_read_is_not_written_over(folder, words, tmp_path):
    for name in ("val.npz", "cal.json", "z.npy", "y.txt", "names.csv"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    os.link(tmp_path / "val.npz", tmp_path / "hard.npz")
    os.symlink("val.npz", tmp_path / "soft.npz")
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir()}
    result = run(tmp_path, *words)
    assert result.exit_code == 2, result.output
    assert "is also an input file" in result.output
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == before
