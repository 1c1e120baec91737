"""What lies in a folder beside files with rows: parts without any, pipes, sockets, links to
nothing.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import metacal as mc
from metacal.io.predictions import read_predictions

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

LOGITS, LABELS = np.arange(12.0).reshape(4, 3), np.array([2, 2, 1, 0])
HEADER = "logits_0,logits_1,logits_2,label\n"
TYPED = pa.schema([("logits", pa.list_(pa.float32())), ("label", pa.int64())])
FIXED = pa.schema([("logits", pa.list_(pa.float32(), 3)), ("label", pa.int64())])


def write_rows(path):
    columns = {"logits": LOGITS, "label": LABELS}
    if path.suffix in (".npz", ".safetensors", ".pt"):
        columns = {"logits": LOGITS, "labels": LABELS}
    match path.suffix:
        case ".safetensors":
            pytest.importorskip("safetensors.numpy").save_file(columns, path)
        case ".pt":
            torch = pytest.importorskip("torch")
            torch.save({name: torch.from_numpy(column) for name, column in columns.items()}, path)
        case _:
            mc.io.write_table(path, columns)


def write_none(path, kind):
    match path.suffix, kind:
        case ".parquet", _:
            pq.write_table((TYPED if kind == "typed" else FIXED).empty_table(), path)
        case ".feather", _:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, TYPED):
                pass
        case ".csv", "header":
            path.write_text(HEADER)
        case ".csv", "lists":
            path.write_text("logits,label\n")
        case ((".csv" | ".jsonl"), "bytes"):
            path.write_bytes(b"")
        case ".jsonl", "blank":
            path.write_text("\n\n")
        case ".npz", _:
            np.savez(path, logits=LOGITS[:0], labels=LABELS[:0])
        case ".safetensors", _:
            pytest.importorskip("safetensors.numpy").save_file(
                {"logits": LOGITS[:0], "labels": LABELS[:0]}, path
            )
        case ".pt", _:
            torch = pytest.importorskip("torch")
            torch.save(
                {"logits": torch.zeros(0, 3), "labels": torch.zeros(0, dtype=torch.int64)}, path
            )


EMPTY = [
    ("parquet", "typed"), ("parquet", "fixed"), ("feather", "typed"), ("csv", "header"), ("csv", "lists"),
    ("csv", "bytes"), ("jsonl", "bytes"), ("jsonl", "blank"), ("npz", "shape"), ("safetensors", "shape"),
    ("pt", "shape"),
]  # fmt: skip


@pytest.mark.parametrize(("suffix", "kind"), EMPTY)
def test_a_part_without_rows_contributes_nothing(tmp_path, suffix, kind):
    write_none(tmp_path / f"0.{suffix}", kind)
    for path in (tmp_path, tmp_path / f"0.{suffix}"):
        with pytest.raises(
            mc.InputError, match=r"the file has no rows|the file is empty \(0 bytes\)"
        ):
            read_predictions(path)
    write_rows(tmp_path / f"1.{suffix}")
    write_none(tmp_path / f"2.{suffix}", kind)
    read = read_predictions(tmp_path)
    assert np.array_equal(read.table, LOGITS)
    assert np.array_equal(read.labels, LABELS)


def test_what_is_damaged_is_no_part_without_rows(tmp_path):
    write_rows(tmp_path / "1.parquet")
    (tmp_path / "0.parquet").write_bytes(b"")
    with pytest.raises(mc.InputError, match=r"the file is empty \(0 bytes\)\. Write it again"):
        read_predictions(tmp_path)


def test_labels_that_are_missing_are_not_taken_for_a_part_without_rows(tmp_path):
    for part in range(2):
        np.save(tmp_path / f"x{part}.npy", LOGITS)
    (tmp_path / "y0.csv").write_text("2\n2\n1\n0\n")
    (tmp_path / "y1.csv").write_bytes(b"")
    with pytest.raises(mc.InputError, match=r"y1\.csv: the file is empty"):
        read_predictions(str(tmp_path / "x*.npy"), labels=str(tmp_path / "y*.csv"))


def test_scores_in_parts_without_any(tmp_path):
    (tmp_path / "0.csv").write_text("mark,ok\n")
    (tmp_path / "1.csv").write_text("mark,ok\n0.5,true\n")
    (tmp_path / "2.jsonl").write_text("")
    assert mc.io.read_scores(tmp_path, score_key="mark").score.tolist() == [0.5]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_pipes_and_sockets_among_files_are_named_and_left_out(tmp_path):
    write_rows(tmp_path / "1.csv")
    os.mkfifo(tmp_path / "0.csv")
    with socket.socket(socket.AF_UNIX) as listening:
        folder = os.open(tmp_path, os.O_RDONLY)
        listening.bind(
            f"/proc/self/fd/{folder}/2.csv"
            if os.path.isdir("/proc/self/fd")
            else str(tmp_path / "2.csv")
        )
        os.close(folder)
        for path in (tmp_path, str(tmp_path / "*.csv")):
            with pytest.warns(
                mc.MetacalWarning, match=r"[02]\.csv: the path is a pipe, a socket or a device"
            ) as caught:
                assert len(read_predictions(path)) == 4
            assert len(caught) == 2
    (tmp_path / "1.csv").unlink()
    with (
        pytest.warns(mc.MetacalWarning),
        pytest.raises(mc.InputError, match="Only pipes, sockets and devices"),
    ):
        read_predictions(tmp_path)


def test_a_link_to_nothing_is_an_error_and_not_left_out(tmp_path):
    write_rows(tmp_path / "1.csv")
    (tmp_path / "0.csv").symlink_to(tmp_path / "gone.csv")
    for path in (tmp_path, str(tmp_path / "*.csv")):
        with pytest.raises(mc.InputError, match=r"0\.csv: the file does not exist"):
            read_predictions(path)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_that_is_asked_for_is_read(tmp_path):
    write_rows(tmp_path / "1.csv")
    content = (tmp_path / "1.csv").read_bytes()
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    mc.save(mc.TemperatureScaling().fit(LOGITS, LABELS), tmp_path / "t.json")
    writer = threading.Thread(target=pipe.write_bytes, args=(content,), daemon=True)
    writer.start()
    words = ["apply", tmp_path / "t.json", pipe, "-o", f"{tmp_path}/out/"]
    command = [sys.executable, "-m", "metacal", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "4 rows" in done.stderr
