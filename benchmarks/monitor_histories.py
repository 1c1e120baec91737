"""Thousands of simulated histories of `metacal monitor` (tests/simulation/test_monitor.py): python
FILE [FROM] [TO].

Each has a log that is written in pieces, rotated and cut off, a disk that tears, fills and forgets,
and processes that are killed; what must hold is checked at its end. A history that breaks a law is
named by its seed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from simulation.test_monitor import check


def main(first: int = 0, last: int = 10_000) -> int:
    """Run them all; 1 where one is broken."""
    began, broken, deaths, gaps, whole = time.time(), list[int](), 0, 0, 0
    for seed in range(first, last):
        if seed % 250 == 0:
            print(f"{seed - first:,} of {last - first:,}", file=sys.stderr, flush=True)
        try:
            history = check(seed)
        except AssertionError:
            broken.append(seed)
            print(f"broken: {seed}", flush=True)
            continue
        deaths += history.world.deaths
        gaps += history.watch.gaps > 0
        whole += not history.folder.destroyed
    print(
        f"{last - first:,} histories, {deaths:,} processes killed, {whole:,} without destroyed"
        f" lines, {gaps:,} with a gap that was said; {len(broken)} broken {broken[:20]};"
        f" {time.time() - began:.0f} s"
    )
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
