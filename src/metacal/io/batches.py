"""Application of a gate to Arrow record batches, for use with data engines.

Dask, Ray, Spark, Polars and DuckDB pass record batches to a Python function and take record batches
back. A `BatchGate` sends only a description of the gate to their workers. Each process loads the
gate once. pyarrow is imported inside the functions that need it.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import format_names
from metacal.errors import ClassMismatchError, FileReadError, GroupsError, InputError
from metacal.gate import Decision, Gate, Rejected
from metacal.gate.find_gate import find_gate
from metacal.io.column_selection import ColumnSelection
from metacal.io.decision_columns import build_decision_columns, merge_result_columns
from metacal.io.formats.arrow import InMemoryBatches, determine_table_layout, select_arrow_columns
from metacal.io.formats.arrow_columns import (
    TableLayout,
    column_to_array,
    combine_chunks,
    import_pyarrow,
    table_to_array,
)
from metacal.io.formats.arrow_metadata import read_class_names
from metacal.io.formats.arrow_writer import build_record_batch
from metacal.io.gate_predictions import add_column_names_of_gate, find_required_column_order
from metacal.io.request import ClassNames, Request
from metacal.rows import Rows

#: Maximum number of gates that a process keeps in memory.
_MAX_CACHED_GATES = 8
#: Loaded gates, keyed by the fingerprint of their file, the least recently loaded first.
_gate_cache: OrderedDict[str, Gate] = OrderedDict()
#: Maximum size in bytes of the texts in a column of groups.
_NO_SIZE_LIMIT = 1 << 62
#: Name of a batch in messages.
_BATCH_NAME = "the batch"


@dataclass(frozen=True)
class _BatchTable:
    """Columns of a record batch that hold the table.

    Attributes
    ----------
    selection : ColumnSelection
        Names of the selected columns.

    layout : Layout
        Layout of the table.

    class_names : tuple or None
        Class names of the table, if the batch has them.

    column_order : list of int or None
        Column of each class of the gate. None if the columns are in the order of the gate.
    """

    selection: ColumnSelection
    layout: TableLayout
    class_names: ClassNames | None
    column_order: list[int] | None


class BatchGate:
    """Fitted gate as a function of `pyarrow.RecordBatch`.

    It can be pickled, and is small.

    Columns are found as in a Parquet file: one column `logits` of lists (list, large list, or list
    of a fixed size), or else the columns that begin with `logits_`, or else the columns that have
    the names of the classes.

    The result has the same columns as the output of `metacal apply`, with the same bits: id (if the
    batch has ids), prediction, answer, confidence, accept, score and probs. The result of a
    calibrator has only prediction, confidence and probs.

    A batch is processed in one thread, because engines run one function per core.

    Parameters
    ----------
    gate : path, fitted estimator or Gate
        Gate to apply. If it is a path, workers receive the path and the fingerprint of the file.
        They read the file themselves, and raise an error if it is another file. Otherwise workers
        receive the text that `metacal.save` would write.

    logits_key : str, optional
        Name of the column of lists, or prefix of the class columns.

    id_key : str, optional
        Name of the ids.

    group_key : str, optional
        Name of the groups, for a gate with one threshold per group.

    keep : sequence of str, default=()
        Other columns to copy to the result.

    rejected : {"calibrated", "uniform"} or None, default=None
        Probabilities of rejected rows: calibrated too, or 1/K in every class as in the paper. None
        is "calibrated", and "uniform" for the rules of `metacal.paper`.

    probabilities : bool, default=True
        Whether to return `probs`, with K numbers per row. Without them there is no confidence
        either, and the calibrator is not computed.

    fixed_size : bool, default=True
        Whether `probs` are lists of a fixed size, as `metacal apply` writes them, or plain lists.

    key : path or bytes, optional
        Signature key, as in `metacal.load`. A file that is not signed with it is rejected.

    See Also
    --------
    apply : Apply a gate to files.
    load_gate : Load a saved gate as a frozen value.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> gate = mc.BatchGate(cal, keep=["url"])
    >>> batch = pa.record_batch({"logits": data.logits[5000:5003].tolist(), "url": ["a", "b", "c"]})
    >>> result = gate(batch)
    >>> result.schema.names
    ['url', 'prediction', 'answer', 'confidence', 'accept', 'score', 'probs']
    >>> result["accept"].to_pylist() == cal.accepts(data.logits[5000:5003]).tolist()
    True
    """

    def __init__(
        self,
        gate: Any,
        *,
        logits_key: str | None = None,
        id_key: str | None = None,
        group_key: str | None = None,
        keep: Sequence[str] = (),
        rejected: Rejected | None = None,
        probabilities: bool = True,
        fixed_size: bool = True,
        key: Any = None,
    ) -> None:
        from metacal.io.artifact.document import SavedContent, build_verified_text

        if isinstance(keep, str):
            raise InputError(f"keep must be a list of columns, for example keep=[{keep!r}].")
        self.path: str | None = None
        self.text: str | None = None
        if isinstance(gate, str | os.PathLike):
            self.path = os.fspath(gate)
        else:
            self.text = build_verified_text(SavedContent(find_gate(gate)))
        self.name = self.path or "the gate"
        content = self._read_content()
        self.fingerprint = hashlib.sha256(content).hexdigest()
        self.logits_key = logits_key
        self.id_key = id_key
        self.keep = tuple(keep)
        self.probabilities = bool(probabilities)
        self.fixed_size = bool(fixed_size)

        loaded_gate = _load_and_cache_gate(content, self.fingerprint, self.name, key)
        self.rejected = loaded_gate.choose_rejected(rejected)
        self.group_key = group_key or loaded_gate.file_layout.group_key
        if loaded_gate.has_group_thresholds and self.group_key is None:
            raise GroupsError(
                f"{self.name} has one threshold for each group of rows. Name the column of"
                " groups with group_key."
            )
        if group_key is not None and not loaded_gate.has_group_thresholds:
            raise GroupsError(
                f"{self.name} has the same threshold for all rows, so group_key has no"
                " effect. Leave out group_key."
            )

    def __repr__(self) -> str:
        return f"BatchGate({self.name!r}, {self.fingerprint[:12]})"

    @property
    def gate(self) -> Gate:
        """Fitted gate, loaded once per process."""
        if self.fingerprint in _gate_cache:
            return _gate_cache[self.fingerprint]
        content = self._read_content()
        if hashlib.sha256(content).hexdigest() != self.fingerprint:
            raise FileReadError(
                f"{self.path}: the file differs from the gate that was sent to this machine. Copy"
                " the same file to every machine, and do not overwrite it."
            )
        # The signature was verified when this BatchGate was made, and the content is the same.
        return _load_and_cache_gate(content, self.fingerprint, self.name, None)

    def __call__(self, batch: Any) -> Any:
        """Return the decisions of the gate for a RecordBatch or Table, in the same type."""
        from metacal.metrics.replicates import one_blas_thread

        pa = import_pyarrow("a record batch")
        with one_blas_thread():
            result_batch = self._apply_to_batch(pa, batch)
        if isinstance(batch, pa.Table):
            return pa.Table.from_batches([result_batch])
        return result_batch

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the decisions on each batch, as `mapInArrow` of Spark requires."""
        return map(self, batches)

    def schema(self, schema: Any) -> Any:
        """Return the schema of the result for batches of the given schema."""
        pa = import_pyarrow("a record batch")
        empty_columns = [pa.array([], type=field.type) for field in schema]
        empty_batch = pa.record_batch(empty_columns, schema=schema)
        return self(empty_batch).schema

    def _read_content(self) -> bytes:
        """Return the content of the saved file of the gate."""
        from metacal.io.artifact.wrapping import read_file

        if self.path is None:
            return str(self.text).encode()
        return read_file(self.path)

    def _apply_to_batch(self, pa: Any, batch: Any) -> Any:
        """Apply the gate to a record batch, and return the record batch of results."""
        gate = self.gate
        batch_table = self._select_table(batch)
        decision = self._decide(batch, batch_table)

        class_names: Sequence[str | int] | None = batch_table.class_names
        gate_has_class_names = gate.source.classes_given
        if gate_has_class_names:
            class_names = gate.classes.tolist()
        result_batch = build_record_batch(pa, build_decision_columns(gate, decision), class_names)
        result_columns = dict(zip(result_batch.schema.names, result_batch.columns, strict=True))
        if "probs" in result_columns and not self.fixed_size:
            result_columns["probs"] = _cast_to_variable_size_lists(pa, result_columns["probs"])

        kept_columns = _select_kept_columns(batch, batch_table.selection)
        merged_columns = merge_result_columns(kept_columns, result_columns)
        schema = pa.schema(
            [(name, column.type) for name, column in merged_columns.items()],
            metadata=result_batch.schema.metadata,
        )
        return pa.record_batch(list(merged_columns.values()), schema=schema)

    def _select_table(self, batch: Any) -> _BatchTable:
        """Select the columns of a batch and check that they have the classes of the gate."""
        gate = self.gate
        gate_classes = tuple(gate.classes.tolist())
        n_classes = len(gate_classes)
        request = Request(
            _BATCH_NAME,
            input=gate.logits_source.input,
            logits_key=self.logits_key,
            classes=gate_classes if isinstance(gate_classes[0], str) else None,
            id_key=self.id_key,
            group_key=self.group_key,
            kept_names=self.keep,
        )
        request = add_column_names_of_gate(request, gate, self.name)
        selection = select_arrow_columns(request, batch.schema)
        layout = determine_table_layout(selection, InMemoryBatches(batch), _BATCH_NAME)
        if layout.list_size == 0 and batch.num_rows == 0:
            # The length of the lists is unknown if the batch has no rows.
            layout = replace(layout, list_size=n_classes)

        has_class_columns = not layout.has_list_column
        is_single_score = (
            has_class_columns
            and n_classes == 2
            and request.accepts_as_single_score(selection.table_column_names)
        )
        if layout.n_classes != n_classes and not is_single_score:
            raise ClassMismatchError(
                f"{self.name} was fitted on {n_classes} classes ({format_names(gate_classes)}),"
                f" but the batch has {layout.n_classes} columns of {gate.logits_source.input}."
            )
        class_names = None
        if not has_class_columns:
            class_names = read_class_names(batch.schema, _BATCH_NAME)
        elif not is_single_score:
            class_names = selection.class_names
        return _BatchTable(
            selection=selection,
            layout=layout,
            class_names=class_names,
            column_order=find_required_column_order(
                class_names, gate_classes, _BATCH_NAME, self.name
            ),
        )

    def _decide(self, batch: Any, batch_table: _BatchTable) -> Decision:
        """Return the decision of the gate on the rows of a batch.

        An empty batch gets the decision on one row of zeros, without that row. This way the columns
        have the right types.
        """
        gate = self.gate
        is_empty = batch.num_rows == 0
        if is_empty:
            logits = np.zeros((1, gate.n_classes), dtype=batch_table.layout.dtype)
        else:
            logits = self._read_logits(batch, batch_table)
        decision = gate.decide(
            Rows(logits),
            rejected=self.rejected,
            probabilities=self.probabilities,
            groups=self._read_groups(batch),
        )
        if is_empty:
            return decision.without_rows()
        return decision

    def _read_logits(self, batch: Any, batch_table: _BatchTable) -> Any:
        """Return the validated logits of a batch, in the column order of the gate."""
        table = table_to_array(batch, batch_table.layout, _BATCH_NAME, first_row=0)
        if batch_table.column_order is not None:
            table = np.ascontiguousarray(table[:, batch_table.column_order])
        return self.gate.source.read(table, convert_lazily=True)

    def _read_groups(self, batch: Any) -> NDArray[Any] | None:
        """Return the group of each row, or one known group if the batch is empty."""
        thresholds = self.gate.subgroup_thresholds
        if self.group_key is None or thresholds is None:
            return None
        if batch.num_rows == 0:
            return np.array(thresholds.subgroup_names[:1])
        group_column = batch.column(self.group_key)
        return column_to_array(group_column, self.group_key, _BATCH_NAME, _NO_SIZE_LIMIT)


def _select_kept_columns(batch: Any, selection: ColumnSelection) -> dict[str, Any]:
    """Return the ids and kept columns of a batch, keyed by name in the result."""
    kept_columns = {}
    id_name = selection.column_of_role.get("ids")
    if id_name is not None:
        kept_columns["id"] = combine_chunks(batch.column(id_name))
    for name in selection.kept_names:
        kept_columns[name] = combine_chunks(batch.column(name))
    return kept_columns


def _load_and_cache_gate(content: bytes, fingerprint: str, name: str, key: Any) -> Gate:
    """Load a gate and store it in the cache.

    Parameters
    ----------
    content : bytes
        Content of the artifact.

    fingerprint : str
        Fingerprint of the content.

    name : str
        Name of the gate in messages.

    key : path, bytes or None
        Signature key.

    Returns
    -------
    Gate

    Raises
    ------
    InputError
        If it is not a gate on logits.
    """
    from metacal.io.artifact.document import load_bytes
    from metacal.io.artifact.messages import prefix_errors_with
    from metacal.io.artifact.signature import read_key

    with prefix_errors_with(name):
        signature_key = None if key is None else read_key(key)
        saved_content, _ = load_bytes(content, signature_key)
    gate = saved_content.gate
    if not gate.is_logits_gate:
        raise InputError(
            f"A BatchGate requires a gate on one table of logits or probabilities, but {name}"
            " holds another gate."
        )
    while len(_gate_cache) >= _MAX_CACHED_GATES:
        _gate_cache.popitem(last=False)
    _gate_cache[fingerprint] = gate
    return gate


def _cast_to_variable_size_lists(pa: Any, fixed_size_lists: Any) -> Any:
    """Convert an Arrow array of lists of a fixed size to the type `list`."""
    return fixed_size_lists.cast(pa.list_(fixed_size_lists.type.value_type))
