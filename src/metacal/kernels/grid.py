"""Grid to which ranking scores are rounded, with thresholds between grid points.

Scores that are equal in mathematics (votes of a forest, quantised logits) have different last bits
in different kernels. A threshold at such a score would separate equal scores, in each kernel in
another way. Therefore the score h(x) *is* the rounded number, with 30 bits after the leading one, a
relative step of 2^-30. This number is certified, ranked, compared and reported, and rows whose
scores differ only by rounding are tied everywhere.

The step was chosen by comparison with extended precision, on confident (gaps to 600), flat, huge,
tiny, masked, one-decimal and many-class (to a million) rows. The largest relative error was 2^-44,
the same for plain C, AVX2, AVX-512, NumPy, torch and ONNX (2^-50 of max(1, |h|) for the energy, none
for the margin). A grid step is 16,000 times that. A score on the *border* between two grid points
may still be rounded either way. Of continuous scores this is one in ten thousand to a million, and
it moves the score by one step but changes no decision.

**Decisions need no rounding.** Each grid point represents the scores from the midpoint below it
(exclusive) to the midpoint above it (inclusive). If the threshold s is such a midpoint, rounded(h)
<= s iff h <= s, so the raw score can be compared. An exported graph and an older reader therefore
need no rounding operator, only a threshold that `make_robust_to_rounding` returns. The error of a kernel
changes a decision only if the true score lies within 2^-44 of the midpoint.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Number of bits of the fraction of a float64.
_FRACTION_BITS = 52
_LARGEST_FLOAT = float(np.finfo(np.float64).max)
_SIGN_BIT_INDEX = np.uint64(63)
_ALL_BITS = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True)
class Grid:
    """Grid of floats with `bits` bits after the leading bit, evenly spaced near zero.

    The even steps are multiples of even_below·2^-bits. The largest float stands for the next power of
    two, which is not a float.

    Attributes
    ----------
    even_below : float
        Size below which the grid is even.

    bits : int
        Number of bits after the leading one.

    Examples
    --------
    >>> grid = Grid(even_below=1.0, bits=2)
    >>> grid.round(np.array([0.1, 0.2, 1.1, 1.2, -1.125, 40.0, 44.0, np.nan]))
    array([ 0.  ,  0.25,  1.  ,  1.25, -1.25, 40.  , 40.  ,   nan])
    >>> grid.make_robust_to_rounding(1.25), grid.make_robust_to_rounding(1.3), grid.make_robust_to_rounding(-0.5)
    (1.375, 1.375, -0.375)
    """

    even_below: float
    bits: int = 30

    @property
    def n_dropped_bits(self) -> int:
        """Number of bits of the fraction of a float64 that rounding sets to 0."""
        return _FRACTION_BITS - self.bits

    @property
    def step(self) -> float:
        """Distance between grid points whose size is below `even_below`."""
        return self.even_below * 2.0**-self.bits

    def round(self, values: Any) -> NDArray[np.float64]:
        """Round each value to the nearest grid point, down for ties.

        NaN and infinities are unchanged. Read as integers, floats of one sign are in order, and the
        grid points are the multiples of 2^dropped. Adding half of 2^dropped and removing the lower
        bits rounds the value. For positive numbers one less than half is added, so that ties are
        rounded down.
        """
        float_values = np.asarray(values, dtype=np.float64)
        rounded_values = float_values.copy(order="C")
        # The bit patterns share the memory of the result.
        bit_patterns = rounded_values.view(np.uint64)
        just_below_half_step = np.uint64((1 << (self.n_dropped_bits - 1)) - 1)
        sign_bits = bit_patterns >> _SIGN_BIT_INDEX
        bit_patterns += sign_bits + just_below_half_step
        kept_bits = np.uint64(-1 << self.n_dropped_bits & _ALL_BITS)
        bit_patterns &= kept_bits
        magnitudes = np.abs(float_values)
        if not float_values.size or (
            magnitudes.min() >= self.even_below and magnitudes.max() < _LARGEST_FLOAT / 2
        ):
            return rounded_values
        # A NaN makes these comparisons false, so it takes the slow path like small and large values.
        is_small = magnitudes < self.even_below
        n_steps = float_values[is_small] / self.step
        nearest = np.rint(n_steps)
        is_rounded_up_tie = nearest - n_steps == 0.5
        rounded_values[is_small] = (nearest - is_rounded_up_tie) * self.step
        is_huge = magnitudes > _LARGEST_FLOAT / 2
        rounded_values[is_huge] = np.clip(rounded_values[is_huge], -_LARGEST_FLOAT, _LARGEST_FLOAT)
        return np.where(np.isfinite(float_values), rounded_values, float_values)

    def make_robust_to_rounding(self, threshold: float) -> float:
        """Move a threshold to the midpoint between the two grid points around it.

        It accepts the same rounded scores as before, and the rounding of a score does not change
        whether it is accepted. Infinite thresholds are unchanged.
        """
        if not math.isfinite(threshold) or threshold == _LARGEST_FLOAT:
            return threshold
        if -self.even_below <= threshold < self.even_below:
            return (math.floor(threshold / self.step) + 0.5) * self.step
        (bit_pattern,) = struct.unpack("<q", struct.pack("<d", abs(threshold)))
        if threshold < 0:
            bit_pattern -= 1
        cell_start = bit_pattern >> self.n_dropped_bits << self.n_dropped_bits
        half_cell = 1 << (self.n_dropped_bits - 1)
        (midpoint,) = struct.unpack("<d", struct.pack("<q", cell_start + half_cell))
        return math.copysign(midpoint, threshold)

    def find_largest_threshold_rejecting(self, score: float) -> float:
        """Return the midpoint below a score, the largest threshold that rejects it."""
        return self.make_robust_to_rounding(math.nextafter(score, -math.inf))


#: Grid of scores whose rounding error is relative to their size.
#: The grid is even below 1e-289, because kernels differ in how exponentials underflow near 1e-308.
#: On this grid, e^-690 is rounded to 0.
RELATIVE_GRID = Grid(even_below=2.0**-960)
#: Grid of scores that are sums of terms of either sign: the energy and learned scores.
ABSOLUTE_GRID = Grid(even_below=1.0)
