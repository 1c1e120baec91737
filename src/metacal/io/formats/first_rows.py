"""First rows of a file, and the conversion of their cells to arrays.

The module of a format reads its first rows, so that the meaning of the columns can be guessed
without reading the whole file.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal.io.formats.text_cells import parse_localized_numbers

if TYPE_CHECKING:
    from metacal.io.formats.arrow import BatchSource


@dataclass(frozen=True)
class FirstRows:
    """First rows of a file.

    Attributes
    ----------
    description : str
        Kind of the file in words.

    columns : dict of str to array
        First rows of each column.
    """

    description: str
    columns: dict[str, NDArray[Any]]


def read_first_record_batch(file: BatchSource, max_rows: int) -> FirstRows:
    """Read the first record batch of a Parquet or Arrow file."""
    columns = {}
    first_batch = next(iter(file.iterate_batches(file.schema.names, max_rows)), None)
    if first_batch is not None:
        for name, cells in first_batch.slice(0, max_rows).to_pydict().items():
            columns[name] = cells_to_array(cells)
    return FirstRows(file.kind, columns)


def cells_to_array(cells: list[Any]) -> NDArray[Any]:
    """Convert cells to an array of integers, floats, rows of floats, or texts.

    Missing cells become NaN, or an empty text.

    Examples
    --------
    >>> cells_to_array(["1", "2"]), cells_to_array(["1", ""]), cells_to_array(["a", None])
    (array([1, 2]), array([ 1., nan]), array(['a', ''], dtype='<U1'))
    """
    parsed_cells = [_parse_list(cell) for cell in cells]
    has_missing = any(_is_missing(value) for value in parsed_cells)
    has_float_or_list = any(isinstance(value, float | list) for value in parsed_cells)
    number_types: list[Any] = [np.float64]
    if not has_float_or_list and not has_missing:
        number_types = [np.int64, np.float64]

    numbers = [np.nan if _is_missing(value) else value for value in parsed_cells]
    for number_type in number_types:
        with suppress(ValueError, TypeError, OverflowError):
            return np.array(numbers, dtype=number_type)
    texts = ["" if value is None else str(value) for value in parsed_cells]
    has_only_texts = all(isinstance(value, str) for value in parsed_cells if value is not None)
    if has_only_texts:
        localized_numbers = parse_localized_numbers(texts)
        if localized_numbers is not None:
            return localized_numbers
    return np.array(texts)


def _is_missing(value: Any) -> bool:
    """Check whether a cell is empty."""
    return value is None or value == ""


def _parse_list(cell: Any) -> Any:
    """Parse a cell that contains a list in the notation of JSON or NumPy.

    Other cells are returned unchanged.
    """
    if not isinstance(cell, str) or not cell.strip().startswith("["):
        return cell
    number_texts = cell.strip().strip("[]").replace(",", " ").split()
    try:
        return [float(number_text) for number_text in number_texts]
    except ValueError:
        return cell
