"""The loss of a temperature with a uniform part, from the statistics of each row that a temperature needs as well.

A row has q = (1 - ε)·p + ε·u with p = softmax(b·x)_y, and u one over the number of classes that are not masked. Arrays
and tensors have these few operations under the same names.
"""

from __future__ import annotations

from typing import Any


def mixed_sums(library: Any, rows: Any, possible: Any, weights: Any, b: float, uniform: float) -> Any:
    """Σ of -log q, its gradient in (log b, ε), and its curvature: six numbers (L, L_a, L_e, L_aa, L_ae, L_ee).

    `rows` are -log p and its first two derivatives in b, three columns. With a = log b, g = d log p / da, h = d²log p /
    da² and r = (1 - ε) p / q::

        L_a = -r g,   L_aa = -r h - r (1 - r) g²,   L_e = (p - u) / q,   L_ee = L_e²,   L_ae = p u g / q²
    """
    chance = library.exp(-rows[:, 0])
    even = 1.0 / possible
    mixed = (1.0 - uniform) * chance + uniform * even
    slope = -b * rows[:, 1]
    bend = slope - b * b * rows[:, 2]
    share = (1.0 - uniform) * chance / mixed
    away = (chance - even) / mixed
    columns = [
        -library.log(mixed),
        -share * slope,
        away,
        -share * bend - share * (1.0 - share) * slope * slope,
        chance * even * slope / (mixed * mixed),
        away * away,
    ]
    found = library.stack(columns)
    return (found if weights is None else found * weights).sum(axis=1)
