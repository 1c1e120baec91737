"""Tables of metacal and MAPIE on the same pairs, receipts and tweets, for the how-to pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.tables.markdown import table

Results = dict[str, Any]

#: Title of each multiple test of MAPIE.
_MAPIE = {
    "bonferroni_holm": "MAPIE 1.6, default",
    "fixed_sequence": "MAPIE 1.6, fixed sequence",
}
_FILES = {
    "matching_abt_buy": "Abt-Buy",
    "matching_amazon_google": "Amazon-Google",
    "matching_walmart_amazon": "Walmart-Amazon",
}


def matching(results: Results) -> list[str]:
    """Return how many of the matches that an oracle finds each rule finds, file by file."""
    rows = []
    for cell in results["recall"]:
        if cell["population"] not in _FILES or cell["digits"] is not None or cell["n"] != 2049:
            continue
        mapie = [cell["mapie"][name] for name in _MAPIE]
        rows.append(
            (
                _FILES[cell["population"]],
                f"{cell['beta']:.0%}",
                f"{cell['oracle recall']:.0%}",
                f"{cell['now']:.0%} ({cell['broken']:.0%})",
                *(f"{one['recall']:.0%} ({one['broken']:.0%})" for one in mapie),
            )
        )
    head = ("pairs", "accuracy", "oracle", "**metacal**", *_MAPIE.values())
    return table(head, rows)


def extraction(results: Results) -> list[str]:
    """Return the accepted fields and the broken promises of each rule on receipts."""
    rows = []
    for cell in results["cells"]:
        if cell["data"] != "receipts" or cell["promise"] != "MaxCaseErrors":
            continue
        methods = ["metacal", "one raw scale", *(f"MAPIE {name}" for name in _MAPIE)]
        rows.append(
            (
                f"{cell['cases']:,}",
                f"{cell['limit']:.0%}",
                *(_format_cell(cell["methods"][name], "accepted") for name in methods),
            )
        )
    head = ("receipts", "limit", "**metacal**", "metacal, one threshold", *_MAPIE.values())
    return table(head, rows)


def redaction(results: Results) -> list[str]:
    """Return the masked harmless words and the broken promises of each rule on tweets."""
    rows = []
    for cell in results["cells"]:
        if cell["data"] != "tweets" or cell["uncovered"] > 0.01:
            continue
        methods = ["metacal", *(f"MAPIE {name}" for name in _MAPIE)]
        rows.append(
            (
                f"{cell['cases']:,}",
                f"{1 - cell['limit']:.0%}",
                f"{cell['floor']:.1%}",
                *(_format_cell(cell["methods"][name], "masked") for name in methods),
            )
        )
    head = ("tweets", "target", "floor of the leaks", "**metacal**", *_MAPIE.values())
    return table(head, rows)


def _format_cell(measured: Mapping[str, float], name: str) -> str:
    """Return a share, and in brackets how often the promise was broken."""
    return f"{measured[name]:.1%} ({measured['broken']:.0%})"


#: Name of each table -> the result that it comes from, and its function.
TABLES: dict[str, tuple[str, Callable[[Results], list[str]]]] = {
    "mapie-matching": ("rare-rows", matching),
    "mapie-extraction": ("case-promises", extraction),
    "mapie-redaction": ("case-promises", redaction),
}
