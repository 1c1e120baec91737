"""What the page is told of each promised quantity: the verdict, and how to speak of it and where to draw it."""

from __future__ import annotations

from typing import Any

from metacal.promises.verdict import Verdict

#: Quantity -> whether its target is a ceiling or a floor, what its share is a share of, and the curve that shows it.
SPOKEN = {
    "miscoverage": ("at most", "of the right answers were turned away", "miscoverage"),
    "coverage accuracy": ("at least", "of the {n_accepted:,} accepted rows are right", "accuracy"),
}


def spoken(part: Verdict, n_accepted: int) -> dict[str, Any]:
    """One quantity's verdict as the page gets it: no reader has to know what a quantity's name means.

    Examples
    --------
    >>> kept = Verdict("miscoverage", 0.1, 0.08, 0.07, 0.09, 0.95, True, False)
    >>> told = spoken(kept, 900)
    >>> told["direction"], told["counted"], told["curve"]
    ('at most', 'of the right answers were turned away', 'miscoverage')
    """
    direction, counted, curve = SPOKEN[part.quantity]
    return {
        **part.to_dict(),
        "direction": direction,
        "counted": counted.format(n_accepted=n_accepted),
        "curve": curve,
        "text": str(part),
    }
