"""Statistics of a row, the scores among them: how unsure the classifier is of each, higher = less
sure.

Written with d = x - max x, so that nothing overflows and a constant added to a row changes nothing.
Leaving the winner out of S = Σ e^d keeps the digits of a confident row, whose 1 - max p is lost in
rounding otherwise. What a formula says of a row that is none (NaN, +inf, every class masked) does
not count: each runtime says NaN there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from metacal.formulas.operations import Operations, formula

#: e^-800 is zero: keeps 0 · (-inf) = NaN out.
ZERO = -800.0


class Tail(NamedTuple):
    """What surrounds the winner of each row."""

    #: Its column, the lowest on a tie.
    winner: Any
    #: d of every class.
    gaps: Any
    #: e^d, zero for the winner.
    powers: Any
    #: S = Σ e^d without the winner.
    mass: Any


def gaps(xp: Operations, x: Any) -> Any:
    """d = x - max x."""
    return x - xp.max(x)


def tail(xp: Operations, x: Any) -> Tail:
    """The winner, and what surrounds it."""
    winner, d = xp.argmax(x), gaps(xp, x)
    powers = xp.put(xp.exp(d), winner, 0.0)
    return Tail(winner, d, powers, xp.sum(powers))


def mean_of_possible(xp: Operations, table: Any, possible: Any) -> Any:
    """The mean over the classes that are not masked."""
    return xp.sum(xp.where(possible, table, 0.0)) / xp.count(possible, table)


def even(xp: Operations, x: Any) -> Any:
    """1/K over the classes that are not masked, 0 over the others."""
    possible = xp.possible(x)
    return xp.number(possible) / xp.count(possible, x)


@formula
def entropy(xp: Operations, x: Any) -> Any:
    """Entropy of softmax(x): log(1 + S) - Σ_{j≠top} e^{d_j} d_j / (1 + S)."""
    found = tail(xp, x)
    moment = xp.sum(found.powers * xp.maximum(found.gaps, ZERO))
    return xp.log1p(found.mass) - moment / (1.0 + found.mass)


@formula
def doubt(xp: Operations, x: Any) -> Any:
    """1 - max p = S / (1 + S)."""
    mass = tail(xp, x).mass
    return mass / (1.0 + mass)


@formula
def negative_margin(xp: Operations, x: Any) -> Any:
    """Second largest logit minus the largest; the most negative float where every other class is
    masked.
    """
    d = gaps(xp, x)
    return xp.maximum(xp.max(xp.put(d, xp.argmax(x), -np.inf)), -float(xp.finfo(x).max))


@formula
def free_energy(xp: Operations, x: Any) -> Any:
    """-logsumexp(x) = -(max x + log(1 + S))."""
    return -(xp.max(x) + xp.log1p(tail(xp, x).mass))


@formula
def spread(xp: Operations, x: Any) -> Any:
    """Largest minus smallest finite logit."""
    return xp.max(xp.where(xp.possible(x), -gaps(xp, x), 0.0))


@formula
def rivals_norm(xp: Operations, x: Any) -> Any:
    """‖(z_j)_{j≠top}‖_8 / z_top with z = x - mean x over the possible classes; 0 where only one is
    possible.

    It ranks as minus z_top / ‖z‖_8 does ("MaxLogit p-norm", Cattelan & Silva 2024), whose 8th power
    it is one less than the inverse of, and keeps its digits for confident rows. With gaps g = max x
    - x and their mean m: z_j / z_top = 1 - g_j / m. A common factor of the logits changes nothing;
    the 8th power and root are three squares and three roots.
    """
    possible = xp.possible(x)
    away = xp.where(possible, xp.minimum(-gaps(xp, x), float(xp.finfo(x).max)), 0.0)
    longest = xp.max(away)
    flat = longest == 0.0  # all equal: each of the others is as large as the top
    away = away / xp.where(flat, 1.0, longest)
    mean = xp.sum(away) / xp.count(possible, x)
    share = xp.where(possible, 1.0 - away / xp.where(flat, 1.0, mean), 0.0)
    share = xp.put(share, xp.argmax(x), 0.0)
    for _ in range(3):
        share = share * share
    norm = xp.sum(share)
    for _ in range(3):
        norm = xp.sqrt(norm)
    return norm
