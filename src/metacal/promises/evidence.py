r"""Evidence that grows with every row: one capital for each threshold, and which thresholds it certifies.

Threshold j has a capital K_j, at first 1, and each row that comes by multiplies it by 1 + λ_j Z_j, the payoffs of
`metacal.promises.wagers` and a stake that is fixed before the row is looked at.

**Why it holds at any stopping time.** Let the rows be independent draws from one source, visited one after the other,
and let F be all that is known before the next row: earlier scores, which of them were asked about, the answers. Stakes,
probabilities and guesses are functions of F. If the promise is broken at threshold j then E[Z_j | F] < 0, so that K_j
is a nonnegative supermartingale and P(K_j ever reaches 1/a) <= a for every a (Ville 1939): 1 / (the highest K_j so far)
is a p-value at every moment at once.

The thresholds are tested in a fixed order, the promise that is easiest to keep first. Some of them are starts, and
bring a share of delta; shares add up to one. A threshold is certified if its p-value is at most delta times the shares
of the starts from the last threshold that failed up to itself; one that fails loses them. Among the thresholds at which
the promise is broken let j be the first in the order. It sees the shares of some consecutive starts up to itself, at
most W_j in all, and is certified ever with probability at most W_j·delta. If it is not, the next broken one sees later
shares alone, and so on: delta in all (Wiens 2003, with p-values that are valid at every moment). Peaks only rise, so
what is certified stays so, and the moment at which somebody stops looking, the most flattering one included, changes
nothing.

References: Ville, "Étude critique de la notion de collectif", 1939; Wiens, "A fixed sequence Bonferroni procedure",
Pharmaceutical Statistics 2003; Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS-B
2024; Ramdas, Grünwald, Vovk & Shafer, "Game-theoretic statistics and safe anytime-valid inference", 2023.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metacal.promises.wagers import Float, Wagers


@dataclass(frozen=True)
class Chain:
    """Thresholds by their numbers in the order in which they are tested, and the share of delta that each start brings.

    Examples
    --------
    >>> chain = Chain((0, 1, 2, 3), {0: 0.25, 2: 0.75}, delta=0.1)
    >>> chain.certified(np.log([50.0, 5.0, 14.0, 11.0]))
    (0, 2)
    >>> round(math.exp(chain.needed(3, np.log([50.0, 45.0, 14.0, 1.0]))))
    10
    """

    order: tuple[int, ...]
    starts: Mapping[int, float]
    delta: float

    def certified(self, log_peak: Float) -> tuple[int, ...]:
        """The thresholds that are certified, in the order of the chain."""
        return tuple(j for j, needed in self._walk(log_peak) if log_peak[j] >= needed)

    def needed(self, threshold: int, log_peak: Float) -> float:
        """The logarithm of the capital that would certify a threshold now; infinite where it has no share of delta."""
        return next((needed for j, needed in self._walk(log_peak) if j == threshold), math.inf)

    def _walk(self, log_peak: Float) -> list[tuple[int, float]]:
        share, found = 0.0, []
        for j in self.order:
            share += self.starts.get(j, 0.0)
            needed = -math.log(min(share, 1.0) * self.delta) if share > 0.0 else math.inf
            found.append((j, needed))
            if not log_peak[j] >= needed:
                share = 0.0
        return found


@dataclass(eq=False)
class Evidence:
    """The logarithm of each threshold's capital, and of the highest it ever was.

    Examples
    --------
    >>> from metacal.promises.wagers import RIGHT, WRONG, Design, Payoff
    >>> evidence = Evidence.none(1)
    >>> plain = Wagers.of(Payoff.of_accuracy(1, 0.9), Design(np.ones(1), np.zeros(1)))
    >>> evidence.take(np.zeros(31, dtype=int), np.array([RIGHT] * 30 + [WRONG]), plain, np.array([0.9]))
    >>> np.exp(evidence.log_peak).round(1), np.exp(evidence.log_now).round(1)
    (array([13.3]), array([2.5]))
    """

    log_now: Float
    log_peak: Float

    @classmethod
    def none(cls, n_thresholds: int) -> Evidence:
        """Before any row."""
        return cls(np.zeros(n_thresholds), np.zeros(n_thresholds))

    def take(self, cells: NDArray[np.intp], outcomes: NDArray[np.intp], wagers: Wagers, stakes: Float) -> None:
        """Take in rows in the order in which they came by: the cell of each, and what became of it."""
        if not len(cells):
            return
        gains = np.log1p(stakes[:, None] * wagers.values[outcomes, :, cells].T)
        path = self.log_now[:, None] + np.cumsum(gains, axis=1)
        self.log_peak = np.maximum(self.log_peak, path.max(axis=1))
        self.log_now = path[:, -1].copy()
