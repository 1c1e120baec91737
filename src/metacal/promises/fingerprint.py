"""The fingerprint of calibration rows: who applies a gate to the very rows that it was fitted on is told."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from metacal import kernels
from metacal.formulas import Flags, Float
from metacal.kernels.grid import RELATIVE, Grid

#: Scores in a fingerprint keep so few bits that kernels agree on all of them but with a chance of 2^-32 a row.
_HASHED = Grid(RELATIVE.floor, bits=12)
#: Up to so many rows a fingerprint is one hash; rows of a run of more, where nobody says otherwise.
HASHED_WHOLE, RUN = 10_000_000, 4096


def data_hash(scores: Float, correct: Flags, run: int = RUN) -> str:
    """A fingerprint of the calibration rows as a certificate sees them: ranking score and correctness, in row order.

    Scores are rounded coarsely first: an order of rows is as telling as the digits, and rounding borders are few. Of
    more than HASHED_WHOLE rows it is the hash of the hashes of every `run` rows, which whoever has the rows can take.

    >>> data_hash(np.array([0.1, 0.2]), np.array([True, False]))[:23]
    'sha256:1297cf2278319b6d'
    """
    if len(scores) <= HASHED_WHOLE:
        return f"sha256:{run_hash(scores, correct).hex()}"
    starts = range(0, len(scores), run)
    return joined_hash(run_hash(scores[at : at + run], correct[at : at + run]) for at in starts)


def run_hash(scores: Float, correct: Flags) -> bytes:
    """The hash of a run of successive rows."""
    rounded = np.asarray(kernels.rounded(scores, _HASHED)).astype("<f8", copy=False)
    columns = hashlib.sha256(np.ascontiguousarray(rounded).data)
    columns.update(np.ascontiguousarray(correct, dtype=bool).view(np.uint8).data)
    return columns.digest()


def joined_hash(runs: Iterable[bytes]) -> str:
    """The fingerprint of many rows from the hashes of their runs, in order."""
    return f"sha256:{hashlib.sha256(b''.join(runs)).hexdigest()}"
