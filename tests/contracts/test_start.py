"""metacal start on forty files as people have them: read rightly, or asked about; never wrong in
silence.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.errors import InputError
from metacal.io.file_inspection import inspect_file

N, NAMES = 300, np.array(["cat", "dog", "bird"])
RANDOM = np.random.default_rng(0)
Y = RANDOM.integers(3, size=N)
Z = (RANDOM.normal(size=(N, 3)) + 3.0 * np.eye(3)[Y]).round(6)
P = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True)
TWO = (RANDOM.random(N) < 0.5).astype(int)
MARGIN = (3.0 * TWO - 1.5 + RANDOM.normal(size=N)).round(6)
CHANCE = 1.0 / (1.0 + np.exp(-MARGIN))
SURE = RANDOM.random(N).round(6)
RIGHT = RANDOM.random(N) < 0.5 + 0.5 * SURE
IDS = np.arange(1000, 1000 + N)


def table(names, columns, delimiter=",", start=""):
    """Delimited text."""

    def write(path):
        with open(path, "w", newline="", encoding="utf-8") as file:
            file.write(start)
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(names)
            writer.writerows(zip(*(np.asarray(column).tolist() for column in columns)))

    return write


def lines(rows, *, whole=False):
    """JSON, a line for each row, or one array."""
    return lambda path: Path(path).write_text(
        json.dumps(rows) if whole else "\n".join(map(json.dumps, rows)) + "\n"
    )


def packed(write):
    """The same, compressed."""

    def write_packed(path):
        write(path)
        Path(path).write_bytes(gzip.compress(Path(path).read_bytes()))

    return write_packed


def arrow(columns):
    """Parquet."""

    def write(path):
        import pyarrow as pa
        import pyarrow.parquet as parquet

        parquet.write_table(
            pa.table({name: np.asarray(column).tolist() for name, column in columns.items()}), path
        )

    return write


def arrays(**held):
    """NumPy arrays."""
    return lambda path: np.savez(path, **held)


def rows_of(**columns):
    """A dict for each row."""
    return [
        dict(zip(columns, row))
        for row in zip(*(np.asarray(column).tolist() for column in columns.values()))
    ]


LABELS = NAMES[Y]
#: Name of the file -> how it is written, and what is in it: logits, probabilities, two (one score
#: for the second of two classes), score; or None where only a person can tell.
FILES = {
    "plain.npz": (arrays(logits=Z, labels=Y), "logits"),
    "probs.npz": (arrays(probs=P, y=Y), "probabilities"),
    "odd-names.npz": (arrays(preds=Z, targets=Y), "logits"),
    "with-ids.npz": (arrays(logits=Z, labels=Y, id=IDS), "logits"),
    "float32.npz": (arrays(z=Z.astype(np.float32), y_true=Y), "logits"),
    "named-classes.npz": (arrays(logits=Z, labels=LABELS, classes=NAMES), "logits"),
    "by-name.csv": (table([*NAMES, "label"], [*Z.T, LABELS]), "logits"),
    "by-number.csv": (table(["0", "1", "2", "label"], [*Z.T, Y]), "logits"),
    "prefixed.csv": (
        table(["id", *(f"logit_{n}" for n in NAMES), "target"], [IDS, *Z.T, LABELS]),
        "logits",
    ),
    "proba-prefix.csv": (
        table([*(f"proba_{n}" for n in NAMES), "true_label"], [*P.T, LABELS]),
        "probabilities",
    ),
    "p-prefix.csv": (table([*(f"p_{n}" for n in NAMES), "gt"], [*P.T, LABELS]), "probabilities"),
    "semicolons.csv": (table([*NAMES, "label"], [*Z.T, LABELS], ";"), "logits"),
    "bars.txt": (table([*NAMES, "label"], [*Z.T, LABELS], "|"), "logits"),
    "tabs.tsv": (table([*NAMES, "label"], [*Z.T, LABELS], "\t"), "logits"),
    "tabs-as.csv": (table([*NAMES, "label"], [*Z.T, LABELS], "\t"), "logits"),
    "bom.csv": (table([*NAMES, "label"], [*P.T, LABELS], start="\ufeff"), "probabilities"),
    "packed.csv.gz": (packed(table([*NAMES, "label"], [*Z.T, LABELS])), "logits"),
    "packed.jsonl.gz": (packed(lines(rows_of(logits=Z, label=Y))), "logits"),
    "index.csv": (table(["", *NAMES, "label"], [np.arange(N), *Z.T, LABELS]), "logits"),
    "unnamed.csv": (table(["Unnamed: 0", *NAMES, "label"], [np.arange(N), *Z.T, LABELS]), "logits"),
    "latency.csv": (
        table([*NAMES, "latency_ms", "label"], [*Z.T, RANDOM.integers(9, 99, size=N), LABELS]),
        "logits",
    ),
    "text-beside.csv": (
        table(["text", *NAMES, "label"], [[f"t{k}" for k in range(N)], *Z.T, LABELS]),
        "logits",
    ),
    "split-beside.csv": (
        table([*NAMES, "fold", "class"], [*Z.T, np.arange(N) % 5, LABELS]),
        "logits",
    ),
    "label-first.csv": (table(["y", "a", "b", "c"], [Y, *Z.T]), "logits"),
    "lists.csv": (table(["logits", "label"], [[str(row.tolist()) for row in Z], Y]), "logits"),
    "lists.jsonl": (lines(rows_of(logits=Z, label=LABELS)), None),
    "counted.jsonl": (lines(rows_of(logits=Z, label=Y)), "logits"),
    "array.json": (lines(rows_of(probs=P, label=Y), whole=True), "probabilities"),
    "wide.jsonl": (lines(rows_of(**dict(zip(NAMES.tolist(), Z.T)), label=LABELS)), "logits"),
    "by-name.parquet": (arrow({**dict(zip(NAMES.tolist(), Z.T)), "label": LABELS}), "logits"),
    "extra.parquet": (
        arrow(
            {
                "__index_level_0__": IDS,
                **dict(zip(NAMES.tolist(), P.T)),
                "seed": IDS % 7,
                "label": LABELS,
            }
        ),
        "probabilities",
    ),
    "lists.parquet": (arrow({"id": IDS, "logits": Z, "label": Y}), "logits"),
    "misnamed.csv": (arrow({**dict(zip(NAMES.tolist(), Z.T)), "label": LABELS}), "logits"),
    "binary.csv": (table(["id", "prob", "label"], [IDS, CHANCE, TWO]), "two"),
    "margin.csv": (table(["margin", "y"], [MARGIN, 2 * TWO - 1]), "two"),
    "fraud.csv": (table(["p_fraud", "truth"], [CHANCE, np.array(["ok", "fraud"])[TWO]]), "two"),
    "judge.jsonl": (lines(rows_of(id=IDS, confidence=SURE, ok=RIGHT)), "score"),
    "nested.jsonl": (
        lines(
            [{"judge": {"score": s}, "correct": r} for s, r in zip(SURE.tolist(), RIGHT.tolist())]
        ),
        "score",
    ),
    "marks.csv": (
        table(["question", "mark", "is_correct"], [IDS, [f"{s:.2%}" for s in SURE], RIGHT]),
        "score",
    ),
    "distance.csv": (
        table(["distance", "correct"], [1.0 - SURE, np.where(RIGHT, "yes", "no")]),
        "score",
    ),
    "long.csv": (
        table(
            ["item", "category", "value", "target"],
            [np.repeat(IDS, 3), np.tile(NAMES, N), Z.ravel(), np.repeat(LABELS, 3)],
        ),
        None,
    ),
    "predicted.csv": (
        table(["prediction", "confidence", "label"], [LABELS, SURE, NAMES[(Y + 1) % 3]]),
        None,
    ),
    "unlabelled.csv": (table(NAMES, Z.T), None),
}
assert len(FILES) >= 40


def read_rightly(path, options, kind):
    """Whether the readers, told what was found, give back what is in the file."""
    if kind == "score":
        known = {
            name: value for name, value in options.items() if name not in ("higher_is", "drop")
        }
        found = mc.io.read_scores(path, **known)
        sign = -1.0 if options.get("higher_is") == "doubtful" else 1.0
        order = np.argsort(np.argsort(sign * found.score, kind="stable"), kind="stable")
        near = np.corrcoef(order, SURE)[0, 1] > 0.99
        return near and np.array_equal(found.correct, RIGHT)
    known = {name: value for name, value in options.items() if name != "positive"}
    found = mc.read_predictions(path, **known)
    if kind == "two":
        table = (
            found.table[:, 1]
            if options.get("input") == "probabilities"
            else found.table[:, 1] - found.table[:, 0]
        )
        positive = options.get("positive", np.unique(found.labels)[-1])
        wanted = CHANCE if options.get("input") == "probabilities" else MARGIN
        return np.allclose(table, wanted) and np.array_equal(found.labels == positive, TWO == 1)
    codes = (
        found.labels
        if found.labels.dtype.kind in "iu"
        else np.searchsorted(np.sort(NAMES), found.labels)
    )
    truth = Y if found.labels.dtype.kind in "iu" else np.searchsorted(np.sort(NAMES), LABELS)
    same = np.allclose(found.table, P if kind == "probabilities" else Z, atol=1e-5)
    return same and found.input == kind and np.array_equal(codes, truth)


def test_forty_files_as_people_have_them(tmp_path):
    asked, wrong = [], []
    for name, (write, kind) in FILES.items():
        path = tmp_path / name
        write(path)
        found = inspect_file(str(path))
        if found.question:
            asked.append(name)
        elif kind is None or not read_rightly(path, dict(found.options), kind):
            wrong.append((name, dict(found.options)))
    assert wrong == []
    tellable = [name for name, (_, kind) in FILES.items() if kind is not None]
    assert {name for name, (_, kind) in FILES.items() if kind is None} <= set(asked)
    assert len(set(tellable) - set(asked)) >= 38


def run(*words, code=0, **more):
    done = CliRunner().invoke(main, [*map(str, words)], **more)
    assert done.exit_code == code, (done.output, done.exception)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("name", ["latency.csv", "marks.csv"])
def test_it_leaves_a_gate_a_report_and_what_to_do_next(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FILES[name][0](name)
    stem = name.partition(".")[0]
    done = run("start", name, "--yes", "--mistake-cost", 3)
    assert "because" in done.stderr
    gate = mc.load_gate(f"{stem}.gate.json")
    after = Path(f"{stem}.next.md").read_text()
    first = re.search(r"```sh\n(.*?)\n", after).group(1)
    python = re.search(r"```python\n(.*?)```", after, re.DOTALL).group(1)
    run(*first.split()[1:])
    assert mc.load_gate(f"{stem}.gate.json") == gate
    exec(python, {})
    assert mc.load_gate(f"{stem}.gate.json").threshold == gate.threshold


def test_two_questions_are_asked_and_nothing_is_written_where_a_third_is_needed(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    FILES["by-name.csv"][0]("val.csv")
    done = run("start", "val.csv", input="1.05\n0.5\n")
    assert "A mistake costs as much as reviewing how many rows?" in done.stderr
    assert "Which share of the rows can be reviewed?" in done.stderr
    FILES["long.csv"][0]("long.csv")
    before = set(Path().iterdir())
    assert "which of 'category', 'target' holds the truth?" in " ".join(
        run("start", "long.csv", "--yes", code=2).stderr.split()
    )
    assert set(Path().iterdir()) == before


def test_odd_files_are_asked_about_or_refused(tmp_path):
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(3), size=300)
    names = np.array(["cat", "dog", "owl"])[shares.argmax(axis=1)]
    percent = "\n".join(
        f"{100 * a:.3f},{100 * b:.3f},{100 * c:.3f},{name}"
        for (a, b, c), name in zip(shares, names)
    )
    (tmp_path / "percent.csv").write_text(f"cat,dog,owl,label\n{percent}\n")
    (tmp_path / "wide.csv").write_text(f"cat,dog,owl,label\n{percent}\n", encoding="utf-16")
    (tmp_path / "bare.csv").write_text("\n".join(f"{a},{b},{c},1" for a, b, c in shares))
    (tmp_path / "broken.jsonl").write_text('{"score": 0.5, "ok": true}\n{"score": \n')
    (tmp_path / "long.csv").write_text("cat,dog,label\n1,2," + "x" * 200_000 + "\n")
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object))
    for name, said in {
        "percent.csv": "every row sums to 100. Are these percentages?",
        "wide.csv": "this is not UTF-8 text",
        "bare.csv": "the first line holds numbers",
        "long.csv": "this is not text in columns",
        "broken.jsonl": "broken.jsonl:2: this line is not a JSON object of its own",
        "objects.npy": "objects.npy: the file is damaged or cut short",
    }.items():
        done = CliRunner().invoke(main, ["start", str(tmp_path / name), "--yes"])
        assert done.exit_code == 2, name
        assert said in done.output, done.output
        assert "unexpected" not in done.output


def test_a_label_column_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "val.csv"
    path.write_text("a,b,truth\n0.9,0.1,a\n0.2,0.8,b\n")
    with pytest.raises(InputError, match=r"no column 'label'; it has 'a', 'b', 'truth'"):
        inspect_file(str(path), label_key="label")
