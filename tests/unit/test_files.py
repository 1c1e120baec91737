"""Parquet, Arrow, safetensors, torch files and lists in csv: what is read, what is refused and with
which words.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from metacal.errors import InputError
from metacal.io import open_table, read_predictions, write_table
from metacal.io.formats import parquet
from metacal.io.request import STREAM_BYTES
from metacal.rows.stored import StoredTable

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

N, K = 300, 4
TABLE = np.random.default_rng(0).normal(size=(N, K)).astype(np.float32)
CODES = np.random.default_rng(1).integers(0, K, N)
NAMES = np.array(["cat", "dog", "bird", "cow"])


def refuse(match, path, **options):
    with pytest.raises(InputError, match=match) as caught:
        read_predictions(path, **options)
    assert "\n" not in str(caught.value)
    assert os.path.basename(path) in str(caught.value)


def lists(table, kind):
    flat = pa.array(table.ravel())
    offsets = np.arange(0, table.size + 1, table.shape[1])
    if kind == "fixed":
        return pa.FixedSizeListArray.from_arrays(flat, table.shape[1])
    if kind == "large":
        return pa.LargeListArray.from_arrays(pa.array(offsets), flat)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flat)


def arrow_table(table=TABLE, kind="fixed", name="logits", **columns):
    wide = {f"{name}_{k}": table[:, k] for k in range(table.shape[1])}
    return pa.table({**(wide if kind == "wide" else {name: lists(table, kind)}), **columns})


def save(table, path):
    """Write in the format that the name says; "stream.arrow" is the stream format."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=77)
    elif path.name == "stream.arrow":
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
    return path


FILES = ["a.parquet", "a.feather", "a.arrow", "stream.arrow"]


# ── columns of lists, columns per class ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["list", "large", "fixed", "wide"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_every_layout_in_every_precision(tmp_path, name, kind, dtype):
    table = TABLE.astype(dtype)
    path = save(arrow_table(table, kind, label=CODES, id=np.arange(N)), tmp_path / name)
    for stream in (False, True) if name.endswith("parquet") else (None,):
        found = read_predictions(path, stream=stream)
        assert isinstance(found.table, StoredTable) == bool(stream)
        assert found.table.dtype == table.dtype
        np.testing.assert_array_equal(np.asarray(found.table), table)
        np.testing.assert_array_equal(found.labels, CODES)
        np.testing.assert_array_equal(found.ids, np.arange(N))
        assert found.class_names == (tuple(range(K)) if kind == "wide" else None)
        assert found.unused_names == ()


def test_slices_of_arrow_arrays_are_read_from_where_they_begin(tmp_path):
    whole = arrow_table(kind="fixed", label=CODES)
    path = save(whole.slice(50, 100), tmp_path / "a.arrow")
    np.testing.assert_array_equal(read_predictions(path).table, TABLE[50:150])


@pytest.mark.parametrize("name", FILES)
def test_strings_and_dictionaries(tmp_path, name):
    words = pa.array(NAMES[CODES])
    path = save(arrow_table(label=words.dictionary_encode(), id=words, note=words), tmp_path / name)
    found = read_predictions(path, classes=list(NAMES))
    assert found.labels.tolist() == NAMES[CODES].tolist() == found.ids.tolist()
    assert found.class_names == tuple(NAMES)
    assert found.unused_names == ("note",)


def test_integers_and_booleans_are_numbers(tmp_path):
    path = save(
        pa.table({"a": pa.array([1, 2], pa.int8()), "b": [True, False], "y": [0, 1]}),
        tmp_path / "a.parquet",
    )
    found = read_predictions(path)
    assert found.table.tolist() == [[1, 1], [2, 0]]
    assert found.class_names == ("a", "b")


def test_other_names(tmp_path):
    path = save(arrow_table(name="z", truth=CODES, key=np.arange(N)), tmp_path / "a.parquet")
    refuse(
        "no column 'logits'.*'z' hold lists; name .* --logits-key|no column 'logits'.*'z' hold"
        " lists",
        path,
    )
    found = read_predictions(path, logits_key="z", label_key="truth", id_key="key")
    np.testing.assert_array_equal(found.labels, CODES)
    np.testing.assert_array_equal(found.ids, np.arange(N))
    refuse("id_key names 'row', which the file", path, logits_key="z", id_key="row")


def test_probabilities_are_not_taken_for_logits(tmp_path):
    path = save(arrow_table(name="probs"), tmp_path / "a.parquet")
    refuse("pass input='probabilities'", path)
    assert read_predictions(path, input="probabilities").table.shape == (N, K)


def test_prefixed_columns_leave_the_others_aside(tmp_path):
    path = save(arrow_table(kind="wide", fold=CODES, label=CODES), tmp_path / "a.parquet")
    found = read_predictions(path)
    assert found.table.shape == (N, K)
    assert found.unused_names == ("fold",)


def test_a_column_that_is_no_number(tmp_path):
    path = save(pa.table({"a": [1.0], "b": [2.0], "text": ["x"]}), tmp_path / "a.parquet")
    refuse("column 'text' must hold numbers, but it holds string", path)
    assert read_predictions(path, classes=["b", "a"]).table.tolist() == [[2, 1]]
    refuse("'a', 'b', 'text'|a, b, text", path, logits_key="q")
    refuse(
        r"required, but 1 class column\(s\) were",
        save(pa.table({"a": [1.0]}), tmp_path / "b.parquet"),
    )


def test_what_pandas_writes(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"logits": list(TABLE), "label": CODES})[CODES > 1]
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    for name in ("a.parquet", "a.csv"):
        found = read_predictions(tmp_path / name)
        np.testing.assert_allclose(
            found.table, TABLE[CODES > 1], rtol=1e-5
        )  # NumPy prints eight digits
        np.testing.assert_array_equal(found.labels, CODES[CODES > 1])
    assert read_predictions(tmp_path / "a.parquet").unused_names == ()
    frame.to_csv(tmp_path / "b.csv")
    np.testing.assert_array_equal(read_predictions(tmp_path / "b.csv").labels, CODES[CODES > 1])


# ── nulls, ragged lists, damage ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["list", "large", "fixed"])
def test_null_rows_are_refused_and_counted(tmp_path, name, kind):
    column = lists(TABLE, kind).to_pylist()
    for row in (131, 200, 290):
        column[row] = None
    try:
        path = save(
            pa.table({"logits": pa.array(column, lists(TABLE, kind).type)}), tmp_path / name
        )
    except pa.ArrowNotImplementedError:
        pytest.skip("this pyarrow writes no nulls among lists of a fixed size")
    refuse("row 131 of the column 'logits' is", path)
    if name.endswith("parquet"):
        table = read_predictions(path, stream=True).table
        with pytest.raises(InputError, match="row 131 of the column 'logits' is null"):
            table[100:]


@pytest.mark.parametrize("kind", ["list", "fixed"])
def test_rows_beside_a_null_are_still_the_right_ones(tmp_path, kind, monkeypatch):
    # Row groups of 100, batches of 20: a refusal leaves no pass over the file that is one batch
    # ahead of its count.
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 20 * TABLE[0].nbytes)
    column = lists(TABLE, kind).to_pylist()
    column[131] = None
    try:
        rows = pa.table({"logits": pa.array(column, lists(TABLE, kind).type)})
        pq.write_table(rows, tmp_path / "a.parquet", row_group_size=100)
    except pa.ArrowNotImplementedError:
        pytest.skip("this pyarrow writes no nulls among lists of a fixed size")
    table = read_predictions(tmp_path / "a.parquet", stream=True).table
    for _ in range(2):
        for start, stop in ((125, 135), (140, 160)):
            with pytest.raises(InputError, match="row 131 of the column 'logits' is null"):
                table[start:stop]
        for start, stop in ((100, 120), (220, 260)):
            np.testing.assert_array_equal(table[start:stop], TABLE[start:stop])


def test_a_null_among_lists_of_a_fixed_size_whatever_pyarrow_reads():
    # Written by pyarrow 25 and kept: older ones write file does not exist, but others do, and only from 26
    # on is it decoded.
    path = Path(__file__).parents[1] / "contracts" / "fixtures" / "null-list.parquet"
    refuse("row 3 of the column 'logits' is null, and 2 rows are", path)


@pytest.mark.parametrize("kind", ["list", "fixed"])
def test_a_null_inside_a_list(tmp_path, kind):
    column = lists(TABLE, kind).to_pylist()
    column[17][2] = None
    path = save(
        pa.table({"logits": pa.array(column, lists(TABLE, kind).type)}), tmp_path / "a.parquet"
    )
    refuse("row 17 of the column 'logits' has a null at position 2", path)


@pytest.mark.parametrize("where", ["logits_1", "label", "id"])
def test_nulls_in_flat_columns(tmp_path, where):
    table = arrow_table(kind="wide", label=CODES, id=np.arange(N))
    holed = table.column(where).to_pylist()
    holed[40] = None
    place = table.schema.names.index(where)
    path = save(table.set_column(place, where, pa.array(holed)), tmp_path / "a.parquet")
    refuse(f"row 40 of the column '{where}' is null", path)


def test_the_first_row_is_null(tmp_path):
    path = save(pa.table({"logits": pa.array([None, [1.0, 2.0]])}), tmp_path / "a.parquet")
    refuse("row 0 of the column 'logits' is null", path)


@pytest.mark.parametrize("name", FILES)
def test_ragged_lists(tmp_path, name):
    column = TABLE.tolist()
    column[205] = column[205][:2]
    path = save(pa.table({"logits": pa.array(column)}), tmp_path / name)
    refuse("row 205 of column 'logits' has 2 numbers, but the first row has 4", path)


@pytest.mark.parametrize("name", FILES)
def test_no_rows(tmp_path, name):
    refuse("no rows", save(arrow_table(TABLE[:0], "list"), tmp_path / name))


def test_nan_is_read_here_and_refused_by_the_estimators(tmp_path):
    table = TABLE.copy()
    table[7, 1] = np.nan
    found = read_predictions(save(arrow_table(table), tmp_path / "a.parquet"), stream=True)
    from metacal.rows.validate import check_logits

    with pytest.raises(InputError, match="row 7, column 1 is NaN"):
        check_logits(found.table)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_cut_short(tmp_path, name, keep):
    path = save(arrow_table(label=CODES), tmp_path / name)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    refuse("damaged or cut short", path)


def test_damage_in_the_middle_of_a_parquet_file(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(
        arrow_table(np.tile(TABLE, (50, 1))), path, row_group_size=5000, compression="zstd"
    )
    content = bytearray(path.read_bytes())
    content[20_000:40_000] = bytes(20_000)
    path.write_bytes(content)
    refuse("damaged or cut short", path)
    with pytest.raises(InputError, match="damaged or cut short"):
        np.asarray(read_predictions(path, stream=True).table)


@pytest.mark.parametrize(
    "name", ["a.parquet", "a.arrow", "a.feather", "a.safetensors", "a.pt", "a.pth"]
)
def test_what_is_something_else(tmp_path, name):
    path = tmp_path / name
    path.touch()
    refuse("0 bytes", path)
    path.write_bytes(pickle.dumps({"logits": TABLE}))
    refuse("the file is a pickle", path)
    path.write_text("a,b\n1,2\n")
    refuse("of another format|damaged", path)
    path.unlink()
    refuse("file does not exist", path)
    path.mkdir()
    refuse("the folder contains no file of predictions", path)


def test_a_file_that_changes_while_it_is_read(tmp_path):
    path = save(arrow_table(), tmp_path / "a.parquet")
    table = read_predictions(path, stream=True).table
    save(arrow_table(TABLE[:100]), path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(InputError, match="changed after it was opened"):
        table[:10]


# ── tensors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", ["a.safetensors", "a.pt", "a.pth"])
def test_tensors(tmp_path, name, dtype):
    torch = pytest.importorskip("torch")
    tensors = {
        "logits": torch.tensor(TABLE).to(getattr(torch, dtype)),
        "labels": torch.tensor(CODES),
    }
    if name.endswith("safetensors"):
        pytest.importorskip("safetensors.torch").save_file(tensors, tmp_path / name)
    else:
        torch.save(tensors, tmp_path / name)
    found = read_predictions(tmp_path / name)
    np.testing.assert_array_equal(np.asarray(found.table), tensors["logits"].double().numpy())
    np.testing.assert_array_equal(found.labels, CODES)
    assert found.table.dtype == (np.float32 if dtype == "bfloat16" else np.dtype(dtype))


def test_bfloat16_may_stay_in_the_file(tmp_path):
    torch = pytest.importorskip("torch")
    table = torch.tensor(TABLE).bfloat16()
    pytest.importorskip("safetensors.torch").save_file({"z": table}, tmp_path / "a.safetensors")
    found = read_predictions(tmp_path / "a.safetensors", logits_key="z", stream=True)
    assert isinstance(found.table, StoredTable)
    np.testing.assert_array_equal(found.table[100:200:3], table[100:200:3].float().numpy())


def test_safetensors_of_a_length_that_looks_like_a_pickle(tmp_path):
    body = {"logits": {"dtype": "F32", "shape": [N, K], "data_offsets": [0, TABLE.nbytes]}}
    text = json.dumps(body).encode().ljust(0x0480)
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + TABLE.tobytes())
    assert path.read_bytes().startswith(b"\x80\x04\x00")
    np.testing.assert_array_equal(read_predictions(path).table, TABLE)


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"[]",
        b'{"logits": 3}',
        b'{"logits": {"dtype": "F32", "shape": [300, 4], "data_offsets": [0, 10]}}',
        b'{"logits": {"dtype": "F32", "shape": [-300, -4], "data_offsets": [0, 4800]}}',
        b'{"logits": {"dtype": "F32", "shape": [600, 4], "data_offsets": [0, 9600]}}',
        b'{"logits": {"dtype": "F32", "shape": ["a"], "data_offsets": [0, 4800]}}',
    ],
)
def test_safetensors_that_lie(tmp_path, header):
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + TABLE.tobytes())
    refuse("damaged or cut short", path)
    path.write_bytes((1 << 60).to_bytes(8, "little") + header)
    refuse("damaged or cut short", path)


def test_torch_files(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.pt"
    torch.save(torch.tensor(TABLE), path)
    np.testing.assert_array_equal(read_predictions(path).table, TABLE)
    torch.save(
        {"logits": torch.tensor(TABLE), "labels": NAMES[CODES].tolist(), "classes": NAMES.tolist()},
        path,
    )
    found = read_predictions(path)
    assert found.class_names == tuple(NAMES)
    assert found.labels.tolist() == NAMES[CODES].tolist()
    torch.save({"logits": TABLE}, path)
    refuse("more than tensors.*torch.save", path)
    torch.save(torch.nn.Linear(2, 2), path)
    refuse("more than tensors", path)
    torch.save({"logits": "none"}, path)
    refuse("must be numeric|must be a tensor", path)
    torch.save({"logits": torch.tensor(TABLE)}, path, _use_new_zipfile_serialization=False)
    refuse("pickle .or a torch file from before", path)
    torch.save(torch.tensor(TABLE), path)
    path.write_bytes(path.read_bytes()[:2000])
    refuse("damaged or cut short", path)


# ── lists in csv ──────────────────────────────────────────────────────────────────────────────────


def csv_file(tmp_path, *cells, name="a.csv"):
    separator = "\t" if name.endswith("tsv") else ","
    lines = [
        separator.join(("id", "logits", "label")),
        *(separator.join((f"u{k}", c, "1")) for k, c in enumerate(cells)),
    ]
    (tmp_path / name).write_text("\n".join(lines))
    return tmp_path / name


@pytest.mark.parametrize(
    "cells",
    [
        ('"[0.1, 2.5]"', '"[-1e-3, -inf]"'),
        ("[0.1 2.5]", '"[-1e-3\n -inf]"'),
        ('"(0.1,2.5)"', '"(-1e-3,-inf)"'),
        ("[0.1  2.5 ]", '" [ -0.001, -inf ]"'),
    ],
)
def test_csv_with_a_column_of_lists(tmp_path, cells):
    found = read_predictions(csv_file(tmp_path, *cells))
    np.testing.assert_array_equal(found.table, [[0.1, 2.5], [-1e-3, -np.inf]])
    assert found.labels.tolist() == [1, 1]
    assert found.ids.tolist() == ["u0", "u1"]
    assert found.class_names is None


def test_tsv_with_a_column_of_lists(tmp_path):
    assert read_predictions(
        csv_file(tmp_path, "[1, 2]", "[3, 4]", name="a.tsv")
    ).table.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("cell", "match"),
    [
        ('"[1, 2, 3]"', r"row 1 of the column 'logits' has 3 numbers, but the first row has 2\."),
        ('"[]"', "row 1 of the column 'logits' has 0 numbers"),
        (
            '"[1, null]"',
            r"row 1 of the column 'logits' must hold only numbers, but it holds 'null'\.",
        ),
        ('"[1 ... 2]"', r"'\.\.\.' \(NumPy shortens"),
        ('"[1, 2_0]"', r"it holds '2_0'\."),
        ('""', "has 0 numbers"),
    ],
)
def test_csv_lists_that_are_wrong(tmp_path, cell, match):
    refuse(match, csv_file(tmp_path, '"[1, 2]"', cell))


def test_rows_wrong_in_opposite_directions_do_not_cancel(tmp_path):
    refuse("row 1 .*has 1 numbers", csv_file(tmp_path, '"[1, 2]"', '"[1]"', '"[1, 2, 3]"'))


# ── by format instead of by name ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["parquet", "npz", "feather", "tsv", "csv"])
def test_standard_input_and_odd_names(tmp_path, monkeypatch, kind):
    path = tmp_path / f"a.{kind}"
    columns = {"logits": TABLE, "label": CODES}
    write_table(path, columns)
    content = path.read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    found = read_predictions("-", format=kind)
    path.rename(tmp_path / "odd.name")
    again = read_predictions(tmp_path / "odd.name", format=kind)
    for one in (found, again):
        np.testing.assert_allclose(np.asarray(one.table), TABLE, rtol=1e-7)
        np.testing.assert_array_equal(one.labels, CODES)


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_named_pipe(tmp_path):
    import threading

    write_table(tmp_path / "a.parquet", {"logits": TABLE})
    os.mkfifo(tmp_path / "pipe.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    feeder = threading.Thread(target=lambda: (tmp_path / "pipe.parquet").write_bytes(content))
    feeder.start()
    np.testing.assert_array_equal(read_predictions(tmp_path / "pipe.parquet").table, TABLE)
    feeder.join()


def test_the_command_line_knows_every_format():
    from metacal.cli.options import FORMATS, OUTPUT_FORMATS
    from metacal.io import formats

    assert {f".{kind}" for kind in FORMATS} == set(formats.FORMATS)
    assert {f".{kind}" for kind in OUTPUT_FORMATS} == {*KINDS, ".ndjson"}


# ── writing ───────────────────────────────────────────────────────────────────────────────────────

KINDS = [".npz", ".csv", ".tsv", ".jsonl", ".parquet", ".arrow", ".feather"]


@pytest.mark.parametrize("suffix", KINDS)
def test_block_by_block_is_the_same_file_as_at_once(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr("metacal.io.formats.numpy._SPOOL_BYTES", 64)
    columns = {
        "id": np.char.add("row ", np.arange(N).astype(str)),
        "logits": TABLE,
        "label": CODES,
        "accept": CODES > 1,
        "score": TABLE[:, 0].astype(np.float64),
    }
    names = list(NAMES)
    once, parts = tmp_path / f"once{suffix}", tmp_path / f"parts{suffix}"
    write_table(once, columns, class_names=names)
    with open_table(parts, N, class_names=names) as write:
        for start in range(0, N, 128):
            write({name: values[start : start + 128] for name, values in columns.items()})
        assert not parts.exists()
    if suffix not in (".parquet", ".arrow", ".feather"):
        assert once.read_bytes() == parts.read_bytes()
    for path in (once, parts):
        found = read_predictions(path)
        np.testing.assert_array_equal(np.asarray(found.table).astype(np.float32), TABLE)
        np.testing.assert_array_equal(found.labels, CODES)
        assert found.ids[7] == "row 7"
        assert found.class_names == tuple(names)
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted([once.name, parts.name])


def test_parquet_is_written_to_be_small_and_quick(tmp_path):
    write_table(
        tmp_path / "a.parquet", {"probs": TABLE, "score": TABLE[:, 0], "prediction": NAMES[CODES]}
    )
    file = pq.ParquetFile(tmp_path / "a.parquet")
    assert pa.types.is_fixed_size_list(file.schema_arrow.field("probs").type)
    chunks = {c.path_in_schema: c for c in map(file.metadata.row_group(0).column, range(3))}
    for leaf in ("probs.list.element", "score"):
        assert "BYTE_STREAM_SPLIT" in chunks[leaf].encodings
        assert chunks[leaf].compression == "ZSTD"


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_half_a_file_is_no_file(tmp_path, suffix, error):
    path = tmp_path / f"a{suffix}"
    path.write_text("old")

    def fail():
        with open_table(path, N) as write:
            write({"probs": TABLE[:100]})
            write({"probs": TABLE[100:200]})
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_binary_formats_on_standard_output(tmp_path, monkeypatch, kind):
    class Out:
        buffer = io.BytesIO()

    monkeypatch.setattr(sys, "stdout", Out)
    write_table("-", {"logits": TABLE}, format=kind)
    (tmp_path / f"a.{kind}").write_bytes(Out.buffer.getvalue())
    np.testing.assert_array_equal(read_predictions(tmp_path / f"a.{kind}").table, TABLE)


@pytest.mark.slow
def test_large_tables_stay_in_the_file(tmp_path):
    narrow = np.zeros((1 << 10, 1 << 12), dtype=np.float32)
    path = tmp_path / "a.parquet"
    with open_table(path, 17 << 10) as write:
        for _ in range(17):
            write({"logits": narrow})
    found = read_predictions(path)
    assert found.table.nbytes == 17 << 24 > STREAM_BYTES
    assert isinstance(found.table, StoredTable)
    assert repr(found.table) == "ParquetTable(shape=(17408, 4096), dtype=float32)"
