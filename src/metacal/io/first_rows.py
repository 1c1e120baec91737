"""The first rows of a file, whatever kind it is, by column: enough to see what it holds."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.io.columns import Request
from metacal.io.formats import FORMATS
from metacal.io.formats.delimited import delimiter_of, is_number
from metacal.io.opening import decoding
from metacal.io.reading import opened

#: Rows that are looked at.
_ROWS = 2000


def first_rows(path: str, format: str | None) -> tuple[str, dict[str, NDArray[Any]]]:
    """What the file is, in words, and its first rows by column."""
    with ExitStack() as stack:
        request, ending, how = stack.enter_context(opened(Request(path), format))
        source = request.source
        if FORMATS[ending].begins != ():
            stack.enter_context(decoding(path))
        if ending in (".csv", ".tsv"):
            try:
                with open(source, encoding="utf-8-sig", newline="") as file:
                    mark = delimiter_of(file, "\t" if ending == ".tsv" else ",")
                    rows = list(islice((row for row in csv.reader(file, delimiter=mark) if row), _ROWS + 1))
            except UnicodeDecodeError:
                raise InputError(f"{path}: this is not UTF-8 text; save it as UTF-8.") from None
            if all(map(is_number, rows[0])) and rows[0] != [str(k) for k in range(len(rows[0]))]:
                raise InputError(
                    f"{path}:1: the first line holds numbers; put a line with the names of the columns first."
                )
            cells = zip(*rows[1:]) if len(rows) > 1 else [() for _ in rows[0]]
            columns = {name.strip(): _array(list(values)) for name, values in zip(rows[0], cells)}
            return f"{how}text, columns separated by {_SEPARATORS[mark]}", columns
        if ending in (".jsonl", ".ndjson"):
            with open(source, encoding="utf-8-sig", errors="replace") as file:
                lines = [json.loads(line) for line in islice((line for line in file if line.strip()), _ROWS)]
            flat = [dict(_entries(line)) for line in lines if isinstance(line, dict)]
            names = dict.fromkeys(name for line in flat for name in line)
            return f"{how}JSON, an object for each row", {n: _array([line.get(n) for line in flat]) for n in names}
        if ending == ".npz":
            with np.load(source, allow_pickle=False) as held:
                return "NumPy arrays", {name: held[name][:_ROWS] for name in held.files if held[name].ndim}
        if ending == ".npy":
            array = np.load(source, mmap_mode="r", allow_pickle=False)[:_ROWS]
            names = array.dtype.names
            return "a NumPy array", {"logits": array} if names is None else {name: array[name] for name in names}
        return _arrow(source, ending)


_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def _arrow(source: str, ending: str) -> tuple[str, dict[str, NDArray[Any]]]:
    if ending in (".parquet", ".pq"):
        import pyarrow.parquet as parquet

        batch = next(parquet.ParquetFile(source).iter_batches(batch_size=_ROWS))
        kind = "a Parquet file"
    elif ending in (".arrow", ".arrows", ".feather"):
        import pyarrow.feather as feather

        batch, kind = feather.read_table(source).slice(0, _ROWS), "an Arrow file"
    else:
        from metacal.io.predictions import read_predictions

        found = read_predictions(source)
        columns = {"logits": np.asarray(found.table)[:_ROWS]}
        return f"tensors ({ending[1:]})", columns | ({} if found.labels is None else {"labels": found.labels[:_ROWS]})
    return kind, {name: _array(column.to_pylist()) for name, column in zip(batch.schema.names, batch.columns)}


def _entries(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of an object, those of objects inside of it by their path."""
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _entries(entry, f"{before}{name}.")
        else:
            yield f"{before}{name}", entry


def _listed(text: str) -> Any:
    """The list that a cell holds, as JSON or as NumPy prints it; the cell itself where it holds none."""
    try:
        return [float(part) for part in text.strip().strip("[]").replace(",", " ").split()]
    except ValueError:
        return text


def _array(values: list[Any]) -> NDArray[Any]:
    """Cells as whole numbers, numbers, rows of numbers, or text."""
    cells = [_listed(value) if isinstance(value, str) and value.strip()[:1] == "[" else value for value in values]
    present = [cell for cell in cells if cell is not None and cell != ""]
    whole = not any(isinstance(cell, float | list) for cell in present) and len(present) == len(cells)
    for kind in (np.int64, np.float64) if whole else (np.float64,):
        try:
            return np.array([np.nan if cell in (None, "") else cell for cell in cells], dtype=kind)
        except (ValueError, TypeError, OverflowError):
            continue
    return np.array(["" if cell is None else str(cell) for cell in cells])
