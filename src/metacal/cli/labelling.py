"""One round of metacal label: take the answers of a sheet into the journal, then write the next
sheet.

The order keeps answers safe, whatever happens in between. The journal's lock is held, the sheet is
read, and its answers are on the disk in the journal. Only then is the sheet replaced, and only if
it still holds the bytes that were read (`metacal.io.exchange`). If a person saves the sheet at that
moment, the saved sheet stays and is read again.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metacal.errors import InputError, warn_caller
from metacal.formulas import Codes
from metacal.gate.certifier import Certifier
from metacal.io.artifact.certifier import certifier_in, open_journal
from metacal.io.disk import DISK, Disk
from metacal.io.exchange import find_leftovers, keep_beside, replace_unchanged
from metacal.io.formats.text_cells import unescaped
from metacal.io.formats.text_writer import DelimitedWriter, TabsWriter
from metacal.io.journal import Journal
from metacal.promises.sequential.answers import UNKNOWN

if TYPE_CHECKING:
    from metacal.io.predictions import Predictions
    from metacal.io.scores import Scores
    from metacal.promises.promise import Promise

    Pool = Predictions | Scores

#: The columns that say which row a line is about, and what the classifier says of it.
ROW, ID, PREDICTION = "row", "id", "prediction"
#: What an answer may say of the prediction, and that the true class is no column, where no class is
#: called so.
_WORDS, _NONE = {"right": True, "wrong": False}, "none"
#: How often a sheet is read again because somebody saved it meanwhile.
_MAX_READS = 20
#: A sheet that somebody is saving is read again until it stays the same for this long.
_SETTLING_SECONDS = 0.2


@dataclass(frozen=True)
class LabellingCall:
    """What a call is about: the sheet, its journal, and how far to go.

    `extend`, `replay`, `coverage` and `batch` are free to change from call to call: any stopping
    time is covered.
    """

    sheet: str
    journal: str
    extend: bool = False
    replay: bool = False
    coverage: float | None = None
    batch: int | None = None


@dataclass(frozen=True)
class LabellingOutcome:
    """Result of a call.

    Attributes
    ----------
    certifier : Certifier
    waiting : array of int
        The rows of the pool that wait for an answer in the sheet.
    out_of_reach : bool
        Whether the coverage that was asked for cannot be certified any more.
    saved_meanwhile : bool
        Whether somebody saved the sheet during the call, so that it was read again.
    """

    certifier: Certifier
    waiting: Codes
    out_of_reach: bool
    saved_meanwhile: bool = False


def run_labelling_call(
    call: LabellingCall,
    pool: Pool,
    promise: Promise | None,
    *,
    options: dict[str, Any],
    sheet: dict[str, Any] | None = None,
    key: Any = None,
    disk: Disk = DISK,
) -> LabellingOutcome:
    """Take what has been answered, and ask on."""
    with open_journal(call.journal, key=key, disk=disk) as journal:
        if not journal.records and disk.read(call.sheet) is not None:
            raise InputError(
                f"{call.sheet} is there, but {call.journal}, which says what was asked and holds"
                f" the answers, is not; bring it back, or move {call.sheet} away to begin anew."
            )
        certifier = certifier_in(
            journal, pool.table, promise, sheet=sheet, **_options(journal, pool, options)
        )
        if call.extend:
            certifier.extend()
        if call.replay:
            _replay(certifier, pool, call)
        _recover_leftovers(certifier, call.sheet, disk)
        outcome = _exchange_sheets(certifier, pool, call, disk)
        certifier.record = None  # the journal closes: what is learnt from here on is not kept
        return outcome


def _exchange_sheets(
    certifier: Certifier, pool: Pool, call: LabellingCall, disk: Disk
) -> LabellingOutcome:
    """Take the answers of the sheet and write the next one, until nobody has saved it in
    between.
    """
    content = disk.read(call.sheet)
    for n_saved in range(_MAX_READS):
        if content is not None:
            _take(certifier, pool, call.sheet, content)
        waiting, out_of_reach = _ahead(certifier, call)
        outcome = LabellingOutcome(certifier, waiting, out_of_reach, saved_meanwhile=n_saved > 0)
        if not len(waiting):
            return outcome
        next_content = _content(certifier, pool, waiting, call.sheet)
        if next_content == content or _write(disk, call.sheet, next_content, content):
            return outcome
        content = _read_settled(disk, call.sheet)
    raise InputError(
        f"{call.sheet} was saved {_MAX_READS} times during this call. Nothing was overwritten, and"
        " the answers that were read are in the journal. Save it, and call again."
    )


def _read_settled(disk: Disk, path: str) -> bytes | None:
    """Read a file that somebody is saving, once it stays the same."""
    content = disk.read(path)
    for _ in range(_MAX_READS):
        disk.pause(_SETTLING_SECONDS)
        before, content = content, disk.read(path)
        if content == before:
            break
    return content


def _recover_leftovers(certifier: Certifier, path: str, disk: Disk) -> None:
    """Look at files that a killed call has left beside the sheet, and keep those that may hold
    answers.

    A call that is killed while it exchanges two sheets can leave a sheet that a person has saved
    under a temporary name. Such a sheet gets a visible name. A sheet whose answers are all in the
    journal is removed.
    """
    for part in find_leftovers(disk, path):
        if not _holds_new_answers(certifier, disk.read(part) or b""):
            disk.remove(part)
            continue
        backup = keep_beside(disk, part, disk.real_path(path))
        warn_caller(
            f"An earlier call was cut off while it replaced {path}. A sheet that may hold answers"
            f" which were never read is now {backup}. To use them, copy it over {path} and call"
            " again."
        )


def _holds_new_answers(certifier: Certifier, content: bytes) -> bool:
    """Return whether a sheet has an answer that the journal does not have, or cannot be read."""
    if not content.strip(b"\0"):
        return False
    try:
        lines = read_answer_lines("", content, answer_column(certifier))
    except InputError:
        return True
    known = range(certifier.n_pool)
    return any(line.row not in known or certifier.right[line.row] == UNKNOWN for line in lines)


def _options(journal: Journal, pool: Pool, options: dict[str, Any]) -> dict[str, Any]:
    """What the user has said; the first time, what the file says too: later the pool is known by
    its fingerprint.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if journal.records:
        return given
    own = {"input": getattr(pool, "input", "logits"), "score_name": getattr(pool, "name", "score")}
    return {**given, **own, "classes": pool.class_names}


def _ahead(certifier: Certifier, call: LabellingCall) -> tuple[Codes, bool]:
    """The rows to ask about next, none once the coverage asked for is there; whether it cannot be
    any more.
    """
    coverage, reach = certifier.coverage, certifier.within_reach
    enough = call.coverage is not None and coverage is not None and coverage >= call.coverage
    out_of_reach = call.coverage is not None and (reach is None or reach < call.coverage)
    if enough or out_of_reach:
        return np.empty(0, dtype=np.intp), out_of_reach
    return certifier.propose(call.batch or certifier.sheet.get("batch")), False


def _replay(certifier: Certifier, pool: Pool, call: LabellingCall) -> None:
    """Answer every question from the file itself."""
    if pool.labels is None:
        raise InputError(
            "--replay answers from the labels in POOL, and it has none; name them with --label-key."
        )
    while len(rows := _ahead(certifier, call)[0]):
        certifier.update(
            rows, **{"right" if certifier.rows is None else "labels": pool.labels[rows]}
        )


# ── the sheet that people fill in ─────────────────────────────────────────────────────────────────


def answer_column(certifier: Certifier) -> str:
    """What the column to fill in is called."""
    return "right" if certifier.rows is None else "label"


def _content(certifier: Certifier, pool: Pool, waiting: Codes, path: str) -> bytes:
    """The rows that wait for an answer: nothing that could lead whoever answers, unless it was
    asked for.
    """
    columns = {ROW: waiting, **_known(certifier, pool, waiting)}
    if certifier.sheet.get("show") and pool.groups is not None:
        columns[certifier.sheet["show"]] = pool.groups[waiting]
    text = io.StringIO()
    kind = TabsWriter if path.lower().endswith(".tsv") else DelimitedWriter
    writer = kind(text, class_names=None, n_rows=len(waiting), compress=False)
    writer.write({**columns, answer_column(certifier): np.full(len(waiting), "")})
    return text.getvalue().encode()


def _known(certifier: Certifier, pool: Pool, rows: Any) -> dict[str, Any]:
    """What a sheet says of rows, or of one, that must come back as it was: the id, and the
    prediction where shown.
    """
    columns = {} if pool.ids is None else {ID: pool.ids[rows]}
    if certifier.sheet.get("show_prediction"):
        columns[PREDICTION] = certifier.classes_[certifier.predicted[rows]]
    return columns


def _write(disk: Disk, path: str, content: bytes, expected: bytes | None) -> bool:
    """Write a sheet in the place of the one that was read. Return False if somebody has saved it
    meanwhile.
    """
    try:
        replacement = replace_unchanged(disk, path, content, expected)
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror or error}. Every answer so far is in the"
            " journal; call again."
        ) from error
    if replacement.backup is not None:
        warn_caller(
            f"{path} was saved twice while the next rows were being written. The later version is"
            f" {replacement.backup}, and its answers were not read. To use them, copy it over"
            f" {path} and call again."
        )
    return replacement.done


def _take(certifier: Certifier, pool: Pool, path: str, content: bytes) -> None:
    """Take the answers of a sheet that has come back: all of them, or none."""
    lines = read_answer_lines(path, content, answer_column(certifier))
    given, errors = [], list[str]()
    for line in lines:
        try:
            _check_line(certifier, pool, line)
            code, right = _answer(certifier, line)
            certifier.check(np.array([line.row]), np.array([right]))
            given.append((line.row, right, code))
        except InputError as error:
            errors.append(f"{path}:{line.number}: {error}")
    if errors:
        more = len(errors) - 1
        raise InputError(
            errors[0] + f" (Lines that cannot be taken either: {more:,} more.)" * (more > 0)
        )
    if given:
        certifier.take(*map(np.array, zip(*given)))


def _check_line(certifier: Certifier, pool: Pool, line: AnswerLine) -> None:
    if not 0 <= line.row < certifier.n_pool:
        raise InputError(f"the pool has no row {line.row}; leave the column row as it was.")
    for name, entry in _known(certifier, pool, line.row).items():
        value = str(entry).strip()
        if line.known.get(name, value) != value:
            raise InputError(
                f"row {line.row} has the {name} {value!r}, not {line.known[name]!r}; lines were"
                " mixed up, or the column was edited: fix it."
            )


def _answer(certifier: Certifier, line: AnswerLine) -> tuple[int, bool]:
    """The column of the true class, or -1, and whether the prediction is right."""
    said = line.answer
    if certifier.rows is None:
        from metacal.rows.score_columns import correct_column

        right = correct_column(
            [strip_zero_decimals(said)], name="the answer", place=lambda _: f"row {line.row}"
        )
        return -1, bool(right[0])
    names = [str(name) for name in certifier.classes_.tolist()]
    spelt = said if said in names else strip_zero_decimals(said)
    alike = [
        code for code, name in enumerate(names) if name.lower() == spelt.lower()
    ]  # a spreadsheet writes TRUE
    code = names.index(spelt) if spelt in names else alike[0] if len(alike) == 1 else None
    if code is not None:
        return code, bool(code == certifier.predicted[line.row])
    if said.lower() == _NONE:
        return -1, False
    if said.lower() in _WORDS and certifier.sheet.get("show_prediction"):
        return -1, _WORDS[said.lower()]
    raise InputError(f"{said[:60]!r} is none of the classes; {_hint(said, names)}")


def _hint(said: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(said, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return (
        f"they are {', '.join(names[:8])}{', ...' * (len(names) > 8)}. If the true class is none of"
        " them, write none."
    )


# ── the sheet as a file ───────────────────────────────────────────────────────────────────────────

# It is csv or tsv, which every spreadsheet opens; what comes back may be separated by semicolons,
# have a byte order mark, lines in another order, lines left empty, or columns of its own. What may
# not change is which row a line has.


@dataclass(frozen=True)
class AnswerLine:
    """A line that has been filled in: its number in the file, the row, what it says of it, and the
    answer.
    """

    number: int
    row: int
    known: Mapping[str, str]
    answer: str


def read_answer_lines(path: str, raw: bytes, answer: str) -> list[AnswerLine]:
    """The lines of a file's content that have an answer; InputError, with the line, where one
    cannot be read.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: this is not UTF-8 text; save it as csv in UTF-8.") from None
    file = io.StringIO(
        text, newline=None
    )  # some spreadsheets still end lines with a carriage return alone
    delimiter = max(",;\t", key=file.readline().count)
    file.seek(0)
    try:
        lines = list(csv.reader(file, delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise InputError(
            f"{path}: this is not {delimiter!r}-separated text ({error}); save it as csv."
        ) from None
    if not lines:
        raise InputError(f"{path}: it is empty; take it away, and it is written again.")
    names = [name.strip().lower() for name in lines[0]]
    for name in (ROW, answer):
        if names.count(name) != 1:
            raise InputError(
                f"{path}:1: there must be one column {name!r}, as it was written; there are "
                f"{', '.join(map(repr, names[:10]))}."
            )
    return _filled(path, names, lines[1:], answer)


def strip_zero_decimals(cell: str) -> str:
    """A number without decimals that say nothing: a column with empty cells comes back from pandas
    as 7.0.

    Examples
    --------
    >>> whole_number("7.0"), whole_number("7.5"), whole_number("cat")
    ('7', '7.5', 'cat')
    """
    whole, _, decimals = cell.partition(".")
    return whole if whole.isdecimal() and decimals.strip("0") == "" else cell


def _filled(
    path: str, names: Sequence[str], lines: list[list[str]], answer: str
) -> list[AnswerLine]:
    found, first = [], dict[int, int]()
    for number, cells in enumerate(lines, start=2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(names):
            raise InputError(
                f"{path}:{number}: {len(cells)} cells where the header has {len(names)}; fix the"
                " line."
            )
        values = {name: unescaped(cell.strip()) for name, cell in zip(names, cells)}
        try:
            row = int(strip_zero_decimals(values[ROW]))
        except ValueError:
            raise InputError(
                f"{path}:{number}: the row is {values[ROW]!r}, no number; leave that column as it"
                " was."
            ) from None
        if row in first:
            raise InputError(
                f"{path}:{number}: row {row} stands there twice, before in line {first[row]}; keep"
                " one."
            )
        first[row] = number
        if values[answer]:
            found.append(AnswerLine(number, row, values, values[answer]))
    return found
