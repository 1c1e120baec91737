"""Whether calibration helps accepted rows: their log loss and ECE with the base map and without, by cross-fitting."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metacal.maps.heldout import FitMap, HeldOut, held_out
from metacal.maps.map import Map
from metacal.metrics import columns
from metacal.rows import Rows

#: Fewer accepted rows say nothing.
_FEWEST = 50
#: How often rows are drawn again for the standard error of a difference in ECE.
_RESAMPLES = 25
NOT_COMPARED = (
    "whether calibration helps the accepted rows was not compared: fitting this calibrator anew would take too long; "
    "compare on new rows."
)


@dataclass(frozen=True)
class Compared:
    """A measure of the accepted rows with the calibrator and without, and the standard error of the difference."""

    name: str
    calibrated: float
    plain: float
    error: float

    @property
    def worse(self) -> bool:
        """Whether it is higher with the calibrator, by more than one standard error.

        Examples
        --------
        >>> Compared("log loss", 0.31, 0.30, 0.004).worse, Compared("log loss", 0.31, 0.30, 0.02).worse
        (True, False)
        """
        return self.calibrated - self.plain > self.error

    def __str__(self) -> str:
        return f"{self.name} {self.calibrated:.4f}, without {self.plain:.4f} (± {self.error:.4f})"


@dataclass(frozen=True)
class Helping:
    """What cross-fitting says: log loss and ECE of so many accepted rows."""

    log_loss: Compared
    ece: Compared
    n_rows: int

    @property
    def harms(self) -> bool:
        """Whether log loss or ECE is worse with the calibrator."""
        return self.log_loss.worse or self.ece.worse

    def words(self, *, given_way: bool) -> str:
        """What a certificate says of a calibrator that does not help.

        Examples
        --------
        >>> worse, same = Compared("log loss", 0.31, 0.30, 0.004), Compared("ECE", 0.02, 0.02, 0.001)
        >>> print(Helping(worse, same, 800).words(given_way=False))
        calibration does not help: cross-fitted on 800 accepted rows, log loss 0.3100, without 0.3000 (± 0.0040).
        """
        told = " and ".join(str(one) for one in (self.log_loss, self.ece) if one.worse)
        end = "; the probabilities are the softmax of the logits, not calibrated." if given_way else "."
        return f"calibration does not help: cross-fitted on {self.n_rows:,} accepted rows, {told}{end}"


def helping(
    fitted: Map,
    refit: FitMap,
    rows: Rows,
    labels: NDArray[np.intp],
    weights: NDArray[np.float64] | None,
    accept: NDArray[np.bool_],
) -> Helping | None:
    """Compare on the accepted ones of the rows that are held out; None where these are too few.

    `accept` says which rows are accepted.
    """
    found = held_out(fitted, refit, rows, labels, weights)
    if found is None:
        return None
    kept = found.where(accept[found.rows])
    return compared(kept) if len(kept.rows) >= _FEWEST else None


def compared(held: HeldOut) -> Helping:
    """Log loss and ECE with and without, each with the standard error of the difference."""
    difference = held.loss - held.plain_loss
    error = float(difference.std()) / math.sqrt(len(difference))
    log_loss = Compared("log loss", float(held.loss.mean()), float(held.plain_loss.mean()), error)
    after, before = (float(columns.ece(c, held.right)) for c in (held.confidence, held.plain_confidence))
    spread = _ece_error(held) if after > before else 0.0  # no need to know how much better it is
    return Helping(log_loss, Compared("ECE", after, before, spread), len(difference))


def _ece_error(held: HeldOut) -> float:
    """The standard deviation of the difference in ECE when rows are drawn again."""
    random = np.random.default_rng(0)
    draws = []
    for _ in range(_RESAMPLES):
        rows = random.integers(len(held.rows), size=len(held.rows))
        right = held.right[rows]
        both = (columns.ece(c[rows], right) for c in (held.confidence, held.plain_confidence))
        after, before = both
        draws.append(float(after) - float(before))
    return float(np.std(draws))
