"""What of a Meta-Cal fit one thread does alone: each part by itself, on scores of 200,000 rows.

    PYTHONPATH=src python -m benchmarks.speed.serial --rows 200000 --out serial.json

The table is read by all threads; the scores that come out of it are ranked, tested and hashed by
one. CPU time of the calling thread, milliseconds, the least of several (memory that was used before
is used again, as in a long process).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from metacal.certificates.fingerprint import fingerprint_rows
from metacal.certificates.row_checks import find_notes_on_errors_and_ties
from metacal.certification import test_sequences as sequence
from metacal.certification.ranking import Ranking
from metacal.certification.rules.fixed_sequence import count_certified_rows
from metacal.kernels.grid import RELATIVE_GRID
from metacal.promises import MaxMiscoverage, MinAccuracy
from metacal.promises.sequential.profile import build_profile


def parts(n: int) -> dict[str, Callable[[], Any]]:
    """The parts, as functions without arguments."""
    rng = np.random.default_rng(0)
    scores = RELATIVE_GRID.round(rng.exponential(size=n))
    correct = rng.random(n) < np.exp(-0.5 * scores)
    ranking = Ranking.from_scores(scores, correct)
    accuracy, miscoverage = MinAccuracy(0.8), MaxMiscoverage(0.05)

    def tests() -> Any:
        sequence.plan_rank_ranges.cache_clear()
        return count_certified_rows(ranking, accuracy.beta, 0.1)

    return {
        "np.sort of the scores": lambda: np.sort(scores),
        "ranking": lambda: Ranking.from_scores(scores, correct),
        "binomial tests": tests,
        "certify an accuracy, in all": lambda: accuracy.certify(scores, correct),
        "certify a miscoverage, in all": lambda: miscoverage.certify(scores, correct),
        "remarks on ties, and the profile": lambda: (
            find_notes_on_errors_and_ties(ranking),
            build_profile(ranking),
        ),
        "data_hash": lambda: fingerprint_rows(scores, correct).data_hash,
    }


def least(job: Callable[[], Any], times: int) -> float:
    """Milliseconds."""
    found = []
    for _ in range(times):
        start = time.thread_time()
        job()
        found.append(time.thread_time() - start)
    return round(1e3 * min(found), 3)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = {name: least(job, asked.times) for name, job in parts(asked.rows).items()}
    answer = {"rows": asked.rows, "milliseconds": found}
    for name, value in found.items():
        print(f"{value:9.3f} ms  {name}", file=sys.stderr)
    if asked.out is not None:
        asked.out.write_text(json.dumps(answer, indent=2) + "\n")


if __name__ == "__main__":
    main()
