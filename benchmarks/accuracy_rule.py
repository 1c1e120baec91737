"""The certified accuracy's former rule and the present one: what they accept, and how often they
are wrong.

    python -m benchmarks.accuracy_rule --data FOLDER [--draws 600] [--out
    benchmarks/results/accuracy-rule.json]

Every `*.npz` file (`logits`, `labels`) in the folder is a truth of its own; calibration sets are
drawn from its rows with replacement. Coverage is given as a share of the oracle's, the largest part
of the ranking that is right at least beta of the time. Nothing certified is no coverage; rows
beyond the oracle are a broken promise and count as none. Configurations where the oracle accepts
nothing or everything ask nothing of a rule and are left out. Where all rows may hold fewer than 20
errors the rule has one start with all of delta; `starts` compares it with three that share delta.
"""

from __future__ import annotations

import argparse
import json
import time
from fractions import Fraction
from pathlib import Path

import numpy as np

from benchmarks.experiments.pool import in_order
from metacal.certification.rank_plan import RankPlan
from metacal.certification.ranking import Ranking
from metacal.certification.rules.fixed_sequence import FixedSequenceRule, count_certified_rows
from metacal.certification.test_sequences import choose_usual_range_starts, plan_rank_ranges
from metacal.rows import Rows
from metacal.scores import score_rows
from metacal.statistics import bounds

BETAS = (0.87, 0.9, 0.95, 0.97, 0.99)
SIZES = (300, 1000, 5000)
DELTA = 0.1


def former_prefix(ranking: Ranking, beta: float, delta: float) -> int:
    """The rule before: a start that labels choose, then a walk. It took accuracy that only falls
    for granted.
    """
    n, least = ranking.n_rows, bounds.error_free_rows_needed(beta, delta)
    if n < 30 * least:
        return _walk(ranking, max(least, min(2 * least, n // 2), n // 3), beta, delta)
    first = bounds.error_free_rows_needed(beta, delta / 80)
    grid = [
        ranking.find_tie_block(rank) for rank in np.round(np.geomspace(first, n, 8)).astype(int)
    ]
    passing = [i for i in grid if _passes(ranking, i, beta, delta / 80)]
    start = (
        ranking.tie_block_end_ranks[max(passing)]
        if passing
        else 2 * bounds.error_free_rows_needed(beta, 0.9 * delta)
    )
    return _walk(ranking, int(start), beta, 0.9 * delta)


def _passes(ranking: Ranking, index: int, beta: float, level: float) -> bool:
    return bool(
        bounds.binomial_p_value(
            ranking.cumulative_errors[index], ranking.tie_block_end_ranks[index], 1.0 - beta
        )
        <= level
    )


def _walk(ranking: Ranking, rank: int, beta: float, level: float) -> int:
    start = ranking.find_tie_block(rank)
    if start >= len(ranking.tie_block_end_ranks) or not _passes(ranking, start, beta, level):
        return 0
    at = np.flatnonzero(np.diff(ranking.cumulative_errors[start:]) > 0) + start + 1
    failed = (
        bounds.binomial_p_value(
            ranking.cumulative_errors[at], ranking.tie_block_end_ranks[at], 1.0 - beta
        )
        > level
    )
    return (
        int(ranking.tie_block_end_ranks[at[failed.argmax()] - 1])
        if failed.any()
        else ranking.n_rows
    )


RULES = {"former": former_prefix, "present": count_certified_rows}


def columns(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Score and correctness of every row, by rising score."""
    with np.load(path) as file:
        logits, labels = file["logits"], file["labels"]
    scores, correct = score_rows(Rows(logits), "entropy"), logits.argmax(axis=1) == labels
    order = np.argsort(scores, kind="stable")
    return scores[order], correct[order]


def measure(scores: np.ndarray, correct: np.ndarray, draws: int) -> list[dict[str, float | str]]:
    """One record for each beta, size and rule: share of the oracle's coverage, share of broken
    promises.
    """
    whole = Ranking.from_scores(scores, correct)
    accuracy = 1.0 - whole.cumulative_errors / whole.tie_block_end_ranks
    oracle = {
        beta: int(whole.tie_block_end_ranks[accuracy >= beta].max(initial=0)) for beta in BETAS
    }
    asked = [beta for beta in BETAS if 0 < oracle[beta] < whole.n_rows]
    records = []
    for n in SIZES:
        rng = np.random.default_rng(n)
        found = np.zeros((len(asked), len(RULES), draws, 2))
        for i in range(draws):
            rows = rng.integers(0, whole.n_rows, n)
            ranking = Ranking.from_scores(scores[rows], correct[rows])
            for b, beta in enumerate(asked):
                for r, rule in enumerate(RULES.values()):
                    accepted = rule(ranking, beta, DELTA)
                    if accepted:
                        last = (
                            np.searchsorted(
                                whole.tie_block_scores,
                                ranking.largest_threshold_accepting_exactly(accepted),
                                side="right",
                            )
                            - 1
                        )
                        found[b, r, i] = (
                            min(1.0, whole.tie_block_end_ranks[last] / oracle[beta]),
                            accuracy[last] < beta,
                        )
        records += [
            {
                "beta": beta,
                "n": n,
                "rule": rule,
                "coverage": round(float(c), 4),
                "broken": round(float(v), 4),
            }
            for b, beta in enumerate(asked)
            for rule, (c, v) in zip(RULES, found[b].mean(axis=1))
        ]
    return records


def one_or_three_starts(path: Path, draws: int) -> list[dict[str, float | str]]:
    """Where few errors are allowed in all: the share of the oracle's coverage with one start, and
    with three.
    """
    scores, correct = columns(path)
    whole, records = Ranking.from_scores(scores, correct), []
    accuracy = 1.0 - whole.cumulative_errors / whole.tie_block_end_ranks
    for n, beta in ((n, beta) for n in (150, *SIZES) for beta in BETAS if n * (1.0 - beta) < 19.99):
        oracle, errors = (
            int(whole.tie_block_end_ranks[accuracy >= beta].max(initial=0)),
            n * (1.0 - beta),
        )
        if not 0 < oracle < whole.n_rows:
            continue
        first, share = (
            choose_usual_range_starts(n, beta, DELTA)[0][0],
            (Fraction("0.95"), Fraction("0.03"), Fraction("0.02")),
        )
        three = tuple(
            zip(
                (first, max(first + 1, int(0.3 * errors)), max(first + 2, int(0.65 * errors))),
                share,
            )
        )
        rng, found = np.random.default_rng(n), np.zeros((draws, 2))
        for i in range(draws):
            rows = rng.integers(0, whole.n_rows, n)
            ranking = Ranking.from_scores(scores[rows], correct[rows])
            for j, starts in enumerate((None, three)):
                plan = RankPlan(beta, rank_ranges=plan_rank_ranges(n, beta, DELTA, starts))
                trace = FixedSequenceRule().certify(ranking, plan, DELTA).trace
                if trace is not None and (accepted := trace.highest_passed_rank):
                    last = (
                        np.searchsorted(
                            whole.tie_block_scores,
                            ranking.largest_threshold_accepting_exactly(accepted),
                            side="right",
                        )
                        - 1
                    )
                    found[i, j] = min(1.0, whole.tie_block_end_ranks[last] / oracle)
        one, three_starts = found.mean(axis=0).round(4).tolist()
        records.append({"set": path.stem, "n": n, "beta": beta, "one": one, "three": three_starts})
    return records


def measure_file(path: Path, draws: int) -> list[dict[str, float | str]]:
    """The records of one file."""
    return [{"set": path.stem, **record} for record in measure(*columns(path), draws)]


def table(records: list[dict[str, float | str]]) -> str:
    """Mean share of the oracle's coverage over the sets, former / present, and the worst share of
    broken promises.
    """
    lines = ["| n | " + " | ".join(f"β = {beta:g}" for beta in BETAS) + " | all | most broken |"]
    lines.append("|---" * (len(BETAS) + 3) + "|")
    for n in SIZES:
        cells = []
        for betas in (*((beta,) for beta in BETAS), BETAS):
            pairs = [
                np.mean(
                    [
                        r["coverage"]
                        for r in records
                        if r["rule"] == rule and r["n"] == n and r["beta"] in betas
                    ]
                )
                for rule in RULES
            ]
            cells.append(" / ".join(f"{value:.3f}" for value in pairs))
        most = [
            max(r["broken"] for r in records if r["rule"] == rule and r["n"] == n) for rule in RULES
        ]
        lines.append(
            f"| {n:,} | "
            + " | ".join(cells)
            + " | "
            + " / ".join(f"{value:.3f}" for value in most)
            + " |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure every file, print the table and the largest losses, write the records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=600)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    begin = time.process_time()
    paths = sorted(options.data.glob("*.npz"))
    found = in_order(measure_file, ((path, options.draws) for path in paths), options.jobs)
    records = [record for records in found for record in records]
    print(table(records))
    pairs = [
        (new["coverage"] - old["coverage"], new) for old, new in zip(records[::2], records[1::2])
    ]
    for change, record in sorted(pairs, key=lambda pair: pair[0])[:8]:
        print(f"{record['set']}, beta {record['beta']}, n {record['n']}: {change:+.3f}")
    print(
        f"mean change {np.mean([change for change, _ in pairs]):+.4f};"
        f" {time.process_time() - begin:.0f} s CPU"
    )
    few = in_order(one_or_three_starts, ((path, options.draws) for path in paths), options.jobs)
    starts = [record for found in few for record in found]
    for n, beta in sorted({(record["n"], record["beta"]) for record in starts}):
        own = [
            record["one"] - record["three"]
            for record in starts
            if (record["n"], record["beta"]) == (n, beta)
        ]
        print(
            f"one start less three, n {n}, beta {beta}: {np.mean(own):+.4f}, at least"
            f" {min(own):+.4f}"
        )
    if options.out:
        lines = ",\n  ".join(json.dumps(record) for record in records)
        head = f'"draws": {options.draws}, "delta": {DELTA}'
        more = ",\n  ".join(json.dumps(record) for record in starts)
        text = "{" + head + ', "records": [\n  ' + lines + '\n], "starts": [\n  ' + more + "\n]}\n"
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
