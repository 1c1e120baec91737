"""What promises about two sides accept beside MAPIE's controllers."""

from __future__ import annotations

from itertools import product
from typing import Any

from benchmarks.two_sided import OF_MAPIE, SIZES


def beside_mapie(result: dict[str, Any]) -> list[str]:
    """The table of docs/two-classes.md, line by line: means over the populations, and where we are
    least ahead.
    """
    lines = [
        "| promise | rows | accepted | by MAPIE's best | least ahead |",
        "|---|---|---|---|---|",
    ]
    for what, n in product(OF_MAPIE, SIZES):
        rows = [
            row
            for row in result.get("beside MAPIE", [])
            if (row["promise"], row["rows"]) == (what, n)
        ]
        if rows:
            ours, theirs = (
                sum(row[name] for row in rows) / len(rows) for name in ("accepted", "it accepts")
            )
            least = min(rows, key=lambda row: row["more"])
            where = f"{least['more']:+.3f} ({least['population']})"
            lines.append(f"| {what} | {n:,} | {ours:.3f} | {theirs:.3f} | {where} |")
    return lines
