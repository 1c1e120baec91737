"""Cells: the scores cut at candidate thresholds, quantiles of rows that were set aside for nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metacal.kernels.grid import RELATIVE

Float = NDArray[np.float64]

#: The scores are cut where so many equal shares of the rows end, and at the goal.
_CELLS = 20


@dataclass(frozen=True, eq=False)
class Cells:
    """Thresholds that rise, the last infinite; cell j holds the scores above threshold j - 1, up to threshold j.

    Attributes
    ----------
    thresholds : array
        Settled: between two numbers that a score can be.
    share : array
        The share of each cell in the rows that were set aside.

    Examples
    --------
    >>> cells = Cells.of(np.linspace(0.0, 1.0, 1000), goal=0.33)
    >>> len(cells.thresholds), cells.near(0.33), float(cells.coverage[6].round(2))
    (20, 6, 0.33)
    >>> Cells.of(np.array([0.5, 0.5, 0.5, 0.7]), goal=None).thresholds.round(2)
    array([0.5, inf])
    """

    thresholds: Float
    share: Float

    @classmethod
    def of(cls, aside: Float, goal: float | None) -> Cells:
        """Cut at even quantiles of these scores; the cut next to a goal moves there."""
        cuts = np.arange(1, _CELLS) / _CELLS
        if goal is not None and goal < 1.0:
            cuts[np.abs(cuts - goal).argmin()] = goal
        ordered = np.sort(aside)
        at = np.clip(np.ceil(np.sort(cuts) * len(ordered)).astype(int) - 1, 0, len(ordered) - 1)
        edges = [float(edge) for edge in np.unique(ordered[at]) if edge < ordered[-1]]
        thresholds = np.array([*(RELATIVE.settled(edge) for edge in edges), math.inf])
        below = np.searchsorted(ordered, thresholds, side="right") / len(ordered)
        return cls(thresholds, np.diff(below, prepend=0.0))

    @property
    def coverage(self) -> Float:
        """What each threshold accepts of the rows that were set aside."""
        return np.cumsum(self.share)

    def near(self, coverage: float) -> int:
        """The threshold whose coverage is nearest."""
        return int(np.abs(self.coverage - coverage).argmin())

    def numbers(self, scores: Float) -> NDArray[np.intp]:
        """The cell of each score."""
        return np.searchsorted(self.thresholds, scores, side="left")
