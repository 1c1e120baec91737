"""Decisions on a GPU at thresholds next to the score of a row, against NumPy's scores.

    python -m benchmarks.device_thresholds --out device-thresholds.json

The GPU compares an approximate score with the threshold and computes the exact score only near it.
Thresholds next to the score of a row, between two points of the grid, attack this. The rows contain
ties, masked classes, and classes so probable that one minus their probability rounds to nothing.
It takes a minute on a GPU; without one, small tables are compared.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metacal.kernels import torch as device_kernels
from metacal.rows import Rows
from metacal.rows.arrays import to_numpy
from metacal.scores import get_rounding_grid, resolve_score, score_rows

SCORES = ("entropy", "max_probability", "margin", "energy")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
CLASS_COUNTS = (2, 3, 10, 100, 1000, 9000, 32_000)
#: Numbers of classes that are compared without a GPU.
CLASS_COUNTS_OF_HOST = (2, 3, 10)
LOGIT_SCALES = (0.02, 1.0, 8.0, 60.0)
#: Thresholds of each table and score.
N_THRESHOLDS = 12
MAX_ENTRIES = 4_000_000


def draw_logits(n_classes: int, scale: float, rng: np.random.Generator) -> torch.Tensor:
    """Draw rows of logits. Some are nearly certain, some have ties and some a masked class."""
    n_rows = min(4000, max(64, MAX_ENTRIES // n_classes))
    logits = torch.tensor(rng.normal(size=(n_rows, n_classes)) * scale)
    n_certain, n_with_ties, n_masked = n_rows // 4, n_rows // 3, n_rows // 2
    gaps = torch.tensor(rng.uniform(28.0, 40.0, n_certain))
    logits[:n_certain, 0] = logits[:n_certain, 1:].max(dim=1).values + gaps
    logits[n_certain:n_with_ties] = logits[n_certain:n_with_ties].round()
    if n_classes > 3:
        logits[n_with_ties:n_masked, 1] = float("-inf")
    return logits


def count_different_decisions(
    logits: torch.Tensor, score_name: str, rng: np.random.Generator
) -> dict[str, int]:
    """Count the decisions of a table, and those that differ from NumPy's scores."""
    is_double = logits.dtype == torch.float64
    host_logits = (logits if is_double else logits.float()).numpy()
    device_logits = logits.cuda() if torch.cuda.is_available() else logits
    host_scores = score_rows(Rows(host_logits), score_name)
    distinct_scores = np.unique(host_scores)
    n_thresholds = min(N_THRESHOLDS, len(distinct_scores))
    grid = get_rounding_grid(score_name)
    formula = resolve_score(score_name).compute_unrounded.formula
    n_different = 0
    for score in rng.choice(distinct_scores, size=n_thresholds, replace=False):
        threshold = grid.make_robust_to_rounding(float(score))
        codes = device_kernels.acceptance_codes(device_logits, formula=formula, threshold=threshold)
        is_accepted = to_numpy(codes == device_kernels.ACCEPTED)
        n_different += int((is_accepted != (host_scores <= threshold)).sum())
    return {"decisions": n_thresholds * len(host_scores), "different": n_different}


def compare_tables() -> list[dict[str, Any]]:
    """Compare the decisions on all tables."""
    rng = np.random.default_rng(0)
    class_counts = CLASS_COUNTS if torch.cuda.is_available() else CLASS_COUNTS_OF_HOST
    results = []
    for dtype in DTYPES:
        for n_classes in class_counts:
            for scale in LOGIT_SCALES:
                logits = draw_logits(n_classes, scale, rng).to(dtype)
                for score_name in SCORES:
                    counts = count_different_decisions(logits, score_name, rng)
                    table = {"dtype": str(dtype), "classes": n_classes, "scale": scale}
                    results.append({**table, "score": score_name, **counts})
    return results


def main() -> None:
    """Compare, write the result and print its totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    tables = compare_tables()
    device_name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    totals = {name: sum(table[name] for table in tables) for name in ("decisions", "different")}
    result = {"device": device_name, "torch": torch.__version__, **totals, "tables": tables}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{totals['different']:,} of {totals['decisions']:,} decisions differ")


if __name__ == "__main__":
    main()
