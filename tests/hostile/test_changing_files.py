"""A file that is shortened or written anew while it is read is told, in a sentence; the process
lives.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import metacal as mc
from metacal import kernels
from metacal.io import read_predictions
from metacal.rows import Rows
from metacal.rows.stored import StoredTable

N, K = 4000, 20
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(N, K)).astype(np.float32)
LABELS = RNG.integers(0, K, N)


def write(folder, kind):
    path = folder / f"x.{kind}"
    if kind == "npy":
        np.save(path, TABLE)
    elif kind == "f.npy":
        np.save(path, np.asfortranarray(TABLE))
    elif kind == "records.npy":
        rows = np.empty(N, dtype=[("label", "i1"), ("logits", "<f4", (K,))])
        rows["logits"], rows["label"] = TABLE, LABELS
        np.save(path, rows)
    elif kind == "safetensors":
        header = b'{"logits":{"dtype":"F32","shape":[%d,%d],"data_offsets":[0,%d]}}' % (
            N,
            K,
            TABLE.nbytes,
        )
        path.write_bytes(len(header).to_bytes(8, "little") + header + TABLE.tobytes())
    elif kind == "bf16.safetensors":
        bits = (TABLE.view(np.uint32) >> 16).astype(np.uint16)
        header = b'{"logits":{"dtype":"BF16","shape":[%d,%d],"data_offsets":[0,%d]}}' % (
            N,
            K,
            bits.nbytes,
        )
        path.write_bytes(len(header).to_bytes(8, "little") + header + bits.tobytes())
    else:
        pq = pytest.importorskip("pyarrow.parquet")
        pa = pytest.importorskip("pyarrow")
        lists = pa.FixedSizeListArray.from_arrays(pa.array(TABLE.ravel()), K)
        pq.write_table(
            pa.table({"logits": lists}),
            path,
            row_group_size=500,
            compression="none",
            use_dictionary=False,
        )
    return path


KINDS = ["npy", "safetensors", "bf16.safetensors", "parquet"]


#: Read a little, shorten the file, and go on in four ways.
SHORTEN = f"""
import os, sys, numpy as np, metacal as mc
labels = np.arange({N}) % {K}
for path in sys.argv[1:]:
    size = os.path.getsize(path)
    for left in (size // 2, 100, 0):
        table = mc.read_predictions(path, stream=True).table
        table[:3]
        content = open(path, "rb").read()
        os.truncate(path, left)
        fit = mc.TemperatureScaling()
        uses = lambda: fit.fit(table, labels), lambda: np.asarray(table), lambda: table[-5:], lambda: table[[1, 3999]]
        for use in uses:
            try: use()
            except mc.InputError as error: print(left, error)
            else: print("read", path, left)
        open(path, "wb").write(content)
"""


@pytest.mark.slow
def test_shortened_while_it_is_read(tmp_path):
    """In a process of its own: with a memory map this was SIGBUS."""
    paths = [str(write(tmp_path, kind)) for kind in KINDS]
    done = subprocess.run([sys.executable, "-c", SHORTEN, *paths], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-800:])
    lines = done.stdout.splitlines()
    assert len(lines) == 12 * len(KINDS)
    said = ("changed while it was read", "damaged or cut short", "changed after it was opened")
    for line in lines:
        assert any(words in line for words in said), line


@pytest.mark.parametrize("kind", KINDS)
def test_written_anew_with_the_same_length(tmp_path, kind):
    path = write(tmp_path, kind)
    table = read_predictions(path, stream=True).table
    assert isinstance(table, StoredTable)
    content = path.read_bytes()
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    with pytest.raises(mc.InputError, match="changed"):
        np.asarray(table)


def test_replaced_by_another_file(tmp_path):
    """What was opened is read to its end, whatever now bears its name."""
    path = write(tmp_path, "npy")
    table = read_predictions(path, stream=True).table
    np.save(tmp_path / "new.npy", TABLE[:10])
    os.replace(tmp_path / "new.npy", path)
    np.testing.assert_array_equal(np.asarray(table), TABLE)
    with pytest.raises(mc.InputError, match="changed"):
        pickle.loads(pickle.dumps(table))[:1]
    path.unlink()
    with pytest.raises(mc.InputError, match="file does not exist"):
        pickle.loads(pickle.dumps(table))[:1]


@pytest.mark.parametrize("kind", KINDS[:2])
def test_the_same_bits_as_the_array(tmp_path, kind):
    table = read_predictions(write(tmp_path, kind), stream=True).table
    np.testing.assert_array_equal(np.asarray(table), TABLE)
    np.testing.assert_array_equal(table[[3999, 0, 17]], TABLE[[3999, 0, 17]])
    np.testing.assert_array_equal(table[::1999], TABLE[::1999])
    np.testing.assert_array_equal(
        Rows(table).compute_column(kernels.entropy), Rows(TABLE).compute_column(kernels.entropy)
    )
    again = pickle.loads(pickle.dumps(table))
    np.testing.assert_array_equal(again[5:9], TABLE[5:9])


@pytest.mark.parametrize("kind", ["f.npy", "records.npy"])
def test_columns_and_records_come_whole(tmp_path, kind):
    table = read_predictions(write(tmp_path, kind), stream=True).table
    assert type(table) is np.ndarray
    np.testing.assert_array_equal(table, TABLE)


def test_files_are_closed(tmp_path):
    path = write(tmp_path, "npy")
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else None
    for _ in range(50):
        read_predictions(path, stream=True).table[:3]
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) <= before + 1
