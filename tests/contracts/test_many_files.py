"""Predictions in many files: read as one table, applied file by file, resumed after a run that was
cut off.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.io.predictions import read_predictions
from metacal.rows.stored import JoinedTable

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

DATA = mc.datasets.load("cifar10-resnet110")
LOGITS, LABELS = DATA.logits[:3000], DATA.labels[:3000]
SIZES = (1, 999, 700, 1300)


def metacal(*args):
    """A command, in this process: starting one takes longer than what is asked of it."""
    done = CliRunner().invoke(main, list(map(str, args)))
    assert "Traceback" not in done.output
    return SimpleNamespace(returncode=done.exit_code, stdout=done.stdout, stderr=done.stderr)


def columns(logits, labels):
    flat = pa.FixedSizeListArray.from_arrays(logits.ravel(), logits.shape[1])
    return pa.table({"logits": flat, "label": labels})


@pytest.fixture
def logs(tmp_path):
    """The same rows in one file, and in four of different lengths."""
    np.savez(tmp_path / "one.npz", logits=LOGITS, labels=LABELS)
    folder = tmp_path / "logs"
    folder.mkdir()
    ends = np.cumsum((0, *SIZES))
    for i, (start, stop) in enumerate(itertools.pairwise(ends)):
        pq.write_table(
            columns(LOGITS[start:stop], LABELS[start:stop]), folder / f"part-{i}.parquet"
        )
        np.save(tmp_path / f"x{i}.npy", LOGITS[start:stop])
        np.save(tmp_path / f"y{i}.npy", LABELS[start:stop])
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.parquet.crc").write_bytes(b"crc")
    return folder


def test_a_folder_a_pattern_a_list_and_pairs_are_one_table(logs):
    listed = sorted(str(path) for path in logs.glob("*.parquet"))
    for found in (
        read_predictions(logs),
        read_predictions(logs, stream=True),
        read_predictions(str(logs / "part-*.parquet")),
        read_predictions(listed),
        read_predictions(str(logs.parent / "x*.npy"), labels=str(logs.parent / "y*.npy")),
        read_predictions(f"file://{logs}/*.parquet"),
    ):
        assert np.array_equal(np.asarray(found.table), LOGITS)
        assert np.array_equal(found.labels, LABELS)
    backwards = read_predictions(listed[::-1], stream=True)
    assert np.array_equal(np.asarray(backwards.table)[: SIZES[-1]], LOGITS[-SIZES[-1] :])


def test_files_behind_a_url(logs):
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for path in logs.glob("*.parquet"):
        system.pipe(f"/bucket/logs/{path.name}", path.read_bytes())
    for url in ("memory://bucket/logs", "memory://bucket/logs/part-*.parquet"):
        assert np.array_equal(np.asarray(read_predictions(url).table), LOGITS)
    with pytest.raises(mc.InputError, match=r"memory://bucket/none\.npz: the file does not exist"):
        read_predictions("memory://bucket/none.npz")


@pytest.mark.slow
def test_results_of_files_behind_a_url_resume(logs, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for path in logs.glob("*.parquet"):
        system.pipe(f"/store/logs/{path.name}", path.read_bytes())
    cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(LOGITS, LABELS)
    out = f"{tmp_path}/out/"
    assert mc.apply(cal, "memory://store/logs", out).n_kept == 0
    assert sorted(path.name for path in (tmp_path / "out").glob("*.parquet")) == [
        f"part-{i}.parquet" for i in range(4)
    ]
    assert pq.read_table(tmp_path / "out")["accept"].to_pylist() == cal.accepts(LOGITS).tolist()
    system.pipe(
        "/store/logs/part-1.parquet", system.cat("/store/logs/part-1.parquet")
    )  # written anew, at another time
    assert mc.apply(cal, "memory://store/logs/*.parquet", out).n_kept == 3
    system.pipe("/store/logs/part-2.parquet", b"PAR1 no")
    with pytest.raises(mc.InputError, match=r"memory://.*part-2\.parquet: the file is damaged"):
        mc.apply(cal, "memory://store/logs", out)


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_one_file_or_many_give_the_same_bits(logs, n_jobs):
    one = mc.MetaCal(mc.MinAccuracy(0.97)).fit(LOGITS, LABELS)
    found = read_predictions(logs, stream=True)
    assert isinstance(found.table, JoinedTable)
    many = mc.MetaCal(mc.MinAccuracy(0.97), n_jobs=n_jobs).fit(found.table, found.labels)
    assert many.gate_ == one.gate_
    assert many.predict_proba(found.table).tobytes() == one.predict_proba(LOGITS).tobytes()


def test_part_of_a_joined_table_carries_only_what_it_needs(logs):
    table = read_predictions(logs, stream=True).table
    part = table.lazy_slice(1, 1001)
    assert part.names == tuple(str(logs / f"part-{i}.parquet") for i in (1, 2))
    assert np.array_equal(np.asarray(part), LOGITS[1:1001])
    assert np.array_equal(table[np.array([0, 2999, 1, 1000])], LOGITS[[0, 2999, 1, 1000]])
    assert np.array_equal(table[::7], LOGITS[::7])
    assert table[5:5].shape == (0, 10)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda logs: np.save(logs / "z.npy", LOGITS[:5, :9]),
            r"z\.npy has 9 classes, but .*part-0\.parquet has 10",
        ),
        (
            lambda logs: np.save(logs / "z.npy", LOGITS[:5]),
            r"z\.npy has no labels, but",
        ),
        (
            lambda logs: (logs / "z.csv").write_text(
                ",".join("abcdefghij") + ",label\n" + "1," * 10 + "a\n"
            ),
            r"z\.csv and .*part-0\.parquet have different classes",
        ),
        (lambda logs: (logs / "part-2.parquet").write_bytes(b"PAR1 no"), r"part-2\.parquet"),
        (
            lambda logs: pq.write_table(
                columns(
                    np.where(np.arange(30).reshape(3, 10) == 12, np.nan, LOGITS[:3]), LABELS[:3]
                ),
                logs / "part-9.parquet",
            ),
            r"row 3001 \(row 1 of .*part-9\.parquet\), column 2 is NaN",
        ),
    ],
)
def test_errors_name_the_file(logs, spoil, message):
    def fit():
        found = read_predictions(logs, stream=True)
        mc.MetaCal(mc.MinAccuracy(0.97)).fit(found.table, found.labels)

    spoil(logs)
    with pytest.raises(mc.InputError, match=message):
        fit()


def test_a_file_that_vanishes_is_named(logs):
    found = read_predictions(logs, stream=True)
    (logs / "part-3.parquet").unlink()
    with pytest.raises(mc.InputError, match=r"part-3\.parquet"):
        mc.TemperatureScaling().fit(found.table, found.labels)


def test_nothing_to_read(tmp_path):
    (tmp_path / "empty").mkdir()
    for path, message in (
        (tmp_path / "empty", "the folder contains no file of predictions"),
        (f"{tmp_path}/none/", "the folder does not exist"),
        (tmp_path / "*.npz", "no file matches this pattern"),
        ([], "The list of files is empty"),
    ):
        with pytest.raises(mc.InputError, match=message):
            read_predictions(path)
    np.save(tmp_path / "x.npy", LOGITS)
    np.save(tmp_path / "y0.npy", LABELS)
    np.save(tmp_path / "y1.npy", LABELS)
    with pytest.raises(mc.InputError, match="files of predictions, but got 2"):
        read_predictions(str(tmp_path / "x*.npy"), labels=str(tmp_path / "y*.npy"))


def test_the_command_line_reads_many_and_writes_a_file_for_each(logs):
    folder = logs.parent
    assert (
        metacal(
            "fit", folder / "one.npz", "--min-accuracy", "0.97", "-o", folder / "one.json"
        ).returncode
        == 0
    )
    assert (
        metacal("fit", logs, "--min-accuracy", "0.97", "-o", folder / "many.json").returncode == 0
    )
    assert (folder / "one.json").read_text() == (folder / "many.json").read_text()
    answers = [
        json.loads(
            metacal("evaluate", folder / "one.json", path, "--resamples", "0", "--json").stdout
        )
        for path in (folder / "one.npz", logs / "*.parquet")
    ]
    assert {**answers[0], "file": None} == {**answers[1], "file": None}

    whole = metacal(
        "apply", folder / "one.json", folder / "one.npz", "-o", folder / "whole.parquet"
    )
    assert whole.returncode == 0, whole.stderr
    out = folder / "out"
    done = metacal("apply", folder / "one.json", logs / "*.parquet", "-o", f"{out}/")
    assert "4 files, 0 of them kept" in done.stderr
    expected, joined = pq.read_table(folder / "whole.parquet"), pq.read_table(out)
    assert joined.num_rows == 3000
    for name in ("prediction", "answer", "confidence", "accept", "score"):
        assert joined[name].to_pylist() == expected[name].to_pylist()

    stamps = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    os.utime(logs / "part-1.parquet")
    again = metacal("apply", folder / "one.json", logs, "-o", out)
    assert "4 files, 3 of them kept" in again.stderr
    changed = {
        path.name for path in out.glob("*.parquet") if path.stat().st_mtime_ns != stamps[path.name]
    }
    assert changed == {"part-1.parquet"}
    uniform = json.loads(
        metacal(
            "apply", folder / "one.json", logs, "-o", out, "--rejected", "uniform", "--json"
        ).stdout
    )
    assert uniform["n_kept"] == 0
    refused = metacal("apply", folder / "one.json", logs, "-o", logs)
    assert refused.returncode == 2
    assert "also an input file" in refused.stderr


def test_scores_in_many_files(tmp_path):
    score, ok = np.linspace(0.0, 1.0, 400), np.arange(400) % 7 > 0
    for part in range(4):
        rows = slice(100 * part, 100 * (part + 1))
        mc.io.write_table(tmp_path / f"{part}.jsonl", {"mark": score[rows], "ok": ok[rows]})
    found = mc.io.read_scores(tmp_path, score_key="mark")
    assert np.array_equal(found.score, score)
    assert np.array_equal(found.correct, ok)
    mc.io.write_table(tmp_path / "9.jsonl", {"mark": score})
    with pytest.raises(mc.InputError, match=r"9\.jsonl has no column of correctness, but"):
        mc.io.read_scores(tmp_path, score_key="mark")


def test_results_are_not_written_among_what_is_read(logs):
    folder = logs.parent
    mc.save(mc.MetaCal(mc.MinAccuracy(0.97)).fit(LOGITS, LABELS), folder / "cal.json")
    for source, output in (
        (logs, logs / "new.parquet"),
        (logs / "*.parquet", logs / "new.parquet"),
        (logs, f"{logs}/results/"),
    ):
        done = metacal("apply", folder / "cal.json", source, "-o", output)
        assert done.returncode == 2, done.stderr
        assert "also an input file" in done.stderr
    done = metacal("apply", folder / "cal.json", logs / "*.parquet", "-o", f"{logs}/results/")
    assert done.returncode == 0, done.stderr
    marks = folder / "marks.csv"
    marks.write_text("mark,ok\n" + "".join(f"{n / 200},{int(n > 20)}\n" for n in range(200)))
    scored = folder / "scored.json"
    keys = ("--score-key", "mark", "--correct-key", "ok", "--min-accuracy", "0.5")
    assert metacal("fit", marks, *keys, "-o", scored).returncode == 0
    refused = metacal("apply", scored, marks, "-o", f"{folder}/marks/")
    assert refused.returncode == 2
    assert "folder of results requires a gate on logits" in refused.stderr
    assert metacal("fit", marks, *keys, "--executor", "dask").returncode == 2


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_killed_run_leaves_no_half_file_and_goes_on(logs):
    folder, out = logs.parent, logs.parent / "out"
    mc.save(mc.MetaCal(mc.MinAccuracy(0.97)).fit(LOGITS, LABELS), folder / "cal.json")
    command = [
        sys.executable,
        "-m",
        "metacal",
        "apply",
        folder / "cal.json",
        logs,
        "-o",
        f"{out}/",
        "-q",
    ]
    out.mkdir()
    stale = out / ".part-2.parquet.0123456789ab.part.parquet"
    stale.write_bytes(b"half")
    for wait in (0.3, 0.6, 0.9):
        running = subprocess.Popen(command)
        time.sleep(wait)
        running.kill()
        running.wait()
        for path in out.glob("part-*.parquet"):
            assert pq.read_table(path).num_rows == SIZES[int(path.stem[-1])]
    done = metacal(*command[3:])
    assert done.returncode == 0, done.stderr
    assert (
        pq.read_table([str(path) for path in sorted(out.glob("part-*.parquet"))]).num_rows == 3000
    )
    listed = {path.name for path in out.iterdir()}
    assert listed == {
        "_metacal.journal",
        "_metacal.journal.lock",
        *(f"part-{i}.parquet" for i in range(4)),
    }
