"""Files made to hurt: a sentence or a sound table; no raw exception, no signal, no hang, no memory
taken on a claim.
"""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

import metacal as mc
from benchmarks.packing import write_packed
from metacal.io import opening as limits
from metacal.io import read_predictions, write_table

sys.path.insert(0, str(Path(__file__).parent))
import drive
import mutate

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

#: Cases of the campaign that once failed, on this or an earlier version: they stay.
ONCE_FAILED = [
    16, 118, 120, 129, 250, 260, 269, 270, 468, 500, 509, 549, 578, 1022, 4074, 7256, 9300, 11814, 12739, 13070, 14594,
    15939, 17890, 19075,
]  # fmt: skip


def refuse(match, path, **options):
    with pytest.raises(mc.InputError, match=match) as caught:
        read_predictions(path, **options)
    return str(caught.value)


def in_a_child(code, *arguments):
    """Run code that may die; its exit code and what it printed."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
    )


# ── mutated files ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_mutated_files_give_a_sentence_or_a_sound_table():
    pytest.importorskip("torch")
    result = drive.campaign(0, 120, tell=lambda line: None)
    assert result["failures"] == []
    assert result["counts"]["sound"] > 10
    assert result["counts"]["refused"] > 60


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_cases_that_once_failed(seed, tmp_path):
    if mutate.KINDS[seed % len(mutate.KINDS)] == ".pt":
        pytest.importorskip("torch")
    kind, data = mutate.case(seed)
    (tmp_path / f"case{kind}").write_bytes(data)
    assert drive.judge(str(tmp_path / f"case{kind}"), str(tmp_path)) in ("refused", "sound")


@pytest.mark.slow
def test_sound_files_are_sound(tmp_path):
    """The fuzzer starts from files that are read: otherwise it would only look at the front
    door.
    """
    for kind in mutate.KINDS:
        if kind == ".pt":
            pytest.importorskip("torch")
        (tmp_path / f"case{kind}").write_bytes(mutate.sound(kind)[0])
        assert drive.judge(str(tmp_path / f"case{kind}"), str(tmp_path)) == "sound", kind


# ── Arrow: offsets and indices that point outside ─────────────────────────────────────────────────

N = 8


def _pointing(kind):
    """Two columns, of which one points outside its buffers; built past Arrow's own checks."""
    table = pa.FixedSizeListArray.from_arrays(
        pa.array(np.random.default_rng(0).normal(size=N * 3)), 3
    )
    labels = pa.array([0] * N)
    offsets = np.arange(N + 1, dtype=np.int32)
    letters = pa.py_buffer(b"abcabcab")
    if kind in ("text far", "text leaks", "text falls"):
        offsets[3:5] = {
            "text far": (2_000_000_000, 2_000_000_100),
            "text leaks": (0, 4608),
            "text falls": (7, 2),
        }[kind]
        labels = pa.Array.from_buffers(
            pa.string(), N, [None, pa.py_buffer(offsets.tobytes()), letters]
        )
    elif kind == "large text":
        wide = offsets.astype(np.int64)
        wide[3] = 1 << 40
        labels = pa.Array.from_buffers(
            pa.large_string(), N, [None, pa.py_buffer(wide.tobytes()), letters]
        )
    elif kind == "not UTF-8":
        labels = pa.Array.from_buffers(
            pa.string(), N, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"\xff" * N)]
        )
    elif kind.startswith("dictionary"):
        places = np.zeros(N, dtype=np.int32)
        places[3] = -1_000_000 if "negative" in kind else 1_000_000_000
        entries = pa.array(["a", "b", "c"]) if "text" in kind else pa.array([0, 1, 2])
        kind_ = pa.dictionary(pa.int32(), entries.type)
        labels = pa.DictionaryArray.from_buffers(
            kind_, N, [None, pa.py_buffer(places.tobytes())], entries
        )
    elif kind == "list":
        wide = np.arange(0, 3 * N + 1, 3, dtype=np.int32)
        wide[3] = 2_000_000_000
        numbers = pa.array(np.zeros(3 * N))
        table = pa.Array.from_buffers(
            pa.list_(pa.float64()), N, [None, pa.py_buffer(wide.tobytes())], children=[numbers]
        )
    elif kind == "text view":
        views = np.zeros((N, 4), dtype=np.int32)
        views[3] = (100, 0, 0, 1 << 30)  # 100 letters at a place far outside of the first buffer
        labels = pa.Array.from_buffers(
            pa.string_view(), N, [None, pa.py_buffer(views.tobytes()), letters]
        )
    schema = pa.schema([("logits", table.type), ("label", labels.type)])
    return schema, pa.RecordBatch.from_arrays([table, labels], schema=schema)


POINTING = [
    "text far", "text leaks", "text falls", "large text", "not UTF-8", "dictionary of text", "dictionary of numbers",
    "dictionary, negative", "list", "text view",
]  # fmt: skip
READ = """import metacal as mc, sys
for path in sys.argv[1:]:
    try: mc.read_predictions(path)
    except mc.InputError as error: print(str(error).replace("\\n", " "))"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".arrow", ".feather", ".arrows"])
def test_arrow_that_points_outside_is_refused(tmp_path, suffix):
    paths = []
    for kind in POINTING:
        try:
            schema, batch = _pointing(kind)
        except ValueError:  # pyarrow 16 cannot make a view of text over buffers
            continue
        opened = pa.ipc.new_stream if suffix == ".arrows" else pa.ipc.new_file
        path = tmp_path / f"{kind}{suffix}"
        with pa.OSFile(str(path), "wb") as sink, opened(sink, schema) as writer:
            writer.write_batch(batch)
        paths.append(path)
    done = in_a_child(READ, *paths)
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    assert len(done.stdout.splitlines()) == len(paths)
    assert all("damaged or cut short" in line for line in done.stdout.splitlines()), done.stdout


def test_arrow_files_that_are_framed_wrongly(tmp_path):
    path = tmp_path / "x.arrow"
    data = mutate.arrow(mutate.arrow_table())
    path.write_bytes(data[:-6])
    refuse("end of the file is missing", path)
    stream = mutate.arrow(mutate.arrow_table(), stream=True)
    cut = stream[: stream.rindex(b"\xff\xff\xff\xff", 0, len(stream) - 8)]
    (tmp_path / "cut.arrows").write_bytes(cut[:-20])
    refuse("damaged or cut short", tmp_path / "cut.arrows")


def test_columns_that_are_not_asked_for_are_not_decoded(tmp_path):
    _, batch = _pointing("text far")
    table = pa.table({"logits": batch.column(0), "note": pa.array(["a"] * N)})
    path = tmp_path / "x.arrow"
    path.write_bytes(mutate.arrow(table))
    assert read_predictions(path).unused_names == ("note",)


# ── claims and bombs ──────────────────────────────────────────────────────────────────────────────


def _header(shape, descr="<f8", version=1):
    words = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(words) + 1) + words + b"\n"


@pytest.mark.parametrize("shape", ["(1000000000000, 3)", "(4611686018427387904, 4)", "(41, 3)"])
def test_a_header_that_claims_more_than_there_is(tmp_path, shape):
    (tmp_path / "x.npy").write_bytes(_header(shape) + mutate.TABLE.tobytes())
    said = refuse("damaged or cut short", tmp_path / "x.npy")
    assert "should have" in said
    assert "960" not in said.split("claims")[0]
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logits.npy", _header(shape) + mutate.TABLE.tobytes())
    refuse("should have", tmp_path / "x.npz")


def _bomb(path, kind, n_bytes):
    """A small file that unpacks to so many bytes of zeros."""
    rows = n_bytes // 80
    if kind == "npz":
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("logits.npy", "w") as member,
        ):
            member.write(_header((rows, 10)))
            for _ in range(-(-rows * 80 // (1 << 20))):
                member.write(bytes(1 << 20))
        return
    block = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(1_000_000)), 10)
    table = pa.table({"logits": pa.chunked_array([block] * (rows // 100_000))})
    if kind == "parquet":
        pq.write_table(table, path, compression="zstd")
    else:
        opened = pa.ipc.new_stream if kind == "arrows" else pa.ipc.new_file
        with opened(
            path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as writer:
            writer.write_table(table)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npz", "arrow", "arrows", "parquet"])
def test_a_small_file_that_unpacks_to_much(tmp_path, kind, monkeypatch):
    path = tmp_path / f"x.{kind}"
    _bomb(path, kind, 64_000_000)
    assert path.stat().st_size < 1_000_000
    monkeypatch.setattr(limits, "MIN_UNPACK_LIMIT", 50_000_000)
    options = {"stream": False} if kind == "parquet" else {}
    said = refuse(r"unpacks to 6\d\.\d MB, but the limit is 50\.0 MB", path, **options)
    assert f"{limits.UNPACK_LIMIT_VARIABLE}=" in said
    assert "unpack_limit=" in said
    assert len(read_predictions(path, unpack_limit=100_000_000, **options)) >= 800_000
    monkeypatch.setenv(limits.UNPACK_LIMIT_VARIABLE, "100000000")
    assert len(read_predictions(path, **options)) >= 800_000
    monkeypatch.setenv(limits.UNPACK_LIMIT_VARIABLE, "much")
    refuse(
        "METACAL_UNPACK_LIMIT must be a positive number of bytes, .* but got 'much'",
        path,
        **options,
    )


def test_gigabytes_are_refused_before_memory_is_taken(tmp_path):
    """A directory and a header that claim 4 GB, over a kilobyte."""
    header = _header((53_000_000, 10))
    claimed = len(header) + 53_000_000 * 80
    assert claimed < 1 << 32
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logits.npy", header + bytes(1000))
    size = struct.pack("<I", len(header) + 1000)
    assert file.getvalue().count(size) == 2
    path = tmp_path / "x.npz"
    path.write_bytes(file.getvalue().replace(size, struct.pack("<I", claimed)))
    refuse(r"unpacks to 4\.2 GB, but the limit is 2\.1", path)
    # Whoever raises the limit meets the end of what is there.
    refuse("damaged or cut short", path, unpack_limit=1 << 40)


def test_a_long_text_among_many(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MIN_UNPACK_LIMIT", 1_000_000)
    labels = ["x" * 20_000] + ["a"] * 999
    (tmp_path / "x.csv").write_text("a,b,label\n" + "".join(f"1,2,{label}\n" for label in labels))
    refuse(
        "the longest of the 1,000 texts in column 'label' has 20,000 characters", tmp_path / "x.csv"
    )
    table = {"logits": pa.array([[1.0, 2.0]] * 1000), "label": pa.array(labels)}
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    refuse("the longest of the 1,000 texts", tmp_path / "x.parquet")
    coded = table | {
        "label": pa.array(["a"] * 1000 + labels[:1]).dictionary_encode().slice(0, 1000)
    }
    (tmp_path / "x.arrow").write_bytes(mutate.arrow(pa.table(coded)))
    refuse("unpacks to", tmp_path / "x.arrow")


def test_tensors_that_stand_for_more_than_they_hold(tmp_path):
    torch = pytest.importorskip("torch")
    zeros = torch.zeros(1).as_strided((10**9, 10), (0, 0))
    torch.save({"logits": zeros}, tmp_path / "strides.pt")
    refuse(r"unpacks to 40\.0 GB, but the limit is 2\.1", tmp_path / "strides.pt")
    sparse = torch.sparse_coo_tensor(
        torch.zeros((2, 1), dtype=torch.long), torch.ones(1), (10**9, 1000)
    )
    torch.save({"logits": sparse}, tmp_path / "sparse.pt")
    refuse(
        r"'logits' is a sparse tensor, but a dense one is required\. Save tensor\.to_dense\(\)\.",
        tmp_path / "sparse.pt",
    )


@pytest.mark.slow
def test_sparse_tensors_whose_places_lie_outside(tmp_path):
    """torch takes them on trust: case 12739 of the campaign ended the process."""
    torch = pytest.importorskip("torch")
    for place in (-1, 10**9):
        places = torch.tensor([[0, 1, place], [0, 1, 2]])
        bad = torch.sparse_coo_tensor(places, torch.ones(3), (4, 3), check_invariants=False)
        torch.save({"logits": bad}, tmp_path / f"{place}.pt")
    done = in_a_child(READ, *(tmp_path / f"{place}.pt" for place in (-1, 10**9)))
    assert done.returncode == 0, done.returncode
    assert ["is a sparse tensor" in line for line in done.stdout.splitlines()] == [True, True]
    for name, sparse in {
        "places": torch.Tensor.to_sparse,
        "rows": torch.Tensor.to_sparse_csr,
    }.items():
        torch.save({"logits": sparse(torch.tensor(mutate.TABLE))}, tmp_path / f"{name}.pt")
        refuse("to_dense", tmp_path / f"{name}.pt")


@pytest.mark.parametrize("limit", [0, -5, True, 1.5])
def test_limits_that_are_none(tmp_path, limit):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    refuse(
        "unpack_limit must be a positive number of bytes", tmp_path / "x.csv", unpack_limit=limit
    )


# ── every shape and type ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "dtype", ["<f2", "<f4", ">f4", "<f8", ">f8", "<i1", ">i4", "<u8", "|b1", "<f16"]
)
def test_npy_of_every_type_and_order(tmp_path, dtype, order, stream):
    numbers = (10 * mutate.TABLE).astype("f8")
    table = np.asarray(np.abs(numbers) if dtype[1] in "ub" else numbers, order=order).astype(
        dtype, order=order
    )
    np.save(tmp_path / "x.npy", table)
    found = read_predictions(tmp_path / "x.npy", stream=stream).table
    np.testing.assert_array_equal(np.asarray(found), np.asarray(table, dtype=found.dtype))
    assert found[3:7].flags.c_contiguous or not stream or order == "F"
    fits = [
        mc.TemperatureScaling().fit(x, mutate.LABELS).map_
        for x in (found, np.ascontiguousarray(table))
    ]
    assert fits[0] == fits[1]


@pytest.mark.parametrize("dtype", ["c8", "c16", "M8[ns]", "m8[s]", "S4", "U4", "V8"])
def test_npy_of_other_types_is_refused(tmp_path, dtype):
    np.save(tmp_path / "x.npy", np.zeros((4, 3), dtype=dtype))
    refuse("must be numeric, with one row per item", tmp_path / "x.npy")


@pytest.mark.parametrize("rows", [0, 1, 2, 40])
@pytest.mark.parametrize("columns", [0, 1, 2, 3])
def test_npy_of_every_shape(tmp_path, rows, columns):
    np.save(tmp_path / "x.npy", np.ones((rows, columns)))
    if rows == 0:
        refuse("the file has no rows", tmp_path / "x.npy")
        return
    for stream in (False, True):
        found = read_predictions(tmp_path / "x.npy", stream=stream)
        assert found.table.shape == (rows, columns)
        if columns == 0:
            with pytest.raises(mc.InputError, match="at least 2 columns"):
                mc.TemperatureScaling().fit(found.table, np.zeros(rows, dtype=int))


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 39, 40])
@pytest.mark.parametrize("label", ["i1", "<U3", "<i8"])
def test_records_of_every_length(tmp_path, rows, label):
    table = np.empty(rows, dtype=[("label", label), ("logits", "<f4", (3,)), ("tail", "i1")])
    table["logits"], table["label"], table["tail"] = mutate.TABLE[:rows], mutate.LABELS[:rows], 1
    np.save(tmp_path / "x.npy", table)
    if rows == 0:
        refuse("the file has no rows", tmp_path / "x.npy")
        return
    for stream in (False, True):
        found = read_predictions(tmp_path / "x.npy", stream=stream)
        np.testing.assert_array_equal(np.asarray(found.table), table["logits"])
        np.testing.assert_array_equal(found.labels, table["label"])
        numbers = found.labels.astype(int)
        assert np.isfinite(
            mc.TemperatureScaling().fit(found.table, numbers).predict_proba(found.table)
        ).all()


def test_names_of_records_beyond_latin(tmp_path):
    table = np.zeros(3, dtype=[("logits", "<f4", (2,)), ("přílohy", "i1")])
    with pytest.warns(UserWarning, match="3.0"):
        np.save(tmp_path / "x.npy", table)
    assert read_predictions(tmp_path / "x.npy").unused_names == ("přílohy",)


# ── many columns ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_csv_takes_time_linear_in_columns(tmp_path):
    def seconds(columns):
        path = tmp_path / "x.csv"
        path.write_text(
            ",".join(f"c{k}" for k in range(columns))
            + ",label\n"
            + (",".join(["1"] * columns) + ",c1\n") * 4
        )
        began = time.process_time()
        found = read_predictions(path)
        spent = time.process_time() - began
        assert found.table.shape == (4, columns)
        return spent

    seconds(1000)
    # 16 times the columns: 256 times the time where it is quadratic.
    assert min(seconds(64_000) for _ in range(2)) < 60 * max(0.005, seconds(4000))


def test_csv_with_columns_in_any_order(tmp_path):
    (tmp_path / "x.csv").write_text("note,b,label,a,id,c\nx,2,a,1,7,3\ny,5,b,4,8,6\n")
    found = read_predictions(tmp_path / "x.csv", classes=["a", "b", "c"])
    assert found.table.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (found.labels.tolist(), found.ids.tolist(), found.unused_names) == (
        ["a", "b"],
        [7, 8],
        ("note",),
    )


# ── spreadsheets ──────────────────────────────────────────────────────────────────────────────────

FORMULAS = [
    "=HYPERLINK(A1)", "+1+1", "-2+3", "@SUM(A1)", "＝1", "'=1", "''=1", "'", "'tis", "-1.5", "+7", "cat", "-", "=",
]  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_text_that_a_spreadsheet_would_run_is_escaped_and_comes_back(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    table = np.arange(2.0 * len(FORMULAS)).reshape(-1, 2)
    write_table(
        path,
        {"id": FORMULAS, "logits": -table, "label": ["=a", "b"] * (len(FORMULAS) // 2)},
        class_names=["=a", "b"],
    )
    delimiter = "," if suffix == ".csv" else "\t"
    for line in path.read_text().splitlines()[1:]:
        first = line.lstrip('"')[0]
        number = line.split(delimiter)[0].strip('"') in ("-1.5", "+7")
        assert first not in "=+-@＝" or number, line
        assert not line.split(delimiter)[1].startswith("'")
    found = read_predictions(path)
    assert found.ids.tolist() == FORMULAS
    assert found.class_names == ("=a", "b")
    assert set(found.labels.tolist()) == {"=a", "b"}
    np.testing.assert_array_equal(found.table, -table)


def test_leading_breaks_are_escaped(tmp_path):
    write_table(tmp_path / "x.csv", {"id": ["\t=1", "\r=1", "\n=1"], "logits": np.eye(3)})
    assert (tmp_path / "x.csv").read_bytes().count(b"'") == 3


# ── packed sets ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "content",
    [b"", b"PK", b"no zip", mutate.npz({"top.npy": mutate.npy(mutate.LABELS)}), "cut", "flags"],
)
def test_damaged_packed_sets(tmp_path, content):
    file = io.BytesIO()
    labels, flags = mutate.LABELS, np.zeros(mutate.N, dtype=bool)
    write_packed(file, mutate.TABLE, labels, flags[:-1] if content == "flags" else flags, "by hand")
    if content in ("cut", "flags"):
        content = file.getvalue()[: 700 if content == "cut" else None]
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(mc.InputError, match="packed data set"):
        mc.datasets.load("x", folder=tmp_path)
