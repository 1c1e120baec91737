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

#: Lower limit of a gap d in the product d e^d, because 0 * (-inf) is NaN. e^-800 is zero.
MIN_GAP = -800.0


@dataclass(frozen=True)
class GapExponentials:
    """Exponentials of the gaps to the largest logit, without the predicted class.

    Attributes
    ----------
    predicted_class : column of int
        Column index of the predicted class, the lowest one on a tie.

    gaps : table
        d_j of every class.

    other_exponentials : table
        e^{d_j} of every class, but zero for the predicted class.

    others_sum : column
        S, the sum of `other_exponentials` over the classes.
    """

    predicted_class: Any
    gaps: Any
    other_exponentials: Any
    others_sum: Any


def compute_gaps(xp: Operations, x: Any) -> Any:
    """Subtract the largest logit of each row."""
    return x - xp.max(x)


def exponentiate_gaps(xp: Operations, x: Any) -> GapExponentials:
    """Exponentiate the gap of every class but the predicted one to the largest logit."""
    predicted_class = xp.argmax(x)
    gaps = compute_gaps(xp, x)
    other_exponentials = xp.replace_class_entry(xp.exp(gaps), predicted_class, 0.0)
    return GapExponentials(
        predicted_class=predicted_class,
        gaps=gaps,
        other_exponentials=other_exponentials,
        others_sum=xp.sum(other_exponentials),
    )


def mean_over_unmasked(xp: Operations, table: Any, is_unmasked: Any) -> Any:
    """Compute the mean of each row over its unmasked classes."""
    return xp.sum(xp.where(is_unmasked, table, 0.0)) / xp.count_true(is_unmasked, table)


def uniform_probabilities(xp: Operations, x: Any) -> Any:
    """Compute the uniform distribution over the unmasked classes of each row."""
    is_unmasked = xp.find_unmasked(x)
    return xp.to_float(is_unmasked) / xp.count_true(is_unmasked, x)


@formula
def entropy(xp: Operations, x: Any) -> Any:
    """Compute the entropy of softmax(x), log(1 + S) - sum_j e^{d_j} d_j / (1 + S)."""
    exponentials = exponentiate_gaps(xp, x)
    finite_gaps = xp.maximum(exponentials.gaps, MIN_GAP)
    weighted_gap_sum = xp.sum(exponentials.other_exponentials * finite_gaps)
    exp_sum_of_others = exponentials.others_sum
    return xp.log1p(exp_sum_of_others) - weighted_gap_sum / (1.0 + exp_sum_of_others)


@formula
def one_minus_max_probability(xp: Operations, x: Any) -> Any:
    """Compute 1 - max p = S / (1 + S), where p = softmax(x)."""
    exp_sum_of_others = exponentiate_gaps(xp, x).others_sum
    return exp_sum_of_others / (1.0 + exp_sum_of_others)


@formula
def negative_margin(xp: Operations, x: Any) -> Any:
    """Compute the second largest logit minus the largest.

    If every other class is masked, the result is the most negative finite number.
    """
    gaps = compute_gaps(xp, x)
    other_gaps = xp.replace_class_entry(gaps, xp.argmax(x), -np.inf)
    lowest_float = -float(xp.finfo(x).max)
    return xp.maximum(xp.max(other_gaps), lowest_float)


@formula
def free_energy(xp: Operations, x: Any) -> Any:
    """Compute -logsumexp(x) = -(max x + log(1 + S))."""
    return -(xp.max(x) + xp.log1p(exponentiate_gaps(xp, x).others_sum))


@formula
def spread(xp: Operations, x: Any) -> Any:
    """Compute the largest minus the smallest finite logit."""
    return xp.max(xp.where(xp.find_unmasked(x), -compute_gaps(xp, x), 0.0))


@formula
def maxlogit_pnorm(xp: Operations, x: Any) -> Any:
    """Compute the 8-norm of the other centred logits relative to the largest one.

    With z = x - mean x over the unmasked classes, the score is
    ‖(z_j)_{j≠top}‖_8 / z_top, and 0 if only one class is unmasked.

    It ranks the rows as -z_top / ‖z‖_8 does ("MaxLogit p-norm", Cattelan & Silva, 2024),
    because (‖z‖_8 / z_top)^8 is the 8th power of this score plus one. Unlike the inverse,
    it preserves the digits of confident rows. With the distances g_j = max x - x_j and
    their mean m, z_j / z_top = 1 - g_j / m, so a common factor of the logits cancels. The
    8th power is computed by squaring three times, the 8th root by three square roots.
    """
    is_unmasked = xp.find_unmasked(x)
    largest_float = float(xp.finfo(x).max)
    distance_to_max = xp.where(is_unmasked, xp.minimum(-compute_gaps(xp, x), largest_float), 0.0)
    largest_distance = xp.max(distance_to_max)
    # If all logits are equal, the divisors are set to one to avoid a division by zero.
    all_equal = largest_distance == 0.0
    distance_to_max = distance_to_max / xp.where(all_equal, 1.0, largest_distance)
    mean_distance = xp.sum(distance_to_max) / xp.count_true(is_unmasked, x)
    divisor = xp.where(all_equal, 1.0, mean_distance)
    ratio_to_predicted = xp.where(is_unmasked, 1.0 - distance_to_max / divisor, 0.0)
    other_ratios = xp.replace_class_entry(ratio_to_predicted, xp.argmax(x), 0.0)
    second_power = other_ratios * other_ratios
    fourth_power = second_power * second_power
    eighth_power = fourth_power * fourth_power
    sum_of_eighth_powers = xp.sum(eighth_power)
    fourth_root = xp.sqrt(xp.sqrt(sum_of_eighth_powers))
    return xp.sqrt(fourth_root)
