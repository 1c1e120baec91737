"""JSON lines in and out: tables as everywhere, errors that name the line, nothing guessed."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from click.testing import CliRunner

from metacal.cli import main
from metacal.errors import InputError
from metacal.io import read_predictions, write_table
from metacal.io.formats import jsonl


def lines(path, *rows):
    path.write_text(
        "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows),
        encoding="utf-8",
    )
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "val.jsonl"


def test_a_list_or_an_entry_per_class(file):
    lines(
        file,
        {"id": "a", "logits": [1, -2.5, 0], "label": 2},
        {"logits": [0, 1, 2], "label": 0, "id": "b", "x": []},
    )
    found = read_predictions(file)
    np.testing.assert_array_equal(found.table, [[1, -2.5, 0], [0, 1, 2]])
    assert found.labels.tolist() == [2, 0]
    assert found.ids.tolist() == ["a", "b"]
    lines(
        file,
        {"cat": 1.5, "dog": 2, "label": "dog", "id": 7},
        {"dog": 0, "cat": 1, "label": "cat", "id": 8},
    )
    found = read_predictions(file)
    np.testing.assert_array_equal(found.table, [[1.5, 2], [1, 0]])
    assert found.class_names == ("cat", "dog")
    assert found.labels.tolist() == ["dog", "cat"]
    assert found.ids.tolist() == [7, 8]
    lines(file, {"z_cat": 1.5, "note": "hello", "z_dog": 2, "truth": "dog"})
    found = read_predictions(file, logits_key="z", label_key="truth")
    assert found.class_names == ("cat", "dog")
    assert found.unused_names == ("note",)


def test_bom_crlf_blank_lines_and_a_missing_last_line_end(file):
    file.write_bytes(
        b'\xef\xbb\xbf\r\n\r\n{"logits": [1, 2], "label": 0}\r\n\n   \n{"logits": [3, 4],'
        b' "label": 1}'
    )
    np.testing.assert_array_equal(read_predictions(file).table, [[1, 2], [3, 4]])


def test_masks_are_read_as_python_writes_them(file):
    lines(file, '{"logits": [1, -Infinity, NaN]}\n')
    np.testing.assert_array_equal(read_predictions(file).table, [[1, -np.inf, np.nan]])


BAD = {
    "a list": ("[1, 2]\n", r"val.jsonl:1: this line is a list, not an object .*jq -c '.\[\]' FILE"),
    "pretty-printed": (
        '{\n "logits": [1, 2]\n}\n',
        "val.jsonl:1: this line is not one complete JSON object",
    ),
    "a number": ('{"logits": [1, 2]}\n7\n', "val.jsonl:2: this line is 7, not an object"),
    "cut short": (
        '{"logits": [1, 2]}\n\n{"logits": [1,',
        "val.jsonl:3: this line is not one complete JSON object",
    ),
    "two objects": (
        '{"logits": [1, 2]} {"logits": [1, 2]}\n',
        "val.jsonl:1: this line is not one complete JSON object",
    ),
    "twice": (
        '{"logits": [1, 2], "logits": [3, 4]}\n',
        "the entry 'logits' occurs twice",
    ),
    "nothing": ("\n \n", "the file has no rows"),
    "ragged": (
        '{"logits": [1, 2]}\n{"logits": [1, 2, 3]}\n',
        "the entry 'logits' has 3 numbers, but the first",
    ),
    "text in a list": (
        '{"logits": [1, "2"]}\n',
        "val.jsonl:1: the entry 'logits' must hold only numbers, but it holds \"2\"",
    ),
    "null in a list": (
        '{"logits": [1, null]}\n',
        r"val\.jsonl:1: the entry 'logits' must hold only numbers, but it holds null\.",
    ),
    "true in a list": (
        '{"logits": [1, true]}\n',
        r"val\.jsonl:1: the entry 'logits' must hold only numbers, but it holds true\.",
    ),
    "no list": (
        '{"logits": [1, 2]}\n{"logits": 3}\n',
        r"val\.jsonl:2: the entry 'logits' must be a list of numbers, but it is 3\.",
    ),
    "lists in a list": (
        '{"logits": [[1, 2], [3, 4]]}\n',
        r"val\.jsonl:1: the entry 'logits' must hold only numbers, but it holds a list\.",
    ),
    "a missing entry": (
        '{"a": 1, "b": 2}\n{"a": 1}\n',
        "val.jsonl:2: the entry 'b' is missing or null",
    ),
    "an object": (
        '{"a": 1, "b": {"c": 2}}\n',
        "val.jsonl:1: the entry 'b' is an object, which is not a number",
    ),
    "text": ('{"a": 1, "b": "x"}\n', "val.jsonl:1: the entry 'b' is \"x\", which is not a number"),
    "one class": ('{"a": 1, "label": 0}\n', r"1 class column\(s\) were found among 'a', 'label'\."),
    "no label": (
        '{"logits": [1, 2], "label": 0}\n{"logits": [1, 2]}\n',
        "val.jsonl:2: 'label' is missing or null",
    ),
    "labels of two kinds": (
        '{"logits": [1, 2], "label": 0}\n{"logits": [1, 2], "label": "1"}\n',
        (
            "val.jsonl:2: 'label' is \"1\", but in the first row it is 0. Write all values as"
            " numbers, or write all as strings"
        ),
    ),
    "a huge label": (f'{{"logits": [1, 2], "label": {10**30}}}\n', "64 bits"),
    "a huge logit": (f'{{"logits": [1, {10**400}]}}\n', "too large for a logit"),
    "deep": (
        '{"logits": ' + "[" * 100_000 + "]" * 100_000 + "}\n",
        "val.jsonl:1: this line is nested too deeply",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_with_its_line(file, name, monkeypatch):
    text, complaint = BAD[name]
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=complaint):
        read_predictions(file)
    monkeypatch.chdir(file.parent)
    done = CliRunner().invoke(main, ["evaluate", "val.jsonl"])
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: val.jsonl")
    assert len(done.stderr) < 400


def test_a_line_without_end_is_refused_before_it_fills_the_memory(file, monkeypatch):
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1 << 20)
    file.write_text('{"logits": [1, 2]}\n{"logits": [' + "1, " * (1 << 19) + "2]}\n")
    with pytest.raises(InputError, match=r"val\.jsonl:2: the line has more than 1 MB\."):
        read_predictions(file)


def test_not_utf8(file):
    file.write_bytes(b'{"logits": [1, 2], "label": "caf\xe9"}\n')
    with pytest.raises(InputError, match="this line is not UTF-8"):
        read_predictions(file)


def test_standard_input(file, monkeypatch):
    class In:
        buffer = io.BytesIO(b'{"logits": [1, 2], "label": 1}\n')

    monkeypatch.setattr("sys.stdin", In)
    assert read_predictions("-", format="jsonl").labels.tolist() == [1]


# ── out ───────────────────────────────────────────────────────────────────────────────────────────


def test_written_rows_are_strict_json_with_the_shortest_digits(file, capsys):
    columns = {
        "id": np.array(["a", "ü\n"]),
        "accept": np.array([True, False]),
        "score": np.array([0.1, np.nan]),
        "probs": np.array([[0.1, 0.9], [np.inf, 0.5]], dtype=np.float32),
        "n": np.array([1, 2]),
    }
    write_table(file, columns)
    first, second = (
        json.loads(line, parse_constant=pytest.fail) for line in file.read_text().splitlines()
    )
    assert first == {"id": "a", "accept": True, "score": 0.1, "probs": [0.1, 0.9], "n": 1}
    assert second == {"id": "ü\n", "accept": False, "score": None, "probs": [None, 0.5], "n": 2}
    write_table("-", columns, format="jsonl")
    assert capsys.readouterr().out == file.read_text()
    write_table(file, {"probs": columns["probs"][:1]}, class_names=["cat", "dog"])
    assert json.loads(file.read_text()) == {"probs_cat": 0.1, "probs_dog": 0.9}
    assert read_predictions(file, input="probabilities").class_names == ("cat", "dog")


def test_fit_and_apply_in_json_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=400)
    logits = rng.normal(size=(400, 3)) + 3.0 * np.eye(3)[labels]
    names = ["cat", "dog", "eel"]
    rows = [
        {"dog": row[1], "cat": row[0], "eel": row[2], "label": names[k]}
        for row, k in zip(logits, labels)
    ]
    lines(tmp_path / "val.jsonl", *rows)
    np.savez("val.npz", logits=logits, labels=np.array(names)[labels], classes=np.array(names))
    run = CliRunner().invoke
    for source in ("val.jsonl", "val.npz"):
        done = run(
            main,
            [
                "fit",
                source,
                "--classes",
                "cat,dog,eel",
                "--max-miscoverage",
                "0.1",
                "-o",
                "cal.json",
            ],
        )
        assert done.exit_code == 0, done.stderr
        done = run(main, ["apply", "cal.json", source, "-o", f"{source}.out.jsonl"])
        assert done.exit_code == 0, done.stderr
    decided = (tmp_path / "val.jsonl.out.jsonl").read_text()
    # The other columns of a file are passed on under their own names.
    decided_arrays = (tmp_path / "val.npz.out.jsonl").read_text().replace("labels", "label")
    assert decided == decided_arrays
    assert list(json.loads(decided.splitlines()[0])) == [
        "label",
        "prediction",
        "answer",
        "confidence",
        "accept",
        "score",
        "probs_cat",
        "probs_dog",
        "probs_eel",
    ]


# ── one column of probabilities ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("a.csv", "label,prob\n1,0.75\n0,0.25\n", {}),
        ("a.csv", "id,probability,label\nx,0.75,1\ny,0.25,0\n", {}),
        ("a.csv", "label,note,p\n1,hm,0.75\n0,hm,0.25\n", {"logits_key": "p"}),
        ("a.tsv", "label\tprob\n1\t0.75\n0\t0.25\n", {}),
        ("a.jsonl", '{"label": 1, "prob": 0.75}\n{"label": 0, "prob": 0.25}\n', {}),
        ("a.jsonl", '{"label": 1, "probs": [0.75]}\n{"label": 0, "probs": [0.25]}\n', {}),
    ],
)
def test_the_probability_of_the_second_class_may_stand_alone(tmp_path, name, text, options):
    (tmp_path / name).write_text(text)
    found = read_predictions(tmp_path / name, input="probabilities", **options)
    np.testing.assert_array_equal(found.table, [[0.25, 0.75], [0.75, 0.25]])
    assert found.labels.tolist() == [1, 0]
    assert found.class_names is None
    named = read_predictions(
        tmp_path / name, input="probabilities", classes=["no", "yes"], **options
    )
    assert named.class_names == ("no", "yes")


@pytest.mark.parametrize(
    "probs", [np.array([0.75, 0.25]), np.array([[0.75], [0.25]], dtype=np.float32)]
)
def test_and_in_arrays(tmp_path, probs):
    np.savez(tmp_path / "a.npz", probs=probs, labels=[1, 0])
    found = read_predictions(tmp_path / "a.npz", input="probabilities")
    np.testing.assert_array_equal(found.table, [[0.25, 0.75], [0.75, 0.25]])
    assert found.table.dtype == probs.dtype


def test_and_in_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    write_table(tmp_path / "a.parquet", {"label": [1, 0], "prob": [0.75, 0.25]})
    np.testing.assert_array_equal(
        read_predictions(tmp_path / "a.parquet", input="probabilities").table[:, 1], [0.75, 0.25]
    )


@pytest.mark.parametrize("value", ["1.5", "-0.1", "nan"])
def test_one_column_must_hold_probabilities(tmp_path, value):
    (tmp_path / "a.csv").write_text(f"label,prob\n1,0.5\n0,{value}\n")
    with pytest.raises(
        InputError, match=r"a\.csv: probabilities must lie in \[0, 1\], but row 1 holds"
    ):
        read_predictions(tmp_path / "a.csv", input="probabilities")
    with pytest.raises(InputError, match=r"required, but 1 class column\(s\) were"):
        read_predictions(tmp_path / "a.csv")
