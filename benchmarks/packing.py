"""Pack a table of logits as the sets that ship with metacal are; `metacal.datasets.packing` says
how, and reads it.
"""

from __future__ import annotations

from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Packed(NamedTuple):
    """A packed table, array by array as `metacal.datasets.packing` names them."""

    top: NDArray[np.float32]
    second: NDArray[np.float32]
    second_class: NDArray[Any]
    below: NDArray[np.float16]


def pack(logits: NDArray[Any]) -> Packed:
    """Return the two largest logits of each row exactly, and all of them relative to the largest in
    float16.

    Examples
    --------
    >>> packed = pack(np.array([[30.001, 30.0, 7.0]], dtype=np.float32))
    >>> bool(packed.below[0, 1] < packed.below[0, 0])
    True
    >>> bool(np.float16(30.001) == np.float16(30.0))  # what plain rounding would do
    True
    >>> from metacal.datasets.packing import unpack
    >>> unpack(*pack(np.array([[2.5, 1.0], [0.0, 4.0]], dtype=np.float32)))
    array([[2.5, 1. ], [0. , 4. ]], dtype=float32)
    """
    table = np.asarray(logits, dtype=np.float32)
    rows = np.arange(len(table))
    top = table.max(axis=1)
    others = table.copy()
    others[rows, table.argmax(axis=1)] = -np.inf
    second_class = others.argmax(axis=1)
    below = (table - top[:, np.newaxis]).astype(np.float16)
    return Packed(
        top,
        table[rows, second_class],
        second_class.astype(np.min_scalar_type(table.shape[1])),
        below,
    )


def write_packed(
    file: IO[bytes], logits: NDArray[Any], labels: NDArray[Any], is_test: NDArray[Any], source: str
) -> None:
    """Write one packed set as npz; the same rows give the same bytes.

    Examples
    --------
    >>> import io
    >>> from metacal.datasets.packing import read_packed
    >>> file = io.BytesIO()
    >>> write_packed(file, np.eye(2), np.array([0, 1]), np.array([False, True]), "made by hand")
    >>> _ = file.seek(0)
    >>> read_packed(file)[3]
    'made by hand'
    """
    np.savez_compressed(
        file,
        **pack(logits)._asdict(),
        labels=np.asarray(labels, dtype=np.min_scalar_type(int(np.max(labels)))),
        is_test=np.asarray(is_test, dtype=np.bool_),
        source=np.asarray(source),
    )
