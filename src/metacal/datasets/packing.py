"""How a table of logits is packed: half the bits, every metric the same to four digits.

Rounding logits to float16 as they are makes the two largest logits of a row equal now and then,
which changes the predicted class. So each row keeps its largest logit in float32, and float16 holds
only how far the others lie below it: the distance is finest where it matters, near zero, and the
largest stays the largest (down to distances of 6e-8, half the spacing of float32 at logits of 1).
The second largest is kept in float32 too, so that margins do not tie.
"""

from __future__ import annotations

import zipfile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Flags

#: Bytes that a packed set may unpack to; the largest that ships has 5 MB.
_MOST_BYTES = 1 << 32


#: The arrays of a packed table: what `below` rounds away of the two largest logits of a row stands
#: beside it.
PACKED = ("top", "second", "second_class", "below")


def unpack(
    top: NDArray[Any], second: NDArray[Any], second_class: NDArray[Any], below: NDArray[Any]
) -> NDArray[Any]:
    """The float32 logits that were packed (`benchmarks/packing.py`), up to float16's rounding of
    the smaller ones.
    """
    logits = below.astype(np.float32)
    logits += top[:, np.newaxis]
    logits[np.arange(len(logits)), second_class] = second
    return logits


def read_packed(file: IO[bytes]) -> tuple[NDArray[np.float32], NDArray[np.int64], Flags, str]:
    """Return (logits, labels, is_test, source) of a packed file; every array is new."""
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > _MOST_BYTES:
            raise InputError(
                f"a packed set of {size:,} bytes is beyond {_MOST_BYTES:,}; this is not one of"
                " metacal's."
            )
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in (*PACKED, "labels", "is_test", "source")}
        logits = unpack(*(found[name] for name in PACKED))
        labels, is_test = found["labels"].astype(np.int64), found["is_test"].astype(np.bool_)
    except InputError:
        raise
    except Exception as error:  # whatever NumPy's reader stumbles over in a damaged file
        said = " ".join(str(error).split())[:200].rstrip(" .")
        raise InputError(
            f"this is no packed set, or a damaged one ({said}); write it again."
        ) from error
    if not (logits.ndim == 2 and labels.shape == is_test.shape == (len(logits),)):
        raise InputError(
            "this is no packed set: its logits, labels and flags are not one per row; write it"
            " again."
        )
    return logits, labels, is_test, str(found["source"])
