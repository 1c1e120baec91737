"""A stream of rows as text, line by line: csv, tsv or JSON lines.

What is what is told as in any file of predictions: columns of classes or a list, `label`, `id`. A
cell may be empty, an entry may be left out: a row without a label is one whose label is not known
(yet), a line without logits says the label of an earlier id. Every record stands on a line of its
own.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

from metacal.display import listed
from metacal.errors import InputError, option
from metacal.io.column_selection import pick_columns
from metacal.io.formats.jsonl import LineError, nested_in, parsed_object
from metacal.io.formats.text_cells import line_cells, lists_of_numbers
from metacal.io.named_columns import pick_beside
from metacal.io.request import BESIDE, ID_KEYS, TABLE_KEYS, Request
from metacal.rows.score_columns import mark_of

#: What text streams are called.
KINDS = ("csv", "tsv", "jsonl", "ndjson")
#: Characters of a group's name; it waits with its row for a label.
LONGEST_GROUP = 1000


class Record(NamedTuple):
    """One line: numbers of the row or None, its label, id, sampling probability, group and unit
    where there are any.
    """

    row: tuple[float, ...] | None
    label: Any
    id: str | None
    probability: float | None
    group: str | None
    unit: str | None = None


#: Why a line cannot be taken; whoever puts it aside knows where it stands.
unfit = partial(LineError, "", 0)


class HeaderError(InputError):
    """What stands in a header does not say what is what: no line of the file can be read."""


@dataclass
class Reader:
    """Makes records of lines: for a table of classes, or with `request.scores` for one of scores,
    of a cascade several.

    A line that cannot be read is a LineError. `header` is what the columns are called, of JSON
    lines the entries of the first object that had a row in it, and `lists` which of these held
    lists: with both a reader goes on in the middle of a file.

    Examples
    --------
    >>> reader = Reader(Request("a.csv"), "csv", probability_key="p")
    >>> lines = [b"id,cat,dog,label,p", b"a,2.5,-1,,0.5", b"", b"b,0.5,3,dog,1", b"a,,,cat,"]
    >>> found = [reader.read(k, line) for k, line in enumerate(lines, 1)]
    >>> found[1].row, found[1].label, found[3].label, found[4].row, found[4].id
    ((2.5, -1.0), None, 'dog', None, 'a')
    >>> Reader(Request("a.jsonl"), "jsonl").read(1, b'{"id": 7, "label": "cat"}')[:3]  # of a row that came earlier
    (None, 'cat', '7')
    """

    request: Request
    kind: str
    probability_key: str | None = None
    header: list[str] | None = None
    lists: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._delimiter = {"csv": ",", "tsv": "\t"}.get(self.kind)
        #: The columns of a row, and whether it is one that holds lists; the names of labels and
        #: ids.
        self._table, self._listed, self._beside = tuple[str, ...](), False, dict[str, str]()
        if self.header is not None:
            self._name(self.header, self.lists)

    def read(self, line: int, content: bytes) -> Record | None:
        """The record on a line; None for a header and for a blank line. Line 1 begins another
        file.
        """
        if line == 1:
            content = content.removeprefix(b"\xef\xbb\xbf")
        content = content.lstrip(
            b"\0"
        )  # where a writer goes on at its old place in a file that was cut off
        if not content.strip():
            return None
        if self._delimiter is None:
            plain = parsed_object(self.request.path, line, content)
            return self._object(nested_in(self.request, line, plain, self.probability_key))
        cells = self._cells(content)
        if line == 1 and cells == self.header:
            return None
        if self.header is None or (line == 1 and not self._is_row(cells, self.header)):
            self._name_anew(cells)
            return None
        if len(cells) != len(self.header):
            raise unfit(f"this line has {len(cells)} cells but the header has {len(self.header)}")
        return self._record({name: cell or None for name, cell in zip(self.header, cells)})

    def _name_anew(self, cells: list[str]) -> None:
        """Take a line for a header; in a later file only one that names the same classes, or a
        broken line would do.
        """
        if self.header is None and cells[0].startswith("{"):
            raise InputError(
                f"{self.request.path}: it begins as JSON does, and is read as {self.kind}; say "
                f"{option('format', 'jsonl')}."
            )
        before, table = vars(self).copy(), self._table
        self._name(cells, [])
        classes = self.request.classes or ()
        alike = set(table) == set(self._table) or (
            len(classes) == len(self._table)
            and all(name.endswith(str(one)) for name, one in zip(self._table, classes))
        )
        if before["header"] is not None and table and self._table and not alike:
            vars(self).update(before)
            raise unfit(f"this is neither a row nor a header like the one before: {listed(cells)}")
        self.header = cells

    def _is_row(self, cells: list[str], header: list[str]) -> bool:
        """Whether the first line of a later file is no header of its own."""
        if len(cells) != len(header):
            return False
        try:
            self._row({name: cell or None for name, cell in zip(header, cells)}, "")
        except InputError:
            return False
        return set(cells) != set(header)

    def _cells(self, content: bytes) -> list[str]:
        try:
            return line_cells(content.decode("utf-8"), str(self._delimiter))
        except UnicodeDecodeError:
            raise unfit("this is not UTF-8 text; save it as UTF-8") from None
        except (csv.Error, ValueError):
            raise unfit(f"this is no line of {self.kind}; fix its quotes") from None

    def _object(self, cells: dict[str, Any]) -> Record:
        """The record of an object; the first with a row in it says what the entries are called."""
        if self.header is None:
            lists = [name for name, value in cells.items() if isinstance(value, list)]
            try:
                self._name(list(cells), lists)
            except InputError:
                if lists or self.request.logits_key in cells:
                    raise
            if self._table:
                self.header, self.lists = list(cells), lists
            else:
                self._beside = {}
        record = self._record(cells)
        if self.header is None and (record.id is None or record.label is None):
            raise unfit(f"there is no row in it, nor an id with a label; it has {listed(cells)}")
        return record

    def _record(self, cells: dict[Any, Any]) -> Record:
        label = self._value(cells, "labels", self.request.label_keys)
        told = tuple(cells.get(name) for name in self.request.flags)
        label = label if all(one is None for one in told) else told
        chance = cells.get(self.probability_key)
        return Record(
            self._row(cells, label),
            label,
            self._text("id", self._value(cells, "ids", ID_KEYS)),
            None if chance is None else self._numbers((str(self.probability_key),), [chance])[0],
            self._text("group", cells.get(self.request.group_key)),
            self._text("unit", cells.get(self.request.unit_key)),
        )

    def _value(self, cells: dict[str, Any], role: str, usual: tuple[str, ...]) -> Any:
        """A label or an id; where the first object with a row had none, later ones may, under a
        usual name.
        """
        name = self._beside.get(role, getattr(self.request, BESIDE[role]))
        if name is None and self._delimiter is None:
            name = next((key for key in usual if key in cells and key not in self._table), None)
        return None if name is None else cells.get(name)

    def _name(self, header: list[str], lists: list[str]) -> None:
        """Which entry is what."""
        key, path = self.probability_key, self.request.path
        if key is not None and key not in header and self._delimiter is not None:
            raise HeaderError(
                f"{path}: there is no {key!r}, which --probability-key asks for; it has"
                f" {listed(header)}."
            )
        try:
            self._beside = self._pick([name for name in header if name != key], lists)
        except InputError as error:
            raise HeaderError(str(error)) from None

    def _pick(self, here: list[str], lists: list[str]) -> dict[str, str]:
        """Find the columns of a row, of which a file of late labels alone has none; labels and ids
        are returned.
        """
        request, self._table, self._listed = self.request, (), False
        if self._delimiter is None:  # the label or the id of a row may stand in other objects only
            missing: dict[str, Any] = {
                key: None for key in BESIDE.values() if getattr(request, key) not in here
            }
            request = replace(request, **missing)
        else:
            lists = [
                name for name in here if name in (request.logits_key, *TABLE_KEYS[request.input])
            ]
        beside = pick_beside(request, here)
        late = {"labels", "ids"} <= beside.keys()
        if request.scores and late and request.logits_key not in here:
            return beside
        picked = pick_columns(request, here, lists, min_classes=0)
        wanted = 1 if request.is_single_score(picked.table) else len(request.classes or ())
        if picked.places is not None and len(picked.table) != (wanted or len(picked.table)):
            if late:
                return beside
            raise InputError(
                f"{request.path}: it has {len(picked.table)} columns of classes"
                f" ({listed(picked.table)}), and the gate was fitted on {wanted}; give predictions"
                " of the same classifier."
            )
        if self._delimiter is not None and (
            lacks := {*request.later_scores, *request.flags} - set(here)
        ):
            raise InputError(
                f"{request.path}: there is no column {min(lacks)!r}; it has {listed(here)}."
            )
        self._table = picked.table + request.later_scores
        self._listed = picked.places is None and not request.scores
        return dict(picked.beside)

    def _row(self, cells: dict[str, Any], label: Any) -> tuple[float, ...] | None:
        values = [cells.get(name) for name in self._table]
        if all(value is None for value in values):  # a row may lack its score, and is then rejected
            return (
                (math.nan,) * len(self._table)
                if self.request.scores and self._table and label is None
                else None
            )
        numbers = self._numbers(self._table, self._list(values[0]) if self._listed else values)
        wanted = len(self.request.classes or ())
        if wanted == 2 and len(numbers) == 1 and self.request.is_single_score(self._table):
            numbers = (1.0 - numbers[0] if self.request.input == "probabilities" else 0.0, *numbers)
        if wanted and len(numbers) != wanted:
            raise unfit(
                f"this row has {len(numbers)} numbers, and the gate was fitted on {wanted} classes;"
                " give predictions of the same classifier"
            )
        return numbers

    def _list(self, value: Any) -> list[Any]:
        if isinstance(value, str):
            try:
                return lists_of_numbers(self.request.path, self._table[0], [value])[0].tolist()
            except InputError:
                value = None
        if not isinstance(value, list):
            raise unfit(f"the entry {self._table[0]!r} is no list of numbers")
        return value

    def _numbers(self, names: Sequence[str], values: list[Any]) -> tuple[float, ...]:
        """All as numbers; the columns `names` hold them, or the one column of lists. A score may be
        a mark in words.
        """
        if self.request.scores and names == self._table:
            # A later model may not have been asked.
            marks = [
                math.nan if x is None else mark_of(str(x)) if isinstance(x, str | bool) else None
                for x in values
            ]
            values = [one if mark is None else mark for one, mark in zip(values, marks)]
        kinds = set(map(type, values))
        if kinds <= {float, int} or (kinds == {str} and "_" not in "".join(values)):
            with suppress(ValueError, OverflowError):
                return tuple(map(float, values))
        for name, value in zip(cycle(names), values):
            if value is None:
                raise unfit(f"{name!r} is empty in part; fill in all classes or none")
            try:
                if isinstance(value, bool) or "_" in str(value):
                    raise ValueError
                float(value)
            except (TypeError, ValueError, OverflowError):
                raise unfit(f"{name!r} holds {str(value)[:40]!r}, which is not a number") from None
        return tuple(map(float, values))

    def _text(self, what: str, value: Any) -> str | None:
        """An id or a group, as text: the same whatever kind of file it stands in."""
        if value is None:
            return None
        if isinstance(value, str | int) and not isinstance(value, bool):
            if what == "group" and (
                len(str(value)) > LONGEST_GROUP or not str(value).isprintable()
            ):
                raise unfit(
                    f"the group {str(value)[:40]!r} is no plain text of at most {LONGEST_GROUP}"
                )
            return str(value)
        raise unfit(f"the {what} {str(value)[:40]!r} is neither text nor a number")
