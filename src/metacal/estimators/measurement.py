"""Metrics of labelled rows, computed in one pass for `evaluate` and the report.

The table is reduced to a few numbers per row in blocks: on threads, in processes, or on a cluster.
The class-wise ECE is computed from integer sums per class and bin. Only its bootstrap interval needs
every entry of the table for each resample, and so a table of probabilities in memory. On a cluster
it has no interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from metacal.errors import InputError
from metacal.formulas import Array, Codes, Flags, Float
from metacal.gate import Gate, LogitsSource
from metacal.maps.temperature import TemperatureMap
from metacal.metrics import registry
from metacal.metrics.probability_columns import ProbabilityColumns, compute_row_losses
from metacal.metrics.registry import PROBABILITIES
from metacal.metrics.toplabel import CheckedTable, TopLabel, checked_table
from metacal.rows import Rows
from metacal.rows.memory import make_allocator_keep_freed_memory, release_freed_memory
from metacal.rows.stored import ConvertedTable

#: Accumulators of the metrics of one table of probabilities, keyed by the name of the metric.
AccumulatorByMetric = dict[str, Any]
#: Temperature scaling with temperature 1, which maps logits to their softmax.
_SOFTMAX_MAP = TemperatureMap(1.0)
#: Number of columns of a top label: confidence and correctness.
_N_TOP_LABEL_COLUMNS = 2


def make_softmax_gate(n_classes: int) -> Gate:
    """Make a gate that accepts every row, with the softmax as its probabilities."""
    return Gate.from_source(LogitsSource(_SOFTMAX_MAP, np.arange(n_classes)))


def make_probability_buffer(logits: Any, *, overwrite: bool = False) -> Array:
    """Return a buffer for probabilities, which may be the table of logits itself.

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
    probability_dtype = np.float64 if logits.dtype == np.float64 else np.float32
    return np.empty(logits.shape, dtype=probability_dtype)


@dataclass(frozen=True, eq=False)
class RowMeasurements:
    """Score, prediction, decision and metrics of each labelled row.

    Attributes
    ----------
    scores : array of shape (n_rows,)
        Ranking score.
    predicted_codes : array of int of shape (n_rows,)
        Column of the largest logit.
    accept : array of bool of shape (n_rows,) or None
        Whether each row is accepted. None if the gate is only a calibrator.
    gate_metrics : ProbabilityColumns
        Metrics of the probabilities of the gate, those that `Gate.decide` returns by default.
    softmax_metrics : ProbabilityColumns or None
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
    """Compute the decision and the metrics of every row in one pass.

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
        Whether to compute the metrics of the softmax of the logits too.
    buffer : array or None, default=None
        Buffer for the probabilities of the gate, for metrics that need all of them at once. It may
        be the table of logits itself.

    Returns
    -------
    RowMeasurements
    """
    # Memory is not returned to the system between blocks, because all allocate the same arrays.
    make_allocator_keep_freed_memory()
    n_tables = 2 if with_softmax else 1
    make_accumulator = partial(_BlockAccumulator, rows.n_classes, n_bins, n_tables)
    measure_block = partial(_measure_block, gate, with_softmax, rows.is_unvalidated)
    group_column = np.asarray(groups) if gate.has_group_thresholds else None
    total_accumulator = make_accumulator()
    try:
        for columns, table_accumulators in rows.accumulate_blocks_on_host(
            measure_block, make_accumulator, codes, group_column, buffer
        ):
            total_accumulator.merge(columns, table_accumulators)
    except InputError:
        if rows.is_unvalidated:
            # The error names a row of the block. Validation of the whole table raises an error that
            # names the file and its row.
            gate.source.read(rows.table)
        raise
    all_columns, table_accumulators = total_accumulator.result()
    release_freed_memory(len(rows) * rows.n_classes)
    scores, predicted_codes, accept, *metric_columns = (
        np.ascontiguousarray(column) for column in all_columns.T
    )
    gate_metrics, *softmax_metrics = _group_columns_by_table(metric_columns, table_accumulators)
    if buffer is not None:
        probability_table = CheckedTable(buffer, codes, gate_metrics.top_labels.confidence)
        gate_metrics = replace(gate_metrics, table=probability_table)
    return RowMeasurements(
        scores=scores,
        predicted_codes=predicted_codes.astype(np.intp),
        accept=None if gate.is_calibrator else accept > 0.0,
        gate_metrics=gate_metrics,
        softmax_metrics=softmax_metrics[0] if with_softmax else None,
    )


class _BlockMeasurements(NamedTuple):
    """Columns, decisions and probabilities of one block of rows.

    Attributes
    ----------
    columns : array of shape (n_block_rows, n_columns)
        Score, predicted column, decision, and for each table of probabilities top label and losses.
    accept : array of bool of shape (n_block_rows,)
        Whether each row is accepted.
    tables : list of CheckedTable
        Probabilities of the gate and, if requested, the softmax.
    """

    columns: Float
    accept: Flags
    tables: list[CheckedTable]


def _measure_block(
    gate: Gate,
    with_softmax: bool,
    is_unvalidated: bool,
    block: Array,
    codes: Codes,
    groups: Any = None,
    buffer: Array | None = None,
) -> _BlockMeasurements:
    """Compute the decisions, top labels and losses of one block of rows.

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
    _BlockMeasurements
    """
    logits = gate.source.read(block) if is_unvalidated else block
    decision = gate.decide(Rows(logits), groups=groups)
    assert decision.probabilities is not None
    probability_tables = [checked_table(decision.probabilities, codes)]
    if with_softmax:
        # The softmax of validated logits is valid, so `checked_table` is not needed.
        softmax_probabilities = _SOFTMAX_MAP(logits)
        softmax_table = CheckedTable(
            full_table=softmax_probabilities,
            label_codes=codes,
            row_maxima=softmax_probabilities.max(axis=1),
        )
        probability_tables.append(softmax_table)
    # `_group_columns_by_table` depends on the order of the columns.
    columns: list[Any] = [decision.score, decision.predicted_codes, decision.accept]
    for probability_table in probability_tables:
        confidence, is_correct = probability_table.top_label()
        losses_by_metric = compute_row_losses(probability_table)
        columns += [confidence, is_correct, *losses_by_metric.values()]
    if buffer is not None:
        # The buffer is written last, because it may be the block of logits itself.
        buffer[...] = decision.probabilities
    return _BlockMeasurements(
        columns=np.stack(columns, axis=1).astype(np.float64, copy=False),
        accept=np.asarray(decision.accept, np.bool_),
        tables=probability_tables,
    )


class _BlockAccumulator:
    """Columns of the rows so far, and accumulators of the metrics of whole tables.

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
        self.table_accumulators: list[AccumulatorByMetric] = []
        for _ in range(n_tables):
            accumulator_by_metric = {}
            for metric in registry.list_evaluated_metrics(PROBABILITIES):
                if metric.make_accumulator is not None:
                    accumulator_by_metric[metric.name] = metric.make_accumulator(n_classes, n_bins)
            self.table_accumulators.append(accumulator_by_metric)

    def add(self, block: _BlockMeasurements) -> None:
        """Add the columns and the probability tables of one block."""
        self.columns.append(block.columns)
        for table, accumulator_by_metric in zip(block.tables, self.table_accumulators, strict=True):
            for accumulator in accumulator_by_metric.values():
                accumulator.add(table, block.accept)

    def merge(self, columns: Float, table_accumulators: list[AccumulatorByMetric]) -> None:
        """Add the result of another accumulator, for the rows that follow."""
        self.columns.append(columns)
        for accumulator_by_metric, other_accumulators in zip(
            self.table_accumulators, table_accumulators, strict=True
        ):
            for metric_name in accumulator_by_metric:
                accumulator_by_metric[metric_name] += other_accumulators[metric_name]

    def result(self) -> tuple[Float, list[AccumulatorByMetric]]:
        """Return the columns of all rows, and the accumulators of each table."""
        return np.concatenate(self.columns), self.table_accumulators


def _group_columns_by_table(
    columns: list[Float], table_accumulators: list[AccumulatorByMetric]
) -> Iterator[ProbabilityColumns]:
    """Yield the columns of each table of probabilities as named fields.

    Parameters
    ----------
    columns : list of arrays of shape (n_rows,)
        For one table after the other: confidence, correctness, and the losses of each metric.
    table_accumulators : list of dict of str to accumulator
        Accumulators of the other metrics of each table.

    Yields
    ------
    ProbabilityColumns
    """
    loss_names = [
        metric.name
        for metric in registry.list_evaluated_metrics(PROBABILITIES)
        if metric.is_mean_of_row_losses
    ]
    n_columns_per_table = _N_TOP_LABEL_COLUMNS + len(loss_names)
    table_starts = range(0, len(columns), n_columns_per_table)
    for start, accumulator_by_metric in zip(table_starts, table_accumulators, strict=True):
        confidence, correct, *loss_columns = columns[start : start + n_columns_per_table]
        losses_by_metric = dict(zip(loss_names, loss_columns, strict=True))
        yield ProbabilityColumns(
            TopLabel(confidence, correct), losses_by_metric, accumulators=accumulator_by_metric
        )


def make_lazy_softmax_table(rows: Rows, codes: Codes, top: TopLabel) -> CheckedTable:
    """Return a table with the softmax of the logits, computed when rows are read."""
    dtype = np.result_type(rows.table.dtype, np.float32)
    table: Any = ConvertedTable(rows.table, _SOFTMAX_MAP, dtype)
    return CheckedTable(table, codes, top.confidence)
