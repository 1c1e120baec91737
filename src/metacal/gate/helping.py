"""Whether calibration helps accepted rows: their log loss and ECE with the base map and without, by
cross-fitting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from metacal import kernels
from metacal.certificates.notes import Note, calibration_harms
from metacal.formulas import Array, Codes, Flags, Float
from metacal.maps.heldout import OutOfFoldQuality, compute_out_of_fold_quality
from metacal.maps.map import FitMap, Map
from metacal.metrics.binning import equal_width
from metacal.metrics.marginal import MarginalCheck, check_predicted_classes
from metacal.rows import Rows
from metacal.rows.arrays import on_host
from metacal.rows.draws import generator

#: Fewer accepted rows say nothing.
_FEWEST = 50
#: How often rows are drawn again for the standard error of a difference in ECE.
_RESAMPLES = 25
#: Parameters of the usual map.
_PARAMETERS = 10.0
#: Bins of the ECE.
_BINS = 15


@dataclass(frozen=True)
class Compared:
    """A measure of the accepted rows with the calibrator and without, and the standard error of the
    difference.
    """

    calibrated: float
    plain: float
    error: float

    @property
    def worse(self) -> bool:
        """Whether it is higher with the calibrator, by more than one standard error.

        Examples
        --------
        >>> Compared(0.31, 0.30, 0.004).worse, Compared(0.31, 0.30, 0.02).worse
        (True, False)
        """
        return self.calibrated - self.plain > self.error


@dataclass(frozen=True)
class Helping:
    """What cross-fitting says: log loss and ECE of so many accepted rows, and the marginal check
    where there is one.
    """

    log_loss: Compared
    ece: Compared
    n_rows: int
    marginal: MarginalCheck | None = None

    @property
    def harms(self) -> bool:
        """Whether log loss or ECE is worse with the calibrator."""
        return self.log_loss.worse or self.ece.worse

    def note(self, *, given_way: bool) -> Note:
        """What a certificate says of a calibrator that does not help.

        Examples
        --------
        >>> worse, same = Compared(0.31, 0.30, 0.004), Compared(0.02, 0.02, 0.001)
        >>> print(Helping(worse, same, 800).note(given_way=False))
        calibration does not help: cross-fitted on 800 accepted rows, log loss 0.3100, without 0.3000 (± 0.0040).
        """
        log_loss, ece = (
            (one.calibrated, one.plain, one.error) if one.worse else None
            for one in (self.log_loss, self.ece)
        )
        return calibration_harms(rows=self.n_rows, log_loss=log_loss, ece=ece, softmax=given_way)


def helping(
    fitted: Map,
    refit: FitMap,
    rows: Rows,
    labels: Codes,
    weights: Float | None,
    accept: Flags,
    classes: Array,
) -> Helping | None:
    """Compare on the accepted ones of the rows that are held out; None where these are too few.

    `accept` says which rows are accepted, `classes` are names. The marginal check looks at all rows
    that are held out, accepted or not, as the threshold has seen their labels; not for a map with
    parameters for each class, which has fitted that.
    """

    def enough(held: OutOfFoldQuality) -> bool:
        kept = held.select(accept[held.positions])
        return len(kept.positions) < _FEWEST or clearly_helps(kept, len(held.positions))

    found = compute_out_of_fold_quality(fitted, refit, rows, labels, weights, enough)
    if found is None:
        return None
    kept = found.select(accept[found.positions])
    if len(kept.positions) < _FEWEST:
        return None
    if fitted.n_classes is not None:
        return compared(kept)
    predicted = np.asarray(
        on_host(rows.picked(found.positions).collect(kernels.predicted)), dtype=np.intp
    )
    marginal = check_predicted_classes(
        found.confidence, found.correct, predicted, classes=classes, fitted=True
    )
    return replace(compared(kept), marginal=marginal)


def clearly_helps(kept: OutOfFoldQuality, n_rows: int) -> bool:
    """Whether accepted ones of the rows that a map was fitted on leave no doubt of what others
    would say.

    With p parameters a map fits its own n rows by p/2n per row better than it should, and others by
    as much worse; fitted on half of them by twice as much: 1.5·p/n in all, and more than twice that
    is asked for. Its log-odds are off by about √(4p/n) and its confidences by at most a quarter of
    that, √(p/n)/2.
    """
    gained = float((kept.uncalibrated_loss - kept.loss).mean())
    after, before = (
        _Gaps(c, kept.correct).ece() for c in (kept.confidence, kept.uncalibrated_confidence)
    )
    return gained > 4.0 * _PARAMETERS / n_rows and before - after > 0.5 * math.sqrt(
        _PARAMETERS / n_rows
    )


def compared(held: OutOfFoldQuality) -> Helping:
    """Log loss and ECE with and without, each with the standard error of the difference."""
    difference = held.loss - held.uncalibrated_loss
    error = float(difference.std()) / math.sqrt(len(difference))
    log_loss = Compared(float(held.loss.mean()), float(held.uncalibrated_loss.mean()), error)
    both = [
        _Gaps(confidence, held.correct)
        for confidence in (held.confidence, held.uncalibrated_confidence)
    ]
    after, before = (gaps.ece() for gaps in both)
    spread = _ece_error(*both) if after > before else 0.0  # no need to know how much better it is
    return Helping(log_loss, Compared(after, before, spread), len(difference))


class _Gaps:
    """The bin of each row by its confidence, as `metacal.metrics.ece` has bins, and how far it is
    from being right.
    """

    def __init__(self, confidence: Float, right: Float) -> None:
        self.edges = equal_width(confidence, _BINS)[1:-1]
        self.bins = np.searchsorted(self.edges, confidence, side="left")
        self.gaps = right - confidence

    def ece(self) -> float:
        """(1/n) Σ_b |Σ_{i in b} (right_i - confidence_i)|."""
        return float(np.abs(np.bincount(self.bins, self.gaps, _BINS)).sum() / len(self.bins))

    def drawn(self, rows: Codes) -> Float:
        """The same of each line of rows that were drawn."""
        draws = len(rows)
        at = self.bins[rows] + _BINS * np.arange(draws)[:, None]
        sums = np.bincount(at.ravel(), self.gaps[rows].ravel(), draws * _BINS).reshape(draws, _BINS)
        return np.asarray(np.abs(sums).sum(axis=1) / rows.shape[1])


def _ece_error(after: _Gaps, before: _Gaps) -> float:
    """The standard deviation of the difference in ECE when rows are drawn again."""
    n = len(after.bins)
    rows = generator(0).integers(n, size=(_RESAMPLES, n))
    return float((after.drawn(rows) - before.drawn(rows)).std())
