"""The tables of `benchmarks/promises.py` and `benchmarks/rankers.py`."""

from __future__ import annotations

from typing import Any

from benchmarks.tables.markdown import number, table

Results = dict[str, Any]
_SETS = {
    "cifar10-resnet110": ("CIFAR-10", "β = .97"),
    "cifar100-resnet110": ("CIFAR-100", "β = .87"),
}


def _percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%"


def modes(results: Results) -> list[str]:
    """Certified and in expectation, on CIFAR-10."""
    found = results["at 5,000"]["cifar10-resnet110"]
    pairs = {
        kind: [found[f"{mode}, {kind}"] for mode in ("certified", "in expectation")]
        for kind in _KINDS
    }
    rows = []
    for kind, words in _KINDS.items():
        rows.append((words, *(_percent(one["broken"]) for one in pairs[kind])))
        cells = (f"{number(one[kind])} / {number(one['coverage'], 3)}" for one in pairs[kind])
        rows.append((f"its mean {kind} / coverage", *cells))
    return table(("", "certified, δ = 0.1", "in expectation"), rows)


_KINDS = {
    "miscoverage": "miscoverage at most 5%: fits that exceed it",
    "accuracy": "accuracy at least 97%: fits that miss it",
}


def sizes(results: Results) -> list[str]:
    """Coverage of the certified accuracy by the number of calibration rows."""
    rows = []
    found = results["by size"]
    for name, (data, target) in _SETS.items():
        best = number(results["best possible"][name], 3)
        rows.append(
            (f"{data}, {target}", *(number(one["coverage"], 3) for one in found[name]), best)
        )
        rows.append(("… infeasible", *(_percent(one["infeasible"]) for one in found[name]), ""))
        rows.append(("… broken", *(_percent(one["broken"]) for one in found[name]), ""))
    head = [f"{one['n']:,}" for one in next(iter(found.values()))]
    return table(("rows", *head, "best possible"), rows)


def needed(results: Results) -> list[str]:
    """The least number of rows that can certify anything."""
    rows = [
        (f"{float(share):.0%}", *map(str, own.values())) for share, own in results["needed"].items()
    ]
    own = next(iter(results["needed"].values()))
    head = (f"δ = {key}" if key != "in expectation" else key for key in own)
    return table(("α, or 1 - β", *head), rows)


def named(results: Results) -> list[str]:
    """How often the rows that were named certify, by the rows that named them."""
    rows = []
    for group, words in (("tuned", "chosen on it"), ("unseen", "not seen before")):
        for third, half in zip(results[group]["a third"], results[group]["half"]):
            shares = [
                f"{one['median_named']:,.0f} | {100 * one['certified']:.0f}% |"
                f" {100 * one['knowing']:.0f}%"
                for one in (third, half)
            ]
            rows.append(
                (
                    third["set"],
                    f"{third['accuracy']:g}",
                    words,
                    f"{third['truly_needed']:,}",
                    *shares,
                )
            )
    named = ("named by a third | certified | knowing", "named by half | certified | knowing")
    lines = table(("population", "accuracy", "constants", "needed", *named), rows)
    return [lines[0], "|" + "---|" * 10, *lines[2:]]


def used(results: Results) -> list[str]:
    """How much of the miscoverage that is allowed the certified rule uses on average."""
    rows = []
    for share, own in results["used"].items():
        rows.append((f"α = {float(share):.0%}", *(f"{100 * value:.1f}%" for value in own.values())))
    own = next(iter(results["used"].values()))
    return table(("right rows", *(f"{int(n):,}" for n in own)), rows)


def after_looking(results: Results) -> list[str]:
    """How often 97% is missed by those who look first."""
    words = {
        "certified": "`MinAccuracy(0.97)`",
        "eight targets": (
            "eight targets from .95 to .985 tried, the one kept that accepts most and still shows"
            " 97% on the calibration rows"
        ),
        "largest that shows it": "the largest threshold that shows 97% on the calibration rows",
    }
    rows = [(words[name], _percent(value)) for name, value in results["after looking"].items()]
    return table(("what was done", "promise broken"), rows)


def base_rows(results: Results) -> list[str]:
    """A temperature fitted on the accepted rows or on all."""
    rows = []
    for name, (data, _) in _SETS.items():
        for n, one in results["base rows"][name].items():
            cells = []
            for used in ("accepted", "all"):
                spread = f"{one[f'{used}, T']:.2f} ± {number(one[f'{used}, T sd'], 2)}"
                cells.append(
                    f"{spread}, {number(one[f'{used}, nll'])}, {number(one[f'{used}, ece'])}"
                )
            rows.append((f"{data}, {int(n):,}", f"{one['errors']:g}", *cells))
    head = (
        "logits, rows to fit",
        "errors accepted (median)",
        "fitted on accepted rows: T ± sd, log loss, ECE",
    )
    return table((*head, "fitted on all rows"), rows)


def rankers(results: Results) -> list[str]:
    """Certified coverage of learned rankings against entropy."""
    rows = []
    for one in results["rows"]:
        cells = [
            f"{_signed(one[name]['coverage'])} ± {number(one[name]['errors']['coverage'])}"
            for name in _RANKERS
        ]
        rows.append((f"`{one['set']}`", number(one["entropy"]["coverage"], 3), *cells))
    return table(("set", "entropy", *_RANKERS), rows)


def rankers_order(results: Results) -> list[str]:
    """AUROC and AURC of learned rankings against entropy."""
    rows = []
    for one in results["rows"]:
        cells = [
            f"{_signed(one[name]['auroc'])} ± {number(one[name]['errors']['auroc'])}"
            for name in _RANKERS
        ]
        area = [_signed(one[name]["aurc"]) for name in _RANKERS]
        own = one["entropy"]
        rows.append((f"`{one['set']}`", number(own["auroc"]), *cells, number(own["aurc"]), *area))
    return table(("set", "AUROC entropy", *_RANKERS, "AURC entropy", *_RANKERS), rows)


def rankers_errors(results: Results) -> list[str]:
    """Type II error of learned rankings against entropy: at the same Type I error, and of
    Meta-Cal.
    """
    rows = []
    for one in results["rows"]:
        own = one["entropy"]
        rows.append(
            (
                f"`{one['set']}`",
                number(own["type_2_at_alpha"], 3),
                *(_difference(one[name], "type_2_at_alpha") for name in _RANKERS),
                f"{number(own['type_1'], 3)}, {number(own['type_2'], 3)}",
                *(
                    f"{_difference(one[name], 'type_1')}, {_difference(one[name], 'type_2')}"
                    for name in _RANKERS
                ),
            )
        )
    return table(
        (
            "set",
            "Type II at Type I = .05: entropy",
            *_RANKERS,
            "Meta-Cal's Type I, II: entropy",
            *_RANKERS,
        ),
        rows,
    )


def rankers_ece(results: Results) -> list[str]:
    """ECE of Meta-Cal with learned rankings against entropy: all rows, accepted rows, the largest
    over binnings.
    """
    rows = []
    for one in results["rows"]:
        cells: list[str] = []
        for key in ("ece", "ece_accepted", "sup_ece"):
            cells += [
                number(one["entropy"][key]),
                *(_difference(one[name], key) for name in _RANKERS),
            ]
        rows.append((f"`{one['set']}`", *cells))
    titles = (
        "ECE: entropy",
        *_RANKERS,
        "ECE of accepted: entropy",
        *_RANKERS,
        "worst case: entropy",
        *_RANKERS,
    )
    return table(("set", *titles), rows)


def _difference(ranker: Results, key: str) -> str:
    """Format the difference of a ranker to entropy, with its standard error."""
    return f"{_signed(ranker[key])} ± {number(ranker['errors'][key])}"


_RANKERS = ("logistic", "pairwise")


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else '-'}{number(abs(value))}"
