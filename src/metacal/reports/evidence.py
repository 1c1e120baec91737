"""Evidence of an alarm in words: "1 in 1,000".

While nothing has changed, the evidence of an alarm ever reaches E with probability at most 1/E
(Ville's inequality). So evidence of E = 1,000 is shown as "1 in 1,000": if nothing had changed, at
most one monitor in 1,000 would ever show as much.
"""

from __future__ import annotations

import math

#: Names of large numbers, the largest first.
_LARGE_NUMBERS = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
#: Evidence above which only this limit is shown.
_MAX_SHOWN_EVIDENCE = 1e15
#: Evidence below which none is shown: 1 in 1.1 says nothing.
_MIN_SHOWN_EVIDENCE = 1.1
#: Relative error of exp(log(x)), which is added before a number is rounded down.
_ROUNDING_TOLERANCE = 1e-9


def format_evidence(log_evidence: float) -> str:
    """Format evidence, given by its natural logarithm.

    Examples
    --------
    >>> [format_evidence(math.log(number)) for number in (0.5, 1.5, 40, 212.4, 1e4, 2.34e6, 8e20)]
    ['none', '1 in 1.5', '1 in 40', '1 in 212', '1 in 10,000', '1 in 2.3 million', 'under 1 in 1,000 trillion']
    """
    if log_evidence < math.log(_MIN_SHOWN_EVIDENCE):
        return "none"
    if log_evidence > math.log(_MAX_SHOWN_EVIDENCE):
        return "under 1 in 1,000 trillion"
    return f"1 in {_format_rounded_down(math.exp(log_evidence))}"


def _format_rounded_down(number: float) -> str:
    """Format a number above 1, rounded down to avoid overstated evidence."""
    # A tiny factor keeps a number that is meant to be round, such as exp(log(40)), as it is.
    number *= 1.0 + _ROUNDING_TOLERANCE
    for unit_size, unit_name in _LARGE_NUMBERS:
        if number >= unit_size:
            n_units = number / unit_size
            n_decimals = 1 if n_units < 10 else 0
            number_text = f"{_round_down(n_units, n_decimals):,.{n_decimals}f}"
            return f"{number_text.removesuffix('.0')} {unit_name}"
    n_decimals = 1 if number < 10 else 0
    number_text = f"{_round_down(number, n_decimals):,.{n_decimals}f}"
    return number_text.removesuffix(".0")


def _round_down(number: float, n_decimals: int) -> float:
    """Round a number down to some decimals."""
    scale = 10**n_decimals
    return math.floor(number * scale) / scale
