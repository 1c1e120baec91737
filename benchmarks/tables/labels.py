"""The tables of `benchmarks/labels.py`: labels until a promise is certified, and how often it was broken."""

from __future__ import annotations

import ast
from typing import Any

from benchmarks.tables.markdown import table

Results = dict[str, Any]


def shares(results: Results) -> list[str]:
    """A line for each set and promise: labels as a share of the fixed-n rule's, and what they were for."""
    lines: dict[tuple[str, str, int], dict[float, dict[str, Any]]] = {}
    for record in results["records"]:
        lines.setdefault((record["promise"], record["set"], record["n"]), {})[record["slack"]] = record
    head = ("promise", "set", "n", "C", "within .02: share", "median", "coverage", "at C: share", "broken")
    ordered = sorted(lines.items(), key=lambda one: _place(*one[0]))
    rows = [(_words(promise), name, f"{n:,}", *_line(found)) for (promise, name, n), found in ordered if 0.02 in found]
    return table(head, rows)


def hostile(results: Results) -> list[str]:
    """A line for each population that is made to break a promise."""
    head = ("population", "certified", "broken", "labels")
    rows = [
        (one["population"], f"{one['certified']:.3f}", f"{one['broken']:.3f}", f"{one['labels']:,.0f}")
        for one in results["hostile"]
    ]
    return table(head, rows)


def _line(found: dict[float, dict[str, Any]]) -> tuple[str, ...]:
    near, same = found[0.02], found.get(0.0)
    share = f"**{near['share']:.2f}** ± {near['share_se']:.2f}"
    broken = max(one["broken"] for one in found.values())
    return (
        f"{near['fixed_coverage']:.3f}",
        share,
        f"{near['median_share']:.2f}",
        f"{near['coverage']:.3f}",
        "" if same is None else f"{same['share']:.2f} ± {same['share_se']:.2f}",
        f"{broken:.3f}",
    )


def _words(promise: str) -> str:
    call: Any = ast.parse(promise, mode="eval").body
    limit = call.keywords[0]
    return f"{'accuracy >=' if limit.arg == 'beta' else 'miscoverage <='} {ast.literal_eval(limit.value):g}"


def _place(promise: str, name: str, n: int) -> tuple[str, int, str]:
    """Accuracies first, the strictest of them, then miscoverages; within each by the number of labels and the set."""
    return ("" if "0.97" in promise else promise[1:], n, name)
