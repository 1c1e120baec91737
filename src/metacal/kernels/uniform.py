"""The loss of a temperature with a uniform part, from a few numbers of each row that one walk over the table gives.

A row has q = (1 - ε)·p + ε·u with p = softmax(b·x)_y, and u one over the number of classes that are not masked. What
`mixed_rows` says of it at one inverse temperature says it at others nearby, too: ε and small steps of b cost no walk.
Arrays and tensors have these few operations under the same names.
"""

from __future__ import annotations

from typing import Any

#: The columns of `mixed_rows`: first Σ e^{bd} - 1, then four cumulants of d under softmax(b·x).
TAIL, MEAN, VARIANCE, THIRD, FOURTH, OWN, POSSIBLE, RIGHT = range(8)


def cumulants(m1: Any, m2: Any, m3: Any, m4: Any) -> tuple[Any, Any, Any, Any]:
    """The first four cumulants from the first four moments: mean, variance, third central moment, and the fourth.

    Examples
    --------
    >>> cumulants(0.5, 0.5, 0.5, 0.5)                              # a fair coin
    (0.5, 0.25, 0.0, -0.125)
    """
    square = m1 * m1
    third = m3 - m1 * (3.0 * m2 - 2.0 * square)
    return m1, m2 - square, third, m4 - 4.0 * m3 * m1 - 3.0 * m2 * m2 + 6.0 * square * (2.0 * m2 - square)


def log_partition(library: Any, columns: Any, step: Any) -> tuple[Any, Any, Any]:
    """log Σ e^{bd} and its first two derivatives in b, a `step` (one, or one for each row) from where rows were walked.

    Cumulants are its derivatives: these are the first terms of its series, with an error of fifth order in the step.
    What must be positive is: far below the top the series may not be.
    """
    value, mean, variance = library.log1p(columns[TAIL]), columns[MEAN], columns[VARIANCE]
    if isinstance(step, float) and step == 0.0:
        return value, mean, variance
    third, fourth = columns[THIRD], columns[FOURTH]
    value = value + step * (mean + step * (0.5 * variance + step * (third / 6.0 + (step / 24.0) * fourth)))
    slope = mean + step * (variance + step * (0.5 * third + (step / 6.0) * fourth))
    return value.clip(0.0), slope, (variance + step * (third + (0.5 * step) * fourth)).clip(0.0)


def mixed_sums(library: Any, columns: Any, weights: Any, walked: float, b: float, uniform: float) -> Any:
    """Σ of -log q, its gradient in (log b, ε), and its curvature: six numbers (L, L_a, L_e, L_aa, L_ae, L_ee).

    `columns` are those of `mixed_rows`, one after another, walked at an inverse temperature near b. With a = log b,
    g = d log p / da, h = d²log p / da² and r = (1 - ε) p / q::

        L_a = -r g,   L_aa = -r h - r (1 - r) g²,   L_e = (p - u) / q,   L_ee = L_e²,   L_ae = p u g / q²
    """
    own, even = columns[OWN], 1.0 / columns[POSSIBLE]
    value, first, second = log_partition(library, columns, b - walked)
    chance = library.exp(b * own - value)
    mixed = (1.0 - uniform) * chance + uniform * even
    each = 1.0 / mixed
    slope = b * (own - first)
    share = (1.0 - uniform) * chance * each
    away = (chance - even) * each
    part = share * slope
    terms = (
        -library.log(mixed),
        -part,
        away,
        (b * b) * share * second - part - (part - share * part) * slope,
        chance * even * slope * each * each,
        away * away,
    )
    return library.stack([term.sum() if weights is None else (term * weights).sum() for term in terms])


def mixed_log_odds(library: Any, columns: Any, walked: float, b: float, uniform: float) -> Any:
    """log(max q / (1 - max q)) of each row, without cancellation; q has a uniform part above 0."""
    even = 1.0 / columns[POSSIBLE]
    value = log_partition(library, columns, b - walked)[0]
    ahead = (1.0 - uniform) * library.exp(-value) + uniform * even
    rest = -(1.0 - uniform) * library.expm1(-value) + uniform * (1.0 - even)
    return library.log(ahead) - library.log(rest)
