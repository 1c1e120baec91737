"""metacal start on forty files as people have them: read rightly, or asked about; never wrong in
silence.
"""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import metacal as mc
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


def words_of(flags):
    """N or Y for each flag."""
    return np.where(flags == 1, "Y", "N")


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


def test_a_label_column_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "val.csv"
    path.write_text("a,b,truth\n0.9,0.1,a\n0.2,0.8,b\n")
    with pytest.raises(InputError, match="no column 'label'"):
        inspect_file(str(path), label_key="label")


@pytest.mark.parametrize(
    ("text", "question"),
    [
        (
            "id,score,label\n1,0.5,1\n2,0.6,0\n3,0.1,1\n",
            "'label' may hold true classes or correctness",
        ),
        ("split,p_a,a\ntrain,0.5,1\ntrain,0.6,0\ntest,0.1,1\n", "marks some rows as 'train'"),
        ("p_a,conf,a,b\n0.5,0.1,x,y\n0.6,0.2,y,y\n", "No column was recognised as the"),
        ("p_default,default\n12.5,1\n80,0\n7.5,1\n", "lies between 7.5 and 80"),
        (
            "a_score,b_score,ok\n0.5,0.2,1\n0.6,0.9,0\n0.7,0.1,1\n",
            "Several columns may hold the score",
        ),
    ],
)
def test_what_cannot_be_told_is_asked(text, question, tmp_path):
    path = tmp_path / "val.csv"
    path.write_text(text)
    assert question in str(inspect_file(str(path)).question)


def test_a_score_that_points_the_wrong_way_is_asked_about(tmp_path):
    table(["p_churn", "churn"], [1.0 - CHANCE, TWO])(tmp_path / "val.csv")
    assert "have a lower 'p_churn'" in str(inspect_file(str(tmp_path / "val.csv")).question)
    table(["confidence", "ok"], [1.0 - SURE, RIGHT])(tmp_path / "val.csv")
    assert "pass --higher-is doubtful" in str(inspect_file(str(tmp_path / "val.csv")).question)


def test_columns_that_agree_with_the_labels_by_chance_are_asked_about(tmp_path):
    rng = np.random.default_rng(1)
    height, weight = rng.normal(size=(2, N))
    table(["height", "mass", "label"], [height, weight, TWO])(tmp_path / "val.csv")
    assert "no more often than by chance" in str(inspect_file(str(tmp_path / "val.csv")).question)


def test_documents_and_fields_are_recognised(tmp_path):
    documents = np.repeat(np.arange(N // 4), 4)
    fields = np.tile(["date", "total", "vendor", "tax"], N // 4)
    table(["doc_id", "field", "score", "correct"], [documents, fields, SURE, RIGHT])(
        tmp_path / "val.csv"
    )
    inspection = inspect_file(str(tmp_path / "val.csv"))
    assert inspection.question is None
    assert inspection.column_of_role["case"] == "doc_id"
    assert inspection.column_of_role["group"] == "field"
    assert inspection.options["unit_key"] == "doc_id"
    assert any("depend on each other" in reason for _, reason in inspection.findings)
    assert any("'date', 'tax', 'total', 'vendor'" in reason for _, reason in inspection.findings)


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (
            {"p_good": CHANCE, "quality": np.array(["bad", "good"])[TWO]},
            {"logits_key": "p_good", "label_key": "quality", "positive": "good"},
        ),
        (
            {"prob_negative": CHANCE, "sentiment": np.array(["positive", "negative"])[TWO]},
            {"logits_key": "prob_negative", "label_key": "sentiment", "positive": "negative"},
        ),
        (
            {"date": IDS, "prediction": CHANCE, "actual": TWO},
            {"logits_key": "prediction", "label_key": "actual"},
        ),
        (
            {
                "model_label": LABELS,
                "model_confidence": SURE,
                "human_label": np.where(RIGHT, LABELS, "other"),
            },
            {
                "score_key": "model_confidence",
                "prediction_key": "model_label",
                "label_key": "human_label",
            },
        ),
        (
            {
                "output.label": words_of(TWO),
                "output.score": SURE,
                "gold": words_of(np.where(RIGHT, TWO, 1 - TWO)),
            },
            {
                "score_key": "output.score",
                "prediction_key": "output.label",
                "label_key": "gold",
            },
        ),
        (
            {"gender": np.array(["F", "M"])[IDS % 2], "prob": CHANCE, "hired": words_of(TWO)},
            {"logits_key": "prob", "label_key": "hired", "positive": "Y"},
        ),
        (
            {"class_0": P[:, 0], "class_1": P[:, 1], "class_2": P[:, 2], "label": Y},
            {"logits_key": "class"},
        ),
    ],
)
def test_further_layouts(columns, options, tmp_path):
    table(list(columns), list(columns.values()))(tmp_path / "val.csv")
    inspection = inspect_file(str(tmp_path / "val.csv"))
    assert inspection.question is None
    found = {name: inspection.options.get(name) for name in options}
    assert found == options
