"""BatchGate: a gate as a function from Arrow record batches to record batches, to be sent wherever
the rows are.

Dask, Ray, Spark, Polars and DuckDB all hand record batches to a Python function and take record
batches back. What travels to their workers is a description of the gate, never a table; each
process loads it once. pyarrow is imported inside the functions that need it.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.gate import Decision, Gate, Rejected
from metacal.gate.gate import gate_in
from metacal.io.column_selection import Picked
from metacal.io.formats.arrow import InMemory, layout_of, pick
from metacal.io.formats.arrow_columns import Layout, column_of, joined, pyarrow_for, table_of
from metacal.io.formats.arrow_metadata import stored_classes
from metacal.io.formats.arrow_writer import record_batch
from metacal.io.gate_predictions import order_of_classes
from metacal.io.request import ClassNames, Request
from metacal.rows import Rows
from metacal.rows.arrays import one_of

#: Gates that a process keeps, by the fingerprint of their file: a gate unpickled a thousand times
#: is loaded once.
_KEPT = 8
_gates: OrderedDict[str, Gate] = OrderedDict()
#: Bytes that a text in a group column may take before it is held for damage; a batch is in memory
#: already.
_ANY = 1 << 62


class BatchGate:
    """A fitted gate, applied to `pyarrow.RecordBatch`es; it can be pickled, and is small.

    Columns are found as `metacal apply` finds them in a Parquet file: one column `logits` of lists
    (list, large list or lists of a fixed size), else the columns `logits_…`, else those that bear
    the names of the classes. What comes out has the columns that `metacal apply` writes, bit for
    bit: id (if there are ids), prediction, answer, confidence, accept, score and probs; a
    calibrator that promises nothing gives prediction, confidence and probs.

    It works in one thread: engines run one function for each core.

    Parameters
    ----------
    gate : path, or a fitted estimator or Gate
        A path is sent as a path with the fingerprint of the file: workers read it where they are,
        and refuse another file of that name. Of anything else its gate is sent, as the text that
        `metacal.save` would write of it.
    logits_key, id_key, group_key : str, optional
        Other names for the column of lists (or the prefix of the columns), for the ids, and for the
        groups of a gate that has a threshold for each.
    keep : sequence of str
        Further columns to pass on as they are.
    rejected : "calibrated" or "uniform"
        Probabilities of rejected rows: calibrated too, or 1/K in every class.
    probabilities : bool
        Whether to give `probs`, K numbers a row; without them there is no confidence either, and
        the calibrator is not computed.
    fixed_size : bool
        Whether `probs` are lists of a fixed size, as `metacal apply` writes them, or plain lists.
    key : path or bytes, optional
        As in `metacal.load`: a file that is not signed with it is refused, here and before it is
        sent.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> gate = mc.BatchGate(cal, keep=["url"])
    >>> batch = pa.record_batch({"logits": data.logits[5000:5003].tolist(), "url": ["a", "b", "c"]})
    >>> found = gate(batch)
    >>> found.schema.names
    ['url', 'prediction', 'answer', 'confidence', 'accept', 'score', 'probs']
    >>> found["accept"].to_pylist() == cal.accepts(data.logits[5000:5003]).tolist()
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
        rejected: Rejected = "calibrated",
        probabilities: bool = True,
        fixed_size: bool = True,
        key: Any = None,
    ) -> None:
        from metacal.io.artifact.document import Content, text_that_loads
        from metacal.io.artifact.wrapping import read_file

        if isinstance(keep, str):
            raise InputError(f"keep must be a list of columns, such as keep=[{keep!r}].")
        one_of("rejected", rejected, "calibrated", "uniform")
        self.path = os.fspath(gate) if isinstance(gate, str | os.PathLike) else None
        self.name = self.path or "the gate"
        self.text = text_that_loads(Content(gate_in(gate))) if self.path is None else None
        raw = read_file(self.path) if self.path is not None else str(self.text).encode()
        self.fingerprint = hashlib.sha256(raw).hexdigest()
        self.logits_key, self.id_key, self.group_key, self.keep = (
            logits_key,
            id_key,
            group_key,
            tuple(keep),
        )
        self.rejected: Rejected = rejected
        self.probabilities, self.fixed_size = bool(probabilities), bool(fixed_size)
        own = _loaded(raw, self.fingerprint, self.name, key)
        if own.by_group and group_key is None:
            raise InputError(
                f"{self.name} has a threshold for each group of rows; name their column with"
                " group_key."
            )
        if group_key is not None and not own.by_group:
            raise InputError(f"{self.name} has no threshold by group; leave out group_key.")

    def __repr__(self) -> str:
        return f"BatchGate({self.name!r}, {self.fingerprint[:12]})"

    @property
    def gate(self) -> Gate:
        """The gate itself, loaded once in each process."""
        from metacal.io.artifact.wrapping import read_file

        if self.fingerprint in _gates:
            return _gates[self.fingerprint]
        raw = read_file(self.path) if self.path is not None else str(self.text).encode()
        if hashlib.sha256(raw).hexdigest() != self.fingerprint:
            raise InputError(
                f"{self.path}: this is not the file that was sent; it was written over, or differs"
                " here."
            )
        return _loaded(raw, self.fingerprint, self.name, None)

    def __call__(self, batch: Any) -> Any:
        """The decisions on the rows of a RecordBatch as a RecordBatch; on those of a Table as a
        Table.
        """
        from metacal.metrics.replicates import one_blas_thread

        pa = pyarrow_for("a record batch")
        with one_blas_thread():
            found = self._decided(pa, batch)
        return pa.Table.from_batches([found]) if isinstance(batch, pa.Table) else found

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Each batch in turn: what Spark's `mapInArrow` and readers of record batches want."""
        return map(self, batches)

    def schema(self, schema: Any) -> Any:
        """The schema of what comes out for batches of this one: what engines that plan ahead ask
        for.
        """
        pa = pyarrow_for("a record batch")
        return self(
            pa.record_batch([pa.array([], type=field.type) for field in schema], schema=schema)
        ).schema

    def _decided(self, pa: Any, batch: Any) -> Any:
        gate, own = self.gate, tuple(self.gate.classes.tolist())
        chosen = own if isinstance(own[0], str) else None
        request = Request(
            "the batch",
            gate.source.input,
            self.logits_key or gate.source.score_column,
            classes=chosen,
        )
        request = replace(request, id_key=self.id_key, group_key=self.group_key, keep=self.keep)
        picked = pick(request, batch.schema)
        layout = layout_of(picked, InMemory(batch), "the batch")
        if layout.width == 0 and not batch.num_rows:  # no list says how long it is
            layout = layout._replace(width=len(own))
        one = len(own) == 2 and layout.width is None and request.is_single_score(picked.table)
        if layout.n_classes != len(own) and not one:
            raise InputError(
                f"the batch has {layout.n_classes} columns of {gate.source.input} but {self.name}"
                f" was fitted on {len(own)}; give predictions of the same classifier."
            )
        named = None if one else picked.class_names
        names = named if layout.width is None else stored_classes(batch.schema, "the batch")
        decision = self._decision(batch, picked, layout, names)
        passed_on = {"id": picked.beside.get("ids"), **{name: name for name in picked.kept}}
        beside = {
            shown: joined(batch.column(name))
            for shown, name in passed_on.items()
            if name is not None
        }
        told = record_batch(
            pa,
            decided_columns(gate, decision),
            gate.classes.tolist() if gate.source.classes_given else names,
        )
        arrays = dict(zip(told.schema.names, told.columns, strict=True))
        if not self.fixed_size and "probs" in arrays:
            arrays["probs"] = arrays["probs"].cast(pa.list_(arrays["probs"].type.value_type))
        both = beside_results(beside, arrays)
        schema = pa.schema(
            [(name, array.type) for name, array in both.items()], metadata=told.schema.metadata
        )
        return pa.record_batch(list(both.values()), schema=schema)

    def _decision(
        self, batch: Any, picked: Picked, layout: Layout, names: ClassNames | None
    ) -> Any:
        """What the gate says of the rows; of none, what it would say of one, without it."""
        gate, n = self.gate, batch.num_rows
        order = order_of_classes(names, tuple(gate.classes.tolist()), "the batch", self.name)
        if n:
            table = table_of(batch, layout, "the batch", 0)
            rows = gate.source.read(
                table if order is None else np.ascontiguousarray(table[:, order]), by_rows=True
            )
        else:
            rows = np.zeros((1, gate.n_classes), dtype=layout.dtype)
        groups = None
        if self.group_key is not None and gate.thresholds is not None:
            groups = np.array(gate.thresholds.names[:1])
            if n:
                groups = column_of(batch.column(self.group_key), self.group_key, "the batch", _ANY)
        decision = gate.decide(
            Rows(rows), rejected=self.rejected, probabilities=self.probabilities, groups=groups
        )
        return decision if n else decision.none()


def _loaded(raw: bytes, fingerprint: str, name: str, key: Any) -> Gate:
    """The gate in the bytes of a file, kept for the next who asks."""
    from metacal.io.artifact.document import loaded
    from metacal.io.artifact.messages import naming
    from metacal.io.artifact.signature import read_key

    with naming(name):
        gate = loaded(raw, None if key is None else read_key(key))[0].gate
    if gate.kind != "logits":
        raise InputError(
            f"{name} is no gate on logits; a BatchGate reads one table of logits or probabilities."
        )
    while len(_gates) >= _KEPT:
        _gates.popitem(last=False)
    _gates[fingerprint] = gate
    return gate


def decided_columns(
    gate: Gate, decision: Decision, ids: NDArray[Any] | None = None
) -> dict[str, Any]:
    """Columns by name, `probs` being 2-D; a calibrator, which rejects nothing, has no answer,
    accept and score.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.gate import Table
    >>> from metacal.maps.temperature import TemperatureMap
    >>> gate = Gate.of(Table(TemperatureMap(1.0), np.arange(2)), 0.5)
    >>> list(decided_columns(gate, gate.decide(np.zeros((1, 2)))))
    ['prediction', 'answer', 'confidence', 'accept', 'score', 'probs']
    """
    label = decision.label
    if (
        label is not None and label.dtype.kind == "O"
    ):  # booleans and a third value: in a column 0, 1 and that
        label = label.astype(np.int64)
    named = {"id": ids, "prediction": label, **decision.columns, "probs": decision.probabilities}
    hidden = ("label", "answer", "accept", "score") if gate.is_calibrator else ("label",)
    return {
        name: column for name, column in named.items() if column is not None and name not in hidden
    }


def beside_results(kept: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """The results with what is kept before them, the id first; a name that both have is an
    error.
    """
    twice = [name for name in kept if name in results and name != "id"]
    if twice:
        raise InputError(
            f"the results have a column {twice[0]!r} of their own; give the one that is to be kept"
            " another name."
        )
    first = {name: results[name] for name in results if name == "id" and name not in kept}
    return {**first, **kept, **{name: column for name, column in results.items() if name != "id"}}
