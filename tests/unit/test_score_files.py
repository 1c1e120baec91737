"""Files of scores, of every kind: the same columns come out, and what is wrong is said with its
place.
"""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from metacal.errors import InputError
from metacal.io.scores import read_scores
from metacal.io.writing import write_table

SCORE = np.array([0.5, np.nan, -3.25, 1e-9])
RIGHT = np.array([True, False, True, False])
IDS = np.array(["a", "b", "c", "d"])
KINDS = (".npz", ".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather")


@pytest.mark.parametrize("suffix", KINDS)
def test_every_kind_of_file_gives_the_same_columns(tmp_path, suffix):
    if suffix in (".parquet", ".arrow", ".feather"):
        pytest.importorskip("pyarrow")
    path = tmp_path / f"a{suffix}"
    write_table(path, {"id": IDS, "mark": SCORE, "ok": RIGHT, "other": np.arange(4)})
    found = read_scores(path, score_key="mark")
    np.testing.assert_array_equal(found.score, SCORE)
    np.testing.assert_array_equal(found.correct, RIGHT)
    assert found.ids.tolist() == IDS.tolist()
    assert (found.name, found.path, len(found)) == ("mark", str(path), 4)
    assert found.unused_names == ("other",)
    with pytest.raises(InputError, match="score_key names 'score', which the file"):
        read_scores(path, score_key="score")
    with pytest.raises(
        InputError, match=r"correct_key names 'right', which the file does not have"
    ):
        read_scores(path, score_key="mark", correct_key="right")
    bare = read_scores(path, score_key="other", id_key="id")
    assert bare.score.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("suffix", KINDS)
def test_a_file_without_right_and_wrong_can_be_applied_to(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    write_table(path, {"mark": SCORE, "extra": SCORE})
    found = read_scores(path, score_key="mark")
    assert found.correct is None
    assert found.ids is None
    with pytest.raises(InputError, match=r"which rows are correct; the file also holds 'extra'\."):
        found.require_truth()


def test_single_precision_is_kept(tmp_path):
    for suffix in (".npz", ".parquet"):
        write_table(tmp_path / f"a{suffix}", {"mark": SCORE.astype(np.float32)})
        assert read_scores(tmp_path / f"a{suffix}", score_key="mark").score.dtype == np.float32


def test_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"mark": torch.tensor(SCORE), "correct": torch.tensor(RIGHT)}, tmp_path / "a.pt")
    found = read_scores(tmp_path / "a.pt", score_key="mark")
    np.testing.assert_array_equal(found.score, SCORE)
    np.testing.assert_array_equal(found.correct, RIGHT)


def test_nulls_of_parquet_are_missing_scores(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "mark": pa.array([1, None, 3]),
            "ok": [1, 0, 1],
            "none": pa.nulls(3),
            "word": ["a", "b", "c"],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    np.testing.assert_array_equal(
        read_scores(tmp_path / "a.parquet", score_key="mark").score, [1, np.nan, 3]
    )
    assert np.isnan(read_scores(tmp_path / "a.parquet", score_key="none").score).all()
    with pytest.raises(InputError, match="column 'word' holds string"):
        read_scores(tmp_path / "a.parquet", score_key="word")
    pq.write_table(pa.table({"mark": [1.0, 2.0], "ok": [True, None]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="row 1 of the column 'ok' is null"):
        read_scores(tmp_path / "b.parquet", score_key="mark")


def test_empty_cells_and_missing_entries_are_missing_scores(tmp_path):
    (tmp_path / "a.csv").write_text("mark,ok\n0.5,yes\n,no\n\nnan,no\ninf,YES\n")
    np.testing.assert_array_equal(
        read_scores(tmp_path / "a.csv", score_key="mark").score, [0.5, *[np.nan] * 3]
    )
    (tmp_path / "a.jsonl").write_text(
        '{"mark": 1, "ok": 1}\n{"ok": 0}\n{"mark": null, "ok": 1}\n{"mark": NaN, "ok": 0}\n'
    )
    np.testing.assert_array_equal(
        read_scores(tmp_path / "a.jsonl", score_key="mark").score, [1, *[np.nan] * 3]
    )


BAD = {
    "text for a score": (
        "a.csv",
        "mark,ok\n0.5,1\nhigh,0\n",
        r"the mark must be a number, but it is 'high'\. Leave out rows without a number\.",
    ),
    "two marks": (
        "a.csv",
        "mark,ok\n8/10/2,1\n",
        r"the mark must be a number, but it is '8/10/2'\. Leave out rows without a number\.",
    ),
    "a decimal comma": (
        "a.tsv",
        "mark\tok\n1,234\t1\n",
        r"the mark must be a number, but it is '1,234'\. Leave out rows without a number\.",
    ),
    "a third verdict": (
        "a.csv",
        "mark,ok\n1,yes\n2,no\n3,unsure\n",
        r"a\.csv:4: ok must mark whether the row is correct",
    ),
    "no verdict": ("a.csv", "mark,ok\n1,yes\n2,\n", r"a.csv:3: ok is missing\. Mark whether"),
    "a cell too many": (
        "a.csv",
        "mark,ok\n1,yes,3\n",
        r"a\.csv:2:3: the line has 3 cells, but the header has 2\.",
    ),
    "no rows": ("a.csv", "mark,ok\n", "the file has no rows"),
    "the header is missing": ("a.csv", "0.5,1\n0.6,0\n", "the first line holds numbers"),
    "a column twice": ("a.csv", "mark,mark,ok\n1,2,1\n", "repeats the column 'mark'"),
    "two verdicts": (
        "a.csv",
        "mark,ok,correct\n1,1,1\n",
        r"both 'correct' and 'ok'\. Choose one of them with correct_key\.",
    ),
    "text in JSON": (
        "a.jsonl",
        '{"mark": "0.9!", "ok": 1}\n',
        r"the mark must be a number, but it is '0\.9!'\. Leave out rows without a number\.",
    ),
    "a list in JSON": (
        "a.jsonl",
        '{"mark": [0.9], "ok": 1}\n',
        r"the mark must be a number, but it is \[0\.9\]\. Leave out rows without a number\.",
    ),
    "nested JSON": (
        "a.jsonl",
        '{"mark": {"v": 1}, "ok": 1}\n',
        r"the mark must be a number, but it is \{'v': 1\}\. Leave out rows without a number\.",
    ),
    "0.5 for right": (
        "a.jsonl",
        '{"mark": 1, "ok": 1}\n{"mark": 1, "ok": 0.5}\n',
        r"a\.jsonl:2: ok must mark whether the row is correct, but it is 0\.5\.",
    ),
    "null for right": (
        "a.jsonl",
        '{"mark": 1, "ok": 1}\n\n{"mark": 1, "ok": null}\n',
        "a.jsonl:3: ok is missing",
    ),
    "a list for right": (
        "a.jsonl",
        '{"mark": 1, "ok": []}\n',
        r"a\.jsonl:1: ok must mark whether the row is correct, but it is \[\]\. Write",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_with_its_place(tmp_path, name):
    file, text, complaint = BAD[name]
    (tmp_path / file).write_text(text)
    with pytest.raises(InputError, match=complaint):
        read_scores(tmp_path / file, score_key="mark")


def test_arrays_of_other_shapes(tmp_path):
    np.savez(tmp_path / "a.npz", mark=np.zeros((3, 2)), ok=[1, 0, 1])
    with pytest.raises(
        InputError, match=r"mark must have one entry per row, but got an array of shape \(3, 2\)\."
    ):
        read_scores(tmp_path / "a.npz", score_key="mark")
    np.savez(tmp_path / "a.npz", mark=np.zeros(3), ok=[1, 0])
    with pytest.raises(InputError, match=r"got 3 scores and 2 entries of correctness\."):
        read_scores(tmp_path / "a.npz", score_key="mark")
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(InputError, match=r"a single array, which has no column"):
        read_scores(tmp_path / "a.npy", score_key="mark")
    with pytest.raises(InputError, match=r"read '\.xlsx' files"):
        read_scores(tmp_path / "a.xlsx", score_key="mark")
    with pytest.raises(InputError, match="the file does not exist"):
        read_scores(tmp_path / "none.jsonl", score_key="mark")


def test_a_bom_and_crlf(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfmark,ok\r\n0.5,1\r\n0.25,0\r\n")
    assert read_scores(tmp_path / "a.csv", score_key="mark").score.tolist() == [0.5, 0.25]
    (tmp_path / "a.jsonl").write_bytes(
        b'\xef\xbb\xbf{"mark": 0.5, "ok": true}\r\n\r\n{"mark": 0.25, "ok": false}\r\n'
    )
    assert read_scores(tmp_path / "a.jsonl", score_key="mark").score.tolist() == [0.5, 0.25]


def test_standard_input(monkeypatch):
    class In:
        buffer = io.BytesIO(json.dumps({"mark": 0.5, "ok": True}).encode())

    monkeypatch.setattr("sys.stdin", In)
    assert read_scores("-", score_key="mark", format="jsonl").correct.tolist() == [True]
