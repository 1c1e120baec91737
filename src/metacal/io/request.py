"""What to look for in a file of predictions, and which of its arrays or columns that is. Nothing is guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError

ClassNames = tuple[str | int, ...]

TABLE_KEYS = {"logits": ("logits",), "probabilities": ("probabilities", "probs")}
LABEL_KEYS = ("labels", "label", "y")
ID_KEYS = ("id", "ids")
CLASS_KEYS = ("classes", "class_names")
#: csv columns `logits_cat`, `logits_dog` name the classes cat and dog.
_PREFIXES = {"logits": ("logits_", "logit_"), "probabilities": ("probabilities_", "probability_", "probs_", "prob_")}


@dataclass(frozen=True)
class Request:
    """What a reader has to look for."""

    path: str
    input: str = "logits"
    logits_key: str | None = None
    label_key: str | None = None
    classes: ClassNames | None = None


@dataclass(frozen=True, eq=False)
class Found:
    """What a reader found; shapes are checked afterwards, in one place for all kinds of files."""

    table: NDArray[Any]
    labels: NDArray[Any] | None = None
    ids: NDArray[Any] | None = None
    class_names: ClassNames | None = None
    unused: tuple[str, ...] = ()


def pick_keys(request: Request, arrays: Mapping[str, str]) -> tuple[str, str | None, str | None, str | None]:
    """Return the names of the table, labels, ids and classes among named arrays, given as {name: description}.

    Examples
    --------
    >>> pick_keys(Request("a.npz"), {"logits": "(5, 3) float32", "y": "(5,) int64"})
    ('logits', 'y', None, None)
    """
    table = one_of(request, arrays, request.logits_key, TABLE_KEYS[request.input], "logits_key")
    label = one_of(request, arrays, request.label_key, LABEL_KEYS, "label_key")
    if table is None:
        held = ", ".join(f"{name} {what}" for name, what in arrays.items()) or "nothing"
        other = next(kind for kind in TABLE_KEYS if kind != request.input)
        if any(name in arrays for name in TABLE_KEYS[other]):
            advice = f"to read its {other} say input={other!r} (--input {other})"
        else:
            advice = "name the table with logits_key (--logits-key)" + (
                "" if label else " and the labels, if any, with label_key (--label-key)"
            )
        raise InputError(
            f"{request.path}: there is no array {TABLE_KEYS[request.input][0]!r}; it holds {held}; {advice}."
        )
    ids, classes = (next((key for key in keys if key in arrays), None) for keys in (ID_KEYS, CLASS_KEYS))
    return table, label, ids, classes


def pick_columns(request: Request, header: Sequence[str]) -> tuple[list[int], ClassNames, int | None, int | None]:
    """Return the positions of the class columns, their class names, and the positions of label and id column.

    Examples
    --------
    >>> pick_columns(Request("a.csv"), ["id", "logits_cat", "logits_dog", "label"])
    ([1, 2], ('cat', 'dog'), 3, 0)
    """
    place = {name: k for k, name in enumerate(header)}
    if len(place) < len(header) or "" in place:
        name = next(name for k, name in enumerate(header) if not name or place[name] != k)
        what = f"repeats the column {name!r}" if name else "has a column without a name"
        raise InputError(f"{request.path}:1: the header {what}; give every column a name of its own.")
    prefixes = _PREFIXES[request.input] if request.logits_key is None else (f"{request.logits_key}_",)
    chosen = _columns_of_classes(request, header, prefixes)
    others = [name for name in header if name not in chosen]
    label = one_of(request, others, request.label_key, LABEL_KEYS, "label_key")
    ids = next((name for name in ID_KEYS if name in others and name != label), None)
    rest = chosen or [name for name in header if name not in (label, ids)]
    if request.logits_key is not None and not chosen:
        rest = [name for name in rest if name.startswith(prefixes)]
        if not rest:
            raise InputError(f"{request.path}:1: no column begins with {prefixes[0]!r}; it has {listed(header)}.")
    doubtful = [name for name in rest if name in LABEL_KEYS and name not in chosen]
    if doubtful:
        raise InputError(
            f"{request.path}:1: is column {doubtful[0]!r} a class or a label? "
            "List the classes with classes (--classes)."
        )
    prefix = next((p for p in prefixes if all(name.startswith(p) for name in rest)), "")
    names = as_class_names([name.removeprefix(prefix) for name in rest])
    return [place[name] for name in rest], names, place.get(label or ""), place.get(ids or "")


def _columns_of_classes(request: Request, header: Sequence[str], prefixes: tuple[str, ...]) -> list[str]:
    """Return the columns named after `request.classes`, in that order; none if no column bears a class's name."""
    column = {name.removeprefix(prefix): name for prefix in prefixes for name in header if name.startswith(prefix)}
    if request.logits_key is None:
        column |= {name: name for name in header}
    wanted = [str(name) for name in request.classes or ()]
    missing = [name for name in wanted if name not in column]
    if len(missing) == len(wanted):
        return []
    if missing:
        raise InputError(f"{request.path}:1: there is no column for {listed(missing)}; it has {listed(header)}.")
    return [column[name] for name in wanted]


def as_class_names(values: Any) -> ClassNames:
    """Return names as a tuple; if all are whole numbers, as integers.

    Examples
    --------
    >>> as_class_names(["0", "1"]), as_class_names(["cat", "1"]), as_class_names(["01", "02"])
    ((0, 1), ('cat', '1'), ('01', '02'))
    """
    texts = np.asarray(values).astype(np.str_)
    whole = whole_numbers(texts)
    return tuple((texts if whole is None else whole).tolist())


def one_of(
    request: Request, held: Mapping[str, str] | Sequence[str], named: str | None, usual: Sequence[str], flag: str
) -> str | None:
    """Return the one name among `held` that is asked for, or None if none was asked for and no usual name is there."""
    option = "--" + flag.replace("_", "-")
    if named is not None:
        if named not in held:
            raise InputError(f"{request.path}: there is no {named!r} as {flag} ({option}) says; it has {listed(held)}.")
        return named
    here = [name for name in usual if name in held]
    if len(here) > 1:
        raise InputError(f"{request.path}: it has both {here[0]!r} and {here[1]!r}; choose one with {flag} ({option}).")
    return here[0] if here else None


def whole_numbers(texts: NDArray[np.str_]) -> NDArray[np.int64] | None:
    """Return texts as integers if all are written as such; 007 is a name, not a number."""
    try:
        numbers = texts.astype(np.int64)
    except (ValueError, OverflowError):
        return None
    return numbers if np.array_equal(numbers.astype(np.str_), texts) else None


def listed(names: Iterable[object]) -> str:
    """Show at most eight names.

    Examples
    --------
    >>> listed("abc"), listed([])
    ("'a', 'b', 'c'", 'nothing')
    """
    shown = list(names)
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return (", ".join(map(repr, shown[:8])) or "nothing") + more
