"""Measurement of labelled rows in one pass, for `evaluate` and the report.

The table is reduced to a few numbers per row in blocks: on threads, in processes, or on a cluster.
The class-wise ECE comes from integer sums per class and bin, which are added up there. Only its
bootstrap interval needs every entry of the table for each resample, and so a table of probabilities
in memory. On a cluster it has no interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.formulas import Array, Codes, Flags, Float
from metacal.gate import Gate, LogitsSource
from metacal.maps.temperature import TemperatureMap
from metacal.metrics import registry
from metacal.metrics.evaluation import ProbabilityColumns, compute_row_losses
from metacal.metrics.registry import PROBABILITIES
from metacal.metrics.toplabel import CheckedTable, TopLabel, checked_table
from metacal.rows import Rows
from metacal.rows.memory import keep_freed_memory, release_freed_memory
from metacal.rows.stored import ConvertedTable

#: For each table of probabilities: the sums of each metric of whole tables, keyed by its name.
TableSums = list[dict[str, Any]]
_SOFTMAX = TemperatureMap(1.0)


def make_softmax_gate(n_classes: int) -> Gate:
    """Return a gate with the softmax of the logits that accepts every row."""
    return Gate.from_source(LogitsSource(_SOFTMAX, np.arange(n_classes)))


def make_probability_buffer(logits: Any, *, overwrite: bool = False) -> Array:
    """Return a buffer for probabilities, if possible the logits themselves.

    Parameters
    ----------
    logits : array or stored table
        Table of logits.
    overwrite : bool, default=False
        Whether the logits may be overwritten.

    Returns
    -------
    array of the shape of `logits`
    """
    is_plain_array = type(logits) is np.ndarray and logits.dtype in (np.float32, np.float64)
    if overwrite and is_plain_array and logits.flags.writeable:
        return logits
    dtype = np.float64 if logits.dtype == np.float64 else np.float32
    return np.empty(logits.shape, dtype=dtype)


@dataclass(frozen=True, eq=False)
class RowMeasurements:
    """Measurements of each labelled row.

    Attributes
    ----------
    score : array of shape (n_rows,)
        Ranking score.
    top : array of int of shape (n_rows,)
        Column of the largest logit.
    accept : array of bool of shape (n_rows,) or None
        Whether each row is accepted. None if the gate is only a calibrator.
    after : ProbabilityColumns
        Metrics of the probabilities of the gate, which are 1/K for rejected rows.
    before : ProbabilityColumns or None
        Metrics of the softmax of the logits, if requested.
    """

    scores: Float
    predicted_codes: Codes
    accept: Flags | None
    gate_metrics: ProbabilityColumns
    softmax_metrics: ProbabilityColumns | None


def measure_rows(
    gate: Gate,
    rows: Rows,
    codes: Codes,
    n_bins: int,
    groups: Any = None,
    *,
    with_softmax: bool,
    buffer: Array | None = None,
) -> RowMeasurements:
    """Compute decisions and metrics of every row in one pass.

    Parameters
    ----------
    gate : Gate
        Gate, or a calibrator as a gate.
    rows : Rows
        Logits.
    codes : array of int of shape (n_rows,)
        Column of each label.
    n_bins : int
        Number of bins of binned errors.
    groups : array-like of shape (n_rows,) or None, default=None
        Group of each row, for a promise per group.
    with_softmax : bool
        Whether to measure the softmax of the logits too.
    buffer : array or None, default=None
        Buffer for the probabilities of the gate, for metrics that need all of them at once. It may
        be the table of logits itself.

    Returns
    -------
    RowMeasurements
    """
    # Every block allocates and frees the same arrays, so freed memory is kept.
    keep_freed_memory()
    n_tables = 1 + with_softmax
    make_reduction = partial(_Reduction, rows.n_classes, n_bins, n_tables)
    measure_block = partial(_measure_block, gate, with_softmax, rows.is_unvalidated)
    group_column = np.asarray(groups) if gate.has_group_thresholds else None
    total = make_reduction()
    try:
        for columns, sums in rows.accumulate_on_host(
            measure_block, make_reduction, codes, group_column, buffer
        ):
            total.join(columns, sums)
    except InputError:
        if rows.is_unvalidated:
            # Validate the whole table: this error names the file and the row.
            gate.source.read(rows.table)
        raise
    all_columns, sums = total.result()
    release_freed_memory(len(rows) * rows.n_classes)
    score, top, accept, *metric_columns = (np.ascontiguousarray(column) for column in all_columns.T)
    after, *others = _split_metrics(metric_columns, sums)
    if buffer is not None:
        after = replace(after, table=CheckedTable(buffer, codes, after.top.confidence))
    return RowMeasurements(
        scores=score,
        predicted_codes=top.astype(np.intp),
        accept=None if gate.is_calibrator else accept > 0.0,
        gate_metrics=after,
        softmax_metrics=others[0] if others else None,
    )


def _measure_block(
    gate: Gate,
    with_softmax: bool,
    is_unvalidated: bool,
    block: Array,
    codes: Codes,
    groups: Any = None,
    buffer: Array | None = None,
) -> tuple[Float, Flags, list[CheckedTable]]:
    """Measure one block of rows.

    Parameters
    ----------
    gate, with_softmax
        See `measure_rows`.
    is_unvalidated : bool
        Whether the block has to be validated first.
    block : array of shape (n_block_rows, n_classes)
        Logits of the block.
    codes, groups, buffer
        Entries of the block in the arrays of `measure_rows`.

    Returns
    -------
    columns : array of shape (n_block_rows, n_columns)
        Score, top class, decision, and for each table of probabilities top label and losses.
    accept : array of bool of shape (n_block_rows,)
        Whether each row is accepted.
    tables : list of CheckedTable
        Probabilities of the gate and, if requested, the softmax.
    """
    logits = block
    if is_unvalidated:
        logits = gate.source.read(block)
    decision = gate.decide(Rows(logits), rejected="uniform", groups=groups)
    assert decision.probabilities is not None
    tables = [checked_table(decision.probabilities, codes)]
    if with_softmax:
        # The softmax of validated logits needs no check.
        softmax = _SOFTMAX(logits)
        tables.append(CheckedTable(softmax, codes, softmax.max(axis=1)))
    columns: list[Any] = [decision.score, decision.predicted_codes, decision.accept]
    for table in tables:
        columns += [*table.top_label(), *compute_row_losses(table).values()]
    if buffer is not None:
        # This comes last, because the buffer may be the block itself.
        buffer[...] = decision.probabilities
    return (
        np.stack(columns, axis=1).astype(np.float64, copy=False),
        np.asarray(decision.accept, np.bool_),
        tables,
    )


class _Reduction:
    """Accumulated columns of some rows, and sums of metrics of whole tables.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    n_bins : int
        Number of bins of binned errors.
    n_tables : int
        Number of tables of probabilities.
    """

    def __init__(self, n_classes: int, n_bins: int, n_tables: int) -> None:
        self.columns: list[Float] = []
        self.sums: TableSums = []
        for _ in range(n_tables):
            table_sums = {}
            for metric in registry.list_evaluated_metrics(PROBABILITIES):
                if metric.sums is not None:
                    table_sums[metric.name] = metric.sums(n_classes, n_bins)
            self.sums.append(table_sums)

    def add(self, part: tuple[Float, Flags, list[CheckedTable]]) -> None:
        """Add the measurements of one block."""
        columns, accept, tables = part
        self.columns.append(columns)
        for table, table_sums in zip(tables, self.sums, strict=True):
            for metric_sums in table_sums.values():
                metric_sums.add(table, accept)

    def join(self, columns: Float, sums: TableSums) -> None:
        """Add the result of another reduction, over the rows that follow."""
        self.columns.append(columns)
        for table_sums, other_sums in zip(self.sums, sums, strict=True):
            for name in table_sums:
                table_sums[name] += other_sums[name]

    def result(self) -> tuple[Float, TableSums]:
        """Return the columns of all rows, and the sums."""
        return np.concatenate(self.columns), self.sums


def _split_metrics(columns: list[Float], sums: TableSums) -> Iterator[ProbabilityColumns]:
    """Yield the metrics of each table of probabilities from the columns of all tables."""
    loss_names = [
        metric.name
        for metric in registry.list_evaluated_metrics(PROBABILITIES)
        if metric.losses is not None
    ]
    # The first two columns of a table are the top label.
    n_columns = 2 + len(loss_names)
    starts = range(0, len(columns), n_columns)
    for start, table_sums in zip(starts, sums, strict=True):
        top_label = TopLabel(*columns[start : start + 2])
        loss_columns = columns[start + 2 : start + n_columns]
        losses = dict(zip(loss_names, loss_columns, strict=True))
        yield ProbabilityColumns(top_label, losses, sums=table_sums)


def make_lazy_softmax_table(rows: Rows, codes: Codes, top: TopLabel) -> CheckedTable:
    """Return the softmax of the logits as a table whose rows are computed on access."""
    dtype = np.result_type(rows.table.dtype, np.float32)
    table: Any = ConvertedTable(rows.table, _SOFTMAX, dtype)
    return CheckedTable(table, codes, top.confidence)
