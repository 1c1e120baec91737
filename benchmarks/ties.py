"""Given scores that tie: what rules for an accuracy accept, and how often they are wrong.

    python -m benchmarks.ties --data FOLDER [--jobs 16] [--out benchmarks/results/ties.json]
    [--mapie]

Confidences of every `*.npz` file (`logits`, `labels`), unrounded and with two decimals, as they are
and after a temperature; a judge's five marks; populations made to break a rule; and what a
`ScoreGate` of the five marks accepts under each promise. Rows are drawn with replacement, and what
a threshold accepts is as right as the whole file says. Coverage is a share of the oracle's at the
same digits, of configurations where the oracle accepts at least a twentieth.

wrong first    a fixed sequence of ranks, the wrong rows of a tie first (what logits have) set aside
what `ScoreGate` does: the values of the score, from one chosen by sqrt(n) rows that are set aside
other rows     the same with as many other rows, unlabelled, choosing ranks, then    a rank in
random order, then the values from that row's on (valid) skip           the first value with enough
rows, chosen by the rows themselves (proved only where errors do not fall) a tenth aside  the same
as set aside, with a tenth of the rows a list of 7    seven values declared beforehand, equal shares
of delta that are carried on SGR, LTT       Geifman & El-Yaniv's search over the values, and
Learn-then-Test over a hundred percentiles: its fixed
               sequence and Bonferroni's correction (of scores that tie, ranks are the ends of their
               blocks)
BARGAIN's test the bets by which BARGAIN (Zeighami et al. 2025, package `bargain`) tests a
precision, on all rows up to
               each of its twenty thresholds
MAPIE          `BinaryClassificationController` of MAPIE 1.6 for precision: its own grid of a
hundred thresholds with
               Bonferroni-Holm (its default), a fixed sequence and one with five starts; a fixed
               sequence of the values themselves, declared
best start     the start value that is best on average, were the truth known; no rule that begins at
one value and
               stops at its first failure accepts more
never tested   random order, then the last value inside the prefix that passed (not valid)

About 5 minutes on 16 cores. With --mapie MAPIE's rules alone are run, where it is installed, and
put into the committed result (10 minutes on one core); without it they are kept from there wherever
the rows are the same.
"""

from __future__ import annotations

import argparse
import json
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import bdtr, log_softmax

import metacal as mc
from benchmarks.experiments.pilot_scores import with_pilot_scores
from benchmarks.experiments.pool import in_order
from benchmarks.experiments.results_file import same_rows
from benchmarks.selective import mapie
from benchmarks.selective.rules import Sample as Calibration
from benchmarks.selective.rules import quantile_bonferroni, quantile_sequence, sgr
from metacal.certification.pilot import PilotPolicy
from metacal.certification.rank_plan import RankPlan
from metacal.certification.ranking import Ranking
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.fixed_sequence import FixedSequenceRule, find_last_passed_rank
from metacal.certification.test_sequences import choose_first_tested_score, plan_rank_ranges

RESULT = Path(__file__).resolve().parent / "results" / "ties.json"
ASKED = ((300, 0.95), (1000, 0.95), (1000, 0.97), (5000, 0.97))
FIVE = ([0.45, 0.25, 0.15, 0.1, 0.05], [0.02, 0.08, 0.15, 0.3, 0.5])
#: Mass and error of each value; beta is 0.9, and 1 - beta = 0.1 of errors are allowed.
HOSTILE = {
    "two marks, 0.080": ([0.02, 0.98], [0.1002, 0.080]),
    "two marks, 0.070": ([0.02, 0.98], [0.1002, 0.070]),
    "two marks, 0.085": ([0.02, 0.98], [0.1002, 0.085]),
    "flat": ([0.1] * 10, [0.1001] * 10),
    "oscillating": ([0.1] * 10, [0.14, 0.0602] * 5),
    "mass point": ([0.5, *[0.05] * 10], [0.1002, *np.linspace(0.05, 0.4, 10)]),
    "falling": ([0.05, 0.15, 0.3, 0.5], [0.3, 0.14, 0.09, 0.07]),
}

#: Promises on five marks, and the most that can be accepted under each: .45 has an error rate of
#: .02, .70 one of .041.
PROMISES: dict[str, tuple[Any, float]] = {
    "MinAccuracy(0.95)": (mc.MinAccuracy(0.95), 0.7),
    "MinAccuracy(0.95, delta=None)": (mc.MinAccuracy(0.95, delta=None), 0.7),
    "MaxRisk(0.05)": (mc.MaxRisk(0.05), 0.7),
    "Both(alpha=0.35, beta=0.95)": (mc.Both(alpha=0.35, beta=0.95), 0.7),
    "AfterLooking(beta=0.95)": (mc.AfterLooking(beta=0.95), 0.7),
    "PerGroup(MinAccuracy(0.95)), three groups": (mc.PerGroup(mc.MinAccuracy(0.95)), 0.7),
    "PerGroup(MinAccuracy(0.95)), each": (mc.PerGroup(mc.MinAccuracy(0.95), shares="each"), 0.7),
}
PROMISE_DRAWS = 200

Column = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rule = Callable[["Draw", float, float], float]


class Draw(NamedTuple):
    """Rows that certify, the scores of as many others, and random numbers."""

    score: Column
    right: Flags
    other: Column
    rng: np.random.Generator


def _threshold(ranking: Ranking, rank: int) -> float:
    return ranking.largest_threshold_after_passing_rank(rank) if rank else -np.inf


def _with_pilot(rows: CalibrationRows, beta: float, delta: float) -> float:
    """The threshold of tests that pilot rows have planned."""
    return _threshold(
        rows.ranking, find_last_passed_rank(rows.ranking, beta, delta, rows.pilot_rows)
    )


def _from_value(ranking: Ranking, start: float, beta: float, delta: float) -> float:
    """The threshold of tests at the values from a start on."""
    plan = RankPlan(beta, first_tested_score=start)
    threshold = FixedSequenceRule().certify(ranking, plan, delta).threshold
    return -np.inf if threshold is None else threshold


def wrong_first(draw: Draw, beta: float, delta: float) -> float:
    """The rule for ranks."""
    ranking = Ranking.from_scores(draw.score, draw.right)
    return _threshold(ranking, find_last_passed_rank(ranking, beta, delta))


def set_aside(draw: Draw, beta: float, delta: float) -> float:
    """What `ScoreGate` does."""
    policy = PilotPolicy(int(draw.rng.integers(2**31)))
    return _with_pilot(
        policy.withhold_pilot_rows(CalibrationRows(draw.score, draw.right)), beta, delta
    )


def other_rows(draw: Draw, beta: float, delta: float) -> float:
    """The same with other rows that choose."""
    rows = with_pilot_scores(CalibrationRows(draw.score, draw.right), draw.other)
    return _with_pilot(rows, beta, delta)


def skip(draw: Draw, beta: float, delta: float) -> float:
    """A start that the rows choose themselves."""
    ranking = Ranking.from_scores(draw.score, draw.right)
    start = choose_first_tested_score(np.sort(draw.score), len(draw.score), beta, delta)
    return _from_value(ranking, start, beta, delta)


def a_tenth(draw: Draw, beta: float, delta: float) -> float:
    """As `set_aside`, with more rows that choose."""
    aside = draw.rng.random(len(draw.score)) < 0.1
    tested = CalibrationRows(draw.score[~aside], draw.right[~aside])
    return _with_pilot(with_pilot_scores(tested, draw.score[aside]), beta, delta)


def a_list(draw: Draw, beta: float, delta: float) -> float:
    """Values of a confidence, or every mark, declared beforehand: Wiens' fallback."""
    marks = (
        np.unique(draw.score)
        if draw.score.min() >= 0.0
        else -np.array([0.99, 0.97, 0.95, 0.9, 0.8, 0.7, 0.5])
    )
    ranking, level, best = Ranking.from_scores(draw.score, draw.right), 0.0, -np.inf
    for value in marks.tolist():
        at, level = (
            int(np.searchsorted(ranking.tie_block_scores, value, side="right")) - 1,
            level + delta / len(marks),
        )
        if (
            at < 0
            or bdtr(
                float(ranking.cumulative_errors[at]),
                int(ranking.tie_block_end_ranks[at]),
                1.0 - beta,
            )
            > level
        ):
            level = 0.0
        else:
            best = float(value)
    return best


def bargain(draw: Draw, beta: float, delta: float) -> float:
    """Values at twenty even ranks, from the surest on, each bet on at all of delta as BARGAIN 0.1.3
    does.
    """
    best, order = -np.inf, draw.rng.permutation(len(draw.score))
    step = max(1, len(draw.score) // 20)
    for value in dict.fromkeys(np.sort(draw.score)[step - 1 :: step].tolist()):
        right = draw.right[order][draw.score[order] <= value].astype(float)
        so_far = np.append(0.0, np.cumsum(right)[:-1])
        seen = np.arange(len(right))
        mean = (0.5 + so_far) / (seen + 1.0)
        variance = (0.25 + so_far * (1.0 - 2.0 * mean) + seen * mean**2) / (seen + 1.0)
        bet = np.sqrt(2.0 * np.log(2.0 / delta) / ((seen + 1.0) * np.log(seen + 2.0) * variance))
        wealth = np.cumsum(np.log1p(np.minimum(bet, 0.75 / beta) * (right - beta)))
        if wealth.max() < -np.log(delta):
            break
        best = float(value)
    return best


def _of_a_peer(choose: Callable[..., float | None]) -> Rule:
    def threshold(draw: Draw, beta: float, delta: float) -> float:
        found = choose(Calibration.of(draw.score, draw.right, float(draw.score.max())), beta, delta)
        return -np.inf if found is None else found

    return threshold


def from_each_start(draw: Draw, values: Column, beta: float, delta: float) -> NDArray[np.intp]:
    """From each value on: how many values the walk accepts; 0 where its first test fails."""
    order = np.argsort(draw.score, kind="stable")
    up_to = np.searchsorted(draw.score[order], values, side="right")
    errors = np.append(0, np.cumsum(~draw.right[order]))[up_to]
    failed = (up_to == 0) | (bdtr(errors.astype(float), np.maximum(up_to, 1), 1.0 - beta) > delta)
    stops = np.where(failed, np.arange(len(values)), len(values))
    stops = np.minimum.accumulate(stops[::-1])[::-1]
    return np.where(failed, 0, stops)


def _in_random_order(draw: Draw) -> tuple[Column, NDArray[np.intp]]:
    order = np.lexsort((draw.rng.random(len(draw.score)), draw.score))
    return draw.score[order], np.cumsum(~draw.right[order])


def ranks_then(draw: Draw, beta: float, delta: float) -> float:
    """A rank in random order, then values."""
    ordered, errors = _in_random_order(draw)
    first = _first_rank(len(draw.score), beta, delta)
    if first > len(draw.score) or bdtr(float(errors[first - 1]), first, 1.0 - beta) > delta:
        return -np.inf
    ranking = Ranking.from_scores(draw.score, draw.right)
    return _from_value(ranking, float(ordered[first - 1]), beta, delta)


def never_tested(draw: Draw, beta: float, delta: float) -> float:
    """The last value below the last rank that passed."""
    _, errors = _in_random_order(draw)
    first = _first_rank(len(draw.score), beta, delta)
    ranks = np.arange(first, len(draw.score) + 1)
    failed = bdtr(errors[first - 1 :].astype(float), ranks, 1.0 - beta) > delta
    last = int(ranks[failed.argmax()]) - 1 if failed.any() else len(draw.score)
    ranking = Ranking.from_scores(draw.score, draw.right)
    ends = ranking.tie_block_end_ranks[ranking.tie_block_end_ranks <= last]
    return _threshold(ranking, int(ends[-1]) if last >= first and len(ends) else 0)


def _first_rank(n: int, beta: float, delta: float) -> int:
    plan = plan_rank_ranges(n, beta, delta)
    return plan[0].start_rank if plan else n + 1


def _of_mapie(correction: str, *, values: bool = False) -> Rule:
    """A controller of MAPIE's; marks are confidences of 1, .8, .6, .4 and .2."""

    def threshold(draw: Draw, beta: float, delta: float) -> float:
        marks = np.arange(5.0)
        given = draw.score.max() > 0.0
        confidence = 1.0 - draw.score / 5.0 if given else -draw.score
        declared = 1.0 - marks / 5.0 if given else np.round(np.arange(1, 101) / 100, 2)
        how = mapie.five_starts() if correction == "five starts" else correction
        found = mapie.of_confidence(
            confidence, draw.right, beta, delta, how, declared if values else None
        )
        if found is None:
            return -np.inf
        return float(marks[declared >= found].max(initial=-np.inf)) if given else -found

    return threshold


RULES: dict[str, Rule] = {
    "wrong first": wrong_first,
    "set aside": set_aside,
    "other rows": other_rows,
    "ranks, then": ranks_then,
    "skip": skip,
    "a tenth aside": a_tenth,
    "a list of 7": a_list,
    "SGR": _of_a_peer(sgr),
    "LTT, sequence": _of_a_peer(quantile_sequence),
    "LTT, Bonferroni": _of_a_peer(quantile_bonferroni),
    "BARGAIN's test": bargain,
    "never tested": never_tested,
}
MAPIE: dict[str, Rule] = {
    "MAPIE, Holm": _of_mapie("bonferroni_holm"),
    "MAPIE, sequence": _of_mapie("fixed_sequence"),
    "MAPIE, five starts": _of_mapie("five starts"),
    "MAPIE, values": _of_mapie("fixed_sequence", values=True),
}
#: Rules that are not about ties.
OTHERS = ["SGR", "LTT, sequence", "LTT, Bonferroni", "BARGAIN's test"]


def confidences(path: Path, *, calibrated: bool) -> tuple[Column, Flags]:
    """Minus the confidence, and whether the row is right."""
    with np.load(path) as file:
        logits, labels = file["logits"].astype(np.float64), file["labels"]
    scale = 1.0
    if calibrated:
        rows = np.arange(len(labels))
        scale = float(
            minimize_scalar(
                lambda t: -log_softmax(logits * t, axis=1)[rows, labels].mean(), (0.2, 1.0)
            ).x
        )
    return -np.exp(log_softmax(logits * scale, axis=1).max(axis=1)), logits.argmax(axis=1) == labels


def measured(
    name: str,
    score: Column,
    right: Flags | Column,
    n: int,
    beta: float,
    delta: float,
    draws: int,
    rules: list[str],
) -> list[dict[str, Any]]:
    """Of each rule: what it accepts, and how often that is less right than beta. `right` may be
    chances.
    """
    values, codes = np.unique(score, return_inverse=True)
    mass = np.cumsum(np.bincount(codes)) / len(score)
    accuracy = np.cumsum(np.bincount(codes, right)) / np.cumsum(np.bincount(codes))
    kept = np.flatnonzero(accuracy >= beta)
    oracle = float(mass[kept[-1]]) if len(kept) else 0.0
    seed = [n, int(1e4 * beta), int(1e4 * delta), sum(map(ord, name))]
    rng, own_rng, sums = np.random.default_rng(seed), np.random.default_rng([*seed, 1]), 0
    found, started = (
        np.zeros((len(rules), draws, 2)),
        np.zeros((draws, len(values) if "skip" in rules else 0)),
    )
    for i in range(draws):
        rows = rng.integers(0, len(score), n)
        own = (
            score[rows],
            np.asarray(right[rows]) > rng.random(n) if right.dtype != bool else right[rows],
        )
        draw = Draw(*own, score[rng.integers(0, len(score), n)], own_rng)
        sums = zlib.crc32(np.packbits(draw.right), zlib.crc32(rows, sums))
        if started.size:
            started[i] = np.append(0.0, mass)[from_each_start(draw, values, beta, delta)]
        for r, rule in enumerate(rules):
            last = (
                int(np.searchsorted(values, (RULES | MAPIE)[rule](draw, beta, delta), side="right"))
                - 1
            )
            if last >= 0:
                found[r, i] = mass[last], accuracy[last] < beta - 1e-12
    at: dict[str, Any] = {
        "population": name,
        "n": n,
        "beta": beta,
        "delta": delta,
        "draws": draws,
        "rows": sums,
    }
    at["oracle"] = round(oracle, 4)
    means = dict(zip(rules, found.mean(axis=1).tolist()))
    if started.size:
        means |= {"best start": [float(started.mean(axis=0).max()), 0.0]}
    return [
        {**at, "rule": rule, "coverage": round(c, 4), "broken": round(b, 4)}
        for rule, (c, b) in means.items()
    ]


def task(
    kind: str, name: str, n: int, beta: float, delta: float, peers: bool
) -> list[dict[str, Any]]:
    """The records of one population at one size: of MAPIE's rules, or of the others."""
    if kind == "file":
        path, variant = name.split("|")
        score, right = confidences(Path(path), calibrated="calibrated" in variant)
        score = score.round(2) if "two decimals" in variant else score
        rules = [rule for rule in RULES if rule != "never tested"]
        rules = rules if "two decimals" in variant else [*rules[:2], *OTHERS]
        called, rules = f"{Path(path).stem}, {variant}", [*MAPIE] if peers else rules
        return measured(called, score, right, n, beta, delta, 400, rules)
    mass, error = FIVE if kind == "five" else HOSTILE[name]
    counts = np.round(np.array(mass) * 10_000).astype(int)
    score, right = (
        np.repeat(np.arange(len(mass), dtype=float), counts),
        np.repeat(1.0 - np.array(error), counts),
    )
    if kind == "five":
        rules = [*MAPIE] if peers else [rule for rule in RULES if rule != "never tested"]
        return measured(name, score, right, n, beta, delta, 1000, rules)
    return measured(
        name,
        score,
        right,
        n,
        beta,
        delta,
        6000,
        ["set aside", "other rows", "ranks, then", "never tested"],
    )


def on_marks(called: str, n: int) -> dict[str, Any]:
    """What a `ScoreGate` of five marks accepts under a promise, beside the most that keeps it."""
    warnings.simplefilter("ignore")
    promise, possible = PROMISES[called]
    mass, error, rng, found = (
        *map(np.array, FIVE),
        np.random.default_rng(n),
        np.zeros(PROMISE_DRAWS),
    )
    for i in range(PROMISE_DRAWS):
        mark = rng.choice(5, n, p=mass)
        groups = {"groups": rng.integers(3, size=n)} if isinstance(promise, mc.PerGroup) else {}
        try:
            gate = mc.ScoreGate(promise, higher_is="doubtful")
            gate.fit(mark.astype(float), rng.random(n) > error[mark], **groups)
        except mc.InfeasibleTargetError:
            continue
        seen = {name: np.zeros(5, dtype=int) for name in groups}
        found[i] = mass[gate.accepts(np.arange(5.0), **seen)].sum()
    return {
        "promise": called,
        "n": n,
        "coverage": round(float(found.mean()), 4),
        "possible": possible,
    }


def summarised(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean share of the oracle's coverage over the files, by variant, size, beta and rule."""
    groups: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for row in records:
        stem, _, variant = str(row["population"]).partition(", ")
        if variant and not stem.startswith("two marks") and float(str(row["oracle"])) >= 0.05:
            key = (variant, row["n"], row["beta"], row["rule"])
            share = min(1.0, float(str(row["coverage"])) / float(str(row["oracle"])))
            groups.setdefault(key, []).append((share, float(str(row["broken"]))))
    names = ("variant", "n", "beta", "rule")
    return [
        {
            **dict(zip(names, key)),
            "sets": len(own),
            "share": round(float(np.mean([share for share, _ in own])), 4),
            "most_broken": max(broken for _, broken in own),
        }
        for key, own in groups.items()
    ]


def in_lines(found: dict[str, Any]) -> str:
    """JSON with a line for each record."""
    parts = (
        f'"{name}": '
        + (
            json.dumps(own)
            if name == "made"
            else "[\n  " + ",\n  ".join(map(json.dumps, own)) + "\n ]"
        )
        for name, own in found.items()
    )
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def main() -> None:
    """Measure, print the summary, write the records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--mapie", action="store_true")
    options = parser.parse_args()
    before = json.loads(RESULT.read_text(encoding="utf-8"))
    files = sorted(path for path in options.data.glob("*.npz"))
    variants = ("two decimals", "calibrated, two decimals", "unrounded")
    tasks = [
        ("file", f"{path}|{variant}", n, beta, 0.1)
        for n, beta in ASKED
        for path in files
        for variant in variants
    ]
    tasks += [("five", "five marks", n, beta, 0.1) for n, beta in ASKED]
    if not options.mapie:
        tasks += [
            ("hostile", name, n, 0.9, delta)
            for name in HOSTILE
            for n in (1000, 5000)
            for delta in (0.1, 0.01)
        ]
    records = [
        row
        for rows in in_order(task, [(*one, options.mapie) for one in tasks], options.jobs)
        for row in rows
    ]
    if options.mapie:
        found = before | {"mapie": records}
    else:
        marks = list(
            in_order(
                on_marks, [(called, n) for called in PROMISES for n in (1000, 5000)], options.jobs
            )
        )
        found = {
            "promises": marks,
            "summary": [],
            "records": records,
            "mapie": before.get("mapie", []),
        }
    found["summary"] = summarised(found["records"] + same_rows(found["records"], found["mapie"]))
    for name in ("promises", "summary"):
        print(*found[name], sep="\n")
    options.out.write_text(in_lines(found), encoding="utf-8")


if __name__ == "__main__":
    main()
