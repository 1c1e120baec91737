"""What to look for in a file of predictions, and which of its arrays or columns that is. Nothing is guessed."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.rows.stored import StoredTable

#: A table of more bytes than this stays in its file: reading it again on every pass costs more than the memory.
STREAM_BYTES = 1 << 28

ClassNames = tuple[str | int, ...]

TABLE_KEYS = {"logits": ("logits",), "probabilities": ("probabilities", "probs")}
LABEL_KEYS = ("labels", "label", "y")
#: Where there are scores in place of a table: the names of right and wrong.
CORRECT_KEYS = ("correct", "ok")
ID_KEYS = ("id", "ids")
CLASS_KEYS = ("classes", "class_names")
#: Names of columns that are likely to hold the labels, but are not taken for them.
LABEL_LIKE = re.compile(
    r"targets?|truths?|gt|gold|ground[_ ]?truth|(true|gold)[_ ]?(label|labels|class|target)|y[_ ]?true|class|category"
    r"|(class|label|target)[_ ]?(id|idx|index|name)",
    re.IGNORECASE,
)
#: How one score for two classes is written.
TWO_COLUMNS = (
    " Of two classes write both: 1 - p and p for a probability p of the second (--input probabilities), 0 and s for a "
    "score s."
)
#: csv columns `logits_cat`, `logits_dog` name the classes cat and dog.
_PREFIXES = {"logits": ("logits_", "logit_"), "probabilities": ("probabilities_", "probability_", "probs_", "prob_")}
#: A column of this name holds the probability of the second of two classes.
_ALONE = ("prob", "probability")


class OtherKindError(InputError):
    """The file holds probabilities where logits were asked for, or logits where probabilities were."""


@dataclass(frozen=True)
class Request:
    """What a reader has to look for.

    With `scores` the table is one column of scores: `logits_key` names it, `label_key` what says right or wrong.
    `path` is what messages call the file; `file`, where it differs, is what is opened: a copy of standard input, or,
    `lasting` until the table is no longer needed, of what lies behind a URL.
    """

    path: str
    input: str = "logits"
    logits_key: str | None = None
    label_key: str | None = None
    classes: ClassNames | None = None
    id_key: str | None = None
    group_key: str | None = None
    file: str | None = None
    lasting: bool = False
    stream: bool | None = None
    delimiter: str | None = None
    #: Columns that are no classes, whatever they hold.
    aside: tuple[str, ...] = ()
    scores: bool = False

    @property
    def fewest_columns(self) -> int:
        """A probability may stand alone, of the second of two classes."""
        return 1 if self.input == "probabilities" else 2

    @property
    def label_keys(self) -> tuple[str, ...]:
        """The usual names of the labels, or of right and wrong."""
        return CORRECT_KEYS if self.scores else LABEL_KEYS

    def flag(self, name: str) -> str:
        """How the user calls the parameter `name`."""
        return {"logits_key": "score_key", "label_key": "correct_key"}.get(name, name) if self.scores else name

    def stays(self, n_bytes: int, *, copied: bool = False) -> bool:
        """Whether a table of this size stays in its file.

        A copy of standard input is deleted when it was read: a table stays in it only if whoever reads holds it open,
        which `copied` says, and where an open file can be deleted.
        """
        there = self.file is None or self.lasting or (copied and os.name != "nt")
        return there and (n_bytes > STREAM_BYTES if self.stream is None else self.stream)

    @property
    def source(self) -> str:
        """The file to open."""
        return self.path if self.file is None else self.file


@dataclass(frozen=True, eq=False)
class Found:
    """What a reader found; shapes are checked afterwards, in one place for all kinds of files."""

    table: NDArray[Any] | StoredTable
    labels: NDArray[Any] | None = None
    ids: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None
    class_names: ClassNames | None = None
    unused: tuple[str, ...] = ()
    places: tuple[int, ...] | None = None


class Keys(NamedTuple):
    """Names among arrays."""

    table: str
    label: str | None
    ids: str | None
    groups: str | None
    classes: str | None


def pick_keys(request: Request, arrays: Mapping[str, str]) -> Keys:
    """Return the names of what is asked for among named arrays, given as {name: description}.

    Examples
    --------
    >>> pick_keys(Request("a.npz"), {"logits": "(5, 3) float32", "y": "(5,) int64"})
    Keys(table='logits', label='y', ids=None, groups=None, classes=None)
    """
    table = one_of(request, arrays, request.logits_key, TABLE_KEYS[request.input], "logits_key")
    label = one_of(request, arrays, request.label_key, request.label_keys, "label_key")
    if table is None:
        few = list(arrays.items())[:8]
        held = ", ".join(f"{name[:80]} {what[:80]}" for name, what in few) or "nothing"
        held += f" and {len(arrays) - len(few)} more" if len(arrays) > len(few) else ""
        other = next(kind for kind in TABLE_KEYS if kind != request.input)
        missing = f"{request.path}: there is no array {TABLE_KEYS[request.input][0]!r}; it holds {held}; "
        if any(name in arrays for name in TABLE_KEYS[other]):
            raise OtherKindError(f"{missing}to read its {other} say input={other!r} (--input {other}).")
        labels = "" if label else " and the labels, if any, with label_key (--label-key)"
        raise InputError(f"{missing}name the table with logits_key (--logits-key){labels}.")
    ids = one_of(request, arrays, request.id_key, ID_KEYS, "id_key")
    groups = one_of(request, arrays, request.group_key, (), "group_key")
    classes = next((key for key in CLASS_KEYS if key in arrays), None)
    return Keys(table, label, ids, groups, classes)


def pick_scores(request: Request, header: Sequence[str]) -> tuple[str, str | None, str | None]:
    """Return the names of the score, of right and wrong and of the ids among the columns.

    Examples
    --------
    >>> pick_scores(Request("judge.csv", logits_key="mark", scores=True), ["id", "mark", "ok"])
    ('mark', 'ok', 'id')
    """
    _places(request, header)
    score = one_of(request, header, request.logits_key, (), "logits_key")
    assert score is not None
    rest = [name for name in header if name != score]
    correct = one_of(request, rest, request.label_key, request.label_keys, "label_key")
    ids = one_of(request, [name for name in rest if name != correct], request.id_key, ID_KEYS, "id_key")
    return score, correct, ids


class Picked(NamedTuple):
    """Positions among the columns: of the classes, or of the one column of lists; of label, id and group, if any."""

    columns: list[int]
    names: ClassNames | None
    label: int | None
    ids: int | None
    groups: int | None = None

    @property
    def beside(self) -> tuple[int | None, int | None, int | None]:
        """Label, id and group."""
        return self.label, self.ids, self.groups

    def unused(self, header: Sequence[str]) -> tuple[str, ...]:
        """The columns that were left aside."""
        used = {*self.columns, *self.beside}
        return tuple(name for k, name in enumerate(header) if k not in used)


def pick_columns(request: Request, header: Sequence[str], lists: Collection[str] = ()) -> Picked:
    """Return the positions of the class columns, their class names, and the positions of label and id column.

    `lists` are the columns that hold a list of numbers in each row. Where the table's name is one of them, it alone is
    returned, without class names.

    Examples
    --------
    >>> pick_columns(Request("a.csv"), ["id", "logits_cat", "logits_dog", "label"])
    Picked(columns=[1, 2], names=('cat', 'dog'), label=3, ids=0, groups=None)
    >>> pick_columns(Request("a.csv"), ["logits", "label"], lists={"logits"})
    Picked(columns=[0], names=None, label=1, ids=None, groups=None)
    """
    place = _places(request, header)
    listing = _column_of_lists(request, header, lists)
    prefixes = _PREFIXES[request.input] if request.logits_key is None else (f"{request.logits_key}_",)
    chosen = [listing] if listing is not None else _columns_of_classes(request, header, prefixes)
    taken = set(chosen)
    others = [name for name in header if name not in taken]
    label = one_of(request, others, request.label_key, LABEL_KEYS, "label_key")
    remaining = [name for name in others if name != label]
    ids = one_of(request, remaining, request.id_key, ID_KEYS, "id_key")
    groups = one_of(request, remaining, request.group_key, (), "group_key")
    at_label, at_ids, at_groups = (place.get(name or "") for name in (label, ids, groups))
    if listing is not None:
        return Picked([place[listing]], None, at_label, at_ids, at_groups)
    other_ids = ID_KEYS if request.id_key is not None else ()
    candidates = [name for name in remaining if name != ids and name not in (*other_ids, groups, *request.aside)]
    rest = chosen or _prefixed(request, candidates, prefixes, header)
    doubtful = [name for name in rest if name in LABEL_KEYS and name not in taken]
    if doubtful:
        raise InputError(
            f"{request.path}: is column {doubtful[0]!r} a class or a label? List the classes with classes (--classes)."
        )
    prefix = next((p for p in prefixes if all(name.startswith(p) for name in rest)), "")
    names = as_class_names([name.removeprefix(prefix) for name in rest])
    return Picked([place[name] for name in rest], names, at_label, at_ids, at_groups)


def _places(request: Request, header: Sequence[str]) -> dict[str, int]:
    place = {name: k for k, name in enumerate(header)}
    if len(place) < len(header) or "" in place:
        name = next(name for k, name in enumerate(header) if not name or place[name] != k)
        what = f"repeats the column {name!r}" if name else "has a column without a name (pandas: to_csv(index=False))"
        raise InputError(f"{request.path}: the header {what}; give every column a name of its own.")
    return place


def _column_of_lists(request: Request, header: Sequence[str], lists: Collection[str]) -> str | None:
    lists = dict.fromkeys(lists)  # quick to ask, in order
    if request.logits_key is not None:
        return request.logits_key if request.logits_key in lists else None
    found = one_of(request, [name for name in header if name in lists], None, TABLE_KEYS[request.input], "logits_key")
    other = next(kind for kind in TABLE_KEYS if kind != request.input)
    if found is None and any(name in lists for name in TABLE_KEYS[other]):
        raise OtherKindError(
            f"{request.path}: there is no column {TABLE_KEYS[request.input][0]!r}; it has {listed(header)}; "
            f"to read its {other} say input={other!r} (--input {other})."
        )
    if found is None and lists:
        raise InputError(
            f"{request.path}: there is no column {TABLE_KEYS[request.input][0]!r}; it has {listed(header)}, of which "
            f"{listed(lists)} hold lists; name the one with the {request.input} with logits_key (--logits-key)."
        )
    return found


def _prefixed(request: Request, names: list[str], prefixes: tuple[str, ...], header: Sequence[str]) -> list[str]:
    """The columns `logits_…` if there are two of them; without a named prefix otherwise all columns."""
    begun = [[name for name in names if name.startswith(prefix)] for prefix in prefixes]
    begun = [columns for columns in begun if len(columns) >= (2 if request.logits_key is None else 1)]
    if begun:
        return begun[0]
    alone = [name for name in _ALONE if name in names] if request.logits_key is None else [request.logits_key]
    if request.fewest_columns == 1 and len(alone) == 1 and alone[0] in names:
        return alone
    if request.logits_key is not None:
        raise InputError(
            f"{request.path}: there is no column {request.logits_key!r} with lists, nor one that begins with "
            f"{prefixes[0]!r}; it has {listed(header)}."
        )
    return names


def _columns_of_classes(request: Request, header: Sequence[str], prefixes: tuple[str, ...]) -> list[str]:
    """Return the columns named after `request.classes`, in that order; none if no column bears a class's name."""
    column = {name.removeprefix(prefix): name for prefix in prefixes for name in header if name.startswith(prefix)}
    if request.logits_key is None:
        column = {name: name for name in header} | column
    wanted = [str(name) for name in request.classes or ()]
    missing = [name for name in wanted if name not in column]
    if len(missing) == len(wanted):
        return []
    if missing:
        raise InputError(f"{request.path}: there is no column for {listed(missing)}; it has {listed(header)}.")
    return [column[name] for name in wanted]


def labels_are_in(column: str) -> str:
    """How to say that a column holds the labels.

    Examples
    --------
    >>> labels_are_in("target")
    "if it holds the labels say label_key='target' (--label-key target), "
    """
    return f"if it holds the labels say label_key={column!r} (--label-key {shlex.quote(column)}), "


def check_class_order(request: Request, names: ClassNames | None) -> None:
    """Raise where the file names its classes and the caller names others."""
    if names is not None and request.classes is not None and as_class_names(request.classes) != names:
        raise InputError(f"{request.path}: its own class order is {listed(names)}; give the same classes, or none.")


def as_class_names(values: Any) -> ClassNames:
    """Return names as a tuple; if all are whole numbers, as integers.

    Examples
    --------
    >>> as_class_names(["0", "1"]), as_class_names(["cat", "1"]), as_class_names(["01", "02"])
    ((0, 1), ('cat', '1'), ('01', '02'))
    """
    listed_values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(listed_values, list | tuple) or not all(isinstance(v, str | int | float) for v in listed_values):
        raise InputError(f"the class names must be a flat list of texts or whole numbers, got {_cut(values)}.")
    # Not by way of an array: NumPy makes all names as wide as the longest.
    texts = [str(value) for value in listed_values]
    whole = all(map(_is_whole, texts))
    return tuple(map(int, texts)) if whole else tuple(texts)


def _is_whole(text: str) -> bool:
    """Whether this is how a 64-bit integer is written; 007 and -0 are names."""
    digits = text.removeprefix("-")
    if not (len(text) <= 20 and digits.isascii() and digits.isdigit()):
        return False
    return str(int(text)) == text and -(1 << 63) <= int(text) < 1 << 63


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def one_of(
    request: Request, held: Mapping[str, str] | Sequence[str], named: str | None, usual: Sequence[str], flag: str
) -> str | None:
    """Return the one name among `held` that is asked for, or None if none was asked for and no usual name is there."""
    flag = request.flag(flag)
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
    return (", ".join(map(_cut, shown[:8])) or "nothing") + more
