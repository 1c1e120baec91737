"""Reading and writing tables of predictions; every kind of bad file has its own test."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from metacal.errors import InputError
from metacal.io import read_predictions, write_table
from metacal.io.formats import FORMATS
from metacal.io.writing import open_atomic_path
from metacal.rows.stored import StoredTable
from metacal.rows.validate import check_classes, encode_labels

TABLE = np.array([[2.5, -1.0, 0.0], [0.5, 3.0, -2.0]], dtype=np.float32)


def refuse(match, path, **options):
    """Check that reading fails with one line that names the file and matches."""
    with pytest.raises(InputError, match=match) as caught:
        read_predictions(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert os.path.basename(path) in message


@pytest.fixture
def text(tmp_path):
    def write(content, name="val.csv"):
        (tmp_path / name).write_text(content, encoding="utf-8")
        return tmp_path / name

    return write


@pytest.fixture
def npz(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "val.npz", **arrays)
        return tmp_path / "val.npz"

    return write


# ── npz ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", ["labels", "label", "y"])
def test_npz(npz, key):
    found = read_predictions(npz(logits=TABLE, id=np.array(["a", "b"]), **{key: [0, 1]}))
    assert found.table.dtype == np.float32
    assert np.array_equal(found.table, TABLE)
    assert found.labels.tolist() == [0, 1]
    assert found.ids.tolist() == ["a", "b"]
    assert found.class_names is None
    assert found.input == "logits"
    assert len(found) == 2


@pytest.mark.parametrize("key", ["probabilities", "probs"])
def test_npz_probabilities_by_input(npz, key):
    found = read_predictions(npz(logits=TABLE, **{key: TABLE + 9}), input="probabilities")
    assert np.array_equal(found.table, TABLE + 9)
    assert found.labels is None
    assert found.unused_names == ("logits",)


def test_npz_holding_probabilities_is_not_read_as_logits(npz):
    refuse("pass input='probabilities'", npz(probs=TABLE))


def test_npz_other_keys(npz):
    found = read_predictions(npz(z=TABLE, t=[1, 0]), logits_key="z", label_key="t")
    assert found.labels.tolist() == [1, 0]


def test_npz_does_not_guess(npz):
    path = npz(scores=TABLE, target=np.array([0, 1]))
    refuse(r"holds scores \(2, 3\) float32, target \(2,\) int64; .*logits_key .*label_key", path)


def test_npz_two_candidates(npz):
    refuse(
        r"both 'labels' and 'y'\. Choose one of them with label_key\.",
        npz(logits=TABLE, y=[0, 1], labels=[0, 1]),
    )


def test_npz_key_that_is_not_there(npz):
    refuse("logits_key names 'z', which the file", npz(logits=TABLE), logits_key="z")


def test_npz_classes(npz):
    assert read_predictions(npz(logits=TABLE, classes=["a", "b", "c"])).class_names == (
        "a",
        "b",
        "c",
    )
    refuse(
        "order 'a', 'b', 'c'",
        npz(logits=TABLE, classes=["a", "b", "c"]),
        classes=["c", "b", "a"],
    )
    assert read_predictions(npz(logits=TABLE), classes=["a", "b", "c"]).class_names == (
        "a",
        "b",
        "c",
    )
    refuse(r"3 columns, but you pass 2 class names\.", npz(logits=TABLE), classes=["a", "b"])


def test_npz_lengths_differ(npz):
    refuse(r"2 rows, but the shape is \(3,\)\. If the labels", npz(logits=TABLE, labels=[0, 1, 1]))


def test_npz_one_hot_labels(npz):
    refuse("argmax", npz(logits=TABLE, labels=np.eye(3)[:2]))


def test_npz_flat_table(npz):
    refuse(
        r"one row per item and one column per class, but it has shape \(3,\)", npz(logits=TABLE[0])
    )


def test_npz_no_rows(npz):
    refuse("no rows", npz(logits=TABLE[:0]))


def test_npz_of_objects(npz):
    refuse(
        "array 'logits' holds Python objects.*np.savez",
        npz(logits=np.array([[1, None]], dtype=object)),
    )


def test_npz_of_strings(npz):
    refuse("must be numeric|must be a tensor", npz(logits=TABLE.astype(str)))


@pytest.mark.parametrize("keep", [0.2, 0.6, 0.97])
def test_npz_cut_short(npz, keep):
    path = npz(logits=np.zeros((500, 3)), labels=np.zeros(500, int))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    refuse("damaged or cut short", path)


def test_npz_with_a_flipped_byte(npz):
    path = npz(logits=np.zeros((500, 3)))
    content = bytearray(path.read_bytes())
    content[2000] ^= 0xFF
    path.write_bytes(content)
    refuse("damaged or cut short", path)


def test_zip_that_is_no_npz(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    refuse("not an npz .*data.pkl", tmp_path / "model.npz")


def test_empty_zip(tmp_path):
    zipfile.ZipFile(tmp_path / "val.npz", "w").close()
    refuse("no array 'logits' found; it holds nothing", tmp_path / "val.npz")


# ── npy ───────────────────────────────────────────────────────────────────────────────────────────


def test_npy_is_read_or_stays_in_its_file(tmp_path):
    np.save(tmp_path / "z.npy", TABLE)
    stays = read_predictions(tmp_path / "z.npy", stream=True).table
    assert isinstance(stays, StoredTable)
    found = read_predictions(tmp_path / "z.npy")
    assert type(found.table) is np.ndarray
    np.testing.assert_array_equal(stays[:], found.table)
    assert found.labels is None
    with pytest.raises(InputError, match=r"no labels found.*with labels"):
        found.require_truth()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("y.txt", "1\n0\n"),
        ("y.csv", "label\n1\n0\n"),
        ("y.csv", "1\n0\n"),
        ("y.tsv", "n\ty\n5\t1\n6\t0\n\n"),
    ],
)
def test_labels_from_a_second_text_file(tmp_path, text, name, content):
    np.save(tmp_path / "z.npy", TABLE)
    found = read_predictions(tmp_path / "z.npy", labels=text(content, name))
    assert found.require_truth().tolist() == [1, 0]


def test_labels_from_a_second_npy(tmp_path):
    np.save(tmp_path / "z.npy", TABLE)
    np.save(tmp_path / "y.npy", np.array([2, 1]))
    assert read_predictions(tmp_path / "z.npy", labels=tmp_path / "y.npy").labels.tolist() == [2, 1]


def test_labels_file_with_an_unknown_header(tmp_path, text):
    np.save(tmp_path / "z.npy", TABLE)
    refuse(
        r"header, name the column with label_key\.",
        tmp_path / "z.npy",
        labels=text("truth\na\nb\n", "y.csv"),
    )
    found = read_predictions(tmp_path / "z.npy", labels=tmp_path / "y.csv", label_key="truth")
    assert found.labels.tolist() == ["a", "b"]


def test_labels_file_with_a_hole(tmp_path, text):
    np.save(tmp_path / "z.npy", TABLE)
    with pytest.raises(InputError, match=r"y.txt:2:1: the label is missing"):
        read_predictions(tmp_path / "z.npy", labels=text("1\n\n0\n", "y.txt"))


def test_labels_file_with_many_columns(tmp_path, text):
    np.save(tmp_path / "z.npy", TABLE)
    with pytest.raises(InputError, match=r"several columns may hold the labels.*label_key"):
        read_predictions(tmp_path / "z.npy", labels=text("a,b\n1,2\n3,4\n", "y.csv"))


def test_labels_file_of_unknown_kind(tmp_path):
    np.save(tmp_path / "z.npy", TABLE)
    with pytest.raises(InputError, match=r"y\.json: the file type is not supported for labels\."):
        read_predictions(tmp_path / "z.npy", labels=tmp_path / "y.json")


def test_npy_of_objects(tmp_path):
    np.save(tmp_path / "z.npy", np.array([[1, None]], dtype=object), allow_pickle=True)
    refuse("holds Python objects", tmp_path / "z.npy")


@pytest.mark.parametrize("size", [9, 60, 140])
def test_npy_cut_short(tmp_path, size):
    np.save(tmp_path / "z.npy", TABLE)
    (tmp_path / "z.npy").write_bytes((tmp_path / "z.npy").read_bytes()[:size])
    refuse("damaged or cut short", tmp_path / "z.npy")


def test_npy_no_rows(tmp_path):
    np.save(tmp_path / "z.npy", TABLE[:0])
    refuse("no rows|damaged", tmp_path / "z.npy")


# ── csv, tsv ──────────────────────────────────────────────────────────────────────────────────────


def test_csv(text):
    found = read_predictions(
        text('id,cat,"dog, wild",label\nu1,2.5,-1e0,cat\n\nu2, inf,nan,"dog, wild"\n')
    )
    np.testing.assert_array_equal(found.table, [[2.5, -1], [np.inf, np.nan]])
    assert found.class_names == ("cat", "dog, wild")
    assert found.labels.tolist() == ["cat", "dog, wild"]
    assert found.ids.tolist() == ["u1", "u2"]


def test_tsv_with_byte_order_mark_and_dos_lines(tmp_path):
    (tmp_path / "val.tsv").write_bytes(b"\xef\xbb\xbf0\t1\ty\r\n1.5\t2\t1\r\n3\t4\t0\r\n")
    found = read_predictions(tmp_path / "val.tsv")
    assert found.class_names == (0, 1)
    assert found.table.tolist() == [[1.5, 2], [3, 4]]
    assert encode_labels(found.labels, 2, check_classes(found.class_names, 2)).tolist() == [1, 0]


def test_csv_numbered_labels_of_named_columns(text):
    found = read_predictions(text("cat,dog,label\n1,2,1\n3,4,0\n"))
    assert found.labels.dtype == np.int64
    assert found.class_names == ("cat", "dog")
    assert found.labels_count_columns
    assert encode_labels(found.labels, 2, check_classes(found.class_names, 2)).tolist() == [1, 0]


def test_csv_labels_keep_their_kind(text):
    assert read_predictions(text("a,b,y\n1,2,1.0\n3,4,0.0\n")).labels.dtype == np.float64
    assert read_predictions(text("a,b,y\n1,2,01\n3,4,02\n")).labels.tolist() == ["01", "02"]
    assert read_predictions(text("a,b,y\n1,2,1\n3,4,dog\n")).labels.tolist() == ["1", "dog"]
    assert read_predictions(text("a,b,y\n1,2,nan\n3,4,inf\n")).labels.tolist() == ["nan", "inf"]


def test_csv_other_label_column(text):
    found = read_predictions(text("a,b,target\n1,2,0\n"), label_key="target")
    assert found.labels.tolist() == [0]
    refuse("column 'y' may be a class or a label", text("a,y,target\n1,2,0\n"), label_key="target")
    refuse("both 'label' and 'y'", text("a,b,y,label\n1,2,0,0\n"))


def test_csv_classes_choose_and_order_columns(text):
    path = text("when,dog,id,cat,label\nnoon,1,2,3,cat\n")
    found = read_predictions(path, classes=["cat", "dog", "id"])  # id: Indonesian, among languages
    assert found.table.tolist() == [[3, 1, 2]]
    assert found.class_names == ("cat", "dog", "id")
    assert found.ids is None
    assert found.unused_names == ("when",)
    refuse(r"no columns for the classes 'cow'\.", path, classes=["cat", "cow"])


def test_csv_classes_order_prefixed_columns_too(text):
    path = text("logits_dog,logits_cat\n1,2\n")
    assert read_predictions(path).class_names == ("dog", "cat")
    assert read_predictions(path, classes=["cat", "dog"]).table.tolist() == [[2, 1]]
    path = text("logits_1,logits_0\n1,2\n")
    assert read_predictions(path, classes=[0, 1]).table.tolist() == [[2, 1]]


def test_csv_classes_may_rename_columns(text):
    found = read_predictions(text("c0,c1\n1,2\n"), classes=["cat", "dog"])
    assert found.class_names == ("cat", "dog")
    refuse(
        r"2 columns, but you pass 3 class names\.",
        text("c0,c1\n1,2\n"),
        classes=["cat", "dog", "cow"],
    )


def test_csv_logits_key_is_a_prefix(text):
    path = text("z_a,z_b,p_a,p_b\n1,2,3,4\n")
    found = read_predictions(path, logits_key="z")
    assert found.table.tolist() == [[1, 2]]
    assert found.class_names == ("a", "b")
    assert found.unused_names == ("p_a", "p_b")
    assert read_predictions(path, logits_key="p", classes=["b", "a"]).table.tolist() == [[4, 3]]
    refuse("column 'q' of lists, and no", path, logits_key="q")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("a,b,y\n1,2,0\n3,,1\n", r"val.csv:3:2: column 'b' is empty"),
        ("a,b,y\n1,2,0\n3,4,\n", r"val.csv:3:3: column 'y' is empty"),
        ("a,b,y\n1,2,0\n3,4\n", r"val\.csv:3:3: the line has 2 cells, but the header has 3\."),
        ("a,b,y\n1,2,0,9\n", r"val\.csv:2:4: the line has 4 cells"),
        ("a,b,y\n1,2,0\nNA,4,1\n", r"val\.csv:3:1: column 'a' must be a number"),
        ("a,b,y\n1,1_000,0\n", r"val\.csv:2:2: column 'b' must be a number, but it is '1_000'\."),
        (
            'a,b,y\n1,2,"x\nx"\n1,?,0\n',
            r"val\.csv:4:2: column 'b' must be a number, but it is '\?'\.",
        ),
        ("a,b,y\n", "no rows"),
        ("\n1,2\n", "the file has no header"),
        ("0.5,1.5\n1,2\n", "first line holds numbers"),
        ("3,1,0\n1,2,0\n", "first line holds numbers"),
        ("a,a,y\n1,2,0\n", "repeats the column 'a'"),
        ("a,,,y\n1,2,3,0\n", "several columns without a name"),
        ("a,y\n1,0\n", r"required, but 1 class column\(s\) were"),
    ],
)
def test_csv_that_is_wrong(text, content, match):
    refuse(match, text(content))


def test_csv_in_another_encoding(tmp_path):
    (tmp_path / "val.csv").write_bytes("größe,klein\n1,2\n".encode("latin-1"))
    refuse("not UTF-8", tmp_path / "val.csv")


def test_csv_from_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a,b,y\n1,2,0\n")))
    found = read_predictions("-")
    assert found.path == "-"
    assert found.labels.tolist() == [0]
    monkeypatch.setattr(sys, "stdin", io.StringIO("a,b\n1,x\n"))
    refuse(
        r"-:2:2: column 'b' must be a number, but it is 'x'\. Correct the cell, if it holds", "-"
    )


# ── files that cannot be read ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["val.npz", "val.npy", "val.csv"])
def test_missing_file(tmp_path, name):
    refuse("the file does not exist", tmp_path / name)


@pytest.mark.parametrize("name", ["val.npz", "val.npy", "val.tsv"])
def test_folder(tmp_path, name):
    (tmp_path / name).mkdir()
    refuse("the folder contains no file of predictions", tmp_path / name)


@pytest.mark.parametrize("name", ["val.npz", "val.npy", "val.csv"])
def test_empty_file(tmp_path, name):
    (tmp_path / name).touch()
    refuse("0 bytes", tmp_path / name)


def test_no_permission(npz, monkeypatch):
    path = npz(logits=TABLE)

    def denied(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    refuse("permission to read", path)


@pytest.mark.parametrize("name", ["val.xlsx", "val.h5"])
def test_unknown_suffix(tmp_path, name):
    refuse(r"metacal does not read .*\.npz.*np.savez", tmp_path / name)


@pytest.mark.parametrize("name", ["val.pkl", "val.pickle", "val.p", "val.joblib"])
def test_pickle_by_suffix(tmp_path, name):
    refuse("does not read pickles.*np.savez", tmp_path / name)


@pytest.mark.parametrize("name", ["val.npz", "val.npy", "val.csv"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_by_content(tmp_path, name, protocol):
    (tmp_path / name).write_bytes(pickle.dumps({"logits": TABLE}, protocol=protocol))
    refuse("the file is a pickle.*np.savez", tmp_path / name)


@pytest.mark.parametrize("name", ["val.npz", "val.npy", "val.csv", "val.csv.gz"])
def test_compressed_joblib(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(pickle.dumps(TABLE)))
    refuse("compressed data such as joblib|the file is a pickle", tmp_path / name)


def test_a_file_is_known_by_its_content(tmp_path, npz):
    with (tmp_path / "val.npz").open("wb") as file:
        np.save(file, TABLE)
    np.testing.assert_array_equal(read_predictions(tmp_path / "val.npz").table, TABLE)
    npz(logits=TABLE).rename(tmp_path / "val.csv")
    np.testing.assert_array_equal(read_predictions(tmp_path / "val.csv").table, TABLE)


@pytest.mark.parametrize(
    ("name", "mark"), [("val.csv", ";"), ("val.csv.gz", ","), ("val", "|"), ("val.txt", "\t")]
)
def test_text_may_have_another_separator_and_be_compressed(tmp_path, name, mark):
    text = "a,b,y\n1,2,0\n3,5,1\n".replace(",", mark).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    found = read_predictions(tmp_path / name)
    np.testing.assert_array_equal(found.table, [[1.0, 2.0], [3.0, 5.0]])
    assert found.labels.tolist() == [0, 1]


def test_what_unpacks_too_far_is_refused(tmp_path):
    (tmp_path / "val.csv.gz").write_bytes(gzip.compress(b"a,b,y\n" + b"1,2,0\n" * 50_000))
    with pytest.raises(InputError, match="the limit is 100,000 bytes"):
        read_predictions(tmp_path / "val.csv.gz", unpack_limit=100_000)


def test_columns_can_be_dropped(text):
    path = text("a,b,year,y\n1,2,1999,0\n3,5,2001,1\n")
    assert read_predictions(path, drop=["year"]).class_names == ("a", "b")


@pytest.mark.parametrize("name", ["val.npz", "val.npy"])
def test_text_named_npz(text, name):
    refuse("of another format", text("a,b\n1,2\n", name))


def test_nothing_is_ever_unpickled(tmp_path, npz, monkeypatch):
    def run(*args, **options):
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "load", run)
    monkeypatch.setattr(pickle, "loads", run)
    objects = np.array([object()], dtype=object)
    refuse("Python objects", npz(logits=TABLE, labels=objects))
    # Objects in an array that nobody asked for are left alone.
    assert read_predictions(npz(logits=TABLE, notes=objects)).unused_names == ("notes",)


def test_unknown_input(npz):
    with pytest.raises(
        InputError, match=r"input must be 'logits' or 'probabilities', but got 'scores'\."
    ):
        read_predictions(npz(logits=TABLE), input="scores")


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".tsv"])
@pytest.mark.parametrize("class_names", [None, ["cat", "dog", "a,b"]])
def test_what_is_written_is_read_back(tmp_path, suffix, class_names):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(1000, 3)).astype(np.float32)
    labels = rng.integers(0, 3, 1000)
    path = tmp_path / f"out{suffix}"
    write_table(path, {"id": labels + 7, "logits": table, "label": labels}, class_names=class_names)
    found = read_predictions(path)
    assert np.array_equal(found.table.astype(np.float32), table)
    assert np.array_equal(found.labels, labels)
    assert np.array_equal(found.ids, labels + 7)
    if class_names is not None:
        assert found.class_names == tuple(class_names)
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_csv_text(tmp_path):
    columns = {
        "accept": np.array([True, False]),
        "p": np.array([[0.1, 0.9], [np.nan, -np.inf]], dtype=np.float32),
        "name": np.array(["x", 'say "y"'], dtype=object),
        "score": np.array([1 / 3, 2.0]),
    }
    write_table(tmp_path / "out.csv", columns)
    assert (
        (tmp_path / "out.csv").read_bytes().decode()
        == 'accept,p_0,p_1,name,score\ntrue,0.1,0.9,x,0.3333333333333333\nfalse,nan,-inf,"say ""y""",2.0\n'
    )


def test_csv_on_standard_output(capsys):
    write_table("-", {"a": [1, 2]})
    assert capsys.readouterr().out == "a\n1\n2\n"


def test_npz_is_deterministic_and_may_be_compressed(tmp_path):
    for name, compress in (("a", False), ("b", False), ("c", True)):
        write_table(tmp_path / f"{name}.npz", {"file": np.zeros(10000)}, compress=compress)
    a, b, c = ((tmp_path / f"{name}.npz").read_bytes() for name in "abc")
    assert a == b
    assert len(c) < len(a) / 10
    with np.load(tmp_path / "c.npz") as arrays:
        assert arrays["file"].shape == (10000,)


@pytest.mark.parametrize(
    ("columns", "options", "match"),
    [
        ({}, {}, "columns must not be empty"),
        ({"a": [1], "b": [1, 2]}, {}, r"same length, but got \{'a': 1, 'b': 2\}\."),
        ({"a": [[[1]]]}, {}, "1-D or 2-D"),
        ({"a": 3}, {}, "1-D or 2-D"),
        ({"a": np.array([{}])}, {}, "numbers or strings"),
        ({"": [1]}, {}, "non-empty"),
        ({"a/b": [1]}, {}, "without '/'"),
        ({"a": [[1, 2]]}, {"class_names": ["x"]}, "2 classes, but class_names has 1"),
        ({"a_0": [1], "a": [[1, 2]]}, {}, r"Two columns would have the name 'a_0'\."),
    ],
)
def test_tables_that_cannot_be_written(tmp_path, columns, options, match):
    with pytest.raises(InputError, match=match):
        write_table(tmp_path / "out.csv", columns, **options)
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written(tmp_path):
    for path, match in (
        (
            tmp_path / "out.xlsx",
            r"file type '\.xlsx' is not supported\. End the name in \.arrow, \.csv, \.feather",
        ),
        (tmp_path / "no" / "out.csv", r"the folder .*no does not exist. Create"),
    ):
        with pytest.raises(InputError, match=match):
            write_table(path, {"a": [1]})
    (tmp_path / "dir.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_table(tmp_path / "dir.csv", {"a": [1]})


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_atomic_path_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "a.json"
    path.write_text("old")

    def write_half():
        with open_atomic_path(path) as part:
            assert part.parent == tmp_path
            assert part.suffix == ".json"
            part.write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_atomic_path_permissions_and_links(tmp_path):
    old = os.umask(0o022)
    try:
        with open_atomic_path(tmp_path / "new") as part:
            part.write_text("x")
    finally:
        os.umask(old)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o644
    (tmp_path / "new").chmod(0o640)
    (tmp_path / "link").symlink_to(tmp_path / "new")
    with open_atomic_path(tmp_path / "link") as part:
        part.write_text("y")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new").read_text() == "y"
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(not Path(os.devnull).is_char_device(), reason="needs a device file")
def test_atomic_path_does_not_replace_a_device():
    with open_atomic_path(os.devnull) as part:
        part.write_text("x")
    assert Path(os.devnull).is_char_device()


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("metacal.io.writing.os.fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*out.npz: No space left on device\."):
        write_table(tmp_path / "out.npz", {"a": [1]})
    assert not list(tmp_path.iterdir())


def test_importing_io_is_light():
    code = (
        "import sys, metacal.io; print([m for m in ('scipy', 'sklearn', 'pandas', 'pyarrow') if m"
        " in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "suffix", ["npz", "npy", "csv", "tsv", "jsonl", "parquet", "arrow", "safetensors", "pt"]
)
def test_groups_come_with_the_one_reading(tmp_path, monkeypatch, suffix):
    path, n_reads = tmp_path / f"a.{suffix}", []
    columns = {
        "logits": np.eye(3),
        "label": np.array([0, 1, 2]),
        "site": np.array([7, 8, 7]),
        "id": np.arange(3),
    }
    if suffix == "safetensors":
        pytest.importorskip("safetensors.numpy").save_file(columns, path)
    elif suffix == "pt":
        torch = pytest.importorskip("torch")
        torch.save({name: torch.from_numpy(column) for name, column in columns.items()}, path)
    elif suffix == "npy":
        kinds = [("logits", "f8", 3), *((name, "i8") for name in ("label", "site", "id"))]
        np.save(path, np.array(list(zip(*columns.values())), dtype=kinds))
    else:
        write_table(path, columns)
    kind = FORMATS[path.suffix]

    def counted(request):
        n_reads.append(request)
        return kind.read(request)

    monkeypatch.setitem(FORMATS, path.suffix, replace(kind, read=counted))
    read = read_predictions(path, group_key="site")
    assert len(n_reads) == 1
    assert (read.groups.tolist(), read.ids.tolist(), read.labels.tolist()) == (
        [7, 8, 7],
        [0, 1, 2],
        [0, 1, 2],
    )
    assert read.table.shape == (3, 3)
    assert read.unused_names == ()
    assert read_predictions(path, group_key="id").groups.tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="group_key names 'plant', which the file"):
        read_predictions(path, group_key="plant")


def test_groups_of_an_array_without_names(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(3))
    with pytest.raises(
        InputError,
        match=r"a\.npy: the file holds one array without column names, so it has no column 'site'\.",
    ):
        read_predictions(tmp_path / "a.npy", group_key="site")


def test_one_column_of_probabilities_as_an_array(tmp_path):
    """Found by reading: of a flat .npy only the shape was read, and every probability was 0."""
    np.save(tmp_path / "a.npy", np.array([0.25, 0.75, 0.5]))
    found = read_predictions(tmp_path / "a.npy", input="probabilities")
    assert found.table.tolist() == [[0.75, 0.25], [0.25, 0.75], [0.5, 0.5]]


def test_classes_and_labels_in_safetensors(tmp_path):
    """Classes were left aside, and labels in bfloat16 were taken for the bits that they are stored
    as.
    """
    torch, save = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch").save_file
    labels = torch.tensor([30, 10, 20]).to(torch.bfloat16)
    save(
        {"logits": torch.eye(3), "labels": labels, "classes": torch.tensor([30, 10, 20])},
        tmp_path / "a.safetensors",
    )
    found = read_predictions(tmp_path / "a.safetensors")
    assert found.class_names == (30, 10, 20)
    assert found.labels.tolist() == [30, 10, 20]


@pytest.mark.parametrize("suffix", ["npz", "csv", "jsonl", "parquet"])
def test_units_come_with_the_one_reading(tmp_path, suffix):
    columns = {
        "logits": np.eye(3),
        "label": np.arange(3),
        "patient": np.array([7, 8, 7]),
        "id": np.arange(3),
    }
    write_table(tmp_path / f"a.{suffix}", columns)
    found = read_predictions(tmp_path / f"a.{suffix}", unit_key="patient")
    assert (found.units.tolist(), found.ids.tolist(), found.table.shape) == (
        [7, 8, 7],
        [0, 1, 2],
        (3, 3),
    )
