"""Which score ranks best, and what it costs to find out: scores that share delta, or one chosen on
a part of the rows.

    python -m benchmarks.score_choice --data FOLDER [--draws 60] [--out
    benchmarks/results/score-choice.json]

Every `*.npz` file (`logits`, `labels`) in the folder is a truth of its own; calibration sets are
drawn from its rows with replacement, delta is .1. What counts is the coverage of the whole file at
the certified threshold, none where nothing is certified. Left out are targets that the file meets
as it is, and those that no score meets anywhere.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from benchmarks.experiments.pool import in_order
from metacal.certification.ranking import Ranking
from metacal.certification.rules.fixed_sequence import find_last_passed_rank
from metacal.rows import Rows
from metacal.scores import score_rows
from metacal.scores.registry import get_delta_fractions_of_auto_scores

BETAS, SIZES, DELTA = (0.87, 0.9, 0.95, 0.97, 0.99), (1000, 5000), 0.1
ALONE = ("entropy", "max_probability", "margin", "maxlogit_pnorm", "energy")
SHARED = {
    "auto: shares .8, .1, .1": get_delta_fractions_of_auto_scores(3),
    "the same three at a third each": dict.fromkeys(get_delta_fractions_of_auto_scores(3), 1 / 3),
    "all five at a fifth each": dict.fromkeys(ALONE, 1 / 5),
}
PARTS = {"chosen on a tenth of the rows": 0.1, "chosen on a fifth of the rows": 0.2}


def certified(
    scores: np.ndarray, correct: np.ndarray, beta: float, delta: float
) -> tuple[int, float]:
    """How many calibration rows are accepted, and the threshold."""
    ranking = Ranking.from_scores(scores, correct)
    rank = find_last_passed_rank(ranking, beta, delta)
    return (
        (
            ranking.count_accepted_after_passing_rank(rank),
            ranking.largest_threshold_after_passing_rank(rank),
        )
        if rank
        else (0, -np.inf)
    )


def promising(scores: np.ndarray, correct: np.ndarray, beta: float) -> tuple[int, int]:
    """The longest prefix that is accurate enough on these rows; where that is equal, fewer errors
    on the way.
    """
    ranking = Ranking.from_scores(scores, correct)
    good = ranking.tie_block_end_ranks[
        ranking.cumulative_errors <= (1.0 - beta) * ranking.tie_block_end_ranks + 1e-9
    ]
    return int(good.max(initial=0)), -int(ranking.cumulative_errors.sum())


def one_draw(
    scores: dict[str, np.ndarray], correct: np.ndarray, beta: float
) -> dict[str, tuple[str, float]]:
    """The score that each way takes, and its threshold."""
    found = {name: (name, certified(scores[name], correct, beta, DELTA)[1]) for name in ALONE}
    for title, shares in SHARED.items():
        tried = [
            (certified(scores[name], correct, beta, DELTA * share), name)
            for name, share in shares.items()
        ]
        (_, threshold), name = max(tried, key=lambda one: one[0][0])
        found[title] = name, threshold
    for title, part in PARTS.items():
        few = round(part * len(correct))
        name = max(
            get_delta_fractions_of_auto_scores(3),
            key=lambda name: promising(scores[name][:few], correct[:few], beta),
        )
        found[title] = name, certified(scores[name][few:], correct[few:], beta, DELTA)[1]
    return found


def measure(path: Path, draws: int) -> list[dict[str, float | str]]:
    """One record for each beta and size: mean coverage of each way."""
    with np.load(path) as file:
        logits, labels = file["logits"], file["labels"]
    correct = logits.argmax(axis=1) == labels
    scores = {name: score_rows(Rows(logits), name) for name in ALONE}
    ordered = {name: np.sort(values) for name, values in scores.items()}
    records = []
    for beta in BETAS:
        best = max(promising(values, correct, beta)[0] for values in scores.values())
        if correct.mean() >= beta or best <= 0.001 * len(correct):
            continue
        for n in SIZES:
            rng, total = np.random.default_rng(n), dict.fromkeys((*ALONE, *SHARED, *PARTS), 0.0)
            times = draws if n < 5000 else max(draws // 3, 1)
            for _ in range(times):
                rows = rng.integers(0, len(correct), n)
                drawn = one_draw(
                    {name: values[rows] for name, values in scores.items()}, correct[rows], beta
                )
                for way, (name, threshold) in drawn.items():
                    total[way] += (
                        np.searchsorted(ordered[name], threshold, side="right")
                        / len(correct)
                        / times
                    )
            means = {way: round(float(value), 4) for way, value in total.items()}
            records.append({"set": path.stem, "beta": beta, "n": n, **means})
    return records


def table(records: list[dict[str, float | str]]) -> str:
    """Coverage against entropy alone: mean, smallest and largest difference, how many lose more
    than .005.
    """
    lines = [
        "| | " + " | ".join(f"n = {n:,}" for n in SIZES) + " |",
        "|---" * (len(SIZES) + 1) + "|",
    ]
    for way in (*ALONE[1:], *SHARED, *PARTS):
        cells = []
        for n in SIZES:
            change = np.array([r[way] - r["entropy"] for r in records if r["n"] == n])
            spread = f"{change.min():+.3f} … {change.max():+.3f}"
            cells.append(
                f"{change.mean():+.4f} ({spread}), {int((change < -0.005).sum())} of {len(change)}"
            )
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure every file, print the table, write the records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    begin = time.process_time()
    paths = sorted(options.data.glob("*.npz"))
    found = in_order(measure, ((path, options.draws) for path in paths), options.jobs)
    records = [record for records in found for record in records]
    print(table(records))
    print(f"{time.process_time() - begin:.0f} s CPU")
    if options.out:
        lines = ",\n  ".join(json.dumps(record) for record in records)
        head = f'"draws": {options.draws}, "delta": {DELTA}'
        options.out.write_text(
            "{" + head + ', "records": [\n  ' + lines + "\n]}\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
