"""The first rows of a file, whatever kind it is, by column: enough to see what it holds."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.io.formats.delimited import header_of, text_in
from metacal.io.formats.feather import ArrowFile
from metacal.io.formats.jsonl import objects_in
from metacal.io.formats.parquet import ParquetFile
from metacal.io.predictions import read_predictions
from metacal.io.reading import opened
from metacal.io.request import Request

#: Rows that are looked at.
_ROWS = 2000


def first_rows(path: str, format: str | None) -> tuple[str, dict[str, NDArray[Any]]]:
    """What the file is, in words, and its first rows by column."""
    with opened(Request(path, format=format)) as (request, ending, how):
        source = request.source
        if ending in (".csv", ".tsv"):
            with text_in(path, source) as file:
                header, _, mark = header_of(path, file, "\t" if ending == ".tsv" else ",")
                rows = list(islice((row for row in csv.reader(file, delimiter=mark) if row), _ROWS))
            columns = {name: _array(list(values)) for name, values in zip(header, zip(*rows))}
            return f"{how}text, columns separated by {_SEPARATORS[mark]}", columns
        if ending in (".jsonl", ".ndjson"):
            with open(source, "rb") as file:
                flat = [dict(_entries(row)) for _, row in islice(objects_in(path, file), _ROWS)]
            names = dict.fromkeys(name for line in flat for name in line)
            return f"{how}JSON, an object for each row", {
                n: _array([line.get(n) for line in flat]) for n in names
            }
        if ending == ".npz":
            with np.load(source, allow_pickle=False) as held:
                return "NumPy arrays", {
                    name: held[name][:_ROWS] for name in held.files if held[name].ndim
                }
        if ending == ".npy":
            array = np.load(source, mmap_mode="r", allow_pickle=False)[:_ROWS]
            names = array.dtype.names
            return "a NumPy array", {"logits": array} if names is None else {
                name: array[name] for name in names
            }
        if ending in (".safetensors", ".pt", ".pth"):
            found = read_predictions(source)
            columns = {"logits": np.asarray(found.table)[:_ROWS]}
            columns |= {} if found.labels is None else {"labels": found.labels[:_ROWS]}
            return f"tensors ({ending[1:]})", columns
        held = (ParquetFile if ending in (".parquet", ".pq") else ArrowFile)(request)
        batch = next(iter(held.batches(held.schema.names, _ROWS)), None)
        first = {} if batch is None else batch.slice(0, _ROWS).to_pydict()
        return held.kind, {name: _array(values) for name, values in first.items()}


_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def _entries(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of an object, those of objects inside of it by their path."""
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _entries(entry, f"{before}{name}.")
        else:
            yield f"{before}{name}", entry


def _listed(text: str) -> Any:
    """The list that a cell holds, as JSON or as NumPy prints it; the cell itself where it holds
    none.
    """
    try:
        return [float(part) for part in text.strip().strip("[]").replace(",", " ").split()]
    except ValueError:
        return text


def _array(values: list[Any]) -> NDArray[Any]:
    """Cells as whole numbers, numbers, rows of numbers, or text."""
    cells = [
        _listed(value) if isinstance(value, str) and value.strip()[:1] == "[" else value
        for value in values
    ]
    present = [cell for cell in cells if cell is not None and cell != ""]
    whole = not any(isinstance(cell, float | list) for cell in present) and len(present) == len(
        cells
    )
    for kind in (np.int64, np.float64) if whole else (np.float64,):
        with suppress(ValueError, TypeError, OverflowError):
            return np.array([np.nan if cell in (None, "") else cell for cell in cells], dtype=kind)
    return np.array(["" if cell is None else str(cell) for cell in cells])
