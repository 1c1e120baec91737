"""Shares as people write them: to the nearest, or to the side on which a promise stays true."""

from __future__ import annotations

import decimal
import math


def percent(value: float) -> str:
    """A share as people write it, to the nearest: six digits, no trailing zeros.

    Where the share is a promise use `at_least` or `at_most`, which never say more than is promised.

    Examples
    --------
    >>> percent(0.05), percent(0.975), percent(0.9999), percent(0.9999996)
    ('5%', '97.5%', '99.99%', '99.99996%')
    """
    text = nearest(value)
    if 0.0 < value < 1.0 and text in ("0%", "100%"):  # a share that is not all, or not nothing, is not called so
        return f"{100.0 * value:.15g}%"
    return text


def nearest(value: float) -> str:
    """To the nearest: six digits, no trailing zeros."""
    return f"{round(100.0 * value, 6):g}%"


def at_least(value: float) -> str:
    """A share that is promised from below, or a confidence, as people write it: six digits, the rest cut off.

    Examples
    --------
    >>> at_least(0.97), at_least(0.9999996), at_least(1.0 - 0.07)
    ('97%', '99.9999%', '93%')
    """
    return _rounded(value, decimal.ROUND_FLOOR)


def at_most(value: float) -> str:
    """A share that is promised from above, as people write it: six digits, rounded up.

    Examples
    --------
    >>> at_most(0.05), at_most(0.12345612), at_most(1e-9)
    ('5%', '12.3457%', '1e-7%')
    """
    return _rounded(value, decimal.ROUND_CEILING)


#: Six digits of a percentage; what a float's last bit adds or takes, as in 1 - 0.07, is no part of what was promised.
_DIGITS, _NOISE = 6, decimal.Decimal("1e-15")


def _rounded(value: float, rounding: str) -> str:
    share = decimal.Decimal(repr(float(value)))
    share = share.quantize(_NOISE) if 1e-9 < share < 1 - 1e-9 else share
    context = decimal.Context(prec=_DIGITS, rounding=rounding)
    number = context.create_decimal(100 * share).normalize()
    return f"{number:{'f' if number == 0 or number >= decimal.Decimal('1e-4') else 'g'}}%"


def rounded_down(value: float) -> float:
    """To four decimals, never up: a bound from below stays one."""
    return math.floor(value * 1e4) / 1e4


def rounded_up(value: float) -> float:
    """To four decimals, never down: a bound from above stays one."""
    return math.ceil(value * 1e4) / 1e4
