"""What a file looks like: its kind, and what each of its columns is likely to be, with the reason.

The readers guess nothing: names say what is what. This is for whoever meets a file for the first
time. It looks at the first rows, says what it sees and why, and gives the options with which the
readers then find exactly that. Where two readings are possible it asks: nothing is taken on a
guess.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import listed
from metacal.errors import InputError
from metacal.formulas import Float
from metacal.io.first_rows import read_first_rows
from metacal.io.request import (
    CLASS_COLUMN_PREFIXES,
    CLASS_KEYS,
    CORRECT_KEYS,
    ID_KEYS,
    LABEL_KEYS,
    LABEL_NAME_PATTERN,
    TABLE_KEYS,
)
from metacal.io.strays import BESIDE_LIKE
from metacal.rows.score_columns import WORDS, mark_of

#: Names of the one number that says how sure an answer is; of what says whether it was right; of an
#: answer.
_SCORE = re.compile(
    r"(.*[_."
    r" ])?(score|mark|confidence|conf|prob|probability|proba|certainty|similarity|margin|rating|grade|logprob"
    r"|logit|likelihood|perplexity|entropy|distance|loss|uncertainty|max[_ ]?prob|p)s?",
    re.IGNORECASE,
)
_DOUBTFUL = re.compile(
    r"(.*[_. ])?(perplexity|entropy|distance|loss|uncertainty|nll)", re.IGNORECASE
)
_CORRECT = re.compile(r"(.*[_. ])?(is[_ ]?)?(correct|ok|right|passed|success|hit)", re.IGNORECASE)
_ANSWER = re.compile(
    r"pred(iction|icted)?([_ ](label|class))?|y[_ ]?pred|answer|output|top1", re.IGNORECASE
)
_PROBABILITY = re.compile(r"(.*[_. ])?(prob|probability|proba|p)([_ .].*)?", re.IGNORECASE)


@dataclass
class Look:
    """What was seen so far.

    Attributes
    ----------
    path, kind : str
        The file, and what it is, in words.
    columns : dict
        Its first rows, by column.
    options : dict
        What the readers must be told, by the names of their parameters; `drop` is a tuple.
    seen : list of (str, str)
        What each thing is, and why.
    question : str or None
        What could not be told, with the options that would say it.
    """

    path: str
    kind: str
    columns: dict[str, NDArray[Any]]
    options: dict[str, Any]
    seen: list[tuple[str, str]] = field(default_factory=list)
    question: str | None = None

    def say(self, what: str, why: str, usual: Collection[str] = (), **options: Any) -> None:
        """Say what something is, and why; options that were not given say it to the readers, unless
        it is usual.
        """
        self.seen.append((what, why))
        self.options |= {
            name: one
            for name, one in options.items()
            if name not in self.options and one not in usual
        }


class Doubt(Exception):
    """What cannot be told, as a question."""


def look(path: str, **said: Any) -> Look:
    r"""Look at the first rows of a file. `said` are parameters of the readers that the user has
    given: they stand.

    Examples
    --------
    >>> import os, tempfile
    >>> from pathlib import Path
    >>> file = os.path.join(tempfile.mkdtemp(), "val.csv")
    >>> _ = Path(file).write_text("id;p_cat;p_dog;truth\n7;0.9;0.1;cat\n8;0.2;0.8;dog\n")
    >>> found = look(file)
    >>> found.options, found.question
    ({'logits_key': 'p', 'input': 'probabilities', 'label_key': 'truth'}, None)
    """
    first = read_first_rows(path, said.get("format"))
    kind, columns = first.description, first.columns
    held = Look(path, kind, columns, said)
    if not any(map(len, columns.values())):
        raise InputError(f"{path}: it holds no rows; give at least one.")
    try:
        _find(held)
    except Doubt as doubt:
        held.question = str(doubt)
    return held


def _find(held: Look) -> None:
    """Table or score, truth, and what is left aside."""
    tables = [
        name for name, column in held.columns.items() if column.ndim == 2 and column.shape[1] > 1
    ]
    usual = [name for names in TABLE_KEYS.values() for name in names]
    truth = _truth(held)
    named = held.options.get("logits_key")
    if len(tables) > 1:
        known = [named] if named in tables else [name for name in tables if name in usual]
        if len(known) != 1:
            raise Doubt(
                f"which of {listed(tables)} holds the logits or probabilities? Say --logits-key"
                " NAME."
            )
        tables = known
    if not tables or "score_key" in held.options:
        _columns(held, truth)
        return
    (name,) = tables
    n_classes = held.columns[name].shape[1]
    held.say(f"table: {name}", f"{n_classes} numbers in each row", usual, logits_key=name)
    _kind(held, held.columns[name])
    _labels(held, truth, n_classes)


def _truth(held: Look) -> str | None:
    """The column that says what was right."""
    given = (
        held.options.get("label_key")
        or held.options.get("correct_key")
        or held.options.get("loss_key")
    )
    if given is not None:
        held.say(f"truth: {given}", "you said so")
        return str(given)
    if held.options.get("labels") is not None:
        return None
    flat = [
        name for name, column in held.columns.items() if column.ndim == 1 and name not in CLASS_KEYS
    ]
    for usual, likely in ((LABEL_KEYS, LABEL_NAME_PATTERN), (CORRECT_KEYS, _CORRECT)):
        here = [name for name in usual if name in flat] or [
            name for name in flat if likely.fullmatch(name)
        ]
        if len(here) == 1:
            return here[0]
        if here:
            raise Doubt(
                f"which of {listed(here)} holds the truth? Say --label-key NAME, or --correct-key"
                " NAME."
            )
    named = {*flat, *(name.partition("_")[2] for name in flat if "_" in name)}
    same = [
        name
        for name in flat
        if held.columns[name].dtype.kind in "UO" and _within(held.columns[name], named)
    ]
    if len(same) == 1:
        return same[0]
    raise Doubt(
        f"which column says what was right? It has {listed(held.columns)}. Say --label-key NAME for"
        " true classes, --correct-key NAME for right and wrong, or give a file of labels with"
        " --labels."
    )


def _columns(held: Look, truth: str | None) -> None:
    """A column per class, one score for two classes, or one score of an answer."""
    known = {truth, *CLASS_KEYS, *held.options.get("drop", ())}
    flat = {
        name: column
        for name, column in held.columns.items()
        if column.ndim == 1 and name not in known
    }
    numbers = {
        name: column.astype(np.float64)
        for name, column in flat.items()
        if column.dtype.kind in "fiu"
    }
    classes, prefix = _classes(held, truth, list(numbers))
    if held.options.get("score_key") is None and len(classes) > 1:
        _wide(held, truth, classes, prefix, np.stack([numbers[name] for name in classes], axis=1))
        return
    marks = {**numbers, **_marks(flat)}
    named = held.options.get("score_key") or held.options.get("logits_key")
    scores = [named] if named in marks else [name for name in marks if _SCORE.fullmatch(name)]
    others = [name for name in numbers if not _aside(name, numbers[name])]
    scores = scores or (others if len(others) == 1 else [])
    if len(scores) != 1 or truth is None:
        raise Doubt(
            f"where are the scores? It has {listed(held.columns)}. A table of classes has a column"
            " per class, or one of lists (--logits-key NAME); one number for each answer is named"
            " with --score-key NAME."
        )
    _one_score(held, truth, scores[0], marks[scores[0]])


def _classes(held: Look, truth: str | None, names: list[str]) -> tuple[list[str], str]:
    """The columns that are classes, and what their names begin with."""
    given = held.options.get("logits_key")
    begun = (
        _prefixes(names)
        if given is None
        else {f"{given}_": [n for n in names if n.startswith(f"{given}_")]}
    )
    for prefix, group in sorted(begun.items(), key=lambda pair: -len(pair[1])):
        if len(group) > 1:
            return group, prefix
    if given is not None:
        return [], ""
    labels = None if truth is None else held.columns[truth]
    if labels is not None and labels.dtype.kind in "UO":
        known = set(map(str, np.unique(labels)))
        if known <= set(names):
            return [
                name for name in names if name in known or not _aside(name, held.columns[name])
            ], ""
        return [], ""
    plain = [name for name in names if not _aside(name, held.columns[name])]
    counted = [str(k) for k in range(len(plain))]
    whole = (
        labels is not None
        and labels.dtype.kind in "iub"
        and labels.min() >= 0
        and labels.max() < len(plain)
    )
    likely = sorted(plain) == sorted(counted) or not _CORRECT.fullmatch(str(truth))
    return (plain, "") if whole and likely else ([], "")


def _wide(held: Look, truth: str | None, classes: list[str], prefix: str, table: Float) -> None:
    """A column per class."""
    by_name = truth is not None and held.columns[truth].dtype.kind in "UO"
    why = "the labels name them" if by_name else "all other columns of numbers"
    why = f"their names begin with {prefix!r}" if prefix else why
    usual = (
        "",
        *CLASS_COLUMN_PREFIXES["logits"],
        *(CLASS_COLUMN_PREFIXES["probabilities"] if _sums_to_one(table) else ()),
    )
    names = [name.removeprefix(prefix) for name in classes]
    held.say(
        f"classes: {listed(names)}", why, **{} if prefix in usual else {"logits_key": prefix[:-1]}
    )
    _kind(held, table)
    left = set() if prefix else held.columns.keys() - {"", truth, *classes, *ID_KEYS}
    if left := left | set(held.options.get("drop", ())):
        held.options["drop"] = tuple(sorted(left))
        held.say(
            f"left out: {listed(held.options['drop'])}",
            "neither their names nor their numbers look like classes",
        )
    _labels(held, truth, len(names), names)


def _kind(held: Look, table: NDArray[Any]) -> None:
    """Logits or probabilities."""
    if "input" in held.options:
        return
    finite = table[np.isfinite(table).all(axis=1)]
    positive = len(finite) > 0 and finite.min() >= 0.0
    if positive and _sums_to_one(finite):
        held.say(
            "input: probabilities",
            "every row lies in [0, 1] and sums to one",
            input="probabilities",
        )
    elif positive and finite.max() <= 1.0:
        raise Doubt(
            "every number lies between 0 and 1, but rows do not sum to one. Are these probabilities"
            " of classes that exclude each other? Divide each row by its sum, and say --input"
            " probabilities; or say --input logits."
        )
    elif positive and (np.abs(finite.sum(axis=1) - 100.0) < 1.0).all():
        raise Doubt(
            "every row sums to 100. Are these percentages? Divide them by 100, and say --input"
            " probabilities; or say --input logits."
        )
    else:
        held.say("input: logits", "the rows are not probabilities: some numbers lie outside [0, 1]")


def _sums_to_one(table: NDArray[Any]) -> bool:
    return bool((table >= 0.0).all() and (np.abs(table.sum(axis=1) - 1.0) < 0.01).all())


def _labels(held: Look, truth: str | None, n: int, names: Sequence[str] = ()) -> None:
    """Do the labels name the classes, or count them?"""
    if truth is None:
        return
    labels = held.columns[truth]
    if _CORRECT.fullmatch(truth) and truth not in LABEL_KEYS:
        raise Doubt(
            f"{truth!r} seems to say right or wrong, and a table of classes needs the true class."
            " Name it with --label-key, or name one score for each answer with --score-key."
        )
    known = "classes" in held.options or any(name in held.columns for name in CLASS_KEYS)
    if labels.dtype.kind in "iub" and labels.min() >= 0 and labels.max() < n:
        held.say(
            f"labels: {truth}",
            f"whole numbers from 0 to {n - 1}: they count the columns",
            LABEL_KEYS,
            label_key=truth,
        )
    elif known or _within(labels, set(names)):
        held.say(
            f"labels: {truth}", "its entries are names of classes", LABEL_KEYS, label_key=truth
        )
    else:
        few = listed(np.unique(labels)[:8].tolist())
        raise Doubt(
            f"{truth!r} holds {few}, which are not the {n} columns, nor their numbers from 0. Which"
            " column is which class? Say --classes A,B,C in the order of the columns, or"
            " --label-key NAME."
        )


def _one_score(held: Look, truth: str, name: str, values: Float) -> None:
    """One number for each row: the probability of the second of two classes, or how sure an answer
    is.
    """
    labels = held.columns[truth]
    texts = {
        other: column
        for other, column in held.columns.items()
        if other != truth and column.dtype.kind in "UO"
    }
    long = [other for other, column in texts.items() if len(np.unique(column)) < len(column) / 2]
    flags = {str(value).strip().lower() for value in labels.tolist()} <= set(WORDS)
    said = "score_key" in held.options or "correct_key" in held.options
    if not said and not _CORRECT.fullmatch(truth):
        answers = [other for other in held.columns if _ANSWER.fullmatch(other)]
        if answers and not flags:
            raise Doubt(
                f"{answers[0]!r} seems to be the answer, {truth!r} the truth and {name!r} how sure"
                f" it is: add a column that says whether {answers[0]!r} is right, and name it with"
                " --correct-key."
            )
        if not flags and any(len(np.unique(held.columns[other])) > 2 for other in long):
            raise Doubt(
                "this looks like a long table, a row for each item and class. Make one row of each"
                f" item, a column for each class: pandas' pivot(index=..., columns={long[0]!r},"
                f" values={name!r})."
            )
        if len(np.unique(labels)) == 2 and (_PROBABILITY.fullmatch(name) or not flags):
            _positive(held, truth, name, values)
            return
        raise Doubt(
            f"is {truth!r} the true class, and {name!r} a score for the second of two classes"
            f" (--logits-key {name} --label-key {truth}), or does it say whether an answer was"
            f" right (--score-key {name} --correct-key {truth})?"
        )
    if not flags and "loss_key" not in held.options:
        few = listed(np.unique(labels)[:6].tolist())
        raise Doubt(f"{truth!r} holds {few}: which of them is right? Write true or false.")
    held.say(f"score: {name}", "one number for each answer", score_key=name)
    held.say(
        f"right or wrong: {truth}", "its entries say yes or no", CORRECT_KEYS, correct_key=truth
    )
    if "higher_is" not in held.options and _DOUBTFUL.fullmatch(name):
        held.say(
            "higher is doubtful",
            f"{name!r} is lower where an answer is surer",
            higher_is="doubtful",
        )


def _positive(held: Look, truth: str, name: str, values: Float) -> None:
    held.say(f"score: {name}", "one number for the second of two classes", logits_key=name)
    if ((values >= 0.0) & (values <= 1.0)).all():
        held.say("input: probabilities", "every number lies in [0, 1]", input="probabilities")
    first, second = np.unique(held.columns[truth]).tolist()
    named = [
        value for value in (first, second) if str(value).lower() in re.split(r"[_. ]", name.lower())
    ]
    if len(named) == 1 and isinstance(second, str):
        held.options.setdefault("positive", named[0])
        first, second = next(value for value in (first, second) if value != named[0]), named[0]
    why = f"two values; {name!r} is taken for the score of {second!r}, not {first!r}"
    held.say(f"labels: {truth}", why, LABEL_KEYS, label_key=truth)
    if held.columns[truth].dtype.kind in "UO" and "positive" not in held.options:
        raise Doubt(
            f"which class is {name!r} about? Say --positive {first}, or --positive {second}."
        )


def _marks(columns: Mapping[str, NDArray[Any]]) -> dict[str, Float]:
    """Columns of text in which every entry is a mark: 8/10, 85%."""
    found = {}
    for name, column in columns.items():
        if column.dtype.kind in "UO" and _SCORE.fullmatch(name):
            marks = [mark_of(str(value)) for value in column.tolist()]
            if all(mark is not None for mark in marks):
                found[name] = np.array(marks, dtype=np.float64)
    return found


def _aside(name: str, column: NDArray[Any]) -> bool:
    """Whether a column of numbers is no class by its name, or counts the rows."""
    counts = column.dtype.kind in "iu" and len(column) > 2 and bool((np.diff(column) == 1).all())
    return bool(BESIDE_LIKE.fullmatch(name)) or name == "" or counts


def _prefixes(names: list[str]) -> dict[str, list[str]]:
    """Names by what they begin with, up to the first underscore."""
    groups: dict[str, list[str]] = {}
    for name in names:
        head, mark, rest = name.partition("_")
        if mark and rest and not BESIDE_LIKE.fullmatch(name):
            groups.setdefault(head + mark, []).append(name)
    return groups


def _within(column: NDArray[Any], names: set[str]) -> bool:
    return set(map(str, np.unique(column))) <= names
