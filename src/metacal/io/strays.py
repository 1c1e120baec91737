"""Stray columns: an index, a time, a split beside the classes, known by names and numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import listed
from metacal.errors import option
from metacal.io.request import LABEL_NAME_PATTERN, ClassNames
from metacal.rows.plausibility import sample_of

#: Names of columns that people keep beside predictions.
BESIDE_LIKE = re.compile(
    r"unnamed: ?\d+(_level_\d+)?|(__index_)?level_\d+(__)?|index|idx|row"
    r"|(row|sample|item|image|line)[_ ]?(nr|no|num|number|index|idx)"
    r"|(.+[_ ])?(id|ids|uuid|guid|key|hash)|(.+[_"
    r" ])?(time|timestamp|date|datetime|latency|duration|elapsed|runtime)"
    r"|.+_(s|ms|us|ns|sec|secs|seconds|minutes|time|date)|split|(.+_)?fold|partition|subset|is_(train|test|val|valid)"
    r"|(.+_)?weights?|seed|epoch|step|batch|length|n_tokens|count|confidence|score|margin|entropy|loss|accept(ed)?|correct",
    re.IGNORECASE,
)
#: Fewer rows may count up, or be whole numbers, by chance.
_FEWEST_ROWS = 20
#: With more classes than this the message does not repeat them.
_MOST_LISTED = 10


def strays_among(
    names: ClassNames, labels: NDArray[Any], table: Any
) -> tuple[list[int], list[str]]:
    """Columns that are no classes though nothing else is known of them, and what to say of such
    columns.

    Where labels name the classes, a column that none names and that does not look like a class is
    left out. Where they count the columns it may shift the classes behind it, and is only
    questioned.

    Examples
    --------
    >>> labels = np.array(["cat", "dog"])
    >>> strays_among(("cat", "dog", "latency_s"), labels, np.array([[1.5, 0.2, 0.1], [0.1, 2.3, 0.4]]))
    ([2], ["column 'latency_s' is left out: no label names it, and it does not look like a class; if it is one, ..."])
    >>> strays_among(("cat", "dog"), labels, np.array([[1.5, 0.2], [0.1, 2.3]]))
    ([], [])
    """
    counting = isinstance(names[0], str) and labels.dtype.kind in "iubf"
    seen = set(np.unique(labels).tolist())
    without = [k for k, name in enumerate(names) if (k if counting else name) not in seen]
    doubtful = range(len(names)) if counting else without
    named = {
        k
        for k in doubtful
        if BESIDE_LIKE.fullmatch(str(names[k])) or LABEL_NAME_PATTERN.fullmatch(str(names[k]))
    }
    odd = _odd_columns(table) if doubtful else set()
    # Numbers count the columns, so that a stray one shifts the classes behind it: then it has
    # labels itself.
    strays = sorted(
        ({*without} & (named | odd))
        | (named & odd if counting else set())
        | (named if without else set())
    )
    if not strays or len(strays) >= len(names) - 1:
        return [], []
    left_out = not counting and {*strays} <= {*without}
    return (strays if left_out else []), [_remark(names, strays, without, left_out=left_out)]


def _odd_columns(table: Any) -> set[int]:
    """Columns of another kind than the rest: a running number, or whole numbers among fractions."""
    sample = sample_of(table)
    if len(sample) < _FEWEST_ROWS or not np.isfinite(sample).all():
        return set()
    whole = (sample == np.rint(sample)).all(axis=0) & (np.ptp(sample, axis=0) > 0)
    return set() if whole.mean() > 0.5 else set(np.flatnonzero(whole).tolist())


def _remark(names: ClassNames, strays: list[int], without: list[int], *, left_out: bool) -> str:
    """What is said of columns that are left out, or taken for classes all the same."""
    several = len(strays) > 1
    shown = f"column{'s' if several else ''} {listed([names[k] for k in strays])}"
    none = f"no label names {'them' if several else 'it'}"
    key = next((str(names[k]) for k in strays if LABEL_NAME_PATTERN.fullmatch(str(names[k]))), None)
    labels = f"{key!r} holds the labels, say {option('label_key', key)}"
    if left_out:
        why = (
            "they do not look like classes; if they are"
            if several
            else "it does not look like a class; if it is one"
        )
        mine = f" If {labels}." if key else ""
        left = f"{shown} {'are' if several else 'is'} left out: {none}"
        return f"{left}, and {why}, list all classes with {option('classes')}.{mine}"
    taken = "are taken for classes" if several else "is taken for a class"
    unlikely = "they do not look like any" if several else "it does not look like one"
    rest = [str(name) for k, name in enumerate(names) if k not in strays]
    short = len(rest) <= _MOST_LISTED and not any("," in name for name in rest)
    return (
        f"{shown} {taken}, but {none if {*strays} <= {*without} else unlikely}:"
        f" {f'if {labels}; ' if key else ''}to leave other columns out, list the classes with"
        f" {option('classes', metavar=','.join(rest) if short else None)}; if the labels have"
        f" another name, say {option('label_key')}."
    )
