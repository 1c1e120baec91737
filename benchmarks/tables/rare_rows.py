"""Tables of the rule for few correct rows: recall on normal scores and on matching files."""

from __future__ import annotations

from typing import Any

from benchmarks.tables.markdown import number, table

Results = dict[str, Any]

_PAIRS = {
    "matching_abt_buy": "Abt-Buy",
    "matching_amazon_google": "Amazon-Google",
    "matching_walmart_amazon": "Walmart-Amazon",
}


def normal_scores(results: Results) -> list[str]:
    """Return the recall of each rule on normal scores, as a share of the oracle's."""
    rows = []
    for cell in results["recall"]:
        if not cell["population"].startswith("normal"):
            continue
        share = float(cell["population"].split()[1])
        rows.append((f"{cell['n']:,}", f"{share:.0%}", *_format_recall(cell)))
    return table(("rows", "correct", *_HEAD), rows)


def matching(results: Results) -> list[str]:
    """Return the recall of each rule on pairs of records, as a share of the oracle's."""
    rows = []
    for cell in results["recall"]:
        if cell["population"] not in _PAIRS or cell["digits"] is not None:
            continue
        rows.append(
            (
                _PAIRS[cell["population"]],
                f"{cell['n']:,}",
                number(cell["beta"], 1),
                *_format_recall(cell),
            )
        )
    return table(("pairs", "rows", "β", *_HEAD), rows)


_HEAD = (
    "oracle",
    "one start for all",
    "**metacal**",
    "best single start",
    "infeasible",
    "broken",
    "MAPIE 1.6, default",
    "MAPIE 1.6, fixed sequence",
)


def _format_recall(cell: dict[str, Any]) -> list[str]:
    """Return the cells of the columns in `_HEAD`."""
    return [
        number(cell["oracle recall"], 2),
        number(cell["former"], 2),
        f"**{number(cell['now'], 2)}**",
        number(cell["ceiling"], 2),
        f"{cell['infeasible']:.0%}",
        f"{cell['broken']:.1%}",
        *(
            number(cell["mapie"][name]["recall"], 2)
            for name in ("bonferroni_holm", "fixed_sequence")
        ),
    ]
