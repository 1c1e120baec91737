"""The tables of the certified rules: accuracy, costs, classes, cascades, the choice of a score."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.experiments.results_file import same_rows
from benchmarks.tables.markdown import number, table

Results = dict[str, Any]
#: Sets and networks as the pages call them.
NAMES = {"cifar10-resnet110": "CIFAR-10 ResNet-110", "cifar100-resnet110": "CIFAR-100 ResNet-110"}
_PER_CLASS = {
    "one threshold": "one threshold for all",
    "PerClass, together": "`PerClass`, together",
    "PerClass, each": "`PerClass`, each",
    "PerClass, together, small ones pooled": "`PerClass`, together, pooled",
    "MAPIE 1.6, one threshold for all classes": "MAPIE 1.6, one threshold",
    "MAPIE 1.6, a controller a class at delta/K": "MAPIE 1.6, a class",
}


def accuracy(results: Results) -> list[str]:
    """Share of the oracle's coverage by size and target: the earlier rule / the present one."""
    records = results["records"]
    betas = sorted({one["beta"] for one in records})
    rules = list(dict.fromkeys(one["rule"] for one in records))
    rows = []
    for n in sorted({one["n"] for one in records}):
        cells = []
        for beta in betas:
            own = [
                [r["coverage"] for r in records if (r["n"], r["beta"], r["rule"]) == (n, beta, k)]
                for k in rules
            ]
            cells.append(" / ".join(number(float(np.mean(values)), 3) for values in own))
        rows.append((f"{n:,}", *cells))
    return table(("n", *(f"β = {number(beta, 2)}" for beta in betas)), rows)


def costs(results: Results) -> list[str]:
    """Coverage as a share of the best, and how often the limit is exceeded."""
    rows = []
    for n, by_rule in results["limits"].items():
        rival = max(by_rule["Hoeffding-Bentkus"], by_rule["Hoeffding-Bentkus, early"])
        cells = (by_rule["betting"], rival, by_rule["every cost a whole one"])
        rows.append((f"{int(n):,}", *(", ".join(_short(x) for x in pair) for pair in cells)))
    return table(("n", "betting", "Hoeffding-Bentkus", "every cost a whole one"), rows)


def _short(value: float) -> str:
    return "0" if value < 5e-4 else number(value, 3)


def cheapest(results: Results) -> list[str]:
    """What the cheapest threshold costs and its bound, as multiples of the least cost."""
    rows = []
    for n in sorted({one["n"] for one in results["cheapest"]}):
        cells = []
        for rule in ("all rows", "a third chooses"):
            own = [
                r["cost, bound, broken"]
                for r in results["cheapest"]
                if (r["n"], r["rule"]) == (n, rule)
            ]
            cells.append(", ".join(f"{np.mean([r[k] for r in own]):.2f}" for k in (0, 1)))
        rows.append((f"{n:,}", *cells))
    return table(("n", "all rows: cost, bound", "a third chooses the threshold"), rows)


def per_class(results: Results) -> list[str]:
    """Coverage and broken classes of every rule on the two embedded sets."""
    rows = []
    for name, words in NAMES.items():
        for beta in sorted({row["beta"] for row in results["results"]}, reverse=True):
            own = [row for row in results["results"] if (row["set"], row["beta"]) == (name, beta)]
            first = f"{words}, {beta}"
            for row in sorted(own, key=lambda row: list(_PER_CLASS).index(row["rule"])):
                cells = (row["coverage"], row["some_class_broken"], row["share_of_classes_broken"])
                rows.append(
                    (first, _PER_CLASS[row["rule"]], *(number(value, 3) for value in cells))
                )
                first = ""
            rows.append(
                (
                    "",
                    "per-class oracle",
                    number(own[0]["oracle_coverage"], 3),
                    number(0.0, 3),
                    number(0.0, 3),
                )
            )
    return table(("set, β", "rule", "coverage", "some class", "of classes"), rows)


def score_choice(results: Results) -> list[str]:
    """Coverage against entropy alone: mean, smallest and largest difference, how many lose more
    than .005.
    """
    records = results["records"]
    sizes = sorted({one["n"] for one in records})
    rows = []
    for way in [key for key in records[0] if key not in ("set", "beta", "n", "entropy")]:
        cells = []
        for n in sizes:
            change = np.array([r[way] - r["entropy"] for r in records if r["n"] == n])
            spread = f"{change.min():+.3f} … {change.max():+.3f}"
            cells.append(
                f"{change.mean():+.4f} ({spread}), {int((change < -0.005).sum())} of {len(change)}"
            )
        rows.append((way, *cells))
    return table(("", *(f"n = {n:,}" for n in sizes)), rows)


def cascade(results: Results) -> list[str]:
    """What the small network answers under each rule, and how often the promise is broken."""
    rows = []
    for name, pair in results["pairs"].items():
        rules = (pair[rule] for rule in ("exact", "betting", "absolute"))
        rows.append(
            (
                name,
                " / ".join(number(value, 3) for value in pair["accuracy"]),
                number(pair["disagree"], 3),
                f"{pair['labels']:.0f}",
                *(f"{number(rule['share'], 2)} ({number(rule['broken'], 3)})" for rule in rules),
                number(pair["oracle"], 2),
            )
        )
    head = (
        "small, large",
        "accuracy",
        "disagree",
        "labels",
        "exact",
        "betting",
        "absolute",
        "best possible",
    )
    return table(head, rows)


def cascade_people(results: Results) -> list[str]:
    """Who answers where people take what neither network is sure of, and what it costs."""
    rows = []
    for name, pair in results["pairs"].items():
        own = pair["people"]
        costs = (number(own[key], 2) for key in ("cost", "cheapest"))
        shares = (number(share, 2) for share in own["shares"])
        rows.append((name, number(own["beta"]), *shares, *costs, number(own["broken"], 3)))
    return table(
        ("small, large", "β", "small", "large", "people", "cost", "cheapest", "broken"), rows
    )


def duel(results: Results) -> list[str]:
    """The share of rows that go to the large model, labels included, beyond the least possible
    one.
    """
    rows, ways = [], ("pool", "source", "BARGAIN")
    for name, own in results["duel"]["sets"].items():
        small, large, epsilon, size = name.split(" / ")
        beyond = (number(own[key] - own["best"], 3) for key in ways)
        broken = (number(own[f"{key} broken"], 3) for key in ways)
        exact = number(own["source size"], 4)
        rows.append(
            (
                f"{small}, {large}",
                epsilon,
                f"{int(size):,}",
                number(own["best"], 3),
                *beyond,
                *broken,
                exact,
            )
        )
    for size in sorted({row[2] for row in rows}, key=len):
        own = [float(row[k]) for row in rows if row[2] == size for k in range(3, 7)]
        means = (number(sum(own[k::4]) * 4 / len(own), 4) for k in range(4))
        rows.append(("mean", "", size, *means, "", "", "", ""))
    head = (
        "small, large",
        "ε",
        "N",
        "least possible",
        *ways,
        *(f"{name} broken" for name in ways),
        "exact size",
    )
    return table(head, rows)


def adversaries(results: Results) -> list[str]:
    """How often each way to certify is broken: the most and the mean of ten populations, and the
    exact size.
    """
    rows = []
    for kind in ("cascades", "losses"):
        for name, broken in results[kind]["broken"].items():
            most, mean = number(max(broken), 3), number(sum(broken) / len(broken), 3)
            rows.append((kind, name, most, mean, number(results[kind]["size"], 4)))
    return table(("", "certified by", "most broken", "mean of ten", "exact size"), rows)


def risk_control(results: Results) -> list[str]:
    """Labels of a row, beside the most (or fewest) that keep the promise; how often it is
    broken.
    """
    rows = []
    for name, own in results["rows"].items():
        choose = max if own["more is better"] else min
        cells = [number(own["level"], 2), number(own["best"], 3)]
        for who in ("ours", "MAPIE"):
            labels, way = choose(
                ((seen["labels"], way) for way, seen in own[who].items()), default=(0.0, "")
            )
            cells.append(
                f"{number(labels, 3)} ({way}), {number(own[who][way]['broken'], 2)}" if way else "-"
            )
        rows.append((name, *cells))
    return table(
        ("what is promised", "level", "best possible", "here, broken", "MAPIE 1.6, broken"), rows
    )


def stages(results: Results) -> list[str]:
    """What three and five models cost a row, as a multiple of the cheapest thresholds that keep the
    promise.
    """
    rows = []
    for name, own in results["stages"]["chains"].items():
        ratios = (number(own[key] / own["cheapest"], 2) for key in ("cost", "LTT cost"))
        rows.append((name, number(own["cheapest"], 1), *ratios, number(own["broken"], 3)))
    return table(("models", "cheapest", "ours", "corrected grid", "broken"), rows)


_VALUES = (
    "wrong first",
    "set aside",
    "other rows",
    "ranks, then",
    "skip",
    "a tenth aside",
    "a list of 7",
)
_MAPIE = ("MAPIE, Holm", "MAPIE, five starts", "MAPIE, sequence", "MAPIE, values")
_PEERS = (
    "SGR",
    "LTT, sequence",
    "LTT, Bonferroni",
    "MAPIE, Holm",
    "MAPIE, sequence",
    "MAPIE, best",
    "BARGAIN's test",
)
_FOR_TIES = (*_VALUES, *_PEERS, "best start")


def _with_the_best(own: dict[tuple[Any, ...], Results], by: str) -> dict[tuple[Any, ...], Results]:
    """The same with that of MAPIE's controllers that accepts most, row by row of a table."""
    of_mapie = [key for key in own if key[-1] in _MAPIE]
    rows = {
        key[:-1]: [own[other] for other in of_mapie if other[:-1] == key[:-1]] for key in of_mapie
    }
    return own | {
        (*row, "MAPIE, best"): max(found, key=lambda r: float(r[by])) for row, found in rows.items()
    }


def ties(results: Results) -> list[str]:
    """What can be done about ties, rule by rule."""
    return _shares(results, (*_VALUES, "best start"))


def ties_peers(results: Results) -> list[str]:
    """What `ScoreGate` does, beside the rules of others."""
    return _shares(results, ("set aside", *_PEERS))


def _shares(results: Results, asked: tuple[str, ...]) -> list[str]:
    """Share of the oracle's coverage by digits, size and target, a column for each rule; the most
    broken file.
    """
    own = {(r["variant"], r["n"], r["beta"], r["rule"]): r for r in results["summary"]}
    own = _with_the_best(own, "share")
    rules = [rule for rule in asked if any(key[3] == rule for key in own)]
    rows = []
    for variant, n, beta in dict.fromkeys(key[:3] for key in own):
        cells = [own.get((variant, n, beta, rule)) for rule in rules]
        shown = (
            "-" if r is None else f"{number(r['share'], 3)} ({number(r['most_broken'], 3)})"
            for r in cells
        )
        rows.append((variant, f"{n:,}", number(beta, 2), *shown))
    return table(("confidence", "n", "β", *rules), sorted(rows, key=lambda row: row[0]))


def hostile_ties(results: Results) -> list[str]:
    """Of the populations that are made to break a rule: the share of broken promises, the most of
    both sizes.
    """
    rules = ("set aside", "other rows", "ranks, then", "never tested")
    own = [r for r in results["records"] if r["rule"] in rules and r["beta"] == 0.9]
    rows = []
    for name, delta in dict.fromkeys((r["population"], r["delta"]) for r in own):
        most = (
            max(
                r["broken"]
                for r in own
                if (r["population"], r["delta"], r["rule"]) == (name, delta, rule)
            )
            for rule in rules
        )
        rows.append((name, number(delta, 2), *(number(value, 3) for value in most)))
    return table(("population", "δ", *rules), rows)


def joint_band(results: Results) -> list[str]:
    """AfterLooking's coverage as a share of the oracle's, with two bands and with the accuracy
    band.
    """
    rows = [
        (
            f"{r['n']:,}",
            number(r["beta"], 2),
            str(r["sets"]),
            number(r["before"], 3),
            number(r["now"], 3),
        )
        for r in results["summary"]
    ]
    return table(
        ("n", "β", "sets", "two bands on distribution functions", "the accuracy band"), rows
    )


def false_coverage(results: Results) -> list[str]:
    """Coverage, share of broken classes among those that accept, share of draws with any: means
    over the files.
    """
    own = results["rows"]
    rows = []
    for n, beta, shares in dict.fromkeys((r["n"], r["beta"], r["shares"]) for r in own):
        mine = [r for r in own if (r["n"], r["beta"], r["shares"]) == (n, beta, shares)]
        keys = ("coverage", "broken_of_accepting", "any_broken")
        means = (
            number(float(np.mean([r[key] for r in mine])), 3) if key in mine[0] else "-"
            for key in keys
        )
        rows.append(
            (
                f"{n:,}",
                number(beta, 2),
                shares if shares == "best starts" else f"`{shares}`",
                *means,
            )
        )
    return table(
        ("n", "β", "shares", "coverage", "broken among those that accept", "any broken"), rows
    )


def marks(results: Results) -> list[str]:
    """Coverage on a judge's five marks, a line for each rule, and what is possible."""
    all_rules = [*results["records"], *same_rows(results["records"], results.get("mapie", []))]
    own = {(r["n"], r["beta"], r["rule"]): r for r in all_rules if r["population"] == "five marks"}
    own = _with_the_best(own, "coverage")
    rules = [rule for rule in _FOR_TIES if any(key[2] == rule for key in own)]
    cells = list(dict.fromkeys(key[:2] for key in own))
    rows = [(rule, *(number(own[*cell, rule]["coverage"], 3) for cell in cells)) for rule in rules]
    possible = ("possible", *(number(own[*cell, rules[0]]["oracle"], 2) for cell in cells))
    return table(
        ("rule", *(f"n = {n:,}, β = {number(beta, 2)}" for n, beta in cells)), [*rows, possible]
    )


def promises_on_marks(results: Results) -> list[str]:
    """What a gate of five marks accepts under each promise, at each size, beside what is
    possible.
    """
    own = results.get("promises", [])
    sizes = sorted({r["n"] for r in own})
    rows = []
    for called, possible in dict.fromkeys((r["promise"], r["possible"]) for r in own):
        cells = (
            number(r["coverage"], 3)
            for n in sizes
            for r in own
            if (r["promise"], r["n"]) == (called, n)
        )
        rows.append((f"`{called}`", *cells, number(possible, 2)))
    return table(("promise", *(f"n = {n:,}" for n in sizes), "possible"), rows)


def ties_labels(results: Results) -> list[str]:
    """Scores that tie, labelled in sequence: coverage beside that of a fit, and broken promises, by
    the pool.
    """
    own = {(r["population"], r["n"], r["beta"], r["pool"] // r["n"]): r for r in results["records"]}
    rows = []
    for name, n, beta in dict.fromkeys(key[:3] for key in own):
        pools = [own[name, n, beta, times] for times in sorted({key[3] for key in own})]
        cells = [f"{number(r['coverage'], 3)} ({number(r['broken'], 3)})" for r in pools]
        fit = f"{number(pools[0]['fit'], 3)} ({number(pools[0]['fit_broken'], 3)})"
        rows.append((name, f"{n:,}", number(beta, 2), *cells, fit, number(pools[0]["labels"], 2)))
    heads = ("in sequence, pool of n", "pool of 4 n", "fit", "labels taken, of n")
    return table(("population", "n", "β", *heads), rows)
