"""Compact storage of logits in half the bits of float32.

Metrics of the stored logits agree with those of the original ones to four digits. Rounding logits to float16 would sometimes make the two largest logits of a row equal, which changes
the prediction. Each row therefore stores its largest logit in float32, and the distances of the
other logits from it in float16. Small distances are the most precise, and the largest logit stays
the largest (down to distances of 6e-8, half the spacing of float32 at logits of 1). The second
largest logit is stored in float32 as well, so that margins do not tie.
"""

from __future__ import annotations

import zipfile
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import FileContentError, InputError
from metacal.formulas import Flags

#: Maximal size of an unpacked data set in bytes; the largest in the package has 5 MB.
_MAX_UNPACKED_BYTES = 1 << 32
#: Maximal number of characters that a message quotes from the error of another library.
_MAX_REASON_LENGTH = 200


#: Names of the arrays in a packed file, in the order of the parameters of `unpack`.
PACKED_ARRAY_NAMES = ("top", "second", "second_class", "below")


def unpack(
    largest_logit: NDArray[np.float32],
    second_logit: NDArray[np.float32],
    second_class: NDArray[np.integer[Any]],
    offsets_from_largest: NDArray[np.float16],
) -> NDArray[np.float32]:
    """Unpack a table of logits that `benchmarks/packing.py` has packed.

    The logits below the second largest are rounded.

    Parameters
    ----------
    largest_logit, second_logit : array of float32 of shape (n,)
        Largest and second largest logit of each row.

    second_class : array of int of shape (n,)
        Class of the second largest logit.

    offsets_from_largest : array of float16 of shape (n, K)
        Logits minus the largest one of the row.

    Returns
    -------
    array of float32 of shape (n, K)
    """
    logits = offsets_from_largest.astype(np.float32)
    logits += largest_logit[:, np.newaxis]
    logits[np.arange(len(logits)), second_class] = second_logit
    return logits


class PackedData(NamedTuple):
    """Content of a packed file.

    Attributes
    ----------
    logits : array of float32 of shape (n, K)
        One row per image and one column per class.

    labels : array of int64 of shape (n,)
        True class of each image.

    is_test : array of bool of shape (n,)
        Whether each image belongs to the official test set.

    source : str
        Origin of the logits.
    """

    logits: NDArray[np.float32]
    labels: NDArray[np.int64]
    is_test: Flags
    source: str


def read_packed(file: IO[bytes]) -> PackedData:
    """Read a packed file of logits and labels.

    Parameters
    ----------
    file : binary file
        Open file, which must be seekable.

    Returns
    -------
    PackedData

    Raises
    ------
    InputError
        If the file is not a packed set, is damaged, or is too large.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            n_unpacked_bytes = sum(member.file_size for member in archive.infolist())
        if n_unpacked_bytes > _MAX_UNPACKED_BYTES:
            raise FileContentError(
                f"The packed data set has {n_unpacked_bytes:,} bytes, but the limit is"
                f" {_MAX_UNPACKED_BYTES:,}."
                " Check that metacal wrote the file."
            )
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            packed_arrays = [arrays[name] for name in PACKED_ARRAY_NAMES]
            logits = unpack(*packed_arrays)
            labels = arrays["labels"].astype(np.int64)
            is_test = arrays["is_test"].astype(np.bool_)
            source = str(arrays["source"])
    except InputError:
        raise
    except Exception as error:
        # NumPy raises errors of many types for damaged files, so all are caught.
        error_text = " ".join(str(error).split())
        reason = error_text[:_MAX_REASON_LENGTH].rstrip(" .")
        raise FileContentError(
            f"The file is not a packed data set, or it is damaged ({reason}). Write it again."
        ) from error
    column_shape = (len(logits),)
    if logits.ndim != 2 or labels.shape != column_shape or is_test.shape != column_shape:
        raise FileContentError(
            "A packed data set must have one row of logits, one label and one flag for each"
            " item. Write the file again."
        )
    return PackedData(logits=logits, labels=labels, is_test=is_test, source=source)
