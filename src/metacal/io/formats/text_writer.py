"""Writers of csv and tsv files, and the base of all text writers."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import FileContentError
from metacal.io.formats.text_cells import escape_formula
from metacal.io.request import ClassNames

# Number of cells that are converted to text at a time.
_BLOCK_CELLS = 1 << 17


class TextWriter:
    """Base class of the writers of text formats.

    Parameters
    ----------
    target : Path or text stream
        File to write. A stream stays open when the writer is closed.

    class_names : tuple of str or int, or None
        Class names, used to name the columns of a 2-D array.

    n_rows : int
        Ignored; text files need not know the number of rows in advance.

    compress : bool
        Ignored; text files are not compressed.
    """

    def __init__(
        self, target: Path | IO[str], class_names: ClassNames | None, n_rows: int, compress: bool
    ) -> None:
        self.class_names = class_names
        self.has_written = False
        self.owns_file = isinstance(target, Path)
        if isinstance(target, Path):
            self.file: IO[str] = target.open("w", encoding="utf-8", newline="")
        else:
            self.file = target

    def write(self, columns: dict[str, NDArray[Any]]) -> None:
        """Append a block of rows."""
        columns = self.split_columns(columns)
        n_rows = len(next(iter(columns.values())))
        block_rows = max(1, _BLOCK_CELLS // len(columns))
        # A block without rows is written as well, because it may need a header.
        for start in range(0, max(1, n_rows), block_rows):
            stop = start + block_rows
            self.write_rows({name: values[start:stop] for name, values in columns.items()})
            self.has_written = True

    def write_rows(self, columns: dict[str, NDArray[Any]]) -> None:
        """Format a small number of rows and write them to the file."""
        raise NotImplementedError

    def close(self) -> None:
        """Flush the file, and close it unless it was passed as a stream."""
        self.file.flush()
        if self.owns_file:
            self.file.close()

    def split_columns(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Split 2-D arrays into one column per class.

        Parameters
        ----------
        columns : dict of str to array of shape (n_rows,) or (n_rows, n_classes)
            Columns by name.

        Returns
        -------
        dict of str to array of shape (n_rows,)
            A 2-D array `probs` becomes `probs_cat`, ... if there are class names, and `probs_0`,
            ... otherwise.

        Raises
        ------
        InputError
            If two columns would have the same name.
        """
        columns_1d: dict[str, NDArray[Any]] = {}
        for name, array in columns.items():
            if array.ndim == 1:
                column_names = [name]
            else:
                class_names = self.class_names or range(array.shape[1])
                column_names = [f"{name}_{class_name}" for class_name in class_names]
            for column_name, values in zip(column_names, np.atleast_2d(array.T)):
                if column_name in columns_1d:
                    raise FileContentError(
                        f"Two columns would have the name {column_name!r}. Rename one of them."
                    )
                columns_1d[column_name] = values
        return columns_1d


class DelimitedWriter(TextWriter):
    """Writer of csv files with a header, in which formulas are escaped."""

    delimiter = ","

    def write_rows(self, columns: dict[str, NDArray[Any]]) -> None:
        """Write rows, and the header before the first ones."""
        writer = csv.writer(self.file, delimiter=self.delimiter, lineterminator="\n")
        if not self.has_written:
            writer.writerow(map(escape_formula, columns))
        writer.writerows(zip(*map(_convert_to_csv_values, columns.values())))


class TsvWriter(DelimitedWriter):
    """Writer of tab-separated files with a header, in which formulas are escaped."""

    delimiter = "\t"


def _convert_to_csv_values(values: NDArray[Any]) -> list[Any]:
    """Convert a column to values that `csv.writer` formats as required."""
    dtype_kind = values.dtype.kind
    if dtype_kind == "b":
        return ["true" if value else "false" for value in values]
    if dtype_kind == "f" and values.dtype.itemsize < 8:
        # A conversion to float64 would turn 0.1 into 0.10000000149011612.
        return list(map(str, values))
    if dtype_kind in "UO":
        return list(map(escape_formula, values.tolist()))
    numbers: list[Any] = values.tolist()
    return numbers
