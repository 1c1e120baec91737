"""Statistics of one row of logits, including the ranking scores.

A score is higher the less certain the classifier is of the row. Notation used here:

- d_j = x_j - max x, the gap of class j to the predicted class. Working with gaps avoids
  overflow, and a constant added to a row changes nothing;
- S = sum of e^{d_j} over all classes but the predicted one. Omitting the predicted class
  preserves the digits of confident rows, for which 1 - max p would be lost in rounding.

The value of a formula for an invalid row (NaN, +inf, or every class masked) is
undefined. Each runtime replaces it by NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.formulas.operations import Operations, formula

#: Smallest gap used in products with e^d. e^-800 is zero; the limit avoids 0 * (-inf) = NaN.
ZERO = -800.0


@dataclass(frozen=True)
class GapExponentials:
    """Predicted class of each row and the weight of the other classes.

    Attributes
    ----------
    winner : column of int
        Column index of the predicted class, the lowest one on a tie.

    gaps : table
        d_j of every class.

    powers : table
        e^{d_j} of every class, but zero for the predicted class.

    mass : column
        S, the sum of `powers` over the classes.
    """

    winner: Any
    gaps: Any
    powers: Any
    mass: Any


def gaps(xp: Operations, x: Any) -> Any:
    """Compute d = x - max x."""
    return x - xp.max(x)


def exponentiate_gaps(xp: Operations, x: Any) -> GapExponentials:
    """Compute the predicted class of each row and the weight of the other classes."""
    winner = xp.argmax(x)
    d = gaps(xp, x)
    powers = xp.put(xp.exp(d), winner, 0.0)
    return GapExponentials(winner=winner, gaps=d, powers=powers, mass=xp.sum(powers))


def mean_over_unmasked(xp: Operations, table: Any, unmasked: Any) -> Any:
    """Compute the mean of each row over its unmasked classes."""
    return xp.sum(xp.where(unmasked, table, 0.0)) / xp.count(unmasked, table)


def uniform_probabilities(xp: Operations, x: Any) -> Any:
    """Compute the uniform distribution over the unmasked classes of each row."""
    unmasked = xp.unmasked(x)
    return xp.to_float(unmasked) / xp.count(unmasked, x)


@formula
def entropy(xp: Operations, x: Any) -> Any:
    """Compute the entropy of softmax(x), log(1 + S) - sum_j e^{d_j} d_j / (1 + S)."""
    row_tail = exponentiate_gaps(xp, x)
    moment = xp.sum(row_tail.powers * xp.maximum(row_tail.gaps, ZERO))
    return xp.log1p(row_tail.mass) - moment / (1.0 + row_tail.mass)


@formula
def one_minus_max_probability(xp: Operations, x: Any) -> Any:
    """Compute 1 - max p = S / (1 + S), where p = softmax(x)."""
    mass = exponentiate_gaps(xp, x).mass
    return mass / (1.0 + mass)


@formula
def negative_margin(xp: Operations, x: Any) -> Any:
    """Compute the second largest logit minus the largest.

    If every other class is masked, the result is the most negative finite number.
    """
    d = gaps(xp, x)
    rival_gaps = xp.put(d, xp.argmax(x), -np.inf)
    return xp.maximum(xp.max(rival_gaps), -float(xp.finfo(x).max))


@formula
def free_energy(xp: Operations, x: Any) -> Any:
    """Compute -logsumexp(x) = -(max x + log(1 + S))."""
    return -(xp.max(x) + xp.log1p(exponentiate_gaps(xp, x).mass))


@formula
def spread(xp: Operations, x: Any) -> Any:
    """Compute the largest minus the smallest finite logit."""
    return xp.max(xp.where(xp.unmasked(x), -gaps(xp, x), 0.0))


@formula
def maxlogit_pnorm(xp: Operations, x: Any) -> Any:
    """Compute the 8-norm of the other classes' centred logits over the predicted one's.

    With z = x - mean x over the unmasked classes, the score is
    ‖(z_j)_{j≠top}‖_8 / z_top, and 0 if only one class is unmasked.

    It ranks the rows as -z_top / ‖z‖_8 does ("MaxLogit p-norm", Cattelan & Silva, 2024),
    because (‖z‖_8 / z_top)^8 is the 8th power of this score plus one. Unlike the inverse,
    it preserves the digits of confident rows. With the distances g_j = max x - x_j and
    their mean m, z_j / z_top = 1 - g_j / m, so a common factor of the logits cancels. The
    8th power is computed by squaring three times, the 8th root by three square roots.
    """
    unmasked = xp.unmasked(x)
    largest_float = float(xp.finfo(x).max)
    distance = xp.where(unmasked, xp.minimum(-gaps(xp, x), largest_float), 0.0)
    max_distance = xp.max(distance)
    # If all logits are equal, every other class is as large as the predicted one.
    all_equal = max_distance == 0.0
    distance = distance / xp.where(all_equal, 1.0, max_distance)
    mean = xp.sum(distance) / xp.count(unmasked, x)
    ratio = xp.where(unmasked, 1.0 - distance / xp.where(all_equal, 1.0, mean), 0.0)
    ratio = xp.put(ratio, xp.argmax(x), 0.0)
    for _ in range(3):
        ratio = ratio * ratio
    norm = xp.sum(ratio)
    for _ in range(3):
        norm = xp.sqrt(norm)
    return norm
