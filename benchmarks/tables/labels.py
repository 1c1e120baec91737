"""The tables of `benchmarks/labels.py`: labels as a share of the rows drawn, and how often a
promise was broken.
"""

from __future__ import annotations

from typing import Any

from benchmarks.tables.markdown import number, table

Results = dict[str, Any]


def mean_share(records: list[dict[str, Any]]) -> float:
    """Labels / N, each replay counted alike.

    Examples
    --------
    >>> mean_share([{"share": 0.5, "replays": 10}, {"share": 0.8, "replays": 20}])
    0.7
    """
    total = sum(one["replays"] for one in records)
    return float(round(sum(one["share"] * one["replays"] for one in records) / total, 4))


def by_set(results: Results) -> list[str]:
    """A line for each set, a column for each N: labels / N, mean over targets."""
    records = results["records"]
    sizes = sorted({one["n"] for one in records})
    rows = []
    for name in dict.fromkeys(one["set"] for one in records):
        own = [one for one in records if one["set"] == name]
        cells = [[one for one in own if one["n"] == n] for n in sizes]
        rows.append(
            (name, *(number(mean_share(cell), 2) if cell else "" for cell in cells), _mean(own))
        )
    rows.append(
        (
            "all",
            *(number(mean_share([one for one in records if one["n"] == n]), 2) for n in sizes),
            _mean(records),
        )
    )
    return table(("set", *(f"N = {n:,}" for n in sizes), "mean"), rows)


def by_coverage(results: Results) -> list[str]:
    """Labels / N by the coverage that came out."""
    names = ("nothing certified", "below .5", ".5 to .8", ".8 and more")
    rows = []
    for k, name in enumerate(names):
        replays = sum(one["in_band"][k] for one in results["records"])
        rows.append(
            (
                name,
                f"{replays:,}",
                number(sum(one["band"][k] for one in results["records"]) / replays, 2),
            )
        )
    return table(("coverage", "replays", "labels / N"), rows)


def hostile(results: Results) -> list[str]:
    """A line for each population that is made to break a promise: how often it was, for each way to
    ask.
    """
    ways = list(
        dict.fromkeys((one["n"], one["digits"], one["extended"]) for one in results["hostile"])
    )
    rows = []
    for name in dict.fromkeys(one["population"] for one in results["hostile"]):
        own = {
            (one["n"], one["digits"], one["extended"]): one
            for one in results["hostile"]
            if one["population"] == name
        }
        rows.append((name, *(number(own[way]["broken"], 3) for way in ways)))
    return table(("population", *map(_words, ways)), rows)


def _mean(records: list[dict[str, Any]]) -> str:
    return f"**{number(mean_share(records), 2)}**"


def _words(way: tuple[int, int | None, bool]) -> str:
    n, digits, extended = way
    ties = "" if digits is None else f", scores of {digits} decimal{'s' * (digits > 1)}"
    return f"N = {n:,}{ties}{f', then {4 * n:,}' if extended else ''}"
