"""Tables of promises about cases: receipts and synthetic cases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.tables.markdown import table

Results = dict[str, Any]

_RECEIPT_METHODS = {
    "each type": "a cut for each field",
    "one raw scale": "one cut",
    "metacal": "**metacal**",
    "scale of the file": "known scale",
    "monotone scale of the file": "known monotone scale",
}
_SYNTHETIC_METHODS = {
    "each type": "a cut for each type",
    "one raw scale": "one cut",
    "metacal": "**metacal**",
    "true log-odds": "true log-odds",
}
_OTHER_PROMISES = {
    "automated": "of the automated receipts with an error",
    "MaxErrorsPerCase": "errors of a receipt on average, at most four",
}


def receipts(results: Results) -> list[str]:
    """Return the accepted fields of each method for a limit on all receipts."""
    rows = []
    for cell in _cells(results, data="receipts", promise="MaxCaseErrors"):
        hindsight = (
            f"{cell[f'hindsight within the {share}']:.1%}" for share in ("mean share", "limit")
        )
        rows.append((*_format_size(cell), *_format_methods(cell, _RECEIPT_METHODS), *hindsight))
    head = (
        "receipts",
        "limit",
        *_RECEIPT_METHODS.values(),
        "in hindsight, at the mean share",
        "in hindsight, at the limit",
    )
    return table(head, rows)


def other_promises(results: Results) -> list[str]:
    """Return the accepted fields for the other promises about receipts."""
    rows = []
    for promise, words in _OTHER_PROMISES.items():
        for cell in _cells(results, data="receipts", promise=promise):
            names = [name for name in ("metacal", "scale of the file") if name in cell["methods"]]
            accepted = _format_methods(cell, names)
            if len(accepted) == 1:
                accepted.append("not measured")
            infeasible = f"{cell['methods']['metacal']['infeasible']:.1%}"
            rows.append((words, *_format_size(cell), *accepted, infeasible))
    head = ("limit of", "receipts", "limit", "**metacal**", "known scale", "infeasible")
    return table(head, rows)


def synthetic(results: Results) -> list[str]:
    """Return the accepted items of each method on synthetic cases."""
    rows = []
    for cell in _cells(results, data="synthetic", promise="MaxCaseErrors"):
        size = f"{cell['limit']:.0%}"
        rows.append((cell["population"], size, *_format_methods(cell, _SYNTHETIC_METHODS)))
    return table(("items", "limit", *_SYNTHETIC_METHODS.values()), rows)


def _cells(results: Results, **wanted: str) -> list[dict[str, Any]]:
    """Return the cells with some values."""
    return [
        cell
        for cell in results["cells"]
        if all(cell[name] == value for name, value in wanted.items())
    ]


def _format_size(cell: dict[str, Any]) -> tuple[str, str]:
    """Return the number of cases and the limit."""
    return f"{cell['cases']:,}", f"{cell['limit']:.0%}"


def _format_methods(cell: dict[str, Any], methods: Iterable[str]) -> list[str]:
    """Return the accepted share of each method, and in brackets how often it broke the promise."""
    measured = (cell["methods"][name] for name in methods)
    return [f"{one['accepted']:.1%} ({one['broken']:.0%})" for one in measured]
