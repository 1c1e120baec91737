"""Read Arrow files: Feather (version 2), the Arrow file format and the Arrow stream format, whichever the suffix."""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.io.columnar import column_of, layout, pick, pyarrow_for, refuse_nulls, table_of
from metacal.io.opening import damaged
from metacal.io.request import Found, Request, check_class_order


def read_arrow(request: Request) -> Found:
    """Read table, labels and ids through a memory map."""
    pa = pyarrow_for(request.path)
    try:
        held = _table(pa, request.source)
        held.validate()
    except (pa.ArrowException, OSError) as error:
        raise InputError(damaged(request.path, error)) from error
    found = layout(request, held.schema, _first_width(request, held))
    table = np.empty((held.num_rows, found.n_classes), dtype=found.dtype)
    start = 0
    for batch in held.select(list(found.columns)).to_batches():
        table[start : start + batch.num_rows] = table_of(batch, found, request.path, start)
        start += batch.num_rows
    check_class_order(request, found.names if found.width is not None else None)
    labels, ids = (
        None if name is None else column_of(held.column(name), name, request.path) for name in (found.label, found.ids)
    )
    return Found(table, labels, ids, found.names, found.unused)


def _table(pa: Any, source: str) -> Any:
    file = pa.memory_map(source)
    try:
        return pa.ipc.open_file(file).read_all()
    except pa.ArrowInvalid:
        # The stream format has no footer, and no magic bytes either; .arrow files are found in both.
        file.seek(0)
        return pa.ipc.open_stream(file).read_all()


def _first_width(request: Request, held: Any) -> int:
    picked, shown = pick(request, held.schema)
    if picked.names is not None or held.num_rows == 0:
        return 0
    name = shown[picked.columns[0]]
    first = held.column(name).slice(0, 1)
    refuse_nulls(first, name, request.path, 0)
    return len(first[0])
