"""Writer of JSON Lines."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.io.formats.text_writer import TextWriter


class JsonLinesWriter(TextWriter):
    """Writer of JSON Lines.

    A 2-D array `probs` becomes a list. If there are class names, it becomes one entry per class,
    such as `probs_cat`, as in a csv file. The output is strict JSON: a number that is not finite
    becomes null.
    """

    def write_rows(self, columns: dict[str, NDArray[Any]]) -> None:
        """Write one line per row."""
        rows = zip(*map(_convert_to_json_values, columns.values()))
        self.file.writelines(
            json.dumps(dict(zip(columns, row)), allow_nan=False) + "\n" for row in rows
        )

    def split_columns(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Split 2-D arrays into one column per class if there are class names."""
        if self.class_names is None:
            return columns
        return super().split_columns(columns)


def _convert_to_json_values(values: NDArray[Any]) -> list[Any]:
    """Convert an array to JSON values, with None for numbers that are not finite."""
    if values.ndim == 2:
        flat_values = np.array(_convert_to_json_values(values.ravel()), dtype=object)
        return flat_values.reshape(values.shape).tolist()
    json_values: list[Any] = values.tolist()
    if values.dtype.kind != "f":
        return json_values
    if values.dtype.itemsize < 8:
        # A conversion to float64 would turn 0.1 into 0.10000000149011612.
        json_values = [float(str(value)) for value in values]
    if np.isfinite(values).all():
        return json_values
    return [value if math.isfinite(value) else None for value in json_values]
