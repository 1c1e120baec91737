"""The tables of the paper with the paper's figures beside ours, and the ones it does not have, in
Markdown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.paper.printed import ACCURACY, REPRODUCES
from benchmarks.paper.runs import METHODS, RULES
from benchmarks.paper.summary import Row, Spread
from benchmarks.tables.markdown import number, table

#: Rows by data set, in order.
Sets = dict[str, dict[str, Row]]

#: Temperature scaling on the accepted rows, and how much lower the gate's ECE is.
_ON_ACCEPTED = (("ece_ts_accepted", "ece_gain"), ("ece_refitted", "ece_gain_refitted"))
_DIRICHLET = ("dirichlet", "dirichlet-odir")
_GATES = ("meta-mis-paper", "meta-mis", "meta-acc-paper", "meta-acc")


def by_set(results: dict[str, Any]) -> Sets:
    """The rows of `paper_summary.results`, by data set and method."""
    found: Sets = {}
    for entry in results["rows"]:
        row = Row.from_dict(entry)
        found.setdefault(row.data, {})[row.method] = row
    return found


def standard_errors(row: Row) -> float | None:
    """(ours - the paper's) / sqrt(2) se: the paper's mean comes from as many runs as ours, so it is
    as uncertain.
    """
    ours = row.columns.get("ece_published")
    if ours is None or row.published_ece is None or not ours.se:
        return None
    return (ours.mean - row.published_ece) / (math.sqrt(2.0) * ours.se)


def table_1(sets: Sets) -> list[str]:
    """ECE of all rows as the paper counts it: ours, the paper's, the difference in standard errors.

    The accuracy is that of the uncalibrated network, ours on the test rows of the splits, which are
    of all rows; the paper's on the official test rows.
    """
    methods = [method for method in REPRODUCES if any(method in rows for rows in sets.values())]
    lines = []
    for name, rows in sets.items():
        first = next(iter(rows.values()))
        mark = " †" if _namesake(rows) and not first.of_the_paper else ""
        cells = [_against_the_paper(rows[method]) if method in rows else "-" for method in methods]
        lines.append(
            [first.family, f"{first.network}{mark}", f"`{name}`", _accuracy(first, rows), *cells]
        )
    return table(["data", "network", "set", "Acc", *(METHODS[method] for method in methods)], lines)


def table_2(sets: Sets, seconds: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """CPU seconds to fit and to predict the test rows: ours, the paper's, the difference in
    standard errors.
    """
    methods = [method for method in METHODS if any(method in rows for rows in sets.values())]
    lines = []
    for name, rows in sets.items():
        first = next(iter(rows.values()))
        cells = [_time(rows.get(method), seconds.get(name, {}).get(method)) for method in methods]
        lines.append([first.family, first.network, f"`{name}`", *cells])
    return table(["data", "network", "set", *(METHODS[method] for method in methods)], lines)


def debiased_table(sets: Sets) -> list[str]:
    """ECE of all rows as the paper counts it, and the same without the bias of a finite sample."""
    methods = [*REPRODUCES, "meta-mis", "meta-acc"]
    methods = [method for method in methods if any(method in rows for rows in sets.values())]
    lines = []
    for name, rows in sets.items():
        cells = [_plain_and_debiased(rows[method]) if method in rows else "-" for method in methods]
        lines.append([f"`{name}`", *cells])
    return table(["set", *(METHODS[method] for method in methods)], lines)


def dirichlet_table(sets: Sets) -> list[str]:
    """ECE of Dirichlet calibration beside temperature scaling and the paper's Meta-Cals, as the
    paper counts it.
    """
    methods = ("ts", *_DIRICHLET, "meta-mis-paper", "meta-acc-paper")
    head = [
        "set",
        *(METHODS[method] for method in methods),
        *(f"{METHODS[m]} against TS" for m in _DIRICHLET),
    ]
    lines = []
    for name, rows in sets.items():
        cells = [
            _mean(rows[method], "ece_published", 5) if method in rows else "-" for method in methods
        ]
        verdicts = [
            _word(rows[m], rows["ts"], "ece_published") if m in rows else "-" for m in _DIRICHLET
        ]
        lines.append([f"`{name}`", *cells, *verdicts])
    return table(head, lines)


def dilution_table(sets: Sets) -> list[str]:
    """ECE three ways: all rows as published, all rows with ties in parts, accepted rows; there also
    that of TS.
    """
    head = [
        "set",
        "method",
        "ECE, as published",
        "ECE, ties in parts",
        "ECE of accepted",
        "TS on the same rows",
        "TS fitted on accepted rows",
        "coverage",
        "NLL of accepted",
    ]
    lines = []
    for name, rows in sets.items():
        for method in ("ts", *_GATES):
            if method in rows:
                row = rows[method]
                columns = (
                    "ece_published",
                    "ece",
                    "ece_accepted",
                    "ece_ts_accepted",
                    "ece_refitted",
                )
                ece = [_mean(row, column, 5) for column in columns]
                lines.append(
                    [
                        f"`{name}`",
                        METHODS[method],
                        *ece,
                        _mean(row, "coverage", 3),
                        _mean(row, "nll_accepted"),
                    ]
                )
    return table(head, lines)


def order_table(sets: Sets) -> list[str]:
    """Whether each Meta-Cal has a lower ECE than temperature scaling, three ways of counting; in
    standard errors.

    On the accepted rows, temperature scaling is measured on the same rows, and the difference is
    paired by split; once as it is, and once fitted only on rows that the gate accepts.
    """
    head = [
        "set",
        "method",
        "as published",
        "ties in parts",
        "accepted rows",
        "accepted rows, TS fitted on such rows",
    ]
    lines = []
    for name, rows in sets.items():
        for method in _GATES:
            if method in rows and "ts" in rows:
                verdicts = [
                    _lower(rows[method], rows["ts"], column) for column in ("ece_published", "ece")
                ]
                verdicts += [_on_the_same_rows(rows[method], *columns) for columns in _ON_ACCEPTED]
                lines.append([f"`{name}`", METHODS[method], *verdicts])
    return table(head, lines)


def promise_table(sets: Sets) -> list[str]:
    """How often the target is missed, and what is accepted."""
    head = [
        "set", "rule", "target", "mean on test rows", "missed on test rows", "violation rate", "coverage", "oracle",
    ]  # fmt: skip
    lines = []
    for name, rows in sets.items():
        for method in _GATES:
            if method in rows:
                lines.append([f"`{name}`", METHODS[method], *_promise(rows[method])])
    return table(head, lines)


#: The sets of `trust_table`, and what its readers know them by.
_TRUSTED = {
    "cifar10-resnet110": "CIFAR-10, ResNet-110 (in the package)",
    "cifar100-resnet110": "CIFAR-100, ResNet-110 (in the package)",
    "cifar10-densenet40-paper": "CIFAR-10, DenseNet-40 (the paper's own file)",
    "cifar10-resnet110-paper": "CIFAR-10, ResNet-110 (the paper's own file)",
}


def trust_table(sets: Sets) -> list[str]:
    """The same in short: how often a promise is broken, and the coverage, by the paper's rules and
    by the certified.
    """
    lines = []
    for name, words in _TRUSTED.items():
        for method, promise in (
            ("meta-mis", "miscoverage at most"),
            ("meta-acc", "accuracy at least"),
        ):
            paper, ours = (_broken(sets[name][rule]) for rule in (f"{method}-paper", method))
            target = f"{promise} {sets[name][method].target:.0%}"
            shown = words if method == "meta-mis" else ""
            lines.append([shown, target, f"{paper[0]} / {paper[1]}", f"**{ours[0]}** / {ours[1]}"])
    return table(
        [
            "logits",
            "promise",
            "the paper's rule: broken / coverage",
            "certified: broken / coverage",
        ],
        lines,
    )


def _broken(row: Row) -> tuple[str, str]:
    """How often the promise is broken on the draws, and the mean coverage."""
    return f"{100.0 * (row.violation or 0.0):.1f}%", number(row.true_coverage, 3)


def everything_table(sets: Sets) -> list[str]:
    """Every column of every method, means over the splits."""
    head = [
        "set",
        "method",
        "ECE",
        "± se",
        "ECE of accepted",
        "coverage",
        "miscoverage",
        "accuracy",
        "NLL",
    ]
    lines = []
    for name, rows in sets.items():
        for method, row in rows.items():
            ece = row.columns.get("ece_published")
            values = [
                _mean(row, "ece_published", 5),
                number(ece.se if ece else None, 5),
                _mean(row, "ece_accepted", 5),
            ]
            values += [
                _mean(row, column)
                for column in ("coverage", "miscoverage", "coverage_accuracy", "nll")
            ]
            lines.append([f"`{name}`", METHODS[method], *values])
    return table(head, lines)


def page(results: dict[str, Any]) -> str:
    """All tables but the times, as one Markdown text: the same for the same results."""
    sets = by_set(results)
    runs = {header["runs"] for header in results["sets"]}
    draws = {header["draws"] for header in results["sets"]}
    splits = "split" if runs == {1} else "splits"
    parts = [
        "# The paper's tables",
        f"Runs: {_listed(runs)} random {splits}; violation rates from {_listed(draws)} draws.",
        "## Table 1: ECE",
        "Ours (the paper's; difference in standard errors). † another network of the same kind.",
        *_block(table_1(sets)),
    ]
    if any(method in rows for rows in sets.values() for method in RULES):
        parts += [
            "## Debiased ECE",
            "ECE / the same without the bias of a finite sample (Kumar et al. 2019).",
            *_block(debiased_table(sets)),
            "## ECE three ways",
            *_block(dilution_table(sets)),
            "## Against temperature scaling",
            *_block(order_table(sets)),
            "## Promises",
            *_block(promise_table(sets)),
        ]
    if any(method in rows for rows in sets.values() for method in _DIRICHLET) and all(
        "ts" in r for r in sets.values()
    ):
        parts += ["## Dirichlet calibration", *_block(dirichlet_table(sets))]
    parts += ["## Every column", *_block(everything_table(sets))]
    return "\n\n".join(parts) + "\n"


def seconds_page(results: dict[str, Any], seconds: dict[str, Any]) -> str:
    """Table 2 as Markdown."""
    parts = [
        "# Table 2: time",
        (
            "CPU seconds to fit and to predict the test rows, one thread: ours (the paper's;"
            f" difference in standard errors of ours). {seconds['machine']['processor']}."
        ),
        *_block(table_2(by_set(results), seconds["seconds"])),
    ]
    return "\n\n".join(parts) + "\n"


def _block(lines: Sequence[str]) -> list[str]:
    return ["\n".join(lines)]


def _listed(values: set[int]) -> str:
    return ", ".join(map(str, sorted(values)))


def _namesake(rows: dict[str, Row]) -> bool:
    return any(row.published_ece is not None for row in rows.values())


def _mean(row: Row, column: str, digits: int = 4) -> str:
    spread = row.columns.get(column)
    return number(None if spread is None else spread.mean, digits)


def _against_the_paper(row: Row) -> str:
    ours = row.columns.get("ece_published")
    if ours is None:
        return "-"
    apart = standard_errors(row)
    if row.published_ece is None:
        return number(ours.mean, 5)
    away = "" if apart is None else f"; {apart:+.1f}"
    return f"{number(ours.mean, 5)} ({number(row.published_ece, 5)}{away})"


def _accuracy(first: Row, rows: dict[str, Row]) -> str:
    """Of the network itself: what "Uncal" has, or temperature scaling, which changes no answer."""
    own = next((rows[method] for method in ("uncal", "ts") if method in rows), None)
    ours = "-" if own is None else _mean(own, "coverage_accuracy")
    theirs = ACCURACY.get((first.family, first.network))
    return ours if theirs is None else f"{ours} ({number(theirs)})"


def _time(row: Row | None, seconds: dict[str, Any] | None) -> str:
    if row is None or not seconds or "both" not in seconds:
        return "-"
    both = Spread(**seconds["both"])
    if row.published_seconds is None:
        return f"{both.mean:.4f}"
    away = f"; {(both.mean - row.published_seconds) / both.se:+.0f}" if both.se else ""
    return f"{both.mean:.4f} ({row.published_seconds:g}{away})"


def _lower(row: Row, base: Row, column: str) -> str:
    """Compare the means of a column, with both means shown."""
    ours, theirs = row.columns.get(column), base.columns.get(column)
    if ours is None or theirs is None:
        return "-"
    numbers = f"{number(ours.mean, 5)} against {number(theirs.mean, 5)}"
    apart = _standard_errors_apart(ours, theirs)
    if apart is None:
        return f"- ({numbers})"
    return f"{_verdict(apart)} ({numbers}, {apart:+.1f})"


def _word(row: Row, base: Row, column: str) -> str:
    """Compare the means of a column, with the difference in standard errors."""
    apart = _standard_errors_apart(row.columns[column], base.columns[column])
    return "-" if apart is None else f"{_verdict(apart)} ({apart:+.1f})"


def _on_the_same_rows(row: Row, scaled: str, gain: str) -> str:
    """Compare a gate with temperature scaling on the rows that the gate accepts, paired by
    split.
    """
    difference = row.columns.get(gain)
    if difference is None or scaled not in row.columns:
        return "-"
    numbers = f"{_mean(row, 'ece_accepted', 5)} against {_mean(row, scaled, 5)}"
    if not difference.se:
        return f"- ({numbers})" if difference.sd is None else f"the same ({numbers})"
    apart = difference.mean / difference.se
    return f"{_verdict(apart)} ({numbers}, {apart:+.1f})"


def _standard_errors_apart(ours: Spread, theirs: Spread) -> float | None:
    """Return the difference of two means in standard errors; None if there is no standard error."""
    if ours.se is None or theirs.se is None or not math.hypot(ours.se, theirs.se):
        return None
    return (ours.mean - theirs.mean) / math.hypot(ours.se, theirs.se)


def _verdict(apart: float) -> str:
    """Say on which side a difference is, from two standard errors on."""
    if apart < -2:
        return "lower"
    return "higher" if apart > 2 else "no difference"


def _plain_and_debiased(row: Row) -> str:
    return f"{_mean(row, 'ece_published', 5)} / {_mean(row, 'ece_debiased', 5)}"


def _promise(row: Row) -> list[str]:
    accuracy = "acc" in row.method
    aim = f"{'>=' if accuracy else '<='} {row.target:g}" if row.target is not None else "-"
    column = "coverage_accuracy" if accuracy else "miscoverage"
    values = [
        number(row.missed, 3),
        number(row.violation, 3),
        number(row.true_coverage),
        number(row.oracle_coverage),
    ]
    return [aim, _mean(row, column), *values]
