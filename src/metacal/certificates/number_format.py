"""Formatting of shares as percentages, and rounding of bounds.

A promised share must not look stricter than it is: a lower bound is rounded down and an upper bound
is rounded up. Shares that are only described are rounded to the nearest value.
"""

from __future__ import annotations

import decimal
import math

#: Number of significant digits of a promised percentage.
_SIGNIFICANT_DIGITS = 6
#: Number of decimals of a percentage that is not promised.
_DESCRIBED_DECIMALS = 6
#: Step to which shares are rounded, to remove floating-point errors as in 1 - 0.07.
_FLOAT_ERROR_STEP = decimal.Decimal("1e-15")
#: Distance from 0 or 1 within which shares are not rounded, to keep their printed digits.
_MIN_ROUNDED_DISTANCE = 1e-9
#: Percentage below which scientific notation is used.
_SMALLEST_FIXED_POINT_PERCENT = decimal.Decimal("1e-4")


def format_percent(share: float) -> str:
    """Format a share as a percentage, rounded to six decimals.

    If the share is promised, use `format_percent_floor` or `format_percent_ceil`, which never
    state more than is promised.

    >>> format_percent(0.05), format_percent(0.975), format_percent(0.9999), format_percent(0.9999996)
    ('5%', '97.5%', '99.99%', '99.99996%')
    """
    percentage = 100.0 * share
    rounded_text = f"{round(percentage, _DESCRIBED_DECIMALS):g}%"
    is_strictly_between_0_and_1 = 0.0 < share < 1.0
    if is_strictly_between_0_and_1 and rounded_text in ("0%", "100%"):
        # Rounding must not turn a share between 0 and 1 into 0% or 100%.
        return f"{percentage:.15g}%"
    return rounded_text


def format_percent_floor(share: float) -> str:
    """Format a lower bound or a confidence level as a percentage, rounded down.

    >>> format_percent_floor(0.97), format_percent_floor(0.9999996), format_percent_floor(1.0 - 0.07)
    ('97%', '99.9999%', '93%')
    """
    return _format_rounded_percent(share, decimal.ROUND_FLOOR)


def format_percent_ceil(share: float) -> str:
    """Format an upper bound as a percentage, rounded up.

    >>> format_percent_ceil(0.05), format_percent_ceil(0.12345612), format_percent_ceil(1e-9)
    ('5%', '12.3457%', '1e-7%')
    """
    return _format_rounded_percent(share, decimal.ROUND_CEILING)


def _format_rounded_percent(share: float, rounding: str) -> str:
    """Format a share as a percentage with six significant digits.

    `rounding` is a rounding mode of the module `decimal`.
    """
    decimal_share = decimal.Decimal(repr(float(share)))
    if _MIN_ROUNDED_DISTANCE < decimal_share < 1 - _MIN_ROUNDED_DISTANCE:
        decimal_share = decimal_share.quantize(_FLOAT_ERROR_STEP)
    rounding_context = decimal.Context(prec=_SIGNIFICANT_DIGITS, rounding=rounding)
    percentage = rounding_context.create_decimal(100 * decimal_share).normalize()
    if percentage == 0 or percentage >= _SMALLEST_FIXED_POINT_PERCENT:
        return f"{percentage:f}%"
    return f"{percentage:g}%"


def floor_to_4_decimals(lower_bound: float) -> float:
    """Round a lower bound down to four decimals, so that it remains a lower bound."""
    return math.floor(lower_bound * 1e4) / 1e4


def ceil_to_4_decimals(upper_bound: float) -> float:
    """Round an upper bound up to four decimals, so that it remains an upper bound."""
    return math.ceil(upper_bound * 1e4) / 1e4
