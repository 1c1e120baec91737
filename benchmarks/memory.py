"""Older rows that say where tests begin: what they gain, what those of another source cost, and whether promises hold.

    python -m benchmarks.memory --data FOLDER [--jobs 16] [--out benchmarks/results/memory.json]

Every `*.npz` file (`logits`, `labels`) is a truth of its own: entropies of the logits, and confidences with two
decimals. New rows and 2,000 older ones, or as many as there are new ones, are drawn from it with replacement; the older
ones of "another" are of two other files in turn. `gate`: what an older gate knows of its rows. Coverage is a share of
the oracle's, less what the same rows carry without older ones. `known`: from the one start that is best on average,
were the truth known, which no choice by older rows exceeds. Then populations and older rows that are made to break a
promise. About a minute on 16 cores.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import metacal as mc
from benchmarks.accuracy_rule import columns
from benchmarks.experiments.pool import in_order
from benchmarks.ties import Draw, confidences, from_each_start
from metacal.promises.rules.memory import Memory
from metacal.promises.rules.sequence import Ladder, last_passed, walk
from metacal.promises.sample import Ranking, Sample
from metacal.promises.scouts import Scouting

HERE = Path(__file__).resolve().parent
SIZES, BETAS, DELTA = (300, 1000, 5000), (0.95, 0.97, 0.99), 0.1
#: Samples of older rows, and of new rows for each.
OLDER, NEW = 8, 20
#: The error rate along the ranking, of which beta = 0.9 allows 0.1 on average.
HOSTILE = {
    "flat": lambda u: np.full_like(u, 0.1001),
    "dip": lambda u: np.where((u > 0.2) & (u < 0.4), 0.0, np.where(u < 0.2, 0.11, 0.12)),
    "early errors": lambda u: np.where(u < 0.1, 0.3, np.where(u < 0.5, 0.051, 0.11)),
    "oscillating": lambda u: np.where((20 * u).astype(int) % 2, 0.06, 0.142),
}

Column = NDArray[np.float64]
Flags = NDArray[np.bool_]


def rows_of(path: Path, kind: str) -> tuple[Column, Flags]:
    """Score and correctness of every row."""
    if kind == "logits":
        return columns(path)
    score, right = confidences(path, calibrated=False)
    return score.round(2), right


def threshold(sample: Sample, beta: float) -> float:
    """What the rule for an accuracy accepts."""
    rank = last_passed(sample.ranking, beta, DELTA)
    return sample.ranking.threshold_at(rank) if rank else -np.inf


def samples(score: Column, right: Flags, older: tuple[Column, Flags], kind: str, seed: int) -> Iterator[Sample]:
    """New rows without older ones, with their say, and where the same source is declared."""
    plain = Sample(score, right)
    tested = plain if kind == "logits" else Scouting(seed).of(plain)
    yield tested
    ranking = Ranking.of(*older)
    yield replace(tested, memory=Memory.of(ranking))
    told = plain if kind == "logits" else Scouting(older=older[0]).of(plain)
    yield replace(told, memory=Memory.of(ranking, declared=True))


def gate_memory(older: tuple[Column, Flags], beta: float) -> Memory | None:
    """What a gate of the older rows knows; None where there is none."""
    try:
        gate = mc.ScoreGate(mc.MinAccuracy(beta), higher_is="doubtful").fit(*older).gate_
    except mc.InfeasibleTargetError:
        return None
    return Memory.of_gate(gate.certificate, gate.profile)


def best_start(whole: Ranking, score: Column, right: Flags, kind: str, n: int, beta: float, oracle: int) -> float:
    """The share of the oracle's coverage that the best of all fixed starts has on average."""
    rng, found = np.random.default_rng([n, int(1e4 * beta), 1]), []
    starts = np.unique(np.geomspace(1, max(1, Ladder(n, 1.0 - beta, DELTA).most_errors(n) + 1), 20).astype(int) - 1)
    for _ in range(OLDER * NEW):
        rows = rng.integers(0, whole.n, n)
        if kind == "logits":
            ranking = Ranking.of(score[rows], right[rows])
            ends = [walk(ranking, beta, DELTA, starts=((int(at), Fraction(1)),)).best for at in starts]
            last = np.searchsorted(whole.scores, [ranking.threshold_at(m) if m else -np.inf for m in ends], "right")
        else:
            last = from_each_start(Draw(score[rows], right[rows], score[:0], rng), whole.scores, beta, DELTA)
        found.append(np.minimum(1.0, np.append(0, whole.ranks)[last] / oracle))
    return float(np.mean(found, axis=0).max())


def measured(path: str, others: tuple[str, ...], kind: str, n: int, beta: float) -> list[dict[str, Any]]:
    """The records of one file at one size: the mean gain of each way, and how often promises break."""
    warnings.simplefilter("ignore")
    score, right = rows_of(Path(path), kind)
    whole = Ranking.of(score, right)
    accuracy = 1.0 - whole.errors / whole.ranks
    oracle = int(whole.ranks[accuracy >= beta].max(initial=0))
    if not 0.05 * whole.n <= oracle < whole.n:
        return []
    sources = {"same": (score, right), **{f"another {i}": rows_of(Path(o), kind) for i, o in enumerate(others)}}
    rng, known_best = (
        np.random.default_rng([n, int(1e4 * beta)]),
        best_start(whole, score, right, kind, n, beta, oracle),
    )
    names = ("without", "default", "declared", "gate")
    records = []
    for (source, (old_score, old_right)), size in ((s, m) for s in sources.items() for m in sorted({n, 2000})):
        found = np.zeros((4, OLDER * NEW, 2))
        for i in range(OLDER):
            rows = rng.integers(0, len(old_score), size)
            older = old_score[rows], old_right[rows]
            known = gate_memory(older, beta)
            for j in range(NEW):
                rows = rng.integers(0, whole.n, n)
                ways = list(samples(score[rows], right[rows], older, kind, i * NEW + j))
                ways.append(replace(ways[0], memory=known))
                for w, way in enumerate(ways):
                    last = int(np.searchsorted(whole.scores, threshold(way, beta), side="right")) - 1
                    if last >= 0:
                        found[w, i * NEW + j] = min(1.0, whole.ranks[last] / oracle), accuracy[last] < beta
        share, broken = found.mean(axis=1).T.round(4).tolist()
        share.append(round(known_best, 4))
        at = {"set": Path(path).stem, "kind": kind, "n": n, "beta": beta, "older": size, "source": source}
        records.append({**at, "share": dict(zip((*names, "known"), share)), "broken": dict(zip(names, broken))})
    return records


def hostile(name: str, n: int, draws: int = 3000) -> list[dict[str, Any]]:
    """Promises broken on one population, with older rows that mislead."""
    rate, rng = HOSTILE[name], np.random.default_rng([n, len(name)])
    fine = (np.arange(100_000) + 0.5) / 100_000
    true = np.cumsum(rate(fine)) / np.arange(1, 100_001)
    ranks = np.arange(2000)
    misleading = {
        "all right": ranks >= 0,
        "wrong first": ranks > 100,
        "wrong last": ranks < 1700,
        "every tenth": ranks % 10 > 0,
        "the population's own": rng.random(2000) > rate((ranks + 0.5) / 2000),
    }
    memories = {
        f"{older}{', declared' * declared}": Memory.of(Ranking.of(ranks.astype(float), right), declared=declared)
        for older, right in misleading.items()
        for declared in (False, True)
    }
    broken = dict.fromkeys(memories, 0)
    for _ in range(draws):
        u = rng.random(n)
        plain = Ranking.of(u, rng.random(n) > rate(u))
        for key, memory in memories.items():
            ranking = replace(plain, memory=memory)
            if rank := last_passed(ranking, 0.9, DELTA):
                broken[key] += bool(true[int(99_999 * min(1.0, ranking.threshold_at(rank)))] > 0.1)
    return [{"population": name, "n": n, "older": key, "broken": count / draws} for key, count in broken.items()]


def task(kind: str, *given: Any) -> list[dict[str, Any]]:
    """The records of one piece of work."""
    return hostile(*given) if kind == "hostile" else measured(*given)


def summarised(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean gains over files and sizes, by kind of score, beta and source; and over all."""
    rows = []
    for kind in ("logits", "two decimals", None):
        for beta in (*BETAS, None):
            for source in ("same", "another"):
                own = [
                    row
                    for row in records
                    if (kind in (None, row["kind"]))
                    and row["source"].startswith(source)
                    and beta in (None, row["beta"])
                ]
                if not own:  # the oracle accepts too little there
                    continue
                gains = {
                    way: round(float(np.mean([row["share"][way] - row["share"]["without"] for row in own])), 4)
                    for way in ("default", "declared", "gate", "known")[: 4 if source == "same" else 3]
                }
                most = max(max(row["broken"].values()) for row in own)
                rows.append({"kind": kind, "beta": beta, "source": source, **gains, "most_broken": most})
    return rows


def main() -> None:
    """Measure, print the summary, write the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "memory.json")
    options = parser.parse_args()
    files = [str(path) for path in sorted(options.data.glob("*.npz"))]
    tasks: list[tuple[Any, ...]] = [("hostile", name, n) for name in HOSTILE for n in (300, 1000)]
    for n in reversed(SIZES):
        for i, path in enumerate(files):
            others = tuple(files[(i + step) % len(files)] for step in (1, 6))
            tasks += [("file", path, others, kind, n, beta) for kind in ("logits", "two decimals") for beta in BETAS]
    records = [row for rows in in_order(task, tasks, options.jobs) for row in rows]
    made = [row for row in records if "population" in row]
    records = [row for row in records if "population" not in row]
    summary = summarised(records)
    for row in [*summary, *made]:
        print(row)
    parts = {"summary": summary, "hostile": made, "records": records}
    text = ",\n".join(f'"{name}": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n]" for name, rows in parts.items())
    options.out.write_text("{" + text + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
