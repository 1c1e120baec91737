"""The tables of `benchmarks/calibrators.py` and `benchmarks/data_card.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.tables.markdown import number, table

Results = dict[str, Any]
AFFINE = (
    "temperature",
    "uniform-temperature",
    "ensemble-temperature",
    "structured",
    "vector",
    "matrix",
    "dirichlet",
)
CURVES = ("spline", "composed", "irm", "top-label-isotonic", "top-label-histogram", "top-label-bbq", "platt", "beta",
          "irova-ts", "isotonic", "histogram", "imax", "bbq")  # fmt: skip
_TWO = ("cifar10-resnet110", "cifar100-resnet110")


def _named(row: Results) -> str:
    return f"`{row['class']}`" + (
        f", `{row['option']}`" if "=" in row["option"] else f", {row['option']}".rstrip(", ")
    )


def _family(results: Results, methods: Sequence[str]) -> list[str]:
    """Log loss, ECE, accuracy and seconds of a fit on the two embedded sets."""
    found = [row for row in results["rows"] if row["method"] in ("temperature", *methods)]
    by_choice: dict[tuple[str, str], dict[str, Results]] = {}
    for row in found:
        by_choice.setdefault((row["method"], row["option"]), {})[row["set"]] = row
    rows = []
    for own in by_choice.values():
        cells: list[str] = []
        for name in _TWO:
            one = own[name]
            cells += [
                number(one["nll"]),
                number(one["ece"]),
                number(one["accuracy"]),
                f"{one['seconds']:.2g}",
            ]
        rows.append((_named(own[_TWO[0]]), *cells))
    head = [
        "CIFAR-10 log loss",
        "ECE",
        "accuracy",
        "s",
        "CIFAR-100 log loss",
        "ECE",
        "accuracy",
        "s",
    ]
    return table(("", *head), rows)


def affine(results: Results) -> list[str]:
    """Maps that are linear in the logits."""
    return _family(results, AFFINE)


def curves(results: Results) -> list[str]:
    """One curve a class, or one of the top label."""
    return _family(results, CURVES)


def local(results: Results) -> list[str]:
    """Temperature, Gaussian process and local temperatures on every set."""
    chosen = {
        "temperature": ("temperature", ""),
        "GP": ("gaussian-process", ""),
        "GP, log-softmax": ("gaussian-process", 'centre="log_softmax"'),
        "local temperature": ("local-temperature", ""),
    }
    known = {(row["set"], row["method"], row["option"]): row for row in results["rows"]}
    rows = []
    for name in dict.fromkeys(row["set"] for row in results["rows"]):
        own = (known[(name, *choice)] for choice in chosen.values())
        rows.append((f"`{name}`", *(f"{number(one['ece'])} / {number(one['nll'])}" for one in own)))
    return table(("set", *chosen), rows)


def every(results: Results) -> list[str]:
    """Every method as it comes: means over the networks of CIFAR-10 and of CIFAR-100, and whether
    predictions stay.
    """
    rows = []
    for method in dict.fromkeys(row["method"] for row in results["rows"]):
        own = [row for row in results["rows"] if row["method"] == method and not row["option"]]
        cells: list[str] = []
        for family in ("cifar10-", "cifar100-"):
            some = [row for row in own if row["set"].startswith(family)]
            cells += [number(sum(row[key] for row in some) / len(some)) for key in ("nll", "ece")]
        touched = sum(row["changed"] > 0 for row in own)
        most = max(row["changed"] for row in own) / 10_000
        stay = (
            f"changed on {touched} of {len(own)} sets, at most {100 * most:.2f}%"
            if touched
            else "kept"
        )
        rows.append((_named(own[0]), *cells, stay))
    rows.sort(key=lambda row: float(row[1]))
    return table(("", "CIFAR-10 log loss", "ECE", "CIFAR-100 log loss", "ECE", "predictions"), rows)


def card(results: Results) -> list[str]:
    """The sets that come with the project."""
    rows = []
    for name, one in results["sets"].items():
        shares = (number(one[key]) for key in ("accuracy_held_out", "accuracy_test", "nll", "ece"))
        rows.append((f"`{name}`", *shares, f"{one['temperature']:.3f}", f"{one['bytes']:,}"))
    return table(
        ("set", "accuracy, held out", "accuracy, test", "log loss", "ECE", "best T", "bytes"), rows
    )
