"""A billion rows certified from counts: scores made in the worker from a seed, nothing stored.

    PYTHONPATH=src python -m benchmarks.billion --rows 1e9 --jobs 2 --out
    benchmarks/results/billion-rows.json

Row i has the score r = (a·i + b) mod n, a and n without a common divisor: every score 0 … n - 1
comes once, in an order that looks like none. Whether a row is right is drawn from its score by a
hash: wrong with a probability that rises from .002 to .2. So the sorted order is known without
sorting, and the certificate can be checked at full size by something else than counting: a walk
along r = 0, 1, 2, … in blocks, which adds up the errors and tests every error's rank by SciPy's
binomial distribution wherever Chernoff's bound does not settle it.

Up to ten million rows the certificate is compared with that of sorting, field by field.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import bdtr, bdtrc

from metacal.certificates.certificate import Certificate
from metacal.certification import passes as counting
from metacal.certification.test_sequences import plan_rank_ranges
from metacal.promises import MaxMiscoverage, MinAccuracy

#: Rows of a block, and rows that are made at once, which stay in a core's cache.
BLOCK, _AT_ONCE = 1 << 20, 1 << 16
_ODD = 0x9E3779B97F4A7C15


def right_of(ranks: np.ndarray[Any, Any], n: int) -> np.ndarray[Any, Any]:
    """Whether the rows of these scores are right: a hash of the score (SplitMix64's finish) against
    a rising chance.
    """
    z = ranks.astype(np.uint64)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(29)
    z *= np.uint64(0x94D049BB133111EB)
    z >>= np.uint64(32)
    share = ranks * (1.0 / n)
    return z >= (0.002 + 0.198 * share * share) * 2.0**32


def rows_of(n: int, seed: int, start: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The scores and flags of the block that begins with row `start`."""
    step = (_ODD + 2 * seed) % n | 1
    while math.gcd(step, n) > 1:
        step += 2
    stop = min(start + BLOCK, n)
    scores, right = np.empty(stop - start), np.empty(stop - start, dtype=bool)
    for at in range(start, stop, _AT_ONCE):
        end = min(at + _AT_ONCE, stop)
        first = (step * at + seed) % n
        ranks = (first + np.arange(end - at, dtype=np.uint64) * np.uint64(step)) % np.uint64(n)
        scores[at - start : end - start] = ranks
        right[at - start : end - start] = right_of(scores[at - start : end - start], n)
    return scores, right


def by_walking(n: int, beta: float, delta: float) -> int:
    """The highest rank that the fixed sequence certifies, along the known order; nothing of
    `metacal` but its plan.
    """
    best, level = 0, 0.0
    plan = plan_rank_ranges(n, beta, delta)
    for part in plan:
        level += float(part.level_fraction)
        failed = _first_failure(n, 1.0 - beta, level * delta, part)
        passed = part.rank_tests.highest_tested_rank_below(failed)
        best = passed if passed >= part.start_rank else best
        level = 0.0 if failed < part.stop_rank else level
    return best


def _first_failure(n: int, rate: float, level: float, part: Any) -> int:
    """The first rung of a part of the plan whose test fails: at its start, or at or behind an
    error.
    """
    errors, limit = 0, -2.0 * math.log(level) * 1.001
    for low in range(0, min(n, part.stop_rank), BLOCK):
        high = min(low + BLOCK, n)
        wrong = np.flatnonzero(~right_of(np.arange(low, high, dtype=np.float64), n)) + low + 1
        counts = errors + np.arange(1, len(wrong) + 1)
        errors += len(wrong)
        if low < part.start_rank <= high:  # the first test stands behind no error of its own
            before = int(np.searchsorted(wrong, part.start_rank, side="right"))
            wrong, counts = (
                np.insert(wrong, before, part.start_rank),
                np.insert(counts, before, errors - len(wrong) + before),
            )
        here = (wrong >= part.start_rank) & (wrong < part.stop_rank)
        at, seen = wrong[here], counts[here]
        room = at * rate - seen
        close = (room <= 0) | (room * room < limit * rate * at)
        for i in np.flatnonzero(close):
            rung = part.rank_tests.lowest_tested_rank_at_least(int(at[i]))
            following = at[i + 1] if i + 1 < len(at) else min(high + 1, part.stop_rank)
            if rung < following and bdtr(float(seen[i]), rung, rate) > level:
                return rung
    return part.stop_rank


def checked_miscoverage(n: int, alpha: float, delta: float, found: Certificate) -> bool:
    """The threshold is the order statistic of the smallest rank that will do, counted along the
    known order.
    """
    total = sum(
        int(right_of(np.arange(at, min(at + BLOCK, n), dtype=np.float64), n).sum())
        for at in range(0, n, BLOCK)
    )
    upto = int(found.highest_accepted or 0) + 1
    kept = sum(
        int(right_of(np.arange(at, min(at + BLOCK, upto), dtype=np.float64), n).sum())
        for at in range(0, upto, BLOCK)
    )
    enough, fewer = (float(bdtrc(rank - 1, total, 1.0 - alpha)) for rank in (kept, kept - 1))
    last_is_right = bool(right_of(np.array([upto - 1.0]), n)[0])
    counts = (found.n_rows, found.n_correct, found.n_accepted, found.n_correct_accepted) == (
        n,
        total,
        upto,
        kept,
    )
    return counts and last_is_right and enough <= delta < fewer


def measured(promise: Any, n: int, jobs: int, seed: int) -> tuple[Certificate, dict[str, Any]]:
    """The certificate, and what it took."""
    passes: list[int] = []
    one_pass = counting._count_all_blocks

    def noting(*arguments: Any) -> Any:
        passes.append(arguments[-1].n_cells)
        return one_pass(*arguments)

    counting._count_all_blocks = noting
    start, used = time.perf_counter(), _cpu()
    try:
        with ProcessPoolExecutor(jobs) as pool:
            found = promise.certify(
                counting.Passes.over(partial(rows_of, n, seed), range(0, n, BLOCK), executor=pool)
            )
    finally:
        counting._count_all_blocks = one_pass
    return found, {
        "passes": len(passes),
        "cpu seconds": round(_cpu() - used, 1),
        "wall seconds": round(time.perf_counter() - start, 1),
        "driver memory, MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "worker memory, MB": round(
            resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, 1
        ),
    }


def _cpu() -> float:
    own, others = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def main() -> None:
    """Certify, check, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e9)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    n = int(asked.rows)
    answer: dict[str, Any] = {"rows": n, "seed": asked.seed, "jobs": asked.jobs}
    answer["machine"] = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    certificates = {}
    for promise in (
        MaxMiscoverage(0.05),
        MinAccuracy(0.97),
    ):  # both before any check, which needs more memory
        found, cost = measured(promise, n, asked.jobs, asked.seed)
        counted = {
            name: getattr(found, name)
            for name in ("n_correct", "n_accepted", "n_correct_accepted", "threshold")
        }
        certificates[promise.__class__.__name__] = promise, found
        answer[type(promise).__name__] = {**cost, **counted}
        print(promise, answer[type(promise).__name__], file=sys.stderr)
    for name, (promise, found) in certificates.items():
        answer[name]["exact"] = checked(promise, found, n, asked.seed)
        print(name, "exact:", answer[name]["exact"], file=sys.stderr)
    if asked.out is not None:
        asked.out.write_text(json.dumps(answer, indent=2) + "\n")


def checked(promise: Any, found: Certificate, n: int, seed: int) -> bool:
    """Whether the certificate is the one that the known order gives and, of fewer rows, the one of
    sorting.
    """
    if isinstance(promise, MaxMiscoverage):
        right = checked_miscoverage(n, promise.alpha, 0.1, found)
    else:
        right = by_walking(n, promise.beta, 0.1) == found.n_accepted
    if n > 10_000_000:
        return right
    blocks = (rows_of(n, seed, at) for at in range(0, n, BLOCK))
    return right and promise.certify(*(np.concatenate(column) for column in zip(*blocks))) == found


if __name__ == "__main__":
    main()
