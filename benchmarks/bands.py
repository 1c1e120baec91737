"""Behind metacal.promises.rules.levels and .bands: the table of local levels, how often true curves leave their bands.

python -m benchmarks.bands levels        # print the table of src/metacal/levels.py (about 5 minutes)
python -m benchmarks.bands exits         # 500 draws of 1,000 and 5,000 rows from each set (about 2 minutes)
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from metacal import datasets
from metacal.promises.rules.bands import operating_bands
from metacal.promises.rules.levels import LEVELS, exit_probability
from metacal.rows import Rows
from metacal.scores import score_rows

HERE = Path(__file__).resolve().parent
DRAWS, DELTA = 500, 0.1


def print_levels() -> None:
    """-log(1 - exit probability) / level for n = 1, 2, 4, …, 65,536, as the module has it."""
    for power in range(17):
        exits = [-np.log1p(-exit_probability(2**power, level)) / level for level in LEVELS]
        print("        [" + ", ".join(f"{value:.5g}" for value in exits) + "],", flush=True)


def print_exits() -> None:
    """The share of draws in which the true miscoverage, accuracy, coverage or any of them leaves its band anywhere."""
    for name in (*datasets.names(), *datasets.names(folder=HERE / "data")):
        data = datasets.load(name, folder=None if name in datasets.names() else HERE / "data")
        scores, correct = score_rows(Rows(data.logits), "entropy"), data.logits.argmax(axis=1) == data.labels
        thresholds, codes = np.unique(scores, return_inverse=True)
        rows, right = np.cumsum(np.bincount(codes)), np.cumsum(np.bincount(codes, correct))
        truth = [1 - right / right[-1], right / rows, rows / rows[-1]]
        for n in (1000, 5000):
            rng, left = np.random.default_rng(n), np.zeros(4)
            for _ in range(DRAWS):
                drawn = rng.integers(0, len(scores), n)
                found = operating_bands(scores[drawn], correct[drawn], DELTA, thresholds)
                bands = found.miscoverage, found.accuracy, found.coverage
                out = [bool(((t < b.lower) | (t > b.upper)).any()) for t, b in zip(truth, bands, strict=True)]
                left += [*out, any(out)]
            print(f"{name:24} n = {n}: {(left / DRAWS).round(3)}", flush=True)


if __name__ == "__main__":
    {"levels": print_levels, "exits": print_exits}[sys.argv[1]]()
