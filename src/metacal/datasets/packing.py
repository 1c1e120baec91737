"""How a table of logits is packed: half the bits, every metric the same to four digits.

Rounding logits to float16 as they are makes the two largest logits of a row equal now and then, which changes the
predicted class. So each row keeps its largest logit in float32, and float16 holds only how far the others lie below
it: the distance is finest where it matters, near zero, and the largest stays the largest (down to distances of 6e-8,
half the spacing of float32 at logits of 1).
"""

from __future__ import annotations

from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


def pack(logits: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float16]]:
    """Return the largest logit of each row, and all logits relative to it in float16.

    Examples
    --------
    >>> top, below = pack(np.array([[30.001, 30.0, 7.0]], dtype=np.float32))
    >>> below[0, 1] < below[0, 0]
    np.True_
    >>> np.float16(30.001) == np.float16(30.0)  # what plain rounding would do
    np.True_
    """
    table = np.asarray(logits, dtype=np.float32)
    top = table.max(axis=1)
    return top, (table - top[:, np.newaxis]).astype(np.float16)


def unpack(top: NDArray[np.float32], below: NDArray[np.float16]) -> NDArray[np.float32]:
    """Return the float32 logits that `pack` was given, up to float16's rounding of the distances.

    Examples
    --------
    >>> unpack(*pack(np.array([[2.5, 1.0], [0.0, 4.0]], dtype=np.float32)))
    array([[2.5, 1. ],
           [0. , 4. ]], dtype=float32)
    """
    logits = below.astype(np.float32)
    logits += top[:, np.newaxis]
    return logits


def write_packed(
    file: IO[bytes], logits: NDArray[Any], labels: NDArray[Any], is_test: NDArray[Any], source: str
) -> None:
    """Write one packed set as npz; the same rows give the same bytes.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> write_packed(file, np.eye(2), np.array([0, 1]), np.array([False, True]), "made by hand")
    >>> _ = file.seek(0)
    >>> read_packed(file)[1]
    array([0, 1])
    """
    top, below = pack(logits)
    np.savez_compressed(
        file,
        top=top,
        below=below,
        labels=np.asarray(labels, dtype=np.min_scalar_type(int(np.max(labels)))),
        is_test=np.asarray(is_test, dtype=np.bool_),
        source=np.asarray(source),
    )


def read_packed(file: IO[bytes]) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_], str]:
    """Return (logits, labels, is_test, source) of a file from `write_packed`; every array is new.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> write_packed(file, np.eye(2), np.array([0, 1]), np.array([False, True]), "made by hand")
    >>> _ = file.seek(0)
    >>> read_packed(file)[3]
    'made by hand'
    """
    with np.load(file, allow_pickle=False) as arrays:
        logits = unpack(arrays["top"], arrays["below"])
        return logits, arrays["labels"].astype(np.int64), arrays["is_test"], str(arrays["source"])
