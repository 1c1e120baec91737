"""One walk over labelled rows: what `evaluate` and the report measure, reduced where the rows are
read.

The table is reduced to a few numbers a row in strips: on threads, in processes, on a cluster. The
class-wise ECE comes from whole numbers per class and bin that are added up there. Only its interval
needs every entry for each resample, a table of probabilities in memory: on a cluster it has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.formulas import Array, Codes, Flags, Float
from metacal.gate import Gate, Table
from metacal.maps.temperature import TemperatureMap
from metacal.metrics import registry
from metacal.metrics.evaluation import RowMetrics, row_losses
from metacal.metrics.registry import PROBABILITIES
from metacal.metrics.toplabel import CheckedTable, TopLabel, checked_table
from metacal.rows import Rows
from metacal.rows.memory import give_back_freed_memory, keep_freed_memory
from metacal.rows.stored import ConvertedTable

#: Of each table: what a metric's `sums` makes, by its name.
Sums = list[dict[str, Any]]
_SOFTMAX = TemperatureMap(1.0)


def softmax_gate(n_classes: int) -> Gate:
    """The classifier's own softmax, which accepts every row."""
    return Gate.of(Table(_SOFTMAX, np.arange(n_classes)))


def room_for_table(table: Any, *, over: bool = False) -> Array:
    """Where the gate's probabilities go: in place of the logits where these are to be written over
    and can be.
    """
    if (
        over
        and type(table) is np.ndarray
        and table.flags.writeable
        and table.dtype in (np.float32, np.float64)
    ):
        return table
    return np.empty(table.shape, dtype=np.float64 if table.dtype == np.float64 else np.float32)


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """What one walk over labelled rows leaves of each: all that `evaluate` and the report are made
    of.

    Attributes
    ----------
    score, top : arrays
        The ranking score, and the column of the largest logit.
    accept : boolean array or None
        None where the gate is a calibrator alone.
    after, before : RowMetrics
        Of the gate's probabilities, 1/K where it rejects, and of the softmax of the logits where
        that was asked for.
    """

    score: Float
    top: Codes
    accept: Flags | None
    after: RowMetrics
    before: RowMetrics | None


def measured_rows(
    gate: Gate,
    rows: Rows,
    codes: Codes,
    n_bins: int,
    groups: Any = None,
    *,
    beside: bool,
    room: Array | None = None,
) -> MeasuredRows:
    """Score and map every row once, and reduce it to a few numbers where it is read.

    With `beside` the softmax of the logits is measured, too. `room` takes the gate's probabilities,
    for what needs all of them at once; it may be the table of logits itself.
    """
    keep_freed_memory()  # every block makes and frees the same arrays
    make = partial(_Gathered, rows.n_classes, n_bins, 2 if beside else 1)
    whole = make()
    by_row = np.asarray(groups) if gate.by_group else None
    try:
        for columns, sums in rows.gather(
            partial(_numbers, gate, beside, rows.unseen), make, codes, by_row, room
        ):
            whole.join(columns, sums)
    except InputError:
        if rows.unseen:
            gate.source.read(rows.table)  # says which row of which file it is
        raise
    collected, sums = whole.result()
    give_back_freed_memory(len(rows) * rows.n_classes)
    score, top, accept, *columns = (np.ascontiguousarray(column) for column in collected.T)
    after, *others = _metrics(columns, sums)
    if room is not None:
        after = replace(after, checked=CheckedTable(room, codes, after.top.confidence))
    accepted = None if gate.is_calibrator else accept > 0.0
    return MeasuredRows(score, top.astype(np.intp), accepted, after, others[0] if others else None)


def _numbers(
    gate: Gate,
    beside: bool,
    unseen: bool,
    block: Array,
    codes: Codes,
    groups: Any = None,
    room: Array | None = None,
) -> tuple[Float, Flags, list[CheckedTable]]:
    """The columns of a block of rows, which of them are accepted, and the probabilities."""
    logits = gate.source.read(block) if unseen else block
    decision = gate.decide(Rows(logits), rejected="uniform", groups=groups)
    columns: list[Any] = [decision.score, decision.top, decision.accept]
    assert decision.probabilities is not None
    tables = [checked_table(decision.probabilities, codes)]
    if beside:
        plain = _SOFTMAX(
            logits
        )  # ours, of rows that were looked over: probabilities by construction
        tables.append(CheckedTable(plain, codes, plain.max(axis=1)))
    for checked in tables:
        columns += [*checked.top_label(), *row_losses(checked).values()]
    if room is not None:
        room[...] = decision.probabilities  # last: it may be the block itself
    return (
        np.stack(columns, axis=1).astype(np.float64, copy=False),
        np.asarray(decision.accept, np.bool_),
        tables,
    )


class _Gathered:
    """The columns of some rows, and the sums of metrics of whole tables."""

    def __init__(self, n_classes: int, n_bins: int, n_tables: int) -> None:
        made = [metric for metric in registry.evaluated(PROBABILITIES) if metric.sums is not None]
        self.columns: list[Float] = []
        self.sums: Sums = [
            {one.name: one.sums(n_classes, n_bins) for one in made if one.sums}
            for _ in range(n_tables)
        ]

    def add(self, part: tuple[Float, Flags, list[CheckedTable]]) -> None:
        columns, accept, tables = part
        self.columns.append(columns)
        for checked, sums in zip(tables, self.sums, strict=True):
            for own in sums.values():
                own.add(checked, accept)

    def join(self, columns: Float, sums: Sums) -> None:
        """Take in what another has gathered of the rows that follow."""
        self.columns.append(columns)
        for own, others in zip(self.sums, sums, strict=True):
            for name in own:
                own[name] += others[name]

    def result(self) -> tuple[Float, Sums]:
        return np.concatenate(self.columns), self.sums


def _metrics(columns: list[Float], sums: Sums) -> Iterator[RowMetrics]:
    """The columns and sums of one table of probabilities after the other."""
    names = [
        metric.name for metric in registry.evaluated(PROBABILITIES) if metric.losses is not None
    ]
    width = 2 + len(names)
    for k, own in zip(range(0, len(columns), width), sums, strict=True):
        losses = dict(zip(names, columns[k + 2 : k + width], strict=True))
        yield RowMetrics(TopLabel(*columns[k : k + 2]), losses, sums=own)


def softmaxes(rows: Rows, codes: Codes, top: TopLabel) -> CheckedTable:
    """The softmax of the logits as a table, whose rows are computed when they are asked for."""
    table: Any = ConvertedTable(rows.table, _SOFTMAX, np.result_type(rows.table.dtype, np.float32))
    return CheckedTable(table, codes, top.confidence)
