"""Blockwise application of a gate, with the decisions written to a file.

In a cascade the rows that the first model rejects go to the second model. The two tables of a
cascade are called the *first* and the *later* table here. The later table has all rows, or only the
rejected ones.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import CascadeError
from metacal.gate import Decision, Gate, Rejected
from metacal.io.columns import Columns
from metacal.io.decision_columns import (
    build_decision_columns,
    list_result_names,
    merge_result_columns,
)
from metacal.io.formats.numpy import to_fixed_width_text
from metacal.io.writing import get_output_suffix, open_table
from metacal.rows import Rows, open_executor, report_finished_rows, report_progress_to
from metacal.rows.executors import count_threads
from metacal.rows.stored import StoredTable
from metacal.rows.tasks import run_in_order

#: Number of elements in a block of rows, which is 2 MB of float32 probabilities.
BLOCK_ELEMENTS = 1 << 19
#: Largest number of blocks per thread that are read but not written yet.
_PENDING_BLOCKS_PER_THREAD = 2


@dataclass(frozen=True)
class Applied:
    """Summary of the decisions that were written.

    Attributes
    ----------
    n_rows : int
        Number of rows.

    n_accepted : int or None
        Number of accepted rows. None for a calibrator without a gate.

    n_files : int
        Number of result files.

    n_kept : int
        Number of result files that an earlier run had finished.

    empty : tuple of str
        Sources without rows, which have no result. Only for a directory of results.

    orphans : tuple of str
        Results in the directory whose source no longer exists.

    pruned : bool
        Whether the orphans were removed.

    edited : tuple of str
        Results without a source that were edited after they were written. They are never removed.

    n_without_score : int
        For given scores, number of rows without a score. They are rejected.

    answered_by : mapping of str to int
        For a cascade, number of rows that each model answers.

    left_out : tuple of str
        Columns of the input that are neither classes nor in the results.
    """

    n_rows: int
    n_accepted: int | None
    n_files: int = 1
    n_kept: int = 0
    empty: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    pruned: bool = False
    edited: tuple[str, ...] = ()
    n_without_score: int = 0
    answered_by: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Block:
    """Block of consecutive rows.

    Attributes
    ----------
    start : int
        Index of the first row.

    tables : tuple of array
        Rows of each table. The later table of a cascade may have fewer rows.
    """

    start: int
    tables: tuple[Any, ...]


def write_decisions(
    gate: Gate,
    predictions: Columns,
    output: str | os.PathLike[str] | None,
    output_format: str | None = None,
    *,
    tables: Sequence[Any],
    rejected: Rejected | None = None,
    n_jobs: int | None = None,
    temporary_path: str | None = None,
) -> Applied:
    """Apply a gate block by block and write the decisions.

    Parameters
    ----------
    gate : Gate
        Gate or cascade to apply.

    predictions : Predictions or Scores
        Rows of the first model, with their ids, groups and kept columns.

    output : path or None
        File to write. None to count only.

    output_format : str, optional
        Format of the output if its name does not determine it.

    tables : sequence of array or StoredTable
        Validated table of each stage of the gate. All of it was validated before, so that the row
        numbers in messages are those of the file. The later table of a cascade may be missing.

    rejected : {"calibrated", "uniform"} or None, default=None
        Probabilities of rejected rows, as in `Gate.decide`.

    n_jobs : int, optional
        Number of threads.

    temporary_path : str, optional
        File to write instead of `output`, if another process moves it there.

    Returns
    -------
    Applied
    """
    n_accepted = 0
    n_without_score = 0
    answered_by: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        output_file = None
        if output is not None:
            output_file = stack.enter_context(
                _open_output(gate, predictions, output, output_format, temporary_path)
            )
        pool = stack.enter_context(open_executor(n_jobs))

        decide_block = partial(
            _decide_block,
            gate,
            predictions.groups,
            rejected=rejected,
            probabilities=output is not None,
        )
        block_arguments = ((block,) for block in _split_into_blocks(gate, tables))
        decided_blocks: Iterator[tuple[_Block, Decision]]
        if pool is None:
            decided_blocks = starmap(decide_block, block_arguments)
        else:
            max_pending_blocks = _PENDING_BLOCKS_PER_THREAD * count_threads(pool) + 1
            decided_blocks = run_in_order(pool, decide_block, block_arguments, max_pending_blocks)
        for block, decision in decided_blocks:
            n_accepted += int(decision.accept.sum())
            n_without_score += int(np.isnan(decision.uncertainty).sum())
            answered_by.update(_count_answers(decision))
            if output_file is not None:
                output_file.write(block.start, decision)
            report_finished_rows(len(decision))
    return Applied(
        n_rows=len(predictions),
        n_accepted=None if gate.is_calibrator else n_accepted,
        n_without_score=n_without_score,
        answered_by=answered_by,
        left_out=_find_columns_left_out(predictions, output_file),
    )


def _find_columns_left_out(predictions: Columns, output_file: _Output | None) -> tuple[str, ...]:
    """Return the input columns that are missing in the results."""
    if output_file is None or not predictions.keeps_all_columns:
        return ()
    conflicting_names = [name for name in predictions.kept if name not in output_file.kept_columns]
    return (*filter(None, predictions.unused_names), *conflicting_names)


@dataclass(frozen=True)
class _Output:
    """Open output file, with the input columns that are copied to it.

    Attributes
    ----------
    gate : Gate
        Gate that makes the decisions.

    write_columns : callable
        Appends columns of a block to the file.

    ids : array of shape (n_rows,) or None
        Ids of all rows.

    kept_columns : mapping of str to array of shape (n_rows,)
        Other columns to copy.
    """

    gate: Gate
    write_columns: Callable[[Mapping[str, Any]], None]
    ids: NDArray[Any] | None
    kept_columns: Mapping[str, NDArray[Any]]

    def write(self, start: int, decision: Decision) -> None:
        """Write the decisions on the rows from `start` on."""
        n_rows = len(decision)
        kept_columns = {
            name: column[start : start + n_rows] for name, column in self.kept_columns.items()
        }
        block_ids = _slice_column(self.ids, start, n_rows)
        result_columns = build_decision_columns(self.gate, decision, block_ids)
        self.write_columns(merge_result_columns(kept_columns, result_columns))


@contextlib.contextmanager
def _open_output(
    gate: Gate,
    predictions: Columns,
    output: str | os.PathLike[str],
    output_format: str | None,
    temporary_path: str | None,
) -> Iterator[_Output]:
    """Open an output file that appears when the context ends without an error.

    Parameters
    ----------
    gate : Gate
        Gate that makes the decisions.

    predictions : Predictions or Scores
        Rows with their ids and kept columns.

    output : path
        File to write.

    output_format : str or None
        Format of the output if its name does not determine it.

    temporary_path : str or None
        File to write instead of `output`, if another process moves it there.

    Yields
    ------
    _Output
    """
    kept_columns: Mapping[str, Any] = predictions.kept
    requires_fixed_width_text = get_output_suffix(output, output_format) == ".npz"
    if requires_fixed_width_text:
        # Text in an .npz file must have the same width in all blocks.
        kept_columns = to_fixed_width_text(dict(kept_columns))
    class_names = predictions.class_names
    if gate.source.classes_given:
        class_names = gate.classes.tolist()
    ids = predictions.ids
    if predictions.keeps_all_columns:
        kept_columns = _select_writable_columns(gate, kept_columns, class_names)
        id_name = predictions.column_of_role.get("ids")
        if id_name in kept_columns:
            # The results begin with the ids, under the name of their own column.
            kept_columns = {id_name: kept_columns[id_name], **kept_columns}
            ids = None
    with open_table(
        output, len(predictions), class_names=class_names, format=output_format, part=temporary_path
    ) as write_columns:
        yield _Output(gate, write_columns, ids, kept_columns)


def _select_writable_columns(
    gate: Gate, kept_columns: Mapping[str, Any], class_names: Sequence[Any] | None
) -> dict[str, Any]:
    """Return the kept columns whose names are valid in a result file.

    A kept column must not have the name of a result column, nor a name with "/".
    """
    result_names = set(list_result_names(gate))
    for class_name in class_names or ():
        result_names.add(f"probs_{class_name}")
    writable_columns = {}
    for name, column in kept_columns.items():
        has_valid_name = "/" not in name
        if has_valid_name and name not in result_names:
            writable_columns[name] = column
    return writable_columns


def _slice_column(column: NDArray[Any] | None, start: int, n_rows: int) -> NDArray[Any] | None:
    """Return the values of an optional column in a block of rows."""
    if column is None:
        return None
    return column[start : start + n_rows]


def _count_answers(decision: Decision) -> dict[str, int]:
    """Count the rows that each model of a cascade answers.

    The result is empty if there is no cascade.
    """
    if decision.by is None:
        return {}
    names = (*decision.stage_names, decision.reviewer_name)
    counts = np.bincount(decision.by, minlength=len(names)).tolist()
    return dict(zip(names, counts, strict=True))


def _decide_block(
    gate: Gate, groups: NDArray[Any] | None, block: _Block, **decision_options: Any
) -> tuple[_Block, Decision]:
    """Apply the gate to a block of rows, and return the block with the decision.

    Parameters
    ----------
    gate : Gate
        Gate or cascade.

    groups : array of shape (n_rows,) or None
        Group of each row of the first table.

    block : _Block
        Validated rows.

    **decision_options
        Keyword arguments of `Gate.decide`.

    Returns
    -------
    block : _Block
        The argument.

    decision : Decision
    """
    n_block_rows = len(block.tables[0])
    block_groups = _slice_column(groups, block.start, n_block_rows)
    # Progress is reported only when the rows are written.
    with report_progress_to(None):
        decision = _decide_with_available_tables(
            gate, block.tables, groups=block_groups, **decision_options
        )
    return block, decision


def _decide_with_available_tables(
    gate: Gate, tables: Sequence[Any], **decision_options: Any
) -> Decision:
    """Apply the gate, or only its first stage if the second table is missing.

    If the later table of a cascade is missing, the first model decides, and the rows that it
    rejects are answered by "nobody".

    Parameters
    ----------
    gate : Gate
        Gate or cascade.

    tables : sequence of array
        Rows of each table.

    **decision_options
        Keyword arguments of `Gate.decide`.

    Returns
    -------
    Decision
    """
    checked_rows_of_stage = [
        stage.source.to_rows_from_checked(table)
        for stage, table in zip(gate.stages, tables, strict=False)
    ]
    has_table_for_every_stage = len(checked_rows_of_stage) == gate.n_stages
    if has_table_for_every_stage:
        return gate.decide(*checked_rows_of_stage, **decision_options)
    first_decision = gate.stage(0).decide(*checked_rows_of_stage, **decision_options)
    first_model, reviewer = 0, 1
    return replace(
        first_decision,
        # In `by`, models have their index in `stage_names`, and the reviewer has the next number.
        by=np.where(first_decision.accept, first_model, reviewer),
        stage_names=(gate.stages[0].name,),
        reviewer_name="nobody",
    )


def _split_into_blocks(gate: Gate, tables: Sequence[Any]) -> Iterator[_Block]:
    """Read the tables block by block, in order.

    Raises
    ------
    InputError
        If the later table of a cascade has neither all rows nor exactly the rejected ones.
    """
    first_table = tables[0]
    n_rows = len(first_table)
    block_rows = _choose_block_rows(gate, first_table)
    later_offsets = _find_later_table_offsets(gate, tables)
    for start in range(0, n_rows, block_rows):
        stop = min(start + block_rows, n_rows)
        block_tables = [_read_rows(first_table, start, stop)]
        for later_table in tables[1:]:
            block_tables.append(_read_rows(later_table, later_offsets[start], later_offsets[stop]))
        yield _Block(start=start, tables=tuple(block_tables))


def _choose_block_rows(gate: Gate, first_table: Any) -> int:
    """Return the number of rows per block.

    `Rows` computes its results for strips of a fixed number of rows. A block of whole strips has
    the same strips as a single call for all rows, and therefore identical results. `Rows` rounds
    the number of rows to whole strips.
    """
    if not gate.has_classes:
        return BLOCK_ELEMENTS
    approximate_block_rows = max(1, BLOCK_ELEMENTS // gate.n_classes)
    return Rows(first_table, block_rows=approximate_block_rows).block_rows


def _find_later_table_offsets(gate: Gate, tables: Sequence[Any]) -> NDArray[np.int64]:
    """Return the offset in the later table for each row of the first table.

    Row i of the first table belongs to the rows from `offsets[i]` to `offsets[i + 1]` of the later
    table. There is at most one.
    """
    first_table = tables[0]
    n_rows = len(first_table)
    later_offsets = np.arange(n_rows + 1)
    has_later_table = len(tables) > 1
    if not has_later_table or len(tables[1]) == n_rows:
        return later_offsets

    later_table = tables[1]
    is_rejected = ~gate.accepts(gate.source.to_rows_from_checked(first_table))
    n_rejected = is_rejected.sum()
    if len(later_table) != n_rejected:
        raise CascadeError(
            f"The file of --large must have all {n_rows:,} rows, or the {n_rejected:,} rows that"
            f" the small model does not accept, but it has {len(later_table):,} rows."
        )
    # The later table contains only the rows that the first model rejects, in the same order.
    later_offsets[1:] = np.cumsum(is_rejected)
    return later_offsets


def _read_rows(table: Any, start: int, stop: int) -> Any:
    """Return the rows of a table from `start` up to but excluding `stop`."""
    if isinstance(table, StoredTable):
        return table.read_unconverted(start, stop)
    return table[start:stop]
