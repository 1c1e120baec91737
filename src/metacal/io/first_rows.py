"""First rows of a file of any format, used to guess the meaning of its columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from metacal.io.formats import FORMATS
from metacal.io.formats.first_rows import FirstRows
from metacal.io.input_paths import build_request_of_each_file, list_input_files
from metacal.io.predictions import read_predictions
from metacal.io.request import Request
from metacal.io.source_file import SourceFile, open_source

#: Maximum number of rows that are inspected.
_MAX_ROWS = 2000


def read_first_rows(path: str, format: str | None) -> FirstRows:
    """Read the first rows of a file of any format, or of the first of several files.

    Parameters
    ----------
    path : str
        File, folder or pattern to read.

    format : str or None
        File format, for example "csv". None if the file determines it.

    Returns
    -------
    FirstRows
    """
    requests = build_request_of_each_file(
        Request(path, format=format), list_input_files(path, FORMATS)
    )
    first_request = requests[0]
    with open_source(first_request) as source_file:
        file_format = FORMATS[source_file.suffix]
        if file_format.read_first_rows is None:
            return _read_first_rows_of_default_columns(source_file)
        first_rows = file_format.read_first_rows(source_file.request, _MAX_ROWS)
    description = first_rows.description
    if file_format.is_text and source_file.is_compressed:
        description = f"compressed {description}"
    if len(requests) > 1:
        description = f"{len(requests):,} files of {description}"
    return replace(first_rows, description=description)


def _read_first_rows_of_default_columns(source_file: SourceFile) -> FirstRows:
    """Read the first rows of the logits and labels under their default names."""
    predictions = read_predictions(source_file.request.path_to_open)
    first_columns = {"logits": np.asarray(predictions.table)[:_MAX_ROWS]}
    if predictions.labels is not None:
        first_columns["labels"] = predictions.labels[:_MAX_ROWS]
    contents = FORMATS[source_file.suffix].contents
    return FirstRows(f"{contents} ({source_file.suffix[1:]})", first_columns)
