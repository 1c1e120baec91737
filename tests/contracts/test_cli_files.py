"""The command line on the files that people have, good and bad; completion; Ctrl-C in the middle of
a large file.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import SUMMARIES, main
from metacal.io import read_predictions, write_table

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PROGRAM = [sys.executable, "-c", "from metacal.cli import main; main(prog_name='metacal')"]
N, K = 1200, 5
RNG = np.random.default_rng(11)
TABLE = (RNG.normal(size=(N, K)) * 3).astype(np.float32)
LABELS = (TABLE + RNG.normal(size=TABLE.shape)).argmax(axis=1)
NAMES = ("cat", "dog", "bird", "cow", "hen")
IDS = np.array([f"row {k}" for k in range(N)])


def run(*args, code=0, stdin=None):
    done = CliRunner().invoke(main, [str(arg) for arg in args], input=stdin, prog_name="metacal")
    assert done.exit_code == code, (done.output, done.exception)
    assert "Traceback" not in done.output
    if code == 1:
        message, help_link = done.stderr.splitlines()
        assert message.startswith("Error: ")
        assert help_link.startswith("See ")
        assert not done.stdout
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    columns = {"id": IDS, "logits": TABLE, "label": LABELS}
    for suffix in ("npz", "csv", "tsv", "parquet", "arrow", "feather"):
        write_table(path / f"val.{suffix}", columns)
    records = np.empty(
        len(TABLE), [(name, column.dtype, column.shape[1:]) for name, column in columns.items()]
    )
    for name, column in columns.items():
        records[name] = column
    np.save(path / "val.npy", records)
    write_table(
        path / "named.parquet", {**columns, "label": np.array(NAMES)[LABELS]}, class_names=NAMES
    )
    run("fit", path / "val.npz", "--min-accuracy", 0.9, "-o", path / "cal.json")
    run("fit", path / "named.parquet", "--min-accuracy", 0.9, "-o", path / "named.json")
    return path


# ── every kind of file in, every kind out ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", ["npy", "csv", "tsv", "parquet", "arrow", "feather"])
def test_fit_gives_the_same_answer_from_every_file(folder, suffix):
    expected = json.loads(run("fit", folder / "val.npz", "--min-accuracy", 0.9, "--json").stdout)
    answer = json.loads(
        run("fit", folder / f"val.{suffix}", "--min-accuracy", 0.9, "--json").stdout
    )
    if suffix in ("csv", "tsv"):  # float64 there
        assert answer["certificate"]["threshold"] == pytest.approx(
            expected["certificate"]["threshold"]
        )
    else:
        assert answer["certificate"] == expected["certificate"]
        assert answer["calibrator"] == expected["calibrator"]


def test_fit_from_tensors(folder, tmp_path):
    torch = pytest.importorskip("torch")
    tensors = {"logits": torch.tensor(TABLE), "labels": torch.tensor(LABELS)}
    torch.save(tensors, tmp_path / "val.pt")
    pytest.importorskip("safetensors.torch").save_file(tensors, tmp_path / "val.safetensors")
    expected = json.loads(run("fit", folder / "val.npz", "--min-accuracy", 0.9, "--json").stdout)[
        "certificate"
    ]
    for name in ("val.pt", "val.safetensors"):
        assert (
            json.loads(run("fit", tmp_path / name, "--min-accuracy", 0.9, "--json").stdout)[
                "certificate"
            ]
            == expected
        )


@pytest.mark.parametrize("suffix", ["npz", "csv", "tsv", "parquet", "arrow", "feather"])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_apply_writes_what_the_estimator_says(folder, tmp_path, suffix, n_jobs, monkeypatch):
    monkeypatch.setattr("metacal.io.decision_writing.BLOCK_ELEMENTS", 5 * 300)
    monkeypatch.setattr("metacal.rows.strips.STRIP_ELEMENTS", 5 * 100)
    out = tmp_path / f"out.{suffix}"
    run("apply", folder / "named.json", folder / "named.parquet", "-o", out, "-n", n_jobs)
    gate = mc.load(folder / "named.json")
    found = read_predictions(out, input="probabilities", label_key="prediction")
    calibrated = gate.gate_.source.map(TABLE)
    np.testing.assert_allclose(np.asarray(found.table), calibrated, rtol=1e-6)
    assert found.labels.tolist() == gate.predict(TABLE).tolist()
    assert found.ids.tolist() == IDS.tolist()
    if suffix in ("npz", "parquet", "arrow", "feather"):
        assert found.table.dtype == np.float32
        np.testing.assert_array_equal(found.table, calibrated)
        assert found.class_names == NAMES
    if suffix == "parquet":
        held = pq.read_table(out)
        assert held.column_names == [
            "id",
            "label",
            "prediction",
            "answer",
            "confidence",
            "accept",
            "score",
            "probs",
        ]
        np.testing.assert_array_equal(held["accept"].to_numpy(), gate.accepts(TABLE))
        np.testing.assert_array_equal(held["score"].to_numpy(), gate.ranking_scores(TABLE))


def test_apply_matches_classes_by_name(folder, tmp_path):
    order = [3, 0, 4, 2, 1]
    mixed = [NAMES[k] for k in order]
    write_table(tmp_path / "mixed.parquet", {"logits": TABLE[:, order]}, class_names=mixed)
    for stream in (False, True):
        import metacal.io.request as request

        size, request.STREAM_BYTES = request.STREAM_BYTES, 0 if stream else 1 << 40
        try:
            run(
                "apply",
                folder / "named.json",
                tmp_path / "mixed.parquet",
                "-o",
                tmp_path / "out.parquet",
            )
        finally:
            request.STREAM_BYTES = size
        probs = read_predictions(tmp_path / "out.parquet", input="probabilities").table
        np.testing.assert_array_equal(probs, mc.load(folder / "named.json").gate_.source.map(TABLE))


# ── columns of the file that are passed on ────────────────────────────────────────────────────────


@pytest.mark.parametrize("out", ["npz", "csv", "tsv", "jsonl", "parquet", "arrow", "feather"])
def test_kept_columns_come_out_as_they_went_in(folder, tmp_path, out):
    rows = [
        f"{i},{i % 3},{'' if i == 1 else i / 4},note {i},{','.join(map(str, TABLE[i]))}"
        for i in range(4)
    ]
    source = tmp_path / "new.csv"
    source.write_text("\n".join(["id,shop,price,note,0,1,2,3,4", *rows]) + "\n")
    kept = ("--keep", "price", "--keep", "note", "--keep", "shop")
    run("apply", folder / "cal.json", source, *kept, "-o", tmp_path / f"out.{out}")
    done = read_predictions(
        tmp_path / f"out.{out}",
        logits_key="probs",
        input="probabilities",
        keep=["id", "price", "note", "shop"],
    )
    assert [done.kept[name].tolist() for name in ("id", "note", "shop")] == [
        [0, 1, 2, 3],
        [f"note {i}" for i in range(4)],
        [0, 1, 2, 0],
    ]
    np.testing.assert_array_equal(done.kept["price"], [0, np.nan, 0.5, 0.75])


@pytest.mark.parametrize("suffix", ["npz", "npy", "csv", "tsv", "parquet", "arrow"])
def test_kept_columns_of_every_format(folder, tmp_path, suffix):
    run(
        "apply",
        folder / "cal.json",
        folder / f"val.{suffix}",
        "--keep",
        "label",
        "-o",
        tmp_path / "out.csv",
    )
    head, first = (tmp_path / "out.csv").read_text().splitlines()[:2]
    assert head.startswith("id,label,prediction,")
    assert first.startswith(f"row 0,{LABELS[0]},")


def test_what_cannot_be_kept(folder, tmp_path):
    missing = run(
        "apply", folder / "cal.json", folder / "val.csv", "--keep", "url", "-o", "-", code=2
    )
    assert "names the column 'url', which the" in missing.stderr
    pq.write_table(
        pa.table({"logits": TABLE[:2].tolist(), "score": [1, 2], "at": [None, "x"]}),
        tmp_path / "a.parquet",
    )
    twice = run(
        "apply", folder / "cal.json", tmp_path / "a.parquet", "--keep", "score", "-o", "-", code=2
    )
    assert "The results already have a column 'score'" in twice.stderr
    run(
        "apply",
        folder / "cal.json",
        tmp_path / "a.parquet",
        "--keep",
        "at",
        "-o",
        tmp_path / "b.jsonl",
    )
    assert [json.loads(line)["at"] for line in (tmp_path / "b.jsonl").open()] == ["", "x"]
    np.savez(tmp_path / "wide.npz", logits=TABLE[:3], wide=TABLE[:3])
    wide = run(
        "apply", folder / "cal.json", tmp_path / "wide.npz", "--keep", "wide", "-o", "-", code=2
    )
    assert "a column to keep must have one value for each of the 3 rows" in wide.stderr


def test_kept_columns_of_scores_and_folders(folder, tmp_path):
    lines = [
        {"confidence": i % 10 / 10, "ok": i % 10 > 1, "meta": {"user": f"u{i}"}} for i in range(400)
    ]
    (tmp_path / "judge.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    key = ("--score-key", "confidence")
    run("fit", tmp_path / "judge.jsonl", *key, "--min-accuracy", 0.9, "-o", tmp_path / "judge.json")
    keep = ("--keep", "meta.user")
    run(
        "apply",
        tmp_path / "judge.json",
        tmp_path / "judge.jsonl",
        *keep,
        "-o",
        tmp_path / "out.jsonl",
    )
    assert json.loads((tmp_path / "out.jsonl").open().readline())["meta.user"] == "u0"
    run(
        "apply",
        folder / "cal.json",
        folder / "val.np*",
        "--keep",
        "label",
        "-o",
        tmp_path / "many.csv",
    )
    assert len((tmp_path / "many.csv").read_text().splitlines()) == 2 * N + 1
    run(
        "apply",
        folder / "cal.json",
        folder / "val.npz",
        "--keep",
        "label",
        "-o",
        f"{tmp_path}/results/",
    )
    run(
        "apply",
        folder / "cal.json",
        folder / "val.npz",
        "--keep",
        "id",
        "-o",
        f"{tmp_path}/results/",
    )
    with np.load(tmp_path / "results" / "val.npz") as found:
        assert "label" not in found


@pytest.mark.slow
def test_pipes(folder, tmp_path):
    with open(folder / "val.parquet", "rb") as file:
        argv = [*PROGRAM, "apply", str(folder / "cal.json"), "-", "--format", "parquet", "-o", "-"]
        done = subprocess.run(
            [*argv, "--output-format", "npz"], stdin=file, capture_output=True, check=True
        )
    (tmp_path / "out.npz").write_bytes(done.stdout)
    assert done.stderr == b""
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(
            found["probs"], mc.load(folder / "cal.json").gate_.source.map(TABLE)
        )


def test_other_column_names(folder, tmp_path):
    write_table(tmp_path / "a.parquet", {"key": IDS, "z": TABLE, "truth": LABELS})
    keys = ("--logits-key", "z", "--label-key", "truth", "--id-key", "key")
    run("fit", tmp_path / "a.parquet", *keys, "--min-accuracy", 0.9, "-o", tmp_path / "cal.json")
    run("apply", tmp_path / "cal.json", tmp_path / "a.parquet", *keys, "-o", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("row 0,")


def test_quiet_says_nothing_but_results_and_errors(folder, tmp_path):
    done = run(
        "apply", folder / "cal.json", folder / "val.npz", "-o", tmp_path / "out.csv", "--quiet"
    )
    assert done.output == ""
    done = run("fit", folder / "val.npz", "--min-accuracy", 0.9, "-q")
    assert "correct at least 90%" in done.stdout
    assert not done.stderr
    assert run("fit", folder / "no.npz", "--min-accuracy", 0.9, "-q", code=2).stderr


@pytest.mark.slow
def test_seeds_of_fit_reach_the_calibrator(folder, tmp_path):
    for seed in (0, 7):
        out = tmp_path / f"{seed}.json"
        run(
            "fit",
            folder / "val.npz",
            "--max-miscoverage",
            0.2,
            "--calibrator",
            "structured",
            "--seed",
            seed,
            "-o",
            out,
        )
        assert f'"random_state": {seed}' in out.read_text()


# ── bad files: one line, exit code 1, and what to do ──────────────────────────────────────────────


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def one_percent_nulls(path):
    rows = [None if k % 100 == 37 else row for k, row in enumerate(TABLE.tolist())]
    try:
        return parquet(
            path / "nulls.parquet", logits=pa.array(rows, pa.list_(pa.float32(), K)), label=LABELS
        )
    except (
        pa.ArrowNotImplementedError
    ):  # the oldest pyarrow writes no nulls among lists of a fixed size
        return parquet(
            path / "nulls.parquet", logits=pa.array(rows, pa.list_(pa.float32())), label=LABELS
        )


def truncated(path):
    whole = parquet(path / "cut.parquet", logits=pa.array(TABLE.tolist()), label=LABELS)
    whole.write_bytes(whole.read_bytes()[:-1000])
    return whole


def text(path, content, name="bad.csv"):
    (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return path / name


BAD = {
    "1% nulls": (one_percent_nulls, "row 37 of the column 'logits' is null.*drop"),
    "truncated": (truncated, "damaged or cut short"),
    "no label column": (lambda p: text(p, "cat,dog\n1,2\n"), "no labels found.*--label-key"),
    "missing class column": (lambda p: text(p, "cat,label\n1,0\n"), "at least 2"),
    "0 bytes": (lambda p: text(p, "", "empty.parquet"), "0 bytes.*Write it again"),
    "folder": (lambda p: p, "the folder contains no file of predictions"),
    "wrong suffix": (lambda p: text(p, b"PAR1....", "a.csv"), "damaged or cut short"),
    "unknown suffix": (lambda p: text(p, "x", "a.xlsx"), "metacal does not read .*parquet"),
    "latin-1": (
        lambda p: text(p, "gro\xdf,b,label\n1,2,0\n".encode("latin-1")),
        "not UTF-8.*Save it as UTF-8",
    ),
    "duplicate columns": (lambda p: text(p, "a,a,label\n1,2,0\n"), "repeats the column 'a'"),
    "label out of range": (
        lambda p: parquet(p / "y.parquet", a=[1.0], b=[2.0], label=[2]),
        "row 0 has label 2",
    ),
    "unknown class": (
        lambda p: text(p, "cat,dog,label\n1,2,cow\n"),
        "label 'cow' of row 0 is not one of",
    ),
    "a word": (
        lambda p: text(p, "cat,dog,label\n1,x,cat\n"),
        "bad.csv:2:2: column 'dog' must be a number, but it is 'x'",
    ),
    "pickle": (lambda p: text(p, pickle.dumps(TABLE), "a.parquet"), "the file is a pickle"),
    "joblib": (lambda p: text(p, pickle.dumps(TABLE), "a.joblib"), "does not read pickles"),
    "ragged": (
        lambda p: parquet(p / "r.parquet", logits=[[1.0, 2.0], [1.0]], label=[0, 1]),
        "row 1 .* has 1 numbers",
    ),
    "NaN": (
        lambda p: parquet(p / "n.parquet", a=[1.0, np.nan], b=[2.0, 1.0], label=[0, 1]),
        "row 1, column 0 is NaN",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(tmp_path, name):
    import re

    make, says = BAD[name]
    message = run("fit", make(tmp_path), "--min-accuracy", 0.9, code=2).stderr
    assert re.search(says, message), message


@pytest.mark.slow
def test_bad_files_in_a_real_process(tmp_path):
    for make in (one_percent_nulls, truncated):
        done = subprocess.run(
            [*PROGRAM, "fit", str(make(tmp_path)), "--min-accuracy", "0.9"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert done.stdout == ""
        message, help_link = done.stderr.splitlines()
        assert message.startswith("Error: ")
        assert help_link.startswith("See ")


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_a_path_without_permission(folder, tmp_path, monkeypatch):
    secret = text(tmp_path, (folder / "val.parquet").read_bytes(), "secret.parquet")
    secret.chmod(0)
    if os.access(
        secret, os.R_OK
    ):  # root reads everything: let the system call say what it says to others
        original = open

        def denied(path, *args, **options):
            if os.fspath(path) == os.fspath(secret):
                raise PermissionError(13, "Permission denied", os.fspath(path))
            return original(path, *args, **options)

        monkeypatch.setattr("builtins.open", denied)
    assert (
        "do not have permission to read" in run("fit", secret, "--min-accuracy", 0.9, code=2).stderr
    )


def test_a_bad_row_leaves_no_output(folder, tmp_path):
    table = TABLE.copy()
    table[1100, 2] = np.nan
    write_table(tmp_path / "bad.parquet", {"logits": table})
    for out in (tmp_path / "out.parquet", "-"):
        message = run(
            "apply", folder / "cal.json", tmp_path / "bad.parquet", "-o", out, code=2
        ).stderr
        assert "row 1100, column 2 is NaN" in message
    assert [item.name for item in tmp_path.iterdir()] == ["bad.parquet"]


def test_parquet_without_pyarrow(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    message = run("fit", folder / "val.parquet", "--min-accuracy", 0.9, code=2).stderr
    assert 'pip install "metacal[parquet]"' in message


# ── completion ────────────────────────────────────────────────────────────────────────────────────


def complete(*words):
    environment = {
        **os.environ,
        "_METACAL_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("metacal", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, check=True)
    return [line.partition(",")[::2] for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_completion():
    assert ("plain", "evaluate") in complete("ev")
    assert ("plain", "--min-accuracy") in complete("fit", "--mi")
    assert {name for _, name in complete("fit", "--calibrator", "te")} == {"temperature"}
    assert ("plain", "temperature,spline") in complete(
        "compare", "val.npz", "--calibrators", "temperature,sp"
    )
    assert complete("fit", "")[0][0] == "file"
    assert complete("apply", "cal.json", "new", "-o", "ou")[0][0] == "file"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell):
    environment = {**os.environ, "_METACAL_COMPLETE": f"{shell}_source"}
    done = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True)
    assert "_METACAL_COMPLETE" in done.stdout


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_command_can_be_quiet(name):
    assert "--quiet" in run(name, *(["speed"] if name == "bench" else []), "--help").stdout


# ── Ctrl-C, and the bar ───────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def large(folder, tmp_path_factory):
    """Rows for some seconds of work; the file has holes where nothing was written, so it takes no
    time to make.
    """
    path = tmp_path_factory.mktemp("large")
    np.lib.format.open_memmap(path / "new.npy", "w+", np.float32, (3_000_000, K)).flush()
    np.save(path / "labels.npy", np.arange(3_000_000) % K)
    return path


def _holds(pid, n_bytes):
    """Whether a process has so much memory in use: it has read the table, and works on it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return found is not None and 1024 * int(found[1]) > n_bytes


@pytest.mark.slow
@pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="looks into /proc for what the command holds"
)
@pytest.mark.usefixtures("signals_as_usual")
@pytest.mark.parametrize("what", ["apply", "apply with threads", "fit"])
def test_interrupted_in_the_middle(folder, large, tmp_path, what):
    if what == "fit":
        arguments = [
            "fit",
            large / "new.npy",
            "--labels",
            large / "labels.npy",
            "--max-miscoverage",
            "0.1",
        ]
        arguments += ["--calibrator", "isotonic", "-o", tmp_path / "out.json"]
    else:
        arguments = ["apply", folder / "cal.json", large / "new.npy", "-o", tmp_path / "out.csv"]
        arguments += ["-n", "2"] if "threads" in what else []
    process = subprocess.Popen(
        [*PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if what == "fit":
        table = (large / "new.npy").stat().st_size
        while process.poll() is None and not _holds(process.pid, 1.5 * table):
            time.sleep(0.01)
    else:
        while (
            not any(item.stat().st_size > 0 for item in tmp_path.iterdir())
            and process.poll() is None
        ):
            time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("Aborted.\n")  # before it, that the rows are all alike
    assert out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.usefixtures("signals_as_usual")
def test_a_bar_on_a_terminal_and_nowhere_else(folder, large, tmp_path):
    import fcntl
    import pty
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    argv = [
        *PROGRAM,
        "apply",
        str(folder / "cal.json"),
        str(large / "new.npy"),
        "-o",
        str(tmp_path / "out.csv"),
    ]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=follower)
    os.close(follower)
    shown = b""
    while b"row/s" not in shown and process.poll() is None:
        shown += os.read(leader, 1000)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    os.close(leader)
    assert b"3.00M" in shown
    assert b"row/s" in shown
