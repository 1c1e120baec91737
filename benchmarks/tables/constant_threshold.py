"""Tables of constant, tuned and certified thresholds, for the how-to pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.tables.markdown import table

Results = dict[str, Any]

_METHODS = {
    "metacal": "**metacal**",
    "tuned": "tuned on the same cases",
    "0.5": "constant 0.5",
    "0.7": "constant 0.7",
    "0.85": "constant 0.85",
}


def matching(results: Results) -> list[str]:
    """Return how often each method breaks the promise about pairs, and the matches it accepts."""
    head = ("threshold", "Abt-Buy: broken", "matches found", "Amazon-Google: broken", "found")
    return table(head, _rows(results, "abt_buy", "amazon_google"))


def extraction(results: Results) -> list[str]:
    """Return how often each method breaks the promises about receipts, and the fields it accepts."""
    head = (
        "threshold",
        "of automated receipts: broken",
        "fields accepted",
        "of all receipts: broken",
        "accepted",
    )
    return table(head, _rows(results, "receipts automated", "receipts"))


def redaction(results: Results) -> list[str]:
    """Return how often each method breaks the promise about tweets, the leaks and the masks."""
    cells = results["tasks"]["tweets"]["methods"]
    rows = [
        (
            title,
            f"{cells[method]['broken']:.0%}",
            f"{cells[method]['risk']:.1%}",
            f"{cells[method]['amount']:.1%}",
        )
        for method, title in _METHODS.items()
    ]
    head = ("threshold", "promise broken", "tweets that leak a name", "harmless words masked")
    return table(head, rows)


def _rows(results: Results, *tasks: str) -> list[tuple[str, ...]]:
    """Return the broken promises and the accepted share of each method, task by task."""
    rows = []
    for method, title in _METHODS.items():
        cells = [results["tasks"][task]["methods"][method] for task in tasks]
        shares = [f"{cell[key]:.0%}" for cell in cells for key in ("broken", "amount")]
        rows.append((title, *shares))
    return rows


TABLES: dict[str, Callable[[Results], list[str]]] = {
    "constant-matching": matching,
    "constant-extraction": extraction,
    "constant-redaction": redaction,
}
