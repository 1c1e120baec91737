"""The grid that scores lie on: a ranking score is a rounded number, and a threshold lies between
two of them.

Scores that are equal in mathematics (votes of a forest, quantised logits) come out of different
kernels with different last bits, and a threshold put at one of them would part equals, each kernel
its own way. So h(x) *is* the rounded number: 30 bits after the leading one, a relative step of
2^-30. What is certified, ranked, compared and reported is that number, and rows whose scores differ
by rounding only are tied, everywhere.

How coarse it must be was measured against extended precision, over confident (gaps to 600), flat,
huge, tiny, masked, one-decimal and many-class (to a million) rows. The largest relative error was
2^-44, the same for plain C, AVX2, AVX-512, NumPy, torch and ONNX (2^-50 of max(1, |h|) for the
energy, none for the margin): a grid step is 16,000 times that. A score that lies on a *border*
between two grid points may still go either way; of scores that are continuous that is one in some
ten thousand to a million, and it moves the score by one step, no decision.

**Decisions need no rounding.** Each grid point owns the scores from the middle below it (exclusive)
to the middle above it (inclusive). With the threshold s in such a middle, rounded(h) <= s iff h <=
s: comparing the raw score says the same. So an exported graph and an older reader need no rounding
operator, only a threshold that is `settled`; and a kernel's error changes a decision only if the
true score lies within 2^-44 of the middle.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Bits of the fraction of a float64.
_FRACTION = 52
_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class Grid:
    """The numbers with `bits` bits after the leading one, and multiples of floor·2^-bits below
    `floor` in size.

    The largest float stands for the power of two after it, which is no float.

    Examples
    --------
    >>> grid = Grid(floor=1.0, bits=2)
    >>> grid.rounded(np.array([0.1, 0.2, 1.1, 1.2, -1.125, 40.0, 44.0, np.nan]))
    array([ 0.  ,  0.25,  1.  ,  1.25, -1.25, 40.  , 40.  ,   nan])
    >>> grid.settled(1.25), grid.settled(1.3), grid.settled(-0.5)
    (1.375, 1.375, -0.375)
    """

    floor: float
    bits: int = 30

    @property
    def dropped(self) -> int:
        """How many bits of a float64's fraction rounding sets to zero."""
        return _FRACTION - self.bits

    @property
    def step(self) -> float:
        """The distance between grid points below the floor."""
        return self.floor * 2.0**-self.bits

    def rounded(self, values: Any) -> NDArray[np.float64]:
        """The grid point nearest to each value, the lower one of two; NaN and infinities stay what
        they are.

        A float64 is its own logarithm, nearly: read as integers, floats of one sign are in order,
        and those with `bits` bits are the multiples of 2^dropped. Adding half of that and cutting
        off rounds; a bit less than half for positive numbers sends ties down.
        """
        raw = np.asarray(values, dtype=np.float64)
        found = raw.copy(order="C")
        patterns = found.view(np.uint64)
        patterns += (patterns >> np.uint64(63)) + np.uint64((1 << (self.dropped - 1)) - 1)
        patterns &= np.uint64(-1 << self.dropped & 0xFFFFFFFFFFFFFFFF)
        size = np.abs(raw)
        if raw.size and not (
            size.min() >= self.floor and size.max() < _LARGEST / 2
        ):  # NaN compares false
            small = size < self.floor
            steps = raw[small] / self.step
            nearest = np.rint(steps)
            found[small] = (nearest - (nearest - steps == 0.5)) * self.step
            over = size > _LARGEST / 2
            found[over] = np.clip(found[over], -_LARGEST, _LARGEST)
            found = np.where(np.isfinite(raw), found, raw)
        return found

    def settled(self, threshold: float) -> float:
        """The middle between the two grid points around a threshold: it accepts the same grid
        points.

        Infinite thresholds stay: they accept everything, or nothing.
        """
        if not math.isfinite(threshold) or threshold == _LARGEST:
            return threshold
        if -self.floor <= threshold < self.floor:
            return (math.floor(threshold / self.step) + 0.5) * self.step
        (pattern,) = struct.unpack("<q", struct.pack("<d", abs(threshold)))
        half = 1 << (self.dropped - 1)
        cell = (pattern if threshold > 0 else pattern - 1) >> self.dropped
        (middle,) = struct.unpack("<d", struct.pack("<q", (cell << self.dropped) + half))
        return math.copysign(middle, threshold)

    def just_below(self, point: float) -> float:
        """The middle below a grid point: the largest settled threshold that rejects it."""
        return self.settled(math.nextafter(point, -math.inf))


#: For scores whose error is relative to their size. Near 1e-308, where exponentials underflow, each
#: kernel in its own way, it is not, and a row may have a million of them: below 1e-289 the grid is
#: even, and e^-690 is zero.
RELATIVE = Grid(floor=2.0**-960)
#: For scores that are sums of terms of either sign, the energy and learned ones: what matters is
#: one step near 1.
ABSOLUTE = Grid(floor=1.0)
