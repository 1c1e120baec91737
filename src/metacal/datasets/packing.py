"""Compact storage of logits: half the bits, and metrics that agree to four digits.

Rounding logits to float16 would sometimes make the two largest logits of a row equal, which changes
the prediction. Each row therefore stores its largest logit in float32, and the distances of the
other logits from it in float16. Small distances are the most precise, and the largest logit stays
the largest (down to distances of 6e-8, half the spacing of float32 at logits of 1). The second
largest logit is stored in float32 as well, so that margins do not tie.
"""

from __future__ import annotations

import zipfile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Flags

#: Largest size in bytes of an unpacked set. The largest one in the package has 5 MB.
_MAX_BYTES = 1 << 32
#: Largest number of characters of another error in a message.
_MAX_REASON_LENGTH = 200


#: Names of the arrays of a packed table: largest logit, second largest logit and its class, and
#: distances of all logits from the largest.
PACKED_ARRAY_NAMES = ("top", "second", "second_class", "below")


def unpack(
    top: NDArray[Any], second: NDArray[Any], second_class: NDArray[Any], below: NDArray[Any]
) -> NDArray[Any]:
    """Return the float32 logits of a table packed by `benchmarks/packing.py`.

    The logits below the second largest are rounded.

    Parameters
    ----------
    top, second : array of float32 of shape (n,)
        Largest and second largest logit.

    second_class : array of int of shape (n,)
        Class of the second largest logit.

    below : array of float16 of shape (n, K)
        Logits minus the largest one.

    Returns
    -------
    array of float32 of shape (n, K)
    """
    logits = below.astype(np.float32)
    logits += top[:, np.newaxis]
    logits[np.arange(len(logits)), second_class] = second
    return logits


def read_packed(file: IO[bytes]) -> tuple[NDArray[np.float32], NDArray[np.int64], Flags, str]:
    """Return (logits, labels, is_test, source) of a packed file.

    Raises
    ------
    InputError
        If the file is not a packed set, is damaged, or is too large.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            n_bytes = sum(entry.file_size for entry in archive.infolist())
        if n_bytes > _MAX_BYTES:
            raise InputError(
                f"a packed set of {n_bytes:,} bytes is beyond {_MAX_BYTES:,}; this is not one of"
                " metacal's."
            )
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            logits = unpack(*(arrays[name] for name in PACKED_ARRAY_NAMES))
            labels = arrays["labels"].astype(np.int64)
            is_test = arrays["is_test"].astype(np.bool_)
            source = str(arrays["source"])
    except InputError:
        raise
    except Exception as error:
        # NumPy raises errors of many types for damaged files.
        reason = " ".join(str(error).split())[:_MAX_REASON_LENGTH].rstrip(" .")
        raise InputError(
            f"this is no packed set, or a damaged one ({reason}); write it again."
        ) from error
    if logits.ndim != 2 or labels.shape != (len(logits),) or is_test.shape != (len(logits),):
        raise InputError(
            "this is no packed set: its logits, labels and flags are not one per row; write it"
            " again."
        )
    return logits, labels, is_test, source
