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
    SheetSettings,
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

if TYPE_CHECKING:
    from metacal.io.predictions import Predictions
    from metacal.io.scores import Scores
    from metacal.promises.promise import Promise

    Pool = Predictions | Scores

#: If somebody keeps saving the sheet during a call, the call gives up after this many reads.
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
    is_target_out_of_reach : bool
        Whether the requested coverage cannot be certified any more.
    was_sheet_saved_during_call : bool
        Whether somebody saved the sheet during the call, so that it was read again.
    """

    certifier: Certifier
    waiting_rows: Codes
    is_target_out_of_reach: bool
    was_sheet_saved_during_call: bool = False

    @property
    def n_waiting_rows(self) -> int:
        """Number of rows that wait for an answer in the sheet."""
        return len(self.waiting_rows)

    @property
    def is_gate_certified(self) -> bool:
        """Whether the answers so far certify a gate."""
        return self.certifier.coverage is not None


def run_labelling_call(
    call: LabellingCall,
    pool: Pool,
    promise: Promise | None,
    *,
    certifier_options: dict[str, Any],
    sheet_settings: SheetSettings | None = None,
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
    certifier_options : dict
        Parameters of `Certifier`. Those that are None were not given.
    sheet_settings : SheetSettings or None, default=None
        Settings of the sheet. They have an effect only in the first round.
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
        is_first_round = not journal.records
        given_options = {
            name: value for name, value in certifier_options.items() if value is not None
        }
        if is_first_round:
            # Later rounds recognise the pool by its fingerprint in the journal.
            given_options |= _describe_pool(pool)
        certifier = certifier_from_journal(
            journal,
            pool.table,
            promise,
            sheet_settings=None if sheet_settings is None else sheet_settings.to_dict(),
            **given_options,
        )
        if call.draws_more_rows:
            certifier.extend()
        if call.answers_from_pool:
            _label_from_pool(certifier, pool, call)
        _recover_interrupted_sheets(certifier, call.sheet_path, disk)
        outcome = _exchange_sheets(certifier, pool, call, disk)
        # `record` writes to the journal, which is closed when this block ends.
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
    for n_repeated_reads in range(_MAX_SHEET_READS):
        if sheet_content is not None:
            _record_answers(certifier, pool, call.sheet_path, sheet_content)
        proposal = _propose_rows(certifier, call)
        outcome = LabellingOutcome(
            certifier=certifier,
            waiting_rows=proposal.row_indices,
            is_target_out_of_reach=proposal.is_target_out_of_reach,
            was_sheet_saved_during_call=n_repeated_reads > 0,
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
    """Wait until the content of a file stops changing, and return the content."""
    file_content = disk.read(path)
    for _ in range(_MAX_SHEET_READS):
        disk.pause(_SECONDS_WITHOUT_CHANGE)
        previous_content = file_content
        file_content = disk.read(path)
        if file_content == previous_content:
            break
    return file_content


def _recover_interrupted_sheets(certifier: Certifier, path: str, disk: Disk) -> None:
    """Rename or remove the temporary sheets of an interrupted call.

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
    """Check whether a sheet is unreadable, or has an answer that is not in the journal."""
    # A crash during a write can leave a file that is empty or filled with null bytes.
    is_blank = not content.strip(b"\0")
    if is_blank:
        return False
    try:
        answer_lines = read_answer_lines("", content, get_answer_column(certifier))
    except InputError:
        # A person may still be able to read the answers.
        return True
    for line in answer_lines:
        is_row_of_pool = 0 <= line.row_index < certifier.n_pool
        if not is_row_of_pool or not certifier.answers.has_answer[line.row_index]:
            return True
    return False


def _describe_pool(pool: Pool) -> dict[str, Any]:
    """Return the parameters of `Certifier` that describe the pool."""
    from metacal.io.scores import Scores

    if isinstance(pool, Scores):
        return {"input": "logits", "score_name": pool.name, "classes": pool.class_names}
    return {"input": pool.input, "score_name": "score", "classes": pool.class_names}


class _RowProposal(NamedTuple):
    """Rows to label next.

    Attributes
    ----------
    row_indices : array of int
        Indices of rows of the pool, none if the coverage is certified or out of reach.
    is_target_out_of_reach : bool
        Whether the requested coverage cannot be certified any more.
    """

    row_indices: Codes
    is_target_out_of_reach: bool


def _propose_rows(certifier: Certifier, call: LabellingCall) -> _RowProposal:
    """Choose the rows to label next: none if the coverage is certified or out of reach."""
    is_target_certified = False
    is_target_out_of_reach = False
    if call.target_coverage is not None:
        certified_coverage = certifier.coverage
        largest_possible_coverage = certifier.within_reach
        is_target_certified = (
            certified_coverage is not None and certified_coverage >= call.target_coverage
        )
        is_target_out_of_reach = (
            largest_possible_coverage is None or largest_possible_coverage < call.target_coverage
        )
    if is_target_certified or is_target_out_of_reach:
        no_rows = np.empty(0, dtype=np.intp)
        return _RowProposal(no_rows, is_target_out_of_reach)
    sheet_settings = SheetSettings.from_dict(certifier.sheet_settings)
    batch_size = call.batch_size or sheet_settings.batch_size
    return _RowProposal(certifier.propose(batch_size), is_target_out_of_reach=False)


def _label_from_pool(certifier: Certifier, pool: Pool, call: LabellingCall) -> None:
    """Answer every question from the labels of the pool, until no row is proposed."""
    if pool.labels is None:
        raise MissingLabelsError(
            "--replay requires the labels of the pool, but POOL has none. Name the column of"
            " labels with --label-key."
        )
    rows_to_label = _propose_rows(certifier, call).row_indices
    while len(rows_to_label):
        # For scores, the "label" of a row is whether its prediction is correct.
        labels = pool.labels[rows_to_label]
        if certifier.reads_logits:
            certifier.update(rows_to_label, labels=labels)
        else:
            certifier.update(rows_to_label, right=labels)
        rows_to_label = _propose_rows(certifier, call).row_indices


def get_answer_column(certifier: Certifier) -> str:
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
    sheet_settings = SheetSettings.from_dict(certifier.sheet_settings)
    sheet_columns = {ROW: waiting_rows, **_get_unchanging_columns(certifier, pool, waiting_rows)}
    # The command reads the column to show as the groups of the pool.
    entries_to_show = pool.groups
    if sheet_settings.shown_column and entries_to_show is not None:
        sheet_columns[sheet_settings.shown_column] = entries_to_show[waiting_rows]
    sheet_columns[get_answer_column(certifier)] = np.full(len(waiting_rows), "")
    sheet_text = io.StringIO()
    writer_class = TsvWriter if path.lower().endswith(".tsv") else DelimitedWriter
    writer = writer_class(sheet_text, class_names=None, n_rows=len(waiting_rows), compress=False)
    writer.write(sheet_columns)
    return sheet_text.getvalue().encode()


def _get_unchanging_columns(certifier: Certifier, pool: Pool, rows: Any) -> dict[str, Any]:
    """Return the columns of the sheet that a person must not change: id and prediction.

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
    unchanging_columns = {}
    if pool.ids is not None:
        unchanging_columns[ID] = pool.ids[rows]
    predictions = certifier.unlabelled_pool.predictions
    sheet_settings = SheetSettings.from_dict(certifier.sheet_settings)
    if predictions is not None and sheet_settings.shows_prediction:
        unchanging_columns[PREDICTION] = predictions.classes[predictions.predicted_codes[rows]]
    return unchanging_columns


def _replace_sheet_if_unchanged(
    disk: Disk, path: str, *, new_content: bytes, content_read: bytes | None
) -> bool:
    """Replace the sheet, unless its content has changed since it was read.

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
        Whether the sheet was replaced.
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
    for line in read_answer_lines(path, content, get_answer_column(certifier)):
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
        n_further_errors = len(error_messages) - 1
        if n_further_errors > 0:
            error_message += f" ({n_further_errors:,} more lines are invalid.)"
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
    columns_of_row = _get_unchanging_columns(certifier, pool, line.row_index)
    for name, entry in columns_of_row.items():
        pool_cell = str(entry).strip()
        if line.cell_by_column.get(name, pool_cell) != pool_cell:
            raise LabellingError(
                f"Row {line.row_index} has {pool_cell!r} in the column {name}, but metacal wrote"
                f" {line.cell_by_column[name]!r}. Restore the original column, and check the order of the"
                " lines."
            )
