"""What is asked of a file of predictions, which of its arrays or columns that is, and what every
reader gives back.

Nothing is guessed from values: names say what is what, and a reader only finds them. Whole files,
blocks, streams and folders pick by the same rules, here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from metacal.display import listed
from metacal.errors import InputError, option, spelled
from metacal.io.opening import NoScoreError, one_score, passed_on, two_columns_hint
from metacal.rows.labels import as_class_names
from metacal.rows.stored import StoredTable

#: A table of more bytes than this stays in its file: reading it again on every pass costs more than
#: the memory.
STREAM_BYTES = 1 << 28

ClassNames = tuple[str | int, ...]

TABLE_KEYS = {"logits": ("logits",), "probabilities": ("probabilities", "probs")}
LABEL_KEYS = ("labels", "label", "y")
#: Where there are scores in place of a table: the names of right and wrong, and of losses.
CORRECT_KEYS, LOSS_KEYS = ("correct", "ok"), ("loss",)
#: For a cascade that was fitted on agreement: whether the answer that was given is the last
#: model's.
AGREE_KEYS = ("agrees",)
ID_KEYS = ("id", "ids")
CLASS_KEYS = ("classes", "class_names")
#: What may stand beside a table, as `Columns` calls it, and the parameter that names it.
BESIDE = {"labels": "label_key", "ids": "id_key", "groups": "group_key", "units": "unit_key"}
#: Names of columns that are likely to hold the labels, but are not taken for them.
LABEL_LIKE = re.compile(
    r"targets?|truths?|gt|gold|ground[_ ]?truth|(true|gold)[_ ]?(label|labels|class|target)|y[_"
    r" ]?true|class|category"
    r"|(class|label|target)[_ ]?(id|idx|index|name)",
    re.IGNORECASE,
)
#: csv columns `logits_cat`, `logits_dog` name the classes cat and dog.
PREFIXES = {
    "logits": ("logits_", "logit_"),
    "probabilities": ("probabilities_", "probability_", "probs_", "prob_"),
}
#: A column of this name, alone beside the labels, is about the second of two classes.
_ALONE = {
    "logits": ("score", "margin", "logit", "log_odds"),
    "probabilities": ("prob", "probability"),
}


class OtherKindError(InputError):
    """The file holds probabilities where logits were asked for, or logits where probabilities
    were.
    """


@dataclass(frozen=True)
class Request:
    """What a reader has to look for.

    With `scores` the table is one column of scores: `logits_key` names it, `label_key` what says
    right or wrong. `path` is what messages call the file; `file`, where it differs, is what is
    opened: a copy of standard input, or, `lasting` until the table is no longer needed, of what
    lies behind a URL.
    """

    path: str
    input: str = "logits"
    logits_key: str | None = None
    label_key: str | None = None
    classes: ClassNames | None = None
    id_key: str | None = None
    group_key: str | None = None
    unit_key: str | None = None
    file: str | None = None
    lasting: bool = False
    #: What the file is, where that is said: "csv".
    format: str | None = None
    stream: bool | None = None
    #: Columns that are no classes, whatever they hold.
    aside: tuple[str, ...] = ()
    #: Columns to pass on as they are; they are no classes either.
    keep: tuple[str, ...] = ()
    #: The classes of the gate that reads it: they choose and order columns that bear their names.
    of_gate: ClassNames | None = None
    scores: bool = False
    #: What stands in the place of labels are losses, numbers from 0 to 1.
    losses: bool = False
    #: What stands in the place of labels says whether an answer is that of a cascade's last model.
    agreement: bool = False
    #: Of a cascade the scores of the models after the first, and the flags of each model.
    later_scores: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def fewest_columns(self) -> int:
        """A probability may stand alone, of the second of two classes; so may a score that is
        named.
        """
        return 1 if self.input == "probabilities" or self.logits_key is not None else 2

    def is_one_score(self, columns: Sequence[str | int]) -> bool:
        """Whether one column speaks for the second of two classes: by what was said, or its
        name.
        """
        return len(columns) == 1 and (self.fewest_columns == 1 or columns[0] in _ALONE[self.input])

    @property
    def label_keys(self) -> tuple[str, ...]:
        """The usual names of the labels, or of right and wrong."""
        if self.losses:
            return LOSS_KEYS
        if self.agreement:
            return AGREE_KEYS
        return CORRECT_KEYS if self.scores else LABEL_KEYS

    def flag(self, name: str) -> str:
        """How the user calls the parameter `name`."""
        truth = "loss_key" if self.losses else "agree_key" if self.agreement else "correct_key"
        return (
            {"logits_key": "score_key", "label_key": truth}.get(name, name) if self.scores else name
        )

    def stays(self, n_bytes: int, *, copied: bool = False) -> bool:
        """Whether a table of this size stays in its file.

        A copy of standard input is deleted when it was read: a table stays in it only if whoever
        reads holds it open, which `copied` says, and where an open file can be deleted.
        """
        there = self.file is None or self.lasting or (copied and os.name != "nt")
        return there and (n_bytes > STREAM_BYTES if self.stream is None else self.stream)

    @property
    def source(self) -> str:
        """The file to open."""
        return self.path if self.file is None else self.file


@dataclass(frozen=True, eq=False)
class Columns:
    """What was picked of a file ("-" is standard input): a table, or one column of scores, and what
    stands beside it.

    Attributes
    ----------
    path : str
    table : array or StoredTable of shape (n, K), or of scores an array of shape (n,)
        Logits or probabilities as stored. A large table of an .npy, safetensors or Parquet file
        stays there, as a `StoredTable`: the estimators and `Rows` take it as it is,
        np.asarray(table) reads all of it.
    labels, ids, groups, units : array of shape (n,) or None; groups and units where they were asked
    for class_names : tuple or None
        In column order. Names that are all whole numbers are integers. Labels are names among them,
        or numbers that count the columns from 0.
    unused : tuple of str
        Arrays or columns of the file that were left aside.
    places : tuple of int or None, of a column per class which columns of the file these are
    names : mapping
        What the file calls the labels, ids, groups and units.
    kept : mapping of str to array of shape (n,)
        Columns to pass on.
    lines : sequence of int or None
        Of text, the line that each score stands on.
    remarks : tuple of str
        What was warned about: columns that are classes by their place alone, and may be none.
    score_column : str or None
        Where one score spoke for two classes and was named: its name.
    """

    path: str
    table: NDArray[Any] | StoredTable
    labels: NDArray[Any] | None = None
    ids: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None
    units: NDArray[Any] | None = None
    class_names: ClassNames | None = None
    unused: tuple[str, ...] = ()
    places: tuple[int, ...] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    lines: Sequence[int] | None = None
    remarks: tuple[str, ...] = ()
    score_column: str | None = None

    def __len__(self) -> int:
        return len(self.table)

    @property
    def beside(self) -> dict[str, NDArray[Any]]:
        """The columns that stand beside the table, by what they are."""
        return {role: column for role in BESIDE if (column := getattr(self, role)) is not None}

    def place(self, row: int) -> str:
        """What messages call a row."""
        return f"{self.path}: row {row}" if self.lines is None else f"{self.path}:{self.lines[row]}"

    def in_order(self, order: Sequence[int]) -> Self:
        """The same with these columns of the table alone, in this order."""
        table, names, places = self.table, self.class_names, self.places
        return replace(
            self,
            table=(
                table.in_order(order)
                if isinstance(table, StoredTable)
                else np.ascontiguousarray(table[:, order])
            ),
            class_names=None if names is None else tuple(names[k] for k in order),
            places=None if places is None else tuple(places[k] for k in order),
        )


class Picked(NamedTuple):
    """Names: of the table's columns (or the one with lists, an array, a score), and of what is
    beside it.
    """

    table: tuple[str, ...]
    beside: Mapping[str, str]
    unused: tuple[str, ...] = ()
    #: Where there is a column per class: the classes, and which columns of the file these are.
    class_names: ClassNames | None = None
    places: tuple[int, ...] | None = None
    #: The array that names the classes.
    classes: str | None = None
    #: What is to be passed on.
    kept: tuple[str, ...] = ()
    #: What messages call the file.
    path: str = ""

    @property
    def others(self) -> list[str]:
        """What is to be read besides the table, each name once."""
        return list(dict.fromkeys((*self.beside.values(), *self.kept)))

    @property
    def names(self) -> list[str]:
        """All that is to be read, each once, the table first."""
        return list(dict.fromkeys((*self.table, *self.others)))

    def columns(
        self,
        table: Any,
        column: Callable[[str], Any],
        values: Callable[[str], list[Any]] | None = None,
        **more: Any,
    ) -> Columns:
        """What was picked, read by `column` from its name; `more` is what the file itself says.

        `values` are those of what is kept, None where one is missing; where the file has arrays
        they are kept as such.
        """
        beside = {role: column(name) for role, name in self.beside.items()}
        more["kept"] = {
            name: passed_on(values(name)) if values else column(name) for name in self.kept
        }
        if self.classes is not None:
            more["class_names"] = as_class_names(column(self.classes))
        own = {
            "class_names": self.class_names,
            "unused": self.unused,
            "places": self.places,
            "names": self.beside,
        }
        return Columns(self.path, table, **beside, **{**own, **more})


def pick_arrays(request: Request, arrays: Mapping[str, str]) -> Picked:
    """Return the names of what is asked for among named arrays, given as {name: description}.

    Examples
    --------
    >>> pick_arrays(Request("a.npz"), {"logits": "(5, 3) float32", "y": "(5,) int64", "seed": "()"})[:3]
    (('logits',), {'labels': 'y'}, ('seed',))
    """
    table = one_of(request, arrays, "logits_key", TABLE_KEYS[request.input])
    if table is None:
        few = list(arrays.items())[:8]
        held = ", ".join(f"{name[:80]} {what[:80]}" for name, what in few) or "nothing"
        held += f" and {len(arrays) - len(few)} more" if len(arrays) > len(few) else ""
        known = "labels" in pick_beside(request, arrays)
        labels = "" if known else f" and the labels, if any, with {option('label_key')}"
        advice = f"; name the table with {option('logits_key')}{labels}."
        raise _no_table(request, "array", arrays, f"it holds {held}", advice)
    beside = pick_beside(request, arrays, (table,))
    classes = None if request.scores else next((key for key in CLASS_KEYS if key in arrays), None)
    return _picked(request, arrays, (table,), beside, classes=classes)


def _no_table(
    request: Request, what: str, among: Collection[str], held: str, advice: str
) -> InputError:
    other = next(kind for kind in TABLE_KEYS if kind != request.input)
    missing = f"{request.path}: there is no {what} {TABLE_KEYS[request.input][0]!r}; {held}"
    if any(name in among for name in TABLE_KEYS[other]):
        return OtherKindError(f"{missing}; to read its {other} say {option('input', other)}.")
    return InputError(missing + advice)


def pick_columns(
    request: Request, header: Sequence[str], lists: Collection[str] = (), *, fewest: int = 2
) -> Picked:
    """Return the names of what is asked for among columns: a score, a column of lists, or a column
    per class.

    `lists` are the columns that hold a list of numbers in each row. Where the table's name is one
    of them, it alone is returned, without class names. `fewest` columns of classes there must be.

    Examples
    --------
    >>> pick_columns(Request("a.csv"), ["id", "logits_cat", "logits_dog", "label"])[:4]
    (('logits_cat', 'logits_dog'), {'labels': 'label', 'ids': 'id'}, (), ('cat', 'dog'))
    >>> pick_columns(Request("a.csv"), ["logits", "label"], lists={"logits"})[:2]
    (('logits',), {'labels': 'label'})
    >>> pick_columns(Request("judge.csv", logits_key="mark", scores=True), ["id", "mark", "ok"])[:2]
    (('mark',), {'labels': 'ok', 'ids': 'id'})
    """
    place = {name: k for k, name in enumerate(header)}
    if len(place) < len(header):  # one column without a name is an index, as pandas writes it
        name = next(name for k, name in enumerate(header) if place[name] != k)
        what = f"repeats the column {name!r}" if name else "has several columns without a name"
        raise InputError(f"{request.path}: the header {what}; give every column a name of its own.")
    alone = (
        one_of(request, header, "logits_key", ())
        if request.scores
        else _column_of_lists(request, header, lists)
    )
    prefixes = (
        PREFIXES[request.input] if request.logits_key is None else (f"{request.logits_key}_",)
    )
    chosen = _columns_of_classes(request, header, prefixes) if alone is None else [alone]
    beside = pick_beside(request, header, chosen)
    names = None
    if alone is None:
        chosen = chosen or _other_columns(request, header, prefixes, beside.values())
        if len(chosen) < fewest and not request.is_one_score(chosen):
            raise InputError(
                f"{request.path}: found {len(chosen)} class column(s) among {listed(header)}; there"
                " must be at least 2, or one column 'logits' of"
                f" lists.{two_columns_hint() if chosen else ''}"
            )
        prefix = next((p for p in prefixes if all(name.startswith(p) for name in chosen)), "")
        names = as_class_names([name.removeprefix(prefix) for name in chosen])
    places = None if names is None else tuple(place[name] for name in chosen)
    return _picked(request, header, chosen, beside, class_names=names, places=places)


def pick_beside(
    request: Request, names: Collection[str], table: Collection[str] = ()
) -> dict[str, str]:
    """What stands beside a table, by its role; a column of labels is nothing else."""
    taken, found = set(table), dict[str, str]()
    for role, key in BESIDE.items():
        usual = {"labels": request.label_keys, "ids": ID_KEYS}.get(role, ())
        name = one_of(request, names, key, usual, taken)
        if name is not None:
            found[role] = name
            taken |= {name} if role == "labels" else set()
    return found


def _picked(
    request: Request,
    held: Collection[str],
    table: Sequence[str],
    beside: Mapping[str, str],
    **more: Any,
) -> Picked:
    """What was found among all that is `held`, the columns to pass on, which must all be there, and
    the rest.
    """
    missing = [name for name in request.keep if name not in held]
    if missing:
        raise InputError(
            f"{request.path}: there is no column {missing[0]!r} to keep; it has {listed(held)}."
        )
    used = {*table, *beside.values(), *request.keep, more.get("classes")}
    unused = tuple(name for name in held if name not in used)
    kept = tuple(dict.fromkeys(request.keep))
    return Picked(tuple(table), beside, unused, kept=kept, path=request.path, **more)


def _column_of_lists(request: Request, header: Sequence[str], lists: Collection[str]) -> str | None:
    kind, lists = request.input, dict.fromkeys(lists)  # quick to ask, in order
    if request.logits_key is not None:
        return request.logits_key if request.logits_key in lists else None
    name = one_of(
        request, [name for name in header if name in lists], "logits_key", TABLE_KEYS[kind]
    )
    if name is not None or not lists:
        return name
    advice = (
        f", of which {listed(lists)} hold lists; name the one with the {kind} with"
        f" {option('logits_key')}."
    )
    raise _no_table(request, "column", lists, f"it has {listed(header)}", advice)


def _other_columns(
    request: Request, header: Sequence[str], prefixes: Sequence[str], used: Iterable[str]
) -> list[str]:
    """The columns `logits_…` if there are two of them; without a named prefix otherwise all that
    are nothing else.
    """
    known = {
        "",
        *used,
        *request.aside,
        *request.keep,
        *(ID_KEYS if request.id_key is not None else ()),
    }
    names = [name for name in header if name not in known]
    begun = [[name for name in names if name.startswith(prefix)] for prefix in prefixes]
    begun = [
        columns for columns in begun if len(columns) >= (2 if request.logits_key is None else 1)
    ]
    if begun:
        return begun[0]
    alone = (
        [*set(names) & set(_ALONE[request.input])]
        if request.logits_key is None
        else [request.logits_key]
    )
    if request.fewest_columns == 1 and len(alone) == 1 and alone[0] in names:
        return alone
    if request.logits_key is not None:
        raise InputError(
            f"{request.path}: there is no column {request.logits_key!r} with lists, nor one that"
            f" begins with {prefixes[0]!r}; it has {listed(header)}."
        )
    doubtful = next((name for name in names if name in LABEL_KEYS), None)
    if doubtful is not None:
        raise InputError(
            f"{request.path}: is column {doubtful!r} a class or a label? List the classes with"
            f" {option('classes')}."
        )
    if (
        len(request.of_gate or ()) == 2 and len(names) > 1
    ):  # one score and a stray column look like two classes
        raise InputError(
            f"{request.path}: no column bears the name of a class of the gate; it has"
            f" {listed(names)}. Name the score of the second class with {one_score()}, or list the"
            f" columns of the two classes with {option('classes')}."
        )
    return names


def _columns_of_classes(
    request: Request, header: Sequence[str], prefixes: tuple[str, ...]
) -> list[str]:
    """Return the columns named after `request.classes`, in that order; none if no column bears a
    class's name.
    """
    column = {
        name.removeprefix(prefix): name
        for prefix in prefixes
        for name in header
        if name.startswith(prefix)
    }
    if request.logits_key is None:
        column = {name: name for name in header} | column
    wanted = [str(name) for name in request.classes or request.of_gate or ()]
    missing = [name for name in wanted if name not in column]
    if len(missing) == len(wanted):
        return []
    if missing:
        raise InputError(
            f"{request.path}: there is no column for {listed(missing)}; it has {listed(header)}."
        )
    return [column[name] for name in wanted]


def labels_are_in(column: str) -> str:
    """How to say that a column holds the labels."""
    return f"if it holds the labels say {option('label_key', column)}, "


def one_of(
    request: Request, held: Collection[str], key: str, usual: Sequence[str], without: Any = ()
) -> str | None:
    """Return the one name among `held` that is asked for, or None if none was asked for and no
    usual name is there.
    """
    named, flag = getattr(request, key), request.flag(key)
    said = spelled(flag, "--" + flag.replace("_", "-"))
    if named is not None and named not in held:
        kind = NoScoreError if request.scores and key == "logits_key" else InputError
        raise kind(
            f"{request.path}: there is no {named!r}, which {said} asks for; it has {listed(held)}."
        )
    if named in without:
        raise InputError(
            f"{request.path}: {named!r} is in use already; {said} must name another column."
        )
    if named is not None:
        return str(named)
    here = [name for name in usual if name in held and name not in without]
    if len(here) > 1:
        raise InputError(
            f"{request.path}: it has both {here[0]!r} and {here[1]!r}; choose one with"
            f" {option(flag)}."
        )
    return here[0] if here else None
