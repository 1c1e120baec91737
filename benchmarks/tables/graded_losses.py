"""Tables of graded losses: whole rules, rounding and single tests."""

from __future__ import annotations

from typing import Any

from benchmarks.tables.markdown import number, table

Results = dict[str, Any]


def populations(results: Results) -> list[str]:
    """Return the accepted share of the oracle's by the former rule and by this one, at each size."""
    sizes = results["populations"]["sizes"]
    oracle = results["populations"]["oracle"]
    rows = []
    for name in [*oracle, "mean"]:
        cells = [
            f"{number(cell['former'], 2)} / **{number(cell['rule'], 2)}**"
            for cell in (measured[name] for measured in sizes.values())
        ]
        oracle_share = number(oracle[name], 2) if name in oracle else ""
        rows.append((name, oracle_share, *cells))
    return table(("population, limit", "oracle", *(f"n = {int(n):,}" for n in sizes)), rows)


def near_binary(results: Results) -> list[str]:
    """Return the accepted share of the oracle's by rounding and by bets that expect rare losses."""
    cells = {name: cell for name, cell in results["near binary"].items() if name != "draws"}
    sizes = list(dict.fromkeys(name.rpartition(", ")[2] for name in cells))
    rows = []
    for population in dict.fromkeys(name.rpartition(", ")[0] for name in cells):
        shares = (cells[f"{population}, {size}"] for size in sizes)
        rows.append(
            (
                population,
                *(
                    f"{number(cell['rounding'], 2)} / {number(cell['bets, rare'], 2)}"
                    for cell in shares
                ),
            )
        )
    return table(("population, limit", *(f"n · limit = {size}" for size in sizes)), rows)


def tests(results: Results) -> list[str]:
    """Return how often a single test passes, by constant stakes and by replicating ones."""
    rows = [
        (name, number(cell["constant"], 3), number(cell["replicating"], 3))
        for name, cell in results["tests"].items()
        if name != "draws"
    ]
    return table(("losses, limit, rows, mean / limit", "constant stakes", "replicating"), rows)
