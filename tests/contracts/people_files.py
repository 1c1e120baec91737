"""Sixty files of predictions as people have them, and what is in each.

The list was chosen before anybody looked at which of them metacal reads. `PEOPLE_FILES` maps the
name of each file to a function that writes it, and to its content: the predicted classes or the
scores, and which rows are correct. Content `None` means that nobody can tell what the file holds
without asking.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

N_ROWS = 400
ANIMALS = np.array(["cat", "dog", "bird"])
#: Seed of the rows. A test sets another one to get other rows of the same columns.
SEED = globals().get("SEED", 20)
RANDOM = np.random.default_rng(SEED)

TRUE_CODES = RANDOM.integers(3, size=N_ROWS)
LOGITS = (RANDOM.normal(size=(N_ROWS, 3)) + 3.5 * np.eye(3)[TRUE_CODES]).round(5)
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
PREDICTED_CODES = LOGITS.argmax(axis=1)
LABELS = ANIMALS[TRUE_CODES]
PREDICTIONS = ANIMALS[PREDICTED_CODES]
TOP_PROBABILITY = PROBABILITIES.max(axis=1)

IS_POSITIVE = RANDOM.random(N_ROWS) < 0.4
LOG_ODDS = (5.0 * IS_POSITIVE - 2.5 + RANDOM.normal(size=N_ROWS)).round(5)
P_POSITIVE = (1.0 / (1.0 + np.exp(-LOG_ODDS))).round(6)

CONFIDENCE = RANDOM.random(N_ROWS).round(5)
IS_CORRECT = RANDOM.random(N_ROWS) < 0.6 + 0.4 * CONFIDENCE

ROW_NUMBERS = np.arange(N_ROWS)
IDS = np.array([f"C-{10_000 + 7 * row}" for row in range(N_ROWS)])
TENURE = RANDOM.integers(1, 72, size=N_ROWS)
AMOUNT = (RANDOM.random(N_ROWS) * 5000).round(2)
TIMES = np.array([f"2026-03-{1 + row % 28:02d} {row % 24:02d}:15:00" for row in range(N_ROWS)])
TEXTS = np.array([f"ticket number {row}, please help" for row in range(N_ROWS)])


@dataclass(frozen=True)
class Content:
    """What a file holds.

    Attributes
    ----------
    correct : array of bool
        Whether the prediction of each row is correct.
    predictions : array of str or None
        Predicted class of each row, as the file names classes. None if it holds only a score.
    confidence : array of float
        Numbers that order the rows like the confidence in the prediction.
    """

    correct: np.ndarray
    confidence: np.ndarray
    predictions: np.ndarray | None = None


@dataclass(frozen=True)
class PeopleFile:
    """A file, and what it holds."""

    write: Callable[[Path], None]
    content: Content | None


def multi_class(names: Any = ANIMALS, order: Any = (0, 1, 2)) -> Content:
    """Return the content of a table of three classes."""
    names = np.asarray(names)
    return Content(
        PREDICTED_CODES == TRUE_CODES, TOP_PROBABILITY, names[PREDICTED_CODES].astype(str)
    )


def two_class(negative: Any, positive: Any) -> Content:
    """Return the content of a file with a score of the positive of two classes."""
    predictions = np.where(LOG_ODDS > 0.0, str(positive), str(negative))
    return Content((LOG_ODDS > 0.0) == IS_POSITIVE, np.abs(LOG_ODDS), predictions)


def answers(confidence: Any = CONFIDENCE, correct: Any = IS_CORRECT) -> Content:
    """Return the content of a file with a score of each answer."""
    return Content(np.asarray(correct), np.asarray(confidence))


# ── writers ───────────────────────────────────────────────────────────────────────────────────────


def as_text(value: Any, decimal: str) -> str:
    """Format a cell; `decimal` separates the decimals of numbers."""
    if isinstance(value, float):
        return str(value).replace(".", decimal)
    return str(value)


def delimited(
    columns: dict[str, Any] | list[tuple[str, Any]],
    *,
    delimiter: str = ",",
    decimal: str = ".",
    encoding: str = "utf-8",
    first_line: str = "",
    newline: str = "\n",
    quotes_all: bool = False,
) -> Callable[[Path], None]:
    """Return a function that writes delimited text."""
    pairs = list(columns.items()) if isinstance(columns, dict) else columns

    def write(path: Path) -> None:
        buffer = io.StringIO()
        buffer.write(first_line)
        quoting = csv.QUOTE_ALL if quotes_all else csv.QUOTE_MINIMAL
        writer = csv.writer(buffer, delimiter=delimiter, lineterminator=newline, quoting=quoting)
        writer.writerow([name for name, _ in pairs])
        for row in zip(*(np.asarray(column).tolist() for _, column in pairs)):
            writer.writerow([as_text(value, decimal) for value in row])
        path.write_bytes(buffer.getvalue().encode(encoding))

    return write


def gzipped(write: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return a function that writes a file and compresses it."""

    def write_compressed(path: Path) -> None:
        write(path)
        path.write_bytes(gzip.compress(path.read_bytes()))

    return write_compressed


def records(**columns: Any) -> list[dict[str, Any]]:
    """Return a dict for each row."""
    lists = [np.asarray(column).tolist() for column in columns.values()]
    return [dict(zip(columns, row)) for row in zip(*lists)]


def json_lines(rows: list[Any]) -> Callable[[Path], None]:
    """Return a function that writes one JSON object per line."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return lambda path: path.write_text(text, encoding="utf-8") and None


def json_array(rows: list[Any]) -> Callable[[Path], None]:
    """Return a function that writes one indented JSON array."""
    return lambda path: path.write_text(json.dumps(rows, indent=1), encoding="utf-8") and None


def parquet(columns: dict[str, Any], categories: tuple[str, ...] = ()) -> Callable[[Path], None]:
    """Return a function that writes Parquet, with some columns dictionary-encoded."""

    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrays = {}
        for name, column in columns.items():
            array = pa.array(np.asarray(column).tolist())
            arrays[name] = array.dictionary_encode() if name in categories else array
        pq.write_table(pa.table(arrays), path)

    return write


def frame(columns: dict[str, Any], **to_csv: Any) -> Callable[[Path], None]:
    """Return a function that writes what pandas' `to_csv` writes."""

    def write(path: Path) -> None:
        import pandas as pd

        pd.DataFrame({name: np.asarray(column) for name, column in columns.items()}).to_csv(
            path, **to_csv
        )

    return write


def arrays(**columns: Any) -> Callable[[Path], None]:
    """Return a function that writes npz."""
    return lambda path: np.savez(path, **columns)


def folder_of(
    n_files: int, suffix: str, write_rows: Callable[[slice], Callable[[Path], None]]
) -> Callable[[Path], None]:
    """Return a function that writes a folder with a file for each stretch of rows."""

    def write(path: Path) -> None:
        folder = path if "*" not in path.name else path.parent
        folder.mkdir(parents=True, exist_ok=True)
        for part, stretch in enumerate(np.array_split(ROW_NUMBERS, n_files)):
            rows = slice(int(stretch[0]), int(stretch[-1]) + 1)
            write_rows(rows)(folder / f"part-{part}{suffix}")

    return write


# ── cells ─────────────────────────────────────────────────────────────────────────────────────────


def words(no: str, yes: str, flags: Any = IS_POSITIVE) -> np.ndarray:
    """Return one of two words for each row."""
    return np.where(flags, yes, no)


def class_columns(values: np.ndarray, pattern: str = "{}", names: Any = ANIMALS) -> dict[str, Any]:
    """Return one column for each class."""
    return {pattern.format(name): column for name, column in zip(names, values.T)}


def percent(values: np.ndarray) -> list[str]:
    """Format fractions with a percent sign."""
    return [f"{100.0 * value:.3f}%" for value in values]


def thousands(values: np.ndarray) -> list[str]:
    """Format numbers with thousands separators."""
    return [f"{value:,.2f}" for value in values]


def with_gaps(values: Any, every: int, gap: Any = "") -> list[Any]:
    """Replace every so many values by a gap."""
    cells = np.asarray(values).tolist()
    return [gap if row % every == 3 else cell for row, cell in enumerate(cells)]


def chat_response(row: int) -> dict[str, Any]:
    """Return a response in the style of OpenAI, whose tokens have the row's log-probability."""
    logprob = float(np.log(0.05 + 0.9 * CONFIDENCE[row]))
    tokens = [{"token": "yes", "logprob": logprob}, {"token": ".", "logprob": logprob}]
    message = {"role": "assistant", "content": f"answer {row}"}
    choice = {"index": 0, "message": message, "logprobs": {"content": tokens}}
    return {"id": f"chatcmpl-{row}", "object": "chat.completion", "choices": [choice]}


TOP_OF_TWO = np.maximum(P_POSITIVE, 1.0 - P_POSITIVE)
TWO_CLASS_PREDICTION = LOG_ODDS > 0.0
COMPARED = Content(PREDICTED_CODES == TRUE_CODES, TOP_PROBABILITY)
COMPARED_TWO = Content(TWO_CLASS_PREDICTION == IS_POSITIVE, TOP_OF_TWO)
SCORED_GAPS = np.array([row % 9 != 3 for row in range(N_ROWS)])

CHURN = {"customer_id": IDS, "tenure": TENURE, "p_churn": P_POSITIVE, "churn": words("No", "Yes")}
ANIMAL_LOGITS = {**class_columns(LOGITS), "label": LABELS}

#: Name of each file -> how it is written, and what it holds.
PEOPLE_FILES: dict[str, PeopleFile] = {
    # Two classes.
    "churn.csv": PeopleFile(delimited(CHURN), two_class("No", "Yes")),
    "churn-01.csv": PeopleFile(
        delimited({**CHURN, "churn": IS_POSITIVE.astype(int)}), two_class(0, 1)
    ),
    "churn-bool.csv": PeopleFile(
        frame(
            {
                "customer_id": IDS,
                "plan": words("basic", "premium", TENURE > 30),
                "monthly_charges": AMOUNT,
                "churn_probability": P_POSITIVE,
                "churned": IS_POSITIVE,
            },
            index=False,
        ),
        two_class(False, True),
    ),
    "fraud.csv": PeopleFile(
        delimited(
            {
                "transaction_id": 5_000_000 + ROW_NUMBERS * 3,
                "timestamp": TIMES,
                "amount": AMOUNT,
                "fraud_score": P_POSITIVE,
                "is_fraud": IS_POSITIVE.astype(int),
            }
        ),
        two_class(0, 1),
    ),
    "kuendigung.csv": PeopleFile(
        delimited(
            {
                "kunden_id": IDS,
                "wahrscheinlichkeit": P_POSITIVE,
                "kuendigung": words("nein", "ja"),
            },
            delimiter=";",
            decimal=",",
        ),
        two_class("nein", "ja"),
    ),
    "logit-and-probability.csv": PeopleFile(
        delimited(
            {
                "id": IDS,
                "logit": LOG_ODDS,
                "probability": P_POSITIVE,
                "label": IS_POSITIVE.astype(int),
            }
        ),
        two_class(0, 1),
    ),
    "sklearn.csv": PeopleFile(
        frame(
            {
                "y_true": IS_POSITIVE.astype(int),
                "y_pred": TWO_CLASS_PREDICTION.astype(int),
                "y_proba": P_POSITIVE,
            }
        ),
        two_class(0, 1),
    ),
    "two-columns.csv": PeopleFile(
        delimited(
            {
                "prob_0": 1.0 - P_POSITIVE,
                "prob_1": P_POSITIVE,
                "label": IS_POSITIVE.astype(int),
            }
        ),
        two_class(0, 1),
    ),
    "yes-no-columns.csv": PeopleFile(
        delimited(
            {
                "case": IDS,
                "proba_no": 1.0 - P_POSITIVE,
                "proba_yes": P_POSITIVE,
                "actual": words("no", "yes"),
            }
        ),
        two_class("no", "yes"),
    ),
    "capital-p.csv": PeopleFile(
        delimited({"P(Yes)": P_POSITIVE, "P(No)": 1.0 - P_POSITIVE, "outcome": words("No", "Yes")}),
        two_class("No", "Yes"),
    ),
    "diabetes.csv": PeopleFile(
        delimited(
            {
                "patient": IDS,
                "sex": words("f", "m", TENURE > 40),
                "age": TENURE + 20,
                "risk": P_POSITIVE,
                "diabetes": words("negative", "positive"),
            }
        ),
        two_class("negative", "positive"),
    ),
    "excel-sep-line.csv": PeopleFile(
        delimited(
            {"Nr": IDS, "Score": P_POSITIVE, "Label": words("good", "bad")},
            delimiter=";",
            decimal=",",
            encoding="utf-8-sig",
            first_line="sep=;\r\n",
            newline="\r\n",
        ),
        None,
    ),
    "loans.csv": PeopleFile(
        delimited(
            {
                "loan_id": ROW_NUMBERS + 1,
                "amount": thousands(AMOUNT),
                "p_default": P_POSITIVE,
                "default": words("no", "yes"),
            }
        ),
        two_class("no", "yes"),
    ),
    "float-labels.csv": PeopleFile(
        delimited({"": ROW_NUMBERS, "prob": P_POSITIVE, "label": IS_POSITIVE.astype(float)}),
        two_class(0, 1),
    ),
    "svm.csv": PeopleFile(
        delimited({"decision_function": LOG_ODDS, "y": 2 * IS_POSITIVE.astype(int) - 1}),
        two_class(-1, 1),
    ),
    "bigquery.csv": PeopleFile(
        delimited(
            {
                "predicted_churn": TWO_CLASS_PREDICTION.astype(int),
                "prob_1": P_POSITIVE,
                "prob_0": 1.0 - P_POSITIVE,
                "churn": IS_POSITIVE.astype(int),
            }
        ),
        two_class(0, 1),
    ),
    "azure.csv": PeopleFile(
        delimited(
            {
                "Tenure": TENURE,
                "Income": words("<=50K", ">50K"),
                "Scored Labels": words("<=50K", ">50K", TWO_CLASS_PREDICTION),
                "Scored Probabilities": P_POSITIVE,
            }
        ),
        two_class("<=50K", ">50K"),
    ),
    "h2o.csv": PeopleFile(
        delimited(
            {
                "predict": TWO_CLASS_PREDICTION.astype(int),
                "p0": 1.0 - P_POSITIVE,
                "p1": P_POSITIVE,
                "actual": IS_POSITIVE.astype(int),
            }
        ),
        two_class(0, 1),
    ),
    "packed-churn.csv.gz": PeopleFile(gzipped(delimited(CHURN)), two_class("No", "Yes")),
    "unicode-text.txt": PeopleFile(
        delimited(CHURN, delimiter="\t", encoding="utf-16", newline="\r\n"),
        two_class("No", "Yes"),
    ),
    "churn-percent.csv": PeopleFile(
        delimited({**CHURN, "p_churn": [f"{100.0 * p:.4f}%" for p in P_POSITIVE]}),
        two_class("No", "Yes"),
    ),
    # A prediction with its probability.
    "target-prediction-probability.csv": PeopleFile(
        delimited({"target": LABELS, "prediction": PREDICTIONS, "probability": TOP_PROBABILITY}),
        COMPARED,
    ),
    "spam-or-ham.csv": PeopleFile(
        delimited(
            {
                "target": words("ham", "spam"),
                "prediction": words("ham", "spam", TWO_CLASS_PREDICTION),
                "probability": TOP_OF_TWO,
            }
        ),
        COMPARED_TWO,
    ),
    "true-pred-confidence.csv": PeopleFile(
        delimited({"y_true": LABELS, "y_pred": PREDICTIONS, "confidence": TOP_PROBABILITY}),
        COMPARED,
    ),
    "coded-predictions.csv": PeopleFile(
        delimited(
            {
                "id": IDS,
                "y_true": TRUE_CODES,
                "y_pred": PREDICTED_CODES,
                "confidence": TOP_PROBABILITY,
            }
        ),
        COMPARED,
    ),
    "pipeline.jsonl": PeopleFile(
        json_lines(
            records(text=TEXTS, label=PREDICTIONS, score=TOP_PROBABILITY, gold_label=LABELS)
        ),
        COMPARED,
    ),
    "weka.csv": PeopleFile(
        delimited(
            {
                "inst#": ROW_NUMBERS + 1,
                "actual": [f"{code + 1}:{ANIMALS[code]}" for code in TRUE_CODES],
                "predicted": [f"{code + 1}:{ANIMALS[code]}" for code in PREDICTED_CODES],
                "error": np.where(PREDICTED_CODES == TRUE_CODES, "", "+"),
                "prediction": TOP_PROBABILITY.round(3),
            }
        ),
        Content(PREDICTED_CODES == TRUE_CODES, TOP_PROBABILITY.round(3)),
    ),
    "categories.parquet": PeopleFile(
        parquet(
            {"y_true": LABELS, "y_pred": PREDICTIONS, "confidence": TOP_PROBABILITY},
            categories=("y_true", "y_pred"),
        ),
        COMPARED,
    ),
    "nested-answer.jsonl": PeopleFile(
        json_lines(
            [
                {
                    "input": {"text": text},
                    "model": {"prediction": prediction, "confidence": confidence},
                    "truth": label,
                }
                for text, prediction, confidence, label in zip(
                    TEXTS.tolist(), PREDICTIONS.tolist(), TOP_PROBABILITY.tolist(), LABELS.tolist()
                )
            ]
        ),
        COMPARED,
    ),
    # A table with a column for each class.
    "animals.csv": PeopleFile(delimited(ANIMAL_LOGITS), multi_class()),
    "animals-bom.tsv": PeopleFile(
        delimited(ANIMAL_LOGITS, delimiter="\t", encoding="utf-8-sig"), multi_class()
    ),
    "europe.csv": PeopleFile(
        delimited(
            {"nr": ROW_NUMBERS + 1, **class_columns(PROBABILITIES, "p_{}"), "klasse": LABELS},
            delimiter=";",
            decimal=",",
        ),
        multi_class(),
    ),
    "billing.csv": PeopleFile(
        delimited(
            {
                "ticket": TEXTS,
                **class_columns(PROBABILITIES, "p({})", ("billing", "shipping", "other")),
                "category": np.array(["billing", "shipping", "other"])[TRUE_CODES],
            }
        ),
        multi_class(("billing", "shipping", "other")),
    ),
    "everything.csv": PeopleFile(
        delimited(
            {
                "text": TEXTS,
                **class_columns(PROBABILITIES, "prob_{}"),
                "prediction": PREDICTIONS,
                "confidence": TOP_PROBABILITY,
                "truth": LABELS,
            }
        ),
        multi_class(),
    ),
    "pandas-split.csv": PeopleFile(
        frame(
            {
                **class_columns(LOGITS),
                "split": words("valid", "test", TENURE > 36),
                "fold": ROW_NUMBERS % 5,
                "label": LABELS,
            }
        ),
        multi_class(),
    ),
    "timestamps.csv": PeopleFile(
        delimited(
            {
                "created_at": TIMES,
                "latency_ms": TENURE,
                **class_columns(LOGITS, "logit_{}"),
                "true_label": LABELS,
            }
        ),
        multi_class(),
    ),
    "percent-signs.csv": PeopleFile(
        delimited(
            {name: percent(column) for name, column in class_columns(PROBABILITIES).items()}
            | {"label": LABELS}
        ),
        multi_class(),
    ),
    "duplicated.csv": PeopleFile(
        delimited(
            [
                ("id", IDS),
                ("note", TEXTS),
                ("note", TEXTS),
                *class_columns(LOGITS).items(),
                ("label", LABELS),
            ]
        ),
        multi_class(),
    ),
    "duplicated-by-pandas.csv": PeopleFile(
        delimited({**class_columns(LOGITS), "label": LABELS, "label.1": LABELS}), multi_class()
    ),
    "annotators.csv": PeopleFile(
        delimited(
            {
                "annotator_id": ROW_NUMBERS % 3,
                **class_columns(LOGITS, "logits_{}", range(3)),
                "y": TRUE_CODES,
            }
        ),
        multi_class(range(3)),
    ),
    "caret.csv": PeopleFile(
        delimited(
            {
                "pred": PREDICTIONS,
                "obs": LABELS,
                **class_columns(PROBABILITIES),
                "rowIndex": ROW_NUMBERS + 1,
                "Resample": np.array([f"Fold{1 + row % 5}" for row in range(N_ROWS)]),
            }
        ),
        multi_class(),
    ),
    "tidymodels.csv": PeopleFile(
        delimited(
            {
                "": ROW_NUMBERS + 1,
                ".pred_class": PREDICTIONS,
                **class_columns(PROBABILITIES, ".pred_{}"),
                "species": LABELS,
            },
            quotes_all=True,
        ),
        multi_class(),
    ),
    "plain.npz": PeopleFile(arrays(logits=LOGITS, labels=TRUE_CODES), multi_class(range(3))),
    "keras.npz": PeopleFile(
        arrays(y_prob=PROBABILITIES.astype(np.float32), y_true=TRUE_CODES, ids=ROW_NUMBERS),
        multi_class(range(3)),
    ),
    "lists.parquet": PeopleFile(
        parquet({"id": ROW_NUMBERS, "logits": LOGITS, "label": TRUE_CODES}),
        multi_class(range(3)),
    ),
    "lists.jsonl": PeopleFile(
        json_lines(records(id=IDS, logits=LOGITS, label=TRUE_CODES)), multi_class(range(3))
    ),
    "probability-objects.jsonl": PeopleFile(
        json_lines(
            [
                {"text": text, "probs": dict(zip(ANIMALS.tolist(), row)), "label": label}
                for text, row, label in zip(TEXTS.tolist(), PROBABILITIES.tolist(), LABELS.tolist())
            ]
        ),
        multi_class(),
    ),
    "array.json": PeopleFile(
        json_array(records(probabilities=PROBABILITIES, label=TRUE_CODES)), multi_class(range(3))
    ),
    # A score of each answer.
    "judge.jsonl": PeopleFile(
        json_lines(
            records(
                id=IDS,
                judge_score=[f"{10.0 * c:.2f}/10" for c in CONFIDENCE],
                correct=IS_CORRECT,
            )
        ),
        answers([float(f"{10.0 * c:.2f}") / 10.0 for c in CONFIDENCE]),
    ),
    "stars.csv": PeopleFile(
        delimited(
            {
                "question": TEXTS,
                "answer": [f"the answer is {row}" for row in ROW_NUMBERS],
                "rating": np.ceil(5 * CONFIDENCE).astype(int).clip(1),
                "is_correct": words("no", "yes", IS_CORRECT),
            }
        ),
        answers(np.ceil(5 * CONFIDENCE).clip(1)),
    ),
    "wahr-falsch.csv": PeopleFile(
        delimited(
            {
                "Dokument": IDS,
                "Konfidenz": CONFIDENCE,
                "korrekt": words("FALSCH", "WAHR", IS_CORRECT),
            },
            delimiter=";",
            decimal=",",
            encoding="utf-8-sig",
        ),
        answers(),
    ),
    "openai.jsonl": PeopleFile(
        json_lines(
            [{**chat_response(row), "correct": bool(IS_CORRECT[row])} for row in range(N_ROWS)]
        ),
        answers(),
    ),
    "openai-batch.jsonl": PeopleFile(
        json_lines(
            [
                {
                    "custom_id": IDS[row],
                    "response": {"status_code": 200, "body": chat_response(row)},
                    "is_correct": int(IS_CORRECT[row]),
                }
                for row in range(N_ROWS)
            ]
        ),
        answers(),
    ),
    "perplexity.csv": PeopleFile(
        delimited({"prompt": TEXTS, "perplexity": 9.0 - CONFIDENCE, "ok": IS_CORRECT.astype(int)}),
        answers(),
    ),
    "fields.csv": PeopleFile(
        delimited(
            {
                "doc_id": [f"doc-{row // 4}" for row in ROW_NUMBERS],
                "field": np.array(["date", "total", "vendor", "currency"])[ROW_NUMBERS % 4],
                "score": CONFIDENCE,
                "correct": words("FALSE", "TRUE", IS_CORRECT),
            }
        ),
        answers(),
    ),
    "missing-scores.jsonl": PeopleFile(
        json_lines(
            [
                {"confidence": score, "exact_match": int(flag)}
                for score, flag in zip(with_gaps(CONFIDENCE, 9, None), IS_CORRECT.tolist())
            ]
        ),
        Content(IS_CORRECT[SCORED_GAPS], CONFIDENCE[SCORED_GAPS]),
    ),
    # Many files as one table.
    "logs": PeopleFile(
        folder_of(
            3,
            ".csv",
            lambda rows: delimited({name: column[rows] for name, column in CHURN.items()}),
        ),
        two_class("No", "Yes"),
    ),
    "answers/part-*.jsonl": PeopleFile(
        folder_of(
            4,
            ".jsonl",
            lambda rows: json_lines(
                records(id=IDS[rows], confidence=CONFIDENCE[rows], correct=IS_CORRECT[rows])
            ),
        ),
        answers(),
    ),
    # Nobody can tell.
    "unlabelled.csv": PeopleFile(
        delimited({"customer_id": IDS, "tenure": TENURE, "p_churn": P_POSITIVE}), None
    ),
    "one-class.csv": PeopleFile(delimited({**CHURN, "churn": np.full(N_ROWS, "No")}), None),
}
