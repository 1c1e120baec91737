"""What the page is told of each promised quantity: the verdict, and how to speak of it and where to draw it."""

from __future__ import annotations

from typing import Any

from metacal.promises.shares import at_least, at_most
from metacal.promises.verdict import Verdict


def spoken(part: Verdict, n_accepted: int, by: str = "") -> dict[str, Any]:
    """One quantity's verdict as the page gets it: no reader has to know what a quantity's name means.

    Examples
    --------
    >>> from metacal.promises.quantity import MISCOVERAGE
    >>> kept = Verdict(MISCOVERAGE, 0.1, 0.08, 0.07, 0.09, 0.95, True, False)
    >>> told = spoken(kept, 900)
    >>> told["direction"], told["limit"], told["counted"], told["curve"]
    ('at most', '10%', 'of the right answers were turned away', 'miscoverage')
    """
    promised = part.quantity
    where = "" if part.part is None else f" in {by} {part.part}, which has the most against it"
    counted = promised.measured.format(n_accepted=n_accepted)
    if where:  # so many are accepted in all, not there
        counted = counted.replace(f"the {n_accepted:,} ", "the ")
    return {
        **part.to_dict(),
        "direction": promised.direction,
        "counted": counted + where,
        "curve": promised.short,
        "limit": promised.written(part.target, at_least, at_most),
        "mean": promised.mean,
        "text": str(part),
    }
