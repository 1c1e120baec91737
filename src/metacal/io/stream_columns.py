"""Columns of a line of a stream: their classes, their cells, and the start of the line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def has_same_classes(
    column_names: Sequence[str],
    *,
    previous_column_names: Sequence[str],
    class_names: Sequence[str | int],
) -> bool:
    """Check whether the columns of a row match earlier columns or the classes.

    A header without such columns belongs to a file of late labels and is accepted.
    """
    if not column_names or not previous_column_names:
        return True
    if set(column_names) == set(previous_column_names):
        return True
    if len(class_names) != len(column_names):
        return False
    return all(
        column_name.endswith(str(class_name))
        for column_name, class_name in zip(column_names, class_names, strict=True)
    )


def map_names_to_cells(header: list[str], cells: list[str]) -> dict[str, Any]:
    """Return the cells of a line keyed by column. An empty cell is None."""
    return {name: cell or None for name, cell in zip(header, cells)}


def optional_cell(cells: Mapping[str, Any], name: str | None) -> Any:
    """Return the cell of a column, or None if the column or its name is missing."""
    if name is None:
        return None
    return cells.get(name)


def strip_line_start(line_number: int, content: bytes) -> bytes:
    """Remove the byte order mark and leading zero bytes from a line.

    Leading zeros occur if a writer keeps its old offset in a file that was truncated.
    """
    if line_number == 1:
        content = content.removeprefix(BYTE_ORDER_MARK)
    return content.lstrip(b"\0")
