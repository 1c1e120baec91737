"""One round of `metacal label`: read a filled-in sheet, write the next one.

The order of the steps keeps every answer safe. The journal is locked, the sheet is read, and its
answers are written to the journal. Only then is the sheet replaced, and only if it still holds the
bytes that were read (`metacal.io.exchange`). If a person saves the sheet at that moment, the saved
sheet stays and is read again.

Terms used in this module: see `metacal.cli.label`. The file format of the sheet is in
`metacal.cli.answer_sheet`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from metacal.cli.answer_sheet import (
    ID,
    PREDICTION,
    ROW,
    AnswerLine,
    read_answer_lines,
)
from metacal.cli.answers import parse_answer
from metacal.errors import InputError, LabellingError, MissingLabelsError, warn_caller
from metacal.formulas import Codes
from metacal.gate.certifier import Certifier
from metacal.io.artifact.certifier import certifier_from_journal, open_journal
from metacal.io.disk import DISK, Disk
from metacal.io.exchange import find_leftovers, rename_to_backup, replace_if_unchanged
from metacal.io.formats.text_writer import DelimitedWriter, TsvWriter
from metacal.io.journal import Journal

if TYPE_CHECKING:
    from metacal.io.predictions import Predictions
    from metacal.io.scores import Scores
    from metacal.promises.promise import Promise

    Pool = Predictions | Scores

#: Largest number of times that a sheet is read because somebody saved it during the call.
_MAX_SHEET_READS = 20
#: A sheet counts as saved completely if it stays the same for this number of seconds.
_SECONDS_WITHOUT_CHANGE = 0.2


@dataclass(frozen=True)
class LabellingCall:
    """Files and options of one round.

    The options may change from round to round, because the promise holds for any stopping time.

    Attributes
    ----------
    sheet_path : str
        Path of the answer sheet.
    journal_path : str
        Path of the journal.
    draws_more_rows : bool, default=False
        Whether to draw further rows, as the first round declared.
    answers_from_pool : bool, default=False
        Whether to answer from the labels in the pool.
    target_coverage : float or None, default=None
        Stop as soon as a gate with this coverage is certified.
    batch_size : int or None, default=None
        Number of rows in the sheet.
    """

    sheet_path: str
    journal_path: str
    draws_more_rows: bool = False
    answers_from_pool: bool = False
    target_coverage: float | None = None
    batch_size: int | None = None


@dataclass(frozen=True)
class LabellingOutcome:
    """Result of one round.

    Attributes
    ----------
    certifier : Certifier
        Certifier with all answers so far.
    waiting_rows : array of int
        Rows of the pool that wait for an answer in the sheet.
    is_out_of_reach : bool
        Whether the requested coverage cannot be certified any more.
    saved_meanwhile : bool
        Whether somebody saved the sheet during the call, so that it was read again.
    """

    certifier: Certifier
    waiting_rows: Codes
    is_out_of_reach: bool
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
    """Read the answers of the sheet into the journal, and write the next sheet.

    Parameters
    ----------
    call : LabellingCall
        Files and options of this round.
    pool : Predictions or Scores
        Rows of the pool.
    promise : Promise or None
        Promise to certify. None uses the promise in the journal.
    options : dict
        Options of the certifier; those that are None were not given.
    sheet : dict or None, default=None
        Settings of the sheet in the first round.
    key : str or None, default=None
        File with the key that signs the journal.
    disk : Disk, default=DISK
        File system.

    Returns
    -------
    LabellingOutcome
    """
    with open_journal(call.journal_path, key=key, disk=disk) as journal:
        if not journal.records and disk.read(call.sheet_path) is not None:
            raise LabellingError(
                f"{call.sheet_path} exists, but its journal {call.journal_path} is missing. The journal"
                f" holds the questions and answers. Restore the journal, or rename {call.sheet_path}"
                " to start again."
            )
        certifier_options = _certifier_options(journal, pool, options)
        certifier = certifier_from_journal(
            journal, pool.table, promise, sheet_settings=sheet, **certifier_options
        )
        if call.draws_more_rows:
            certifier.extend()
        if call.answers_from_pool:
            _label_from_pool(certifier, pool, call)
        _recover_interrupted_sheets(certifier, call.sheet_path, disk)
        outcome = _exchange_sheets(certifier, pool, call, disk)
        # The journal is closed next, so the certifier must not record anything any more.
        certifier.record = None
        return outcome


def _exchange_sheets(
    certifier: Certifier, pool: Pool, call: LabellingCall, disk: Disk
) -> LabellingOutcome:
    """Read the sheet and write the next one, until nobody saves it in between.

    Parameters
    ----------
    certifier : Certifier
        Certifier with the answers of earlier rounds.
    pool : Predictions or Scores
        Rows of the pool.
    call : LabellingCall
        Files and options of the round.
    disk : Disk
        File system.

    Returns
    -------
    LabellingOutcome
    """
    sheet_content = disk.read(call.sheet_path)
    for n_saves_during_call in range(_MAX_SHEET_READS):
        if sheet_content is not None:
            _record_answers(certifier, pool, call.sheet_path, sheet_content)
        proposal = _propose_rows(certifier, call)
        outcome = LabellingOutcome(
            certifier=certifier,
            waiting_rows=proposal.row_indices,
            is_out_of_reach=proposal.is_out_of_reach,
            saved_meanwhile=n_saves_during_call > 0,
        )
        if not len(proposal.row_indices):
            return outcome
        next_content = _format_sheet(certifier, pool, proposal.row_indices, call.sheet_path)
        if next_content == sheet_content:
            return outcome
        was_replaced = _replace_sheet_if_unchanged(
            disk, call.sheet_path, new_content=next_content, content_read=sheet_content
        )
        if was_replaced:
            return outcome
        sheet_content = _read_when_saved_completely(disk, call.sheet_path)
    raise LabellingError(
        f"{call.sheet_path} kept changing while the command read it, so the command did not write"
        " it. The journal contains all answers that were read. Close the sheet, and run the command"
        " again."
    )


def _read_when_saved_completely(disk: Disk, path: str) -> bytes | None:
    """Read a file that may be being saved, after its content stops changing."""
    file_content = disk.read(path)
    for _ in range(_MAX_SHEET_READS):
        disk.pause(_SECONDS_WITHOUT_CHANGE)
        previous_content = file_content
        file_content = disk.read(path)
        if file_content == previous_content:
            break
    return file_content


def _recover_interrupted_sheets(certifier: Certifier, path: str, disk: Disk) -> None:
    """Keep or remove the temporary files of an interrupted call.

    A call that is killed while it exchanges two sheets can leave a sheet that a person has saved
    under a temporary name. If that sheet has answers that are not in the journal, it gets a visible
    name. Otherwise it is removed.
    """
    for leftover_path in find_leftovers(disk, path):
        leftover_content = disk.read(leftover_path) or b""
        if not _may_hold_unrecorded_answers(certifier, leftover_content):
            disk.remove(leftover_path)
            continue
        backup_path = rename_to_backup(disk, leftover_path, disk.real_path(path))
        warn_caller(
            f"An earlier call was interrupted while it replaced {path}. The file {backup_path} may"
            f" hold answers that were not read. To use these answers, copy the file over {path}"
            " and call again."
        )


def _may_hold_unrecorded_answers(certifier: Certifier, content: bytes) -> bool:
    """Check whether a sheet is unreadable or has an answer not in the journal."""
    # A crash during a write can leave a file that is empty or filled with null bytes.
    is_blank = not content.strip(b"\0")
    if is_blank:
        return False
    try:
        answer_lines = read_answer_lines("", content, answer_column(certifier))
    except InputError:
        # A person may still be able to read the answers.
        return True
    for line in answer_lines:
        is_row_of_pool = 0 <= line.row_index < certifier.n_pool
        if not is_row_of_pool or not certifier.answers.has_answer[line.row_index]:
            return True
    return False


def _certifier_options(journal: Journal, pool: Pool, options: dict[str, Any]) -> dict[str, Any]:
    """Return the given options; in the first round with the properties of the pool.

    Later rounds recognise the pool by its fingerprint in the journal.
    """
    given_options = {name: value for name, value in options.items() if value is not None}
    if journal.records:
        return given_options
    return {
        **given_options,
        "input": getattr(pool, "input", "logits"),
        "score_name": getattr(pool, "name", "score"),
        "classes": pool.class_names,
    }


class _RowProposal(NamedTuple):
    """Rows to label next.

    Attributes
    ----------
    row_indices : array of int
        Indices of rows of the pool, none if the coverage is certified or out of reach.
    is_out_of_reach : bool
        Whether the requested coverage cannot be certified any more.
    """

    row_indices: Codes
    is_out_of_reach: bool


def _propose_rows(certifier: Certifier, call: LabellingCall) -> _RowProposal:
    """Choose the rows to label next."""
    is_reached = False
    is_out_of_reach = False
    if call.target_coverage is not None:
        certified_coverage = certifier.coverage
        reachable_coverage = certifier.within_reach
        is_reached = certified_coverage is not None and certified_coverage >= call.target_coverage
        is_out_of_reach = reachable_coverage is None or reachable_coverage < call.target_coverage
    if is_reached or is_out_of_reach:
        no_rows = np.empty(0, dtype=np.intp)
        return _RowProposal(no_rows, is_out_of_reach)
    batch_size = call.batch_size or certifier.sheet_settings.get("batch")
    return _RowProposal(certifier.propose(batch_size), is_out_of_reach=False)


def _label_from_pool(certifier: Certifier, pool: Pool, call: LabellingCall) -> None:
    """Label all proposed rows with the labels in the pool."""
    if pool.labels is None:
        raise MissingLabelsError(
            "--replay requires the labels of the pool, but POOL has none. Name the column of"
            " labels with --label-key."
        )
    row_indices, _ = _propose_rows(certifier, call)
    while len(row_indices):
        row_labels = pool.labels[row_indices]
        if certifier.reads_logits:
            certifier.update(row_indices, labels=row_labels)
        else:
            certifier.update(row_indices, right=row_labels)
        row_indices, _ = _propose_rows(certifier, call)


def answer_column(certifier: Certifier) -> str:
    """Return the column to fill in: "right" for scores, "label" for logits."""
    return "label" if certifier.reads_logits else "right"


def _format_sheet(certifier: Certifier, pool: Pool, waiting_rows: Codes, path: str) -> bytes:
    """Return the content of a sheet with an empty answer column.

    It shows nothing that could influence the answers, unless --show or --show-prediction was given.

    Parameters
    ----------
    certifier : Certifier
        Certifier, with the settings of the sheet.
    pool : Predictions or Scores
        Rows of the pool.
    waiting_rows : array of int
        Rows to ask about.
    path : str
        Path of the sheet, whose ending determines the delimiter.

    Returns
    -------
    bytes
    """
    sheet_columns = {ROW: waiting_rows, **_identifying_columns(certifier, pool, waiting_rows)}
    shown_column = certifier.sheet_settings.get("show")
    if shown_column and pool.groups is not None:
        sheet_columns[shown_column] = pool.groups[waiting_rows]
    sheet_columns[answer_column(certifier)] = np.full(len(waiting_rows), "")
    sheet_text = io.StringIO()
    writer_class = TsvWriter if path.lower().endswith(".tsv") else DelimitedWriter
    writer = writer_class(sheet_text, class_names=None, n_rows=len(waiting_rows), compress=False)
    writer.write(sheet_columns)
    return sheet_text.getvalue().encode()


def _identifying_columns(certifier: Certifier, pool: Pool, rows: Any) -> dict[str, Any]:
    """Return the columns that must come back unchanged: id and prediction.

    Parameters
    ----------
    certifier : Certifier
    pool : Predictions or Scores
    rows : array of int or int
        Rows of the pool, or one row.

    Returns
    -------
    dict
        Entries of `rows`, keyed by column name.
    """
    identifying_columns = {}
    if pool.ids is not None:
        identifying_columns[ID] = pool.ids[rows]
    predictions = certifier.unlabelled_pool.predictions
    if predictions is not None and certifier.sheet_settings.get("show_prediction"):
        identifying_columns[PREDICTION] = predictions.classes[predictions.predicted_codes[rows]]
    return identifying_columns


def _replace_sheet_if_unchanged(
    disk: Disk, path: str, *, new_content: bytes, content_read: bytes | None
) -> bool:
    """Replace the sheet that was read. Return False if it has changed since.

    Parameters
    ----------
    disk : Disk
        File system.
    path : str
        Path of the sheet.
    new_content : bytes
        Content to write.
    content_read : bytes or None
        Content that was read, or None if there was no sheet.

    Returns
    -------
    bool
    """
    try:
        replacement = replace_if_unchanged(
            disk, path, new_content=new_content, expected_content=content_read
        )
    except OSError as error:
        raise LabellingError(
            f"Cannot write {path}: {error.strerror or error}. The journal holds all answers so"
            " far. Call again."
        ) from error
    if replacement.backup_path is not None:
        warn_caller(
            f"{path} was saved twice while metacal wrote the next rows. The later version is in"
            f" {replacement.backup_path}, and its answers were not read. To use these answers,"
            f" copy the file over {path} and call again."
        )
    return replacement.is_done


def _record_answers(certifier: Certifier, pool: Pool, path: str, content: bytes) -> None:
    """Add the answers of a sheet to the certifier, unless one of them is invalid.

    Parameters
    ----------
    certifier : Certifier
        Certifier that records the answers.
    pool : Predictions or Scores
        Rows of the pool.
    path : str
        Path of the sheet in messages.
    content : bytes
        Content of the sheet.
    """
    row_indices = []
    correct_flags = []
    true_codes = []
    error_messages = list[str]()
    for line in read_answer_lines(path, content, answer_column(certifier)):
        try:
            _raise_unless_line_matches_pool(certifier, pool, line)
            parsed_answer = parse_answer(certifier, line)
            certifier.check_answers(
                np.array([line.row_index]), np.array([parsed_answer.is_correct])
            )
        except InputError as error:
            error_messages.append(f"{path}:{line.line_number}: {error}")
            continue
        row_indices.append(line.row_index)
        correct_flags.append(parsed_answer.is_correct)
        true_codes.append(parsed_answer.true_code)
    if error_messages:
        error_message = error_messages[0]
        n_further = len(error_messages) - 1
        if n_further > 0:
            error_message += f" ({n_further:,} more lines are invalid.)"
        raise LabellingError(error_message)
    if row_indices:
        certifier.add_answers(np.array(row_indices), np.array(correct_flags), np.array(true_codes))


def _raise_unless_line_matches_pool(certifier: Certifier, pool: Pool, line: AnswerLine) -> None:
    """Raise InputError if a line does not identify a row of the pool."""
    if not 0 <= line.row_index < certifier.n_pool:
        raise LabellingError(
            f"The sheet contains row {line.row_index}, but the pool does not have this row. Restore the"
            " original row numbers."
        )
    for name, entry in _identifying_columns(certifier, pool, line.row_index).items():
        pool_cell = str(entry).strip()
        if line.cell_by_column.get(name, pool_cell) != pool_cell:
            raise LabellingError(
                f"Row {line.row_index} has {pool_cell!r} in the column {name}, but metacal wrote"
                f" {line.cell_by_column[name]!r}. Restore the original column, and check the order of the"
                " lines."
            )
